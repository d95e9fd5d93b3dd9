//! Writing a dataset: blocks first, everything else at the end, and a manifest only when all is complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::publish::PartialDir;
use rankine_base::sealed::Checksum;
use rankine_base::stop::Stop;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::block::{self, BlockId};
use crate::dataset::{self, BlocksFile, FileManifest, MANIFEST_NAME, Manifest, PartManifest};
use crate::ordered::ordered_map;
use crate::origin::Origin;
use crate::part::Part;
use crate::popularity::{self, Popularity};
use crate::samples::{LabelCounts, Samples};
use crate::schema::Schema;
use crate::statistics::{self, TableCounter, TableStatistics};

/// After reaching this length, a file of blocks is closed and the next one is started.
const FILE_BYTES: u64 = 1 << 30;

/// Threads that sort the statistics of tables, each of which takes up to 32 MiB, and make codes of their counts.
const STATISTICS_THREADS: NonZeroUsize = NonZeroUsize::new(4).expect("it is not 0");

/// Writes a whole file durably and returns its manifest entry. `name` is the path below `dir`, with forward slashes;
/// its folder must exist.
///
/// # Errors
/// [`Error::Io`], also if the file already exists.
pub fn write_file(dir: &Path, name: &str, bytes: &[u8]) -> Result<FileManifest> {
    let mut file = CheckedFile::create(dir, name)?;
    file.write(bytes)?;
    file.finish()
}

/// Returns the manifest entry of a file with these bytes. `name` is the path below its folder, with forward slashes.
pub(crate) fn manifest_entry(name: String, bytes: &[u8]) -> FileManifest {
    FileManifest { name, bytes: bytes.len() as u64, xxh3: Checksum::of(bytes) }
}

/// A file that is written once, from start to end.
#[derive(Debug)]
struct NewFile {
    path: PathBuf,
    name: String,
    out: BufWriter<File>,
    bytes: u64,
}

impl NewFile {
    /// Creates the file below `dir`, whose folder must exist.
    fn create(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let file = File::create_new(&path).context("create", &path)?;
        let out = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { path, name: name.to_owned(), out, bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).context("write", &self.path)
    }

    /// Flushes the file to disk; returns its name and its length.
    fn finish(self) -> Result<(String, u64)> {
        let file = self.out.into_inner().map_err(std::io::IntoInnerError::into_error);
        file.and_then(|file| file.sync_all()).context("write", &self.path)?;
        Ok((self.name, self.bytes))
    }
}

/// A file that is written once, from start to end, with a running checksum.
pub struct CheckedFile {
    file: NewFile,
    hash: Box<Xxh3Default>,
}

impl std::fmt::Debug for CheckedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckedFile").field("file", &self.file).finish_non_exhaustive()
    }
}

impl CheckedFile {
    /// Creates the file. `name` is the path below `dir`, with forward slashes; its folder must exist.
    ///
    /// # Errors
    /// [`Error::Io`], also if the file already exists.
    pub fn create(dir: &Path, name: &str) -> Result<Self> {
        Ok(Self { file: NewFile::create(dir, name)?, hash: Box::default() })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.file.write(bytes)
    }

    /// Flushes the file to disk and returns its manifest entry.
    ///
    /// # Errors
    /// [`Error::Io`], also for errors of earlier writes that the disk reports late.
    pub fn finish(self) -> Result<FileManifest> {
        let (name, bytes) = self.file.finish()?;
        Ok(FileManifest { name, bytes, xxh3: Checksum(self.hash.digest()) })
    }
}

/// Packs samples into blocks and counts their contents; shared by all threads that do so.
#[derive(Debug)]
pub struct BlockEncoder {
    schema: Schema,
    tag: u64,
    block_samples: u32,
    counters: Vec<TableCounter>,
}

/// A block ready to be written.
#[derive(Debug)]
pub struct EncodedBlock {
    bytes: Vec<u8>,
    part: Part,
    index: u64,
    samples: u64,
    labels: Vec<LabelCounts>,
}

impl BlockEncoder {
    /// Returns the samples of every block except a part's last.
    pub fn block_samples(&self) -> u32 {
        self.block_samples
    }

    /// Packs one block and counts the training part's look-ups.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if a block would be larger than 2^32 bytes.
    pub fn encode(&self, part: Part, index: u64, samples: &Samples) -> Result<EncodedBlock> {
        if part == Part::Train {
            for (counter, bags) in self.counters.iter().zip(&samples.categorical) {
                counter.add(bags);
            }
        }
        let id = BlockId { dataset: self.tag, part, index };
        let bytes = block::encode(&self.schema, id, samples)?;
        let labels = samples.labels.iter().map(|labels| LabelCounts::of(labels)).collect();
        Ok(EncodedBlock { bytes, part, index, samples: samples.len as u64, labels })
    }
}

/// Writes a dataset into a [`PartialDir`].
#[derive(Debug)]
pub struct DatasetWriter<'a> {
    dir: &'a PartialDir,
    encoder: Arc<BlockEncoder>,
    parts: BTreeMap<Part, PartWriter>,
    files: Vec<FileManifest>,
    /// Earlier statistics to which the counts of these samples are added, one per categorical column; may be empty.
    earlier_statistics: Vec<TableStatistics>,
    /// See [`FILE_BYTES`].
    file_bytes: u64,
}

#[derive(Debug)]
struct PartWriter {
    dir: PathBuf,
    file_bytes: u64,
    manifest: PartManifest,
    index: Vec<u8>,
    /// Has no checksum of its own, since each block has one.
    file: Option<NewFile>,
    file_blocks: u64,
    /// Samples that do not fill a block yet.
    pending: Samples,
    next_block: u64,
}

impl<'a> DatasetWriter<'a> {
    /// Creates a writer of blocks of `block_samples` samples; [`Schema::default_block_samples`] is a good default.
    ///
    /// # Errors
    /// [`Error::Columns`] if the schema is not valid; [`Error::TooLarge`] if its tables have too many rows to count in
    /// memory.
    pub fn new(dir: &'a PartialDir, schema: Schema, block_samples: u32) -> Result<Self> {
        schema.validate()?;
        if block_samples == 0 {
            return Err(Error::setting("block_samples", "a block needs at least one sample"));
        }
        let encoder = BlockEncoder {
            tag: Manifest::tag(&schema),
            counters: statistics::counters(&schema)?,
            schema,
            block_samples,
        };
        Ok(Self {
            dir,
            encoder: Arc::new(encoder),
            parts: BTreeMap::new(),
            files: Vec::new(),
            earlier_statistics: Vec::new(),
            file_bytes: FILE_BYTES,
        })
    }

    /// Sets a smaller maximum size for the files of blocks.
    #[cfg(test)]
    fn with_file_bytes(self, file_bytes: u64) -> Self {
        Self { file_bytes, ..self }
    }

    /// Sets the known look-ups of a categorical column's rows in the training part instead of counting them. Must be
    /// called before [`DatasetWriter::encoder`].
    pub(crate) fn set_known_counts(&mut self, column: usize, counts: &[u64]) {
        let encoder = Arc::get_mut(&mut self.encoder).expect("the encoder is not shared yet");
        encoder.counters[column] = TableCounter::known(counts);
    }

    /// Sets the statistics of an old dataset, one per categorical column, to which this one's are added. Known
    /// counts must already be the sums. Must be called before [`DatasetWriter::encoder`].
    ///
    /// # Errors
    /// [`Error::TooLarge`] if there is not enough memory to count the rows of this dataset besides.
    pub(crate) fn set_earlier_statistics(&mut self, statistics: Vec<TableStatistics>) -> Result<()> {
        let encoder = Arc::get_mut(&mut self.encoder).expect("the encoder is not shared yet");
        encoder.counters.iter_mut().try_for_each(TableCounter::count_own)?;
        self.earlier_statistics = statistics;
        Ok(())
    }

    /// Returns the encoder, which packs blocks on any thread.
    pub fn encoder(&self) -> Arc<BlockEncoder> {
        Arc::clone(&self.encoder)
    }

    /// Adds a file that was written into the folder to the manifest.
    pub(crate) fn add_file(&mut self, file: FileManifest) {
        self.files.push(file);
    }

    /// Appends samples to a part and writes the blocks that they fill.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn push(&mut self, part: Part, samples: &Samples) -> Result<()> {
        let block_samples = self.encoder.block_samples as usize;
        let mut from = 0;
        while from < samples.len {
            let writer = self.part(part)?;
            let to = samples.len.min(from + block_samples - writer.pending.len);
            writer.pending.append(samples, from..to);
            from = to;
            if writer.pending.len == block_samples {
                self.flush(part)?;
            }
        }
        Ok(())
    }

    /// Appends a block that was packed by [`DatasetWriter::encoder`]; blocks must be appended in order.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If a block is out of order or does not follow a full one.
    pub fn push_block(&mut self, block: &EncodedBlock) -> Result<()> {
        let block_samples = u64::from(self.encoder.block_samples);
        let writer = self.part(block.part)?;
        assert_eq!(block.index, writer.next_block, "blocks are written in order");
        assert_eq!(
            writer.manifest.samples,
            block.index * block_samples,
            "only a part's last block may be partial"
        );
        writer.write(block)
    }

    fn flush(&mut self, part: Part) -> Result<()> {
        let encoder = Arc::clone(&self.encoder);
        let writer = self.part(part)?;
        let block = encoder.encode(part, writer.next_block, &writer.pending)?;
        writer.pending.clear();
        writer.write(&block)
    }

    fn part(&mut self, part: Part) -> Result<&mut PartWriter> {
        use std::collections::btree_map::Entry;
        match self.parts.entry(part) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let dir = self.dir.path().join(part.name());
                fs::create_dir(&dir).context("create", &dir)?;
                let manifest = PartManifest {
                    samples: 0,
                    positives: vec![0; self.encoder.schema.labels.len()],
                    missing: vec![0; self.encoder.schema.labels.len()],
                    blocks: Vec::new(),
                    index_xxh3: Checksum(0),
                };
                let pending = Samples::new(&self.encoder.schema);
                let writer = PartWriter {
                    dir,
                    file_bytes: self.file_bytes,
                    manifest,
                    index: Vec::new(),
                    file: None,
                    file_blocks: 0,
                    pending,
                    next_block: 0,
                };
                Ok(entry.insert(writer))
            }
        }
    }

    /// Writes the rest: last blocks, indexes, statistics, and finally the manifest. All files are then synced;
    /// [`PartialDir::publish`] syncs the folders.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Setting`] if there are no samples.
    pub fn finish(mut self, origin: Origin) -> Result<Manifest> {
        for part in Part::STORED {
            if self.parts.get(&part).is_some_and(|writer| writer.pending.len > 0) {
                self.flush(part)?;
            }
        }
        if self.parts.is_empty() {
            return Err(Error::setting("samples", "no samples: a dataset needs at least one"));
        }
        let (mut statistics, mut popularity) = (Vec::new(), Vec::new());
        let counters = self.encoder.counters.iter().zip(0..).map(Ok);
        let earlier = &self.earlier_statistics;
        let add_up = |(counter, column): (&TableCounter, usize)| {
            Ok((counter.popularity()?, counter.added_to(earlier.get(column))))
        };
        ordered_map(
            STATISTICS_THREADS,
            &Stop::default(),
            counters,
            add_up,
            |(codes, table)| -> Result<()> {
                popularity.push(codes);
                statistics.push(table);
                Ok(())
            },
        )?;
        let dir = self.dir.path();
        self.files.push(write_file(dir, statistics::FILE_NAME, &statistics::to_bytes(&statistics))?);
        let mut parts = BTreeMap::new();
        for (part, writer) in self.parts {
            parts.insert(part, writer.finish()?);
        }
        let (schema, block_samples) = (self.encoder.schema.clone(), self.encoder.block_samples);
        let manifest = Manifest { schema, block_samples, parts, files: self.files, origin };
        write_popularity(dir, &manifest, &popularity)?;
        write_file(dir, MANIFEST_NAME, manifest.to_json().as_bytes())?;
        Ok(manifest)
    }
}

/// Writes the popularity of all columns of a dataset or a collection into its folder, if it has a training part. The
/// manifest does not list the file.
///
/// # Errors
/// [`Error::Io`], also if the file already exists.
pub(crate) fn write_popularity(dir: &Path, manifest: &Manifest, tables: &[Popularity]) -> Result<()> {
    let Some(counted) = manifest.counted() else { return Ok(()) };
    let mut file = CheckedFile::create(dir, popularity::FILE_NAME)?;
    popularity::write(counted, tables, |bytes| file.write(bytes))?;
    file.finish().map(drop)
}

impl PartWriter {
    fn write(&mut self, block: &EncodedBlock) -> Result<()> {
        if self.file.as_ref().is_some_and(|file| file.bytes >= self.file_bytes) {
            self.close_file()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                none.insert(NewFile::create(&self.dir, &format!("{:05}.blocks", self.manifest.blocks.len()))?)
            }
        };
        file.write(&block.bytes)?;
        self.file_blocks += 1;
        self.next_block += 1;
        self.manifest.samples += block.samples;
        let sums = self.manifest.positives.iter_mut().zip(&mut self.manifest.missing);
        for ((positives, missing), counts) in sums.zip(&block.labels) {
            *positives += counts.positive;
            *missing += counts.missing;
        }
        let checksum = block::stated_checksum(&block.bytes).expect("an encoded block has a header");
        self.index.extend(dataset::index_entry(block.bytes.len() as u32, checksum));
        Ok(())
    }

    fn close_file(&mut self) -> Result<()> {
        if let Some(file) = self.file.take() {
            let (name, bytes) = file.finish()?;
            let blocks = std::mem::take(&mut self.file_blocks);
            self.manifest.blocks.push(BlocksFile { name, bytes, blocks });
        }
        Ok(())
    }

    fn finish(mut self) -> Result<PartManifest> {
        self.close_file()?;
        write_file(&self.dir, dataset::INDEX_NAME, &self.index)?;
        self.manifest.index_xxh3 = Checksum(xxh3_64(&self.index));
        Ok(self.manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use crate::stream::{BatchStream, StreamOptions};
    use crate::tests;
    use crate::tests::file_calls::{assert_durable, observe};

    /// Counts how often each row of a column occurs, one by one: most frequent first, equal counts in row order.
    fn counts(samples: &Samples, column: usize) -> Vec<(u64, u64)> {
        let mut counts = BTreeMap::<u64, u64>::new();
        samples.categorical[column].ids.iter().for_each(|&id| *counts.entry(id).or_default() += 1);
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
        counts
    }

    #[test]
    fn a_part_continues_in_further_files_and_is_counted_as_a_whole() {
        let dataset = tests::dataset(1000, 64);
        let (schema, train) = (&dataset.schema, &dataset.samples);
        // The last block has one sample.
        let eval = tests::samples_of(schema, 257, 2);
        let block_bytes = Dataset::open(&dataset.dir()).unwrap().part(Part::Train).unwrap().blocks[0].bytes;
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("data");
        let (manifest, calls) = observe(|| {
            let dir = PartialDir::create(&target).unwrap();
            let writer = DatasetWriter::new(&dir, schema.clone(), 64).unwrap();
            // A file is full after two blocks.
            let mut writer = writer.with_file_bytes(2 * u64::from(block_bytes));
            // Both parts in turn, neither in whole blocks.
            for (from, to) in [(0, 100), (100, 101), (101, 1000)] {
                writer.push(Part::Train, &train.slice(from..to)).unwrap();
                writer.push(Part::Eval, &eval.slice(from * 257 / 1000..to * 257 / 1000)).unwrap();
            }
            let manifest = writer.finish(tests::origin()).unwrap();
            dir.publish().unwrap();
            manifest
        });
        assert_durable(&calls, &target);

        let opened = Dataset::open(&target).unwrap();
        assert_eq!(opened.manifest(), Some(&manifest));
        for (part, samples) in [(Part::Train, train), (Part::Eval, &eval)] {
            let of = &manifest.parts[&part];
            assert_eq!(of.samples, samples.len as u64);
            let is = |wanted: fn(f32) -> bool| {
                let count = |labels: &Vec<f32>| labels.iter().filter(|&&label| wanted(label)).count() as u64;
                samples.labels.iter().map(count).collect::<Vec<_>>()
            };
            assert_eq!((&of.positives, &of.missing), (&is(|label| label == 1.0), &is(f32::is_nan)));
            let blocks = samples.len.div_ceil(64);
            assert_eq!(of.blocks.len(), blocks.div_ceil(2));
            for (number, file) in of.blocks.iter().enumerate() {
                assert_eq!(file.name, format!("{number:05}.blocks"));
                assert_eq!(file.blocks, (blocks - 2 * number).min(2) as u64);
                let path = target.join(part.name()).join(&file.name);
                assert_eq!(file.bytes, fs::metadata(path).unwrap().len());
            }
            let located = opened.part(part).unwrap();
            let sizes: Vec<_> = located.blocks.iter().map(|block| block.samples as usize).collect();
            let expected = (0..blocks).map(|block| (samples.len - 64 * block).min(64));
            assert!(sizes.iter().copied().eq(expected), "{sizes:?}");
            let mut read = Samples::new(schema);
            for batch in BatchStream::open(located, &StreamOptions::one_epoch(100)).unwrap() {
                let batch = batch.unwrap();
                read.append(&batch.samples, 0..batch.samples.len);
            }
            assert_eq!(read, *samples);
        }
        // Plans depend on the training part only: the evaluation part is not counted.
        for (column, table) in opened.statistics().unwrap().iter().enumerate() {
            assert_eq!((table.bags, table.lookups), (1000, train.categorical[column].ids.len() as u64));
            assert_eq!(table.head, counts(train, column));
            assert_eq!(table.distinct_rows, table.head.len() as u64);
        }
        let threads = NonZeroUsize::MIN;
        assert!(crate::verify::verify(&opened, threads).unwrap().is_whole());
    }

    #[test]
    fn invalid_writes_are_refused() {
        let dataset = tests::dataset(10, 4);
        let home = tempfile::tempdir().unwrap();
        let dir = PartialDir::create(&home.path().join("data")).unwrap();
        let refused = |schema, block_samples| {
            DatasetWriter::new(&dir, schema, block_samples).map(drop).unwrap_err().to_string()
        };
        assert!(refused(dataset.schema.clone(), 0).contains("at least one sample"));
        let unlabelled = Schema { labels: Vec::new(), ..dataset.schema.clone() };
        assert!(refused(unlabelled, 4).contains("no label column"));
        let empty = DatasetWriter::new(&dir, dataset.schema.clone(), 4).unwrap();
        assert!(empty.finish(tests::origin()).unwrap_err().to_string().contains("at least one"));
        let written = write_file(dir.path(), "a", b"12345").unwrap();
        let expected = FileManifest { name: "a".into(), bytes: 5, xxh3: Checksum(xxh3_64(b"12345")) };
        assert_eq!(written, expected);
        let long: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
        let written = write_file(dir.path(), "long", &long).unwrap();
        assert_eq!((written.bytes, written.xxh3), (200_000, Checksum(xxh3_64(&long))));
        write_file(dir.path(), "a", b"").unwrap_err();
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"12345");
    }
}
