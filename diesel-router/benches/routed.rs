//! Routed calls against the same calls on Diesel's plain connection to the same server, sync and async. Measures and
//! prints.
//!
//! Machines are noisy: each ratio pairs two blocks that ran right after each other, and the median over all pairs is
//! shown with the middle half of them. The plain side has a pool too, as an application has, and takes a connection for
//! each call; a checkout is compared with that for the same reason. Neither side asks a connection of its pool whether it
//! is alive, unless it was long idle. The first lines compare plain with plain: so far from 1 is the machine's own doing.
//! An argument leaves the lines that have it in their name.
//!
//! On a machine of few cores a scheduler may put the server's process of one side beside us and that of the other on a core
//! that sleeps, for the whole run: a factor of two that is neither's. `taskset -c 0` puts all on one.
//!
//! The last lines of each half compare with gating by hand: the position of the primary after each write, and that of the
//! replica before each read, asked until it has come so far.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use diesel::{
    ExpressionMethods, PgConnection, QueryDsl, QueryResult,
    connection::LoadConnection,
    pg::Pg,
    r2d2::{ConnectionManager, Pool},
};
use diesel_async::{
    AsyncConnection, AsyncPgConnection, TransactionManager,
    pooled_connection::{AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod, deadpool},
};
use diesel_router::{AsyncRouter, Lsn, ReadClass, Router};
use read_router_testkit::Cluster;

use self::schema::{ride, written};

const PAIRS: usize = 400;

type Manager = ConnectionManager<PgConnection>;

mod schema {
    diesel::table! { ride { id -> Integer, distance -> Integer, } }

    diesel::table! { written { id -> BigInt, distance -> Integer, } }
}

#[derive(Clone, Copy)]
enum Call {
    FindByKey,
    /// The same, of a type that does not say its text.
    FindBoxed,
    ListFifty,
    Insert,
    /// Begins, reads, inserts, commits.
    Transaction,
}

impl Call {
    /// So many in a block that it takes a few milliseconds: short beside what disturbs a machine.
    fn in_block(self) -> i32 {
        match self {
            Self::FindByKey | Self::FindBoxed => 20,
            Self::ListFifty | Self::Insert => 12,
            Self::Transaction => 4,
        }
    }

    fn run(self, conn: &mut impl LoadConnection<Backend = Pg>, number: i32) -> QueryResult<()> {
        use diesel::RunQueryDsl;
        match self {
            Self::FindByKey => ride::table.find(number % 100).first::<(i32, i32)>(conn).map(drop),
            Self::FindBoxed => ride::table.find(number % 100).into_boxed().first::<(i32, i32)>(conn).map(drop),
            Self::ListFifty => {
                let list = ride::table.filter(ride::id.ge(number % 50)).order(ride::id).limit(50);
                list.load::<(i32, i32)>(conn).map(|rows| assert_eq!(rows.len(), 50))
            }
            Self::Insert => {
                let insert = diesel::insert_into(written::table).values(written::distance.eq(number));
                insert.returning(written::id).get_result::<i64>(conn).map(drop)
            }
            Self::Transaction => conn.transaction(|conn| {
                Self::FindByKey.run(conn, number)?;
                Self::Insert.run(conn, number)
            }),
        }
    }

    async fn run_async<C: AsyncConnection<Backend = Pg>>(self, conn: &mut C, number: i32) -> QueryResult<()> {
        use diesel_async::RunQueryDsl;
        match self {
            Self::FindByKey => ride::table.find(number % 100).first::<(i32, i32)>(conn).await.map(drop),
            Self::FindBoxed => ride::table.find(number % 100).into_boxed().first::<(i32, i32)>(conn).await.map(drop),
            Self::ListFifty => {
                let list = ride::table.filter(ride::id.ge(number % 50)).order(ride::id).limit(50);
                list.load::<(i32, i32)>(conn).await.map(|rows| assert_eq!(rows.len(), 50))
            }
            Self::Insert => {
                let insert = diesel::insert_into(written::table).values(written::distance.eq(number));
                insert.returning(written::id).get_result::<i64>(conn).await.map(drop)
            }
            Self::Transaction => {
                C::TransactionManager::begin_transaction(conn).await?;
                Box::pin(Self::FindByKey.run_async(conn, number)).await?;
                Box::pin(Self::Insert.run_async(conn, number)).await?;
                C::TransactionManager::commit_transaction(conn).await
            }
        }
    }
}

fn is_wanted(name: &str) -> bool {
    !std::env::args().skip(1).any(|argument| !argument.starts_with("--") && !name.contains(&argument))
}

fn print(name: &str, call: Call, mut pairs: Vec<(Duration, Duration)>) {
    let ratio = |pair: &(Duration, Duration)| pair.0.as_secs_f64() / pair.1.as_secs_f64();
    pairs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let quarter = |quarter: usize| ratio(&pairs[quarter * (PAIRS - 1) / 4]);
    let median = |of: &dyn Fn(&(Duration, Duration)) -> f64| {
        let mut all: Vec<_> = pairs.iter().map(|pair| of(pair) * 1e6 / f64::from(call.in_block())).collect();
        all.sort_by(f64::total_cmp);
        all[PAIRS / 2]
    };
    println!(
        "{name:46} {:.3}  (middle half {:.3} to {:.3}), plain {:.1} µs a call, routed {:+.1} µs",
        quarter(2),
        quarter(1),
        quarter(3),
        median(&|pair| pair.1.as_secs_f64()),
        median(&|pair| pair.0.as_secs_f64() - pair.1.as_secs_f64()),
    );
}

type Ran = Result<(), Box<dyn std::error::Error>>;

fn block(call: Call, run: &mut impl FnMut(i32) -> Ran) -> Result<Duration, Box<dyn std::error::Error>> {
    let started = Instant::now();
    for number in 0..call.in_block() {
        run(number)?;
    }
    Ok(started.elapsed())
}

/// Prints the time of the routed call / that of the plain one.
fn compare(name: &str, call: Call, mut routed: impl FnMut(i32) -> Ran, mut plain: impl FnMut(i32) -> Ran) -> Ran {
    if !is_wanted(name) {
        return Ok(());
    }
    block(call, &mut routed)?;
    block(call, &mut plain)?;
    let mut pairs = Vec::with_capacity(PAIRS);
    for pair in 0..PAIRS {
        // Which goes first alternates, so that neither gains from it.
        pairs.push(if pair % 2 == 0 {
            let ours = block(call, &mut routed)?;
            (ours, block(call, &mut plain)?)
        } else {
            let theirs = block(call, &mut plain)?;
            (block(call, &mut routed)?, theirs)
        });
    }
    print(name, call, pairs);
    Ok(())
}

async fn block_async<F: Future<Output = Ran>>(
    call: Call,
    run: &mut impl FnMut(i32) -> F,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let started = Instant::now();
    for number in 0..call.in_block() {
        run(number).await?;
    }
    Ok(started.elapsed())
}

async fn compare_async<F: Future<Output = Ran>, G: Future<Output = Ran>>(
    name: &str,
    call: Call,
    mut routed: impl FnMut(i32) -> F,
    mut plain: impl FnMut(i32) -> G,
) -> Ran {
    if !is_wanted(name) {
        return Ok(());
    }
    block_async(call, &mut routed).await?;
    block_async(call, &mut plain).await?;
    let mut pairs = Vec::with_capacity(PAIRS);
    for pair in 0..PAIRS {
        pairs.push(if pair % 2 == 0 {
            let ours = block_async(call, &mut routed).await?;
            (ours, block_async(call, &mut plain).await?)
        } else {
            let theirs = block_async(call, &mut plain).await?;
            (block_async(call, &mut routed).await?, theirs)
        });
    }
    print(name, call, pairs);
    Ok(())
}

const READS: [(&str, Call); 3] =
    [("find by key", Call::FindByKey), ("find, boxed", Call::FindBoxed), ("50 rows", Call::ListFifty)];
const WRITES: [(&str, Call); 2] = [("insert", Call::Insert), ("transaction", Call::Transaction)];

/// What a gate by hand asks of each side.
const WRITTEN: &str = "SELECT pg_current_wal_insert_lsn()::text AS at";
const REPLAYED: &str = "SELECT pg_last_wal_replay_lsn()::text AS at";

#[derive(diesel::QueryableByName)]
struct Position {
    #[diesel(sql_type = diesel::sql_types::Text)]
    at: String,
}

impl Position {
    fn lsn(&self) -> Result<Lsn, Box<dyn std::error::Error>> {
        Ok(self.at.parse()?)
    }
}

fn gates(router: &Router, primary: &Pool<Manager>, replica: &Pool<Manager>) -> Ran {
    use diesel::RunQueryDsl;
    let (find, insert) = (Call::FindByKey, Call::Insert);
    let ask = |sql, conn: &mut PgConnection| diesel::sql_query(sql).get_result::<Position>(conn)?.lsn();
    let read_gated = |written: Lsn, number| -> Ran {
        let mut conn = replica.get()?;
        while ask(REPLAYED, &mut conn)? < written {}
        Ok(find.run(&mut conn, number)?)
    };
    let me = RefCell::new(router.session());
    let written = ask(WRITTEN, &mut *primary.get()?)?;
    let ours = |n| Ok(find.run(me.borrow_mut().must_see_my_write(), n)?);
    compare("sync, find by key, gated by hand", find, ours, |n| read_gated(written, n))?;
    let ours = |n| {
        insert.run(&mut *me.borrow_mut(), n)?;
        ours(n)
    };
    let by_hand = |n| {
        let written = {
            let mut conn = primary.get()?;
            insert.run(&mut conn, n)?;
            ask(WRITTEN, &mut conn)?
        };
        read_gated(written, n)
    };
    compare("sync, insert, find by key, gated by hand", insert, ours, by_hand)
}

async fn gates_async(
    router: &AsyncRouter,
    primary: &deadpool::Pool<AsyncPgConnection>,
    replica: &deadpool::Pool<AsyncPgConnection>,
) -> Ran {
    use diesel_async::RunQueryDsl;
    let (find, insert) = (Call::FindByKey, Call::Insert);
    let ask =
        &async |sql, conn: &mut AsyncPgConnection| diesel::sql_query(sql).get_result::<Position>(conn).await?.lsn();
    let read_gated = &async |written: Lsn, number| -> Ran {
        let mut conn = replica.get().await?;
        while ask(REPLAYED, &mut conn).await? < written {}
        Ok(find.run_async(&mut *conn, number).await?)
    };
    let me = &tokio::sync::Mutex::new(router.session());
    let written = ask(WRITTEN, &mut *primary.get().await?).await?;
    let ours = |n| async move { Ok(find.run_async(me.lock().await.must_see_my_write(), n).await?) };
    compare_async("async, find by key, gated by hand", find, ours, |n| read_gated(written, n)).await?;
    let ours = |n| async move {
        let mut me = me.lock().await;
        insert.run_async(&mut *me, n).await?;
        Ok(find.run_async(me.must_see_my_write(), n).await?)
    };
    let by_hand = |n| async move {
        let written = {
            let mut conn = primary.get().await?;
            insert.run_async(&mut *conn, n).await?;
            ask(WRITTEN, &mut conn).await?
        };
        read_gated(written, n).await
    };
    compare_async("async, insert, find by key, gated by hand", insert, ours, by_hand).await
}

fn sync(primary: &str, replica: &str) -> Ran {
    let pool = |url: &str| {
        let pool = Pool::builder().max_size(4).test_on_check_out(false);
        pool.build(Manager::new(url))
    };
    let (plain_primary, plain_replica) = (pool(primary)?, pool(replica)?);
    let router = Router::builder(primary).replica(replica).connect()?;
    let mut me = router.session();
    diesel::RunQueryDsl::execute(diesel::update(ride::table).set(ride::distance.eq(ride::distance + 1)), &mut me)?;
    me.token();
    let find = Call::FindByKey;
    let on_replica = |call: Call, number| Ok(call.run(&mut plain_replica.get()?, number)?);
    let on_primary = |call: Call, number| Ok(call.run(&mut plain_primary.get()?, number)?);
    compare("sync, find, plain against plain", find, |n| on_replica(find, n), |n| on_replica(find, n))?;
    for (name, call) in READS {
        for (class, options) in [("must_see_my_write", ReadClass::MustSeeMyWrite), ("eventual", ReadClass::Eventual)] {
            let ours = |n| Ok(call.run(me.read(options), n)?);
            compare(&format!("sync, {name}, {class}"), call, ours, |n| on_replica(call, n))?;
        }
    }
    let ours = |n| Ok(find.run(&mut me.checkout(ReadClass::MustSeeMyWrite)?, n)?);
    compare("sync, find by key, in a checkout of its own", find, ours, |n| on_replica(find, n))?;
    let mut me = router.session();
    for (name, call) in WRITES {
        compare(&format!("sync, {name}"), call, |n| Ok(call.run(&mut me, n)?), |n| on_primary(call, n))?;
    }
    gates(&router, &plain_primary, &plain_replica)?;
    let stats = router.stats();
    println!("{} reads on the replica, {} fallbacks, {} probes", stats.replica_reads(), stats.fallbacks, stats.probes);
    Ok(())
}

async fn asynchronous(primary: &str, replica: &str) -> Ran {
    let pool = |url: &str| {
        // As the router's own pools do.
        let mut config = ManagerConfig::default();
        config.recycling_method = RecyclingMethod::Fast;
        let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new_with_config(url, config);
        deadpool::Pool::builder(manager).max_size(4).build()
    };
    let (plain_primary, plain_replica) = (&pool(primary)?, &pool(replica)?);
    let router = AsyncRouter::builder(primary).replica(replica).connect().await?;
    let me = &mut router.session();
    diesel_async::RunQueryDsl::execute(diesel::update(ride::table).set(ride::distance.eq(ride::distance + 1)), me)
        .await?;
    me.token().await;
    let find = Call::FindByKey;
    let on_replica =
        async |call: Call, number| -> Ran { Ok(call.run_async(&mut plain_replica.get().await?, number).await?) };
    let on_primary =
        async |call: Call, number| -> Ran { Ok(call.run_async(&mut plain_primary.get().await?, number).await?) };
    let (on_replica, on_primary) = (&on_replica, &on_primary);
    compare_async("async, find, plain against plain", find, |n| on_replica(find, n), |n| on_replica(find, n)).await?;
    let me = &*me;
    for (name, call) in READS {
        for (class, options) in [("must_see_my_write", ReadClass::MustSeeMyWrite), ("eventual", ReadClass::Eventual)] {
            let conn = &tokio::sync::Mutex::new(me.same_session());
            let ours = |n| async move { Ok(call.run_async(conn.lock().await.read(options), n).await?) };
            compare_async(&format!("async, {name}, {class}"), call, ours, |n| on_replica(call, n)).await?;
        }
    }
    let ours = |n| async move {
        let mut conn = me.checkout(ReadClass::MustSeeMyWrite).await?;
        Ok(find.run_async(&mut *conn, n).await?)
    };
    compare_async("async, find by key, in a checkout of its own", find, ours, |n| on_replica(find, n)).await?;
    let conn = &tokio::sync::Mutex::new(router.session());
    for (name, call) in WRITES {
        let ours = |n| async move { Ok(call.run_async(&mut *conn.lock().await, n).await?) };
        compare_async(&format!("async, {name}"), call, ours, |n| on_primary(call, n)).await?;
    }
    gates_async(&router, plain_primary, plain_replica).await?;
    let stats = router.stats();
    println!("{} reads on the replica, {} fallbacks, {} probes", stats.replica_reads(), stats.fallbacks, stats.probes);
    Ok(())
}

fn main() -> Ran {
    let cluster = Cluster::builder().replicas(1).start()?;
    cluster.primary().sql(
        "CREATE TABLE ride (id int PRIMARY KEY, distance int NOT NULL); \
         INSERT INTO ride SELECT g, g FROM generate_series(0, 99) g; \
         CREATE TABLE written (id bigserial PRIMARY KEY, distance int NOT NULL)",
    )?;
    cluster.wait_caught_up(Duration::from_secs(10))?;
    let (primary, replica) = (cluster.primary().url(), cluster.replica(0).url());
    println!(
        "{PAIRS} pairs of blocks: time of the routed call / of the plain one, which takes its connection from a pool"
    );
    sync(&primary, &replica)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(asynchronous(&primary, &replica))
}
