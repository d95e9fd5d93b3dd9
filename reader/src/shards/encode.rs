//! Encoding: a piece of the rows becomes a shard.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::publish::sync_dir;
use rankine_base::sealed::Checksum;

use super::FOLDER;
use crate::convert::{
    ConversionReport, ConvertOptions, KnownColumns, Progress, check_split_of_piece, convert_like,
};
use crate::dataset::MANIFEST_NAME;

/// A shard that was written.
#[derive(Debug, Clone)]
pub struct EncodedShard {
    /// Its folder.
    pub path: PathBuf,
    /// The report of its conversion.
    pub report: ConversionReport,
}

/// Converts rows with the columns and vocabularies of a fit, and writes them as a shard below `options.out`, the folder
/// of the collection. `name` is the name of the piece: letters, digits, `-`, `_` and dots within.
///
/// Any number of processes may encode pieces at the same time, the same piece too: it gives the same folder if the rows
/// come in the same order, and otherwise another one, which a collection must not list as well.
///
/// # Errors
/// As [`convert_like`]; [`Error::Setting`] for a name that cannot be one, and for a split by the number of a row.
pub fn encode(
    options: &ConvertOptions,
    known: KnownColumns,
    name: &str,
    progress: &dyn Progress,
) -> Result<EncodedShard> {
    check_name(name)?;
    check_split_of_piece(&options.split)?;
    let folder = options.out.join(FOLDER);
    // Attempts never share a folder: a process that is taken for dead may still write to its own.
    let attempt = folder.join(format!("{name}-{:016x}", RandomState::new().hash_one(name)));
    let options = ConvertOptions { out: attempt.clone(), ..options.clone() };
    let report = convert_like(&options, known, false, progress)?;
    let sum = manifest_sum(&attempt)?;
    let path = folder.join(format!("{name}-{sum}"));
    match fs::rename(&attempt, &path) {
        // Only complete folders get this name.
        Err(_) if manifest_sum(&path).is_ok_and(|there| there == sum) => {
            fs::remove_dir_all(&attempt).context("remove", &attempt)?;
        }
        renamed => renamed.context("rename", &attempt)?,
    }
    sync_dir(&folder)?;
    Ok(EncodedShard { path, report })
}

/// Returns the checksum of a dataset's manifest, which has the checksums of all its files.
fn manifest_sum(dir: &Path) -> Result<Checksum> {
    let path = dir.join(MANIFEST_NAME);
    fs::read(&path).context("read", &path).map(|text| Checksum::of(&text))
}

fn check_name(name: &str) -> Result<()> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.bytes().all(is_allowed) {
        return Ok(());
    }
    let what = format!(
        "{name:?} cannot be the name of a shard: use 1 to 100 letters, digits, hyphens, underscores and dots, without \
         a dot at the start"
    );
    Err(Error::setting("name", what))
}
