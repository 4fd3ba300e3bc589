//! Switches for the checks: each turns one rule off, to show that the check finds what the rule prevents.
//!
//! They exist in builds with `--cfg read_router_mutants` only; in any other, nothing can be off and the switch points
//! compile to nothing.

/// A rule that can be off. `RULES.md` numbers them; where one has several parts, each part has a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(read_router_mutants), allow(unreachable_pub, dead_code))]
pub enum Rule {
    /// 2: a connection is trusted only for observations sent after it opened.
    ConnectionTrust,
    /// 3: answers of closed epochs are dropped.
    ClosedEpochs,
    /// 3: positions are never merged across epochs.
    EpochsApart,
    /// 4: only a sample of the mark's branch resolves it.
    BranchOfMark,
    /// 5: the primary must be on the branch of every floor.
    GatedPrimary,
    /// 5: of an older branch only what lies below the switch point survives.
    SwitchBound,
    /// 6: the branch of a replica read is that of a later answer.
    LaterBranch,
    /// 7: every contact with the primary counts, not only writes.
    PrimaryReads,
    /// 8: a write of unknown outcome keeps the session on the primary.
    InDoubt,
    /// 9: a floor is resolved by a sample sent after the read's end, not received after it.
    SentAfterRead,
    /// 9: the same node is the same life of it.
    SameLife,
    /// 9: reads on several nodes have a floor each.
    FloorEach,
    /// 9: an exported token contains the floors.
    ExportedFloors,
    /// 10: a token is capped only by a later sample.
    LaterCap,
    /// 11: only samples of the highest timeline bound the staleness.
    HighestTimeline,
    /// 12: the probe reads the position before the timeline. Adapters ask, where they send it.
    #[cfg(read_router_mutants)]
    PositionFirst,
    /// 12: without a standby's own word its timeline counts only while a primary answers on it.
    OwnWord,
    /// 13: a replica ahead of a later sample is quarantined.
    Quarantine,
    /// 14: a sample must be sent strictly later.
    StrictlyLater,
    /// 15: an answer counts from the sending of its question.
    JoinUnsent,
    /// 15: the primary under another name is of the same branch and instance.
    SamePrimary,
    /// 15: tokens of two branches are not merged by number.
    MergePerBranch,
    /// 15: an unresolved session is not fresh.
    UnresolvedIsUnknown,
    /// Beyond the list: what a replica showed may lie in the record after its position.
    PastPosition,
    /// 1, the option: the primary serves only once it shows what replicas have shown.
    Settled,
}

#[cfg(not(read_router_mutants))]
pub(crate) const fn is_off(_: Rule) -> bool {
    false
}

#[cfg(read_router_mutants)]
mod switches {
    use std::{
        cell::Cell,
        sync::atomic::{AtomicU32, Ordering},
    };

    use super::Rule;

    static OFF_EVERYWHERE: AtomicU32 = AtomicU32::new(0);

    thread_local! {
        static OFF: Cell<u32> = const { Cell::new(0) };
    }

    impl Rule {
        /// All of them.
        pub const ALL: [Self; 25] = [
            Self::ConnectionTrust,
            Self::ClosedEpochs,
            Self::EpochsApart,
            Self::BranchOfMark,
            Self::GatedPrimary,
            Self::SwitchBound,
            Self::LaterBranch,
            Self::PrimaryReads,
            Self::InDoubt,
            Self::SentAfterRead,
            Self::SameLife,
            Self::FloorEach,
            Self::ExportedFloors,
            Self::LaterCap,
            Self::HighestTimeline,
            Self::PositionFirst,
            Self::OwnWord,
            Self::Quarantine,
            Self::StrictlyLater,
            Self::JoinUnsent,
            Self::SamePrimary,
            Self::MergePerBranch,
            Self::UnresolvedIsUnknown,
            Self::PastPosition,
            Self::Settled,
        ];

        /// Its place in the arguments of [`switch_off`] and [`switch_off_everywhere`].
        #[must_use]
        pub const fn bit(self) -> u32 {
            1 << self as u32
        }
    }

    /// Turns exactly these rules off, in this thread.
    pub fn switch_off(rules: u32) {
        OFF.with(|off| off.set(rules));
    }

    /// Turns exactly these rules off in every thread, beside those that a thread has turned off for itself.
    pub fn switch_off_everywhere(rules: u32) {
        OFF_EVERYWHERE.store(rules, Ordering::Relaxed);
    }

    /// Whether the rule is off here.
    #[must_use]
    pub fn is_off(rule: Rule) -> bool {
        (OFF.with(Cell::get) | OFF_EVERYWHERE.load(Ordering::Relaxed)) & rule.bit() != 0
    }
}

#[cfg(read_router_mutants)]
pub use switches::{is_off, switch_off, switch_off_everywhere};
