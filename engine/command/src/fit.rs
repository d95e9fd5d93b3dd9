//! `rankine fit`: learns vocabularies and transforms from click logs, for conversions in several processes.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use rankine_reader::convert::{FitReport, fit_criteo, fit_csv, fit_like, fit_parquet};
use rankine_views::monitoring::Command;
use serde::Serialize;

use super::progress::Bars;
use super::rows::{CommonArgs, CriteoArgs, LikeArgs, NamedColumnArgs, RowWork};
use super::{CommandError, output, signals};

/// Learn vocabularies and transforms from click logs, without converting them
///
/// A fit is a folder with what `rankine convert --like FIT` takes over: columns, transforms, vocabularies and the sizes
/// of bags. Several processes can then convert a part of the files each, and `rankine dataset merge` joins their
/// datasets: they have the samples of one conversion. Give --split here and there, since only the training part is
/// learned from.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine fit csv 'logs/day_*.csv' --schema ads.toml --split hash:user:0.1 --out fits/ads
  rankine convert csv logs/day_0.csv --like fits/ads --split hash:user:0.1 --out shards/0
  rankine convert csv logs/day_1.csv --like fits/ads --split hash:user:0.1 --out shards/1
  rankine dataset merge shards/0 shards/1 --out data/ads
  rankine fit csv logs/day_2.csv --like fits/ads --grow --out fits/ads-2")]
pub(crate) struct Args {
    #[command(subcommand)]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum Format {
    CriteoTsv(CriteoTsv),
    Csv(Csv),
    Parquet(Parquet),
}

/// Learn from Criteo's tab-separated logs
#[derive(Debug, clap::Args)]
#[command(mut_arg("out", of_out), mut_arg("like", of_like), mut_arg("grow", of_grow))]
#[command(after_help = "\
Example:
  rankine fit criteo-tsv train-*.gz --min-count 8 --out fits/terabyte")]
struct CriteoTsv {
    #[command(flatten)]
    rows: CriteoArgs,
}

/// Learn from CSV or other delimited text, with a schema file that describes the columns
///
/// The schema file is the one of `rankine convert csv`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("out", of_out), mut_arg("like", of_like), mut_arg("grow", of_grow))]
#[command(after_help = "\
Examples:
  rankine fit csv 'logs/day_*.csv' --schema ads.toml --split after:date:2026-11-20 --out fits/ads
  rankine fit csv logs/day_2.csv --like fits/ads --grow --out fits/ads-2")]
struct Csv {
    #[command(flatten)]
    rows: NamedColumnArgs,
}

/// Learn from Parquet, with a schema file that describes the columns
///
/// The schema file is the one of `rankine convert parquet`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("out", of_out), mut_arg("like", of_like), mut_arg("grow", of_grow))]
#[command(after_help = "\
Example:
  rankine fit parquet 'logs/day_*.parquet' --schema ads.toml --split hash:user:0.1 --out fits/ads")]
struct Parquet {
    #[command(flatten)]
    rows: NamedColumnArgs,
}

fn of_out(arg: clap::Arg) -> clap::Arg {
    arg.help("Folder of the fit, which must not exist")
}

fn of_like(arg: clap::Arg) -> clap::Arg {
    arg.requires("grow").help(
        "Existing fit or dataset, or run, checkpoint or export, whose columns and transforms the new fit keeps, and \
         whose vocabularies it continues",
    )
}

fn of_grow(arg: clap::Arg) -> clap::Arg {
    arg.help("With --like, add rows after the old ones for new categories, and add up the counts")
}

impl Args {
    fn common(&self) -> (&CommonArgs, &LikeArgs) {
        match &self.format {
            Format::CriteoTsv(CriteoTsv { rows }) => (&rows.common, &rows.like),
            Format::Csv(Csv { rows }) | Format::Parquet(Parquet { rows }) => (&rows.common, &rows.like),
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct FitOutput<'a> {
    fit: &'a Path,
    #[serde(flatten)]
    report: &'a FitReport,
}

pub(crate) fn run(args: Args, quiet: bool) -> Result<(), CommandError> {
    let (CommonArgs { json, monitoring, out, .. }, &LikeArgs { grow, .. }) = args.common();
    let (json, monitor) = (*json, monitoring.start(Command::Fit, out)?);
    let bars = Bars::new(quiet, monitor.as_ref());
    let (stop, deadline) = signals::work()?;
    let work = RowWork {
        criteo: fit_criteo,
        csv: fit_csv,
        parquet: fit_parquet,
        like: |_, options, known, progress| fit_like(options, known, progress),
        block_samples: None,
        stop: &stop,
        bars: &bars,
    };
    let (report, out): (FitReport, PathBuf) = match args.format {
        Format::CriteoTsv(args) => work.on_criteo(args.rows),
        Format::Csv(args) => work.on_csv(args.rows),
        Format::Parquet(args) => work.on_parquet(args.rows),
    }?;
    drop((bars, deadline));
    if json {
        return output::json(&FitOutput { fit: &out, report: &report });
    }
    let rows = &report.conversion.rows;
    let new: u64 = report.columns.iter().filter_map(|(_, table)| table.new_categories).sum();
    let new = if grow { format!("new categories: {new}\n") } else { String::new() };
    output::text(format_args!(
        "rows read   {}\nrows kept   {} ({} train, {} eval)\nrows bad    {}\nfit         {}\n{new}",
        rows.read,
        rows.kept,
        rows.train,
        rows.eval,
        rows.bad,
        out.display(),
    ))
}
