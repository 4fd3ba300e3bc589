use super::*;
use crate::{
    Lsn, Standing,
    rehearsal::{A, P, Rehearsal, branch, ms},
};

#[test]
fn regular_probes_keep_their_interval_with_jitter() {
    let mut stage = Rehearsal::new(1);
    assert_eq!(stage.monitor.due(P), Some(ms(0)), "at once");
    stage.monitor.sent(P, ms(1000), 0);
    assert_eq!(stage.monitor.due(P), None, "one is under way");
    for (draw, due) in [(0, 1080), (200, 1100), (400, 1120)] {
        stage.monitor.sent(P, ms(1000), draw);
        let epoch = stage.epoch(P);
        assert!(stage.monitor.answered(P, epoch, &answer(Role::Primary, 1), ms(1001)));
        assert_eq!(stage.monitor.due(P), Some(ms(due)));
    }
}

#[test]
fn nobody_joins_a_probe_that_was_sent() {
    let mut stage = Rehearsal::new(1);
    stage.primary(P, 10, 1, 80).replica(A, 10, 1, 80);
    stage.monitor.sent(P, ms(100), 0);
    stage.monitor.ask(Ask::Primary, ms(101), ms(101));
    let epoch = stage.epoch(P);
    stage.monitor.answered(P, epoch, &answer(Role::Primary, 90), ms(103));
    assert_eq!(stage.monitor.due(P), Some(ms(101)), "the answer was to a question sent before the asker came");
    assert!(stage.monitor.due(A).unwrap() > ms(80), "the replica was not asked for");
}

#[test]
fn asking_is_capped_and_backs_off_with_the_askers_patience() {
    let mut stage = Rehearsal::new(1);
    stage.primary(P, 1000, 1, 80);
    for (since, now, due) in [(1001, 1001, 1001), (1010, 1010, 1010), (980, 1000, 1005), (0, 1001, 1025)] {
        let mut monitor = stage.monitor.clone();
        monitor.ask(Ask::Primary, ms(since), ms(now));
        assert_eq!(monitor.due(P), Some(ms(due)), "asker of {since} at {now}");
    }
}

#[test]
fn a_few_probes_follow_each_other_at_once_and_then_one_in_each_spacing() {
    let mut stage = Rehearsal::new(1);
    let mut sent = Vec::new();
    // Somebody always has just begun to wait, and each answer comes at once.
    for tenth in 10_000..10_300 {
        let now = Time::from_nanos(tenth * 100_000);
        stage.monitor.ask(Ask::Primary, now, now);
        if stage.monitor.due(P).is_some_and(|due| due <= now) {
            stage.monitor.sent(P, now, 0);
            let epoch = stage.epoch(P);
            stage.monitor.answered(P, epoch, &answer(Role::Primary, 80), now);
            sent.push(tenth - 10_000);
        }
    }
    assert_eq!(sent[..5], [0, 1, 2, 3, 4]);
    let total = sent.len();
    assert!((18..=20).contains(&total), "15 in 30 ms, and those ahead: {sent:?}");
}

#[test]
fn the_longest_times_are_times_too() {
    let config = Config { probe_interval: Duration::MAX, probe_spacing: Duration::MAX, ..Config::default() };
    assert!(config.check().is_ok());
    let mut monitor = Monitor::new(1, config);
    monitor.sent(P, ms(10), 400);
    monitor.ask(Ask::All, ms(10), ms(20));
    assert_eq!(monitor.due(A), Some(ms(0)), "it was never asked");
}

/// Rule 3.
#[test]
fn answers_of_a_closed_epoch_are_dropped() {
    let mut stage = Rehearsal::new(1);
    stage.primary(P, 10, 1, 80).replica(A, 10, 1, 80);
    let before = stage.epoch(A);
    stage.monitor.sent(A, ms(20), 0);
    stage.fail(A, 21);
    stage.open(A, 1, 7);
    stage.monitor.sent(A, ms(22), 0);
    assert!(!stage.monitor.answered(A, before, &answer(Role::Replica, 200), ms(23)));
    assert_eq!(stage.topology().node(A).unwrap().observation().unwrap().lsn, Lsn::new(80));
}

#[test]
fn a_node_that_fails_is_tried_less_often_and_not_faster_for_those_who_wait() {
    let mut stage = Rehearsal::new(1);
    let mut at = 1000;
    for wait in [100, 200, 300, 400, 500, 500] {
        stage.fail(A, at);
        stage.monitor.ask(Ask::All, ms(at), ms(at));
        assert_eq!(stage.monitor.due(A), Some(ms(at + wait)));
        at += wait;
    }
}

#[test]
fn without_a_replica_the_primary_is_left_alone_until_someone_asks() {
    let mut stage = Rehearsal::new(0);
    stage.primary(P, 10, 1, 80);
    assert_eq!(stage.monitor.due(P), None);
    stage.monitor.ask(Ask::All, ms(50), ms(50));
    assert_eq!(stage.monitor.due(P), Some(ms(50)));
}

/// Rule 4: the name has moved, and only a new connection of the application's has noticed.
#[test]
fn a_newer_branch_seen_elsewhere_sends_the_probe_to_where_the_name_leads_now() {
    let mut stage = Rehearsal::new(1);
    stage.primary(P, 10, 1, 80).replica(A, 10, 1, 80);
    let old = stage.epoch(P);
    stage.monitor.sent(P, ms(20), 0);
    assert!(!stage.monitor.branch_seen(branch(1), ms(21)), "that one is known");
    assert!(stage.monitor.branch_seen(branch(2), ms(21)));
    assert!(!stage.monitor.is_open(P, old));
    assert!(!stage.monitor.answered(P, old, &answer(Role::Primary, 90), ms(22)));
    assert_eq!(stage.monitor.due(P), Some(ms(21)));
    assert!(!stage.monitor.branch_seen(branch(2), ms(23)), "once");
}

#[test]
fn a_failed_read_takes_a_node_out_until_it_answers_again() {
    let mut stage = Rehearsal::new(1);
    stage.primary(P, 10, 1, 80).replica(A, 10, 1, 80);
    stage.monitor.sent(A, ms(20), 0);
    stage.monitor.read_failed(A, ms(25));
    let epoch = stage.epoch(A);
    stage.monitor.answered(A, epoch, &answer(Role::Replica, 80), ms(26));
    assert_eq!(stage.topology().node(A).unwrap().standing(), Standing::Suspect, "asked before the read failed");
    stage.replica(A, 30, 1, 80);
    assert_eq!(stage.topology().node(A).unwrap().standing(), Standing::Replica);
}

fn answer(role: Role, lsn: u64) -> Answer {
    Answer { role, lsn: Lsn::new(lsn), timeline: Some(crate::Timeline(1)), exact: true, xid: None }
}
