//! Writing a dataset: blocks as they come, everything else at the end, and nothing that looks complete before it is.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::block::{self, BlockId};
use crate::dataset::{self, BlocksFile, FileManifest, MANIFEST_NAME, Manifest, Origin, Part, PartManifest};
use crate::error::{Error, IoContext, Result};
use crate::publish::{PartialDir, sync_dir};
use crate::samples::{LabelCounts, Samples};
use crate::schema::Schema;
use crate::sealed::Checksum;
use crate::statistics::{self, TableCounter};

/// A file of blocks is closed, and the next begun, once it has this length.
const FILE_BYTES: u64 = 1 << 30;

/// Writes a whole file, durably, and returns what a manifest says of it. `name` is the path below `dir`, with forward
/// slashes; its folder must be there.
///
/// # Errors
/// [`Error::Io`], also where the file is there already.
pub fn write_file(dir: &Path, name: &str, bytes: &[u8]) -> Result<FileManifest> {
    let mut file = CheckedFile::create(dir, name)?;
    file.write(bytes)?;
    file.finish()
}

/// A file that is written once, from front to back, and checksummed meanwhile.
pub struct CheckedFile {
    path: PathBuf,
    name: String,
    out: BufWriter<File>,
    hash: Box<Xxh3Default>,
    bytes: u64,
}

impl std::fmt::Debug for CheckedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckedFile")
            .field("path", &self.path)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl CheckedFile {
    /// `name` is the path below `dir`, with forward slashes; its folder must be there.
    ///
    /// # Errors
    /// [`Error::Io`], also where the file is there already.
    pub fn create(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let file = File::create_new(&path).context("create", &path)?;
        let out = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { path, name: name.to_owned(), out, hash: Box::default(), bytes: 0 })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).context("write", &self.path)
    }

    /// Makes the file durable.
    ///
    /// # Errors
    /// [`Error::Io`], also for what the disk had refused of earlier writes.
    pub fn finish(self) -> Result<FileManifest> {
        let file = self.out.into_inner().map_err(std::io::IntoInnerError::into_error);
        file.and_then(|file| file.sync_all()).context("write", &self.path)?;
        Ok(FileManifest { name: self.name, bytes: self.bytes, xxh3: Checksum(self.hash.digest()) })
    }
}

/// Packs samples into blocks and counts what is in them; shared by all threads that do so.
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
    /// Samples of every block but a part's last.
    pub fn block_samples(&self) -> u32 {
        self.block_samples
    }

    /// Packs one block and counts the training part's look-ups.
    ///
    /// # Errors
    /// [`Error::Invalid`] where a block would be over 2^32 bytes.
    pub fn encode(&self, part: Part, index: u64, samples: &Samples) -> Result<EncodedBlock> {
        if part == Part::Train {
            for (counter, bags) in self.counters.iter().zip(&samples.categorical) {
                counter.add(bags);
            }
        }
        let id = BlockId { dataset: self.tag, part, index };
        let bytes = block::encode(&self.schema, id, samples).map_err(Error::Invalid)?;
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
}

#[derive(Debug)]
struct PartWriter {
    dir: PathBuf,
    manifest: PartManifest,
    index: Vec<u8>,
    file: Option<CheckedFile>,
    file_blocks: u64,
    /// Samples that do not fill a block yet.
    pending: Samples,
    next_block: u64,
}

impl<'a> DatasetWriter<'a> {
    /// A writer of blocks of `block_samples` samples; [`Schema::default_block_samples`] is a good number.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the schema is not valid, or its tables have more rows than memory can count.
    pub fn new(dir: &'a PartialDir, schema: Schema, block_samples: u32) -> Result<Self> {
        schema.validate()?;
        if block_samples == 0 {
            return Err(Error::invalid("a block needs at least one sample"));
        }
        let encoder = BlockEncoder {
            tag: Manifest::tag(&schema),
            counters: statistics::counters(&schema)?,
            schema,
            block_samples,
        };
        Ok(Self { dir, encoder: Arc::new(encoder), parts: BTreeMap::new(), files: Vec::new() })
    }

    /// Takes the look-ups of a categorical column's rows in the training part as they are known already, rather than
    /// counting them. To be called before [`DatasetWriter::encoder`].
    pub(crate) fn know_counts(&mut self, column: usize, counts: &[u64]) {
        let encoder = Arc::get_mut(&mut self.encoder).expect("nobody has the encoder yet");
        encoder.counters[column] = TableCounter::known(counts);
    }

    /// What packs blocks, on any thread.
    pub fn encoder(&self) -> Arc<BlockEncoder> {
        Arc::clone(&self.encoder)
    }

    /// Lists a file that was written into the folder.
    pub(crate) fn add_file(&mut self, file: FileManifest) {
        self.files.push(file);
    }

    /// Appends samples to a part, and writes the blocks that they fill.
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

    /// Appends a block that was packed by [`DatasetWriter::encoder`]; blocks come in order.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// Where a block is out of order, or does not follow a full one.
    pub fn push_block(&mut self, block: &EncodedBlock) -> Result<()> {
        let block_samples = u64::from(self.encoder.block_samples);
        let writer = self.part(block.part)?;
        assert_eq!(block.index, writer.next_block, "blocks are written in order");
        assert_eq!(
            writer.manifest.samples,
            block.index * block_samples,
            "only a part's last block is not full"
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

    /// Writes what is left: last blocks, indexes, statistics, and last of all the manifest. The folder can then be
    /// published.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Invalid`] where there is no sample at all.
    pub fn finish(mut self, origin: Origin) -> Result<Manifest> {
        for part in Part::ALL {
            if self.parts.get(&part).is_some_and(|writer| writer.pending.len > 0) {
                self.flush(part)?;
            }
        }
        if self.parts.is_empty() {
            return Err(Error::invalid("no samples: a dataset needs at least one"));
        }
        let statistics: Vec<_> = self.encoder.counters.iter().map(TableCounter::statistics).collect();
        let dir = self.dir.path();
        self.files.push(write_file(dir, statistics::FILE_NAME, &statistics::to_bytes(&statistics))?);
        let mut parts = BTreeMap::new();
        for (part, writer) in self.parts {
            parts.insert(part, writer.finish()?);
        }
        let (schema, block_samples) = (self.encoder.schema.clone(), self.encoder.block_samples);
        let manifest = Manifest { schema, block_samples, parts, files: self.files, origin };
        write_file(dir, MANIFEST_NAME, manifest.to_json().as_bytes())?;
        Ok(manifest)
    }
}

impl PartWriter {
    fn write(&mut self, block: &EncodedBlock) -> Result<()> {
        if self.file.as_ref().is_some_and(|file| file.bytes >= FILE_BYTES) {
            self.close_file()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(CheckedFile::create(
                &self.dir,
                &format!("{:05}.blocks", self.manifest.blocks.len()),
            )?),
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
            let file = file.finish()?;
            let blocks = std::mem::take(&mut self.file_blocks);
            self.manifest.blocks.push(BlocksFile { name: file.name, bytes: file.bytes, blocks });
        }
        Ok(())
    }

    fn finish(mut self) -> Result<PartManifest> {
        self.close_file()?;
        write_file(&self.dir, dataset::INDEX_NAME, &self.index)?;
        self.manifest.index_xxh3 = Checksum(xxh3_64(&self.index));
        sync_dir(&self.dir)?;
        Ok(self.manifest)
    }
}
