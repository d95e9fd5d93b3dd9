//! `rankine convert`: converts click logs to a dataset.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use rankine_base::publish::refuse_inputs;
use rankine_reader::Fit;
use rankine_reader::convert::{
    self, ConversionReport, ConvertOptions, ExactReport, KnownColumns, UnknownCategories, convert_criteo,
    convert_csv, convert_hugectr_raw, convert_like, convert_parquet,
};
use rankine_reader::schema::DenseDtype;
use rankine_views::monitoring::Command;
use serde::Serialize;

use super::progress::Bars;
use super::raw::RecordArgs;
use super::rows::{CommonArgs, CriteoArgs, LikeArgs, NamedColumnArgs, RowWork};
use super::table::counted;
use super::{CommandError, output, signals};

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
  rankine convert csv new.csv --like data/ratings --grow --out data/ratings-2
  rankine convert csv day_0.csv --like fits/ratings --split hash:user:0.1 --out shards/0")]
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
    rows: CriteoArgs,

    #[command(flatten)]
    blocks: BlockArgs,
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
    rows: NamedColumnArgs,

    #[command(flatten)]
    blocks: BlockArgs,
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
    rows: NamedColumnArgs,

    #[command(flatten)]
    blocks: BlockArgs,
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

    #[command(flatten)]
    blocks: BlockArgs,
}

/// Arguments for the files of a dataset.
#[derive(Debug, Clone, Copy, clap::Args)]
struct BlockArgs {
    /// Samples of a block [default: as many as suit the columns, at most 65536]. Smaller blocks suit training by many
    /// processes, each of which reads only its own
    #[arg(long, value_name = "N")]
    block_samples: Option<NonZeroU32>,
}

impl Args {
    fn common(&self) -> (&CommonArgs, &LikeArgs, BlockArgs) {
        match &self.format {
            Format::CriteoTsv(CriteoTsv { rows, blocks }) => (&rows.common, &rows.like, *blocks),
            Format::Csv(Csv { rows, blocks }) | Format::Parquet(Parquet { rows, blocks }) => {
                (&rows.common, &rows.like, *blocks)
            }
            Format::HugectrRaw(args) => (&args.common, &args.like, args.blocks),
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
    let (CommonArgs { json, monitoring, out, .. }, &LikeArgs { grow: grown, .. }, blocks) = args.common();
    let (json, monitor) = (*json, monitoring.start(Command::Convert, out)?);
    let bars = Bars::new(quiet, monitor.as_ref());
    let (stop, deadline) = signals::work()?;
    let work = RowWork {
        criteo: convert_criteo,
        csv: convert_csv,
        parquet: convert_parquet,
        like,
        block_samples: blocks.block_samples,
        stop: &stop,
        bars: &bars,
    };
    let (report, out) = convert(args.format, &work)?;
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
    let keys = report.columns.iter().filter_map(|(name, column)| Some((name, column.keys?)));
    let keys: String = keys.map(|(name, keys)| format!("keys of {name}: {keys}\n")).collect();
    output::text(format_args!(
        "rows read   {}\nrows kept   {} ({} train, {} eval)\nrows bad    {}\ndataset     {}\n\
         {new}unknown categories: in train {}; in eval {}\n{keys}",
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
    work: &RowWork<'_, ConversionReport>,
) -> Result<(ConversionReport, PathBuf), CommandError> {
    match format {
        Format::CriteoTsv(args) => work.on_criteo(args.rows),
        Format::Csv(args) => work.on_csv(args.rows),
        Format::HugectrRaw(args) => {
            let options = args.common.options(args.dense_dtype, work)?;
            let Some(shape) = &args.shape else {
                return work.on_known("hugectr-raw", options, &args.like);
            };
            refuse_inputs(&options.out, [shape])?;
            Ok((convert_hugectr_raw(&options, &args.records.format(shape)?, work.bars)?, options.out))
        }
        Format::Parquet(args) => work.on_parquet(args.rows),
    }
}

/// Converts rows with the columns of an old dataset, a fit or a model.
fn like(
    args: &LikeArgs,
    options: &ConvertOptions,
    known: KnownColumns,
    progress: &dyn convert::Progress,
) -> rankine_base::Result<ConversionReport> {
    let like = args.like.as_deref().unwrap_or(Path::new(""));
    if Fit::exists(like) {
        let fit = Fit::open(like)?;
        let learned = &fit.origin().split;
        if *learned != options.split.to_string() {
            tracing::info!(
                "{} was learned with --split {learned}, and these rows are converted with --split {}",
                like.display(),
                options.split
            );
        }
    } else if args.grow && !known.has_statistics() {
        tracing::warn!(
            "the statistics of the new dataset count only the new rows, since the dataset of {} is not where it was: \
             to add up old and new counts, name that dataset with --like",
            like.display()
        );
    }
    convert_like(options, known, args.grow, progress)
}
