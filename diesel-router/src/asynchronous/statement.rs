//! A statement on its way, and what comes of it.

use std::sync::Arc;

use diesel::{
    QueryResult,
    pg::Pg,
    query_builder::{QueryFragment, QueryId},
    result::Error,
};
use diesel_async::SimpleAsyncConnection;

use super::{
    collected::Collected,
    node::Checked,
    routing::Handle,
    rows::{AsyncRows, Begun},
    schema::Types,
    transaction::Pinned,
};
use crate::kinds::Looked;

/// A statement, ready to go to any server.
pub(crate) struct Prepared {
    pub(crate) looked: Looked,
    pub(crate) query: Collected,
    /// How it reads, for the listener.
    pub(super) text: Option<String>,
}

/// What is wanted of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Rows,
    Count,
    /// Nothing, and its text may be several statements.
    Batch,
}

/// What came of it.
pub(crate) enum Output {
    Rows(Box<AsyncRows>),
    Count(usize),
    /// Nothing but a transaction, which the text has left open.
    Opened(Box<Pinned>),
}

impl Prepared {
    /// How it reads, for the listener, once.
    pub(crate) fn take_text(&mut self) -> Option<String> {
        self.text.take()
    }
}

impl Handle {
    /// Writes a query out, with what is known of it; `types` are those known up to now.
    pub(crate) fn prepare<Q: QueryFragment<Pg> + QueryId>(
        &self,
        query: &Q,
        types: &Arc<Types>,
    ) -> QueryResult<Prepared> {
        let looked = self.inner.queries.look(&self.inner.watch.kinds, query)?;
        let collected = Collected::new(looked.sql.clone(), query, types)?;
        let query_text = self.listener.is_some().then(|| diesel::debug_query::<Pg, _>(query).to_string());
        let collected = if self.caches { collected } else { collected.uncached() };
        Ok(Prepared { looked, query: collected, text: query_text })
    }

    /// A text that may be several statements.
    pub(crate) fn prepare_text(&self, sql: &str) -> Prepared {
        Prepared { looked: Looked::text(sql, &self.inner.watch.kinds), query: Collected::text(sql), text: None }
    }
}

impl Output {
    pub(crate) fn rows(self) -> QueryResult<AsyncRows> {
        match self {
            Self::Rows(rows) => Ok(*rows),
            Self::Count(_) | Self::Opened(_) => Err(Error::NotFound),
        }
    }

    pub(crate) async fn count(self) -> QueryResult<usize> {
        match self {
            Self::Rows(rows) => rows.count().await,
            Self::Count(count) => Ok(count),
            Self::Opened(_) => Ok(0),
        }
    }
}

/// What a run has begun with.
pub(crate) enum Ran {
    Rows(Begun),
    Count(usize),
}

/// Runs the statement on this connection.
pub(crate) async fn run(connection: &mut Checked, query: &Collected, wanted: Wanted) -> QueryResult<Ran> {
    match wanted {
        Wanted::Rows => Begun::run(connection, query).await.map(Ran::Rows),
        Wanted::Count => {
            let run = diesel_async::AsyncConnectionCore::execute_returning_count(&mut **connection, query.query());
            run.await.map(Ran::Count)
        }
        Wanted::Batch => connection.batch_execute(&query.sql).await.map(|()| Ran::Count(0)),
    }
}
