//! Schema sync: reads the schema that is there, and changes it.

use std::sync::Arc;

use read_router::PrimaryReason;
use sea_orm::{DbBackend, DbErr, RuntimeErr, Statement, sea_query::SelectStatement};
use sea_schema::sqlx_types::SqlxRow;

use crate::{RoutedTransaction, RoutingConnection, fetch::Rows};

/// The schema is read on the primary, whatever class the view has: what is read decides what is changed. Changes go the
/// way of all writes, so that the session's strict reads see the new schema.
#[async_trait::async_trait]
impl sea_schema::Connection for RoutingConnection {
    async fn query_all(&self, select: SelectStatement) -> Result<Vec<SqlxRow>, sqlx::Error> {
        self.schema_rows(DbBackend::Postgres.build(&select)).await
    }

    async fn query_all_raw(&self, sql: String) -> Result<Vec<SqlxRow>, sqlx::Error> {
        self.schema_rows(Statement::from_string(DbBackend::Postgres, sql)).await
    }
}

impl RoutingConnection {
    async fn schema_rows(&self, statement: Statement) -> Result<Vec<SqlxRow>, sqlx::Error> {
        let rows = self.write::<Rows>(statement, PrimaryReason::NotARead).await.map_err(driver)?;
        Ok(rows.into_iter().map(SqlxRow::Postgres).collect())
    }
}

/// All in the transaction.
#[async_trait::async_trait]
impl sea_schema::Connection for RoutedTransaction {
    async fn query_all(&self, select: SelectStatement) -> Result<Vec<SqlxRow>, sqlx::Error> {
        let rows = async { Ok(sea_schema::Connection::query_all(self.seen(), select).await) };
        self.on_server(rows).await.map_err(driver)?
    }

    async fn query_all_raw(&self, sql: String) -> Result<Vec<SqlxRow>, sqlx::Error> {
        let rows = async { Ok(sea_schema::Connection::query_all_raw(self.seen(), sql).await) };
        self.on_server(rows).await.map_err(driver)?
    }
}

/// The driver's error, which is what schema sync works with.
fn driver(error: DbErr) -> sqlx::Error {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(e))
        | DbErr::Exec(RuntimeErr::SqlxError(e))
        | DbErr::Query(RuntimeErr::SqlxError(e)) => match Arc::try_unwrap(e) {
            Ok(error) => error,
            Err(shared) => sqlx::Error::AnyDriverError(Box::new(shared)),
        },
        other => sqlx::Error::AnyDriverError(Box::new(other)),
    }
}
