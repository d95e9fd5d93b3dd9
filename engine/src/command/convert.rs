//! `rankine convert`: converts click logs to a dataset.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clap::Subcommand;
use rankine::job::{Count, ThreadCount};
use rankine::monitoring::{Command, Monitor};
use rankine::system;
use rankine_reader::Stop;
use rankine_reader::convert::{
    self, BadLimit, ColumnVocabulary, ConversionReport, ConvertOptions, CriteoColumns, DenseMode,
    ExactReport, OnBad, SchemaFile, Split, UnknownCategories, VocabularyChoice, convert_criteo, convert_csv,
    convert_hugectr_raw, convert_parquet,
};
use rankine_reader::publish::refuse_inputs;
use rankine_reader::schema::DenseDtype;
use serde::Serialize;

use super::progress::Progress;
use super::raw::RecordArgs;
use super::{CommandError, monitoring, output, signals};

/// Convert click logs to a dataset
///
/// Input files may be compressed with gzip or zstd, except raw files and Parquet. SIGTERM, SIGINT and SIGHUP stop a
/// conversion within a second; no dataset is written then.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine convert criteo-tsv train.txt --out data/criteo --split last:0.1
  rankine convert csv ratings.csv --schema ratings.toml --out data/ratings --split random:0.1:1
  rankine convert parquet day_*.parquet --schema ads.toml --out data/ads")]
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
  rankine convert criteo-tsv train.txt --out data/kaggle --on-bad quarantine --bad-limit 0.1%")]
struct CriteoTsv {
    #[command(flatten)]
    common: CommonArgs,

    #[command(flatten)]
    counts: CountArgs,

    /// How often a category must occur in the training part to get its own row; rarer categories share row 0
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::arguments::count)]
    min_count: Count,

    /// Transform of numbers: log (of 1 + |x| with the sign of x, then standardized) or mlperf (log of x + 1)
    #[arg(long, value_name = "MODE", default_value = "log")]
    dense: DenseMode,

    /// Type in which numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    dense_dtype: DenseDtype,

    /// How categories are mapped to rows: exact (a list of all categories), hash:ROWS, or identity:ROWS
    #[arg(long, value_name = "KIND", default_value = "exact")]
    vocabulary: VocabularyChoice,

    /// Vocabulary of one column, such as C3=hash:100000; may be repeated
    #[arg(long = "column", value_name = "NAME=KIND")]
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
  rankine convert csv train-*.csv.gz --eval test.csv --schema ads.toml --out data/ads --on-bad skip")]
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
  rankine convert parquet day_*.parquet --eval test.parquet --schema ads.toml --out data/ads")]
struct Parquet {
    #[command(flatten)]
    columns: NamedColumnArgs,
}

/// Convert raw files of HugeCTR and MLPerf: records of labels, numbers and ids of four bytes each
///
/// A record has labels, dense values, and for each table as many ids as its hotness in the shape, all little-endian.
/// Ids are not changed. A record with an id outside of its table is a bad row.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine convert hugectr-raw train.bin --eval test.bin --shape dlrm-dcnv2 --out data/terabyte
  rankine convert hugectr-raw day_*.bin --shape dlrm --dense int --split last:0.04 --out data/terabyte
  rankine convert hugectr-raw train.bin --shape shapes/mine.toml --ids global-offset --out data/mine")]
struct HugectrRaw {
    #[command(flatten)]
    common: CommonArgs,

    /// The columns of a record: dlrm, dlrm-dcnv2, or the path of a shape file
    #[arg(long, value_name = "SHAPE")]
    shape: String,

    #[command(flatten)]
    records: RecordArgs,

    /// Type in which numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dense_dtype: DenseDtype,
}

/// Arguments for formats with named columns.
#[derive(Debug, clap::Args)]
struct NamedColumnArgs {
    #[command(flatten)]
    common: CommonArgs,

    /// Schema file: the columns to convert, and how
    #[arg(long, value_name = "FILE")]
    schema: PathBuf,

    /// How often a category must occur in the training part to get its own row, in exact columns that do not set
    /// min_count; rarer categories share row 0
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::arguments::count)]
    min_count: Count,

    /// Type in which numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f32")]
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

/// Arguments for all formats.
#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// Input files
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Folder of the new dataset, which must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Rows for evaluation: last:0.2 for the last fifth, random:0.1:SEED for a random tenth, or none
    #[arg(long, value_name = "SPLIT", default_value = "none")]
    split: Split,

    /// Input files for evaluation only; list the other files before this option
    #[arg(long, value_name = "FILE", num_args = 1..)]
    eval: Vec<PathBuf>,

    /// What to do with bad rows: fail, skip, or quarantine (skip them, and keep them in a file)
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    on_bad: OnBad,

    /// Maximum number of skipped rows before the conversion fails: a number, or a share such as 0.1%
    #[arg(long, value_name = "N|P%", default_value_t = BadLimit::default())]
    bad_limit: BadLimit,

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
    fn options(self, dense_dtype: DenseDtype, stop: &Stop) -> ConvertOptions {
        ConvertOptions {
            split: self.split,
            eval: self.eval,
            on_bad: self.on_bad,
            bad_limit: self.bad_limit,
            threads: system::thread_count(self.threads),
            dense_dtype,
            stop: stop.clone(),
            ..ConvertOptions::new(self.files, self.out)
        }
    }
}

type Convert =
    fn(&ConvertOptions, &SchemaFile, u64, &dyn convert::Progress) -> rankine_reader::Result<ConversionReport>;

impl NamedColumnArgs {
    /// Converts with the function for the format, and returns also the dataset's folder.
    fn convert(
        self,
        convert: Convert,
        stop: &Stop,
        bars: &Bars<'_>,
    ) -> Result<(ConversionReport, PathBuf), CommandError> {
        let schema = SchemaFile::load(&self.schema)?;
        let options = self.common.options(self.dense_dtype, stop).with_memory(self.counts.memory);
        refuse_inputs(&options.out, [&self.schema])?;
        Ok((convert(&options, &schema, self.min_count.get(), bars)?, options.out))
    }
}

impl Args {
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
    let (report, out) = match args.format {
        Format::CriteoTsv(args) => {
            let columns = CriteoColumns {
                min_count: args.min_count.get(),
                dense: args.dense,
                vocabulary: args.vocabulary,
                columns: args.columns,
            };
            let options = args.common.options(args.dense_dtype, &stop).with_memory(args.counts.memory);
            (convert_criteo(&options, &columns, &bars)?, options.out)
        }
        Format::Csv(Csv { columns }) => columns.convert(convert_csv, &stop, &bars)?,
        Format::HugectrRaw(args) => {
            let options = args.common.options(args.dense_dtype, &stop);
            refuse_inputs(&options.out, [&args.shape])?;
            (convert_hugectr_raw(&options, &args.records.format(&args.shape)?, &bars)?, options.out)
        }
        Format::Parquet(Parquet { columns }) => columns.convert(convert_parquet, &stop, &bars)?,
    };
    drop((bars, deadline));
    if json {
        return output::json(&ConversionOutput { dataset: &out, report: &report });
    }
    let rows = &report.conversion.rows;
    let unknown = |of: fn(&ExactReport) -> &UnknownCategories| {
        UnknownCategories::total(
            report.columns.iter().filter_map(|(_, column)| column.exact.as_ref()).map(of),
        )
    };
    output::text(format_args!(
        "rows read   {}\nrows kept   {} ({} train, {} eval)\nrows bad    {}\ndataset     {}\n\
         unknown categories: in train {}; in eval {}\n",
        rows.read,
        rows.kept,
        rows.train,
        rows.eval,
        rows.bad,
        out.display(),
        unknown(|exact| &exact.unknown_train),
        unknown(|exact| &exact.unknown_eval)
    ))
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
