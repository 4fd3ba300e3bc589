//! What is held back after DDL, until the catalogue is read again, against what that reading shows on a real server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod corpus;

use classify::{input, server};
use read_router::{Known, NotRead, Pins, SchemaChange, StatementKind};
use read_router_testkit::Cluster;

/// DDL that makes something harmful, in its order.
const HARMFUL: &[&str] = &[
    "CREATE OR REPLACE VIEW v_nothing AS SELECT nextval('s')::int AS one",
    "CREATE OR REPLACE FUNCTION odd(n int) RETURNS bool LANGUAGE sql VOLATILE AS 'SELECT nextval(''s'') > 0'",
    "CREATE FUNCTION app.sign(int) RETURNS int LANGUAGE sql AS 'SELECT nextval(''s'')::int'",
    "CREATE FUNCTION app.late(int) RETURNS bigint LANGUAGE sql AS 'SELECT nextval(''s'')'",
    "CREATE OR REPLACE FUNCTION atomic_read() RETURNS bigint LANGUAGE sql STABLE BEGIN ATOMIC SELECT nextval('s'); END",
    "CREATE OR REPLACE FUNCTION pair_name(u users) RETURNS text LANGUAGE sql AS 'SELECT nextval(''s'')::text'",
    "ALTER FUNCTION stable_loop(int) VOLATILE",
    "ALTER VIEW v_deeper RENAME TO v_renamed",
    "ALTER FUNCTION stable_dynamic(text) RENAME TO from_now_on",
    "ALTER TABLE \"Un Logged\" RENAME TO logged",
    "CREATE SCHEMA other",
    "ALTER VIEW v_plain2 SET SCHEMA other",
    "ALTER TABLE parted_1 SET UNLOGGED",
    "ALTER TABLE guarded_well RENAME TO guarded_more",
    "CREATE POLICY q ON guarded_more USING (nextval('s') > 0)",
    "CREATE UNLOGGED TABLE \"Late\" (id int)",
    "CREATE SEQUENCE late_sequence",
    "CREATE TYPE late_pair AS (a int, b bad_int)",
    "CREATE DOMAIN late_domain AS bad_int",
    "CREATE FUNCTION equal_next(text, text) RETURNS bool LANGUAGE sql AS 'SELECT nextval(''s'') > 0'",
    "CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = equal_next)",
    "DROP OPERATOR public.= (text, text)",
    "CREATE FUNCTION equal_well(text, text) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true'",
    "CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = equal_well)",
    "CREATE OR REPLACE FUNCTION equal_well(text, text) RETURNS bool LANGUAGE sql AS 'SELECT nextval(''s'') > 0'",
    "DROP OPERATOR public.= (text, text)",
    "CREATE FUNCTION is_well(int) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT true'",
    "CREATE DOMAIN well AS int CHECK (is_well(VALUE))",
    "CREATE TABLE wells (w well)",
    "CREATE OR REPLACE FUNCTION is_well(int) RETURNS bool LANGUAGE sql AS 'SELECT nextval(''s'') > 0'",
];

/// DDL that makes nothing harmful, and holds nothing back.
const HARMLESS: &[&str] = &[
    "CREATE TABLE orders (id serial PRIMARY KEY, user_id int, FOREIGN KEY (user_id) REFERENCES users (id))",
    "CREATE INDEX ON orders (user_id)",
    "CREATE TYPE mood AS ENUM ('good')",
    "ALTER TYPE mood ADD VALUE 'bad'",
    "ALTER TABLE orders ADD COLUMN m mood",
    "ALTER TABLE orders RENAME COLUMN user_id TO buyer",
    "ALTER VIEW v_nothing OWNER TO postgres",
    "CREATE FUNCTION notes() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; DROP FUNCTION notes()",
    "CREATE PROCEDURE p() LANGUAGE sql AS 'SELECT nextval(''s'')'",
    "DROP TYPE IF EXISTS mood CASCADE",
    "DROP TABLE orders",
    "DROP VIEW v_nothing CASCADE",
];

fn statements() -> Vec<String> {
    let cases = corpus::CATALOGUE_CASES.lines().filter_map(|line| line.split_once('\t'));
    let mut all: Vec<String> = cases.map(|(_, sql)| sql.to_owned()).collect();
    all.extend(input::table(corpus::REPORTED).into_iter().chain(corpus::own()).map(|statement| statement.sql));
    all.extend(corpus::generated(11, 500).into_iter().map(|statement| statement.sql));
    let more = "TABLE v_renamed; SELECT from_now_on('SELECT 1'); TABLE logged; TABLE other.v_plain2; TABLE guarded_more; \
        TABLE \"Late\"; TABLE late_sequence; SELECT ROW(1, 2)::late_pair; SELECT '{}'::_late_pair; SELECT 1::late_domain; \
        SELECT calls_late(); SELECT 'a' IN ('b'); SELECT nullif('a', 'b'); TABLE wells; SELECT 1::well; SELECT calls_late() \
        FROM v_nothing; SELECT * FROM orders; SELECT sign(1), even(2)";
    all.extend(more.split("; ").map(str::to_owned));
    all
}

struct Server {
    cluster: Cluster,
    client: postgres::Client,
}

impl Server {
    fn start() -> Self {
        let cluster = Cluster::builder().replicas(0).database("app").start().unwrap();
        let mut client = server::connect(&cluster.primary().url()).unwrap();
        for piece in classify::split::split(&format!("{};{}", corpus::FIXTURE, corpus::CATALOGUE)) {
            let _ = client.batch_execute(piece.sql);
        }
        // What it names is there only later.
        let calls_late = "SET check_function_bodies = off; CREATE FUNCTION calls_late() RETURNS bigint LANGUAGE sql STABLE \
            AS 'SELECT app.late(1)'";
        client.batch_execute(calls_late).unwrap();
        Self { cluster, client }
    }

    fn known(&mut self) -> Known {
        server::known(&mut self.client, Pins::new()).unwrap()
    }
}

#[test]
fn what_is_not_held_back_is_a_read_by_the_new_catalogue_too() {
    let statements = statements();
    let mut server = Server::start();
    let mut old = server.known();
    let (mut held, mut missed_without, mut untouched) = (0, 0, 0);
    let mut read = old.clone();
    for (number, ddl) in HARMFUL.iter().enumerate() {
        server.client.batch_execute(ddl).unwrap_or_else(|error| panic!("{ddl}: {error:?}"));
        let outdated = old.clone().outdated_by(&SchemaChange::of(ddl).unwrap());
        let new = server.known();
        for sql in &statements {
            let kinds = (StatementKind::known(sql, &outdated), StatementKind::known(sql, &new));
            assert!(!kinds.0.is_read() || kinds.1.is_read(), "after {ddl}: {sql} is {:?}", kinds.1);
            held += usize::from(kinds.0 == StatementKind::Primary(NotRead::Outdated));
            missed_without += usize::from(StatementKind::known(sql, &read).is_read() && !kinds.1.is_read());
            untouched += usize::from(kinds.0.is_read());
        }
        // Readings come now and then: several changes add up.
        if number % 3 == 2 {
            (read, old) = (new.clone(), new);
        } else {
            old = outdated;
        }
    }
    println!("{held} held back, {missed_without} of them with cause, {untouched} still reads");
    assert!(missed_without > 100 && untouched > 1000, "{held} {missed_without} {untouched}");
    drop(server.cluster);
}

#[test]
fn what_makes_nothing_harmful_holds_nothing_back() {
    let statements = statements();
    let mut server = Server::start();
    for ddl in HARMLESS {
        let old = server.known();
        server.client.batch_execute(ddl).unwrap_or_else(|error| panic!("{ddl}: {error:?}"));
        let change = SchemaChange::of(ddl).unwrap();
        let outdated = old.clone().outdated_by(&change);
        assert!(outdated == old || matches!(change, SchemaChange::Names(_)), "{ddl}");
        let new = server.known();
        for sql in &statements {
            let kinds = (StatementKind::known(sql, &outdated), StatementKind::known(sql, &new));
            assert!(!kinds.0.is_read() || kinds.1.is_read(), "after {ddl}: {sql} is {:?}", kinds.1);
        }
    }
}
