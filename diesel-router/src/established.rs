//! Routers of URLs, for connections that are established one by one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use read_router::{NodeId, Role, Standing, live::Watch};

/// By URL what is behind the connections that were established with it, for as long as one of them is there.
pub(crate) struct Established<T>(Mutex<BTreeMap<String, Weak<T>>>);

/// Connections of each pool, at most: they are opened when they are wanted, and may be wanted by as many connections as
/// an application's own pool has.
pub(crate) const POOL_SIZE: u32 = 100;

impl<T> Established<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The one of this URL, if there is one that is still good.
    pub(crate) fn get(&self, url: &str, is_good: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        let found = self.routers().get(url)?.upgrade()?;
        is_good(&found).then_some(found)
    }

    /// From here on this one is that of its URL.
    pub(crate) fn put(&self, url: &str, router: &Arc<T>) {
        let mut routers = self.routers();
        routers.retain(|_, router| router.strong_count() > 0);
        routers.insert(url.to_owned(), Arc::downgrade(router));
    }

    fn routers(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Weak<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the host that was the primary when they were all asked still is, as far as is known: else they are asked again.
pub(crate) fn has_its_primary(watch: &Watch) -> bool {
    let topology = watch.topology();
    topology.node(NodeId::PRIMARY).is_some_and(|node| {
        let is_primary = node.observation().is_some_and(|seen| seen.role == Role::Primary);
        is_primary && !matches!(node.standing(), Standing::Down(_) | Standing::Suspect)
    })
}
