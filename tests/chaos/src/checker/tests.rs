//! Each kind of violation is found where it is planted, and not in a history that differs in one place.

use super::{Kind, Verdict, check};
use crate::history::{Action, Class, Fault, History, LEAP, Operation, Outcome, Promise, Promotion, Server, Value};

mod generated;

const PRIMARY: Server = Server { port: 1, standby: false };
const STANDBY: Server = Server { port: 2, standby: true };
const OTHER: Server = Server { port: 3, standby: true };
const STRICT: Class = Class::Strict;

/// Session 1, register 0.
fn call(id: u64, (started, ended): (u64, u64), action: Action) -> Operation {
    Operation {
        id,
        task: 0,
        session: 1,
        started,
        ended,
        action,
        outcome: Outcome::Done,
        values: Vec::new(),
        server: None,
        reason: None,
    }
}

/// A write that made `version`.
fn write(id: u64, at: (u64, u64), version: u64) -> Operation {
    let values = vec![Value { register: 0, version, tag: id }];
    Operation { values, server: Some(PRIMARY), ..call(id, at, Action::Write(vec![0])) }
}

/// A read that showed `version` by the write `tag`.
fn read(id: u64, at: (u64, u64), class: Class, server: Server, (version, tag): (u64, u64)) -> Operation {
    let values = vec![Value { register: 0, version, tag }];
    Operation { values, server: Some(server), ..call(id, at, Action::Read(class)) }
}

fn of(session: u64, operation: Operation) -> Operation {
    Operation { session, ..operation }
}

fn ending(outcome: Outcome, operation: Operation) -> Operation {
    Operation { outcome, ..operation }
}

fn verdict(operations: Vec<Operation>) -> Verdict {
    check(&History { operations, ..History::default() })
}

fn kinds(verdict: &Verdict) -> Vec<Kind> {
    verdict.violations.iter().map(|violation| violation.kind).collect()
}

/// Checks that the last operation breaks one promise, and that `legal` in its place breaks none.
fn planted(before: impl AsRef<[Operation]>, broken: Operation, kind: Kind, legal: Operation) {
    let with = |last: &Operation| [before.as_ref(), std::slice::from_ref(last)].concat();
    let found = verdict(with(&broken));
    assert_eq!(kinds(&found), [kind], "{broken:?}");
    assert_eq!(found.violations[0].operation, broken.id);
    assert_eq!(kinds(&verdict(with(&legal))), [], "{legal:?}");
}

#[test]
fn own_writes_are_missed() {
    let write = write(10, (0, 5), 1);
    for server in [PRIMARY, STANDBY] {
        let stale = read(11, (6, 7), STRICT, server, (0, 0));
        planted([write.clone()], stale.clone(), Kind::MissedOwnWrite, read(11, (6, 7), STRICT, server, (1, 10)));
        // Overlapping the write, of another session, of another class, or failed, it is bound to nothing.
        for legal in [
            read(11, (5, 7), STRICT, server, (0, 0)),
            of(2, stale.clone()),
            read(11, (6, 7), Class::Eventual, server, (0, 0)),
            ending(Outcome::Cancelled, stale.clone()),
        ] {
            planted([write.clone()], stale.clone(), Kind::MissedOwnWrite, legal);
        }
    }
}

#[test]
fn a_write_without_an_answer_binds_nobody() {
    for outcome in [Outcome::Cancelled, Outcome::Failed("connection_lost".into())] {
        let write = ending(outcome, write(10, (0, 5), 1));
        assert_eq!(kinds(&verdict(vec![write.clone(), read(11, (6, 7), STRICT, STANDBY, (0, 0))])), []);
        assert_eq!(kinds(&verdict(vec![write, read(11, (6, 7), STRICT, STANDBY, (1, 10))])), []);
    }
}

#[test]
fn what_a_primary_showed_is_missed() {
    let others = of(2, write(10, (0, 5), 1));
    for class in [STRICT, Class::Eventual, Class::Unannotated, Class::Primary, Class::Bounded(1)] {
        let shown = read(11, (6, 7), class, PRIMARY, (1, 10));
        let stale = read(12, (8, 9), STRICT, STANDBY, (0, 0));
        planted([others.clone(), shown], stale, Kind::MissedShown, read(12, (7, 9), STRICT, STANDBY, (0, 0)));
    }
    // A transaction that was rolled back, or whose commit is open, has seen the version before its own.
    for outcome in [Outcome::RolledBack, Outcome::Cancelled, Outcome::Failed("connection_lost".into())] {
        let open = ending(outcome, write(11, (6, 7), 2));
        let stale = read(12, (8, 9), STRICT, STANDBY, (0, 0));
        let legal = read(12, (8, 9), STRICT, STANDBY, (1, 10));
        planted([others.clone(), open], stale, Kind::MissedShown, legal);
    }
}

#[test]
fn a_replica_read_goes_back() {
    let others = of(2, write(10, (0, 50), 1));
    for class in [STRICT, Class::Eventual, Class::Bounded(1)] {
        let shown = read(11, (2, 3), class, STANDBY, (1, 10));
        let before = [others.clone(), shown];
        let back = read(12, (4, 5), STRICT, OTHER, (0, 0));
        planted(&before, back.clone(), Kind::WentBack, read(12, (4, 5), STRICT, OTHER, (1, 10)));
        planted(&before, back.clone(), Kind::WentBack, read(12, (3, 5), STRICT, OTHER, (0, 0)));
        planted(&before, back, Kind::WentBack, read(12, (4, 5), Class::Eventual, OTHER, (0, 0)));
    }
}

#[test]
fn a_primary_behind_a_replica_is_counted_and_behind_an_acknowledgement_is_a_violation() {
    let shown = read(11, (2, 3), STRICT, STANDBY, (1, 10));
    let back = read(12, (6, 7), STRICT, PRIMARY, (0, 0));
    let acknowledged = [of(2, write(10, (0, 5), 1)), shown.clone()];
    planted(&acknowledged, back.clone(), Kind::BehindAcknowledged, read(12, (6, 7), STRICT, PRIMARY, (1, 10)));

    let history = vec![of(2, write(10, (0, 6), 1)), shown.clone(), back.clone()];
    let found = verdict(history.clone());
    assert_eq!((kinds(&found), found.went_back_on_primary), (vec![], 1));
    let promise = Promise { monotonic_on_primary: true };
    let found = check(&History { operations: history, promise, ..History::default() });
    assert_eq!((kinds(&found), found.went_back_on_primary), (vec![Kind::WentBackOnPrimary], 0));

    // A later version that somebody was told of stands for the one that was shown.
    let later = of(3, write(13, (4, 5), 2));
    let open = of(2, ending(Outcome::Cancelled, write(10, (0, 6), 1)));
    assert_eq!(kinds(&verdict(vec![open, shown, later, back])), [Kind::BehindAcknowledged]);
}

#[test]
fn tokens_carry_what_the_session_had() {
    let write = write(10, (0, 5), 1);
    let export = |at| call(11, at, Action::Export);
    let resume = of(2, call(12, (9, 9), Action::Resume(vec![11])));
    let stale = of(2, read(13, (10, 11), STRICT, STANDBY, (0, 0)));
    let fresh = of(2, read(13, (10, 11), STRICT, STANDBY, (1, 10)));
    planted([write.clone(), export((6, 7)), resume.clone()], stale.clone(), Kind::MissedOwnWrite, fresh);
    // Asked for while the write was under way, the token may be without it.
    assert_eq!(kinds(&verdict(vec![write.clone(), export((4, 7)), resume, stale.clone()])), []);
    // Of two tokens that were merged, each counts; and so does the token of a resumed session.
    let other = of(3, call(14, (6, 7), Action::Export));
    let merged = of(4, call(15, (8, 8), Action::Resume(vec![14, 11])));
    let again = of(4, call(16, (8, 9), Action::Export));
    let grandchild = of(2, call(12, (9, 9), Action::Resume(vec![16])));
    let all = vec![write, export((6, 7)), other, merged, again, grandchild, stale];
    assert_eq!(kinds(&verdict(all)), [Kind::MissedOwnWrite]);
}

#[test]
fn a_bound_is_broken() {
    let write = of(2, write(10, (0, 5), 1));
    let bounded = |started, version| read(11, (started, 90), Class::Bounded(20), STANDBY, version);
    planted([write.clone()], bounded(26, (0, 0)), Kind::StalerThanBound, bounded(25, (0, 0)));
    planted([write.clone()], bounded(26, (0, 0)), Kind::StalerThanBound, bounded(26, (1, 10)));
    // Without an answer, but shown by a primary to anyone, it is committed.
    let open = ending(Outcome::Cancelled, write);
    let shown = of(3, read(12, (1, 5), Class::Unannotated, PRIMARY, (1, 10)));
    planted([open.clone(), shown], bounded(26, (0, 0)), Kind::StalerThanBound, bounded(25, (0, 0)));
    assert_eq!(kinds(&verdict(vec![open, bounded(26, (0, 0))])), []);
}

#[test]
fn two_primaries_excuse_what_others_wrote_meanwhile() {
    let promotion = Some(Promotion { began: 10, fenced: 30, named: 12, kept: Vec::new() });
    let fault = Fault { kind: "failover".into(), node: "replica0".into(), began: 9, ended: 31, promotion };
    let judge = |operations| check(&History { operations, faults: vec![fault.clone()], ..History::default() });
    let write = |at| of(2, write(10, at, 1));
    let bounded = |started| read(11, (started, 90), Class::Bounded(20), STANDBY, (0, 0));
    // Acknowledged before the promotion, or read once the old primary was dead: it binds.
    assert_eq!(kinds(&judge(vec![write((0, 5)), bounded(45)])), [Kind::StalerThanBound]);
    assert_eq!(kinds(&judge(vec![write((11, 15)), bounded(50)])), [Kind::StalerThanBound]);
    let found = judge(vec![write((11, 15)), bounded(45)]);
    assert_eq!((kinds(&found), found.excused), (vec![], 1));
    // What the session itself wrote binds in any case.
    let own = of(1, write((11, 15)));
    let found = judge(vec![own, read(11, (16, 17), STRICT, PRIMARY, (0, 0))]);
    assert_eq!((kinds(&found), found.excused), (vec![Kind::MissedOwnWrite], 0));
    // Shown by a replica, acknowledged to somebody, and not there on the primary that this session knows.
    let shown = read(11, (12, 13), STRICT, STANDBY, (1, 10));
    let back = |at| read(12, at, STRICT, PRIMARY, (0, 0));
    let found = judge(vec![write((11, 15)), shown.clone(), back((16, 17))]);
    assert_eq!((kinds(&found), found.excused), (vec![], 1));
    assert_eq!(kinds(&judge(vec![write((11, 15)), shown, back((30, 31))])), [Kind::BehindAcknowledged]);
    // Shown by the promoted server itself, when it was still taken for a replica.
    let promoted = read(11, (16, 17), STRICT, Server { standby: false, ..STANDBY }, (1, 10));
    let found = judge(vec![write((11, 15)), promoted.clone(), back((18, 19))]);
    assert_eq!((kinds(&found), found.excused), (vec![], 1));
    assert_eq!(kinds(&judge(vec![write((11, 15)), promoted.clone(), back((30, 31))])), [Kind::MissedShown]);
    let known = Operation { reason: Some("behind".into()), ..promoted };
    assert_eq!(kinds(&judge(vec![write((11, 15)), known, back((18, 19))])), [Kind::MissedShown]);
}

#[test]
fn values_have_an_origin() {
    let write = write(10, (4, 5), 1);
    let read = |at, value| of(2, read(11, at, Class::Eventual, STANDBY, value));
    planted([write.clone()], read((6, 7), (1, 99)), Kind::Invented, read((6, 7), (1, 10)));
    planted([write.clone()], read((6, 7), (0, 10)), Kind::Invented, read((6, 7), (0, 0)));
    planted([write.clone()], read((2, 3), (1, 10)), Kind::FromTheFuture, read((2, 4), (1, 10)));
    planted([write.clone()], read((6, 7), (2, 10)), Kind::TwoHistories, read((6, 7), (1, 10)));
    let other_register = Operation { action: Action::Write(vec![7]), values: Vec::new(), ..write.clone() };
    assert_eq!(kinds(&verdict(vec![other_register, read((6, 7), (1, 10))])), [Kind::Invented]);
    let rolled_back = ending(Outcome::RolledBack, write);
    planted([rolled_back], read((6, 7), (1, 10)), Kind::RolledBack, read((6, 7), (0, 0)));
}

#[test]
fn one_version_has_one_writer() {
    let (first, second) = (write(10, (0, 5), 1), of(2, write(11, (6, 7), 1)));
    planted([first], second, Kind::TwoHistories, of(2, write(11, (6, 7), 2)));
}

#[test]
fn the_end_has_all_that_was_acknowledged() {
    let last = |value| Operation { action: Action::Final, ..of(0, read(12, (8, 9), STRICT, PRIMARY, value)) };
    planted([write(10, (0, 5), 1)], last((0, 0)), Kind::Lost, last((1, 10)));
}

#[test]
fn a_history_is_read_as_it_was_written() {
    let value = Value { register: 0, version: 1, tag: 10 };
    let history = History {
        promise: Promise { monotonic_on_primary: true },
        operations: vec![
            write(10, (0, 5), 1),
            ending(Outcome::Failed("x".into()), call(11, (1, 2), Action::Resume(vec![3]))),
        ],
        faults: vec![Fault {
            kind: "failover".into(),
            node: "replica0".into(),
            began: 1,
            ended: 2,
            promotion: Some(Promotion { began: 1, fenced: 2, named: 1, kept: vec![value] }),
        }],
    };
    let mut file = Vec::new();
    history.write(&mut file).unwrap();
    history.write(&mut file).unwrap();
    assert_eq!(History::read(file.as_slice()).unwrap(), [history.clone(), history]);
}

#[test]
fn a_loss_is_told() {
    // The old primary dies with version 2; the new one goes on from 1 by a leap.
    let kept = vec![Value { register: 0, version: 1, tag: 10 }];
    let promotion = Some(Promotion { began: 10, fenced: 9, named: 13, kept });
    let fault = Fault { kind: "failover".into(), node: "replica0".into(), began: 8, ended: 12, promotion };
    let judge = |last: Vec<Operation>| {
        let leap = of(0, write(12, (11, 12), 1 + LEAP));
        let operations = [vec![of(2, write(10, (0, 1), 1)), write(11, (4, 5), 2), leap], last].concat();
        check(&History { operations, faults: vec![fault.clone()], ..History::default() })
    };
    let because = |reason: &str, read| Operation { reason: Some(reason.into()), ..read };
    let on_new = |at, class| read(20, at, class, PRIMARY, (1 + LEAP, 12));
    let told = because("branch_lost", on_new((15, 16), STRICT));
    let silent = because("behind", on_new((15, 16), STRICT));
    let found = judge(vec![told.clone()]);
    assert_eq!((kinds(&found), found.told), (vec![], 1));
    assert_eq!(kinds(&judge(vec![silent.clone()])), [Kind::LostSilently]);
    assert_eq!(kinds(&judge(vec![on_new((15, 16), STRICT)])), [Kind::LostSilently]);
    // An answer of the old primary, heard late.
    assert_eq!(kinds(&judge(vec![read(20, (9, 16), STRICT, PRIMARY, (2, 11))])), []);
    // Told once, it goes on, also on a replica that has not the leap yet.
    let later = read(21, (17, 18), STRICT, STANDBY, (1, 10));
    assert_eq!(kinds(&judge(vec![later.clone()])), [Kind::LostSilently]);
    let refused = ending(Outcome::Failed("refused_branch_lost".into()), call(20, (15, 16), Action::Read(STRICT)));
    let found = judge(vec![refused, later]);
    assert_eq!((kinds(&found), found.told), (vec![], 1));
    // A write, or a read without a class, may have told it; another session has lost nothing.
    // A call that failed before the primary's name was moved tells nothing.
    let failed = |at| ending(Outcome::Failed("connection_lost".into()), call(19, at, Action::Write(vec![0])));
    assert_eq!(kinds(&judge(vec![failed((11, 12)), silent.clone()])), [Kind::LostSilently]);
    assert_eq!(kinds(&judge(vec![failed((11, 13)), silent.clone()])), []);
    let write = write(20, (13, 14), 2 + LEAP);
    let after = Operation { values: vec![Value { register: 0, version: 2 + LEAP, tag: 20 }], ..silent.clone() };
    assert_eq!(kinds(&judge(vec![write, Operation { id: 21, ..after }])), []);
    let contact = Operation { id: 19, ..on_new((13, 14), Class::Unannotated) };
    assert_eq!(kinds(&judge(vec![contact, silent.clone()])), []);
    assert_eq!(kinds(&judge(vec![of(3, silent)])), []);
    // Before the promotion what will be lost binds as ever.
    let early = read(20, (6, 7), STRICT, STANDBY, (1, 10));
    assert_eq!(kinds(&judge(vec![early])), [Kind::MissedOwnWrite]);
    let bounded = |at| of(3, read(20, at, Class::Bounded(1), STANDBY, (1, 10)));
    assert_eq!(kinds(&judge(vec![bounded((7, 8))])), [Kind::StalerThanBound]);
    assert_eq!(kinds(&judge(vec![bounded((7, 11))])), []);
}
