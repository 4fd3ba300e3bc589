//! Cuts a script into its statements, as `psql` does.
//!
//! A semicolon ends a statement outside of quotes, comments, parentheses and the body of a SQL-standard function
//! (`BEGIN ATOMIC .. END`). Lines that begin with a backslash are `psql`'s own commands, and what follows
//! `COPY .. FROM STDIN` up to `\.` is data: neither is a statement.

/// A statement and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The line of its first character, from 1 on.
    pub line: usize,
    /// Its text without the semicolon and without blanks around it.
    pub sql: &'a str,
}

/// The statements of a script, in their order; empty ones are left out.
#[must_use]
pub fn split(script: &str) -> Vec<Piece<'_>> {
    let mut scan = Scan { script, bytes: script.as_bytes(), at: 0, start: 0, depth: 0, words: Words::default() };
    let mut pieces = Vec::new();
    let mut lines = (1, 0);
    while scan.at < scan.bytes.len() {
        if scan.step() {
            scan.take(scan.at - 1, &mut lines, &mut pieces);
        }
    }
    scan.take(scan.bytes.len(), &mut lines, &mut pieces);
    pieces
}

struct Scan<'a> {
    script: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Where the statement begins.
    start: usize,
    /// Parentheses open.
    depth: usize,
    words: Words,
}

/// The words of a statement that decide where it ends.
#[derive(Default)]
struct Words {
    count: usize,
    is_create: bool,
    is_routine: bool,
    is_copy: bool,
    from_stdin: bool,
    from: bool,
    begins: usize,
}

impl<'a> Scan<'a> {
    /// Moves past one token; returns whether it was the semicolon that ends a statement.
    fn step(&mut self) -> bool {
        let rest = &self.bytes[self.at..];
        match rest[0] {
            b'\'' => self.past(b'\'', false),
            b'"' => self.past(b'"', false),
            b'-' if rest.starts_with(b"--") => self.at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with(b"/*") => self.comment(),
            b'$' => self.dollar(),
            b'\\' => self.command(),
            b'(' => {
                self.depth += 1;
                self.at += 1;
            }
            b')' => {
                self.depth = self.depth.saturating_sub(1);
                self.at += 1;
            }
            b';' => {
                self.at += 1;
                return self.depth == 0 && self.words.begins == 0;
            }
            first if is_name(first) && !first.is_ascii_digit() => self.word(),
            first if first.is_ascii_digit() => self.at += rest.iter().position(|&b| !is_name(b)).unwrap_or(rest.len()),
            _ => self.at += 1,
        }
        false
    }

    /// From an opening quote to behind the closing one.
    fn past(&mut self, quote: u8, escapes: bool) {
        self.at += 1;
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'\\' if escapes => self.at += 1,
                // A doubled one opens the next string at once.
                _ if byte == quote => break,
                _ => {}
            }
        }
        self.at = self.at.min(self.bytes.len());
    }

    fn comment(&mut self) {
        let mut depth = 0;
        while let Some(&byte) = self.bytes.get(self.at) {
            let next = self.bytes.get(self.at + 1).copied();
            match (byte, next) {
                (b'/', Some(b'*')) => (depth, self.at) = (depth + 1, self.at + 2),
                (b'*', Some(b'/')) => (depth, self.at) = (depth - 1, self.at + 2),
                _ => self.at += 1,
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn dollar(&mut self) {
        let rest = &self.bytes[self.at + 1..];
        let length = rest.iter().position(|&b| b == b'$' || !is_name(b)).unwrap_or(rest.len());
        let is_quote = rest.get(length) == Some(&b'$') && !rest.first().is_some_and(u8::is_ascii_digit);
        if !is_quote {
            self.at += 1;
            return;
        }
        let tag = &self.script[self.at..self.at + length + 2];
        let body = self.at + tag.len();
        self.at = self.script[body..].find(tag).map_or(self.bytes.len(), |end| body + end + tag.len());
    }

    fn word(&mut self) {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|&b| !is_name(b)).unwrap_or(rest.len());
        let word = self.script[self.at..self.at + length].to_ascii_lowercase();
        self.at += length;
        if word == "e" && self.bytes.get(self.at) == Some(&b'\'') {
            self.past(b'\'', true);
            return;
        }
        let words = &mut self.words;
        match word.as_str() {
            "create" if words.count == 0 => words.is_create = true,
            "copy" if words.count == 0 => words.is_copy = true,
            "function" | "procedure" if words.is_create && words.count <= 4 => words.is_routine = true,
            "stdin" if words.is_copy && words.from => words.from_stdin = true,
            "begin" if words.is_routine => words.begins += 1,
            "case" if words.begins > 0 => words.begins += 1,
            "end" => words.begins = words.begins.saturating_sub(1),
            _ => {}
        }
        words.from = word == "from";
        words.count += 1;
    }

    /// A command of psql's ends with its line; one that sends the statement ends it.
    fn command(&mut self) {
        let line_start = self.script[..self.at].rfind('\n').map_or(0, |end| end + 1);
        let is_own_line = self.script[line_start..self.at].trim().is_empty();
        let end = self.script[self.at..].find('\n').map_or(self.bytes.len(), |end| self.at + end);
        let sends =
            ["\\g", "\\crosstabview", "\\bind", "\\parse"].iter().any(|c| self.script[self.at..].starts_with(c));
        if is_own_line && self.script[self.start..self.at].trim().is_empty() {
            self.start = end;
        } else if sends {
            // Not a statement as it stands: it goes elsewhere, or is made into others.
            self.start = end;
            self.words = Words::default();
            self.depth = 0;
        }
        self.at = end;
    }

    /// Ends a statement before `end`, and begins the next behind the semicolon.
    fn take(&mut self, end: usize, lines: &mut (usize, usize), pieces: &mut Vec<Piece<'a>>) {
        let text = &self.script[self.start.min(end)..end];
        let sql = text.trim();
        let first = self.start + (text.len() - text.trim_start().len());
        if !sql.is_empty() && has_token(sql) {
            lines.0 += self.script[lines.1..first].matches('\n').count();
            lines.1 = first;
            pieces.push(Piece { line: lines.0, sql });
        }
        if std::mem::take(&mut self.words).from_stdin {
            let data = self.script[self.at..].find("\n\\.").map(|end| self.at + end + 3);
            self.at = data.unwrap_or(self.at);
        }
        self.depth = 0;
        self.start = self.at;
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

/// Whether there is more than comments.
fn has_token(sql: &str) -> bool {
    let mut scan = Scan { script: sql, bytes: sql.as_bytes(), at: 0, start: 0, depth: 0, words: Words::default() };
    while scan.at < scan.bytes.len() {
        let rest = &scan.bytes[scan.at..];
        if !rest[0].is_ascii_whitespace() && !rest.starts_with(b"--") && !rest.starts_with(b"/*") {
            return true;
        }
        scan.step();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(script: &str) -> Vec<&str> {
        split(script).into_iter().map(|piece| piece.sql).collect()
    }

    #[test]
    fn a_semicolon_ends_a_statement_only_where_psql_says_so() {
        for (script, expected) in [
            ("SELECT 1; SELECT 2", &["SELECT 1", "SELECT 2"][..]),
            (";;  ; -- only a comment\n;/* and ; one more */", &[]),
            ("SELECT ';', \";\", $$;$$, $a$;$$;$a$; SELECT 2;", &["SELECT ';', \";\", $$;$$, $a$;$$;$a$", "SELECT 2"]),
            ("SELECT E'\\';'; SELECT 'a\\'; SELECT 3", &["SELECT E'\\';'", "SELECT 'a\\'", "SELECT 3"]),
            ("SELECT 'it''s; fine'; SELECT 2", &["SELECT 'it''s; fine'", "SELECT 2"]),
            ("SELECT 1 -- ; no\n; /* /* ; */ ; */ SELECT 2", &["SELECT 1 -- ; no", "/* /* ; */ ; */ SELECT 2"]),
            (
                "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); TABLE t",
                &["CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)", "TABLE t"],
            ),
            (
                "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END; TABLE t",
                &[
                    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END",
                    "TABLE t",
                ],
            ),
            ("BEGIN; SELECT 1; END; SELECT $1", &["BEGIN", "SELECT 1", "END", "SELECT $1"]),
            ("\\set x 1; 2\nSELECT 1;\n\\d\nSELECT 2 \\gset\nSELECT 3", &["SELECT 1", "SELECT 3"]),
            ("COPY t FROM stdin;\n1;2\nSELECT 0;\n\\.\nSELECT 1", &["COPY t FROM stdin", "SELECT 1"]),
            ("SELECT a$x$; SELECT 2", &["SELECT a$x$", "SELECT 2"]),
            ("SELECT 'open; SELECT 2", &["SELECT 'open; SELECT 2"]),
            ("SELECT $q$open; SELECT 2", &["SELECT $q$open; SELECT 2"]),
        ] {
            assert_eq!(texts(script), expected, "{script}");
        }
    }

    #[test]
    fn a_statement_knows_its_line() {
        let lines: Vec<_> =
            split("SELECT 1;\n\n-- two\nSELECT\n2;SELECT 3;\n").iter().map(|piece| piece.line).collect();
        assert_eq!(lines, [1, 3, 5]);
    }

    #[test]
    fn hostile_scripts_end() {
        for text in ["(", "'", "/*", "$", "$a$", "\\", ";", "\n\\", "e'\\", "\u{1F600}", "create function begin ", "--"]
        {
            assert!(split(&text.repeat(20_000)).len() <= 20_001);
        }
    }
}
