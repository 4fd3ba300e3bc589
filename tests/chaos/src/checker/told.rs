//! Whether sessions are told of what a failover lost.

use std::collections::BTreeMap;

use super::{Kind, Mark, Verdict};
use crate::history::{Action, Class, History, Operation, Outcome, Promotion};

/// The router's word for it, in the reason of a read that was served and in the cause of one that was not.
const TOLD: &str = "branch_lost";

pub(super) fn check(history: &History, verdict: &mut Verdict) {
    let losses: Vec<&Promotion> = history.faults.iter().filter_map(|fault| fault.promotion.as_ref()).collect();
    if losses.iter().all(|promotion| promotion.kept.is_empty()) {
        return;
    }
    let mut sessions: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
    for operation in &history.operations {
        sessions.entry(operation.session).or_default().push(operation);
    }
    for operations in sessions.values_mut() {
        // What clones were told at the same time is not in the record.
        if operations.iter().all(|operation| operation.task == operations[0].task) {
            operations.sort_by_key(|operation| operation.started);
            losses.iter().for_each(|promotion| check_session(operations, promotion, verdict));
        }
    }
}

/// The calls of one task follow one another.
fn check_session(operations: &[&Operation], promotion: &Promotion, verdict: &mut Verdict) {
    // What the session had that is lost.
    let mut had: Option<(u16, Mark)> = None;
    for operation in operations {
        let read = match (&operation.action, &operation.outcome) {
            // Nobody has met the new primary yet.
            (_, Outcome::Failed(_) | Outcome::Cancelled) if operation.ended < promotion.named => continue,
            (_, Outcome::Cancelled) => return,
            (Action::Read(class), Outcome::Done) => Some(*class),
            _ => None,
        };
        let is_before = operation.ended < promotion.began;
        if let Some((register, mark)) = had.filter(|_| !is_before) {
            let told = match &operation.outcome {
                Outcome::Failed(cause) => cause.contains(TOLD),
                _ => operation.reason.as_deref() == Some(TOLD) && read == Some(Class::Strict),
            };
            let on_standby = operation.server.is_some_and(|server| server.standby);
            match (&operation.action, &operation.outcome) {
                _ if told => {
                    verdict.told += 1;
                    return;
                }
                // It may have been answered by the old primary.
                (Action::Read(Class::Strict), Outcome::Done) if operation.started < promotion.began => {}
                (Action::Read(Class::Strict), Outcome::Done) => {
                    let found = operation.values.iter().find(|value| value.register == register);
                    let found = found.map_or(0, |value| value.version);
                    verdict.add(Kind::LostSilently, operation, register, found, mark);
                    return;
                }
                (Action::Read(_), Outcome::Done) if on_standby => {}
                (Action::Read(_), Outcome::Failed(cause)) if cause.starts_with("refused") => {}
                (Action::Export | Action::Resume(_), _) => {}
                _ => return,
            }
        }
        if is_before && operation.outcome == Outcome::Done {
            let lost = operation.values.iter().find(|v| promotion.left_of(v.register, v.version).is_some());
            let lost = lost.map(|v| (v.register, Mark { version: v.version, operation: operation.id }));
            had = had.or(lost);
        }
    }
}
