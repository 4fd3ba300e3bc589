//! The servers of a run: our own, or the user's.

use std::{sync::Arc, time::Duration};

use read_router_testkit::{Cluster, Error as ClusterError};
use sea_router::Token;

use crate::{
    args::{Args, Orm},
    failure::Failure,
    store::{Diesel, DieselAsync, Failed, SeaOrm, Store},
};

/// How long the user's servers may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the servers are. Our own end when this is dropped.
pub(crate) struct Servers {
    primary: String,
    replicas: Vec<String>,
    own: Option<Cluster>,
}

impl Servers {
    /// The servers that the command line names, or new ones. Starting them blocks for a second or two.
    pub(crate) fn start(args: &Args) -> Result<Self, ClusterError> {
        if let Some(primary) = &args.primary_url {
            return Ok(Self { primary: primary.clone(), replicas: args.replica_urls.clone(), own: None });
        }
        let mut builder = Cluster::builder().replicas(args.replicas.into());
        if let Some(last) = args.replicas.checked_sub(1) {
            builder = builder.delay(last.into(), args.delay());
        }
        let cluster = builder.start()?;
        Ok(Self {
            primary: cluster.primary().url(),
            replicas: cluster.replicas().iter().map(|replica| replica.url()).collect(),
            own: Some(cluster),
        })
    }

    /// Connects to them by this ORM.
    pub(crate) async fn connect(&self, orm: Orm) -> Result<Arc<dyn Store>, Failure> {
        let (primary, replicas) = (self.primary.as_str(), self.replicas.as_slice());
        let store: Result<Arc<dyn Store>, Failed> = match orm {
            Orm::Sea => SeaOrm::connect(primary, replicas, PATIENCE).await.map(|store| Arc::new(store) as _),
            Orm::Diesel => Diesel::connect(primary, replicas).await.map(|store| Arc::new(store) as _),
            Orm::DieselAsync => DieselAsync::connect(primary, replicas).await.map(|store| Arc::new(store) as _),
        };
        store.map_err(|error| self.blame(error.to_string()))
    }

    /// Makes the tables. If they are there already, it is an error, and they stay as they are.
    pub(crate) async fn create_tables(&self, db: &dyn Store) -> Result<Token, Failure> {
        db.create_tables().await.map_err(|error| {
            self.blame(format!(
                "cannot make the tables rides_demo_users and rides_demo_rides: {error}; if a run that was killed left \
                 them there, drop them"
            ))
        })
    }

    /// What fails at the start on the user's servers is most likely what the user told us of them.
    fn blame(&self, message: String) -> Failure {
        match self.own {
            Some(_) => Failure::Run(message),
            None => Failure::Input(message),
        }
    }
}
