//! Diesel's errors as the scenarios want them.

use diesel_router::{PrimaryReason, Refusal, refusal};
use read_router_scenarios::Isolation;

/// Diesel's error, which is not `Sync` in all its parts.
#[derive(Debug)]
pub(crate) struct Failed {
    /// Why a read was refused.
    pub(crate) reason: Option<PrimaryReason>,
    text: String,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failed {}

impl From<diesel::result::Error> for Failed {
    fn from(error: diesel::result::Error) -> Self {
        let reason = match refusal(&error) {
            Some(Refusal::NoReplica(reason)) => Some(reason),
            _ => None,
        };
        Self { reason, text: error.to_string() }
    }
}

impl From<diesel_router::Error> for Failed {
    fn from(error: diesel_router::Error) -> Self {
        Self { reason: None, text: error.to_string() }
    }
}

/// What begins such a transaction.
pub(crate) fn begin_read_only(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::RepeatableRead => "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
        Isolation::Serializable => "BEGIN TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY",
    }
}
