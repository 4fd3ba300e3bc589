//! PostgreSQL's lexical grammar, as far as a read can use it.

/// One token. Names are raw bytes of the text: not folded, quotes not undoubled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// An identifier without quotes, or a keyword.
    Word(&'a [u8]),
    /// What stands between the double quotes of an identifier.
    Quoted(&'a [u8]),
    /// A string, bit string, or number.
    Literal,
    /// `$1`.
    Parameter,
    /// One or more operator characters, cut where PostgreSQL cuts them.
    Operator(&'a [u8]),
    /// `::`
    Cast,
    /// `:=` or `=>`, before the value of a named argument.
    Arrow,
    /// One of `( ) [ ] , ; . :`
    Symbol(u8),
}

impl Token<'_> {
    /// Whether this is the word, without quotes and in any case.
    pub(super) fn is_word(self, lower: &[u8]) -> bool {
        matches!(self, Token::Word(word) if word.eq_ignore_ascii_case(lower))
    }

    /// Whether PostgreSQL takes this name for `lower`, with or without quotes.
    pub(super) fn is_named(self, lower: &[u8]) -> bool {
        self.is_word(lower) || self == Token::Quoted(lower)
    }
}

/// The text is not SQL, or is SQL no one writes by hand and that servers of
/// different versions or settings cut differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Cuts a text into the tokens PostgreSQL sees, in one pass and without allocation.
///
/// This is `scan.l` with `standard_conforming_strings = on`. Left out, and
/// [`Malformed`]: `U&` names, numbers or parameters that touch a name (`1x`,
/// `$1a`), NUL bytes.
pub(super) struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    /// Where the token before ended, if it was an `E''` string: one that follows on another line continues it.
    after_escapes: Option<usize>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(sql: &'a str) -> Self {
        Self { text: sql.as_bytes(), at: 0, after_escapes: None }
    }

    /// Where the next token, or the blanks before it, start.
    #[cfg(test)]
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The next token, or `None` at the end of the text.
    ///
    /// # Errors
    ///
    /// [`Malformed`], after which there is no use in calling again.
    pub(super) fn token(&mut self) -> Result<Option<Token<'a>>, Malformed> {
        self.skip_blanks()?;
        let after_escapes = std::mem::take(&mut self.after_escapes);
        let Some(first) = self.byte(0) else {
            return Ok(None);
        };
        let token = match first {
            b'\'' => match after_escapes {
                None => self.string()?,
                Some(end) => self.continued(end)?,
            },
            b'"' => self.quoted()?,
            b'$' => self.dollar()?,
            b'0'..=b'9' => self.number()?,
            b'.' => match self.byte(1) {
                Some(b'0'..=b'9') => self.number()?,
                Some(b'.') => return Err(Malformed),
                _ => self.symbol(first),
            },
            b':' => match self.byte(1) {
                Some(b':') => self.pair(Token::Cast),
                Some(b'=') => self.pair(Token::Arrow),
                _ => self.symbol(first),
            },
            b'(' | b')' | b'[' | b']' | b',' | b';' => self.symbol(first),
            _ if starts_name(first) => self.word()?,
            _ if is_operator(first) => self.operator()?,
            _ => return Err(Malformed),
        };
        Ok(Some(token))
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn symbol(&mut self, symbol: u8) -> Token<'a> {
        self.at += 1;
        Token::Symbol(symbol)
    }

    fn pair(&mut self, token: Token<'a>) -> Token<'a> {
        self.at += 2;
        token
    }

    fn skip_blanks(&mut self) -> Result<(), Malformed> {
        loop {
            match self.byte(0) {
                // A vertical tab is a blank since PostgreSQL 16, and an error before.
                Some(b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c) => self.at += 1,
                Some(b'-') if self.byte(1) == Some(b'-') => {
                    let end = self.rest().iter().position(|b| matches!(b, b'\n' | b'\r'));
                    self.at = end.map_or(self.text.len(), |end| self.at + end);
                }
                Some(b'/') if self.byte(1) == Some(b'*') => self.skip_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), Malformed> {
        let mut depth = 0_usize;
        loop {
            match (self.byte(0), self.byte(1)) {
                (Some(b'/'), Some(b'*')) => {
                    depth += 1;
                    self.at += 2;
                }
                (Some(b'*'), Some(b'/')) => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                (Some(_), _) => self.at += 1,
                (None, _) => return Err(Malformed),
            }
        }
    }

    /// From the opening quote on; a backslash is an ordinary character.
    fn string(&mut self) -> Result<Token<'a>, Malformed> {
        self.at += 1;
        self.past_quote(b'\'')?;
        Ok(Token::Literal)
    }

    /// From the opening quote of an `E''` string on.
    fn escape_string(&mut self) -> Result<Token<'a>, Malformed> {
        self.at += 1;
        loop {
            match self.byte(0) {
                Some(b'\\') => self.at += 2,
                Some(b'\'') if self.byte(1) == Some(b'\'') => self.at += 2,
                Some(b'\'') => break,
                Some(_) => self.at += 1,
                None => return Err(Malformed),
            }
        }
        self.at += 1;
        self.after_escapes = Some(self.at);
        Ok(Token::Literal)
    }

    /// A string behind an `E''` string that ended there: on another line, with nothing between but comments up to the end of
    /// a line, it has its escapes too. On the same line it is an error.
    fn continued(&mut self, end: usize) -> Result<Token<'a>, Malformed> {
        let between = self.text.get(end..self.at).unwrap_or_default();
        let is_other_line = between.iter().any(|b| matches!(b, b'\n' | b'\r'));
        if !is_other_line || between.windows(2).any(|pair| pair == b"/*") {
            return Err(Malformed);
        }
        self.escape_string()
    }

    fn quoted(&mut self) -> Result<Token<'a>, Malformed> {
        self.at += 1;
        let start = self.at;
        let end = self.past_quote(b'"')?;
        match self.text.get(start..end) {
            None | Some([]) => Err(Malformed),
            Some(name) => Ok(Token::Quoted(name)),
        }
    }

    /// Moves past the closing quote, which is not doubled, and tells where it was.
    fn past_quote(&mut self, quote: u8) -> Result<usize, Malformed> {
        loop {
            let length = self.rest().iter().position(|&b| b == quote);
            let end = self.at + length.ok_or(Malformed)?;
            self.at = end + 1;
            if self.byte(0) != Some(quote) {
                return Ok(end);
            }
            self.at += 1;
        }
    }

    /// A parameter or a dollar-quoted string. A `$` inside a name never comes here.
    fn dollar(&mut self) -> Result<Token<'a>, Malformed> {
        if let Some(b'0'..=b'9') = self.byte(1) {
            self.at += 1;
            self.at += self.rest().iter().take_while(|b| b.is_ascii_digit()).count();
            return self.apart(Token::Parameter);
        }
        let tag = self.rest().get(1..).unwrap_or_default();
        let length = tag.iter().position(|&b| b == b'$' || !continues_name(b)).ok_or(Malformed)?;
        if tag.get(length) != Some(&b'$') {
            return Err(Malformed);
        }
        let (delimiter, body) = self.rest().split_at(length + 2);
        // Any `$` may open the closing delimiter, also one that has just failed to close it.
        let mut from = 0;
        loop {
            let candidate = body.get(from..).unwrap_or_default();
            from += candidate.iter().position(|&b| b == b'$').ok_or(Malformed)?;
            if body.get(from..).is_some_and(|b| b.starts_with(delimiter)) {
                self.at += delimiter.len() * 2 + from;
                return Ok(Token::Literal);
            }
            from += 1;
        }
    }

    fn number(&mut self) -> Result<Token<'a>, Malformed> {
        if self.byte(0) == Some(b'0') && self.byte(1).is_some_and(|base| b"xXoObB".contains(&base)) {
            self.based()?;
            return self.apart(Token::Literal);
        }
        self.digits();
        if self.byte(0) == Some(b'.') {
            if self.byte(1) == Some(b'.') {
                return Err(Malformed);
            }
            self.at += 1;
            self.digits();
        }
        if let Some(b'e' | b'E') = self.byte(0) {
            let sign = usize::from(matches!(self.byte(1), Some(b'+' | b'-')));
            if let Some(b'0'..=b'9') = self.byte(1 + sign) {
                self.at += 1 + sign;
                self.digits();
            }
        }
        self.apart(Token::Literal)
    }

    /// Digits, also in groups: before PostgreSQL 16 `1_000` is a 1 with the alias `_000`, or an error.
    fn digits(&mut self) {
        if let Some(b'0'..=b'9') = self.byte(0) {
            self.grouped(|digit| digit.is_ascii_digit());
        }
    }

    /// `0x1F`, `0o17` or `0b1`: before PostgreSQL 16 a 0 with an alias, which is no keyword, or an error.
    fn based(&mut self) -> Result<(), Malformed> {
        let is_digit = match self.byte(1) {
            Some(b'x' | b'X') => |digit: u8| digit.is_ascii_hexdigit(),
            Some(b'o' | b'O') => |digit| matches!(digit, b'0'..=b'7'),
            _ => |digit| matches!(digit, b'0' | b'1'),
        };
        self.at += 2;
        let start = self.at;
        self.grouped(is_digit);
        if self.at > start { Ok(()) } else { Err(Malformed) }
    }

    fn grouped(&mut self, is_digit: fn(u8) -> bool) {
        loop {
            match (self.byte(0), self.byte(1)) {
                (Some(digit), _) if is_digit(digit) => self.at += 1,
                (Some(b'_'), Some(digit)) if is_digit(digit) => self.at += 2,
                _ => return,
            }
        }
    }

    /// Refuses what touches the number: versions of PostgreSQL disagree about it.
    fn apart(&self, token: Token<'a>) -> Result<Token<'a>, Malformed> {
        match self.byte(0) {
            Some(next) if continues_name(next) => Err(Malformed),
            _ => Ok(token),
        }
    }

    fn word(&mut self) -> Result<Token<'a>, Malformed> {
        let rest = self.rest();
        let length = rest.iter().position(|&b| !continues_name(b));
        let word = rest.get(..length.unwrap_or(rest.len())).unwrap_or_default();
        self.at += word.len();
        match (word, self.byte(0), self.byte(1)) {
            (b"e" | b"E", Some(b'\''), _) => self.escape_string(),
            (b"b" | b"B" | b"x" | b"X" | b"n" | b"N", Some(b'\''), _) => self.string(),
            // Its escapes are read later, and hide no quote. Those of a name would hide the name.
            (b"u" | b"U", Some(b'&'), Some(b'\'')) => {
                self.at += 1;
                self.string()
            }
            (b"u" | b"U", Some(b'&'), Some(b'"')) => Err(Malformed),
            _ => Ok(Token::Word(word)),
        }
    }

    fn operator(&mut self) -> Result<Token<'a>, Malformed> {
        let rest = self.rest();
        let mut length = 0;
        while rest.get(length).is_some_and(|&b| is_operator(b)) {
            // A comment ends an operator, and starts right inside of it.
            if matches!(rest.get(length..length + 2), Some(b"--" | b"/*")) {
                break;
            }
            length += 1;
            if length > LONGEST_OPERATOR {
                return Err(Malformed);
            }
        }
        let mut operator = rest.get(..length).unwrap_or_default();
        // `=-1` is two operators, `@-1` is one: SQL's own operators never end in a sign.
        if !operator.iter().any(|&b| is_not_standard(b)) {
            while let [before @ .., b'+' | b'-'] = operator
                && !before.is_empty()
            {
                operator = before;
            }
        }
        self.at += operator.len();
        Ok(match operator {
            b"=>" => Token::Arrow,
            // Another spelling, of which the server knows nothing but here.
            b"!=" => Token::Operator(b"<>"),
            _ => Token::Operator(operator),
        })
    }
}

/// More operator characters in a row than in any name PostgreSQL takes. Without an end,
/// a long row of signs would be scanned again for each of them.
const LONGEST_OPERATOR: usize = 63;

fn starts_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn continues_name(byte: u8) -> bool {
    starts_name(byte) || byte.is_ascii_digit() || byte == b'$'
}

fn is_operator(byte: u8) -> bool {
    is_not_standard(byte) || matches!(byte, b'+' | b'-' | b'*' | b'/' | b'<' | b'>' | b'=')
}

/// The characters no operator of standard SQL has: one with them may end in a sign.
fn is_not_standard(byte: u8) -> bool {
    matches!(byte, b'~' | b'!' | b'@' | b'#' | b'^' | b'&' | b'|' | b'`' | b'?' | b'%')
}

#[cfg(test)]
mod tests;
