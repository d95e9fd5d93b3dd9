//! Checks `docs/reference/dataset-format.md` against the crate: a decoder written only from the document takes its
//! offsets from the document's tables, shares nothing with the crate except xxh3, and reads what the crate writes.
//! The worked example must match the crate's output byte for byte.

// Clippy only treats the body of a `#[test]` as a test, and not its helpers.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;

use rankine_base::Stop;
use rankine_base::publish::PartialDir;
use rankine_reader::block::{self, Block, BlockId};
use rankine_reader::convert::{Conversion, RowCounts, RowFormat};
use rankine_reader::dataset::{self, Manifest};
use rankine_reader::generate::{GenerateSpec, Shape, generate};
use rankine_reader::origin::Origin;
use rankine_reader::schema::{
    Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Keep, Label, Pooling, Sequence,
    VocabularyKind,
};
use rankine_reader::write::DatasetWriter;
use rankine_reader::{Dataset, Part, Samples, Schema, statistics};
use serde_json::Value;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_64;

const DOCUMENT: &str = include_str!("../../docs/reference/dataset-format.md");

// Facts from the document.

/// Returns the cells of all rows of tables with `columns` columns.
fn table_rows(columns: usize) -> impl Iterator<Item = Vec<&'static str>> {
    let rows = DOCUMENT.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix('|'));
    rows.map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`')).collect::<Vec<_>>())
        .filter(move |cells| cells.len() == columns)
}

/// The position of each field in its record.
struct Fields(BTreeMap<(Record, &'static str), Range<usize>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Record {
    IndexEntry,
    Header,
    Descriptor,
    Statistics,
    Table,
    Popularity,
    CodedTable,
    CodeClass,
}
use Record::{CodeClass, CodedTable, Descriptor, Header, IndexEntry, Popularity, Statistics, Table};

impl Fields {
    /// Reads the document's tables and checks that each has no gap and the length that the document states.
    fn of_document() -> Self {
        let constants = constants();
        let mut records = [
            (IndexEntry, constants["INDEX_ENTRY_BYTES"]),
            (Header, constants["HEADER_BYTES"]),
            (Descriptor, constants["DESCRIPTOR_BYTES"]),
            (Statistics, 24),
            (Table, 32),
            (Popularity, 56),
            (CodedTable, 40),
            (CodeClass, 24),
        ]
        .into_iter();
        let mut fields = BTreeMap::new();
        let (mut record, mut length, mut end) = (IndexEntry, 0, 0);
        let is_field = |cells: &Vec<&str>| ["u8", "u16", "u32", "u64", "bytes", "zero"].contains(&cells[2]);
        for cells in table_rows(5).filter(is_field) {
            let (offset, size): (usize, usize) = (cells[0].parse().unwrap(), cells[1].parse().unwrap());
            let size_of_type = match cells[2] {
                "u8" => 1,
                "u16" => 2,
                "u32" => 4,
                "u64" => 8,
                _ => size,
            };
            assert_eq!(size, size_of_type, "{cells:?}");
            if offset == 0 {
                assert_eq!(end, length, "{record:?}");
                (record, length) = records.next().unwrap();
                end = 0;
            }
            assert_eq!(offset, end, "{cells:?}");
            end = offset + size;
            fields.insert((record, cells[3]), offset..end);
        }
        assert_eq!((end, records.len()), (length, 0));
        Self(fields)
    }

    fn bytes<'a>(&self, bytes: &'a [u8], record: Record, name: &'static str) -> &'a [u8] {
        let range = self.0.get(&(record, name));
        &bytes[range.unwrap_or_else(|| panic!("the document has no {name} in {record:?}")).clone()]
    }

    fn get(&self, bytes: &[u8], record: Record, name: &'static str) -> u64 {
        little_endian(self.bytes(bytes, record, name))
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn constants() -> BTreeMap<&'static str, usize> {
    let is_name = |cells: &Vec<&str>| cells[0].bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    table_rows(3).filter(is_name).map(|cells| (cells[0], cells[1].parse().unwrap())).collect()
}

/// Returns the text of the fenced block with this info string.
fn fenced(info: &str) -> &'static str {
    let start = DOCUMENT.find(&format!("\n```{info}\n")).unwrap() + info.len() + 5;
    let text = &DOCUMENT[start..];
    &text[..text.find("\n```").unwrap()]
}

/// Parses a dump of lines `offset | bytes | meaning`, in which bytes not listed are 0, and compares it.
fn assert_dump(info: &str, actual: &[u8]) -> Vec<u8> {
    let mut listed = vec![0; actual.len()];
    let (mut right, mut end) = (String::new(), 0);
    for line in fenced(info).lines() {
        if line.is_empty() {
            right.push('\n');
            continue;
        }
        let cells: Vec<&str> = line.splitn(3, '|').collect();
        let from = usize::from_str_radix(cells[0].trim(), 16).unwrap();
        let bytes: Vec<u8> =
            cells[1].split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        assert!(from >= end, "the lines of {info} are not in order: {line}");
        end = from + bytes.len();
        listed[from..end].copy_from_slice(&bytes);
        let hex: Vec<String> = actual[from..end].iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(right, "{from:04x} | {:23} |{}", hex.join(" "), cells[2]).unwrap();
    }
    assert!(listed == actual, "the dump of {info} should be\n{right}");
    listed
}

// The decoder.

/// A sample as the document describes it.
#[derive(Debug, Clone, PartialEq, Default)]
struct Sample {
    labels: Vec<Option<u64>>,
    weight: Option<f32>,
    dense: Vec<f32>,
    bags: Vec<Vec<u64>>,
    /// The weights of the ids of each bag; empty for columns without weights.
    id_weights: Vec<Vec<f32>>,
}

struct Stream {
    base: u64,
    offset: usize,
    count: u64,
    bits: u64,
    kind: u64,
}

struct BlockView<'a> {
    bytes: &'a [u8],
    samples: u64,
    streams: Vec<Stream>,
    start_every: u64,
}

impl<'a> BlockView<'a> {
    fn new(bytes: &'a [u8], schema: &Value, fields: &Fields) -> Self {
        let constants = constants();
        assert_eq!(fields.bytes(bytes, Header, "magic"), b"RKNBLOCK");
        assert_eq!(fields.get(bytes, Header, "bytes"), bytes.len() as u64);
        assert!(bytes.len().is_multiple_of(constants["BLOCK_ALIGN"]));
        assert_eq!(fields.get(bytes, Header, "block_checksum"), xxh3_64(&bytes[16..]));
        assert_eq!(fields.get(bytes, Header, "version"), constants["VERSION"] as u64);
        assert!(is_zero(fields.bytes(bytes, Header, "header_reserved")));
        let count = fields.get(bytes, Header, "stream_count") as usize;
        let of = |key: &str| schema[key].as_array().unwrap().len();
        let weights = usize::from(!schema["weight"].is_null());
        let weighted = schema["categorical"].as_array().unwrap().iter();
        let weighted = weighted.filter(|column| column["weighted"] == true).count();
        assert_eq!(count, of("labels") + weights + of("dense") + 3 * of("categorical") + weighted);
        let mut end = constants["HEADER_BYTES"] + count * constants["DESCRIPTOR_BYTES"];
        let mut streams = Vec::new();
        for number in 0..count {
            let at = constants["HEADER_BYTES"] + number * constants["DESCRIPTOR_BYTES"];
            let descriptor = &bytes[at..at + constants["DESCRIPTOR_BYTES"]];
            assert!(is_zero(fields.bytes(descriptor, Descriptor, "descriptor_reserved")));
            let stream = Stream {
                base: fields.get(descriptor, Descriptor, "base"),
                offset: fields.get(descriptor, Descriptor, "offset") as usize,
                count: fields.get(descriptor, Descriptor, "count"),
                bits: fields.get(descriptor, Descriptor, "bits"),
                kind: fields.get(descriptor, Descriptor, "kind"),
            };
            assert!(stream.offset.is_multiple_of(constants["STREAM_ALIGN"]) && stream.offset >= end);
            assert!(is_zero(&bytes[end..stream.offset]));
            end = stream.offset + (stream.count * stream.bits).div_ceil(8) as usize;
            streams.push(stream);
        }
        assert!(bytes.len() - end >= constants["GUARD_BYTES"] && is_zero(&bytes[end..]));
        let start_every = constants["START_EVERY"] as u64;
        Self { bytes, samples: fields.get(bytes, Header, "samples"), streams, start_every }
    }

    fn packed(&self, stream: &Stream, i: u64) -> u64 {
        assert!(i < stream.count && stream.kind == 0);
        let mut raw = 0;
        for k in 0..stream.bits {
            let n = i * stream.bits + k;
            raw |= u64::from(self.bytes[stream.offset + (n / 8) as usize] >> (n % 8) & 1) << k;
        }
        stream.base + raw
    }

    fn float(&self, stream: &Stream, i: u64) -> f32 {
        let size = (stream.bits / 8) as usize;
        let bits = little_endian(&self.bytes[stream.offset + i as usize * size..][..size]);
        match (stream.kind, stream.bits) {
            (1, 16) => {
                let (exponent, fraction) = (bits >> 10 & 31, (bits & 1023) as f32);
                let magnitude = match exponent {
                    0 => fraction * 2f32.powi(-24),
                    31 => panic!("the tests only use finite numbers"),
                    _ => (1024.0 + fraction) * 2f32.powi(exponent as i32 - 25),
                };
                if bits >> 15 == 1 { -magnitude } else { magnitude }
            }
            (2, 32) => f32::from_bits(bits as u32),
            other => panic!("not a floating-point stream: {other:?}"),
        }
    }

    /// Returns one sample without decoding earlier ones, except for the sizes since the last start.
    fn sample(&self, schema: &Value, i: u64) -> Sample {
        let mut streams = self.streams.iter();
        let mut next = || streams.next().unwrap();
        let of = |key: &str| schema[key].as_array().unwrap().iter();
        let mut sample = Sample::default();
        for _ in of("labels") {
            let stream = next();
            assert!(stream.base == 0 && matches!(stream.bits, 1 | 2) && stream.count == self.samples);
            let code = self.packed(stream, i);
            assert!(code <= 2);
            sample.labels.push((code != 2).then_some(code));
        }
        if schema["weight"].is_string() {
            let stream = next();
            assert_eq!((stream.kind, stream.count), (2, self.samples));
            sample.weight = Some(self.float(stream, i));
        }
        let kind = if schema["dense_dtype"] == "f16" { 1 } else { 2 };
        for _ in of("dense") {
            let stream = next();
            assert_eq!((stream.kind, stream.count), (kind, self.samples));
            sample.dense.push(self.float(stream, i));
        }
        for column in of("categorical") {
            let (sizes, starts, ids) = (next(), next(), next());
            assert_eq!(sizes.count, self.samples);
            let size = self.packed(sizes, i);
            let from = if sizes.bits == 0 {
                assert_eq!((starts.count, ids.count), (0, self.samples * sizes.base));
                i * sizes.base
            } else {
                assert_eq!(starts.count, self.samples.div_ceil(self.start_every));
                let j = i / self.start_every;
                let since = self.start_every * j..i;
                self.packed(starts, j) + since.map(|i| self.packed(sizes, i)).sum::<u64>()
            };
            match column["hotness"]["fixed"].as_u64() {
                Some(fixed) => assert_eq!(size, fixed),
                None => assert!(size <= column["hotness"]["ragged"]["max"].as_u64().unwrap()),
            }
            let bag: Vec<u64> = (from..from + size).map(|id| self.packed(ids, id)).collect();
            match column["rows"].as_u64() {
                Some(rows) => assert!(bag.iter().all(|&id| id < rows)),
                None => assert_eq!(column["vocabulary"]["kind"], "open"),
            }
            sample.bags.push(bag);
            let mut weights = Vec::new();
            if column["weighted"] == true {
                let stream = next();
                assert_eq!((stream.kind, stream.count), (2, ids.count));
                weights.extend((from..from + size).map(|id| self.float(stream, id)));
                assert!(weights.iter().all(|weight| *weight > 0.0 && weight.is_finite()));
            }
            sample.id_weights.push(weights);
        }
        sample
    }

    fn all_samples(&self, schema: &Value) -> Vec<Sample> {
        (0..self.samples).map(|i| self.sample(schema, i)).collect()
    }
}

type RawObject = BTreeMap<String, Box<RawValue>>;

/// Returns the content of `dataset.json`, and the tag.
fn read_manifest(text: &str) -> (Value, u64) {
    let envelope: RawObject = serde_json::from_str(text).unwrap();
    assert_eq!(envelope.keys().collect::<Vec<_>>(), ["content", "format", "kind", "xxh3"]);
    assert_eq!(envelope["kind"].get(), "\"rankine dataset\"");
    let has = |key: &str| envelope["content"].get().contains(key);
    let format = match (has("\"sequences\""), has("\"weighted\"")) {
        (true, _) => 5,
        (false, true) => 4,
        (false, false) => constants()["FORMAT"],
    };
    assert_eq!(envelope["format"].get(), format.to_string());
    let content = envelope["content"].get();
    assert_eq!(envelope["xxh3"].get(), format!("\"{:016x}\"", xxh3_64(content.as_bytes())));
    // The method for JSON libraries without raw values.
    let start = text.find("\"content\": ").unwrap() + "\"content\": ".len();
    let last_but_one = text[..text.rfind('}').unwrap()].rfind('}').unwrap();
    assert_eq!(&text[start..=last_but_one], content);
    let raw: RawObject = serde_json::from_str(content).unwrap();
    let compact = without_white_space(raw["schema"].get());
    (serde_json::from_str(content).unwrap(), xxh3_64(compact.as_bytes()))
}

fn without_white_space(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let keep = |char: &char| {
        let kept = in_string || !char.is_ascii_whitespace();
        in_string ^= *char == '"' && !escaped;
        escaped = in_string && *char == '\\' && !escaped;
        kept
    };
    json.chars().filter(keep).collect()
}

fn checksum(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap(), 16).unwrap()
}

/// Returns every sample of a part, and its number of blocks.
fn read_part(dir: &Path, content: &Value, tag: u64, part: &str, fields: &Fields) -> (Vec<Sample>, u64) {
    let manifest = &content["parts"][part];
    let index = fs::read(dir.join(part).join("index.bin")).unwrap();
    assert_eq!(xxh3_64(&index), checksum(&manifest["index_xxh3"]));
    let mut entries = index.chunks_exact(constants()["INDEX_ENTRY_BYTES"]);
    let block_samples = content["block_samples"].as_u64().unwrap();
    let total = manifest["samples"].as_u64().unwrap();
    let (mut samples, mut number) = (Vec::new(), 0);
    for file in manifest["blocks"].as_array().unwrap() {
        let bytes = fs::read(dir.join(part).join(file["name"].as_str().unwrap())).unwrap();
        assert_eq!(bytes.len() as u64, file["bytes"].as_u64().unwrap());
        let mut rest = &bytes[..];
        for _ in 0..file["blocks"].as_u64().unwrap() {
            let entry = entries.next().unwrap();
            assert!(is_zero(fields.bytes(entry, IndexEntry, "entry_reserved")));
            let (bytes, after) = rest.split_at(fields.get(entry, IndexEntry, "bytes") as usize);
            rest = after;
            let block = BlockView::new(bytes, &content["schema"], fields);
            let stated = ["block_checksum", "dataset", "index", "part"];
            let listed = [fields.get(entry, IndexEntry, "checksum"), tag, number, u64::from(part == "eval")];
            assert_eq!(stated.map(|name| fields.get(bytes, Header, name)), listed);
            assert_eq!(block.samples, block_samples.min(total - number * block_samples));
            samples.extend(block.all_samples(&content["schema"]));
            number += 1;
        }
        assert!(rest.is_empty());
    }
    assert!(entries.next().is_none());
    assert_eq!((number, samples.len() as u64), (total.div_ceil(block_samples), total));
    for (label, positives) in manifest["positives"].as_array().unwrap().iter().enumerate() {
        let count = |of| samples.iter().filter(|sample| sample.labels[label] == of).count() as u64;
        assert_eq!(count(Some(1)), positives.as_u64().unwrap());
        assert_eq!(count(None), manifest["missing"][label].as_u64().unwrap());
    }
    (samples, number)
}

/// Counts the training part again and compares `statistics.bin`; no table has rows after its head here.
fn check_statistics(dir: &Path, content: &Value, train: &[Sample], fields: &Fields) {
    let bytes = fs::read(dir.join("statistics.bin")).unwrap();
    let files = content["files"].as_array().unwrap();
    let listed = files.iter().find(|file| file["name"] == "statistics.bin").unwrap();
    assert_eq!(bytes.len() as u64, listed["bytes"].as_u64().unwrap());
    assert_eq!(xxh3_64(&bytes), checksum(&listed["xxh3"]));
    assert_eq!(fields.bytes(&bytes, Statistics, "statistics_magic"), b"RKNSTATS");
    let version = fields.get(&bytes, Statistics, "statistics_version");
    assert_eq!(version, constants()["STATISTICS_VERSION"] as u64);
    let columns = content["schema"]["categorical"].as_array().unwrap().len();
    assert_eq!(fields.get(&bytes, Statistics, "tables"), columns as u64);
    let mut rest = &bytes[24..];
    for column in 0..columns {
        let mut counts = BTreeMap::new();
        for id in train.iter().flat_map(|sample| &sample.bags[column]) {
            *counts.entry(*id).or_insert(0u64) += 1;
        }
        let mut head: Vec<(u64, u64)> = counts.into_iter().collect();
        head.sort_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
        let (table, after) = rest.split_at(32);
        let names = ["bags", "lookups", "distinct_rows", "head_rows"];
        let (rows, lookups) = (head.len() as u64, head.iter().map(|row| row.1).sum());
        assert_eq!(
            names.map(|name| fields.get(table, Table, name)),
            [train.len() as u64, lookups, rows, rows]
        );
        let (pairs, after) = after.split_at(16 * head.len());
        let pair = |pair: &[u8]| (little_endian(&pair[..8]), little_endian(&pair[8..]));
        assert!(pairs.chunks(16).map(pair).eq(head));
        let (tail, after) = after.split_at(16 * constants()["TAIL_BUCKETS"]);
        assert!(is_zero(tail));
        rest = after;
    }
    assert!(rest.is_empty());
}

/// Returns the code of a count as the document defines it.
fn code_of(count: u64) -> u64 {
    match count {
        0..16 => count,
        count if count >= 15 << 30 => 255,
        count => {
            let e = (count as f64).log2().floor() as i32;
            8 * (e as u64 - 2) + (count as f64 / 2f64.powi(e - 3)).floor() as u64 % 8
        }
    }
}

/// Counts the training part again and compares `popularity.bin`.
fn check_popularity(dir: &Path, content: &Value, tag: u64, train: &[Sample], fields: &Fields) {
    let bytes = fs::read(dir.join("popularity.bin")).unwrap();
    assert!(content["files"].as_array().unwrap().iter().all(|file| file["name"] != "popularity.bin"));
    assert_eq!(fields.bytes(&bytes, Popularity, "popularity_magic"), b"RKNPOPUL");
    let columns = content["schema"]["categorical"].as_array().unwrap();
    let names = ["popularity_version", "counted_tag", "counted_index", "coded_tables"];
    let index = checksum(&content["parts"]["train"]["index_xxh3"]);
    let version = constants()["POPULARITY_VERSION"] as u64;
    let expected = [version, tag, index, columns.len() as u64];
    assert_eq!(names.map(|name| fields.get(&bytes, Popularity, name)), expected);
    let (head, mut codes) = bytes.split_at(fields.get(&bytes, Popularity, "head_bytes") as usize);
    let sum = xxh3_64(&[&head[..40], &head[48..]].concat());
    assert_eq!(fields.get(head, Popularity, "head_checksum"), sum);
    let mut head = &head[56..];
    for (column, of) in columns.iter().enumerate() {
        let mut counts = vec![0_u64; of["rows"].as_u64().unwrap() as usize];
        train.iter().flat_map(|sample| &sample.bags[column]).for_each(|&id| counts[id as usize] += 1);
        let get = |name| fields.get(head, CodedTable, name);
        assert_eq!(get("coded_rows"), counts.len() as u64);
        let (own, rest) = codes.split_at(get("codes_bytes") as usize);
        codes = rest;
        assert_eq!(get("codes_checksum"), xxh3_64(own));
        let own: Vec<u64> = match get("codes_kind") {
            0 => own.iter().map(|&code| code.into()).collect(),
            _ => {
                let runs = own.chunks_exact(8).map(little_endian);
                runs.flat_map(|run| vec![run & 255; (run >> 8) as usize]).collect()
            }
        };
        assert!(own.iter().copied().eq(counts.iter().map(|&count| code_of(count))));
        let classes = get("classes") as usize;
        head = &head[40..];
        let mut expected = BTreeMap::<u64, [u64; 2]>::new();
        for &count in &counts {
            let [rows, lookups] = expected.entry(code_of(count)).or_default();
            (*rows, *lookups) = (*rows + 1, *lookups + count);
        }
        assert_eq!(classes, expected.len());
        for (code, [rows, lookups]) in expected {
            let names = ["code", "code_rows", "code_lookups"];
            assert_eq!(names.map(|name| fields.get(head, CodeClass, name)), [code, rows, lookups]);
            head = &head[24..];
        }
    }
    assert!(head.is_empty() && codes.is_empty());
}

// The comparison with the crate.

fn samples_of(samples: &Samples) -> Vec<Sample> {
    let one = |i: usize| Sample {
        labels: samples
            .labels
            .iter()
            .map(|labels| (!labels[i].is_nan()).then_some(labels[i] as u64))
            .collect(),
        weight: samples.weights.get(i).copied(),
        dense: samples.dense[i * samples.dense_columns..(i + 1) * samples.dense_columns].to_vec(),
        bags: samples.categorical.iter().map(|bags| bags.bag(i).to_vec()).collect(),
        id_weights: samples
            .categorical
            .iter()
            .map(|bags| {
                let range = bags.offsets[i] as usize..bags.offsets[i + 1] as usize;
                bags.weights.get(range).unwrap_or_default().to_vec()
            })
            .collect(),
    };
    (0..samples.len).map(one).collect()
}

/// Reads a part with the crate.
fn crate_samples(dataset: &Dataset, part: Part) -> Samples {
    let part = dataset.part(part).unwrap();
    let mut samples = Samples::new(&part.schema);
    for (index, location) in part.blocks.iter().enumerate() {
        let file = fs::read(&part.files[location.file as usize]).unwrap();
        let bytes = &file[location.offset as usize..][..location.bytes as usize];
        let block = Block::parse(bytes, &part.schema).unwrap();
        part.check_block(index as u64, &block).unwrap();
        block.decode_into(&part.schema, &mut samples).unwrap();
    }
    samples
}

/// Reads a dataset both as the document describes and with the crate. Returns the number of blocks in the training
/// part.
fn check(dir: &Path) -> u64 {
    let fields = Fields::of_document();
    let (content, tag) = read_manifest(&fs::read_to_string(dir.join("dataset.json")).unwrap());
    let dataset = Dataset::open(dir).unwrap();
    assert_eq!(tag, Manifest::tag(dataset.schema()));
    dataset.statistics().unwrap();
    let mut train_blocks = 0;
    for (part, name) in [(Part::Train, "train"), (Part::Eval, "eval")] {
        if content["parts"][name].is_null() {
            assert_eq!(dataset.samples(part), 0);
            continue;
        }
        let (samples, blocks) = read_part(dir, &content, tag, name, &fields);
        // assert_eq would print thousands of samples.
        assert!(samples == samples_of(&crate_samples(&dataset, part)), "{part} is read differently");
        if part == Part::Train {
            train_blocks = blocks;
            check_statistics(dir, &content, &samples, &fields);
            check_popularity(dir, &content, tag, &samples, &fields);
        }
    }
    train_blocks
}

#[test]
fn the_constants_of_the_document_match_the_code() {
    let expected = [
        ("FORMAT", dataset::FORMAT as usize),
        ("VERSION", block::VERSION.into()),
        ("BLOCK_ALIGN", block::BLOCK_ALIGN),
        ("HEADER_BYTES", block::HEADER_BYTES),
        ("DESCRIPTOR_BYTES", block::DESCRIPTOR_BYTES),
        ("STREAM_ALIGN", block::STREAM_ALIGN),
        ("START_EVERY", block::START_EVERY),
        ("HEAD_ROWS_MAX", statistics::HEAD_ROWS_MAX),
        ("TAIL_BUCKETS", statistics::TAIL_BUCKETS),
    ];
    let constants = constants();
    for (name, value) in expected {
        assert_eq!(constants[name], value, "{name}");
    }
    assert!(DOCUMENT.contains(&format!("XXH3 of no bytes is `{:016x}`", xxh3_64(b""))));
}

#[test]
fn the_document_suffices_to_read_generated_datasets() {
    let temp = tempfile::tempdir().unwrap();
    for ragged in [false, true] {
        // Large bags give small blocks: 512 samples each, with two starts per ragged column.
        let shape = Shape {
            name: "tiny".into(),
            dense: 2,
            rows: vec![100_000, 3, 1000],
            hotness: vec![1500, 1, 4],
            ragged,
            pooling: Pooling::Mean,
            sequences: Vec::new(),
            churn: None,
        };
        let spec =
            GenerateSpec { shape, rows_cap: None, samples: 1100, eval_samples: 70, alpha: 1.1, seed: 5 };
        let dir = temp.path().join(format!("ragged-{ragged}"));
        generate(&spec, &dir, NonZeroUsize::MIN, &Stop::default(), |_| ()).unwrap();
        assert_eq!(check(&dir), 3);
    }
}

#[test]
fn the_document_suffices_for_weights_missing_labels_and_single_precision() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("data");
    let mut schema = example_schema();
    schema.labels.push(Label::new("buy \"now\""));
    schema.weight = Some("weight".into());
    schema.dense_dtype = DenseDtype::F32;
    schema.categorical[1].weighted = true;
    let mut samples = Samples::new(&schema);
    samples.len = 700;
    for i in 0..700u32 {
        samples.labels[0].push((i % 3 / 2) as f32);
        samples.labels[1].push(if i % 5 == 3 { f32::NAN } else { 0.0 });
        samples.weights.push(1.0 + i as f32 / 7.0);
        samples.dense.push(-(i as f32).sqrt());
        samples.categorical[0].push([u64::from(i * 13 % 1000)]);
        let bag = (0..i % 4).map(|k| u64::from((i + k) % 50));
        samples.categorical[1].push_weighted(bag.map(|id| (id, id as f32 / 3.0)));
    }
    assert!(samples.categorical[1].ids.iter().all(|&id| id > 0), "an id with weight 0 is left out");
    write(&dir, &schema, 300, &samples);
    assert_eq!(check(&dir), 3);
}

#[test]
fn the_document_suffices_for_sequences() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("data");
    let mut schema = example_schema();
    let sequence = |name: &str, columns: &[&str], keep| Sequence {
        name: name.into(),
        columns: columns.iter().map(|&column| column.to_owned()).collect(),
        max: 3,
        keep,
    };
    schema.categorical[0].hotness = Hotness::Ragged { max: 3 };
    schema.sequences = vec![sequence("visits", &["tags", "site"], Keep::Last)];
    let mut samples = Samples::new(&schema);
    samples.len = 700;
    for i in 0..700u64 {
        samples.labels[0].push((i % 2) as f32);
        samples.dense.push(0.5);
        samples.categorical[0].push((0..i % 4).map(|k| (i * 13 + k) % 1000));
        samples.categorical[1].push((0..i % 4).map(|k| (i + k) % 50));
    }
    write(&dir, &schema, 300, &samples);
    assert_eq!(check(&dir), 3);
    assert_eq!(Dataset::open(&dir).unwrap().schema(), &schema);

    // Blocks in which the columns differ in size are refused.
    samples.categorical[1] = Default::default();
    (0..700).for_each(|_| samples.categorical[1].push([7]));
    let mut untied = schema.clone();
    untied.sequences.clear();
    let id = BlockId { dataset: 1, part: Part::Eval, index: 2 };
    let bytes = block::encode(&untied, id, &samples).unwrap();
    let block = Block::parse(&bytes, &schema).unwrap();
    let refused = block.decode_into(&schema, &mut Samples::new(&schema)).unwrap_err().to_string();
    assert!(refused.contains("column site has 0 ids and column tags has 1"), "{refused}");
}

#[test]
fn the_document_suffices_for_ids_of_any_width() {
    let fields = Fields::of_document();
    for bits in 0..=64 {
        let mut schema = example_schema();
        (schema.categorical[0].rows, schema.categorical[0].vocabulary) = (None, VocabularyKind::Open);
        let highest = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
        let mut samples = example_samples();
        samples.categorical[0] = Default::default();
        [0, highest, highest / 3, highest / 7].iter().for_each(|&id| samples.categorical[0].push([id]));
        let id = BlockId { dataset: 1, part: Part::Eval, index: 2 };
        let bytes = block::encode(&schema, id, &samples).unwrap();
        assert_eq!(u32::from(Block::parse(&bytes, &schema).unwrap().streams()[4].bits), bits);
        let schema = serde_json::to_value(&schema).unwrap();
        let decoded = BlockView::new(&bytes, &schema, &fields).all_samples(&schema);
        assert_eq!(decoded, samples_of(&samples));
    }
}

// The worked example.

fn example_schema() -> Schema {
    let column = |name: &str, rows, hotness| Categorical {
        name: name.into(),
        rows: Some(rows),
        hotness,
        pooling: Pooling::Sum,
        vocabulary: VocabularyKind::Hash,
        weighted: false,
        shares: None,
    };
    Schema {
        labels: vec![Label::new("click")],
        weight: None,
        dense: vec![Dense { name: "price".into(), transform: DenseTransform::plain(DenseFunction::None) }],
        dense_dtype: DenseDtype::F16,
        sequences: Vec::new(),
        categorical: vec![
            column("site", 1000, Hotness::Fixed(1)),
            column("tags", 50, Hotness::Ragged { max: 3 }),
        ],
    }
}

fn example_samples() -> Samples {
    let mut samples = Samples::new(&example_schema());
    samples.len = 4;
    samples.labels[0] = vec![1.0, 0.0, 0.0, 1.0];
    samples.dense = vec![0.5, -2.0, 1.5, 100.0];
    for (site, tags) in [(700, &[3, 41][..]), (703, &[]), (700, &[7]), (702, &[3, 3, 48])] {
        samples.categorical[0].push([site]);
        samples.categorical[1].push(tags.iter().copied());
    }
    samples
}

fn write(dir: &Path, schema: &Schema, block_samples: u32, train: &Samples) {
    let rows = RowCounts { read: 4, kept: 4, bad: 0, train: 4, eval: 0 };
    let conversion = Conversion {
        format: RowFormat::CriteoTsv,
        files: vec!["clicks.tsv".into()],
        eval: Vec::new(),
        split: "none".into(),
        rows,
    };
    let partial = PartialDir::create(dir).unwrap();
    let mut writer = DatasetWriter::new(&partial, schema.clone(), block_samples).unwrap();
    writer.push(Part::Train, train).unwrap();
    writer.finish(Origin::Converted(conversion)).unwrap();
    partial.publish().unwrap();
}

#[test]
fn the_worked_example_matches_the_output() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("data");
    let (schema, samples) = (example_schema(), example_samples());
    write(&dir, &schema, 65536, &samples);
    assert_eq!(check(&dir), 1);

    let text = fs::read_to_string(dir.join("dataset.json")).unwrap();
    let compact = serde_json::to_string(&schema).unwrap();
    let json_is_right = fenced("json") == text.trim_end() && fenced("text").replace('\n', "") == compact;
    assert!(json_is_right, "dataset.json is\n{text}\nand the schema\n{compact}");
    assert!(DOCUMENT.contains(&format!("`{:016x}`:\n\n```text", Manifest::tag(&schema))));
    assert_dump("index", &fs::read(dir.join("train/index.bin")).unwrap());
    let id = BlockId { dataset: Manifest::tag(&schema), part: Part::Train, index: 0 };
    let dump = assert_dump("block", &block::encode(&schema, id, &samples).unwrap());
    assert_eq!(fs::read(dir.join("train/00000.blocks")).unwrap(), dump);
    let mut decoded = Samples::new(&schema);
    Block::parse(&dump, &schema).unwrap().decode_into(&schema, &mut decoded).unwrap();
    assert_eq!(decoded, samples);
}
