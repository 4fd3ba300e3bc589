//! A session shared by the clones that hold it.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use event_listener::Event;

use super::{Watch, now, watch::Change};
use crate::{NodeId, Opened, Proof, Served, Session, WriteId};

/// One session; clones are the same session.
#[derive(Clone, Debug)]
pub struct SharedSession {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Connections that came back and are being settled in the background.
    returning: AtomicUsize,
    returned: Event,
}

/// A connection of the session's that came back is being settled, until this is dropped.
#[derive(Debug)]
#[must_use = "dropped, it says that all is settled"]
pub struct Returning(SharedSession);

#[derive(Debug)]
struct State {
    session: Session,
    last: Option<Served>,
    /// Connections given out that never say that they are done, and how many of these are settled.
    handed_out: u64,
    settled: u64,
}

impl SharedSession {
    /// Shares a session.
    #[must_use]
    pub fn new(session: Session) -> Self {
        let state = Mutex::new(State { session, last: None, handed_out: 0, settled: 0 });
        Self { shared: Arc::new(Shared { state, returning: AtomicUsize::new(0), returned: Event::new() }) }
    }

    /// Asks or tells the session something. Nothing may be awaited meanwhile.
    pub fn with<T>(&self, f: impl FnOnce(&mut Session) -> T) -> T {
        f(&mut self.lock().session)
    }

    /// Where its last statement was served.
    #[must_use]
    pub fn last(&self) -> Option<Served> {
        self.lock().last
    }

    /// Its last statement was served there.
    pub fn served(&self, served: Served) {
        self.lock().last = Some(served);
    }

    /// The statement was served nowhere.
    pub fn not_served(&self) {
        self.lock().last = None;
    }

    /// A connection was given out that will not say that it is done: until [`settled`](Self::settled) strict reads go to
    /// the primary.
    pub fn hand_out(&self) {
        let mut state = self.lock();
        state.handed_out += 1;
        state.session.given_out();
    }

    /// A connection that was given out is back, and what was done with it is about to be known: it is worth waiting for.
    pub fn returning(&self) -> Returning {
        self.shared.returning.fetch_add(1, Ordering::AcqRel);
        Returning(self.clone())
    }

    /// The end of one such return; `None` if none is under way.
    #[must_use]
    pub fn being_returned(&self) -> Option<Change> {
        let is_under_way = || self.shared.returning.load(Ordering::Acquire) > 0;
        if !is_under_way() {
            return None;
        }
        let change = Change::new(self.shared.returned.listen());
        is_under_way().then_some(change)
    }

    /// How many have been given out up to here.
    #[must_use]
    pub fn handed_out(&self) -> u64 {
        self.lock().handed_out
    }

    /// The first `count` that were given out are done, and there was a contact with the primary after them.
    pub fn settled(&self, count: u64) {
        let mut state = self.lock();
        if state.settled < count {
            // They may have written up to now.
            state.session.wrote_at(now());
        }
        while state.settled < count {
            state.settled += 1;
            state.session.taken_back();
        }
    }

    /// A statement that was sent to the primary ended now.
    pub fn contact(&self, watch: &Watch, opened: Option<Opened>) {
        let at = now();
        let topology = watch.topology();
        let lost = self.with(|session| match opened.map(|opened| opened.greeting.branch) {
            Some(Some(branch)) => session.contact(branch, at, &topology),
            Some(None) => {
                session.contact_in_recovery(at, &topology);
                None
            }
            None => {
                session.forget();
                None
            }
        });
        watch.report(lost);
    }

    /// The server is done with a write. One that was acknowledged on a connection whose branch is not known leaves
    /// nothing known of the session.
    pub fn acknowledged(&self, watch: &Watch, write: WriteId, opened: Option<Opened>) {
        let at = now();
        let topology = watch.topology();
        let lost = self.with(|session| match opened.and_then(|opened| opened.greeting.branch) {
            Some(branch) => session.acknowledged(write, branch, at, &topology),
            None => {
                session.unsent(write);
                session.wrote_at(at);
                session.forget();
                None
            }
        });
        watch.report(lost);
    }

    /// A read on a replica ended now, and what node served it.
    pub fn read_done(&self, watch: &Watch, node: NodeId, proof: &Proof, served: Served) {
        let at = now();
        let topology = watch.topology();
        let lost = {
            let mut state = self.lock();
            state.last = Some(served);
            match proof.branch {
                Some(branch) if proof.is_primary => state.session.contact(branch, at, &topology),
                branch => {
                    state.session.read_done(node, proof.epoch, branch, at, &topology);
                    None
                }
            }
        };
        watch.report(lost);
    }

    /// Connections of a replica are out, on which the session reads from now on.
    pub fn checked_out(&self, watch: &Watch, node: NodeId, proof: &Proof, served: Served) {
        self.served(served);
        let (at, topology) = (now(), watch.topology());
        self.with(|session| match proof.is_primary {
            true => session.given_out(),
            false => session.checked_out(node, proof.epoch, proof.branch, at, &topology),
        });
    }

    /// They are back.
    pub fn checked_in(&self, watch: &Watch, node: NodeId, proof: &Proof) {
        let (at, topology) = (now(), watch.topology());
        let lost = self.with(|session| match proof.branch.filter(|_| proof.is_primary) {
            Some(branch) => {
                session.taken_back();
                session.contact(branch, at, &topology)
            }
            None => {
                session.checked_in(node, proof.epoch, proof.branch, at, &topology);
                None
            }
        });
        watch.report(lost);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done under the lock panics half-way.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.0.shared.returning.fetch_sub(1, Ordering::AcqRel);
        self.0.shared.returned.notify(usize::MAX);
    }
}
