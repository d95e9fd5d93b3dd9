//! Records of any format, decoded one by one and in streams.

use proptest::prelude::*;

use super::decode::ONE;
use super::*;
use crate::dataset::Dataset;
use crate::ids::OutOfRange;
use crate::io::{IoOptions, Rung};
use crate::part::Part;
use crate::samples::Samples;
use crate::stream::{BatchStream, Order, Position, StreamOptions};
use crate::survey::survey;
use crate::tests::{self, working_rungs};

fn shape(rows: &[u64], hotness: &[u32], dense: usize) -> Shape {
    Shape { rows: rows.into(), hotness: hotness.into(), dense, ..Shape::load("dlrm").unwrap() }
}

fn any_format() -> impl Strategy<Value = RawFormat> {
    let column = (1..1u64 << 31, 1..4u32);
    let columns = prop::collection::vec(column, 0..4);
    (columns, 1..3u32, 0..4usize, any::<bool>(), any::<bool>()).prop_map(
        |(columns, labels, dense, int, global)| {
            let rows: Vec<u64> =
                columns.iter().map(|column| column.0 / (1 + 7 * u64::from(global))).collect();
            let rows: Vec<u64> = rows.into_iter().map(|rows| rows.max(1)).collect();
            let hotness: Vec<u32> = columns.iter().map(|column| column.1).collect();
            RawFormat {
                labels,
                dense: if int { RawDense::Int } else { RawDense::Float },
                ids: if global { RawIds::GlobalOffset } else { RawIds::PerTable },
                ..RawFormat::new(shape(&rows, &hotness, dense))
            }
        },
    )
}

/// Returns samples without missing labels, which records cannot have.
fn samples_of(schema: &Schema, len: usize, seed: u64) -> Samples {
    let mut samples = tests::samples_of(schema, len, seed);
    for label in samples.labels.iter_mut().flatten().filter(|label| label.is_nan()) {
        *label = 0.0;
    }
    samples
}

/// Encodes samples as records, field by field; integers replace the dense values of an `Int` format.
fn records(format: &RawFormat, samples: &Samples) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |bits: u32| bytes.extend(bits.to_le_bytes());
    for sample in 0..samples.len {
        for (number, labels) in samples.labels.iter().enumerate() {
            put(if labels[sample] == 1.0 { ONE[(sample + number) % 2] } else { 0 });
        }
        for &value in &samples.dense[sample * samples.dense_columns..][..samples.dense_columns] {
            put(if format.dense == RawDense::Int { value as i32 as u32 } else { value.to_bits() });
        }
        let mut first = 0;
        for (bags, rows) in samples.categorical.iter().zip(&format.shape.rows) {
            bags.bag(sample).iter().for_each(|&id| put((id + first) as u32));
            first += if format.ids == RawIds::GlobalOffset { *rows } else { 0 };
        }
    }
    bytes
}

/// Returns what [`records`] decode to.
fn decoded(format: &RawFormat, samples: &Samples) -> Samples {
    let mut decoded = samples.clone();
    if format.dense == RawDense::Int {
        for value in &mut decoded.dense {
            *value = libm::log1p(f64::from(value.max(0.0))) as f32;
        }
    }
    decoded
}

proptest! {
    #[test]
    fn decoding_restores_any_records(format in any_format(), len in 1..200usize, seed in any::<u64>()) {
        let schema = format.schema(DenseDtype::F32);
        let samples = samples_of(&schema, len, seed);
        let bytes = records(&format, &samples);
        let decoder = RecordDecoder::new(&format).unwrap();
        prop_assert_eq!(bytes.len(), len * decoder.record_bytes());
        prop_assert_eq!(format.records_of(bytes.len() as u64), Ok(len as u64));
        let mut back = Samples::new(&schema);
        prop_assert_eq!(decoder.decode_into(&bytes, &mut back), Ok(()));
        prop_assert_eq!(&back, &decoded(&format, &samples));
        prop_assert!(bytes.chunks(decoder.record_bytes()).all(|record| decoder.check(record).is_ok()));
    }

    /// The fast decoder of many records and the check of each record agree on the first invalid one.
    #[test]
    fn arbitrary_bytes_are_records_or_named(
        format in any_format(),
        bytes in prop::collection::vec(prop::sample::select(&[0u8, 0, 0, 0, 0, 0, 1, 0x3f, 0x80, 0xff][..]), 0..4000),
    ) {
        let decoder = RecordDecoder::new(&format).unwrap();
        let whole = bytes.len() / decoder.record_bytes() * decoder.record_bytes();
        let bytes = &bytes[..whole];
        let mut out = Samples::new(&format.schema(DenseDtype::F32));
        let faults = bytes.chunks(decoder.record_bytes()).map(|record| decoder.check(record)).enumerate();
        let first = faults.clone().find_map(|(number, fault)| Some((number, fault.err()?)));
        let outcome = decoder.decode_into(bytes, &mut out);
        prop_assert_eq!(outcome.err(), first);
        if let Some((_, fault)) = first {
            prop_assert!(!decoder.describe(&fault).is_empty() && !decoder.name(fault.column).is_empty());
        } else {
            prop_assert_eq!(out.len * decoder.record_bytes(), whole);
        }
    }
}

#[test]
fn mlperfs_records_have_their_published_lengths() {
    let bytes = |shape| RawFormat::new(Shape::load(shape).unwrap()).record_bytes().unwrap();
    assert_eq!((bytes("dlrm"), bytes("dlrm-dcnv2")), (160, 912));
}

#[test]
fn every_fault_is_explained() {
    let say = |format: &RawFormat, fields: &[u32]| {
        let decoder = RecordDecoder::new(format).unwrap();
        let bytes: Vec<u8> = fields.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        assert_eq!(bytes.len(), decoder.record_bytes());
        decoder
            .check(&bytes)
            .err()
            .map(|fault| format!("{}: {}", decoder.name(fault.column), decoder.describe(&fault)))
    };
    let format = RawFormat::new(shape(&[3, 5], &[1, 2], 1));
    let one = 1.0f32.to_bits();
    assert_eq!(say(&format, &[one, one, 2, 0, 4]), None);
    assert_eq!(say(&format, &[1, 0x8000_0000, 2, 0, 4]), None, "-0.0 is a number");
    let cases = [
        ([2, one, 0, 0, 0], "label: the label 0x00000002 is neither 0 nor 1"),
        (
            [0, 7, 0, 0, 0],
            "I1: 1e-44 is a subnormal number; with dense = int it would be read as the integer 7",
        ),
        (
            [0, u32::MAX, 0, 0, 0],
            "I1: NaN is not finite; with dense = int it would be read as the integer -1",
        ),
        ([0, one, 3, 0, 0], "C1: id 3 is out of range: its table has 3 rows"),
        ([0, one, 0, 4, 5], "C2: id 5 is out of range: its table has 5 rows"),
        ([0, one, u32::MAX, 0, 0], "C1: id 4294967295 is out of range: its table has 3 rows"),
    ];
    for (fields, expected) in cases {
        let said = say(&format, &fields).unwrap();
        assert!(said.starts_with(expected), "{said}");
    }
    let global = RawFormat { ids: RawIds::GlobalOffset, dense: RawDense::Int, ..format };
    assert_eq!(say(&global, &[0, u32::MAX, 2, 3, 7]), None);
    for fields in [[0, 0, 2, 2, 7], [0, 0, 2, 3, 8]] {
        assert!(say(&global, &fields).unwrap().starts_with("C2: id "));
    }
    let said = say(&global, &[0, 0, 0, 1, 3]).unwrap();
    assert!(said.ends_with("id 1 is out of range: its table has the ids 3 to 7"), "{said}");
}

#[test]
fn errors_about_lengths_name_a_matching_shape() {
    let dlrm = RawFormat::new(Shape::load("dlrm").unwrap());
    let refusal = dlrm.records_of(912 * 7).unwrap_err();
    assert!(
        refusal.what.contains("not a multiple of the 160 bytes of a record (1 label, 13 dense, 26 ids, 4"),
        "{refusal}"
    );
    assert!(refusal.what.contains("matches records of the shape dlrm-dcnv2"), "{refusal}");
    for bytes in [161, 912 * 7 + 1] {
        assert!(!dlrm.records_of(bytes).unwrap_err().what.contains("matches"));
    }
    let ragged = RawFormat::new(Shape { ragged: true, ..Shape::load("dlrm").unwrap() });
    assert!(ragged.record_bytes().unwrap_err().to_string().contains("ragged"));
    let sequences = RawFormat::new(Shape::load("sequences").unwrap());
    let refusal = sequences.record_bytes().unwrap_err().to_string();
    assert!(refusal.contains("cannot have the shape sequences: it has sequences"), "{refusal}");
    let churn = RawFormat::new(Shape::load("churn").unwrap());
    let refusal = churn.record_bytes().unwrap_err().to_string();
    assert!(refusal.contains("cannot have the shape churn: its categories come and go"), "{refusal}");
    let endless = RawFormat { labels: u32::MAX, ..RawFormat::new(Shape::load("dlrm").unwrap()) };
    assert!(endless.record_bytes().unwrap_err().to_string().contains("the limit is"));
    assert!(RawFormat { labels: 0, ..endless }.record_bytes().is_err());
}

/// Writes two files of records, the second one shorter, for the training part of a dataset.
fn dataset(dir: &std::path::Path) -> (RawFormat, Vec<std::path::PathBuf>, Samples) {
    // 29 fields, so that few blocks start at a page boundary.
    let format = RawFormat::new(shape(&[50_000; 13], &[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 14));
    let samples = samples_of(&format.schema(DenseDtype::F32), 50_000, 3);
    let bytes = records(&format, &samples);
    let cut = 29 * FIELD_BYTES * 40_001;
    let paths: Vec<_> = ["a.bin", "b.bin"].map(|name| dir.join(name)).into();
    std::fs::write(&paths[0], &bytes[..cut]).unwrap();
    std::fs::write(&paths[1], &bytes[cut..]).unwrap();
    (format, paths, samples)
}

fn read(dataset: &Dataset, rung: Rung, order: Order) -> Result<Samples> {
    let io = IoOptions { mode: rung.into(), depth: 3 };
    let options = StreamOptions { io, order, ..StreamOptions::one_epoch(7001) };
    let mut all = Samples::new(dataset.schema());
    for batch in BatchStream::open(dataset.part(Part::Train)?, &options)? {
        let samples = &batch?.samples;
        all.append(samples, 0..samples.len);
    }
    Ok(all)
}

#[test]
fn raw_files_are_streamed_directly() {
    let dir = tempfile::tempdir().unwrap();
    let (format, paths, samples) = dataset(dir.path());
    let opened = Dataset::raw(&format, &paths, &paths[1..]).unwrap();
    assert_eq!((opened.samples(Part::Train), opened.samples(Part::Eval)), (50_000, 9_999));
    let part = opened.part(Part::Train).unwrap();
    let block = u64::from(part.block_samples);
    assert_eq!(part.blocks.len() as u64, 40_001u64.div_ceil(block) + 9_999u64.div_ceil(block));
    for rung in working_rungs(dir.path()) {
        assert!(read(&opened, rung, Order::File).unwrap() == samples, "{rung}");
    }
    let shuffled = read(&opened, Rung::Pread, Order::Shuffled { seed: 5, window_blocks: 2 }).unwrap();
    assert!(shuffled != samples);
    let sorted = |samples: &Samples| {
        let mut rows: Vec<Vec<u32>> = (samples.dense.chunks(14).zip(samples.categorical[0].ids.chunks(2)))
            .map(|(dense, ids)| {
                dense.iter().map(|value| value.to_bits()).chain(ids.iter().map(|&id| id as u32)).collect()
            })
            .collect();
        rows.sort_unstable();
        rows
    };
    assert!(sorted(&shuffled) == sorted(&samples), "every record is delivered once");
    // From the middle of the second file.
    let start = Position { epoch: 0, sample: 45_000 };
    let options = StreamOptions { start, ..StreamOptions::one_epoch(10_000) };
    let batch = BatchStream::open(part, &options).unwrap().next().unwrap().unwrap();
    let mut rest = Samples::new(opened.schema());
    rest.append(&samples, 45_000..50_000);
    assert!(batch.samples == rest);
}

/// Blocks of long records start within pages, but reads cannot.
#[test]
fn blocks_of_long_records_start_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let format = RawFormat::new(shape(&[50_000], &[1100], 0));
    let samples = samples_of(&format.schema(DenseDtype::F32), 1300, 4);
    let path = dir.path().join("long.bin");
    std::fs::write(&path, records(&format, &samples)).unwrap();
    let opened = Dataset::raw(&format, std::slice::from_ref(&path), &[]).unwrap();
    let part = opened.part(Part::Train).unwrap();
    let offsets: Vec<_> = part.blocks.iter().map(|block| block.offset).collect();
    assert_eq!(offsets, [0, 512 * 1101 * 4, 1024 * 1101 * 4]);
    assert_ne!(offsets[1] % 4096, 0);
    for rung in working_rungs(dir.path()) {
        assert!(read(&opened, rung, Order::File).unwrap() == samples, "{rung}");
    }
    assert!(crate::verify::verify(&opened, std::num::NonZeroUsize::MIN).unwrap().is_whole());
}

#[test]
fn ids_out_of_range_are_replaced_and_counted_per_batch() {
    let dir = tempfile::tempdir().unwrap();
    let format = RawFormat::new(shape(&[50, 7], &[1, 2], 1));
    let mut samples = samples_of(&format.schema(DenseDtype::F32), 1000, 5);
    for (number, value) in samples.dense.iter_mut().enumerate() {
        *value = number as f32;
    }
    // The ids next to the tables' last rows, in samples of several batches.
    let (mut wild, mut expected) = (samples.clone(), samples);
    for sample in [0, 99, 100, 555, 999] {
        wild.categorical[0].ids[sample] = 50;
        expected.categorical[0].ids[sample] = 3;
    }
    wild.categorical[1].ids[2 * 555 + 1] = 7;
    expected.categorical[1].ids.remove(2 * 555 + 1);
    expected.categorical[1].offsets[556..].iter_mut().for_each(|offset| *offset -= 1);
    let path = dir.path().join("wild.bin");
    std::fs::write(&path, records(&format, &wild)).unwrap();
    let strict = Dataset::raw(&format, &[path], &[]).unwrap();
    assert!(
        read(&strict, Rung::Pread, Order::File).unwrap_err().to_string().contains("id 50 is out of range")
    );
    let lenient = strict.with_ids(&[OutOfRange::Row(3), OutOfRange::Leave]).unwrap();
    for order in [Order::File, Order::Shuffled { seed: 1, window_blocks: 1 }] {
        let options = StreamOptions { order, ..StreamOptions::one_epoch(100) };
        let mut counted = [0, 0];
        for batch in BatchStream::open(lenient.part(Part::Train).unwrap(), &options).unwrap() {
            let batch = batch.unwrap();
            let mut wanted = Samples::new(lenient.schema());
            let mut counts = [0, 0];
            for &number in &batch.samples.dense {
                let number = number as usize;
                wanted.append(&expected, number..number + 1);
                counts[0] += u64::from([0, 99, 100, 555, 999].contains(&number));
                counts[1] += u64::from(number == 555);
            }
            assert_eq!(batch.samples, wanted);
            assert_eq!(batch.out_of_range, counts, "{order:?}");
            counted = [counted[0] + counts[0], counted[1] + counts[1]];
        }
        assert_eq!(counted, [5, 1]);
    }
}

#[test]
fn a_survey_counts_every_record() {
    let dir = tempfile::tempdir().unwrap();
    let (format, paths, samples) = dataset(dir.path());
    let opened = Dataset::raw(&format, &paths, &paths[1..]).unwrap();
    // More than one block, and the evaluation part is the end of the training part.
    for (part, samples) in [(Part::Train, samples.clone()), (Part::Eval, samples.slice(40_001..50_000))] {
        let survey = survey(&opened, part).unwrap();
        assert_eq!(survey.samples, samples.len as u64);
        let positives = samples.labels[0].iter().filter(|&&label| label == 1.0).count();
        assert_eq!(survey.positives, [positives as u64]);
        for (table, bags) in survey.tables.iter().zip(&samples.categorical) {
            assert_eq!((table.bags, table.lookups), (samples.len as u64, bags.ids.len() as u64));
            let mut counts = std::collections::BTreeMap::<u64, u64>::new();
            bags.ids.iter().for_each(|&id| *counts.entry(id).or_default() += 1);
            let mut head = table.head.clone();
            head.sort_unstable();
            assert_eq!(head, counts.into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn values_of_a_record_are_read_according_to_its_format() {
    let bytes = |fields: &[u32]| fields.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<_>>();
    let format = RawFormat {
        labels: 2,
        rows_cap: Some(4),
        ids: RawIds::GlobalOffset,
        ..RawFormat::new(shape(&[3, 9], &[1, 2], 2))
    };
    assert_eq!(format.schema(DenseDtype::F32).categorical[1].rows, Some(4));
    let decoder = RecordDecoder::new(&format).unwrap();
    let (one, minus) = (1.0f32.to_bits(), (-2.5f32).to_bits());
    let record = bytes(&[0, one, minus, 0x8000_0000, 2, 3, 6]);
    assert_eq!(decoder.check(&record), Ok(()));
    assert_eq!([decoder.label(&record, 0), decoder.label(&record, 1)], [0.0, 1.0]);
    assert_eq!([decoder.number(&record, 0), decoder.number(&record, 1)], [-2.5, 0.0]);
    assert!(decoder.bag(&record, 0).eq([2]) && decoder.bag(&record, 1).eq([0, 3]));
    assert_eq!(decoder.check_numbers(&record, 2.5), Ok(()));
    let fault = decoder.check_numbers(&record, 2.4).unwrap_err();
    assert_eq!(fault, RecordFault { kind: RecordFaultKind::Large, column: 2, bits: minus });
    // There is one zero.
    let mut samples = Samples::new(&format.schema(DenseDtype::F32));
    decoder.decode_into(&record, &mut samples).unwrap();
    assert_eq!(samples.dense.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), [minus, 0]);
    // The rows of the second table are 3 to 6.
    let fault = decoder.check(&bytes(&[0, 0, 0, 0, 0, 3, 7])).unwrap_err();
    assert_eq!(fault, RecordFault { kind: RecordFaultKind::Id, column: 5, bits: 7 });

    let int = RecordDecoder::new(&RawFormat { dense: RawDense::Int, ..format }).unwrap();
    let record = bytes(&[0, 1, u32::MAX, 7, 2, 3, 6]);
    assert_eq!([int.number(&record, 0), int.number(&record, 1)], [-1.0, 7.0]);
    int.decode_into(&record, &mut samples).unwrap();
    assert_eq!(samples.dense[2..], [0.0, 8.0f64.ln() as f32]);
}

#[test]
fn records_and_blocks_have_bounded_lengths() {
    let one_bit = |hotness: &[u32]| RawFormat::new(shape(&vec![1; hotness.len()], hotness, 0));
    // 4 MiB hold 63 records of 65,540 bytes, and blocks hold a power of two.
    assert_eq!(one_bit(&[16_384]).block_samples().unwrap(), 32);
    // A record of the maximum length: 2^18 fields.
    let longest = one_bit(&[65_536, 65_536, 65_536, 65_535]);
    assert_eq!(longest.record_bytes().unwrap(), RECORD_BYTES_MAX);
    assert_eq!(longest.block_samples().unwrap(), 4);
    assert!(RawFormat { labels: 2, ..longest }.record_bytes().is_err());
}

#[test]
fn an_invalid_record_is_named_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let (format, paths, _) = dataset(dir.path());
    let mut bytes = std::fs::read(&paths[1]).unwrap();
    let at = 9_000 * 29 * FIELD_BYTES + 15 * FIELD_BYTES;
    bytes[at..at + 4].copy_from_slice(&50_000u32.to_le_bytes());
    std::fs::write(&paths[1], &bytes).unwrap();
    let opened = Dataset::raw(&format, &paths, &[]).unwrap();
    let error = read(&opened, Rung::Pread, Order::File).unwrap_err();
    assert!(matches!(error, Error::BadRows { .. }), "{error:?}");
    let error = error.to_string();
    let position = format!("b.bin record 9001 (byte {}), column C1: id 50000 is out of range", 9_000 * 116);
    assert!(error.contains(&position) && error.contains("--on-bad skip"), "{error}");
    let report = crate::verify::verify(&opened, std::num::NonZeroUsize::new(2).unwrap()).unwrap();
    assert_eq!(report.damages.len(), 1, "{report:?}");
    assert!(report.damages[0].what.contains("record 9001"));
    // An invalid record in the second block of its file.
    let mut first = std::fs::read(&paths[0]).unwrap();
    first[20_000 * 116..][..4].copy_from_slice(&9u32.to_le_bytes());
    assert!(opened.part(Part::Train).unwrap().block_samples < 20_000);
    std::fs::write(&paths[0], &first).unwrap();
    let error = read(&opened, Rung::Pread, Order::File).unwrap_err().to_string();
    let position = format!("a.bin record 20001 (byte {}), column label: the label 0x00000009", 20_000 * 116);
    assert!(error.contains(&position), "{error}");

    std::fs::write(&paths[1], &bytes[..bytes.len() - 1]).unwrap();
    let error = Dataset::raw(&format, &paths, &[]).unwrap_err().to_string();
    assert!(error.contains("b.bin") && error.contains("not a multiple of the 116 bytes"), "{error}");
    std::fs::write(&paths[1], []).unwrap();
    assert!(Dataset::raw(&format, &[], &paths[1..]).unwrap_err().to_string().contains("is empty"));
    assert!(Dataset::raw(&format, &paths, &[]).unwrap().part(Part::Eval).is_err());
}

#[test]
fn a_format_that_does_not_say_more_has_one_label_and_floats() {
    let format = RawFormat::new(Shape::load("dlrm").unwrap());
    let shape = serde_json::json!({ "shape": format.shape });
    let read: RawFormat = serde_json::from_value(shape).unwrap();
    assert_eq!((read.labels, &read), (1, &format));
}
