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
                match origin(operation, value, &writes) {
                    Ok(()) => known.check(operation, value, verdict),
                    Err((kind, write)) => {
                        let because = Mark { version: value.version, operation: write };
                        verdict.add(kind, operation, value.register, value.version, because);
                    }
                }
            }
        }
    }
}

/// Whether the value can be what its write left; else why not, and the write if there is one.
fn origin(read: &Operation, value: &Value, writes: &HashMap<u64, &Operation>) -> Result<(), (Kind, u64)> {
    if value.version == 0 && value.tag == 0 {
        return Ok(());
    }
    let write = writes.get(&value.tag).ok_or((Kind::Invented, 0))?;
    let is_its = matches!(&write.action, Action::Write(registers) if registers.contains(&value.register));
    if !is_its || value.version == 0 {
        Err((Kind::Invented, write.id))
    } else if write.started > read.ended {
        Err((Kind::FromTheFuture, write.id))
    } else if write.outcome == Outcome::RolledBack {
        Err((Kind::RolledBack, write.id))
    } else {
        Ok(())
    }
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
