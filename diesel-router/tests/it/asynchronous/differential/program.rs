// The program of the async differential suite, included once for each connection, which is `Conn`.

use std::ops::Bound;

use diesel::{
    connection::CacheSize,
    dsl::{count_star, max, sql, sum},
    migration::{MigrationSource, Result as MigrationResult},
    pg::Pg,
    prelude::*,
    result::Error,
    sql_types::{Array, BigInt, Bool, Integer, Nullable},
    upsert::excluded,
};
use diesel_async::{
    AsyncConnection, AsyncMigrationHarness, RunQueryDsl, SaveChangesDsl, SimpleAsyncConnection, TransactionManager,
    async_connection_wrapper::AsyncConnectionWrapper,
};
use diesel_migrations::MigrationHarness;
use futures_util::TryStreamExt;

use crate::library::{Book, Counted, Mood, MoodType, NewBook, Place, Retitled, SCHEMA, SavedBook, author, book};

type Manager = <Conn as AsyncConnection>::TransactionManager;
type Range = Option<(Bound<i32>, Bound<i32>)>;

/// What each step gave, in words, with the state of the transaction after it.
struct Log(Vec<String>);

impl Log {
    fn note<T: std::fmt::Debug>(&mut self, conn: &mut Conn, step: &str, outcome: Result<T, Error>) {
        let state = match Manager::transaction_manager_status_mut(conn).transaction_depth() {
            Ok(depth) => format!("{depth:?}"),
            Err(error) => error.to_string(),
        };
        self.0.push(format!("{step}: {outcome:?} [{state}]"));
    }
}

macro_rules! steps {
    ($log:ident, $conn:ident; $($step:literal => $call:expr;)*) => {
        $( let outcome = $call.await; $log.note($conn, $step, outcome); )*
    };
}

pub(super) async fn run(mut conn: Conn, migrations: impl MigrationSource<Pg> + Clone) -> Vec<String> {
    let mut log = Log(Vec::new());
    begin(&mut log, &mut conn).await;
    writes(&mut log, &mut conn).await;
    reads(&mut log, &mut conn).await;
    types(&mut log, &mut conn).await;
    transactions(&mut log, &mut conn).await;
    transactions_by_hand(&mut log, &mut conn).await;
    streams(&mut log, &mut conn).await;
    let mut conn = migrate(&mut log, conn, migrations);
    wrapped(&mut log, &mut conn).await;
    errors(&mut log, &mut conn).await;
    log.0
}

async fn begin(log: &mut Log, conn: &mut Conn) {
    steps! { log, conn;
        "schema" => conn.batch_execute(SCHEMA);
        "no row" => author::table.select(author::name).first::<String>(conn);
        "optional" => async { author::table.select(author::name).first::<String>(conn).await.optional() };
    }
}

async fn writes(log: &mut Log, conn: &mut Conn) {
    let new = |author_id, title, pages| NewBook { author_id, title, pages };
    steps! { log, conn;
        "insert" => diesel::insert_into(author::table).values(author::name.eq("A")).execute(conn);
        "returning" => diesel::insert_into(author::table)
            .values(author::name.eq("B")).returning((author::id, author::name)).get_result::<(i32, String)>(conn);
        "insert several" => diesel::insert_into(book::table)
            .values(vec![new(1, "one", 10), new(1, "two", 20), new(2, "three", 30)])
            .returning(book::id).get_results::<i32>(conn);
        "on conflict do nothing" => diesel::insert_into(author::table)
            .values(author::name.eq("A")).on_conflict_do_nothing().execute(conn);
        "on conflict do update" => diesel::insert_into(author::table)
            .values((author::id.eq(1), author::name.eq("A2"))).on_conflict(author::id)
            .do_update().set(author::name.eq(excluded(author::name))).returning(author::name).get_result::<String>(conn);
        "update" => diesel::update(book::table.find(1)).set(book::pages.eq(book::pages + 1)).execute(conn);
        "update returning" => diesel::update(book::table.filter(book::author_id.eq(1)))
            .set(book::pages.eq(book::pages * 2)).returning(book::pages).get_results::<i64>(conn);
        "save changes" => async {
            let saved: QueryResult<SavedBook> = Retitled { id: 3, title: "THREE" }.save_changes(conn).await;
            saved.map(|saved| saved.0)
        };
        "insert from select" => diesel::insert_into(book::table)
            .values(book::table.select((book::author_id, book::title, book::pages)).filter(book::id.eq(1)))
            .into_columns((book::author_id, book::title, book::pages)).execute(conn);
        "delete" => diesel::delete(book::table.find(2)).execute(conn);
        "delete returning" => diesel::delete(book::table.filter(book::id.eq(4)))
            .returning(book::title).get_result::<String>(conn);
        "delete none" => diesel::delete(book::table.find(99)).execute(conn);
        "sql_query write" => diesel::sql_query("UPDATE book SET pages = pages + $1 WHERE id = $2")
            .bind::<BigInt, _>(5).bind::<Integer, _>(3).execute(conn);
        "function" => diesel::select(sql::<BigInt>("nextval('book_id_seq')")).get_result::<i64>(conn);
    }
}

async fn reads(log: &mut Log, conn: &mut Conn) {
    steps! { log, conn;
        "load" => book::table.select(Book::as_select()).order(book::id).load(conn);
        "find" => book::table.find(1).select(Book::as_select()).first(conn);
        "get_result" => book::table.find(3).select(book::title).get_result::<String>(conn);
        "get_results" => author::table.select(author::name).order(author::id).get_results::<String>(conn);
        "count" => book::table.count().get_result::<i64>(conn);
        "aggregate" => book::table.select((max(book::pages), sum(book::id))).first::<(Option<i64>, Option<i64>)>(conn);
        "boxed" => {
            let mut query = book::table.select(book::title).into_boxed();
            for title in ["one", "THREE"] {
                query = query.or_filter(book::title.eq(title));
            }
            query.order(book::id).load::<String>(conn)
        };
        "joined" => book::table.inner_join(author::table).select((book::title, author::name))
            .order(book::id).load::<(String, String)>(conn);
        "left join" => author::table.left_join(book::table).select((author::name, book::title.nullable()))
            .order((author::id, book::id)).load::<(String, Option<String>)>(conn);
        "grouped" => book::table.group_by(book::author_id).select((book::author_id, count_star()))
            .order(book::author_id).load::<(i32, i64)>(conn);
        "eq_any" => book::table.filter(book::id.eq_any(vec![1, 3])).select(book::id).order(book::id).load::<i32>(conn);
        "subquery" => author::table.filter(author::id.eq_any(book::table.select(book::author_id)))
            .select(author::id).order(author::id).load::<i32>(conn);
        "exists" => diesel::select(diesel::dsl::exists(book::table.find(1))).get_result::<bool>(conn);
        "sql_query" => async {
            let query = diesel::sql_query("SELECT count(*) FROM book WHERE pages > $1").bind::<BigInt, _>(1);
            query.get_result::<Counted>(conn).await.map(|row| row.count)
        };
        "for update" => book::table.select(book::id).for_update().order(book::id).load::<i32>(conn);
        "limit and offset" => book::table.select(book::id).order(book::id).limit(1).offset(1).load::<i32>(conn);
        "execute a read" => diesel::sql_query("SELECT id FROM book").execute(conn);
        "set cache size" => {
            conn.set_prepared_statement_cache_size(CacheSize::Disabled);
            book::table.count().get_result::<i64>(conn)
        };
        "and back" => {
            conn.set_prepared_statement_cache_size(CacheSize::Unbounded);
            book::table.count().get_result::<i64>(conn)
        };
    }
}

async fn types(log: &mut Log, conn: &mut Conn) {
    let everything = (author::tags, author::notes, author::mood, author::home);
    type Everything = (Vec<String>, serde_json::Value, Mood, Option<Place>);
    let home = Place(7, "seven".into());
    steps! { log, conn;
        "write types" => diesel::update(author::table.find(1)).set((
            author::tags.eq(vec!["x", "y"]),
            author::notes.eq(serde_json::json!({"a": [1, null]})),
            author::mood.eq(Mood::Bad),
            author::home.eq(Some(home.clone())),
        )).returning(everything).get_result::<Everything>(conn);
        "read types" => author::table.select(everything).order(author::id).load::<Everything>(conn);
        "filter by enum" => author::table.filter(author::mood.eq(Mood::Bad)).select(author::id).load::<i32>(conn);
        "filter by enums" => author::table.filter(author::mood.eq_any(vec![Mood::Bad, Mood::Good]))
            .select(author::id).order(author::id).load::<i32>(conn);
        "filter by composite" => author::table.filter(author::home.eq(home)).select(author::id).load::<i32>(conn);
        "filter by array" => author::table.filter(author::tags.contains(vec!["x"])).select(author::id).load::<i32>(conn);
        "filter by jsonb" => author::table.filter(author::notes.has_key("a")).select(author::id).load::<i32>(conn);
        "range" => diesel::update(book::table.find(1)).set(book::shelf.eq(Some((Bound::Included(1), Bound::Excluded(5)))))
            .returning(book::shelf).get_result::<Range>(conn);
        "read range" => book::table.select(book::shelf).order(book::id).load::<Range>(conn);
        "array literal" => diesel::select(sql::<Array<Nullable<Integer>>>("ARRAY[1, NULL]"))
            .get_result::<Vec<Option<i32>>>(conn);
        "made anew" => conn.batch_execute("CREATE TABLE felt (id int, mood mood); INSERT INTO felt VALUES (1, 'bad')");
        "bad value" => diesel::select(sql::<MoodType>("'sad'::text")).get_result::<Mood>(conn);
    }
}

async fn add(conn: &mut Conn, title: &str) -> QueryResult<usize> {
    diesel::insert_into(book::table).values(NewBook { author_id: 1, title, pages: 1 }).execute(conn).await
}

async fn count(conn: &mut Conn) -> QueryResult<i64> {
    book::table.count().get_result(conn).await
}

async fn count_late(conn: &mut Conn) -> QueryResult<i64> {
    diesel::sql_query("SELECT count(*) FROM late").get_result::<Counted>(conn).await.map(|row| row.count)
}

async fn roll_back(conn: &mut Conn, title: &str) -> QueryResult<()> {
    conn.transaction(async |conn| {
        add(conn, title).await?;
        Err(Error::RollbackTransaction)
    })
    .await
}

async fn transactions(log: &mut Log, conn: &mut Conn) {
    steps! { log, conn;
        "transaction" => conn.transaction(async |conn| { add(conn, "t1").await?; count(conn).await });
        "rolled back" => roll_back(conn, "t2");
        "count after" => count(conn);
    }
    let nested = conn.transaction(async |conn| {
        steps! { log, conn;
            "in it" => add(conn, "t3");
            "nested" => conn.transaction(async |conn| add(conn, "t4").await);
            "nested rollback" => roll_back(conn, "t5");
            "an error in a savepoint" => conn.transaction(async |conn| diesel::sql_query("SELECT 1/0").execute(conn).await);
            "goes on" => count(conn);
        }
        QueryResult::Ok(())
    });
    let nested = nested.await;
    log.note(conn, "outer", nested);
    let failed = conn.transaction(async |conn| {
        steps! { log, conn;
            "an error" => diesel::sql_query("SELECT 1/0").execute(conn);
            "fails too" => count(conn);
        }
        QueryResult::Ok(())
    });
    let failed = failed.await;
    log.note(conn, "commit of what failed", failed);
    steps! { log, conn;
        "deferred" => conn.transaction(async |conn| conn.batch_execute("INSERT INTO late VALUES (1), (1)").await);
        "after it" => count(conn);
        "builder" => conn.build_transaction().read_only().repeatable_read().run(async |conn| count(conn).await);
        "read only" => conn.build_transaction().read_only().run(async |conn| add(conn, "t6").await);
        "serializable" => conn.build_transaction().serializable().deferrable().read_write()
            .run(async |conn| add(conn, "t7").await);
        "serialization failure" => retried(conn);
        "test transaction" => async {
            QueryResult::Ok(conn.test_transaction::<_, Error, _>(async |conn| {
                add(conn, "t10").await?;
                count(conn).await
            }).await)
        };
        "count at the end" => count(conn);
    }
}

/// Fails with a serialization failure once, and is run again.
async fn retried(conn: &mut Conn) -> QueryResult<(i32, i64)> {
    let fail = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'serialization_failure'; END $$";
    let mut tries = 0;
    loop {
        tries += 1;
        let mut transaction = conn.build_transaction().serializable();
        let out = transaction.run(async |conn| {
            let before = count(conn).await?;
            if tries == 1 {
                conn.batch_execute(fail).await?;
            }
            add(conn, "t8").await?;
            QueryResult::Ok((tries, before))
        });
        match out.await {
            Err(Error::DatabaseError(diesel::result::DatabaseErrorKind::SerializationFailure, _)) => {}
            out => return out,
        }
    }
}

async fn transactions_by_hand(log: &mut Log, conn: &mut Conn) {
    steps! { log, conn;
        "begin by hand" => Manager::begin_transaction(conn);
        "add by hand" => add(conn, "t9");
        "begin again" => Manager::begin_transaction(conn);
        "roll back the inner" => Manager::rollback_transaction(conn);
        "commit by hand" => Manager::commit_transaction(conn);
        "commit none" => Manager::commit_transaction(conn);
        "roll back none" => Manager::rollback_transaction(conn);
    }
    // Ours knows of a transaction that a text began; diesel-async's own says that there is none.
    let begun = conn.batch_execute("BEGIN; INSERT INTO late VALUES (5)").await;
    let seen = count_late(conn).await;
    log.0.push(format!("by texts: {begun:?} {seen:?}"));
    steps! { log, conn;
        "rolled back by text" => conn.batch_execute("ROLLBACK");
        "seen no more" => count_late(conn);
        "begin test transaction" => conn.begin_test_transaction();
        "in it" => add(conn, "t11");
        "savepoint in it" => conn.transaction(async |conn| add(conn, "t12").await);
        "end it" => Manager::rollback_transaction(conn);
        "count after it" => count(conn);
    }
}

async fn streams(log: &mut Log, conn: &mut Conn) {
    let query = || book::table.select(book::title).order(book::id);
    steps! { log, conn;
        "load_stream" => async { query().load_stream::<String>(conn).await?.try_collect::<Vec<_>>().await };
        "not to the end" => async { query().load_stream::<String>(conn).await?.try_next().await };
        "after it" => count(conn);
        "a write's stream" => async {
            let update = diesel::update(book::table.filter(book::id.lt(3))).set(book::pages.eq(1));
            update.returning(book::title).load_stream::<String>(conn).await?.try_collect::<Vec<_>>().await
        };
        "a stream that fails" => async {
            let query = book::table.select(sql::<Integer>("1 / (pages - pages)::int"));
            query.load_stream::<i32>(conn).await?.try_collect::<Vec<_>>().await
        };
        "a stream in a transaction" => conn.transaction(async |conn| {
            let all: Vec<String> = query().load_stream(conn).await?.try_collect().await?;
            add(conn, "t13").await.map(|added| (all.len(), added))
        });
        "after the streams" => query().load::<String>(conn);
    }
}

/// What migrations say, as text.
fn said<T: std::fmt::Debug>(outcome: MigrationResult<T>) -> QueryResult<String> {
    Ok(outcome.map_or_else(|error| error.to_string(), |value| format!("{value:?}")))
}

fn migrate(log: &mut Log, conn: Conn, migrations: impl MigrationSource<Pg> + Clone) -> Conn {
    let mut harness = AsyncMigrationHarness::new(conn);
    let pending = said(harness.has_pending_migration(migrations.clone()));
    let ran = said(harness.run_pending_migrations(migrations.clone()));
    let applied = said(harness.applied_migrations());
    let mut conn = harness.into_inner();
    log.note(&mut conn, "pending", pending);
    log.note(&mut conn, "run", ran);
    log.note(&mut conn, "applied", applied);
    let mut wrapper = AsyncConnectionWrapper::<Conn>::from(conn);
    let reverted = tokio::task::block_in_place(|| said(wrapper.revert_last_migration(migrations)));
    let mut conn = wrapper.into_inner();
    log.note(&mut conn, "revert", reverted);
    conn
}

async fn wrapped(log: &mut Log, conn: &mut Conn) {
    steps! { log, conn;
        "migrated" => diesel::sql_query("SELECT count(*) FROM migrated").execute(conn);
        "migrations" => async {
            let query = diesel::sql_query("SELECT count(*) FROM __diesel_schema_migrations");
            query.get_result::<Counted>(conn).await.map(|row| row.count)
        };
    }
}

async fn errors(log: &mut Log, conn: &mut Conn) {
    steps! { log, conn;
        "unique" => diesel::insert_into(author::table).values(author::name.eq("B")).execute(conn);
        "foreign key" => diesel::insert_into(book::table)
            .values(NewBook { author_id: 99, title: "x", pages: 1 }).execute(conn);
        "check" => diesel::update(book::table.find(1)).set(book::title.eq("")).execute(conn);
        "not null" => diesel::sql_query("INSERT INTO author (name) VALUES (NULL)").execute(conn);
        "no table" => diesel::sql_query("SELECT id FROM nowhere").execute(conn);
        "syntax" => diesel::sql_query("SELEC 1").execute(conn);
        "division" => diesel::select(sql::<Integer>("1 / 0")).get_result::<i32>(conn);
        "wrong type" => book::table.select(sql::<Bool>("title")).first::<bool>(conn);
        "empty text" => conn.batch_execute("");
        "batch" => conn.batch_execute("SELECT 1; SELECT 1/0");
        "nul" => conn.batch_execute("SELECT '\0'");
        "drop" => conn.batch_execute("DROP TABLE felt; DROP TABLE late");
        "the end" => author::table.count().get_result::<i64>(conn);
    }
}
