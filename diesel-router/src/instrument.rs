//! Who is told of the statements of a handle.

use std::{
    any::TypeId,
    sync::{Arc, Mutex, PoisonError},
};

use diesel::connection::{DynInstrumentation, Instrumentation, InstrumentationEvent, get_default_instrumentation};
use read_router::NodeId;

type Callback = dyn FnMut(Option<NodeId>, InstrumentationEvent<'_>) + Send;

/// Told of everything that happens on the handle, on whichever connection it does.
#[derive(Clone)]
pub(crate) struct Listener(Arc<Mutex<Callback>>);

impl Listener {
    /// One that does not ask for the node.
    pub(crate) fn new(mut instrumentation: impl Instrumentation) -> Self {
        Self(Arc::new(Mutex::new(move |_: Option<NodeId>, event: InstrumentationEvent<'_>| {
            instrumentation.on_connection_event(event);
        })))
    }

    /// One that is told the node too.
    pub(crate) fn with_node(callback: impl FnMut(Option<NodeId>, InstrumentationEvent<'_>) + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(callback)))
    }

    /// What [`set_default_instrumentation`](diesel::connection::set_default_instrumentation) says that a new connection
    /// has.
    pub(crate) fn by_default() -> Option<Self> {
        get_default_instrumentation().map(Self::new)
    }

    /// The instrumentation of a connection to this node.
    pub(crate) fn on(&self, node: Option<NodeId>) -> Forwarder {
        Forwarder { listener: Some(self.clone()), node }
    }
}

/// Whether a connection tells nobody but whom the process wants to be told: an instrumentation of the pool's own is the
/// application's, and stays.
pub(crate) fn is_default(found: &mut dyn Instrumentation) -> bool {
    let found = found.as_any().type_id();
    let expected = match get_default_instrumentation() {
        Some(default) => (*default).as_any().type_id(),
        None => (*DynInstrumentation::none()).as_any().type_id(),
    };
    found == expected || found == TypeId::of::<Silent>()
}

/// Tells nobody.
pub(crate) struct Silent;

impl Instrumentation for Silent {
    fn on_connection_event(&mut self, _: InstrumentationEvent<'_>) {}
}

/// Passes events on, with the node that they come from.
#[derive(Default)]
pub(crate) struct Forwarder {
    listener: Option<Listener>,
    node: Option<NodeId>,
}

impl Instrumentation for Forwarder {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        if let Some(Listener(callback)) = &self.listener {
            let mut callback = callback.lock().unwrap_or_else(PoisonError::into_inner);
            (*callback)(self.node, event);
        }
    }
}
