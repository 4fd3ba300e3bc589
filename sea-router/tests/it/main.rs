//! `sea-router` on real servers: the scenarios of all adapters, and what is SeaORM's own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use read_router::{PrimaryReason, ReadOptions, Served, Stats, Token, Topology};
use read_router_scenarios::{self as scenarios, Isolation, Setup, Subject, Transaction};
use sea_orm::{AccessMode, ConnectionTrait, DbBackend, DbErr, IsolationLevel, Statement, TransactionTrait};
use sea_router::{RoutedTransaction, RoutingConnection};

mod access;
mod differential;
mod failover;
mod found;
mod handles;
mod input;
mod observed;
mod recipes;
mod surface;
mod transactions;

/// The adapter as scenarios see it.
#[derive(Clone)]
struct Sea(RoutingConnection);

impl Subject for Sea {
    type Error = DbErr;
    type Transaction = SeaTransaction;

    async fn connect(primary: &str, replicas: &[String], setup: Setup) -> Result<Self, DbErr> {
        let sized = |url: &str| options(url).max_connections(setup.connections).to_owned();
        let builder = RoutingConnection::builder(sized(primary)).replicas(replicas.iter().map(|url| sized(url)));
        Ok(Self(builder.config(setup.config).monotonic_fallback(setup.monotonic_fallback).connect().await?))
    }

    fn new_session(&self) -> Self {
        Self(self.0.new_session())
    }

    fn resume(&self, token: Token) -> Self {
        Self(self.0.resume(token))
    }

    async fn token(&self) -> Token {
        self.0.token().await
    }

    async fn execute(&self, sql: &str) -> Result<(), DbErr> {
        self.0.execute_unprepared(sql).await.map(drop)
    }

    async fn number(&self, options: Option<ReadOptions>, sql: &str) -> Result<Option<i64>, DbErr> {
        let view = match options {
            Some(options) => self.0.read(options),
            None => self.0.clone(),
        };
        number(&view, sql).await
    }

    async fn begin(&self) -> Result<SeaTransaction, DbErr> {
        self.0.begin().await.map(SeaTransaction)
    }

    async fn begin_read(&self, options: ReadOptions, isolation: Isolation) -> Result<SeaTransaction, DbErr> {
        let level = match isolation {
            Isolation::RepeatableRead => IsolationLevel::RepeatableRead,
            Isolation::Serializable => IsolationLevel::Serializable,
        };
        let view = self.0.read(options);
        view.begin_with_config(Some(level), Some(AccessMode::ReadOnly)).await.map(SeaTransaction)
    }

    fn refusal(error: &DbErr) -> Option<PrimaryReason> {
        sea_router::refusal(error)
    }

    fn last_served(&self) -> Option<Served> {
        self.0.last_served()
    }

    fn topology(&self) -> Arc<Topology> {
        self.0.topology()
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

struct SeaTransaction(RoutedTransaction);

impl Transaction for SeaTransaction {
    type Error = DbErr;

    async fn execute(&mut self, sql: &str) -> Result<(), DbErr> {
        self.0.execute_unprepared(sql).await.map(drop)
    }

    async fn number(&mut self, sql: &str) -> Result<Option<i64>, DbErr> {
        number(&self.0, sql).await
    }

    async fn commit(self) -> Result<(), DbErr> {
        self.0.commit().await
    }

    async fn rollback(self) -> Result<(), DbErr> {
        self.0.rollback().await
    }
}

async fn number(db: &impl ConnectionTrait, sql: &str) -> Result<Option<i64>, DbErr> {
    let row = db.query_one_raw(Statement::from_string(DbBackend::Postgres, sql)).await?;
    row.map(|row| row.try_get_by_index(0)).transpose()
}

fn options(url: &str) -> sea_orm::ConnectOptions {
    let mut options = sea_orm::ConnectOptions::new(url);
    options.max_connections(20).sqlx_logging(false);
    options
}

scenarios::tests!(Sea);
