//! The tokens of a text, with a look at the one ahead.

use super::{
    NotRead,
    lexer::{Lexer, Malformed, Token},
};

/// A reader of tokens.
pub(super) struct Tokens<'a> {
    lexer: Lexer<'a>,
    ahead: Option<Option<Token<'a>>>,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(sql: &'a str) -> Self {
        Self { lexer: Lexer::new(sql), ahead: None }
    }

    /// The next token, or `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Token<'a>>, Malformed> {
        match self.ahead.take() {
            Some(token) => Ok(token),
            None => self.lexer.token(),
        }
    }

    /// The same, left for the next call.
    pub(super) fn peek(&mut self) -> Result<Option<Token<'a>>, Malformed> {
        if let Some(token) = self.ahead {
            return Ok(token);
        }
        let token = self.lexer.token()?;
        self.ahead = Some(token);
        Ok(token)
    }

    /// Whether the next token is this word, without quotes and in any case.
    pub(super) fn peek_word(&mut self, lower: &[u8]) -> Result<bool, Malformed> {
        Ok(self.peek()?.is_some_and(|token| token.is_word(lower)))
    }

    pub(super) fn peek_symbol(&mut self, symbol: u8) -> Result<bool, Malformed> {
        Ok(self.peek()? == Some(Token::Symbol(symbol)))
    }

    /// Moves past the word if it is next.
    pub(super) fn take_word(&mut self, lower: &[u8]) -> Result<bool, Malformed> {
        let found = self.peek_word(lower)?;
        if found {
            self.ahead = None;
        }
        Ok(found)
    }

    /// Moves past the symbol if it is next.
    pub(super) fn take_symbol(&mut self, symbol: u8) -> Result<bool, Malformed> {
        let found = self.peek_symbol(symbol)?;
        if found {
            self.ahead = None;
        }
        Ok(found)
    }

    pub(super) fn expect_word(&mut self, lower: &[u8]) -> Result<(), NotRead> {
        self.take_word(lower)?.then_some(()).ok_or(NotRead::Unknown)
    }

    pub(super) fn expect_symbol(&mut self, symbol: u8) -> Result<(), NotRead> {
        self.take_symbol(symbol)?.then_some(()).ok_or(NotRead::Unknown)
    }

    /// A single name, with or without quotes.
    pub(super) fn expect_name(&mut self) -> Result<Token<'a>, NotRead> {
        match self.next()? {
            Some(name @ (Token::Word(_) | Token::Quoted(_))) => Ok(name),
            _ => Err(NotRead::Unknown),
        }
    }

    /// Names with commas between them.
    pub(super) fn expect_names(&mut self) -> Result<(), NotRead> {
        self.expect_name()?;
        while self.take_symbol(b',')? {
            self.expect_name()?;
        }
        Ok(())
    }
}

impl From<Malformed> for NotRead {
    fn from(_: Malformed) -> Self {
        Self::Unknown
    }
}
