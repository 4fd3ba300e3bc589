//! Which statements come how often, by their shape.

use std::collections::BTreeMap;

use super::{
    lexer::{Lexer, Token},
    suspects::suspects,
    text_hash::TextHash,
};

/// Counts of statements by their shape: the text with each value, and each list of values, as `?`. Bounded.
pub struct StatementTally {
    hash: TextHash,
    /// Where the counts of texts that came before are, so that a text is cut up once.
    texts: BTreeMap<u64, usize>,
    shapes: BTreeMap<String, usize>,
    counts: Vec<u64>,
    others: u64,
}

impl std::fmt::Debug for StatementTally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key.
        f.debug_struct("StatementTally").field("shapes", &self.counts.len()).finish_non_exhaustive()
    }
}

/// A statement's shape and how often it came.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatementCount {
    /// The shape. Values are left out; names of tables and columns are not.
    pub statement: String,
    /// How often.
    pub count: u64,
    /// What it names that a pin may speak of: `function my_udf`, `table audit`. Of a statement that a replica refused, one of
    /// these is at fault; pin it to the primary, and all statements that use it go there.
    pub names: Vec<String>,
}

const MOST_SHAPES: usize = 256;
const MOST_TEXTS: usize = 4096;
/// A longer shape is cut off here, in bytes.
const LONGEST: usize = 1024;

impl StatementTally {
    /// An empty tally; the key is as for [`StatementKinds`](crate::StatementKinds::with_key).
    #[must_use]
    pub fn with_key(key: [u64; 2]) -> Self {
        Self {
            hash: TextHash::with_key(key),
            texts: BTreeMap::new(),
            shapes: BTreeMap::new(),
            counts: Vec::new(),
            others: 0,
        }
    }

    /// The statement came once more; returns whether its shape is a new one.
    pub fn count(&mut self, sql: &str) -> bool {
        let hash = self.hash.of(sql.as_bytes());
        if let Some(place) = self.texts.get(&hash) {
            self.counts[*place] += 1;
            return false;
        }
        let shape = shape(sql);
        let is_new = !self.shapes.contains_key(&shape);
        if is_new && self.counts.len() >= MOST_SHAPES {
            self.others += 1;
            return false;
        }
        let place = *self.shapes.entry(shape).or_insert_with(|| {
            self.counts.push(0);
            self.counts.len() - 1
        });
        self.counts[place] += 1;
        if self.texts.len() >= MOST_TEXTS {
            self.texts.clear();
        }
        self.texts.insert(hash, place);
        is_new
    }

    /// The shapes, the most frequent first.
    #[must_use]
    pub fn counts(&self) -> Vec<StatementCount> {
        let count = |(statement, place): (&String, &usize)| StatementCount {
            names: suspects(statement),
            statement: statement.clone(),
            count: self.counts[*place],
        };
        let mut all: Vec<_> = self.shapes.iter().map(count).collect();
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.statement.cmp(&b.statement)));
        all
    }

    /// Statements that found no place among the shapes that are kept.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others
    }
}

/// The statement with its values left out. What is not understood shows nothing of itself.
fn shape(sql: &str) -> String {
    let mut lexer = Lexer::new(sql);
    let mut shape = String::new();
    loop {
        let token = match lexer.token() {
            Ok(Some(token)) => token,
            Ok(None) => return shape,
            Err(_) => return "(a statement that is not understood)".to_owned(),
        };
        let (text, glued) = match token {
            Token::Word(name) => (String::from_utf8_lossy(name).into_owned(), false),
            Token::Quoted(name) => (format!("\"{}\"", String::from_utf8_lossy(name)), false),
            Token::Literal | Token::Parameter if shape.ends_with("?,") => {
                shape.pop();
                continue;
            }
            Token::Literal | Token::Parameter => ("?".to_owned(), false),
            Token::Operator(operator) => (String::from_utf8_lossy(operator).into_owned(), false),
            Token::Cast => ("::".to_owned(), true),
            Token::Arrow => ("=>".to_owned(), false),
            Token::Symbol(symbol) => (char::from(symbol).to_string(), symbol != b'['),
        };
        let after_opening = shape.ends_with(['(', '.', '[', ':']) || shape.is_empty();
        if !(glued && text != "(" || after_opening) {
            shape.push(' ');
        }
        shape.push_str(&text);
        if shape.len() > LONGEST {
            let end = (0..=LONGEST).rev().find(|end| shape.is_char_boundary(*end)).unwrap_or(0);
            shape.truncate(end);
            shape.push('…');
            return shape;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_count_but_names_do() {
        for (sql, expected) in [
            (
                r#"SELECT "a"."id" FROM "a" WHERE "a"."id" = $1 LIMIT 5"#,
                r#"SELECT "a"."id" FROM "a" WHERE "a"."id" = ? LIMIT ?"#,
            ),
            ("SELECT 1", "SELECT ?"),
            ("select * from t where x in ($1, $2, $3)", "select * from t where x in (?)"),
            ("SELECT 'secret'::text -- who\n FROM t", "SELECT ?::text FROM t"),
            ("SELECT count(*) FROM t", "SELECT count (*) FROM t"),
            ("SELECT '", "(a statement that is not understood)"),
        ] {
            assert_eq!(shape(sql), expected, "{sql}");
        }
        assert!(shape(&format!("SELECT {}1", "a, ".repeat(2000))).len() <= LONGEST + 4);
    }

    #[test]
    fn counts_by_shape_and_stays_bounded() {
        let mut tally = StatementTally::with_key([1, 2]);
        assert!(tally.count("SELECT a FROM t WHERE id = 1"));
        assert!(!tally.count("SELECT a FROM t WHERE id = 2"));
        assert!(!tally.count("SELECT a FROM t WHERE id = 2"));
        assert!(tally.count("SELECT b FROM t"));
        let counts = tally.counts();
        assert_eq!((counts[0].statement.as_str(), counts[0].count), ("SELECT a FROM t WHERE id = ?", 3));
        for number in 0..3 * MOST_TEXTS {
            tally.count(&format!("SELECT c{number} FROM t"));
        }
        assert!(tally.counts().len() <= MOST_SHAPES && tally.texts.len() <= MOST_TEXTS);
        assert!(tally.others() > 0);
        assert_eq!(tally.counts().iter().map(|c| c.count).sum::<u64>() + tally.others(), 4 + 3 * MOST_TEXTS as u64);
    }
}
