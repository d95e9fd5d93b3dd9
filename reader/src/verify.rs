//! Verification of a dataset: every byte is read and checked, and every sample is decoded.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rankine_base::error::{Error, Result};
use rankine_base::stop::Stop;
use serde::Serialize;

use crate::dataset::{BlockCoding, Dataset, DatasetPart, MANIFEST_NAME};
use crate::io::{IoOptions, Reads, Slab, SlabRing};
use crate::ordered::{IN_FLIGHT_PER_THREAD, ordered_map};
use crate::part::Part;
use crate::samples::{LabelCounts, Samples};
use crate::statistics;
use crate::stream::{BlockStream, bytes_before, check_block, decode_records};

/// Maximum number of damages that are described; further ones are counted.
pub const DAMAGES_MAX: usize = 20;
/// Failed reads after which the rest of a part is skipped: a dying disk takes seconds for each.
const FAILED_READS_MAX: usize = 20;

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// What was read of each part.
    pub parts: Vec<PartReport>,
    /// Number of files read outside the parts.
    pub files: usize,
    /// The first [`DAMAGES_MAX`] damages, by part and block.
    pub damages: Vec<Damage>,
    /// Number of further damages.
    pub damages_more: u64,
}

/// What was read of a part, including damaged blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartReport {
    /// Which part.
    pub part: Part,
    /// Blocks read.
    pub blocks: u64,
    /// Samples decoded from them.
    pub samples: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file, if known.
    pub path: Option<PathBuf>,
    /// The byte offset in the file, if known.
    pub offset: Option<u64>,
    /// What is wrong; this text names file and offset itself.
    pub what: String,
}

impl From<&Error> for Damage {
    fn from(error: &Error) -> Self {
        let (path, offset) = match error {
            Error::Io { path, .. } => (Some(path.clone()), None),
            Error::Damaged { path, offset, .. } => (Some(path.clone()), *offset),
            _ => (None, None),
        };
        Self { path, offset, what: error.to_string() }
    }
}

impl VerifyReport {
    /// Returns whether nothing is damaged.
    pub fn is_whole(&self) -> bool {
        self.damages.is_empty()
    }

    /// Returns the number of all damages, including those that are only counted.
    fn damages_found(&self) -> u64 {
        self.damages.len() as u64 + self.damages_more
    }

    fn add(&mut self, error: &Error) {
        if self.damages.len() < DAMAGES_MAX {
            self.damages.push(error.into());
        } else {
            self.damages_more += 1;
        }
    }
}

/// Reads and checks everything: the index of each part, each block (its checksum, its entry in the index, every id
/// and bag), the sums of labels in the manifest, the sums of statistics in a collection, the files outside the
/// parts, and the popularity in the dataset's folder. `threads` threads check while one reads.
///
/// # Errors
/// [`Error::Refused`] if checking cannot start. Damages are not errors; the report lists them.
pub fn verify(dataset: &Dataset, threads: NonZeroUsize) -> Result<VerifyReport> {
    verify_watched(dataset, threads, &mut |_| ())
}

/// Likewise; calls `at` with the bytes of blocks read so far, of those in [`block_bytes`].
///
/// # Errors
/// As [`verify`].
pub fn verify_watched(
    dataset: &Dataset,
    threads: NonZeroUsize,
    at: &mut dyn FnMut(u64),
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    for file in dataset.files() {
        report.files += 1;
        if let Err(error) = dataset.checked_file(&file.name) {
            report.add(&error);
        }
    }
    let lists_statistics = dataset.files().iter().any(|file| file.name == statistics::FILE_NAME);
    if lists_statistics
        && report.is_whole()
        && let Err(error) = dataset.check_statistics()
    {
        report.add(&error);
    }
    match dataset.verify_popularity() {
        Ok(found) => report.files += usize::from(found),
        Err(error) => report.add(&error),
    }
    for part in dataset.parts() {
        let part = match dataset.part(part) {
            Ok(part) => Arc::new(part),
            Err(error) => {
                report.add(&error);
                continue;
            }
        };
        let before = report.damages_found();
        let found = verify_part(&part, threads, &mut report, &|_| (), at)?;
        let positives: Vec<u64> = found.iter().map(|counts| counts.positive).collect();
        let missing: Vec<u64> = found.iter().map(|counts| counts.missing).collect();
        let listed = dataset.manifest().and_then(|manifest| manifest.parts.get(&part.part));
        if report.damages_found() == before
            && let Some(listed) = listed
            && (&positives, &missing) != (&listed.positives, &listed.missing)
        {
            let what = format!(
                "it lists {} positive and {} missing labels in the {} part, but the blocks have {} and {}",
                numbers(&listed.positives),
                numbers(&listed.missing),
                part.part,
                numbers(&positives),
                numbers(&missing)
            );
            report.add(&Error::damaged(&dataset.dir().join(MANIFEST_NAME), None, what));
        }
    }
    Ok(report)
}

/// One number per label.
fn numbers(counts: &[u64]) -> String {
    counts.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// The bytes of all blocks of a dataset, as its manifest lists them.
pub fn block_bytes(dataset: &Dataset) -> u64 {
    let parts = dataset.manifest().into_iter().flat_map(|manifest| manifest.parts.values());
    parts.flat_map(|part| &part.blocks).map(|file| file.bytes).sum()
}

/// The result of checking one block.
struct CheckedBlock {
    index: usize,
    /// One entry per label column.
    labels: Result<Vec<LabelCounts>>,
}

/// Reads and checks every block of the training part, and calls `each` with the samples of each block, on any of
/// `threads` threads. Calls `at` with the bytes read so far.
///
/// # Errors
/// As [`verify`]; [`Error::Damaged`] with the first damage.
pub(crate) fn each_block(
    dataset: &Dataset,
    threads: NonZeroUsize,
    each: &(dyn Fn(&Samples) + Sync),
    at: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut report = VerifyReport::default();
    verify_part(&Arc::new(dataset.stored_part(Part::Train)?), threads, &mut report, each, at)?;
    let first = report.damages.into_iter().next();
    first.map_or(Ok(()), |Damage { what, .. }| Err(Error::damaged(dataset.dir(), None, what)))
}

/// Checks the blocks of a part, and calls `each` with the samples of each; returns the counts of its labels, one entry
/// per label column.
fn verify_part(
    part: &Arc<DatasetPart>,
    threads: NonZeroUsize,
    report: &mut VerifyReport,
    each: &(dyn Fn(&Samples) + Sync),
    at: &mut dyn FnMut(u64),
) -> Result<Vec<LabelCounts>> {
    let before: u64 = report.parts.iter().map(|part| part.bytes).sum();
    let mut labels = vec![LabelCounts::default(); part.schema.labels.len()];
    let mut read = PartReport { part: part.part, blocks: 0, samples: 0, bytes: 0 };
    let spare = Mutex::new(Vec::new());
    let io = IoOptions::default();
    let (slabs, slab_bytes) = BlockStream::ring_for(part, &io);
    let mut ring = SlabRing::allocate(slabs + threads.get() * IN_FLIGHT_PER_THREAD, slab_bytes)?;
    let (mut next, mut failed_reads) = (0, 0);
    while next < part.blocks.len() && failed_reads < FAILED_READS_MAX {
        let (first, of) = (next, Arc::clone(part));
        let requests = (first..part.blocks.len()).map(move |index| of.blocks[index].into());
        let mut reads = Reads::open(part.read_files(), requests, ring, &io)?;
        let source = (first..).zip(&mut reads).map(Ok);
        let work = |(index, slab): (usize, Result<Slab>)| {
            let labels = slab.and_then(|slab| verify_block(part, index, &slab, &spare, each));
            Ok(CheckedBlock { index, labels })
        };
        ordered_map(threads, &Stop::default(), source, work, |checked| -> Result<()> {
            next = checked.index + 1;
            read.blocks += 1;
            read.bytes += u64::from(part.blocks[checked.index].bytes);
            at(before + read.bytes);
            match checked.labels {
                Ok(found) => {
                    read.samples += part.samples_of(checked.index as u64);
                    labels.iter_mut().zip(found).for_each(|(sum, found)| sum.add(found));
                }
                Err(error) => report.add(&error),
            }
            Ok(())
        })?;
        // A reader ends at the first failed read: the next reader continues after it.
        failed_reads += 1;
        ring = reads.close();
    }
    if next < part.blocks.len() {
        let left = part.blocks.len() - next;
        let path = &part.files[part.blocks[next].file as usize];
        let (blocks, were) = if left == 1 { ("block", "was") } else { ("blocks", "were") };
        let what = format!("{left} {blocks} from here on {were} not read, after {failed_reads} failed reads");
        report.add(&Error::damaged(path, part.blocks[next].offset, what));
    }
    report.parts.push(read);
    Ok(labels)
}

fn verify_block(
    part: &DatasetPart,
    index: usize,
    bytes: &[u8],
    spare: &Mutex<Vec<Samples>>,
    each: &dyn Fn(&Samples),
) -> Result<Vec<LabelCounts>> {
    let location = part.blocks[index];
    let path: &Path = &part.files[location.file as usize];
    // A thread that panicked with the lock held leaves nothing broken: these are buffers to reuse.
    let lock = || spare.lock().unwrap_or_else(PoisonError::into_inner);
    let used = lock().pop();
    let mut samples = used.unwrap_or_else(|| Samples::new(&part.schema));
    samples.clear();
    match &part.coding {
        BlockCoding::Records(decoder) => {
            decode_records(
                (decoder, &part.ids),
                path,
                &location,
                &bytes[bytes_before(&location)..],
                &mut samples,
            )?;
        }
        BlockCoding::Packed { .. } => check_block(part, index as u64, bytes)
            .and_then(|layout| layout.with_bytes(bytes).decode_into(&part.schema, &mut samples))
            .map_err(|what| Error::damaged(path, location.offset, what))?,
    }
    each(&samples);
    let counts = samples.labels.iter().map(|labels| LabelCounts::of(labels)).collect();
    lock().push(samples);
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::dataset::Manifest;
    use crate::tests;
    use crate::tests::seccomp::{Refused, refuse_in_this_thread};
    use rankine_base::sealed::Checksum;

    const THREADS: NonZeroUsize = NonZeroUsize::new(3).unwrap();

    fn check(dir: &Path) -> VerifyReport {
        verify(&Dataset::open(dir).unwrap(), THREADS).unwrap()
    }

    #[test]
    fn a_whole_dataset_is_read_to_the_end() {
        let dataset = tests::dataset(1000, 64);
        let report = check(&dataset.dir());
        assert!(report.is_whole(), "{report:?}");
        assert_eq!(report.files, 2, "statistics and popularity");
        let counts: Vec<_> = report.parts.iter().map(|part| (part.part, part.blocks, part.samples)).collect();
        assert_eq!(counts, [(Part::Train, 16, 1000), (Part::Eval, 2, 100)]);
        let bytes = fs::metadata(dataset.dir().join("train/00000.blocks")).unwrap().len();
        assert_eq!(report.parts[0].bytes, bytes);
    }

    #[test]
    fn the_progress_counts_every_block_once() {
        let folder = tests::dataset(1000, 64);
        let dataset = Dataset::open(&folder.dir()).unwrap();
        let mut seen = Vec::new();
        let report = verify_watched(&dataset, THREADS, &mut |bytes| seen.push(bytes)).unwrap();
        assert_eq!(seen.len() as u64, report.parts.iter().map(|part| part.blocks).sum::<u64>());
        assert!(seen.is_sorted_by(|before, after| before < after), "{seen:?}");
        assert_eq!(seen.last(), Some(&block_bytes(&dataset)));
    }

    #[test]
    fn each_damage_is_named_and_the_rest_is_still_read() {
        let dataset = tests::dataset(1000, 64);
        let opened = Dataset::open(&dataset.dir()).unwrap();
        let train = opened.part(Part::Train).unwrap();
        let path = &train.files[0];
        let mut bytes = fs::read(path).unwrap();
        for block in [2, 9] {
            bytes[train.blocks[block].offset as usize + 300] ^= 1;
        }
        fs::write(path, &bytes).unwrap();
        let report = check(&dataset.dir());
        let positions: Vec<_> =
            report.damages.iter().map(|damage| (damage.path.as_deref(), damage.offset)).collect();
        assert_eq!(
            positions,
            [2, 9].map(|block: usize| (Some(path.as_path()), Some(train.blocks[block].offset)))
        );
        assert_eq!((report.parts[0].blocks, report.parts[0].samples), (16, 1000 - 2 * 64));

        // Every block is damaged: the first are described, the rest are counted.
        for block in &train.blocks {
            bytes[block.offset as usize] ^= 1;
        }
        fs::write(path, &bytes).unwrap();
        let statistics = dataset.dir().join(statistics::FILE_NAME);
        let mut side = fs::read(&statistics).unwrap();
        *side.last_mut().unwrap() ^= 1;
        fs::write(&statistics, side).unwrap();
        let report = check(&dataset.dir());
        assert_eq!(report.damages.len(), 17);
        assert_eq!(report.damages_more, 0);
        assert_eq!(report.damages[0].path.as_deref(), Some(statistics.as_path()));
    }

    #[test]
    fn damages_past_the_limit_are_counted() {
        let dataset = tests::dataset(1000, 20);
        let train = Dataset::open(&dataset.dir()).unwrap().part(Part::Train).unwrap();
        let mut bytes = fs::read(&train.files[0]).unwrap();
        for block in &train.blocks {
            bytes[block.offset as usize + 70] ^= 1;
        }
        fs::write(&train.files[0], &bytes).unwrap();
        let report = check(&dataset.dir());
        assert_eq!((report.damages.len(), report.damages_more), (DAMAGES_MAX, 30));
    }

    #[test]
    fn a_part_cut_short_does_not_hide_the_other() {
        let dataset = tests::dataset(1000, 64);
        let path = dataset.dir().join("train/00000.blocks");
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        let report = check(&dataset.dir());
        assert_eq!(report.damages.len(), 1);
        assert_eq!(report.damages[0].path.as_deref(), Some(path.as_path()));
        assert_eq!(report.parts.iter().map(|part| part.part).collect::<Vec<_>>(), [Part::Eval]);
    }

    #[test]
    fn sums_and_counts_that_do_not_match_the_samples_are_damage() {
        let dataset = tests::dataset(1000, 64);
        let good = Dataset::open(&dataset.dir()).unwrap().manifest().unwrap().clone();
        let manifest_path = dataset.dir().join(MANIFEST_NAME);
        let damages = |manifest: &Manifest| {
            fs::write(&manifest_path, manifest.to_json()).unwrap();
            check(&dataset.dir()).damages
        };
        for part in Part::STORED {
            for label in [0, 1] {
                let mut changed = good.clone();
                changed.parts.get_mut(&part).unwrap().positives[label] += 1;
                let mut missing = good.clone();
                missing.parts.get_mut(&part).unwrap().missing[label] += 1;
                for changed in [changed, missing] {
                    let [damage] = &damages(&changed)[..] else { panic!("one damage") };
                    let says = format!("missing labels in the {part} part, but the blocks have");
                    assert!(damage.what.contains(&says), "{}", damage.what);
                    assert_eq!(damage.path.as_deref(), Some(manifest_path.as_path()));
                }
            }
        }
        // Statistics of another schema with a valid checksum.
        let path = dataset.dir().join(statistics::FILE_NAME);
        let mut tables = Dataset::open(&dataset.dir()).unwrap().statistics().unwrap();
        tables.pop();
        let bytes = statistics::to_bytes(&tables);
        fs::write(&path, &bytes).unwrap();
        let mut changed = good;
        (changed.files[0].bytes, changed.files[0].xxh3) = (bytes.len() as u64, Checksum::of(&bytes));
        let [damage] = &damages(&changed)[..] else { panic!("one damage") };
        assert!(damage.what.contains("one table per categorical column"), "{}", damage.what);
    }

    /// A disk that fails every read: each failure is named, until there have been too many.
    #[test]
    fn the_rest_of_a_part_is_skipped_after_too_many_failed_reads() {
        // 50 training blocks and five evaluation blocks.
        let dataset = tests::dataset(1000, 20);
        let report = std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                let no_ring = Refused { call: libc::SYS_io_uring_setup, errno: libc::ENOSYS };
                refuse_in_this_thread(&[no_ring, Refused { call: libc::SYS_pread64, errno: libc::EIO }]);
                check(&dataset.dir())
            });
            failing.join().unwrap()
        });
        let read: Vec<_> = report.parts.iter().map(|part| (part.part, part.blocks, part.samples)).collect();
        assert_eq!(read, [(Part::Train, 20, 0), (Part::Eval, 5, 0)]);
        assert_eq!((report.damages.len(), report.damages_more), (DAMAGES_MAX, 1 + 1 + 5));
        assert!(report.damages.iter().all(|damage| damage.what.contains("Input/output error")));
        let offsets: Vec<_> = report.damages.iter().map(|damage| damage.what.clone()).collect();
        let distinct: std::collections::BTreeSet<_> = offsets.iter().collect();
        assert_eq!(distinct.len(), DAMAGES_MAX, "each block is tried once");
    }
}
