//! Our own questions to a server, whose answers are texts.

use diesel::{
    QueryResult,
    result::Error,
    row::{Field, Row},
};
use diesel_async::{AsyncConnectionCore, AsyncPgConnection, SimpleAsyncConnection};
use futures_util::{TryStreamExt, future::join};
use read_router::{Answer, Greeting, probe};

use super::collected::Collected;

/// Part of the probe's text and of nothing else.
const PROBE_MARK: &str = "pg_last_wal_replay_lsn";

/// The rows of a query whose columns are texts.
pub(crate) async fn texts(
    mut connection: &AsyncPgConnection,
    query: &Collected,
) -> QueryResult<Vec<Vec<Option<String>>>> {
    let rows = AsyncConnectionCore::load(&mut connection, query.query()).await?;
    rows.and_then(async |row| {
        let text = |index| {
            let field = row.get(index)?;
            let value = field.value()?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        Ok((0..row.field_count()).map(text).collect())
    })
    .try_collect()
    .await
}

/// Asks a connection whose it is, and makes it read-only, in one go.
pub(crate) async fn greet(connection: &AsyncPgConnection, read_only: bool) -> QueryResult<Option<Greeting>> {
    let query = Collected::text(probe::GREETING);
    let made_read_only = async {
        match read_only {
            true => SimpleAsyncConnection::batch_execute(&mut &*connection, probe::READ_ONLY).await,
            false => Ok(()),
        }
    };
    let (rows, made_read_only) = join(texts(connection, &query), made_read_only).await;
    made_read_only?;
    Ok(Greeting::read(row(&rows?)).ok())
}

/// Asks a server where it is. Position first and timeline second, in statements of their own: see [`probe::PROBE`].
pub(crate) async fn position(connection: &AsyncPgConnection) -> QueryResult<Answer> {
    // Each statement is a transaction of its own here, so that the first of the three is of no need. A prepared statement
    // travels without its text: the bind says on the wire, to whoever looks for probes there, what it is.
    let prepared = |sql: &str| Collected::with_texts(&format!("{sql} WHERE $1 <> ''"), &[PROBE_MARK], true);
    let mut statements = probe::PROBE.split("; ").skip(1).map(prepared);
    let (Some(position), Some(rest)) = (statements.next(), statements.next()) else {
        return Err(Error::NotFound);
    };
    // Both are sent at once, and answered in this order.
    let (position, rest) = join(texts(connection, &position), texts(connection, &rest)).await;
    Answer::read(row(&position?), row(&rest?)).map_err(|error| Error::DeserializationError(Box::new(error)))
}

/// The columns of the first row.
fn row<const N: usize>(rows: &[Vec<Option<String>>]) -> [Option<&str>; N] {
    rows.first().map_or([None; N], |row| columns(row))
}

/// The columns of a row; those that it does not have are NULL.
pub(crate) fn columns<const N: usize>(row: &[Option<String>]) -> [Option<&str>; N] {
    let mut columns = [None; N];
    columns.iter_mut().zip(row).for_each(|(column, text)| *column = text.as_deref());
    columns
}
