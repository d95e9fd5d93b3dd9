//! `rankine inspect`: shows what a dataset contains, and verifies it.

use std::fmt::{self, Display};
use std::path::PathBuf;

use clap::ArgGroup;
use rankine_base::url::refuse;
use rankine_job::ThreadCount;
use rankine_reader::counting::count;
use rankine_reader::dataset::Manifest;
use rankine_reader::origin::Origin;
use rankine_reader::own_history::OwnHistory;
use rankine_reader::popularity::PopularityClasses;
use rankine_reader::raw::RawFormat;
use rankine_reader::schema::{Hotness, Keep, Sequence, VocabularyKind};
use rankine_reader::statistics::{RowFrequencies, TableStatistics};
use rankine_reader::survey::survey;
use rankine_reader::verify::{VerifyReport, block_bytes, verify_watched};
use rankine_reader::{Dataset, Fit, Part, Schema, vocabulary};
use serde::Serialize;

use crate::progress::Progress;
use crate::raw::RecordArgs;
use crate::table::{TextTable, counted};
use crate::{CommandError, Exit, output};

mod fit;
mod own_history;

/// Number of frequent rows listed for each table.
const FREQUENT_ROWS: usize = 5;

/// Show what a dataset contains: columns, samples, origin, and the skew of its tables
///
/// For sequences, inspect counts how often a query is in its own history: a column whose vocabulary a column of the
/// sequence shares. It reads the first samples of the training part for this. If most positives and few negatives are
/// in their history, it probably includes the events that are to be predicted.
///
/// With --verify every byte is read and checked; the exit code is 3 if the dataset is damaged. For a fit, columns and
/// vocabularies are shown, and every byte is checked in any case. With --shape the paths
/// are raw files of HugeCTR, and every record is read and checked.
///
/// Conversions and `rankine generate` count how often each row of every table is looked up. With --count this is done
/// for a dataset that lacks these counts: the training part is read once, and popularity.bin is written into its
/// folder. This takes 9 bytes of memory per row of all tables.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("reading").multiple(true).args(["verify", "count"]))]
#[command(after_help = "\
Examples:
  rankine inspect data/criteo
  rankine inspect data/criteo --verify
  rankine inspect data/old --count
  rankine inspect day_0.bin day_1.bin --shape dlrm --dense int
  rankine inspect data/criteo --json | jq '.tables[] | {name, rows, top_1_percent_share}'")]
pub(crate) struct Args {
    /// Folder of a dataset or of a fit, or raw files with --shape
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Read raw files of this shape: dlrm, dlrm-dcnv2, or the path of a shape file
    #[arg(long, value_name = "SHAPE", conflicts_with = "verify")]
    shape: Option<String>,

    #[command(flatten)]
    records: RecordArgs,

    /// Read and check every block
    #[arg(long)]
    verify: bool,

    /// Count how often the training part looks up each row, and write the counts into the dataset's folder
    #[arg(long, conflicts_with = "shape")]
    count: bool,

    /// With --verify or --count, number of CPU threads [default: all that this process may use]
    #[arg(long, value_name = "N", value_parser = crate::arguments::threads, requires = "reading")]
    threads: Option<ThreadCount>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, quiet: bool) -> Result<(), CommandError> {
    if let Some(shape) = &args.shape {
        return inspect_raw(&args, &args.records.format(shape)?);
    }
    let [path] = &args.paths[..] else {
        let what = "inspect takes one dataset; raw files need --shape";
        return Err(CommandError::new(Exit::Usage, what));
    };
    if Fit::exists(path) {
        if args.count {
            let what = format!("{} is a fit, which has no samples to count: name a dataset", path.display());
            return Err(CommandError::new(Exit::Usage, what));
        }
        return fit::inspect(path, args.json);
    }
    if args.count {
        refuse(path, "a dataset whose rows are counted")?;
    }
    let dataset = Dataset::open(path)?;
    if args.count {
        let train_bytes = part_bytes(&dataset, Part::Train);
        let mut progress = Progress::new("counting", "bytes", train_bytes, quiet);
        count(&dataset, rankine_job::thread_count(args.threads), &mut |bytes| progress.at(bytes))?;
    }
    let verified = args.verify.then(|| verified(&dataset, args.threads, quiet)).transpose()?;
    // If the statistics are damaged, the damage is still reported.
    let tables = || tables(&dataset, &dataset.statistics()?, dataset.popularity_classes()?);
    let tables = match tables() {
        Ok(tables) => tables,
        Err(_) if verified.as_ref().is_some_and(|report| !report.is_whole()) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    // Blocks that are damaged are reported, too.
    let own_history = match own_history::of(&dataset) {
        Err(_) if verified.as_ref().is_some_and(|report| !report.is_whole()) => Vec::new(),
        found => found?,
    };
    let manifest = dataset.manifest().expect("a dataset that was opened from its folder has a manifest");
    let report = Inspection {
        path,
        block_samples: manifest.block_samples,
        parts: manifest.parts.keys().map(|&part| part_report(manifest, part)).collect(),
        sequences: &manifest.schema.sequences,
        own_history,
        schema: &manifest.schema,
        tables,
        origin: Some(&manifest.origin),
        raw: None,
        verify: verified.as_ref(),
    };
    if args.json {
        output::json(&report)?
    } else {
        output::text(&report)?
    }
    match verified {
        Some(verified) if !verified.is_whole() => {
            let mut what = format!("{} is damaged", path.display());
            for damage in &verified.damages {
                what += &format!("\n  {}", damage.what);
            }
            if verified.damages_more > 0 {
                what += &format!("\n  and {} more", verified.damages_more);
            }
            Err(CommandError::new(Exit::BadData, what))
        }
        _ => Ok(()),
    }
}

/// Verifies a dataset, with a progress.
fn verified(
    dataset: &Dataset,
    threads: Option<ThreadCount>,
    quiet: bool,
) -> Result<VerifyReport, CommandError> {
    let mut progress = Progress::new("verifying", "bytes", block_bytes(dataset), quiet);
    Ok(verify_watched(dataset, rankine_job::thread_count(threads), &mut |bytes| progress.at(bytes))?)
}

/// Returns the bytes of the blocks of a part.
fn part_bytes(dataset: &Dataset, part: Part) -> u64 {
    let part = dataset.manifest().and_then(|manifest| manifest.parts.get(&part));
    part.map_or(0, |part| part.blocks.iter().map(|file| file.bytes).sum())
}

#[derive(Serialize)]
struct Inspection<'a> {
    path: &'a PathBuf,
    block_samples: u32,
    parts: Vec<PartReport>,
    tables: Vec<TableReport>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    sequences: &'a [Sequence],
    /// How often queries are in their own history, in the first samples of the training part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    own_history: Vec<OwnHistory>,
    schema: &'a Schema,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a Origin>,
    /// Format of raw records.
    #[serde(skip_serializing_if = "Option::is_none")]
    raw: Option<&'a RawFormat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<&'a VerifyReport>,
}

#[derive(Serialize)]
struct PartReport {
    part: Part,
    samples: u64,
    /// For each label column, the share of 1 among the labels that are not missing; null if all are missing.
    label_rates: Vec<Option<f64>>,
    /// For each label column, the number of samples whose label is missing.
    labels_missing: Vec<u64>,
    blocks: u64,
    files: usize,
    bytes: u64,
    bytes_per_sample: f64,
}

#[derive(Serialize)]
struct TableReport {
    name: String,
    /// Absent if the vocabulary is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    hotness: Hotness,
    /// Whether ids have weights.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    weighted: bool,
    vocabulary: VocabularyKind,
    /// Look-ups of the training part.
    lookups: u64,
    /// Rows that the training part looks up at least once. This and all below but `hotness_mean` are absent if the
    /// vocabulary is open, since keys are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    distinct_rows: Option<u64>,
    /// Mean number of ids per sample.
    hotness_mean: f64,
    /// Share of look-ups of the most frequent 1% of the table's rows (at least one row).
    #[serde(skip_serializing_if = "Option::is_none")]
    top_1_percent_share: Option<f64>,
    /// How many of the most frequent rows have together these shares of the look-ups.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_serving: Option<[RowsServing; SHARES_SERVED.len()]>,
    /// Whether the look-ups of every row are known, and not only of the most frequent ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    all_rows_counted: Option<bool>,
    most_frequent: Vec<FrequentRow>,
}

/// Shares of the look-ups for which the number of rows that serve them is shown.
const SHARES_SERVED: [f64; 3] = [0.5, 0.9, 0.99];

#[derive(Serialize)]
struct RowsServing {
    share: f64,
    rows: u64,
}

#[derive(Serialize)]
struct FrequentRow {
    row: u64,
    /// The category as written in the vocabulary file; `\*` stands for all categories without their own row.
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<String>,
    lookups: u64,
    share: f64,
}

impl Display for FrequentRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.category.as_deref() {
            None => write!(f, "{}", self.row)?,
            Some("") => f.write_str("(empty)")?,
            Some(category) => f.write_str(category)?,
        }
        write!(f, " {:.1}%", self.share * 100.0)
    }
}

fn part_report(manifest: &Manifest, part: Part) -> PartReport {
    let of = &manifest.parts[&part];
    let bytes = of.blocks.iter().map(|file| file.bytes).sum();
    PartReport {
        part,
        samples: of.samples,
        label_rates: label_rates(of.samples, &of.positives, &of.missing),
        labels_missing: of.missing.clone(),
        blocks: of.blocks.iter().map(|file| file.blocks).sum(),
        files: of.blocks.len(),
        bytes,
        bytes_per_sample: bytes as f64 / of.samples as f64,
    }
}

fn label_rates(samples: u64, positives: &[u64], missing: &[u64]) -> Vec<Option<f64>> {
    let rate = |(&positives, missing)| match samples - missing {
        0 => None,
        there => Some(positives as f64 / there as f64),
    };
    std::iter::zip(positives, missing).map(rate).collect()
}

/// Reads every record of raw files and reports what they contain.
fn inspect_raw(args: &Args, format: &RawFormat) -> Result<(), CommandError> {
    let dataset = Dataset::raw(format, &args.paths, &[])?;
    let survey = survey(&dataset, Part::Train)?;
    let part = dataset.part(Part::Train)?;
    let bytes = part.blocks.iter().map(|block| u64::from(block.bytes)).sum();
    let labels_missing = vec![0; survey.positives.len()];
    let report = Inspection {
        path: &args.paths[0],
        block_samples: part.block_samples,
        parts: vec![PartReport {
            part: Part::Train,
            samples: survey.samples,
            label_rates: label_rates(survey.samples, &survey.positives, &labels_missing),
            labels_missing,
            blocks: part.blocks.len() as u64,
            files: part.files.len(),
            bytes,
            bytes_per_sample: format.record_bytes()? as f64,
        }],
        sequences: &dataset.schema().sequences,
        own_history: Vec::new(),
        schema: dataset.schema(),
        tables: tables(&dataset, &survey.tables, None)?,
        origin: None,
        raw: Some(format),
        verify: None,
    };
    if args.json { output::json(&report) } else { output::text(&report) }
}

fn tables(
    dataset: &Dataset,
    statistics: &[TableStatistics],
    popularity: Option<Vec<PopularityClasses>>,
) -> rankine_base::Result<Vec<TableReport>> {
    let columns = dataset.schema().categorical.iter().zip(statistics);
    columns
        .enumerate()
        .map(|(number, (column, statistics))| {
            let classes = popularity.as_ref().and_then(|of_columns| of_columns.get(number));
            let frequencies = RowFrequencies::new(statistics, classes);
            let listed = match &column.vocabulary {
                VocabularyKind::Exact { .. } => {
                    let owner = column.shares.as_ref().unwrap_or(&column.name);
                    dataset.checked_file(&vocabulary::file_name(owner))?
                }
                _ => Vec::new(),
            };
            let listed = String::from_utf8_lossy(&listed);
            let frequent = statistics.head.iter().take(FREQUENT_ROWS).map(|&(row, lookups)| FrequentRow {
                row,
                category: listed
                    .lines()
                    .nth(row as usize)
                    .and_then(|line| Some(line.rsplit_once('\t')?.0.to_owned())),
                lookups,
                share: lookups as f64 / statistics.lookups as f64,
            });
            Ok(TableReport {
                name: column.name.clone(),
                rows: column.rows,
                hotness: column.hotness,
                weighted: column.weighted,
                vocabulary: column.vocabulary.clone(),
                lookups: statistics.lookups,
                distinct_rows: column.rows.map(|_| statistics.distinct_rows),
                hotness_mean: statistics.lookups as f64 / statistics.bags.max(1) as f64,
                top_1_percent_share: column.rows.map(|rows| frequencies.coverage(rows.div_ceil(100))),
                rows_serving: column.rows.map(|_| {
                    SHARES_SERVED.map(|share| RowsServing { share, rows: frequencies.rows_serving(share) })
                }),
                all_rows_counted: column
                    .rows
                    .map(|_| classes.is_some() || statistics.head.len() as u64 == statistics.distinct_rows),
                most_frequent: frequent.collect(),
            })
        })
        .collect()
}

/// Returns the text of a value, or `absent` without one.
fn shown<T: ToString>(value: Option<T>, absent: &str) -> String {
    value.map_or_else(|| absent.to_owned(), |value| value.to_string())
}

/// Counts the columns of each kind, and names sequences and those whose ids have weights.
fn columns_of(schema: &Schema) -> String {
    let weighted = schema.categorical.iter().filter(|column| column.weighted);
    let weighted: Vec<_> = weighted.map(|column| format!("`{}`", column.name)).collect();
    let weighted = match weighted.is_empty() {
        true => String::new(),
        false => format!("\n  ids with weights: {}", weighted.join(", ")),
    };
    let sequence = |Sequence { name, columns, max, keep }: &Sequence| {
        let keep = if *keep == Keep::First { "first" } else { "last" };
        format!("\n  sequence {name}: `{}`, the {keep} {max} positions", columns.join("`, `"))
    };
    let sequences: String = schema.sequences.iter().map(sequence).collect();
    format!(
        "  columns: {} label, {} dense ({}), {} categorical{}{weighted}{sequences}",
        schema.labels.len(),
        schema.dense.len(),
        schema.dense_dtype,
        schema.categorical.len(),
        if schema.weight.is_some() { ", weights" } else { "" }
    )
}

impl Display for Inspection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dataset  {}", self.path.display())?;
        self.fmt_origin(f)?;
        writeln!(f)?;
        self.fmt_parts(f)?;
        writeln!(f, "{}", columns_of(self.schema))?;
        self.own_history.iter().try_for_each(|own| writeln!(f, "{}", own_history::Line(own)))?;
        writeln!(f)?;
        let kept = self.schema.labels.iter().filter_map(|label| Some((&label.name, label.negatives_kept?)));
        let kept: Vec<_> = kept.map(|(label, share)| format!("{share} of label {label}")).collect();
        if !kept.is_empty() {
            writeln!(f, "  negatives kept: {}\n", kept.join(", "))?;
        }
        if !self.tables.is_empty() {
            self.fmt_tables(f)?;
        }
        self.fmt_verified(f)
    }
}

impl Inspection<'_> {
    fn fmt_origin(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Some(Origin::Generated(generation)) => {
                write!(
                    f,
                    "\n  generated, shape {}, seed {}",
                    generation.spec.shape.name, generation.spec.seed
                )?;
                if let Some(auc) = generation.auc_achievable {
                    write!(f, ", achievable AUC {auc:.5}")?;
                }
            }
            Some(Origin::Converted(conversion)) => {
                let rows = &conversion.rows;
                write!(f, "\n  converted from {}, split {}: ", conversion.format.name(), conversion.split)?;
                write!(f, "{} rows read, {} kept, {} bad", rows.read, rows.kept, rows.bad)?;
            }
            None => {}
        }
        if let Some(raw) = self.raw {
            write!(f, "\n  raw records of shape {}: {raw}", raw.shape.name)?;
        }
        Ok(())
    }

    fn fmt_parts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            let rate = |(rate, missing): (&Option<f64>, &u64)| {
                let rate = rate.map_or("undefined".into(), |rate| format!("{rate:.4}"));
                if *missing > 0 { format!("{rate} ({missing} missing)") } else { rate }
            };
            let rates: Vec<_> = part.label_rates.iter().zip(&part.labels_missing).map(rate).collect();
            writeln!(
                f,
                "  {:<6} {}, label rate {}, {:.1} bytes per sample ({} bytes in {} of {} samples)",
                part.part.name(),
                counted(part.samples, "sample"),
                rates.join(", "),
                part.bytes_per_sample,
                part.bytes,
                counted(part.blocks, "block"),
                self.block_samples
            )?;
        }
        Ok(())
    }

    fn fmt_tables(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = [
            "table",
            "rows",
            "looked up",
            "ids/bag",
            "top 1%",
            "for 50%",
            "90%",
            "99%",
            "most frequent rows",
        ];
        let mut lines = TextTable::new(headings, &[0, 8]);
        for table in &self.tables {
            let serving = |number: usize| shown(table.rows_serving.as_ref().map(|of| of[number].rows), "-");
            let frequent = table.most_frequent.iter().map(ToString::to_string);
            lines.row([
                &table.name,
                &shown(table.rows, "open"),
                &shown(table.distinct_rows, "-"),
                &format_args!("{:.2}", table.hotness_mean),
                &shown(table.top_1_percent_share.map(|share| format!("{:.1}%", share * 100.0)), "-"),
                &serving(0),
                &serving(1),
                &serving(2),
                &frequent.collect::<Vec<_>>().join(", "),
            ]);
        }
        write!(f, "{lines}")?;
        if self.raw.is_none() && self.tables.iter().any(|table| table.all_rows_counted == Some(false)) {
            let path = self.path.display();
            writeln!(
                f,
                "\nonly frequent rows are counted one by one; `rankine inspect {path} --count` counts all"
            )?;
        }
        Ok(())
    }

    fn fmt_verified(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(verified) = self.verify.filter(|report| report.is_whole()) else { return Ok(()) };
        let blocks: u64 = verified.parts.iter().map(|part| part.blocks).sum();
        let bytes: u64 = verified.parts.iter().map(|part| part.bytes).sum();
        writeln!(
            f,
            "\nverified: {}, {bytes} bytes and {} are intact",
            counted(blocks, "block"),
            counted(verified.files as u64, "other file")
        )
    }
}
