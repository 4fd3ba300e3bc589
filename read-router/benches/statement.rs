//! What it costs to tell a read, for a text that came before and for a new one, with a catalogue. Measures and prints;
//! a unit test shows that a text that came before allocates nothing.

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use read_router::{Catalogue, Known, Pins, StatementKind, StatementKinds};

/// A catalogue as large as that of an application with a thousand functions and as many views.
fn known() -> Known {
    let mut rows: Vec<[Option<String>; 7]> = Vec::new();
    let mut row = |columns: [&str; 7]| rows.push(columns.map(|c| (!c.is_empty()).then(|| c.to_owned())));
    row(["G", "0", "", "", "UTF8", "", ""]);
    for operator in ["=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "~~", "~~*", "->>"] {
        row(["P", "0", "", operator, "", "", ""]);
    }
    for (number, name) in ["count", "sum", "lower", "now", "coalesce", "row_number"].iter().enumerate() {
        row(["B", &number.to_string(), "", name, "i", "", ""]);
    }
    for number in 0..3_000 {
        row(["B", &(number + 100).to_string(), "", &format!("built_in_{number}"), "i", "", ""]);
    }
    for number in 20_000..21_000 {
        let (id, name) = (number.to_string(), format!("function_{number}"));
        row(["F", &id, "public", &name, "f s sql - -", "SELECT count(*) FROM cake WHERE id = $1", ""]);
        row(["E", &(number + 1_000).to_string(), "public", &format!("view_{number}"), "r", "", "f0"]);
    }
    let texts = rows.iter().map(|row| row.each_ref().map(Option::as_deref));
    let catalogue = Catalogue::read(texts, &Pins::new()).expect("rows of the query's form");
    Known::new(Pins::new()).with_catalogue(catalogue)
}

const FIND_BY_KEY: &str = r#"SELECT "cake"."id", "cake"."name", "cake"."price", "cake"."bakery_id" FROM "cake" WHERE "cake"."id" = $1 LIMIT $2"#;

const JOINS: &str = r#"WITH "recent" AS (SELECT "o"."id", "o"."customer_id", "o"."placed_at" FROM "order" AS "o" WHERE "o"."placed_at" > now() - INTERVAL '7 days')
SELECT "c"."id", "c"."name", COUNT("l"."id") AS "lines", SUM("l"."amount" * "p"."price") AS "total", lower("b"."name") AS "bakery"
FROM "recent" AS "r"
INNER JOIN "customer" AS "c" ON "c"."id" = "r"."customer_id"
INNER JOIN "line" AS "l" ON "l"."order_id" = "r"."id"
INNER JOIN "product" AS "p" ON "p"."id" = "l"."product_id"
LEFT JOIN "bakery" AS "b" ON "b"."id" = "p"."bakery_id"
LEFT JOIN LATERAL (SELECT "s"."state" FROM "shipment" AS "s" WHERE "s"."order_id" = "r"."id" ORDER BY "s"."id" DESC LIMIT 1) AS "s" ON TRUE
WHERE "c"."active" = $1 AND ("p"."name" ILIKE $2 OR "p"."id" IN ($3, $4, $5)) AND "s"."state" <> 'lost'
GROUP BY "c"."id", "c"."name", "b"."name" HAVING COUNT("l"."id") > 1 ORDER BY "total" DESC NULLS LAST LIMIT 20 OFFSET 40"#;

fn long() -> String {
    let mut sql = r#"SELECT "cake"."id" FROM "cake" WHERE "cake"."id" IN ($1"#.to_owned();
    for number in 2.. {
        if sql.len() >= 10 * 1024 {
            break;
        }
        sql += &format!(", ${number}");
    }
    sql + ")"
}

fn kinds(criterion: &mut Criterion) {
    println!("the memory of kinds takes {} bytes, however many statements there are", StatementKinds::BYTES);
    let known = known();
    let kinds = StatementKinds::with_key([1, 2]);
    kinds.set_known(known.clone());
    let long = long();
    for (name, sql) in [("find_by_key", FIND_BY_KEY), ("five_joins_and_a_cte", JOINS), ("10_kilobytes", &*long)] {
        assert!(kinds.kind(sql).is_read(), "{name} is {:?}", kinds.kind(sql));
        let mut group = criterion.benchmark_group(format!("statement/{name}/{}_bytes", sql.len()));
        group.throughput(Throughput::Bytes(sql.len() as u64));
        group.bench_function("again", |bencher| bencher.iter(|| black_box(kinds.kind(black_box(sql)))));
        group.bench_function("first_time", |bencher| {
            bencher.iter(|| black_box(StatementKind::known(black_box(sql), &known)));
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = kinds
}
criterion_main!(benches);
