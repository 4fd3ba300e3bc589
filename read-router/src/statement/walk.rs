//! The walk over the tokens of one statement.
//!
//! Why a text that passes is a read: PostgreSQL runs nothing but a `SelectStmt` of its grammar for a text that starts
//! with `SELECT`, `VALUES`, `TABLE` or a parenthesis, and for `WITH` if its last part starts so. Inside of a
//! `SelectStmt` the grammar lets another statement stand only as the body of a CTE, a write only behind `INTO`, a lock
//! only behind `FOR`, and code only where a function, an operator, a type or a relation is named. The walk looks at
//! each of these places, and asks what is [known](Known) of the name there. A text that passes and is not a valid `SelectStmt` is a syntax error on every server.

mod names;

use super::{
    Known, NotRead,
    lexer::Token,
    name::Name,
    tokens::Tokens,
    words::{Folded, RESERVED, RESERVED_VALUES, STARTERS},
};

/// Brackets open at once. The walk does not recurse, so this only bounds its memory.
const MAX_DEPTH: usize = 256;

/// Walks one text from start to end.
///
/// # Errors
///
/// The first thing met that a proven read does not have.
pub(super) fn prove_read(sql: &str, known: &Known) -> Result<(), NotRead> {
    // No client can send a NUL: the server would see the text end there.
    if sql.as_bytes().contains(&0) {
        return Err(NotRead::Unknown);
    }
    let mut walk = Walk {
        known,
        tokens: Tokens::new(sql),
        before: Before::Start,
        open: vec![Level::new(Bracket::Statement)],
        ctes: Vec::new(),
        expects_relation: false,
        is_distinct: false,
    };
    walk.head()?;
    walk.body()
}

/// What stands right before a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before<'a> {
    /// Nothing, an opening bracket, or `DISTINCT ON (..)`: an expression may start.
    Start,
    /// A comma.
    Comma,
    /// An operator, or a sign that works like one.
    Operator,
    /// `::`
    Cast,
    /// The end of a value: literal, parameter, quoted or qualified name, closing bracket.
    Value,
    /// A name without quotes: a value or a keyword.
    Word(&'a [u8]),
}

impl Before<'_> {
    fn is_word(self, lower: &[u8]) -> bool {
        matches!(self, Before::Word(word) if word.eq_ignore_ascii_case(lower))
    }

    fn is_one_of(self, words: &[&[u8]]) -> bool {
        words.iter().any(|word| self.is_word(word))
    }

    /// Whether a value ends here, so that the next word stands between it and another.
    fn ends_value(self) -> bool {
        match self {
            Before::Value => true,
            Before::Word(word) => {
                let folded = Folded::new(word);
                let word = folded.as_bytes();
                RESERVED_VALUES.contains(word) || !(RESERVED.contains(word) || STARTERS.contains(word))
            }
            _ => false,
        }
    }
}

/// What an open bracket holds, where it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    /// No bracket: the statement itself.
    Statement,
    /// `(` with values, names or a query.
    Round,
    /// `[`
    Square,
    /// The query of a CTE.
    Cte,
    /// `DISTINCT ON (`: the one parenthesis that a function's name may follow.
    DistinctOn,
    /// `GROUPING SETS (`
    GroupingSets,
}

/// An open bracket.
#[derive(Clone, Copy, Debug)]
struct Level<'a> {
    bracket: Bracket,
    /// Inside `GROUP BY` of the query at this level.
    grouping: bool,
    /// There was a `SELECT` at this level.
    select: bool,
    /// Inside its `FROM`.
    from: bool,
    /// The name of the CTE whose query this is.
    cte: Option<Token<'a>>,
}

impl Level<'_> {
    fn new(bracket: Bracket) -> Self {
        Self { bracket, grouping: false, select: false, from: false, cte: None }
    }
}

/// A CTE that names of relations may mean.
#[derive(Clone, Copy, Debug)]
struct Cte {
    name: Name,
    /// How many brackets were open where it is.
    depth: usize,
}

struct Walk<'a> {
    known: &'a Known,
    tokens: Tokens<'a>,
    before: Before<'a>,
    /// Never empty: the statement is the first.
    open: Vec<Level<'a>>,
    /// Those in whose query or behind which the walk is.
    ctes: Vec<Cte>,
    /// A name that comes next may be a relation's.
    expects_relation: bool,
    /// `IS [NOT] DISTINCT` stands before, so that `FROM` begins no list of relations.
    is_distinct: bool,
}

impl<'a> Walk<'a> {
    /// `[EXPLAIN ..]` and the start of the query.
    fn head(&mut self) -> Result<(), NotRead> {
        if self.tokens.take_word(b"explain")? {
            self.explain()?;
        }
        self.query()
    }

    /// The options of `EXPLAIN`. None of them makes a read write, `ANALYZE` included.
    fn explain(&mut self) -> Result<(), NotRead> {
        let tokens = &mut self.tokens;
        if !tokens.take_symbol(b'(')? {
            let _ = tokens.take_word(b"analyze")? || tokens.take_word(b"analyse")?;
            let _ = tokens.take_word(b"verbose")?;
            return Ok(());
        }
        // VALUES could name an option here, and is taken for one.
        if tokens.peek_symbol(b'(')?
            || tokens.peek_word(b"select")?
            || tokens.peek_word(b"table")?
            || tokens.peek_word(b"with")?
        {
            return self.push(Bracket::Round);
        }
        loop {
            match tokens.next()? {
                Some(Token::Symbol(b')')) => return Ok(()),
                // Extensions add options, with names and numbers of any form.
                Some(Token::Word(_) | Token::Quoted(_) | Token::Literal | Token::Symbol(b',')) => {}
                Some(Token::Operator(b"+" | b"-")) => {}
                _ => return Err(NotRead::Unknown),
            }
        }
    }

    /// The start of a statement or of a CTE's query, up to the word that says it is a query.
    fn query(&mut self) -> Result<(), NotRead> {
        loop {
            match self.tokens.next()? {
                Some(Token::Symbol(b'(')) => self.push(Bracket::Round)?,
                Some(Token::Word(word)) => match Folded::new(word).as_bytes() {
                    verb @ (b"select" | b"values" | b"table") => {
                        self.before = Before::Word(word);
                        self.clause(verb, Before::Start);
                        return Ok(());
                    }
                    b"with" => self.cte()?,
                    verb => return Err(reason(verb)),
                },
                _ => return Err(NotRead::Unknown),
            }
        }
    }

    /// From behind `WITH`, or the comma behind a CTE, to behind the parenthesis of the next one.
    fn cte(&mut self) -> Result<(), NotRead> {
        let tokens = &mut self.tokens;
        let mut name = tokens.expect_name()?;
        // RECURSIVE may itself be the name.
        if name.is_word(b"recursive") && !tokens.peek_symbol(b'(')? && !tokens.peek_word(b"as")? {
            name = tokens.expect_name()?;
        }
        if tokens.take_symbol(b'(')? {
            tokens.expect_names()?;
            tokens.expect_symbol(b')')?;
        }
        tokens.expect_word(b"as")?;
        if tokens.take_word(b"not")? {
            tokens.expect_word(b"materialized")?;
        } else {
            tokens.take_word(b"materialized")?;
        }
        tokens.expect_symbol(b'(')?;
        self.push(Bracket::Cte)?;
        if let Some(level) = self.open.last_mut() {
            level.cte = Some(name);
        }
        Ok(())
    }

    /// From behind a CTE to the start of the query that follows it.
    fn after_cte(&mut self, name: Option<Token<'a>>) -> Result<(), NotRead> {
        if let Some(name) = name.and_then(Name::of) {
            self.ctes.push(Cte { name, depth: self.open.len() });
        }
        let tokens = &mut self.tokens;
        if tokens.take_word(b"search")? {
            let _ = tokens.take_word(b"depth")? || tokens.take_word(b"breadth")?;
            tokens.expect_word(b"first")?;
            tokens.expect_word(b"by")?;
            tokens.expect_names()?;
            tokens.expect_word(b"set")?;
            tokens.expect_name()?;
        }
        if tokens.take_word(b"cycle")? {
            tokens.expect_names()?;
            tokens.expect_word(b"set")?;
            tokens.expect_name()?;
            if tokens.take_word(b"to")? {
                tokens.next()?;
                tokens.expect_word(b"default")?;
                tokens.next()?;
            }
            tokens.expect_word(b"using")?;
            tokens.expect_name()?;
        }
        if tokens.take_symbol(b',')? {
            self.cte()?;
        }
        self.query()
    }

    /// Everything behind the head.
    fn body(&mut self) -> Result<(), NotRead> {
        while let Some(token) = self.tokens.next()? {
            match token {
                Token::Word(_) | Token::Quoted(_) => self.name(token)?,
                Token::Literal | Token::Parameter => self.before = Before::Value,
                Token::Operator(operator) => {
                    self.known.operator(None, operator)?;
                    self.before = Before::Operator;
                }
                Token::Arrow | Token::Symbol(b':') => self.before = Before::Operator,
                Token::Cast => self.before = Before::Cast,
                Token::Symbol(b',') => {
                    self.before = Before::Comma;
                    self.expects_relation = self.level().from;
                }
                Token::Symbol(b'(') => self.open(Bracket::Round)?,
                Token::Symbol(b'[') => self.push(Bracket::Square)?,
                Token::Symbol(b')') => self.close(false)?,
                Token::Symbol(b']') => self.close(true)?,
                Token::Symbol(b'.') => self.field()?,
                Token::Symbol(b';') if self.open.len() == 1 => return self.end(),
                Token::Symbol(_) => return Err(NotRead::Unknown),
            }
        }
        match self.open.len() {
            1 => Ok(()),
            _ => Err(NotRead::Unknown),
        }
    }

    /// Behind the semicolon.
    fn end(&mut self) -> Result<(), NotRead> {
        match self.tokens.next()? {
            None => Ok(()),
            Some(_) => Err(NotRead::SeveralStatements),
        }
    }

    /// Behind an opening bracket.
    fn push(&mut self, bracket: Bracket) -> Result<(), NotRead> {
        if self.open.len() > MAX_DEPTH {
            return Err(NotRead::Unknown);
        }
        // What stands where a relation can is a join, or a query that says so with its first word.
        self.open.push(Level { from: self.expects_relation, ..Level::new(bracket) });
        self.before = Before::Start;
        Ok(())
    }

    fn level(&self) -> Level<'a> {
        self.open.last().copied().unwrap_or(Level::new(Bracket::Statement))
    }

    /// Behind a parenthesis that may hold a query. CTEs can come nowhere else than right at its start.
    fn open(&mut self, bracket: Bracket) -> Result<(), NotRead> {
        self.push(bracket)?;
        match self.tokens.peek_word(b"with")? {
            true => self.query(),
            false => Ok(()),
        }
    }

    /// Behind a closing bracket.
    fn close(&mut self, square: bool) -> Result<(), NotRead> {
        let level = self.open.pop().unwrap_or(Level::new(Bracket::Statement));
        let bracket = level.bracket;
        if bracket == Bracket::Statement || square != (bracket == Bracket::Square) {
            return Err(NotRead::Unknown);
        }
        self.expects_relation = false;
        while self.ctes.last().is_some_and(|cte| cte.depth > self.open.len()) {
            self.ctes.pop();
        }
        self.before = match bracket {
            Bracket::Cte => return self.after_cte(level.cte),
            Bracket::DistinctOn => Before::Start,
            _ => Before::Value,
        };
        Ok(())
    }
}

/// What a statement does that starts with this word.
fn reason(verb: &[u8]) -> NotRead {
    match verb {
        b"insert" | b"update" | b"delete" | b"merge" | b"copy" | b"create" | b"alter" | b"drop" | b"truncate"
        | b"grant" | b"revoke" | b"comment" | b"security" | b"refresh" | b"reindex" | b"cluster" | b"vacuum"
        | b"analyze" | b"analyse" | b"import" | b"reassign" | b"checkpoint" => NotRead::Write,
        b"lock" => NotRead::Lock,
        b"call" | b"do" | b"execute" => NotRead::Function,
        b"abort" | b"begin" | b"close" | b"commit" | b"deallocate" | b"declare" | b"discard" | b"end" | b"fetch"
        | b"listen" | b"load" | b"move" | b"notify" | b"prepare" | b"release" | b"reset" | b"rollback"
        | b"savepoint" | b"set" | b"show" | b"start" | b"unlisten" => NotRead::Session,
        _ => NotRead::Unknown,
    }
}
