//! The application as it was: on pools of the primary.

use diesel::{PgConnection, r2d2::ConnectionManager};
use diesel_async::{
    AsyncPgConnection,
    pooled_connection::{AsyncDieselConnectionManager, deadpool},
};

use super::{Answer, Request, Trouble, handlers};

pub(super) struct App {
    pool: deadpool::Pool<AsyncPgConnection>,
    reports: diesel::r2d2::Pool<ConnectionManager<PgConnection>>,
}

impl App {
    pub(super) fn start(url: &str) -> Result<Self, Trouble> {
        let manager = AsyncDieselConnectionManager::new(url);
        let pool = deadpool::Pool::builder(manager).max_size(4).build()?;
        let reports = diesel::r2d2::Pool::builder().max_size(2).build(ConnectionManager::new(url))?;
        Ok(Self { pool, reports })
    }

    pub(super) async fn answer(&self, request: &Request) -> Result<Answer, Trouble> {
        Ok(match *request {
            Request::Register { name, balance } => {
                let mut conn = self.pool.get().await?;
                Answer::Passenger(handlers::register(&mut conn, name, balance).await?)
            }
            Request::Book { name, fare } => {
                let mut conn = self.pool.get().await?;
                Answer::Ride(handlers::book(&mut conn, name, fare).await?)
            }
            Request::RidesOf { name } => {
                let mut conn = self.pool.get().await?;
                Answer::Rides(handlers::rides_of(&mut conn, name).await?)
            }
            Request::Overview => {
                let conn = self.pool.get().await?;
                Answer::Overview(handlers::overview(&conn).await?)
            }
            Request::Report => tokio::task::block_in_place(|| {
                let mut conn = self.reports.get()?;
                Ok::<_, Trouble>(Answer::Report(handlers::report(&mut conn)?))
            })?,
        })
    }
}
