//! Whether the primary may serve a strict read.

use super::{Call, SharedSession, Watch, now};
use crate::{Branch, BranchLost, Opened, PrimaryReason, Session, Time, Topology};

/// A strict read's wait for the primary to show what replicas have shown its session, if that was asked for.
///
/// What it waits for is what they have shown up to here: while it waits, others of the session go on.
#[derive(Debug)]
pub struct Settle {
    session: Option<Session>,
}

/// How far a [`Settle`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settling {
    /// The primary shows it all.
    Settled,
    /// Not yet: wait for a change of the picture ([`Watch::changed`]), until this moment at most.
    Wait(Time),
    /// The wait budget is over: the caller gets an error, [`Unsettled`](PrimaryReason::Unsettled).
    Refused,
}

impl Settle {
    /// How far it is now.
    pub fn step(&mut self, watch: &Watch, call: &Call) -> Settling {
        let topology = watch.topology();
        if let Some(session) = &mut self.session {
            session.resolve(&topology);
        }
        if topology.surviving().is_none_or(|branch| self.is_settled(&topology, branch)) {
            return Settling::Settled;
        }
        let until = call.until(watch);
        if now() >= until { Settling::Refused } else { Settling::Wait(until) }
    }

    fn is_settled(&self, topology: &Topology, branch: Branch) -> bool {
        self.session.as_ref().is_none_or(|session| session.is_settled(topology, branch))
    }
}

/// Whether a connection of the primary may serve a read.
#[derive(Debug)]
pub enum Admission {
    /// It may, for this reason.
    Serve(PrimaryReason),
    /// Close it and take another one: the name may lead elsewhere by now.
    Reopen,
    /// It may not, nor may another one.
    Refused(Refusal),
}

/// Why the primary may not serve a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The primary's name leads to a standby, which may lack what the session has seen.
    InRecovery,
    /// It does not show yet what replicas have shown the session.
    Unsettled,
    /// It cannot have what the session has seen.
    Lost(BranchLost),
}

impl Call {
    /// What the read has to wait for before a connection of the primary is taken.
    #[must_use]
    pub fn settle(&self, session: &SharedSession) -> Settle {
        let wanted = |session: &mut Session| session.has_monotonic_fallback().then(|| session.clone());
        Settle { session: if self.is_strict() { session.with(wanted) } else { None } }
    }

    /// Whether this connection of the primary may serve the read, which goes there for `reason`: a strict read's must not
    /// be to the old primary. What a failover may have lost is
    /// reported, or refused where the caller wants no fallback.
    pub fn admit(
        &self,
        watch: &Watch,
        session: &SharedSession,
        settle: &Settle,
        opened: Option<Opened>,
        reason: PrimaryReason,
    ) -> Admission {
        if !self.is_strict() {
            return Admission::Serve(reason);
        }
        let topology = watch.topology();
        let branch = opened.and_then(|opened| opened.greeting.branch);
        let admitted = branch.map_or(Ok(()), |branch| session.with(|session| session.admits(&topology, branch)));
        let in_recovery = opened.is_some_and(Opened::is_in_recovery);
        if matches!(admitted, Err(BranchLost::OldPrimary { .. })) || in_recovery {
            // The name may point elsewhere by now: a connection opened from here on leads there.
            if opened.is_some_and(|opened| opened.at < self.started()) {
                return Admission::Reopen;
            }
        }
        if in_recovery {
            return Admission::Refused(Refusal::InRecovery);
        }
        if branch.is_some_and(|branch| !settle.is_settled(&topology, branch)) {
            // Not the newest primary that is known, which was waited for.
            return Admission::Refused(Refusal::Unsettled);
        }
        let Err(lost) = admitted else { return Admission::Serve(reason) };
        let may_serve = match lost {
            // Some server is known to be there; this one would show a state from before.
            BranchLost::OldPrimary { seen, .. } => topology.surviving().is_none_or(|known| known < seen),
            _ => true,
        };
        if !self.may_fall_back() || !may_serve {
            watch.report(Some(lost));
            return Admission::Refused(Refusal::Lost(lost));
        }
        if let BranchLost::OldPrimary { now, .. } = lost {
            // Nobody knows of the newer branch that the session, or its token, speaks of.
            watch.report(Some(lost));
            session.with(|session| session.give_up_newer(now));
        }
        // Any other loss is reported by the contact that follows.
        let is_foreign = matches!(lost, BranchLost::OtherCluster { .. });
        Admission::Serve(if is_foreign { PrimaryReason::ForeignToken } else { PrimaryReason::BranchLost })
    }
}
