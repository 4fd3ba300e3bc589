//! What must hold for any text.

use proptest::prelude::*;

use super::{
    super::{NotRead, StatementKind, StatementKinds, lexer::Token},
    ALL, tokens,
};

/// Pieces of SQL, the dangerous ones among them.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        proptest::sample::select(vec![
            "SELECT",
            "WITH",
            "a AS (",
            "(",
            ")",
            "FROM",
            "t",
            "INTO x",
            "FOR",
            "UPDATE",
            "SHARE",
            "DELETE FROM t",
            "nextval('s')",
            "app.lower(1)",
            "lower(",
            "\"nextval\"",
            "(1)",
            "1",
            "'x'",
            "$1",
            "\"a\"",
            "a",
            ".",
            ",",
            ";",
            "::",
            "AS",
            "DISTINCT ON (a)",
            "GROUP BY",
            "ROLLUP (",
            "OVER (",
            "FILTER (WHERE",
            "EXPLAIN",
            "VALUES",
            "NOT",
            "ILIKE",
            "LIKE",
            "BY",
            "ORDER BY",
            "===",
            "=",
            "-",
            "*",
            "--",
            "\n",
            "/*",
            "*/",
            "'",
            "$$",
            "$a$",
            "E'\\'",
            "\\",
            "[",
            "]",
            "pg_class",
            "CYCLE a SET b USING c",
            "UNION",
            "TABLE",
            "JOIN",
            "\u{a0}",
            "U&'",
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,4}",
        any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.join(" "))
}

proptest! {
    #[test]
    fn no_text_panics_and_memory_does_not_change_the_answer(text in soup(), key in any::<[u64; 2]>()) {
        let kind = StatementKind::of(&text);
        let kinds = StatementKinds::with_key(key);
        prop_assert_eq!(kinds.kind(&text), kind);
        prop_assert_eq!(kinds.kind(&text), kind);
        if kind.is_read() {
            let several = StatementKind::of(&format!("{text}\n;DELETE FROM t"));
            prop_assert_eq!(several, StatementKind::Primary(NotRead::SeveralStatements));
        }
    }

    #[test]
    fn blanks_and_comments_change_nothing(
        row in 0..ALL.len(),
        blanks in proptest::collection::vec(
            proptest::sample::select(vec![
                " ", "\n", "\t", "\r\n", "\u{c}", "/**/", "/* ; DELETE */", "/* /* ' */ $$ */", "-- \" FOR UPDATE\n",
            ]),
            1..8,
        ),
    ) {
        let text = &ALL[row];
        if let Some(tokens) = tokens(text) {
            let mut changed = String::new();
            let mut start = 0;
            let mut blanks = blanks.iter().cycle();
            for (token, end) in tokens {
                changed.extend(blanks.next().copied());
                changed.push_str(&text[start..end]);
                if let Token::Operator(_) = token {
                    // Or the comment could start within the operator.
                    changed.push(' ');
                }
                start = end;
            }
            changed.extend(blanks.next().copied());
            prop_assert_eq!(StatementKind::of(&changed), StatementKind::of(text), "{}", changed);
        }
    }

    #[test]
    fn the_case_of_words_changes_nothing(row in 0..ALL.len(), flips in any::<u64>()) {
        let text = &ALL[row];
        if let Some(tokens) = tokens(text) {
            let mut changed = String::new();
            let mut start = 0;
            for (at, (token, end)) in tokens.into_iter().enumerate() {
                let piece = &text[start..end];
                // Only the words: a comment before them may change too, but a quoted name may not.
                changed.push_str(&match token {
                    Token::Word(_) if flips >> (at % 64) & 1 == 1 => piece.to_ascii_uppercase(),
                    Token::Word(_) => piece.to_ascii_lowercase(),
                    _ => piece.to_owned(),
                });
                start = end;
            }
            changed.push_str(&text[start..]);
            prop_assert_eq!(StatementKind::of(&changed), StatementKind::of(text), "{}", changed);
        }
    }
}
