//! What is told of each statement that a server has run.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use read_router::{NodeId, PrimaryReason};
use sea_orm::{DatabaseConnection, Statement, metric::Info};

use crate::RoutingConnection;

/// A statement that a server has run: what [`RoutingConnection::set_statement_callback`] is told.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StatementInfo<'a> {
    /// The server that ran it.
    pub node: NodeId,
    /// Why it was the primary; `None` if it was a replica.
    ///
    /// In a transaction on the primary it is [`Transaction`](PrimaryReason::Transaction), in a [`DatabaseExecutor`]
    /// [`GivenOut`](PrimaryReason::GivenOut).
    ///
    /// [`DatabaseExecutor`]: sea_orm::DatabaseExecutor
    pub reason: Option<PrimaryReason>,
    /// The statement with its values, which may be confidential.
    pub statement: &'a Statement,
    /// From sending it to its last answer. It leaves out the wait for a server and for a connection, and of a stream the
    /// time that its reader took.
    pub elapsed: Duration,
    /// Whether it ended with an error, or was given up.
    pub failed: bool,
}

type OrmCallback = Arc<dyn Fn(&Info<'_>) + Send + Sync>;
type StatementCallback = Arc<dyn Fn(&StatementInfo<'_>) + Send + Sync>;

/// Who wants to be told. A connection of which nobody asked for it has none.
pub(crate) struct Metering {
    callbacks: Callbacks,
    /// The primary's connection for those who run statements past us.
    given_out: DatabaseConnection,
}

#[derive(Clone, Default)]
struct Callbacks {
    orm: Option<OrmCallback>,
    statement: Option<StatementCallback>,
}

/// Where a statement runs, and why there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) node: NodeId,
    pub(crate) reason: Option<PrimaryReason>,
}

impl Place {
    pub(crate) fn primary(reason: PrimaryReason) -> Self {
        Self { node: NodeId::PRIMARY, reason: Some(reason) }
    }

    pub(crate) fn replica(node: NodeId) -> Self {
        Self { node, reason: None }
    }
}

impl RoutingConnection {
    /// Has SeaORM's callback told of each statement, on whatever server it ran.
    ///
    /// As SeaORM's own method: it holds for this value and what is made of it from here on (clones, views, sessions,
    /// transactions), replaces the callback set before, and is not told of `execute_unprepared`. A read that
    /// was tried on a second server is told of twice, the first time as failed. Of a stream in a transaction SeaORM tells
    /// neither failures nor more than the time that it computed.
    pub fn set_metric_callback<F>(&mut self, callback: F)
    where
        F: Fn(&Info<'_>) + Send + Sync + 'static,
    {
        let callbacks = Callbacks { orm: Some(Arc::new(callback)), ..self.callbacks() };
        self.set_callbacks(callbacks);
    }

    /// Has `callback` told of each statement together with the server that ran it.
    ///
    /// Like [`set_metric_callback`](Self::set_metric_callback), beside which it may be set; it is told of
    /// `execute_unprepared` too, but not where a [`DatabaseExecutor`](sea_orm::DatabaseExecutor) runs it.
    pub fn set_statement_callback<F>(&mut self, callback: F)
    where
        F: Fn(&StatementInfo<'_>) + Send + Sync + 'static,
    {
        let callbacks = Callbacks { statement: Some(Arc::new(callback)), ..self.callbacks() };
        self.set_callbacks(callbacks);
    }

    /// SeaORM's connection of a node, whose statements the callbacks are told of.
    pub(crate) fn metered(&self, database: &DatabaseConnection, place: Place) -> DatabaseConnection {
        match &self.metering {
            Some(metering) => metering.callbacks.clone().inside(database, place),
            None => database.clone(),
        }
    }

    fn callbacks(&self) -> Callbacks {
        self.metering.as_ref().map(|metering| metering.callbacks.clone()).unwrap_or_default()
    }

    fn set_callbacks(&mut self, callbacks: Callbacks) {
        let place = Place::primary(PrimaryReason::GivenOut);
        let given_out = callbacks.clone().inside(&self.inner.primary().database, place);
        self.metering = Some(Arc::new(Metering { callbacks, given_out }));
    }
}

impl Metering {
    /// The primary's connection for those who run statements past us.
    pub(crate) fn given_out(&self) -> &DatabaseConnection {
        &self.given_out
    }
}

impl Callbacks {
    fn inside(self, database: &DatabaseConnection, place: Place) -> DatabaseConnection {
        let mut database = database.clone();
        database.set_metric_callback(move |info| self.tell(place, info, true));
        database
    }

    fn tell(&self, place: Place, info: &Info<'_>, prepared: bool) {
        if let Some(callback) = self.orm.as_ref().filter(|_| prepared) {
            callback(info);
        }
        if let Some(callback) = &self.statement {
            let Info { elapsed, statement, failed } = *info;
            callback(&StatementInfo { node: place.node, reason: place.reason, statement, elapsed, failed });
        }
    }
}

/// Times one statement, from here to [`end`](Self::end).
///
/// It tells when the session has heard of the statement: a callback that panics takes nothing from the session.
pub(crate) struct Meter {
    metering: Arc<Metering>,
    started: Instant,
}

impl Meter {
    pub(crate) fn start(metering: Option<&Arc<Metering>>) -> Option<Self> {
        metering.map(|metering| Self { metering: metering.clone(), started: Instant::now() })
    }

    pub(crate) fn end(self, place: Place, statement: &Statement, failed: bool, prepared: bool) {
        let info = Info { elapsed: self.started.elapsed(), statement, failed };
        self.metering.callbacks.tell(place, &info, prepared);
    }
}

/// Times a stream: from asking for a row to having it. It tells when it is dropped, if anything was sent.
pub(crate) struct StreamMeter {
    metering: Arc<Metering>,
    statement: Statement,
    place: Place,
    elapsed: Duration,
    waiting_since: Option<Instant>,
    sent: bool,
    failed: bool,
}

impl StreamMeter {
    pub(crate) fn new(metering: Option<&Arc<Metering>>, place: Place, statement: &Statement) -> Option<Self> {
        metering.map(|metering| Self {
            metering: metering.clone(),
            statement: statement.clone(),
            place,
            elapsed: Duration::ZERO,
            waiting_since: None,
            sent: false,
            failed: false,
        })
    }

    /// A row is asked for.
    pub(crate) fn asked(&mut self) {
        self.sent = true;
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    /// A row, the end, or an error has come, or will no longer be waited for.
    pub(crate) fn answered(&mut self, failed: bool) {
        self.elapsed += self.waiting_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.failed |= failed;
    }
}

impl Drop for StreamMeter {
    fn drop(&mut self) {
        if self.sent {
            self.answered(false);
            let info = Info { elapsed: self.elapsed, statement: &self.statement, failed: self.failed };
            self.metering.callbacks.tell(self.place, &info, true);
        }
    }
}

impl fmt::Debug for Metering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metering")
    }
}
