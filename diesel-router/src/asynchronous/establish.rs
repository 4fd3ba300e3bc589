//! A router from one URL.

use diesel::{ConnectionError, ConnectionResult};
use futures_util::future::join_all;
use read_router::{ReadClass, Role};
use tokio::runtime::Handle;
use tokio_postgres::config::Host;

use super::{
    router::{AsyncRouter, Inner},
    runtime::background,
    source::{AsyncReplica, AsyncSource, Kind, Server, Target, config_of},
    watch::first_probe,
};
use crate::{
    established::{Established, POOL_SIZE, has_its_primary},
    read_class,
};

static ESTABLISHED: Established<Inner> = Established::new();

/// The router of all hosts of this URL: one that is in use, or a new one.
pub(crate) async fn router(url: &str) -> ConnectionResult<AsyncRouter> {
    let is_good = |inner: &Inner| inner.check_open().is_ok() && has_its_primary(&inner.watch);
    if let Some(inner) = ESTABLISHED.get(url, is_good) {
        return Ok(AsyncRouter { inner });
    }
    let router = connect(url).await?;
    ESTABLISHED.put(url, &router.inner);
    Ok(router)
}

/// Which host is the primary is asked; one that does not answer is a replica that may come later.
async fn connect(url: &str) -> ConnectionResult<AsyncRouter> {
    let (url, class) = read_class::take(url)?;
    let config = config_of(&url)?;
    let failed = |error: &dyn std::fmt::Display| ConnectionError::BadConnection(error.to_string());
    let runtime = background().map_err(|error| failed(&error))?;
    let hosts = single_hosts(&config);
    let work = of_hosts(hosts, class, runtime.clone());
    runtime.spawn(work).await.unwrap_or_else(|error| Err(failed(&error)))
}

async fn of_hosts(
    hosts: Vec<tokio_postgres::Config>,
    class: Option<ReadClass>,
    runtime: Handle,
) -> ConnectionResult<AsyncRouter> {
    let target = |config| Target { config: Box::new(config), runtime: Some(runtime.clone()) };
    let mut hosts: Vec<_> = hosts.into_iter().map(target).collect();
    if hosts.is_empty() {
        return Err(ConnectionError::InvalidConnectionUrl("the URL names no host".to_owned()));
    }
    let primary = if hosts.len() > 1 { primary_of(&hosts).await? } else { 0 };
    let source = |target| AsyncSource(Kind::Target(target));
    let primary = hosts.remove(primary);
    let replicas = hosts.into_iter().map(|target| AsyncReplica::new(source(target)));
    let mut builder = AsyncRouter::builder(source(primary)).replicas(replicas).pool_size(POOL_SIZE as usize);
    if let Some(class) = class {
        builder = builder.unannotated(class);
    }
    builder.connect().await.map_err(ConnectionError::from)
}

async fn primary_of(hosts: &[Target]) -> ConnectionResult<usize> {
    let limit = read_router::Config::default().probe_timeout;
    let servers: Vec<_> = hosts.iter().cloned().map(Server::Target).collect();
    let probes = join_all(servers.iter().map(|server| first_probe(server, limit))).await;
    let is_primary =
        |probe: &Result<super::watch::Probe, _>| probe.as_ref().is_ok_and(|probe| probe.answer.role == Role::Primary);
    if let Some(primary) = probes.iter().position(is_primary) {
        return Ok(primary);
    }
    let first = probes.into_iter().find_map(|probe| probe.err().map(|(_, error)| error));
    Err(first.unwrap_or_else(|| ConnectionError::BadConnection("no primary among the hosts of the URL".to_owned())))
}

/// One configuration for each host.
fn single_hosts(config: &tokio_postgres::Config) -> Vec<tokio_postgres::Config> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let one = |index: usize| {
        let mut one = tokio_postgres::Config::new();
        match hosts.get(index) {
            Some(Host::Tcp(name)) => {
                one.host(name);
            }
            #[cfg(unix)]
            Some(Host::Unix(path)) => {
                one.host_path(path);
            }
            None => {}
        }
        if let Some(address) = addresses.get(index) {
            one.hostaddr(*address);
        }
        if let Some(port) = ports.get(index).or_else(|| ports.first()) {
            one.port(*port);
        }
        if let Some(user) = config.get_user() {
            one.user(user);
        }
        if let Some(password) = config.get_password() {
            one.password(password);
        }
        if let Some(name) = config.get_dbname() {
            one.dbname(name);
        }
        if let Some(options) = config.get_options() {
            one.options(options);
        }
        if let Some(name) = config.get_application_name() {
            one.application_name(name);
        }
        if let Some(limit) = config.get_connect_timeout() {
            one.connect_timeout(*limit);
        }
        if let Some(limit) = config.get_tcp_user_timeout() {
            one.tcp_user_timeout(*limit);
        }
        one.ssl_mode(config.get_ssl_mode());
        one.ssl_negotiation(config.get_ssl_negotiation());
        one.channel_binding(config.get_channel_binding());
        one.keepalives(config.get_keepalives());
        one.keepalives_idle(config.get_keepalives_idle());
        if let Some(interval) = config.get_keepalives_interval() {
            one.keepalives_interval(interval);
        }
        if let Some(retries) = config.get_keepalives_retries() {
            one.keepalives_retries(retries);
        }
        one
    };
    (0..hosts.len().max(addresses.len())).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_port() {
        let config = config_of("postgres://app:secret@one:1,two:2/shop?application_name=test").unwrap();
        let hosts = single_hosts(&config);
        assert_eq!(hosts.len(), 2);
        assert_eq!(hosts[1].get_hosts(), [Host::Tcp("two".to_owned())]);
        assert_eq!((hosts[1].get_ports(), hosts[1].get_dbname()), (&[2][..], Some("shop")));
        assert_eq!(hosts[0].get_application_name(), Some("test"));
    }
}
