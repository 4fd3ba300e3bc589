//! The statements, and what they show.

use futures_util::StreamExt;
use sea_orm::{
    AccessMode, ConnectionTrait, DbBackend, DbErr, IsolationLevel, QueryResult, Statement, StreamTrait,
    TransactionTrait,
};
use sea_router::RoutingConnection;

use crate::{
    clock,
    history::{Server, Value},
};

/// What a statement showed.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) values: Vec<Value>,
    pub(crate) server: Option<Server>,
    pub(crate) ended: u64,
}

/// How a read takes its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Rows,
    Stream,
    /// Two statements in a READ ONLY transaction.
    Transaction(Option<IsolationLevel>),
}

/// Reads the registers and hands each answer to `seen`.
pub(crate) async fn read(
    view: &RoutingConnection,
    registers: &[u16],
    shape: Shape,
    seen: &mut Vec<Shown>,
) -> Result<(), DbErr> {
    match shape {
        Shape::Rows => seen.push(shown(&view.query_all_raw(select(registers)).await?)?),
        Shape::Stream => {
            let mut stream = view.stream_raw(select(registers)).await?;
            let mut rows = Vec::new();
            while let Some(row) = stream.next().await {
                rows.push(row?);
            }
            drop(stream);
            seen.push(shown(&rows)?);
        }
        Shape::Transaction(isolation) => {
            let transaction = view.begin_with_config(isolation, Some(AccessMode::ReadOnly)).await?;
            for _ in 0..2 {
                seen.push(shown(&transaction.query_all_raw(select(registers)).await?)?);
            }
            transaction.commit().await?;
        }
    }
    Ok(())
}

fn select(registers: &[u16]) -> Statement {
    let columns = "SELECT id, version, tag, standby, port FROM shown WHERE id";
    let values = registers.iter().map(|register| sea_orm::Value::from(i32::from(*register)));
    // As few texts as can be: each is prepared once on each connection.
    let sql = match registers.len() {
        1 => format!("{columns} = $1"),
        count => {
            let places: Vec<_> = (1..=count).map(|place| format!("${place}")).collect();
            format!("{columns} IN ({})", places.join(", "))
        }
    };
    Statement::from_sql_and_values(DbBackend::Postgres, sql, values)
}

fn shown(rows: &[QueryResult]) -> Result<Shown, DbErr> {
    let ended = clock::now();
    let mut server = None;
    let mut values = Vec::with_capacity(rows.len());
    for row in rows {
        let register: i32 = row.try_get_by_index(0)?;
        values.push(Value {
            register: u16::try_from(register).unwrap_or(u16::MAX),
            version: number(row.try_get_by_index(1)?),
            tag: number(row.try_get_by_index(2)?),
        });
        let port: i32 = row.try_get_by_index(4)?;
        server = Some(Server { standby: row.try_get_by_index(3)?, port: u16::try_from(port).unwrap_or(0) });
    }
    Ok(Shown { values, server, ended })
}

/// Versions and tags are counted up from zero.
fn number(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(u64::MAX)
}

/// One more version of a register, by `tag`.
pub(crate) async fn write(
    on: &impl ConnectionTrait,
    register: u16,
    tag: u64,
) -> Result<(Value, Option<Server>), DbErr> {
    let sql = "UPDATE register SET version = version + 1, tag = $2 WHERE id = $1 RETURNING version, inet_server_port()";
    let tag_stored = i64::try_from(tag).unwrap_or(i64::MAX);
    let values = [sea_orm::Value::from(i32::from(register)), sea_orm::Value::from(tag_stored)];
    let row = on.query_one_raw(Statement::from_sql_and_values(DbBackend::Postgres, sql, values)).await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound(format!("register {register}")))?;
    let port: i32 = row.try_get_by_index(1)?;
    let server = Server { port: u16::try_from(port).unwrap_or(0), standby: false };
    Ok((Value { register, version: number(row.try_get_by_index(0)?), tag }, Some(server)))
}

/// What becomes of a transaction that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    Rollback,
    /// It is dropped as it is.
    Drop,
}

/// How far a transaction that writes has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) values: Vec<Value>,
    pub(crate) server: Option<Server>,
    /// Whether `COMMIT` may have been sent: from here on it may happen.
    pub(crate) committing: bool,
}

/// One more version of each register, in one transaction.
pub(crate) async fn write_all(
    session: &RoutingConnection,
    registers: &[u16],
    tag: u64,
    end: End,
    progress: &mut Progress,
) -> Result<(), DbErr> {
    let transaction = session.begin().await?;
    for register in registers {
        let (value, server) = write(&transaction, *register, tag).await?;
        progress.values.push(value);
        progress.server = server;
    }
    match end {
        End::Commit => {
            progress.committing = true;
            transaction.commit().await
        }
        End::Rollback => transaction.rollback().await,
        End::Drop => Ok(()),
    }
}
