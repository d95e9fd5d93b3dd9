//! Parquet: named columns of typed values, which may be lists, read row group by row group.
//!
//! Several threads read, decompress and decode the pages of different columns, a few thousand rows at a time; the
//! values are then processed by several threads, as in all other formats.

use std::num::NonZeroUsize;
use std::sync::Arc;

use parquet::schema::types::SchemaDescPtr;
use rankine_base::error::{Error, Result};
use rankine_base::escape::excerpt;

use crate::convert::BAG_MAX;
use crate::convert::number;
use crate::convert::rows::fault::{BadName, BadReason, BadRow, Fault};
use crate::convert::rows::kept::{self, KeptTexts};
use crate::convert::rows::raw_type::RawColumnType;
use crate::convert::rows::selection::Selection;
use crate::convert::rows::source::{NamedTarget, PartRows, RequiredColumns, RowSource, Span};
use crate::convert::rows::split::ColumnSplit;
use crate::convert::rows::value_type::ValueUse;
use crate::convert::rows::weights::WeightedColumn;
use crate::convert::rows::{RawCategories, RawRows, RawValues};
use crate::convert::text::lines::Source;
use crate::origin::{ColumnSources, LabelRule};
use crate::part::Part;
use crate::schema::{Hotness, VocabularyKind};

mod columns;
mod decode;
mod dictionary;
mod file;
mod object;
mod pages;
mod sequences;
mod tables;
#[cfg(test)]
mod tests;
mod values;
mod wrong_weights;

use columns::{Bag, Columns, Leaf};
use decode::{DecodedRows, Decoder, FileColumns};
use file::OpenFile;
use values::{Value, Values};

/// Maximum number of bytes of the categories of one column in a row, so that those of a chunk can be counted in 32
/// bits.
const CATEGORY_BYTES_MAX: usize = 1 << 16;

/// Files of Parquet.
#[derive(Debug)]
pub(crate) struct ParquetSource {
    files: Vec<ParquetFile>,
    split: Option<ColumnSplit>,
    /// The numbers of the columns of each sequence.
    sequences: Vec<Vec<usize>>,
    /// Number of threads that decode.
    threads: NonZeroUsize,
}

/// What is read from one file.
#[derive(Debug)]
struct ParquetFile {
    source: Arc<Source>,
    rows: u64,
    leaves: Vec<Leaf>,
    actions: Vec<Action>,
    /// The categorical columns with weights.
    weighted: Vec<WeightedColumn<Option<String>>>,
    /// The numbers of the leaves whose texts are kept.
    kept: Vec<usize>,
    /// The number of the leaf that rows are split by, if there is one.
    split: Option<usize>,
    /// The numbers of the labels that the file lacks.
    labels_absent: Vec<usize>,
    weight_absent: bool,
}

/// What is done with the values of a leaf.
#[derive(Debug)]
struct Action {
    /// Its number among the leaves that are read.
    leaf: usize,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Label {
        number: usize,
        rule: LabelRule,
        may_be_missing: bool,
    },
    Weight,
    Dense {
        number: usize,
        largest: f64,
    },
    Category {
        number: usize,
        separator: Option<String>,
        bag: bool,
        rows: Option<u64>,
    },
    /// The weights of a column's categories.
    Weights {
        number: usize,
        separator: Option<String>,
    },
}

/// Some rows of one file.
#[derive(Debug)]
pub(crate) struct ParquetChunk {
    decoded: DecodedRows,
    first_row: u64,
    bytes_done: u64,
}

/// Opens files of Parquet for a schema whose columns come from `sources`, to decode them on `threads` threads.
/// `refuse` turns a problem with a raw column into an error.
///
/// # Errors
/// [`Error::Io`]; [`Error::Damaged`] for a file whose footer cannot be read; the errors of `refuse`.
pub(crate) fn parquet_source(
    sources: &ColumnSources,
    target: NamedTarget<'_>,
    files: Vec<Source>,
    threads: NonZeroUsize,
    refuse: impl Fn(&str, String) -> Error,
) -> Result<ParquetSource> {
    let NamedTarget { schema, needed, .. } = target;
    if !sources.fits(schema) {
        return Err(Error::columns(None, "the Parquet format does not match the columns of the schema"));
    }
    let open = |source: Source| {
        let (descriptor, rows) = schema_of(&source)?;
        let columns = Columns { descriptor: &descriptor, source: &source };
        let mut leaves = Vec::new();
        let mut leaf = |column: &str, wanted, bag| -> Result<Option<(usize, Leaf)>> {
            let Some(leaf) = columns.find(column, wanted, bag).map_err(|why| refuse(column, why))? else {
                return Ok(None);
            };
            let number =
                leaves.iter().position(|other: &Leaf| other.index == leaf.index).unwrap_or(leaves.len());
            if number == leaves.len() {
                leaves.push(leaf.clone());
            }
            Ok(Some((number, leaf)))
        };
        let lacks = |column: &str| refuse(column, columns.lacks(column, |path| is_used(sources, path)));
        let (mut actions, mut weighted) = (Vec::new(), Vec::new());
        let (mut labels_absent, mut weight_absent) = (Vec::new(), false);
        for (number, label) in sources.labels.iter().enumerate() {
            let may_be_missing = label.mask_missing || needed == RequiredColumns::Features;
            let text = matches!(label.rule, LabelRule::EqualsText(_));
            match leaf(&label.column, if text { ValueUse::Text } else { ValueUse::Number }, Bag::Never)? {
                Some((leaf, _)) => {
                    let target = Target::Label { number, rule: label.rule.clone(), may_be_missing };
                    actions.push(Action { leaf, target });
                }
                None if needed == RequiredColumns::All => return Err(lacks(&label.column)),
                None => labels_absent.push(number),
            }
        }
        if let Some(column) = &sources.weight {
            match leaf(column, ValueUse::Number, Bag::Never)? {
                Some((leaf, _)) => actions.push(Action { leaf, target: Target::Weight }),
                None if needed == RequiredColumns::All => return Err(lacks(column)),
                None => weight_absent = true,
            }
        }
        for (number, column) in sources.dense.iter().enumerate() {
            let largest = target.largest_number(number);
            let (leaf, _) = leaf(column, ValueUse::Number, Bag::Never)?.ok_or_else(|| lacks(column))?;
            actions.push(Action { leaf, target: Target::Dense { number, largest } });
        }
        for (number, from) in sources.categorical.iter().enumerate() {
            let column = &schema.categorical[number];
            let bag = matches!(column.hotness, Hotness::Ragged { .. });
            let may_be_list = if bag { Bag::Allowed } else { Bag::NotInFirstFile };
            let found = leaf(&from.column, ValueUse::Category, may_be_list)?;
            let (of, found) = found.ok_or_else(|| lacks(&from.column))?;
            if found.list && from.separator.is_some() {
                let why = "the column is already a list: remove its separator".to_owned();
                return Err(refuse(&from.column, why));
            }
            let rows = column.rows.filter(|_| column.vocabulary == VocabularyKind::Identity);
            let target = Target::Category { number, separator: from.separator.clone(), bag, rows };
            actions.push(Action { leaf: of, target });
            let Some(weights) = &from.weights else { continue };
            let (wanted, may_be_list) = values_of_weights(from.separator.is_some());
            let (leaf, _) = leaf(weights, wanted, may_be_list)?.ok_or_else(|| lacks(weights))?;
            let (name, separator) = (column.name.clone(), from.separator.clone());
            let target = Target::Weights { number, separator: separator.clone() };
            actions.push(Action { leaf, target });
            weighted.push(WeightedColumn { number, name, weights: leaf, categories: of, separator });
        }
        let (kept, split, source) = (Vec::new(), None, Arc::new(source));
        Ok(ParquetFile { rows, leaves, actions, weighted, kept, split, labels_absent, weight_absent, source })
    };
    let files = files.into_iter().map(open).collect::<Result<_>>()?;
    Ok(ParquetSource { files, split: None, sequences: schema.columns_of_sequences(), threads })
}

/// Returns the schema of a file or of tables in its place, and the number of rows; 0 for tables.
fn schema_of(source: &Source) -> Result<(SchemaDescPtr, u64)> {
    if let Some(tables) = &source.tables {
        return Ok((Arc::clone(&tables.columns), 0));
    }
    let file = OpenFile::new(source)?;
    let metadata = file.metadata.file_metadata();
    Ok((metadata.schema_descr_ptr(), u64::try_from(metadata.num_rows()).unwrap_or(0)))
}

/// Returns whether a path within a file is a column that is read: a list's has further parts after its name.
fn is_used(sources: &ColumnSources, path: &str) -> bool {
    let rest = |column| path.strip_prefix(column).map(|rest: &str| rest.is_empty() || rest.starts_with('.'));
    sources.columns().any(|column| rest(column) == Some(true))
}

/// Returns which values a column of weights has: texts to divide, or lists of numbers.
fn values_of_weights(has_separator: bool) -> (ValueUse, Bag) {
    match has_separator {
        true => (ValueUse::Text, Bag::Never),
        false => (ValueUse::Number, Bag::Allowed),
    }
}

/// Returns for each of some raw columns whether it is a list in a file.
///
/// # Errors
/// [`Error::Io`]; [`Error::Damaged`] for a file whose footer cannot be read.
pub(crate) fn lists<'a>(source: &Source, columns: impl Iterator<Item = &'a str>) -> Result<Vec<bool>> {
    let (descriptor, _) = schema_of(source)?;
    let found = Columns { descriptor: &descriptor, source };
    // Other problems of a column are reported when it is read.
    Ok(columns
        .map(|column| matches!(found.leaf(column), Some((_, leaf)) if leaf.max_rep_level() > 0))
        .collect())
}

/// Returns the columns of a file.
///
/// # Errors
/// [`Error::Io`]; [`Error::Damaged`] for a file whose footer cannot be read.
pub(crate) fn column_types(source: &Source) -> Result<Vec<RawColumnType>> {
    let (descriptor, _) = schema_of(source)?;
    Ok(Columns { descriptor: &descriptor, source }.types())
}

impl ParquetFile {
    /// Reads the texts of some columns, in addition to other columns, and returns the numbers of their leaves.
    /// `purpose`, such as "keep", is for messages.
    fn texts(&mut self, columns: &[String], purpose: &str) -> Result<Vec<usize>> {
        if columns.is_empty() {
            return Ok(Vec::new());
        }
        let (descriptor, _) = schema_of(&self.source)?;
        let found = Columns { descriptor: &descriptor, source: &self.source };
        let mut number = |column: &String| {
            let leaf = found.text(column, purpose).map_err(|why| Error::columns(Some(column), why))?;
            let read = self.leaves.iter().position(|other| other.index == leaf.index);
            Ok(read.unwrap_or_else(|| {
                self.leaves.push(leaf);
                self.leaves.len() - 1
            }))
        };
        columns.iter().map(&mut number).collect()
    }

    /// Appends a row to the part that `selection` or the split by a column assigns to it.
    fn push_split(
        &self,
        chunk: &ParquetChunk,
        row: usize,
        split: Option<&ColumnSplit>,
        selection: Selection,
        rows: &mut PartRows,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let (Some(split), Some(leaf)) = (split, self.split) else {
            return self.push(chunk, row, rows.of(selection.part(row as u64)), scratch);
        };
        let part = chunk.decoded.columns[leaf].with_text_of(row, scratch, |text| split.part(text));
        let out = rows.of(part.unwrap_or(Part::Train));
        let before = out.len();
        self.push(chunk, row, out, scratch)?;
        // A row with another fault is reported for that.
        if part.is_none() {
            out.truncate(before);
            return Err(ColumnSplit::fault(leaf));
        }
        Ok(())
    }

    fn push(
        &self,
        chunk: &ParquetChunk,
        row: usize,
        rows: &mut RawRows,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let before = rows.len();
        self.labels_absent.iter().for_each(|&label| rows.labels[label].push(f32::NAN));
        if self.weight_absent {
            rows.weights.push(1.0);
        }
        for Action { leaf, target } in &self.actions {
            if let Err(reason) = push_values(target, &chunk.decoded.columns[*leaf], row, rows, scratch) {
                rows.truncate(before);
                return Err(Fault { reason, field: Some(*leaf as u32) });
            }
        }
        for &WeightedColumn { number, weights: leaf, categories: of, .. } in &self.weighted {
            // Nulls are left out: it would be unclear which weight belongs to which category.
            let has_nulls = |leaf: usize| chunk.decoded.columns[leaf].has_nulls(row);
            let reason = match rows.categories[number].is_weighted() {
                _ if has_nulls(leaf) => BadReason::BagWeight,
                true if !has_nulls(of) => continue,
                _ => BadReason::WeightCount,
            };
            rows.truncate(before);
            return Err(Fault { reason, field: Some(leaf as u32) });
        }
        if let Some(leaf) = self.unequal_leaf(chunk, row, rows) {
            rows.truncate(before);
            return Err(Fault { reason: BadReason::SequenceLength, field: Some(leaf as u32) });
        }
        rows.end_rows(1);
        Ok(())
    }
}

fn push_values(
    target: &Target,
    values: &Values,
    row: usize,
    rows: &mut RawRows,
    scratch: &mut Vec<u8>,
) -> Result<(), BadReason> {
    match target {
        Target::Label { number, rule, may_be_missing } => {
            let label = match (rule, values.one(row)) {
                (LabelRule::EqualsText(text), Some(value)) => {
                    let equal = value.with_text(scratch, |value| value == text.as_bytes());
                    Some(f32::from(u8::from(equal)))
                }
                (rule, value) => match value.and_then(Value::number) {
                    Some(number) => rule.of_number(number),
                    None => may_be_missing.then_some(f32::NAN),
                },
            };
            rows.labels[*number].push(label.ok_or(BadReason::Label)?);
        }
        Target::Weight => {
            let weight = values.one(row).and_then(Value::number).and_then(number::weight);
            rows.weights.push(weight.ok_or(BadReason::Weight)?);
        }
        Target::Dense { number, largest } => {
            let value = match values.one(row).and_then(Value::number) {
                None => Some(f64::NAN),
                Some(value) => Some(value).filter(|value| value.abs() <= *largest),
            };
            rows.dense[*number].push(value.ok_or(BadReason::Number)?);
        }
        Target::Category { number, separator, bag, rows: below } => {
            let column = &mut rows.categories[*number];
            let (mut count, mut bytes) = (0, 0);
            for at in values.of_row(row) {
                values.get(at).with_text(scratch, |text| {
                    let Some(separator) = separator else {
                        return push_category(text, *below, column, (&mut count, &mut bytes));
                    };
                    each_part(text, separator, |category| {
                        push_category(category, *below, column, (&mut count, &mut bytes))
                    })
                })?;
            }
            if *bag {
                column.end_bag();
            } else if count == 0 {
                push_category(b"", *below, column, (&mut count, &mut bytes))?;
            }
        }
        Target::Weights { number, separator } => {
            let weights = &mut rows.categories[*number].weights;
            let mut push = |weight: Option<f64>| {
                weights.push(weight.and_then(number::weight).ok_or(BadReason::BagWeight)?);
                Ok(())
            };
            for at in values.of_row(row) {
                match separator {
                    None => push(values.get(at).number())?,
                    Some(separator) => values.get(at).with_text(scratch, |text| {
                        each_part(text, separator, |weight| push(number::parse(weight)))
                    })?,
                }
            }
        }
    }
    Ok(())
}

/// Calls `take` with each part of a text between separators; an empty text has none.
fn each_part(
    text: &[u8],
    separator: &str,
    mut take: impl FnMut(&[u8]) -> Result<(), BadReason>,
) -> Result<(), BadReason> {
    let mut from = 0;
    let ends = memchr::memmem::find_iter(text, separator).chain(std::iter::once(text.len()));
    for end in ends.filter(|_| !text.is_empty()) {
        take(&text[from..end])?;
        from = end + separator.len();
    }
    Ok(())
}

fn push_category(
    text: &[u8],
    below: Option<u64>,
    column: &mut RawCategories,
    (count, bytes): (&mut u32, &mut usize),
) -> Result<(), BadReason> {
    (*count, *bytes) = (*count + 1, *bytes + text.len());
    if *count > BAG_MAX {
        return Err(BadReason::Bag);
    }
    if *bytes > CATEGORY_BYTES_MAX {
        return Err(BadReason::Category);
    }
    match (&mut column.values, below) {
        (RawValues::Rows(ids), Some(below)) => {
            ids.push(number::parse_row(text, below).ok_or(BadReason::RowNumber)?);
        }
        (RawValues::Keys(keys), _) => keys.push(text),
        (RawValues::Rows(_), None) => unreachable!("rows are created for the schema of the file's actions"),
    }
    Ok(())
}

impl RowSource for ParquetSource {
    type Chunk = ParquetChunk;
    const UNIT: &'static str = "row";

    fn check_unchanged(&self) -> Result<()> {
        // Rows of tables are read as they come, and cannot change.
        let mut files = self.files.iter().filter(|file| file.source.tables.is_none());
        files.try_for_each(|file| file.source.check_unchanged())
    }

    fn keep(&mut self, columns: &[String]) -> Result<()> {
        for file in &mut self.files {
            file.kept = file.texts(columns, "keep")?;
        }
        Ok(())
    }

    fn split_by(&mut self, split: &ColumnSplit) -> Result<()> {
        for file in &mut self.files {
            file.split = file.texts(&[split.column().to_owned()], "split by")?.pop();
        }
        self.split = Some(split.clone());
        Ok(())
    }

    fn copy_kept(&self, chunk: &ParquetChunk, bad: &[BadRow], out: &mut KeptTexts) {
        let mut scratch = Vec::new();
        for row in kept::good_rows(0..chunk.decoded.rows, bad) {
            for &leaf in &self.files[chunk.decoded.file].kept {
                chunk.decoded.columns[leaf].with_text_of(row, &mut scratch, |text| out.push(text));
            }
        }
    }

    fn chunks(&self) -> impl Iterator<Item = Result<ParquetChunk>> + Send {
        let columns = |file: &ParquetFile| FileColumns {
            source: Arc::clone(&file.source),
            leaves: file.leaves.clone(),
        };
        // Tables are the only source of a conversion.
        let decoded: DecodedChunks = match self.files.first().map(|file| (&file.source.tables, &file.leaves))
        {
            Some((Some(tables), leaves)) => Box::new(tables.read(leaves.clone())),
            _ => Box::new(Decoder::new(self.files.iter().map(columns).collect(), self.threads)),
        };
        ParquetChunks { source: self, decoded, first_row: 0, file: 0, bytes_before: 0 }
    }

    fn span(&self, chunk: &ParquetChunk) -> Span {
        Span {
            first_row: chunk.first_row,
            rows: chunk.decoded.rows as u64,
            eval: self.files[chunk.decoded.file].source.eval,
            bytes_done: chunk.bytes_done,
        }
    }

    fn read(&self, chunk: &ParquetChunk, selection: Selection, rows: &mut PartRows) -> Result<Vec<BadRow>> {
        let file = &self.files[chunk.decoded.file];
        let mut scratch = Vec::new();
        let mut bad = Vec::new();
        for row in 0..chunk.decoded.rows {
            let split = self.split.as_ref();
            if let Err(fault) = file.push_split(chunk, row, split, selection, rows, &mut scratch) {
                bad.push(BadRow { row: row as u32, line: row as u32, start: 0, end: 0, fault });
            }
        }
        Ok(bad)
    }

    fn name(&self, chunk: &ParquetChunk, bad: &BadRow) -> BadName {
        let file = &self.files[chunk.decoded.file];
        let leaf = bad.fault.field.map(|leaf| leaf as usize);
        let row = bad.row as usize;
        let values_of = |leaf: usize| &chunk.decoded.columns[leaf];
        let shown = |leaf: usize| {
            let values = values_of(leaf);
            let texts: Vec<_> = (values.of_row(row))
                .take(3)
                .map(|at| values.get(at).with_text(&mut Vec::new(), excerpt))
                .collect();
            if texts.is_empty() { "null".to_owned() } else { texts.join(", ") }
        };
        let shown = leaf.map_or_else(String::new, shown);
        let targets =
            || file.actions.iter().filter(|action| Some(action.leaf) == leaf).map(|action| &action.target);
        let why = match bad.fault.reason {
            BadReason::Split => match (&self.split, leaf) {
                (Some(split), Some(leaf)) => {
                    let text = chunk.decoded.columns[leaf].with_text_of(
                        bad.row as usize,
                        &mut Vec::new(),
                        <[u8]>::to_vec,
                    );
                    split.describe(&text)
                }
                _ => shown,
            },
            BadReason::Label => {
                let rule = targets().find_map(|target| match target {
                    Target::Label { rule, .. } => Some(rule.admits()),
                    _ => None,
                });
                format!("{shown} is not a label: it must be {}", rule.unwrap_or("0 or 1"))
            }
            BadReason::Weight => format!("{shown} is not {}", number::WEIGHT),
            BadReason::Number => format!("{shown} is outside the range that the column can store"),
            BadReason::RowNumber => {
                let rows = targets().find_map(|target| match target {
                    Target::Category { rows, .. } => *rows,
                    _ => None,
                });
                format!("{shown} is not a row number below {}", rows.unwrap_or(0))
            }
            BadReason::BagWeight if leaf.is_some_and(|leaf| values_of(leaf).has_nulls(row)) => {
                format!("a null is not {}", number::WEIGHT)
            }
            BadReason::BagWeight => {
                let wrong = leaf.and_then(|leaf| file.wrong_weight(values_of(leaf), row, leaf));
                format!("{} is not {}", wrong.unwrap_or(shown), number::WEIGHT)
            }
            BadReason::WeightCount => file.describe_weight_count(chunk, row, leaf),
            BadReason::SequenceLength => file.describe_sequence(chunk, row, (leaf, &self.sequences)),
            BadReason::Bag => format!("there are more than {BAG_MAX} categories"),
            _ => format!("the categories have more than {CATEGORY_BYTES_MAX} bytes; they start with {shown}"),
        };
        BadName {
            file: file.source.path.to_string_lossy().into_owned(),
            unit: Self::UNIT,
            number: chunk.decoded.file_row + u64::from(bad.row) + 1,
            column: leaf.map(|leaf| file.leaves[leaf].name.clone()),
            why,
        }
    }

    /// Writes a JSON object of the columns that are read, because a row of Parquet has no bytes of its own.
    fn copy(&self, chunk: &ParquetChunk, bad: &BadRow, out: &mut Vec<u8>) -> bool {
        let file = &self.files[chunk.decoded.file];
        let value = |(leaf, values): (&Leaf, &Values)| {
            let mut own = values.of_row(bad.row as usize).map(|at| values.get(at).to_json());
            let json = if leaf.list { own.collect() } else { own.next().into() };
            (leaf.name.clone(), json)
        };
        let object: serde_json::Map<_, _> =
            file.leaves.iter().zip(&chunk.decoded.columns).map(value).collect();
        serde_json::to_writer(&mut *out, &object).expect("writing to a vector does not fail");
        out.push(b'\n');
        false
    }

    fn quarantine_name(&self) -> &'static str {
        "quarantine.jsonl"
    }

    fn expects(&self) -> String {
        "Parquet with the columns that the schema file describes".into()
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.source.bytes).sum()
    }
}

type DecodedChunks = Box<dyn Iterator<Item = Result<DecodedRows>> + Send>;

/// All chunks of several files, in order.
struct ParquetChunks<'a> {
    source: &'a ParquetSource,
    decoded: DecodedChunks,
    first_row: u64,
    /// The file of the last chunk, and bytes of the earlier ones.
    file: usize,
    bytes_before: u64,
}

impl Iterator for ParquetChunks<'_> {
    type Item = Result<ParquetChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        let rows = match self.decoded.next()? {
            Ok(rows) => rows,
            Err(error) => return Some(Err(error)),
        };
        let files = &self.source.files;
        self.bytes_before += files[self.file..rows.file].iter().map(|file| file.source.bytes).sum::<u64>();
        self.file = rows.file;
        let file = &files[rows.file];
        let share = (rows.file_row + rows.rows as u64) as f64 / file.rows.max(1) as f64;
        let first_row = self.first_row;
        self.first_row += rows.rows as u64;
        let bytes_done = self.bytes_before + (file.source.bytes as f64 * share.min(1.0)) as u64;
        Some(Ok(ParquetChunk { decoded: rows, first_row, bytes_done }))
    }
}
