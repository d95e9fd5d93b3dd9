//! Raw files: records of a fixed length, as HugeCTR's raw readers and MLPerf's preprocessing have them.
//!
//! A record is a row of little-endian fields of four bytes: labels, dense values, then the ids of every categorical
//! column, as many as the column's hotness. There is no header, no checksum and no name: what the fields are is the
//! [`RawFormat`], and whoever reads the file must know it. [`RecordDecoder`] turns records into samples; conversion and
//! training from raw files use the same one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::convert::Tabulated;
use crate::error::{Error, Result};
use crate::generate::Shape;
use crate::samples::Samples;
use crate::schema::{Dense, DenseDtype, DenseFunction, DenseTransform, Label, Schema};

/// Bytes of a field.
pub const FIELD_BYTES: usize = 4;
/// The longest record: a bound on memory, more than a thousand times MLPerf's longest.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Records that are read at a time have so many bytes at most, unless one alone has more.
const BLOCK_BYTES_MAX: usize = 4 << 20;
/// Records that are taken apart together: 64 of MLPerf's longest take 57 KiB.
const TILE_RECORDS: usize = 64;
/// The bits of a label that is 1: as a float, and as an integer. No bits mean something else in the other.
const ONE: [u32; 2] = [1.0f32.to_bits(), 1];

/// What the fields of a record are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawFormat {
    /// Dense columns, tables and hotness. Bags are of just that many ids: a ragged shape has no fixed record.
    pub shape: Shape,
    /// Tables with more rows in the shape have this many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_cap: Option<u64>,
    /// Labels of a record, at least one.
    #[serde(default = "one_label")]
    pub labels: u32,
    /// What dense fields are.
    #[serde(default)]
    pub dense: RawDense,
    /// What ids count from.
    #[serde(default)]
    pub ids: RawIds,
}

fn one_label() -> u32 {
    1
}

/// What the dense fields of a record are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RawDense {
    /// Floats, ready to be learnt from.
    #[default]
    Float,
    /// Signed integers `x`, to be read as `ln(max(x, 0) + 1)`.
    Int,
}

/// What the ids of a record count from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RawIds {
    /// The first row of their table.
    #[default]
    PerTable,
    /// The first row of the first table: all tables' rows are numbered through.
    GlobalOffset,
}

/// Gives an enum of names its one spelling, read and written.
macro_rules! spelling {
    ($name:ident, $what:literal, $($variant:ident = $text:literal),+) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),+ })
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(Error::invalid(format!(concat!("'{}' is not ", $what), text))),
                }
            }
        }
    };
}

spelling!(RawDense, "what dense fields can be: float or int", Float = "float", Int = "int");
spelling!(
    RawIds,
    "what ids can count from: per-table or global-offset",
    PerTable = "per-table",
    GlobalOffset = "global-offset"
);

impl RawFormat {
    /// Records of a shape with one label, dense floats and ids that count from the first row of their table.
    pub fn new(shape: Shape) -> Self {
        Self { shape, rows_cap: None, labels: 1, dense: RawDense::Float, ids: RawIds::PerTable }
    }

    /// The columns: `label` (or `label1`, `label2`, ...), `I1`, `I2`, ..., `C1`, `C2`, ...
    pub fn schema(&self, dense_dtype: DenseDtype) -> Schema {
        let function = match self.dense {
            RawDense::Float => DenseFunction::None,
            RawDense::Int => DenseFunction::MlperfLog,
        };
        let labels = match self.labels {
            1 => vec![Label { name: "label".into() }],
            count => (1..=count).map(|label| Label { name: format!("label{label}") }).collect(),
        };
        let mut schema = self.shape.schema(self.rows_cap);
        for column in &mut schema.dense {
            *column = Dense { name: column.name.clone(), transform: DenseTransform::plain(function) };
        }
        Schema { labels, dense_dtype, ..schema }
    }

    /// Bytes of a record.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the format has no fixed record, or one longer than [`RECORD_BYTES_MAX`].
    pub fn record_bytes(&self) -> Result<usize> {
        let invalid = |what: String| {
            Err(Error::invalid(format!("raw files cannot have the shape {}: {what}", self.shape.name)))
        };
        if self.shape.ragged {
            return invalid("its bags are ragged, and records have a fixed length".into());
        }
        if self.labels == 0 {
            return invalid("records need at least one label".into());
        }
        let ids: u64 =
            (0..self.shape.rows.len()).map(|column| u64::from(self.shape.hotness_of(column))).sum();
        let bytes = (u64::from(self.labels).saturating_add(self.shape.dense as u64))
            .saturating_add(ids)
            .saturating_mul(FIELD_BYTES as u64);
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= RECORD_BYTES_MAX => Ok(bytes),
            _ => invalid(format!("a record would have {bytes} bytes, over the limit of {RECORD_BYTES_MAX}")),
        }
    }

    /// Records that are read, and packed by conversion, together: as many as [`Schema::default_block_samples`] says,
    /// unless their bytes are too many. Shuffling goes by such blocks, so that raw and converted records of one file
    /// come in the same order.
    ///
    /// # Errors
    /// See [`RawFormat::record_bytes`].
    pub fn block_samples(&self, schema: &Schema) -> Result<u32> {
        let most = (BLOCK_BYTES_MAX / self.record_bytes()?).max(1);
        Ok(schema.default_block_samples().min(1 << most.ilog2()))
    }

    /// The records that a file of `bytes` bytes holds.
    ///
    /// # Errors
    /// What does not add up, and what may be the cause.
    pub fn records_of(&self, bytes: u64) -> Result<u64, String> {
        let record = self.record_bytes().map_err(|error| error.to_string())? as u64;
        if bytes.is_multiple_of(record) {
            return Ok(bytes / record);
        }
        let mut what = format!(
            "{bytes} bytes are no multiple of the {record} bytes of a record ({self}). The file is cut short, or its \
             records are of another shape"
        );
        for other in Shape::built_in() {
            let other = Self { shape: other, ..self.clone() };
            if other.shape != self.shape
                && other.record_bytes().is_ok_and(|record| bytes.is_multiple_of(record as u64))
            {
                what += &format!(": it would suit records of the shape {} ({other})", other.shape.name);
            }
        }
        Err(what)
    }
}

/// The fields, in words: "1 label, 13 dense, 26 ids, 4 bytes each".
impl fmt::Display for RawFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: u64 =
            (0..self.shape.rows.len()).map(|column| u64::from(self.shape.hotness_of(column))).sum();
        let labels = if self.labels == 1 { "label" } else { "labels" };
        write!(f, "{} {labels}, {} dense, {ids} ids, 4 bytes each", self.labels, self.shape.dense)
    }
}

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordFault {
    /// What is wrong.
    pub kind: RecordFaultKind,
    /// The number of the column in the schema's order: labels, dense, categorical.
    pub column: usize,
    /// The bits of the field that is to blame.
    pub bits: u32,
}

/// What can be wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordFaultKind {
    /// A label is neither 0 nor 1.
    Label,
    /// A dense value is not finite, or subnormal, as integers are that are read as floats.
    Number,
    /// An id is no row of its table.
    Id,
}

/// A column of ids: where its fields are, and which ids are rows of its table.
#[derive(Debug, Clone)]
struct IdColumn {
    fields: std::ops::Range<usize>,
    /// The id of the table's first row.
    first: u64,
    rows: u64,
}

/// Reads records into samples.
#[derive(Debug, Clone)]
pub struct RecordDecoder {
    format: RawFormat,
    names: Vec<String>,
    record_bytes: usize,
    labels: usize,
    dense: usize,
    columns: Vec<IdColumn>,
    /// The logarithms of small integers.
    logarithms: Tabulated<f32>,
    transform: DenseTransform,
}

impl RecordDecoder {
    /// A decoder of records of a format.
    ///
    /// # Errors
    /// See [`RawFormat::record_bytes`].
    pub fn new(format: &RawFormat) -> Result<Self> {
        let record_bytes = format.record_bytes()?;
        let schema = format.schema(DenseDtype::F32);
        schema.validate()?;
        let (labels, dense) = (schema.labels.len(), schema.dense.len());
        let (mut field, mut row) = (labels + dense, 0);
        let columns = schema.categorical.iter().map(|column| {
            let first = match format.ids {
                RawIds::PerTable => 0,
                RawIds::GlobalOffset => row,
            };
            let start = field;
            field += column.hotness.max() as usize;
            row += column.rows;
            IdColumn { fields: start..field, first, rows: column.rows }
        });
        let transform = DenseTransform::plain(DenseFunction::MlperfLog);
        Ok(Self {
            columns: columns.collect(),
            names: schema.names().map(str::to_owned).collect(),
            format: format.clone(),
            record_bytes,
            labels,
            dense,
            logarithms: Tabulated::new(|x| transform.apply(Some(x))),
            transform,
        })
    }

    /// What the fields are.
    pub fn format(&self) -> &RawFormat {
        &self.format
    }

    /// Bytes of a record.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// The name of a column, counted as in [`RecordFault::column`].
    pub fn name(&self, column: usize) -> &str {
        self.names.get(column).map_or("", String::as_str)
    }

    /// Appends all records of `bytes`, whose length is a multiple of [`RecordDecoder::record_bytes`], to samples of the
    /// format's schema.
    ///
    /// # Errors
    /// The first record that is none, and its fault; `out` then holds parts of samples.
    pub fn decode_into(&self, bytes: &[u8], out: &mut Samples) -> Result<(), (usize, RecordFault)> {
        // Tile by tile, so that the records stay in the cache while they are taken apart column by column.
        let tiles = bytes.chunks(self.record_bytes * TILE_RECORDS);
        let whole = tiles.fold(true, |whole, tile| self.decode_tile(tile, out) & whole);
        if whole { Ok(()) } else { Err(self.first_fault(bytes)) }
    }

    /// Appends records, and tells whether all of them are such.
    fn decode_tile(&self, bytes: &[u8], out: &mut Samples) -> bool {
        let records = || bytes.chunks_exact(self.record_bytes);
        let before = out.len;
        out.len += records().len();
        let mut whole = true;
        for (number, labels) in out.labels.iter_mut().enumerate() {
            labels.extend(records().map(|record| {
                let label = bits_at(record, number);
                whole &= label == 0 || ONE.contains(&label);
                f32::from(u8::from(label != 0))
            }));
        }
        out.dense.resize(out.len * self.dense, 0.0);
        let rows = out.dense[before * self.dense..].chunks_exact_mut(self.dense.max(1));
        for (row, record) in rows.zip(records()) {
            for (value, number) in row.iter_mut().zip(self.labels..) {
                let bits = bits_at(record, number);
                *value = match self.format.dense {
                    RawDense::Float => f32::from_bits(bits),
                    RawDense::Int => {
                        let integer = f64::from(bits as i32);
                        self.logarithms.get(integer, |x| self.transform.apply(Some(x)))
                    }
                };
                whole &= self.format.dense == RawDense::Int || is_usual(*value);
            }
        }
        for (column, bags) in self.columns.iter().zip(&mut out.categorical) {
            let first = bags.ids.len();
            // Below the table's first row the difference wraps, and so is beyond the last.
            let id = |record, field| u64::from(bits_at(record, field)).wrapping_sub(column.first);
            if column.fields.len() == 1 {
                bags.extend_one_hot(records().map(|record| id(record, column.fields.start)));
            } else {
                records().for_each(|record| bags.push(column.fields.clone().map(|field| id(record, field))));
            }
            whole &= bags.ids[first..].iter().all(|&id| id < column.rows);
        }
        whole
    }

    /// The first record that is none, where one is known to be there.
    #[cold]
    fn first_fault(&self, bytes: &[u8]) -> (usize, RecordFault) {
        let faults = bytes.chunks_exact(self.record_bytes).map(|record| self.check(record).err()).enumerate();
        faults
            .flat_map(|(number, fault)| fault.map(|fault| (number, fault)))
            .next()
            .expect("a record is at fault")
    }

    /// Checks one record.
    ///
    /// # Errors
    /// Its first fault.
    pub fn check(&self, record: &[u8]) -> Result<(), RecordFault> {
        let fault = |kind, column, bits| Err(RecordFault { kind, column, bits });
        for column in 0..self.labels {
            let bits = bits_at(record, column);
            if bits != 0 && !ONE.contains(&bits) {
                return fault(RecordFaultKind::Label, column, bits);
            }
        }
        if self.format.dense == RawDense::Float {
            for column in self.labels..self.labels + self.dense {
                let bits = bits_at(record, column);
                if !is_usual(f32::from_bits(bits)) {
                    return fault(RecordFaultKind::Number, column, bits);
                }
            }
        }
        for (number, column) in self.columns.iter().enumerate() {
            for field in column.fields.clone() {
                let bits = bits_at(record, field);
                if u64::from(bits).wrapping_sub(column.first) >= column.rows {
                    return fault(RecordFaultKind::Id, self.labels + self.dense + number, bits);
                }
            }
        }
        Ok(())
    }

    /// What is wrong with a record, in words that name the likely cause.
    pub fn describe(&self, fault: &RecordFault) -> String {
        let RecordFault { kind, column, bits } = *fault;
        match kind {
            RecordFaultKind::Label => {
                format!("the label {bits:#010x} is neither 0 nor 1, as an integer or as a float")
            }
            RecordFaultKind::Number => {
                let value = f32::from_bits(bits);
                let what = if value.is_finite() { "a subnormal number" } else { "no finite number" };
                format!(
                    "{value:e} is {what}; as the integer {} it would be read with dense = int",
                    bits as i32
                )
            }
            RecordFaultKind::Id => {
                let first_id = self.labels + self.dense;
                let column = column.checked_sub(first_id).and_then(|column| self.columns.get(column));
                let (first, rows) = column.map_or((0, 0), |column| (column.first, column.rows));
                match self.format.ids {
                    RawIds::PerTable => format!("id {bits} is not below the table's {rows} rows"),
                    RawIds::GlobalOffset => {
                        format!("id {bits} is not within {first} to {}, the table's rows", first + rows - 1)
                    }
                }
            }
        }
    }
}

fn bits_at(record: &[u8], field: usize) -> u32 {
    let at = field * FIELD_BYTES;
    u32::from_le_bytes(record[at..at + FIELD_BYTES].try_into().expect("four bytes"))
}

/// Whether a dense float is one that data have: zero, or a normal number.
fn is_usual(value: f32) -> bool {
    value.is_normal() || value == 0.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dataset::{Dataset, Part};
    use crate::io::{IoOptions, Rung};
    use crate::stream::{BatchStream, Order, Position, StreamOptions};
    use crate::testing;

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

    /// Samples as records, written field by field; integers stand for the dense values of an `Int` format.
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

    /// What [`records`] decode to.
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
        fn records_come_back(format in any_format(), len in 1..200usize, seed in any::<u64>()) {
            let schema = format.schema(DenseDtype::F32);
            let samples = testing::samples_of(&schema, len, seed);
            let bytes = records(&format, &samples);
            let decoder = RecordDecoder::new(&format).unwrap();
            prop_assert_eq!(bytes.len(), len * decoder.record_bytes());
            prop_assert_eq!(format.records_of(bytes.len() as u64), Ok(len as u64));
            let mut back = Samples::new(&schema);
            prop_assert_eq!(decoder.decode_into(&bytes, &mut back), Ok(()));
            prop_assert_eq!(&back, &decoded(&format, &samples));
            prop_assert!(bytes.chunks(decoder.record_bytes()).all(|record| decoder.check(record).is_ok()));
        }

        /// The quick way over many records and the plain one agree on which record is the first at fault.
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
                "I1: 1e-44 is a subnormal number; as the integer 7 it would be read with dense = int",
            ),
            ([0, u32::MAX, 0, 0, 0], "I1: NaN is no finite number; as the integer -1"),
            ([0, one, 3, 0, 0], "C1: id 3 is not below the table's 3 rows"),
            ([0, one, 0, 4, 5], "C2: id 5 is not below the table's 5 rows"),
            ([0, one, u32::MAX, 0, 0], "C1: id 4294967295 is not below"),
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
        assert!(said.ends_with("id 1 is not within 3 to 7, the table's rows"), "{said}");
    }

    #[test]
    fn lengths_that_do_not_suit_name_what_would() {
        let dlrm = RawFormat::new(Shape::load("dlrm").unwrap());
        let refusal = dlrm.records_of(912 * 7).unwrap_err();
        assert!(
            refusal.contains("no multiple of the 160 bytes of a record (1 label, 13 dense, 26 ids, 4"),
            "{refusal}"
        );
        assert!(refusal.contains("would suit records of the shape dlrm-dcnv2"), "{refusal}");
        assert!(!dlrm.records_of(161).unwrap_err().contains("would suit"));
        let ragged = RawFormat::new(Shape { ragged: true, ..Shape::load("dlrm").unwrap() });
        assert!(ragged.record_bytes().unwrap_err().to_string().contains("ragged"));
        let endless = RawFormat { labels: u32::MAX, ..RawFormat::new(Shape::load("dlrm").unwrap()) };
        assert!(endless.record_bytes().unwrap_err().to_string().contains("over the limit"));
        assert!(RawFormat { labels: 0, ..endless }.record_bytes().is_err());
    }

    /// Two files of records, the second of them the shorter, as a dataset's training part.
    fn dataset(dir: &std::path::Path) -> (RawFormat, Vec<std::path::PathBuf>, Samples) {
        // 29 fields, so that few blocks begin with a page.
        let format = RawFormat::new(shape(&[50_000; 13], &[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 14));
        let samples = testing::samples_of(&format.schema(DenseDtype::F32), 50_000, 3);
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
    fn raw_files_stream_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (format, paths, samples) = dataset(dir.path());
        let opened = Dataset::raw(&format, &paths, &paths[1..]).unwrap();
        assert_eq!((opened.samples(Part::Train), opened.samples(Part::Eval)), (50_000, 9_999));
        let part = opened.part(Part::Train).unwrap();
        let block = u64::from(part.block_samples);
        assert_eq!(part.blocks.len() as u64, 40_001u64.div_ceil(block) + 9_999u64.div_ceil(block));
        for (rung, outcome) in crate::io::probe(dir.path()) {
            match outcome {
                Ok(()) => assert!(read(&opened, rung, Order::File).unwrap() == samples, "{rung}"),
                Err(why) => eprintln!("skipped: {rung} is refused here: {why}"),
            }
        }
        let shuffled = read(&opened, Rung::Pread, Order::Shuffled { seed: 5, window_blocks: 2 }).unwrap();
        assert!(shuffled != samples);
        let sorted = |samples: &Samples| {
            let mut rows: Vec<Vec<u32>> = (samples
                .dense
                .chunks(14)
                .zip(samples.categorical[0].ids.chunks(2)))
            .map(|(dense, ids)| {
                dense.iter().map(|value| value.to_bits()).chain(ids.iter().map(|&id| id as u32)).collect()
            })
            .collect();
            rows.sort_unstable();
            rows
        };
        assert!(sorted(&shuffled) == sorted(&samples), "every record comes once");
        // From the middle of the second file.
        let start = Position { epoch: 0, sample: 45_000 };
        let options = StreamOptions { start, ..StreamOptions::one_epoch(10_000) };
        let batch = BatchStream::open(part, &options).unwrap().next().unwrap().unwrap();
        let mut rest = Samples::new(opened.schema());
        rest.append(&samples, 45_000..50_000);
        assert!(batch.samples == rest);
    }

    #[test]
    fn a_record_that_is_none_is_named_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let (format, paths, _) = dataset(dir.path());
        let mut bytes = std::fs::read(&paths[1]).unwrap();
        let at = 9_000 * 29 * FIELD_BYTES + 15 * FIELD_BYTES;
        bytes[at..at + 4].copy_from_slice(&50_000u32.to_le_bytes());
        std::fs::write(&paths[1], &bytes).unwrap();
        let opened = Dataset::raw(&format, &paths, &[]).unwrap();
        let error = read(&opened, Rung::Pread, Order::File).unwrap_err();
        assert!(matches!(error, Error::BadRows(_)), "{error:?}");
        let error = error.to_string();
        let place = format!("b.bin record 9000 (byte {}), column C1: id 50000 is not below", 9_000 * 116);
        assert!(error.contains(&place) && error.contains("--on-bad skip"), "{error}");
        let report = crate::verify::verify(&opened, std::num::NonZeroUsize::new(2).unwrap()).unwrap();
        assert_eq!(report.damages.len(), 1, "{report:?}");
        assert!(report.damages[0].what.contains("record 9000"));

        std::fs::write(&paths[1], &bytes[..bytes.len() - 1]).unwrap();
        let error = Dataset::raw(&format, &paths, &[]).unwrap_err().to_string();
        assert!(error.contains("b.bin") && error.contains("no multiple of the 116 bytes"), "{error}");
        std::fs::write(&paths[1], []).unwrap();
        assert!(Dataset::raw(&format, &[], &paths[1..]).unwrap_err().to_string().contains("is empty"));
        assert!(Dataset::raw(&format, &paths, &[]).unwrap().part(Part::Eval).is_err());
    }
}
