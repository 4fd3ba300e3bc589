//! The shapes in which a statement's answer is taken.

use std::future::Future;

use sea_orm::{DbErr, ExecResult, QueryResult, Statement, sea_query::Values};
use sea_query_sqlx::SqlxValues;
use sqlx::{Executor, PgConnection, Postgres};

use crate::error;

/// One way of running a statement on a connection.
pub(crate) trait Fetch: Send + Sync + 'static {
    /// What comes back.
    type Out: Send + 'static;

    fn fetch<'c>(
        statement: &'c Statement,
        connection: &'c mut PgConnection,
    ) -> impl Future<Output = Result<Self::Out, sqlx::Error>> + Send + 'c;

    /// Whether it is a way that SeaORM's metric callback is told of.
    const METERED: bool = true;

    /// sqlx's error as SeaORM would give it for this way.
    fn error(error: sqlx::Error) -> DbErr {
        error::query(error)
    }
}

/// The first row, if there is one.
pub(crate) struct One;
/// All rows.
pub(crate) struct All;
/// No rows, but their number.
pub(crate) struct Execute;
/// The same without preparing: one or more statements as they stand.
pub(crate) struct ExecuteUnprepared;
/// All rows as the driver has them.
#[cfg(feature = "schema-sync")]
pub(crate) struct Rows;

impl Fetch for One {
    type Out = Option<QueryResult>;

    async fn fetch<'c>(statement: &'c Statement, connection: &'c mut PgConnection) -> Result<Self::Out, sqlx::Error> {
        match query(statement).fetch_one(connection).await {
            Ok(row) => Ok(Some(row.into())),
            Err(sqlx::Error::RowNotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Fetch for All {
    type Out = Vec<QueryResult>;

    async fn fetch<'c>(statement: &'c Statement, connection: &'c mut PgConnection) -> Result<Self::Out, sqlx::Error> {
        Ok(query(statement).fetch_all(connection).await?.into_iter().map(QueryResult::from).collect())
    }
}

impl Fetch for Execute {
    type Out = ExecResult;

    async fn fetch<'c>(statement: &'c Statement, connection: &'c mut PgConnection) -> Result<Self::Out, sqlx::Error> {
        Ok(query(statement).execute(connection).await?.into())
    }

    fn error(error: sqlx::Error) -> DbErr {
        error::exec(error)
    }
}

#[cfg(feature = "schema-sync")]
impl Fetch for Rows {
    type Out = Vec<sqlx::postgres::PgRow>;

    async fn fetch<'c>(statement: &'c Statement, connection: &'c mut PgConnection) -> Result<Self::Out, sqlx::Error> {
        query(statement).fetch_all(connection).await
    }
}

impl Fetch for ExecuteUnprepared {
    type Out = ExecResult;

    const METERED: bool = false;

    async fn fetch<'c>(statement: &'c Statement, connection: &'c mut PgConnection) -> Result<Self::Out, sqlx::Error> {
        Ok(connection.execute(sqlx::AssertSqlSafe(statement.sql.as_str())).await?.into())
    }

    fn error(error: sqlx::Error) -> DbErr {
        error::exec(error)
    }
}

/// SeaORM binds its values in the same way, and asserts the same of its text.
fn query(statement: &Statement) -> sqlx::query::Query<'_, Postgres, SqlxValues> {
    let values = statement.values.clone().unwrap_or_else(|| Values(Vec::new()));
    sqlx::query_with(sqlx::AssertSqlSafe(statement.sql.as_str()), SqlxValues(values))
}
