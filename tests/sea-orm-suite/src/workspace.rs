//! The crates that take the tests in. They are a workspace of their own, so that nothing of it is built with ours.

use std::{
    fmt::Write,
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

/// With it each file brings the macro that one crate cannot hold twice.
const RUNTIME: &str = "runtime-tokio";

/// Files that cannot be a module beside others, since they take an item of theirs for one at the root of the crate: the
/// first three share a test's context with code that looks for it there, the last one has a module there.
const ROOTS: &[&str] = &["entity_loader_tests", "loader_tests", "relational_tests", "partial_model_nested"];

/// Common modules that the files name at the root of the crate.
const COMMON: &[&str] =
    &["setup", "bakery_chain", "bakery_dense", "blogger", "blogger_legacy", "features", "film_store"];

/// Stands before the name of a file's module.
pub(crate) const MODULE: &str = "file_";

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

    let modules = manifest(source, "suite-modules", FEATURES.iter().filter(|name| **name != RUNTIME));
    put(&folder.join("modules/Cargo.toml"), &(modules + &test("modules", &folder.join("modules/suite.rs"))))?;
    put(&folder.join("modules/suite.rs"), &suite(source))?;
    put(&folder.join("modules/lib.rs"), "")?;

    let mut roots = manifest(source, "suite-roots", FEATURES.iter());
    for (name, file) in source.files.iter().filter(|(name, _)| ROOTS.contains(&name.as_str())) {
        roots += &test(name, file);
    }
    put(&folder.join("roots/Cargo.toml"), &roots)?;
    put(&folder.join("roots/lib.rs"), "")?;
    Ok(folder)
}

/// Named by the tests, but no feature to ask of the crate.
const IMPLIED: &[&str] = &["sqlx-dep"];

fn manifest<'a>(source: &Source, package: &str, enabled: impl Iterator<Item = &'a &'a str>) -> String {
    let declared: String = source.features.iter().filter(|name| *name != "default").fold(String::new(), |mut all, name| {
        let _ = writeln!(all, "{name} = []");
        all
    });
    include_str!("../template/suite.toml")
        .replace("{package}", package)
        .replace("{version}", &source.version)
        .replace("{enabled}", &list(enabled))
        .replace("{declared}", &declared)
}

fn test(name: &str, path: &Path) -> String {
    format!("\n[[test]]\nname = \"{name}\"\npath = {:?}\n", path.display().to_string())
}

/// The root of the crate that holds the files as modules.
fn suite(source: &Source) -> String {
    let mut text = include_str!("../template/suite.rs").to_owned();
    let mut module = |indent: &str, name: &str, path: &Path| {
        let _ = write!(text, "{indent}#[path = {:?}]\n{indent}pub mod {name};\n", path.display().to_string());
    };
    for (name, file) in source.files.iter().filter(|(name, _)| !ROOTS.contains(&name.as_str())) {
        module("", &format!("{MODULE}{name}"), file);
    }
    text += "\npub mod common {\n    pub use self::setup::TestContext;\n\n";
    let mut module = |indent: &str, name: &str, path: &Path| {
        let _ = write!(text, "{indent}#[path = {:?}]\n{indent}pub mod {name};\n", path.display().to_string());
    };
    for name in COMMON {
        let common = source.tests.join("common");
        let file = common.join(format!("{name}.rs"));
        let path = if file.exists() { file } else { common.join(name).join("mod.rs") };
        module("    ", name, &path);
    }
    text + "}\n"
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
