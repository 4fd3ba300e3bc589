//! SeaORM's metric callback and spans, on every path, with the server that ran the statement.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use futures_util::TryStreamExt;
use read_router::{Config, NodeId, PrimaryReason};
use read_router_scenarios::{Stage, until};
use sea_orm::{AccessMode, ConnectionTrait, DatabaseExecutor, DbBackend, Statement, StreamTrait, TransactionTrait};
use sea_router::RoutingConnection;
use tracing::{field::Visit, span};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt, registry::LookupSpan};

use crate::Sea;

const PRIMARY: NodeId = NodeId::PRIMARY;
const REPLICA: NodeId = NodeId::replica(0);

fn sql(text: &str) -> Statement {
    Statement::from_string(DbBackend::Postgres, text)
}

async fn stage() -> Stage<Sea> {
    Stage::set(1, "CREATE TABLE ride (id int)", Config::default(), &[]).await
}

/// Every path that a statement can take, each with a text of its own.
async fn every_path(db: &RoutingConnection) {
    db.execute_raw(sql("INSERT INTO ride VALUES (1)")).await.unwrap();
    db.execute_unprepared("INSERT INTO ride VALUES (2)").await.unwrap();
    db.query_one_raw(sql("INSERT INTO ride VALUES (3) RETURNING id")).await.unwrap();
    db.query_all_raw(sql("SELECT 4 FROM ride")).await.unwrap();
    let eventual = db.eventual();
    eventual.query_all_raw(sql("SELECT 5 FROM ride")).await.unwrap();
    eventual.query_one_raw(sql("SELECT 6 FROM ride WHERE false")).await.unwrap();
    eventual.query_one_raw(sql("SELECT 7 / 0 FROM ride")).await.expect_err("division by zero");
    eventual.stream_raw(sql("SELECT 8 FROM ride")).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
    db.stream_raw(sql("SELECT 9 FROM ride")).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
    db.stream_raw(sql("SELECT 10 / 0")).await.unwrap().try_collect::<Vec<_>>().await.expect_err("division by zero");

    let transaction = db.begin().await.unwrap();
    transaction.execute_raw(sql("INSERT INTO ride VALUES (11)")).await.unwrap();
    transaction.execute_unprepared("INSERT INTO ride VALUES (12)").await.unwrap();
    let nested = TransactionTrait::begin(&transaction).await.unwrap();
    nested.query_all_raw(sql("SELECT 13 FROM ride")).await.unwrap();
    nested.commit().await.unwrap();
    transaction.stream_raw(sql("SELECT 14 FROM ride")).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
    transaction.commit().await.unwrap();

    let transaction = eventual.begin_with_config(None, Some(AccessMode::ReadOnly)).await.unwrap();
    transaction.query_all_raw(sql("SELECT 15 FROM ride")).await.unwrap();
    transaction.rollback().await.unwrap();
    let executor = DatabaseExecutor::from(db);
    executor.execute_raw(sql("INSERT INTO ride VALUES (16)")).await.unwrap();
    db.settle().await.unwrap();
}

/// The number in the text of a statement of [`every_path`].
fn number(sql: &str) -> u32 {
    let digits = sql.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_are_told_of_every_statement() {
    let stage = stage().await;
    let mut db = stage.db.0.new_session();
    until("the replica is up", || async {
        db.eventual().query_one_raw(sql("SELECT 1")).await.unwrap();
        db.last_served().is_some_and(|served| served.node == REPLICA)
    })
    .await;
    let (orm, ours) = (Arc::new(Mutex::new(BTreeMap::new())), Arc::new(Mutex::new(BTreeMap::new())));
    let told = orm.clone();
    db.set_metric_callback(move |info| {
        told.lock().unwrap().entry(number(&info.statement.sql)).or_insert_with(Vec::new).push(info.failed);
    });
    let told = ours.clone();
    db.set_statement_callback(move |info| {
        let entry = (info.node, info.reason, info.failed);
        told.lock().unwrap().entry(number(&info.statement.sql)).or_insert_with(Vec::new).push(entry);
    });
    every_path(&db).await;

    use PrimaryReason as R;
    let expected = [
        (1, PRIMARY, Some(R::NotARead), false),
        (2, PRIMARY, Some(R::NotARead), false),
        (3, PRIMARY, Some(R::NotARead), false),
        (4, PRIMARY, Some(R::Unannotated), false),
        (5, REPLICA, None, false),
        (6, REPLICA, None, false),
        (7, REPLICA, None, true),
        (8, REPLICA, None, false),
        (9, PRIMARY, Some(R::Unannotated), false),
        (10, PRIMARY, Some(R::Unannotated), true),
        (11, PRIMARY, Some(R::Transaction), false),
        (12, PRIMARY, Some(R::Transaction), false),
        (13, PRIMARY, Some(R::Transaction), false),
        (14, PRIMARY, Some(R::Transaction), false),
        (15, REPLICA, None, false),
        (16, PRIMARY, Some(R::GivenOut), false),
    ];
    let (orm, ours) = (orm.lock().unwrap(), ours.lock().unwrap());
    for (number, node, reason, failed) in expected {
        assert_eq!(ours.get(&number), Some(&vec![(node, reason, failed)]), "statement {number}");
        // SeaORM does not tell of statements that are not prepared.
        let told = (![2, 12].contains(&number)).then(|| vec![failed]);
        assert_eq!(orm.get(&number), told.as_ref(), "statement {number}");
    }
    assert_eq!(ours.len(), expected.len(), "{ours:?}");
}

/// A span as a subscriber sees it.
#[derive(Clone, Debug, Default)]
struct Seen {
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
}

#[derive(Clone, Default)]
struct Spans(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By id.
    open: BTreeMap<u64, Seen>,
    over: Vec<Seen>,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let parent = context.span(id).and_then(|span| span.parent().map(|parent| parent.id().into_u64()));
        let mut seen = Seen { name: attributes.metadata().name(), parent, ..Seen::default() };
        attributes.record(&mut seen);
        self.0.lock().unwrap().open.insert(id.into_u64(), seen);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        if let Some(seen) = self.0.lock().unwrap().open.get_mut(&id.into_u64()) {
            values.record(seen);
        }
    }

    /// A span in a transaction has its node from the transaction's, which is still open.
    fn on_close(&self, id: span::Id, _: Context<'_, S>) {
        let State { open, over } = &mut *self.0.lock().unwrap();
        let Some(mut seen) = open.remove(&id.into_u64()) else { return };
        let mut parent = seen.parent.and_then(|parent| open.get(&parent));
        while let Some(span) = parent.filter(|_| seen.name.starts_with("sea_orm.") && !seen.fields.contains_key("node"))
        {
            if let Some(node) = span.fields.get("node") {
                seen.fields.insert("node", node.clone());
            }
            parent = span.parent.and_then(|parent| open.get(&parent));
        }
        over.push(seen);
    }
}

/// Set in the process that a test has for itself.
const ALONE: &str = "READ_ROUTER_TEST_ALONE";

/// In a process of its own: what other tests do while a subscriber is set for this one's thread can hide spans from it.
#[tokio::test]
async fn spans_say_which_node_it_was() {
    if std::env::var_os(ALONE).is_some() {
        return spans_alone().await;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "observed::spans_say_which_node_it_was", "--nocapture"]).env(ALONE, "1");
    let output = child.output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

async fn spans_alone() {
    let stage = stage().await;
    let db = stage.db.0.new_session();
    until("the replica is up", || async {
        db.eventual().query_one_raw(sql("SELECT 1")).await.unwrap();
        db.last_served().is_some_and(|served| served.node == REPLICA)
    })
    .await;
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    {
        let _guard = tracing::subscriber::set_default(subscriber);
        // The caller's own span is not ours to write to.
        let outer = tracing::info_span!("outer", node = tracing::field::Empty);
        tracing::Instrument::instrument(every_path(&db), outer).await;
    }
    let spans = &spans.0.lock().unwrap().over;
    let outer = spans.iter().find(|span| span.name == "outer").expect("it was entered");
    assert!(!outer.fields.contains_key("node"), "{outer:?}");
    let expected = [
        ("sea_orm.execute", 1, "primary", "OK"),
        ("sea_orm.query_one", 3, "primary", "OK"),
        ("sea_orm.query_all", 4, "primary", "OK"),
        ("sea_orm.query_all", 5, "replica0", "OK"),
        ("sea_orm.query_one", 6, "replica0", "OK"),
        ("sea_orm.query_one", 7, "replica0", "ERROR"),
        ("sea_orm.stream", 8, "replica0", "OK"),
        ("sea_orm.stream", 9, "primary", "OK"),
        ("sea_orm.stream", 10, "primary", "ERROR"),
        ("sea_orm.execute", 11, "primary", "OK"),
        ("sea_orm.query_all", 13, "primary", "OK"),
        ("sea_orm.query_all", 15, "replica0", "OK"),
    ];
    for (name, statement, node, status) in expected {
        let is_it = |span: &&Seen| {
            span.name == name && span.fields.get("db.statement").is_some_and(|text| number(text) == statement)
        };
        let found: Vec<_> = spans.iter().filter(is_it).collect();
        let [span] = found.as_slice() else { panic!("{name} of statement {statement}: {found:?} in {spans:#?}") };
        assert_eq!(span.fields.get("node").map(String::as_str), Some(node), "{span:?}");
        assert_eq!(span.fields.get("otel.status_code").map(String::as_str), Some(status), "{span:?}");
        assert_eq!(span.fields.get("db.system").map(String::as_str), Some("postgresql"), "{span:?}");
    }
    let nodes: Vec<_> =
        spans.iter().filter(|span| span.name == "sea_orm.transaction").map(|s| s.fields.get("node")).collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    assert!(nodes.iter().all(Option::is_some), "{nodes:?}");
    for name in ["sea_orm.execute_unprepared", "sea_orm.begin", "sea_orm.commit", "sea_orm.rollback"] {
        let found = spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("{name}: {spans:#?}"));
        assert!(found.fields.contains_key("node"), "{found:?}");
    }
}
