//! How one call finds its server, and what happens when the server disappoints.

use std::{marker::PhantomData, time::Duration};

use read_router::{
    Ask, Destination, NodeId, PrimaryReason, Proof, ReadClass, ReadOptions, ReplicaError, Served, StatementKind, View,
    events,
    live::{self, Admission, Busy, Call, GaveUp, Refusal, Settling, Step},
};
use sea_orm::{DbErr, Statement, error::ConnAcquireErr};
use sqlx::Connection;

use crate::{
    RoutingConnection, doubt, error,
    fetch::Fetch,
    finish::finish,
    metric::{Meter, Place},
    node::{Checked, Node},
    openings, spans,
    watch::{changed, while_serving},
};

/// What a handle may do on the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Full,
    /// The text proves too little: what passed for a read, such as of a view that writes, must not write there.
    ReadOnly,
}

/// Why the chosen replica did not serve a read.
pub(crate) enum Missed {
    /// The connection is younger than the proof, and its own sample did not renew it.
    Unproven,
    /// Nothing can be proven of the pool's connections in this way.
    Untracked,
    /// The node is going down or too busy, or the read fell to a conflict with replay.
    Elsewhere(DbErr),
    /// The replica refused the statement as a write.
    Misrouted(DbErr),
    /// The statement is at fault.
    Statement(DbErr),
}

impl RoutingConnection {
    /// Runs a statement that may return rows on the server where it belongs.
    pub(crate) async fn query<F: Fetch>(&self, statement: Statement) -> Result<F::Out, DbErr> {
        match self.destination(&statement.sql)? {
            Destination::Write(reason) => self.write::<F>(statement, reason).await,
            Destination::Primary(reason) => {
                self.read_on_primary::<F>(self.inner.primary(), &statement, None, reason).await
            }
            Destination::Read(options) => self.read_on_any::<F>(statement, options, Access::Full).await,
        }
    }

    /// Where a statement that may return rows belongs.
    pub(crate) fn destination(&self, sql: &str) -> Result<Destination, DbErr> {
        let kind = self.inner.watch.kinds.kind(sql);
        if kind == StatementKind::Read && self.view == View::Unannotated {
            self.inner.watch.count_unannotated(sql);
        }
        self.view.destination(kind, self.inner.unannotated).ok_or_else(error::unannotated)
    }

    /// Runs a statement on the primary, to its end even if the caller goes away.
    pub(crate) async fn write<F: Fetch>(&self, statement: Statement, reason: PrimaryReason) -> Result<F::Out, DbErr> {
        let class = self.view.class();
        self.count_primary(class, reason, Duration::ZERO);
        let Checked { mut connection, opened } = self.inner.primary().acquire().await?;
        let write = self.session.with(read_router::Session::write_sent);
        let (session, watch, inner) = (self.session.clone(), self.inner.watch.clone(), self.inner.downgrade());
        let metering = self.metering.clone();
        let work = async move {
            let meter = Meter::start(metering.as_ref());
            let out = F::fetch(&statement, &mut connection).await;
            watch.was_run(&statement.sql);
            match &out {
                Err(error) if error::leaves_in_doubt(error) => doubt::settle_later(inner, session, write, opened),
                _ => session.acknowledged(&watch, write, opened),
            }
            if let Some(meter) = meter {
                meter.end(Place::primary(reason), &statement, out.is_err(), F::METERED);
            }
            out.map_err(F::error)
        };
        let session = self.session.clone();
        let abandoned = move || {
            session.with(|session| session.in_doubt(write));
            true
        };
        finish(work, abandoned).await
    }

    pub(crate) async fn read_on_any<F: Fetch>(
        &self,
        statement: Statement,
        options: ReadOptions,
        access: Access,
    ) -> Result<F::Out, DbErr> {
        let mut call = Call::new(options);
        let attempt = ReadOnce::<F> { statement: &statement, shape: PhantomData };
        match self.serve(&mut call, &attempt).await? {
            Outcome::Served(out) => Ok(out),
            Outcome::Misrouted(reason) if access == Access::Full => self.write::<F>(statement, reason).await,
            Outcome::Misrouted(reason) | Outcome::Primary(reason) => {
                self.read_on_primary::<F>(self.primary_for(access), &statement, Some(&call), reason).await
            }
        }
    }

    /// The primary's pool for a handle of this access.
    pub(crate) fn primary_for(&self, access: Access) -> &Node {
        match access {
            Access::Full => self.inner.primary(),
            Access::ReadOnly => self.inner.read_only(),
        }
    }

    /// Goes from server to server until one has served the call or the primary must.
    pub(crate) async fn serve<A: Attempt>(&self, call: &mut Call, attempt: &A) -> Result<Outcome<A::Out>, DbErr> {
        let watch = &self.inner.watch;
        let mut failure = None;
        let mut next = None;
        loop {
            let step = next.take().unwrap_or_else(|| call.step(watch, &self.session));
            let (node, proof) = match step {
                Step::Replica(node, proof) => (node, proof),
                Step::Wait(ask, until) => {
                    changed(watch, ask, call.started(), until).await;
                    continue;
                }
                Step::Primary(reason) => return Ok(Outcome::Primary(reason)),
                Step::Refused(reason) => return Err(failure.unwrap_or_else(|| self.refuse(call, reason))),
            };
            let busy = Busy::begin(watch, node);
            next = match attempt.attempt(self, call, node, &proof, busy).await {
                Ok(out) => return Ok(Outcome::Served(out)),
                Err(Missed::Statement(error)) => {
                    spans::served_by(node);
                    self.session.served(Served::by_replica(node, call.class(), call.waited()));
                    return Err(error);
                }
                Err(Missed::Misrouted(error)) => {
                    let lasting = error::driver(&error).is_some_and(error::refuses_a_write);
                    let repeat = call.misrouted(watch, node, attempt.sql(), self.inner.misrouted, lasting);
                    return if repeat {
                        Ok(Outcome::Misrouted(PrimaryReason::Misrouted))
                    } else {
                        Err(error::misrouted(node, &error))
                    };
                }
                Err(Missed::Untracked) => call.missed(watch, node, live::Missed::Untracked),
                Err(Missed::Unproven) => call.missed(watch, node, live::Missed::Unproven),
                Err(Missed::Elsewhere(error)) => {
                    failure = Some(error);
                    call.missed(watch, node, live::Missed::Elsewhere)
                }
            };
        }
    }

    /// A read on a replica is done.
    pub(crate) fn count_replica(&self, call: &Call, node: NodeId) -> Served {
        spans::served_by(node);
        call.served(&self.inner.watch, node)
    }

    /// A connection of the node for which the proof holds.
    pub(crate) async fn acquire_proven(&self, call: &Call, node: NodeId, proof: &Proof) -> Result<Checked, Missed> {
        let Some(server) = self.inner.nodes.get(node.index()) else { return Err(Missed::Unproven) };
        let acquired = server.acquire().await;
        let mut checked = acquired.map_err(|error| self.elsewhere(node, "no connection", error))?;
        if !call.trusts(checked.opened, proof) && !self.renews(call, &mut checked, node, proof).await? {
            return Err(Missed::Unproven);
        }
        if call.is_still_fresh(proof) { Ok(checked) } else { Err(Missed::Unproven) }
    }

    /// Whether a sample on the connection itself shows at least what the proof says of the node.
    async fn renews(&self, call: &Call, checked: &mut Checked, node: NodeId, proof: &Proof) -> Result<bool, Missed> {
        let watch = &self.inner.watch;
        let Some(opened) = checked.opened.filter(|_| call.may_renew(proof)) else { return Ok(false) };
        watch.counters.own_sample();
        let sample =
            tokio::time::timeout(watch.config.probe_timeout, openings::position(&mut checked.connection)).await;
        let Ok(Ok(answer)) = sample else {
            checked.connection.close_on_drop();
            let error = DbErr::ConnectionAcquire(ConnAcquireErr::ConnectionClosed);
            return Err(self.elsewhere(node, "no answer", error));
        };
        Ok(call.renews(watch, opened, &answer, proof))
    }

    /// What an error of a read on a replica means; one that is not the driver's is the statement's.
    pub(crate) fn missed(&self, node: NodeId, error: DbErr) -> Missed {
        match error::driver(&error).map_or(ReplicaError::Statement, replica_error) {
            ReplicaError::Statement => Missed::Statement(error),
            ReplicaError::Misrouted => Missed::Misrouted(error),
            ReplicaError::Elsewhere => self.elsewhere(node, "conflict or overload", error),
            ReplicaError::NodeGone => {
                self.inner.watch.read_failed(node);
                self.elsewhere(node, "connection lost", error)
            }
        }
    }

    /// A read on a replica was given up.
    pub(crate) fn gave_up(&self, node: NodeId, gave_up: GaveUp) -> Missed {
        self.elsewhere(node, gave_up.as_str(), error::gave_up(gave_up))
    }

    pub(crate) fn elsewhere(&self, node: NodeId, cause: &'static str, error: DbErr) -> Missed {
        self.inner.watch.counters.replica_failed();
        events::replica_failed(node, cause);
        Missed::Elsewhere(error)
    }

    /// Reads on the primary: a contact that may show any commit.
    pub(crate) async fn read_on_primary<F: Fetch>(
        &self,
        primary: &Node,
        statement: &Statement,
        call: Option<&Call>,
        reason: PrimaryReason,
    ) -> Result<F::Out, DbErr> {
        let waited = call.map_or(Duration::ZERO, Call::waited);
        self.session.served(Served::by_primary(self.view.class(), reason, waited));
        let (mut checked, reason) = self.acquire_primary(primary, call, reason).await?;
        self.count_primary(self.view.class(), reason, waited);
        let meter = Meter::start(self.metering.as_ref());
        let out = F::fetch(statement, &mut checked.connection).await;
        self.session.contact(&self.inner.watch, checked.opened);
        if let Some(meter) = meter {
            meter.end(Place::primary(reason), statement, out.is_err(), F::METERED);
        }
        out.map_err(F::error)
    }

    /// A connection of the primary, from this pool of it. A strict read's must not be to the old primary; what a failover may have lost is
    /// reported, or refused where the caller wants no fallback.
    pub(crate) async fn acquire_primary(
        &self,
        primary: &Node,
        call: Option<&Call>,
        reason: PrimaryReason,
    ) -> Result<(Checked, PrimaryReason), DbErr> {
        let Some(call) = call.filter(|call| call.is_strict()) else { return Ok((primary.acquire().await?, reason)) };
        let watch = &self.inner.watch;
        let mut settle = call.settle(&self.session);
        loop {
            match settle.step(watch, call) {
                Settling::Settled => break,
                Settling::Wait(until) => changed(watch, Ask::All, call.started(), until).await,
                Settling::Refused => return Err(self.refuse(call, PrimaryReason::Unsettled)),
            }
        }
        loop {
            let checked = primary.acquire().await?;
            match call.admit(watch, &self.session, &settle, checked.opened, reason) {
                Admission::Serve(reason) => return Ok((checked, reason)),
                Admission::Reopen => {
                    let _ = checked.connection.close().await;
                }
                Admission::Refused(Refusal::InRecovery) => return Err(error::in_recovery()),
                Admission::Refused(Refusal::Unsettled) => return Err(self.refuse(call, PrimaryReason::Unsettled)),
                Admission::Refused(Refusal::Lost(lost)) => return Err(error::branch_lost(lost)),
            }
        }
    }

    pub(crate) fn refuse(&self, call: &Call, reason: PrimaryReason) -> DbErr {
        call.refused(&self.inner.watch, &self.session, reason);
        error::refused(reason, call.options(), &self.inner.watch.topology())
    }

    pub(crate) fn count_primary(&self, class: Option<ReadClass>, reason: PrimaryReason, waited: Duration) {
        spans::served_by(NodeId::PRIMARY);
        self.inner.watch.to_primary(&self.session, class, reason, waited);
    }
}

/// One way of being served by a replica.
pub(crate) trait Attempt: Sync {
    /// What the caller gets.
    type Out: Send;

    /// The statement; empty if there is none yet.
    fn sql(&self) -> &str;

    fn attempt(
        &self,
        routing: &RoutingConnection,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        busy: Busy,
    ) -> impl Future<Output = Result<Self::Out, Missed>> + Send;
}

/// How a call ended among the replicas.
pub(crate) enum Outcome<T> {
    Served(T),
    /// The primary is to serve it.
    Primary(PrimaryReason),
    /// The primary is to run it as a write.
    Misrouted(PrimaryReason),
}

struct ReadOnce<'a, F> {
    statement: &'a Statement,
    shape: PhantomData<F>,
}

impl<F: Fetch> Attempt for ReadOnce<'_, F> {
    type Out = F::Out;

    fn sql(&self) -> &str {
        &self.statement.sql
    }

    async fn attempt(
        &self,
        routing: &RoutingConnection,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        _busy: Busy,
    ) -> Result<F::Out, Missed> {
        let watch = &routing.inner.watch;
        let mut checked = routing.acquire_proven(call, node, proof).await?;
        let meter = Meter::start(routing.metering.as_ref());
        let mut out =
            while_serving(watch, node, call.limit(watch), F::fetch(self.statement, &mut checked.connection)).await;
        if let Ok(Err(sqlx::Error::Database(error))) = &out
            && error::is_stale_plan(error.as_ref())
            && checked.connection.clear_cached_statements().await.is_ok()
        {
            out =
                while_serving(watch, node, call.limit(watch), F::fetch(self.statement, &mut checked.connection)).await;
        }
        let out = match out {
            Ok(Ok(out)) => {
                let served = routing.count_replica(call, node);
                routing.session.read_done(watch, node, proof, served);
                Ok(out)
            }
            Ok(Err(error)) => Err(routing.missed(node, F::error(error))),
            Err(gave_up) => {
                // The server goes on with it, if it still runs: until it is done the connection is of no use.
                checked.connection.close_on_drop();
                Err(routing.gave_up(node, gave_up))
            }
        };
        if let Some(meter) = meter {
            meter.end(Place::replica(node), self.statement, out.is_err(), F::METERED);
        }
        out
    }
}

/// What a driver's error on a replica means.
pub(crate) fn replica_error(error: &sqlx::Error) -> ReplicaError {
    match error {
        sqlx::Error::Database(error) => match error.code().map(|code| ReplicaError::of(&code)) {
            Some(ReplicaError::NodeGone) if !error::ends_process(error.as_ref()) => ReplicaError::Statement,
            // The statement is at no fault, and no write.
            Some(ReplicaError::Misrouted) if error::is_stale_plan(error.as_ref()) => ReplicaError::Elsewhere,
            meaning => meaning.unwrap_or(ReplicaError::Statement),
        },
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            ReplicaError::NodeGone
        }
        _ => ReplicaError::Statement,
    }
}
