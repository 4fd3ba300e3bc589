//! The data folder of a node: made once, copied before a server ever ran on it for others.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    Binaries, Error,
    account::Account,
    conf::{self, Conf},
};

/// The database that initdb makes, and that is there whatever the builder was told.
pub(crate) const DEFAULT_DATABASE: &str = "postgres";

static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// Makes a new database cluster in `data`.
pub(crate) fn init(binaries: &Binaries, data: &Path) -> Result<(), Error> {
    let parent = data.parent().unwrap_or(data);
    let mut command = binaries.command("initdb", parent);
    command.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
    command.args(["--no-sync", "--no-instructions", "-D"]).arg(data);
    let user = binaries.account.name();
    let hint = format!("does the PostgreSQL installation lack its share files, or may {user} not write here?");
    run(&mut command, "", &hint)?;
    let conf = data.join("postgresql.conf");
    let failed = || Error::io(format!("cannot change {}", conf.display()));
    let mut file = File::options().append(true).open(&conf).map_err(failed())?;
    writeln!(file, "include '{}'", conf::FILE).map_err(failed())
}

/// Records settings in the control file and makes the database, if either is asked for.
///
/// A standby refuses to start with less than its control file says that the primary has, and initdb writes its own
/// values there. One run of the server without sessions does both, for all nodes, and logs nothing to replay.
pub(crate) fn prepare(binaries: &Binaries, data: &Path, conf: &Conf, database: &str) -> Result<(), Error> {
    let mut sql = String::new();
    if database != DEFAULT_DATABASE {
        sql = format!("CREATE DATABASE \"{}\"", database.replace('"', "\"\""));
        if binaries.version >= 15 {
            sql += " STRATEGY file_copy";
        }
    } else if !conf.is_recorded() {
        return Ok(());
    }
    conf.write(&binaries.account, data)?;
    let mut command = binaries.command("postgres", data);
    command.arg("--single").arg("-D").arg(data).arg(DEFAULT_DATABASE);
    run(&mut command, &sql, "is a setting, or the name of the database, wrong?")
}

/// Copies a data folder that no server runs on, as a standby's.
pub(crate) fn copy_as_standby(account: &Account, from: &Path, to: &Path) -> Result<(), Error> {
    copy(account, from, to)?;
    let signal = to.join("standby.signal");
    fs::write(&signal, "").map_err(Error::io(format!("cannot write {}", signal.display())))?;
    account.own(&signal)
}

/// What a killed server leaves behind outside its folder, and the lock that names it.
///
/// The lock goes too: its process id may soon be somebody else's.
pub(crate) fn remove_leftovers(data: &Path) {
    let lock = data.join("postmaster.pid");
    let Ok(text) = fs::read_to_string(&lock) else {
        return;
    };
    // Line 7 is the key and the id of a shared memory segment of a few bytes.
    let segment = text.lines().nth(6).and_then(|line| line.split_whitespace().nth(1));
    if let Some(segment) = segment {
        // Best effort: the next start of the same server removes it as well.
        let _ = Command::new("ipcrm").args(["-m", segment]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
    let _ = fs::remove_file(&lock);
}

/// Runs a program to its end; `input` is one line.
fn run(command: &mut Command, input: &str, hint: &str) -> Result<(), Error> {
    let program = command.get_program().display().to_string();
    let failed = || Error::io(format!("cannot run {program}"));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed())?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that has ended says more by its output than a broken pipe does.
        let _ = writeln!(stdin, "{input}");
    }
    let output = child.wait_with_output().map_err(failed())?;
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    // A server without sessions goes on after an error of SQL, and ends well.
    if output.status.success() && !text.contains("ERROR:") {
        return Ok(());
    }
    Err(Error::Command { what: format!("{program} failed, {}: {hint}", output.status), output: text })
}

/// The commonplace recursion: `std` has none, and `cp -a` cannot give the files to another user.
pub(crate) fn copy(account: &Account, from: &Path, to: &Path) -> Result<(), Error> {
    let failed = || Error::io(format!("cannot copy {}", from.display()));
    fs::create_dir(to).map_err(failed())?;
    for entry in fs::read_dir(from).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().map_err(failed())?.is_dir() {
            copy(account, &source, &target)?;
            continue;
        }
        if from.ends_with("pg_wal") {
            copy_sparse(&source, &target)?;
        } else {
            fs::copy(&source, &target).map_err(failed())?;
        }
        account.own(&target)?;
    }
    let mode = from.metadata().map_err(failed())?.permissions();
    fs::set_permissions(to, mode).map_err(failed())?;
    account.own(to)
}

/// Copies a segment of 16 MB without its zeroes, which are most of it.
fn copy_sparse(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = || Error::io(format!("cannot copy {}", from.display()));
    let mut source = File::open(from).map_err(failed())?;
    let target = File::options().write(true).create_new(true).mode(0o600).open(to).map_err(failed())?;
    let mut chunk = vec![0; ZEROES.len()];
    let mut length = 0;
    loop {
        let read = source.read(&mut chunk).map_err(failed())?;
        if read == 0 {
            return target.set_len(length).map_err(failed());
        }
        // Whole slices compare fast, also without optimisation.
        if chunk[..read] != ZEROES[..read] {
            target.write_all_at(&chunk[..read], length).map_err(failed())?;
        }
        length += read as u64;
    }
}
