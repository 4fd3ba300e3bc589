//! The loop that reads the primary's catalogue.

use std::sync::Arc;

use read_router::{
    Catalogue,
    live::{CATALOGUE_LIMIT, Watch},
};
use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};

use crate::openings;

/// Reads the catalogue when it is due, for as long as the task lives. The connection is held for no longer than that.
pub(crate) async fn keep(watch: Arc<Watch>, options: PgConnectOptions) {
    loop {
        let (wait, change) = watch.catalogue_due();
        if !wait.is_zero() {
            let _ = tokio::time::timeout(wait, change).await;
            continue;
        }
        match tokio::time::timeout(CATALOGUE_LIMIT, PgConnection::connect_with(&options)).await {
            Ok(Ok(mut connection)) => {
                read_once(&watch, &mut connection).await;
                let _ = connection.close().await;
            }
            Ok(Err(error)) => watch.catalogue_failed(&error),
            Err(late) => watch.catalogue_failed(&late),
        }
    }
}

/// Reads it on this connection.
pub(crate) async fn read_once(watch: &Watch, connection: &mut PgConnection) {
    let reading = watch.catalogue_asked();
    let rows = sqlx::raw_sql(Catalogue::QUERY).fetch_all(connection);
    let rows = match tokio::time::timeout(CATALOGUE_LIMIT, rows).await {
        Ok(Ok(rows)) => rows,
        Ok(Err(error)) => return watch.catalogue_failed(&error),
        Err(late) => return watch.catalogue_failed(&late),
    };
    let texts: Result<Vec<_>, _> = rows.iter().map(openings::texts).collect();
    match texts {
        Ok(rows) => {
            if let Err(error) = watch.catalogue_read(reading, rows) {
                watch.catalogue_failed(&error);
            }
        }
        Err(error) => watch.catalogue_failed(&error),
    }
}
