//! Other processes: who is whose child, is it gone, and signals to them.

use std::{fs, process::Command, time::Duration};

use rustix::process::{self as sys, Signal};

use crate::{Error, wait};

/// A process id, never 0 or negative.
pub(crate) type Pid = i32;

/// One row of the process table.
struct Row {
    pid: Pid,
    parent: Pid,
    /// First letter of the state: `T` is stopped, `Z` is dead but not yet reaped.
    state: u8,
}

/// The children of `pid`, their children, and so on.
///
/// PostgreSQL's backends call `setsid`, so a signal to the postmaster's process group does not reach them.
pub(crate) fn descendants(pid: Pid) -> Result<Vec<Pid>, Error> {
    let table = table()?;
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(table.iter().filter(|row| row.parent == parent).map(|row| row.pid));
        next += 1;
    }
    found.remove(0);
    Ok(found)
}

/// Sends a signal; a process that is gone already is no error.
pub(crate) fn signal(pid: Pid, signal: Signal) -> Result<(), Error> {
    let Some(target) = sys::Pid::from_raw(pid) else {
        return Ok(());
    };
    match sys::kill_process(target, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Error::Io { what: format!("cannot send {signal:?} to process {pid}"), source: error.into() }),
    }
}

/// Stops a process and returns once the system says it is stopped (or gone).
pub(crate) fn freeze(pid: Pid) -> Result<(), Error> {
    signal(pid, Signal::STOP)?;
    let limit = Duration::from_secs(5);
    wait::until(limit, || {
        let state = state(pid)?;
        Ok(matches!(state, None | Some(b'T' | b't' | b'Z')).then_some(()))
    })?
    .ok_or_else(|| Error::Timeout {
        what: format!("stop of process {pid} after SIGSTOP"),
        limit,
        found: "still running".into(),
    })
}

/// The processes of `pids` that still run; a zombie does not.
pub(crate) fn living(pids: &[Pid]) -> Result<Vec<Pid>, Error> {
    let mut living = Vec::new();
    for row in table()? {
        if pids.contains(&row.pid) && row.state != b'Z' {
            living.push(row.pid);
        }
    }
    Ok(living)
}

/// First letter of a process's state, `None` if there is no such process.
fn state(pid: Pid) -> Result<Option<u8>, Error> {
    if has_proc() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        return Ok(stat.and_then(|stat| parse_stat(&stat)).map(|row| row.state));
    }
    Ok(table()?.into_iter().find(|row| row.pid == pid).map(|row| row.state))
}

/// Slim containers have no `ps`, macOS has no `/proc`.
fn has_proc() -> bool {
    fs::exists("/proc/self/stat").unwrap_or(false)
}

fn table() -> Result<Vec<Row>, Error> {
    if has_proc() {
        let entries = fs::read_dir("/proc").map_err(Error::io("cannot list /proc"))?;
        return Ok(entries
            .flatten()
            .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
            .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
            .filter_map(|stat| parse_stat(&stat))
            .collect());
    }
    let output = Command::new("ps")
        .args(["-A", "-o", "pid=,ppid=,stat="])
        .output()
        .map_err(Error::io("cannot run `ps` to list processes"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(parse_ps).collect())
}

/// `42 (a name) S 1 ...`: the name may hold anything, also spaces and parentheses.
fn parse_stat(stat: &str) -> Option<Row> {
    let pid = stat.split(' ').next()?.parse().ok()?;
    let mut rest = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = *rest.next()?.as_bytes().first()?;
    let parent = rest.next()?.parse().ok()?;
    Some(Row { pid, parent, state })
}

fn parse_ps(line: &str) -> Option<Row> {
    let mut fields = line.split_whitespace();
    let pid = fields.next()?.parse().ok()?;
    let parent = fields.next()?.parse().ok()?;
    let state = *fields.next()?.as_bytes().first()?;
    Some(Row { pid, parent, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_process_tables() {
        for (row, expected) in [
            (parse_stat("42 (postgres) S 7 42 42 0"), (42, 7, b'S')),
            (parse_stat("42 (a) b (c)) T 7 42"), (42, 7, b'T')),
            (parse_ps("   42     7 Ss+"), (42, 7, b'S')),
        ] {
            let row = row.unwrap();
            assert_eq!((row.pid, row.parent, row.state), expected);
        }
        assert!(parse_stat("").is_none());
        assert!(parse_ps("42").is_none());
    }

    #[test]
    fn sees_a_child_come_stop_and_go() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::try_from(child.id()).unwrap();
        let us = Pid::try_from(std::process::id()).unwrap();
        assert!(descendants(us).unwrap().contains(&pid));
        freeze(pid).unwrap();
        assert_eq!(state(pid).unwrap(), Some(b'T'));
        signal(pid, Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(living(&[pid]).unwrap().is_empty());
        signal(pid, Signal::KILL).unwrap();
    }
}
