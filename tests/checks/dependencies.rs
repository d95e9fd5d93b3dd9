//! Checks that the page on dependencies has each direct dependency of the workspace, and no other crate.

use std::collections::BTreeSet;
use std::fs;

use crate::support::{root, word};

const PAGE: &str = "docs/internals/dependencies.md";
/// The heading of the section on crates that are not used.
const ABSENT: &str = "## What is deliberately absent";

/// Returns the crates from outside that the `Cargo.toml` files of the workspace name.
fn direct() -> BTreeSet<String> {
    let parse = |folder: &str| -> toml::Table {
        let path = root().join(folder).join("Cargo.toml");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", word(&path)));
        text.parse().unwrap_or_else(|error| panic!("{}: {error}", word(&path)))
    };
    let workspace = parse(".");
    let members = workspace["workspace"]["members"].as_array().expect("a list");
    let members = members.iter().map(|member| parse(member.as_str().expect("a folder")));
    let tables = ["dependencies", "dev-dependencies", "build-dependencies"];
    let named = |manifest: toml::Table| {
        let tables = tables.into_iter().filter_map(move |name| manifest.get(name)?.as_table().cloned());
        tables.flat_map(|table| table.into_iter().map(|(name, _)| name)).collect::<Vec<_>>()
    };
    let names = members.chain([workspace.clone()]).flat_map(named);
    names.filter(|name| name != "rankine" && !name.starts_with("rankine-")).collect()
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
