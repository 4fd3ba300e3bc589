//! Checkouts from the router itself.

use diesel::prelude::*;
use diesel_router::{NodeId, ReadClass};
use read_router_scenarios::LIMIT;

use crate::sync_support::{number, stage, until};

#[test]
fn they_share_the_session_of_the_process() {
    let (cluster, router) = stage(1, "CREATE TABLE t (v bigint); INSERT INTO t VALUES (0)");
    cluster.replica(0).pause_replay().unwrap();
    for v in 1..4 {
        let mut write = router.checkout_write().unwrap();
        diesel::sql_query(format!("UPDATE t SET v = {v}")).execute(&mut write).unwrap();
        drop(write);
        let mut read = router.checkout(ReadClass::MustSeeMyWrite).unwrap();
        assert_eq!((read.node(), number(&mut read, "SELECT v FROM t").unwrap()), (NodeId::PRIMARY, Some(v)));
    }
    let mut stranger = router.session().checkout(ReadClass::MustSeeMyWrite).unwrap();
    assert_eq!((stranger.node(), number(&mut stranger, "SELECT v FROM t").unwrap()), (NodeId(1), Some(0)));
    cluster.replica(0).resume_replay().unwrap();
    let mut resumed = router.resume(router.token());
    until("a replica serves who goes on from the token", || {
        let mut read = resumed.checkout(ReadClass::MustSeeMyWrite.wait(LIMIT)).unwrap();
        assert_eq!(number(&mut read, "SELECT v FROM t").unwrap(), Some(3));
        read.node() == NodeId(1)
    });
}
