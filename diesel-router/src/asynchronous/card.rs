//! What is known of a pooled connection, kept with the connection itself.

use std::sync::Arc;

use diesel::connection::{
    CacheSize, Instrumentation, InstrumentationEvent, StrQueryHelper, get_default_instrumentation,
};
use diesel_async::AsyncConnection;
use read_router::{Opened, live::Watch};

use super::pool::Lease;
use crate::{
    instrument::{Forwarder, is_default},
    traces::Traces,
};

/// What is known of a connection: whose it is and since when, and of which version of the schema its prepared statements
/// are.
///
/// No pool lets us note anything about a connection, but the connection itself does: this is its instrumentation, which
/// passes events on to that of the handle that uses the connection, or else to Diesel's default.
pub(crate) struct Card {
    pub(crate) opened: Option<Opened>,
    pub(crate) schema: u64,
    pub(crate) is_read_only: bool,
    listener: Option<Forwarder>,
    default: Option<Box<dyn Instrumentation>>,
    /// How the next query reads, for the listener: what is run is a copy that has lost its binds' values.
    query: Option<String>,
    /// Whether the last query was prepared for its run.
    has_prepared: bool,
    /// What the borrower of the connection has done; `None` if nobody looks.
    traces: Option<Traces>,
}

impl Card {
    /// Leaves a card with the connection. An instrumentation that the pool's own set-up has put there stays in place of
    /// it, and is no less the application's: such a connection has no card, and is asked each time it is taken.
    pub(crate) fn leave(lease: &mut Lease, opened: Option<Opened>, schema: u64, is_read_only: bool) {
        if !is_default(lease.listener()) {
            return;
        }
        let default = get_default_instrumentation();
        lease.set_instrumentation(Self {
            opened,
            schema,
            is_read_only,
            listener: None,
            default,
            query: None,
            has_prepared: false,
            traces: None,
        });
    }

    /// The connection's card, if there is one.
    pub(crate) fn of(lease: &mut Lease) -> Option<&mut Self> {
        lease.listener().downcast_mut()
    }

    /// Tells this listener of what follows; `query` is how the next query reads.
    pub(crate) fn listen(&mut self, listener: Option<Forwarder>, query: Option<String>) {
        self.listener = listener;
        self.query = query;
        self.has_prepared = false;
        self.traces = None;
    }

    /// Looks from here on at what the borrower does.
    pub(crate) fn look(&mut self, watch: &Arc<Watch>) {
        self.traces = Some(Traces::new(watch.clone()));
    }

    /// What the borrower has done, if somebody looks.
    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.traces.as_ref()
    }

    /// Whether the last query was prepared for its run, rather than before.
    pub(crate) fn has_prepared(&self) -> bool {
        self.has_prepared
    }
}

impl Instrumentation for Card {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        if let Some(traces) = &mut self.traces {
            traces.see(&event);
        }
        let text = match &event {
            InstrumentationEvent::StartQuery { .. } => self.query.take(),
            InstrumentationEvent::CacheQuery { .. } => {
                self.has_prepared = true;
                None
            }
            _ => None,
        };
        let mut tell = |event: InstrumentationEvent<'_>| match (&mut self.listener, &mut self.default) {
            (Some(listener), _) => listener.on_connection_event(event),
            (None, Some(default)) => default.on_connection_event(event),
            (None, None) => {}
        };
        match text {
            Some(text) => tell(InstrumentationEvent::start_query(&StrQueryHelper::new(&text))),
            None => tell(event),
        }
    }
}

/// Forgets the connection's prepared statements.
pub(crate) fn forget_statements(connection: &mut diesel_async::AsyncPgConnection) {
    // There is no other way: a cache of another size starts empty.
    connection.set_prepared_statement_cache_size(CacheSize::Disabled);
    connection.set_prepared_statement_cache_size(CacheSize::Unbounded);
}
