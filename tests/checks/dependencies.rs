//! Checks that the page on dependencies has each direct dependency of the workspace, and no other crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::sources::{owner, packages, texts};
use crate::support::root;

const PAGE: &str = "docs/internals/dependencies.md";
/// The heading of the section on crates that are not used.
const ABSENT: &str = "## What is deliberately absent";
/// The tables of a manifest that name dependencies.
const TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];

/// Returns the crates that a manifest names, with the part of it that does.
fn named(manifest: &toml::Table) -> impl Iterator<Item = (&'static str, &String)> {
    TABLES.into_iter().flat_map(move |table| {
        let dependencies = manifest.get(table).and_then(toml::Value::as_table);
        dependencies.into_iter().flat_map(toml::Table::keys).map(move |name| (table, name))
    })
}

fn is_own(name: &str) -> bool {
    name == "rankine" || name.starts_with("rankine-")
}

/// Returns the crates from outside that the `Cargo.toml` files of the workspace name.
fn direct() -> BTreeSet<String> {
    let manifests = packages().into_iter().filter(|package| package.name != "_rankine");
    let names = manifests
        .flat_map(|package| named(&package.manifest).map(|(_, name)| name.clone()).collect::<Vec<_>>());
    names.filter(|name| !is_own(name)).collect()
}

/// Returns the crates in the first column of the page's tables.
fn listed(page: &str) -> BTreeSet<String> {
    let (used, _) = page.split_once(ABSENT).expect("the page says what is absent");
    let cells = used.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    cells.flat_map(|cell| cell.split('`').step_by(2).map(str::to_owned)).collect()
}

#[test]
fn the_page_has_each_dependency() {
    let page = fs::read_to_string(root().join(PAGE)).expect("the page is there");
    let (direct, listed) = (direct(), listed(&page));
    let missing: Vec<_> = direct.difference(&listed).collect();
    let superfluous: Vec<_> = listed.difference(&direct).collect();
    assert!(
        missing.is_empty() && superfluous.is_empty(),
        "{PAGE} lacks {missing:?}, and has {superfluous:?}"
    );
}

/// A crate that no file names costs compile time, and says that the code may use what it does not.
#[test]
fn every_dependency_is_used() {
    let packages = packages();
    let mut code: BTreeMap<&str, String> = BTreeMap::new();
    for (name, text) in texts(|name| name.ends_with(".rs")) {
        *code.entry(&owner(&packages, &name).folder).or_default() += &text;
    }
    let mut unused = Vec::new();
    for package in &packages {
        let text = &code[&*package.folder];
        for (table, name) in named(&package.manifest) {
            let ident = name.replace('-', "_");
            let used = [format!("{ident}::"), format!("use {ident} as "), format!("extern crate {ident}")];
            if !used.iter().any(|used| text.contains(used)) && name != "rankine" {
                unused.push(format!("{}: [{table}] {name}", package.name));
            }
        }
    }
    assert!(unused.is_empty(), "no file uses these dependencies:\n{}", unused.join("\n"));
}
