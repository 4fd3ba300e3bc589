//! The crate that takes the tests in. It is a workspace of their own, so that nothing of it is built with ours.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{error::Error, source::Source};

/// What SeaORM's tests are compiled with, so that all that concern PostgreSQL are there.
const FEATURES: &[&str] = &[
    "macros",
    "mock",
    "postgres-array",
    "rbac",
    "runtime-tokio",
    "schema-sync",
    "sqlx-dep",
    "sqlx-postgres",
    "stream",
    "tests-cfg",
    "with-bigdecimal",
    "with-chrono",
    "with-ipnetwork",
    "with-json",
    "with-rust_decimal",
    "with-time",
    "with-uuid",
];

/// Writes the workspace and returns its folder.
pub(crate) fn write(source: &Source) -> Result<PathBuf, Error> {
    let folder = source.target.join("sea-orm-suite");
    put(&folder.join("Cargo.toml"), include_str!("../template/workspace.toml"))?;
    // What both have in common is then what this workspace is locked to.
    let lock = folder.join("Cargo.lock");
    let ours = source.root.join("Cargo.lock");
    fs::copy(&ours, &lock).map_err(Error::file(ours))?;

    let facade = include_str!("../template/facade.toml")
        .replace("{version}", &source.version)
        .replace("{orm_features}", &list(FEATURES.iter().filter(|name| !IMPLIED.contains(name))))
        .replace("{router}", &source.router.display().to_string());
    put(&folder.join("facade/Cargo.toml"), &facade)?;
    put(&folder.join("facade/lib.rs"), include_str!("../template/facade.rs"))?;

    let declared: String =
        source.features.iter().filter(|name| *name != "default").map(|name| format!("{name} = []\n")).collect();
    // Each file is a crate of its own, as it is where it comes from: all as modules of one take more time to compile
    // together than one by one, and several gigabytes.
    let tests: String = source.files.iter().map(|(name, file)| test(name, file)).collect();
    let suite = include_str!("../template/suite.toml")
        .replace("{version}", &source.version)
        .replace("{enabled}", &list(FEATURES.iter()))
        .replace("{declared}", &declared);
    put(&folder.join("suite/Cargo.toml"), &(suite + &tests))?;
    put(&folder.join("suite/lib.rs"), "")?;
    Ok(folder)
}

/// Named by the tests, but no feature to ask of the crate.
const IMPLIED: &[&str] = &["sqlx-dep"];

fn test(name: &str, path: &Path) -> String {
    format!("\n[[test]]\nname = \"{name}\"\npath = {:?}\n", path.display().to_string())
}

fn list<'a>(names: impl Iterator<Item = &'a &'a str>) -> String {
    names.map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// Writes a file unless it is there already, so that nothing is built anew without need.
fn put(path: &Path, text: &str) -> Result<(), Error> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::file(folder))?;
    }
    fs::write(path, text).map_err(Error::file(path))
}
