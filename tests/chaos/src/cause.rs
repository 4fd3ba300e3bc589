//! Short, stable names for why a call failed.

use sea_orm::{DbErr, RuntimeErr, SqlxError, error::ConnAcquireErr};
use sea_router::refusal;

/// The cause of an error.
pub(crate) fn of(error: &DbErr) -> String {
    if let Some(reason) = refusal(error) {
        return format!("refused_{}", reason.as_str());
    }
    match error {
        DbErr::ConnectionAcquire(ConnAcquireErr::Timeout) => "no_connection".into(),
        DbErr::ConnectionAcquire(_) => "connection_closed".into(),
        DbErr::Conn(RuntimeErr::SqlxError(e))
        | DbErr::Exec(RuntimeErr::SqlxError(e))
        | DbErr::Query(RuntimeErr::SqlxError(e)) => driver(e),
        DbErr::Conn(RuntimeErr::Internal(text))
        | DbErr::Exec(RuntimeErr::Internal(text))
        | DbErr::Query(RuntimeErr::Internal(text)) => ours(text).into(),
        _ => "other".into(),
    }
}

fn driver(error: &SqlxError) -> String {
    match error {
        SqlxError::Database(error) => match error.code() {
            Some(code) => format!("sqlstate_{code}"),
            None => "server_error".into(),
        },
        SqlxError::Io(_) => "connection_lost".into(),
        SqlxError::PoolTimedOut => "no_connection".into(),
        SqlxError::Protocol(_) => "protocol".into(),
        _ => "driver".into(),
    }
}

/// The router's own words.
fn ours(text: &str) -> &'static str {
    let known = [
        ("given up", "given_up"),
        ("in recovery", "primary_in_recovery"),
        ("old primary", "old_primary"),
        ("may lack", "branch_lost"),
        ("another cluster", "other_cluster"),
    ];
    known.into_iter().find(|(part, _)| text.contains(part)).map_or("other", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_names() {
        let internal = |text: &str| DbErr::Query(RuntimeErr::Internal(text.into()));
        for (error, name) in [
            (DbErr::ConnectionAcquire(ConnAcquireErr::Timeout), "no_connection"),
            (
                DbErr::Query(RuntimeErr::SqlxError(SqlxError::Io(std::io::ErrorKind::BrokenPipe.into()).into())),
                "connection_lost",
            ),
            (internal("no replica can serve this read (behind): and so on"), "refused_behind"),
            (internal("a read on a replica was given up: time limit"), "given_up"),
            (internal("something else"), "other"),
        ] {
            assert_eq!(of(&error), name, "{error}");
        }
    }
}
