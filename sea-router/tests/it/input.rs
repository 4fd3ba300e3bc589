//! What a user can get wrong, and servers that are not what they should be.

use std::time::Duration;

use read_router::{Config, NodeId, PrimaryReason, ReadClass, Standing};
use read_router_scenarios::{Subject, until};
use read_router_testkit::Cluster;
use sea_orm::DbErr;
use sea_router::{Error, RoutingConnection, SetupError};

use crate::{Sea, options};

const COUNT: &str = "SELECT count(*) FROM t";

fn cluster(replicas: usize) -> Cluster {
    let cluster = Cluster::builder().replicas(replicas).start().unwrap_or_else(|error| panic!("{error}"));
    cluster.primary().sql("CREATE TABLE t (id int); INSERT INTO t VALUES (1)").expect("valid");
    cluster.wait_caught_up(Duration::from_secs(10)).expect("caught up");
    cluster
}

async fn connect(primary: &str, replicas: &[&str]) -> Result<Sea, Error> {
    let builder = RoutingConnection::builder(options(primary));
    Ok(Sea(builder.replicas(replicas.iter().map(|url| options(url))).connect().await?))
}

fn in_database(url: &str, database: &str) -> String {
    let (server, _) = url.rsplit_once('/').expect("a URL names its database");
    format!("{server}/{database}")
}

async fn error(primary: &str, replicas: &[&str]) -> Error {
    match connect(primary, replicas).await {
        Ok(_) => panic!("connected to {primary} and {replicas:?}"),
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_servers_are_clear_errors() {
    let (mine, foreign) = (cluster(2), cluster(1));
    let (primary, first, second) = (mine.primary().url(), mine.replica(0).url(), mine.replica(1).url());

    for url in [
        "",
        "nonsense",
        "mysql://localhost/app",
        "postgres://127.0.0.1:1/postgres",
        "postgres://no.such.host.invalid/x",
    ] {
        let mut options = options(url);
        options.acquire_timeout(Duration::from_millis(500));
        let failed = RoutingConnection::builder(options).connect().await.expect_err(url);
        assert!(matches!(failed, Error::Connect { node: NodeId::PRIMARY, .. }), "{url}: {failed}");
        assert!(!url.contains("127.0.0.1") || failed.to_string().contains("refused"), "{url}: {failed}");
    }
    let failed = error(&primary, &["nonsense"]).await;
    assert!(matches!(failed, Error::Connect { node, .. } if node == NodeId::replica(0)), "{failed}");

    for wrong in [primary.replace("postgres@", "nobody_such@"), in_database(&primary, "no_such_database")] {
        let failed = error(&wrong, &[]).await;
        assert!(matches!(failed, Error::Connect { node: NodeId::PRIMARY, .. }), "{failed}");
        let wrong = wrong.replace(&mine.primary().port().to_string(), &mine.replica(0).port().to_string());
        let failed = error(&primary, &[&wrong]).await;
        assert!(matches!(failed, Error::Connect { node, .. } if node == NodeId::replica(0)), "{failed}");
        assert!(failed.to_string().contains("no"), "{failed}");
    }

    let failed = error(&first, &[&second]).await;
    assert!(matches!(failed, Error::Setup(SetupError::NoPrimary)), "{failed}");
    let failed = error(&primary, &[&first, &first]).await;
    assert!(matches!(failed, Error::Setup(SetupError::ListedTwice { .. })), "{failed}");
    for stranger in [foreign.primary().url(), foreign.replica(0).url()] {
        let failed = error(&primary, &[&first, &stranger]).await;
        assert!(
            matches!(failed, Error::Setup(SetupError::ForeignCluster { node, .. }) if node == NodeId::replica(1)),
            "{failed}"
        );
    }
    mine.primary().sql("CREATE DATABASE other").expect("created");
    mine.wait_caught_up(Duration::from_secs(10)).expect("caught up");
    let failed = error(&primary, &[&in_database(&first, "other")]).await;
    assert!(
        matches!(failed, Error::Setup(SetupError::OtherDatabase { node }) if node == NodeId::replica(0)),
        "{failed}"
    );
    mine.replica(1).promote().expect("promoted");
    let failed = error(&primary, &[&first, &second]).await;
    assert!(
        matches!(failed, Error::Setup(SetupError::TwoPrimaries { node }) if node == NodeId::replica(1)),
        "{failed}"
    );

    let config = Config { probe_interval: Duration::ZERO, ..Config::default() };
    let failed = RoutingConnection::builder(options(&primary)).config(config).connect().await.expect_err("no interval");
    assert!(failed.to_string().contains("probe_interval"), "{failed}");
    let as_db_err: DbErr = failed.into();
    assert!(as_db_err.to_string().contains("probe_interval"), "{as_db_err}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_down_at_the_start_is_used_when_it_is_up() {
    let cluster = cluster(2);
    cluster.replica(0).stop().expect("stopped");
    let (first, second) = (cluster.replica(0).url(), cluster.replica(1).url());
    let db = connect(&cluster.primary().url(), &[&first, &second]).await.expect("one replica is enough");
    let session = db.new_session();
    let eventual = Some(ReadClass::Eventual.into());
    assert_eq!(session.number(eventual, COUNT).await.unwrap(), Some(1));
    assert_eq!(session.last_served().map(|s| s.node), Some(NodeId::replica(1)));

    cluster.replica(1).stop().expect("stopped");
    until("both are seen to be down", || async {
        assert_eq!(session.number(eventual, COUNT).await.unwrap(), Some(1), "the primary stands in");
        session.last_served().and_then(|s| s.reason) == Some(PrimaryReason::NoneUp)
    })
    .await;
    assert!(matches!(db.stats().nodes[1].standing, Standing::Down(_)), "{:?}", db.stats().nodes[1]);

    cluster.replica(0).start().expect("started");
    until("it serves", || async {
        assert_eq!(session.number(eventual, COUNT).await.unwrap(), Some(1));
        session.last_served().map(|s| s.node) == Some(NodeId::replica(0))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_may_be_its_own_replica_and_no_replica_is_needed() {
    let cluster = cluster(1);
    let primary = cluster.primary().url();
    let alias = primary.replace("127.0.0.1", "localhost");
    let db = connect(&primary, &[&alias]).await.expect("allowed in development");
    let session = db.new_session();
    for round in 2..=20 {
        session.execute("INSERT INTO t VALUES (1)").await.unwrap();
        for class in [ReadClass::MustSeeMyWrite, ReadClass::SecondsStale(Duration::ZERO), ReadClass::Eventual] {
            assert_eq!(session.number(Some(class.into()), COUNT).await.unwrap(), Some(round), "{class:?}");
            assert_eq!(session.last_served().and_then(|s| s.reason), None, "always fresh");
        }
    }
    let alone = connect(&primary, &[]).await.expect("no replica");
    let session = alone.new_session();
    session.execute("INSERT INTO t VALUES (1)").await.unwrap();
    for class in [ReadClass::MustSeeMyWrite, ReadClass::SecondsStale(Duration::from_secs(1)), ReadClass::Eventual] {
        assert_eq!(session.number(Some(class.into()), COUNT).await.unwrap(), Some(21));
        assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::NoReplica));
    }
    assert!(!session.token().await.is_unknown());
    let (probes, elsewhere) = (alone.stats().probes, db.stats().probes);
    until("the other connection has probed its two nodes again and again", || async {
        db.stats().probes >= elsewhere + 8
    })
    .await;
    assert_eq!(alone.stats().probes, probes, "nobody asks, nobody probes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_that_no_probe_can_prove_has_its_reason() {
    let cluster = cluster(1);
    let db = connect(&cluster.primary().url(), &[&cluster.replica(0).url()]).await.expect("up");
    let session = db.new_session();
    for (bound, wait) in [
        (Duration::ZERO, Duration::ZERO),
        (Duration::ZERO, Duration::from_millis(50)),
        (Duration::from_nanos(1), Duration::ZERO),
    ] {
        let read = ReadClass::SecondsStale(bound).wait(wait);
        assert_eq!(session.number(Some(read), COUNT).await.unwrap(), Some(1));
        assert_eq!(session.last_served().and_then(|s| s.reason), Some(PrimaryReason::TooStale), "{bound:?}");
        let refused = session.number(Some(read.or_error()), COUNT).await.unwrap_err();
        assert_eq!(sea_router::refusal(&refused), Some(PrimaryReason::TooStale), "{refused}");
    }
    // Tighter than the probe interval, a read asks for fresher observations.
    let tight = Some(ReadClass::SecondsStale(Duration::from_millis(40)).wait(Duration::from_secs(5)));
    assert_eq!(session.number(tight, COUNT).await.unwrap(), Some(1));
    assert_eq!(session.last_served().and_then(|s| s.reason), None);
    let long = Duration::MAX;
    let endless = Config { probe_interval: long, probe_timeout: long, replica_read_timeout: long, ..Config::default() };
    let builder = RoutingConnection::builder(options(&cluster.primary().url())).config(endless);
    let patient =
        Sea(builder.replica(options(&cluster.replica(0).url())).connect().await.expect("absurd, but no panic"));
    assert_eq!(patient.number(Some(ReadClass::Eventual.into()), COUNT).await.unwrap(), Some(1));
    // And an absurd one is no panic.
    let absurd = Some(ReadClass::SecondsStale(Duration::MAX).wait(Duration::MAX));
    assert_eq!(session.number(absurd, COUNT).await.unwrap(), Some(1));
}

/// A statement's own error comes as it is, wherever it ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_statements_come_through() {
    let cluster = cluster(1);
    let db = connect(&cluster.primary().url(), &[&cluster.replica(0).url()]).await.expect("up");
    let session = db.new_session();
    for read in [None, Some(ReadClass::Eventual.into()), Some(ReadClass::MustSeeMyWrite.into())] {
        for (sql, code) in [("SELECT 1 / 0", "22012"), ("SELECT * FROM no_such_table", "42P01"), ("SELEC", "42601")] {
            let error = session.number(read, sql).await.unwrap_err();
            let DbErr::Query(sea_orm::RuntimeErr::SqlxError(inner)) = &error else { panic!("{error:?}") };
            assert_eq!(inner.as_database_error().and_then(|e| e.code()).as_deref(), Some(code), "{sql}");
        }
    }
    cluster.primary().sql("ALTER SYSTEM SET default_transaction_read_only = on").expect("set");
    cluster.primary().sql("SELECT pg_reload_conf()").expect("reloaded");
    until("the primary is read-only", || async {
        session
            .execute("INSERT INTO t VALUES (1)")
            .await
            .is_err_and(|e| e.to_string().contains("read-only transaction"))
    })
    .await;
    assert!(session.number(Some(ReadClass::MustSeeMyWrite.into()), COUNT).await.unwrap().is_some());
}
