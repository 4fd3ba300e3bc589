//! The parameter `read_class` of a URL, which no driver knows.

use std::time::Duration;

use diesel::{ConnectionError, ConnectionResult};
use read_router::ReadClass;

/// The URL without the parameter, and the class of reads that have none of their own.
pub(crate) fn take(url: &str) -> ConnectionResult<(String, Option<ReadClass>)> {
    let Some((address, query)) = url.split_once('?').filter(|_| url.contains("://")) else {
        return Ok((url.to_owned(), None));
    };
    let (mut kept, mut class) = (Vec::new(), None);
    for parameter in query.split('&') {
        match parameter.strip_prefix("read_class=") {
            Some(text) => class = Some(parse(text)?),
            None => kept.push(parameter),
        }
    }
    let query = kept.join("&");
    Ok((if query.is_empty() { address.to_owned() } else { format!("{address}?{query}") }, class))
}

fn parse(text: &str) -> ConnectionResult<ReadClass> {
    let seconds = text.strip_prefix("seconds_stale(").and_then(|rest| rest.strip_suffix(')'));
    let bound = seconds.and_then(|seconds| seconds.parse().ok()).and_then(|s| Duration::try_from_secs_f64(s).ok());
    match (text, bound) {
        ("must_see_my_write", _) => Ok(ReadClass::MustSeeMyWrite),
        ("eventual", _) => Ok(ReadClass::Eventual),
        (_, Some(bound)) => Ok(ReadClass::SecondsStale(bound)),
        _ => Err(ConnectionError::BadConnection(format!(
            "no such read_class: {text}; there are must_see_my_write, eventual and seconds_stale(SECONDS)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_its_parameter_and_leaves_the_rest() {
        for (url, rest, class) in [
            ("postgres://h/db", "postgres://h/db", None),
            ("postgres://h/db?read_class=eventual", "postgres://h/db", Some(ReadClass::Eventual)),
            (
                "postgres://h/db?a=1&read_class=must_see_my_write&b=2",
                "postgres://h/db?a=1&b=2",
                Some(ReadClass::MustSeeMyWrite),
            ),
            (
                "postgres://h/db?read_class=seconds_stale(0.5)",
                "postgres://h/db",
                Some(ReadClass::SecondsStale(Duration::from_millis(500))),
            ),
            ("host=h dbname=db", "host=h dbname=db", None),
        ] {
            assert_eq!(take(url).unwrap(), (rest.to_owned(), class), "{url}");
        }
        for url in ["postgres://h/db?read_class=fresh", "postgres://h/db?read_class=seconds_stale(x)"] {
            assert!(take(url).is_err(), "{url}");
        }
    }
}
