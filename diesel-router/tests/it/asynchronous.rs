//! The async adapter: the scenarios of all adapters, and what is diesel-async's own.

use diesel::{QueryableByName, result::Error, sql_types::BigInt};
use diesel_async::RunQueryDsl;

mod borrowed;
mod catalogue;
mod checkouts;
mod differential;
mod left;
mod pools;
mod rounds;
mod routing;
pub(crate) mod scenarios;
mod transactions;
mod types;

#[derive(QueryableByName)]
struct Number {
    #[diesel(sql_type = diesel::sql_types::Nullable<BigInt>)]
    number: Option<i64>,
}

/// One number of any connection.
async fn number<C>(connection: &mut C, sql: &str) -> Result<i64, Error>
where
    C: diesel_async::AsyncConnection<Backend = diesel::pg::Pg>,
{
    let sql = format!("SELECT ({sql})::bigint AS number");
    let row: Number = diesel::sql_query(sql).get_result(connection).await?;
    row.number.ok_or(Error::NotFound)
}
