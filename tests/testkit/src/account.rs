use std::{
    env,
    ffi::OsStr,
    os::unix::{fs as unix, fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use crate::Error;

/// The user that servers run as: PostgreSQL refuses to run as root.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// `None`: we are an ordinary user, servers run as we do.
    drop_to: Option<(u32, u32, &'static str)>,
}

impl Account {
    /// Us, or for root the user `postgres`, else `nobody`.
    pub(crate) fn find() -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self { drop_to: None });
        }
        for name in ["postgres", "nobody"] {
            if let (Some(uid), Some(gid)) = (id("-u", name), id("-g", name)) {
                return Ok(Self { drop_to: Some((uid, gid, name)) });
            }
        }
        Err(Error::state(
            "PostgreSQL does not run as root, and there is neither a user `postgres` nor `nobody` to run it as: \
             create one of them, or run the tests as an ordinary user",
        ))
    }

    pub(crate) fn is_root(&self) -> bool {
        self.drop_to.is_some()
    }

    /// Name of the user that programs run as, for messages.
    pub(crate) fn name(&self) -> &str {
        self.drop_to.map_or("this user", |(_, _, name)| name)
    }

    /// A command that runs as this user, away from our folder and settings.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>, folder: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        // The C locale keeps messages as we look for them; a given time zone saves initdb a search.
        command.env("LC_ALL", "C").env("TZ", "UTC").current_dir(folder);
        if let Some((uid, gid, _)) = self.drop_to {
            command.gid(gid).uid(uid);
        }
        command
    }

    /// Gives a file or folder to this user.
    pub(crate) fn own(&self, path: &Path) -> Result<(), Error> {
        let Some((uid, gid, name)) = self.drop_to else {
            return Ok(());
        };
        unix::chown(path, Some(uid), Some(gid)).map_err(Error::io(format!("cannot give {} to {name}", path.display())))
    }

    /// Where to put temporary folders that this user can reach.
    pub(crate) fn scratch(&self) -> PathBuf {
        let usual = env::temp_dir();
        // Root's own may lie where nobody else gets in.
        if self.reaches(&usual) { usual } else { PathBuf::from("/tmp") }
    }

    /// Whether this user can reach what lies in a folder of ours.
    fn reaches(&self, folder: &Path) -> bool {
        !self.is_root()
            || folder
                .ancestors()
                .all(|folder| folder.metadata().is_ok_and(|found| found.permissions().mode() & 0o001 != 0))
    }
}

fn id(option: &str, name: &str) -> Option<u32> {
    let output = Command::new("id").args([option, name]).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}
