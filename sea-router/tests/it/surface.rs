//! The rest of what SeaORM's connection offers: migrations, executors, schema sync, the inherent methods.

use std::time::Duration;

use read_router::{Config, NodeId, PrimaryReason, Token};
use read_router_scenarios::{Stage, fault, until};
use sea_orm::{
    ConnectionTrait, DatabaseExecutor, DbBackend, DbErr, IntoDatabaseExecutor, SqlErr, Statement, TransactionError,
    TransactionTrait,
};
use sea_orm_migration::prelude::*;
use sea_router::RoutingConnection;

use crate::{Sea, options};

const COUNT: &str = "SELECT count(*) FROM ride";

struct Migrator;

impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![Box::new(CreateRide)]
    }
}

struct CreateRide;

impl MigrationName for CreateRide {
    fn name(&self) -> &str {
        "m1_create_ride"
    }
}

#[async_trait::async_trait]
impl MigrationTrait for CreateRide {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let id = ColumnDef::new("id").integer().not_null().to_owned();
        manager.create_table(Table::create().table("ride").col(id).to_owned()).await?;
        manager.get_connection().execute_unprepared("INSERT INTO ride VALUES (1)").await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager.drop_table(Table::drop().table("ride").to_owned()).await
    }
}

async fn stage(schema: &str) -> Stage<Sea> {
    Stage::set(1, schema, Config::default(), &[]).await
}

/// A second connection to the same servers, as another process has it.
async fn connect(stage: &Stage<Sea>) -> RoutingConnection {
    let builder = RoutingConnection::builder(options(&stage.cluster.primary().url()));
    builder.replica(options(&stage.cluster.replica(0).url())).connect().await.unwrap()
}

async fn count(db: &RoutingConnection) -> Result<i64, DbErr> {
    let row = db.query_one_raw(Statement::from_string(DbBackend::Postgres, COUNT)).await?;
    row.expect("a row").try_get_by_index(0)
}

fn reason(db: &RoutingConnection) -> Option<PrimaryReason> {
    db.last_served().expect("a statement was served").reason
}

fn has_no_table(error: &DbErr) -> bool {
    error.to_string().contains("does not exist")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_are_seen_at_once() {
    let stage = stage("SELECT 1").await;
    fault(&stage.cluster, |cluster| cluster.replica(0).set_apply_delay(Duration::from_millis(30))).await;
    let elsewhere = connect(&stage).await;
    let mut on_replica = 0;
    for round in 0..8 {
        let me = stage.db.0.new_session();
        Migrator::up(&me, None).await.unwrap();
        // Given out: the primary serves, and nobody is told a token that may be short.
        assert_eq!(count(&me.must_see_my_write()).await.unwrap(), 1, "round {round}");
        assert_eq!(reason(&me), Some(PrimaryReason::GivenOut), "round {round}");
        assert_eq!(me.token().await, Token::UNKNOWN, "round {round}");

        me.settle().await.unwrap();
        assert_eq!(count(&me.must_see_my_write()).await.unwrap(), 1, "round {round}");
        on_replica += usize::from(reason(&me).is_none());
        let there = elsewhere.resume(me.token().await);
        assert_eq!(count(&there.must_see_my_write()).await.unwrap(), 1, "round {round}, elsewhere");

        Migrator::down(&me, None).await.unwrap();
        me.settle().await.unwrap();
        let gone = count(&me.must_see_my_write()).await.expect_err("the table is gone");
        assert!(has_no_table(&gone), "round {round}: {gone}");
        let there = elsewhere.resume(me.token().await);
        let gone = count(&there.must_see_my_write()).await.expect_err("the table is gone");
        assert!(has_no_table(&gone), "round {round}, elsewhere: {gone}");
    }
    assert!(on_replica > 0, "no read after a migration was served by the replica");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_executor_writes_is_seen() {
    let stage = stage("CREATE TABLE ride (id int)").await;
    let me = stage.db.0.new_session();
    let mut rows = 0;
    for _ in 0..20 {
        let executor = DatabaseExecutor::from(&me);
        executor.execute_unprepared("INSERT INTO ride VALUES (1)").await.unwrap();
        rows += 1;
        assert_eq!(count(&me.must_see_my_write()).await.unwrap(), rows);
        assert_eq!(reason(&me), Some(PrimaryReason::GivenOut));
        // A read on the primary does not settle it: the executor may go on.
        executor.execute_unprepared("INSERT INTO ride VALUES (1)").await.unwrap();
        rows += 1;
        assert_eq!(count(&me.must_see_my_write()).await.unwrap(), rows);
        me.settle().await.unwrap();
        assert_eq!(count(&me.must_see_my_write()).await.unwrap(), rows);
        assert_ne!(reason(&me), Some(PrimaryReason::GivenOut));
    }
    until("a replica serves again", || async {
        count(&me.must_see_my_write()).await.unwrap();
        reason(&me).is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executors_of_transactions() {
    let stage = stage("CREATE TABLE ride (id int)").await;
    let me = stage.db.0.new_session();

    let transaction = me.begin().await.unwrap();
    let executor = (&transaction).into_database_executor();
    executor.execute_unprepared("INSERT INTO ride VALUES (1)").await.unwrap();
    assert_eq!(count(&me.must_see_my_write()).await.unwrap(), 0);
    assert_eq!(reason(&me), Some(PrimaryReason::GivenOut));
    transaction.commit().await.unwrap();
    assert_eq!(count(&me.must_see_my_write()).await.unwrap(), 1);
    assert_ne!(reason(&me), Some(PrimaryReason::GivenOut));

    let executor = me.begin().await.unwrap().into_database_executor();
    executor.execute_unprepared("INSERT INTO ride VALUES (2)").await.unwrap();
    let DatabaseExecutor::OwnedTransaction(transaction) = executor else { panic!("it owns the transaction") };
    transaction.commit().await.unwrap();
    assert_eq!(count(&me.must_see_my_write()).await.unwrap(), 2);
    assert_eq!(reason(&me), Some(PrimaryReason::GivenOut));
    me.settle().await.unwrap();
    assert_eq!(count(&me.must_see_my_write()).await.unwrap(), 2);
    assert_ne!(reason(&me), Some(PrimaryReason::GivenOut));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pool_is_given_out() {
    let stage = stage("CREATE TABLE ride (id int)").await;
    let (me, other) = (stage.db.0.new_session(), stage.db.0.new_session());
    sqlx::raw_sql("INSERT INTO ride VALUES (1)").execute(me.get_postgres_connection_pool()).await.unwrap();
    assert_eq!(count(&me.must_see_my_write()).await.unwrap(), 1);
    assert_eq!(reason(&me), Some(PrimaryReason::GivenOut));
    count(&other.must_see_my_write()).await.unwrap();
    assert_ne!(reason(&other), Some(PrimaryReason::GivenOut));

    // Given out again while it is settled: that one is still out.
    let settle = me.settle();
    let _ = me.get_postgres_connection_pool();
    settle.await.unwrap();
    me.settle().await.unwrap();
    assert_eq!(count(&me.must_see_my_write()).await.unwrap(), 1);
    assert_ne!(reason(&me), Some(PrimaryReason::GivenOut));

    let _ = me.get_postgres_connection_pool();
    me.close_by_ref().await.unwrap();
    assert!(me.settle().await.is_err(), "nobody answers");
    assert_eq!(me.token().await, Token::UNKNOWN);
}

mod first {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "ride")]
    pub(super) struct Model {
        #[sea_orm(primary_key)]
        pub(super) id: i32,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub(super) enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

mod second {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "ride")]
    pub(super) struct Model {
        #[sea_orm(primary_key)]
        pub(super) id: i32,
        pub(super) distance: Option<i32>,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub(super) enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schema_sync_is_seen_at_once() {
    let stage = stage("SELECT 1").await;
    let db = &stage.db.0;
    // What is there is read on the primary: the replica does not know the table yet, and it is not made twice.
    fault(&stage.cluster, |cluster| cluster.replica(0).pause_replay()).await;
    let me = db.new_session().eventual();
    for _ in 0..2 {
        me.get_schema_builder().register(first::Entity).sync(&me).await.unwrap();
    }
    assert_eq!(count(&me.must_see_my_write()).await.unwrap(), 0);
    fault(&stage.cluster, |cluster| cluster.replica(0).resume_replay()).await;

    me.get_schema_builder().register(second::Entity).sync(&me).await.unwrap();
    let sql = "SELECT count(distance) FROM ride";
    let read = me.must_see_my_write();
    read.query_one_raw(Statement::from_string(DbBackend::Postgres, sql)).await.expect("the column is there");

    // In a transaction too.
    let transaction = db.begin().await.unwrap();
    db.get_schema_builder().register(second::Entity).sync(&transaction).await.unwrap();
    transaction.commit().await.unwrap();
    db.get_schema_registry("it::nowhere::*").sync(db).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inherent_methods() {
    let stage = stage("CREATE TABLE ride (id int UNIQUE)").await;
    let db = stage.db.0.new_session();
    db.ping().await.unwrap();
    db.ping_node(NodeId::replica(0)).await.unwrap();
    assert!(db.ping_node(NodeId::replica(7)).await.is_err());
    assert_eq!(db.get_database_backend(), DbBackend::Postgres);
    assert!(db.support_returning());

    let made = db.transaction_async(async |transaction| {
        transaction.execute_unprepared("INSERT INTO ride VALUES (1)").await?;
        let inner = transaction.transaction_async(async |transaction| {
            transaction.execute_unprepared("INSERT INTO ride VALUES (1)").await?;
            Ok::<(), DbErr>(())
        });
        let Err(TransactionError::Transaction(error)) = inner.await else { panic!("it is there already") };
        assert!(matches!(error.sql_err(), Some(SqlErr::UniqueConstraintViolation(_))), "{error}");
        Ok::<_, DbErr>(7)
    });
    assert_eq!(made.await.unwrap(), 7);
    assert_eq!(count(&db.must_see_my_write()).await.unwrap(), 1);

    let read_only = Some(sea_orm::AccessMode::ReadOnly);
    let count = async |transaction: &sea_router::RoutedTransaction| {
        let row = transaction.query_one_raw(Statement::from_string(DbBackend::Postgres, COUNT)).await?;
        row.expect("a row").try_get_by_index::<i64>(0)
    };
    let seen = db.must_see_my_write().transaction_with_config_async(count, None, read_only).await;
    assert_eq!(seen.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_the_replica_does_not_have_yet() {
    let stage = stage("SELECT 1").await;
    fault(&stage.cluster, |cluster| cluster.replica(0).pause_replay()).await;
    stage.db.0.execute_unprepared("CREATE DATABASE fresh").await.unwrap();
    let in_fresh = |url: String| options(&format!("{}/fresh", url.rsplit_once('/').expect("a database").0));
    let builder = RoutingConnection::builder(in_fresh(stage.cluster.primary().url()));
    let db = builder.replica(in_fresh(stage.cluster.replica(0).url())).connect().await.expect("it will come");
    db.execute_unprepared("CREATE TABLE ride (id int)").await.unwrap();
    assert_eq!(count(&db.must_see_my_write()).await.unwrap(), 0);
    assert!(reason(&db).is_some());
    fault(&stage.cluster, |cluster| cluster.replica(0).resume_replay()).await;
    until("the replica serves", || async {
        count(&db.must_see_my_write()).await.unwrap();
        reason(&db).is_none()
    })
    .await;
}
