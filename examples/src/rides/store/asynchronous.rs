//! diesel-async.

use std::sync::Arc;

use async_trait::async_trait;
use diesel::{ExpressionMethods, OptionalExtension, QueryDsl, result::Error};
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use diesel_router::{AsyncRouter, AsyncRoutingConnection, Served, Stats, Token, Topology};
use tokio::sync::Mutex;

use super::{
    Failed, Session, Store,
    schema::{self, RIDE, Ride, rides, users},
};
use crate::api::{Reads, RideBody};

pub(crate) struct DieselAsync(AsyncRouter);

impl DieselAsync {
    pub(crate) async fn connect(primary: &str, replicas: &[String]) -> Result<Self, Failed> {
        Ok(Self(AsyncRouter::builder(primary).replicas(replicas).connect().await?))
    }
}

#[async_trait]
impl Store for DieselAsync {
    fn new_session(&self) -> Arc<dyn Session> {
        Arc::new(DieselSession(Mutex::new(self.0.session())))
    }

    async fn create_tables(&self) -> Result<Token, Failed> {
        let mut db = self.0.session();
        db.transaction::<_, Error, _>(async |db| db.batch_execute(schema::CREATE).await).await?;
        Ok(db.token().await)
    }

    async fn drop_tables(&self) -> Result<(), Failed> {
        Ok(self.0.session().batch_execute(schema::DROP).await?)
    }

    fn topology(&self) -> Arc<Topology> {
        self.0.topology()
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }

    async fn close(&self) -> Result<(), Failed> {
        self.0.close();
        Ok(())
    }
}

struct DieselSession(Mutex<AsyncRoutingConnection>);

#[async_trait]
impl Session for DieselSession {
    async fn create_user(&self, email: String) -> Result<i64, Failed> {
        let db = &mut *self.0.lock().await;
        let insert = diesel::insert_into(users::table).values(users::email.eq(email)).returning(users::id);
        Ok(insert.get_result(db).await?)
    }

    async fn create_ride(&self, user: i64, distance: i64) -> Result<RideBody, Failed> {
        let db = &mut *self.0.lock().await;
        let new = (rides::distance.eq(distance), rides::user_id.eq(user));
        Ok(diesel::insert_into(rides::table).values(new).returning(RIDE).get_result::<Ride>(db).await?.into())
    }

    async fn update_ride(&self, user: i64, ride: i64, distance: i64) -> Result<Option<RideBody>, Failed> {
        let db = &mut *self.0.lock().await;
        let ride = db
            .transaction::<_, Error, _>(async |db| {
                let Some(own) = schema::find_own(user, ride).first::<i64>(db).await.optional()? else {
                    return Ok(None);
                };
                let update = diesel::update(rides::table.find(own)).set(rides::distance.eq(distance));
                update.returning(RIDE).get_result::<Ride>(db).await.map(Some)
            })
            .await?;
        Ok(ride.map(RideBody::from))
    }

    async fn read_ride(&self, ride: i64, reads: Reads) -> Result<(Option<RideBody>, Option<Served>), Failed> {
        let db = &mut *self.0.lock().await;
        let ride = match reads {
            Reads::Gated => schema::find(ride).first::<Ride>(db.must_see_my_write()).await,
            Reads::Naive => schema::find(ride).first::<Ride>(db.eventual()).await,
        };
        Ok((ride.optional()?.map(RideBody::from), db.last_served()))
    }
}
