//! Statements from a file.

use crate::split::split;

/// A statement with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The first column, or the line of a script.
    pub id: String,
    /// Its text.
    pub sql: String,
}

/// The lines `id<TAB>sql` of a table; further columns are ignored, and so is a head `id<TAB>sql`. In a text `\n`, `\t`, `\r`
/// and `\\` stand for what they say; any other backslash is one.
#[must_use]
pub fn table(text: &str) -> Vec<Statement> {
    let rows = text.lines().filter_map(|line| {
        let mut columns = line.trim_end_matches('\r').split('\t');
        Some((columns.next()?, columns.next()?))
    });
    rows.enumerate()
        .filter(|(number, row)| *number > 0 || *row != ("id", "sql"))
        .map(|(_, (id, sql))| Statement { id: id.to_owned(), sql: unescape(sql) })
        .collect()
}

/// The statements of a script, by the lines that they start in.
#[must_use]
pub fn script(text: &str) -> Vec<Statement> {
    split(text).into_iter().map(|piece| Statement { id: piece.line.to_string(), sql: piece.sql.to_owned() }).collect()
}

fn unescape(cell: &str) -> String {
    let mut text = String::with_capacity(cell.len());
    let mut chars = cell.chars();
    while let Some(char) = chars.next() {
        let escaped = (char == '\\').then(|| chars.clone().next()).flatten();
        let meant = match escaped {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('\\') => '\\',
            _ => {
                text.push(char);
                continue;
            }
        };
        chars.next();
        text.push(meant);
    }
    text
}

/// A text in one cell of a table.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_read_as_they_are_written() {
        let text = "a\\b\n\t\r\\n";
        assert_eq!(unescape(&escape(text)), text);
        assert_eq!(unescape("a\\xb\\"), "a\\xb\\");
        let rows = table("id\tsql\texpected\nA-1\tSELECT 1\\n\treplica\nA-2\tTABLE t\n\nnothing\n");
        let rows: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.sql.as_str())).collect();
        assert_eq!(rows, [("A-1", "SELECT 1\n"), ("A-2", "TABLE t")]);
    }
}
