//! What a statement names that may be at fault if a replica refuses it.

use super::{
    functions::HARMLESS,
    lexer::{Lexer, Token},
    name::Name,
    words::{Folded, RESERVED, SPECIAL_FORMS},
};

/// The functions that are not built in, as far as the text shows, and the tables and views that it reads, each as a call of
/// the builder that pins it would name it. For a report: what is not understood shows nothing.
pub(super) fn suspects(sql: &str) -> Vec<String> {
    let mut lexer = Lexer::new(sql);
    let mut found = Vec::new();
    let mut behind_from = false;
    let mut token = lexer.token();
    while let Ok(Some(first)) = token {
        token = lexer.token();
        let behind = std::mem::take(&mut behind_from);
        let Some(mut name) = Name::of(first) else { continue };
        let mut dotted = shown(first);
        let mut last = first;
        while let Ok(Some(Token::Symbol(b'.'))) = token {
            let Ok(Some(part)) = lexer.token() else { return found };
            token = lexer.token();
            let Some(next) = Name::of(part) else { break };
            (name, last) = (next, part);
            dotted = format!("{dotted}.{}", shown(part));
        }
        let is_word = |word: Token<'_>| match word {
            Token::Word(word) => {
                let folded = Folded::new(word);
                RESERVED.contains(folded.as_bytes()) || SPECIAL_FORMS.contains(folded.as_bytes())
            }
            _ => false,
        };
        let entry = match token {
            Ok(Some(Token::Symbol(b'('))) if !is_word(last) && !HARMLESS.contains(name.as_bytes()) => {
                format!("function {dotted}")
            }
            Ok(Some(Token::Symbol(b'('))) => continue,
            _ if behind && !is_word(last) => format!("table {dotted}"),
            _ => {
                behind_from = first.is_word(b"from") || first.is_word(b"join") || first.is_word(b"table");
                continue;
            }
        };
        if !found.contains(&entry) {
            found.push(entry);
        }
    }
    found
}

/// The name as it is written.
fn shown(token: Token<'_>) -> String {
    match token {
        Token::Quoted(text) => format!("\"{}\"", String::from_utf8_lossy(text)),
        Token::Word(text) => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_tables_are_named_as_a_pin_names_them() {
        for (sql, expected) in [
            ("SELECT 1", &[][..]),
            ("SELECT v FROM takes_a_number", &["table takes_a_number"]),
            (
                "SELECT app.f (a), lower(b) FROM \"V\" JOIN app.\"W\" ON true WHERE g(1) IN (SELECT 1 FROM \"V\")",
                &["function app.f", "table \"V\"", "table app.\"W\"", "function g"],
            ),
            ("SELECT coalesce(a, ?) FROM t WHERE a IN (?)", &["table t"]),
            ("SELECT '", &[]),
        ] {
            assert_eq!(suspects(sql), expected, "{sql}");
        }
    }
}
