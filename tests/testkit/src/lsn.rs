use std::fmt;

use crate::{Error, Node, data::DEFAULT_DATABASE};

/// A position in the write-ahead log.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Lsn(u64);

impl Lsn {
    fn parse(text: &str) -> Option<Self> {
        let (high, low) = text.split_once('/')?;
        let high = u64::from_str_radix(high, 16).ok()?;
        let low = u64::from_str_radix(low, 16).ok()?;
        Some(Self(high << 32 | low))
    }

    /// The insert position can point just past a page's header, where an idle standby never arrives: it stops before.
    fn before_header(self, page: u64, segment: u64) -> Self {
        match (self.0 % segment, self.0 % page) {
            (40, _) => Self(self.0 - 40),
            (_, 24) => Self(self.0 - 24),
            _ => self,
        }
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// What a primary has written, in a form that standbys can reach.
pub(crate) fn written(node: &Node) -> Result<Lsn, Error> {
    let rows = node.query(
        DEFAULT_DATABASE,
        "SELECT pg_current_wal_insert_lsn(), (SELECT setting FROM pg_settings WHERE name = 'wal_block_size'),
        (SELECT setting FROM pg_settings WHERE name = 'wal_segment_size')",
    )?;
    let text = |column: usize| rows.first().and_then(|row| row[column].as_deref()).unwrap_or_default();
    match (Lsn::parse(text(0)), text(1).parse(), text(2).parse()) {
        (Some(lsn), Ok(page), Ok(segment)) => Ok(lsn.before_header(page, segment)),
        _ => Err(Error::state(format!("{} gave no write position, but {rows:?}", node.name()))),
    }
}

/// What a standby has replayed, `None` if nothing yet.
pub(crate) fn replayed(node: &Node) -> Result<Option<Lsn>, Error> {
    let rows = node.query(DEFAULT_DATABASE, "SELECT pg_last_wal_replay_lsn()")?;
    Ok(rows.first().and_then(|row| row[0].as_deref()).and_then(Lsn::parse))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_back_over_headers_only() {
        let segment = 16 << 20;
        for (text, expected) in [
            ("0/1000028", "0/1000000"),
            ("0/1002018", "0/1002000"),
            ("0/1002028", "0/1002028"),
            ("F/FFFFFFFF", "F/FFFFFFFF"),
        ] {
            let lsn = Lsn::parse(text).unwrap().before_header(8192, segment);
            assert_eq!(lsn.to_string(), expected, "{text}");
        }
        assert!(Lsn::parse("F/FFFFFFFF").unwrap() < Lsn::parse("10/0").unwrap());
    }
}
