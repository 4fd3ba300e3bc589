//! Remembered kinds, so that a text which comes again is not walked again.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use arc_swap::ArcSwap;

use super::{Known, NotRead, StatementKind, text_hash::TextHash};

/// A bounded memory of kinds, shared between threads, without a lock.
///
/// It holds no text: 64 bits for each of up to 4096 statements, 2 KiB for 256 refused ones and a kilobyte of keys, whatever
/// number and length of statements pass: 36 KiB in all, and the catalogue. A set of two entries that is full forgets the
/// older one.
///
/// # Guaranteed
///
/// For a key that is random and secret, [`kind`](Self::kind) of what was not [refused](Self::refuse) differs from
/// [`StatementKind::known`] with a probability below 2⁻⁶⁰ per call, also for texts chosen by someone who wants it to. Once
/// [`set_known`](Self::set_known) has returned, no answer comes from what was known before. A hit neither allocates, locks,
/// nor writes.
///
/// # Not guaranteed
///
/// That a statement is remembered. Forgetting costs one walk over the text.
pub struct StatementKinds {
    hash: TextHash,
    /// What texts are judged by.
    known: ArcSwap<Known>,
    /// Goes into the place of each entry, and is another one for each change of what is known: entries of before are not
    /// found. It is set after what is known, so that no older answer is kept under it.
    salt: AtomicU64,
    changes: AtomicU64,
    /// 56 bits of a text's hash, then the code of its kind; 0 where nothing is remembered. Each entry is whole by
    /// itself, so threads need no order between them.
    entries: Box<[AtomicU64]>,
    /// Hashes of texts that a replica refused, 0 where there is none; the oldest is overwritten.
    refused: Box<[AtomicU64]>,
    refusals: AtomicU64,
}

const ENTRIES: usize = 4096;
const CODE: u64 = 0xff;
const REFUSED: usize = 256;

impl StatementKinds {
    /// What it takes of memory, whatever passes; the catalogue comes on top.
    pub const BYTES: usize = (ENTRIES + REFUSED) * size_of::<AtomicU64>() + size_of::<Self>();

    /// An empty memory. The key must come from a random source: who knows it can make two texts that are taken for
    /// one.
    pub fn with_key(key: [u64; 2]) -> Self {
        Self {
            hash: TextHash::with_key(key),
            known: ArcSwap::from_pointee(Known::default()),
            salt: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            entries: (0..ENTRIES).map(|_| AtomicU64::new(0)).collect(),
            refused: (0..REFUSED).map(|_| AtomicU64::new(0)).collect(),
            refusals: AtomicU64::new(0),
        }
    }

    /// What statements are judged by.
    pub fn known(&self) -> Arc<Known> {
        self.known.load_full()
    }

    /// Judges by this from now on; what is remembered is forgotten, but for refusals.
    pub fn set_known(&self, known: Known) {
        self.known.store(Arc::new(known));
        let change = self.changes.fetch_add(1, Relaxed) + 1;
        // Longer than the numbers that keys are made of, and no text of SQL.
        self.salt.store(self.hash.of(&[b"\0known", &change.to_le_bytes()[..]].concat()), Release);
    }

    /// A replica has refused `sql` as a write: from here on its kind is [`NotRead::Refused`].
    ///
    /// Of more than 256 such statements the oldest are forgotten, and are refused once more.
    pub fn refuse(&self, sql: &str) {
        let hash = self.hash.of(sql.as_bytes());
        let place = hash ^ self.salt.load(Acquire);
        let set = (place as usize % ENTRIES) & !1;
        for entry in &self.entries[set..set + 2] {
            if entry.load(Relaxed) & !CODE == place & !CODE {
                entry.store(0, Relaxed);
            }
        }
        if !self.is_refused(hash) {
            let place = self.refusals.fetch_add(1, Relaxed) as usize % REFUSED;
            self.refused[place].store(hash, Relaxed);
        }
    }

    fn is_refused(&self, hash: u64) -> bool {
        self.refusals.load(Relaxed) > 0 && self.refused.iter().any(|refused| refused.load(Relaxed) == hash)
    }

    /// The kind of `sql`, remembered or else told from the text.
    pub fn kind(&self, sql: &str) -> StatementKind {
        let hash = self.hash.of(sql.as_bytes());
        let place = hash ^ self.salt.load(Acquire);
        // The number of the set has those bits of the hash that an entry lacks, but for the lowest.
        let set = (place as usize % ENTRIES) & !1;
        let Some([newer, older]) = self.entries.get(set..set + 2) else {
            return StatementKind::known(sql, &self.known.load());
        };
        let first = newer.load(Relaxed);
        for entry in [first, older.load(Relaxed)] {
            if entry & !CODE == place & !CODE
                && let Some(kind) = decode(entry & CODE)
            {
                return kind;
            }
        }
        let kind = match StatementKind::known(sql, &self.known.load()) {
            StatementKind::Read if self.is_refused(hash) => StatementKind::Primary(NotRead::Refused),
            kind => kind,
        };
        older.store(first, Relaxed);
        newer.store(place & !CODE | encode(kind), Relaxed);
        kind
    }
}

impl fmt::Debug for StatementKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key.
        f.debug_struct("StatementKinds").finish_non_exhaustive()
    }
}

/// In the order of their declaration, which gives the codes.
const REASONS: [NotRead; 12] = [
    NotRead::Write,
    NotRead::Lock,
    NotRead::Function,
    NotRead::Operator,
    NotRead::Session,
    NotRead::SeveralStatements,
    NotRead::Catalog,
    NotRead::Unknown,
    NotRead::Refused,
    NotRead::Relation,
    NotRead::Pinned,
    NotRead::Outdated,
];

/// Never 0, which is an empty entry.
fn encode(kind: StatementKind) -> u64 {
    match kind {
        StatementKind::Read => 1,
        StatementKind::Primary(reason) => 2 + reason as u64,
    }
}

fn decode(code: u64) -> Option<StatementKind> {
    if code == 1 {
        return Some(StatementKind::Read);
    }
    let reason = REASONS.get(code.checked_sub(2)? as usize)?;
    Some(StatementKind::Primary(*reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_the_kind_and_never_the_empty_entry() {
        for (code, reason) in REASONS.into_iter().enumerate() {
            let kind = StatementKind::Primary(reason);
            assert_eq!(encode(kind), code as u64 + 2);
            assert_eq!(decode(encode(kind)), Some(kind));
        }
        assert_eq!(decode(encode(StatementKind::Read)), Some(StatementKind::Read));
        assert_eq!(decode(0), None);
        assert_eq!(decode(CODE), None);
    }

    #[test]
    fn the_second_answer_is_the_first_one() {
        let kinds = StatementKinds::with_key([1, 2]);
        for sql in ["SELECT 1", "SELECT nextval('s')", "DELETE FROM t", "", "SELECT 1"] {
            for _ in 0..3 {
                assert_eq!(kinds.kind(sql), StatementKind::of(sql), "{sql}");
            }
        }
    }

    #[test]
    fn a_refused_text_is_remembered_when_its_entry_is_not() {
        let kinds = StatementKinds::with_key([1, 2]);
        let sql = "SELECT * FROM a_view_that_writes";
        assert!(kinds.kind(sql).is_read());
        kinds.refuse(sql);
        kinds.refuse(sql);
        let refused = StatementKind::Primary(NotRead::Refused);
        assert_eq!(kinds.kind(sql), refused);
        for number in 0..3 * ENTRIES {
            assert!(kinds.kind(&format!("SELECT {number}")).is_read());
        }
        assert_eq!(kinds.kind(sql), refused);
        (0..REFUSED).for_each(|number| kinds.refuse(&format!("SELECT {number} FROM v")));
        for number in 0..3 * ENTRIES {
            kinds.kind(&format!("SELECT {number}"));
        }
        assert!(kinds.kind(sql).is_read(), "forgotten, as the oldest");
    }

    #[test]
    fn a_hit_allocates_nothing() {
        let kinds = StatementKinds::with_key([1, 2]);
        let sql = format!("SELECT {} FROM t", "\"a\", ".repeat(1_000) + "1");
        assert!(kinds.kind(&sql).is_read());
        let allocated = allocation_counter::measure(|| assert!(kinds.kind(&sql).is_read()));
        assert_eq!(allocated.count_total, 0);
    }

    #[test]
    fn many_more_texts_than_entries_stay_right() {
        let kinds = StatementKinds::with_key([3, 4]);
        for round in 0..2 {
            for number in 0..3 * ENTRIES {
                let read = number % 2 == 0;
                let sql = format!("{} FROM t WHERE id = {number}", if read { "SELECT" } else { "DELETE" });
                assert_eq!(kinds.kind(&sql).is_read(), read, "{sql} in round {round}");
            }
        }
    }

    #[test]
    fn threads_share_it() {
        let kinds = StatementKinds::with_key([9, 9]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..2 * ENTRIES {
                        assert!(kinds.kind(&format!("SELECT {number}")).is_read());
                        assert!(!kinds.kind(&format!("CALL p({number})")).is_read());
                    }
                });
            }
        });
    }

    #[test]
    fn two_texts_of_one_set_are_both_remembered() {
        let kinds = StatementKinds::with_key([5, 6]);
        let hash = |sql: &str| kinds.hash.of(sql.as_bytes());
        let set = |sql: &str| (hash(sql) as usize % ENTRIES) & !1;
        let first = "SELECT 0".to_owned();
        let second = (1..).map(|number| format!("SELECT {number}")).find(|sql| set(sql) == set(&first)).unwrap();
        kinds.kind(&first);
        kinds.kind(&second);
        let held = kinds.entries[set(&first)..][..2].iter().map(|entry| entry.load(Relaxed) & !CODE);
        assert!(held.eq([hash(&second) & !CODE, hash(&first) & !CODE]));
    }
}
