//! What the primary's catalogue and the builder's pins say of statements.

use std::time::Duration;

use diesel::QueryResult;
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use diesel_router::{Access, AsyncRouter, AsyncRoutingConnection, NodeId};
use read_router_scenarios::{LIMIT, until};

use super::number;
use crate::{
    sync_catalogue::{CATALOGUE_SCHEMA, HARMFUL, HARMLESS, which},
    sync_support::cluster,
};

async fn read_which(conn: &mut AsyncRoutingConnection) -> QueryResult<i64> {
    diesel::select(which()).get_result(conn.eventual()).await
}

fn node(conn: &AsyncRoutingConnection) -> NodeId {
    conn.last_served().unwrap().node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_and_pins_are_known() {
    let cluster = tokio::task::spawn_blocking(|| cluster(1, CATALOGUE_SCHEMA)).await.unwrap();
    let builder = || AsyncRouter::builder(cluster.primary().url()).replica(cluster.replica(0).url());
    let router = builder().connect().await.unwrap();
    let mut conn = router.session();
    for expected in 1..4 {
        let taken = number(conn.eventual(), "SELECT v FROM takes").await;
        assert_eq!((taken, node(&conn)), (Ok(expected), NodeId::PRIMARY));
    }
    assert_eq!(number(conn.eventual(), "SELECT opaque()").await, Ok(7));
    assert_eq!(node(&conn), NodeId::PRIMARY);
    assert_eq!(router.stats().misrouted, 0);
    let pinned = builder().function("opaque", Access::Read).connect().await.unwrap();
    let mut conn = pinned.session();
    assert_eq!(number(conn.eventual(), "SELECT opaque()").await, Ok(7));
    assert_eq!(node(&conn), NodeId::replica(0));
    assert!(builder().table("no name", Access::Read).connect().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_that_has_become_harmful_is_put_to_no_replica() {
    let cluster = tokio::task::spawn_blocking(|| cluster(1, CATALOGUE_SCHEMA)).await.unwrap();
    let builder = AsyncRouter::builder(cluster.primary().url()).replica(cluster.replica(0).url());
    let router = builder.connect().await.unwrap();
    for how in ["batch", "query", "transaction", "text", "checkout", "several"] {
        let mut conn = router.session();
        let served = || async {
            let mut conn = router.session();
            assert_eq!(read_which(&mut conn).await, Ok(1));
            node(&conn) == NodeId::replica(0)
        };
        until("the function is read on the replica", served).await;
        change(&mut conn, how, HARMFUL).await.unwrap();
        for round in 0..50 {
            read_which(&mut conn).await.unwrap();
            assert_eq!(node(&conn), NodeId::PRIMARY, "{how}, {round}");
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
        change(&mut conn, how, HARMLESS).await.unwrap();
        cluster.wait_caught_up(LIMIT).unwrap();
    }
    assert_eq!(router.stats().misrouted, 0);
}

async fn change(conn: &mut AsyncRoutingConnection, how: &str, sql: &str) -> QueryResult<()> {
    match how {
        "batch" => conn.batch_execute(sql).await,
        "query" => diesel::sql_query(sql).execute(conn).await.map(drop),
        "transaction" => conn.transaction(async |conn| conn.batch_execute(sql).await).await,
        "checkout" => conn.checkout_write().await?.batch_execute(sql).await,
        "text" => {
            conn.batch_execute("BEGIN").await?;
            conn.batch_execute(sql).await?;
            conn.batch_execute("COMMIT").await
        }
        _ => conn.batch_execute(&format!("BEGIN; {sql}; COMMIT")).await,
    }
}
