//! What each form of DDL may make of a read.

use super::*;

fn names(names: &[&str]) -> Option<SchemaChange> {
    Some(SchemaChange::Names(names.iter().map(|name| (*name).to_owned()).collect()))
}

#[test]
fn what_changes_no_schema_is_nothing() {
    for sql in [
        "SELECT 1",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES (';')",
        "SELECT f()",
        "BEGIN",
        "",
        ";",
        "COMMENT ON VIEW v IS 'x'",
        "GRANT SELECT ON v TO r",
        "SELECT U&\"x\"; SELECT 1",
    ] {
        assert_eq!(SchemaChange::of(sql), None, "{sql}");
    }
}

#[test]
fn what_makes_no_read_harmful_is_a_change_of_tables() {
    for sql in [
        "CREATE TABLE t (id int)",
        "/* who */ create table \"view\" (id int)",
        "CREATE TABLE t (id int PRIMARY KEY, CONSTRAINT c FOREIGN KEY (id) REFERENCES u (id) ON DELETE CASCADE)",
        "CREATE TABLE IF NOT EXISTS app.t (unlogged bool, view text)",
        "CREATE TABLE t PARTITION OF p FOR VALUES IN (1)",
        "CREATE TABLE t () INHERITS (u)",
        "CREATE TABLE t AS SELECT f() FROM v",
        "ALTER TABLE t ADD COLUMN a int",
        "ALTER TABLE IF EXISTS ONLY app.t RENAME COLUMN a TO b",
        "ALTER TABLE t RENAME CONSTRAINT a TO b",
        "ALTER TABLE t OWNER TO me",
        "ALTER TABLE t SET LOGGED",
        "ALTER TABLE t DETACH PARTITION p",
        "ALTER TABLE t NO INHERIT u",
        "ALTER TABLE t ADD CONSTRAINT c FOREIGN KEY (a) REFERENCES u (id)",
        "ALTER SEQUENCE s RESTART",
        "CREATE TYPE colour AS ENUM ('red')",
        "CREATE TYPE app.\"Colour\" AS ENUM ()",
        "ALTER TYPE colour ADD VALUE IF NOT EXISTS 'green' AFTER 'red'",
        "ALTER TYPE colour RENAME VALUE 'red' TO 'rouge'",
        "CREATE UNIQUE INDEX ON t (f(id))",
        "CREATE SCHEMA IF NOT EXISTS app AUTHORIZATION me",
        "CREATE OR REPLACE TRIGGER x BEFORE INSERT ON t EXECUTE FUNCTION f()",
        "CREATE CONSTRAINT TRIGGER x AFTER INSERT ON t EXECUTE FUNCTION f()",
        "CREATE EVENT TRIGGER x ON ddl_command_start EXECUTE FUNCTION f()",
        "CREATE OR REPLACE PROCEDURE p() LANGUAGE sql AS ''",
        "CREATE MATERIALIZED VIEW v AS SELECT f()",
        "CREATE ROLE r",
        "DROP VIEW v CASCADE",
        "DROP FUNCTION IF EXISTS f(int)",
        "DROP DOMAIN d",
        "DROP EXTENSION hstore CASCADE",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO r",
        "INSERT INTO t VALUES (1); CREATE TABLE u ()",
    ] {
        assert_eq!(SchemaChange::of(sql), Some(SchemaChange::Tables), "{sql}");
    }
}

#[test]
fn what_may_make_one_name_harmful_is_a_change_of_that_name() {
    for (sql, expected) in [
        ("CREATE OR REPLACE FUNCTION App.F(a int) RETURNS int LANGUAGE sql AS ''", &["f"][..]),
        ("CREATE FUNCTION \"F\"() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END", &["F"]),
        ("CREATE OR REPLACE TEMP RECURSIVE VIEW v (a) AS SELECT 1", &["v"]),
        ("CREATE AGGREGATE a (int) (SFUNC = f, STYPE = int)", &["a"]),
        ("CREATE SEQUENCE IF NOT EXISTS app.s", &["s"]),
        ("CREATE UNLOGGED TABLE IF NOT EXISTS app.t (a int)", &["t"]),
        ("CREATE GLOBAL TEMPORARY TABLE t AS SELECT 1", &["t"]),
        ("CREATE TABLE pg_temp.t ()", &["t"]),
        ("CREATE FOREIGN TABLE t () SERVER s", &["t"]),
        ("CREATE POLICY p ON app.t USING (f())", &["t"]),
        ("ALTER POLICY p ON t RENAME TO q", &["t"]),
        ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", &["t"]),
        ("ALTER TABLE t ADD a int, FORCE ROW LEVEL SECURITY", &["t"]),
        ("ALTER TABLE app.t SET SCHEMA public", &["t"]),
        ("ALTER TABLE t ENABLE ALWAYS RULE r", &["t"]),
        ("ALTER TABLE IF EXISTS app.t RENAME TO u", &["t", "u"]),
        ("ALTER VIEW v RENAME TO w", &["v", "w"]),
        ("ALTER INDEX v RENAME TO w", &["v", "w"]),
        ("ALTER MATERIALIZED VIEW v RENAME TO w", &["v", "w"]),
        ("ALTER SEQUENCE s SET SCHEMA app", &["s"]),
        ("CREATE RULE \"_RETURN\" AS ON SELECT TO t DO INSTEAD SELECT 1", &["t"]),
        ("ALTER FUNCTION f(int) VOLATILE", &["f"]),
        ("ALTER FUNCTION app.f(a int, b app.t) RENAME TO g", &["f", "g"]),
        ("ALTER ROUTINE f SET search_path = app", &["f"]),
        ("CREATE TYPE c AS (a int)", &["c", "_c"]),
        ("ALTER TYPE c RENAME TO d", &["c", "_c", "d", "_d"]),
        ("CREATE DOMAIN app.d AS text DEFAULT 'x' NOT NULL", &["d", "_d"]),
        ("CREATE TABLE a (); CREATE VIEW v AS SELECT 1; DROP VIEW x; CREATE FUNCTION f() RETURNS int", &["v", "f"]),
    ] {
        assert_eq!(SchemaChange::of(sql), names(expected), "{sql}");
    }
}

#[test]
fn what_no_statement_names_where_it_runs_is_code() {
    for sql in [
        "CREATE UNLOGGED TABLE t PARTITION OF p DEFAULT",
        "CREATE TEMP TABLE t () INHERITS (u)",
        "CREATE FOREIGN TABLE t PARTITION OF p DEFAULT SERVER s",
        "ALTER TABLE t SET UNLOGGED",
        "ALTER TABLE t ATTACH PARTITION p DEFAULT",
        "ALTER TABLE t INHERIT u",
        "CREATE TYPE r AS RANGE (subtype = int)",
        "CREATE TYPE t",
        "CREATE TYPE t (INPUT = a, OUTPUT = b)",
        "ALTER TYPE c ADD ATTRIBUTE a int",
        "CREATE DOMAIN d AS int CHECK (f(VALUE))",
        "CREATE DOMAIN d AS int CONSTRAINT c CHECK (f(VALUE))",
        "ALTER DOMAIN d ADD CHECK (f(VALUE))",
        "CREATE CAST (a AS b) WITH FUNCTION f AS IMPLICIT",
        "CREATE OPERATOR === (FUNCTION = f)",
        "CREATE OPERATOR CLASS c DEFAULT FOR TYPE t USING btree AS FUNCTION 1 f(t, t)",
        "ALTER OPERATOR FAMILY f USING btree ADD FUNCTION 1 f(t, t)",
        "CREATE EXTENSION hstore",
        "ALTER EXTENSION hstore UPDATE",
        "CREATE LANGUAGE plperl",
        "CREATE SCHEMA app CREATE VIEW v AS SELECT 1",
        "ALTER SCHEMA app RENAME TO b",
        "IMPORT FOREIGN SCHEMA a FROM SERVER s INTO b",
        "DO $$ BEGIN CREATE TABLE t (); END $$",
        "CALL p()",
        "CREATE",
        "CREATE VIEW",
        "CREATE VIEW U&\"v\" AS SELECT 1",
        "CREATE VIEW größe AS SELECT 1",
        "CREATE VIEW v AS SELECT 1; DROP VIEW v; CREATE CAST (a AS b) WITH INOUT",
        "CREATE TABLE t (); SELECT U&\"x\"",
    ] {
        assert_eq!(SchemaChange::of(sql), Some(SchemaChange::Code), "{sql}");
    }
}

#[test]
fn too_many_names_are_everything() {
    let many =
        |count: usize| (0..count).map(|number| format!("CREATE VIEW v{number} AS SELECT 1;")).collect::<String>();
    assert!(matches!(SchemaChange::of(&many(MOST_NAMES)), Some(SchemaChange::Names(_))));
    assert_eq!(SchemaChange::of(&many(MOST_NAMES + 1)), Some(SchemaChange::Code));
}
