//! A dataset: its manifest, the index and the blocks of its training part, its statistics, a vocabulary, and how often
//! each row is looked up.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rankine_base::sealed::Checksum;
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
const POPULARITY: &str = "popularity.bin";

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
        let [manifest, index, blocks, statistics, vocabulary, popularity] = sections::split(bytes);
        let mut manifest: Value = serde_json::from_slice(manifest).map_err(error_text)?;
        let schema = serde_json::from_value(manifest["schema"].clone());
        let tag = schema.map_or(0, |schema| Manifest::tag(&schema));
        let blocks = block::valid_block(blocks, tag);
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
        let popularity = sealed_popularity(popularity, tag, Checksum::of(&index).0);
        fs::write(self.dir.join(POPULARITY), popularity).unwrap();
        fs::write(self.dir.join(MANIFEST), self.seal.seal(&manifest)).unwrap();
        read_dataset(&self.dir)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let folder = TempFolder::new();
        let dir = small(&folder);
        let file = |name| fs::read(dir.join(name)).unwrap();
        let (blocks, files) = (file(BLOCKS), [INDEX, STATISTICS, VOCABULARY, POPULARITY].map(file));
        // Statistics end with buckets, most of which are empty but cannot be omitted.
        let [index, statistics, vocabulary, popularity] = &files;
        let mut manifest = self.manifest.clone();
        set(&mut manifest, "/origin/converted/files", vec!["rows.csv"]);
        let manifest = compact(&manifest);
        let blocks = block::trimmed(&blocks);
        vec![("whole", sections::join(&[&manifest, index, blocks, statistics, vocabulary, popularity]))]
    }
}

/// Returns the file with valid checksums of its head and of each table's codes, as a dataset has it.
fn sealed_popularity(bytes: &[u8], tag: u64, index_xxh3: u64) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    let field = |bytes: &[u8], at: usize| {
        Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().expect("eight bytes")))
    };
    let set =
        |bytes: &mut Vec<u8>, at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    let Some(head_bytes) =
        field(bytes, 32).map(|len| len as usize).filter(|len| (56..=bytes.len()).contains(len))
    else {
        return sealed;
    };
    let (mut table, mut codes) = (56, head_bytes);
    while table + 40 <= head_bytes
        && let (Some(len), Some(classes)) = (field(bytes, table + 16), field(bytes, table + 32))
        && let Some(of_table) = codes.checked_add(len as usize).and_then(|end| bytes.get(codes..end))
    {
        set(&mut sealed, table + 24, Checksum::of(of_table).0);
        codes += len as usize;
        let Some(next) = (classes as usize).checked_mul(24).and_then(|len| len.checked_add(table + 40))
        else {
            break;
        };
        table = next;
    }
    set(&mut sealed, 16, tag);
    set(&mut sealed, 24, index_xxh3);
    let checksum = Checksum::of(&[&sealed[..40], &sealed[48..head_bytes]].concat()).0;
    set(&mut sealed, 40, checksum);
    sealed
}

/// Converts a dataset of few rows with columns of every kind from CSV into the folder `data`.
pub fn small(folder: &TempFolder) -> PathBuf {
    let mut rows = "label,weight,price,user,tags,row\n".to_owned();
    for row in 0..12 {
        let tags = ["a", "b|c", "", "a|b|c"][row % 4];
        rows += &format!("{},{}.5,{row}.25,user {},{tags},{}\n", row % 2, 1 + row, row % 3, row % 10);
    }
    converted(folder, CSV_SCHEMAS[0], rows)
}

/// Converts rows of CSV into the folder `data`.
pub fn converted(folder: &TempFolder, schema: &str, rows: String) -> PathBuf {
    let (file, out) = (folder.file("rows.csv", rows), folder.path("data"));
    let options = ConvertOptions {
        split: "none".parse().unwrap(),
        threads: NonZeroUsize::MIN,
        ..ConvertOptions::new(vec![file], out.clone())
    };
    let schema = SchemaFile::parse("schema.toml", schema).unwrap();
    convert_csv(&options, &schema, 1, &|_: &'static str, _: u64, _: u64| ()).unwrap();
    out
}

/// Reads every sample of a dataset's parts and the files outside the parts.
pub fn read_dataset(dir: &Path) -> Result<(), String> {
    let dataset = reader::Dataset::open(dir).map_err(error_text)?;
    stream_dataset(&dataset)?;
    dataset.statistics().map_err(error_text)?;
    dataset.popularity_classes().map_err(error_text)?;
    for column in 0..dataset.schema().categorical.len() {
        let popularity = dataset.popularity(column).map_err(error_text)?;
        popularity.map(|of| of.hottest(10));
    }
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
