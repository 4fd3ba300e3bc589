//! SeaORM's access control by roles, over the routing connection.

use read_router::{Config, NodeId, PrimaryReason};
use read_router_scenarios::{Stage, until};
use sea_orm::{
    AccessMode, ConnectionTrait, DbErr, EntityTrait, Set, TransactionTrait,
    rbac::{Action, RbacContext, RbacUserId, Table},
};
use sea_router::RestrictedConnection;

use crate::Sea;

mod ride {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "ride")]
    pub(super) struct Model {
        #[sea_orm(primary_key)]
        pub(super) id: i32,
        pub(super) distance: i32,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub(super) enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

const WRITER: RbacUserId = RbacUserId(1);
const READER: RbacUserId = RbacUserId(2);

async fn insert(db: &impl ConnectionTrait) -> Result<i32, DbErr> {
    let ride = ride::ActiveModel { distance: Set(12), ..Default::default() };
    Ok(ride::Entity::insert(ride).exec(db).await?.last_insert_id)
}

fn is_denied<T: std::fmt::Debug>(result: &Result<T, DbErr>) -> bool {
    matches!(result, Err(DbErr::AccessDenied { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_users_statements_are_routed() {
    let schema = "CREATE TABLE ride (id serial PRIMARY KEY, distance int NOT NULL)";
    let stage = Stage::<Sea>::set(1, schema, Config::default(), &[]).await;
    let db = stage.db.0.new_session();
    assert!(matches!(db.restricted_for(WRITER), Err(DbErr::RbacError(_))), "no rules yet");
    sea_orm::rbac::schema::create_tables(&db, Default::default()).await.unwrap();
    let mut rules = RbacContext::load(&db).await.unwrap();
    rules.add_tables(&db, &["ride"]).await.unwrap();
    rules.add_crud_permissions(&db).await.unwrap();
    rules.add_roles(&db, &["writer", "reader"]).await.unwrap();
    rules.assign_user_role(&db, &[(WRITER.0, "writer"), (READER.0, "reader")]).await.unwrap();
    rules.add_role_permissions(&db, "writer", &["select", "insert"], &["ride"]).await.unwrap();
    rules.add_role_permissions(&db, "reader", &["select"], &["ride"]).await.unwrap();
    db.load_rbac().await.unwrap();

    let me = db.new_session();
    let writer: RestrictedConnection = me.restricted_for(WRITER).unwrap();
    assert_eq!(writer.user_id(), WRITER);
    // On a view with a class: reads go to the replica, and see the user's writes.
    let strict = me.must_see_my_write().restricted_for(WRITER).unwrap();
    for _ in 0..20 {
        until("a strict read goes to the replica", || async {
            let id = insert(&writer).await.unwrap();
            assert_eq!(me.last_served().unwrap().reason, Some(PrimaryReason::NotARead));
            assert!(ride::Entity::find_by_id(id).one(&strict).await.unwrap().is_some(), "ride {id}");
            me.last_served().unwrap().node == NodeId::replica(0)
        })
        .await;
    }

    let reader = me.eventual().restricted_for(READER).unwrap();
    assert!(is_denied(&insert(&reader).await));
    assert!(reader.user_can(Action("select"), Table("ride")).is_ok_and(|can| can));
    until("the reader's reads go to the replica", || async {
        ride::Entity::find().all(&reader).await.unwrap();
        me.last_served().unwrap().node == NodeId::replica(0)
    })
    .await;
    assert!(matches!(reader.execute_unprepared("DELETE FROM ride").await, Err(DbErr::RbacError(_))));

    let transaction = writer.begin().await.unwrap();
    let id = insert(&transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert!(ride::Entity::find_by_id(id).one(&strict).await.unwrap().is_some(), "committed");
    let denied = reader.transaction_async(async |transaction| insert(transaction).await).await;
    assert!(denied.is_err());
    until("a READ ONLY transaction goes to the replica", || async {
        let read_only = reader.begin_with_config(None, Some(AccessMode::ReadOnly)).await.unwrap();
        ride::Entity::find().all(&read_only).await.unwrap();
        let node = me.last_served().unwrap().node;
        read_only.rollback().await.unwrap();
        node == NodeId::replica(0)
    })
    .await;
}
