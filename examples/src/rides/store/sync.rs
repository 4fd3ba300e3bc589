//! Diesel, whose calls block: each runs on a thread for such work.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use diesel::{Connection, QueryResult, connection::SimpleConnection, prelude::*, result::Error};
use diesel_router::{Router, RoutingConnection, Served, Stats, Token, Topology};

use super::{
    Failed, Session, Store,
    schema::{self, RIDE, Ride, rides, users},
};
use crate::api::{Reads, RideBody};

pub(crate) struct Diesel(Router);

impl Diesel {
    pub(crate) async fn connect(primary: &str, replicas: &[String]) -> Result<Self, Failed> {
        let builder = Router::builder(primary).replicas(replicas);
        Ok(Self(blocking(|| builder.connect()).await??))
    }
}

#[async_trait]
impl Store for Diesel {
    fn new_session(&self) -> Arc<dyn Session> {
        Arc::new(DieselSession(Arc::new(Mutex::new(self.0.session()))))
    }

    async fn create_tables(&self) -> Result<Token, Failed> {
        let mut db = self.0.session();
        Ok(blocking(move || {
            db.transaction(|db| db.batch_execute(schema::CREATE))?;
            Ok::<_, Error>(db.token())
        })
        .await??)
    }

    async fn drop_tables(&self) -> Result<(), Failed> {
        let mut db = self.0.session();
        Ok(blocking(move || db.batch_execute(schema::DROP)).await??)
    }

    fn topology(&self) -> Arc<Topology> {
        self.0.topology()
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }

    async fn close(&self) -> Result<(), Failed> {
        let router = self.0.clone();
        blocking(move || router.close()).await
    }
}

struct DieselSession(Arc<Mutex<RoutingConnection>>);

impl DieselSession {
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut RoutingConnection) -> QueryResult<T> + Send + 'static,
    ) -> Result<T, Failed> {
        let session = self.0.clone();
        Ok(blocking(move || work(&mut session.lock().unwrap_or_else(PoisonError::into_inner))).await??)
    }
}

#[async_trait]
impl Session for DieselSession {
    async fn create_user(&self, email: String) -> Result<i64, Failed> {
        let insert = move |db: &mut RoutingConnection| {
            diesel::insert_into(users::table).values(users::email.eq(email)).returning(users::id).get_result(db)
        };
        self.run(insert).await
    }

    async fn create_ride(&self, user: i64, distance: i64) -> Result<RideBody, Failed> {
        let insert = move |db: &mut RoutingConnection| {
            let new = (rides::distance.eq(distance), rides::user_id.eq(user));
            diesel::insert_into(rides::table).values(new).returning(RIDE).get_result::<Ride>(db)
        };
        Ok(self.run(insert).await?.into())
    }

    async fn update_ride(&self, user: i64, ride: i64, distance: i64) -> Result<Option<RideBody>, Failed> {
        let update = move |db: &mut RoutingConnection| {
            db.transaction(|db| {
                let Some(own) = schema::find_own(user, ride).first::<i64>(db).optional()? else { return Ok(None) };
                let update = diesel::update(rides::table.find(own)).set(rides::distance.eq(distance));
                update.returning(RIDE).get_result::<Ride>(db).map(Some)
            })
        };
        Ok(self.run(update).await?.map(RideBody::from))
    }

    async fn read_ride(&self, ride: i64, reads: Reads) -> Result<(Option<RideBody>, Option<Served>), Failed> {
        let read = move |db: &mut RoutingConnection| {
            let ride = match reads {
                Reads::Gated => schema::find(ride).first::<Ride>(db.must_see_my_write()),
                Reads::Naive => schema::find(ride).first::<Ride>(db.eventual()),
            };
            Ok((ride.optional()?.map(RideBody::from), db.last_served()))
        };
        self.run(read).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failed> {
    Ok(tokio::task::spawn_blocking(work).await?)
}
