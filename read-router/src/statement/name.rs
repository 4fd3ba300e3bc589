//! Names as the server looks them up.

use super::lexer::Token;

/// The bytes of a name that count; the server cuts off the rest.
const LONGEST: usize = 63;

/// A name without quotes in lower case, one with quotes as it is meant, and no longer than names can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Name {
    /// What the server makes of this token; `None` if it is none that names something.
    pub(super) fn of(token: Token<'_>) -> Option<Self> {
        let mut name = Self { bytes: [0; LONGEST], length: 0 };
        let fits = match token {
            // Letters beyond ASCII keep their case in all encodings of more than one byte.
            Token::Word(word) => word.iter().all(|byte| name.push(byte.to_ascii_lowercase())),
            Token::Quoted(text) => {
                let mut quote = false;
                text.iter().all(|&byte| {
                    quote = byte == b'"' && !quote;
                    quote || name.push(byte)
                })
            }
            _ => return None,
        };
        if !fits {
            name.cut(token);
        }
        Some(name)
    }

    /// The canonical bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Whether there are letters in it that depend on the server's encoding.
    pub(super) fn is_foreign(&self) -> bool {
        !self.as_bytes().is_ascii()
    }

    fn push(&mut self, byte: u8) -> bool {
        let place = self.bytes.get_mut(self.length);
        let fits = place.is_some();
        if let Some(place) = place {
            *place = byte;
            self.length += 1;
        }
        fits
    }

    /// A letter that was cut in two is left out as a whole.
    fn cut(&mut self, token: Token<'_>) {
        let (Token::Word(text) | Token::Quoted(text)) = token else { return };
        // The first byte that found no place, as far as quotes are not doubled; with such, one letter may be cut too much,
        // which no name in use has at its end.
        let next = text.get(LONGEST + text.windows(2).filter(|pair| pair == b"\"\"").count());
        if next.is_some_and(|byte| byte & 0xc0 == 0x80) {
            while self.as_bytes().last().is_some_and(|byte| byte & 0xc0 == 0x80) {
                self.length -= 1;
            }
            self.length = self.length.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_folded_and_cut_as_the_server_does() {
        let named = |token| Name::of(token).unwrap().as_bytes().to_vec();
        assert_eq!(named(Token::Word(b"My_UDF$1")), b"my_udf$1");
        assert_eq!(named(Token::Quoted(b"My \"\" UDF")), b"My \" UDF");
        assert_eq!(named(Token::Quoted(b"\"\"\"\"")), b"\"\"");
        assert_eq!(named(Token::Word("Ä".as_bytes())), "Ä".as_bytes());
        assert_eq!(named(Token::Word(&[b'a'; 70])), [b'a'; 63]);
        let long = format!("{}ä", "a".repeat(62));
        assert_eq!(named(Token::Word(long.as_bytes())), [b'a'; 62]);
        let fits = format!("{}ä", "a".repeat(61));
        assert_eq!(named(Token::Word(format!("{fits}b").as_bytes())), fits.as_bytes());
        assert!(Name::of(Token::Literal).is_none());
    }
}
