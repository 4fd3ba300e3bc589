//! What anyone knew to be committed, and since when.

use std::collections::HashMap;

use super::{Mark, answered};
use crate::history::{Action, History};

/// For each register the newest version that a primary had acknowledged or shown to anyone, as time goes on.
pub(super) struct Acknowledged(HashMap<u16, Vec<(u64, Mark)>>);

impl Acknowledged {
    pub(super) fn of(history: &History) -> Self {
        let mut registers: HashMap<u16, Vec<(u64, Mark)>> = HashMap::new();
        for operation in answered(history) {
            let on_primary = operation.server.is_some_and(|server| !server.standby);
            if matches!(operation.action, Action::Write(_)) || matches!(operation.action, Action::Read(_)) && on_primary
            {
                for value in &operation.values {
                    let mark = Mark { version: value.version, operation: operation.id };
                    registers.entry(value.register).or_default().push((operation.ended, mark));
                }
            }
        }
        for known in registers.values_mut() {
            known.sort_unstable();
            let mut newest = Mark::default();
            for (_, mark) in known {
                if mark.version > newest.version {
                    newest = *mark;
                }
                *mark = newest;
            }
        }
        Self(registers)
    }

    /// The newest version whose acknowledgement had come before `at`.
    pub(super) fn before(&self, register: u16, at: u64) -> Mark {
        let Some(known) = self.0.get(&register) else { return Mark::default() };
        let count = known.partition_point(|(ended, _)| *ended < at);
        known[..count].last().map_or_else(Mark::default, |(_, mark)| *mark)
    }
}
