//! `rankine generate`: generates a synthetic dataset.

use std::path::{Path, PathBuf};

use rankine_base::publish::refuse_inputs;
use rankine_job::{Count, NonNegative, ThreadCount};
use rankine_reader::generate::{self, GenerateSpec, Shape};
use rankine_reader::origin::Origin;
use rankine_views::monitoring::Command;
use serde::Serialize;

use super::progress::Progress;
use super::{CommandError, monitoring, output, signals};

/// Generate a synthetic dataset whose ids follow a power law
///
/// A hidden model draws the labels, so that there is something to learn; the best achievable AUC is printed.
///
/// The same arguments give the same bytes on every machine and with any number of threads. SIGTERM, SIGINT and SIGHUP
/// stop it within a second; no dataset is written then.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine generate --shape dlrm --rows-cap 2000 --samples 1000000 --eval-samples 100000 --out data/tiny
  rankine generate --shape dlrm-dcnv2 --rows-cap 5000000 --samples 100000000 --alpha 1.2 --out data/bench
  rankine generate --shape churn --samples 29000000 --eval-samples 1000000 --out data/churn
  rankine generate --shape sequences --samples 4000000 --eval-samples 200000 --out data/sequences
  rankine generate --shape shapes/mine.toml --samples 10000 --out data/mine")]
pub(crate) struct Args {
    /// The columns: churn, dlrm, dlrm-dcnv2, sequences, or the path of a shape file
    #[arg(long, value_name = "SHAPE")]
    shape: String,

    /// Limit tables to this number of rows [default: as in the shape]
    #[arg(long, value_name = "N", value_parser = super::arguments::count)]
    rows_cap: Option<Count>,

    /// Number of samples to train on
    #[arg(long, value_name = "N", value_parser = super::arguments::count)]
    samples: Count,

    /// Number of samples to evaluate on; 0 for no evaluation part
    #[arg(long, value_name = "N", default_value_t = 0)]
    eval_samples: u64,

    /// Exponent of the power law: the k-th most frequent row has a probability proportional to k^-ALPHA; 0 is uniform
    #[arg(long, value_name = "ALPHA", default_value = "1.1", allow_negative_numbers = true)]
    #[arg(value_parser = super::arguments::non_negative)]
    alpha: NonNegative,

    /// Seed of samples and labels
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Folder of the new dataset, which must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Number of CPU threads [default: all that this process may use]
    #[arg(long, value_name = "N", value_parser = super::arguments::threads)]
    threads: Option<ThreadCount>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    monitoring: monitoring::Args,
}

/// What `--json` prints.
#[derive(Serialize)]
struct GenerationOutput<'a> {
    dataset: &'a Path,
    samples: u64,
    eval_samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    auc_achievable: Option<f64>,
}

pub(crate) fn run(args: Args, quiet: bool) -> Result<(), CommandError> {
    let spec = GenerateSpec {
        shape: Shape::load(&args.shape)?,
        rows_cap: args.rows_cap.map(Count::get),
        samples: args.samples.get(),
        eval_samples: args.eval_samples,
        alpha: args.alpha.get(),
        seed: args.seed,
    };
    refuse_inputs(&args.out, [Path::new(&args.shape)])?;
    let monitor = args.monitoring.start(Command::Generate, &args.out)?;
    let total = spec.samples + spec.eval_samples;
    let mut progress = Progress::monitored(monitor.as_ref(), "generating", "samples", total, quiet);
    let threads = rankine_job::thread_count(args.threads);
    let (stop, deadline) = signals::work()?;
    let manifest = generate::generate(&spec, &args.out, threads, &stop, |samples| progress.at(samples))?;
    drop((progress, deadline));
    let Origin::Generated(generation) = &manifest.origin else { return Ok(()) };
    if args.json {
        let (samples, eval_samples) = (spec.samples, spec.eval_samples);
        let auc_achievable = generation.auc_achievable;
        return output::json(&GenerationOutput { dataset: &args.out, samples, eval_samples, auc_achievable });
    }
    if let Some(auc) = generation.auc_achievable {
        output::text(format_args!("achievable AUC  {auc:.5}\n"))?;
    }
    output::text(format_args!("dataset         {}\n", args.out.display()))
}
