//! A keyed hash of a text, fast enough to be computed for each statement.

use std::hash::Hasher;
// Its successor `DefaultHasher` takes no key.
#[expect(deprecated)]
use std::hash::SipHasher;

/// Two steps: NH, the universal hash of UMAC, makes 16 bytes of each kilobyte, and SipHash-2-4 makes 64 bits of these
/// and the length.
///
/// Two texts of one length that differ within a kilobyte get the same 16 bytes for it with a probability of 2⁻⁶⁴ over
/// the keys, whatever the texts are. For the second step nothing better than chance is known to who lacks the key.
/// SipHash alone would do, at a quarter of the speed; the hashes made for hash maps are as fast, and promise nothing
/// against texts that are chosen to collide.
#[expect(deprecated)]
pub(super) struct TextHash {
    last: SipHasher,
    keys: [[u64; 2]; BLOCK / PAIR],
}

/// Bytes multiplied at once.
const PAIR: usize = 16;
/// Bytes after which the keys come again.
const BLOCK: usize = 1024;

impl TextHash {
    pub(super) fn with_key([first, second]: [u64; 2]) -> Self {
        #[expect(deprecated)]
        let last = SipHasher::new_with_keys(first, second);
        // Shorter than what the hash of any text ends with, so no text gets one of these words.
        let word = |number: usize| {
            let mut hasher = last.clone();
            hasher.write(&(number as u64).to_le_bytes());
            hasher.finish()
        };
        Self { keys: std::array::from_fn(|pair| [word(2 * pair), word(2 * pair + 1)]), last }
    }

    pub(super) fn of(&self, text: &[u8]) -> u64 {
        let mut hasher = self.last.clone();
        for block in text.chunks(BLOCK) {
            let (pairs, rest) = block.as_chunks::<PAIR>();
            let mut sum = 0;
            for (pair, keys) in pairs.iter().zip(&self.keys) {
                sum = add_product(sum, pair, keys);
            }
            if let Some(keys) = self.keys.get(pairs.len()) {
                // Filled up with zeroes; the length tells it from a text that ends in them.
                let mut pair = [0; PAIR];
                for (target, byte) in pair.iter_mut().zip(rest) {
                    *target = *byte;
                }
                sum = add_product(sum, &pair, keys);
            }
            hasher.write(&sum.to_le_bytes());
        }
        hasher.write(&(text.len() as u128).to_le_bytes());
        hasher.finish()
    }
}

fn add_product(sum: u128, pair: &[u8; PAIR], [low_key, high_key]: &[u64; 2]) -> u128 {
    let pair = u128::from_le_bytes(*pair);
    let low = (pair as u64).wrapping_add(*low_key);
    let high = ((pair >> 64) as u64).wrapping_add(*high_key);
    sum.wrapping_add(u128::from(low) * u128::from(high))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn texts_that_differ_in_one_bit_or_in_length_differ_in_their_hash() {
        let hash = TextHash::with_key([7, 8]);
        let mut seen = BTreeSet::new();
        for length in (0..70).chain(1000..1050).chain(2040..2060) {
            let mut text = vec![b'a'; length];
            assert!(seen.insert(hash.of(&text)), "{length}");
            for at in 0..length {
                text[at] ^= 1;
                assert!(seen.insert(hash.of(&text)), "{length}, {at}");
                text[at] ^= 1;
            }
            text.push(0);
            assert!(seen.insert(hash.of(&text)), "{length} and a zero");
        }
    }

    #[test]
    fn blocks_do_not_change_places() {
        let hash = TextHash::with_key([7, 8]);
        let [a, b] = [vec![b'a'; BLOCK], vec![b'b'; BLOCK]];
        assert_ne!(hash.of(&[a.clone(), b.clone()].concat()), hash.of(&[b, a].concat()));
    }

    #[test]
    fn the_key_decides() {
        let text = b"SELECT 1";
        assert_ne!(TextHash::with_key([7, 8]).of(text), TextHash::with_key([7, 9]).of(text));
        assert_ne!(TextHash::with_key([7, 8]).of(text), TextHash::with_key([8, 8]).of(text));
    }
}
