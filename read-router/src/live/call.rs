//! One read on its way to a server.

use std::time::Duration;

use super::{GaveUp, SharedSession, Watch, now};
use crate::{
    Answer, Ask, Branch, Fallback, Misrouted, Need, NodeId, Opened, PrimaryReason, Proof, ReadClass, ReadOptions, Role,
    Route, Served, Session, Time, connection_trusts, events, select,
};

/// One read, from the call to the server that serves it: it goes to a replica, to another one if the first disappoints, and
/// then to the primary, once each.
///
/// The adapter asks for the next [`step`](Self::step) and does it; a replica that did not serve is
/// [reported](Self::missed).
#[derive(Debug)]
pub struct Call {
    options: ReadOptions,
    started: Time,
    waited: Duration,
    exclude: Option<NodeId>,
    failed: bool,
    /// What the session must see is what it has seen when the call comes; while this call waits, others of the session go
    /// on.
    waiting: Option<Session>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Try this replica, on a connection for which the proof [holds](Call::trusts).
    Replica(NodeId, Proof),
    /// Wait for a change of the picture ([`Watch::changed`]), until this moment at most.
    Wait(Ask, Time),
    /// The primary is to serve it.
    Primary(PrimaryReason),
    /// The caller gets an error: the last replica's, if one has failed, else a refusal with this reason.
    Refused(PrimaryReason),
}

/// Why the chosen replica did not serve a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// The connection is younger than the proof, and its own sample did not renew it.
    Unproven,
    /// Nothing can be proven of the pool's connections in this way.
    Untracked,
    /// The node is going down or too busy, or the read fell to a conflict with replay.
    Elsewhere,
}

impl Call {
    /// A read that is asked for now.
    #[must_use]
    pub fn new(options: ReadOptions) -> Self {
        Self { options, started: now(), waited: Duration::ZERO, exclude: None, failed: false, waiting: None }
    }

    /// What the caller asked for.
    #[must_use]
    pub fn options(&self) -> ReadOptions {
        self.options
    }

    /// The class that was asked for.
    #[must_use]
    pub fn class(&self) -> ReadClass {
        self.options.class()
    }

    /// When the call came.
    #[must_use]
    pub fn started(&self) -> Time {
        self.started
    }

    /// How long it has waited for observations.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Whether it must see what its session wrote and saw.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.class() == ReadClass::MustSeeMyWrite
    }

    /// Whether the primary may serve it where no replica can.
    #[must_use]
    pub fn may_fall_back(&self) -> bool {
        self.options.fallback() == Fallback::Primary
    }

    /// The end of the wait budget.
    #[must_use]
    pub fn until(&self, watch: &Watch) -> Time {
        self.started + self.options.budget(&watch.config)
    }

    /// The time limit of the read on a replica; `None` if there is none.
    #[must_use]
    pub fn limit(&self, watch: &Watch) -> Option<Duration> {
        match self.class() {
            ReadClass::Eventual => None,
            ReadClass::MustSeeMyWrite | ReadClass::SecondsStale(_) => Some(watch.config.replica_read_timeout),
        }
    }

    /// What is to be done now.
    pub fn step(&mut self, watch: &Watch, session: &SharedSession) -> Step {
        let topology = watch.topology();
        let route = match self.waiting.take() {
            Some(mut waiting) => {
                waiting.resolve(&topology);
                let route = select(&topology, &self.need(watch, &waiting), now(), rand::random());
                if matches!(route, Route::Wait { .. }) {
                    self.waiting = Some(waiting);
                } else {
                    self.waited = now().since(self.started);
                    watch.counters.waited(self.waited);
                }
                route
            }
            None => session.with(|session| {
                session.resolve(&topology);
                let route = select(&topology, &self.need(watch, session), now(), rand::random());
                if matches!(route, Route::Wait { .. }) {
                    self.waiting = Some(session.clone());
                }
                route
            }),
        };
        match route {
            Route::Replica(node, proof) => Step::Replica(node, proof),
            Route::Wait { until, ask } => Step::Wait(ask, until),
            Route::Primary(_) if self.failed => Step::Primary(PrimaryReason::ReplicaFailed),
            Route::Primary(reason) => Step::Primary(reason),
            Route::Refused(reason) => Step::Refused(reason),
        }
    }

    /// The chosen replica did not serve: what is to be done now, or `None` for the next [`step`](Self::step).
    pub fn missed(&mut self, watch: &Watch, node: NodeId, missed: Missed) -> Option<Step> {
        let reason = match missed {
            Missed::Unproven if now() < self.until(watch) => return Some(Step::Wait(Ask::All, self.until(watch))),
            Missed::Unproven => PrimaryReason::Behind,
            Missed::Untracked => PrimaryReason::Untracked,
            Missed::Elsewhere => {
                self.failed = true;
                self.exclude.replace(node)?;
                PrimaryReason::ReplicaFailed
            }
        };
        Some(if self.may_fall_back() { Step::Primary(reason) } else { Step::Refused(reason) })
    }

    /// The replica refused the statement as a write; returns whether to repeat it on the primary, or to give the caller the
    /// replica's error. `lasting`: whether a replica would refuse it the next time too.
    pub fn misrouted(&self, watch: &Watch, node: NodeId, sql: &str, policy: Misrouted, lasting: bool) -> bool {
        let repeat = policy == Misrouted::Repeat && self.may_fall_back();
        // Where it fails, or may have failed for a passing reason, it is to fail the next time too.
        let is_new = watch.refused_by_replica(sql, repeat && lasting);
        events::misrouted(node, repeat, is_new);
        repeat
    }

    /// A read on a replica is done: counts it, and says where it was served.
    pub fn served(&self, watch: &Watch, node: NodeId) -> Served {
        let class = self.class();
        watch.counters.replica(Some(class), node);
        events::to_replica(class, node, self.waited);
        Served::by_replica(node, class, self.waited)
    }

    /// A read on a replica was given up, or could not begin.
    pub fn given_up(&self, watch: &Watch, node: NodeId, cause: &'static str) {
        watch.counters.replica_failed();
        events::replica_failed(node, cause);
    }

    /// The caller gets an error in place of a fallback.
    pub fn refused(&self, watch: &Watch, session: &SharedSession, reason: PrimaryReason) {
        watch.counters.refused();
        session.not_served();
        events::refused(Some(self.class()), reason);
    }

    /// What the choice has to go by.
    pub fn need<'a>(&self, watch: &'a Watch, session: &'a Session) -> Need<'a> {
        Need {
            read: self.options,
            session,
            started: self.started,
            exclude: self.exclude,
            in_flight: &watch.in_flight,
            config: &watch.config,
        }
    }

    /// Whether what was proven of the node holds for this connection, at this moment.
    #[must_use]
    pub fn trusts(&self, checked: Option<Opened>, proof: &Proof) -> bool {
        let Some(opened) = checked else { return false };
        let same_server = opened.greeting.instance == proof.instance;
        match self.class() {
            _ if proof.is_primary => same_server,
            ReadClass::Eventual => same_server,
            _ => connection_trusts(opened.at, opened.greeting.instance, proof.instance, proof.sent_at),
        }
    }

    /// Whether a sample on the connection itself may renew a proof that does not hold for it.
    #[must_use]
    pub fn may_renew(&self, proof: &Proof) -> bool {
        !proof.same_life && !proof.is_primary
    }

    /// Whether the answer of the connection itself shows at least what the proof says of the node.
    #[must_use]
    pub fn renews(&self, watch: &Watch, opened: Opened, answer: &Answer, proof: &Proof) -> bool {
        let system = opened.greeting.instance.system;
        let branch = answer.timeline.map(|timeline| Branch { system, timeline });
        let is_known = branch.is_some_and(|branch| watch.topology().vouches_for(branch, answer.exact));
        answer.role == Role::Replica && is_known && branch == proof.branch && answer.lsn >= proof.lsn
    }

    /// Whether the bound, which counts up to the sending of the read, still holds after a wait for the pool.
    #[must_use]
    pub fn is_still_fresh(&self, proof: &Proof) -> bool {
        match self.class() {
            ReadClass::SecondsStale(bound) if !proof.is_primary => {
                proof.covered.is_some_and(|covered| now().since(covered) <= bound)
            }
            _ => true,
        }
    }
}

impl GaveUp {
    /// For events and errors.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TimeLimit => "it took longer than replica_read_timeout",
            Self::NodeDown => "the replica no longer answers",
        }
    }
}
