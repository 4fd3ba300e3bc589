use std::{fs, path::Path, time::Duration};

use crate::{Error, account::Account};

/// Included last by `postgresql.conf`, rewritten whole at each change.
pub(crate) const FILE: &str = "testkit.conf";

/// What every server of a test is started with; the builder's settings come after and win.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_directories", ""),
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("autovacuum", "off"),
    ("jit", "off"),
    ("shared_buffers", "16MB"),
    // Segments in the data folder go with it, also after SIGKILL.
    ("dynamic_shared_memory_type", "mmap"),
    ("logging_collector", "off"),
    ("wal_level", "replica"),
    ("hot_standby", "on"),
    ("max_wal_senders", "20"),
    ("wal_keep_size", "256MB"),
    ("wal_retrieve_retry_interval", "100ms"),
    ("wal_receiver_status_interval", "1s"),
];

/// Settings of which a standby needs at least as much as its primary has, as far as its control file knows.
const RECORDED: &[&str] = &[
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_wal_senders",
    "max_worker_processes",
];

/// What differs from cluster to cluster, from node to node, and from time to time.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    pub(crate) port: u16,
    /// What the builder was told.
    pub(crate) settings: Vec<(String, String)>,
    /// What this node alone was told.
    pub(crate) own: Vec<(String, String)>,
    /// Name of this node and port of the one it replicates from.
    pub(crate) upstream: Option<(String, u16)>,
    pub(crate) apply_delay: Duration,
}

impl Conf {
    /// Writes the settings at once: a server that reads them meanwhile sees the old or the new ones.
    pub(crate) fn write(&self, account: &Account, data: &Path) -> Result<(), Error> {
        let fresh = data.join("testkit.conf.new");
        let path = data.join(FILE);
        let failed = || Error::io(format!("cannot write {}", path.display()));
        fs::write(&fresh, self.text()).map_err(failed())?;
        account.own(&fresh)?;
        fs::rename(&fresh, &path).map_err(failed())
    }

    /// Whether a server must have run with these settings before it is copied.
    pub(crate) fn is_recorded(&self) -> bool {
        self.settings.iter().any(|(name, _)| RECORDED.contains(&name.to_ascii_lowercase().as_str()))
    }

    fn text(&self) -> String {
        let common = SETTINGS.iter().map(|&(name, value)| line(name, value));
        let asked = self.settings.iter().chain(&self.own).map(|(name, value)| line(name, value));
        let mut text: String = common.chain(asked).collect();
        text += &line("port", &self.port.to_string());
        if let Some((name, port)) = &self.upstream {
            let conninfo = format!("host=127.0.0.1 port={port} user=postgres application_name={name}");
            text += &line("primary_conninfo", &conninfo);
        }
        if !self.apply_delay.is_zero() {
            text += &line("recovery_min_apply_delay", &format!("{}ms", self.apply_delay.as_millis()));
        }
        text
    }
}

fn line(name: &str, value: &str) -> String {
    format!("{name} = '{}'\n", value.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_asked_for_come_last_and_quotes_are_doubled() {
        let conf = Conf {
            port: 5432,
            settings: vec![("jit".into(), "on".into()), ("search_path".into(), "'a'".into())],
            own: vec![("jit".into(), "off".into())],
            upstream: Some(("replica0".into(), 5433)),
            apply_delay: Duration::from_millis(200),
        };
        let text = conf.text();
        let jit: Vec<_> = text.lines().filter(|line| line.starts_with("jit")).collect();
        assert_eq!(jit, ["jit = 'off'", "jit = 'on'", "jit = 'off'"]);
        for line in [
            "search_path = '''a'''",
            "port = '5432'",
            "primary_conninfo = 'host=127.0.0.1 port=5433 user=postgres application_name=replica0'",
            "recovery_min_apply_delay = '200ms'",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in {text}");
        }
    }
}
