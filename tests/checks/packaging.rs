//! Checks what a package on crates.io contains: its description, the license, and the files that it is compiled from.

use std::fs;
use std::path::{Component, Path, PathBuf};

use toml::Table;

use crate::sources::{Package, owner, packages, rust_sources};
use crate::support::root;

/// The crates that are published.
fn published() -> Vec<Package> {
    packages().into_iter().filter(|package| package.manifest["package"].get("publish").is_none()).collect()
}

/// Returns the keys that a manifest lacks: a description, and those of `[workspace.package]`.
fn missing_keys(manifest: &Table, shared: &Table) -> Vec<String> {
    let package = &manifest["package"];
    let inherits = |key: &str| {
        let value = package.get(key);
        // A crate may have categories of its own.
        value.is_some_and(|value| value.get("workspace").is_some() || value.is_array())
    };
    let own = ["description", "documentation"].into_iter().filter(|key| package.get(key).is_none());
    let shared = shared.keys().map(String::as_str).filter(|key| !inherits(key));
    own.chain(shared).map(str::to_owned).collect()
}

#[test]
fn each_crate_is_described_and_licensed() {
    let crates = published();
    assert!(crates.len() > 15, "{} crates", crates.len());
    let license = fs::read_to_string(root().join("LICENSE")).expect("there is a license");
    let shared = packages().pop().expect("the root is the last").manifest["workspace"]["package"].clone();
    let shared = shared.as_table().expect("a table");
    for Package { name, folder, manifest, .. } in crates {
        assert_eq!(missing_keys(&manifest, shared), [""; 0], "{name}");
        // A link in Git, a file in the package.
        let own = fs::read_to_string(root().join(folder).join("LICENSE"));
        assert!(own.is_ok_and(|own| own == license), "{name} has no license");
        let docs = &manifest["package"]["metadata"]["docs"]["rs"];
        // A feature with dependencies adds items, except for the command.
        let features = manifest.get("features").and_then(toml::Value::as_table);
        for feature in ["arrow", "cuda", "parquet", "zstd"] {
            let has = features.is_some_and(|features| features.contains_key(feature));
            let documents = docs.get("features").and_then(toml::Value::as_array);
            let documents =
                documents.is_some_and(|listed| listed.iter().any(|one| one.as_str() == Some(feature)));
            assert_eq!(has, documents, "{name}: docs.rs has the feature {feature}");
        }
    }
}

#[test]
fn missing_keys_are_found() {
    let shared: Table = "license = \"A\"\nedition = \"2024\"\ncategories = [\"science\"]".parse().unwrap();
    let complete = "description = \"A\"\ndocumentation = \"B\"\nlicense.workspace = true\n\
                    edition.workspace = true\ncategories = [\"science\"]";
    let of = |package: &str| missing_keys(&format!("[package]\n{package}").parse().unwrap(), &shared);
    assert_eq!(of(complete), [""; 0]);
    assert_eq!(of(&complete.replace("license.workspace = true", "license = \"B\"")), ["license"]);
    assert_eq!(of(&complete.replace("description", "summary")), ["description"]);
}

/// Returns the paths that `include_str!` and `include_bytes!` name in a source.
fn included(text: &str) -> impl Iterator<Item = &str> {
    let calls = [concat!("include_", "str!(\""), concat!("include_", "bytes!(\"")];
    calls.into_iter().flat_map(|call| text.split(call).skip(1)).filter_map(|rest| rest.split('"').next())
}

/// Removes `..` and the folder before it.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
        path
    })
}

/// A package that is compiled from a file outside it does not build on crates.io. Cargo leaves the folders of other
/// packages out of it.
#[test]
fn crates_are_compiled_from_their_own_files() {
    let packages = packages();
    for package in &packages {
        let inner = packages.iter().filter(|other| other.folder.len() > package.folder.len());
        let sources = Path::new(&package.sources);
        let around = inner.map(|other| &other.folder).find(|folder| sources.starts_with(folder));
        assert_eq!(around, None, "{} has sources in the folder of another package", package.name);
    }
    let mut count = 0;
    for (name, text) in rust_sources() {
        if ["tests", "fuzz"].iter().any(|folder| name.split(['/', '.']).any(|part| part == *folder)) {
            continue;
        }
        let package = owner(&packages, &name);
        for path in included(&text) {
            count += 1;
            let file = plain(&Path::new(&name).parent().expect("it has a folder").join(path));
            assert!(file.starts_with(&package.folder), "{name} includes {}", file.display());
        }
    }
    assert!(count > 5, "{count} files are included");
}
