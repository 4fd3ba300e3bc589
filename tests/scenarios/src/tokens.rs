//! A session that goes on in another process.

use std::time::Duration;

use read_router::{Branch, Config, PrimaryReason, ReadClass, Token};

use crate::{Setup, Stage, Subject, fault};

/// The token of a write sends the next process's strict read to where the write is; a forged one costs a wait at most.
///
/// # Panics
/// If not.
pub async fn token_goes_to_another_process<S: Subject>() {
    let Stage { cluster, db } = Stage::<S>::set(1, "CREATE TABLE t (id int)", Config::default(), &[]).await;
    let replicas = [cluster.replica(0).url()];
    let other = S::connect(&cluster.primary().url(), &replicas, Setup::default()).await.expect("servers are up");
    let strict = Some(ReadClass::MustSeeMyWrite.into());
    let count = "SELECT count(*) FROM t";
    for round in 1..=20 {
        let delay = if round % 5 == 0 { Duration::from_millis(300) } else { Duration::ZERO };
        fault(&cluster, move |c| c.replica(0).set_apply_delay(delay)).await;
        let here = db.new_session();
        here.execute("INSERT INTO t VALUES (1)").await.expect("the primary is up");
        let token = here.token().await;
        assert!(!token.is_unknown());
        let text = token.to_string();
        let there = other.resume(text.parse().expect("a token reads what it prints"));
        assert_eq!(there.number(strict, count).await.expect("read"), Some(round), "token {text}");
        // What the other one has seen, it hands back.
        let back = db.resume(there.token().await);
        assert_eq!(back.number(strict, count).await.expect("read"), Some(round));
    }
    let unknown = db.resume(Token::UNKNOWN);
    assert_eq!(unknown.number(strict, count).await.expect("read"), Some(20));
    assert!(unknown.last_served().is_some_and(|s| s.node.is_primary()), "{:?}", unknown.last_served());

    let known = branch_of_a_write(&db).await;
    let forged = format!("rr1:{}:{}@FFFFFFFF/0", known.system.0, known.timeline.0);
    let forged = db.resume(forged.parse().expect("well formed"));
    for _ in 0..3 {
        assert_eq!(forged.number(strict, count).await.expect("read"), Some(20));
    }
    assert!(!forged.token().await.to_string().contains("FFFFFFFF"), "capped by the primary's position");

    let foreign = db.resume("rr1:1:1@0/1".parse().expect("well formed"));
    assert_eq!(foreign.number(strict, count).await.expect("read"), Some(20));
    let served = foreign.last_served().expect("a read was served");
    assert_eq!(served.reason, Some(PrimaryReason::ForeignToken), "{served:?}");
    let foreign = db.resume("rr1:1:1@0/1".parse().expect("well formed"));
    let refused = foreign.number(Some(ReadClass::MustSeeMyWrite.or_error()), count).await;
    assert!(refused.is_err(), "a token of another cluster proves nothing: {:?}", foreign.last_served());
}

/// The branch that a session's write lands on.
async fn branch_of_a_write<S: Subject>(db: &S) -> Branch {
    let session = db.new_session();
    session.execute("UPDATE t SET id = 1").await.expect("the primary is up");
    session.token().await.positions().next().expect("a session that wrote has a position").branch
}
