//! Where statements go over the sync connection, and what it leaves behind.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use diesel::{
    connection::{Connection, InstrumentationEvent, LoadConnection, SimpleConnection, TransactionManager},
    pg::{Pg, PgConnection, PgRowByRowLoadingMode},
    prelude::*,
    r2d2::{ConnectionManager, Pool},
    result::{DatabaseErrorKind, Error},
};
use diesel_router::{
    NodeId, PrimaryReason, QueryClass, ReadClass, Refusal, Replica, Router, RoutingConnection, Unannotated, refusal,
};

use crate::sync_support::{assert_clean, cluster, node, number, stage, until, until_on_replica};

diesel::table! {
    ride (id) {
        id -> Integer,
        distance -> BigInt,
    }
}

pub(crate) const SCHEMA: &str = "CREATE TABLE ride (id int PRIMARY KEY, distance bigint NOT NULL)";

pub(crate) fn insert(conn: &mut impl LoadConnection<Backend = Pg>, id: i32) -> QueryResult<usize> {
    diesel::insert_into(ride::table).values((ride::id.eq(id), ride::distance.eq(1))).execute(conn)
}

/// Generic repository code, as applications have it.
pub(crate) fn count<C: LoadConnection<Backend = Pg>>(conn: &mut C) -> QueryResult<i64> {
    ride::table.count().get_result(conn)
}

#[test]
fn a_statement_goes_where_it_belongs() {
    let (_cluster, router) = stage(1, SCHEMA);
    let mut conn = router.session();
    assert_eq!(count(&mut conn).unwrap(), 0);
    assert_eq!(conn.last_served().unwrap().reason, Some(PrimaryReason::Unannotated));
    insert(&mut conn, 1).unwrap();
    assert_eq!(conn.last_served().unwrap().reason, Some(PrimaryReason::NotARead));
    until_on_replica(&mut conn);
    assert_eq!(count(conn.must_see_my_write()).unwrap(), 1);
    assert!(!node(&conn).is_primary());
    // A class does not stay with the connection.
    count(&mut conn).unwrap();
    assert_eq!(conn.last_served().unwrap().reason, Some(PrimaryReason::Unannotated));
    count(conn.on_primary()).unwrap();
    assert_eq!(conn.last_served().unwrap().reason, Some(PrimaryReason::Asked));
    count(conn.seconds_stale(Duration::from_secs(30))).unwrap();
    assert!(!node(&conn).is_primary());
    // The query's own class goes before the view's.
    let eventually: Vec<i32> = ride::table.select(ride::id).read_class(ReadClass::Eventual).load(&mut conn).unwrap();
    assert_eq!((eventually, node(&conn)), (vec![1], NodeId::replica(0)));
    let first: i32 = ride::table.select(ride::id).read_class(ReadClass::Eventual).first(conn.on_primary()).unwrap();
    assert_eq!((first, node(&conn)), (1, NodeId::replica(0)));
    // A plain connection ignores it.
    let plain = &mut PgConnection::establish(&_cluster.replica(0).url()).unwrap();
    assert_eq!(ride::table.count().read_class(ReadClass::Eventual).get_result::<i64>(plain).unwrap(), 1);
    // INSERT .. RETURNING comes by way of load.
    let id: i32 = diesel::insert_into(ride::table)
        .values((ride::id.eq(2), ride::distance.eq(1)))
        .returning(ride::id)
        .get_result(conn.eventual())
        .unwrap();
    assert_eq!((id, conn.last_served().unwrap().reason), (2, Some(PrimaryReason::NotARead)));
}

#[test]
fn unannotated_may_have_a_class_or_be_an_error() {
    let cluster = cluster(1, SCHEMA);
    let build = |unannotated: Unannotated| {
        let builder =
            Router::builder(cluster.primary().url()).replica(Replica::new(cluster.replica(0).url()).weight(2));
        builder.unannotated(unannotated).connect().unwrap().session()
    };
    let mut conn = build(ReadClass::Eventual.into());
    until("the replica serves", || {
        count(&mut conn).unwrap();
        !node(&conn).is_primary()
    });
    let mut conn = build(Unannotated::Error);
    let error = count(&mut conn).unwrap_err();
    assert_eq!(refusal(&error), Some(Refusal::Unannotated));
    count(conn.on_primary()).unwrap();
}

#[test]
fn a_transaction_is_whole_on_the_primary() {
    let (cluster, router) = stage(1, SCHEMA);
    let mut conn = router.session();
    conn.transaction(|conn| {
        insert(conn, 1)?;
        // The class gives way to the open transaction.
        assert_eq!(count(conn.eventual())?, 1);
        conn.transaction(|conn| {
            insert(conn, 2)?;
            Err::<(), _>(Error::RollbackTransaction)
        })
        .unwrap_err();
        assert_eq!(count(conn)?, 1);
        QueryResult::Ok(())
    })
    .unwrap();
    assert_eq!(count(conn.must_see_my_write()).unwrap(), 1);
    // One that only reads, of a class, on one replica.
    until_on_replica(&mut conn);
    let in_recovery = "SELECT pg_is_in_recovery()::int::bigint";
    let seen = conn
        .must_see_my_write()
        .build_transaction()
        .read_only()
        .repeatable_read()
        .run(|conn| QueryResult::Ok((count(conn)?, number(conn, in_recovery)?, number(conn, in_recovery)?)));
    assert_eq!(seen.unwrap(), (1, Some(1), Some(1)));
    assert_eq!(node(&conn), NodeId::replica(0));
    // SERIALIZABLE there is none on a replica.
    let read = conn.eventual().build_transaction().read_only().serializable().run(|conn| number(conn, in_recovery));
    assert_eq!(read.unwrap(), Some(0));
    assert_eq!(conn.last_served().unwrap().reason, Some(PrimaryReason::Isolation));
    // READ ONLY without a class stays on the primary.
    let read = conn.build_transaction().read_only().run(|conn| number(conn, in_recovery));
    assert_eq!(read.unwrap(), Some(0));
    assert_clean(&cluster, &router);
}

#[test]
fn rows_come_one_by_one() {
    let (cluster, router) = stage(1, SCHEMA);
    let mut conn = router.session();
    conn.batch_execute("INSERT INTO ride SELECT i, i FROM generate_series(1, 500) i").unwrap();
    until_on_replica(&mut conn);
    {
        let conn = conn.must_see_my_write();
        let mut rows = ride::table.order(ride::id).load_iter::<(i32, i64), PgRowByRowLoadingMode>(conn).unwrap();
        assert_eq!(rows.next().unwrap().unwrap(), (1, 1));
        assert_eq!(router.stats().nodes[1].in_flight, 1);
        assert_eq!(rows.by_ref().take(3).count(), 3);
        // Not read to the end.
    }
    assert_eq!(node(&conn), NodeId::replica(0));
    count(&mut conn).unwrap();
    assert_eq!(router.stats().nodes[1].in_flight, 0);
    // A write whose rows are read.
    let deleted = diesel::delete(ride::table.filter(ride::id.gt(400)))
        .returning(ride::id)
        .load_iter::<i32, PgRowByRowLoadingMode>(&mut conn)
        .unwrap()
        .count();
    assert_eq!(deleted, 100);
    let mut other = conn.same_session();
    assert_eq!(count(other.must_see_my_write()).unwrap(), 400);
    assert_eq!(other.last_served().unwrap().reason, Some(PrimaryReason::InDoubt), "its rows may be read on");
    assert_eq!(count(conn.must_see_my_write()).unwrap(), 400);
    // In a transaction.
    conn.transaction(|conn| {
        insert(conn, 1000)?;
        let rows = ride::table.load_iter::<(i32, i64), PgRowByRowLoadingMode>(conn)?;
        assert_eq!(rows.collect::<QueryResult<Vec<_>>>()?.len(), 401);
        insert(conn, 1001)
    })
    .unwrap();
    // Errors, on the way to the first row.
    let bad = diesel::sql_query("SELECT 1/0 AS id");
    let rows = bad.load_iter::<Id, PgRowByRowLoadingMode>(conn.eventual());
    assert!(rows.and_then(|rows| rows.collect::<QueryResult<Vec<_>>>()).is_err());
    assert_eq!(count(conn.must_see_my_write()).unwrap(), 402);
    drop((conn, other));
    assert_clean(&cluster, &router);
}

#[derive(QueryableByName)]
struct Id {
    #[diesel(sql_type = diesel::sql_types::Integer)]
    #[diesel(column_name = id)]
    _id: i32,
}

#[test]
fn copy_goes_to_the_primary() {
    let (_cluster, router) = stage(1, SCHEMA);
    let mut conn = router.session();
    let copied = diesel::copy_from(ride::table)
        .from_raw_data(ride::table, |write| {
            writeln!(write, "1\t10\n2\t20").unwrap();
            diesel::QueryResult::Ok(())
        })
        .execute(&mut conn)
        .unwrap();
    assert_eq!(copied, 2);
    assert_eq!(count(conn.must_see_my_write()).unwrap(), 2);
    let failed = diesel::copy_from(ride::table)
        .from_raw_data(ride::table, |write| {
            writeln!(write, "1\t10").unwrap();
            diesel::QueryResult::Ok(())
        })
        .execute(&mut conn);
    assert!(matches!(failed, Err(Error::DatabaseError(DatabaseErrorKind::UniqueViolation, _))), "{failed:?}");
    conn.transaction(|conn| {
        diesel::copy_from(ride::table)
            .from_insertable(vec![(ride::id.eq(3), ride::distance.eq(30_i64))])
            .execute(conn)?;
        assert_eq!(count(conn)?, 3);
        Err::<(), _>(Error::RollbackTransaction)
    })
    .unwrap_err();
    let mut out = String::new();
    let rows = diesel::copy_to(ride::table);
    use std::io::Read as _;
    rows.load_raw(conn.primary().unwrap()).unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(out, "1\t10\n2\t20\n");
    assert_eq!(count(conn.must_see_my_write()).unwrap(), 2);
}

#[test]
fn what_stays_with_a_connection_stays_with_the_handle() {
    let (cluster, router) = stage(0, SCHEMA);
    let mut conn = router.session();
    diesel::sql_query("LISTEN channel").execute(&mut conn).unwrap();
    conn.batch_execute("SET search_path = elsewhere, public; CREATE TEMP TABLE mine (id int)").unwrap();
    let mut other = router.session();
    diesel::sql_query("NOTIFY channel, 'hello'").execute(&mut other).unwrap();
    count(&mut conn).unwrap();
    let notes: Vec<_> = conn.notifications_iter().collect::<QueryResult<_>>().unwrap();
    assert_eq!(notes.iter().map(|note| note.payload.as_str()).collect::<Vec<_>>(), ["hello"]);
    assert_eq!(number(&mut conn, "SELECT count(*) FROM mine").unwrap(), Some(0));
    assert_eq!(number(&mut other, "SELECT count(*) FROM pg_class WHERE relname = 'none'").unwrap(), Some(0));
    assert_eq!(other.notifications_iter().count(), 0);
    // The primary's own connection, with a transaction that goes on.
    conn.primary().unwrap().batch_execute("BEGIN; INSERT INTO ride VALUES (1, 1)").unwrap();
    insert(&mut conn, 2).unwrap();
    conn.batch_execute("ROLLBACK").unwrap();
    assert_eq!(count(&mut conn).unwrap(), 0);
    drop((conn, other));
    assert_clean(&cluster, &router);
    let mut fresh = router.session();
    let path = "SELECT (current_setting('search_path') LIKE 'elsewhere%')::int::bigint";
    assert_eq!(number(&mut fresh, path).unwrap(), Some(0));
}

#[test]
fn a_hidden_write_is_repeated_and_remembered() {
    let (cluster, router) = stage(1, "CREATE TABLE ride (id int PRIMARY KEY, distance bigint NOT NULL)");
    // Made by someone else, after the catalogue was read.
    let schema = "CREATE FUNCTION lower(ride) RETURNS bigint LANGUAGE sql AS \
                  'INSERT INTO public.ride VALUES (77, 1) ON CONFLICT DO NOTHING; SELECT 1::bigint'; \
                  INSERT INTO ride VALUES (1, 1); CREATE UNLOGGED TABLE fast (id int)";
    cluster.primary().sql(schema).unwrap();
    cluster.wait_caught_up(read_router_scenarios::LIMIT).unwrap();
    let mut conn = router.session();
    let hidden = "SELECT lower(ride) FROM ride";
    until_on_replica(&mut conn);
    assert_eq!(number(conn.eventual(), hidden).unwrap(), Some(1));
    assert_eq!(conn.last_served().unwrap().reason, Some(PrimaryReason::Misrouted));
    assert_eq!(router.stats().misrouted, 1);
    assert_eq!(number(conn.eventual(), hidden).unwrap(), Some(1));
    assert_eq!((router.stats().misrouted, count(conn.must_see_my_write()).unwrap()), (1, 2));
    // What a replica cannot read at all.
    assert_eq!(number(conn.eventual(), "SELECT count(*) FROM fast").unwrap(), Some(0));
    assert!(node(&conn).is_primary());
    // Where the statement is at fault the caller gets its error.
    let error = number(conn.eventual(), "SELECT id::bigint FROM nowhere").unwrap_err();
    assert!(matches!(error, Error::DatabaseError(DatabaseErrorKind::Unknown, _)), "{error:?}");
}

#[test]
fn instrumentation_sees_each_event_once_and_the_node() {
    let (_cluster, router) = stage(1, SCHEMA);
    type Seen = Vec<(Option<NodeId>, String)>;
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let mut conn = router.session();
    let log = seen.clone();
    conn.set_routing_instrumentation(move |node, event| {
        let text = match event {
            InstrumentationEvent::StartQuery { query, .. } => format!("start {query}"),
            InstrumentationEvent::FinishQuery { .. } => "finish".to_owned(),
            InstrumentationEvent::BeginTransaction { depth, .. } => format!("begin {depth}"),
            InstrumentationEvent::CommitTransaction { depth, .. } => format!("commit {depth}"),
            _ => return,
        };
        log.lock().unwrap().push((node, text));
    });
    let take = || std::mem::take(&mut *seen.lock().unwrap());
    conn.transaction(|conn| conn.batch_execute("SELECT 1")).unwrap();
    let (handle, primary) = (None, Some(NodeId::PRIMARY));
    let expected = [
        (handle, "begin 1"),
        (primary, "start BEGIN"),
        (primary, "finish"),
        (primary, "start SELECT 1"),
        (primary, "finish"),
        (handle, "commit 1"),
        (primary, "start COMMIT"),
        (primary, "finish"),
    ];
    assert_eq!(take(), expected.map(|(node, text)| (node, text.to_owned())));
    until_on_replica(&mut conn);
    take();
    conn.eventual().batch_execute("SELECT 2").unwrap();
    let replica = Some(NodeId::replica(0));
    assert_eq!(take(), [(replica, "start SELECT 2".to_owned()), (replica, "finish".to_owned())]);
    // Another handle's statements are not told.
    router.session().batch_execute("SELECT 3").unwrap();
    assert_eq!(take(), []);
}

#[test]
fn checkouts_are_plain_connections() {
    let (cluster, router) = stage(1, SCHEMA);
    fn on_a_plain_connection(conn: &mut PgConnection) -> QueryResult<i64> {
        count(conn)
    }
    let mut conn = router.session();
    insert(&mut conn, 1).unwrap();
    until_on_replica(&mut conn);
    let mut read = conn.checkout(ReadClass::MustSeeMyWrite).unwrap();
    assert_eq!((on_a_plain_connection(&mut read).unwrap(), read.node()), (1, NodeId::replica(0)));
    assert!(matches!(
        insert(&mut *read, 9).unwrap_err(),
        Error::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, _)
    ));
    drop(read);
    let mut write = conn.checkout_write().unwrap();
    insert(&mut *write, 2).unwrap();
    write.transaction(|conn| insert(conn, 3)).unwrap();
    let mut other = conn.same_session();
    assert_eq!(count(other.must_see_my_write()).unwrap(), 3);
    assert_eq!(other.last_served().unwrap().reason, Some(PrimaryReason::GivenOut));
    let token = write.finish().unwrap();
    assert!(!token.is_unknown());
    assert_eq!(count(router.resume(token).must_see_my_write()).unwrap(), 3);
    let mut write = conn.checkout_write().unwrap();
    diesel::connection::AnsiTransactionManager::begin_transaction(&mut *write).unwrap();
    insert(&mut *write, 4).unwrap();
    assert_eq!(refusal(&write.finish().unwrap_err()), Some(Refusal::InTransaction));
    assert_eq!(count(&mut conn).unwrap(), 3);
    let mut detached = conn.checkout_write().unwrap().detach();
    detached.batch_execute("LISTEN channel").unwrap();
    until_on_replica(&mut conn);
    drop(detached);
    // Without a replica the primary is read-only too.
    cluster.replica(0).crash().unwrap();
    until("the replica is out", || router.checkout(ReadClass::Eventual).unwrap().node().is_primary());
    let mut read = router.checkout(ReadClass::Eventual).unwrap();
    assert!(matches!(
        insert(&mut *read, 9).unwrap_err(),
        Error::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, _)
    ));
    drop(read);
    insert(&mut conn, 5).unwrap();
}

#[test]
fn pools_of_the_application_are_taken_as_they_are() {
    let cluster = cluster(1, SCHEMA);
    #[derive(Debug)]
    struct Custom;
    impl diesel::r2d2::CustomizeConnection<PgConnection, diesel::r2d2::Error> for Custom {
        fn on_acquire(&self, conn: &mut PgConnection) -> Result<(), diesel::r2d2::Error> {
            conn.batch_execute("SET application_name = 'custom'").map_err(diesel::r2d2::Error::QueryError)
        }
    }
    let pool = |url: String| {
        let builder = Pool::builder().max_size(3).connection_customizer(Box::new(Custom));
        builder.build(ConnectionManager::<PgConnection>::new(url)).unwrap()
    };
    let (primary, replica) = (pool(cluster.primary().url()), pool(cluster.replica(0).url()));
    let router = Router::builder(primary.clone()).replica(replica).connect().unwrap();
    let mut conn = router.session();
    insert(&mut conn, 1).unwrap();
    until_on_replica(&mut conn);
    let name = "SELECT (current_setting('application_name') = 'custom')::int::bigint";
    assert_eq!(number(conn.must_see_my_write(), name).unwrap(), Some(1));
    assert!(matches!(
        router.checkout(ReadClass::Eventual).unwrap().batch_execute("CREATE TABLE x ()").unwrap_err(),
        Error::DatabaseError(DatabaseErrorKind::ReadOnlyTransaction, _)
    ));
    // The pool goes on serving the application.
    assert_eq!(count(&mut primary.get().unwrap()).unwrap(), 1);
}

#[test]
fn one_url_names_all_hosts() {
    let cluster = cluster(1, SCHEMA);
    let (primary, replica) = (cluster.primary().port(), cluster.replica(0).port());
    let url = cluster.primary().url().replace(&format!(":{primary}/"), &format!(":{replica},127.0.0.1:{primary}/"));
    let mut conn = RoutingConnection::establish(&url).unwrap();
    insert(&mut conn, 1).unwrap();
    until_on_replica(&mut conn);
    count(&mut conn).unwrap();
    assert!(node(&conn).is_primary());
    let separator = if url.contains('?') { '&' } else { '?' };
    let mut conn = RoutingConnection::establish(&format!("{url}{separator}read_class=must_see_my_write")).unwrap();
    until("the replica serves", || {
        assert_eq!(count(&mut conn).unwrap(), 1);
        !node(&conn).is_primary()
    });
    assert!(RoutingConnection::establish(&format!("{url}{separator}read_class=nonsense")).is_err());
    assert!(RoutingConnection::establish("postgres://127.0.0.1:1/none").is_err());
}

#[test]
fn hosts_are_named_in_any_form_and_keep_their_order() {
    let cluster = cluster(2, SCHEMA);
    let [first, second] = [0, 1].map(|at| cluster.replica(at).port());
    let primary = cluster.primary().port();
    let url = cluster.primary().url();
    let (scheme, rest) = url.split_once("://").unwrap();
    let (authority, database) = rest.split_once('/').unwrap();
    let user = authority.rsplit_once('@').map_or("postgres", |(user, _)| user.split(':').next().unwrap());
    let name = database.split('?').next().unwrap();
    let (host, ports) = ("127.0.0.1", format!("{primary},{first},{second}"));
    let authority = authority.replace(&format!("{host}:{primary}"), "");
    for url in [
        url.replace(&format!(":{primary}/"), &format!(":{primary},{host}:{first},{host}:{second}/")),
        format!("{scheme}://{authority}/{name}?host={host},{host},{host}&port={ports}"),
        format!("host={host},{host},{host} port={ports} user='{user}' dbname = {name}"),
    ] {
        let conn = RoutingConnection::establish(&url).unwrap();
        assert_eq!(conn.stats().nodes.len(), 3, "{url}");
        let mut seen = [false; 2];
        until("both replicas serve", || {
            let mut read = conn.new_session().checkout(ReadClass::Eventual).unwrap();
            let port = number(&mut read, "SELECT current_setting('port')::bigint").unwrap().unwrap();
            let expected = [primary, first, second][read.node().index()];
            assert_eq!(port, i64::from(expected), "{url}");
            if let Some(seen) = read.node().index().checked_sub(1).map(|at| &mut seen[at]) {
                *seen = true;
            }
            seen == [true; 2]
        });
    }
    // A host that is down is not why there is no primary.
    let none = format!("{scheme}://{user}@{host}:{first},{host}:1/{name}");
    let refused = RoutingConnection::establish(&none).err().unwrap();
    assert!(refused.to_string().contains("none of the hosts accepts writes"), "{refused}");
}

#[test]
fn migrations_run_over_it() {
    use diesel_migrations::{FileBasedMigrations, MigrationHarness};
    let (_cluster, router) = stage(1, SCHEMA);
    let folder = std::env::temp_dir().join(format!("diesel-router-migrations-{}", std::process::id()));
    let one = folder.join("2024-01-01-000000_one");
    std::fs::create_dir_all(&one).unwrap();
    std::fs::write(one.join("up.sql"), "CREATE TABLE more (id int); INSERT INTO more VALUES (1);").unwrap();
    std::fs::write(one.join("down.sql"), "DROP TABLE more;").unwrap();
    let source = FileBasedMigrations::from_path(&folder).unwrap();
    let mut conn = router.session();
    assert_eq!(conn.run_pending_migrations(source.clone()).unwrap().len(), 1);
    assert_eq!(number(conn.must_see_my_write(), "SELECT count(*) FROM more").unwrap(), Some(1));
    assert!(!conn.has_pending_migration(source.clone()).unwrap());
    conn.revert_last_migration(source).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
