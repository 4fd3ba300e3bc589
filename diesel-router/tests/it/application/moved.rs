//! The application as it is now: on checkouts of the router.

use std::time::Duration;

use diesel_router::{AsyncRouter, ReadClass, Router};

use super::{Answer, Request, Trouble, handlers};

pub(super) struct App {
    pub(super) router: AsyncRouter,
    pub(super) reports: Router,
}

impl App {
    pub(super) async fn start(primary: &str, replica: &str) -> Result<Self, Trouble> {
        let router = AsyncRouter::builder(primary).replica(replica).pool_size(4).connect().await?;
        let reports = Router::builder(primary).replica(replica).pool_size(2);
        let reports = tokio::task::block_in_place(|| reports.connect())?;
        Ok(Self { router, reports })
    }

    pub(super) async fn answer(&self, request: &Request) -> Result<Answer, Trouble> {
        Ok(match *request {
            Request::Register { name, balance } => {
                let mut conn = self.router.checkout_write().await?;
                Answer::Passenger(handlers::register(&mut conn, name, balance).await?)
            }
            Request::Book { name, fare } => {
                let mut conn = self.router.checkout_write().await?;
                Answer::Ride(handlers::book(&mut conn, name, fare).await?)
            }
            Request::RidesOf { name } => {
                let mut conn = self.router.checkout(ReadClass::MustSeeMyWrite).await?;
                Answer::Rides(handlers::rides_of(&mut conn, name).await?)
            }
            Request::Overview => {
                let conn = self.router.checkout(ReadClass::Eventual).await?;
                Answer::Overview(handlers::overview(&conn).await?)
            }
            Request::Report => tokio::task::block_in_place(|| {
                let mut conn = self.reports.checkout(ReadClass::SecondsStale(Duration::from_secs(60)))?;
                Ok::<_, Trouble>(Answer::Report(handlers::report(&mut conn)?))
            })?,
        })
    }
}
