//! The servers of a run: our own, or the user's.

use std::time::{Duration, Instant};

use read_router_testkit::{Cluster, Error as ClusterError};
use sea_orm::{ConnectOptions, DbErr, Schema, SchemaBuilder, TransactionTrait, prelude::*, sea_query::Table};
use sea_router::{NodeId, RoutingConnection};

use crate::{args::Args, failure::Failure, ride, user};

/// How long the user's servers may take to answer, and the tables to reach every replica.
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

    /// This is all that an application changes: the routing connection in place of SeaORM's.
    pub(crate) async fn connect(&self) -> Result<RoutingConnection, Failure> {
        let builder = RoutingConnection::builder(options(&self.primary));
        let builder = builder.replicas(self.replicas.iter().map(|url| options(url)));
        builder.connect().await.map_err(|error| self.blame(error.to_string()))
    }

    /// Makes the tables. If they are there already, it is an error, and they stay as they are.
    pub(crate) async fn create_tables(&self, db: &RoutingConnection) -> Result<(), Failure> {
        create_tables(db).await.map_err(|error| {
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

fn options(url: &str) -> ConnectOptions {
    let mut options = ConnectOptions::new(url);
    options.connect_timeout(PATIENCE);
    options
}

async fn create_tables(db: &RoutingConnection) -> Result<(), DbErr> {
    let transaction = db.begin().await?;
    let schema = Schema::new(transaction.get_database_backend());
    SchemaBuilder::new(schema).register(user::Entity).register(ride::Entity).apply(&transaction).await?;
    transaction.commit().await
}

/// Drops the tables that [`Servers::create_tables`] made.
pub(crate) async fn drop_tables(db: &RoutingConnection) -> Result<(), DbErr> {
    let drop = Table::drop().table(ride::Entity).table(user::Entity).to_owned();
    db.execute(&drop).await?;
    Ok(())
}

/// Waits until every replica has the tables. Only a naive run needs it: it would ask a replica that has not.
pub(crate) async fn wait_for_tables(db: &RoutingConnection) -> Result<(), DbErr> {
    let deadline = Instant::now() + PATIENCE * 4;
    for replica in (0..).map_while(|index| db.node(NodeId::replica(index))) {
        while let Err(error) = ride::Entity::find_by_id(0).one(replica).await {
            if Instant::now() > deadline {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}
