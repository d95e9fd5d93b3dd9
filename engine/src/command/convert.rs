//! `rankine convert`: from click logs to a dataset.

use std::path::PathBuf;
use std::sync::Mutex;

use clap::Subcommand;
use rankine::job::{Count, ThreadCount};
use rankine::system;
use rankine_reader::Stop;
use rankine_reader::convert::{
    self, BadLimit, ColumnVocabulary, ConversionReport, ConvertOptions, CriteoColumns, DenseMode,
    ExactReport, OnBad, SchemaFile, Split, UnknownCategories, VocabularyChoice, convert_criteo, convert_csv,
    convert_hugectr_raw, convert_parquet,
};
use rankine_reader::publish::refuse_inputs;
use rankine_reader::schema::DenseDtype;

use super::progress::Progress;
use super::raw::RecordArgs;
use super::{CommandError, output, signals};

/// Convert click logs to a dataset
///
/// SIGTERM, SIGINT and SIGHUP end it within a second, and leave no dataset.
#[derive(Debug, clap::Args)]
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

/// Criteo's tab-separated logs: a label, 13 numbers and 26 hexadecimal categories a line
///
/// Files may be compressed with gzip or zstd, and are read in the order given. The result does not depend on the number
/// of threads, nor on the memory allowed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine convert criteo-tsv train.txt --out data/kaggle --split last:0.2 --min-count 10
  rankine convert criteo-tsv train-*.gz --eval test.gz --out data/terabyte --vocabulary hash:5000000
  rankine convert criteo-tsv train.txt --out data/kaggle --on-bad quarantine --bad-limit 0.1%")]
struct CriteoTsv {
    #[command(flatten)]
    common: Common,

    #[command(flatten)]
    counting: Counting,

    /// How often a category must occur in training to get a row of its own; rarer ones share row 0
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::arguments::count)]
    min_count: Count,

    /// What is done to numbers: log (of 1 + |x|, sign kept, then standardized) or mlperf (log of x + 1)
    #[arg(long, value_name = "MODE", default_value = "log")]
    dense: DenseMode,

    /// How numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    dense_dtype: DenseDtype,

    /// How categories become rows: exact (a list of those seen), hash:ROWS, or identity:ROWS
    #[arg(long, value_name = "KIND", default_value = "exact")]
    vocabulary: VocabularyChoice,

    /// The vocabulary of one column, such as C3=hash:100000; may be repeated
    #[arg(long = "column", value_name = "NAME=KIND")]
    columns: Vec<ColumnVocabulary>,
}

/// CSV, or anything with a delimiter between fields, by a schema file that says what its columns are
///
/// Files may be compressed with gzip or zstd, and are read in the order given. The result does not depend on the number
/// of threads, nor on the memory allowed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A schema file names the raw columns and says what becomes of them; others are left out:

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

docs/guide/converting.md has every key.

Examples:
  rankine convert csv ratings.csv --schema films.toml --out data/films --split last:0.2
  rankine convert csv train-*.csv.gz --eval test.csv --schema ads.toml --out data/ads --on-bad quarantine")]
struct Csv {
    #[command(flatten)]
    named: Named,
}

/// Parquet, by a schema file that says what its columns are
///
/// The schema file is that of `convert csv`, without [format]. Lists become bags, null values are missing. The result
/// does not depend on the number of threads, nor on the memory allowed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine convert parquet ratings.parquet --schema films.toml --out data/films --split last:0.2
  rankine convert parquet day_*.parquet --eval test.parquet --schema ads.toml --out data/ads")]
struct Parquet {
    #[command(flatten)]
    named: Named,
}

/// HugeCTR's and MLPerf's raw files: records of labels, numbers and ids, four bytes each
///
/// A record has labels, dense values, and as many ids for each table as the shape's hotness says, all little-endian.
/// Ids stay what they are; one that is no row of its table makes the record a bad one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine convert hugectr-raw train.bin --eval test.bin --shape dlrm-dcnv2 --out data/terabyte
  rankine convert hugectr-raw day_*.bin --shape dlrm --dense int --split last:0.04 --out data/terabyte
  rankine convert hugectr-raw train.bin --shape shapes/mine.toml --ids global-offset --out data/mine")]
struct HugectrRaw {
    #[command(flatten)]
    common: Common,

    /// What the records are: dlrm, dlrm-dcnv2, or the path of a shape file
    #[arg(long, value_name = "SHAPE")]
    shape: String,

    #[command(flatten)]
    records: RecordArgs,

    /// How numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dense_dtype: DenseDtype,
}

/// What forms of named columns are asked for.
#[derive(Debug, clap::Args)]
struct Named {
    #[command(flatten)]
    common: Common,

    /// What the columns are, and what becomes of them
    #[arg(long, value_name = "FILE")]
    schema: PathBuf,

    /// How often a category must occur in training to get a row of its own, in exact columns whose vocabulary does not
    /// say; rarer ones share row 0
    #[arg(long, value_name = "N", default_value = "1", value_parser = super::arguments::count)]
    min_count: Count,

    /// How numbers are stored: f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dense_dtype: DenseDtype,

    #[command(flatten)]
    counting: Counting,
}

/// What forms of logs with categories are asked for.
#[derive(Debug, clap::Args)]
struct Counting {
    /// Memory for counting categories, such as 512MiB or 2GiB; beyond it, counts go to disk for a while
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = super::arguments::bytes)]
    memory: u64,
}

/// What all forms of logs are asked for.
#[derive(Debug, clap::Args)]
struct Common {
    /// The logs
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// The dataset's folder, which must not be there yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Which rows are for evaluation: last:0.2 for the last fifth, random:0.1:SEED for a tenth drawn at random, or none
    #[arg(long, value_name = "SPLIT", default_value = "none")]
    split: Split,

    /// Logs whose rows are all for evaluation; name the other logs before them
    #[arg(long, value_name = "FILE", num_args = 1..)]
    eval: Vec<PathBuf>,

    /// What becomes of rows that cannot be read: fail, skip, or quarantine (skip, and keep them in a file)
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    on_bad: OnBad,

    /// How many bad rows are too many: a number, or a share such as 0.1%
    #[arg(long, value_name = "N|P%", default_value_t = BadLimit::default())]
    bad_limit: BadLimit,

    /// CPU threads [default: all that this process may use]
    #[arg(long, value_name = "N", value_parser = super::arguments::threads)]
    threads: Option<ThreadCount>,
}

impl Common {
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

impl Named {
    /// Converts with the function for the form; returns also where the dataset is.
    fn convert(
        self,
        convert: Convert,
        stop: &Stop,
        bars: &Bars,
    ) -> Result<(ConversionReport, PathBuf), CommandError> {
        let schema = SchemaFile::load(&self.schema)?;
        let options = self.common.options(self.dense_dtype, stop).with_memory(self.counting.memory);
        refuse_inputs(&options.out, [&self.schema])?;
        Ok((convert(&options, &schema, self.min_count.get(), bars)?, options.out))
    }
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let bars = Bars::default();
    let (stop, deadline) = signals::work()?;
    let (report, out) = match args.format {
        Format::CriteoTsv(args) => {
            let columns = CriteoColumns {
                min_count: args.min_count.get(),
                dense: args.dense,
                vocabulary: args.vocabulary,
                columns: args.columns,
            };
            let options = args.common.options(args.dense_dtype, &stop).with_memory(args.counting.memory);
            (convert_criteo(&options, &columns, &bars)?, options.out)
        }
        Format::Csv(Csv { named }) => named.convert(convert_csv, &stop, &bars)?,
        Format::HugectrRaw(args) => {
            let options = args.common.options(args.dense_dtype, &stop);
            refuse_inputs(&options.out, [&args.shape])?;
            (convert_hugectr_raw(&options, &args.records.format(&args.shape)?, &bars)?, options.out)
        }
        Format::Parquet(Parquet { named }) => named.convert(convert_parquet, &stop, &bars)?,
    };
    drop((bars, deadline));
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

/// A bar for each pass over the logs, and the pass that it belongs to.
#[derive(Default)]
pub(super) struct Bars(Mutex<Option<(&'static str, Progress)>>);

impl convert::Progress for Bars {
    fn advance(&self, pass: &'static str, bytes_done: u64, bytes_total: u64) {
        // A panic elsewhere must not hide behind one about a bar.
        let mut bar = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if bar.as_ref().is_none_or(|(shown, _)| *shown != pass) {
            *bar = Some((pass, Progress::new(pass, "bytes", bytes_total, false)));
        }
        if let Some((_, progress)) = bar.as_mut() {
            progress.at(bytes_done);
        }
    }
}
