//! What statements leave with their connection.

use read_router::{NotRead, StatementKind};

use crate::control::{is_several, words};

/// What a statement leaves with its connection, where the next user of the connection would find it: a setting, a channel,
/// a temporary table, a lock, a prepared statement. What a transaction sets for itself ends with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Left {
    /// Nothing, as far as no trigger does it.
    #[default]
    Nothing,
    /// Nothing that shows: it calls what is not known, which may do anything.
    Unknown,
    /// Something.
    Something,
}

/// Statements that leave nothing by themselves, as far as they do not write to [`SETTINGS`].
const DATA: [&str; 5] = ["INSERT", "UPDATE", "DELETE", "MERGE", "COPY"];
const CONTROL: [&str; 8] = ["BEGIN", "START", "COMMIT", "ROLLBACK", "END", "ABORT", "SAVEPOINT", "RELEASE"];
const DEFINITIONS: [&str; 14] = [
    "ALTER", "DROP", "GRANT", "REVOKE", "TRUNCATE", "COMMENT", "REFRESH", "VACUUM", "ANALYZE", "CLUSTER", "REINDEX",
    "REASSIGN", "SECURITY", "IMPORT",
];
const OTHERS: [&str; 7] = ["FETCH", "MOVE", "CLOSE", "SHOW", "NOTIFY", "LOCK", "CHECKPOINT"];
/// Those that run what does not show.
const OPAQUE: [&str; 8] = ["SELECT", "WITH", "VALUES", "TABLE", "EXPLAIN", "CALL", "DO", "EXECUTE"];
/// Words of a text that leaves something, wherever they stand in it.
const WORDS: [&str; 11] =
    ["SET", "RESET", "LISTEN", "UNLISTEN", "TEMP", "TEMPORARY", "PREPARE", "DEALLOCATE", "DISCARD", "LOAD", "HOLD"];
/// Functions that do.
const FUNCTIONS: [&str; 6] = [
    "pg_advisory_lock",
    "pg_advisory_lock_shared",
    "pg_try_advisory_lock",
    "pg_try_advisory_lock_shared",
    "dblink_connect",
    "pg_temp",
];

/// The view by which settings are changed, too.
const SETTINGS: [&str; 1] = ["pg_settings"];

impl Left {
    /// Of a statement of this kind.
    pub(crate) fn by(kind: StatementKind, sql: &str) -> Self {
        if kind.is_read() {
            return Self::Nothing;
        }
        let is_one_of = |word: &str, list: &[&str]| list.iter().any(|one| word.eq_ignore_ascii_case(one));
        let has = |list: &[&str]| words(sql).any(|word| is_one_of(word, list));
        // What looks like a comment may be within a string, so that what follows it is looked at, too.
        let mentions = |list: &[&str]| all_words(sql).any(|word| is_one_of(word, list));
        if mentions(&FUNCTIONS) || names_by_code(sql) || !sets_for_the_transaction_only(sql) {
            return Self::Something;
        }
        let is_query = words(sql).next().is_some_and(|first| is_one_of(first, &["SELECT", "TABLE", "WITH"]));
        if mentions(&SETTINGS) && (!is_query || mentions(&["UPDATE"])) {
            return Self::Something;
        }
        if kind == StatementKind::Primary(NotRead::SeveralStatements) {
            return if mentions(&WORDS) { Self::Something } else { Self::Unknown };
        }
        // A semicolon may stand in a bind, which is text of any kind.
        if is_several(sql) {
            return if has(&WORDS) { Self::Something } else { Self::Unknown };
        }
        let mut words = words(sql);
        let (Some(first), second) = (words.next(), words.next().unwrap_or_default()) else { return Self::Nothing };
        let leaves = match first {
            _ if is_one_of(first, &["PREPARE"]) => !is_one_of(second, &["TRANSACTION"]),
            _ if is_one_of(first, &["SET"]) => !is_one_of(second, &["LOCAL", "TRANSACTION", "CONSTRAINTS"]),
            _ if is_one_of(first, &["CREATE"]) => has(&["TEMP", "TEMPORARY"]),
            _ if is_one_of(first, &["DECLARE"]) => has(&["HOLD"]),
            _ if is_one_of(first, &["DO"]) => has(&WORDS),
            // It runs what it explains.
            _ if is_one_of(first, &["EXPLAIN"]) => has(&["TEMP", "TEMPORARY"]),
            _ if is_one_of(first, &OPAQUE) => has(&["INTO"]) && has(&["TEMP", "TEMPORARY"]),
            _ => ![&DATA[..], &CONTROL, &DEFINITIONS, &OTHERS].iter().any(|list| is_one_of(first, list)),
        };
        match leaves {
            true => Self::Something,
            false if is_one_of(first, &OPAQUE) => Self::Unknown,
            false => Self::Nothing,
        }
    }
}

/// Whether the statement leaves something with the connection that the next statement of the handle may need.
pub(crate) fn leaves_something(kind: StatementKind, sql: &str) -> bool {
    Left::by(kind, sql) == Left::Something
}

/// The words of a text, those of its comments too.
fn all_words(sql: &str) -> impl Iterator<Item = &str> {
    sql.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Whether it has a name whose letters may be written as numbers: `U&"set\005fconfig"`.
fn names_by_code(sql: &str) -> bool {
    sql.contains("U&\"") || sql.contains("u&\"")
}

/// Whether each `set_config` in the text is for the transaction only.
fn sets_for_the_transaction_only(sql: &str) -> bool {
    const NAME: &str = "set_config";
    let lower = sql.to_ascii_lowercase();
    lower.match_indices(NAME).all(|(at, _)| is_third_argument_true(&lower[at + NAME.len()..]))
}

/// Whether the arguments that follow a function's name end with a third one that is the word `true` and nothing else. A bind
/// or an expression may say anything, and what is hard to read is not read.
fn is_third_argument_true(rest: &str) -> bool {
    let Some(rest) = rest.trim_start_matches('"').trim_start().strip_prefix('(') else { return false };
    let (mut depth, mut commas, mut third, mut quote) = (0_usize, 0, String::new(), None);
    let mut before = ' ';
    for c in rest.chars() {
        let is_comment = matches!((before, c), ('-', '-') | ('/', '*'));
        let is_tag = before == '$' && !c.is_ascii_digit();
        before = c;
        if c == '\\' || quote.is_none() && (is_comment || is_tag) {
            return false;
        }
        if let Some(end) = quote {
            if c == end {
                quote = None;
            }
        } else {
            match c {
                '\'' | '"' => quote = Some(c),
                ')' if depth == 0 => return commas == 2 && third.trim() == "true",
                '(' | '[' => depth += 1,
                ')' | ']' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    commas += 1;
                    continue;
                }
                _ => {}
            }
        }
        if commas == 2 {
            third.push(c);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_stays_with_the_connection() {
        for (sql, left) in [
            ("SELECT 1", Left::Nothing),
            ("SELECT pg_advisory_lock(1)", Left::Something),
            ("SELECT * FROM t WHERE PG_TRY_ADVISORY_LOCK(id)", Left::Something),
            ("SELECT pg_advisory_xact_lock(1)", Left::Unknown),
            ("SELECT set_config('a.b', $1, false)", Left::Something),
            ("SELECT set_config($1, $2, $3) -- binds: [\"a.b\", \"c\", true]", Left::Something),
            ("SELECT set_config('a.b', $1, true)", Left::Unknown),
            ("SELECT set_config('a,b', f($1, 'c)'), TRUE )", Left::Unknown),
            ("SELECT set_config('a.b', 'c', true), set_config('a.b', 'c', false)", Left::Something),
            ("SELECT set_config('a.b', 'c', NOT true)", Left::Something),
            ("SELECT set_config('a.b', 'c', true AND $1)", Left::Something),
            ("SELECT set_config('a.b', $$c, true)$$, false)", Left::Something),
            ("SELECT set_config('a.b', E'\\', true)', false)", Left::Something),
            ("SELECT set_config('a.b', 'c', /* , true) */ false)", Left::Something),
            ("SELECT set_config(is_local => true, setting_name => 'a.b', new_value => 'c')", Left::Something),
            ("SELECT '--', \"set_config\"('a.b', 'c', false)", Left::Something),
            ("SELECT '--', pg_advisory_lock(1)", Left::Something),
            ("SELECT U&\"set\\005fconfig\"('a.b', 'c', false)", Left::Something),
            ("UPDATE pg_settings SET setting = 'a' WHERE name = 'b'", Left::Something),
            ("WITH a AS (UPDATE \"pg_settings\" SET setting = 'a' RETURNING 1) SELECT * FROM a", Left::Something),
            ("MERGE INTO pg_catalog.pg_settings USING a ON true WHEN MATCHED THEN DO NOTHING", Left::Something),
            ("SELECT f(setting) FROM pg_settings", Left::Unknown),
            ("EXPLAIN ANALYZE CREATE TEMP TABLE a AS SELECT 1", Left::Something),
            ("EXPLAIN (ANALYZE) SELECT 1 INTO TEMPORARY a", Left::Something),
            ("EXPLAIN ANALYZE EXECUTE a", Left::Unknown),
            ("EXPLAIN ANALYZE UPDATE pg_settings SET setting = 'a'", Left::Something),
            ("SELECT '--'; SET a.b = 1", Left::Something),
            ("SELECT f()", Left::Unknown),
            ("CALL f()", Left::Unknown),
            ("SELECT * INTO TEMP a FROM b", Left::Something),
            ("WITH a AS (SELECT f()) SELECT * FROM a", Left::Unknown),
            ("EXECUTE a", Left::Unknown),
            ("INSERT INTO a VALUES (1)", Left::Nothing),
            ("UPDATE \"a\" SET \"temp\" = $1 -- binds: [\"SET a; LISTEN b\"]", Left::Something),
            ("UPDATE \"a\" SET \"temp\" = $1 -- binds: [7]", Left::Nothing),
            ("COPY a FROM STDIN", Left::Nothing),
            ("CREATE TABLE a (id int)", Left::Nothing),
            ("CREATE TEMP TABLE a (id int)", Left::Something),
            ("ALTER TABLE a SET SCHEMA b", Left::Nothing),
            ("DO $$ BEGIN END $$", Left::Unknown),
            ("DO $$ BEGIN SET a.b = 1; END $$", Left::Something),
            ("SET search_path = local", Left::Something),
            ("set session characteristics as transaction read write", Left::Something),
            ("SET LOCAL role = a", Left::Nothing),
            ("SET TRANSACTION READ WRITE", Left::Nothing),
            ("RESET ALL", Left::Something),
            ("LISTEN a", Left::Something),
            ("UNLISTEN *", Left::Something),
            ("Prepare a AS SELECT 1", Left::Something),
            ("PREPARE TRANSACTION 'a'", Left::Nothing),
            ("DEALLOCATE ALL", Left::Something),
            ("DISCARD TEMP", Left::Something),
            ("LOAD 'a'", Left::Something),
            ("DECLARE a CURSOR FOR SELECT 1", Left::Nothing),
            ("DECLARE a CURSOR WITH HOLD FOR SELECT 1", Left::Something),
            ("BEGIN READ WRITE", Left::Nothing),
            ("SAVEPOINT a", Left::Nothing),
            ("BEGIN; SET LOCAL a.b = 1; COMMIT", Left::Something),
            ("BEGIN; INSERT INTO a VALUES (1); COMMIT", Left::Unknown),
            ("FROBNICATE", Left::Something),
            ("", Left::Nothing),
        ] {
            assert_eq!(Left::by(StatementKind::of(sql), sql), left, "{sql}");
        }
    }
}
