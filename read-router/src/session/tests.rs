use super::*;
use crate::rehearsal::{A, P, Rehearsal, branch, ms};

fn resolved(session: &Session, stage: &Rehearsal) -> Option<String> {
    let mut session = session.clone();
    session.resolve(stage.topology());
    session.token().map(|token| token.to_string())
}

fn stage() -> Rehearsal {
    let mut stage = Rehearsal::new(1);
    stage.primary(P, 10, 1, 80).replica(A, 10, 1, 80);
    stage
}

/// Rules 7 and 14: every contact counts, and only a sample sent strictly after it turns it into a position.
#[test]
fn a_contact_is_resolved_by_a_later_sample_of_its_branch() {
    let mut stage = stage();
    let mut session = Session::new(true);
    assert_eq!(resolved(&session, &stage).as_deref(), Some("rr1:fresh"));
    session.contact(branch(1), ms(20), stage.topology());
    assert_eq!(resolved(&session, &stage), None);
    stage.primary(P, 20, 1, 81);
    assert_eq!(resolved(&session, &stage), None, "sent in the same instant");
    stage.primary(P, 21, 1, 82);
    assert_eq!(resolved(&session, &stage).as_deref(), Some("rr1:7:1@0/52"));
}

/// Rule 4: a sample of another branch does not resolve it.
#[test]
fn a_write_on_the_new_primary_is_not_resolved_by_the_old_one() {
    let mut stage = stage();
    let mut session = Session::new(true);
    session.contact(branch(2), ms(20), stage.topology());
    stage.primary(P, 30, 1, 200);
    assert_eq!(resolved(&session, &stage), None);
    stage.primary(A, 40, 2, 90);
    assert_eq!(resolved(&session, &stage).as_deref(), Some("rr1:7:2@0/5A"));
}

/// Rule 10: a foreign token is capped by a sample sent after it came, and by no older one.
#[test]
fn a_foreign_token_is_capped_by_a_later_sample_only() {
    let mut stage = stage();
    let real = Session::resume("rr1:7:1@0/60".parse().unwrap(), ms(20), true);
    assert_eq!(resolved(&real, &stage), None, "the sample that is known is older than the token");
    stage.primary(P, 25, 1, 0x70);
    assert_eq!(resolved(&real, &stage).as_deref(), Some("rr1:7:1@0/60"));
    let forged = Session::resume("rr1:7:1@FF/0".parse().unwrap(), ms(20), true);
    assert_eq!(resolved(&forged, &stage).as_deref(), Some("rr1:7:1@0/70"));
    // A write after the token came is not lowered by the cap.
    let mut writes = Session::resume("rr1:7:1@0/60".parse().unwrap(), ms(20), true);
    writes.contact(branch(1), ms(30), stage.topology());
    stage.primary(P, 35, 1, 0x90);
    assert_eq!(resolved(&writes, &stage).as_deref(), Some("rr1:7:1@0/90"));
}

/// Rule 15: what was never resolved is not "nothing written".
#[test]
fn unknown_and_fresh_are_different() {
    let stage = stage();
    let mut session = Session::new(true);
    session.forget();
    assert_eq!(resolved(&session, &stage).as_deref(), Some("rr1:unknown"));
    let mut doubting = Session::new(true);
    let write = doubting.write_sent();
    doubting.in_doubt(write);
    assert_eq!(resolved(&doubting, &stage).as_deref(), Some("rr1:unknown"));
    doubting.unsent(write);
    assert_eq!(resolved(&doubting, &stage).as_deref(), Some("rr1:fresh"));
}

/// A contact with the newest primary that is known contains whatever the session had seen before.
#[test]
fn an_unknown_session_is_known_again_after_a_contact() {
    let mut stage = stage();
    let mut session = Session::resume(Token::UNKNOWN, ms(15), true);
    session.contact(branch(1), ms(20), stage.topology());
    assert_eq!(resolved(&session, &stage), None);
    stage.primary(P, 30, 1, 0x90);
    assert_eq!(resolved(&session, &stage).as_deref(), Some("rr1:7:1@0/90"));
    let mut old = Session::resume(Token::UNKNOWN, ms(15), true);
    stage.primary(A, 40, 2, 0x95);
    old.contact(branch(1), ms(50), stage.topology());
    assert_eq!(resolved(&old, &stage).as_deref(), Some("rr1:unknown"), "the old primary settles nothing");
}

#[test]
fn a_statement_on_a_server_in_recovery_is_resolved_by_the_newest_branch() {
    let mut stage = stage();
    let mut session = Session::new(true);
    session.contact_in_recovery(ms(20), stage.topology());
    assert_eq!(resolved(&session, &stage), None);
    stage.primary(P, 30, 1, 0x90);
    assert_eq!(resolved(&session, &stage).as_deref(), Some("rr1:7:1@0/90"));
}

/// Rule 8.
#[test]
fn a_write_in_doubt_becomes_dirty_when_it_is_over() {
    let mut stage = stage();
    let mut session = Session::new(true);
    let (first, second) = (session.write_sent(), session.write_sent());
    session.in_doubt(first);
    session.acknowledged(second, branch(1), ms(20), stage.topology());
    stage.primary(P, 30, 1, 0x90);
    assert_eq!(resolved(&session, &stage).as_deref(), Some("rr1:unknown"), "the first may still happen");
    session.acknowledged(first, branch(1), ms(40), stage.topology());
    assert_eq!(resolved(&session, &stage), None);
    stage.primary(P, 50, 1, 0xA0);
    assert_eq!(resolved(&session, &stage).as_deref(), Some("rr1:7:1@0/A0"));
}

/// Rules 5 and 6.
#[test]
fn the_primary_is_gated_and_a_loss_is_told_once() {
    let mut stage = stage();
    let session = Session::resume("rr1:7:1@0/50".parse().unwrap(), ms(0), true);
    let later = Session::resume("rr1:7:1@0/51".parse().unwrap(), ms(0), true);
    stage.primary(A, 40, 2, 90); // A was a replica at 0x50
    let (now, seen) = (branch(2), branch(1));
    assert_eq!(session.admits(stage.topology(), now), Ok(()));
    assert_eq!(later.admits(stage.topology(), now), Err(BranchLost::Discarded { seen, now }));
    let mut newer = Session::new(true);
    newer.contact(now, ms(50), stage.topology());
    let old = BranchLost::OldPrimary { seen: now, now: seen };
    assert_eq!(newer.admits(stage.topology(), seen), Err(old));
    let mut later = later;
    assert_eq!(later.contact(now, ms(60), stage.topology()), Some(BranchLost::Discarded { seen, now }));
    assert_eq!(later.contact(now, ms(61), stage.topology()), None, "told once; from here on it is the new history");
    let mut foreign = Session::resume("rr1:8:1@0/50".parse().unwrap(), ms(0), true);
    assert!(matches!(foreign.admits(stage.topology(), now), Err(BranchLost::OtherCluster { .. })));
    assert!(foreign.contact(now, ms(60), stage.topology()).is_some());
    assert_eq!(foreign.contact(now, ms(61), stage.topology()), None);
}

/// Rule 6: a read routed to a replica may have run after its promotion.
#[test]
fn a_floor_takes_the_branch_of_the_later_sample() {
    let mut stage = stage();
    let mut session = Session::new(true);
    session.read_done(A, stage.epoch(A), Some(branch(1)), ms(30), stage.topology());
    stage.primary(A, 40, 2, 90);
    assert_eq!(resolved(&session, &stage).as_deref(), Some("rr1:7:2@0/5A"));
}

#[test]
fn connections_are_trusted_only_for_later_observations_of_their_server() {
    let instance = |started_us| Instance { system: branch(1).system, started_us, port: 1 };
    for (opened, connection, observed, sent, trusted) in
        [(10, 1, 1, 11, true), (10, 1, 1, 10, false), (11, 1, 1, 10, false), (10, 2, 1, 11, false)]
    {
        assert_eq!(connection_trusts(ms(opened), instance(connection), instance(observed), ms(sent)), trusted);
    }
}

/// Found by the model: what a replica showed on a branch that was then discarded is told, not replaced by a position of
/// the new branch, though the replica's life is over.
#[test]
fn a_floor_on_a_discarded_branch_is_told() {
    let mut stage = Rehearsal::new(2);
    stage.primary(P, 10, 1, 80).replica(A, 10, 1, 80);
    let mut session = Session::new(true);
    session.read_done(A, stage.epoch(A), Some(branch(1)), ms(20), stage.topology());
    stage.fail(A, 30).primary(crate::rehearsal::B, 40, 2, 60);
    assert_eq!(resolved(&session, &stage), None);
    let lost = BranchLost::Discarded { seen: branch(1), now: branch(2) };
    assert_eq!(session.contact(branch(2), ms(50), stage.topology()), Some(lost));
}

/// Found by the model: a read may have run after its replica had gone over to a newer branch.
#[test]
fn an_open_floor_keeps_reads_from_an_older_primary() {
    let mut stage = stage();
    let mut session = Session::new(true);
    session.read_done(A, stage.epoch(A), Some(branch(1)), ms(20), stage.topology());
    assert_eq!(session.admits(stage.topology(), branch(1)), Ok(()));
    stage.fail(A, 30);
    stage.open(A, 1, 7);
    stage.replica(A, 40, 2, 90);
    assert!(matches!(session.admits(stage.topology(), branch(1)), Err(BranchLost::OldPrimary { .. })));
}
