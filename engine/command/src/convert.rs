//! `rankine convert`: converts click logs to a dataset.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clap::Subcommand;
use rankine_base::Stop;
use rankine_base::publish::refuse_inputs;
use rankine_engine::source::{self, SourceError};
use rankine_job::{Count, ThreadCount};
use rankine_reader::convert::{
    self, BadLimit, ColumnVocabulary, ConversionReport, ConvertOptions, CriteoColumns, DenseMode,
    ExactReport, KnownColumns, NegativesKept, OnBad, STANDARD_INPUT, SchemaFile, Split, UnknownCategories,
    VocabularyChoice, convert_criteo, convert_csv, convert_hugectr_raw, convert_like, convert_parquet,
};
use rankine_reader::schema::DenseDtype;
use rankine_views::monitoring::{Command, Monitor};
use serde::Serialize;

use super::progress::Progress;
use super::raw::RecordArgs;
use super::table::counted;
use super::{CommandError, Exit, inputs, monitoring, output, signals};

/// Convert click logs to a dataset
///
/// Input files may be compressed with gzip or zstd, except raw files and Parquet. SIGTERM, SIGINT and SIGHUP stop a
/// conversion within a second; no dataset is written then.
///
/// A FILE may be a pattern in quotes, such as 'day_*.csv', which stands for the files that match it in the order of
/// their names, or a folder, which stands for the files in it.
///
/// --verbose lists new and unknown categories by column; DIR/conversion.json has them, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine convert criteo-tsv train.txt --out data/criteo --split last:0.1
  rankine convert csv ratings.csv --schema ratings.toml --out data/ratings --split random:0.1:1
  rankine convert parquet day_*.parquet --schema ads.toml --out data/ads
  rankine convert csv new.csv --like data/ratings --grow --out data/ratings-2")]
pub(crate) struct Args {
    #[command(subcommand)]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum Format {
    CriteoTsv(CriteoTsv),
    Csv(Csv),
    HugectrRaw(HugectrRaw),
    Parquet(Parquet),
}

/// Convert Criteo's tab-separated logs: one line has a label, 13 numbers and 26 hexadecimal categories
///
/// Files may be compressed with gzip or zstd, and are read in the given order. The result does not depend on --threads
/// or --memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine convert criteo-tsv train.txt --out data/kaggle --split last:0.2 --min-count 10
  rankine convert criteo-tsv train-*.gz --eval test.gz --out data/terabyte --vocabulary hash:5000000
  rankine convert criteo-tsv train.txt --out data/kaggle --on-bad quarantine --bad-limit 0.1%
  rankine convert criteo-tsv day_24.gz --like runs/criteo-1 --out data/day-24")]
struct CriteoTsv {
    #[command(flatten)]
    common: CommonArgs,

    #[command(flatten)]
    counts: CountArgs,

    #[command(flatten)]
    like: LikeArgs,

    /// How often a category must occur in the training part to get its own row; rarer categories share row 0
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::arguments::count)]
    #[arg(conflicts_with = "like")]
    min_count: Count,

    /// Transform of numbers: log (of 1 + |x| with the sign of x, then standardized) or mlperf (log of x + 1)
    #[arg(long, value_name = "MODE", default_value = "log", conflicts_with = "like")]
    dense: DenseMode,

    /// Type in which numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f16", conflicts_with = "like")]
    dense_dtype: DenseDtype,

    /// How categories are mapped to rows: exact (a list of all categories), hash:ROWS, or identity:ROWS
    #[arg(long, value_name = "KIND", default_value = "exact", conflicts_with = "like")]
    vocabulary: VocabularyChoice,

    /// Vocabulary of one column, such as C3=hash:100000; may be repeated
    #[arg(long = "column", value_name = "NAME=KIND", conflicts_with = "like")]
    columns: Vec<ColumnVocabulary>,
}

/// Convert CSV or other delimited text, with a schema file that describes the columns
///
/// Files may be compressed with gzip or zstd, and are read in the given order. The result does not depend on --threads
/// or --memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A schema file lists the columns to convert, and how; other columns are ignored:

  [label]
  column = \"rating\"
  at_least = 4

  [[dense]]
  column = \"price\"
  transform = [\"log1p\", \"standardize\"]

  [[categorical]]
  column = \"film\"
  vocabulary = { kind = \"exact\", min_count = 5 }

  [[categorical]]
  column = \"genres\"
  vocabulary = { kind = \"hash\", rows = 1000 }
  separator = \"|\"

docs/reference/schema.md lists every key.

Examples:
  rankine convert csv ratings.csv --schema ratings.toml --out data/ratings --split last:0.2
  rankine convert csv train-*.csv.gz --eval test.csv --schema ads.toml --out data/ads --on-bad skip
  rankine convert csv new.csv --like data/ratings --grow --out data/ratings-2")]
struct Csv {
    #[command(flatten)]
    columns: NamedColumnArgs,
}

/// Convert Parquet, with a schema file that describes the columns
///
/// The schema file is the same as for `convert csv`, without [format]. Lists become bags, and null values are missing
/// values. The result does not depend on --threads or --memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine convert parquet ratings.parquet --schema ratings.toml --out data/ratings --split last:0.2
  rankine convert parquet day_*.parquet --eval test.parquet --schema ads.toml --out data/ads
  rankine convert parquet day_24.parquet --like data/ads --grow --out data/ads-24")]
struct Parquet {
    #[command(flatten)]
    columns: NamedColumnArgs,
}

/// Convert raw files of HugeCTR and MLPerf: records of labels, numbers and ids of four bytes each
///
/// A record has labels, dense values, and for each table as many ids as its hotness in the shape, all little-endian.
/// Ids are not changed. A record with an id outside of its table is a bad row.
#[derive(Debug, clap::Args)]
// `requires = "shape"` of these arguments has no effect if --like conflicts with --shape.
#[command(group = clap::ArgGroup::new("record").args(["rows_cap", "labels", "dense", "ids"]).multiple(true)
    .conflicts_with("like"))]
#[command(after_help = "\
Examples:
  rankine convert hugectr-raw train.bin --eval test.bin --shape dlrm-dcnv2 --out data/terabyte
  rankine convert hugectr-raw day_*.bin --shape dlrm --dense int --split last:0.04 --out data/terabyte
  rankine convert hugectr-raw train.bin --shape shapes/mine.toml --ids global-offset --out data/mine
  rankine convert hugectr-raw day_24.bin --like data/terabyte --out data/day-24")]
struct HugectrRaw {
    #[command(flatten)]
    common: CommonArgs,

    /// The columns of a record: dlrm, dlrm-dcnv2, or the path of a shape file; needed without --like
    #[arg(long, value_name = "SHAPE", required_unless_present = "like", conflicts_with = "like")]
    shape: Option<String>,

    #[command(flatten)]
    like: LikeArgs,

    #[command(flatten)]
    records: RecordArgs,

    /// Type in which numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f32", conflicts_with = "like")]
    dense_dtype: DenseDtype,
}

/// Arguments for formats with named columns.
#[derive(Debug, clap::Args)]
struct NamedColumnArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Schema file: the columns to convert, and how; needed without --like
    #[arg(long, value_name = "FILE", required_unless_present = "like", conflicts_with = "like")]
    schema: Option<PathBuf>,

    #[command(flatten)]
    like: LikeArgs,

    /// How often a category must occur in the training part to get its own row, in exact columns that do not set
    /// min_count; rarer categories share row 0
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::arguments::count)]
    #[arg(conflicts_with = "like")]
    min_count: Count,

    /// Type in which numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f32", conflicts_with = "like")]
    dense_dtype: DenseDtype,

    #[command(flatten)]
    counts: CountArgs,
}

/// Arguments for formats whose categories are counted.
#[derive(Debug, clap::Args)]
struct CountArgs {
    /// Memory for counting categories, such as 512MiB or 2GiB; beyond it, counts are kept in temporary files
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = super::arguments::bytes)]
    memory: u64,
}

/// Arguments for further rows of an existing dataset.
#[derive(Debug, clap::Args)]
struct LikeArgs {
    /// Existing dataset, or run, checkpoint or export, whose columns, transforms and vocabularies the new dataset
    /// keeps, so that a model trained on it fits; categories without a row are unknown
    #[arg(long, value_name = "DATASET|RUN")]
    like: Option<PathBuf>,

    /// With --like, add rows after the old ones for new categories, and add up the counts of old and new rows
    #[arg(long, requires = "like")]
    grow: bool,
}

/// Arguments for all formats.
#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// Input files, patterns or folders, read in the given order
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Folder of the new dataset, which must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Rows for evaluation: last:0.2 for the last fifth, random:0.1:SEED for a random tenth, or none
    #[arg(long, value_name = "SPLIT", default_value = "none")]
    split: Split,

    /// Input files, patterns or folders for evaluation only; list the other files before this option
    #[arg(long, value_name = "FILE", num_args = 1..)]
    eval: Vec<PathBuf>,

    /// What to do with bad rows: fail, skip, or quarantine (skip them, and keep them in a file)
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    on_bad: OnBad,

    /// Maximum number of skipped rows before the conversion fails: a number, or a share such as 0.1%
    #[arg(long, value_name = "N|P%", default_value_t = BadLimit::default())]
    bad_limit: BadLimit,

    /// Samples of a block [default: as many as suit the columns, at most 65536]. Smaller blocks suit training by many
    /// processes, each of which reads only its own
    #[arg(long, value_name = "N")]
    block_samples: Option<NonZeroU32>,

    /// Share of the negatives (label 0) that the files were left with, if they were downsampled, such as 0.1; of one
    /// label with LABEL=SHARE; may be repeated. It replaces the share in the schema file or in --like; 1 means all
    #[arg(long, value_name = "SHARE")]
    negatives_kept: Vec<NegativesKept>,

    /// Number of CPU threads [default: all that this process may use]
    #[arg(long, value_name = "N", value_parser = super::arguments::threads)]
    threads: Option<ThreadCount>,

    /// Print the conversion report as JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    monitoring: monitoring::Args,
}

impl CommonArgs {
    fn options(self, dense_dtype: DenseDtype, stop: &Stop) -> Result<ConvertOptions, CommandError> {
        let named = || self.files.iter().chain(&self.eval);
        if named().any(|path| path == Path::new(STANDARD_INPUT)) {
            let what = "a conversion reads its input more than once, and standard input, -, can be read only once: \
                        write the rows to a file, which may be compressed";
            return Err(CommandError::new(Exit::Usage, what));
        }
        // A folder of input would otherwise also have the output, and the next conversion would read that.
        refuse_inputs(&self.out, named())?;
        Ok(ConvertOptions {
            split: self.split,
            eval: inputs::expand(&self.eval)?,
            on_bad: self.on_bad,
            bad_limit: self.bad_limit,
            threads: rankine_job::thread_count(self.threads),
            dense_dtype,
            block_samples: self.block_samples,
            negatives_kept: self.negatives_kept,
            stop: stop.clone(),
            ..ConvertOptions::new(inputs::expand(&self.files)?, self.out)
        })
    }
}

type Convert =
    fn(&ConvertOptions, &SchemaFile, u64, &dyn convert::Progress) -> rankine_base::Result<ConversionReport>;

impl NamedColumnArgs {
    /// Converts with the function for the format of this name, and returns also the dataset's folder.
    fn convert(
        self,
        convert: Convert,
        format: &'static str,
        stop: &Stop,
        bars: &Bars<'_>,
    ) -> Result<(ConversionReport, PathBuf), CommandError> {
        let options = self.common.options(self.dense_dtype, stop)?.with_memory(self.counts.memory);
        let Some(path) = &self.schema else {
            return self.like.convert(format, options, bars);
        };
        let schema = SchemaFile::load(path)?;
        refuse_inputs(&options.out, [path])?;
        Ok((convert(&options, &schema, self.min_count.get(), bars)?, options.out))
    }
}

impl LikeArgs {
    /// Converts rows of the format of this name with the columns of an old dataset or of a model.
    fn convert(
        &self,
        format: &'static str,
        options: ConvertOptions,
        bars: &Bars<'_>,
    ) -> Result<(ConversionReport, PathBuf), CommandError> {
        let like = self.like.as_deref().unwrap_or(Path::new(""));
        let known = known_columns(like)?;
        known.check_format(format)?;
        if self.grow && !known.has_statistics() {
            tracing::warn!(
                "the statistics of the new dataset count only the new rows, since the dataset of {} is not where it \
                 was: to add up old and new counts, name that dataset with --like",
                like.display()
            );
        }
        let report = convert_like(&options, known, self.grow, bars)?;
        Ok((report, options.out))
    }
}

/// Opens the columns of a dataset or of a model.
fn known_columns(path: &Path) -> Result<KnownColumns, CommandError> {
    source::known_columns(path).map_err(|error| match error {
        SourceError::Other { path, found, .. } => {
            let what = format!(
                "--like {}: {found}; expected the folder of a dataset, of a finished run, of a checkpoint or of an \
                 export",
                path.display()
            );
            CommandError::new(Exit::Usage, what)
        }
        other => other.into(),
    })
}

impl Args {
    fn like(&self) -> &LikeArgs {
        match &self.format {
            Format::CriteoTsv(args) => &args.like,
            Format::Csv(Csv { columns }) | Format::Parquet(Parquet { columns }) => &columns.like,
            Format::HugectrRaw(args) => &args.like,
        }
    }

    fn common(&self) -> &CommonArgs {
        match &self.format {
            Format::CriteoTsv(args) => &args.common,
            Format::Csv(Csv { columns }) | Format::Parquet(Parquet { columns }) => &columns.common,
            Format::HugectrRaw(args) => &args.common,
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct ConversionOutput<'a> {
    dataset: &'a Path,
    #[serde(flatten)]
    report: &'a ConversionReport,
}

pub(crate) fn run(args: Args, quiet: bool) -> Result<(), CommandError> {
    let CommonArgs { json, monitoring, out, .. } = args.common();
    let (json, monitor) = (*json, monitoring.start(Command::Convert, out)?);
    let bars = Bars::new(quiet, monitor.as_ref());
    let (stop, deadline) = signals::work()?;
    let grown = args.like().grow;
    let (report, out) = convert(args.format, &stop, &bars)?;
    drop((bars, deadline));
    if json {
        return output::json(&ConversionOutput { dataset: &out, report: &report });
    }
    report_columns(&report);
    let rows = &report.conversion.rows;
    let unknown = |of: fn(&ExactReport) -> &UnknownCategories| {
        UnknownCategories::total(exact(&report).map(|(_, exact)| of(exact)))
    };
    let new: u64 = exact(&report).filter_map(|(_, exact)| exact.new_categories).sum();
    let new = if grown { format!("new categories: {new}\n") } else { String::new() };
    output::text(format_args!(
        "rows read   {}\nrows kept   {} ({} train, {} eval)\nrows bad    {}\ndataset     {}\n\
         {new}unknown categories: in train {}; in eval {}\n",
        rows.read,
        rows.kept,
        rows.train,
        rows.eval,
        rows.bad,
        out.display(),
        unknown(|exact| &exact.unknown_train),
        unknown(|exact| &exact.unknown_eval)
    ))?;
    if let Some(what) = untrained(&report) {
        tracing::warn!("{what}");
    }
    Ok(())
}

/// Returns the columns with an exact vocabulary.
fn exact(report: &ConversionReport) -> impl Iterator<Item = (&str, &ExactReport)> {
    report.columns.iter().filter_map(|(name, column)| Some((name.as_str(), column.exact.as_ref()?)))
}

/// Reports new and unknown categories of each column with --verbose.
fn report_columns(report: &ConversionReport) {
    for (column, exact) in exact(report) {
        if let Some(new) = exact.new_categories.filter(|&new| new > 0) {
            tracing::debug!("column {column}: {new} new categories, {} rows", exact.kept_categories + 1);
        }
        for (part, unknown) in [("train", &exact.unknown_train), ("eval", &exact.unknown_eval)] {
            if unknown.lookups > 0 {
                tracing::debug!("column {column}: unknown categories in {part}: {unknown}");
            }
        }
    }
}

/// Says which columns' unknown categories have a row that is looked up in the evaluation part, but never trained.
fn untrained(report: &ConversionReport) -> Option<String> {
    // A model that is trained already may know the row.
    if report.like.is_some() {
        return None;
    }
    let is_untrained =
        |exact: &ExactReport| exact.unknown_train.lookups == 0 && exact.unknown_eval.lookups > 0;
    let columns = exact(report).filter(|(_, exact)| is_untrained(exact));
    let (names, lookups): (Vec<_>, Vec<_>) =
        columns.map(|(name, exact)| (name, exact.unknown_eval.lookups)).unzip();
    let first = names.first()?;
    let others = names.len() - 1;
    let names = match others {
        0 => format!("column {first}"),
        1 => format!("column {first} and 1 other"),
        others => format!("column {first} and {others} others"),
    };
    Some(format!(
        "{names}: the row for unknown categories is never trained, but the evaluation part looks it up {}; with a \
         min_count of 2 or more, rare categories train it",
        counted(lookups.iter().sum::<u64>(), "time")
    ))
}

/// Converts rows of a format, and returns also the dataset's folder.
fn convert(
    format: Format,
    stop: &Stop,
    bars: &Bars<'_>,
) -> Result<(ConversionReport, PathBuf), CommandError> {
    match format {
        Format::CriteoTsv(args) => {
            let options = args.common.options(args.dense_dtype, stop)?.with_memory(args.counts.memory);
            if args.like.like.is_some() {
                return args.like.convert("criteo-tsv", options, bars);
            }
            let columns = CriteoColumns {
                min_count: args.min_count.get(),
                dense: args.dense,
                vocabulary: args.vocabulary,
                columns: args.columns,
            };
            Ok((convert_criteo(&options, &columns, bars)?, options.out))
        }
        Format::Csv(Csv { columns }) => columns.convert(convert_csv, "csv", stop, bars),
        Format::HugectrRaw(args) => {
            let options = args.common.options(args.dense_dtype, stop)?;
            let Some(shape) = &args.shape else {
                return args.like.convert("hugectr-raw", options, bars);
            };
            refuse_inputs(&options.out, [shape])?;
            Ok((convert_hugectr_raw(&options, &args.records.format(shape)?, bars)?, options.out))
        }
        Format::Parquet(Parquet { columns }) => columns.convert(convert_parquet, "parquet", stop, bars),
    }
}

/// A progress bar for each pass over the input.
pub(super) struct Bars<'a> {
    quiet: bool,
    monitor: Option<&'a Monitor>,
    /// The current pass and its bar.
    current: Mutex<Option<(&'static str, Progress)>>,
}

impl<'a> Bars<'a> {
    pub(super) fn new(quiet: bool, monitor: Option<&'a Monitor>) -> Self {
        Self { quiet, monitor, current: Mutex::default() }
    }

    /// Returns the progress of a task, which is exported if there is a monitor.
    pub(super) fn progress(&self, task: &'static str, unit: &'static str, total: u64) -> Progress {
        Progress::monitored(self.monitor, task, unit, total, self.quiet)
    }
}

impl convert::Progress for Bars<'_> {
    fn advance(&self, pass: &'static str, bytes_done: u64, bytes_total: u64) {
        // A panic elsewhere must not be hidden by a second one about the bar.
        let mut bar = self.current.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if bar.as_ref().is_none_or(|(shown, _)| *shown != pass) {
            *bar = Some((pass, self.progress(pass, "bytes", bytes_total)));
        }
        if let Some((_, progress)) = bar.as_mut() {
            progress.at(bytes_done);
        }
    }
}
