//! The package whose tests are run, as this workspace is locked to it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;

use crate::error::Error;

const ORM: &str = "sea-orm";
const ROUTER: &str = "sea-router";

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Source {
    /// The ORM's version.
    pub(crate) version: String,
    /// All of the ORM's features.
    pub(crate) features: Vec<String>,
    /// Its tests: their names and files.
    pub(crate) files: BTreeMap<String, PathBuf>,
    /// The adapter's folder.
    pub(crate) router: PathBuf,
    /// This workspace's folder, and the one that it builds into.
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    manifest_path: PathBuf,
    features: BTreeMap<String, Vec<String>>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

impl Source {
    /// Asks cargo.
    pub(crate) fn locate() -> Result<Self, Error> {
        let mut command = cargo();
        command.args(["metadata", "--format-version", "1", "--locked"]);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        let Metadata { mut packages, workspace_root, target_directory } = serde_json::from_slice(&output(command)?)?;
        let router = folder(&take(&mut packages, ROUTER)?.manifest_path);
        let orm = take(&mut packages, ORM)?;
        let is_test = |target: &Target| target.kind.iter().any(|kind| kind == "test");
        let files: BTreeMap<_, _> =
            orm.targets.into_iter().filter(is_test).map(|target| (target.name, target.src_path)).collect();
        if files.is_empty() {
            return Err(Error::NoTests(folder(&orm.manifest_path)));
        }
        Ok(Self {
            version: orm.version,
            features: orm.features.into_keys().collect(),
            files,
            router,
            root: workspace_root,
            target: target_directory,
        })
    }
}

/// The cargo that runs this program, else the one on the path.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// What a command prints; its complaints go to ours.
pub(crate) fn output(mut command: Command) -> Result<Vec<u8>, Error> {
    let shown = format!("{command:?}");
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|source| Error::Command { command: shown.clone(), source })?;
    if output.status.success() { Ok(output.stdout) } else { Err(Error::Failed { command: shown }) }
}

fn take(packages: &mut Vec<Package>, name: &'static str) -> Result<Package, Error> {
    let at = packages.iter().position(|package| package.name == name).ok_or(Error::NoPackage(name))?;
    Ok(packages.swap_remove(at))
}

fn folder(file: &Path) -> PathBuf {
    file.parent().unwrap_or(file).to_owned()
}
