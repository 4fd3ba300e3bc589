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
        fs::OpenOptions,
        io::Write,
        path::PathBuf,
        sync::atomic::{AtomicU64, Ordering::Relaxed},
    };

    use ::sea_orm::{ConnectOptions, DbErr};
    use sea_router::{PrimaryReason, ReadClass, RoutingConnection};

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
        on_replicas: AtomicU64,
        reads_on_primary: AtomicU64,
        others: AtomicU64,
    }

    impl Tally {
        fn new(path: PathBuf) -> Self {
            let [on_replicas, reads_on_primary, others] = Default::default();
            Self { path, on_replicas, reads_on_primary, others }
        }

        fn count(&self, statement: &sea_router::StatementInfo<'_>) {
            match statement.reason {
                None => &self.on_replicas,
                Some(
                    PrimaryReason::NotARead
                    | PrimaryReason::Transaction
                    | PrimaryReason::Misrouted
                    | PrimaryReason::GivenOut,
                ) => &self.others,
                Some(_) => &self.reads_on_primary,
            }
            .fetch_add(1, Relaxed);
        }
    }

    impl Drop for Tally {
        fn drop(&mut self) {
            let counts = [&self.on_replicas, &self.reads_on_primary, &self.others].map(|count| count.load(Relaxed));
            let line = format!("{} {} {}\n", counts[0], counts[1], counts[2]);
            let file = OpenOptions::new().append(true).create(true).open(&self.path);
            // One write, so that the lines of processes do not mix.
            if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
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
