//! One program with every kind of call, on SeaORM's own connection and on ours: the same results, step by step.

use std::{fmt::Debug, pin::Pin, time::Duration};

use futures_util::TryStreamExt;
use read_router::{Config, ReadClass};
use read_router_scenarios::{LIMIT, Stage, fault};
use sea_orm::{
    AccessMode,
    ActiveValue::Set,
    ConnectionTrait, Database, DbBackend, DbErr, DerivePartialModel, IsolationLevel, JoinType, LoaderTrait,
    PaginatorTrait, QueryOrder, QuerySelect, QueryTrait, Statement, StreamTrait, TransactionError, TransactionOptions,
    TransactionSession, TransactionTrait,
    entity::prelude::*,
    sea_query::{Alias, Expr, ExprTrait, OnConflict, Query},
};
use sea_orm_migration::IntoSchemaManagerConnection;
use sea_router::{PrimaryReason, RoutingConnection};

use crate::{Sea, options};

mod entities;
mod schema;

use entities::{author, book, book_label, label};

const SCHEMA: &str = "CREATE TABLE author (id serial PRIMARY KEY, name text NOT NULL UNIQUE);
    CREATE TABLE book (id serial PRIMARY KEY, author_id int NOT NULL REFERENCES author ON DELETE CASCADE,
        title text NOT NULL, pages bigint NOT NULL);
    CREATE TABLE label (id serial PRIMARY KEY, text text NOT NULL);
    CREATE TABLE book_label (book_id int REFERENCES book ON DELETE CASCADE,
        label_id int REFERENCES label ON DELETE CASCADE, PRIMARY KEY (book_id, label_id))";

/// What each step gave, in words.
#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    fn note<T: Debug, E: std::fmt::Display>(&mut self, step: &str, outcome: &Result<T, E>) {
        self.0.push(match outcome {
            Ok(value) => format!("{step}: {value:?}"),
            Err(error) => format!("{step}: error: {error}"),
        });
    }
}

macro_rules! steps {
    ($log:ident; $($step:literal => $call:expr;)*) => { $( $log.note($step, &$call.await); )* };
}
use steps;

#[derive(DerivePartialModel)]
#[sea_orm(entity = "book::Entity")]
struct Title {
    title: String,
    #[sea_orm(from_expr = "book::Column::Pages.into_expr().add(1)")]
    with_cover: i64,
}

fn sql(text: &str) -> Statement {
    Statement::from_string(DbBackend::Postgres, text)
}

fn new_book(author_id: i32, title: &str, pages: i64) -> book::ActiveModel {
    book::ActiveModel {
        author_id: Set(author_id),
        title: Set(title.to_owned()),
        pages: Set(pages),
        ..Default::default()
    }
}

async fn raw<C: ConnectionTrait>(db: &C, text: &str) -> Result<Vec<(i32, String)>, DbErr> {
    let rows = db.query_all_raw(sql(text)).await?;
    rows.iter().map(|row| Ok((row.try_get("", "id")?, row.try_get("", "title")?))).collect()
}

/// Writes of each kind, each read back at once.
async fn entities<C: ConnectionTrait>(db: &C, log: &mut Log) {
    steps! { log;
        "insert" => author::ActiveModel { name: Set("Ann".into()), ..Default::default() }.insert(db);
        "find by id" => author::Entity::find_by_id(1).one(db);
        "insert again" => author::ActiveModel { name: Set("Ann".into()), ..Default::default() }.insert(db);
        "insert many" => author::Entity::insert_many(["Bob", "Cid", "Dot"].map(|name| author::ActiveModel {
            name: Set(name.into()), ..Default::default() })).exec(db);
        "on conflict" => author::Entity::insert(author::ActiveModel { name: Set("Bob".into()), ..Default::default() })
            .on_conflict(OnConflict::column(author::Column::Name).do_nothing().to_owned()).exec_without_returning(db);
        "all" => author::Entity::find().order_by_asc(author::Column::Id).all(db);
        "books" => book::Entity::insert_many((1..=9).map(|n| new_book([1, 3, 4][n % 3], &format!("Book {n}"), 10 * n as i64)))
            .exec_with_returning(db);
        "count" => book::Entity::find().count(db);
        "update one" => book::ActiveModel { pages: Set(11), ..book::ActiveModel::from(book::Model {
            id: 1, author_id: 3, title: "Book 1".into(), pages: 10 }) }.update(db);
        "read it" => book::Entity::find_by_id(1).one(db);
        "update many" => book::Entity::update_many().col_expr(book::Column::Pages, Expr::col(book::Column::Pages).add(100))
            .filter(book::Column::Id.gt(7)).exec(db);
        "update with returning" => book::Entity::update_many().col_expr(book::Column::Pages, Expr::value(1_i64))
            .filter(book::Column::Id.eq(9)).exec_with_returning(db);
        "most" => book::Entity::find().select_only().column_as(book::Column::Pages.max(), "most").into_tuple::<Option<i64>>().one(db);
        "update of none" => book::ActiveModel { id: Set(999), pages: Set(1), ..Default::default() }.update(db);
        "save" => new_book(3, "Saved", 5).save(db);
        "delete one" => book::Entity::delete_by_id(10).exec(db);
        "it is gone" => book::Entity::find_by_id(10).one(db);
        "delete many" => book::Entity::delete_many().filter(book::Column::Title.eq("Book 8")).exec(db);
        "titles" => async {
            let titles = book::Entity::find().order_by_asc(book::Column::Id).into_partial_model::<Title>().all(db).await?;
            Ok::<_, DbErr>(titles.into_iter().map(|book| (book.title, book.with_cover)).collect::<Vec<_>>())
        };
        "exists" => book::Entity::find_by_id(3).exists(db);
        "missing" => author::Entity::find_by_id(77).one(db);
    }
}

async fn relations<C: ConnectionTrait + TransactionTrait>(db: &C, log: &mut Log) {
    steps! { log;
        "labels" => label::Entity::insert_many(["red", "blue"].map(|text| label::ActiveModel { text: Set(text.into()), ..Default::default() })).exec(db);
        "book labels" => book_label::Entity::insert_many([(1, 1), (1, 2), (2, 2)].map(|(book, label)| book_label::ActiveModel {
            book_id: Set(book), label_id: Set(label) })).exec_without_returning(db);
        "also related" => book::Entity::find().find_also_related(author::Entity).order_by_asc(book::Column::Id).all(db);
        "with related" => author::Entity::find().order_by_asc(author::Column::Id).order_by_asc(book::Column::Id).find_with_related(book::Entity).all(db);
        "join" => book::Entity::find().join(JoinType::InnerJoin, book::Relation::Author.def()).filter(author::Column::Name.eq("Bob")).order_by_asc(book::Column::Id).all(db);
        "entity loader" => book::Entity::load().with(author::Entity).with(label::Entity).order_by_asc(book::Column::Id).all(db);
    }
    let books = book::Entity::find().order_by_asc(book::Column::Id).all(db).await.expect("read");
    let authors = author::Entity::find().order_by_asc(author::Column::Id).all(db).await.expect("read");
    steps! { log;
        "load one" => books.load_one(author::Entity, db);
        "load many" => authors.load_many(book::Entity::find().order_by_asc(book::Column::Id), db);
        "related of a model" => authors[0].find_related(book::Entity).order_by_asc(book::Column::Id).all(db);
        "graph" => author::ActiveModel::builder().set_name("Eve").add_book(book::ActiveModel::builder().set_title("Graph").set_pages(3)
            .add_label(label::ActiveModel::builder().set_text("new"))).save(db);
        "graph read" => book::Entity::load().filter(book::Column::Title.eq("Graph")).with(author::Entity).with(label::Entity).one(db);
    }
    let eve = author::Entity::find().filter(author::Column::Name.eq("Eve")).one(db).await.expect("read");
    match eve {
        Some(eve) => log.note("cascade", &eve.cascade_delete(db).await),
        None => log.0.push("cascade: Eve is missing".into()),
    }
    steps! { log; "after the cascade" => book::Entity::find().count(db); }
}

async fn pages<C: ConnectionTrait + StreamTrait>(db: &C, log: &mut Log) {
    let pages = book::Entity::find().order_by_asc(book::Column::Id).paginate(db, 3);
    steps! { log;
        "pages" => pages.num_items_and_pages();
        "page 1" => pages.fetch_page(1);
        "the last" => pages.fetch_page(9);
        "cursor" => book::Entity::find().cursor_by(book::Column::Id).after(2).first(3).all(db);
        "cursor back" => book::Entity::find().cursor_by(book::Column::Id).before(6).last(2).all(db);
        "stream" => async { book::Entity::find().order_by_asc(book::Column::Id).stream(db).await?.try_collect::<Vec<_>>().await };
        "stream of a page" => async { book::Entity::find().order_by_asc(book::Column::Id).paginate(db, 4).into_stream().try_collect::<Vec<_>>().await };
        "stream with an error" => async { db.stream_raw(sql("SELECT 1 / (5 - g) FROM generate_series(1, 9) g")).await?
            .map_ok(|row| row.try_get_by_index::<i32>(0)).try_collect::<Vec<_>>().await };
        "raw" => raw(db, "SELECT id, title FROM book ORDER BY id");
        "raw with values" => book::Entity::find().from_raw_sql(Statement::from_sql_and_values(DbBackend::Postgres,
            "SELECT * FROM book WHERE pages > $1 AND title LIKE $2 ORDER BY id", [20_i64.into(), "Book%".into()])).all(db);
        "raw error" => raw(db, "SELECT nothing FROM nowhere");
        "unprepared" => async { db.execute_unprepared("INSERT INTO label (text) VALUES ('a'), ('b'); DELETE FROM label WHERE text = 'a'").await.map(|r| r.rows_affected()) };
        "sea-query" => async { db.query_all(&Query::select().column(Alias::new("text")).from(Alias::new("label"))
            .order_by(Alias::new("id"), sea_orm::Order::Asc).to_owned()).await?.iter().map(|row| row.try_get_by_index::<String>(0)).collect::<Result<Vec<_>, _>>() };
        "statement of a query" => async { db.query_one_raw(book::Entity::find_by_id(2).build(DbBackend::Postgres)).await?.map(|row| row.try_get::<String>("", "title")).transpose() };
        "insert by query" => async { db.query_one_raw(sql("INSERT INTO label (text) VALUES ('returned') RETURNING id")).await?.map(|row| row.try_get_by_index::<i32>(0)).transpose() };
        "writing CTE" => async { db.query_all_raw(sql("WITH gone AS (DELETE FROM label WHERE text = 'returned' RETURNING id) SELECT id FROM gone")).await.map(|rows| rows.len()) };
        "lock" => raw(db, "SELECT id, title FROM book WHERE id = 2 FOR UPDATE");
    }
}

/// Each kind of transaction, with what is seen inside, outside and afterwards.
async fn transactions<C>(db: &C, log: &mut Log)
where
    C: ConnectionTrait + TransactionTrait,
    C::Transaction: TransactionSession,
{
    let count = |at: &str| format!("SELECT id, '{at}' AS title FROM book ORDER BY id DESC LIMIT 1");
    let committed = db.begin().await.expect("begun");
    steps! { log;
        "in it" => new_book(1, "In a transaction", 1).insert(&committed);
        "seen inside" => raw(&committed, &count("inside"));
        "not outside" => raw(db, &count("outside"));
    }
    log.note("commit", &committed.commit().await);
    steps! { log; "after" => raw(db, &count("after")); }
    let rolled_back = db.begin_with_config(Some(IsolationLevel::RepeatableRead), None).await.expect("begun");
    steps! { log; "in another" => new_book(1, "Rolled back", 1).insert(&rolled_back); }
    log.note("rollback", &rolled_back.rollback().await);
    steps! { log; "nothing" => raw(db, &count("rolled back")); }
    let dropped = db.begin().await.expect("begun");
    steps! { log; "in a third" => book::Entity::delete_many().exec(&dropped); }
    drop(dropped);
    steps! { log; "all there" => raw(db, &count("dropped")); }
    let read_only = db.begin_with_config(None, Some(AccessMode::ReadOnly)).await.expect("begun");
    steps! { log;
        "read only" => raw(&read_only, &count("read only"));
        "refused" => new_book(1, "Refused", 1).insert(&read_only);
    }
    let _ = read_only.rollback().await;
    let options = TransactionOptions { isolation_level: Some(IsolationLevel::Serializable), ..Default::default() };
    let outer = db.begin_with_options(options).await.expect("begun");
    let nested = outer.begin().await.expect("a savepoint");
    steps! { log; "nested" => new_book(3, "Nested", 1).insert(&nested); }
    log.note("nested rollback", &nested.rollback().await);
    steps! { log; "kept" => new_book(3, "Kept", 1).insert(&outer); }
    log.note("outer", &outer.commit().await);
    steps! { log; "only one" => book::Entity::find().filter(book::Column::Title.is_in(["Nested", "Kept"])).all(db); }
    let failed: Result<i32, TransactionError<DbErr>> = db
        .transaction(|transaction| {
            Box::pin(async move {
                new_book(1, "Closure", 1).insert(transaction).await?;
                Err(DbErr::Custom("changed my mind".into()))
            }) as Pin<Box<dyn Future<Output = _> + Send + '_>>
        })
        .await;
    log.note("closure that fails", &failed);
    let passed: Result<book::Model, TransactionError<DbErr>> = db
        .transaction_with_config(
            |transaction| {
                Box::pin(async move { new_book(1, "Closure", 1).insert(transaction).await })
                    as Pin<Box<dyn Future<Output = _> + Send + '_>>
            },
            Some(IsolationLevel::ReadCommitted),
            None,
        )
        .await;
    log.note("closure", &passed);
    steps! { log;
        "of two closures" => book::Entity::find().filter(book::Column::Title.eq("Closure")).count(db);
        "statement error in a transaction" => async {
            let broken = db.begin().await?;
            let first = raw(&broken, "SELECT 1 / 0").await.map(|_| ()).map_err(|e| e.to_string());
            let second = raw(&broken, &count("aborted")).await.map(|_| ()).map_err(|e| e.to_string());
            broken.rollback().await?;
            Ok::<_, DbErr>((first, second))
        };
    }
}

async fn program<C>(db: &C) -> Vec<String>
where
    C: schema::Database,
    C::Transaction: TransactionSession + sea_schema::Connection,
    for<'c> &'c C: IntoSchemaManagerConnection<'c>,
{
    let mut log = Log::default();
    entities(db, &mut log).await;
    relations(db, &mut log).await;
    pages(db, &mut log).await;
    transactions(db, &mut log).await;
    schema::migrations(db, &mut log).await;
    schema::sync(db, &mut log).await;
    log.0
}

/// With every read a strict one and a replica that applies each commit late; and as a plain swap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_program_gives_the_same_results() {
    let stage = Stage::<Sea>::set(1, "SELECT 1", Config::default(), &[]).await;
    let names = ["plain", "swapped", "strict"];
    for name in names {
        fault(&stage.cluster, move |c| c.primary().sql(&format!("CREATE DATABASE {name}")).map(drop)).await;
    }
    let url = |node: &read_router_testkit::Node, name: &str| node.url().replace("/postgres?", &format!("/{name}?"));
    let url = |node, name| {
        let url = url(node, name);
        if url.contains(name) { url } else { format!("{}/{name}", url.rsplit_once('/').expect("a database").0) }
    };
    let (primary, replica) = (stage.cluster.primary(), stage.cluster.replica(0));
    for name in names {
        let setup = Database::connect(options(&url(primary, name))).await.expect("up");
        setup.execute_unprepared(SCHEMA).await.expect("a schema");
        setup.close().await.expect("closed");
    }
    stage.cluster.wait_caught_up(LIMIT).expect("caught up");
    fault(&stage.cluster, |c| c.replica(0).set_apply_delay(Duration::from_millis(20))).await;

    let plain = program(&Database::connect(options(&url(primary, "plain"))).await.expect("up")).await;
    let errors = plain.iter().filter(|step| step.contains(": error: ")).count();
    assert_eq!(errors, 12, "only the errors that are meant: {plain:#?}");
    assert!(plain.len() > 110, "{}", plain.len());
    for (name, class) in [("swapped", None), ("strict", Some(ReadClass::MustSeeMyWrite.wait(LIMIT)))] {
        let builder = RoutingConnection::builder(options(&url(primary, name))).replica(options(&url(replica, name)));
        let builder = match class {
            Some(class) => builder.unannotated(class),
            None => builder,
        };
        let db = builder.connect().await.expect("up");
        let routed = program(&db.new_session()).await;
        for (plain, routed) in plain.iter().zip(&routed) {
            assert_eq!(routed, plain, "{name}");
        }
        assert_eq!(routed.len(), plain.len());
        let stats = db.stats();
        match class {
            None => assert_eq!(stats.replica_reads(), 0, "a swap changes nothing"),
            Some(_) => assert!(stats.replica_reads() > 20, "{stats:?}"),
        }
        assert_eq!(stats.primary_for(PrimaryReason::ReplicaFailed) + stats.misrouted, 0, "{stats:?}");
    }
}
