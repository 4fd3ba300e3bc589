//! A connection from one URL, with a router of its own.

use diesel::{Connection, ConnectionError, ConnectionResult, PgConnection};

use super::{Router, RoutingConnection, question, url};
use crate::read_class;

/// Connections of each pool: one for statements, one more for a checkout or for what is settled in the background.
const POOL_SIZE: u32 = 3;

/// Finds out which host is the primary, and connects to all.
pub(super) fn establish(database_url: &str) -> ConnectionResult<RoutingConnection> {
    let (url, class) = read_class::take(database_url)?;
    let mut urls = url::split(&url);
    let primary = if urls.len() > 1 { find_primary(&urls)? } else { 0 };
    let primary = urls.swap_remove(primary);
    let mut builder = Router::builder(primary).replicas(urls).pool_size(POOL_SIZE);
    if let Some(class) = class {
        builder = builder.unannotated(class);
    }
    Ok(builder.connect()?.session())
}

/// The place of the host that accepts writes.
fn find_primary(urls: &[String]) -> ConnectionResult<usize> {
    let mut cause = None;
    for (index, url) in urls.iter().enumerate() {
        let answer =
            PgConnection::establish(&url::with_parameter(url, "connect_timeout", "2")).and_then(|mut connection| {
                question::is_in_recovery(&mut connection).map_err(ConnectionError::CouldntSetupConfiguration)
            });
        match answer {
            Ok(false) => return Ok(index),
            Ok(true) => {}
            Err(error) => cause = Some(error),
        }
    }
    let none = || ConnectionError::BadConnection("none of the hosts accepts writes".to_owned());
    Err(cause.unwrap_or_else(none))
}
