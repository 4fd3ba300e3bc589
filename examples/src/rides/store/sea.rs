//! SeaORM.

mod ride;
mod user;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sea_orm::{
    ActiveValue::Set, ConnectOptions, IntoActiveModel, Schema, SchemaBuilder, TransactionTrait, prelude::*,
    sea_query::Table,
};
use sea_router::{ReadClass, RoutingConnection, Served, Stats, Token, Topology};

use super::{Failed, Session, Store};
use crate::api::{Reads, RideBody};

/// Clones share a session.
#[derive(Clone)]
pub(crate) struct SeaOrm(RoutingConnection);

impl SeaOrm {
    pub(crate) async fn connect(primary: &str, replicas: &[String], patience: Duration) -> Result<Self, Failed> {
        let options = |url: &str| ConnectOptions::new(url).connect_timeout(patience).to_owned();
        let builder = RoutingConnection::builder(options(primary)).replicas(replicas.iter().map(|url| options(url)));
        Ok(Self(builder.connect().await?))
    }
}

#[async_trait]
impl Store for SeaOrm {
    fn new_session(&self) -> Arc<dyn Session> {
        Arc::new(Self(self.0.new_session()))
    }

    async fn create_tables(&self) -> Result<Token, Failed> {
        let session = self.0.new_session();
        let transaction = session.begin().await?;
        let schema = Schema::new(transaction.get_database_backend());
        SchemaBuilder::new(schema).register(user::Entity).register(ride::Entity).apply(&transaction).await?;
        Ok(transaction.commit_token().await?)
    }

    async fn drop_tables(&self) -> Result<(), Failed> {
        let drop = Table::drop().table(ride::Entity).table(user::Entity).to_owned();
        self.0.execute(&drop).await?;
        Ok(())
    }

    fn topology(&self) -> Arc<Topology> {
        self.0.topology()
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }

    async fn close(&self) -> Result<(), Failed> {
        Ok(self.0.close_by_ref().await?)
    }
}

#[async_trait]
impl Session for SeaOrm {
    async fn create_user(&self, email: String) -> Result<i64, Failed> {
        Ok(user::ActiveModel { email: Set(email), ..Default::default() }.insert(&self.0).await?.id)
    }

    async fn create_ride(&self, user: i64, distance: i64) -> Result<RideBody, Failed> {
        let ride = ride::ActiveModel { distance: Set(distance), user_id: Set(user), ..Default::default() };
        Ok(ride.insert(&self.0).await?.into())
    }

    async fn update_ride(&self, user: i64, ride: i64, distance: i64) -> Result<Option<RideBody>, Failed> {
        let transaction = self.0.begin().await?;
        let own = ride::Entity::find_by_id(ride).filter(ride::Column::UserId.eq(user));
        let Some(ride) = own.one(&transaction).await? else { return Ok(None) };
        let mut ride = ride.into_active_model();
        ride.distance = Set(distance);
        let ride = ride.update(&transaction).await?;
        transaction.commit().await?;
        Ok(Some(ride.into()))
    }

    async fn read_ride(&self, ride: i64, reads: Reads) -> Result<(Option<RideBody>, Option<Served>), Failed> {
        let db = match reads {
            Reads::Gated => self.0.must_see_my_write(),
            Reads::Naive => self.0.read(ReadClass::Eventual),
        };
        let ride = ride::Entity::find_by_id(ride).one(&db).await?;
        Ok((ride.map(RideBody::from), db.last_served()))
    }
}

impl From<ride::Model> for RideBody {
    fn from(ride: ride::Model) -> Self {
        Self { id: ride.id, distance: ride.distance }
    }
}
