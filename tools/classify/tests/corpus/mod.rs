//! Statements to judge.

use classify::input::{self, Statement};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

/// Statements from public reports.
pub(crate) const REPORTED: &str = include_str!("../../../../read-router/testdata/sql_cases.tsv");
/// What they name.
pub(crate) const FIXTURE: &str = include_str!("../../../../read-router/testdata/statement_fixture.sql");
/// More of what only the catalogue shows.
pub(crate) const CATALOGUE: &str = include_str!("../../testdata/catalogue.sql");
/// Kinds of statements about it: kind, sql.
pub(crate) const CATALOGUE_CASES: &str = include_str!("../../testdata/catalogue_cases.tsv");

/// Statements of both ORMs, and hand-written ones.
pub(crate) fn own() -> Vec<Statement> {
    input::table(include_str!("../../../../read-router/testdata/statement_cases.tsv"))
}

/// Statements by a small grammar, and mutations of all others, from a seed.
pub(crate) fn generated(seed: u64, count: usize) -> Vec<Statement> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut pool = input::table(REPORTED);
    pool.extend(own());
    let cases = CATALOGUE_CASES.lines().filter_map(|line| line.split_once('\t'));
    pool.extend(cases.map(|(_, sql)| Statement { id: "case".into(), sql: sql.to_owned() }));
    let made = |number: usize| {
        let sql = if number.is_multiple_of(2) { query(&mut rng, 3) } else { mutant(&mut rng, &pool) };
        Statement { id: format!("seed {seed}, {number}"), sql }
    };
    (0..count).map(made).collect()
}

const TABLES: &[&str] =
    &["users", "jobs", "public.users", "\"insert\"", "v_plain", "v_next", "unlogged_t", "s", "mv", "kw"];
const CALLS: &[&str] = &[
    "count(*)",
    "lower('A')",
    "nextval('s')",
    "mutate_users()",
    "add_numbers(1, 2)",
    "fake_stable()",
    "now()",
    "random()",
    "app.lower('A')",
    "pg_catalog.lower('A')",
    "pg_advisory_lock(1)",
    "set_config('work_mem', '5MB', true)",
    "stable_reader()",
    "current_setting('work_mem')",
    "coalesce(1, 2)",
    "pg_sleep(0)",
    "txid_current()",
    "safe_sum(1)",
];
const VALUES: &[&str] = &["1", "'x'", "NULL", "$$y$$", "CURRENT_DATE", "ARRAY[1]", "users.touch_row", "1 === 2", "id"];

fn pick<'a>(rng: &mut impl Rng, from: &[&'a str]) -> &'a str {
    from.choose(rng).copied().unwrap_or_default()
}

fn value(rng: &mut impl Rng, depth: usize) -> String {
    match rng.random_range(0..9) {
        0 | 1 => pick(rng, CALLS).to_owned(),
        2 if depth > 0 => format!("({})", query(rng, depth - 1)),
        3 if depth > 0 => format!("EXISTS ({})", query(rng, depth - 1)),
        4 if depth > 0 => {
            format!("CASE WHEN {} IS NULL THEN {} END", value(rng, depth - 1), value(rng, depth - 1))
        }
        5 if depth > 0 => format!("({} IS NOT DISTINCT FROM {})", value(rng, depth - 1), value(rng, depth - 1)),
        _ => pick(rng, VALUES).to_owned(),
    }
}

fn source(rng: &mut impl Rng, depth: usize) -> String {
    match rng.random_range(0..7) {
        0 if depth > 0 => format!("({}) AS q", query(rng, depth - 1)),
        1 if depth > 0 => format!("(users CROSS JOIN {})", pick(rng, TABLES)),
        2 => format!("generate_series(1, 2) AS g, {}", pick(rng, TABLES)),
        3 => format!("ONLY ({}) AS o", pick(rng, TABLES)),
        4 => format!("users LEFT JOIN LATERAL (SELECT {} AS l) AS l ON true", value(rng, 0)),
        _ => pick(rng, TABLES).to_owned(),
    }
}

fn query(rng: &mut impl Rng, depth: usize) -> String {
    let mut sql = match rng.random_range(0..12) {
        0 if depth > 0 => format!("WITH s AS ({}) SELECT 1 FROM s", query(rng, depth - 1)),
        1 if depth > 0 => format!("({}) UNION ALL ({})", query(rng, depth - 1), query(rng, depth - 1)),
        2 => format!("TABLE {}", pick(rng, TABLES)),
        3 => format!("VALUES ({})", value(rng, depth.saturating_sub(1))),
        4 => "WITH d AS (DELETE FROM scratch RETURNING 1) SELECT * FROM d".to_owned(),
        _ => format!("SELECT {} FROM {}", value(rng, depth), source(rng, depth)),
    };
    if sql.starts_with("SELECT") && rng.random_range(0..4) == 0 {
        sql += &format!(" WHERE {} IS NOT NULL", value(rng, depth.saturating_sub(1)));
    }
    match rng.random_range(0..14) {
        0 => sql += " LIMIT 2",
        1 => sql += " FOR UPDATE",
        2 => sql += " ORDER BY 1",
        3 => sql = format!("EXPLAIN (ANALYZE) {sql}"),
        4 => sql.insert_str(0, "/* x */ "),
        _ => {}
    }
    sql
}

/// A statement into which pieces of others, or dangerous ones, were put.
fn mutant(rng: &mut impl Rng, pool: &[Statement]) -> String {
    let words = |statement: Option<&Statement>| -> Vec<String> {
        statement.map_or_else(Vec::new, |one| one.sql.split(' ').map(str::to_owned).collect())
    };
    let mut parts = words(pool.choose(rng));
    for _ in 0..rng.random_range(1..3) {
        let at = rng.random_range(0..=parts.len());
        match rng.random_range(0..4) {
            0 => parts.insert(at, pick(rng, CALLS).to_owned()),
            1 => parts.insert(at, pick(rng, TABLES).to_owned()),
            2 => {
                let other = words(pool.choose(rng));
                let from = rng.random_range(0..=other.len());
                let to = other.len().min(from + 4);
                parts.splice(at..at, other[from..to].iter().cloned());
            }
            _ if at < parts.len() => drop(parts.remove(at)),
            _ => {}
        }
    }
    parts.join(" ")
}
