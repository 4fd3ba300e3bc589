//! Connection strings, as libpq reads them.

use std::time::Duration;

use diesel::{ConnectionError, ConnectionResult};

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

/// One connection string for each host of one that names several, without what is meant for all of them together.
///
/// # Errors
/// If there are not as many ports, or addresses, as hosts.
pub(super) fn split(url: &str) -> ConnectionResult<Vec<String>> {
    if is_uri(url) { split_uri(url) } else { split_keywords(url) }
}

/// Parameters that are meant for all hosts together.
const OF_ALL: [&str; 2] = ["target_session_attrs", "load_balance_hosts"];
/// Parameters that have an item for each host.
const OF_EACH: [&str; 3] = ["host", "hostaddr", "port"];

/// Names and values.
type Parameters = Vec<(String, String)>;

fn split_uri(url: &str) -> ConnectionResult<Vec<String>> {
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(vec![url.to_owned()]) };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let parameters: Parameters = query
        .split('&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            (name.to_owned(), if OF_EACH.contains(&name) { with_commas(value) } else { value.to_owned() })
        })
        .collect();
    let query = |parameters: &[(String, String)]| {
        let joined: Vec<_> = parameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if joined.is_empty() { String::new() } else { format!("?{}", joined.join("&")) }
    };
    // What the parameters say of the hosts goes before what stands in front of them.
    if let Some(each) = each(&parameters)? {
        if hosts.contains(',') {
            return Err(not_clear("names hosts in two places"));
        }
        return Ok(each.iter().map(|each| format!("{scheme}://{user}{hosts}{path}{}", query(each))).collect());
    }
    if !hosts.contains(',') {
        return Ok(vec![url.to_owned()]);
    }
    let kept: Vec<_> = parameters.into_iter().filter(|(name, _)| !OF_ALL.contains(&name.as_str())).collect();
    Ok(hosts.split(',').map(|host| format!("{scheme}://{user}{host}{path}{}", query(&kept))).collect())
}

fn split_keywords(text: &str) -> ConnectionResult<Vec<String>> {
    // What is malformed libpq says better.
    let whole = || vec![text.to_owned()];
    let Some(parameters) = keywords(text) else { return Ok(whole()) };
    let Some(each) = each(&parameters)? else { return Ok(whole()) };
    let quoted = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
    let joined = |parameters: &Parameters| {
        let one = |(name, value): &(String, String)| match value.contains([' ', '\'', '\\']) || value.is_empty() {
            true => format!("{name}='{}'", quoted(value)),
            false => format!("{name}={value}"),
        };
        parameters.iter().map(one).collect::<Vec<_>>().join(" ")
    };
    Ok(each.iter().map(joined).collect())
}

/// The parameters of the form `name=value name = 'value'`; `None` if it is malformed.
fn keywords(text: &str) -> Option<Parameters> {
    let mut parameters = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (after, is_quoted) = after.strip_prefix('\'').map_or((after, false), |after| (after, true));
        let (mut value, mut chars) = (String::new(), after.chars());
        loop {
            match chars.next() {
                Some('\\') => value.extend(chars.next()),
                Some('\'') if is_quoted => break,
                Some(c) if !is_quoted && c.is_whitespace() => break,
                Some(c) => value.push(c),
                None if is_quoted => return None,
                None => break,
            }
        }
        parameters.push((name.trim_end().to_owned(), value));
        rest = chars.as_str().trim_start();
    }
    Some(parameters)
}

/// The parameters for each of several hosts; `None` if they name one at most.
fn each(parameters: &[(String, String)]) -> ConnectionResult<Option<Vec<Parameters>>> {
    let items = |name: &str| {
        let last = parameters.iter().rev().find(|(found, _)| found == name);
        last.map_or(0, |(_, value)| value.split(',').count())
    };
    let count = items("host").max(items("hostaddr"));
    if count < 2 {
        return Ok(None);
    }
    let has_each = |name| items(name) == count || items(name) == 0;
    if !has_each("host") || !has_each("hostaddr") || !has_each("port") && items("port") != 1 {
        return Err(not_clear("has not as many ports, or addresses, as hosts"));
    }
    let of = |index: usize| {
        let item = |value: &str| value.split(',').nth(index).unwrap_or(value).to_owned();
        let kept = parameters.iter().filter(|(name, _)| !OF_ALL.contains(&name.as_str()));
        kept.map(|(name, value)| match OF_EACH.contains(&name.as_str()) {
            true => (name.clone(), item(value)),
            false => (name.clone(), value.clone()),
        })
        .collect()
    };
    Ok(Some((0..count).map(of).collect()))
}

/// A comma may be written by its number.
fn with_commas(value: &str) -> String {
    value.replace("%2C", ",").replace("%2c", ",")
}

fn not_clear(what: &str) -> ConnectionError {
    let hint = "several hosts are best written as postgres://user@a:1,b:2/db";
    ConnectionError::InvalidConnectionUrl(format!("the URL {what}; {hint}"))
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
            (
                "host=a,b port=1,2 user='o\\'b c' password = 'x' target_session_attrs=any",
                vec!["host=a port=1 user='o\\'b c' password=x", "host=b port=2 user='o\\'b c' password=x"],
            ),
            ("host=a,b port=1 dbname=db", vec!["host=a port=1 dbname=db", "host=b port=1 dbname=db"]),
            ("hostaddr='1.1.1.1,::1'", vec!["hostaddr=1.1.1.1", "hostaddr=::1"]),
            ("host=a dbname='b,c'", vec!["host=a dbname='b,c'"]),
            (
                "postgres://u@/db?host=a%2Cb&port=1,2&x=1,2",
                vec!["postgres://u@/db?host=a&port=1&x=1,2", "postgres://u@/db?host=b&port=2&x=1,2"],
            ),
            ("postgres:///db?host=/tmp", vec!["postgres:///db?host=/tmp"]),
        ] {
            assert_eq!(split(url).unwrap(), urls);
        }
        for url in ["host=a,b port=1,2,3", "host=a,b hostaddr=1.1.1.1", "postgres://a,b/db?host=c,d"] {
            let refused = split(url).unwrap_err();
            assert!(refused.to_string().contains("postgres://user@a:1,b:2/db"), "{refused}");
        }
    }
}
