//! Runs the compiled tests, one program after the other as cargo does: they share names of databases.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use crate::{build::Binary, error::Error, outcome::Outcome, source::output};

/// How often it is looked whether a program has taken too long.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs everything. A test that hangs, or whose program dies, has failed.
pub(crate) fn all(
    binaries: &[Binary],
    environment: &[(&str, String)],
    only: Option<&str>,
    limit: Duration,
) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    for binary in binaries.iter().filter(|binary| only.is_none_or(|only| binary.name.contains(only))) {
        let tests = list(binary)?;
        if !tests.is_empty() {
            one_file(binary, &tests, environment, limit, &mut outcome)?;
        }
    }
    Ok(outcome)
}

/// The names of the program's tests, but for those that are marked as not to be run.
fn list(binary: &Binary) -> Result<Vec<String>, Error> {
    let names = |which: &[&str]| {
        let mut command = Command::new(&binary.path);
        command.args(["--list", "--format", "terse"]).args(which);
        let printed = output(command)?;
        let printed = String::from_utf8_lossy(&printed);
        let names = printed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned);
        Ok::<Vec<_>, Error>(names.collect())
    };
    let ignored = names(&["--ignored"])?;
    Ok(names(&[])?.into_iter().filter(|name| !ignored.contains(name)).collect())
}

fn one_file(
    binary: &Binary,
    tests: &[String],
    environment: &[(&str, String)],
    limit: Duration,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let started = Instant::now();
    let mut command = Command::new(&binary.path);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = binary.path.display().to_string();
    let mut child = command.spawn().map_err(|source| Error::Command { command: shown, source })?;
    let lines = lines(&mut child);
    let (mut seen, mut text) = (BTreeMap::new(), String::new());
    loop {
        match lines.recv_timeout(PAUSE) {
            Ok(line) => {
                if let Some((name, passed)) = result(&line) {
                    seen.insert(name.to_owned(), passed);
                }
                text += &line;
                text.push('\n');
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if started.elapsed() > limit => {
                let _ = child.kill();
                text += &format!("not done after {} s\n", limit.as_secs());
                break;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
    let _ = child.wait();
    let passed = tests.iter().filter(|test| seen.get(*test) == Some(&true)).count();
    println!("{}: {passed} of {} in {:.1} s", binary.name, tests.len(), started.elapsed().as_secs_f64());
    if passed < tests.len() {
        println!("{}", text.trim_end());
    }
    for test in tests {
        outcome.add(format!("{}::{test}", binary.name), seen.get(test) == Some(&true));
    }
    Ok(())
}

/// What the child prints, line by line, until it has closed both of its outputs.
fn lines(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let outputs: [Option<Box<dyn Read + Send>>; 2] =
        [child.stdout.take().map(|o| Box::new(o) as _), child.stderr.take().map(|o| Box::new(o) as _)];
    for output in outputs.into_iter().flatten() {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}

/// A test's name and whether it passed, if that is what the line says.
fn result(line: &str) -> Option<(&str, bool)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    match result.trim_end() {
        "ok" => Some((name, true)),
        "FAILED" => Some((name, false)),
        _ => None,
    }
}
