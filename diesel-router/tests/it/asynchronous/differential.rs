//! One program with every kind of call, on diesel-async's own connection and on ours: the same results, errors and
//! transaction state, step by step.

use std::path::PathBuf;

use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use diesel_migrations::FileBasedMigrations;
use diesel_router::{AsyncRouter, AsyncRoutingConnection, ReadClass};
use read_router::Config;
use read_router_scenarios::{Stage, until};

use super::{number, scenarios::Async};
use crate::sync_differential::assert_same;

mod plain {
    type Conn = diesel_async::AsyncPgConnection;

    include!("differential/program.rs");
}

mod routed {
    type Conn = diesel_router::AsyncRoutingConnection;

    include!("differential/program.rs");
}

/// The primary's database as it was at first.
async fn reset(url: &str) {
    let mut conn = AsyncPgConnection::establish(url).await.unwrap();
    conn.batch_execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public").await.unwrap();
}

/// Two migrations in a folder of their own.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("diesel-router-differential-{}", std::process::id()));
        let steps = [
            ("01_table", "CREATE TABLE migrated (v int)", "DROP TABLE migrated"),
            ("02_row", "INSERT INTO migrated VALUES (1)", "DELETE FROM migrated"),
        ];
        for (name, up, down) in steps {
            let one = folder.join(name);
            std::fs::create_dir_all(&one).unwrap();
            std::fs::write(one.join("up.sql"), up).unwrap();
            std::fs::write(one.join("down.sql"), down).unwrap();
        }
        Self(folder)
    }

    fn migrations(&self) -> FileBasedMigrations {
        FileBasedMigrations::from_path(&self.0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left in the folder for temporary files does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_program_gives_the_same() {
    let Stage { cluster, db: _db } = Stage::<Async>::set(1, "SELECT 1", Config::default(), &[]).await;
    let (url, replica) = (cluster.primary().url(), cluster.replica(0).url());
    let folder = Folder::new();
    let expected = plain::run(AsyncPgConnection::establish(&url).await.unwrap(), folder.migrations()).await;
    println!("{} steps", expected.len());
    assert!(expected.len() > 90, "{expected:#?}");

    reset(&url).await;
    let conn = AsyncRoutingConnection::establish(&url).await.unwrap();
    assert_same("by URL", &expected, &routed::run(conn, folder.migrations()).await);

    reset(&url).await;
    let router = AsyncRouter::builder(&url).replica(&replica).connect().await.unwrap();
    assert_same("with a replica", &expected, &routed::run(router.session(), folder.migrations()).await);

    reset(&url).await;
    let builder = AsyncRouter::builder(&url).replica(&replica).unannotated(ReadClass::MustSeeMyWrite);
    let router = builder.connect().await.unwrap();
    let conn = router.session();
    until("a strict read is served by a replica", async || {
        let mut conn = conn.same_session();
        number(conn.must_see_my_write(), "SELECT 1").await.unwrap();
        !conn.last_served().unwrap().node.is_primary()
    })
    .await;
    let before = router.stats().replica_reads();
    assert_same("reads on the replica", &expected, &routed::run(conn, folder.migrations()).await);
    let served = router.stats().replica_reads() - before;
    println!("{served} reads on the replica");
    assert!(served > 5, "{served} reads on the replica");
}
