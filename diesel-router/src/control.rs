//! Statements that begin or end a transaction, or change the schema.

use read_router::{NotRead, StatementKind};

/// What a statement does to the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Begin,
    Commit,
    Rollback,
    /// To a savepoint, or nothing at all.
    None,
}

impl Control {
    /// Of a statement that is not a read, by its first words.
    pub(crate) fn of(sql: &str) -> Self {
        let mut words = words(sql);
        let is = |word: &str, one: &str| word.eq_ignore_ascii_case(one);
        let Some(first) = words.next() else { return Self::None };
        if is(first, "BEGIN") || is(first, "START") {
            return Self::Begin;
        }
        if is(first, "COMMIT") || is(first, "END") {
            return Self::Commit;
        }
        if is(first, "ABORT") {
            return Self::Rollback;
        }
        if is(first, "ROLLBACK") {
            return if words.any(|word| is(word, "TO")) { Self::None } else { Self::Rollback };
        }
        if is(first, "PREPARE") && words.next().is_some_and(|word| is(word, "TRANSACTION")) {
            return Self::Commit;
        }
        Self::None
    }
}

/// Whether it is a `PREPARE`.
#[cfg(feature = "async")]
pub(crate) fn prepares(sql: &str) -> bool {
    words(sql).next().is_some_and(|first| first.eq_ignore_ascii_case("PREPARE"))
}

/// Whether a transaction may be open after the text has run outside of one: only a word that begins one can do that.
pub(crate) fn may_open(sql: &str) -> bool {
    words(sql).any(|word| word.eq_ignore_ascii_case("BEGIN") || word.eq_ignore_ascii_case("START"))
}

/// Whether a transaction may be open after the text has run, where one may have been before.
pub(crate) fn leaves_open(sql: &str, was_open: bool) -> bool {
    let chains = words(sql).any(|word| word.eq_ignore_ascii_case("CHAIN"));
    may_open(sql) || chains || was_open && !matches!(Control::of(sql), Control::Commit | Control::Rollback)
}

/// Whether more may follow after the first statement.
pub(crate) fn is_several(sql: &str) -> bool {
    sql.split_once(';').is_some_and(|(_, rest)| !rest.trim().is_empty())
}

/// Whether a `BEGIN` asks for `READ ONLY`, and whether for `SERIALIZABLE`.
pub(crate) fn begins_read_only(sql: &str) -> (bool, bool) {
    let words: Vec<_> = words(sql).collect();
    let read_only =
        words.windows(2).any(|pair| pair[0].eq_ignore_ascii_case("READ") && pair[1].eq_ignore_ascii_case("ONLY"));
    let serializable = words.iter().any(|word| word.eq_ignore_ascii_case("SERIALIZABLE"));
    (read_only, serializable)
}

/// Whether the statement may change the schema. A function that does so unseen is found by the error that follows.
pub(crate) fn changes_schema(kind: StatementKind, sql: &str) -> bool {
    match kind {
        StatementKind::Read | StatementKind::Primary(NotRead::Lock | NotRead::Catalog | NotRead::Refused) => false,
        StatementKind::Primary(NotRead::Session) => false,
        StatementKind::Primary(NotRead::SeveralStatements) => true,
        StatementKind::Primary(_) => {
            let harmless = ["INSERT", "UPDATE", "DELETE", "MERGE", "SELECT", "WITH", "VALUES", "COPY", "TRUNCATE"];
            words(sql).next().is_some_and(|first| !harmless.iter().any(|word| first.eq_ignore_ascii_case(word)))
        }
    }
}

/// Whether the text begins as one that reads or changes rows: there `SET` names columns.
#[cfg(feature = "sync")]
pub(crate) fn is_data(sql: &str) -> bool {
    let data = ["INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "ALTER"];
    words(sql).next().is_some_and(|first| data.iter().any(|word| first.eq_ignore_ascii_case(word)))
}

/// The words of a text, without its comments. Strings and quoted names are taken for words too: who asks here errs to the
/// safe side.
pub(crate) fn words(sql: &str) -> impl Iterator<Item = &str> {
    let mut rest = sql;
    std::iter::from_fn(move || {
        loop {
            rest = rest.trim_start_matches(|c: char| !c.is_alphanumeric() && c != '_' && c != '-' && c != '/');
            if let Some(comment) = rest.strip_prefix("--") {
                rest = comment.find('\n').map_or("", |end| &comment[end..]);
            } else if let Some(comment) = rest.strip_prefix("/*") {
                rest = end_of_comment(comment);
            } else if let Some(other) = rest.strip_prefix(['-', '/']) {
                rest = other;
            } else if rest.is_empty() {
                return None;
            } else {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                rest = after;
                return Some(word);
            }
        }
    })
}

/// What follows a comment, which may contain others.
fn end_of_comment(mut rest: &str) -> &str {
    let mut depth = 1;
    while depth > 0 {
        let (open, close) = (rest.find("/*"), rest.find("*/"));
        rest = match (open, close) {
            (_, None) => return "",
            (Some(open), Some(close)) if open < close => {
                depth += 1;
                &rest[open + 2..]
            }
            (_, Some(close)) => {
                depth -= 1;
                &rest[close + 2..]
            }
        };
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_begins_and_ends_a_transaction() {
        for (sql, control) in [
            ("BEGIN", Control::Begin),
            (" /* a /* b */ */ -- c\n start transaction", Control::Begin),
            ("COMMIT", Control::Commit),
            ("end;", Control::Commit),
            ("PREPARE TRANSACTION 'x'", Control::Commit),
            ("PREPARE x AS SELECT 1", Control::None),
            ("ROLLBACK", Control::Rollback),
            ("ROLLBACK TO SAVEPOINT diesel_savepoint_1", Control::None),
            ("SAVEPOINT begin", Control::None),
            ("", Control::None),
        ] {
            assert_eq!(Control::of(sql), control, "{sql}");
        }
    }

    #[test]
    fn tells_what_may_leave_a_transaction_open() {
        assert!(may_open("INSERT INTO a VALUES (1); BEGIN"));
        assert!(!may_open("CREATE TABLE beginning (id int)"));
        assert_eq!(begins_read_only("BEGIN TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY"), (true, true));
        assert_eq!(begins_read_only("BEGIN TRANSACTION READ WRITE"), (false, false));
        assert!(is_several("BEGIN; SELECT 1") && !is_several("BEGIN; "));
    }

    #[test]
    fn tells_what_changes_the_schema() {
        for (sql, changes) in [
            ("CREATE TABLE a (id int)", true),
            ("ALTER TABLE a SET SCHEMA b", true),
            ("INSERT INTO a VALUES (1)", false),
            ("UPDATE a SET id = 1", false),
            ("SET search_path = b", false),
            ("CREATE TEMP TABLE a (id int)", true),
            ("SELECT f()", false),
            ("DO $$ BEGIN END $$", true),
            ("SELECT 1", false),
        ] {
            assert_eq!(changes_schema(StatementKind::of(sql), sql), changes, "{sql}");
        }
    }
}
