//! The names in the text of a function.
//!
//! Not its grammar: PL/pgSQL has another than SQL. What a function can reach without dynamic SQL, its text names.

use super::{
    super::{
        lexer::{Lexer, Token},
        name::Name,
    },
    operators,
};

/// Something that a text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mention {
    /// A name with a parenthesis behind it, and the schema before it.
    Call(Option<Box<[u8]>>, Box<[u8]>),
    /// A name without one: a relation, a type, a column.
    Name(Option<Box<[u8]>>, Box<[u8]>),
    /// The name behind a dot, if it is a function's.
    Field(Box<[u8]>),
    Operator(Box<[u8]>),
    /// The server's own relations.
    Catalogue,
}

impl Mention {
    /// The name itself.
    pub(super) fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Call(_, name) | Self::Name(_, name) | Self::Field(name) | Self::Operator(name) => Some(name),
            Self::Catalogue => None,
        }
    }
}

/// All that the text names; `None` if it is not understood, or runs a text that it makes.
pub(super) fn mentions(text: &str) -> Option<Vec<Mention>> {
    // `1..10` is a loop's range, and no SQL.
    let spaced = if text.contains("..") {
        if text.contains('"') {
            return None;
        }
        text.replace("..", " , ")
    } else {
        text.to_owned()
    };
    let mut lexer = Lexer::new(&spaced);
    let mut all = Vec::new();
    let mut next = lexer.token().ok()?;
    let mut before = None;
    while let Some(token) = next {
        next = lexer.token().ok()?;
        let last = before.replace(token);
        let behind_dot = last == Some(Token::Symbol(b'.'));
        if let Token::Operator(operator) = token {
            all.push(Mention::Operator(operator.into()));
        }
        let Some(mut name) = Name::of(token) else { continue };
        // A cursor is left open in the session.
        if token.is_word(b"execute") || token.is_word(b"open") && starts_statement(last) {
            return None;
        }
        if let Token::Word(word) = token {
            all.extend(operators(word).map(|operator| Mention::Operator(operator.into())));
        }
        let mut schema = None;
        while next == Some(Token::Symbol(b'.')) {
            let part = lexer.token().ok()??;
            next = lexer.token().ok()?;
            let Some(part) = Name::of(part) else { break };
            // A table, in `table.column%TYPE`.
            all.push(Mention::Name(schema.map(|schema: Name| schema.as_bytes().into()), name.as_bytes().into()));
            schema = Some(std::mem::replace(&mut name, part));
        }
        let is_catalogue = |name: &Name| name.as_bytes() == b"information_schema";
        let schema_name = schema.map(|schema| schema.as_bytes().into());
        if schema.as_ref().is_some_and(is_catalogue) {
            all.push(Mention::Catalogue);
        }
        if next == Some(Token::Symbol(b'(')) {
            all.push(Mention::Call(schema_name, name.as_bytes().into()));
            continue;
        }
        if name.as_bytes().starts_with(b"pg_") {
            all.push(Mention::Catalogue);
        }
        if schema.is_some() || behind_dot {
            all.push(Mention::Field(name.as_bytes().into()));
        }
        all.push(Mention::Name(schema_name, name.as_bytes().into()));
    }
    Some(all)
}

/// Whether a statement of PL/pgSQL begins behind this token.
fn starts_statement(last: Option<Token<'_>>) -> bool {
    let is_word = |token: Token<'_>| [&b"begin"[..], b"then", b"else", b"loop"].iter().any(|word| token.is_word(word));
    last.is_none_or(|token| token == Token::Symbol(b';') || token == Token::Operator(b">>") || is_word(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(text: &str) -> Option<Vec<String>> {
        let call = |mention| match mention {
            Mention::Call(_, name) => Some(String::from_utf8_lossy(&name).into_owned()),
            _ => None,
        };
        Some(mentions(text)?.into_iter().filter_map(call).collect())
    }

    #[test]
    fn calls_are_found_wherever_they_stand() {
        assert_eq!(calls("SELECT nextval ('s'), \"F\"(1), app./* */g(2)").unwrap(), ["nextval", "F", "g"]);
        assert_eq!(calls("BEGIN FOR i IN 1..f(3) LOOP x := g(i); END LOOP; END").unwrap(), ["f", "g"]);
        assert_eq!(calls("SELECT 'nextval(1)', $$ f(1) $$ -- g(1)").unwrap(), Vec::<String>::new());
        assert_eq!(calls("SELECT open, f(o.open) FROM prices o").unwrap(), ["f"]);
        for text in [
            "BEGIN EXECUTE 'x'; END",
            "BEGIN OPEN c FOR SELECT 1; END",
            "BEGIN x := 1; open c; END",
            "SELECT '",
            "SELECT \"a..b\"(1)",
        ] {
            assert_eq!(calls(text), None, "{text}");
        }
    }

    #[test]
    fn names_fields_and_operators_are_found() {
        let all = mentions(
            "SELECT u.touch, (u).other, pg_class FROM app.v u WHERE a === 1 AND b IN (2) AND information_schema.x",
        )
        .unwrap();
        for expected in [
            Mention::Field((*b"touch").into()),
            Mention::Field((*b"other").into()),
            Mention::Name(Some((*b"app").into()), (*b"v").into()),
            Mention::Name(None, (*b"u").into()),
            Mention::Operator((*b"===").into()),
            Mention::Operator((*b"=").into()),
            Mention::Catalogue,
        ] {
            assert!(all.contains(&expected), "{expected:?} in {all:?}");
        }
    }
}
