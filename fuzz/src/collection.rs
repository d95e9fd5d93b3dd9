//! A collection of two datasets: its manifest and its statistics.

use std::fs;
use std::path::{Path, PathBuf};

use rankine_reader::Dataset;
use rankine_reader::merge::merge;
use serde_json::Value;

use super::dataset::{read_dataset, small};
use super::sealed::{Seal, checksum, compact, set};
use super::{Reader, TempFolder, error_text, sections};

/// A folder of two datasets, in which a collection of them is written. The checksums that it states are valid.
#[derive(Debug)]
pub struct Collection {
    dir: PathBuf,
    seal: Seal,
    content: Value,
    statistics: Vec<u8>,
    _folder: TempFolder,
}

const MANIFEST: &str = "collection.json";
const STATISTICS: &str = "statistics.bin";
const SHARDS: [&str; 2] = ["a", "b"];

impl Reader for Collection {
    const NAME: &'static str = "collection";
    const FACTOR: usize = super::TEXT_FACTOR;

    fn new(folder: TempFolder) -> Self {
        let shards = SHARDS.map(|name| {
            let dir = folder.path(name);
            fs::rename(small(&folder), &dir).unwrap();
            dir
        });
        let merged = folder.path("merged");
        merge(&shards, &merged).unwrap();
        let (seal, mut content) = Seal::of(&fs::read(merged.join(MANIFEST)).unwrap());
        for (number, name) in SHARDS.into_iter().enumerate() {
            set(&mut content, &format!("/shards/{number}/path"), name);
        }
        let statistics = fs::read(merged.join(STATISTICS)).unwrap();
        fs::remove_dir_all(merged).unwrap();
        Self { dir: folder.path("."), seal, content, statistics, _folder: folder }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let [content, statistics] = sections::split(bytes);
        let mut content: Value = serde_json::from_slice(content).map_err(error_text)?;
        for shard in content.pointer_mut("/shards").and_then(Value::as_array_mut).into_iter().flatten() {
            let path = PathBuf::from(shard["path"].as_str().unwrap_or_default());
            let Some(name) = SHARDS.into_iter().find(|name| path.file_name().is_some_and(|of| of == *name))
            else {
                continue;
            };
            // The manifests of the shards name temporary files, so their checksums differ each time, and so do the
            // absolute paths, for which `/a` stands.
            let dir = self.dir.join(name);
            set(shard, "/dataset_xxh3", checksum(&fs::read(dir.join("dataset.json")).unwrap()));
            if path.parent() == Some(Path::new("/")) {
                set(shard, "/path", dir.to_str().unwrap());
            }
        }
        set(&mut content, "/statistics/bytes", statistics.len());
        set(&mut content, "/statistics/xxh3", checksum(statistics));
        fs::write(self.dir.join(STATISTICS), statistics).unwrap();
        fs::write(self.dir.join(MANIFEST), self.seal.seal(&content)).unwrap();
        read_dataset(&self.dir)?;
        // Whatever is accepted has the samples of different shards.
        let samples = |dataset: &Path| -> u64 {
            let dataset = Dataset::open(dataset).expect("it was just read");
            dataset
                .parts()
                .into_iter()
                .map(|part| dataset.part(part).expect("it was just read").samples)
                .sum()
        };
        let all: u64 = SHARDS.iter().map(|name| samples(&self.dir.join(name))).sum();
        assert!(samples(&self.dir) <= all, "a shard is read twice");
        Ok(())
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut content = self.content.clone();
        for number in 0..SHARDS.len() {
            set(&mut content, &format!("/shards/{number}/dataset_xxh3"), checksum(&[]));
        }
        let whole = sections::join(&[&compact(&content), &self.statistics]);
        set(&mut content, "/shards/0/path", "/a");
        vec![("whole", whole), ("absolute", sections::join(&[&compact(&content), &self.statistics]))]
    }
}
