use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::Error;

/// Cleans up after a process that cannot: killed, aborted, or ended while a cluster is in a static.
///
/// A shell that reads from a pipe. The pipe closes when this process is gone, however it went.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shell: Child,
}

impl Watchdog {
    pub(crate) fn over(folder: &Path) -> Result<Self, Error> {
        let shell = Command::new("/bin/sh")
            .arg("-c")
            .arg(include_str!("watchdog.sh"))
            .arg("read-router-watchdog")
            .arg(folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            // Not the tests' own: who reads them until their end would wait for the watchdog.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C, and runners that kill the group of a slow test, must not hit it.
            .process_group(0)
            .spawn()
            .map_err(Error::io("cannot run /bin/sh for the watchdog"))?;
        Ok(Self { shell })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // By now there is nothing to clean, or what a failed clean-up left.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
