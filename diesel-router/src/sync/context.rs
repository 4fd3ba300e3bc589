//! How one call finds its server, and what happens when the server disappoints.

use diesel::{QueryResult, connection::CacheSize, result::Error};
use read_router::{
    Ask, NodeId, Opened, PrimaryReason, Proof, ReadClass, Time,
    live::{Admission, Busy, Call, Missed, Refusal as Gated, SharedSession, Step, Watch, now},
    live::{GaveUp, Settling},
};

use super::{
    Router,
    checked::Checked,
    node::{Node, Wishes},
    question,
    router::Inner,
};
use crate::{
    error::{Fault, Refusal},
    instrument::Listener,
    kinds::Looked,
};

/// A session and the pools that serve it.
pub(super) struct Context {
    pub(super) router: Router,
    pub(super) session: SharedSession,
    pub(super) wishes: Wishes,
    /// A connection of the primary that this handle keeps, since a statement left something with it.
    pub(super) home: Option<Checked>,
}

/// What came of an attempt on a replica.
pub(super) enum Attempt {
    Served,
    /// It could not, for this reason, with this error.
    Missed(Missed, Option<Error>),
    /// It refused the statement as a write.
    Misrouted(Error),
    /// The statement is at fault, or this server is: the primary will tell.
    Unclear(Error),
    /// The statement is at fault.
    Failed(Error),
}

/// Where the primary comes in.
pub(super) enum Routed {
    /// A replica has served it.
    Served,
    Primary(PrimaryReason),
    /// The primary is to run it as a write.
    Write(PrimaryReason),
    /// The primary is to say whether it was the replica's fault, with this error.
    Judge(NodeId),
}

impl Context {
    pub(super) fn new(router: Router, session: SharedSession) -> Self {
        let wishes = Wishes { cache: CacheSize::Unbounded, listener: Listener::by_default(), is_explicit: false };
        Self { router, session, wishes, home: None }
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.router.inner
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.router.inner.watch
    }

    /// A statement goes to the primary.
    pub(super) fn to_primary(&self, class: Option<ReadClass>, reason: PrimaryReason, call: Option<&Call>) {
        let waited = call.map_or(std::time::Duration::ZERO, Call::waited);
        self.watch().to_primary(&self.session, class, reason, waited);
    }

    /// A connection of the primary: the one that is kept, if there is one.
    pub(super) fn take_primary(&mut self) -> QueryResult<Checked> {
        match self.home.take() {
            Some(home) => Ok(home),
            None => self.router.inner.primary().acquire(&self.wishes),
        }
    }

    /// The connection is done with; `keep`: it stays with this handle.
    pub(super) fn give_back(&mut self, mut checked: Checked, keep: bool) {
        if keep {
            checked.spoil();
            self.home = Some(checked);
        }
    }

    pub(super) fn refuse(&self, call: &Call, reason: PrimaryReason) -> Error {
        call.refused(self.watch(), &self.session, reason);
        Refusal::NoReplica(reason).into()
    }

    /// Goes from replica to replica until one has served the call or the primary must.
    pub(super) fn route(
        &mut self,
        call: &mut Call,
        looked: &Looked,
        mut attempt: impl FnMut(&mut Self, &Call, NodeId, &Proof, Busy) -> Attempt,
    ) -> QueryResult<Routed> {
        let mut failure = None;
        let mut next = None;
        loop {
            let step = match next.take() {
                Some(step) => step,
                None => call.step(self.watch(), &self.session),
            };
            let (node, proof) = match step {
                Step::Replica(node, proof) => (node, proof),
                Step::Wait(ask, until) => {
                    let change = self.watch().changed(ask, call.started());
                    change.wait(until.since(now()));
                    continue;
                }
                Step::Primary(reason) => return Ok(Routed::Primary(reason)),
                Step::Refused(reason) => return Err(failure.unwrap_or_else(|| self.refuse(call, reason))),
            };
            let busy = Busy::begin(&self.router.inner.watch, node);
            let policy = self.inner().misrouted;
            match attempt(self, call, node, &proof, busy) {
                Attempt::Served => return Ok(Routed::Served),
                Attempt::Missed(missed, error) => {
                    failure = error.or(failure);
                    next = call.missed(self.watch(), node, missed);
                }
                Attempt::Misrouted(error) => {
                    if !call.misrouted(self.watch(), node, &looked.sql, policy, true) {
                        return Err(error);
                    }
                    return Ok(Routed::Write(PrimaryReason::Misrouted));
                }
                Attempt::Unclear(error) => {
                    let repeat = policy == read_router::Misrouted::Repeat && call.may_fall_back();
                    return if repeat { Ok(Routed::Judge(node)) } else { Err(error) };
                }
                Attempt::Failed(error) => {
                    self.session.served(read_router::Served::by_replica(node, call.class(), call.waited()));
                    return Err(error);
                }
            }
        }
    }

    /// A connection of the node for which the proof holds.
    pub(super) fn acquire_proven(&self, call: &Call, node: NodeId, proof: &Proof) -> Result<Checked, Attempt> {
        let unproven = || Attempt::Missed(Missed::Unproven, None);
        let server: &Node = self.inner().nodes.get(node.index()).ok_or_else(unproven)?;
        let acquired = server.acquire(&self.wishes);
        let mut checked = acquired.map_err(|error| self.elsewhere(call, node, "no connection", error))?;
        if !call.trusts(checked.opened, proof) && !self.renews(call, &mut checked, proof)? {
            return Err(unproven());
        }
        if call.is_still_fresh(proof) { Ok(checked) } else { Err(unproven()) }
    }

    /// Whether a sample on the connection itself shows at least what the proof says of the node.
    fn renews(&self, call: &Call, checked: &mut Checked, proof: &Proof) -> Result<bool, Attempt> {
        let Some(opened) = checked.opened.filter(|_| call.may_renew(proof)) else { return Ok(false) };
        self.watch().counters.own_sample();
        match question::position(checked) {
            Ok(answer) => Ok(call.renews(self.watch(), opened, &answer, proof)),
            Err(error) => {
                checked.spoil();
                Err(self.elsewhere(call, checked.node, "no answer", error))
            }
        }
    }

    pub(super) fn elsewhere(&self, call: &Call, node: NodeId, cause: &'static str, error: Error) -> Attempt {
        call.given_up(self.watch(), node, cause);
        Attempt::Missed(Missed::Elsewhere, Some(error))
    }

    /// What an error of a read on a replica means.
    pub(super) fn judge(&self, call: &Call, node: NodeId, is_lost: bool, started: Time, error: Error) -> Attempt {
        if is_lost {
            self.watch().read_failed(node);
            return self.elsewhere(call, node, "connection lost", error);
        }
        match Fault::of(&error) {
            Fault::ReadOnly => Attempt::Misrouted(error),
            Fault::Conflict | Fault::Gone => self.elsewhere(call, node, "conflict or overload", error),
            Fault::Unclear if call.limit(self.watch()).is_some_and(|limit| now().since(started) >= limit) => {
                self.elsewhere(call, node, GaveUp::TimeLimit.as_str(), error)
            }
            Fault::Unclear => Attempt::Unclear(error),
            Fault::Other => Attempt::Failed(error),
        }
    }

    /// Runs a read on a replica, once more where what the connection has cached may have been stale, or where the time
    /// limit was not its own.
    pub(super) fn read_on_replica(
        &mut self,
        call: &Call,
        node: NodeId,
        proof: &Proof,
        run: &mut dyn FnMut(&mut diesel::PgConnection) -> QueryResult<()>,
    ) -> Attempt {
        let mut checked = match self.acquire_proven(call, node, proof) {
            Ok(checked) => checked,
            Err(missed) => return missed,
        };
        let limit = call.limit(self.watch());
        if let Some(limit) = limit
            && let Err(error) = checked.limit(Some(limit))
        {
            checked.spoil();
            return self.elsewhere(call, node, "no answer", error);
        }
        let started = checked.taken;
        let mut out = run(&mut checked);
        if let Err(error) = &out
            && Fault::of(error) == Fault::Unclear
            && !checked.is_lost(Some(error))
        {
            let is_over = now().since(started) >= self.watch().config.replica_read_timeout;
            // The limit that reads of other classes have stays on the connection, since changing it is a round trip.
            let again = match limit {
                None if is_over => checked.limit(None).is_ok(),
                Some(_) if is_over => false,
                // Nothing that it has cached can be stale.
                _ if checked.is_new() => false,
                _ => {
                    checked.forget_schema();
                    true
                }
            };
            if again {
                out = run(&mut checked);
            }
        }
        match out {
            Ok(()) => {
                let served = call.served(self.watch(), node);
                self.session.read_done(self.watch(), node, proof, served);
                Attempt::Served
            }
            Err(error) => {
                let is_lost = checked.is_lost(Some(&error));
                if is_lost {
                    checked.spoil();
                }
                self.judge(call, node, is_lost, started, error)
            }
        }
    }

    /// A connection of the primary for a read. A strict one's must not be to the old primary; what a failover may have
    /// lost is reported, or refused where the caller wants no fallback.
    pub(super) fn acquire_primary(
        &mut self,
        from: Option<&Node>,
        call: Option<&Call>,
        reason: PrimaryReason,
    ) -> QueryResult<(Checked, PrimaryReason)> {
        let Some(call) = call.filter(|call| call.is_strict()) else {
            return Ok((self.take_from(from)?, reason));
        };
        let mut settle = call.settle(&self.session);
        loop {
            match settle.step(self.watch(), call) {
                Settling::Settled => break,
                Settling::Refused => return Err(self.refuse(call, PrimaryReason::Unsettled)),
                Settling::Wait(until) => {
                    let change = self.watch().changed(Ask::All, call.started());
                    change.wait(until.since(now()));
                }
            }
        }
        loop {
            let checked = self.take_from(from)?;
            match call.admit(self.watch(), &self.session, &settle, checked.opened, reason) {
                Admission::Serve(reason) => return Ok((checked, reason)),
                Admission::Reopen => checked.discard(),
                Admission::Refused(refusal) => {
                    return Err(match refusal {
                        Gated::InRecovery => Refusal::InRecovery.into(),
                        Gated::Unsettled => self.refuse(call, PrimaryReason::Unsettled),
                        Gated::Lost(lost) => Refusal::BranchLost(lost).into(),
                    });
                }
            }
        }
    }

    fn take_from(&mut self, from: Option<&Node>) -> QueryResult<Checked> {
        match from {
            Some(node) => node.acquire(&self.wishes),
            None => self.take_primary(),
        }
    }

    /// Reads on the primary: a contact that may show any commit.
    pub(super) fn read_on_primary(
        &mut self,
        class: Option<ReadClass>,
        call: Option<&Call>,
        reason: PrimaryReason,
        run: &mut dyn FnMut(&mut diesel::PgConnection) -> QueryResult<()>,
    ) -> QueryResult<()> {
        let (mut again, mut told) = (true, None);
        loop {
            let is_home = self.home.is_some();
            let (mut checked, reason) = self.acquire_primary(None, call, reason)?;
            if told.replace(reason) != Some(reason) {
                self.to_primary(class, reason, call);
            }
            let is_new = checked.is_new();
            let mut out = run(&mut checked);
            let is_unclear = out.as_ref().is_err_and(|error| Fault::of(error) == Fault::Unclear);
            if is_unclear && !is_new && !is_home && !checked.is_lost(out.as_ref().err()) {
                checked.forget_schema();
                out = run(&mut checked);
            }
            self.session.contact(self.watch(), checked.opened);
            let is_lost = checked.is_lost(out.as_ref().err());
            if !is_lost {
                self.give_back(checked, is_home);
                return out;
            }
            checked.discard();
            // It may have been idle while its server was restarted; what it left with the connection is gone with it.
            if !std::mem::take(&mut again) || is_home {
                return out;
            }
        }
    }

    /// What a statement on the primary may have shown.
    pub(super) fn contact(&self, opened: Option<Opened>) {
        self.session.contact(self.watch(), opened);
    }
}
