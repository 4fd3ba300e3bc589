//! When the schema changed under pooled connections.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use diesel::{
    Connection, PgConnection,
    connection::{CacheSize, SimpleConnection},
    pg::{GetPgMetadataCache, PgMetadataCache},
};
use read_router::{Greeting, SystemId};

/// How many statements of this process may have changed the schema of one database.
#[derive(Clone, Default)]
pub(super) struct Schema(Arc<AtomicU64>);

/// Of the process, since pools may be shared between routers. Counts for caches only.
static SCHEMAS: LazyLock<Mutex<HashMap<(SystemId, u32), Schema>>> = LazyLock::new(Mutex::default);

impl Schema {
    /// Of the database that a connection leads to, on whichever server of its cluster.
    pub(super) fn of(greeting: &Greeting) -> Self {
        let mut schemas = SCHEMAS.lock().unwrap_or_else(PoisonError::into_inner);
        schemas.entry((greeting.instance.system, greeting.database)).or_default().clone()
    }

    pub(super) fn version(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// A statement may have changed it.
    pub(super) fn changed(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Forgets prepared statements and the OIDs of types, on both sides: after a change both may be those of something that
/// is gone. Not inside of a transaction that has failed.
pub(super) fn forget(connection: &mut PgConnection, wanted: CacheSize) {
    connection.set_prepared_statement_cache_size(match wanted {
        CacheSize::Disabled => CacheSize::Unbounded,
        _ => CacheSize::Disabled,
    });
    connection.set_prepared_statement_cache_size(wanted);
    *connection.get_metadata_cache() = PgMetadataCache::new();
    // If it fails the connection is lost, which the statement that follows will tell.
    let _ = connection.batch_execute("DEALLOCATE ALL");
}
