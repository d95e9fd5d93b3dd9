//! The files of the repository, and the crates that they are parts of.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::root;

/// Returns the names, relative to the root, of the files that Git tracks or would add.
fn files() -> Vec<String> {
    // Sources may belong to another user, as in containers.
    let arguments =
        ["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root()).output().expect("Git is installed");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("names are plain");
    // A file that was removed is listed until the removal is committed. A link has no text of its own.
    let is_own = |name: &&str| root().join(name).is_file() && !root().join(name).is_symlink();
    names.split_terminator('\0').filter(is_own).map(str::to_owned).collect()
}

/// A crate with a library or a program.
pub(crate) struct Package {
    /// The name of its library in code, such as `rankine_reader`.
    pub(crate) name: String,
    /// The folder of its `Cargo.toml`, relative to the root; empty for the root itself.
    pub(crate) folder: String,
    /// The folder of its sources, relative to the root.
    pub(crate) sources: String,
    pub(crate) manifest: toml::Table,
}

impl Package {
    fn read(folder: &str) -> Self {
        let path = root().join(folder).join("Cargo.toml");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let manifest: toml::Table =
            text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = |table: &str| manifest.get(table)?.get("name")?.as_str();
        let name = name("lib").or_else(|| name("package")).expect("a package has a name").replace('-', "_");
        let library = manifest.get("lib").and_then(|lib| lib.get("path")?.as_str()).unwrap_or("src/lib.rs");
        let sources = PathBuf::from(folder).join(library);
        let sources =
            sources.parent().and_then(|folder| folder.to_str()).expect("names are plain").to_owned();
        Self { name, folder: folder.to_owned(), sources, manifest }
    }
}

/// Returns all crates but the fuzz targets, which are tests.
pub(crate) fn packages() -> Vec<Package> {
    let root = Package::read("");
    let members = root.manifest["workspace"]["members"].as_array().expect("a list");
    let members: Vec<_> =
        members.iter().map(|member| member.as_str().expect("a folder").to_owned()).collect();
    let others = members.iter().map(String::as_str).chain(["bindings/python"]).map(Package::read);
    let mut packages: Vec<_> = others.collect();
    packages.push(root);
    packages
}

/// Returns the crate that a file is a part of: the one whose folder, or folder of sources, is the innermost around it.
pub(crate) fn owner<'a>(packages: &'a [Package], name: &str) -> &'a Package {
    let depth = |package: &&Package| {
        let around = [&package.folder, &package.sources].into_iter();
        around.filter(|folder| Path::new(name).starts_with(folder)).map(String::len).max()
    };
    packages.iter().max_by_key(depth).expect("the root is around all")
}

/// Returns the texts of some files, by their names relative to the root.
pub(crate) fn texts(is_wanted: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let read = |name: String| {
        let text = fs::read_to_string(root().join(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        (name, text)
    };
    files().into_iter().filter(|name| is_wanted(name)).map(read).collect()
}

/// Returns the texts of the Rust sources of all crates.
pub(crate) fn rust_sources() -> BTreeMap<String, String> {
    let packages = packages();
    texts(|name| {
        name.ends_with(".rs") && packages.iter().any(|package| Path::new(name).starts_with(&package.sources))
    })
}
