-- The tables, types and functions that the statements of sql_cases.tsv and statement_cases.tsv name, to run those that
-- are reads on a standby. For a new database.
CREATE EXTENSION dblink;
CREATE TABLE users(id serial primary key, name text, bio text, updated_at timestamptz, deleted bool, inserted_by text);
INSERT INTO users(name) SELECT 'u'||g FROM generate_series(1,5) g;
CREATE TABLE jobs(id int primary key, status text);
INSERT INTO jobs VALUES (1,'n'),(2,'n');
CREATE TABLE scratch(i int);
CREATE TABLE notes(body text);
CREATE TABLE kw(id int, update int, delete int, insert int, set int, call int, nextval int);
INSERT INTO kw VALUES (1,1,1,1,1,1,1);
CREATE TABLE "insert"("update" int, "delete" int);
CREATE TABLE infy_options(option_name text, option_value text, autoload text);
CREATE TABLE settings(set_name text, call_count int);
CREATE SEQUENCE s;
SELECT nextval('s');
CREATE UNLOGGED TABLE unlogged_t(i int);
CREATE MATERIALIZED VIEW mv AS SELECT count(*) FROM users;
CREATE VIEW v_next AS SELECT nextval('s') AS n;
CREATE VIEW v_plain AS SELECT id, name FROM users;
CREATE FUNCTION mutate_users() RETURNS int LANGUAGE sql VOLATILE AS $$ UPDATE users SET name = name WHERE id = 1; SELECT 1 $$;
CREATE FUNCTION search_like() RETURNS int LANGUAGE plpgsql AS $$ DECLARE r int; BEGIN SELECT id INTO r FROM users WHERE id=1 FOR UPDATE; RETURN r; END $$;
CREATE FUNCTION add_numbers(a int, b int) RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT a+b $$;
CREATE FUNCTION fake_stable() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT nextval('s') $$;
CREATE FUNCTION touch_row(u users) RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT nextval('s') $$;
CREATE FUNCTION op_write(a int, b int) RETURNS bool LANGUAGE sql VOLATILE AS $$ SELECT nextval('s') > 0 $$;
CREATE OPERATOR === (LEFTARG=int, RIGHTARG=int, FUNCTION=op_write);
CREATE PROCEDURE proc() LANGUAGE sql AS $$ UPDATE users SET name = name WHERE id = 1 $$;
CREATE PROCEDURE proc_ro() LANGUAGE plpgsql AS $$ BEGIN PERFORM 1; END $$;
CREATE SCHEMA app;
CREATE FUNCTION app.lower(t text) RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('public.s') $$;
SELECT lo_from_bytea(4242, 'x');

-- What the statements of statement_cases.tsv name besides.
CREATE TYPE tea AS ENUM ('EverydayTea', 'BreakfastTea');
CREATE TABLE bakery(id serial PRIMARY KEY, name text NOT NULL, profit_margin float8 NOT NULL DEFAULT 0);
CREATE TABLE cake(id serial PRIMARY KEY, name text, price numeric(10,2), bakery_id int REFERENCES bakery, gluten_free bool, serial uuid, baked_at timestamptz DEFAULT now(), meta jsonb, tags text[], tea tea);
CREATE TABLE fruit(id serial PRIMARY KEY, name text, cake_id int REFERENCES cake);
CREATE TABLE customer(id serial PRIMARY KEY, name text, notes text);
CREATE TABLE "order"(id serial PRIMARY KEY, total numeric(10,2), customer_id int REFERENCES customer, bakery_id int REFERENCES bakery, placed_at timestamp);
CREATE TABLE node(id int PRIMARY KEY, parent_id int, name text, "last_value" int);
CREATE TABLE shop(id int, area box, place point, during tsrange, addr inet, doc tsvector, x xml);
INSERT INTO bakery(name, profit_margin) VALUES ('SeaSide', 10.4);
INSERT INTO cake(name, price, bakery_id, gluten_free, meta, tags, tea) VALUES ('Cheese', 3.5, 1, false, '{"a": {"b": [1, 2]}}', '{x,y}', 'EverydayTea');
INSERT INTO fruit(name, cake_id) VALUES ('Apple', 1);
INSERT INTO node VALUES (1, NULL, 'root', 1), (2, 1, 'leaf', 2);
