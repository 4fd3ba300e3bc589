//! What each session had when a read of its own started.

use std::collections::HashMap;

use super::{Acknowledged, Kind, Mark, Verdict, knowable, surviving};
use crate::history::{Action, Class, History, Operation, Outcome, Value};

/// What one session has of one register.
#[derive(Clone, Copy, Debug, Default)]
struct Floor {
    /// Its own acknowledged write.
    own: Mark,
    /// Shown by a server that was no standby.
    shown: Mark,
    /// Shown by a primary that the router had asked as a replica.
    promoted: Mark,
    /// Shown by a standby.
    replica: Mark,
}

impl Floor {
    fn map(self, f: impl Fn(Mark) -> Mark) -> Self {
        Self { own: f(self.own), shown: f(self.shown), promoted: f(self.promoted), replica: f(self.replica) }
    }
}

type Floors = HashMap<u16, Floor>;

/// A moment of an operation. At one instant, what starts comes before what ends: neither is known to be earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Resumed,
    Started,
    Ended,
}

/// Goes through all starts and ends in the order of time.
pub(super) fn check(history: &History, acknowledged: &Acknowledged, verdict: &mut Verdict) {
    let mut moments: Vec<(u64, Moment, usize)> = Vec::with_capacity(2 * history.operations.len());
    for (index, operation) in history.operations.iter().enumerate() {
        if let Action::Resume(_) = operation.action {
            moments.push((operation.started, Moment::Resumed, index));
        } else {
            moments.push((operation.started, Moment::Started, index));
            moments.push((operation.ended, Moment::Ended, index));
        }
    }
    moments.sort_unstable();
    let mut sessions: HashMap<u64, Floors> = HashMap::new();
    let mut exports: HashMap<u64, Floors> = HashMap::new();
    for (_, moment, index) in moments {
        let operation = &history.operations[index];
        match (moment, &operation.action) {
            (Moment::Resumed, Action::Resume(from)) => {
                let floors = sessions.entry(operation.session).or_default();
                from.iter().filter_map(|export| exports.get(export)).for_each(|export| merge(floors, export));
            }
            (Moment::Started, Action::Export) => {
                exports.insert(operation.id, sessions.get(&operation.session).cloned().unwrap_or_default());
            }
            (Moment::Started, Action::Read(Class::Strict)) if operation.outcome == Outcome::Done => {
                if let Some(floors) = sessions.get(&operation.session) {
                    judge(operation, floors, acknowledged, history, verdict);
                }
            }
            (Moment::Ended, Action::Read(_) | Action::Write(_)) => {
                raise(sessions.entry(operation.session).or_default(), operation);
            }
            _ => {}
        }
    }
}

fn judge(read: &Operation, floors: &Floors, acknowledged: &Acknowledged, history: &History, verdict: &mut Verdict) {
    let on_standby = read.server.is_some_and(|server| server.standby);
    let is_split = knowable(history, read.started) < read.started;
    for &Value { register, version, .. } in &read.values {
        let Some(floor) = floors.get(&register).copied() else { continue };
        let floor =
            if [floor.own, floor.shown, floor.promoted, floor.replica].iter().all(|mark| mark.version <= version) {
                floor
            } else {
                floor.map(|mark| surviving(history, read, register, mark))
            };
        if floor.own.version > version {
            verdict.add(Kind::MissedOwnWrite, read, register, version, floor.own);
        } else if floor.shown.version > version {
            verdict.add(Kind::MissedShown, read, register, version, floor.shown);
        } else if floor.promoted.version > version {
            if is_split && !on_standby {
                verdict.excused += 1;
            } else {
                verdict.add(Kind::MissedShown, read, register, version, floor.promoted);
            }
        } else if floor.replica.version <= version {
            // It has all.
        } else if on_standby {
            verdict.add(Kind::WentBack, read, register, version, floor.replica);
        } else {
            // Whoever has a version has all smaller ones.
            let known = |at| surviving(history, read, register, acknowledged.before(register, at));
            let binds = |at| known(at).version.min(floor.replica.version) > version;
            if binds(knowable(history, read.started)) {
                verdict.add(Kind::BehindAcknowledged, read, register, version, floor.replica);
            } else if history.promise.monotonic_on_primary && !is_split {
                verdict.add(Kind::WentBackOnPrimary, read, register, version, floor.replica);
            } else {
                verdict.excused += u64::from(is_split);
                verdict.went_back_on_primary += u64::from(!is_split);
            }
        }
    }
}

/// The operation has ended: from here on its session has what it showed.
fn raise(floors: &mut Floors, operation: &Operation) {
    let is_write = matches!(operation.action, Action::Write(_));
    let is_done = operation.outcome == Outcome::Done;
    let on_standby = operation.server.is_some_and(|server| server.standby);
    for value in &operation.values {
        let floor = floors.entry(value.register).or_default();
        let place = match (is_write, is_done) {
            (true, true) => &mut floor.own,
            (false, true) if on_standby => &mut floor.replica,
            (false, true) if operation.reason.is_none() => &mut floor.promoted,
            _ => &mut floor.shown,
        };
        // A write that did not come to its end has still seen the version that it was about to replace.
        let version = if is_write && !is_done { value.version.saturating_sub(1) } else { value.version };
        if version > place.version {
            *place = Mark { version, operation: operation.id };
        }
    }
}

fn merge(floors: &mut Floors, other: &Floors) {
    for (register, theirs) in other {
        let mine = floors.entry(*register).or_default();
        mine.own = mine.own.max(theirs.own);
        mine.shown = mine.shown.max(theirs.shown);
        mine.promoted = mine.promoted.max(theirs.promoted);
        mine.replica = mine.replica.max(theirs.replica);
    }
}
