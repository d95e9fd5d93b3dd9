//! Counts stored temporarily on disk: sorted runs in one temporary file, merged after counting.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rankine_base::error::{IoContext, Result};
use rankine_base::stop::Stop;

use crate::key::ShortKey;

/// Bytes written at a time.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes read at a time from each of the merged runs.
const READ_BYTES: usize = 1 << 16;
/// Keys that are merged between two checks for a stop request.
const KEYS_BETWEEN_LOOKS: usize = 1 << 14;

/// One file for all runs of a counting pass, so that it takes one descriptor. Removed when dropped.
#[derive(Debug)]
pub(crate) struct SpillFile {
    path: PathBuf,
    file: File,
    end: AtomicU64,
}

/// Sorted keys with their counts, at a position of a [`SpillFile`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    offset: u64,
    bytes: u64,
}

/// A key that can be written to a run.
pub(crate) trait SpillKey: Ord + Sized {
    fn write(&self, out: &mut Vec<u8>);
    /// Returns the key at the front of `bytes` and the bytes after it; `None` if `bytes` ends within the key.
    fn read(bytes: &[u8]) -> Option<(Self, &[u8])>;
}

impl SpillKey for ShortKey {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_padded());
    }

    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (padded, rest) = bytes.split_first_chunk()?;
        Some((Self::from_padded(*padded), rest))
    }
}

impl SpillKey for Box<[u8]> {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        out.extend_from_slice(self);
    }

    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (len, rest) = bytes.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        Some((key.into(), rest))
    }
}

impl SpillFile {
    const NAME: &str = "counts.tmp";

    pub(crate) fn create(dir: &Path) -> Result<Self> {
        let path = dir.join(Self::NAME);
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        Ok(Self { file: file.context("create", &path)?, path, end: AtomicU64::new(0) })
    }

    /// Sorts distinct keys and writes them.
    pub(crate) fn write_run<K: SpillKey>(&self, mut counts: Vec<(K, u64)>) -> Result<Run> {
        counts.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut bytes = Vec::new();
        // The run's length is needed before its first byte is written: its range of the file is reserved at once, so
        // that it is contiguous even if other threads write.
        let mut total = 0;
        for (key, _) in &counts {
            bytes.clear();
            key.write(&mut bytes);
            total += bytes.len() as u64 + 8;
        }
        let offset = self.end.fetch_add(total, Ordering::Relaxed);
        let mut at = offset;
        bytes.clear();
        let last = counts.len().saturating_sub(1);
        for (number, (key, count)) in counts.iter().enumerate() {
            key.write(&mut bytes);
            bytes.extend_from_slice(&count.to_le_bytes());
            if bytes.len() >= WRITE_BYTES || number == last {
                self.file.write_all_at(&bytes, at).context("write", &self.path)?;
                at += bytes.len() as u64;
                bytes.clear();
            }
        }
        Ok(Run { offset, bytes: total })
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        // A remaining file is in a partial folder, which is removed as a whole or cleared by the next run.
        let _ = fs::remove_file(&self.path);
    }
}

/// Reads a run from start to end.
struct RunReader<'a> {
    spill: &'a SpillFile,
    left: Run,
    buffer: Vec<u8>,
    at: usize,
}

impl RunReader<'_> {
    fn next<K: SpillKey>(&mut self) -> Result<Option<(K, u64)>> {
        loop {
            let entry = K::read(&self.buffer[self.at..]).and_then(|(key, rest)| {
                rest.split_first_chunk().map(|(count, rest)| (key, *count, rest.len()))
            });
            if let Some((key, count, rest_bytes)) = entry {
                self.at = self.buffer.len() - rest_bytes;
                return Ok(Some((key, u64::from_le_bytes(count))));
            }
            if self.left.bytes == 0 {
                return Ok(None);
            }
            self.buffer.drain(..self.at);
            self.at = 0;
            let kept = self.buffer.len();
            let bytes = self.left.bytes.min(READ_BYTES as u64);
            self.buffer.resize(kept + bytes as usize, 0);
            let file = &self.spill.file;
            file.read_exact_at(&mut self.buffer[kept..], self.left.offset)
                .context("read", &self.spill.path)?;
            self.left = Run { offset: self.left.offset + bytes, bytes: self.left.bytes - bytes };
        }
    }
}

/// Passes every key of some runs and of `in_memory`, which has no key twice, to `take`, with the sum of its counts: in
/// order if there are runs, otherwise in any order.
///
/// # Errors
/// The errors of `take`; [`rankine_base::error::Error::Io`]; [`rankine_base::error::Error::Stopped`].
pub(crate) fn merge_runs<K: SpillKey>(
    spill: &SpillFile,
    runs: &[Run],
    in_memory: impl IntoIterator<Item = (K, u64)>,
    stop: &Stop,
    mut take: impl FnMut(K, u64) -> Result<()>,
) -> Result<()> {
    if runs.is_empty() {
        return in_memory.into_iter().try_for_each(|(key, count)| take(key, count));
    }
    let mut rest: Vec<(K, u64)> = in_memory.into_iter().collect();
    rest.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let mut rest = rest.into_iter();
    let reader = |&left| RunReader { spill, left, buffer: Vec::new(), at: 0 };
    let mut readers: Vec<_> = runs.iter().map(reader).collect();
    // What is in memory is the source after the last run.
    let mut next_of = |source: usize| match readers.get_mut(source) {
        Some(reader) => reader.next::<K>(),
        None => Ok(rest.next()),
    };
    let mut heads = BinaryHeap::with_capacity(runs.len() + 1);
    for source in 0..=runs.len() {
        if let Some((key, count)) = next_of(source)? {
            heads.push(Reverse((key, source, count)));
        }
    }
    let mut current: Option<(K, u64)> = None;
    let mut merged = 0_usize;
    while let Some(Reverse((key, source, count))) = heads.pop() {
        merged += 1;
        if merged.is_multiple_of(KEYS_BETWEEN_LOOKS) {
            stop.check()?;
        }
        if let Some((key, count)) = next_of(source)? {
            heads.push(Reverse((key, source, count)));
        }
        match &mut current {
            Some((same, sum)) if *same == key => *sum += count,
            _ => {
                if let Some((key, sum)) = current.replace((key, count)) {
                    take(key, sum)?;
                }
            }
        }
    }
    current.map_or(Ok(()), |(key, sum)| take(key, sum))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::key::LongMap;
    use rankine_base::error::Error;

    /// Runs longer than the write and read buffers.
    #[test]
    fn long_runs_merge_to_the_sums_in_order() {
        const KEYS: u64 = 60_000;
        let dir = tempfile::tempdir().unwrap();
        let spill = SpillFile::create(dir.path()).unwrap();
        // Keys of many lengths, so that entries cross the ends of buffers.
        let key =
            |n: u64| -> Box<[u8]> { format!("{n:07}{}", "x".repeat(n as usize % 41)).into_bytes().into() };
        let every = |step: u64| {
            (0..KEYS / step).rev().map(move |n| (key(n * step), n % 5 + step)).collect::<Vec<_>>()
        };
        let runs = [spill.write_run(every(1)).unwrap(), spill.write_run(every(3)).unwrap()];
        assert!(runs[0].bytes > WRITE_BYTES as u64 && runs[1].bytes > READ_BYTES as u64);
        assert_eq!(runs[1].offset, runs[0].bytes);
        let in_memory: LongMap = every(7).into_iter().collect();
        let mut expected = BTreeMap::new();
        for (key, count) in [1, 3, 7].into_iter().flat_map(every) {
            *expected.entry(key).or_insert(0) += count;
        }
        let mut merged = Vec::new();
        let take = |key, count| {
            merged.push((key, count));
            Ok(())
        };
        merge_runs(&spill, &runs, in_memory, &Stop::default(), take).unwrap();
        assert!(merged.into_iter().eq(expected));

        let stop = Stop::default();
        stop.ask();
        let none = LongMap::default();
        let outcome = merge_runs(&spill, &runs, none, &stop, |_, _| Ok(()));
        assert!(matches!(outcome, Err(Error::Stopped(_))), "{outcome:?}");
    }
}
