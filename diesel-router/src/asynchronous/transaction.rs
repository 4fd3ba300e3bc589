//! Transactions, whole on one connection.

use std::{collections::HashMap, mem, sync::Arc};

use diesel::{
    QueryResult,
    connection::{TransactionDepthChange, TransactionManagerStatus},
    result::Error,
};
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, SimpleAsyncConnection, TransactionManager,
};
use read_router::{
    NodeId, Opened, WriteId,
    live::{Busy, SchemaChanges},
};

use super::{
    beginning::Beginning,
    clean::clean_later,
    connection::AsyncReadConnection,
    doubt,
    finish::finish,
    node::Checked,
    routing::Handle,
    rows::{Seen, Source},
    schema::{Oids, TypeName, Types, look_up},
    statement::{Output, Prepared, Ran, Wanted, run},
    watch::while_serving,
};
use crate::{
    control::{changes_schema, is_several},
    error::{lost, may_be_stale, unsent},
    instrument::Listener,
    left::leaves_something,
};

/// The transaction manager of routing connections: a transaction has one connection from its beginning to its end.
#[derive(Debug)]
pub struct RoutedTransactions;

/// The connection of an open transaction.
pub(crate) struct Pinned {
    /// Taken by the transaction's end only.
    connection: Option<Checked>,
    pub(super) handle: Handle,
    place: Seen,
    _busy: Option<Busy>,
    /// Types that were looked up in here: nobody else may see them yet.
    types: HashMap<TypeName, Oids>,
    /// Something ran that what is known of the schema outside does not cover.
    changed_schema: bool,
    /// What of it concerns the kinds of statements.
    changes: SchemaChanges,
    /// Something ran that leaves something with the connection.
    leaves: bool,
    /// A text that may have a COMMIT in it is under way, or was when its caller went away.
    unheard: Option<WriteId>,
    /// A savepoint's statement is under way, or was when its caller went away.
    in_control: bool,
    /// The connection is of no use any more.
    pub(super) is_lost: bool,
}

#[derive(Clone, Copy)]
enum Savepoint {
    Set,
    Release,
    RollBack,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    RollBack,
}

const TAKEN: &str = "only the transaction's end takes the connection, and nothing comes after it";

impl Pinned {
    pub(super) fn new(connection: Checked, handle: Handle, place: Seen, busy: Option<Busy>) -> Self {
        Self {
            connection: Some(connection),
            handle,
            place,
            _busy: busy,
            types: HashMap::new(),
            changed_schema: false,
            changes: SchemaChanges::default(),
            leaves: false,
            unheard: None,
            in_control: false,
            is_lost: false,
        }
    }

    /// Of a transaction that a text has left open on the primary.
    pub(crate) fn left_open(connection: Checked, handle: Handle) -> QueryResult<Self> {
        let place = Seen::Primary(connection.opened);
        let mut pinned = Self::new(connection, handle, place, None);
        pinned.status().transaction_state()?.change_transaction_depth(TransactionDepthChange::IncreaseDepth)?;
        Ok(pinned)
    }

    pub(super) fn connection(&mut self) -> &mut Checked {
        self.connection.as_mut().expect(TAKEN)
    }

    pub(crate) fn set_listener(&mut self, listener: Listener) {
        let (node, mut handle) = (self.node(), self.handle.clone());
        handle.listener = Some(listener);
        handle.listen(self.connection(), node, None);
        self.handle = handle;
    }

    pub(crate) fn status(&mut self) -> &mut TransactionManagerStatus {
        AnsiTransactionManager::transaction_manager_status_mut(&mut **self.connection())
    }

    fn depth(&mut self) -> QueryResult<u32> {
        Ok(self.status().transaction_depth()?.map_or(0, std::num::NonZeroU32::get))
    }

    /// The types that are known in here.
    pub(crate) fn types(&self) -> Arc<Types> {
        let known = self.handle.inner.schema.types();
        if self.types.is_empty() && !self.changed_schema {
            return known;
        }
        let mut types = if self.changed_schema { Types::new() } else { Types::clone(&known) };
        types.extend(self.types.clone());
        Arc::new(types)
    }

    fn node(&self) -> NodeId {
        match self.place {
            Seen::Primary(_) => NodeId::PRIMARY,
            Seen::Replica { node, .. } => node,
        }
    }

    /// The connection, as long as the transaction is open.
    pub(crate) fn lend(&mut self) -> &mut AsyncPgConnection {
        self.connection()
    }

    /// A statement of the transaction is done; it may have shown any commit.
    fn touched(&self) {
        self.place.tell(&self.handle.session, &self.handle.inner.watch);
    }

    /// Waits for the transaction's server, but not for a replica that no longer answers.
    pub(super) async fn waiting<T>(
        handle: &Handle,
        place: Seen,
        is_lost: &mut bool,
        work: impl Future<Output = QueryResult<T>>,
    ) -> QueryResult<T> {
        let Seen::Replica { node, .. } = place else { return work.await };
        match while_serving(&handle.inner.watch, node, None, work).await {
            Ok(out) => out,
            Err(gave_up) => {
                *is_lost = true;
                Err(unsent(gave_up.as_str()))
            }
        }
    }

    /// Runs a statement of the transaction.
    pub(crate) async fn run(&mut self, mut prepared: Prepared, wanted: Wanted) -> QueryResult<Output> {
        if self.is_lost {
            return Err(lost());
        }
        let (node, place, handle) = (self.node(), self.place, self.handle.clone());
        let changes = changes_schema(prepared.looked.kind, &prepared.query.sql);
        self.leaves |= leaves_something(prepared.looked.kind, &prepared.query.sql);
        self.changed_schema |= changes;
        self.changes.note(&prepared.query.sql);
        if matches!(place, Seen::Primary(_)) && is_several(&prepared.query.sql) {
            self.unheard = Some(handle.session.with(|session| {
                let write = self.unheard.unwrap_or_else(|| session.write_sent());
                session.in_doubt(write);
                write
            }));
        }
        let Self { connection, types, is_lost, .. } = self;
        let connection = connection.as_mut().expect(TAKEN);
        handle.listen(connection, node, prepared.take_text());
        let work = async {
            if prepared.query.has_unknown() {
                let names = prepared.query.unknown();
                let oids = Box::pin(look_up(connection, &names)).await?;
                prepared.query.resolve(&names, &oids);
                types.extend(names.into_iter().zip(oids));
            }
            let out = run(connection, &prepared.query, wanted).await;
            if out.as_ref().is_err_and(may_be_stale) {
                // The transaction has failed, but the next one finds a type that somebody else has made anew.
                handle.inner.schema.forget(&prepared.query.types());
            }
            if changes {
                types.clear();
                connection.forget_statements();
            }
            out
        };
        let out = Self::waiting(&handle, place, is_lost, work).await;
        // The server answers in order: this was the answer to what nobody waited for, too.
        if let (Some(write), Seen::Primary(opened)) = (self.unheard.take(), place) {
            self.changes.committed(&handle.inner.watch);
            let limit = handle.inner.watch.config.probe_timeout;
            let in_doubt = match &out {
                Err(error) => doubt::leaves_in_doubt(self.connection(), error, limit).await,
                Ok(_) => false,
            };
            settle(&handle, write, opened, in_doubt);
        }
        match out {
            Ok(Ran::Rows(begun)) => {
                let (session, watch) = (handle.session.clone(), handle.inner.watch.clone());
                Ok(Output::Rows(begun.from(Source::Pinned { session, watch, place })))
            }
            Ok(Ran::Count(count)) => {
                self.touched();
                Ok(Output::Count(count))
            }
            Err(error) => {
                self.touched();
                Err(error)
            }
        }
    }

    async fn savepoint(&mut self, what: Savepoint) -> QueryResult<()> {
        if self.is_lost {
            return Err(lost());
        }
        self.repair();
        let (place, handle) = (self.place, self.handle.clone());
        let Self { connection, in_control, is_lost, .. } = self;
        let connection = connection.as_mut().expect(TAKEN);
        *in_control = true;
        let work = async {
            match what {
                Savepoint::Set => AnsiTransactionManager::begin_transaction(&mut **connection).await,
                Savepoint::Release => AnsiTransactionManager::commit_transaction(&mut **connection).await,
                Savepoint::RollBack => AnsiTransactionManager::rollback_transaction(&mut **connection).await,
            }
        };
        let out = Self::waiting(&handle, place, is_lost, work).await;
        *in_control = false;
        self.touched();
        out
    }

    /// After a savepoint's statement whose caller went away the connection counts itself as broken. It is not: the
    /// statement was run in its turn, and names of savepoints may be set, released and rolled back to again.
    fn repair(&mut self) {
        if mem::take(&mut self.in_control) {
            let status = mem::take(self.status());
            *AsyncConnection::transaction_state(&mut **self.connection()) = AnsiTransactionManager::default();
            *self.status() = status;
        }
    }

    /// Ends the transaction, to the end even if the caller goes away.
    async fn end(mut self, end: End) -> QueryResult<()> {
        let session = self.handle.session.clone();
        let is_write = end == End::Commit && matches!(self.place, Seen::Primary(_));
        let sent = || session.with(read_router::Session::write_sent);
        let write = self.unheard.take().or_else(|| is_write.then(sent));
        let work = async move {
            self.repair();
            let handle = self.handle.clone();
            let watch = &handle.inner.watch;
            let place = self.place;
            let Self { connection, is_lost, .. } = &mut self;
            let connection = connection.as_mut().expect(TAKEN);
            let statement = async {
                match end {
                    End::Commit => AnsiTransactionManager::commit_transaction(&mut **connection).await,
                    End::RollBack => AnsiTransactionManager::rollback_transaction(&mut **connection).await,
                }
            };
            let out = Self::waiting(&handle, place, is_lost, statement).await;
            let in_doubt = match (&out, write) {
                (Err(error), Some(_)) => doubt::leaves_in_doubt(connection, error, watch.config.probe_timeout).await,
                _ => false,
            };
            if self.changed_schema {
                handle.inner.schema.changed();
            }
            if end == End::Commit {
                self.changes.committed(watch);
            }
            match (write, place) {
                (Some(write), Seen::Primary(opened)) => settle(&handle, write, opened, in_doubt),
                _ => self.touched(),
            }
            self.release();
            out
        };
        finish(work, move || {
            if let Some(write) = write {
                session.with(|session| session.in_doubt(write));
            }
        })
        .await
    }

    /// Gives the connection back if no transaction is open on it, and else closes it.
    pub(super) fn release(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let status = AnsiTransactionManager::transaction_manager_status_mut(&mut *connection);
        if self.is_lost || !matches!(status.transaction_depth(), Ok(None)) {
            connection.discard();
        } else if self.leaves && matches!(self.place, Seen::Primary(_)) {
            connection.keep(&self.handle.kept);
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        self.touched();
        if self.changed_schema {
            self.handle.inner.schema.changed();
        }
        if let (Some(write), Seen::Primary(opened)) = (self.unheard.take(), self.place) {
            // Its server process ends once it has run the text.
            connection.discard();
            self.changes.committed(&self.handle.inner.watch);
            settle(&self.handle, write, opened, true);
        } else if self.is_lost {
            connection.discard();
        } else {
            clean_later(connection, "");
        }
    }
}

/// The session hears what became of a write.
fn settle(handle: &Handle, write: WriteId, opened: Option<Opened>, in_doubt: bool) {
    if in_doubt {
        doubt::settle_later(handle.inner.downgrade(), handle.session.clone(), write, opened);
    } else {
        handle.session.acknowledged(&handle.inner.watch, write, opened);
    }
}

impl AsyncReadConnection {
    /// Begins a transaction and keeps its connection.
    pub(crate) async fn begin(&mut self, beginning: Beginning) -> QueryResult<()> {
        if self.pinned.is_some() {
            return Err(Error::AlreadyInTransaction);
        }
        self.pinned = Some(self.handle.begin(beginning).await?);
        Ok(())
    }
}

impl TransactionManager<AsyncReadConnection> for RoutedTransactions {
    type TransactionStateData = TransactionManagerStatus;

    async fn begin_transaction(conn: &mut AsyncReadConnection) -> QueryResult<()> {
        match &mut conn.pinned {
            Some(pinned) => pinned.savepoint(Savepoint::Set).await,
            None => conn.begin(Beginning::plain()).await,
        }
    }

    async fn rollback_transaction(conn: &mut AsyncReadConnection) -> QueryResult<()> {
        let Some(mut pinned) = conn.pinned.take() else { return Err(Error::NotInTransaction) };
        match pinned.depth() {
            Ok(0 | 1) => pinned.end(End::RollBack).await,
            Ok(_) => {
                conn.pinned = Some(pinned);
                conn.savepoint(Savepoint::RollBack).await
            }
            // Nothing can be said of what is open: it ends with the connection.
            Err(error) => {
                pinned.is_lost = true;
                Err(error)
            }
        }
    }

    async fn commit_transaction(conn: &mut AsyncReadConnection) -> QueryResult<()> {
        let Some(mut pinned) = conn.pinned.take() else { return Err(Error::NotInTransaction) };
        match pinned.depth() {
            Ok(0 | 1) => pinned.end(End::Commit).await,
            depth => {
                conn.pinned = Some(pinned);
                depth?;
                conn.savepoint(Savepoint::Release).await
            }
        }
    }

    fn transaction_manager_status_mut(conn: &mut AsyncReadConnection) -> &mut TransactionManagerStatus {
        match &mut conn.pinned {
            Some(pinned) => pinned.status(),
            None => &mut conn.idle,
        }
    }
}

impl AsyncReadConnection {
    async fn savepoint(&mut self, what: Savepoint) -> QueryResult<()> {
        match &mut self.pinned {
            Some(pinned) => pinned.savepoint(what).await,
            None => Err(Error::NotInTransaction),
        }
    }

    /// How deep in transactions it is.
    pub(crate) fn depth(&mut self) -> u32 {
        self.pinned.as_mut().map_or(0, |pinned| pinned.depth().unwrap_or(1))
    }
}

/// Whether the text has left a transaction open. One that has failed is ended.
pub(crate) async fn has_opened(connection: &mut Checked) -> QueryResult<bool> {
    // Nothing else tells by itself: a savepoint can be set inside of a transaction only.
    if connection.batch_execute("SAVEPOINT diesel_router").await.is_ok() {
        connection.batch_execute("RELEASE SAVEPOINT diesel_router").await?;
        return Ok(true);
    }
    connection.batch_execute("ROLLBACK").await?;
    Ok(false)
}
