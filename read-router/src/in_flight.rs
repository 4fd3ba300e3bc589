//! How busy each node is.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::NodeId;

/// Reads under way on each node, counted by whoever runs them.
#[derive(Debug, Default)]
pub struct InFlight(Box<[AtomicU32]>);

impl InFlight {
    /// Counters for as many nodes as the topology has.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self((0..nodes).map(|_| AtomicU32::new(0)).collect())
    }

    /// A read on the node begins.
    pub fn begin(&self, node: NodeId) {
        if let Some(count) = self.0.get(node.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A read on the node that [began](Self::begin) is over.
    pub fn end(&self, node: NodeId) {
        if let Some(count) = self.0.get(node.index()) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads under way on the node.
    #[must_use]
    pub fn count(&self, node: NodeId) -> u32 {
        self.0.get(node.index()).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}
