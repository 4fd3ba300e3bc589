use super::{Lexer, Malformed, Token};

/// The tokens, written one after the other: a word as it is, `"n"` a quoted name, `L` a literal, `$` a parameter,
/// and the rest as in the text.
fn cut(sql: &str) -> Result<String, Malformed> {
    let mut lexer = Lexer::new(sql);
    let mut tokens = Vec::new();
    while let Some(token) = lexer.token()? {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        tokens.push(match token {
            Token::Word(word) => text(word),
            Token::Quoted(name) => format!("\"{}\"", text(name)),
            Token::Literal => "L".to_owned(),
            Token::Parameter => "$".to_owned(),
            Token::Operator(operator) => text(operator),
            Token::Cast => "::".to_owned(),
            Token::Arrow => "=>".to_owned(),
            Token::Symbol(symbol) => char::from(symbol).to_string(),
        });
    }
    Ok(tokens.join(" "))
}

#[test]
fn a_text_is_cut_where_postgresql_cuts_it() {
    for (sql, tokens) in [
        ("", ""),
        ("SELECT 1", "SELECT L"),
        ("select*from t", "select * from t"),
        ("a.b , c ;", "a . b , c ;"),
        // Names.
        ("_a1$ é a$x$ b$x$", "_a1$ é a$x$ b$x$"),
        ("\u{a0}a", "\u{a0}a"),
        (r#""a""b" "x;y"z"#, r#""a""b" "x;y" z"#),
        // Strings.
        ("'a' 'it''s' '' ''''", "L L L L"),
        (r"'a\' x", "L x"),
        (r"'a\', 'b'", "L , L"),
        (r"E'a\'b' e'\\' x", "L L x"),
        (r"E'a''b' x", "L x"),
        ("B'1' b'' X'f' x'' N'a' n'b' ab'c'", "L L L L L L ab L"),
        ("'a'\n'b'", "L L"),
        ("'a' -- x\n'b'", "L L"),
        (r"U&'a\' u&'it''s' UESCAPE '!' x", "L L UESCAPE L x"),
        ("E'a'\n'b\\', c' -- x\r 'd\\'' e", "L L L e"),
        ("'--' '/*' '$$'", "L L L"),
        // Dollar quotes.
        ("$$a$$ $$$$ $a$x$a$ $_1$'$_1$ $é$x$é$", "L L L L L"),
        ("$a$ $b$ $$ $a $A$ $a$ x", "L x"),
        ("$a$$a$ x", "L x"),
        ("$a$ $x$a$ x", "L x"),
        ("$$ $a$$ x", "L x"),
        ("a$$b$$", "a$$b$$"),
        // Parameters and numbers.
        ("$1,$23::int", "$ , $ :: int"),
        ("1 1.5 .5 1. 1e9 1.5e-3 1.e5 1E+2", "L L L L L L L L"),
        ("1,2;3", "L , L ; L"),
        ("1_000 1_0.0_1e1_0 .0_1 0x1F 0B_1_0 0o17 0xe+1", "L L L L L L L + L"),
        ("1+1.-.5", "L + L - L"),
        ("a[1:2] a[1::int]", "a [ L : L ] a [ L :: int ]"),
        // Operators.
        ("1!=1 1!=/**/-1", "L <> L L <> - L"),
        ("1=-1 1<>-1 1>=-1 2*-3", "L = - L L <> - L L >= - L L * - L"),
        ("1@-1 1|-1 1!=-1", "L @- L L |- L L !=- L"),
        ("a||'b' a->>'b' a#>>'b'", "a || L a ->> L a #>> L"),
        ("a=>1, a:=1", "a => L , a => L"),
        ("a=>=1 a>=>1", "a =>= L a >=> L"),
        ("1+--x\n1", "L + L"),
        ("1*/*x*/2", "L * L"),
        ("1-/**/-2", "L - - L"),
        ("a?b ?| ?& @@ @@@ # // ` ~ === ^", "a ? b ?| ?& @@ @@@ # // ` ~ === ^"),
        // Comments and blanks.
        ("a--b\nc --d\re --f", "a c e"),
        ("a/*b*/c/**/d/***/e", "a c d e"),
        ("a /* /* ' */ \" */ b", "a b"),
        ("a /*/ b */ c /* /*/ */ */ d", "a c d"),
        ("a /* -- */ b -- /*\nc", "a b c"),
        ("/*! a */ b", "b"),
        ("\t\n\r\u{c}\u{b} a", "a"),
    ] {
        assert_eq!(cut(sql).as_deref(), Ok(tokens), "{sql:?}");
    }
}

#[test]
fn what_servers_cut_differently_or_not_at_all_is_refused() {
    for sql in [
        "'a",
        "'a''",
        "\"a",
        "\"\"",
        "E'a",
        r"E'a\'",
        "E'a\\",
        "$$a",
        "$a$x$b$",
        "$a",
        "$",
        "$ $",
        "$-$a$-$",
        "/*",
        "/* /* */",
        "/*/",
        "1x",
        "1_",
        "1__0",
        "1_000x",
        "$1_0",
        "0x",
        "0x_",
        "0xg",
        "0x1g",
        "0b2",
        "0o8",
        "0b'1'",
        "1._5",
        "1e",
        "1e+",
        "1$x$",
        "1.5x",
        "$1a",
        "$1$x$",
        "1..2",
        "a..b",
        "u&\"a\"",
        "U&\"a",
        "E'a' 'b'",
        "E'a'/**/'b'",
        "E'a'/*\n*/'b'",
        "E'a'\n/**/'b'",
        "{",
        "}",
        "\\",
        "a\\",
        "\0",
        "\u{1}",
        "\u{7f}",
    ] {
        assert_eq!(cut(sql), Err(Malformed), "{sql:?}");
    }
    assert_eq!(cut(&"+".repeat(1_000)), Err(Malformed));
}
