//! The names in a query: keywords, calls, types, and what they are when a parenthesis follows.

use super::{
    super::{
        NotRead,
        lexer::Token,
        name::Name,
        words::{Folded, RESERVED, SPECIAL_FORMS},
    },
    Before, Bracket, Walk,
};

/// A name as it stands in the text, `a` or `a.b.c`.
#[derive(Clone, Copy, Debug)]
struct Dotted<'a> {
    last: Token<'a>,
    /// What stands before the last dot.
    schema: Option<Token<'a>>,
    parts: usize,
    /// Two parts, the first of them `pg_catalog`.
    built_in: bool,
}

impl Dotted<'_> {
    fn is_reserved(&self) -> bool {
        matches!((self.parts, self.last), (1, Token::Word(word)) if RESERVED.contains(Folded::new(word).as_bytes()))
    }
}

impl<'a> Walk<'a> {
    /// Behind the first part of a name: of a column, relation, type or alias, a keyword, or a call.
    pub(super) fn name(&mut self, first: Token<'a>) -> Result<(), NotRead> {
        let before = self.before;
        let may_be_relation = std::mem::take(&mut self.expects_relation);
        self.before = match first {
            Token::Word(word) => Before::Word(word),
            _ => Before::Value,
        };
        let mut name = Dotted { last: first, schema: None, parts: 1, built_in: false };
        while self.tokens.take_symbol(b'.')? {
            self.before = Before::Value;
            let built_in = name.parts == 1 && name.last.is_named(b"pg_catalog");
            if name.built_in || (!built_in && is_catalog(name.last)) {
                return Err(NotRead::Catalog);
            }
            match self.tokens.next()? {
                Some(last @ (Token::Word(_) | Token::Quoted(_))) => {
                    name = Dotted { last, schema: Some(name.last), parts: name.parts + 1, built_in };
                }
                Some(Token::Operator(b"*")) if !built_in => return Ok(()),
                _ => return Err(NotRead::Unknown),
            }
        }
        if let (1, Token::Word(word)) = (name.parts, name.last) {
            self.known.word(Folded::new(word).as_bytes())?;
        }
        if self.tokens.peek_symbol(b'(')? {
            if name.parts == 1 && name.last.is_word(b"operator") {
                return self.operator();
            }
            let bracket = self.parenthesis(name, before)?;
            self.tokens.next()?;
            return self.open(bracket);
        }
        if name.built_in || is_catalog(name.last) {
            return Err(NotRead::Catalog);
        }
        if may_be_relation && !name.is_reserved() {
            self.relation(name)?;
            // Certainly no keyword: what follows it is an alias, perhaps with columns, or a keyword.
            self.before = Before::Value;
        }
        self.mention(name.last, name.parts > 1)?;
        match (name.parts, name.last) {
            (1, Token::Word(word)) => self.keyword(word, before),
            _ => Ok(()),
        }
    }

    /// Where a relation is named.
    fn relation(&self, name: Dotted<'_>) -> Result<(), NotRead> {
        let Some(relation) = Name::of(name.last) else { return Ok(()) };
        let is_cte = |cte: &super::Cte| cte.name.as_bytes() == relation.as_bytes();
        if name.parts == 1 && self.ctes.iter().any(is_cte) {
            return Ok(());
        }
        self.known.relation(name.schema.and_then(Name::of).as_ref(), &relation)
    }

    /// Where a column, a type or an alias is named, and what only looks like a column.
    fn mention(&self, name: Token<'_>, is_field: bool) -> Result<(), NotRead> {
        match self.known.catalogue().and_then(|_| Name::of(name)) {
            Some(name) => self.known.mention(&name, is_field),
            None => Ok(()),
        }
    }

    /// Behind the word of `OPERATOR(schema.+)`.
    fn operator(&mut self) -> Result<(), NotRead> {
        self.tokens.expect_symbol(b'(')?;
        let mut schema = None;
        let operator = loop {
            match self.tokens.next()? {
                Some(Token::Operator(operator)) => break operator,
                Some(name @ (Token::Word(_) | Token::Quoted(_))) if schema.is_none() => {
                    schema = Name::of(name);
                    self.tokens.expect_symbol(b'.').map_err(|_| NotRead::Operator)?;
                }
                _ => return Err(NotRead::Operator),
            }
        };
        self.tokens.expect_symbol(b')').map_err(|_| NotRead::Operator)?;
        self.known.operator(schema.as_ref(), operator)?;
        self.before = Before::Operator;
        Ok(())
    }

    /// Behind the dot of `(row).field`, `array[1].field` or `(row).*`.
    pub(super) fn field(&mut self) -> Result<(), NotRead> {
        match self.tokens.next()? {
            Some(name @ (Token::Word(_) | Token::Quoted(_))) => self.mention(name, true)?,
            Some(Token::Operator(b"*")) => {}
            _ => return Err(NotRead::Unknown),
        }
        self.before = Before::Value;
        match self.tokens.peek_symbol(b'(')? {
            true => Err(NotRead::Function),
            false => Ok(()),
        }
    }

    /// What the parenthesis behind the name is, unless it calls something unknown.
    fn parenthesis(&mut self, name: Dotted<'a>, before: Before<'a>) -> Result<Bracket, NotRead> {
        let (folded, single_word);
        let function = match name.last {
            Token::Word(word) => {
                single_word = (name.parts == 1).then_some(word);
                folded = Folded::new(word);
                folded.as_bytes()
            }
            Token::Quoted(text) => {
                single_word = None;
                text
            }
            _ => return Err(NotRead::Unknown),
        };
        if let Some(word) = single_word
            && RESERVED.contains(function)
        {
            self.keyword(word, before)?;
            return match function {
                b"on" if before.is_word(b"distinct") => Ok(Bracket::DistinctOn),
                _ => Ok(Bracket::Round),
            };
        }
        // No function can follow a value, `::` or AS. So this is an alias with columns, a type with modifiers, or a
        // word like OVER, FILTER, ILIKE.
        if matches!(before, Before::Value | Before::Cast) || before.is_word(b"as") {
            self.expects_relation = single_word.is_some() && function == b"join";
            return match name.built_in || is_catalog(name.last) {
                true => Err(NotRead::Catalog),
                false => self.mention(name.last, false).map(|()| Bracket::Round),
            };
        }
        if before.is_word(b"tablesample") {
            return match (name.parts, function) {
                (1, b"bernoulli" | b"system") => Ok(Bracket::Round),
                _ => Err(NotRead::Function),
            };
        }
        if single_word.is_some()
            && let Some(bracket) = self.phrase(function, before)
        {
            self.expects_relation = function == b"join";
            // With commas these two are calls like any other.
            if !matches!(function, b"substring" | b"overlay") {
                return Ok(bracket);
            }
        }
        let called = Name::of(name.last).filter(|_| name.parts <= 2).ok_or(NotRead::Function)?;
        self.known.function(name.schema.and_then(Name::of).as_ref(), &called)?;
        // A type that is called casts to itself.
        self.mention(name.last, false)?;
        Ok(Bracket::Round)
    }

    /// The bracket of a word that takes a parenthesis without being a call, by itself or after what stands before it.
    fn phrase(&self, word: &[u8], before: Before<'a>) -> Option<Bracket> {
        let level = self.open.last()?;
        let fits = match word {
            _ if SPECIAL_FORMS.contains(word) => true,
            b"by" => before.is_one_of(&[b"order", b"partition", b"group"]),
            b"zone" => before.is_word(b"time"),
            b"first" | b"next" => before.is_word(b"fetch"),
            b"second" => before.is_one_of(&[b"to", b"interval"]),
            b"varying" => before.is_one_of(&[b"character", b"char", b"bit", b"nchar"]),
            b"like" | b"ilike" | b"escape" | b"columns" | b"rows" | b"range" | b"groups" => before.ends_value(),
            b"join" => before.ends_value() || before.is_one_of(JOINS),
            b"rollup" | b"cube" if level.bracket == Bracket::GroupingSets => {
                matches!(before, Before::Start | Before::Comma)
            }
            b"rollup" | b"cube" if level.grouping => {
                before == Before::Comma || before.is_one_of(&[b"by", b"distinct", b"all"])
            }
            b"sets" if before.is_word(b"grouping") => return Some(Bracket::GroupingSets),
            _ => false,
        };
        fits.then_some(Bracket::Round)
    }

    /// Behind a single word without quotes that is no call: a keyword, or a name after all.
    fn keyword(&mut self, word: &'a [u8], before: Before<'a>) -> Result<(), NotRead> {
        let folded = Folded::new(word);
        self.clause(folded.as_bytes(), before);
        match folded.as_bytes() {
            b"into" => return Err(NotRead::Write),
            b"for" => {
                if self.peek_one_of(&[b"update", b"share", b"no", b"key"])? {
                    return Err(NotRead::Lock);
                }
                self.grouping(false);
            }
            b"with" => return self.with(),
            b"not" if before.ends_value() && self.tokens.peek_word(b"ilike")? => self.before = Before::Value,
            b"group" if self.tokens.peek_word(b"by")? => self.grouping(true),
            b"having" | b"window" | b"order" | b"limit" | b"offset" | b"fetch" | b"union" | b"intersect"
            | b"except" => self.grouping(false),
            // Of a sequence's one row: by hand it is read without quotes, and it is ahead on a standby. An ORM quotes
            // a column that has the same name.
            b"last_value" if !before.is_word(b"as") => return Err(NotRead::Catalog),
            _ => {}
        }
        Ok(())
    }

    /// Behind a word that may begin a part of a query: whether names of relations come next.
    pub(super) fn clause(&mut self, word: &[u8], before: Before<'a>) {
        let is_distinct = std::mem::take(&mut self.is_distinct);
        let Some(level) = self.open.last_mut() else { return };
        match word {
            b"select" => (level.select, level.from) = (true, false),
            b"from" if level.select && !is_distinct => {
                level.from = true;
                self.expects_relation = true;
            }
            b"join" | b"only" | b"lateral" | b"table" => self.expects_relation = true,
            b"distinct" => self.is_distinct = before.is_one_of(&[b"is", b"not"]),
            b"values" | b"where" | b"group" | b"having" | b"window" | b"order" | b"limit" | b"offset" | b"fetch"
            | b"union" | b"intersect" | b"except" | b"for" => level.from = false,
            _ => {}
        }
    }

    /// Behind a `WITH` in the middle of a query, where none with CTEs can be.
    fn with(&mut self) -> Result<(), NotRead> {
        if self.tokens.take_word(b"ordinality")? {
            self.before = Before::Value;
            return Ok(());
        }
        match self.peek_one_of(&[b"time", b"ties", b"unique", b"wrapper", b"conditional", b"unconditional"])? {
            true => Ok(()),
            false => Err(NotRead::Unknown),
        }
    }

    fn peek_one_of(&mut self, words: &[&[u8]]) -> Result<bool, NotRead> {
        let ahead = self.tokens.peek()?;
        Ok(ahead.is_some_and(|token| words.iter().any(|word| token.is_word(word))))
    }

    fn grouping(&mut self, grouping: bool) {
        if let Some(level) = self.open.last_mut() {
            level.grouping = grouping;
        }
    }
}

/// The words before `JOIN`.
const JOINS: &[&[u8]] = &[b"left", b"right", b"full", b"inner", b"outer", b"cross", b"natural"];

/// Whether the name is one of PostgreSQL's own relations, one of their schemas, or a type whose input looks a name up
/// in them.
fn is_catalog(name: Token<'_>) -> bool {
    let (Token::Word(text) | Token::Quoted(text)) = name else {
        return false;
    };
    match text {
        // A type whose input looks at nothing.
        _ if name.is_named(b"pg_lsn") => false,
        [b'p' | b'P', b'g' | b'G', b'_', ..] => true,
        [b'i' | b'I' | b'r' | b'R', ..] => CATALOG.iter().any(|lower| name.is_named(lower)),
        _ => false,
    }
}

// Not regconfig and regdictionary: to_tsvector('english', ..) looks up the same.
const CATALOG: &[&[u8]] = &[
    b"information_schema",
    b"regclass",
    b"regcollation",
    b"regdatabase",
    b"regnamespace",
    b"regoper",
    b"regoperator",
    b"regproc",
    b"regprocedure",
    b"regrole",
    b"regtype",
];
