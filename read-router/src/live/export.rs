//! A session's token on its way out.

use super::{SharedSession, Watch, now};
use crate::{Session, Time, Token};

/// A token that is asked for: it is there once the primary has been sampled after the session's last write.
#[derive(Debug)]
pub struct Export {
    session: Session,
    started: Time,
}

impl Export {
    /// The session's token, as it stands now.
    #[must_use]
    pub fn new(session: &SharedSession) -> Self {
        Self { session: session.with(|session| session.clone()), started: now() }
    }

    /// When it was asked for.
    #[must_use]
    pub fn started(&self) -> Time {
        self.started
    }

    /// The token, or until when to wait for a change of the picture ([`Watch::changed`]) before the next try.
    ///
    /// Without a sample of the primary within `probe_timeout` it is [unknown](Token::UNKNOWN).
    pub fn step(&mut self, watch: &Watch) -> Result<Token, Time> {
        let until = self.started + watch.config.probe_timeout;
        let exact_until = self.started + watch.config.strict_wait.min(watch.config.probe_timeout);
        self.session.resolve(&watch.topology());
        match self.session.token() {
            Some(token) if self.session.is_exact() || token.is_unknown() || now() >= exact_until => Ok(token),
            // The primary's answer is on its way; without it the token would name a position that may never be.
            Some(_) => Err(exact_until),
            None if now() >= until => Ok(Token::UNKNOWN),
            None => Err(until),
        }
    }
}
