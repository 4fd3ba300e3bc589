//! Access control by roles: SeaORM decides, the statement is then routed.

use std::{fmt, future::Future, pin::Pin};

use async_trait::async_trait;
use sea_orm::{
    AccessMode, ConnectionTrait, DatabaseConnection, DbBackend, DbErr, ExecResult, IsolationLevel, QueryResult,
    RestrictedConnection as Checks, Statement, StatementBuilder, TransactionError, TransactionOptions,
    TransactionSession, TransactionTrait,
    rbac::{
        PermissionRequest, RbacEngine, RbacPermissionsByResources, RbacResourcesAndPermissions, RbacRoleHierarchyList,
        RbacRolesAndRanks, RbacUserId, RbacUserRolePermissions, ResourceRequest, entity::role::RoleId,
    },
};

use crate::{
    RoutedTransaction, RoutingConnection,
    transaction::{run, run_async},
};

/// A [`RoutingConnection`] that first asks whether its user may run a statement; see
/// [`RoutingConnection::restricted_for`].
pub type RestrictedConnection = Restricted<RoutingConnection>;

/// A [`RoutedTransaction`] that first asks whether its user may run a statement.
pub type RestrictedTransaction = Restricted<RoutedTransaction>;

/// A connection or transaction of one user: a statement is run where it belongs, if SeaORM's rules allow it.
///
/// As with SeaORM's own type, raw statements are refused, since nothing can be told of them.
#[derive(Debug, Clone)]
pub struct Restricted<C> {
    connection: C,
    /// Only asked, never used as a connection: what is run goes through ours.
    checks: Checks,
}

impl RoutingConnection {
    /// Loads the rules from the primary, for this connection and all that share its pools.
    ///
    /// They are held in memory and stay as they are until they are loaded anew: what changes in the tables afterwards
    /// has no effect, on whatever server.
    ///
    /// # Errors
    /// SeaORM's own.
    pub async fn load_rbac(&self) -> Result<(), DbErr> {
        self.inner.primary().database.load_rbac().await?;
        // The session has been shown the rules, and it was not on a connection that we know.
        self.touch_primary().await
    }

    /// Loads the rules from another database.
    ///
    /// # Errors
    /// SeaORM's own.
    pub async fn load_rbac_from(&self, database: &DatabaseConnection) -> Result<(), DbErr> {
        self.inner.primary().database.load_rbac_from(database).await
    }

    /// Replaces the rules, for this connection and all that share its pools.
    pub fn replace_rbac(&self, engine: RbacEngine) {
        self.inner.primary().database.replace_rbac(engine);
    }

    /// The same connection, session and view, for what the user may run.
    ///
    /// Statements are routed like this connection's own: reads by the view's class, writes and transactions to the
    /// primary, all of them seen by the session. Whether the user may run one is decided in memory, without a server.
    ///
    /// # Errors
    /// [`DbErr::RbacError`], if no rules were loaded.
    pub fn restricted_for(&self, user: RbacUserId) -> Result<RestrictedConnection, DbErr> {
        let checks = self.inner.primary().database.restricted_for(user)?;
        Ok(Restricted { connection: self.clone(), checks })
    }
}

impl<C> Restricted<C> {
    /// The user.
    pub fn user_id(&self) -> RbacUserId {
        self.checks.user_id()
    }

    /// Whether the user may run the statement.
    ///
    /// # Errors
    /// [`DbErr::AccessDenied`], if not.
    pub fn user_can_run<S: StatementBuilder>(&self, stmt: &S) -> Result<(), DbErr> {
        self.checks.user_can_run(stmt)
    }

    /// Whether the user may do this with the resource.
    ///
    /// # Errors
    /// [`DbErr::RbacError`], if the rules do not say.
    pub fn user_can<P, R>(&self, permission: P, resource: R) -> Result<bool, DbErr>
    where
        P: Into<PermissionRequest>,
        R: Into<ResourceRequest>,
    {
        self.checks.user_can(permission, resource)
    }

    /// The user's role and what it may do, also by the roles below it.
    ///
    /// # Errors
    /// [`DbErr::RbacError`], if the user has no role.
    pub fn current_user_role_permissions(&self) -> Result<RbacUserRolePermissions, DbErr> {
        self.checks.current_user_role_permissions()
    }

    /// All roles with their ranks.
    ///
    /// # Errors
    /// [`DbErr::RbacError`], if the rules do not say.
    pub fn roles_and_ranks(&self) -> Result<RbacRolesAndRanks, DbErr> {
        self.checks.roles_and_ranks()
    }

    /// All resources and permissions, without wildcards.
    ///
    /// # Errors
    /// [`DbErr::RbacError`], if the rules do not say.
    pub fn resources_and_permissions(&self) -> Result<RbacResourcesAndPermissions, DbErr> {
        self.checks.resources_and_permissions()
    }

    /// The roles below one, as edges.
    ///
    /// # Errors
    /// [`DbErr::RbacError`], if the rules do not say.
    pub fn role_hierarchy_edges(&self, role: RoleId) -> Result<RbacRoleHierarchyList, DbErr> {
        self.checks.role_hierarchy_edges(role)
    }

    /// What one role may do by itself, by resource.
    ///
    /// # Errors
    /// [`DbErr::RbacError`], if the rules do not say.
    pub fn role_permissions_by_resources(&self, role: RoleId) -> Result<RbacPermissionsByResources, DbErr> {
        self.checks.role_permissions_by_resources(role)
    }
}

impl<C: TransactionTrait<Transaction = RoutedTransaction>> Restricted<C> {
    /// As [`RoutingConnection::transaction_async`].
    ///
    /// # Errors
    /// The closure's, or SeaORM's own of the transaction.
    pub async fn transaction_async<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
    where
        F: for<'c> AsyncFnOnce(&'c RestrictedTransaction) -> Result<T, E> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run_async(self.restrict(self.connection.begin().await), callback).await
    }

    /// As [`RoutingConnection::transaction_with_config_async`].
    ///
    /// # Errors
    /// The closure's, or SeaORM's own of the transaction.
    pub async fn transaction_with_config_async<F, T, E>(
        &self,
        callback: F,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<T, TransactionError<E>>
    where
        F: for<'c> AsyncFnOnce(&'c RestrictedTransaction) -> Result<T, E> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        let begun = self.connection.begin_with_config(isolation_level, access_mode).await;
        run_async(self.restrict(begun), callback).await
    }

    fn restrict(&self, begun: Result<RoutedTransaction, DbErr>) -> Result<RestrictedTransaction, DbErr> {
        Ok(Restricted { connection: begun?, checks: self.checks.clone() })
    }
}

impl RestrictedTransaction {
    /// As [`RoutedTransaction::commit`].
    ///
    /// # Errors
    /// As there.
    pub async fn commit(self) -> Result<(), DbErr> {
        self.connection.commit().await
    }

    /// As [`RoutedTransaction::rollback`].
    ///
    /// # Errors
    /// As there.
    pub async fn rollback(self) -> Result<(), DbErr> {
        self.connection.rollback().await
    }
}

#[async_trait]
impl TransactionSession for RestrictedTransaction {
    async fn commit(self) -> Result<(), DbErr> {
        Self::commit(self).await
    }

    async fn rollback(self) -> Result<(), DbErr> {
        Self::rollback(self).await
    }
}

fn raw<T>(sql: impl fmt::Display) -> Result<T, DbErr> {
    Err(DbErr::RbacError(format!("Raw query is not supported: {sql}")))
}

#[async_trait]
impl<C: ConnectionTrait + Send> ConnectionTrait for Restricted<C> {
    fn get_database_backend(&self) -> DbBackend {
        DbBackend::Postgres
    }

    async fn execute_raw(&self, stmt: Statement) -> Result<ExecResult, DbErr> {
        raw(stmt)
    }

    async fn execute<S: StatementBuilder>(&self, stmt: &S) -> Result<ExecResult, DbErr> {
        self.user_can_run(stmt)?;
        self.connection.execute(stmt).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        raw(sql)
    }

    async fn query_one_raw(&self, stmt: Statement) -> Result<Option<QueryResult>, DbErr> {
        raw(stmt)
    }

    async fn query_one<S: StatementBuilder>(&self, stmt: &S) -> Result<Option<QueryResult>, DbErr> {
        self.user_can_run(stmt)?;
        self.connection.query_one(stmt).await
    }

    async fn query_all_raw(&self, stmt: Statement) -> Result<Vec<QueryResult>, DbErr> {
        raw(stmt)
    }

    async fn query_all<S: StatementBuilder>(&self, stmt: &S) -> Result<Vec<QueryResult>, DbErr> {
        self.user_can_run(stmt)?;
        self.connection.query_all(stmt).await
    }
}

#[async_trait]
impl<C: TransactionTrait<Transaction = RoutedTransaction> + Send> TransactionTrait for Restricted<C> {
    type Transaction = RestrictedTransaction;

    async fn begin(&self) -> Result<RestrictedTransaction, DbErr> {
        self.restrict(self.connection.begin().await)
    }

    async fn begin_with_config(
        &self,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<RestrictedTransaction, DbErr> {
        self.restrict(self.connection.begin_with_config(isolation_level, access_mode).await)
    }

    async fn begin_with_options(&self, options: TransactionOptions) -> Result<RestrictedTransaction, DbErr> {
        self.restrict(self.connection.begin_with_options(options).await)
    }

    async fn transaction<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c RestrictedTransaction) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run(TransactionTrait::begin(self).await, callback).await
    }

    async fn transaction_with_config<F, T, E>(
        &self,
        callback: F,
        isolation_level: Option<IsolationLevel>,
        access_mode: Option<AccessMode>,
    ) -> Result<T, TransactionError<E>>
    where
        F: for<'c> FnOnce(&'c RestrictedTransaction) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>> + Send,
        T: Send,
        E: fmt::Display + fmt::Debug + Send,
    {
        run(TransactionTrait::begin_with_config(self, isolation_level, access_mode).await, callback).await
    }
}
