//! Where a task's next session comes from.

use rand::{RngExt, rngs::StdRng};
use sea_router::{RoutingConnection, Token};

use super::{Client, HandOver};
use crate::{
    clock,
    history::{Action, Operation, Outcome},
};

/// A session, with the number that it has in the history.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) session: u64,
    pub(crate) db: RoutingConnection,
}

impl Client {
    /// A new session, or one that goes on where tokens stand that have arrived: then with its entry in the history.
    pub(crate) fn next_session(&self, task: u32, random: &mut StdRng) -> (Handle, Option<Operation>) {
        let wanted = match random.random_range(0..20) {
            0..8 => 0,
            8..17 => 1,
            _ => 2,
        };
        let tokens: Vec<HandOver> = {
            let mut arrived = super::lock(&self.arrived);
            (0..wanted).filter_map(|_| arrived.pop_front()).collect()
        };
        match self.resume(task, &tokens) {
            Some((handle, entry)) => (handle, Some(entry)),
            None => (self.new_session(), None),
        }
    }

    /// The session that has all of what these tokens stand for.
    fn resume(&self, task: u32, tokens: &[HandOver]) -> Option<(Handle, Operation)> {
        let mut merged: Option<Token> = None;
        for HandOver { token, .. } in tokens {
            let token: Token = token.parse().ok()?;
            match &mut merged {
                None => merged = Some(token),
                Some(merged) => merged.advance(&token),
            }
        }
        let session = self.next();
        let started = clock::now();
        let handle = Handle { session, db: self.db.resume(merged?) };
        let entry = Operation {
            id: session,
            task,
            session,
            started,
            ended: clock::now(),
            action: Action::Resume(tokens.iter().map(|token| token.export).collect()),
            outcome: Outcome::Done,
            values: Vec::new(),
            server: None,
            reason: None,
        };
        Some((handle, entry))
    }
}
