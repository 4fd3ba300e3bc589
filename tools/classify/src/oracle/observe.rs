//! What a read could have changed.

use std::error::Error as StdError;

use postgres::{
    Client,
    types::{IsNull, ToSql, Type, private::BytesMut, to_sql_checked},
};

use crate::server::rows;

/// The state of a primary, or of a session on a standby, at one moment: what it is, and what it was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observed(Vec<(String, String)>);

/// Every write to a table takes a number for its transaction; sequences do not always.
const PRIMARY: &str = "\
    SELECT 'transaction number' AS what, pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text AS found \
    UNION ALL SELECT 'sequence ' || schemaname || '.' || sequencename, last_value::text FROM pg_catalog.pg_sequences \
    ORDER BY 1";

/// Locks that do more than keep a table from being dropped, settings, and what lives as long as a session.
const SESSION: &str = "\
    SELECT 'lock' AS what, pg_catalog.string_agg(locktype || ' ' || mode, ', ' ORDER BY locktype, mode) AS found \
        FROM pg_catalog.pg_locks WHERE pid = pg_catalog.pg_backend_pid() \
            AND (locktype = 'advisory' OR locktype <> 'virtualxid' AND mode <> 'AccessShareLock') \
    UNION ALL SELECT 'setting', pg_catalog.string_agg(name || '=' || setting, ', ' ORDER BY name) \
        FROM pg_catalog.pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction%' \
    UNION ALL SELECT 'prepared statement', pg_catalog.string_agg(name, ', ' ORDER BY name) \
        FROM pg_catalog.pg_prepared_statements WHERE from_sql \
    UNION ALL SELECT 'cursor', pg_catalog.string_agg(name, ', ' ORDER BY name) FROM pg_catalog.pg_cursors \
        WHERE is_holdable OR statement NOT LIKE '%pg_catalog.pg_cursors%' \
    UNION ALL SELECT 'channel', pg_catalog.string_agg(c, ', ') FROM pg_catalog.pg_listening_channels() c \
    UNION ALL SELECT 'temporary schema', pg_catalog.pg_my_temp_schema()::text";

impl Observed {
    pub(crate) fn of_primary(client: &mut Client) -> Result<Self, postgres::Error> {
        Self::ask(client, PRIMARY)
    }

    pub(crate) fn of_session(client: &mut Client) -> Result<Self, postgres::Error> {
        Self::ask(client, SESSION)
    }

    fn ask(client: &mut Client, sql: &str) -> Result<Self, postgres::Error> {
        let text = |column: Option<&str>| column.unwrap_or_default().to_owned();
        Ok(Self(rows(client, sql)?.iter().map(|row| (text(row.get(0)), text(row.get(1)))).collect()))
    }

    /// What is otherwise now.
    pub(crate) fn difference(&self, after: &Self) -> Option<String> {
        let new = after.0.iter().find(|entry| !self.0.contains(entry));
        let gone = self.0.iter().find(|entry| !after.0.contains(entry));
        new.or(gone).map(|(what, found)| format!("{what} {found}"))
    }
}

/// A parameter of any type.
#[derive(Debug)]
pub(crate) struct Null;

impl ToSql for Null {
    fn to_sql(&self, _: &Type, _: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        Ok(IsNull::Yes)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
