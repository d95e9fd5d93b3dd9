//! Datasets in folders: one that a conversion wrote, or several taken together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rankine_base::error::{Error, Result};
use rankine_base::sealed::Checksum;
use rankine_base::url::is_url;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    BlockCoding, BlockLocation, DatasetPart, FileManifest, INDEX_ENTRY_BYTES, INDEX_NAME, MANIFEST_NAME,
    Manifest, PackedShard, PartManifest,
};
use crate::block::BLOCK_ALIGN;
use crate::part::Part;
use crate::schema::Schema;
use crate::statistics::{self, TableStatistics, TableSum};
use crate::store::{self, Objects};

/// The folders of a dataset: one, or the shards of a collection.
#[derive(Debug, Clone)]
pub(crate) struct Folders {
    /// What they contain together, with the vocabularies of the reference. It lists the statistics unless they are
    /// added up each time.
    pub(crate) manifest: Manifest,
    /// In the order of their samples.
    shards: Vec<Shard>,
    /// The number of the shard whose vocabularies hold the categories of all others.
    pub(crate) reference: usize,
    /// The folder of the statistics.
    statistics: PathBuf,
}

/// A folder that a conversion or a generation wrote.
#[derive(Debug, Clone)]
pub(crate) struct Shard {
    pub(crate) dir: PathBuf,
    pub(crate) manifest: Manifest,
    /// The checksum of the manifest's file.
    pub(crate) xxh3: Checksum,
}

impl Shard {
    /// Opens a folder: reads and checks its manifest.
    ///
    /// # Errors
    /// [`Error::Io`] if the manifest cannot be read, [`Error::Damaged`] if it is not what was written.
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST_NAME);
        let text = store::read(&path)?;
        let manifest = Manifest::from_json(&text).map_err(|what| Error::damaged(&path, None, what))?;
        Ok(Self { dir: dir.to_owned(), manifest, xxh3: Checksum::of(&text) })
    }

    /// Returns the samples of each part.
    pub(super) fn samples(&self) -> BTreeMap<Part, u64> {
        self.manifest.parts.iter().map(|(&part, of)| (part, of.samples)).collect()
    }

    /// Returns a part of it: reads the index and checks that the part's files exist with full length.
    fn part(&self, part: Part, manifest: &PartManifest) -> Result<DatasetPart> {
        let dir = self.dir.join(part.name());
        let index_path = dir.join(INDEX_NAME);
        let index = store::read(&index_path)?;
        let damaged = |what: String| Error::damaged(&index_path, None, what);
        if xxh3_64(&index) != manifest.index_xxh3.0 || !index.len().is_multiple_of(INDEX_ENTRY_BYTES) {
            return Err(damaged("its checksum does not match dataset.json".into()));
        }
        let block_samples = self.manifest.block_samples;
        let mut samples_left = manifest.samples;
        let mut entries = index.chunks_exact(INDEX_ENTRY_BYTES);
        let mut blocks = Vec::with_capacity(entries.len());
        let mut files = Vec::with_capacity(manifest.blocks.len());
        let mut objects = Objects::default();
        for (number, file) in manifest.blocks.iter().enumerate() {
            let path = dir.join(&file.name);
            let version = store::version(&path)?;
            let bytes = version.bytes;
            if bytes != file.bytes {
                return Err(Error::damaged(
                    &path,
                    bytes.min(file.bytes),
                    format!("it has {bytes} bytes but should have {}: was it copied completely?", file.bytes),
                ));
            }
            let mut offset = 0;
            for entry in entries.by_ref().take(file.blocks as usize) {
                let bytes = u32::from_le_bytes(entry[0..4].try_into().expect("four bytes"));
                let checksum = u64::from_le_bytes(entry[8..16].try_into().expect("eight bytes"));
                if bytes == 0 || !(bytes as usize).is_multiple_of(BLOCK_ALIGN) {
                    return Err(damaged(format!(
                        "it lists block {} with {bytes} bytes, but block sizes are multiples of {BLOCK_ALIGN}",
                        blocks.len()
                    )));
                }
                let samples = samples_left.min(u64::from(block_samples)) as u32;
                blocks.push(BlockLocation { file: number as u32, offset, bytes, samples, checksum });
                offset += u64::from(bytes);
                samples_left -= u64::from(samples);
            }
            if offset != file.bytes {
                return Err(damaged(format!("its blocks of {} do not sum to the file's length", file.name)));
            }
            if is_url(&path) {
                objects.versions.insert(path.clone(), version);
            }
            files.push(path);
        }
        let expected_blocks = manifest.samples.div_ceil(u64::from(block_samples));
        if entries.len() > 0 || blocks.len() as u64 != expected_blocks {
            return Err(damaged(format!(
                "it lists {} blocks, but {} samples make {expected_blocks}",
                blocks.len() + entries.len(),
                manifest.samples
            )));
        }
        let tag = Manifest::tag(&self.manifest.schema);
        Ok(DatasetPart {
            part,
            files,
            objects,
            blocks,
            samples: manifest.samples,
            block_samples,
            schema: Arc::new(self.manifest.schema.clone()),
            coding: BlockCoding::Packed { shards: vec![PackedShard { first_block: 0, tag }] },
            selection: None,
            ids: Default::default(),
        })
    }

    /// Reads a file that the manifest lists, and checks its checksum.
    fn checked_file(&self, name: &str) -> Result<Vec<u8>> {
        checked_file(&self.manifest.files, &self.dir.join(MANIFEST_NAME), name)
    }
}

impl Folders {
    /// Returns a dataset of one folder.
    pub(super) fn of_one(shard: Shard) -> Self {
        let statistics = shard.dir.clone();
        Self { manifest: shard.manifest.clone(), shards: vec![shard], reference: 0, statistics }
    }

    /// Takes shards together that have the same columns. The statistics are in a file of a folder, or are added up each
    /// time.
    pub(crate) fn of(
        shards: Vec<Shard>,
        reference: usize,
        statistics: Option<(&Path, FileManifest)>,
    ) -> Self {
        let mut shards = shards;
        if statistics.is_none()
            && shards.len() == 1
            && let Some(shard) = shards.pop()
        {
            return Self::of_one(shard);
        }
        let mut files = shards[reference].manifest.files.clone();
        files.retain(|file| file.name != statistics::FILE_NAME);
        let mut folder = PathBuf::new();
        if let Some((dir, file)) = statistics {
            folder = dir.to_owned();
            files.push(file);
        }
        let manifest = manifest_of(&shards, reference, files);
        Self { manifest, shards, reference, statistics: folder }
    }

    /// Leaves a part out.
    pub(super) fn remove(&mut self, part: Part) {
        self.manifest.parts.remove(&part);
        self.shards.iter_mut().for_each(|shard| drop(shard.manifest.parts.remove(&part)));
    }

    pub(crate) fn into_shards(self) -> Vec<Shard> {
        self.shards
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Returns the blocks of all shards that have a part; `None` if no shard has it.
    pub(super) fn part(&self, part: Part) -> Result<Option<DatasetPart>> {
        let mut whole: Option<DatasetPart> = None;
        for shard in &self.shards {
            let Some(manifest) = shard.manifest.parts.get(&part) else { continue };
            let of_shard = shard.part(part, manifest)?;
            match &mut whole {
                None => whole = Some(of_shard),
                Some(whole) => append(whole, of_shard),
            }
        }
        let schema = &self.manifest.schema;
        Ok(whole.map(|whole| match *whole.schema == *schema {
            true => whole,
            false => DatasetPart { schema: Arc::new(schema.clone()), ..whole },
        }))
    }

    /// Returns the folder of the statistics.
    pub(crate) fn statistics_folder(&self) -> &Path {
        &self.statistics
    }

    /// Returns the look-ups of the training part, added up over all shards.
    pub(crate) fn statistics(&self) -> Result<Vec<TableStatistics>> {
        let Manifest { schema, files, .. } = &self.manifest;
        match files.iter().any(|file| file.name == statistics::FILE_NAME) {
            true => parse_statistics(&self.statistics, &self.checked_file(statistics::FILE_NAME)?, schema),
            false => self.summed_statistics(),
        }
    }

    /// Checks that the statistics of a collection are the sums over its shards.
    pub(super) fn check_statistics(&self) -> Result<()> {
        let listed = self.statistics()?;
        let is_own = matches!(&self.shards[..], [shard] if shard.dir == self.statistics);
        if is_own || listed == self.summed_statistics()? {
            return Ok(());
        }
        let path = self.statistics.join(statistics::FILE_NAME);
        Err(Error::damaged(&path, None, "its counts are not the sums over the shards: merge them again"))
    }

    /// Adds up the statistics of all shards.
    fn summed_statistics(&self) -> Result<Vec<TableStatistics>> {
        let of_shard = |shard: &Shard| {
            let bytes = shard.checked_file(statistics::FILE_NAME)?;
            parse_statistics(&shard.dir, &bytes, &shard.manifest.schema)
        };
        if let [shard] = &self.shards[..] {
            return of_shard(shard);
        }
        let mut sums: Vec<TableSum> = Vec::new();
        sums.resize_with(self.manifest.schema.stored_categorical().len(), Default::default);
        // A shard without a training part has counted nothing.
        for shard in self.shards.iter().filter(|shard| shard.manifest.parts.contains_key(&Part::Train)) {
            sums.iter_mut().zip(of_shard(shard)?).for_each(|(sum, table)| sum.add(table));
        }
        Ok(sums.into_iter().map(TableSum::finish).collect())
    }

    /// Returns the folder with the files of all shards together; `None` if they are added up each time.
    pub(super) fn folder(&self) -> Option<&Path> {
        Some(&*self.statistics).filter(|folder| *folder != Path::new(""))
    }

    pub(super) fn checked_file(&self, name: &str) -> Result<Vec<u8>> {
        let dir = match name == statistics::FILE_NAME {
            true => &self.statistics,
            false => &self.shards[self.reference].dir,
        };
        checked_file(&self.manifest.files, &dir.join(MANIFEST_NAME), name)
    }
}

/// Appends the blocks of the next shard.
fn append(whole: &mut DatasetPart, next: DatasetPart) {
    let (file, block) = (whole.files.len() as u32, whole.blocks.len() as u32);
    whole.files.extend(next.files);
    whole.objects.versions.extend(next.objects.versions);
    whole.blocks.extend(next.blocks.into_iter().map(|of| BlockLocation { file: file + of.file, ..of }));
    whole.samples += next.samples;
    whole.block_samples = whole.block_samples.max(next.block_samples);
    if let (BlockCoding::Packed { shards }, BlockCoding::Packed { shards: more }) =
        (&mut whole.coding, next.coding)
    {
        shards.extend(more.into_iter().map(|shard| PackedShard { first_block: block, ..shard }));
    }
}

fn parse_statistics(dir: &Path, bytes: &[u8], schema: &Schema) -> Result<Vec<TableStatistics>> {
    let path = dir.join(statistics::FILE_NAME);
    let tables = statistics::from_bytes(bytes).map_err(|what| Error::damaged(&path, None, what))?;
    let columns = schema.stored_categorical();
    if tables.len() != columns.len() {
        return Err(Error::damaged(&path, None, "it does not have one table per categorical column"));
    }
    for (column, table) in columns.iter().zip(&tables) {
        let name = &column.name;
        if column.is_open() && table.distinct_rows > 0 {
            let what = format!("it counts rows of column {name}, whose vocabulary is open");
            return Err(Error::damaged(&path, None, what));
        }
        if !column.is_open() && !table.counts_rows() {
            return Err(Error::damaged(&path, None, format!("it does not count the rows of column {name}")));
        }
        if let Some((row, _)) = table.head.iter().find(|&&(row, _)| !column.admits(row)) {
            let what = format!("it counts row {row} of column {name}, which has {}", column.table());
            return Err(Error::damaged(&path, None, what));
        }
    }
    Ok(tables)
}

/// Reads a file that the manifest of its folder lists, and checks its checksum.
///
/// # Errors
/// [`Error::Damaged`] if it is not listed, or not what was written.
pub(super) fn checked_file(files: &[FileManifest], manifest: &Path, name: &str) -> Result<Vec<u8>> {
    let path = manifest.with_file_name(name);
    let Some(listed) = files.iter().find(|file| file.name == name) else {
        return Err(Error::damaged(manifest, None, format!("it does not list {name}")));
    };
    let bytes = store::read(&path)?;
    if bytes.len() as u64 != listed.bytes || xxh3_64(&bytes) != listed.xxh3.0 {
        let manifest = manifest.file_name().unwrap_or_default().display();
        return Err(Error::damaged(&path, None, format!("its checksum does not match {manifest}")));
    }
    Ok(bytes)
}

/// Returns the manifest of several shards together: the columns of the reference with the largest bags of any shard,
/// and the sums of the parts.
fn manifest_of(shards: &[Shard], reference: usize, files: Vec<FileManifest>) -> Manifest {
    let Manifest { mut schema, mut block_samples, mut parts, origin, .. } =
        shards[reference].manifest.clone();
    parts.clear();
    for Manifest { schema: of_shard, block_samples: samples, parts: more, .. } in
        shards.iter().map(|shard| &shard.manifest)
    {
        block_samples = block_samples.max(*samples);
        for (column, of_shard) in schema.categorical.iter_mut().zip(&of_shard.categorical) {
            column.hotness = column.hotness.or(of_shard.hotness);
        }
        for (part, of_shard) in more {
            match parts.get_mut(part) {
                None => drop(parts.insert(*part, of_shard.clone())),
                Some(whole) => whole.add(of_shard),
            }
        }
    }
    Manifest { schema, block_samples, parts, files, origin }
}

impl PartManifest {
    /// Adds the same part of another shard.
    fn add(&mut self, shard: &Self) {
        self.samples += shard.samples;
        for (sums, counts) in [(&mut self.positives, &shard.positives), (&mut self.missing, &shard.missing)] {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        self.blocks.extend_from_slice(&shard.blocks);
        // Of no single file: it changes with each of them.
        let sums = [self.index_xxh3, shard.index_xxh3].map(|sum| sum.0.to_le_bytes());
        self.index_xxh3 = Checksum::of(&sums.concat());
    }
}
