//! Counting the look-ups of a complete dataset, in one pass.

use std::io::Write;
use std::num::NonZeroUsize;

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::publish::PartialFile;
use rankine_base::url::refuse;

use crate::dataset::Dataset;
use crate::popularity::{FILE_NAME, write};
use crate::samples::Samples;
use crate::statistics::{self, TableCounter};
use crate::verify;

/// Counts the look-ups of the training part on `threads` threads, and writes `popularity.bin` into the folder of the
/// dataset or collection, in place of an earlier one. Every block is checked. Calls `at` with the bytes read so far.
///
/// The memory is nine bytes per row of all tables.
///
/// # Errors
/// [`Error::TooLarge`] if this machine does not have enough memory; [`Error::Damaged`]; [`Error::Unsuitable`] if there
/// is no training part, or the dataset is in an object store; [`Error::Locked`] if another process writes the file;
/// [`Error::Io`].
pub fn count(dataset: &Dataset, threads: NonZeroUsize, at: &mut dyn FnMut(u64)) -> Result<()> {
    let dir = dataset.dir();
    let unsuitable = |what: &str| Error::unsuitable(dir, format!("{} {what}", dir.display()));
    let (Some(folder), Some(manifest)) = (dataset.folder(), dataset.manifest()) else {
        return Err(unsuitable(
            "is not a folder of one dataset, so there is no place for the counts of its rows",
        ));
    };
    refuse(folder, "a dataset whose rows are counted")?;
    let Some(counted) = manifest.counted() else {
        return Err(unsuitable("has no training part, whose look-ups could be counted"));
    };
    let counters = statistics::counters(&manifest.schema)?;
    // Created first: it is better to fail before the pass than after it.
    let path = folder.join(FILE_NAME);
    let mut file = PartialFile::create(&path)?;
    let count = |samples: &Samples| {
        counters.iter().zip(&samples.categorical).for_each(|(counter, bags)| counter.add(bags));
    };
    verify::each_block(dataset, threads, &count, at)?;
    let tables = counters.iter().map(TableCounter::popularity).collect::<Result<Vec<_>>>()?;
    write(counted, &tables, |bytes| file.write_all(bytes).context("write", &path))?;
    file.publish()
}
