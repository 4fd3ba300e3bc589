//! Searches a world breadth first.

use std::{
    fmt,
    time::{Duration, Instant},
};

use stateright::{Checker, Model};

use crate::{Action, Violation, World};

/// A world with more steps than this is too large to be exhausted in memory.
const MOST_STATES: usize = 4_000_000;

/// What a search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Distinct states.
    pub states: usize,
    /// The longest schedule looked at.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// Whether every state was looked at.
    pub exhausted: bool,
    /// The shortest schedule that breaks a promise.
    pub broken: Option<Schedule>,
}

/// A schedule that breaks a promise.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// What happens, one after the other.
    pub actions: Vec<Action>,
    /// The promise.
    pub violation: Violation,
}

impl World {
    /// Looks at every state, the nearest first, until one breaks a promise or `limit` has passed.
    #[must_use]
    pub fn search(&self, limit: Duration) -> Found {
        let began = Instant::now();
        let checker =
            self.clone().checker().threads(1).timeout(limit).target_state_count(MOST_STATES).spawn_bfs().join();
        let broken = checker.discovery("the promises").map(|path| {
            let violation = path.last_state().violation;
            let actions = self.prefix.iter().copied().chain(path.into_actions()).collect();
            Schedule { actions, violation: violation.expect("a discovery is a state with a violation") }
        });
        let took = began.elapsed();
        Found {
            states: checker.unique_state_count(),
            depth: checker.max_depth(),
            exhausted: broken.is_none() && took < limit && checker.state_count() < MOST_STATES,
            took,
            broken,
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, action) in self.actions.iter().enumerate() {
            writeln!(f, "  {:2}. {action}", index + 1)?;
        }
        writeln!(f, "   => {}", self.violation)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (read, commits, whose) = match self {
            Self::OwnWrite(commits) => ("a strict read", commits, "which the session was told are committed"),
            Self::Shown(commits) => ("a strict read", commits, "which the session had been shown"),
            Self::Doubtful(commits) => ("a strict read", commits, "which the session wrote and nobody heard of"),
            Self::Stale(commits) => ("a bounded read", commits, "acknowledged before the instant of its proof"),
        };
        let missed: Vec<_> = (0..16).filter(|commit| commits & 1 << commit != 0).map(|c| c.to_string()).collect();
        write!(f, "{read} misses the commits [{}], {whose}", missed.join(", "))
    }
}
