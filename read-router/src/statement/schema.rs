//! What a statement changes of what the catalogue tells.

use std::collections::BTreeSet;

use super::{
    lexer::{Malformed, Token},
    name::Name,
    tokens::Tokens,
    words::Folded,
};

/// What a statement may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaChange {
    /// Nothing that could make a read of before something else: tables as they are usually made, enums, indexes, all that is
    /// dropped.
    Tables,
    /// What has one of these names may do more than read from now on, in whatever schema: functions, views, policies,
    /// unlogged tables. A statement that names none of them, nor what uses them, is what it was.
    Names(BTreeSet<String>),
    /// What no statement names where it runs, such as casts and domains, or what is not understood.
    Code,
}

/// More names than this are as good as everything.
const MOST_NAMES: usize = 256;

impl SchemaChange {
    /// What a statement may change, as far as its text shows: a function that changes the schema is not seen. For what
    /// reads or changes rows this costs little more than a look at its first word.
    #[must_use]
    pub fn of(sql: &str) -> Option<Self> {
        let may_be_several = || sql.trim_end().trim_end_matches(';').contains(';');
        let mut text = Text(Tokens::new(sql));
        let mut all: Option<Self> = None;
        loop {
            // Only what begins as a change is looked into, and what is not understood there may be anything.
            let Ok(found) = text.statement() else { return Some(Self::Code) };
            if all.is_none() && found.is_none() && !may_be_several() {
                return None;
            }
            all = match (all, found) {
                (Some(all), Some(found)) => Some(all.and(found)),
                (all, found) => all.or(found),
            };
            match text.skip() {
                Ok(true) => {}
                Ok(false) => return all,
                Err(Malformed) => return all.map(|_| Self::Code),
            }
        }
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Names(mut all), Self::Names(more)) => {
                all.extend(more);
                if all.len() > MOST_NAMES { Self::Code } else { Self::Names(all) }
            }
            (Self::Code, _) | (_, Self::Code) => Self::Code,
            (Self::Tables, other) | (other, Self::Tables) => other,
        }
    }

    /// Names beyond ASCII depend on the server's encoding.
    fn names(names: impl IntoIterator<Item = Name>) -> Self {
        let text = |name: Name| String::from_utf8(name.as_bytes().to_vec()).ok().filter(|text| text.is_ascii());
        names.into_iter().map(text).collect::<Option<_>>().map_or(Self::Code, Self::Names)
    }
}

/// The statements of a text.
struct Text<'a>(Tokens<'a>);

type Found = Result<SchemaChange, Malformed>;

impl<'a> Text<'a> {
    /// From the start of a statement, up to where it is known.
    fn statement(&mut self) -> Result<Option<SchemaChange>, Malformed> {
        let Ok(first) = self.0.peek() else { return Ok(None) };
        let is = |word: &[u8]| first.is_some_and(|first| first.is_word(word));
        let change = match () {
            () if is(b"create") => self.create(),
            () if is(b"alter") => self.alter(),
            // What is gone does nothing, and what a name may lead to instead has been judged with it.
            () if is(b"drop") => Ok(SchemaChange::Tables),
            () if is(b"import") || is(b"do") || is(b"call") => Ok(SchemaChange::Code),
            () => return Ok(None),
        };
        change.map(Some)
    }

    /// To behind the semicolon; whether there is one.
    fn skip(&mut self) -> Result<bool, Malformed> {
        while self.token()?.is_some() {}
        self.0.take_symbol(b';')
    }

    /// The next token of the statement.
    fn token(&mut self) -> Result<Option<Token<'a>>, Malformed> {
        if self.0.peek_symbol(b';')? { Ok(None) } else { self.0.next() }
    }

    /// The next token's word, in lower case; empty if it is another kind of token.
    fn word(&mut self) -> Result<Folded, Malformed> {
        Ok(match self.token()? {
            Some(Token::Word(word)) => Folded::new(word),
            _ => Folded::new(b""),
        })
    }

    /// Whether one of the words comes later in the statement.
    fn has(&mut self, words: &[&[u8]]) -> Result<bool, Malformed> {
        while let Some(token) = self.token()? {
            if words.iter().any(|word| token.is_word(word)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `[IF [NOT] EXISTS] [ONLY] [schema.]name`: the name, and whether the schema is that of temporary tables.
    fn name(&mut self) -> Result<Option<(Name, bool)>, Malformed> {
        if self.0.take_word(b"if")? {
            self.0.take_word(b"not")?;
            self.0.take_word(b"exists")?;
        }
        self.0.take_word(b"only")?;
        let mut name = self.token()?.and_then(Name::of);
        let mut is_temporary = false;
        while self.0.take_symbol(b'.')? {
            is_temporary = name.is_some_and(|schema| schema.as_bytes().starts_with(b"pg_temp"));
            name = self.token()?.and_then(Name::of);
        }
        Ok(name.map(|name| (name, is_temporary)))
    }

    /// What has the name that comes next.
    fn named(&mut self) -> Found {
        Ok(self.name()?.map_or(SchemaChange::Code, |(name, _)| SchemaChange::names([name])))
    }

    /// What has the name behind the word.
    fn named_behind(&mut self, word: &[u8]) -> Found {
        if self.has(&[word])? { self.named() } else { Ok(SchemaChange::Code) }
    }

    fn create(&mut self) -> Found {
        self.token()?;
        // Replicas do not have it.
        let mut is_absent = false;
        loop {
            return match self.word()?.as_bytes() {
                b"or" | b"replace" | b"global" | b"local" | b"recursive" | b"unique" | b"constraint" | b"event" => {
                    continue;
                }
                b"temp" | b"temporary" | b"unlogged" | b"foreign" => {
                    is_absent = true;
                    continue;
                }
                b"table" => self.create_table(is_absent),
                b"view" | b"function" | b"aggregate" | b"sequence" => self.named(),
                b"policy" => self.named_behind(b"on"),
                b"rule" => self.named_behind(b"to"),
                b"type" => self.create_type(),
                b"domain" => match self.name()? {
                    // A check runs wherever a value becomes one of the domain.
                    Some((name, _)) if !self.has(&[b"check", b"constraint"])? => Ok(with_array(name)),
                    _ => Ok(SchemaChange::Code),
                },
                b"schema" => Ok(if self.has(&[b"create"])? { SchemaChange::Code } else { SchemaChange::Tables }),
                // A materialized view is read as a table is; a procedure runs in CALL only, a trigger in what writes.
                b"materialized" | b"index" | b"trigger" | b"procedure" | b"statistics" | b"role" | b"user"
                | b"group" | b"database" | b"tablespace" | b"publication" | b"subscription" | b"server" => {
                    Ok(SchemaChange::Tables)
                }
                _ => Ok(SchemaChange::Code),
            };
        }
    }

    fn create_table(&mut self, is_absent: bool) -> Found {
        match self.name()? {
            Some((_, false)) if !is_absent => Ok(SchemaChange::Tables),
            // A query of the parent reads it too.
            Some((name, _)) if !self.has(&[b"inherits", b"partition"])? => Ok(SchemaChange::names([name])),
            _ => Ok(SchemaChange::Code),
        }
    }

    fn create_type(&mut self) -> Found {
        let Some((name, _)) = self.name()? else { return Ok(SchemaChange::Code) };
        if !self.0.take_word(b"as")? {
            return Ok(SchemaChange::Code);
        }
        Ok(match self.token()? {
            Some(token) if token.is_word(b"enum") => SchemaChange::Tables,
            Some(Token::Symbol(b'(')) => with_array(name),
            _ => SchemaChange::Code,
        })
    }

    fn alter(&mut self) -> Found {
        self.token()?;
        loop {
            return match self.word()?.as_bytes() {
                b"foreign" | b"materialized" | b"event" => continue,
                b"table" | b"view" | b"sequence" | b"index" => self.alter_relation(),
                b"function" | b"routine" | b"aggregate" => self.alter_function(),
                b"policy" => self.named_behind(b"on"),
                b"type" => self.alter_type(),
                b"trigger" | b"procedure" | b"statistics" | b"role" | b"user" | b"group" | b"database"
                | b"tablespace" | b"publication" | b"subscription" | b"server" | b"default" | b"system" | b"large" => {
                    Ok(SchemaChange::Tables)
                }
                _ => Ok(SchemaChange::Code),
            };
        }
    }

    /// Any of these words may stand before any kind of relation, but for what only tables have.
    fn alter_relation(&mut self) -> Found {
        let Some((name, _)) = self.name()? else { return Ok(SchemaChange::Code) };
        if self.0.take_word(b"rename")? {
            return match self.0.take_word(b"to")? {
                true => Ok(self.name()?.map_or(SchemaChange::Code, |(new, _)| SchemaChange::names([name, new]))),
                false => Ok(SchemaChange::Tables),
            };
        }
        let mut change = SchemaChange::Tables;
        let mut before_is_no = false;
        while let Some(token) = self.token()? {
            let Token::Word(word) = token else { continue };
            match Folded::new(word).as_bytes() {
                // Also what a query reads of its parents.
                b"unlogged" | b"attach" => return Ok(SchemaChange::Code),
                b"inherit" if !before_is_no => return Ok(SchemaChange::Code),
                b"schema" | b"security" | b"rule" => change = SchemaChange::names([name]),
                _ => {}
            }
            before_is_no = token.is_word(b"no");
        }
        Ok(change)
    }

    fn alter_function(&mut self) -> Found {
        let Some((name, _)) = self.name()? else { return Ok(SchemaChange::Code) };
        if !self.has(&[b"rename"])? {
            return Ok(SchemaChange::names([name]));
        }
        self.0.take_word(b"to")?;
        Ok(self.name()?.map_or(SchemaChange::Code, |(new, _)| SchemaChange::names([name, new])))
    }

    fn alter_type(&mut self) -> Found {
        let Some((name, _)) = self.name()? else { return Ok(SchemaChange::Code) };
        let (verb, what) = (self.word()?, self.word()?);
        Ok(match (verb.as_bytes(), what.as_bytes()) {
            (b"add", b"value") | (b"rename", b"value" | b"attribute") | (b"owner", _) => SchemaChange::Tables,
            (b"rename", b"to") => match self.name()? {
                Some((new, _)) => with_array(name).and(with_array(new)),
                None => SchemaChange::Code,
            },
            (b"set", b"schema") => with_array(name),
            _ => SchemaChange::Code,
        })
    }
}

/// A type, and that of its arrays.
fn with_array(name: Name) -> SchemaChange {
    match SchemaChange::names([name]) {
        SchemaChange::Names(mut names) => {
            let array = names.iter().map(|name| format!("_{name}").chars().take(63).collect()).collect::<Vec<_>>();
            names.extend(array);
            SchemaChange::Names(names)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
