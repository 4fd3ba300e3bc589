//! Custom types, which are known by numbers that differ from one creation to the next.

use std::io::Write;

use diesel::{
    deserialize::{self, FromSql, FromSqlRow},
    expression::AsExpression,
    pg::{Pg, PgValue},
    prelude::*,
    result::Error,
    serialize::{self, IsNull, Output, ToSql},
    sql_types::SqlType,
};
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use diesel_router::ReadClass;
use read_router::Config;
use read_router_scenarios::{LIMIT, Stage, until};

use super::scenarios::Async;

#[derive(SqlType, diesel::query_builder::QueryId)]
#[diesel(postgres_type(name = "mood"))]
pub struct MoodType;

#[derive(Clone, Copy, Debug, PartialEq, AsExpression, FromSqlRow)]
#[diesel(sql_type = MoodType)]
enum Mood {
    Sad,
    Glad,
}

impl ToSql<MoodType, Pg> for Mood {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        out.write_all(if *self == Self::Sad { b"sad" } else { b"glad" })?;
        Ok(IsNull::No)
    }
}

impl FromSql<MoodType, Pg> for Mood {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        match value.as_bytes() {
            b"sad" => Ok(Self::Sad),
            b"glad" => Ok(Self::Glad),
            other => Err(format!("no mood: {other:?}").into()),
        }
    }
}

diesel::table! {
    use diesel::sql_types::Integer;
    use super::MoodType;

    day (id) {
        id -> Integer,
        mood -> MoodType,
    }
}

const CREATE: &str =
    "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TABLE day (id int PRIMARY KEY, mood mood NOT NULL)";
const DROP: &str = "DROP TABLE day; DROP TYPE mood";

async fn lives(db: &Async, first: i32) -> Result<(), Error> {
    let mut conn = db.0.new_session();
    let days = [(first, Mood::Sad), (first + 1, Mood::Glad)].map(|(id, mood)| (day::id.eq(id), day::mood.eq(mood)));
    diesel::insert_into(day::table).values(Vec::from(days)).execute(&mut conn).await?;
    // After a change of the schema nothing is a read until the catalogue is read again.
    until("a read is one again", async || {
        let mut conn = db.0.new_session();
        let _: i64 = day::table.count().get_result(conn.eventual()).await.unwrap_or_default();
        conn.last_served().is_some_and(|served| !served.node.is_primary())
    })
    .await;
    for _ in 0..3 {
        let view = conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
        let glad: Vec<(i32, Mood)> = day::table.filter(day::mood.eq(Mood::Glad)).load(view).await?;
        assert_eq!(glad, [(first + 1, Mood::Glad)]);
        assert!(!conn.last_served().unwrap().node.is_primary());
        let view = conn.read(ReadClass::MustSeeMyWrite.wait(LIMIT));
        let any: i64 = day::table.filter(day::mood.eq_any([Mood::Glad, Mood::Sad])).count().get_result(view).await?;
        assert_eq!(any, 2);
        assert!(!conn.last_served().unwrap().node.is_primary());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enum_that_is_dropped_and_created_again_works_through_replicas() {
    let Stage { cluster: _cluster, db } = Stage::<Async>::set(2, "SELECT 1", Config::default(), &[]).await;
    let mut conn = db.0.new_session();
    for round in 0..4 {
        conn.batch_execute(CREATE).await.unwrap();
        lives(&db, round * 10).await.unwrap();
        conn.batch_execute(DROP).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_of_a_transaction_is_known_in_it_and_no_longer() {
    let Stage { cluster: _cluster, db } = Stage::<Async>::set(1, CREATE, Config::default(), &[]).await;
    lives(&db, 0).await.unwrap();
    let mut conn = db.0.new_session();
    for _ in 0..2 {
        let undone: Result<(), Error> = conn
            .transaction(async |conn| {
                conn.batch_execute(DROP).await?;
                conn.batch_execute(CREATE).await?;
                diesel::insert_into(day::table).values((day::id.eq(1), day::mood.eq(Mood::Sad))).execute(conn).await?;
                let sad: Vec<i32> =
                    day::table.filter(day::mood.eq(Mood::Sad)).select(day::id).load(conn.eventual()).await?;
                assert_eq!(sad, [1]);
                Err(Error::RollbackTransaction)
            })
            .await;
        assert_eq!(undone, Err(Error::RollbackTransaction));
    }
    conn.batch_execute("DELETE FROM day").await.unwrap();
    lives(&db, 50).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_someone_else_changes_is_read_anew() {
    let schema = "CREATE TABLE day (id int PRIMARY KEY, mood int); INSERT INTO day VALUES (1, 1)";
    let Stage { cluster, db } = Stage::<Async>::set(1, schema, Config::default(), &[]).await;
    let mut conn = db.0.new_session();
    for step in 0..3 {
        for _ in 0..2 {
            let all = || diesel::dsl::sql::<diesel::sql_types::Integer>("SELECT * FROM day");
            assert_eq!(all().execute(conn.eventual()).await.unwrap(), 1);
            assert_eq!(all().execute(conn.on_primary()).await.unwrap(), 1);
        }
        cluster.primary().sql(&format!("ALTER TABLE day ADD COLUMN c{step} int")).unwrap();
        cluster.wait_caught_up(LIMIT).unwrap();
    }
}
