//! What the tests take for `sea_orm`: the crate itself, or, with the feature `routed`, the crate with the routing
//! connection in the place of its own.

pub use ::sea_orm::*;

#[cfg(feature = "routed")]
pub use routed::{
    Database, DatabaseConnection, DatabaseTransaction, DbConn, RestrictedConnection, RestrictedTransaction,
};

#[cfg(feature = "routed")]
mod routed {
    use std::{
        collections::BTreeMap,
        fs::OpenOptions,
        io::Write,
        path::PathBuf,
        sync::Mutex,
        time::{Duration, Instant},
    };

    use ::sea_orm::{ConnectOptions, DbErr};
    use sea_router::{NodeId, PrimaryReason, ReadClass, RoutingConnection, StatementKind};

    pub use sea_router::{
        RestrictedConnection, RestrictedTransaction, RoutedTransaction as DatabaseTransaction,
        RoutingConnection as DatabaseConnection, RoutingConnection as DbConn,
    };

    /// Stands in for SeaORM's own.
    pub struct Database;

    impl Database {
        /// Connects as the run asks for: with the replica, and every read that says nothing as `MustSeeMyWrite`, or
        /// with the primary alone.
        pub async fn connect<O: Into<ConnectOptions>>(options: O) -> Result<DatabaseConnection, DbErr> {
            let options: ConnectOptions = options.into();
            let mut builder = RoutingConnection::builder(options.clone());
            if let Ok(replica) = std::env::var("SUITE_REPLICA") {
                let database = options.get_url().rsplit('/').next().unwrap_or_default();
                let mut options = ConnectOptions::new(format!("{replica}/{database}"));
                options.sqlx_logging(false);
                builder = builder.replica(options).unannotated(ReadClass::MustSeeMyWrite);
            }
            let mut db = builder.connect().await?;
            // Most connect to a database that was made a moment ago: until the replica has it, nothing is measured.
            let started = Instant::now();
            let replica = NodeId::replica(0);
            let serves = |db: &RoutingConnection| db.topology().node(replica).is_none_or(|node| node.standing().serves());
            while !serves(&db) && started.elapsed() < Duration::from_secs(2) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if let Some(path) = std::env::var_os("SUITE_TALLY") {
                let tally = Tally::new(path.into());
                db.set_statement_callback(move |statement| tally.count(statement));
            }
            Ok(db)
        }
    }

    /// Where one connection's statements went, added to a file with the connection's end.
    struct Tally {
        path: PathBuf,
        counts: Mutex<BTreeMap<String, u64>>,
    }

    impl Tally {
        fn new(path: PathBuf) -> Self {
            Self { path, counts: Mutex::default() }
        }

        fn count(&self, statement: &sea_router::StatementInfo<'_>) {
            let place = statement.reason.map_or("replica", PrimaryReason::as_str);
            let sql = &statement.statement.sql;
            let mut counts = self.counts.lock().unwrap();
            *counts.entry(place.to_owned()).or_default() += 1;
            // A query that is kept from replicas though nothing in it is known to write.
            if statement.reason == Some(PrimaryReason::NotARead) && StatementKind::is_query(sql) {
                let why = match StatementKind::of(sql) {
                    StatementKind::Primary(reason) => reason.as_str(),
                    StatementKind::Read => "catalogue",
                };
                *counts.entry(format!("caution.{why}")).or_default() += 1;
            }
        }
    }

    impl Drop for Tally {
        fn drop(&mut self) {
            let lines: String =
                self.counts.lock().unwrap().iter().map(|(place, count)| format!("{place} {count}\n")).collect();
            let file = OpenOptions::new().append(true).create(true).open(&self.path);
            // One write, so that the lines of connections do not mix.
            if let Err(error) = file.and_then(|mut file| file.write_all(lines.as_bytes())) {
                eprintln!("cannot add to the tally: {error}");
            }
        }
    }
}

#[cfg(feature = "routed")]
pub mod entity {
    pub use ::sea_orm::entity::*;

    pub mod prelude {
        pub use ::sea_orm::entity::prelude::*;

        pub use crate::{DatabaseConnection, DbConn};
    }
}

#[cfg(feature = "routed")]
pub mod prelude {
    pub use ::sea_orm::prelude::*;

    pub use crate::{DatabaseConnection, DbConn};
}
