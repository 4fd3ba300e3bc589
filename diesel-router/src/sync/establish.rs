//! A connection from one URL, whose router is made for the first and shared by the others.

use diesel::{Connection, ConnectionError, ConnectionResult, PgConnection};

use super::{Router, RoutingConnection, question, router::Inner, url};
use crate::{
    established::{Established, POOL_SIZE, has_its_primary},
    read_class,
};

static ESTABLISHED: Established<Inner> = Established::new();

/// A connection of the URL's router.
pub(super) fn establish(database_url: &str) -> ConnectionResult<RoutingConnection> {
    let is_good = |inner: &Inner| !inner.primary().is_closed() && has_its_primary(&inner.watch);
    if let Some(inner) = ESTABLISHED.get(database_url, is_good) {
        return Ok(Router { inner }.session());
    }
    let router = connect(database_url)?;
    ESTABLISHED.put(database_url, &router.inner);
    Ok(router.session())
}

/// Finds out which host is the primary, and connects to all.
fn connect(database_url: &str) -> ConnectionResult<Router> {
    let (url, class) = read_class::take(database_url)?;
    let mut urls = url::split(&url)?;
    let primary = if urls.len() > 1 { find_primary(&urls)? } else { 0 };
    let primary = urls.remove(primary);
    let mut builder = Router::builder(primary).replicas(urls).pool_size(POOL_SIZE);
    if let Some(class) = class {
        builder = builder.unannotated(class);
    }
    Ok(builder.connect()?)
}

/// The place of the host that accepts writes.
fn find_primary(urls: &[String]) -> ConnectionResult<usize> {
    let (mut cause, mut has_standby) = (None, false);
    for (index, url) in urls.iter().enumerate() {
        let answer =
            PgConnection::establish(&url::with_parameter(url, "connect_timeout", "2")).and_then(|mut connection| {
                question::is_in_recovery(&mut connection).map_err(ConnectionError::CouldntSetupConfiguration)
            });
        match answer {
            Ok(false) => return Ok(index),
            Ok(true) => has_standby = true,
            Err(error) => cause = Some(error),
        }
    }
    let none = || ConnectionError::BadConnection("none of the hosts accepts writes".to_owned());
    // Where a host answers, what is missing is a primary, not a way to the servers.
    Err(cause.filter(|_| !has_standby).unwrap_or_else(none))
}
