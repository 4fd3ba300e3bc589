//! When the schema changed under pooled connections.

use std::sync::atomic::{AtomicU64, Ordering};

use diesel::{
    Connection, PgConnection,
    connection::{CacheSize, SimpleConnection},
    pg::{GetPgMetadataCache, PgMetadataCache},
};

/// Of the process, since pools may be shared between routers. Counts for caches only.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// How many statements of this process may have changed the schema.
pub(super) fn version() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// A statement may have changed it.
pub(super) fn changed() {
    CHANGES.fetch_add(1, Ordering::AcqRel);
}

/// Forgets prepared statements and the OIDs of types: after a change both may be those of something that is gone.
pub(super) fn forget(connection: &mut PgConnection, wanted: CacheSize) {
    connection.set_prepared_statement_cache_size(match wanted {
        CacheSize::Disabled => CacheSize::Unbounded,
        _ => CacheSize::Disabled,
    });
    connection.set_prepared_statement_cache_size(wanted);
    *connection.get_metadata_cache() = PgMetadataCache::new();
}

/// As [`forget`], and has the server forget too. Not inside of a transaction that has failed.
pub(super) fn forget_everywhere(connection: &mut PgConnection, wanted: CacheSize) {
    forget(connection, wanted);
    // If it fails the connection is lost, which the statement that follows will tell.
    let _ = connection.batch_execute("DEALLOCATE ALL");
}
