//! Whether a statement changes what the catalogue tells.

use super::lexer::{Lexer, Token};

/// What a statement may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SchemaChange {
    /// Tables and the like, which are harmless as they are made.
    Tables,
    /// What a read may run, or whether replicas have a table: functions, views, policies, unlogged tables.
    Code,
}

/// The first words of statements that change the schema, or may run one that does.
const CHANGES: [&[u8]; 6] = [b"create", b"alter", b"drop", b"import", b"do", b"call"];

/// Without one of these words a change concerns tables only.
const CODE: [&[u8]; 23] = [
    b"aggregate",
    b"attach",
    b"call",
    b"cast",
    b"class",
    b"collation",
    b"do",
    b"domain",
    b"extension",
    b"family",
    b"foreign",
    b"function",
    b"import",
    b"inherit",
    b"inherits",
    b"logged",
    b"operator",
    b"policy",
    b"rename",
    b"routine",
    b"rule",
    b"security",
    b"sequence",
];
const MORE_CODE: [&[u8]; 5] = [b"temp", b"temporary", b"unlogged", b"schema", b"procedure"];

impl SchemaChange {
    /// What a statement may change, as far as its text shows: a function that changes the schema is not seen. For what
    /// reads or changes rows this costs little more than a look at its first word.
    #[must_use]
    pub fn of(sql: &str) -> Option<Self> {
        let may_be_several = || sql.trim_end().trim_end_matches(';').contains(';');
        let mut lexer = Lexer::new(sql);
        let (mut is_first, mut is_change, mut change) = (true, false, None);
        let (mut is_type, mut is_enum, mut is_materialized) = (false, false, false);
        loop {
            let token = match lexer.token() {
                Ok(Some(token)) => token,
                Ok(None) => break,
                // What is not understood may be anything.
                Err(_) => return change.map(|_| Self::Code),
            };
            let has = |words: &[&[u8]]| words.iter().any(|word| token.is_word(word));
            if std::mem::take(&mut is_first) {
                is_change = has(&CHANGES);
                if !is_change && !may_be_several() {
                    return None;
                }
            }
            if is_change {
                // A materialized view is read as a table is.
                let is_code = has(&CODE) || has(&MORE_CODE) || token.is_word(b"view") && !is_materialized;
                is_materialized = token.is_word(b"materialized");
                change = change.max(Some(if is_code { Self::Code } else { Self::Tables }));
                is_type |= token.is_word(b"type");
                is_enum |= token.is_word(b"enum") || token.is_word(b"alter");
            }
            is_first = token == Token::Symbol(b';');
        }
        if is_type && !is_enum { change.max(Some(Self::Code)) } else { change }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_make_a_read_of_today_something_else_tomorrow_is_code() {
        let (tables, code) = (Some(SchemaChange::Tables), Some(SchemaChange::Code));
        for (sql, expected) in [
            ("SELECT 1", None),
            ("INSERT INTO t VALUES (1)", None),
            ("SELECT f()", None),
            ("BEGIN", None),
            ("", None),
            ("CREATE TABLE t (id int)", tables),
            ("/* who */ create table \"view\" (id int)", tables),
            ("ALTER TABLE t ADD COLUMN a int", tables),
            ("CREATE TYPE colour AS ENUM ('red')", tables),
            ("CREATE INDEX ON t (id)", tables),
            ("INSERT INTO t VALUES (1); CREATE TABLE u ()", tables),
            ("CREATE TABLE t (); CREATE VIEW v AS SELECT 1", code),
            ("CREATE OR REPLACE FUNCTION f() RETURNS int LANGUAGE sql AS ''", code),
            ("CREATE UNLOGGED TABLE t ()", code),
            ("CREATE MATERIALIZED VIEW v AS SELECT f()", tables),
            ("CREATE TEMP TABLE t ()", code),
            ("ALTER TABLE t SET UNLOGGED", code),
            ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", code),
            ("CREATE TYPE r AS RANGE (subtype = int)", code),
            ("CREATE EXTENSION hstore", code),
            ("DO $$ BEGIN CREATE TABLE t (); END $$", code),
            ("CREATE TABLE t (); SELECT U&'x'", code),
        ] {
            assert_eq!(SchemaChange::of(sql), expected, "{sql}");
        }
    }
}
