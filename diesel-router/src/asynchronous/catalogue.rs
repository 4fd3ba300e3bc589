//! The task that reads the primary's catalogue.

use std::sync::Arc;

use diesel::connection::InstrumentationEvent;
use diesel_async::AsyncConnection;
use read_router::{
    Catalogue,
    live::{CATALOGUE_LIMIT, Watch},
};

use super::{
    collected::Collected,
    runtime::timeout,
    source::Server,
    text::{self, texts},
};

/// Reads the catalogue when it is due, for as long as the task lives.
pub(crate) async fn keep(watch: Arc<Watch>, server: Server) {
    loop {
        let (wait, change) = watch.catalogue_due();
        if wait.is_zero() {
            read_once(&watch, &server).await;
        } else {
            let _ = timeout(wait, change).await;
        }
    }
}

/// Reads it over a connection of its own, which is held for no longer than that.
pub(crate) async fn read_once(watch: &Watch, server: &Server) {
    let mut connection = match timeout(CATALOGUE_LIMIT, server.open()).await {
        Ok(Ok(connection)) => connection,
        Ok(Err((_, error))) => return watch.catalogue_failed(&error),
        Err(late) => return watch.catalogue_failed(&late),
    };
    // Its statement is not the application's: it stays out of its log.
    connection.set_instrumentation(|_: InstrumentationEvent<'_>| {});
    let reading = watch.catalogue_asked();
    let query = Collected::text(Catalogue::QUERY);
    let rows = match timeout(CATALOGUE_LIMIT, texts(&connection, &query)).await {
        Ok(Ok(rows)) => rows,
        Ok(Err(error)) => return watch.catalogue_failed(&error),
        Err(late) => return watch.catalogue_failed(&late),
    };
    if let Err(error) = watch.catalogue_read(reading, rows.iter().map(|row| text::columns(row))) {
        watch.catalogue_failed(&error);
    }
}
