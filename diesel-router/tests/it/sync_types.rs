//! Types that change under pooled connections.

use std::io::Write as _;

use diesel::{
    connection::SimpleConnection,
    deserialize::{self, FromSql, FromSqlRow},
    expression::AsExpression,
    pg::{Pg, PgValue},
    prelude::*,
    serialize::{self, IsNull, Output, ToSql},
};

use crate::sync_support::{stage, until_on_replica};

#[derive(diesel::sql_types::SqlType, diesel::query_builder::QueryId)]
#[diesel(postgres_type(name = "mood"))]
pub struct Mood;

#[derive(AsExpression, FromSqlRow, Debug, Clone, Copy, PartialEq)]
#[diesel(sql_type = Mood)]
enum Feeling {
    Good,
}

impl ToSql<Mood, Pg> for Feeling {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        out.write_all(b"good")?;
        Ok(IsNull::No)
    }
}

impl FromSql<Mood, Pg> for Feeling {
    fn from_sql(_: PgValue<'_>) -> deserialize::Result<Self> {
        Ok(Self::Good)
    }
}

diesel::table! {
    use diesel::sql_types::Integer;
    use super::Mood;

    felt (id) {
        id -> Integer,
        mood -> Mood,
    }
}

const MAKE: &str = "CREATE TYPE mood AS ENUM ('good'); CREATE TABLE felt (id int PRIMARY KEY, mood mood NOT NULL)";

#[test]
fn types_that_were_made_anew_work_everywhere() {
    let (cluster, router) = stage(1, MAKE);
    let again = format!("DROP TABLE felt; DROP TYPE mood; {MAKE}");
    let mut conn = router.session();
    let read = || felt::table.filter(felt::mood.eq(Feeling::Good)).select(felt::mood);
    let write = |id: i32| diesel::insert_into(felt::table).values((felt::id.eq(id), felt::mood.eq(Feeling::Good)));
    for id in 0..3 {
        write(id).execute(&mut conn).unwrap();
        until_on_replica(&mut conn);
        assert_eq!(read().load::<Feeling>(conn.must_see_my_write()).unwrap(), [Feeling::Good]);
        assert_eq!(read().load::<Feeling>(conn.on_primary()).unwrap(), [Feeling::Good]);
        conn.batch_execute(&again).unwrap();
    }
    write(4).execute(&mut conn).unwrap();
    until_on_replica(&mut conn);
    assert_eq!(read().load::<Feeling>(conn.must_see_my_write()).unwrap(), [Feeling::Good]);
    assert_eq!(read().load::<Feeling>(conn.on_primary()).unwrap(), [Feeling::Good]);
    // By somebody else, so that nobody tells the router.
    cluster.primary().sql(&again).unwrap();
    cluster.wait_caught_up(read_router_scenarios::LIMIT).unwrap();
    assert_eq!(read().load::<Feeling>(conn.eventual()).unwrap(), []);
    assert_eq!(read().load::<Feeling>(conn.on_primary()).unwrap(), []);
}

#[test]
fn prepared_statements_whose_table_changed_work_everywhere() {
    let (cluster, router) = stage(1, MAKE);
    let mut conn = router.session();
    until_on_replica(&mut conn);
    let all = || felt::table.select(diesel::dsl::sql::<diesel::sql_types::Integer>("felt.*")).order(felt::id);
    all().execute(conn.eventual()).unwrap();
    all().execute(&mut conn).unwrap();
    cluster.primary().sql("ALTER TABLE felt ADD COLUMN more int").unwrap();
    cluster.wait_caught_up(read_router_scenarios::LIMIT).unwrap();
    all().execute(conn.eventual()).unwrap();
    assert!(!conn.last_served().unwrap().node.is_primary());
    all().execute(&mut conn).unwrap();
}
