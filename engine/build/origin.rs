//! Which commit the sources are of, and whether they differ from it.
//!
//! A checkout answers by Git. A package of crates.io has a file with the commit, which cargo wrote. Other sources, such
//! as an archive without `.git`, are of an unknown commit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the engine is compiled from, relative to the root of the repository. Documents, tests and the command do not
/// make a build another one: what is trained does not depend on them.
const COMPILED: [&str; 37] = [
    "Cargo.lock",
    "Cargo.toml",
    "cpu/Cargo.toml",
    "cpu/src",
    "cuda/Cargo.toml",
    "cuda/build",
    "cuda/kernels",
    "cuda/src",
    "docs/reference/job.schema.json",
    "embedding/Cargo.toml",
    "embedding/src",
    "engine/Cargo.toml",
    "engine/backend/Cargo.toml",
    "engine/backend/src",
    "engine/build",
    "engine/checkpoint/Cargo.toml",
    "engine/checkpoint/src",
    "engine/cpu/Cargo.toml",
    "engine/cpu/src",
    "engine/gpu/Cargo.toml",
    "engine/gpu/src",
    "engine/job/Cargo.toml",
    "engine/job/src",
    "engine/launch/Cargo.toml",
    "engine/launch/src",
    "engine/model/Cargo.toml",
    "engine/model/src",
    "engine/saved/Cargo.toml",
    "engine/saved/src",
    "engine/src",
    "reader/Cargo.toml",
    "reader/base/Cargo.toml",
    "reader/base/src",
    "reader/shapes",
    "reader/src",
    "topology/Cargo.toml",
    "topology/src",
];

/// Where cargo records the commit of a package.
const PACKAGED: &str = ".cargo_vcs_info.json";

/// Returns the folder that the sources belong to: the repository around the package, or the package that cargo made.
pub(crate) fn root(package: &Path) -> &Path {
    let is_packaged = package.join(PACKAGED).exists();
    package.parent().filter(|_| !is_packaged).unwrap_or(package)
}

/// The commit of the sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Its 40 hexadecimal digits; `None` if it is unknown.
    pub(crate) commit: Option<String>,
    /// Whether what is compiled differs from it. Files that Git does not track do not count: nothing compiles a new
    /// file unless a tracked one names it.
    pub(crate) dirty: bool,
}

impl Origin {
    pub(crate) fn of(root: &Path) -> Self {
        Self::packaged(root).or_else(|| Self::checked_out(root)).unwrap_or_default()
    }

    fn packaged(root: &Path) -> Option<Self> {
        let text = fs::read_to_string(root.join(PACKAGED)).ok()?;
        let commit = text.split_once("\"sha1\"")?.1.split('"').nth(1)?.to_owned();
        Some(Self { commit: Some(commit), dirty: text.contains("\"dirty\": true") })
    }

    fn checked_out(root: &Path) -> Option<Self> {
        // The first line is empty unless the repository is another one, in whose folder these sources lie.
        let at = git(root, &["rev-parse", "--show-prefix", "HEAD"])?;
        let commit = at.strip_prefix('\n')?.trim().to_owned();
        let arguments = ["status", "--porcelain", "--untracked-files=no", "--"];
        let changed = git(root, &[&arguments[..], &COMPILED].concat());
        Some(Self { commit: Some(commit), dirty: changed.is_none_or(|changed| !changed.is_empty()) })
    }
}

/// The files and folders that [`Origin::of`] depends on. Only what exists: to cargo, a missing file is a changed one.
///
/// With the sources among them, a build is never called clean because a script ran before they were changed. It costs
/// little: what they are compiled to has to be built again anyway.
pub(crate) fn inputs(root: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = COMPILED.iter().chain([&PACKAGED]).map(PathBuf::from).collect();
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_default();
    // A commit changes one of these, whether a branch is checked out or not. The index, which `git status` writes,
    // is none of them.
    for name in ["HEAD", "logs/HEAD", branch.trim()].into_iter().filter(|name| !name.is_empty()) {
        paths.extend(git(root, &["rev-parse", "--git-path", name]).map(|path| path.trim_end().into()));
    }
    paths.retain(|path| root.join(path).exists());
    paths
}

/// Returns what a Git command prints; `None` if it fails, or there is no Git.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // Sources may belong to another user, as in containers; and cargo may run in a hook of another repository.
    command.args(["-c", "safe.directory=*", "--no-optional-locks"]).args(arguments).current_dir(root);
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        command.env_remove(variable);
    }
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}
