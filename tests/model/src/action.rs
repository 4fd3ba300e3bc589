//! What can happen next, and how it reads.

use std::fmt;

use crate::client::Class;

/// One step of a schedule. Servers, nodes and processes are numbered from zero; node 0 is the primary's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The session sends a write.
    WriteSent,
    /// The server does the write at this place of the list of writes under way.
    WriteDone(usize),
    /// The session hears of it.
    WriteHeard(usize),
    /// The caller goes away.
    WriteDropped(usize),
    /// The link to a dead server breaks: in doubt.
    WriteBroken(usize),
    /// The backend of a write in doubt is known to be gone.
    WriteSettled(usize),
    /// Someone else commits on this server.
    Other(usize),
    /// A standby replays one commit.
    Replay(usize),
    /// A standby shows one commit while it is still replaying it.
    Show(usize),
    /// A server crashes and is back at once; with `true` its postmaster has a new start time.
    Crash(usize, bool),
    /// A standby becomes a primary.
    Promote(usize),
    /// A standby follows another server.
    Follow(usize, usize),
    /// A diverged server becomes a standby of the newest primary.
    Rewind(usize),
    /// A server writes its log out.
    Flush(usize),
    /// A standby's control file learns its timeline.
    Checkpoint(usize),
    /// The primary's name leads elsewhere.
    Move(usize),
    /// A process probes a node.
    ProbeSent(usize, usize),
    /// A server answers a statement of the probe at this place.
    ProbeAnswered(usize, usize),
    /// The answer is heard.
    ProbeHeard(usize, usize),
    /// A process gives up the probe connection of a node.
    ProbeFailed(usize, usize),
    /// A process opens a new pooled connection to a node.
    Open(usize, usize),
    /// A read comes and finds that it must wait.
    Park(Class),
    /// A read comes and is routed to a node.
    Route(Class, usize),
    /// The waiting read at this place is routed to a node.
    Resume(usize, usize),
    /// A server answers the read at this place.
    ReadAnswered(usize),
    /// Its caller hears it.
    ReadHeard(usize),
    /// The session's token goes to the other process.
    Export,
    /// The coarse clock goes on.
    Tick,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Action::*;
        match *self {
            WriteSent => write!(f, "the session sends a write to the primary"),
            WriteDone(_) => write!(f, "the server commits the write"),
            WriteHeard(_) => write!(f, "the session hears that its write is committed"),
            WriteDropped(_) => write!(f, "the caller of the write goes away"),
            WriteBroken(_) => write!(f, "the link of the write breaks"),
            WriteSettled(_) => write!(f, "the backend of the write in doubt is found to be gone"),
            Other(s) => write!(f, "someone else commits on server {s}"),
            Replay(s) => write!(f, "server {s} replays a commit"),
            Show(s) => write!(f, "server {s} shows a commit whose replay is not over"),
            Crash(s, true) => write!(f, "server {s} crashes and starts again"),
            Crash(s, false) => write!(f, "a backend of server {s} is killed: it recovers under the same start time"),
            Promote(s) => write!(f, "server {s} is promoted"),
            Follow(s, new) => write!(f, "server {s} follows server {new} to its timeline"),
            Rewind(s) => write!(f, "server {s} is rewound to be a standby of the newest primary"),
            Flush(s) => write!(f, "server {s} writes its log to disk"),
            Checkpoint(s) => write!(f, "server {s} writes its timeline to the control file"),
            Move(s) => write!(f, "the primary's name leads to server {s} from now on"),
            ProbeSent(p, n) => write!(f, "process {p} sends a probe to {}", Node(n)),
            ProbeAnswered(p, i) => write!(f, "the server answers (probe {i} of process {p})"),
            ProbeHeard(p, i) => write!(f, "process {p} hears the answer (probe {i})"),
            ProbeFailed(p, n) => write!(f, "process {p} gives up its probe connection to {}", Node(n)),
            Open(p, n) => write!(f, "process {p} opens a new pooled connection to {}", Node(n)),
            Park(class) => write!(f, "a {} read comes and waits", Words(class)),
            Route(class, 0) => write!(f, "a {} read is routed to the primary", Words(class)),
            Route(class, n) => write!(f, "a {} read is routed to {}", Words(class), Node(n)),
            Resume(_, n) => write!(f, "the waiting read is routed to {}", Node(n)),
            ReadAnswered(_) => write!(f, "the read is executed"),
            ReadHeard(_) => write!(f, "the session hears the result of the read"),
            Export => write!(f, "the session's token goes to the other process"),
            Tick => write!(f, "the clock ticks"),
        }
    }
}

struct Node(usize);

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "the primary's name"),
            n => write!(f, "replica {n}"),
        }
    }
}

struct Words(Class);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Class::Strict => "strict",
            Class::Bounded => "bounded",
            Class::Eventual => "eventual",
            Class::Plain => "plain",
        })
    }
}
