//! How a transaction begins, and where.

use std::time::Duration;

use diesel::QueryResult;
use diesel_async::AnsiTransactionManager;
use read_router::{
    NodeId, Opened, PrimaryReason, Proof, ReadOptions, View,
    live::{Busy, Call},
};

use super::{
    finish::finish,
    node::Checked,
    routing::{Attempt, Handle, Missed, Outcome},
    rows::Seen,
    transaction::Pinned,
};
use crate::error::Fault;

/// How a transaction begins.
#[derive(Debug)]
pub struct Beginning {
    pub(crate) sql: String,
    pub(crate) is_read_only: bool,
    pub(crate) is_serializable: bool,
}

impl Beginning {
    pub(crate) fn plain() -> Self {
        Self { sql: "BEGIN".to_owned(), is_read_only: false, is_serializable: false }
    }
}

impl Handle {
    /// Begins a transaction.
    pub(crate) async fn begin(&self, beginning: Beginning) -> QueryResult<Pinned> {
        self.inner.check_open()?;
        match self.view {
            View::Read(options) if beginning.is_read_only => self.begin_read(&beginning, options).await,
            view => {
                let (reason, watch) = (PrimaryReason::Transaction, &self.inner.watch);
                watch.to_primary(&self.session, view.class(), reason, Duration::ZERO);
                let connection = self.primary().await?;
                self.begin_on_primary(connection, beginning.sql).await
            }
        }
    }

    /// A read-only transaction of a class.
    async fn begin_read(&self, beginning: &Beginning, options: ReadOptions) -> QueryResult<Pinned> {
        let mut call = Call::new(options);
        let outcome = if !beginning.is_serializable {
            self.serve(&mut call, &mut BeginOnce { sql: &beginning.sql }).await?
        } else if call.may_fall_back() {
            Outcome::Primary(PrimaryReason::Isolation)
        } else {
            return Err(self.refuse(&call, PrimaryReason::Isolation));
        };
        match outcome {
            Outcome::Served(pinned) => Ok(pinned),
            Outcome::Primary(reason) | Outcome::Misrouted(reason) => {
                let (connection, reason) = self.acquire_primary(Some(&call), reason).await?;
                self.inner.watch.to_primary(&self.session, Some(call.class()), reason, call.waited());
                self.begin_on_primary(connection, beginning.sql.clone()).await
            }
        }
    }

    async fn begin_on_primary(&self, connection: Checked, sql: String) -> QueryResult<Pinned> {
        let opened: Option<Opened> = connection.opened;
        self.begin_on(connection, Seen::Primary(opened), None, sql).await
    }

    /// Begins a transaction, and rolls it back in the background if the caller goes away.
    async fn begin_on(
        &self,
        mut connection: Checked,
        place: Seen,
        busy: Option<Busy>,
        sql: String,
    ) -> QueryResult<Pinned> {
        let node = match place {
            Seen::Primary(_) => NodeId::PRIMARY,
            Seen::Replica { node, .. } => node,
        };
        self.listen(&mut connection, node, None);
        let mut pinned = Pinned::new(connection, self.clone(), place, busy);
        let work = async move {
            let (handle, is_lost) = (pinned.handle.clone(), &mut false);
            let begin = AnsiTransactionManager::begin_transaction_sql(&mut **pinned.connection(), &sql);
            let begun = Pinned::waiting(&handle, place, is_lost, begin).await;
            pinned.is_lost = *is_lost;
            match begun {
                Ok(()) => Ok(pinned),
                Err(error) => {
                    pinned.release();
                    Err(error)
                }
            }
        };
        finish(work, || {}).await
    }
}

struct BeginOnce<'a> {
    sql: &'a str,
}

impl Attempt for BeginOnce<'_> {
    type Out = Pinned;

    fn sql(&self) -> &str {
        ""
    }

    /// Where the connection itself must be asked, it is asked before the transaction begins: a sample inside of it would
    /// take the snapshot first.
    async fn attempt(
        &mut self,
        handle: &Handle,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        busy: Busy,
    ) -> Result<Pinned, Missed> {
        let connection = handle.acquire_proven(call, node, proof).await?;
        let served = call.served(&handle.inner.watch, node);
        let place = Seen::Replica { node, proof: *proof, served };
        match handle.begin_on(connection, place, Some(busy), self.sql.to_owned()).await {
            Ok(pinned) => {
                handle.session.served(served);
                Ok(pinned)
            }
            Err(error) => {
                if Fault::of(&error) == Fault::Gone {
                    handle.inner.watch.read_failed(node);
                }
                Err(handle.elsewhere(call, node, "no transaction", error))
            }
        }
    }
}
