//! The build script finds the commit of the sources, and whether they differ from it.

use std::fs;
use std::path::Path;
use std::process::Command;

use origin::{Origin, inputs};

use crate::sources::packages;
use crate::support::root;

#[path = "../../engine/build/origin.rs"]
mod origin;

fn git(root: &Path, arguments: &[&str]) -> String {
    let author = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
    let output =
        Command::new("git").args(author).args(arguments).current_dir(root).output().expect("git starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("names are plain").trim().to_owned()
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("it is below the root")).expect("the folder is made");
    fs::write(path, text).expect("the file is written");
}

/// Makes a repository with a source file and a document.
fn repository(root: &Path) -> String {
    fs::create_dir_all(root).expect("the folder is made");
    git(root, &["init", "--quiet"]);
    write(root, "engine/src/lib.rs", "//! A.\n");
    write(root, "README.md", "A\n");
    git(root, &["add", "."]);
    git(root, &["commit", "--quiet", "--message", "a"]);
    git(root, &["rev-parse", "HEAD"])
}

fn origin(commit: &str, dirty: bool) -> Origin {
    Origin { commit: Some(commit.into()), dirty }
}

#[test]
fn sources_are_dirty_if_what_is_compiled_differs_from_the_commit() {
    let place = tempfile::tempdir().unwrap();
    let root = &place.path().join("project");
    let commit = repository(root);
    assert_eq!(Origin::of(root), origin(&commit, false));
    write(root, "README.md", "B\n");
    write(root, "engine/src/scratch.txt", "not tracked\n");
    assert_eq!(Origin::of(root), origin(&commit, false));
    write(root, "engine/src/lib.rs", "//! B.\n");
    assert_eq!(Origin::of(root), origin(&commit, true));
    git(root, &["add", "."]);
    assert_eq!(Origin::of(root), origin(&commit, true));
    git(root, &["commit", "--quiet", "--message", "b"]);
    let next = git(root, &["rev-parse", "HEAD"]);
    assert!(next != commit && Origin::of(root) == origin(&next, false));
    // In a worktree, `.git` is a file.
    git(root, &["worktree", "add", "--quiet", "--detach", "../tree", &commit]);
    let tree = &place.path().join("tree");
    assert!(tree.join(".git").is_file());
    assert_eq!(Origin::of(tree), origin(&commit, false));
    write(tree, "engine/src/lib.rs", "//! C.\n");
    assert_eq!((Origin::of(tree), Origin::of(root)), (origin(&commit, true), origin(&next, false)));
}

#[test]
fn a_build_script_runs_again_after_a_commit_and_after_a_change_of_the_sources() {
    let place = tempfile::tempdir().unwrap();
    let root = &place.path().join("project");
    let commit = repository(root);
    git(root, &["worktree", "add", "--quiet", "--detach", "../tree", &commit]);
    for root in [root, &place.path().join("tree")] {
        let inputs = || -> Vec<_> {
            let paths = inputs(root).into_iter().map(|path| root.join(path));
            paths.map(|path| (fs::metadata(&path).unwrap().is_dir(), path)).collect()
        };
        let contents = || -> Vec<_> {
            let files = inputs().into_iter().filter(|(is_dir, _)| !is_dir);
            files.map(|(_, path)| fs::read(path).unwrap()).collect()
        };
        assert!(inputs().contains(&(true, root.join("engine/src"))), "{:?}", inputs());
        let before = contents();
        assert_eq!(contents(), before);
        git(root, &["commit", "--quiet", "--allow-empty", "--message", "b"]);
        assert_ne!(contents(), before, "{}", root.display());
    }
}

#[test]
fn sources_without_a_repository_are_of_the_packaged_commit_or_of_none() {
    let place = tempfile::tempdir().unwrap();
    let outer = &place.path().join("outer");
    repository(outer);
    // What lies in the folder of another repository, such as a vendored copy, is not of its commit.
    for root in [place.path().join("archive"), outer.join("vendor/rankine")] {
        write(&root, "engine/src/lib.rs", "//! A.\n");
        assert_eq!(Origin::of(&root), Origin::default(), "{}", root.display());
        for (rest, dirty) in [("", false), (",\n    \"dirty\": true", true)] {
            let commit = "1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d";
            let text = format!(
                "{{\n  \"git\": {{\n    \"sha1\": \"{commit}\"{rest}\n  }},\n  \"path_in_vcs\": \"\"\n}}"
            );
            write(&root, ".cargo_vcs_info.json", &text);
            assert_eq!(Origin::of(&root), origin(commit, dirty));
        }
    }
}

#[test]
fn a_change_of_what_is_trained_makes_a_build_dirty() {
    const ABOVE: [&str; 5] = ["_rankine", "rankine", "rankine_command", "rankine_export", "rankine_views"];
    let inputs = inputs(root());
    for package in packages().into_iter().filter(|package| !ABOVE.contains(&&*package.name)) {
        for path in [format!("{}/Cargo.toml", package.folder), package.sources] {
            let path = Path::new(path.trim_start_matches('/'));
            assert!(inputs.iter().any(|input| path.starts_with(input)), "{} is missing", path.display());
        }
    }
}

#[test]
fn sources_belong_to_the_repository_around_a_package_or_to_the_package_that_cargo_made() {
    let place = tempfile::tempdir().unwrap();
    let package = place.path().join("engine");
    write(&package, "Cargo.toml", "[package]\n");
    assert_eq!(origin::root(&package), place.path());
    write(&package, ".cargo_vcs_info.json", "{}\n");
    assert_eq!(origin::root(&package), package);
}
