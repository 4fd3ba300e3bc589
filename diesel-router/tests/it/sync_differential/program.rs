// The program of the differential suite, included once for each connection, which is `Conn`.

use std::io::Read;

use diesel::{
    connection::{AnsiTransactionManager, Connection, DefaultLoadingMode, SimpleConnection, TransactionManager},
    dsl::{count_star, max, sql, sum},
    pg::PgRowByRowLoadingMode,
    prelude::*,
    result::Error,
    sql_types::{Array, BigInt, Bool, Integer, Nullable},
    upsert::excluded,
};

use crate::library::{Book, Counted, Mood, MoodType, NewBook, Place, SCHEMA, SavedBook, author, book};

/// What each step gave, in words, with the state of the transaction after it.
struct Log(Vec<String>);

impl Log {
    fn note<T: std::fmt::Debug>(&mut self, conn: &mut Conn, step: &str, outcome: Result<T, Error>) {
        let state = match AnsiTransactionManager::transaction_manager_status_mut(conn).transaction_depth() {
            Ok(depth) => format!("{depth:?}"),
            Err(error) => error.to_string(),
        };
        self.0.push(format!("{step}: {outcome:?} [{state}]"));
    }
}

macro_rules! steps {
    ($log:ident, $conn:ident; $($step:literal => $call:expr;)*) => {
        $( let outcome = $call; $log.note($conn, $step, outcome); )*
    };
}

fn titles(rows: impl Iterator<Item = QueryResult<String>>) -> QueryResult<Vec<String>> {
    rows.collect()
}

pub(super) fn run(conn: &mut Conn) -> Vec<String> {
    let mut log = Log(Vec::new());
    steps! { log, conn;
        "schema" => conn.batch_execute(SCHEMA);
        "no row" => author::table.select(author::name).first::<String>(conn);
        "optional" => author::table.select(author::name).first::<String>(conn).optional();
    }
    writes(&mut log, conn);
    reads(&mut log, conn);
    types(&mut log, conn);
    transactions(&mut log, conn);
    rows_and_copies(&mut log, conn);
    errors(&mut log, conn);
    log.0
}

fn writes(log: &mut Log, conn: &mut Conn) {
    let new = |author_id, title, pages| NewBook { author_id, title, pages };
    steps! { log, conn;
        "insert" => diesel::insert_into(author::table).values(author::name.eq("A")).execute(conn);
        "returning" => diesel::insert_into(author::table)
            .values(author::name.eq("B")).returning((author::id, author::name)).get_result::<(i32, String)>(conn);
        "insert several" => diesel::insert_into(book::table)
            .values(&vec![new(1, "one", 10), new(1, "two", 20), new(2, "three", 30)])
            .returning(book::id).get_results::<i32>(conn);
        "on conflict do nothing" => diesel::insert_into(author::table)
            .values(author::name.eq("A")).on_conflict_do_nothing().execute(conn);
        "on conflict do update" => diesel::insert_into(author::table)
            .values((author::id.eq(1), author::name.eq("A2"))).on_conflict(author::id)
            .do_update().set(author::name.eq(excluded(author::name))).returning(author::name).get_result::<String>(conn);
        "update" => diesel::update(book::table.find(1)).set(book::pages.eq(book::pages + 1)).execute(conn);
        "update returning" => diesel::update(book::table.filter(book::author_id.eq(1)))
            .set(book::pages.eq(book::pages * 2)).returning(book::pages).get_results::<i64>(conn);
        "save changes" => Book { id: 3, author_id: 2, title: "THREE".into(), pages: 33 }.save_changes_as(conn);
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

/// [`SaveChangesDsl`] with its type said.
trait SaveChangesAs {
    fn save_changes_as(&self, conn: &mut Conn) -> QueryResult<Book>;
}

impl SaveChangesAs for Book {
    fn save_changes_as(&self, conn: &mut Conn) -> QueryResult<Book> {
        self.save_changes::<SavedBook>(conn).map(|saved| saved.0)
    }
}

fn reads(log: &mut Log, conn: &mut Conn) {
    steps! { log, conn;
        "load" => book::table.select(Book::as_select()).order(book::id).load(conn);
        "find" => book::table.find(1).select(Book::as_select()).first(conn);
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
        "sql_query" => diesel::sql_query("SELECT count(*) FROM book WHERE pages > $1")
            .bind::<BigInt, _>(1).get_result::<Counted>(conn).map(|row| row.count);
        "for update" => book::table.select(book::id).for_update().order(book::id).load::<i32>(conn);
        "union" => book::table.select(book::id).union(author::table.select(author::id)).load::<i32>(conn)
            .map(|mut ids| { ids.sort_unstable(); ids });
        "limit and offset" => book::table.select(book::id).order(book::id).limit(1).offset(1).load::<i32>(conn);
        "execute a read" => diesel::sql_query("SELECT id FROM book").execute(conn);
        "set cache size" => {
            conn.set_prepared_statement_cache_size(diesel::connection::CacheSize::Disabled);
            book::table.count().get_result::<i64>(conn)
        };
        "and back" => {
            conn.set_prepared_statement_cache_size(diesel::connection::CacheSize::Unbounded);
            book::table.count().get_result::<i64>(conn)
        };
    }
}

fn types(log: &mut Log, conn: &mut Conn) {
    use std::ops::Bound;
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
        "filter by composite" => author::table.filter(author::home.eq(home)).select(author::id).load::<i32>(conn);
        "filter by array" => author::table.filter(author::tags.contains(vec!["x"])).select(author::id).load::<i32>(conn);
        "filter by jsonb" => author::table.filter(author::notes.has_key("a")).select(author::id).load::<i32>(conn);
        "range" => diesel::update(book::table.find(1)).set(book::shelf.eq(Some((Bound::Included(1), Bound::Excluded(5)))))
            .returning(book::shelf).get_result::<Option<(Bound<i32>, Bound<i32>)>>(conn);
        "read range" => book::table.select(book::shelf).order(book::id)
            .load::<Option<(Bound<i32>, Bound<i32>)>>(conn);
        "array literal" => diesel::select(sql::<Array<Nullable<Integer>>>("ARRAY[1, NULL]"))
            .get_result::<Vec<Option<i32>>>(conn);
        "made anew" => conn.batch_execute("CREATE TABLE felt (id int, mood mood); INSERT INTO felt VALUES (1, 'bad')");
        "bad value" => diesel::select(sql::<MoodType>("'sad'::text")).get_result::<Mood>(conn);
    }
}

fn transactions(log: &mut Log, conn: &mut Conn) {
    let add = |conn: &mut Conn, title: &str| {
        diesel::insert_into(book::table).values(&NewBook { author_id: 1, title, pages: 1 }).execute(conn)
    };
    let count = |conn: &mut Conn| book::table.count().get_result::<i64>(conn);
    steps! { log, conn;
        "transaction" => conn.transaction(|conn| { add(conn, "t1")?; count(conn) });
        "rolled back" => conn.transaction::<(), Error, _>(|conn| { add(conn, "t2")?; Err(Error::RollbackTransaction) });
        "count after" => count(conn);
    }
    let nested = conn.transaction(|conn| {
        steps! { log, conn;
            "in it" => add(conn, "t3");
            "nested" => conn.transaction(|conn| add(conn, "t4"));
            "nested rollback" => conn.transaction::<(), Error, _>(|conn| {
                add(conn, "t5")?;
                Err(Error::RollbackTransaction)
            });
            "an error in a savepoint" => conn.transaction(|conn| diesel::sql_query("SELECT 1/0").execute(conn));
            "goes on" => count(conn);
        }
        QueryResult::Ok(())
    });
    log.note(conn, "outer", nested);
    let failed = conn.transaction(|conn| {
        steps! { log, conn;
            "an error" => diesel::sql_query("SELECT 1/0").execute(conn);
            "fails too" => count(conn);
        }
        QueryResult::Ok(())
    });
    log.note(conn, "commit of what failed", failed);
    steps! { log, conn;
        "deferred" => conn.transaction(|conn| conn.batch_execute("INSERT INTO late VALUES (1), (1)"));
        "after it" => count(conn);
        "builder" => conn.build_transaction().read_only().repeatable_read().run(|conn| count(conn));
        "read only" => conn.build_transaction().read_only().run(|conn| add(conn, "t6"));
        "serializable" => conn.build_transaction().serializable().deferrable().read_write().run(|conn| add(conn, "t7"));
        "serialization failure" => {
            let mut tries = 0;
            loop {
                tries += 1;
                let out = conn.build_transaction().serializable().run(|conn| {
                    let before = count(conn)?;
                    if tries == 1 {
                        conn.batch_execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'serialization_failure'; END $$")?;
                    }
                    add(conn, "t8")?;
                    Ok::<_, Error>((tries, before))
                });
                match out {
                    Err(Error::DatabaseError(diesel::result::DatabaseErrorKind::SerializationFailure, _)) => {}
                    out => break out,
                }
            }
        };
        "begin by hand" => AnsiTransactionManager::begin_transaction(conn);
        "add by hand" => add(conn, "t9");
        "begin again" => AnsiTransactionManager::begin_transaction(conn);
        "roll back the inner" => AnsiTransactionManager::rollback_transaction(conn);
        "commit by hand" => AnsiTransactionManager::commit_transaction(conn);
        "commit none" => AnsiTransactionManager::commit_transaction(conn);
        "roll back none" => AnsiTransactionManager::rollback_transaction(conn);
        "by texts" => conn.batch_execute("BEGIN; INSERT INTO late VALUES (5)");
        "seen" => diesel::sql_query("SELECT count(*) FROM late").get_result::<Counted>(conn).map(|row| row.count);
        "rolled back by text" => conn.batch_execute("ROLLBACK");
        "seen no more" => diesel::sql_query("SELECT count(*) FROM late").get_result::<Counted>(conn).map(|row| row.count);
        "test transaction" => QueryResult::Ok(conn.test_transaction::<_, Error, _>(|conn| { add(conn, "t10")?; count(conn) }));
        "count at the end" => count(conn);
    }
    steps! { log, conn;
        "begin test transaction" => conn.begin_test_transaction();
        "in it" => add(conn, "t11");
        "savepoint in it" => conn.transaction(|conn| add(conn, "t12"));
        "end it" => AnsiTransactionManager::rollback_transaction(conn);
        "count after it" => count(conn);
    }
}

fn rows_and_copies(log: &mut Log, conn: &mut Conn) {
    let query = || book::table.select(book::title).order(book::id);
    steps! { log, conn;
        "load_iter" => query().load_iter::<String, DefaultLoadingMode>(conn).and_then(titles);
        "row by row" => query().load_iter::<String, PgRowByRowLoadingMode>(conn).and_then(titles);
        "not to the end" => query().load_iter::<String, PgRowByRowLoadingMode>(conn)
            .and_then(|mut rows| rows.next().transpose());
        "after it" => book::table.count().get_result::<i64>(conn);
        "a write row by row" => diesel::update(book::table.filter(book::id.lt(3))).set(book::pages.eq(1))
            .returning(book::title).load_iter::<String, PgRowByRowLoadingMode>(conn).and_then(titles);
        "copy from" => diesel::copy_from(book::table)
            .from_raw_data((book::author_id, book::title, book::pages), |out| {
                writeln!(out, "1\tcopied\t3").map_err(|error| Error::SerializationError(Box::new(error)))
            }).execute(conn);
        "copy insertables" => diesel::copy_from(book::table)
            .from_insertable(vec![NewBook { author_id: 2, title: "copied too", pages: 4 }]).execute(conn);
        "copy fails" => diesel::copy_from(book::table)
            .from_raw_data((book::author_id, book::title, book::pages), |out| {
                writeln!(out, "99\tcopied\t3").map_err(|error| Error::SerializationError(Box::new(error)))
            }).execute(conn);
        "after the copies" => query().load::<String>(conn);
    }
    let text = conn.copied();
    log.note(conn, "copy to", text);
}

/// COPY TO is Diesel's own connection's alone.
trait Copied {
    fn copied(&mut self) -> QueryResult<String>;
}

fn copied(conn: &mut diesel::PgConnection) -> QueryResult<String> {
    let mut text = String::new();
    let mut rows = diesel::copy_to(author::table).load_raw(conn)?;
    rows.read_to_string(&mut text).map_err(|error| Error::DeserializationError(Box::new(error)))?;
    Ok(text)
}

impl Copied for diesel::PgConnection {
    fn copied(&mut self) -> QueryResult<String> {
        copied(self)
    }
}

impl Copied for diesel_router::RoutingConnection {
    fn copied(&mut self) -> QueryResult<String> {
        copied(self.primary()?)
    }
}

fn errors(log: &mut Log, conn: &mut Conn) {
    steps! { log, conn;
        "unique" => diesel::insert_into(author::table).values(author::name.eq("B")).execute(conn);
        "foreign key" => diesel::insert_into(book::table)
            .values(&NewBook { author_id: 99, title: "x", pages: 1 }).execute(conn);
        "check" => diesel::update(book::table.find(1)).set(book::title.eq("")).execute(conn);
        "not null" => diesel::sql_query("INSERT INTO author (name) VALUES (NULL)").execute(conn);
        "no table" => diesel::sql_query("SELECT id FROM nowhere").execute(conn);
        "syntax" => diesel::sql_query("SELEC 1").execute(conn);
        "division" => diesel::select(sql::<Integer>("1 / 0")).get_result::<i32>(conn);
        "row by row division" => book::table.select(sql::<Integer>("1 / (pages - pages)::int"))
            .load_iter::<i32, PgRowByRowLoadingMode>(conn)
            .and_then(|rows| rows.collect::<QueryResult<Vec<_>>>());
        "wrong type" => book::table.select(sql::<Bool>("title")).first::<bool>(conn);
        "empty text" => conn.batch_execute("");
        "batch" => conn.batch_execute("SELECT 1; SELECT 1/0");
        "nul" => conn.batch_execute("SELECT '\0'");
        "drop" => conn.batch_execute("DROP TABLE felt; DROP TABLE late");
        "the end" => author::table.count().get_result::<i64>(conn);
    }
}
