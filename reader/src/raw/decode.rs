//! Decodes records into samples.

use rankine_base::error::Result;

use crate::ids::{IdRules, OutOfRange};
use crate::precomputed::PrecomputedFunction;
use crate::raw::{FIELD_BYTES, RawDense, RawFormat, RawIds};
use crate::samples::Samples;
use crate::schema::{DenseDtype, DenseFunction, DenseTransform};

/// Records that are decoded together: 64 of MLPerf's longest take 57 KiB.
const TILE_RECORDS: usize = 64;
/// The bits of a label of 1: as a float, and as an integer. Neither bit pattern means something else in the other
/// type.
pub(super) const ONE: [u32; 2] = [1.0f32.to_bits(), 1];

/// Why bytes are not a valid record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordFault {
    /// What is wrong.
    pub kind: RecordFaultKind,
    /// The number of the column in the schema's order: labels, dense, categorical.
    pub column: usize,
    /// The bits of the invalid field.
    pub bits: u32,
}

/// The possible faults of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordFaultKind {
    /// A label is neither 0 nor 1.
    Label,
    /// A dense value is not finite, or is subnormal, as integers are when read as floats.
    Number,
    /// A dense value is outside the range that its column can store.
    Large,
    /// An id is not a row of its table.
    Id,
}

/// A column of ids: the positions of its fields, and the ids that are rows of its table.
#[derive(Debug, Clone)]
struct IdColumn {
    fields: std::ops::Range<usize>,
    /// The id of the table's first row.
    first: u64,
    rows: u64,
}

/// Decodes records into samples.
#[derive(Debug, Clone)]
pub struct RecordDecoder {
    format: RawFormat,
    names: Vec<String>,
    record_bytes: usize,
    labels: usize,
    dense: usize,
    columns: Vec<IdColumn>,
    /// The logarithms of small integers.
    logarithms: PrecomputedFunction<f32>,
    transform: DenseTransform,
}

impl RecordDecoder {
    /// Creates a decoder for records of a format.
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
            // The tables of a shape have rows.
            let rows = column.rows.unwrap_or(0);
            row += rows;
            IdColumn { fields: start..field, first, rows }
        });
        let transform = DenseTransform::plain(DenseFunction::MlperfLog);
        Ok(Self {
            columns: columns.collect(),
            names: schema.names().map(str::to_owned).collect(),
            format: format.clone(),
            record_bytes,
            labels,
            dense,
            logarithms: PrecomputedFunction::new(|x| transform.apply(Some(x))),
            transform,
        })
    }

    /// Returns the format.
    pub fn format(&self) -> &RawFormat {
        &self.format
    }

    /// Returns the bytes per record.
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Returns the name of a column, counted as in [`RecordFault::column`].
    pub fn name(&self, column: usize) -> &str {
        self.names.get(column).map_or("", String::as_str)
    }

    /// Decodes all records of `bytes`, whose length must be a multiple of [`RecordDecoder::record_bytes`], and
    /// appends them to samples of the format's schema.
    ///
    /// # Errors
    /// The number of the first invalid record, and its fault; `out` then holds incomplete samples.
    pub fn decode_into(&self, bytes: &[u8], out: &mut Samples) -> Result<(), (usize, RecordFault)> {
        self.decode_under(&IdRules::default(), bytes, out)
    }

    /// Like [`RecordDecoder::decode_into`], but ids that are out of range in columns with a rule for them become ids
    /// beyond the table: see [`IdRules::apply`].
    ///
    /// # Errors
    /// As [`RecordDecoder::decode_into`].
    pub fn decode_under(
        &self,
        ids: &IdRules,
        bytes: &[u8],
        out: &mut Samples,
    ) -> Result<(), (usize, RecordFault)> {
        // Tile by tile, so that the records stay in the cache while they are decoded column by column.
        let tiles = bytes.chunks(self.record_bytes * TILE_RECORDS);
        let whole = tiles.fold(true, |whole, tile| self.decode_tile(ids, tile, out) & whole);
        if whole { Ok(()) } else { Err(self.first_fault(ids, bytes)) }
    }

    /// Appends records; returns whether all of them are valid.
    fn decode_tile(&self, ids: &IdRules, bytes: &[u8], out: &mut Samples) -> bool {
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
                    // The sum is 0 for -0, and otherwise the number: conversion has only one zero.
                    RawDense::Float => f32::from_bits(bits) + 0.0,
                    RawDense::Int => {
                        let integer = f64::from(bits as i32);
                        self.logarithms.get(integer, |x| self.transform.apply(Some(x)))
                    }
                };
                whole &= self.format.dense == RawDense::Int || is_usual(*value);
            }
        }
        for (number, (column, bags)) in self.columns.iter().zip(&mut out.categorical).enumerate() {
            let first = bags.ids.len();
            // For ids below the table's first row the difference wraps, and is then beyond the last row.
            let id = |record, field| u64::from(bits_at(record, field)).wrapping_sub(column.first);
            if column.fields.len() == 1 {
                bags.extend_one_hot(records().map(|record| id(record, column.fields.start)));
            } else {
                records().for_each(|record| bags.push(column.fields.clone().map(|field| id(record, field))));
            }
            whole &=
                ids.of(number) != OutOfRange::Fail || bags.ids[first..].iter().all(|&id| id < column.rows);
        }
        whole
    }

    /// Returns the first invalid record of bytes that are known to have one.
    #[cold]
    fn first_fault(&self, ids: &IdRules, bytes: &[u8]) -> (usize, RecordFault) {
        let records = bytes.chunks_exact(self.record_bytes);
        let faults = records.map(|record| self.check_under(ids, record).err()).enumerate();
        faults
            .flat_map(|(number, fault)| fault.map(|fault| (number, fault)))
            .next()
            .expect("one record is invalid")
    }

    /// Checks one record.
    ///
    /// # Errors
    /// Its first fault.
    pub fn check(&self, record: &[u8]) -> Result<(), RecordFault> {
        self.check_under(&IdRules::default(), record)
    }

    /// Like [`RecordDecoder::check`], but accepts any id for which there is a rule.
    ///
    /// # Errors
    /// Its first fault.
    pub(crate) fn check_under(&self, ids: &IdRules, record: &[u8]) -> Result<(), RecordFault> {
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
        let checked = |(number, _): &(usize, &IdColumn)| ids.of(*number) == OutOfRange::Fail;
        for (number, column) in self.columns.iter().enumerate().filter(checked) {
            for field in column.fields.clone() {
                let bits = bits_at(record, field);
                if u64::from(bits).wrapping_sub(column.first) >= column.rows {
                    return fault(RecordFaultKind::Id, self.labels + self.dense + number, bits);
                }
            }
        }
        Ok(())
    }

    /// Checks that no dense value of a record has a magnitude greater than `largest`.
    ///
    /// # Errors
    /// Its first fault.
    pub(crate) fn check_numbers(&self, record: &[u8], largest: f64) -> Result<(), RecordFault> {
        let large = (0..self.dense).find(|&number| self.number(record, number).abs() > largest);
        large.map_or(Ok(()), |number| {
            let column = self.labels + number;
            Err(RecordFault { kind: RecordFaultKind::Large, column, bits: bits_at(record, column) })
        })
    }

    /// Returns a label, 0 or 1, of a record that was checked.
    pub(crate) fn label(&self, record: &[u8], number: usize) -> f32 {
        f32::from(u8::from(bits_at(record, number) != 0))
    }

    /// Returns a dense value of a record before any function is applied.
    pub(crate) fn number(&self, record: &[u8], number: usize) -> f64 {
        let bits = bits_at(record, self.labels + number);
        match self.format.dense {
            RawDense::Float => f64::from(f32::from_bits(bits)),
            RawDense::Int => f64::from(bits as i32),
        }
    }

    /// Returns the rows of a checked record in the table of a categorical column; ids out of range are beyond the
    /// table.
    pub(crate) fn bag(&self, record: &[u8], number: usize) -> impl Iterator<Item = u64> {
        let column = &self.columns[number];
        column.fields.clone().map(|field| u64::from(bits_at(record, field)).wrapping_sub(column.first))
    }

    /// Describes what is wrong with a record, with the likely cause.
    pub fn describe(&self, fault: &RecordFault) -> String {
        let RecordFault { kind, column, bits } = *fault;
        match kind {
            RecordFaultKind::Label => {
                format!("the label {bits:#010x} is neither 0 nor 1, as an integer or as a float")
            }
            RecordFaultKind::Number => {
                let value = f32::from_bits(bits);
                let what = if value.is_finite() { "a subnormal number" } else { "not finite" };
                format!(
                    "{value:e} is {what}; with dense = int it would be read as the integer {}",
                    bits as i32
                )
            }
            RecordFaultKind::Large => {
                format!(
                    "{:e} is outside the range of half precision: store numbers as f32",
                    f32::from_bits(bits)
                )
            }
            RecordFaultKind::Id => {
                let first_id = self.labels + self.dense;
                let column = column.checked_sub(first_id).and_then(|column| self.columns.get(column));
                let (first, rows) = column.map_or((0, 0), |column| (column.first, column.rows));
                match self.format.ids {
                    RawIds::PerTable => format!("id {bits} is out of range: its table has {rows} rows"),
                    RawIds::GlobalOffset => {
                        format!(
                            "id {bits} is out of range: its table has the ids {first} to {}",
                            first + rows - 1
                        )
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

/// Returns whether a dense float is plausible: zero or a normal number.
fn is_usual(value: f32) -> bool {
    value.is_normal() || value == 0.0
}
