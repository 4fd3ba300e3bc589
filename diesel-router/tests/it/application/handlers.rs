//! The application's own code, bound to Diesel's connections: the same file before and after.

use diesel::{
    dsl::{count, max},
    prelude::*,
};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use futures_util::try_join;

diesel::table! {
    passenger (id) {
        id -> Integer,
        name -> Text,
        balance -> BigInt,
    }
}

diesel::table! {
    ride (id) {
        id -> Integer,
        passenger_id -> Integer,
        fare -> BigInt,
    }
}

diesel::joinable!(ride -> passenger (passenger_id));
diesel::allow_tables_to_appear_in_same_query!(passenger, ride);

pub(super) const SCHEMA: &str = "CREATE TABLE passenger (id serial PRIMARY KEY, name text NOT NULL UNIQUE, \
    balance bigint NOT NULL CHECK (balance >= 0)); \
    CREATE TABLE ride (id serial PRIMARY KEY, passenger_id int NOT NULL REFERENCES passenger, fare bigint NOT NULL)";

#[derive(Queryable, Selectable, Identifiable, AsChangeset, Debug, Clone, PartialEq)]
#[diesel(table_name = passenger)]
pub(super) struct Passenger {
    pub(super) id: i32,
    pub(super) name: String,
    pub(super) balance: i64,
}

#[derive(Queryable, Selectable, Identifiable, Associations, Debug, PartialEq)]
#[diesel(table_name = ride, belongs_to(Passenger))]
pub(super) struct Ride {
    pub(super) id: i32,
    pub(super) passenger_id: i32,
    pub(super) fare: i64,
}

pub(super) async fn register(conn: &mut AsyncPgConnection, name: &str, balance: i64) -> QueryResult<Passenger> {
    let values = (passenger::name.eq(name), passenger::balance.eq(balance));
    diesel::insert_into(passenger::table).values(values).returning(Passenger::as_returning()).get_result(conn).await
}

/// The fare is taken from the balance, or there is no ride.
pub(super) async fn book(conn: &mut AsyncPgConnection, name: &str, fare: i64) -> QueryResult<Ride> {
    conn.transaction::<_, diesel::result::Error, _>(async |conn| {
        let payer = diesel::update(passenger::table.filter(passenger::name.eq(name)))
            .set(passenger::balance.eq(passenger::balance - fare))
            .returning(passenger::id)
            .get_result::<i32>(conn)
            .await?;
        diesel::insert_into(ride::table)
            .values((ride::passenger_id.eq(payer), ride::fare.eq(fare)))
            .returning(Ride::as_returning())
            .get_result(conn)
            .await
    })
    .await
}

pub(super) async fn rides_of(conn: &mut AsyncPgConnection, name: &str) -> QueryResult<Vec<Ride>> {
    let passenger: Passenger =
        passenger::table.filter(passenger::name.eq(name)).select(Passenger::as_select()).first(conn).await?;
    Ride::belonging_to(&passenger).select(Ride::as_select()).order(ride::id).load(conn).await
}

/// What the start page shows: three queries in one round trip.
pub(super) async fn overview(conn: &AsyncPgConnection) -> QueryResult<(i64, i64, Option<String>)> {
    let (mut first, mut second, mut third) = (conn, conn, conn);
    let richest = passenger::table.select(passenger::name).order((passenger::balance.desc(), passenger::id));
    try_join!(passenger::table.count().get_result(&mut first), ride::table.count().get_result(&mut second), async {
        richest.first(&mut third).await.optional()
    },)
}

/// The accountant's, from the time when all was sync: how many rides, and the dearest.
pub(super) fn report(conn: &mut PgConnection) -> QueryResult<Vec<(String, i64, Option<i64>)>> {
    let rides = ride::table.inner_join(passenger::table).group_by(passenger::name);
    let columns = (passenger::name, count(ride::id), max(ride::fare));
    diesel::RunQueryDsl::load(rides.select(columns).order(passenger::name), conn)
}
