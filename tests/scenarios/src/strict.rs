//! Read-your-writes with one replica that does not follow.

use std::time::Duration;

use read_router::{Config, PrimaryReason, ReadClass};

use crate::{LIMIT, Stage, Subject, fault, until};

const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, v bigint)";
const COUNT: &str = "SELECT count(*) FROM t";

/// With replay paused the strict read sees the write, on the primary, with the reason; `Eventual` is still served by the
/// replica in the same moment; after resume the strict read is on the replica.
///
/// # Panics
/// If not.
pub async fn paused_replay<S: Subject>() {
    let config = Config::default();
    let budget = config.strict_wait;
    let Stage { cluster, db } = Stage::<S>::set(1, SCHEMA, config, &[]).await;
    fault(&cluster, |c| c.replica(0).pause_replay()).await;

    let session = db.new_session();
    session.execute("INSERT INTO t VALUES (1, 1)").await.expect("the primary is up");
    let strict = Some(ReadClass::MustSeeMyWrite.into());
    assert_eq!(session.number(strict, COUNT).await.expect("read"), Some(1));
    let served = session.last_served().expect("a read was served");
    assert_eq!(served.reason, Some(PrimaryReason::Behind), "{served:?}");
    assert!(served.waited >= budget, "gave up early: {served:?}");
    assert!(served.waited < budget + LIMIT, "{served:?}");

    assert_eq!(session.number(Some(ReadClass::Eventual.into()), COUNT).await.expect("read"), Some(0));
    assert_eq!(session.last_served().and_then(|s| s.reason), None, "the replica serves Eventual");

    // A budget of zero decides on what is known.
    let at_once = Some(ReadClass::MustSeeMyWrite.wait(Duration::ZERO));
    assert_eq!(session.number(at_once, COUNT).await.expect("read"), Some(1));
    let served = session.last_served().expect("a read was served");
    assert!(served.node.is_primary(), "{served:?}");

    // Without fallback it is an error that says why.
    let refused = session.number(Some(ReadClass::MustSeeMyWrite.or_error()), COUNT).await;
    let error = refused.expect_err("no replica has the write").to_string();
    assert!(error.contains("behind") || error.contains("unresolved"), "{error}");

    fault(&cluster, |c| c.replica(0).resume_replay()).await;
    until("a strict read is served by the replica", || async {
        assert_eq!(session.number(strict, COUNT).await.expect("read"), Some(1));
        session.last_served().is_some_and(|s| s.reason.is_none())
    })
    .await;
    let stats = db.stats();
    assert!(stats.fallbacks >= 2, "{stats:?}");
    assert_eq!(stats.refused, 1, "{stats:?}");
}

/// With an apply delay of 200 ms and a budget of 500 ms or more the replica serves the read of the session's own write.
///
/// # Panics
/// If not.
pub async fn delayed_replica_serves_within_the_budget<S: Subject>() {
    let Stage { cluster, db } = Stage::<S>::set(1, SCHEMA, Config::default(), &[]).await;
    fault(&cluster, |c| c.replica(0).set_apply_delay(Duration::from_millis(200))).await;
    let mut on_replica = 0;
    for id in 1..=5 {
        let session = db.new_session();
        session.execute(&format!("INSERT INTO t VALUES ({id}, 1)")).await.expect("the primary is up");
        let patient = Some(ReadClass::MustSeeMyWrite.wait(Duration::from_millis(500)));
        assert_eq!(session.number(patient, COUNT).await.expect("read"), Some(id));
        on_replica += usize::from(session.last_served().is_some_and(|s| s.reason.is_none()));
    }
    // A stalled machine may cost one of them its budget; the router must not.
    assert!(on_replica >= 4, "{on_replica} of 5 on the replica: {:?}", db.stats());
}
