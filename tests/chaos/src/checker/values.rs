//! Whether values come from writes of the history.

use std::collections::{HashMap, hash_map::Entry};

use super::{Kind, Mark, Verdict};
use crate::history::{Action, History, Operation, Outcome, Value};

pub(super) fn check(history: &History, verdict: &mut Verdict) {
    let writes: HashMap<u64, &Operation> = history
        .operations
        .iter()
        .filter(|operation| matches!(operation.action, Action::Write(_)))
        .map(|operation| (operation.id, operation))
        .collect();
    let mut known = Known::default();
    // What writers were told of their own versions comes first, so that a reader is blamed for a conflict with it.
    for operation in history.operations.iter().filter(|o| writes.contains_key(&o.id) && o.outcome == Outcome::Done) {
        operation.values.iter().for_each(|value| known.check(operation, value, verdict));
    }
    for operation in &history.operations {
        if operation.outcome == Outcome::Done && matches!(operation.action, Action::Read(_) | Action::Final) {
            for value in &operation.values {
                check_origin(operation, value, &writes, verdict);
                known.check(operation, value, verdict);
            }
        }
    }
}

fn check_origin(read: &Operation, value: &Value, writes: &HashMap<u64, &Operation>, verdict: &mut Verdict) {
    if value.version == 0 && value.tag == 0 {
        return;
    }
    let written = writes.get(&value.tag).filter(
        |write| matches!(&write.action, Action::Write(registers) if registers.contains(&value.register)),
    );
    let kind = match written {
        None => Kind::Invented,
        Some(_) if value.version == 0 => Kind::Invented,
        Some(write) if write.started > read.ended => Kind::FromTheFuture,
        Some(write) if write.outcome == Outcome::RolledBack => Kind::RolledBack,
        Some(_) => return,
    };
    let because = Mark { version: value.version, operation: written.map_or(0, |write| write.id) };
    verdict.add(kind, read, value.register, value.version, because);
}

/// Which write made which version, as far as anyone has seen.
#[derive(Default)]
struct Known {
    tags: HashMap<(u16, u64), (u64, u64)>,
    versions: HashMap<(u16, u64), (u64, u64)>,
}

impl Known {
    fn check(&mut self, operation: &Operation, value: &Value, verdict: &mut Verdict) {
        let Value { register, version, tag } = *value;
        let seen = match self.tags.entry((register, version)) {
            Entry::Occupied(seen) => *seen.get(),
            Entry::Vacant(free) => *free.insert((tag, operation.id)),
        };
        if seen.0 != tag {
            verdict.add(Kind::TwoHistories, operation, register, version, Mark { version, operation: seen.1 });
            return;
        }
        let seen = match self.versions.entry((register, tag)) {
            Entry::Occupied(seen) => *seen.get(),
            Entry::Vacant(free) => *free.insert((version, operation.id)),
        };
        if seen.0 != version {
            verdict.add(Kind::TwoHistories, operation, register, version, Mark { version: seen.0, operation: seen.1 });
        }
    }
}
