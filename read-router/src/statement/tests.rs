//! Cases as tables, and what must hold for all of them.

mod properties;

use std::{fmt::Write, sync::LazyLock};

use super::{
    NotRead, StatementKind,
    lexer::{Lexer, Token},
};

/// Statements from public reports: id, sql, expected, reason, link.
const REPORTED: &str = include_str!("../../testdata/sql_cases.tsv");
/// Our own: id, sql, kind, group.
const OWN: &str = include_str!("../../testdata/statement_cases.tsv");

/// The rows of a table under its head, each cut at the tabs.
fn rows<const COLUMNS: usize>(table: &'static str) -> impl Iterator<Item = [&'static str; COLUMNS]> {
    table.lines().skip(1).map(|line| {
        let columns: Vec<_> = line.split('\t').collect();
        columns.try_into().unwrap_or_else(|columns| panic!("{columns:?}"))
    })
}

/// The text that a cell of the table stands for.
fn sql(cell: &str) -> String {
    let mut text = String::new();
    let mut chars = cell.chars();
    while let Some(char) = chars.next() {
        text.push(match char {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some('\\') => '\\',
                other => panic!("{other:?} after a backslash in {cell}"),
            },
            other => other,
        });
    }
    text
}

fn name(kind: StatementKind) -> &'static str {
    match kind {
        StatementKind::Read => "read",
        StatementKind::Primary(reason) => reason.as_str(),
    }
}

static ALL: LazyLock<Vec<String>> = LazyLock::new(|| {
    let reported = rows::<5>(REPORTED).map(|[_, cell, ..]| sql(cell));
    let own = rows::<4>(OWN).map(|[_, cell, ..]| sql(cell));
    reported.chain(own).collect()
});

static READS: LazyLock<Vec<String>> =
    LazyLock::new(|| ALL.iter().filter(|sql| StatementKind::of(sql).is_read()).cloned().collect());

/// The tokens of a text and where each ends, if all of the text can be cut.
fn tokens(sql: &str) -> Option<Vec<(Token<'_>, usize)>> {
    let mut lexer = Lexer::new(sql);
    let mut tokens = Vec::new();
    while let Some(token) = lexer.token().ok()? {
        tokens.push((token, lexer.position()));
    }
    Some(tokens)
}

#[test]
fn each_reported_statement_has_its_destination() {
    for [id, cell, expected, reason, _] in rows(REPORTED) {
        // Needs the catalogue: see the next test.
        if reason.contains("[K]") {
            continue;
        }
        let kind = StatementKind::of(&sql(cell));
        assert_eq!(kind.is_read(), expected == "replica", "{id} is {kind:?}: {cell}");
    }
}

#[test]
fn what_only_the_catalogue_knows_is_beyond_the_text() {
    let rows: Vec<_> = rows::<5>(REPORTED).filter(|[.., reason, _]| reason.contains("[K]")).collect();
    assert!(!rows.is_empty());
    for [id, cell, expected, ..] in rows {
        let expected = match expected {
            // An operator that is not PostgreSQL's own is one case that shows.
            "primary" if cell.contains("===") => StatementKind::Primary(NotRead::Operator),
            _ => StatementKind::Read,
        };
        assert_eq!(StatementKind::of(&sql(cell)), expected, "{id}: {cell}");
    }
}

#[test]
fn each_own_statement_has_its_kind() {
    for [id, cell, expected, _] in rows(OWN) {
        assert_eq!(name(StatementKind::of(&sql(cell))), expected, "{id}: {cell}");
    }
}

#[test]
fn a_second_statement_is_seen_behind_each_read() {
    for read in READS.iter() {
        let kind = StatementKind::of(&format!("{read}\n;DELETE FROM t"));
        assert_eq!(kind, StatementKind::Primary(NotRead::SeveralStatements), "{read}");
    }
}

#[test]
fn a_read_inside_of_a_read_is_a_read_and_a_write_or_lock_is_not() {
    let frames = [
        ("SELECT * FROM (", "\n) AS x"),
        ("SELECT ARRAY(", "\n)"),
        ("WITH x AS (", "\n) TABLE x"),
        ("SELECT 1 WHERE EXISTS (", "\n) OR true"),
        ("(", "\n) UNION ALL SELECT 1"),
        ("EXPLAIN (ANALYZE, VERBOSE) (", "\n)"),
    ];
    let is_query = |sql: &str| {
        let start = sql.trim_start_matches(['(', ' ', '\n', '\t']).to_ascii_uppercase();
        ["SELECT", "WITH", "VALUES", "TABLE"].iter().any(|word| start.starts_with(word)) && !sql.contains(';')
    };
    for text in ALL.iter().filter(|sql| is_query(sql)) {
        let kind = StatementKind::of(text);
        // A text that is cut off in the middle of a token may go on in what follows.
        if kind == StatementKind::Primary(NotRead::Unknown) {
            continue;
        }
        for (start, end) in frames {
            assert_eq!(StatementKind::of(&format!("{start}{text}{end}")), kind, "{start}{text}");
        }
    }
}

#[test]
fn a_call_in_the_place_of_any_value_is_seen() {
    for read in READS.iter() {
        let mut start = 0;
        let mut before = None;
        for (token, end) in tokens(read).unwrap() {
            // Nothing can be called where a string goes on in the next line, or in `INTERVAL (3) '1 s'`.
            let bound = matches!(before.replace(token), Some(Token::Literal | Token::Symbol(b')')));
            if matches!(token, Token::Literal | Token::Parameter) && !bound {
                let changed = format!("{} nextval('s') {}", &read[..start], &read[end..]);
                assert!(!StatementKind::of(&changed).is_read(), "{changed}");
            }
            start = end;
        }
    }
}

#[test]
fn what_makes_a_read_something_else_is_seen_at_any_place() {
    let pieces = [
        " INTO x ",
        " FOR UPDATE ",
        " FOR KEY SHARE OF x ",
        " ; DELETE FROM t ",
        " === 1 ",
        " OPERATOR(app.*) ",
        "::regclass ",
        " (WITH d AS (DELETE FROM t RETURNING 1) SELECT 1) ",
        " (SELECT 1 FROM t FOR SHARE) ",
        " (SELECT app.lower('a')) ",
    ];
    // The options of EXPLAIN take any word.
    for read in READS.iter().filter(|sql| !sql.starts_with("EXPLAIN (")) {
        let mut dot = false;
        for (token, end) in tokens(read).unwrap() {
            // Behind a dot, every word is a column.
            if !std::mem::replace(&mut dot, token == Token::Symbol(b'.')) && !dot {
                for piece in pieces {
                    let changed = format!("{}{piece}{}", &read[..end], &read[end..]);
                    assert!(!StatementKind::of(&changed).is_read(), "{changed}");
                }
            }
        }
    }
}

/// What is cheap to write and could be dear to read, when repeated.
const HOSTILE: &[&str] = &[
    "(",
    ")",
    "[",
    "((",
    "(SELECT ",
    "(WITH a AS (",
    "WITH a AS (",
    "/*",
    "/*/",
    "*/",
    "--",
    "--\n",
    "'",
    "''",
    "\"",
    "\"a\"",
    "E'\\",
    "$",
    "$$",
    "$a$",
    "$a",
    "$a$b",
    "$1",
    "+",
    "=-",
    "*/*",
    "@-",
    ".",
    ".a",
    "a.",
    "a",
    "1",
    "1e",
    "::",
    ":",
    ",",
    "f(",
    "lower(",
    "CASE ",
    "NOT ",
    "UNION SELECT ",
    "x'",
    "U&",
    "\u{1F600}",
    "\u{a0}",
    "\\",
    "\0",
    "EXPLAIN ",
    "SELECT ",
    "GROUP BY ",
    "DISTINCT ON (a) ",
    "AS x(",
];

fn repeated(text: &str, bytes: usize) -> [String; 3] {
    let many = text.repeat(bytes / text.len());
    [many.clone(), format!("SELECT {many}"), format!("SELECT '{many}")]
}

#[test]
fn hostile_texts_end() {
    for text in HOSTILE {
        for sql in repeated(text, 100_000) {
            assert_eq!(StatementKind::of(&sql), StatementKind::of(&sql), "{text}");
        }
    }
}

/// Eight times the text takes this thread about eight times as long, and not sixty-four times. The best of several runs
/// counts.
#[cfg(unix)]
#[test]
fn hostile_texts_take_linear_time() {
    let best = |sql: &str| {
        let time = |_| {
            let spent = || {
                let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                std::time::Duration::new(spent.tv_sec.unsigned_abs(), spent.tv_nsec as u32)
            };
            let start = spent();
            std::hint::black_box(StatementKind::of(std::hint::black_box(sql)));
            spent() - start
        };
        (0..5).map(time).min().unwrap_or_default()
    };
    for text in HOSTILE {
        for (short, long) in repeated(text, 25_000).iter().zip(repeated(text, 200_000)) {
            // What ends at once is not measured by the clock's own steps.
            let is_linear = || best(&long) < best(short) * 24 + std::time::Duration::from_micros(50);
            assert!((0..10).any(|_| is_linear()), "{text} takes {:?}, then {:?}", best(short), best(&long));
        }
    }
}

#[test]
fn depth_is_bounded_and_length_is_not() {
    let nested = |depth| format!("SELECT {}1{}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(StatementKind::of(&nested(200)), StatementKind::Read);
    assert_eq!(StatementKind::of(&nested(1_000)), StatementKind::Primary(NotRead::Unknown));

    let mut list = "SELECT \"id\" FROM \"cake\" WHERE \"id\" IN ($1".to_owned();
    for number in 2..=20_000 {
        write!(list, ", ${number}").unwrap();
    }
    assert_eq!(StatementKind::of(&format!("{list})")), StatementKind::Read);
    assert_eq!(StatementKind::of(&list), StatementKind::Primary(NotRead::Unknown));
    assert_eq!(StatementKind::of(&format!("{list}) FOR UPDATE")), StatementKind::Primary(NotRead::Lock));
}

#[test]
fn a_nul_is_never_read_over() {
    for read in READS.iter() {
        for (end, _) in read.char_indices() {
            let text = format!("{}\0{}", &read[..end], &read[end..]);
            assert_eq!(StatementKind::of(&text), StatementKind::Primary(NotRead::Unknown), "{text:?}");
        }
    }
}
