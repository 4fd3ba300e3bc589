//! Where the statements of the tests' connections went.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::error::Error;

/// The file to which each connection adds a line when it ends.
#[derive(Debug)]
pub(crate) struct Tally {
    path: PathBuf,
}

/// The sums of all lines.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    on_replicas: u64,
    reads_on_primary: u64,
    others: u64,
}

impl Tally {
    pub(crate) fn new(folder: &Path) -> Self {
        let path = folder.join(format!("tally-{}", std::process::id()));
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn read(&self) -> Result<Counts, Error> {
        let text = fs::read_to_string(&self.path).map_err(Error::file(&self.path))?;
        let mut sums = Counts::default();
        for line in text.lines() {
            let mut numbers = line.split(' ').map(|number| number.parse::<u64>().unwrap_or(0));
            for sum in [&mut sums.on_replicas, &mut sums.reads_on_primary, &mut sums.others] {
                *sum += numbers.next().unwrap_or(0);
            }
        }
        Ok(sums)
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reads = self.on_replicas + self.reads_on_primary;
        let share = if reads == 0 { 0.0 } else { self.on_replicas as f64 * 100.0 / reads as f64 };
        write!(
            f,
            "reads outside of transactions: {share:.1}% served by the replica ({} of {reads}); other statements: {}",
            self.on_replicas, self.others
        )
    }
}
