//! What was done and seen: plain values, written and read as JSON lines.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

/// One cluster's life: what the sessions did, and what was done to the servers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// What was asked of the router.
    pub promise: Promise,
    /// In no order.
    pub operations: Vec<Operation>,
    /// In the order of their beginnings.
    pub faults: Vec<Fault>,
}

/// What is held against the router, besides what always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// A strict read that the primary serves is not behind what replicas had shown either (`monotonic_fallback`).
    pub monotonic_on_primary: bool,
}

/// One call of a session's, as its caller saw it.
///
/// All instants are nanoseconds on the [one clock](crate::clock::now).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Its own number, unique in the history; a write leaves it in the registers as their tag.
    pub id: u64,
    /// Who called; the process is in the upper half.
    pub task: u32,
    /// The session. Clones and views are the same one; a resumed session is another, with a [`Action::Resume`].
    pub session: u64,
    /// An instant before the call.
    pub started: u64,
    /// An instant after its end.
    pub ended: u64,
    /// What was called.
    pub action: Action,
    /// How it ended.
    pub outcome: Outcome,
    /// The registers that it showed, or wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Value>,
    /// Which server answered, by its own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Server>,
    /// Why the primary, by the router's word; `None` also where clones may have overwritten it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a session called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A read of one or more registers in one statement.
    Read(Class),
    /// One more version of each of these registers, in one transaction.
    Write(Vec<u16>),
    /// The session's token was asked for.
    Export,
    /// The session begins where these exports' tokens stand.
    Resume(Vec<u64>),
    /// The registers as the surviving primary has them when all is over.
    Final,
}

/// The class of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// `MustSeeMyWrite`.
    Strict,
    /// `SecondsStale`, with its bound in nanoseconds.
    Bounded(u64),
    /// `Eventual`.
    Eventual,
    /// None: the primary.
    Unannotated,
    /// `on_primary()`.
    Primary,
}

impl Class {
    /// The name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "must_see_my_write",
            Self::Bounded(_) => "seconds_stale",
            Self::Eventual => "eventual",
            Self::Unannotated => "unannotated",
            Self::Primary => "on_primary",
        }
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was answered; a write is acknowledged.
    Done,
    /// A transaction was rolled back by its caller, or never committed: it must never be seen.
    RolledBack,
    /// An error, by its cause. A write may have happened, or may yet.
    Failed(String),
    /// The caller went away. A write may have happened, or may yet.
    Cancelled,
}

/// A register as it was shown, or as a write left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Value {
    /// Which register.
    #[serde(rename = "r")]
    pub register: u16,
    /// One more with each write that commits; zero at the start.
    #[serde(rename = "v")]
    pub version: u64,
    /// The [operation](Operation::id) that wrote it; zero at the start.
    #[serde(rename = "t")]
    pub tag: u64,
}

/// A server, by its own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Server {
    /// Its port, which stands for the node for as long as the cluster lives.
    pub port: u16,
    /// Whether it was in recovery when it answered.
    pub standby: bool,
}

/// Something that was done to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What.
    pub kind: String,
    /// The node's name.
    pub node: String,
    /// An instant before it was done.
    pub began: u64,
    /// An instant after it was over.
    pub ended: u64,
    /// Where a standby was promoted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion: Option<Promotion>,
}

/// A change of the primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promotion {
    /// An instant before the promotion was asked for.
    pub began: u64,
    /// An instant from which on the old primary was dead.
    pub fenced: u64,
    /// An instant before the primary's name was moved.
    pub named: u64,
    /// Where the old primary died with commits that nobody else had: the registers as the new one had them before it
    /// was written to. Then its versions went on from there by a [`LEAP`]. Empty where nothing was lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Value>,
}

/// More versions than a register ever has on one primary: after a loss they leap, so that a version stays one commit.
pub const LEAP: u64 = 1_000_000;

impl Promotion {
    /// Whether both primaries may have answered at this instant.
    #[must_use]
    pub fn is_split_at(&self, at: u64) -> bool {
        self.began <= at && at < self.fenced
    }

    /// The version that was left of this one, if it was lost.
    #[must_use]
    pub fn left_of(&self, register: u16, version: u64) -> Option<u64> {
        let kept = self.kept.iter().find(|value| value.register == register)?.version;
        (kept < version && version < kept + LEAP).then_some(kept)
    }
}

/// One line of a history file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// A new history begins.
    Episode(Promise),
    Operation(Operation),
    Fault(Fault),
}

impl History {
    /// Appends the history to a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut line = |line: &Line| {
            serde_json::to_writer(&mut *to, line)?;
            to.write_all(b"\n")
        };
        line(&Line::Episode(self.promise))?;
        self.faults.iter().try_for_each(|fault| line(&Line::Fault(fault.clone())))?;
        self.operations.iter().try_for_each(|operation| line(&Line::Operation(operation.clone())))
    }

    /// The histories that [`write`](Self::write) has written.
    ///
    /// # Errors
    /// If the file cannot be read, or is none of ours.
    pub fn read(from: impl BufRead) -> io::Result<Vec<Self>> {
        let mut histories: Vec<Self> = Vec::new();
        for line in from.lines() {
            let line = serde_json::from_str(&line?)?;
            if matches!(line, Line::Episode(_)) || histories.is_empty() {
                histories.push(Self::default());
            }
            let Some(history) = histories.last_mut() else { continue };
            match line {
                Line::Episode(promise) => history.promise = promise,
                Line::Operation(operation) => history.operations.push(operation),
                Line::Fault(fault) => history.faults.push(fault),
            }
        }
        Ok(histories)
    }
}
