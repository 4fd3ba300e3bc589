//! Runs the compiled tests, file by file: that is how they are made, since files share names of databases.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use crate::{
    build::Binary,
    error::Error,
    outcome::Outcome,
    source::output,
    workspace::MODULE,
};

/// How long a program may take to list its tests.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs everything. A test that hangs, or whose program dies, has failed.
pub(crate) fn all(
    binaries: &[Binary],
    environment: &[(&str, String)],
    only: Option<&str>,
    limit: Duration,
) -> Result<Outcome, Error> {
    let mut outcome = Outcome::default();
    for binary in binaries {
        for (file, tests) in by_file(binary)? {
            if only.is_none_or(|only| file.contains(only)) {
                one_file(binary, &file, &tests, environment, limit, &mut outcome)?;
            }
        }
    }
    Ok(outcome)
}

/// The names of the program's tests, by the file that they stand in.
fn by_file(binary: &Binary) -> Result<BTreeMap<String, Vec<String>>, Error> {
    let mut command = Command::new(&binary.path);
    command.args(["--list", "--format", "terse"]);
    let mut files = BTreeMap::<_, Vec<_>>::new();
    for line in String::from_utf8_lossy(&output(command)?).lines() {
        let Some(test) = line.strip_suffix(": test") else { continue };
        let module = test.strip_prefix(MODULE).and_then(|rest| rest.split_once("::"));
        let file = module.map_or(binary.name.as_str(), |(file, _)| file);
        files.entry(file.to_owned()).or_default().push(test.to_owned());
    }
    Ok(files)
}

fn one_file(
    binary: &Binary,
    file: &str,
    tests: &[String],
    environment: &[(&str, String)],
    limit: Duration,
    outcome: &mut Outcome,
) -> Result<(), Error> {
    let started = Instant::now();
    let mut command = Command::new(&binary.path);
    command.arg("--exact").args(tests).envs(environment.iter().map(|(name, value)| (name, value)));
    // One that hangs leaves no servers' connections behind: it is this process's child, and is killed.
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
    println!("{file}: {passed} of {} in {:.1} s", tests.len(), started.elapsed().as_secs_f64());
    if passed < tests.len() {
        println!("{}", text.trim_end());
    }
    for test in tests {
        let name = test.strip_prefix(MODULE).and_then(|rest| rest.split_once("::")).map_or(test.as_str(), |(_, n)| n);
        outcome.add(format!("{file}::{name}"), seen.get(test) == Some(&true));
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
