//! How one call finds its server, and what happens when the server disappoints.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use read_router::{
    Ask, Branch, BranchLost, Fallback, Need, NodeId, NotRead, PrimaryReason, Proof, ReadClass, ReadOptions,
    ReplicaError, Role, Route, Served, StatementKind, Time, connection_trusts, events, select,
};
use sea_orm::{DbErr, Statement, error::ConnAcquireErr};
use sqlx::Connection;

use crate::{
    Misrouted, RoutingConnection, Unannotated, clock,
    connection::View,
    doubt, error,
    fetch::Fetch,
    finish::finish,
    metric::{Meter, Place},
    node::{Checked, Node},
    openings,
    session::report,
    spans,
    watch::{GaveUp, Watch},
};

/// A read on its way.
pub(crate) struct Call {
    pub(crate) options: ReadOptions,
    pub(crate) started: Time,
    pub(crate) exclude: Option<NodeId>,
    pub(crate) waited: Duration,
}

/// What a handle may do on the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Full,
    /// The text proves too little: what passed for a read, such as of a view that writes, must not write there.
    ReadOnly,
}

/// Where a statement belongs, by its text and by what the caller has said.
pub(crate) enum Destination {
    Write(PrimaryReason),
    Primary(PrimaryReason),
    Read(ReadOptions),
}

/// Where a call goes now.
pub(crate) enum Chosen {
    Replica(NodeId, Proof),
    Primary(PrimaryReason),
    Refused(PrimaryReason),
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

impl Call {
    pub(crate) fn new(options: ReadOptions) -> Self {
        Self { options, started: clock::now(), exclude: None, waited: Duration::ZERO }
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.options.class() == ReadClass::MustSeeMyWrite
    }

    /// The end of the wait budget.
    pub(crate) fn until(&self, watch: &Watch) -> Time {
        self.started + self.options.budget(&watch.config)
    }

    /// The time limit of the read on a replica.
    pub(crate) fn limit(&self, watch: &Watch) -> Option<Duration> {
        match self.options.class() {
            ReadClass::Eventual => None,
            ReadClass::MustSeeMyWrite | ReadClass::SecondsStale(_) => Some(watch.config.replica_read_timeout),
        }
    }

    /// Whether what was proven of the node holds for this connection, at this moment.
    pub(crate) fn trusts(&self, checked: Option<read_router::Opened>, proof: &Proof) -> bool {
        let Some(opened) = checked else { return false };
        let same_server = opened.greeting.instance == proof.instance;
        match self.options.class() {
            _ if proof.is_primary => same_server,
            ReadClass::Eventual => same_server,
            _ => connection_trusts(opened.at, opened.greeting.instance, proof.instance, proof.sent_at),
        }
    }

    /// Whether the bound, which counts up to the sending of the read, still holds after a wait for the pool.
    pub(crate) fn is_still_fresh(&self, proof: &Proof) -> bool {
        match self.options.class() {
            ReadClass::SecondsStale(bound) if !proof.is_primary => {
                proof.covered.is_some_and(|covered| clock::now().since(covered) <= bound)
            }
            _ => true,
        }
    }
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
        let watch = &self.inner.watch;
        let kind = watch.kinds.kind(sql);
        Ok(match (kind, self.view, self.inner.unannotated) {
            (StatementKind::Primary(NotRead::Refused), ..) => Destination::Write(PrimaryReason::Misrouted),
            (StatementKind::Primary(_), ..) => Destination::Write(PrimaryReason::NotARead),
            (StatementKind::Read, View::Primary, _) => Destination::Primary(PrimaryReason::Asked),
            (StatementKind::Read, View::Read(options), _) => Destination::Read(options),
            (StatementKind::Read, View::Unannotated, unannotated) => {
                watch.count_unannotated(sql);
                match unannotated {
                    Unannotated::Primary => Destination::Primary(PrimaryReason::Unannotated),
                    Unannotated::Read(options) => Destination::Read(options),
                    Unannotated::Error => return Err(error::unannotated()),
                }
            }
        })
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

    /// Goes from server to server until one has served the call or the primary must: to another replica and then to the
    /// primary, once each.
    pub(crate) async fn serve<A: Attempt>(&self, call: &mut Call, attempt: &A) -> Result<Outcome<A::Out>, DbErr> {
        let watch = &self.inner.watch;
        let may_fall_back = call.options.fallback() == Fallback::Primary;
        let mut failure = None;
        loop {
            let (node, proof) = match self.choose(call).await {
                Chosen::Replica(node, proof) => (node, proof),
                Chosen::Primary(_) if failure.is_some() => return Ok(Outcome::Primary(PrimaryReason::ReplicaFailed)),
                Chosen::Primary(reason) => return Ok(Outcome::Primary(reason)),
                Chosen::Refused(reason) => return Err(failure.unwrap_or_else(|| self.refuse(call, reason))),
            };
            let busy = Busy::begin(watch, node);
            match attempt.attempt(self, call, node, &proof, busy).await {
                Ok(out) => return Ok(Outcome::Served(out)),
                Err(Missed::Statement(error)) => {
                    spans::served_by(node);
                    self.session.served(Served::by_replica(node, call.options.class(), call.waited));
                    return Err(error);
                }
                Err(Missed::Misrouted(error)) => {
                    let repeat = self.inner.misrouted == Misrouted::Repeat && may_fall_back;
                    // Where it fails, or may have failed for a passing reason, it is to fail the next time too.
                    let remember = repeat && error::driver(&error).is_some_and(error::refuses_a_write);
                    let is_new = watch.refused_by_replica(attempt.sql(), remember);
                    events::misrouted(node, repeat, is_new);
                    return if repeat {
                        Ok(Outcome::Misrouted(PrimaryReason::Misrouted))
                    } else {
                        Err(error::misrouted(node, &error))
                    };
                }
                Err(Missed::Untracked) if may_fall_back => return Ok(Outcome::Primary(PrimaryReason::Untracked)),
                Err(Missed::Untracked) => return Err(self.refuse(call, PrimaryReason::Untracked)),
                Err(Missed::Unproven) if clock::now() < call.until(watch) => {
                    watch.changed(Ask::All, call.started, call.until(watch)).await;
                }
                Err(Missed::Unproven) if may_fall_back => return Ok(Outcome::Primary(PrimaryReason::Behind)),
                Err(Missed::Unproven) => return Err(self.refuse(call, PrimaryReason::Behind)),
                Err(Missed::Elsewhere(error)) => {
                    if call.exclude.replace(node).is_some() {
                        return if may_fall_back {
                            Ok(Outcome::Primary(PrimaryReason::ReplicaFailed))
                        } else {
                            Err(error)
                        };
                    }
                    failure = Some(error);
                }
            }
        }
    }

    /// Chooses a server, waiting for observations within the budget where they may help.
    pub(crate) async fn choose(&self, call: &mut Call) -> Chosen {
        let watch = &self.inner.watch;
        // What the session must see is what it has seen when the call comes; while this call waits, others of the
        // session go on.
        let (mut route, waiting) = self.session.with(|session| {
            let topology = watch.topology();
            session.resolve(&topology);
            let route = select(&topology, &self.need(call, session), clock::now(), rand::random());
            let waiting = matches!(route, Route::Wait { .. }).then(|| session.clone());
            (route, waiting)
        });
        if let Some(mut session) = waiting {
            while let Route::Wait { until, ask } = route {
                watch.changed(ask, call.started, until).await;
                let topology = watch.topology();
                session.resolve(&topology);
                route = select(&topology, &self.need(call, &session), clock::now(), rand::random());
            }
            call.waited = clock::now().since(call.started);
            watch.counters.waited(call.waited);
        }
        match route {
            Route::Replica(node, proof) => Chosen::Replica(node, proof),
            Route::Primary(reason) => Chosen::Primary(reason),
            Route::Refused(reason) => Chosen::Refused(reason),
            Route::Wait { .. } => Chosen::Primary(PrimaryReason::Unresolved),
        }
    }

    pub(crate) fn need<'a>(&'a self, call: &Call, session: &'a read_router::Session) -> Need<'a> {
        Need {
            read: call.options,
            session,
            started: call.started,
            exclude: call.exclude,
            in_flight: &self.inner.watch.in_flight,
            config: &self.inner.watch.config,
        }
    }

    /// A read on a replica is done.
    pub(crate) fn count_replica(&self, call: &Call, node: NodeId) -> Served {
        let class = call.options.class();
        self.inner.watch.counters.replica(Some(class), node);
        spans::served_by(node);
        events::to_replica(class, node, call.waited);
        Served::by_replica(node, class, call.waited)
    }

    /// A connection of the node for which the proof holds.
    pub(crate) async fn acquire_proven(&self, call: &Call, node: NodeId, proof: &Proof) -> Result<Checked, Missed> {
        let Some(server) = self.inner.nodes.get(node.index()) else { return Err(Missed::Unproven) };
        let acquired = server.acquire().await;
        let mut checked = acquired.map_err(|error| self.elsewhere(node, "no connection", error))?;
        if !call.trusts(checked.opened, proof) && !self.renews(&mut checked, node, proof).await? {
            return Err(Missed::Unproven);
        }
        if call.is_still_fresh(proof) { Ok(checked) } else { Err(Missed::Unproven) }
    }

    /// Whether a sample on the connection itself shows at least what the proof says of the node.
    async fn renews(&self, checked: &mut Checked, node: NodeId, proof: &Proof) -> Result<bool, Missed> {
        let watch = &self.inner.watch;
        let Some(opened) = checked.opened.filter(|_| !proof.same_life && !proof.is_primary) else { return Ok(false) };
        watch.counters.own_sample();
        let sample =
            tokio::time::timeout(watch.config.probe_timeout, openings::position(&mut checked.connection)).await;
        let Ok(Ok(answer)) = sample else {
            checked.connection.close_on_drop();
            let error = DbErr::ConnectionAcquire(ConnAcquireErr::ConnectionClosed);
            return Err(self.elsewhere(node, "no answer", error));
        };
        let system = opened.greeting.instance.system;
        let branch = answer.timeline.map(|timeline| Branch { system, timeline });
        let is_known = branch.is_some_and(|branch| watch.topology().vouches_for(branch, answer.exact));
        Ok(answer.role == Role::Replica && is_known && branch == proof.branch && answer.lsn >= proof.lsn)
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
        self.session.served(Served::by_primary(
            self.view.class(),
            reason,
            call.map_or(Duration::ZERO, |call| call.waited),
        ));
        let (mut checked, reason) = self.acquire_primary(primary, call, reason).await?;
        self.count_primary(self.view.class(), reason, call.map_or(Duration::ZERO, |call| call.waited));
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
        let session = self.settled(call).await?;
        let mut checked = primary.acquire().await?;
        let mut admitted = self.admits(&checked);
        // The name may point elsewhere by now: a connection opened from here on leads there.
        while (matches!(admitted, Err(BranchLost::OldPrimary { .. })) || is_in_recovery(checked.opened))
            && checked.opened.is_some_and(|opened| opened.at < call.started)
        {
            let _ = checked.connection.close().await;
            checked = primary.acquire().await?;
            admitted = self.admits(&checked);
        }
        if is_in_recovery(checked.opened) {
            return Err(error::in_recovery());
        }
        let branch = checked.opened.and_then(|opened| opened.greeting.branch);
        if let Some((session, branch)) = session.zip(branch)
            && !session.is_settled(&self.inner.watch.topology(), branch)
        {
            // Not the newest primary that is known, which was waited for.
            return Err(self.refuse(call, PrimaryReason::Unsettled));
        }
        let Err(lost) = admitted else { return Ok((checked, reason)) };
        let may_serve = match lost {
            // Some server is known to be there; this one would show a state from before.
            BranchLost::OldPrimary { seen, .. } => self.topology().surviving().is_none_or(|known| known < seen),
            _ => true,
        };
        if call.options.fallback() == Fallback::Error || !may_serve {
            report(&self.inner.watch, Some(lost));
            return Err(error::branch_lost(lost));
        }
        if let BranchLost::OldPrimary { now, .. } = lost {
            // Nobody knows of the newer branch that the session, or its token, speaks of.
            report(&self.inner.watch, Some(lost));
            self.session.with(|session| session.give_up_newer(now));
        }
        // Any other loss is reported by the contact that follows.
        let is_foreign = matches!(lost, BranchLost::OtherCluster { .. });
        Ok((checked, if is_foreign { PrimaryReason::ForeignToken } else { PrimaryReason::BranchLost }))
    }

    /// Waits until the primary shows what replicas have shown the session up to here, if that was asked for, and returns
    /// the session as it was then.
    async fn settled(&self, call: &Call) -> Result<Option<read_router::Session>, DbErr> {
        if !self.inner.sessions.monotonic_fallback {
            return Ok(None);
        }
        let watch = &self.inner.watch;
        let mut session = self.session.with(|session| session.clone());
        loop {
            let topology = arc_swap::Guard::into_inner(watch.topology());
            session.resolve(&topology);
            if topology.surviving().is_none_or(|branch| session.is_settled(&topology, branch)) {
                return Ok(Some(session));
            }
            if clock::now() >= call.until(watch) {
                return Err(self.refuse(call, PrimaryReason::Unsettled));
            }
            watch.changed(Ask::All, call.started, call.until(watch)).await;
        }
    }

    fn admits(&self, checked: &Checked) -> Result<(), BranchLost> {
        match checked.opened.and_then(|opened| opened.greeting.branch) {
            Some(branch) => self.session.with(|session| session.admits(&self.inner.watch.topology(), branch)),
            None => Ok(()),
        }
    }

    pub(crate) fn refuse(&self, call: &Call, reason: PrimaryReason) -> DbErr {
        self.inner.watch.counters.refused();
        self.session.not_served();
        events::refused(Some(call.options.class()), reason);
        error::refused(reason, call.options, &self.inner.watch.topology())
    }

    pub(crate) fn count_primary(&self, class: Option<ReadClass>, reason: PrimaryReason, waited: Duration) {
        let count = self.inner.watch.counters.primary(class, reason);
        events::to_primary(class, reason, count);
        spans::served_by(NodeId::PRIMARY);
        self.session.served(Served::by_primary(class, reason, waited));
    }
}

/// Whether the primary's name led to a standby when the connection was opened: it proves nothing for a strict read.
pub(crate) fn is_in_recovery(opened: Option<read_router::Opened>) -> bool {
    opened.is_some_and(|opened| opened.greeting.branch.is_none())
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
            watch.while_serving(node, call.limit(watch), F::fetch(self.statement, &mut checked.connection)).await;
        if let Ok(Err(sqlx::Error::Database(error))) = &out
            && error::is_stale_plan(error.as_ref())
            && checked.connection.clear_cached_statements().await.is_ok()
        {
            out = watch.while_serving(node, call.limit(watch), F::fetch(self.statement, &mut checked.connection)).await;
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

/// Counts a read as under way on a node for as long as it lives.
pub(crate) struct Busy {
    watch: Arc<Watch>,
    node: NodeId,
}

impl Busy {
    pub(crate) fn begin(watch: &Arc<Watch>, node: NodeId) -> Self {
        watch.in_flight.begin(node);
        Self { watch: watch.clone(), node }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.watch.in_flight.end(self.node);
    }
}
