//! Whether a text may be put to a server that refuses writes.

use super::{
    StatementKind,
    lexer::{Lexer, Token},
};

/// No query has these words outside of quotes but to write, to lock, or to run a procedure.
const WRITES: [&[u8]; 20] = [
    b"insert",
    b"update",
    b"delete",
    b"merge",
    b"truncate",
    b"into",
    b"create",
    b"alter",
    b"drop",
    b"grant",
    b"revoke",
    b"copy",
    b"lock",
    b"call",
    b"do",
    b"execute",
    b"prepare",
    b"set_config",
    b"nextval",
    b"setval",
];
const QUERIES: [&[u8]; 5] = [b"select", b"with", b"values", b"table", b"explain"];

impl StatementKind {
    /// Whether the text is one query that names nothing that writes: a [`Read`](Self::Read), or one that is kept from
    /// replicas only because it uses what the text does not explain, such as a user's function.
    ///
    /// It may still write, by such a function. Where it must not, put it to a session that is read-only.
    #[must_use]
    pub fn is_query(sql: &str) -> bool {
        let mut lexer = Lexer::new(sql);
        let mut ended = false;
        let mut is_first = true;
        loop {
            let token = match lexer.token() {
                Ok(Some(token)) => token,
                Ok(None) => return !is_first,
                Err(_) => return false,
            };
            let is_query = || token == Token::Symbol(b'(') || QUERIES.iter().any(|word| token.is_word(word));
            if ended || is_first && !is_query() || WRITES.iter().any(|word| token.is_named(word)) {
                return false;
            }
            is_first = false;
            ended = token == Token::Symbol(b';');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_may_run_a_function_and_names_nothing_that_writes() {
        for (sql, expected) in [
            ("SELECT 1", true),
            ("/* who */ SELECT my_function(a) FROM t;", true),
            ("(SELECT 1)", true),
            ("WITH a AS (SELECT f()) TABLE a", true),
            ("SELECT * FROM pg_catalog.pg_class", true),
            ("SELECT 'delete', \"a\" FROM t -- insert", true),
            ("", false),
            (";", false),
            ("SELECT 1; SELECT 2", false),
            ("WITH a AS (SELECT f()), b AS (DELETE FROM t RETURNING 1) SELECT 1", false),
            ("SELECT f() FROM t FOR UPDATE", false),
            ("SELECT f() INTO t", false),
            ("EXPLAIN ANALYZE INSERT INTO t VALUES (1)", false),
            ("CALL p()", false),
            ("DO 'x'", false),
            ("SET a = 1", false),
            ("SELECT nextval('s')", false),
            ("SELECT \"set_config\"('a', 'b', false)", false),
            ("SELECT U&\"a\"", false),
        ] {
            assert_eq!(StatementKind::is_query(sql), expected, "{sql}");
        }
    }
}
