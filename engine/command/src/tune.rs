//! `rankine tune`: searches for the settings of a job.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rankine_base::publish::PartialFile;
use rankine_engine::run_paths;
use rankine_engine::tuning::{
    Basis, Drawn, Evaluation, Extent, Objective, Space, TimeToTarget, TrialResult, Tuned, Tuning, tune,
};
use rankine_job::{AucTarget, JobFile, StoppingMetric, ThreadCount};
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
///
/// With --for time, it looks for the job that reaches an AUC on the validation set in the least training time, and
/// varies the batch size and the learning rates. The job itself is trained first, by itself; then trials are trained
/// one after another for a ninth, a third and all of the time of the fastest one so far. The time is the duration of a
/// step, without evaluations, times the steps until an evaluation reaches the AUC. If none does, the steps are
/// extrapolated. A table lists all trials, and the fastest one is written to --out.
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
  rankine tune job.toml --for time --trials 18
  rankine tune job.toml --for time --target-auc 0.78 --budget 1h
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

    /// What to look for: the best metric, or the least training time to an AUC
    #[arg(long = "for", value_name = "OBJECTIVE", value_enum, default_value_t = Goal::Quality)]
    goal: Goal,

    /// AUC on the validation set to reach with --for time [default: eval.target_auc of the job, or the best AUC that
    /// the job itself reaches]
    #[arg(long, value_name = "AUC", value_parser = arguments::auc_target)]
    target_auc: Option<AucTarget>,

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

/// What a search looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Goal {
    /// The best metric on the validation set
    Quality,
    /// The least training time until the AUC on the validation set reaches --target-auc
    Time,
}

impl Goal {
    /// The objective; a target suits only the search for the least time.
    fn objective(self, target_auc: Option<AucTarget>) -> Result<Objective, CommandError> {
        match (self, target_auc) {
            (Self::Time, target_auc) => Ok(Objective::Time { target_auc }),
            (Self::Quality, None) => Ok(Objective::Quality),
            (Self::Quality, Some(_)) => {
                Err(CommandError::new(Exit::Usage, "--target-auc needs --for time".to_owned()))
            }
        }
    }

    /// The space of a search that names none.
    fn space(self, file: &JobFile) -> Result<Space, CommandError> {
        Ok(if self == Self::Time { Space::for_time(file)? } else { Space::around(file)? })
    }
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
    let objective = args.goal.objective(args.target_auc)?;
    // What stands in the way is found out before the search.
    let mut best = PartialFile::create_new(&args.out)?;
    let space = match args.space.as_deref() {
        Some(path) => Space::read(path)?,
        None => args.goal.space(&file)?,
    };
    let name = || run_paths::with_time(&format!("{}-tune", job.name));
    let dir = args.run_dir.unwrap_or_else(|| Path::new(run_paths::RUNS).join(name()));
    let tuning = Tuning {
        file: &file,
        space: &space,
        objective,
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
    let own = settings_of(&job.to_toml()).unwrap_or_default();
    match tuned.target_auc {
        None => output::text(by_metric(&tuned, &own))?,
        Some(target) => output::text(format_args!("{}\n{}", by_time(&tuned, &own), verdict(&tuned, target)))?,
    }
    output::text(format_args!("\njob      {out}\ntrials   {}\nnext     rankine train {out}\n", dir.display()))
}

/// A line about a trial at the end of a round.
fn progress(result: &TrialResult) -> String {
    let TrialResult { trial, steps, best, time, diverged, .. } = result;
    let found = match best {
        Some(Evaluation { step, value }) => format!("best {value:.5} after step {step} of {steps}"),
        None => format!("no metric after {steps} steps"),
    };
    let diverged = if *diverged { "; it diverged" } else { "" };
    let time = match time {
        Some(TimeToTarget { steps: Some(steps), seconds: Some(seconds), basis, .. }) => {
            format!("; {seconds:.3} s to the target, after {steps} steps, {}", name_of(*basis))
        }
        Some(TimeToTarget { ms_per_step, .. }) => {
            format!("; {ms_per_step:.3} ms per step, target not reached")
        }
        None => String::new(),
    };
    format!("trial {trial}: {found}{time}{diverged}")
}

fn name_of(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured => "measured",
        Basis::Extrapolated => "extrapolated",
        Basis::NotReached => "not reached",
    }
}

/// The trials, the best first, and what each changed in the job, which has these settings.
fn by_metric(tuned: &Tuned, own: &BTreeMap<String, String>) -> TextTable {
    let metric = match tuned.metric {
        StoppingMetric::Auc => "AUC",
        StoppingMetric::LogLoss => "log loss",
    };
    let mut table = TextTable::new(["trial", metric, "step", "of", "settings"], &[4]);
    for TrialResult { trial, settings, steps, best, diverged, .. } in &tuned.trials {
        let (value, step) = match best {
            Some(Evaluation { step, value }) => (format!("{value:.5}"), step.to_string()),
            None => ("-".into(), "-".into()),
        };
        let end = if *diverged { "  (diverged)" } else { "" };
        table.row([trial, &value, &step, steps, &(text(settings, own) + end)]);
    }
    table
}

/// The settings that have a column of their own in the table of a search for the least time.
const COLUMNS: [&str; 3] =
    ["train.batch_size", "optimizer.dense.learning_rate", "optimizer.sparse.learning_rate"];

/// The trials, the fastest first, with the time that each takes to the target.
fn by_time(tuned: &Tuned, own: &BTreeMap<String, String>) -> TextTable {
    let headings = [
        "trial",
        "batch",
        "dense rate",
        "sparse rate",
        "ms/step",
        "steps",
        "seconds",
        "basis",
        "AUC",
        "settings",
    ];
    let mut table = TextTable::new(headings, &[7, 9]);
    for TrialResult { trial, settings, best, time, diverged, .. } in &tuned.trials {
        let (columns, rest): (Vec<_>, Vec<_>) =
            settings.iter().cloned().partition(|(key, _)| COLUMNS.contains(&key.as_str()));
        let value = |key: &str| {
            let drawn = columns.iter().find(|(own, _)| own == key).map(|(_, value)| value.to_string());
            drawn.or_else(|| own.get(key).cloned()).unwrap_or_else(|| "-".into())
        };
        let [batch, dense, sparse] = COLUMNS.map(value);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let ms = or_dash(time.map(|time| format!("{:.3}", time.ms_per_step)));
        let steps = or_dash(time.and_then(|time| Some(time.steps?.to_string())));
        let seconds = or_dash(time.and_then(|time| Some(format!("{:.3}", time.seconds?))));
        let basis = if *diverged { "diverged" } else { time.map_or("-", |time| name_of(time.basis)) };
        let auc = or_dash(best.map(|best| format!("{:.5}", best.value)));
        let changed = match (*trial, rest.is_empty()) {
            (0, _) => "the job itself".into(),
            (_, true) => String::new(),
            (_, false) => text(&rest, own),
        };
        table.row([trial, &batch, &dense, &sparse, &ms, &steps, &seconds, &basis, &auc, &changed]);
    }
    table
}

/// Which job to use, and why: a line about the chosen trial, compared with the job itself.
fn verdict(tuned: &Tuned, target: f64) -> String {
    let of = |number: u64| tuned.trials.iter().find(|result| result.trial == number)?.time;
    let seconds = |time: Option<TimeToTarget>| time.filter(|time| time.basis == Basis::Measured)?.seconds;
    let (trial, time) = (tuned.chosen, of(tuned.chosen));
    let line = match (seconds(time), seconds(of(0))) {
        (Some(own), _) if trial == 0 => format!(
            "no trial reaches an AUC of {target:.5} in at least 5% less time than the job itself: {own:.3} s"
        ),
        (Some(seconds), Some(own)) => format!(
            "trial {trial} reaches an AUC of {target:.5} in {seconds:.3} s, {:.0}% less than the job itself: \
             {own:.3} s",
            100.0 * (1.0 - seconds / own)
        ),
        (Some(seconds), None) => format!(
            "trial {trial} reaches an AUC of {target:.5} in {seconds:.3} s, and the job itself does not reach it"
        ),
        (None, _) => match time.and_then(|time| time.seconds) {
            Some(seconds) => format!(
                "no trial reached an AUC of {target:.5}; trial {trial} would take {seconds:.3} s, by extrapolation"
            ),
            None => format!("no trial reached an AUC of {target:.5}; trial {trial} has the highest AUC"),
        },
    };
    format!("fastest  {line}\n")
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
        let result = |best, diverged| TrialResult {
            trial: 3,
            settings: Vec::new(),
            steps: 28,
            best,
            time: None,
            diverged,
        };
        let best = Some(Evaluation { step: 9, value: 0.75 });
        assert_eq!(progress(&result(best, false)), "trial 3: best 0.75000 after step 9 of 28");
        assert_eq!(progress(&result(best, true)), "trial 3: best 0.75000 after step 9 of 28; it diverged");
        assert_eq!(progress(&result(None, true)), "trial 3: no metric after 28 steps; it diverged");
    }
}
