//! How one call finds its server, and what happens when the server disappoints.

use std::{sync::Arc, time::Duration};

use diesel::{QueryResult, result::Error};
use diesel_async::pooled_connection::PoolableConnection;
use read_router::{
    Ask, Destination, Misrouted, NodeId, PrimaryReason, Proof, ReadClass, ReadOptions, Served, StatementKind, View,
    live::{self, Admission, Busy, Call, GaveUp, Settling, SharedSession, Step},
};

use super::{
    doubt,
    finish::finish,
    node::{Checked, Kept},
    router::Inner,
    rows::{AsyncRows, Begun, Held, Source},
    runtime::timeout,
    statement::{Output, Prepared, Ran, Wanted, run},
    text,
    transaction::{Pinned, has_opened},
    watch::{changed, returned, while_serving},
};
use crate::{
    control::{changes_schema, may_open},
    error::{Fault, Refusal, may_be_stale, unsent},
    instrument::Listener,
    kinds::Looked,
    left::leaves_something,
};

/// What the calls of one connection share; a copy of it goes with each call that may outlive its caller.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) inner: Arc<Inner>,
    pub(crate) session: SharedSession,
    pub(crate) view: View,
    pub(crate) listener: Option<Listener>,
    /// Whether statements are kept prepared.
    pub(crate) caches: bool,
    /// A connection of the primary that statements of this handle have left something with: a setting, a channel, a
    /// temporary table. Locked while it is in use.
    pub(crate) kept: Kept,
}

/// Why the chosen replica did not serve a read.
pub(crate) enum Missed {
    /// The connection is younger than the proof, and its own sample did not renew it.
    Unproven,
    /// The node is going down or too busy, or the read fell to a conflict with replay.
    Elsewhere(Error),
    /// The replica refused the statement as a write.
    Misrouted(Error),
    /// Diesel does not say what the error is: the primary decides.
    Unclear(Error),
    /// The statement is at fault.
    Statement(Error),
}

/// How a call ended among the replicas.
pub(crate) enum Outcome<T> {
    Served(T),
    /// The primary is to serve it.
    Primary(PrimaryReason),
    /// The primary is to run it as a write.
    Misrouted(PrimaryReason),
}

/// One way of being served by a replica.
pub(crate) trait Attempt: Send {
    /// What the caller gets.
    type Out: Send;

    /// The statement's text; empty if there is none yet.
    fn sql(&self) -> &str;

    fn attempt(
        &mut self,
        handle: &Handle,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        busy: Busy,
    ) -> impl Future<Output = Result<Self::Out, Missed>> + Send;
}

impl Handle {
    /// Runs a statement outside of transactions on the server where it belongs.
    pub(crate) async fn run(&self, mut prepared: Prepared, wanted: Wanted) -> QueryResult<Output> {
        self.inner.check_open()?;
        if wanted == Wanted::Batch {
            return self.write(prepared, wanted, PrimaryReason::NotARead).await;
        }
        match self.destination(&prepared.looked)? {
            Destination::Write(reason) => self.write(prepared, wanted, reason).await,
            Destination::Primary(reason) => self.read_on_primary(&mut prepared, None, reason).await.map(Output::Rows),
            Destination::Read(options) => self.read_on_any(prepared, wanted, options).await,
        }
    }

    /// Where a statement belongs. What its query says of itself goes before what the connection says.
    fn destination(&self, looked: &Looked) -> QueryResult<Destination> {
        let view = looked.class.map_or(self.view, View::Read);
        if looked.kind == StatementKind::Read && view == View::Unannotated {
            self.inner.watch.count_unannotated(&looked.sql);
        }
        view.destination(looked.kind, self.inner.unannotated).ok_or_else(|| Refusal::Unannotated.into())
    }

    /// The class that a statement is counted under.
    fn class(&self, looked: &Looked) -> Option<ReadClass> {
        looked.class.map_or(self.view, View::Read).class()
    }

    /// Has the connection tell the listener of the statements that follow.
    pub(crate) fn listen(&self, connection: &mut Checked, node: NodeId, text: Option<String>) {
        connection.listen(self.listener.as_ref().map(|listener| listener.on(Some(node))), text);
    }

    /// Runs a statement on the primary, to its end even if the caller goes away.
    pub(crate) async fn write(
        &self,
        mut prepared: Prepared,
        wanted: Wanted,
        reason: PrimaryReason,
    ) -> QueryResult<Output> {
        let inner = &self.inner;
        inner.watch.to_primary(&self.session, self.class(&prepared.looked), reason, Duration::ZERO);
        let mut connection = self.primary().await?;
        inner.schema.resolve(&mut prepared.query, &connection).await?;
        self.listen(&mut connection, NodeId::PRIMARY, prepared.text.take());
        let write = self.session.with(read_router::Session::write_sent);
        let (session, watch, inner) = (self.session.clone(), inner.watch.clone(), inner.downgrade());
        let (handle, schema) = (self.clone(), self.inner.schema.clone());
        let work = async move {
            let opened = connection.opened;
            let mut out = run(&mut connection, &prepared.query, wanted).await;
            if let Err(error) = &out
                && may_be_stale(error)
                && schema.renew(&mut prepared.query, &connection).await
            {
                // A type was made anew by somebody else: with the old one's number the statement has done nothing.
                connection.forget_statements();
                out = run(&mut connection, &prepared.query, wanted).await;
            }
            watch.was_run(&prepared.query.sql);
            if changes_schema(prepared.looked.kind, &prepared.query.sql) {
                schema.changed();
            }
            if leaves_something(prepared.looked.kind, &prepared.query.sql) {
                connection.keep(&handle.kept);
            }
            let begun = match out {
                Ok(begun) => begun,
                Err(error) => {
                    if doubt::leaves_in_doubt(&mut connection, &error, watch.config.probe_timeout).await {
                        connection.discard();
                        doubt::settle_later(inner, session, write, opened);
                    } else {
                        session.acknowledged(&watch, write, opened);
                        if may_open(&prepared.query.sql) {
                            // It would go back to the pool with the transaction open.
                            connection.discard();
                        }
                    }
                    return Err(error);
                }
            };
            match begun {
                Ran::Rows(begun) => {
                    let rest = Held { connection, _busy: None };
                    Ok(Output::Rows(begun.from(Source::Write { session, watch, inner, write, opened, rest })))
                }
                Ran::Count(count) => {
                    session.acknowledged(&watch, write, opened);
                    if may_open(&prepared.query.sql) && has_opened(&mut connection).await? {
                        return Ok(Output::Opened(Box::new(Pinned::left_open(connection, handle)?)));
                    }
                    Ok(Output::Count(count))
                }
            }
        };
        let session = self.session.clone();
        finish(work, move || session.with(|session| session.in_doubt(write))).await
    }

    /// Runs a read of a class on a server that can serve it.
    async fn read_on_any(&self, mut prepared: Prepared, wanted: Wanted, options: ReadOptions) -> QueryResult<Output> {
        let mut call = Call::new(options);
        // Boxed, here and below, are the ways that are seldom gone: else the future of each read would have room for them.
        if prepared.query.has_unknown()
            && let Ok(connection) = Box::pin(self.inner.acquire_primary()).await
        {
            // A replica may not have the type yet. Without a primary it is asked all the same.
            let _ = self.inner.schema.resolve(&mut prepared.query, &connection).await;
        }
        match self.serve(&mut call, &mut ReadOnce { prepared: &mut prepared }).await? {
            Outcome::Served(rows) => Ok(Output::Rows(rows)),
            Outcome::Misrouted(reason) => Box::pin(self.write(prepared, wanted, reason)).await,
            Outcome::Primary(reason) => {
                Box::pin(self.read_on_primary(&mut prepared, Some(&call), reason)).await.map(Output::Rows)
            }
        }
    }

    /// Goes from server to server until one has served the call or the primary must.
    pub(crate) async fn serve<A: Attempt>(&self, call: &mut Call, attempt: &mut A) -> QueryResult<Outcome<A::Out>> {
        let watch = &self.inner.watch;
        if call.is_strict() {
            returned(&self.session, call.until(watch)).await;
        }
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
                Err(Missed::Unclear(_)) if call.may_fall_back() => {
                    call.given_up(watch, node, "an error that the primary may not have");
                    return Ok(Outcome::Primary(PrimaryReason::ReplicaFailed));
                }
                Err(Missed::Statement(error) | Missed::Unclear(error)) => {
                    self.session.served(Served::by_replica(node, call.class(), call.waited()));
                    return Err(error);
                }
                Err(Missed::Misrouted(error)) => {
                    let policy: Misrouted = self.inner.misrouted;
                    let repeat = call.misrouted(watch, node, attempt.sql(), policy, true);
                    if repeat {
                        return Ok(Outcome::Misrouted(PrimaryReason::Misrouted));
                    }
                    return Err(error);
                }
                Err(Missed::Unproven) => call.missed(watch, node, live::Missed::Unproven),
                Err(Missed::Elsewhere(error)) => {
                    failure = Some(error);
                    call.missed(watch, node, live::Missed::Elsewhere)
                }
            };
        }
    }

    /// A connection of the node for which the proof holds.
    pub(crate) async fn acquire_proven(&self, call: &Call, node: NodeId, proof: &Proof) -> Result<Checked, Missed> {
        let Some(server) = self.inner.nodes.get(node.index()) else { return Err(Missed::Unproven) };
        let acquired = server.acquire().await;
        let checked = acquired.map_err(|error| self.elsewhere(call, node, "no connection", error))?;
        let checked = match call.trusts(checked.opened, proof) {
            true => checked,
            false => Box::pin(self.renewed(call, checked, node, proof)).await?,
        };
        if call.is_still_fresh(proof) { Ok(checked) } else { Err(Missed::Unproven) }
    }

    /// The connection, if a sample on it shows at least what the proof says of the node.
    async fn renewed(&self, call: &Call, checked: Checked, node: NodeId, proof: &Proof) -> Result<Checked, Missed> {
        let watch = &self.inner.watch;
        let Some(opened) = checked.opened.filter(|_| call.may_renew(proof)) else { return Err(Missed::Unproven) };
        watch.counters.own_sample();
        let Ok(Ok(answer)) = timeout(watch.config.probe_timeout, text::position(&checked)).await else {
            checked.discard();
            return Err(self.elsewhere(call, node, "no answer", unsent("the replica did not answer")));
        };
        if call.renews(watch, opened, &answer, proof) { Ok(checked) } else { Err(Missed::Unproven) }
    }

    /// What an error of a read on a replica means; the connection is given back as far as it is of use.
    pub(crate) async fn missed(&self, call: &Call, node: NodeId, mut connection: Checked, error: Error) -> Missed {
        let gone = |error| {
            self.inner.watch.read_failed(node);
            self.elsewhere(call, node, "connection lost", error)
        };
        match Fault::of(&error) {
            Fault::ReadOnly => Missed::Misrouted(error),
            Fault::Conflict => self.elsewhere(call, node, "conflict with replay", error),
            Fault::Gone => {
                connection.discard();
                gone(error)
            }
            Fault::Unclear => {
                if doubt::is_alive(&mut connection, self.inner.watch.config.probe_timeout).await {
                    connection.forget_statements();
                    return Missed::Unclear(error);
                }
                connection.discard();
                gone(error)
            }
            Fault::Other => Missed::Statement(error),
        }
    }

    /// A read on a replica was given up.
    pub(crate) fn gave_up(&self, call: &Call, node: NodeId, gave_up: GaveUp) -> Missed {
        let error = unsent(format_args!("a read on a replica was given up: {}", gave_up.as_str()));
        self.elsewhere(call, node, gave_up.as_str(), error)
    }

    pub(crate) fn elsewhere(&self, call: &Call, node: NodeId, cause: &'static str, error: Error) -> Missed {
        call.given_up(&self.inner.watch, node, cause);
        Missed::Elsewhere(error)
    }

    /// Reads on the primary: a contact that may show any commit.
    async fn read_on_primary(
        &self,
        prepared: &mut Prepared,
        call: Option<&Call>,
        reason: PrimaryReason,
    ) -> QueryResult<Box<AsyncRows>> {
        let watch = &self.inner.watch;
        let class = call.map(Call::class).or_else(|| self.class(&prepared.looked));
        let waited = call.map_or(Duration::ZERO, Call::waited);
        self.session.served(Served::by_primary(class, reason, waited));
        let (mut connection, reason) = self.acquire_primary(call, reason).await?;
        watch.to_primary(&self.session, class, reason, waited);
        self.inner.schema.resolve(&mut prepared.query, &connection).await?;
        self.listen(&mut connection, NodeId::PRIMARY, prepared.text.clone());
        let opened = connection.opened;
        connection.reading(true);
        let mut out = Begun::run(&mut connection, &prepared.query).await;
        if let Err(error) = &out
            && Fault::of(error) == Fault::Unclear
        {
            // Where it was prepared before, the schema may have changed under it since.
            let was_prepared = prepared.query.is_cacheable() && connection.was_prepared_before();
            let is_stale = self.inner.schema.renew(&mut prepared.query, &connection).await || was_prepared;
            if is_stale && Box::pin(doubt::is_alive(&mut connection, watch.config.probe_timeout)).await {
                connection.forget_statements();
                self.listen(&mut connection, NodeId::PRIMARY, prepared.text.clone());
                out = Begun::run(&mut connection, &prepared.query).await;
            }
        }
        connection.reading(false);
        match out {
            Ok(begun) => {
                let rest = Held { connection, _busy: None };
                let (session, watch) = (self.session.clone(), watch.clone());
                Ok(begun.from(Source::PrimaryRead { session, watch, opened, rest }))
            }
            Err(error) => {
                self.session.contact(watch, opened);
                if Fault::of(&error) == Fault::Gone {
                    connection.discard();
                }
                Err(error)
            }
        }
    }

    /// A connection of the primary. A strict read's must not be to the old primary; what a failover may have lost is
    /// reported, or refused where the caller wants no fallback.
    pub(crate) async fn acquire_primary(
        &self,
        call: Option<&Call>,
        reason: PrimaryReason,
    ) -> QueryResult<(Checked, PrimaryReason)> {
        let Some(call) = call.filter(|call| call.is_strict()) else {
            return Ok((self.primary().await?, reason));
        };
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
            let checked = self.inner.acquire_primary().await?;
            match call.admit(watch, &self.session, &settle, checked.opened, reason) {
                Admission::Serve(reason) => return Ok((checked, reason)),
                Admission::Reopen => checked.discard(),
                Admission::Refused(live::Refusal::InRecovery) => return Err(Refusal::InRecovery.into()),
                Admission::Refused(live::Refusal::Unsettled) => {
                    return Err(self.refuse(call, PrimaryReason::Unsettled));
                }
                Admission::Refused(live::Refusal::Lost(lost)) => return Err(Refusal::BranchLost(lost).into()),
            }
        }
    }

    /// The connection of the primary that this handle keeps, or any other.
    pub(crate) async fn primary(&self) -> QueryResult<Checked> {
        let mut kept = self.kept.clone().lock_owned().await;
        let Some(mut connection) = kept.take() else { return self.inner.acquire_primary().await };
        if PoolableConnection::is_broken(&mut *connection) {
            connection.discard();
            return Err(unsent("the connection that had this handle's settings was lost, and they with it"));
        }
        connection.come_back_to(kept);
        Ok(connection)
    }

    pub(crate) fn refuse(&self, call: &Call, reason: PrimaryReason) -> Error {
        call.refused(&self.inner.watch, &self.session, reason);
        Refusal::NoReplica(reason).into()
    }
}

struct ReadOnce<'a> {
    prepared: &'a mut Prepared,
}

impl Attempt for ReadOnce<'_> {
    type Out = Box<AsyncRows>;

    fn sql(&self) -> &str {
        &self.prepared.query.sql
    }

    /// The first row is taken before the rows are handed out: up to there another server can still serve them.
    async fn attempt(
        &mut self,
        handle: &Handle,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        busy: Busy,
    ) -> Result<Box<AsyncRows>, Missed> {
        let watch = &handle.inner.watch;
        let mut connection = handle.acquire_proven(call, node, proof).await?;
        handle.listen(&mut connection, node, self.prepared.text.clone());
        let query = &mut self.prepared.query;
        connection.reading(true);
        let work = async {
            handle.inner.schema.resolve(query, &connection).await?;
            Begun::run(&mut connection, query).await
        };
        let out = while_serving(watch, node, call.limit(watch), work).await;
        connection.reading(false);
        match out {
            Ok(Ok(begun)) => {
                let served = call.served(watch, node);
                let (session, watch) = (handle.session.clone(), watch.clone());
                let rest = Held { connection, _busy: Some(busy) };
                Ok(begun.from(Source::Replica { session, watch, node, proof: *proof, served, rest }))
            }
            Ok(Err(error)) => Err(Box::pin(handle.missed(call, node, connection, error)).await),
            Err(gave_up) => {
                // The server goes on with it, if it still runs: until it is done the connection is of no use.
                connection.discard();
                Err(handle.gave_up(call, node, gave_up))
            }
        }
    }
}
