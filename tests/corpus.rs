//! Malformed outside bytes: every reader returns an error or a result, never panics, and takes memory in proportion
//! to its input.
//!
//! Each reader gets a valid file, many files derived from it (truncated, with flipped bits, with hostile lengths and
//! numbers, with corrected checksums), bytes without any format, and the files of `tests/corpus`. The inputs in
//! `fuzz/corpus` are read by the fuzz targets' readers: the valid seeds, which `RANKINE_BLESS=1` writes again, and
//! inputs found by fuzzing.

#![allow(clippy::unwrap_used, reason = "the setup of a test may panic")]
#![allow(
    clippy::duplicate_mod,
    reason = "the memory for reading is counted for fuzz targets and for this test"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fuzz::{CSV_SCHEMAS, error_text, lenient, read_checkpoint, read_dataset, stream_dataset};
use hostile::{alone, read, read_variants, read_within, variants};
use rankine::job::Job;
use rankine_base::sealed;
use rankine_checkpoint::{STRIPE_BYTES, striped_checksum};
use rankine_engine::training::{TrainOptions, train};
use rankine_reader::Dataset;
use rankine_reader::convert::{
    ConvertOptions, CriteoColumns, SchemaFile, convert_criteo, convert_csv, convert_hugectr_raw,
};
use rankine_reader::generate::Shape;
use rankine_reader::raw::RawFormat;
use rankine_saved::SavedModel;
use serde_json::Value;
use support::{Place, criteo_rows, files_below, numbers, root};

#[path = "../fuzz/src/lib.rs"]
mod fuzz;
#[path = "support/hostile.rs"]
mod hostile;
mod support;

/// Reads the corpus of a fuzz target.
fn replay<R: fuzz::Reader>() {
    let _alone = alone();
    let reader = R::new(fuzz::TempFolder::new());
    let folder = root().join("fuzz/corpus").join(R::NAME);
    for (name, bytes) in reader.seeds() {
        let path = folder.join(format!("seed-{name}"));
        if std::env::var_os("RANKINE_BLESS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, bytes).unwrap();
        }
        let kept = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        reader.read(&kept).unwrap_or_else(|error| panic!("{} is not valid: {error}", path.display()));
    }
    for path in files_below(&folder) {
        let bytes = fs::read(&path).unwrap();
        let limit = R::BASE_BYTES + R::FACTOR * bytes.len();
        read_within(R::NAME, &support::word(&path), (limit, bytes.len()), || reader.read(&bytes));
    }
}

macro_rules! replays {
    ($($test:ident: $reader:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            replay::<fuzz::$reader>();
        })*

        #[test]
        fn every_corpus_is_read() {
            let read = BTreeSet::from([$(<fuzz::$reader as fuzz::Reader>::NAME.to_owned()),*]);
            let names = |folder: &str, end: &str| -> BTreeSet<String> {
                let entries = fs::read_dir(root().join("fuzz").join(folder)).unwrap();
                let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
                entries.map(|entry| name(entry).trim_end_matches(end).to_owned()).collect()
            };
            assert_eq!(names("corpus", ""), read);
            assert_eq!(names("targets", ".rs"), read);
        }
    };
}

replays! {
    corpus_of_block: Block,
    corpus_of_checkpoint: Checkpoint,
    corpus_of_collection: Collection,
    corpus_of_criteo: Criteo,
    corpus_of_csv: Csv,
    corpus_of_dataset: Dataset,
    corpus_of_delta: Delta,
    corpus_of_fit: Fit,
    corpus_of_frames: Frames,
    corpus_of_job: Job,
    corpus_of_machine: Machine,
    corpus_of_mapped: Mapped,
    corpus_of_model: Model,
    corpus_of_raw: Raw,
    corpus_of_schema: Schema,
    corpus_of_shape: Shape,
    corpus_of_vocabulary: Vocabulary,
}

/// Returns variants of a JSON value in which each position in turn has another value.
fn json_variants(whole: &Value) -> Vec<(String, Value)> {
    fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
        out.push(at.to_owned());
        match value {
            Value::Object(map) => {
                map.iter().for_each(|(key, value)| pointers(value, &format!("{at}/{key}"), out))
            }
            // The elements of a list are all of one kind: the first two suffice.
            Value::Array(list) => {
                (0..)
                    .zip(list)
                    .take(2)
                    .for_each(|(n, value): (usize, _)| pointers(value, &format!("{at}/{n}"), out));
            }
            _ => {}
        }
    }
    let mut positions = Vec::new();
    pointers(whole, "", &mut positions);
    let mut hostile =
        vec![Value::Null, Value::from(""), Value::from("../x"), Value::from(-1), Value::from(0.5)];
    hostile.extend([0, 1 << 31, u64::from(u32::MAX), 1 << 53, u64::MAX].map(Value::from));
    hostile.extend([Value::Array(Vec::new()), Value::Array(vec![Value::Null; 3])]);
    let with = |pointer: &String, value: &Value| {
        let mut json = whole.clone();
        *json.pointer_mut(pointer).expect("the pointer is of this value") = value.clone();
        (format!("{value} at {pointer}"), json)
    };
    positions.iter().flat_map(|pointer| hostile.iter().map(move |value| with(pointer, value))).collect()
}

/// Returns the content of a sealed file, and a function that seals other content.
fn unseal(path: &Path) -> (Value, impl Fn(&Value) -> String) {
    let envelope = support::json_file(path);
    let kind = envelope["kind"].as_str().unwrap().to_owned();
    let format = envelope["format"].as_u64().unwrap() as u32;
    (envelope["content"].clone(), move |content: &Value| sealed::to_json(&kind, format, content))
}

fn checksum(bytes: &[u8]) -> Value {
    sealed::Checksum::of(bytes).to_string().into()
}

fn silent(_: &'static str, _: u64, _: u64) {}

/// Converts into the folder `out` in `place`, which is removed afterwards.
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

fn csv_rows() -> String {
    let mut next = numbers(3);
    let mut text = "label,weight,price,user,tags,row\n".to_owned();
    for _ in 0..300 {
        let (label, price, user, row) = (next() % 2, next() % 90, next() % 20, next() % 10);
        text += &format!("{label},1.5,{price}.25,\"user \"\"{user}\"\"\",a|b{user}|c,{row}\n");
    }
    text
}

/// Writes a converted dataset in the folder `data` in `place`.
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
    let _alone = alone();
    let place = Place::new();
    let dir = dataset(&place);
    for file in [
        "dataset.json",
        "train/index.bin",
        "train/00000.blocks",
        "statistics.bin",
        "vocabulary/C1.tsv",
        "popularity.bin",
    ] {
        read_variants(file, &dir.join(file), file == "dataset.json", || read_dataset(&dir));
    }
}

#[test]
fn manifests_with_valid_checksums() {
    let _alone = alone();
    let place = Place::new();
    let dir = dataset(&place);
    let path = dir.join("dataset.json");
    let (content, seal) = unseal(&path);
    let bytes = files_below(&dir).iter().map(|file| fs::metadata(file).unwrap().len() as usize).sum();
    for (case, content) in json_variants(&content) {
        fs::write(&path, seal(&content)).unwrap();
        read("dataset.json", &case, bytes, || read_dataset(&dir));
    }
}

/// A wrong file may well have a valid checksum.
#[test]
fn files_with_valid_checksums() {
    let _alone = alone();
    let place = Place::new();
    let dir = dataset(&place);
    let manifest = dir.join("dataset.json");
    let (content, seal) = unseal(&manifest);
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
    // The training part is one block: its checksum is in its header and in the index.
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
    let _alone = alone();
    let place = Place::new();
    let columns = CriteoColumns { vocabulary: "hash:50".parse().unwrap(), ..CriteoColumns::default() };
    let columns = CriteoColumns { columns: vec!["C1=exact".parse().unwrap()], ..columns };
    let criteo = converting(&place, |options| {
        convert_criteo(options, &columns, &silent).map(drop).map_err(error_text)
    });
    let text = criteo_rows(300, 2).join("\n");
    place.file("rows", &text);
    read_variants("criteo-tsv", &place.path("rows"), true, &criteo);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
    place.file("rows", gzip.finish().unwrap());
    read_variants("criteo-tsv, gzip", &place.path("rows"), false, &criteo);
    let level = || ruzstd::encoding::CompressionLevel::Fastest;
    let (front, back) = text.as_bytes().split_at(text.len() / 2);
    let frames = [front, back].map(|frame| ruzstd::encoding::compress_to_vec(frame, level()));
    place.file("rows", frames.concat());
    read_variants("criteo-tsv, zstd", &place.path("rows"), false, &criteo);

    let schema = SchemaFile::parse("schema.toml", CSV_SCHEMAS[0]).unwrap();
    let csv =
        converting(&place, |options| convert_csv(options, &schema, 1, &silent).map(drop).map_err(error_text));
    place.file("rows", csv_rows());
    read_variants("csv", &place.path("rows"), true, csv);
}

#[test]
fn raw_records() {
    let _alone = alone();
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
    let convert = converting(&place, |options| {
        convert_hugectr_raw(options, &format, &silent).map(drop).map_err(error_text)
    });
    read_variants("hugectr-raw", &place.path("rows"), false, convert);
    read_variants("raw files as they are", &place.path("rows"), false, || {
        stream_dataset(&Dataset::raw(&format, &[place.path("rows")], &[]).map_err(error_text)?)
    });
}

#[test]
fn shapes_schemas_and_jobs() {
    let _alone = alone();
    let place = Place::new();
    let shape = place.file("shape.toml", fs::read(root().join("reader/shapes/dlrm-dcnv2.toml")).unwrap());
    read_variants("a shape", &place.path("shape.toml"), true, || {
        let format = RawFormat::new(Shape::load(&shape).map_err(error_text)?);
        format.block_samples().map(drop).map_err(error_text)
    });
    place.file("schema.toml", CSV_SCHEMAS[0]);
    let schema = place.path("schema.toml");
    read_variants("a schema file", &schema, true, || SchemaFile::load(&schema).map(drop).map_err(error_text));
    let configs = files_below(&root().join("configs"));
    let is_job = |path: &&PathBuf| {
        let path = support::word(path);
        path.ends_with(".toml") && !path.ends_with("-schema.toml")
    };
    for path in configs.iter().filter(is_job) {
        place.file("job.toml", fs::read(path).unwrap());
        let job = place.path("job.toml");
        read_variants("a job", &job, true, || Job::load(&job, &[] as &[&str]).map(drop).map_err(error_text));
    }
}

#[test]
fn models() {
    let _alone = alone();
    let place = Place::new();
    dataset(&place);
    let job = Job::load(support::job(&place).as_ref(), &["train.max_steps=1", "device.threads=1"]).unwrap();
    let run = place.path("run");
    train(&job, TrainOptions { run_dir: Some(&run), ..TrainOptions::default() }, &mut ()).unwrap();
    let dir = run.join("model");
    let load = || {
        let saved = SavedModel::open(&dir).map_err(error_text)?;
        saved.encoder(&dir).map_err(error_text)?;
        saved.load(&dir).map(drop).map_err(error_text)
    };
    for file in ["model.json", "model.safetensors", "vocabulary/C1.tsv"] {
        read_variants(file, &dir.join(file), file == "model.json", load);
    }
    let manifest = dir.join("model.json");
    let weights = fs::read(dir.join("model.safetensors")).unwrap();
    let (content, seal) = unseal(&manifest);
    for (case, content) in json_variants(&content) {
        fs::write(&manifest, seal(&content)).unwrap();
        read("model.json with a valid checksum", &case, weights.len(), load);
    }
    for (case, bytes) in variants(&weights, false) {
        let mut content = content.clone();
        let sum = striped_checksum(&bytes, STRIPE_BYTES).to_string();
        (content["weights"]["bytes"], content["weights"]["xxh3"]) = (bytes.len().into(), sum.into());
        fs::write(&manifest, seal(&content)).unwrap();
        fs::write(dir.join("model.safetensors"), &bytes).unwrap();
        read("model.safetensors with a valid checksum", &case, bytes.len() + weights.len(), load);
    }
}

#[test]
fn checkpoints() {
    let _alone = alone();
    let place = Place::new();
    dataset(&place);
    let sets =
        ["train.max_steps=2", "device.threads=1", "checkpoint.every_steps=1", "checkpoint.incremental=true"];
    let job = Job::load(support::job(&place).as_ref(), &sets).unwrap();
    let run = place.path("run");
    train(&job, TrainOptions { run_dir: Some(&run), ..TrainOptions::default() }, &mut ()).unwrap();
    let whole = run.join("checkpoints/step-1");
    // The second checkpoint is an addition to the first.
    for dir in [&whole, &run.join("checkpoints/step-2")] {
        let load = || read_checkpoint(dir);
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
        let kept = [&manifest, &index].map(|path| (path, fs::read(path).unwrap()));
        for (case, content) in json_variants(&of_manifest) {
            fs::write(&manifest, seal(&content)).unwrap();
            read("a checkpoint's manifest with a valid checksum", &case, bytes, load);
        }
        for (case, content) in json_variants(&of_index) {
            let text = seal_index(&content);
            let mut of_manifest = of_manifest.clone();
            let entry = &mut of_manifest["shards"][0];
            (entry["bytes"], entry["xxh3"]) = (text.len().into(), checksum(text.as_bytes()));
            fs::write(&index, text).unwrap();
            fs::write(&manifest, seal(&of_manifest)).unwrap();
            read("a shard's index with a valid checksum", &case, bytes, load);
        }
        // An index does not lead out of its checkpoint's folder, whatever name it states.
        let mut elsewhere = of_index.clone();
        elsewhere["name"] =
            format!("../{}/shard-00000.safetensors", dir.file_name().unwrap().display()).into();
        let text = seal_index(&elsewhere);
        let mut of_manifest = of_manifest;
        let entry = &mut of_manifest["shards"][0];
        (entry["name"], entry["bytes"], entry["xxh3"]) =
            ("index".into(), text.len().into(), checksum(text.as_bytes()));
        let unnamed = dir.join("index");
        fs::write(&unnamed, text).unwrap();
        fs::write(&manifest, seal(&of_manifest)).unwrap();
        let error = load().unwrap_err();
        assert!(error.contains("it is the index of another shard"), "{error}");
        fs::remove_file(unnamed).unwrap();

        kept.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        load().unwrap();
    }
}

/// Long inputs of many small values, next to which the readers' fixed memory does not matter.
#[test]
fn many_small_things() {
    let _alone = alone();
    let numbered = |count: usize, line: fn(usize) -> String| (0..count).map(line).collect::<String>();
    let quickstart = fs::read_to_string(root().join("configs/quickstart.toml")).unwrap();
    let texts = [
        format!("a = [{}]", "0,".repeat(1 << 20)),
        format!("a = [{}]", "[],".repeat(1 << 19)),
        numbered(1 << 17, |number| format!("a{number}=0\n")),
        "[[a]]\n".repeat(1 << 17),
        numbered(1 << 15, |number| format!("[a.b{number}]\n")),
        format!("a = {{{}}}", numbered(1 << 16, |number| format!("b{number}=0,"))),
        format!("a{} = 0", ".b".repeat(1 << 12)),
        // The maximum for TOML: keys of only dots, with the maximum depth of keys.
        format!("a = [{}]", format!("{{{}}},", ".".repeat(70)).repeat(1 << 9)),
        format!("head = [{}]\n{quickstart}", "{label=\"a\"},".repeat(1 << 13)),
        format!("{quickstart}\n{}", "[[head]]\nlabel=\"a\"\n".repeat(1 << 13)),
        format!("label={{column=\"a\"}}\n{}", numbered(1 << 15, |n| format!("[[dense]]\ncolumn=\"b{n}\"\n"))),
        format!("\\*\t0\n{}", numbered(1 << 17, |number| format!("{number}\t1\n"))),
    ];
    for text in &texts {
        read_many::<fuzz::Schema>(text);
        read_many::<fuzz::Job>(text);
        read_many::<fuzz::Machine>(text);
        read_many::<fuzz::Shape>(text);
        read_many::<fuzz::Vocabulary>(text);
    }
}

fn read_many<R: fuzz::Reader>(text: &str) {
    let (case, limit) = (format!("many of {:?}", &text[..20]), R::BASE_BYTES + R::FACTOR * text.len());
    read_within(R::NAME, &case, (limit, text.len()), || {
        R::new(fuzz::TempFolder::new()).read(text.as_bytes())
    });
}

/// The same in manifests, at positions where readers must scan a whole value before they know its type.
#[test]
fn manifests_of_many_small_things() {
    let _alone = alone();
    let place = Place::new();
    let dir = dataset(&place);
    let many = Value::from(vec![0; 1 << 20]);
    let path = dir.join("dataset.json");
    let (content, seal) = unseal(&path);
    for at in ["/origin/converted/format", "/schema/categorical/0/vocabulary", "/schema/labels", "/files"] {
        let mut content = content.clone();
        match content.pointer_mut(at).unwrap() {
            Value::Object(map) => drop(map.insert("more".into(), many.clone())),
            other => *other = many.clone(),
        }
        let text = seal(&content);
        drop(content);
        fs::write(&path, &text).unwrap();
        let limit = fuzz::TEXT_BASE_BYTES + fuzz::TEXT_FACTOR * text.len();
        read_within("dataset.json", at, (limit, text.len()), || read_dataset(&dir));
    }
}
