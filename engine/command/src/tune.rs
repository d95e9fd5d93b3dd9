//! `rankine tune`: searches for the settings of a job.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankine_base::publish::PartialFile;
use rankine_engine::run_paths;
use rankine_engine::tuning::{Drawn, Evaluation, Extent, Space, TrialResult, Tuned, Tuning, tune};
use rankine_job::{StoppingMetric, ThreadCount};
use rankine_views::report::settings_of;
use serde::Serialize;

use super::job::{JobArgs, setting};
use super::table::TextTable;
use super::{CommandError, Exit, arguments, output, signals};

/// Search for good settings of a job
///
/// Trials train the job with settings drawn at random. All of them train on a ninth of the samples; the best third goes
/// on to a third of the samples, and of these the best third to all. Trials are compared by their best evaluation on
/// the validation set that the job holds out, by default the last tenth of the training part; none of them reads the
/// evaluation part. The first trial is the job itself. Trials run side by side, one per CPU thread or per GPU.
///
/// The job of the best trial is written to --out. It trains on the whole training part; its number of steps is that of
/// the best evaluation, scaled to the number of samples. The search thus also finds the number of steps, up to that of
/// the job: give the job enough epochs.
///
/// Without --space, the search varies the learning rates, the weight decay and the size of the embeddings, and the
/// batch size.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("extent").required(true))]
#[command(after_help = "\
A space file is written like a job, with ranges in place of values:

  [optimizer.dense]
  learning_rate = { log = [0.003, 0.3] }

  [model]
  embedding_dim = { choose = [4, 8, 16] }

Examples:
  rankine tune job.toml --trials 27
  rankine tune job.toml --budget 10m --space space.toml --out best.toml
  rankine tune job.toml --trials 27 --run-dir runs/tune --resume
  rankine train best.toml")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,

    /// Number of trials; the result then depends on nothing but the job, the space and the seed
    #[arg(long, value_name = "N", group = "extent", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    trials: Option<u64>,

    /// Time of the search, such as 90s, 10m or 2h; with --resume, counted from the resume
    #[arg(long, value_name = "TIME", group = "extent", value_parser = arguments::duration)]
    budget: Option<Duration>,

    /// Space file [default: around the job's settings]
    #[arg(long, value_name = "SPACE.toml")]
    space: Option<PathBuf>,

    /// Seed of the randomly drawn settings [default: the job's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Job file to write, which must not exist
    #[arg(long, value_name = "JOB.toml", default_value = "best.toml")]
    out: PathBuf,

    /// Folder of the trials, which must be empty or not exist, unless --resume is given [default: runs/NAME-tune-TIME]
    ///
    /// Each trial has a run folder there, which keeps its job, log and summary; its weights are removed when it ends.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,

    /// Continue the search in --run-dir
    #[arg(long, requires = "run_dir")]
    resume: bool,

    /// Number of CPU threads of all trials together, the same as --set device.threads=N
    #[arg(long, value_name = "N", value_parser = arguments::threads)]
    threads: Option<ThreadCount>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct TuneReport<'a> {
    job: &'a PathBuf,
    run_dir: &'a PathBuf,
    #[serde(flatten)]
    tuned: &'a Tuned,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let file = args.job.read_with(setting("device.threads", args.threads))?;
    let job = file.job()?;
    let out = args.out.display();
    // What stands in the way is found out before the search.
    let mut best = PartialFile::create_new(&args.out)?;
    let space = args.space.as_deref().map_or_else(|| Space::around(&file), Space::read)?;
    let name = || run_paths::with_time(&format!("{}-tune", job.name));
    let dir = args.run_dir.unwrap_or_else(|| Path::new(run_paths::RUNS).join(name()));
    let tuning = Tuning {
        file: &file,
        space: &space,
        seed: args.seed.unwrap_or(job.seed),
        extent: match (args.trials, args.budget) {
            (_, Some(budget)) => Extent::Budget(budget),
            (trials, None) => Extent::Trials(trials.unwrap_or(1)),
        },
        dir: &dir,
        resume: args.resume,
        stop: &signals::training()?,
    };
    let tuned = tune(tuning, &|result| tracing::info!("{}", progress(result)))?;
    let written = best.write_all(tuned.job.as_bytes());
    written.map_err(|error| CommandError::new(Exit::Failed, format!("cannot write {out}: {error}")))?;
    best.publish()?;
    if args.json {
        return output::json(&TuneReport { job: &args.out, run_dir: &dir, tuned: &tuned });
    }
    print(&tuned, &settings_of(&job.to_toml()).unwrap_or_default())?;
    output::text(format_args!("\njob      {out}\ntrials   {}\nnext     rankine train {out}\n", dir.display()))
}

/// A line about a trial at the end of a round.
fn progress(result: &TrialResult) -> String {
    let TrialResult { trial, steps, best, diverged, .. } = result;
    let found = match best {
        Some(Evaluation { step, value }) => format!("best {value:.5} after step {step} of {steps}"),
        None => format!("no metric after {steps} steps"),
    };
    let diverged = if *diverged { "; it diverged" } else { "" };
    format!("trial {trial}: {found}{diverged}")
}

/// Prints the trials, the best first, and what each changed in the job, which has these settings.
fn print(tuned: &Tuned, own: &BTreeMap<String, String>) -> Result<(), CommandError> {
    let metric = match tuned.metric {
        StoppingMetric::Auc => "AUC",
        StoppingMetric::LogLoss => "log loss",
    };
    let mut table = TextTable::new(["trial", metric, "step", "of", "settings"], &[4]);
    for TrialResult { trial, settings, steps, best, diverged } in &tuned.trials {
        let (value, step) = match best {
            Some(Evaluation { step, value }) => (format!("{value:.5}"), step.to_string()),
            None => ("-".into(), "-".into()),
        };
        let end = if *diverged { "  (diverged)" } else { "" };
        table.row([trial, &value, &step, steps, &(text(settings, own) + end)]);
    }
    output::text(table)
}

/// The settings of a trial that the job does not have, on one line.
fn text(settings: &Drawn, own: &BTreeMap<String, String>) -> String {
    let changed = settings.iter().filter(|(key, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        own.get(key) != Some(&value)
    });
    let changed: Vec<_> = changed.map(|(key, value)| format!("{key}={value}")).collect();
    if changed.is_empty() { "the job itself".into() } else { changed.join("  ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_a_trial_got() {
        let result =
            |best, diverged| TrialResult { trial: 3, settings: Vec::new(), steps: 28, best, diverged };
        let best = Some(Evaluation { step: 9, value: 0.75 });
        assert_eq!(progress(&result(best, false)), "trial 3: best 0.75000 after step 9 of 28");
        assert_eq!(progress(&result(best, true)), "trial 3: best 0.75000 after step 9 of 28; it diverged");
        assert_eq!(progress(&result(None, true)), "trial 3: no metric after 28 steps; it diverged");
    }
}
