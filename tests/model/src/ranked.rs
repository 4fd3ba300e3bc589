//! A hash in which instants count by their order only, so that states that differ in nothing else merge.

use std::hash::{Hash, Hasher};

use read_router::Time;

/// The model's clock starts here. No other number of a state is as large, which is how the hash tells an instant.
const ORIGIN: u64 = 1 << 60;
/// Instants of the model's clock lie below; above lie the instants that the monitor computes from them for its
/// schedule, which the model does not follow.
const END: u64 = ORIGIN + (1 << 20);
const SCHEDULE_END: u64 = ORIGIN + (1 << 40);

/// The instant of a logical clock.
pub(crate) fn instant(tick: u64) -> Time {
    Time::from_nanos(ORIGIN + tick)
}

/// Feeds `value` to `state` with each instant replaced by its rank among all instants of `value`.
pub(crate) fn hash<T: Hash, H: Hasher>(value: &T, state: &mut H) {
    let mut instants = Instants(Vec::with_capacity(64));
    value.hash(&mut instants);
    instants.0.sort_unstable();
    instants.0.dedup();
    value.hash(&mut Ranked { instants: &instants.0, state });
}

/// Collects the instants of what is hashed.
struct Instants(Vec<u64>);

impl Hasher for Instants {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, number: u64) {
        if (ORIGIN..END).contains(&number) {
            self.0.push(number);
        }
    }
}

struct Ranked<'a, H> {
    instants: &'a [u64],
    state: &'a mut H,
}

impl<H: Hasher> Hasher for Ranked<'_, H> {
    fn finish(&self) -> u64 {
        self.state.finish()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.state.write(bytes);
    }

    fn write_u64(&mut self, number: u64) {
        match number {
            ORIGIN..END => self.state.write_usize(self.instants.partition_point(|instant| *instant < number)),
            END..SCHEDULE_END => {}
            _ => self.state.write_u64(number),
        }
    }
}
