//! Outputs that appear whole or not at all, and that one process at a time writes.
//!
//! [`PartialDir`] publishes folders (datasets, models), [`PartialFile`] and [`replace_file`] publish files. All hold a
//! [`Lock`] from before the first byte until after the rename, write beside the target, sync, rename, and sync the
//! folder. [`refuse_inputs`] keeps a command from overwriting what it reads. Checkpoints have their own code in the
//! engine, under the lock of the run's folder; what is written into a [`PartialDir`] needs no lock of its own.
//!
//! Names beside a target `X`: `.X.lock` is the lock, `X.partial` a folder and `.X.PID-N.partial` a file in the making.

mod dir;
mod file;
mod inputs;
mod lock;
mod owner;
mod path;
#[cfg(test)]
pub(crate) mod tests;

use std::fs::File;
use std::path::Path;

use crate::error::{IoContext, Result};

pub use dir::{PartialDir, ReservedDir, create_folders};
pub use file::{PartialFile, replace_file, replace_file_under};
pub use inputs::refuse_inputs;
pub use lock::Lock;
pub(crate) use path::unique_suffix;

/// Makes the names in a folder durable.
///
/// # Errors
/// [`crate::Error::Io`].
pub fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).context("sync", dir)
}
