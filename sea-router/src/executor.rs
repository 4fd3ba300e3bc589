//! Connections that are given out: their statements run past the session.

use read_router::SchemaChange;
use sea_orm::{DatabaseExecutor, DbErr, IntoDatabaseExecutor};
use sqlx::{Connection, PgPool};

use crate::{RoutedTransaction, RoutingConnection, error, node::Checked};

impl RoutingConnection {
    /// The primary's connection pool, for what only the driver can do (`LISTEN`, `COPY`, advisory locks).
    ///
    /// The session does not see what is done there: from here on its strict reads go to the primary, with reason
    /// [`GivenOut`](crate::PrimaryReason::GivenOut), and its token is [unknown](crate::Token::UNKNOWN), until
    /// [`settle`](Self::settle). Ask a [new session](Self::new_session) for it where other strict reads of this one shall
    /// go on meanwhile; statements of no concern to any session have [`node`](Self::node).
    pub fn get_postgres_connection_pool(&self) -> &PgPool {
        self.session.hand_out();
        self.inner.primary().pool()
    }

    /// Makes the session known again after connections of it were given out: as a
    /// [`DatabaseExecutor`] (which is what migrations take), or as the primary's
    /// [pool](Self::get_postgres_connection_pool).
    ///
    /// ```no_run
    /// # use sea_orm::{ConnectionTrait, DatabaseExecutor, DbErr};
    /// # async fn migrate(db: DatabaseExecutor<'_>) -> Result<(), DbErr> { Ok(()) }
    /// # async fn f(db: sea_router::RoutingConnection) -> Result<(), DbErr> {
    /// migrate(DatabaseExecutor::from(&db)).await?; // as `Migrator::up(&db, None)` does
    /// db.settle().await?; // from here on strict reads see the new schema on replicas too
    /// # Ok(()) }
    /// ```
    ///
    /// It asks the primary for a sign of life, which comes after all that was done: from there on the session's promises
    /// cover what was run past it. Call it when that is over. What is still run afterwards on a connection given out
    /// earlier is not covered, nor is a statement whose future was dropped while it ran there.
    ///
    /// # Errors
    /// SeaORM's own, if the primary does not answer; the session then stays as it was.
    pub async fn settle(&self) -> Result<(), DbErr> {
        let given_out = self.session.handed_out();
        self.touch_primary().await?;
        self.session.settled(given_out);
        self.inner.watch.schema_changed(SchemaChange::Tables);
        Ok(())
    }

    /// A contact with the primary: it comes after all that has been acknowledged up to here.
    pub(crate) async fn touch_primary(&self) -> Result<(), DbErr> {
        let Checked { mut connection, opened } = self.inner.primary().acquire().await?;
        let answer = connection.ping().await;
        self.session.contact(&self.inner.watch, opened);
        answer.map_err(error::connection)
    }

    /// SeaORM's connection to the primary, of which the session knows that it is given out.
    fn give_out(&self) -> DatabaseExecutor<'_> {
        self.session.hand_out();
        DatabaseExecutor::Connection(match &self.metering {
            Some(metering) => metering.given_out(),
            None => &self.inner.primary().database,
        })
    }
}

/// All statements of the executor run on the primary, past the session: from the conversion on, strict reads of the session
/// go to the primary, and its token is unknown, until [`settle`](RoutingConnection::settle). It borrows the connection
/// and never says that it is done.
impl<'c> From<&'c RoutingConnection> for DatabaseExecutor<'c> {
    fn from(connection: &'c RoutingConnection) -> Self {
        connection.give_out()
    }
}

/// As the conversion by [`From`]: settle the session afterwards.
impl<'c> IntoDatabaseExecutor<'c> for &'c RoutingConnection {
    fn into_database_executor(self) -> DatabaseExecutor<'c> {
        self.give_out()
    }
}

/// All statements of the executor run in the transaction; strict reads of its session outside of it go to the primary
/// until it ends.
impl<'c> From<&'c RoutedTransaction> for DatabaseExecutor<'c> {
    fn from(transaction: &'c RoutedTransaction) -> Self {
        DatabaseExecutor::Transaction(transaction)
    }
}

/// As the conversion by [`From`].
impl<'c> IntoDatabaseExecutor<'c> for &'c RoutedTransaction {
    fn into_database_executor(self) -> DatabaseExecutor<'c> {
        DatabaseExecutor::Transaction(self)
    }
}

/// The executor owns the transaction, and the session does not see whether it commits: its strict reads go to the primary
/// until [`settle`](RoutingConnection::settle).
impl IntoDatabaseExecutor<'static> for RoutedTransaction {
    fn into_database_executor(self) -> DatabaseExecutor<'static> {
        DatabaseExecutor::OwnedTransaction(self.into_inner())
    }
}
