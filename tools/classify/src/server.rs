//! What a server knows.

use postgres::{Client, NoTls, SimpleQueryMessage, SimpleQueryRow};
use read_router::{Catalogue, Known, Pins};

use crate::{Error, input::Statement};

/// Opens a connection. Without TLS: meant for a server nearby, or through a tunnel.
///
/// # Errors
/// If there is no such server or it refuses.
pub fn connect(url: &str) -> Result<Client, Error> {
    Ok(Client::connect(url, NoTls)?)
}

/// What is known beside a statement's text, with that server's catalogue.
///
/// # Errors
/// If the catalogue cannot be read.
pub fn known(client: &mut Client, pins: Pins) -> Result<Known, Error> {
    let rows = rows(client, Catalogue::QUERY)?;
    let columns = rows.iter().map(|row| std::array::from_fn(|column| row.get(column)));
    let catalogue = Catalogue::read(columns, &pins)?;
    Ok(Known::new(pins).with_catalogue(catalogue))
}

/// A statement of `pg_stat_statements` and how often it was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// It, by its `queryid`.
    pub statement: Statement,
    /// `calls`.
    pub calls: u64,
}

/// The statements that this database has run.
///
/// # Errors
/// If the extension is not there, or the role may not see it.
pub fn statements(client: &mut Client) -> Result<Vec<Counted>, Error> {
    let schema = rows(
        client,
        "SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_extension e \
         JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_stat_statements'",
    )?;
    let schema = schema.first().and_then(|row| row.get(0)).ok_or(Error::NoStatements)?;
    let found = rows(
        client,
        &format!(
            "SELECT s.queryid::text, s.query, sum(s.calls)::text FROM {schema}.pg_stat_statements s \
             JOIN pg_catalog.pg_database d ON d.oid = s.dbid \
             WHERE d.datname = pg_catalog.current_database() AND s.query IS NOT NULL GROUP BY 1, 2 ORDER BY sum(s.calls) DESC"
        ),
    )?;
    let counted = |row: &SimpleQueryRow| Counted {
        statement: Statement {
            id: row.get(0).unwrap_or("-").to_owned(),
            sql: row.get(1).unwrap_or_default().to_owned(),
        },
        calls: row.get(2).and_then(|calls| calls.parse().ok()).unwrap_or(0),
    };
    Ok(found.iter().map(counted).collect())
}

/// The rows of a query, as text.
pub(crate) fn rows(client: &mut Client, sql: &str) -> Result<Vec<SimpleQueryRow>, postgres::Error> {
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    Ok(client.simple_query(sql)?.into_iter().filter_map(row).collect())
}
