//! A web application over replicas: a session for each request, a reader in the state, a token for a background job,
//! and one in a cookie for the browser's next request.
//!
//! It starts a primary and two replicas, runs itself, uses itself over HTTP, and checks what it shows: a request reads
//! its own write while replay is paused, and neither the job that got its token nor the browser's next request miss it.

use std::{sync::Arc, time::Duration};

use read_router_testkit::Cluster;
use reqwest::cookie::{CookieStore, Jar};
use sea_orm::{ConnectOptions, ConnectionTrait};
use sea_router::{PrimaryReason, RoutingConnection};

mod app;
mod cookie;
mod entities;

use entities::{index, note};

type Error = Box<dyn std::error::Error + Send + Sync>;

const SCHEMA: &str = "CREATE TABLE note (id bigserial PRIMARY KEY, text text NOT NULL); \
    CREATE TABLE note_index (note_id bigint PRIMARY KEY REFERENCES note, words bigint NOT NULL)";

#[tokio::main]
async fn main() -> Result<(), Error> {
    let cluster = tokio::task::spawn_blocking(|| Cluster::builder().replicas(2).start()).await??;
    let options = |url: String| {
        let mut options = ConnectOptions::new(url);
        options.sqlx_logging(false);
        options
    };
    let replicas = cluster.replicas().iter().map(|replica| options(replica.url()));
    let db = RoutingConnection::builder(options(cluster.primary().url())).replicas(replicas).connect().await?;
    db.execute_unprepared(SCHEMA).await?;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let server = tokio::spawn(axum::serve(listener, app::app(db.clone())).into_future());
    println!("notes on {address}");
    demonstrate(&address, &cluster, &db).await?;
    server.abort();
    Ok(())
}

async fn demonstrate(address: &str, cluster: &Cluster, db: &RoutingConnection) -> Result<(), Error> {
    let client = reqwest::Client::new();
    let create = async |text: &str| -> Result<app::Created, Error> {
        let new = app::NewNote { text: text.to_owned() };
        Ok(client.post(format!("{address}/notes")).json(&new).send().await?.error_for_status()?.json().await?)
    };
    for number in 1..=20 {
        let created = create(&format!("note number {number}")).await?;
        check(created.notes == number, &format!("request {number} saw {} notes", created.notes))?;
    }
    println!("20 requests read their own write; {} reads on replicas", db.stats().replica_reads());

    // One direction: with replay paused a strict read still sees the write. The other: an Eventual one does not.
    for replica in cluster.replicas() {
        replica.pause_replay()?;
    }
    let created = create("while replay is paused").await?;
    check(created.notes == 21, "the paused replicas hid the request's own write")?;
    let late = client.get(format!("{address}/notes/{}", created.id)).send().await?;
    check(late.status() == reqwest::StatusCode::NOT_FOUND, "an Eventual read went to the primary")?;
    println!("replay paused: the request's own read went to the primary ({} so far, reason behind)", behind(db));
    cookies(address).await?;
    for replica in cluster.replicas() {
        replica.resume_replay()?;
    }

    let indexed = "SELECT count(*) = 25 FROM note_index";
    for _ in 0..500 {
        if cluster.primary().sql(indexed)?[0][0].as_deref() == Some("t") {
            println!("the background job has seen and indexed all 25 notes, each from its token");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    check(false, "the background job missed a note that its token covers")
}

/// While replay is paused at 20 notes and the primary has 21.
async fn cookies(address: &str) -> Result<(), Error> {
    let jar = Arc::new(Jar::default());
    let browser = reqwest::Client::builder().cookie_provider(jar.clone()).build()?;
    let create = async |text: &str| -> Result<(), Error> {
        let new = app::NewNote { text: text.to_owned() };
        browser.post(format!("{address}/notes")).json(&new).send().await?.error_for_status()?;
        Ok(())
    };
    let counted = async |client: &reqwest::Client, cookie: &str| -> Result<u64, Error> {
        let request = client.get(format!("{address}/notes/count")).header("cookie", cookie);
        Ok(request.send().await?.error_for_status()?.json().await?)
    };
    let held = || -> Result<usize, Error> {
        let header = jar.cookies(&address.parse()?);
        Ok(header.map_or(0, |header| header.to_str().unwrap_or_default().matches(cookie::PREFIX).count()))
    };
    create("of a browser").await?;
    let count: u64 = browser.get(format!("{address}/notes/count")).send().await?.error_for_status()?.json().await?;
    check(count == 22, &format!("the next request of the browser saw {count} notes"))?;
    check(counted(&reqwest::Client::new(), "").await? == 20, "a stranger's request was not served by a replica")?;
    // Unknown to whoever signed it: as if there were none.
    let forged = format!("{}1=rr1:unknown", cookie::PREFIX);
    check(counted(&reqwest::Client::new(), &forged).await? == 20, "a forged token counted")?;
    let (one, other) = tokio::join!(create("one of two at once"), create("the other"));
    one.and(other)?;
    check(held()? == 2, "one of two overlapping responses took the other's token away")?;
    create("after both").await?;
    check(held()? == 1, "tokens were not joined")?;
    println!("the browser's next request has seen its note, by a signed cookie; two at once were joined");
    Ok(())
}

fn behind(db: &RoutingConnection) -> u64 {
    let stats = db.stats();
    stats.primary_for(PrimaryReason::Behind) + stats.primary_for(PrimaryReason::Unresolved)
}

fn check(holds: bool, otherwise: &str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}
