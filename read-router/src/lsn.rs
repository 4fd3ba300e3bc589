//! A position in the write-ahead log.

use std::{fmt, str::FromStr};

/// A position in the write-ahead log: bytes since the cluster's beginning.
///
/// Ordered as a number (`F/FFFFFFFF` is before `10/0`). Two positions say something about each other
/// only within one [`Branch`](crate::Branch).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// The position as a number of bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes before this position.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The nearest later position: a server that has reached it has the whole record that begins at this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// How many bytes this lies behind `other`; zero if it does not.
    #[must_use]
    pub const fn bytes_behind(self, other: Self) -> u64 {
        other.0.saturating_sub(self.0)
    }

    /// The same place without a page header that it may just have stepped over.
    ///
    /// `pg_current_wal_insert_lsn()` can point right behind the header of a page on which nothing stands
    /// yet, while an idle standby stops at the page's start: such a position is never reached until more
    /// is written. Nothing can stand between the two, so they prove the same.
    #[must_use]
    pub const fn without_page_header(self, layout: WalLayout) -> Self {
        let header =
            if self.0 % layout.segment_size < layout.block_size { LONG_PAGE_HEADER } else { SHORT_PAGE_HEADER };
        if self.0 % layout.block_size == header { Self(self.0 - header) } else { self }
    }
}

/// Size of the header of an ordinary WAL page (`SizeOfXLogShortPHD`).
const SHORT_PAGE_HEADER: u64 = 24;
/// Size of the header of a segment's first page (`SizeOfXLogLongPHD`).
pub(crate) const LONG_PAGE_HEADER: u64 = 40;

/// How a server cuts its write-ahead log into pages and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WalLayout {
    block_size: u64,
    segment_size: u64,
}

impl WalLayout {
    /// The layout with `wal_block_size` and `wal_segment_size` as a server shows them, in bytes.
    ///
    /// Sizes that no server can have (below a page header) give `None`.
    #[must_use]
    pub const fn new(block_size: u64, segment_size: u64) -> Option<Self> {
        if block_size > LONG_PAGE_HEADER && segment_size >= block_size {
            Some(Self { block_size, segment_size })
        } else {
            None
        }
    }
}

impl Default for WalLayout {
    /// PostgreSQL's own default: pages of 8 KiB, segments of 16 MiB.
    fn default() -> Self {
        Self { block_size: 8 << 10, segment_size: 16 << 20 }
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let half = |digits: &str| {
            let plain = !digits.is_empty() && digits.len() <= 8 && digits.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        text.split_once('/').and_then(|(high, low)| Some(Self(half(high)? << 32 | half(low)?))).ok_or(ParseLsnError)
    }
}

/// The text is not a WAL position such as `16/B374D848`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a WAL position: expected two hexadecimal numbers of up to eight digits around a slash")]
pub struct ParseLsnError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_prints() {
        for (text, bytes) in [
            ("0/0", 0),
            ("0/16B3748", 0x16B_3748),
            ("F/FFFFFFFF", 0xF_FFFF_FFFF),
            ("10/0", 0x10_0000_0000),
            ("FFFFFFFF/FFFFFFFF", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Lsn::new(bytes)), "{text}");
            assert_eq!(Lsn::new(bytes).to_string(), text);
        }
        assert!("F/FFFFFFFF".parse::<Lsn>().unwrap() < "10/0".parse().unwrap());
    }

    #[test]
    fn refuses_what_is_no_position() {
        for text in ["", "/", "0", "0/", "/0", "0/0/0", "0/G", "+1/0", "0/-1", "100000000/0", "0/ 1", "0/123456789"] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text:?}");
        }
    }

    #[test]
    fn takes_off_a_page_header_and_nothing_else() {
        let segment = 16 << 20;
        for (position, corrected) in [
            (8192 + 24, 8192),
            (8192 + 40, 8192 + 40),
            (segment + 40, segment),
            (segment + 24, segment + 24),
            (segment + 8192 + 24, segment + 8192),
            (8192, 8192),
            (8192 + 32, 8192 + 32),
            (0, 0),
        ] {
            let got = Lsn::new(position).without_page_header(WalLayout::default());
            assert_eq!(got, Lsn::new(corrected), "{position}");
        }
        let small = WalLayout::new(4096, 1 << 20).unwrap();
        assert_eq!(Lsn::new((1 << 20) + 40).without_page_header(small), Lsn::new(1 << 20));
        assert_eq!(WalLayout::new(0, 0), None);
    }
}
