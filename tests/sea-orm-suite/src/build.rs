//! Compiles the tests.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{
    error::Error,
    source::{self, Source},
};

/// A compiled test program.
#[derive(Debug)]
pub(crate) struct Binary {
    /// The name of the test target.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Builds all test programs, over the routing connection or over SeaORM's own.
pub(crate) fn tests(folder: &Path, source: &Source, routed: bool) -> Result<Vec<Binary>, Error> {
    let mut command = source::cargo();
    command.args(["test", "--workspace", "--tests", "--no-run", "--message-format", "json-render-diagnostics"]);
    if routed {
        command.args(["--features", "sea-orm-suite/routed"]);
    }
    // Nobody edits them: what would be kept for the next change takes time and space.
    command.env("CARGO_INCREMENTAL", "0");
    command.arg("--target-dir").arg(&source.target).current_dir(folder);
    let mut binaries = Vec::new();
    for line in source::output(command)?.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{")) {
        let message: Message = serde_json::from_slice(line)?;
        if let (Some(target), Some(path)) = (message.target, message.executable)
            && target.kind.iter().any(|kind| kind == "test")
        {
            binaries.push(Binary { name: target.name, path });
        }
    }
    binaries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(binaries)
}
