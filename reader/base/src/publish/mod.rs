//! Outputs that appear complete or not at all, each written by one process at a time.
//!
//! [`PartialDir`] publishes folders (datasets, models), [`PartialFile`] and [`replace_file`] publish files. All hold
//! a [`Lock`] from before the first byte until after the rename, write next to the target, sync, rename, and sync the
//! folder. Before the rename they check that the lock still excludes other processes. [`refuse_inputs`] keeps a command
//! from overwriting its inputs, and [`OwnOutput`] any file that is not its earlier output. Checkpoints have separate
//! code in the engine, under the lock of the run folder; files written into a [`PartialDir`] need no separate lock.
//!
//! Names next to a target `X`: `.X.lock` is the lock, `X.partial` an unfinished folder and `.X.PID-N.partial` an
//! unfinished file.

mod dir;
mod file;
mod inputs;
mod lock;
mod own;
mod owner;
mod path;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::Path;

use crate::error::{IoContext, Result};

pub use dir::{PartialDir, ReservedDir, create_folders};
pub use file::{PartialFile, is_leftover, replace_file, replace_file_under};
pub use inputs::refuse_inputs;
pub use lock::{Lock, LockMark};
pub use own::OwnOutput;
pub use path::unique_suffix;

/// Syncs a folder, which makes the names in it durable.
///
/// # Errors
/// [`crate::Error::Io`].
pub fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).context("sync", dir)
}
