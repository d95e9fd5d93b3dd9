//! Outputs that are also inputs.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::path::parent;
use crate::error::{Error, Result};

/// Refuses an output file or folder that is one of the inputs, is inside an input folder, or contains an input.
///
/// # Errors
/// [`Error::Unsuitable`], which names both.
pub fn refuse_inputs<P: AsRef<Path>>(output: &Path, inputs: impl IntoIterator<Item = P>) -> Result<()> {
    let out = absolute(output);
    let partial = out.with_added_extension("partial");
    let metadata = fs::metadata(output).ok();
    // A terminal or /dev/null can be both written and read.
    if metadata.as_ref().is_some_and(|metadata| metadata.file_type().is_char_device()) {
        return Ok(());
    }
    let id = metadata.map(|metadata| (metadata.dev(), metadata.ino()));
    for input in inputs {
        let input = input.as_ref();
        // Reading a missing file fails later with a better message.
        let Ok(metadata) = fs::metadata(input) else { continue };
        let path = absolute(input);
        let is_folder = metadata.is_dir();
        let same_file = id == Some((metadata.dev(), metadata.ino()));
        let refusal = if path == out || same_file {
            "is read as an input, which would be overwritten".to_owned()
        } else if is_folder && out.starts_with(&path) {
            format!("is inside {}, which is read as an input", input.display())
        } else if path.starts_with(&out) {
            format!("contains {}, which is read as an input", input.display())
        } else if path.starts_with(&partial) {
            format!("would be written through {}, from which {} is read", partial.display(), input.display())
        } else {
            continue;
        };
        let what = format!("the output {} {refusal}: choose another output", output.display());
        return Err(Error::unsuitable(output, what));
    }
    Ok(())
}

/// Returns a path without symbolic links, as far as it exists.
fn absolute(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    // A link to nothing leads to where the output will be.
    if let Ok(link) = fs::read_link(path) {
        let target = parent(path).join(link);
        if target != path {
            return absolute_parent(&target);
        }
    }
    absolute_parent(path)
}

fn absolute_parent(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(_), Some(name)) if parent(path) != path => absolute(parent(path)).join(name),
        _ => path.to_owned(),
    }
}
