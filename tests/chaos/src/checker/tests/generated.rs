//! Histories made by a small cluster that keeps all promises: none is found broken, until one is planted.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{Action, Class, History, Kind, OTHER, Operation, Outcome, PRIMARY, STANDBY, Value, call, check, kinds};

const REGISTERS: usize = 3;
const SESSIONS: usize = 4;

/// One commit after the other; each standby has a part of them from the beginning on.
#[derive(Default)]
struct Cluster {
    now: u64,
    log: Vec<Value>,
    replayed: [usize; 2],
    /// What each session must see.
    floors: Vec<usize>,
    /// How long the log was when.
    lengths: Vec<(u64, usize)>,
    exports: Vec<(u64, usize)>,
}

impl Cluster {
    fn tick(&mut self, random: &mut StdRng) -> u64 {
        self.now += random.random_range(1..5);
        self.now
    }

    fn value(&self, position: usize, register: u16) -> Value {
        let found = self.log[..position].iter().rev().find(|value| value.register == register);
        found.copied().unwrap_or(Value { register, version: 0, tag: 0 })
    }

    fn length_before(&self, at: u64) -> usize {
        self.lengths.iter().rev().find(|(when, _)| *when < at).map_or(0, |(_, length)| *length)
    }
}

/// A legal history; calls follow one another.
fn legal(seed: u64, calls: u64) -> Vec<Operation> {
    let random = &mut StdRng::seed_from_u64(seed);
    let mut cluster = Cluster { floors: vec![0; SESSIONS], ..Cluster::default() };
    let mut operations = Vec::new();
    for id in 1..=calls {
        let session = random.random_range(0..SESSIONS);
        let register = u16::try_from(random.random_range(0..REGISTERS)).unwrap();
        for standby in 0..2 {
            let behind = cluster.log.len() - cluster.replayed[standby];
            cluster.replayed[standby] += random.random_range(0..=behind);
        }
        let started = cluster.tick(random);
        let mut operation = call(id, (started, started), Action::Final);
        operation.session = session as u64;
        match random.random_range(0..10) {
            0..3 => {
                let version = cluster.value(cluster.log.len(), register).version + 1;
                let value = Value { register, version, tag: id };
                operation.action = Action::Write(vec![register]);
                operation.server = Some(PRIMARY);
                operation.values = vec![value];
                match random.random_range(0..6) {
                    0 => {
                        operation.outcome = Outcome::RolledBack;
                        cluster.floors[session] = cluster.log.len();
                    }
                    1 => {
                        // The caller went away; it happened all the same.
                        operation.outcome = Outcome::Cancelled;
                        operation.values.clear();
                        cluster.log.push(value);
                    }
                    _ => {
                        cluster.log.push(value);
                        cluster.floors[session] = cluster.log.len();
                    }
                }
            }
            3 => {
                operation.action = Action::Export;
                cluster.exports.push((id, cluster.floors[session]));
            }
            4 if !cluster.exports.is_empty() => {
                let (export, floor) = cluster.exports[random.random_range(0..cluster.exports.len())];
                operation.action = Action::Resume(vec![export]);
                operation.session = 1000 + id;
                let own = std::mem::replace(&mut cluster.floors[session], floor);
                operations.push(operation);
                // The new session takes the place for one read.
                let renamed = 1000 + id;
                operations.push(read_of(&mut cluster, random, (id + calls, renamed, session), register));
                cluster.floors[session] = own;
                continue;
            }
            _ => operation = read_of(&mut cluster, random, (id, session as u64, session), register),
        }
        operation.ended = cluster.tick(random);
        cluster.lengths.push((operation.ended, cluster.log.len()));
        operations.push(operation);
    }
    operations
}

/// A read where it may be served. Each place is the session `name` in the history.
fn read_of(
    cluster: &mut Cluster,
    random: &mut StdRng,
    (id, name, session): (u64, u64, usize),
    register: u16,
) -> Operation {
    let started = cluster.tick(random);
    let bound = random.random_range(0..40);
    let class = [Class::Strict, Class::Bounded(bound), Class::Eventual, Class::Unannotated][random.random_range(0..4)];
    let needed = match class {
        Class::Strict => cluster.floors[session],
        Class::Bounded(bound) => cluster.length_before(started.saturating_sub(bound)),
        Class::Eventual => 0,
        Class::Unannotated | Class::Primary => usize::MAX,
    };
    let standby = random.random_range(0..2);
    let (server, position) = if cluster.replayed[standby] >= needed {
        ([STANDBY, OTHER][standby], cluster.replayed[standby])
    } else {
        (PRIMARY, cluster.log.len())
    };
    let operation = call(id, (started, cluster.tick(random)), Action::Read(class));
    cluster.floors[session] = cluster.floors[session].max(position);
    Operation { session: name, server: Some(server), values: vec![cluster.value(position, register)], ..operation }
}

fn judge(operations: &[Operation]) -> super::Verdict {
    check(&History { operations: operations.to_vec(), ..History::default() })
}

/// Puts the value that a read shows back by one version, under the name of whoever wrote that.
fn set_back(operations: &[Operation], at: usize) -> Option<Vec<Operation>> {
    let mut planted = operations.to_vec();
    let shown = planted[at].values.first_mut()?;
    shown.version = shown.version.checked_sub(1)?;
    let (register, version) = (shown.register, shown.version);
    let known = operations.iter().flat_map(|o| o.values.iter().filter(move |_| o.outcome == Outcome::Done));
    shown.tag = if version == 0 {
        0
    } else {
        known.filter(|value| value.register == register && value.version == version).map(|value| value.tag).next()?
    };
    Some(planted)
}

/// What must be there by the plain words of the promise, told without the checker's bookkeeping: all pairs are looked at.
fn expected(operations: &[Operation], read: &Operation) -> Option<Kind> {
    let shown = read.values[0];
    let before = |other: &&Operation| other.ended < read.started && other.session == read.session;
    let newer = |other: &&Operation| {
        // A write that was rolled back saw the version before its own.
        let less = u64::from(other.outcome != Outcome::Done);
        other.values.iter().any(|value| value.register == shown.register && value.version - less > shown.version)
    };
    let acknowledged = |other: &Operation| matches!(other.action, Action::Write(_)) && other.outcome == Outcome::Done;
    let mut newer_before = operations.iter().filter(before).filter(newer);
    let on_standby = |other: &Operation| other.server.is_some_and(|server| server.standby);
    match read.action {
        Action::Read(Class::Strict) => {
            if newer_before.clone().any(acknowledged) {
                return Some(Kind::MissedOwnWrite);
            }
            if newer_before.clone().any(|other| !on_standby(other)) {
                return Some(Kind::MissedShown);
            }
            (newer_before.next().is_some() && on_standby(read)).then_some(Kind::WentBack)
        }
        Action::Read(Class::Bounded(bound)) => operations
            .iter()
            .filter(|other| other.outcome == Outcome::Done)
            .filter(|other| other.ended < read.started.saturating_sub(bound) && !on_standby(other))
            .any(|other| newer(&other))
            .then_some(Kind::StalerThanBound),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn legal_histories_break_nothing(seed: u64, calls in 1..150_u64) {
        let found = judge(&legal(seed, calls));
        prop_assert_eq!(kinds(&found), []);
        prop_assert_eq!(found.excused, 0);
    }

    /// Every read is put back in turn: where the plain words forbid it, that kind is found, at that read.
    #[test]
    fn what_is_planted_is_found(seed: u64) {
        let operations = legal(seed, 100);
        for (at, read) in operations.iter().enumerate().filter(|(_, o)| matches!(o.action, Action::Read(_))) {
            let Some(planted) = set_back(&operations, at) else { continue };
            let found = judge(&planted);
            if let Some(kind) = expected(&planted, &planted[at]) {
                prop_assert!(
                    found.violations.iter().any(|v| v.kind == kind && v.operation == read.id),
                    "{kind:?} of {read:?} is not among {:?}", found.violations
                );
            }
            let at_others = found.violations.iter().filter(|v| v.operation != read.id).count();
            prop_assert_eq!(at_others, 0);
        }
    }
}

/// The planted reads above are of all kinds.
#[test]
fn each_kind_comes_up() {
    let mut missing = vec![Kind::MissedOwnWrite, Kind::MissedShown, Kind::WentBack, Kind::StalerThanBound];
    for seed in 0..200 {
        let operations = legal(seed, 100);
        for at in (0..operations.len()).filter(|at| matches!(operations[*at].action, Action::Read(_))) {
            let found = set_back(&operations, at).and_then(|planted| expected(&planted, &planted[at]));
            missing.retain(|kind| Some(*kind) != found);
        }
    }
    assert_eq!(missing, []);
}
