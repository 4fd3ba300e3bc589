//! Connection strings, as libpq reads them.

use std::time::Duration;

/// Adds a parameter to a connection string, of either form, unless it is there.
pub(super) fn with_parameter(url: &str, name: &str, value: &str) -> String {
    if has_parameter(url, name) {
        return url.to_owned();
    }
    if !is_uri(url) {
        return format!("{url} {name}={value}");
    }
    match url.contains('?') {
        true => format!("{url}&{name}={value}"),
        false => format!("{url}?{name}={value}"),
    }
}

fn is_uri(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

fn has_parameter(url: &str, name: &str) -> bool {
    let mut parts: Vec<&str> = match (is_uri(url), url.split_once('?')) {
        (true, Some((_, query))) => query.split('&').collect(),
        (true, None) => Vec::new(),
        (false, _) => url.split_whitespace().collect(),
    };
    parts.retain(|part| part.split('=').next().is_some_and(|found| found.trim() == name));
    !parts.is_empty()
}

/// The connection string of a pool: a host that vanishes is noticed within seconds, not within the hours that TCP would
/// take.
pub(super) fn of_pool(url: &str) -> String {
    [
        ("connect_timeout", "10"),
        ("keepalives_idle", "5"),
        ("keepalives_interval", "2"),
        ("keepalives_count", "5"),
        ("tcp_user_timeout", "15000"),
    ]
    .into_iter()
    .fold(url.to_owned(), |url, (name, value)| with_parameter(&url, name, value))
}

/// The connection string of a node's probes.
pub(super) fn of_probe(url: &str, timeout: Duration) -> String {
    // libpq counts in whole seconds, and takes 1 for 2.
    let seconds = timeout.as_secs().max(2);
    let url = with_parameter(url, "connect_timeout", &seconds.to_string());
    with_parameter(&url, "tcp_user_timeout", &timeout.as_millis().max(1).to_string())
}

/// One connection string for each host of a URI that names several, without what is meant for all of them together.
pub(super) fn split(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://").filter(|_| is_uri(url)) else {
        return vec![url.to_owned()];
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let mut kept = Vec::new();
    let is_list = hosts.contains(',');
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("target_session_attrs" | "load_balance_hosts", _)) if is_list => {}
            _ => kept.push(parameter),
        }
    }
    let query = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    hosts.split(',').map(|host| format!("{scheme}://{user}{host}{path}{query}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_what_is_not_there() {
        for (url, with) in [
            ("postgres://h/db", "postgres://h/db?a=1"),
            ("postgres://h/db?b=2", "postgres://h/db?b=2&a=1"),
            ("postgresql://h/db?a=2", "postgresql://h/db?a=2"),
            ("host=h dbname=db", "host=h dbname=db a=1"),
            ("host=h a=2", "host=h a=2"),
        ] {
            assert_eq!(with_parameter(url, "a", "1"), with);
        }
    }

    #[test]
    fn splits_hosts() {
        for (url, urls) in [
            ("postgres://u:p@h1:1,h2:2/db?x=1", vec!["postgres://u:p@h1:1/db?x=1", "postgres://u:p@h2:2/db?x=1"]),
            ("postgres://h1,h2?target_session_attrs=any", vec!["postgres://h1", "postgres://h2"]),
            ("postgres://u%40x@h/db", vec!["postgres://u%40x@h/db"]),
            ("host=a,b dbname=db", vec!["host=a,b dbname=db"]),
            ("postgres:///db?host=/tmp", vec!["postgres:///db?host=/tmp"]),
        ] {
            assert_eq!(split(url), urls);
        }
    }
}
