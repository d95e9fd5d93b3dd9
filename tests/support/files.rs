//! The files of a folder, for tests that compare folders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the bytes of every file below a folder, by relative path.
pub(crate) fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |path: PathBuf| {
        let name = path.strip_prefix(dir).expect("it is below the folder");
        let name = name.to_str().expect("temporary folders have plain names").to_owned();
        (name, fs::read(&path).expect("the file is readable"))
    };
    files_below(dir).into_iter().map(read).collect()
}

/// Returns the paths of all files below a folder, sorted.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("the folder is readable").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}
