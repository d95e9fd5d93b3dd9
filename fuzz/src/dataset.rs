//! A dataset: its manifest, the index and the blocks of its training part, its statistics, a vocabulary.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rankine_reader::convert::{ConvertOptions, SchemaFile, convert_csv};
use rankine_reader::dataset::Manifest;
use rankine_reader::io::{IoMode, IoOptions};
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{self as reader, verify};
use serde_json::Value;

use super::sealed::{Seal, checksum, compact, set, set_checksum};
use super::{CSV_SCHEMAS, Reader, TempFolder, block, error_text, sections};

/// The files of a dataset, the first of them without its seal. The checksums and lengths in all of them are valid.
#[derive(Debug)]
pub struct Dataset {
    dir: PathBuf,
    seal: Seal,
    manifest: Value,
    _folder: TempFolder,
}

const MANIFEST: &str = "dataset.json";
const INDEX: &str = "train/index.bin";
const BLOCKS: &str = "train/00000.blocks";
const STATISTICS: &str = "statistics.bin";
const VOCABULARY: &str = "vocabulary/user.tsv";

impl Reader for Dataset {
    const NAME: &'static str = "dataset";
    const BASE_BYTES: usize = super::Block::BASE_BYTES;
    const FACTOR: usize = super::Block::FACTOR;

    fn new(folder: TempFolder) -> Self {
        let dir = small(&folder);
        let (seal, manifest) = Seal::of(&fs::read(dir.join(MANIFEST)).unwrap());
        Self { dir, seal, manifest, _folder: folder }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let [manifest, index, blocks, statistics, vocabulary] = sections::split(bytes);
        let mut manifest: Value = serde_json::from_slice(manifest).map_err(error_text)?;
        let schema = serde_json::from_value(manifest["schema"].clone());
        let blocks = block::valid_block(blocks, schema.map_or(0, |schema| Manifest::tag(&schema)));
        let mut index = index.to_vec();
        if index.len() >= 16 && !blocks.is_empty() {
            index[..4].copy_from_slice(&(blocks.len() as u32).to_le_bytes());
            index[8..16].copy_from_slice(&blocks[8..16]);
        }
        set(&mut manifest, "/parts/train/index_xxh3", checksum(&index));
        set(&mut manifest, "/parts/train/blocks/0/bytes", blocks.len());
        let files =
            [(INDEX, &index[..]), (BLOCKS, &blocks), (STATISTICS, statistics), (VOCABULARY, vocabulary)];
        for (name, bytes) in files {
            set_checksum(&mut manifest, "/files", name, bytes);
            fs::write(self.dir.join(name), bytes).unwrap();
        }
        fs::write(self.dir.join(MANIFEST), self.seal.seal(&manifest)).unwrap();
        read_dataset(&self.dir)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let folder = TempFolder::new();
        let dir = small(&folder);
        let file = |name| fs::read(dir.join(name)).unwrap();
        let (blocks, files) = (file(BLOCKS), [INDEX, STATISTICS, VOCABULARY].map(file));
        // Statistics end with buckets, most of which are empty but cannot be omitted.
        let [index, statistics, vocabulary] = &files;
        let mut manifest = self.manifest.clone();
        set(&mut manifest, "/origin/converted/files", vec!["rows.csv"]);
        let manifest = compact(&manifest);
        vec![("whole", sections::join(&[&manifest, index, block::trimmed(&blocks), statistics, vocabulary]))]
    }
}

/// Converts a dataset of few rows with columns of every kind from CSV into the folder `data`.
pub fn small(folder: &TempFolder) -> PathBuf {
    let mut rows = "label,weight,price,user,tags,row\n".to_owned();
    for row in 0..12 {
        let tags = ["a", "b|c", "", "a|b|c"][row % 4];
        rows += &format!("{},{}.5,{row}.25,user {},{tags},{}\n", row % 2, 1 + row, row % 3, row % 10);
    }
    let (file, out) = (folder.file("rows.csv", rows), folder.path("data"));
    let options = ConvertOptions {
        split: "none".parse().unwrap(),
        threads: NonZeroUsize::MIN,
        ..ConvertOptions::new(vec![file], out.clone())
    };
    let schema = SchemaFile::parse("schema.toml", CSV_SCHEMAS[0]).unwrap();
    convert_csv(&options, &schema, 1, &|_: &'static str, _: u64, _: u64| ()).unwrap();
    out
}

/// Reads every sample of a dataset's parts and the files outside the parts.
pub fn read_dataset(dir: &Path) -> Result<(), String> {
    let dataset = reader::Dataset::open(dir).map_err(error_text)?;
    stream_dataset(&dataset)?;
    dataset.statistics().map_err(error_text)?;
    for column in &dataset.schema().categorical {
        let name = reader::vocabulary::file_name(&column.name);
        if dataset.files().iter().any(|file| file.name == name) {
            reader::Vocabulary::from_tsv(&dataset.checked_file(&name).map_err(error_text)?)?;
        }
    }
    verify::verify(&dataset, NonZeroUsize::MIN).map(drop).map_err(error_text)
}

/// Reads every sample of a dataset's parts.
pub fn stream_dataset(dataset: &reader::Dataset) -> Result<(), String> {
    for part in dataset.parts() {
        let io = IoOptions { mode: IoMode::Pread, depth: 2 };
        let options = StreamOptions { io, ..StreamOptions::one_epoch(64) };
        for batch in
            BatchStream::open(dataset.part(part).map_err(error_text)?, &options).map_err(error_text)?
        {
            batch.map_err(error_text)?;
        }
    }
    Ok(())
}
