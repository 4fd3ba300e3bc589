//! Our own questions to a server, whose answers are texts.

use diesel::{
    PgConnection, QueryResult, RunQueryDsl,
    connection::SimpleConnection,
    deserialize::FromSqlRow,
    expression::QueryMetadata,
    pg::Pg,
    query_builder::{AstPass, Query, QueryFragment, QueryId},
    query_dsl::CompatibleType,
    sql_types::{BigInt, Nullable, Text},
};
use read_router::{Answer, Catalogue, Greeting, UnexpectedAnswer, probe};
use std::marker::PhantomData;

/// A text with the types of its columns, which are read by their places.
struct Question<'a, Columns> {
    sql: &'a str,
    columns: PhantomData<Columns>,
}

impl<Columns> QueryFragment<Pg> for Question<'_, Columns> {
    fn walk_ast<'b>(&'b self, mut pass: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        pass.unsafe_to_cache_prepared();
        pass.push_sql(self.sql);
        Ok(())
    }
}

impl<Columns> QueryId for Question<'_, Columns> {
    type QueryId = ();

    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<Columns> Query for Question<'_, Columns> {
    type SqlType = Columns;
}

impl<Columns, Conn> RunQueryDsl<Conn> for Question<'_, Columns> {}

fn ask<Columns, Row>(connection: &mut PgConnection, sql: &str) -> QueryResult<Row>
where
    Pg: QueryMetadata<Columns>,
    Columns: CompatibleType<Row, Pg>,
    Columns::SqlType: 'static,
    Row: FromSqlRow<Columns::SqlType, Pg> + 'static,
{
    Question::<Columns> { sql, columns: PhantomData }.get_result(connection)
}

fn ask_all<Columns, Row>(connection: &mut PgConnection, sql: &str) -> QueryResult<Vec<Row>>
where
    Pg: QueryMetadata<Columns>,
    Columns: CompatibleType<Row, Pg>,
    Columns::SqlType: 'static,
    Row: FromSqlRow<Columns::SqlType, Pg> + 'static,
{
    Question::<Columns> { sql, columns: PhantomData }.load(connection)
}

type T = Nullable<Text>;
type S = Option<String>;

/// Asks a connection whose it is; `None` if the server would not say.
pub(super) fn greeting(connection: &mut PgConnection) -> QueryResult<Option<Greeting>> {
    type Columns = (T, T, T, T, T, T, T, T, T, T);
    type Texts = (S, S, S, S, S, S, S, S, S, S);
    let (a, b, c, d, e, f, g, h, i, j) = ask::<Columns, Texts>(connection, probe::GREETING)?;
    let row = [&a, &b, &c, &d, &e, &f, &g, &h, &i, &j].map(|text| text.as_deref());
    Ok(Greeting::read(row).ok())
}

/// Asks a server where it is: the position first and the timeline second, in statements of their own. Each is a
/// transaction, with a snapshot of its own, so the first of [`probe::PROBE`]'s three is of no need.
pub(super) fn position(connection: &mut PgConnection) -> QueryResult<Answer> {
    let mut statements = probe::PROBE.split("; ").skip(1);
    let (position, rest) = (statements.next().unwrap_or_default(), statements.next().unwrap_or_default());
    let (a, b) = ask::<(T, T), (S, S)>(connection, position)?;
    let (c, d, e, f) = ask::<(T, T, T, T), (S, S, S, S)>(connection, rest)?;
    let rest = [&c, &d, &e, &f].map(|text| text.as_deref());
    Answer::read([a.as_deref(), b.as_deref()], rest).map_err(unexpected)
}

fn unexpected(error: UnexpectedAnswer) -> diesel::result::Error {
    diesel::result::Error::DeserializationError(Box::new(error))
}

/// Whether the server is in recovery.
pub(super) fn is_in_recovery(connection: &mut PgConnection) -> QueryResult<bool> {
    let answer: S = ask::<T, S>(connection, "SELECT pg_catalog.pg_is_in_recovery()::text")?;
    Ok(answer.as_deref() == Some("true"))
}

/// Makes a replica's connection read-only and returns the time limit of its statements, in milliseconds; zero means
/// none.
pub(super) fn make_read_only(connection: &mut PgConnection) -> QueryResult<u64> {
    connection.batch_execute(probe::READ_ONLY)?;
    let limit: S = ask::<T, S>(
        connection,
        "SELECT setting FROM pg_catalog.pg_settings WHERE name OPERATOR(pg_catalog.=) 'statement_timeout'",
    )?;
    Ok(limit.and_then(|limit| limit.parse().ok()).unwrap_or(0))
}

/// How many processes of those that were asked for are there.
pub(super) fn count(connection: &mut PgConnection, sql: &str) -> QueryResult<i64> {
    let (count, _): (i64, i64) = ask::<(BigInt, BigInt), (i64, i64)>(connection, sql)?;
    Ok(count)
}

/// The rows of the primary's catalogue.
pub(super) fn catalogue(connection: &mut PgConnection) -> QueryResult<Vec<[Option<String>; 7]>> {
    let rows = ask_all::<(T, T, T, T, T, T, T), (S, S, S, S, S, S, S)>(connection, Catalogue::QUERY)?;
    Ok(rows.into_iter().map(|(a, b, c, d, e, f, g)| [a, b, c, d, e, f, g]).collect())
}
