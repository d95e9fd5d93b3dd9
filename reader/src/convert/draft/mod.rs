//! Drafts a schema file from the first rows of CSV or Parquet files: `rankine init-schema`.
//!
//! `column` counts over the values of each column, `guess` and `label` say what becomes of it, and `text` writes the
//! file.

mod column;
mod guess;
mod label;
mod text;

use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rankine_base::error::{Error, IoContext, Result};
use rankine_base::nearest::no_column;

use crate::convert::formats::csv::first_fields;
use crate::convert::number;
use crate::convert::predict::{RawInput, SourceTask, with_source};
use crate::convert::rows::kept::KeptTexts;
use crate::convert::rows::raw_type::{RawColumnType, RawType};
use crate::convert::rows::selection::Selection;
use crate::convert::rows::source::{PartRows, RequiredColumns, RowSource};
use crate::convert::rows::{RawBags, RawCategories, RawValues};
use crate::convert::text::input::PARQUET_MAGIC;
use crate::convert::text::lines::{Limits, Source};
use crate::convert::{BAG_MAX, ColumnSources, CsvFormat, RowFormat};
use crate::ids::IdRules;
use crate::schema::{Categorical, DenseDtype, Hotness, Pooling, Schema, VocabularyKind};

use column::Observed;

/// Characters that may separate fields. The one that makes most fields of the first line does.
const DELIMITERS: [char; 4] = [',', '\t', ';', '|'];

/// What a schema file is drafted from.
#[derive(Debug, Clone, Copy)]
pub struct DraftOptions<'a> {
    /// Files of one format: CSV, plain or compressed, or Parquet.
    pub files: &'a [PathBuf],
    /// The column to predict; by default it is guessed.
    pub label: Option<&'a str>,
    /// The delimiter of CSV; by default it is guessed.
    pub delimiter: Option<char>,
    /// Whether CSV files start with a line of column names. `None` takes a first line without numbers for one.
    pub header: Option<bool>,
    /// At most this many rows are read, from the first file on.
    pub rows: u64,
}

/// A drafted schema file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaDraft {
    /// Its text.
    pub text: String,
    /// The subcommand of `rankine convert` that reads the files: `csv` or `parquet`.
    pub format: &'static str,
    /// The raw column that it has as label. Without one, a conversion refuses the file.
    pub label: Option<String>,
}

/// The rows that were read.
struct Sample {
    columns: Vec<Observed>,
    /// Names that several columns have.
    repeated: Vec<String>,
    /// The format of CSV.
    csv: Option<CsvFormat>,
    /// Good rows.
    rows: u64,
    bad: u64,
    /// Whether all rows were read.
    complete: bool,
    /// The first file.
    first: String,
    files: usize,
}

/// Drafts a schema file from the first rows of some files. Takes up to 70 bytes per row and column, besides a chunk of
/// the file.
///
/// # Errors
/// [`Error::Io`]; [`Error::Unsuitable`] or [`Error::BadRows`] for files without rows; [`Error::Columns`] if there is no
/// column [`DraftOptions::label`], if it cannot be a label, or if a further file lacks a column; [`Error::Damaged`];
/// [`Error::Unsupported`] if this build cannot read Parquet.
pub fn draft_schema(options: &DraftOptions<'_>) -> Result<SchemaDraft> {
    let DraftOptions { files, label, .. } = *options;
    let sources = files.iter().map(|path| Source::new(path, true)).collect::<Result<Vec<_>>>()?;
    let sample = match sources.first() {
        None => return Err(Error::setting("files", "name at least one file")),
        Some(first) if is_parquet(first)? => parquet_sample(sources, options)?,
        Some(_) => csv_sample(sources, options)?,
    };
    let named = match label {
        None => None,
        Some(label) => Some(named_label(&sample, label)?),
    };
    let label = label::label(&sample.columns, named);
    Ok(SchemaDraft {
        text: text::write(&sample, label.as_ref()).expect("a string takes any text"),
        format: if sample.csv.is_some() { "csv" } else { "parquet" },
        label: label.map(|label| sample.columns[label.column].column.name.clone()),
    })
}

fn is_parquet(source: &Source) -> Result<bool> {
    let mut magic = Vec::new();
    let front = source.open_file()?.take(PARQUET_MAGIC.len() as u64).read_to_end(&mut magic);
    front.context("read", &source.path)?;
    Ok(magic == PARQUET_MAGIC)
}

/// Returns the number of the column that is named as label.
fn named_label(sample: &Sample, label: &str) -> Result<usize> {
    if sample.repeated.iter().any(|name| name == label) {
        return Err(Error::column(label, "cannot be a label: several columns have this name"));
    }
    let names: Vec<_> = sample.columns.iter().map(|column| &column.column.name).collect();
    let Some(number) = names.iter().position(|name| *name == label) else {
        let what = format!("{} {}", sample.first, no_column(label, " to predict", &names, |_| false));
        return Err(Error::columns(Some(label), what));
    };
    let column = &sample.columns[number];
    let single =
        matches!(column.column.values, RawType::Any | RawType::Integer | RawType::Number | RawType::Text);
    if !single || column.values() == 0 {
        let what = "cannot be a label: a label needs a number, a boolean or a text in each row";
        return Err(Error::column(label, what));
    }
    Ok(number)
}

fn csv_sample(files: Vec<Source>, options: &DraftOptions<'_>) -> Result<Sample> {
    let file = &files[0];
    let fields = |delimiter: char| first_fields(file, delimiter, false);
    let delimiter = match options.delimiter {
        Some(delimiter) => delimiter,
        None => {
            let count = |delimiter| Ok((fields(delimiter)?.len(), delimiter));
            let counts = DELIMITERS.into_iter().map(count).collect::<Result<Vec<_>>>()?;
            // The last of several equal ones.
            counts.into_iter().rev().max_by_key(|&(fields, _)| fields).map_or(',', |(_, delimiter)| delimiter)
        }
    };
    let trim = fields(delimiter)?.iter().any(|field| field.trim_matches([' ', '\t']) != field);
    let first = first_fields(file, delimiter, trim)?;
    let header =
        options.header.unwrap_or(!first.iter().any(|field| number::parse(field.as_bytes()).is_some()));
    let columns = (!header).then(|| (1..=first.len()).map(|number| format!("c{number}")).collect::<Vec<_>>());
    let names = columns.clone().unwrap_or(first);
    let format = CsvFormat { delimiter, quote: true, trim, columns, sources: ColumnSources::default() };
    let columns = names.into_iter().map(|name| RawColumnType { name, values: RawType::Any });
    let sample = sample(files, RowFormat::Csv(format.clone()), columns.collect(), options.rows)?;
    Ok(Sample { csv: Some(format), ..sample })
}

#[cfg(feature = "parquet")]
fn parquet_sample(files: Vec<Source>, options: &DraftOptions<'_>) -> Result<Sample> {
    let columns = crate::convert::formats::parquet::column_types(&files[0])?;
    let lists = columns.iter().filter(|column| column.values == RawType::List);
    let categorical = lists.map(|column| crate::convert::CategorySource {
        column: column.name.clone(),
        separator: None,
        weights: None,
    });
    let sources = ColumnSources { categorical: categorical.collect(), ..ColumnSources::default() };
    sample(files, RowFormat::Parquet(sources), columns, options.rows)
}

#[cfg(not(feature = "parquet"))]
fn parquet_sample(_: Vec<Source>, _: &DraftOptions<'_>) -> Result<Sample> {
    Err(crate::convert::no_parquet())
}

/// Reads the first rows of files with these columns.
fn sample(files: Vec<Source>, format: RowFormat, columns: Vec<RawColumnType>, rows: u64) -> Result<Sample> {
    let repeated = |name: &String| columns.iter().filter(|column| column.name == *name).count() > 1;
    let mut several: Vec<_> = columns.iter().map(|column| column.name.clone()).filter(repeated).collect();
    several.sort();
    several.dedup();
    let mut columns = columns;
    columns.retain(|column| !several.contains(&column.name));

    let is_list = |column: &&RawColumnType| column.values == RawType::List;
    let is_text = |column: &&RawColumnType| {
        !matches!(column.values, RawType::List | RawType::Time | RawType::Unusable(_))
    };
    let keep: Vec<_> = columns.iter().filter(is_text).map(|column| column.name.clone()).collect();
    let schema = Schema {
        labels: Vec::new(),
        weight: None,
        dense: Vec::new(),
        dense_dtype: DenseDtype::F32,
        sequences: Vec::new(),
        categorical: columns.iter().filter(is_list).map(|column| list(&column.name)).collect(),
    };
    let (first, count) = (files[0].path.to_string_lossy().into_owned(), files.len());
    let ids = IdRules::default();
    let input = RawInput {
        files,
        format: &format,
        schema: &schema,
        needed: RequiredColumns::Features,
        keep: &keep,
        limits: Limits::default(),
        ids: &ids,
        threads: NonZeroUsize::MIN,
        hint: "",
    };
    let observed = columns.into_iter().map(Observed::new).collect();
    let mut sample = Sample {
        columns: observed,
        repeated: several,
        csv: None,
        rows: 0,
        bad: 0,
        complete: true,
        first,
        files: count,
    };
    with_source(input, Reading { schema: &schema, keep: keep.len(), rows_max: rows, sample: &mut sample })?;
    if sample.rows == 0 {
        let what = match sample.bad {
            0 => format!("{} has no rows", sample.first),
            bad => format!(
                "{} has no good rows: {bad} rows do not have as many fields as the first line; check the delimiter",
                sample.first
            ),
        };
        return Err(Error::unsuitable(Path::new(&sample.first), what));
    }
    Ok(sample)
}

/// A list, read as a column of categories.
fn list(name: &str) -> Categorical {
    Categorical {
        name: name.into(),
        rows: Some(0),
        hotness: Hotness::Ragged { max: BAG_MAX },
        pooling: Pooling::Sum,
        vocabulary: VocabularyKind::Exact { min_count: 1 },
        weighted: false,
        shares: None,
    }
}

/// Reads rows into a sample.
struct Reading<'a> {
    schema: &'a Schema,
    /// The number of columns whose texts are kept.
    keep: usize,
    rows_max: u64,
    sample: &'a mut Sample,
}

impl SourceTask for Reading<'_> {
    type Output = ();
    type Error = Error;

    fn run<S: RowSource>(self, source: S) -> Result<()> {
        let Self { schema, keep, rows_max, sample } = self;
        let mut rows = PartRows::new(schema);
        let mut kept = KeptTexts::new(keep);
        for chunk in source.chunks() {
            let chunk = chunk?;
            rows.clear();
            kept.clear();
            let bad = source.read(&chunk, Selection::EVAL, &mut rows)?;
            source.copy_kept(&chunk, &bad, &mut kept);
            let good = rows.eval.len();
            let taken = good.min((rows_max - sample.rows) as usize);
            let mut lists = rows.eval.categories.iter();
            let mut text = 0;
            for column in &mut sample.columns {
                match column.column.values {
                    RawType::Time | RawType::Unusable(_) => {}
                    RawType::List => lists.by_ref().take(1).for_each(|list| add_lists(column, list, taken)),
                    RawType::Any | RawType::Integer | RawType::Number | RawType::Text => {
                        (0..taken).for_each(|row| {
                            kept.row(row).skip(text).take(1).for_each(|text| column.add(text))
                        });
                        text += 1;
                    }
                }
            }
            sample.rows += taken as u64;
            sample.bad += bad.len() as u64;
            if taken < good {
                sample.complete = false;
                break;
            }
        }
        source.check_unchanged()
    }
}

/// Adds the lists of the first rows.
fn add_lists(column: &mut Observed, lists: &RawCategories, rows: usize) {
    let (RawValues::Keys(keys), RawBags::Ends(ends)) = (&lists.values, &lists.bags) else {
        unreachable!("a list is read as bags of keys")
    };
    let mut start = 0;
    for &end in &ends[..rows] {
        column.add_list(u64::from(end - start));
        start = end;
    }
    let short = keys.short().filter(|&(number, _)| number < start as usize);
    short.for_each(|(_, key)| key.with_bytes(|key| column.count(key)));
    keys.long().filter(|&(number, _)| number < start as usize).for_each(|(_, key)| column.count(key));
}
