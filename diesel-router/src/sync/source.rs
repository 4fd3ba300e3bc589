//! Where a server is, and what it is for.

use std::{fmt, sync::Arc};

use diesel::{
    PgConnection,
    r2d2::{self, ConnectionManager},
};
use read_router::{ClassName, ReplicaConfig};

/// A pool of plain connections.
pub(super) type Pool = r2d2::Pool<ConnectionManager<PgConnection>>;

/// Where one server is: a URL (or libpq's `host=.. dbname=..`), or a pool that the application has built.
///
/// A pool is taken as it is, with its customizer, its size and its timeouts. When one of its connections is taken for
/// the first time it is asked whose it is, which is one round trip for each connection's life. The probes take one
/// connection of it for themselves, unless [`probe_url`](Self::probe_url) says where else they lead.
///
/// The pool stays shared: what the application does with it itself is not part of any session. A replica's connections
/// become read-only when they are taken: never give a replica the pool of the primary.
#[must_use]
pub struct Source {
    pub(super) kind: Kind,
    pub(super) probe_url: Option<String>,
}

#[derive(Clone)]
pub(super) enum Kind {
    Url(String),
    Pool(Pool),
}

impl Source {
    /// Probes the server over connections of their own, opened by this URL, in place of one of the pool's.
    pub fn probe_url(mut self, url: impl Into<String>) -> Self {
        self.probe_url = Some(url.into());
        self
    }

    /// Where it leads, as far as that is known.
    pub(super) fn url(&self) -> Option<&str> {
        match &self.kind {
            Kind::Url(url) => Some(url),
            Kind::Pool(_) => self.probe_url.as_deref(),
        }
    }
}

/// A replica: where it is and what it serves.
///
/// Anything that is a [`Source`] is a replica of weight 1 that serves every class.
#[must_use]
pub struct Replica {
    pub(super) source: Source,
    pub(super) config: ReplicaConfig,
}

impl Replica {
    /// A replica of weight 1, in no group, that serves every class.
    pub fn new(source: impl Into<Source>) -> Self {
        Self { source: source.into(), config: ReplicaConfig::new() }
    }

    /// How much of the load it takes, against the other replicas that may serve a read. Defaults to 1.
    ///
    /// With weights 3 and 1 the first gets three reads of four while both are idle, and under load three times as many
    /// at once. Zero is taken for 1.
    pub fn weight(mut self, weight: u32) -> Self {
        self.config = self.config.weight(weight);
        self
    }

    /// Serves these classes only. Defaults to all.
    ///
    /// A read prefers the replicas that serve the fewest classes besides its own: where one serves
    /// [`Eventual`](ClassName::Eventual) only, as a replica for reports does, `Eventual` reads go there while it is up.
    pub fn only(mut self, classes: impl IntoIterator<Item = ClassName>) -> Self {
        self.config = self.config.only(classes);
        self
    }

    /// Belongs to the group of this name, for reads that ask for it: `ReadClass::Eventual.in_group("reports")`. It
    /// serves other reads too. Defaults to none.
    pub fn group(mut self, name: impl Into<Arc<str>>) -> Self {
        self.config = self.config.group(name);
        self
    }
}

impl<S: Into<Source>> From<S> for Replica {
    fn from(source: S) -> Self {
        Self::new(source)
    }
}

impl From<&str> for Source {
    fn from(url: &str) -> Self {
        url.to_owned().into()
    }
}

impl From<String> for Source {
    fn from(url: String) -> Self {
        Self { kind: Kind::Url(url), probe_url: None }
    }
}

impl From<&String> for Source {
    fn from(url: &String) -> Self {
        url.clone().into()
    }
}

impl From<Pool> for Source {
    fn from(pool: Pool) -> Self {
        Self { kind: Kind::Pool(pool), probe_url: None }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL, which may hold a password.
        f.write_str(match self.kind {
            Kind::Url(_) => "Source(url)",
            Kind::Pool(_) => "Source(pool)",
        })
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica").field("source", &self.source).field("config", &self.config).finish()
    }
}
