//! One program with every kind of call, on Diesel's own connection and on ours: the same results, errors and transaction
//! state, step by step.

use diesel::{Connection, PgConnection, connection::SimpleConnection};
use diesel_router::{ReadClass, Router, RoutingConnection};

use crate::sync_support::{cluster, until_on_replica};

mod plain {
    type Conn = diesel::PgConnection;

    include!("sync_differential/program.rs");
}

mod routed {
    type Conn = diesel_router::RoutingConnection;

    include!("sync_differential/program.rs");
}

pub(crate) fn assert_same(name: &str, expected: &[String], found: &[String]) {
    for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(found, expected, "{name}: step {index}");
    }
    assert_eq!(found.len(), expected.len(), "{name}");
}

/// The primary's database as it was at first.
fn reset(url: &str) {
    let sql = "DROP SCHEMA public CASCADE; CREATE SCHEMA public";
    PgConnection::establish(url).unwrap().batch_execute(sql).unwrap();
}

#[test]
fn the_same_program_gives_the_same() {
    let cluster = cluster(1, "SELECT 1");
    let url = cluster.primary().url();
    let expected = plain::run(&mut PgConnection::establish(&url).unwrap());
    println!("{} steps", expected.len());
    assert!(expected.len() > 70, "{expected:#?}");

    reset(&url);
    assert_same("by URL", &expected, &routed::run(&mut RoutingConnection::establish(&url).unwrap()));

    reset(&url);
    let router = Router::builder(&url).replica(cluster.replica(0).url()).connect().unwrap();
    assert_same("with a replica", &expected, &routed::run(&mut router.session()));

    reset(&url);
    let builder = Router::builder(&url).replica(cluster.replica(0).url()).unannotated(ReadClass::MustSeeMyWrite);
    let router = builder.connect().unwrap();
    let mut conn = router.session();
    until_on_replica(&mut conn);
    assert_same("reads on the replica", &expected, &routed::run(&mut conn));
    let served = router.stats().replica_reads();
    assert!(served > 5, "{served} reads on the replica");
}
