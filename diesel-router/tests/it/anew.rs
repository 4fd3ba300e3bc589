//! Custom types that are dropped and made anew, with another OID, while pools hold connections: by a statement of this
//! process, and by another one, of which nobody tells.

use std::io::Write;

use diesel::{
    deserialize::{self, FromSql, FromSqlRow},
    expression::AsExpression,
    pg::{Pg, PgValue},
    prelude::{ExpressionMethods, QueryDsl},
    result::Error,
    serialize::{self, IsNull, Output, ToSql, WriteTuple},
    sql_types::{Integer, Record, SqlType},
};
use diesel_async::{AsyncConnection, SimpleAsyncConnection};
use diesel_router::ReadClass;
use read_router::Config;
use read_router_scenarios::{LIMIT, Stage};

use crate::{
    asynchronous::scenarios::Async,
    sync_support::{ask, stage, until, until_on_replica},
};

#[derive(SqlType, diesel::query_builder::QueryId)]
#[diesel(postgres_type(name = "mood"))]
pub struct MoodType;

#[derive(SqlType, diesel::query_builder::QueryId)]
#[diesel(postgres_type(name = "pair"))]
pub struct PairType;

#[derive(Clone, Copy, Debug, PartialEq, AsExpression, FromSqlRow)]
#[diesel(sql_type = MoodType)]
struct Glad;

#[derive(Clone, Copy, Debug, PartialEq, AsExpression, FromSqlRow)]
#[diesel(sql_type = PairType)]
struct Pair(i32);

impl ToSql<MoodType, Pg> for Glad {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        out.write_all(b"glad")?;
        Ok(IsNull::No)
    }
}

impl FromSql<MoodType, Pg> for Glad {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        if value.as_bytes() == b"glad" { Ok(Self) } else { Err("no mood".into()) }
    }
}

impl ToSql<PairType, Pg> for Pair {
    fn to_sql<'b>(&'b self, out: &mut Output<'b, '_, Pg>) -> serialize::Result {
        WriteTuple::<(Integer, MoodType)>::write_tuple(&(self.0, Glad), &mut out.reborrow())
    }
}

impl FromSql<PairType, Pg> for Pair {
    fn from_sql(value: PgValue<'_>) -> deserialize::Result<Self> {
        let (number, _): (i32, Glad) = FromSql::<Record<(Integer, MoodType)>, Pg>::from_sql(value)?;
        Ok(Self(number))
    }
}

diesel::table! {
    use diesel::sql_types::{Array, Integer};
    use super::{MoodType, PairType};

    felt (id) {
        id -> Integer,
        mood -> MoodType,
        moods -> Array<MoodType>,
        pair -> PairType,
    }
}

const MAKE: &str = "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TYPE pair AS (number int, mood mood);
    CREATE TABLE felt (id int PRIMARY KEY, mood mood NOT NULL, moods mood[] NOT NULL, pair pair NOT NULL)";
const AGAIN: &str = "DROP TABLE felt; DROP TYPE pair; DROP TYPE mood";

type Row = (i32, Glad, Vec<Glad>, Pair);

fn row(id: i32) -> Row {
    (id, Glad, vec![Glad, Glad], Pair(id))
}

macro_rules! insert {
    ($id:expr) => {{
        let (id, mood, moods, pair) = row($id);
        diesel::insert_into(felt::table).values((
            felt::id.eq(id),
            felt::mood.eq(mood),
            felt::moods.eq(moods),
            felt::pair.eq(pair),
        ))
    }};
}

/// The types in binds, in each of their forms.
macro_rules! found {
    ($id:expr) => {
        felt::table
            .filter(felt::mood.eq(Glad))
            .filter(felt::mood.eq_any([Glad]))
            .filter(felt::moods.eq(vec![Glad, Glad]))
            .filter(felt::pair.eq(Pair($id)))
    };
}

#[test]
fn over_the_sync_connection() {
    use diesel::{Connection, RunQueryDsl, connection::SimpleConnection};
    let (cluster, router) = stage(1, MAKE);
    for round in 0..6 {
        let mut conn = router.session();
        match round % 3 {
            0 => insert!(round).execute(&mut conn).map(drop).unwrap(),
            // A transaction that meets the old type fails, and the next one does not.
            _ => {
                let mut work = || conn.transaction::<_, Error, _>(|conn| insert!(round).execute(conn));
                assert_eq!(work().or_else(|_| work()), Ok(1), "round {round}");
            }
        }
        until_on_replica(&mut conn);
        for _ in 0..2 {
            assert_eq!(found!(round).load::<Row>(conn.must_see_my_write()), Ok(vec![row(round)]), "round {round}");
            assert_eq!(found!(round).load::<Row>(conn.on_primary()), Ok(vec![row(round)]), "round {round}");
        }
        until("the catalogue is read again and a replica serves it", || {
            assert_eq!(found!(round).load::<Row>(conn.must_see_my_write()), Ok(vec![row(round)]), "round {round}");
            !conn.last_served().unwrap().node.is_primary()
        });
        let again = format!("{AGAIN}; {MAKE}");
        if round % 2 == 0 {
            cluster.primary().sql(&again).unwrap();
        } else {
            conn.batch_execute(&again).unwrap();
        }
        cluster.wait_caught_up(LIMIT).unwrap();
    }
    // The first that meets it is a write of rows that are returned, or a read on the replica.
    let mut conn = router.session();
    assert_eq!(insert!(1).get_result::<Row>(&mut conn), Ok(row(1)));
    cluster.primary().sql(&format!("{AGAIN}; {MAKE}")).unwrap();
    cluster.wait_caught_up(LIMIT).unwrap();
    assert_eq!(found!(1).load::<Row>(conn.eventual()), Ok(vec![]));
    assert_eq!(insert!(1).get_result::<Row>(&mut conn), Ok(row(1)));
    // An error of the statement's own is what it was, and nothing is done twice.
    assert!(matches!(insert!(1).execute(&mut conn), Err(Error::DatabaseError(..))));
    assert_eq!(ask(cluster.primary(), "SELECT count(*) FROM felt"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_the_async_connection() {
    use diesel_async::RunQueryDsl;
    let Stage { cluster, db } = Stage::<Async>::set(1, MAKE, Config::default(), &[]).await;
    let strict = ReadClass::MustSeeMyWrite.wait(LIMIT);
    for round in 0..6 {
        let mut conn = db.0.new_session();
        match round % 3 {
            0 => insert!(round).execute(&mut conn).await.map(drop).unwrap(),
            _ => {
                let mut done = Err(Error::NotFound);
                for _ in 0..2 {
                    if done.is_err() {
                        done = conn.transaction::<_, Error, _>(async |conn| insert!(round).execute(conn).await).await;
                    }
                }
                assert_eq!(done, Ok(1), "round {round}");
            }
        }
        for _ in 0..2 {
            // Until the catalogue is read again a table that was made anew is for the primary.
            let deadline = std::time::Instant::now() + LIMIT;
            loop {
                assert_eq!(found!(round).load::<Row>(conn.read(strict)).await, Ok(vec![row(round)]), "round {round}");
                if !conn.last_served().unwrap().node.is_primary() {
                    break;
                }
                assert!(std::time::Instant::now() < deadline, "round {round}: {:?}", conn.last_served());
            }
            assert_eq!(found!(round).load::<Row>(conn.on_primary()).await, Ok(vec![row(round)]), "round {round}");
        }
        let again = format!("{AGAIN}; {MAKE}");
        if round % 2 == 0 {
            cluster.primary().sql(&again).unwrap();
        } else {
            conn.batch_execute(&again).await.unwrap();
        }
        cluster.wait_caught_up(LIMIT).unwrap();
    }
    let mut conn = db.0.new_session();
    assert_eq!(insert!(1).get_result::<Row>(&mut conn).await, Ok(row(1)));
    for _ in 0..2 {
        cluster.primary().sql(&format!("{AGAIN}; {MAKE}")).unwrap();
        cluster.wait_caught_up(LIMIT).unwrap();
        assert_eq!(found!(1).load::<Row>(conn.on_primary()).await, Ok(vec![]));
        cluster.primary().sql(&format!("{AGAIN}; {MAKE}")).unwrap();
        cluster.wait_caught_up(LIMIT).unwrap();
        assert_eq!(found!(1).load::<Row>(conn.eventual()).await, Ok(vec![]));
        assert_eq!(insert!(1).get_result::<Row>(&mut conn).await, Ok(row(1)));
    }
    assert!(matches!(insert!(1).execute(&mut conn).await, Err(Error::DatabaseError(..))));
    assert_eq!(ask(cluster.primary(), "SELECT count(*) FROM felt"), 1);
}
