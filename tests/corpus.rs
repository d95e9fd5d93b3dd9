//! Bytes from outside that are not what they should be: every reader of them gives an error or a result, never a panic,
//! and takes memory in proportion to what it reads.
//!
//! Each reader gets a file that is whole, many that were derived from it (cut short, bits flipped, lengths and numbers
//! replaced by hostile ones, checksums made right again), bytes of no form at all, and the files of `tests/corpus`.

#![allow(clippy::unwrap_used, reason = "what prepares a test may end it")]

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use hostile::{ALONE, read, read_variants, variants};
use rankine::checkpoint::{Checkpoint, Disk, Files, StoredRows};
use rankine::job::Job;
use rankine::saved::SavedModel;
use rankine::training::{TrainOptions, train};
use rankine_embedding::rows::Rows;
use rankine_reader::convert::{
    BadLimit, ConvertOptions, CriteoColumns, OnBad, SchemaFile, convert_criteo, convert_csv,
    convert_hugectr_raw,
};
use rankine_reader::generate::Shape;
use rankine_reader::io::{IoMode, IoOptions};
use rankine_reader::raw::RawFormat;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Vocabulary, sealed, verify};
use serde_json::Value;
use support::{Place, criteo_rows, files_below, numbers, root};

#[path = "support/hostile.rs"]
mod hostile;
mod support;

/// Every place of a JSON value in turn with something else in it.
fn json_variants(whole: &Value) -> Vec<(String, Value)> {
    fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
        out.push(at.to_owned());
        match value {
            Value::Object(map) => {
                map.iter().for_each(|(key, value)| pointers(value, &format!("{at}/{key}"), out))
            }
            // Lists are of things of one kind: the first two do.
            Value::Array(list) => {
                (0..)
                    .zip(list)
                    .take(2)
                    .for_each(|(n, value): (usize, _)| pointers(value, &format!("{at}/{n}"), out));
            }
            _ => {}
        }
    }
    let mut places = Vec::new();
    pointers(whole, "", &mut places);
    let mut hostile =
        vec![Value::Null, Value::from(""), Value::from("../x"), Value::from(-1), Value::from(0.5)];
    hostile.extend([0, 1 << 31, u64::from(u32::MAX), 1 << 53, u64::MAX].map(Value::from));
    hostile.extend([Value::Array(Vec::new()), Value::Array(vec![Value::Null; 3])]);
    let with = |place: &String, value: &Value| {
        let mut json = whole.clone();
        *json.pointer_mut(place).expect("the place is of this value") = value.clone();
        (format!("{value} at {place}"), json)
    };
    places.iter().flat_map(|place| hostile.iter().map(move |value| with(place, value))).collect()
}

/// The content of a sealed file, and how to seal another.
fn unseal(path: &Path) -> (Value, impl Fn(&Value) -> String) {
    let envelope = support::json_file(path);
    let kind = envelope["kind"].as_str().unwrap().to_owned();
    let format = envelope["format"].as_u64().unwrap() as u32;
    (envelope["content"].clone(), move |content: &Value| sealed::to_json(&kind, format, content))
}

fn checksum(bytes: &[u8]) -> Value {
    sealed::Checksum::of(bytes).to_string().into()
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Every sample of a dataset's parts, and what lies beside them.
fn read_dataset(dir: &Path) -> Result<(), String> {
    let dataset = Dataset::open(dir).map_err(said)?;
    stream(&dataset)?;
    dataset.statistics().map_err(said)?;
    for column in &dataset.schema().categorical {
        let name = rankine_reader::vocabulary::file_name(&column.name);
        if dataset.files().iter().any(|file| file.name == name) {
            Vocabulary::from_tsv(&dataset.checked_file(&name).map_err(said)?)?;
        }
    }
    verify::verify(&dataset, NonZeroUsize::MIN).map(drop).map_err(said)
}

fn stream(dataset: &Dataset) -> Result<(), String> {
    for part in dataset.parts() {
        let io = IoOptions { mode: IoMode::Pread, depth: 2 };
        let options = StreamOptions { io, ..StreamOptions::one_epoch(64) };
        for batch in BatchStream::open(dataset.part(part).map_err(said)?, &options).map_err(said)? {
            batch.map_err(said)?;
        }
    }
    Ok(())
}

/// Options of a conversion that leaves bad rows out.
fn lenient(file: PathBuf, out: PathBuf) -> ConvertOptions {
    ConvertOptions {
        on_bad: OnBad::Quarantine,
        bad_limit: BadLimit::Percent(100.0),
        threads: NonZeroUsize::MIN,
        ..ConvertOptions::new(vec![file], out)
    }
    .with_memory(1 << 20)
}

fn silent(_: &'static str, _: u64, _: u64) {}

/// Converts into the folder `out` of the place, which is gone afterwards.
fn converting(
    place: &Place,
    convert: impl Fn(&ConvertOptions) -> Result<(), String>,
) -> impl Fn() -> Result<(), String> {
    let (file, out) = (place.path("rows"), place.path("out"));
    move || {
        let outcome = convert(&lenient(file.clone(), out.clone()));
        let _ = fs::remove_dir_all(&out);
        outcome
    }
}

const CSV_SCHEMA: &str = "\
label = { column = \"label\" }
weight = { column = \"weight\" }
dense = [{ column = \"price\", transform = [\"log1p\", \"standardize\"] }]
categorical = [
    { column = \"user\", vocabulary = { kind = \"exact\", min_count = 2 } },
    { column = \"tags\", vocabulary = { kind = \"hash\", rows = 100 }, separator = \"|\" },
    { column = \"row\", vocabulary = { kind = \"identity\", rows = 10 } },
]
";

fn csv_rows() -> String {
    let mut next = numbers(3);
    let mut text = "label,weight,price,user,tags,row\n".to_owned();
    for _ in 0..300 {
        let (label, price, user, row) = (next() % 2, next() % 90, next() % 20, next() % 10);
        text += &format!("{label},1.5,{price}.25,\"user \"\"{user}\"\"\",a|b{user}|c,{row}\n");
    }
    text
}

/// A converted dataset in the folder `data` of the place.
fn dataset(place: &Place) -> PathBuf {
    let (file, out) = (place.file("log.tsv", criteo_rows(600, 1).join("\n")), place.path("data"));
    let options = ConvertOptions {
        split: "last:0.2".parse().unwrap(),
        ..ConvertOptions::new(vec![file.into()], out.clone())
    };
    let columns = CriteoColumns { vocabulary: "hash:50".parse().unwrap(), ..CriteoColumns::default() };
    let columns = CriteoColumns { columns: vec!["C1=exact".parse().unwrap()], ..columns };
    convert_criteo(&options, &columns, &silent).unwrap();
    out
}

#[test]
fn datasets() {
    let place = Place::new();
    let dir = dataset(&place);
    for file in
        ["dataset.json", "train/index.bin", "train/00000.blocks", "statistics.bin", "vocabulary/C1.tsv"]
    {
        read_variants(file, &dir.join(file), file == "dataset.json", || read_dataset(&dir));
    }
}

#[test]
fn manifests_with_right_checksums() {
    let place = Place::new();
    let dir = dataset(&place);
    let path = dir.join("dataset.json");
    let (content, seal) = unseal(&path);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = files_below(&dir).iter().map(|file| fs::metadata(file).unwrap().len() as usize).sum();
    for (case, content) in json_variants(&content) {
        fs::write(&path, seal(&content)).unwrap();
        read("dataset.json", &case, bytes, || read_dataset(&dir));
    }
}

/// Whoever writes a wrong file may well write its checksum.
#[test]
fn files_with_right_checksums() {
    let place = Place::new();
    let dir = dataset(&place);
    let manifest = dir.join("dataset.json");
    let (content, seal) = unseal(&manifest);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for name in ["statistics.bin", "vocabulary/C1.tsv"] {
        let whole = fs::read(dir.join(name)).unwrap();
        for (case, bytes) in variants(&whole, name.ends_with(".tsv")) {
            let mut content = content.clone();
            let listed = content["files"]
                .as_array_mut()
                .unwrap()
                .iter_mut()
                .find(|file| file["name"] == name)
                .unwrap();
            (listed["bytes"], listed["xxh3"]) = (bytes.len().into(), checksum(&bytes));
            fs::write(&manifest, seal(&content)).unwrap();
            fs::write(dir.join(name), &bytes).unwrap();
            read(name, &case, bytes.len() + whole.len(), || read_dataset(&dir));
        }
        fs::write(dir.join(name), &whole).unwrap();
    }
    let index = dir.join("train/index.bin");
    let whole = fs::read(&index).unwrap();
    let blocks = dir.join("train/00000.blocks");
    let block = fs::read(&blocks).unwrap();
    let index_cases = variants(&whole, false).into_iter().map(|(case, index)| (case, index, block.clone()));
    // The training part is one block: its checksum stands in its header, and in the index.
    let block_cases = variants(&block, false).into_iter().map(|(case, mut block)| {
        let mut index = whole.clone();
        if block.len() >= 64 {
            let sum = sealed::Checksum::of(&block[16..]).0.to_le_bytes();
            block[8..16].copy_from_slice(&sum);
            index[8..16].copy_from_slice(&sum);
        }
        index[0..4].copy_from_slice(&(block.len() as u32).to_le_bytes());
        (case, index, block)
    });
    for (case, index_bytes, block) in index_cases.chain(block_cases) {
        let mut content = content.clone();
        content["parts"]["train"]["index_xxh3"] = checksum(&index_bytes);
        content["parts"]["train"]["blocks"][0]["bytes"] = block.len().into();
        fs::write(&manifest, seal(&content)).unwrap();
        fs::write(&index, &index_bytes).unwrap();
        fs::write(&blocks, &block).unwrap();
        read("a block or its index", &case, index_bytes.len() + block.len(), || read_dataset(&dir));
    }
}

#[test]
fn logs() {
    let place = Place::new();
    let columns = CriteoColumns { vocabulary: "hash:50".parse().unwrap(), ..CriteoColumns::default() };
    let columns = CriteoColumns { columns: vec!["C1=exact".parse().unwrap()], ..columns };
    let criteo =
        converting(&place, |options| convert_criteo(options, &columns, &silent).map(drop).map_err(said));
    let text = criteo_rows(300, 2).join("\n");
    place.file("rows", &text);
    read_variants("criteo-tsv", &place.path("rows"), true, &criteo);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
    place.file("rows", gzip.finish().unwrap());
    read_variants("criteo-tsv, compressed", &place.path("rows"), false, &criteo);

    let schema = SchemaFile::parse("schema.toml", CSV_SCHEMA).unwrap();
    let csv = converting(&place, |options| convert_csv(options, &schema, 1, &silent).map(drop).map_err(said));
    place.file("rows", csv_rows());
    read_variants("csv", &place.path("rows"), true, csv);
}

#[test]
fn raw_records() {
    let place = Place::new();
    let shape =
        Shape { dense: 2, rows: vec![5, 7, 300], hotness: vec![1, 3, 1], ..Shape::load("dlrm").unwrap() };
    let format = RawFormat::new(shape);
    let mut next = numbers(8);
    let mut bytes = Vec::new();
    for _ in 0..500 {
        let fields =
            [next() % 2, 0x3f80_0000, 0, next() % 5, next() % 7, next() % 7, next() % 7, next() % 300];
        bytes.extend(fields.iter().flat_map(|&field| (field as u32).to_le_bytes()));
    }
    place.file("rows", bytes);
    let convert =
        converting(&place, |options| convert_hugectr_raw(options, &format, &silent).map(drop).map_err(said));
    read_variants("hugectr-raw", &place.path("rows"), false, convert);
    read_variants("raw files as they are", &place.path("rows"), false, || {
        stream(&Dataset::raw(&format, &[place.path("rows")], &[]).map_err(said)?)
    });
}

#[test]
fn shapes_schemas_and_jobs() {
    let place = Place::new();
    let shape = place.file("shape.toml", fs::read(root().join("reader/shapes/dlrm-dcnv2.toml")).unwrap());
    read_variants("a shape", &place.path("shape.toml"), true, || {
        let format = RawFormat::new(Shape::load(&shape).map_err(said)?);
        format.block_samples().map(drop).map_err(said)
    });
    place.file("schema.toml", CSV_SCHEMA);
    let schema = place.path("schema.toml");
    read_variants("a schema file", &schema, true, || SchemaFile::load(&schema).map(drop).map_err(said));
    let configs = files_below(&root().join("configs"));
    for path in configs.iter().filter(|path| !support::word(path).ends_with("-schema.toml")) {
        place.file("job.toml", fs::read(path).unwrap());
        let job = place.path("job.toml");
        read_variants("a job", &job, true, || Job::load(&job, &[] as &[&str]).map(drop).map_err(said));
    }
}

#[test]
fn models() {
    let place = Place::new();
    dataset(&place);
    let job = Job::load(support::job(&place).as_ref(), &["train.max_steps=1", "device.threads=1"]).unwrap();
    let run = place.path("run");
    train(&job, TrainOptions { run_dir: Some(&run), ..TrainOptions::default() }, &mut ()).unwrap();
    let dir = run.join("model");
    let load = || {
        let saved = SavedModel::open(&dir).map_err(said)?;
        saved.encoder(&dir).map_err(said)?;
        saved.load(&dir).map(drop).map_err(said)
    };
    for file in ["model.json", "model.safetensors", "vocabulary/C1.tsv"] {
        read_variants(file, &dir.join(file), file == "model.json", load);
    }
    let manifest = dir.join("model.json");
    let weights = fs::read(dir.join("model.safetensors")).unwrap();
    let (content, seal) = unseal(&manifest);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (case, content) in json_variants(&content) {
        fs::write(&manifest, seal(&content)).unwrap();
        read("model.json with a right checksum", &case, weights.len(), load);
    }
    for (case, bytes) in variants(&weights, false) {
        let mut content = content.clone();
        (content["weights"]["bytes"], content["weights"]["xxh3"]) = (bytes.len().into(), checksum(&bytes));
        fs::write(&manifest, seal(&content)).unwrap();
        fs::write(dir.join("model.safetensors"), &bytes).unwrap();
        read("model.safetensors with a right checksum", &case, bytes.len() + weights.len(), load);
    }
}

#[test]
fn checkpoints() {
    let place = Place::new();
    dataset(&place);
    let sets =
        ["train.max_steps=2", "device.threads=1", "checkpoint.every_steps=1", "checkpoint.incremental=true"];
    let job = Job::load(support::job(&place).as_ref(), &sets).unwrap();
    let run = place.path("run");
    train(&job, TrainOptions { run_dir: Some(&run), ..TrainOptions::default() }, &mut ()).unwrap();
    let files: Arc<dyn Files> = Arc::new(Disk);
    let whole = run.join("checkpoints/step-1");
    // The second one is an addition to the first.
    for dir in [&whole, &run.join("checkpoints/step-2")] {
        let load = || {
            let checkpoint = Checkpoint::open(&files, dir).map_err(said)?;
            let rows = StoredRows::new(&checkpoint).map_err(said)?;
            checkpoint.dense().map_err(said)?;
            for (number, part) in rows.parts().iter().enumerate() {
                rows.read(number, 0..part.rows.len(), &mut Vec::new()).map_err(said)?;
            }
            checkpoint.verify().map(drop).map_err(said)
        };
        let bytes: usize =
            files_below(dir).iter().map(|file| fs::metadata(file).unwrap().len() as usize).sum();
        let [manifest, index, shard] =
            ["manifest.json", "shard-00000.json", "shard-00000.safetensors"].map(|name| dir.join(name));
        for file in [&manifest, &index, &shard] {
            let is_text = *file != shard;
            read_variants(&support::word(file), file, is_text, load);
        }
        let (of_manifest, seal) = unseal(&manifest);
        let (of_index, seal_index) = unseal(&index);
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = [&manifest, &index].map(|path| (path, fs::read(path).unwrap()));
        for (case, content) in json_variants(&of_manifest) {
            fs::write(&manifest, seal(&content)).unwrap();
            read("a checkpoint's manifest with a right checksum", &case, bytes, load);
        }
        for (case, content) in json_variants(&of_index) {
            let text = seal_index(&content);
            let mut of_manifest = of_manifest.clone();
            let entry = &mut of_manifest["shards"][0];
            (entry["bytes"], entry["xxh3"]) = (text.len().into(), checksum(text.as_bytes()));
            fs::write(&index, text).unwrap();
            fs::write(&manifest, seal(&of_manifest)).unwrap();
            read("a shard's index with a right checksum", &case, bytes, load);
        }
        kept.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        load().unwrap();
    }
}
