//! The rest of what people call on SeaORM's connection.

use std::fmt;

use read_router::NodeId;
use sea_orm::{
    AccessMode, DbBackend, DbErr, IsolationLevel, Schema, SchemaBuilder, TransactionError, TransactionTrait,
};

use crate::{RoutedTransaction, RoutingConnection, error, transaction::run_async};

impl RoutingConnection {
    /// Always [`DbBackend::Postgres`].
    pub fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    /// A builder of schemas; applied to this connection it runs on the primary.
    pub fn get_schema_builder(&self) -> SchemaBuilder {
        Schema::new(DbBackend::Postgres).builder()
    }

    /// A builder of the schema of all entities whose module path begins with `prefix`.
    #[cfg(feature = "entity-registry")]
    pub fn get_schema_registry(&self, prefix: &str) -> SchemaBuilder {
        self.inner.primary().database.get_schema_registry(prefix)
    }

    /// Checks that one node answers on a connection of its pool.
    ///
    /// What the monitor knows of a node is in [`stats`](Self::stats), and costs no statement.
    ///
    /// # Errors
    /// SeaORM's own, if it does not, or if there is no such node.
    pub async fn ping_node(&self, node: NodeId) -> Result<(), DbErr> {
        self.node(node).ok_or_else(|| error::no_node(node))?.ping().await
    }

    /// Runs a closure in a transaction: commits if it returns `Ok`, rolls back if it returns `Err`.
    ///
    /// # Errors
    /// The closure's, or SeaORM's own of the transaction.
    pub async fn transaction_async<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
    where
        F: for<'c> AsyncFnOnce(&'c RoutedTransaction) -> Result<T, E> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run_async(self.begin().await, callback).await
    }

    /// The same with an isolation level and an access mode: READ ONLY on a view with a class it may run on a replica.
    ///
    /// # Errors
    /// As [`transaction_async`](Self::transaction_async).
    pub async fn transaction_with_config_async<F, T, E>(
        &self,
        callback: F,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<T, TransactionError<E>>
    where
        F: for<'c> AsyncFnOnce(&'c RoutedTransaction) -> Result<T, E> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run_async(self.begin_with_config(isolation_level, access_mode).await, callback).await
    }
}

impl RoutedTransaction {
    /// Always [`DbBackend::Postgres`].
    pub fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    /// Runs a closure in a transaction within this one (a savepoint): keeps what it did if it returns `Ok`, undoes it if
    /// it returns `Err`.
    ///
    /// # Errors
    /// The closure's, or SeaORM's own of the transaction.
    pub async fn transaction_async<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
    where
        F: for<'c> AsyncFnOnce(&'c Self) -> Result<T, E> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run_async(TransactionTrait::begin(self).await, callback).await
    }

    /// The same with an isolation level and an access mode, which PostgreSQL takes only where they tighten.
    ///
    /// # Errors
    /// As [`transaction_async`](Self::transaction_async).
    pub async fn transaction_with_config_async<F, T, E>(
        &self,
        callback: F,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<T, TransactionError<E>>
    where
        F: for<'c> AsyncFnOnce(&'c Self) -> Result<T, E> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run_async(TransactionTrait::begin_with_config(self, isolation_level, access_mode).await, callback).await
    }
}
