//! Texts that people write: schema files of CSV, jobs, shapes, machines.

use rankine::job::{self, Precision};
use rankine_engine::planning::parse_machine;
use rankine_reader::convert::SchemaFile;
use rankine_reader::generate;
use rankine_reader::raw::RawFormat;

use super::{CSV_SCHEMAS, Reader, TEXT_BASE_BYTES, TOML_FACTOR, TempFolder, error_text};

/// Checks that a text is UTF-8, as files must be.
fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(error_text)
}

/// A schema file.
#[derive(Debug)]
pub struct Schema;

impl Reader for Schema {
    const NAME: &'static str = "schema";
    const BASE_BYTES: usize = TEXT_BASE_BYTES;
    const FACTOR: usize = TOML_FACTOR;

    fn new(_: TempFolder) -> Self {
        Self
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        SchemaFile::parse("schema.toml", text(bytes)?).map(drop).map_err(error_text)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let names = ["every-column", "no-header", "labels", "weights", "sequence"];
        names.into_iter().zip(CSV_SCHEMAS.map(|text| text.as_bytes().to_vec())).collect()
    }
}

/// A job file. After a line of `--set` come values that replace its own, one per line.
#[derive(Debug)]
pub struct Job;

const SETS: &str = "\n--set\n";

impl Reader for Job {
    const NAME: &'static str = "job";
    const BASE_BYTES: usize = TEXT_BASE_BYTES;
    const FACTOR: usize = TOML_FACTOR;

    fn new(_: TempFolder) -> Self {
        Self
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let text = text(bytes)?;
        let (text, sets) = text.split_once(SETS).unwrap_or((text, ""));
        let sets: Vec<_> = sets.lines().collect();
        let job = job::Job::from_toml("job.toml", text, &sets).map_err(error_text)?;
        // The effective job that a run stores must be the same job.
        let kept = job::Job::from_toml("job.toml", &job.to_toml(), &[] as &[&str]);
        let kept = kept.unwrap_or_else(|error| panic!("the effective job is not a job: {error}"));
        assert_eq!(kept, job, "the effective job differs");
        Ok(())
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let quickstart = include_str!("../../configs/quickstart.toml");
        let cross = include_str!("../../configs/mlperf-dlrm-dcnv2.toml");
        let set = format!("{quickstart}{SETS}train.epochs=3\ndevice.threads=2\n");
        let attention = include_str!("../../configs/sequences.toml");
        let all = [("quickstart", quickstart), ("cross", cross), ("set", &set), ("attention", attention)];
        all.map(|(name, text)| (name, text.into())).into()
    }
}

/// The shape of synthetic data and of raw records.
#[derive(Debug)]
pub struct Shape {
    folder: TempFolder,
}

impl Reader for Shape {
    const NAME: &'static str = "shape";
    const BASE_BYTES: usize = TEXT_BASE_BYTES;
    const FACTOR: usize = TOML_FACTOR;

    fn new(folder: TempFolder) -> Self {
        Self { folder }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let path = self.folder.file("shape.toml", bytes);
        let shape =
            generate::Shape::load(path.to_str().ok_or("the path is not UTF-8")?).map_err(error_text)?;
        if !shape.sequences.is_empty() {
            // Raw records have none.
            return shape.schema(None).validate().map_err(error_text);
        }
        RawFormat::new(shape).block_samples().map(drop).map_err(error_text)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let plain = "name = \"plain\"\ndense = 2\nrows = [40, 3]\n";
        let bags = "name = \"bags\"\ndense = 0\nrows = [40, 4294967296]\nhotness = [3, 1]\nragged = false\n\
                    pooling = \"mean\"\n";
        let sequences = "name = \"sequences\"\ndense = 0\nrows = [40, 3]\n[[sequence]]\nquery = [\"C1\", \"C2\"]\n\
                         max = 5\n";
        let all = [("plain", plain), ("bags", bags), ("sequences", sequences)];
        all.map(|(name, text)| (name, text.into())).into()
    }
}

/// A machine's rates.
#[derive(Debug)]
pub struct Machine;

impl Reader for Machine {
    const NAME: &'static str = "machine";
    const BASE_BYTES: usize = TEXT_BASE_BYTES;
    const FACTOR: usize = TOML_FACTOR;

    fn new(_: TempFolder) -> Self {
        Self
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        parse_machine(text(bytes)?, Precision::Bf16).map(drop).map_err(error_text)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let plain = "base = \"h200\"\nname = \"h100\"\nmemory_gib = 80\nmemory_gb_per_s = 2700\n\
                     [between_nodes]\ngb_per_s = 22.5\nlatency_us = 30\n";
        let all = "base = \"cpu\"\ntflops = 1.5\nmatmul_latency_us = 1\nshard_latency_us = 2\n\
                   lookup_bytes = 64\noverlap = 0.5\ntable_element_bytes = 2\nvector_element_bytes = 4\n\
                   reduction_element_bytes = 4\n[within_nodes]\ngb_per_s = 400\nlatency_us = 10\n\
                   reduction_efficiency = 0.8\nreduction_latency_us = 12\n";
        [("plain", plain), ("all", all)].map(|(name, text)| (name, text.into())).into()
    }
}
