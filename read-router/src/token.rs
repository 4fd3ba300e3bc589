//! What a session must see, as a value that can leave the process.

use std::{fmt, str::FromStr};

use crate::{Branch, Lsn, Position, SystemId, Timeline, positions::Positions};

/// Everything that a session has committed or been shown, as positions: one for each branch of history.
///
/// A token is bound to its cluster. *Unknown* is a value of its own: it stands for a session of which
/// nothing is known, whose strict reads go to the primary; it is not the token of a session that has
/// neither written nor read ([`Token::FRESH`]).
///
/// The text form (`Display`, `FromStr`) is plain: whoever takes it from a client must authenticate it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Known);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Known {
    Nothing,
    Positions {
        positions: Positions,
        /// Shown by replicas, and maybe not by the primary yet; empty but for sessions with monotonic fallback.
        shown: Positions,
    },
}

impl Token {
    /// Of a session that has neither written nor read: any replica will do.
    pub const FRESH: Self = Self(Known::Positions { positions: Positions::NONE, shown: Positions::NONE });

    /// Of a session of which nothing is known: only the primary will do.
    pub const UNKNOWN: Self = Self(Known::Nothing);

    pub(crate) fn from_parts(positions: Positions, shown: Positions) -> Self {
        Self(Known::Positions { positions, shown })
    }

    pub(crate) fn into_parts(self) -> Option<(Positions, Positions)> {
        match self.0 {
            Known::Nothing => None,
            Known::Positions { positions, shown } => Some((positions, shown)),
        }
    }

    /// Whether nothing is known of the session.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.0 == Known::Nothing
    }

    /// The positions, at most one for each branch, in the order of branches; none if it is unknown.
    pub fn positions(&self) -> impl Iterator<Item = Position> + '_ {
        match &self.0 {
            Known::Nothing => &[],
            Known::Positions { positions, .. } => positions.as_slice(),
        }
        .iter()
        .copied()
    }

    /// Moves forward to what either of the two stands for; never back.
    ///
    /// Of two branches both positions are kept. With an unknown token, or one of another cluster, the
    /// result is unknown.
    pub fn advance(&mut self, other: &Self) {
        match (&mut self.0, &other.0) {
            (Known::Positions { positions, shown }, Known::Positions { positions: theirs, shown: theirs_shown })
                if positions.same_cluster(theirs) =>
            {
                positions.merge(theirs);
                shown.merge(theirs_shown);
            }
            _ => self.0 = Known::Nothing,
        }
    }
}

/// More branches than any client honestly holds.
const MAX_BRANCHES: usize = 64;
const PREFIX: &str = "rr1";

impl fmt::Display for Token {
    /// `rr1:unknown`, `rr1:fresh`, or `rr1:SYSTEM:TIMELINE@LSN,TIMELINE@LSN`; a position that only a replica is known
    /// to show is repeated behind a tilde, `TIMELINE@LSN~LSN`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Known::Positions { positions, shown } = &self.0 else {
            return write!(f, "{PREFIX}:unknown");
        };
        let Some(first) = positions.as_slice().first() else {
            return write!(f, "{PREFIX}:fresh");
        };
        write!(f, "{PREFIX}:{}", first.branch.system.0)?;
        for (index, position) in positions.as_slice().iter().enumerate() {
            let mark = if index == 0 { ':' } else { ',' };
            write!(f, "{mark}{}@{}", position.branch.timeline.0, position.lsn)?;
            if let Some(shown) = shown.of(position.branch) {
                write!(f, "~{shown}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, ParseTokenError> {
        let body = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(':'));
        match body.ok_or(ParseTokenError)? {
            "unknown" => Ok(Self::UNKNOWN),
            "fresh" => Ok(Self::FRESH),
            body => parse_positions(body).ok_or(ParseTokenError),
        }
    }
}

fn parse_positions(body: &str) -> Option<Token> {
    let (system, list) = body.split_once(':')?;
    let system = SystemId(number(system)?);
    let (mut positions, mut shown) = (Positions::NONE, Positions::NONE);
    for (index, item) in list.split(',').enumerate() {
        let (timeline, lsn) = item.split_once('@')?;
        let branch = Branch { system, timeline: Timeline(u32::try_from(number(timeline)?).ok()?) };
        if index >= MAX_BRANCHES {
            return None;
        }
        let (lsn, visible) = lsn.split_once('~').map_or((lsn, None), |(lsn, visible)| (lsn, Some(visible)));
        positions.advance(Position { branch, lsn: lsn.parse::<Lsn>().ok()? });
        if let Some(visible) = visible {
            shown.advance(Position { branch, lsn: visible.parse::<Lsn>().ok()? });
        }
    }
    Some(Token::from_parts(positions, shown))
}

/// Digits only: `u64::from_str` would take a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The text is not a token, or one of a newer form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a token: expected the text that a Token prints, such as rr1:7301960823427364209:1@0/3000060")]
pub struct ParseTokenError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints() {
        for text in
            ["rr1:unknown", "rr1:fresh", "rr1:7:1@0/3000060", "rr1:7:1@0/3000060,2@1/0", "rr1:7:1@0/3~0/2,2@1/0"]
        {
            assert_eq!(text.parse::<Token>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_what_is_no_token() {
        for text in [
            "",
            "rr1",
            "rr1:",
            "rr2:fresh",
            "rr1:7",
            "rr1:7:",
            "rr1:7:1",
            "rr1:7:1@",
            "rr1:7:1@0/3,",
            "rr1:7:1@0/3~",
            "rr1:7:1@0/3~0/2~0/1",
            "rr1:+7:1@0/3",
            "rr1:7:4294967296@0/3",
            "rr1:x:1@0/3",
            "rr1:7:1@0/3 ",
            "rr1:unknown ",
        ] {
            assert_eq!(text.parse::<Token>(), Err(ParseTokenError), "{text:?}");
        }
        let many = format!("rr1:7:{}", vec!["1@0/3"; 65].join(","));
        assert_eq!(many.parse::<Token>(), Err(ParseTokenError));
    }

    #[test]
    fn advances_and_never_goes_back() {
        for (mine, theirs, result) in [
            ("rr1:7:1@0/3", "rr1:7:1@0/2", "rr1:7:1@0/3"),
            ("rr1:7:1@0/3", "rr1:7:1@0/4", "rr1:7:1@0/4"),
            ("rr1:7:1@0/3", "rr1:7:2@0/1", "rr1:7:1@0/3,2@0/1"),
            ("rr1:fresh", "rr1:7:2@0/1", "rr1:7:2@0/1"),
            ("rr1:7:1@0/3~0/2", "rr1:7:1@0/4~0/1", "rr1:7:1@0/4~0/2"),
            ("rr1:7:2@0/1", "rr1:fresh", "rr1:7:2@0/1"),
            ("rr1:unknown", "rr1:7:2@0/1", "rr1:unknown"),
            ("rr1:7:2@0/1", "rr1:unknown", "rr1:unknown"),
            ("rr1:7:2@0/1", "rr1:8:2@0/1", "rr1:unknown"),
        ] {
            let mut token: Token = mine.parse().unwrap();
            token.advance(&theirs.parse().unwrap());
            assert_eq!(token.to_string(), result, "{mine} + {theirs}");
        }
    }
}
