use std::time::Duration;

use super::*;
use crate::{
    Branch, ClassName, Epoch, ReplicaConfig, Role, Token,
    rehearsal::{A, B, P, Rehearsal, branch, ms},
};

/// Two replicas: A has replayed 100, B has replayed 80; the primary was at 80 at 10 ms and at 100 at 20 ms.
fn two_replicas() -> Rehearsal {
    let mut stage = Rehearsal::new(2);
    stage.primary(P, 10, 1, 80).primary(P, 20, 1, 100).replica(A, 30, 1, 100).replica(B, 30, 1, 80);
    stage
}

fn route(stage: &Rehearsal, read: impl Into<ReadOptions>, session: &Session, now: u64, draw: u64) -> Route {
    let mut session = session.clone();
    session.resolve(stage.topology());
    let (in_flight, config) = (InFlight::new(3), Config::default());
    let need = Need {
        read: read.into(),
        session: &session,
        started: ms(40),
        exclude: None,
        in_flight: &in_flight,
        config: &config,
    };
    select(stage.topology(), &need, ms(now), draw)
}

fn node(route: Route) -> Option<NodeId> {
    match route {
        Route::Replica(node, _) => Some(node),
        _ => None,
    }
}

/// The nodes that some draw leads to.
fn nodes(stage: &Rehearsal, read: ReadClass, session: &Session, now: u64) -> Vec<NodeId> {
    let mut all: Vec<_> = (0..64).filter_map(|draw| node(route(stage, read, session, now, draw))).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn token(text: &str) -> Session {
    Session::resume(text.parse::<Token>().unwrap(), ms(70), true)
}

const STRICT: ReadClass = ReadClass::MustSeeMyWrite;

fn stale(millis: u64) -> ReadClass {
    ReadClass::SecondsStale(Duration::from_millis(millis))
}

#[test]
fn each_class_gets_the_nodes_that_are_proven_for_it() {
    let stage = two_replicas();
    let fresh = Session::new(true);
    for (read, session, nodes_expected) in [
        (ReadClass::Eventual, &fresh, vec![A, B]),
        (STRICT, &fresh, vec![A, B]),
        (STRICT, &token("rr1:7:1@0/50"), vec![A, B]), // 0x50 = 80
        (STRICT, &token("rr1:7:1@0/51"), vec![A]),
        (STRICT, &token("rr1:7:1@0/64"), vec![A]), // 0x64 = 100
        (STRICT, &token("rr1:unknown"), vec![]),
        // At 40 ms A is known to be at most 20 ms stale and B 30.
        (stale(30), &fresh, vec![A, B]),
        (stale(29), &fresh, vec![A]),
        (stale(20), &fresh, vec![A]),
        (stale(19), &fresh, vec![]),
        (stale(0), &fresh, vec![]),
    ] {
        assert_eq!(nodes(&stage, read, session, 40), nodes_expected, "{read:?} {session:?}");
    }
}

#[test]
fn every_outcome_has_its_reason() {
    let stage = two_replicas();
    let until = ms(140);
    for (read, session, now, outcome) in [
        (ReadOptions::new(STRICT), token("rr1:7:1@0/65"), 40, Route::Wait { until, ask: Ask::Replicas }),
        (STRICT.into(), token("rr1:7:1@0/65"), 140, Route::Primary(PrimaryReason::Behind)),
        (STRICT.wait(Duration::ZERO), token("rr1:7:1@0/65"), 40, Route::Primary(PrimaryReason::Behind)),
        (STRICT.or_error(), token("rr1:7:1@0/65"), 140, Route::Refused(PrimaryReason::Behind)),
        (STRICT.into(), token("rr1:unknown"), 40, Route::Primary(PrimaryReason::UnknownSession)),
        (stale(19).into(), Session::new(true), 40, Route::Wait { until, ask: Ask::All }),
        (stale(19).into(), Session::new(true), 140, Route::Primary(PrimaryReason::TooStale)),
    ] {
        assert_eq!(route(&stage, read, &session, now, 0), outcome, "{read:?} at {now}");
    }
    let mut dirty = Session::new(true);
    dirty.contact(branch(1), ms(35), stage.topology());
    assert_eq!(route(&stage, STRICT, &dirty, 40, 0), Route::Wait { until, ask: Ask::Primary });
    assert_eq!(route(&stage, STRICT, &dirty, 140, 0), Route::Primary(PrimaryReason::Unresolved));
    let mut doubting = Session::new(true);
    let write = doubting.write_sent();
    assert_eq!(nodes(&stage, STRICT, &doubting, 40), [A, B], "a write under way has not been acknowledged");
    doubting.in_doubt(write);
    assert_eq!(route(&stage, STRICT, &doubting, 40, 0), Route::Primary(PrimaryReason::InDoubt));
    assert_eq!(nodes(&stage, ReadClass::Eventual, &doubting, 40), [A, B]);
}

/// A replica that was known to lag by many budgets cost each strict read its whole budget.
#[test]
fn a_replica_that_lags_by_many_budgets_is_not_waited_for() {
    let mut stage = Rehearsal::new(2);
    stage.primary(P, 10, 1, 100).primary(P, 500, 1, 101).primary(P, 1_200, 1, 102);
    stage.replica(A, 1_200, 1, 100).replica(B, 1_200, 1, 90);
    let session = token("rr1:7:1@0/66"); // 0x66 = 102
    let started = 1_210;
    let routed = |stage: &Rehearsal, read: ReadOptions| {
        let (in_flight, config) = (InFlight::new(3), Config::default());
        let (session, started, in_flight, config) = (&session, ms(started), &in_flight, &config);
        select(stage.topology(), &Need { read, session, started, exclude: None, in_flight, config }, started, 0)
    };
    let wait = |until| Route::Wait { until: ms(until), ask: Ask::Replicas };
    // A lacks what is older than 1,200 ms, and of B no sample says how far it is.
    assert_eq!(routed(&stage, STRICT.into()), Route::Primary(PrimaryReason::Behind));
    assert_eq!(routed(&stage, STRICT.or_error()), Route::Refused(PrimaryReason::Behind));
    assert_eq!(routed(&stage, STRICT.wait(Duration::from_millis(120))), wait(started + 120));
    stage.replica(A, 1_205, 1, 101);
    assert_eq!(routed(&stage, STRICT.into()), wait(started + 100), "one is near enough");
}

#[test]
fn no_replica_and_none_up_are_told_apart() {
    let fresh = Session::new(false);
    assert_eq!(route(&Rehearsal::new(0), STRICT, &fresh, 40, 0), Route::Primary(PrimaryReason::NoReplica));
    for read in [STRICT, stale(1000), ReadClass::Eventual] {
        let mut stage = Rehearsal::new(2);
        assert_eq!(route(&stage, read, &fresh, 40, 0), Route::Primary(PrimaryReason::NoneUp), "never probed");
        stage.primary(P, 10, 1, 80).replica(A, 20, 1, 80).replica(B, 20, 1, 80).fail(A, 30).fail(B, 30);
        assert_eq!(route(&stage, read, &fresh, 40, 0), Route::Primary(PrimaryReason::NoneUp), "down");
        stage.open(A, 1, 7);
        stage.replica(A, 35, 1, 80);
        assert_eq!(nodes(&stage, read, &fresh, 40), [A], "back");
        assert_eq!(
            route(&stage, read, &fresh, 60_000, 0),
            Route::Primary(PrimaryReason::NoneUp),
            "the monitor stopped"
        );
    }
}

/// Rule 9: to move elsewhere, the other node must cover a sample of the first one sent after the read ended.
#[test]
fn reads_between_replicas_never_go_back() {
    let mut stage = two_replicas();
    let mut session = Session::new(false);
    session.read_done(A, stage.epoch(A), Some(branch(1)), ms(35), stage.topology());
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A], "no later sample of A");
    stage.replica(A, 36, 1, 100);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A], "B is behind it");
    stage.replica(B, 38, 1, 100);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A], "A may have shown the record that begins at 100");
    let mut idle = session.clone();
    stage.primary(P, 39, 1, 100);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A, B], "there is none");
    idle.resolve(stage.topology());
    assert_eq!(idle.token().unwrap().to_string(), "rr1:7:1@0/64");
}

/// Found on a server: a commit that drops files is shown by a standby long before its position passes it.
#[test]
fn another_replica_must_be_past_what_the_first_was_replaying() {
    let mut stage = two_replicas();
    stage.replica(B, 31, 1, 100);
    let mut session = Session::new(false);
    session.read_done(A, stage.epoch(A), Some(branch(1)), ms(35), stage.topology());
    stage.replica(A, 36, 1, 100).replica(B, 37, 1, 100).primary(P, 38, 1, 150);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A], "the record may end anywhere up to 150");
    let mut exported = session.clone();
    exported.resolve(stage.topology());
    assert_eq!(exported.token().unwrap().to_string(), "rr1:7:1@0/65");
    stage.replica(B, 39, 1, 130);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A, B], "B is past 100, and so past the record");
    let mut later = two_replicas();
    later.replica(B, 31, 1, 110).replica(A, 36, 1, 120).primary(P, 38, 1, 150);
    assert_eq!(nodes(&later, STRICT, &session, 40), [A], "B is behind where A was");
}

/// Rule 9: "the same node" after a crash is another one.
#[test]
fn a_floor_of_a_life_that_is_over_needs_the_primary() {
    let mut stage = two_replicas();
    let mut session = Session::new(true);
    session.read_done(A, stage.epoch(A), Some(branch(1)), ms(35), stage.topology());
    stage.fail(A, 36);
    stage.open(A, 1, 7);
    stage.replica(A, 37, 1, 90);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [], "it came back behind what it had shown");
    stage.primary(P, 38, 1, 100).replica(A, 39, 1, 100);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A]);
}

/// A replica that died must not hold its last readers to the primary for as long as it is gone.
#[test]
fn a_floor_of_a_node_that_is_gone_is_resolved_by_the_primary() {
    let mut stage = two_replicas();
    let mut session = Session::new(true);
    session.read_done(A, stage.epoch(A), Some(branch(1)), ms(35), stage.topology());
    stage.fail(A, 36).replica(B, 36, 1, 100);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [], "no later sample of the primary yet");
    stage.primary(P, 37, 1, 100);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [B]);
}

/// Rule 5 and 11: after a promotion only what is known to survive counts as covered.
#[test]
fn a_position_of_an_older_timeline_must_be_known_to_survive() {
    let mut stage = two_replicas();
    // A, last seen as a replica at 100, is promoted; B follows it.
    stage.primary(A, 50, 2, 120).replica(B, 51, 2, 110);
    assert_eq!(nodes(&stage, STRICT, &token("rr1:7:1@0/64"), 60), [B], "100 is below the bound of the switch");
    let lost = token("rr1:7:1@0/65");
    assert_eq!(route(&stage, STRICT, &lost, 60, 0), Route::Primary(PrimaryReason::BranchLost), "101 may be gone");
    assert_eq!(nodes(&stage, STRICT, &token("rr1:7:2@0/6E"), 60), [B]);
    let newer = token("rr1:7:3@0/1");
    assert!(matches!(route(&stage, STRICT, &newer, 60, 0), Route::Wait { .. }), "its primary may yet be seen");
}

#[test]
fn a_replica_of_a_discarded_branch_serves_nobody() {
    let mut stage = two_replicas();
    let fresh = Session::new(true);
    stage.replica(B, 45, 1, 130).primary(A, 50, 2, 120);
    assert_eq!(nodes(&stage, ReadClass::Eventual, &fresh, 60), [], "B is past the bound of the switch");
    assert_eq!(stage.topology().node(B).unwrap().standing(), Standing::Discarded);
    stage.replica(B, 55, 1, 100);
    assert_eq!(nodes(&stage, ReadClass::Eventual, &fresh, 60), [B], "B is below it");
    assert_eq!(nodes(&stage, stale(1000), &fresh, 60), [], "but not on the surviving timeline");
}

#[test]
fn strangers_serve_nobody() {
    let fresh = Session::new(true);
    let mut stage = two_replicas();
    stage.open(B, 9, 8);
    stage.replica(B, 35, 1, 100);
    assert_eq!(stage.topology().node(B).unwrap().standing(), Standing::ForeignCluster);
    assert_eq!(nodes(&stage, ReadClass::Eventual, &fresh, 40), [A]);
    let mut stage = two_replicas();
    stage.primary(B, 35, 1, 100);
    assert_eq!(stage.topology().node(B).unwrap().standing(), Standing::OtherPrimary);
    assert_eq!(nodes(&stage, ReadClass::Eventual, &fresh, 40), [A]);
}

#[test]
fn the_primary_under_another_name_is_always_fresh() {
    let mut stage = Rehearsal::new(1);
    stage.open(A, 0, 7); // the instance that the primary's URL leads to
    stage.primary(P, 10, 1, 100).primary(A, 10, 1, 100);
    let mut session = Session::new(true);
    session.contact(branch(1), ms(35), stage.topology());
    for read in [STRICT, stale(0), ReadClass::Eventual] {
        assert_eq!(nodes(&stage, read, &session, 40), [A], "{read:?}");
    }
}

/// Rule 13.
#[test]
fn a_replica_ahead_of_its_primary_is_quarantined() {
    let mut stage = two_replicas();
    stage.replica(B, 35, 1, 5000).primary(P, 40, 1, 120);
    assert_eq!(stage.topology().node(B).unwrap().standing(), Standing::Quarantined);
    assert_eq!(nodes(&stage, ReadClass::Eventual, &Session::new(true), 45), [A]);
    stage.primary(P, 45, 1, 6000).replica(B, 50, 1, 6000);
    assert_eq!(stage.topology().node(B).unwrap().standing(), Standing::Quarantined, "its history differs for good");
}

/// Rule 12: an ordinary role may not see a standby's timeline.
#[test]
fn an_unproven_timeline_serves_eventual_reads_only() {
    let fresh = Session::new(true);
    let mut stage = two_replicas();
    stage.answer(B, 35, Role::Replica, None, false, 100);
    assert_eq!(nodes(&stage, ReadClass::Eventual, &fresh, 40), [A, B]);
    assert_eq!(nodes(&stage, STRICT, &fresh, 40), [A]);
    assert_eq!(nodes(&stage, stale(1000), &fresh, 40), [A]);
    // The control file's word holds while it names the newest timeline that is known.
    stage.answer(B, 36, Role::Replica, Some(1), false, 100);
    assert_eq!(nodes(&stage, STRICT, &fresh, 40), [A, B]);
}

#[test]
fn a_control_file_counts_while_a_primary_answers_on_its_timeline() {
    let mut stage = two_replicas();
    stage.fail(A, 31).answer(B, 35, Role::Replica, Some(1), false, 90);
    let needs = |lsn: &str| token(&format!("rr1:7:1@0/{lsn}"));
    assert_eq!(nodes(&stage, STRICT, &needs("5A"), 80), [B]);
    // Beyond 90 it may have followed a promotion by now.
    stage.fail(P, 36).answer(B, 40, Role::Replica, Some(1), false, 200);
    for (position, expected) in [("5A", &[B][..]), ("5B", &[])] {
        assert_eq!(nodes(&stage, STRICT, &needs(position), 80), expected, "{position}");
    }
    assert_eq!(nodes(&stage, stale(65), &Session::new(true), 80), [], "covers the sample of 10 ms, not of 20");
    assert_eq!(nodes(&stage, ReadClass::Eventual, &Session::new(true), 80), [B]);
    // Another life, and nothing was known of it.
    stage.fail(B, 41).answer(B, 45, Role::Replica, Some(1), false, 200);
    assert_eq!(nodes(&stage, STRICT, &Session::new(true), 80), []);
    stage.primary(P, 50, 1, 210).answer(B, 55, Role::Replica, Some(1), false, 200);
    assert_eq!(nodes(&stage, STRICT, &needs("5B"), 80), [B]);
}

#[test]
fn a_sticky_session_stays_and_a_shared_one_spreads() {
    let stage = two_replicas();
    for (sticky, expected) in [(true, vec![B]), (false, vec![A, B])] {
        let mut session = Session::new(sticky);
        session.read_done(B, stage.epoch(B), Some(branch(1)), ms(25), stage.topology());
        assert_eq!(nodes(&stage, ReadClass::Eventual, &session, 40), expected);
    }
}

#[test]
fn two_choices_prefer_the_less_busy_and_reach_everyone() {
    let mut stage = Rehearsal::new(10);
    stage.primary(P, 10, 1, 80);
    for index in 0..10 {
        stage.replica(NodeId::replica(index), 20, 1, 80);
    }
    let (session, config) = (Session::new(false), Config::default());
    let in_flight = InFlight::new(11);
    for _ in 0..100 {
        in_flight.begin(NodeId::replica(3));
    }
    let mut hits = [0_u32; 11];
    for draw in 0..10_000_u64 {
        let need = Need {
            read: ReadClass::Eventual.into(),
            session: &session,
            started: ms(40),
            exclude: Some(NodeId::replica(7)),
            in_flight: &in_flight,
            config: &config,
        };
        // A weak source of draws: the choice must spread it by itself.
        let chosen = node(select(stage.topology(), &need, ms(40), draw)).unwrap();
        hits[chosen.index()] += 1;
    }
    assert_eq!((hits[4], hits[8]), (0, 0), "busy one and excluded one: {hits:?}");
    let others = hits.iter().filter(|n| **n > 0);
    assert!(others.clone().count() == 8 && others.clone().all(|n| (1000..1500).contains(n)), "{hits:?}");
}

#[test]
fn more_lag_never_makes_a_replica_eligible() {
    let fresh = Session::new(true);
    for read in [stale(25), STRICT] {
        let session = if read == STRICT { token("rr1:7:1@0/50") } else { fresh.clone() };
        let mut was_eligible = false;
        for lsn in 60..=110 {
            let mut stage = Rehearsal::new(1);
            stage.primary(P, 10, 1, 80).primary(P, 20, 1, 100).replica(A, 30, 1, lsn);
            let eligible = node(route(&stage, read, &session, 40, 0)).is_some();
            assert!(eligible || !was_eligible, "{read:?}: eligible before {lsn}, not at it");
            was_eligible = eligible;
        }
        assert!(was_eligible);
    }
}

#[test]
fn a_proof_says_when_only_the_same_life_will_do() {
    let stage = two_replicas();
    let mut session = Session::new(true);
    session.read_done(A, stage.epoch(A), Some(branch(1)), ms(35), stage.topology());
    let Route::Replica(A, proof) = route(&stage, STRICT, &session, 40, 0) else { panic!() };
    assert!(proof.same_life);
    session.read_done(A, Epoch(99), None::<Branch>, ms(1), stage.topology());
    let Route::Replica(_, proof) = route(&stage, STRICT, &Session::new(true), 40, 0) else { panic!() };
    assert!(!proof.same_life);
}

/// Rules 5 and 12: what the control file said while a newer timeline was known bounds no switch.
#[test]
fn a_stale_timeline_bounds_no_switch() {
    let mut stage = two_replicas();
    stage.primary(A, 50, 2, 100);
    // B follows A to 150, but its control file still says 1; then it is promoted in its turn.
    stage.answer(B, 55, Role::Replica, Some(1), false, 150).primary(B, 60, 3, 160);
    let lost = token("rr1:7:1@0/78"); // 120, on the old primary after the switch
    assert!(lost.admits(stage.topology(), branch(3)).is_err());
}

#[test]
fn nobody_waits_for_what_cannot_be_proven() {
    let stage = two_replicas();
    assert!(matches!(route(&stage, stale(0), &Session::new(true), 40, 0), Route::Primary(_)));
    assert!(matches!(route(&stage, stale(1), &Session::new(true), 40, 0), Route::Wait { .. }));
}

/// A follower may be heard of before the promoted server is, whose walreceiver was gone with the old primary.
#[test]
fn a_promotion_to_the_next_timeline_bounds_its_switch_whoever_tells_of_it_first() {
    let mut stage = two_replicas();
    stage.fail(P, 50).answer(A, 51, Role::Replica, Some(1), false, 120).replica(B, 55, 2, 130).primary(A, 60, 2, 140);
    assert_eq!(token("rr1:7:1@0/78").admits(stage.topology(), branch(2)), Ok(()));
    assert!(token("rr1:7:1@0/79").admits(stage.topology(), branch(2)).is_err());
}

#[test]
fn of_two_primaries_on_one_timeline_only_the_configured_one_counts() {
    let mut stage = two_replicas();
    let mut session = Session::new(true);
    session.contact(branch(1), ms(35), stage.topology());
    stage.primary(B, 38, 1, 10);
    session.resolve(stage.topology());
    assert_eq!(session.token(), None, "a stranger's sample resolves nothing");
    stage.primary(P, 39, 1, 120);
    session.resolve(stage.topology());
    assert_eq!(session.token().unwrap().to_string(), "rr1:7:1@0/78");
}

#[test]
fn a_stray_promotion_passes() {
    let mut stage = two_replicas();
    let fresh = Session::new(true);
    stage.primary(B, 40, 2, 90).replica(A, 41, 1, 120).primary(P, 42, 1, 120);
    assert_eq!(nodes(&stage, ReadClass::Eventual, &fresh, 50), [], "which one is right is not known");
    stage.fail(B, 43).primary(P, 10_000, 1, 130).replica(A, 10_000, 1, 130);
    assert_eq!(nodes(&stage, ReadClass::Eventual, &fresh, 10_010), []);
    stage.primary(P, 10_100, 1, 130).replica(A, 10_100, 1, 130);
    assert_eq!(nodes(&stage, STRICT, &fresh, 10_110), [A], "nobody is there any more");
    // A session that had read there is told once and goes on.
    let mut strayed = token("rr1:7:2@0/1");
    assert!(matches!(strayed.admits(stage.topology(), branch(1)), Err(crate::BranchLost::OldPrimary { .. })));
    strayed.give_up_newer(branch(1));
    assert_eq!(nodes(&stage, STRICT, &strayed, 10_110), [A]);
}

/// A token from before a failover stays good for what survived it.
#[test]
fn an_imported_position_below_the_switch_is_resolved_by_the_new_branch() {
    let mut stage = two_replicas();
    stage.primary(A, 50, 2, 120);
    let mut session = token("rr1:7:1@0/64");
    session.resolve(stage.topology());
    assert_eq!(session.token(), None, "the new branch was not asked since it came");
    stage.primary(A, 75, 2, 130);
    session.resolve(stage.topology());
    assert_eq!(session.token().unwrap().to_string(), "rr1:7:1@0/64");
}

/// A replica's own word of a newer timeline is enough to stop trusting the older one.
#[test]
fn a_follower_tells_of_a_promotion() {
    let mut stage = two_replicas();
    stage.replica(B, 45, 2, 130);
    assert_eq!(nodes(&stage, stale(1000), &Session::new(true), 50), []);
    assert_eq!(stage.topology().highest_since(), ms(46));
}

/// A replica for reports serves `Eventual` only, and `Eventual` reads prefer it while it is up.
#[test]
fn classes_and_groups_narrow_the_choice() {
    let reports = ReplicaConfig::new().only([ClassName::Eventual]).group("reports");
    let mut stage = Rehearsal::with_replicas(vec![ReplicaConfig::new().weight(3), reports]);
    stage.primary(P, 10, 1, 80).replica(A, 30, 1, 80).replica(B, 30, 1, 80);
    let fresh = Session::new(false);
    for (read, expected) in [
        (ReadClass::Eventual.into(), Some(B)),
        (ReadOptions::from(STRICT), Some(A)),
        (stale(100).into(), Some(A)),
        (ReadClass::Eventual.in_group("reports"), Some(B)),
        (STRICT.in_group("reports"), None),
        (ReadClass::Eventual.in_group("elsewhere"), None),
    ] {
        for draw in 0..64 {
            assert_eq!(node(route(&stage, read, &fresh, 40, draw)), expected, "{read:?}");
        }
    }
    assert_eq!(
        route(&stage, STRICT.in_group("reports"), &fresh, 40, 0),
        Route::Primary(PrimaryReason::NoReplica),
        "none serves it"
    );
    let mut sticky = Session::new(true);
    sticky.read_done(A, stage.epoch(A), Some(branch(1)), ms(35), stage.topology());
    assert_eq!(node(route(&stage, ReadClass::Eventual, &sticky, 40, 0)), Some(B), "before the last one");
    assert_eq!(node(route(&stage, STRICT, &sticky, 40, 0)), Some(A));
    stage.fail(B, 35);
    assert_eq!(node(route(&stage, ReadClass::Eventual, &fresh, 40, 0)), Some(A), "better than nothing");
    assert_eq!(
        route(&stage, ReadClass::Eventual.in_group("reports"), &fresh, 40, 0),
        Route::Primary(PrimaryReason::NoneUp)
    );
}

#[test]
fn a_recent_write_keeps_other_reads_on_the_primary_if_asked_for() {
    let mut stage = two_replicas();
    let mut session = Session::new(false).with_primary_window(Duration::from_millis(50));
    let write = session.write_sent();
    session.acknowledged(write, branch(1), ms(35), stage.topology());
    stage.primary(P, 36, 1, 100).replica(A, 37, 1, 100);
    let recent = Route::Primary(PrimaryReason::RecentWrite);
    for read in [ReadClass::Eventual, stale(100)] {
        assert_eq!(route(&stage, read, &session, 84, 0), recent, "{read:?}");
        assert!(node(route(&stage, read, &session, 85, 0)).is_some(), "{read:?}");
    }
    assert_eq!(node(route(&stage, STRICT, &session, 40, 0)), Some(A), "proof needs no window");
    let mut elsewhere = Session::new(false).with_primary_window(Duration::from_millis(50));
    assert!(node(route(&stage, ReadClass::Eventual, &elsewhere, 40, 0)).is_some());
    elsewhere.wrote_at(session.last_write().unwrap());
    assert_eq!(route(&stage, ReadClass::Eventual, &elsewhere, 40, 0), recent);
    let doubted = elsewhere.write_sent();
    elsewhere.in_doubt(doubted);
    assert_eq!(route(&stage, ReadClass::Eventual, &elsewhere, 85, 0), recent, "it may happen yet");
}

#[test]
fn a_replica_that_is_checked_out_stands_for_later_reads() {
    let mut stage = two_replicas();
    stage.replica(B, 31, 1, 100);
    let mut session = Session::new(false);
    session.checked_out(A, stage.epoch(A), Some(branch(1)), ms(35), stage.topology());
    stage.primary(P, 36, 1, 100).replica(A, 37, 1, 100).replica(B, 37, 1, 100);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A], "more may be read there");
    session.checked_in(A, stage.epoch(A), Some(branch(1)), ms(38), stage.topology());
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A]);
    stage.primary(P, 39, 1, 100).replica(A, 39, 1, 100);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A, B]);
}

/// The option of rule 1: the primary under another name serves once it shows what a replica has shown.
#[test]
fn the_primary_is_no_replica_for_what_it_does_not_show() {
    let mut stage = two_replicas();
    let mut session = Session::new(false).with_monotonic_fallback();
    session.read_done(A, stage.epoch(A), Some(branch(1)), ms(35), stage.topology());
    stage.open(B, 0, 7); // the primary's own server
    stage.primary(P, 36, 1, 100).replica(A, 37, 1, 100).primary(B, 37, 1, 100);
    assert_eq!(nodes(&stage, STRICT, &session, 40), [A]);
    assert_eq!(nodes(&stage, STRICT, &Session::new(false), 40), [A, B]);
}

#[test]
fn an_explanation_says_what_and_why() {
    let mut stage = two_replicas();
    stage.fail(B, 35);
    let session = token("rr1:7:1@0/65");
    let (in_flight, config) = (InFlight::new(3), Config::default());
    let need = Need {
        read: STRICT.wait(Duration::ZERO),
        session: &session,
        started: ms(40),
        exclude: None,
        in_flight: &in_flight,
        config: &config,
    };
    let explained = crate::explain(stage.topology(), &need, ms(40), 0);
    assert_eq!(explained.route, Route::Primary(PrimaryReason::Behind));
    assert_eq!(
        explained.to_string(),
        "primary: behind (no replica had replayed what this session must see within the wait budget)\n  \
         replica0: behind: has not replayed what the session must see; at most 20 ms stale\n  \
         replica1: does not serve: unreachable; at most 30 ms stale"
    );
}
