//! The numbers that a training reports, logs and saves, compared with numbers computed by hand from its job.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rankine::job::Job;
use rankine_checkpoint::{Checkpoint, Disk, Files, Input, Output, list};
use rankine_engine::run_paths;
use rankine_engine::source::open_checkpoint;
use rankine_engine::training::{
    EndReason, Event, IterationSummary, MeteredGpus, Observer, Progress, Start, Stop, Summary, TrainError,
    TrainOptions, train,
};
use rankine_engine_gpu::{GpuMeter, GpuReading};
use rankine_launch::{Activity, Failure, Patience, ProcessGroup};
use rankine_model::evaluation::EvalMetrics;
use rankine_reader::{Dataset, Part};

use crate::support::process::Stalled;
use crate::support::{self, Place, SHAPE, SUCCESS, generate, json_lines, run, skipped, weights};

/// Eleven batches per epoch; the last one has a single sample.
const SAMPLES: u64 = 1001;
const BATCH: u64 = 100;
const STEPS_PER_EPOCH: u64 = 11;
const EVAL_SAMPLES: u64 = 400;

/// A dataset, and a job that trains on it in file order.
pub(super) struct Runs {
    pub(super) place: Place,
    job: String,
}

/// The events that an observer received.
#[derive(Debug, Default)]
pub(super) struct Events {
    announced: Vec<u64>,
    pub(super) steps: Vec<Progress>,
    reports: Vec<Progress>,
    pub(super) evaluations: Vec<(u64, f64)>,
    /// The step, bytes and time of each checkpoint.
    checkpoints: Vec<(u64, u64, Instant)>,
}

/// Records events, and calls a function for each.
struct Recorder<F>(Events, F);

impl<F: FnMut(&Event<'_>) + Send> Observer for Recorder<F> {
    fn observe(&mut self, event: Event<'_>) {
        self.1(&event);
        let Self(events, _) = self;
        match event {
            Event::Started(start) => events.announced.extend(start.samples),
            Event::Step(progress, _) => events.steps.push(progress),
            Event::Report(report) => events.reports.push(report.progress),
            Event::Evaluated { step, heads, .. } => {
                let auc = EvalMetrics::from(heads).first.unwrap().auc.unwrap();
                events.evaluations.push((step, auc));
            }
            Event::Checkpointed { step, bytes, .. } => events.checkpoints.push((step, bytes, Instant::now())),
            _ => {}
        }
    }
}

impl Runs {
    pub(super) fn new() -> Self {
        Self::of(SHAPE)
    }

    fn of(shape: &str) -> Self {
        let place = Place::new();
        generate(&place, shape, SAMPLES, EVAL_SAMPLES);
        let text = format!(
            "\
name = \"small\"
data.dir = {data:?}
model = {{ kind = \"dlrm\", embedding_dim = 4, bottom_mlp = [16, 4], top_mlp = [16] }}
optimizer.dense = {{ kind = \"sgd\", learning_rate = 0.5 }}
optimizer.sparse = {{ kind = \"sgd\", learning_rate = 0.25 }}
train = {{ batch_size = {BATCH}, log_every_steps = 4, shuffle = false }}
eval.batch_size = 100
",
            data = place.word("data"),
        );
        let job = place.file("job.toml", text);
        Self { place, job }
    }

    fn job(&self, sets: &[&str]) -> Job {
        Job::load(Path::new(&self.job), sets).unwrap()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.place.path(name)
    }

    /// Trains into the folder `name`, with more options.
    pub(super) fn try_train(
        &self,
        name: &str,
        sets: &[&str],
        options: TrainOptions<'_>,
        act: impl FnMut(&Event<'_>) + Send,
    ) -> (Events, Result<Summary, TrainError>) {
        let (path, mut recorder) = (self.path(name), Recorder(Events::default(), act));
        let options = TrainOptions { run_dir: Some(&path), ..options };
        let trained = train(&self.job(sets), options, &mut recorder);
        (recorder.0, trained.map(|(summary, _)| summary))
    }

    #[track_caller]
    pub(super) fn train(&self, name: &str, sets: &[&str]) -> (Events, Summary) {
        let (seen, summary) = self.try_train(name, sets, TrainOptions::default(), |_| ());
        (seen, summary.unwrap())
    }

    #[track_caller]
    pub(super) fn resume(&self, name: &str, sets: &[&str]) -> (Events, Summary) {
        let options = TrainOptions { start: Start::Resume, ..TrainOptions::default() };
        let (seen, summary) = self.try_train(name, sets, options, |_| ());
        (seen, summary.unwrap())
    }

    /// Returns the steps of a run's checkpoints in order, each with the step of its base if it is incremental.
    fn checkpoints(&self, name: &str) -> Vec<(u64, Option<u64>)> {
        let files: Arc<dyn Files> = Arc::new(Disk);
        let found = list(&*files, &run_paths::checkpoints(&self.path(name))).unwrap();
        let base = |(step, path): &(u64, PathBuf)| {
            let checkpoint = Checkpoint::open(&files, path).unwrap();
            assert_eq!(checkpoint.manifest().train.step, *step);
            (*step, checkpoint.base().map(|base| base.manifest().train.step))
        };
        found.iter().rev().map(base).collect()
    }
}

#[test]
fn samples_steps_and_epochs_are_counted() {
    let runs = Runs::new();
    for (epochs, max_steps, steps, samples) in [
        (1, None, 11, 1001),
        (3, None, 33, 3003),
        (3, Some(5), 5, 500),
        (3, Some(11), 11, 1001),
        (3, Some(12), 12, 1101),
        (3, Some(25), 25, 2302),
        (2, Some(22), 22, 2002),
        (2, Some(50), 22, 2002),
    ] {
        let name = format!("run-{epochs}-{max_steps:?}");
        let most: Option<u64> = max_steps;
        let mut sets = vec![format!("train.epochs={epochs}")];
        sets.extend(most.map(|most| format!("train.max_steps={most}")));
        let (seen, summary) = runs.train(&name, &sets.iter().map(|set| &**set).collect::<Vec<_>>());
        assert_eq!(seen.announced, [samples], "{name}");
        assert_eq!((summary.train.steps, summary.train.samples), (steps, samples), "{name}");
        // If both limits are reached at the same step, `max_steps` is the reason: the end of the epochs is only noticed
        // when another batch is requested.
        let expected =
            if most.is_some_and(|most| most <= steps) { EndReason::MaxSteps } else { EndReason::Epochs };
        assert_eq!(summary.train.stopped, expected, "{name}");
        let expected = (0..steps).map(|before| {
            let (epoch, batch) = (before / STEPS_PER_EPOCH, before % STEPS_PER_EPOCH);
            (before + 1, epoch, epoch * SAMPLES + SAMPLES.min((batch + 1) * BATCH))
        });
        let found = seen.steps.iter().map(|progress| (progress.step, progress.epoch, progress.samples));
        assert!(found.eq(expected), "{name}");
        let reports = seen.reports.iter().map(|progress| progress.step);
        assert!(reports.eq((1..=steps / 4).map(|report| 4 * report)), "{name}");
        assert_eq!(seen.evaluations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [steps], "{name}");
    }
}

#[test]
fn the_last_step_is_evaluated_once() {
    let runs = Runs::new();
    for (every, expected) in [(10, vec![10, 20, 22]), (11, vec![11, 22]), (50, vec![22])] {
        let name = format!("every-{every}");
        let (seen, summary) = runs.train(&name, &["train.epochs=2", &format!("eval.every_steps={every}")]);
        assert_eq!(seen.evaluations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), expected);
        let last = seen.evaluations.last().map(|(_, auc)| *auc);
        assert_eq!(summary.eval.unwrap().metrics.first.unwrap().auc, last);
    }
}

#[test]
fn only_the_first_evaluation_of_a_part_reads() {
    let runs = Runs::new();
    let sets = ["train.epochs=2", "train.validation=last:0.3", "eval.every_steps=5", "eval.batch_size=100"];
    let mut read = Vec::new();
    let record = |event: &Event<'_>| match event {
        Event::Evaluating { samples, total, bytes_read } if samples == total => {
            read.push((*total, *bytes_read));
        }
        _ => {}
    };
    let (seen, trained) = runs.try_train("run", &sets, TrainOptions::default(), record);
    trained.unwrap();
    let (part, bytes): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    // Steps 5, 10 and 15 of 16, and the end, where the evaluation part follows.
    assert_eq!(part, [300, 300, 300, 300, EVAL_SAMPLES]);
    assert!(bytes[0] > 0 && bytes[1..4] == [0; 3] && bytes[4] > 0, "{bytes:?}");
    // Samples that stayed in memory are scored as those that are read.
    let last = run(["eval", "--run", &runs.place.word("run"), "--json"]).with(SUCCESS).json();
    assert_eq!(last["auc"], seen.evaluations.last().unwrap().1);
}

/// Both learning rates are the job's, times the schedule's factor, at each step.
#[test]
fn rates_follow_the_schedule() {
    let runs = Runs::new();
    let schedule = "optimizer.schedule={ kind = 'warmup-polynomial', warmup_steps = 4, decay_start_step = 6, \
                    decay_steps = 8, power = 3, end_factor = 0.125 }";
    let (seen, _) =
        runs.train("run", &["train.max_steps=16", "train.log_every_steps=1", "train.epochs=2", schedule]);
    let eighths = |left: u32| f64::from(left.pow(3)) / 512.0;
    let factors = [
        [0.25, 0.5, 0.75, 1.0].to_vec(),
        [1.0, 1.0].to_vec(),
        [7, 6, 5, 4].map(eighths).to_vec(),
        [0.125; 6].to_vec(),
    ]
    .concat();
    let log = json_lines(&runs.path("run/metrics.jsonl"));
    let log: Vec<_> = log.iter().filter(|line| line["kind"] == "train").collect();
    assert_eq!((seen.steps.len(), log.len(), factors.len()), (16, 16, 16));
    for ((progress, line), factor) in seen.steps.iter().zip(log).zip(factors) {
        let found = [progress.dense_learning_rate, progress.sparse_learning_rate];
        // The power may be off by one unit in the last place, and so may each product.
        for (found, rate) in found.into_iter().zip([0.5, 0.25]) {
            assert!(
                (found - rate * factor).abs() <= 4.0 * f64::EPSILON * rate,
                "{progress:?}, factor {factor}"
            );
        }
        assert_eq!(line["dense_learning_rate"], found[0]);
        assert_eq!(line["sparse_learning_rate"], found[1]);
    }
}

/// Training uses the logged factor: with a factor of 0 no weight changes, with any other some do.
#[test]
fn updates_use_the_schedule() {
    let runs = Runs::new();
    let after = |steps: u64| {
        let (name, most) = (format!("after-{steps}"), format!("train.max_steps={steps}"));
        runs.train(&name, &[&most, "optimizer.schedule={ kind = 'step', every_steps = 3, factor = 0 }"]);
        weights(&runs.place, &name)
    };
    let [two, three, four] = [2, 3, 4].map(after);
    assert!(two != three && three == four);
}

/// A report's loss is the mean over the samples since the last report, also if training was resumed in between: the
/// last batch of an epoch, with one sample, has the weight of one sample. The loss of an untrained model equals that of
/// its evaluation on the same samples.
#[test]
fn losses_are_means_over_samples() {
    let runs = Runs::new();
    let (single, _) = runs.train("single", &["train.epochs=2", "train.log_every_steps=1"]);
    let losses: Vec<_> = single.reports.iter().map(|report| report.loss).collect();
    let size = |step: usize| if (step as u64).is_multiple_of(STEPS_PER_EPOCH) { 1.0 } else { BATCH as f64 };
    // The mean over a range of steps.
    let mean = |first: usize, last: usize| {
        let (sum, samples) = (first..=last).fold((0.0, 0.0), |(sum, samples), step| {
            (sum + losses[step - 1] * size(step), samples + size(step))
        });
        sum / samples
    };
    // On both sides, each of 4 products and sums, and the quotient, is rounded once.
    let is = |found: f64, expected: f64| (found - expected).abs() <= 20.0 * f64::EPSILON * expected;
    let check = |seen: &Events, reports: &[usize], summary: &Summary| {
        assert_eq!(seen.reports.iter().map(|report| report.step as usize).collect::<Vec<_>>(), reports);
        for report in &seen.reports {
            let step = report.step as usize;
            assert!(is(report.loss, mean(step - 3, step)), "{report:?}");
        }
        assert!(is(summary.train.loss, mean(21, 22)), "{}", summary.train.loss);
    };
    let (seen, summary) = runs.train("fours", &["train.epochs=2"]);
    check(&seen, &[4, 8, 12, 16, 20], &summary);
    // A checkpoint between two reports: at step 6, before the report of step 8.
    let sets = ["train.epochs=2", "checkpoint.every_steps=6"];
    runs.train("resumed", &[&sets[..], &["train.max_steps=7"]].concat());
    let (seen, summary) = runs.resume("resumed", &sets);
    assert_eq!(seen.steps[0].step, 7);
    check(&seen, &[8, 12, 16, 20], &summary);

    // Learning rates that are too small to change any weight.
    let still = ["optimizer.dense.learning_rate=1e-30", "optimizer.sparse.learning_rate=1e-30"];
    let (seen, _) = runs.train("still", &[&still[..], &["train.log_every_steps=11"]].concat());
    let (run_dir, data) = (runs.place.word("still"), runs.place.word("data"));
    let judged =
        run(["eval", "--run", &run_dir, "--data", &data, "--part", "train", "--json"]).with(SUCCESS).json();
    let (found, expected) = (seen.reports[0].loss, judged["log_loss"].as_f64().unwrap());
    // Sums of at most 25 products in single precision, whose order depends on the batch: logits of about 1 are off by
    // 25 * 2^-24, and a loss by no more than its logit.
    assert!((found - expected).abs() < 25.0 * 2f64.powi(-24), "{found} and {expected}");
}

/// Training ends when the AUC equals the target, and not below it.
#[test]
fn training_ends_at_its_target() {
    let runs = Runs::new();
    let common = [
        "train.epochs=20",
        "optimizer.dense={ kind = 'adagrad', learning_rate = 0.03 }",
        "optimizer.sparse={ kind = 'adagrad', learning_rate = 0.1 }",
        "eval.every_steps=20",
        "eval.beside_training=false",
        "checkpoint.every_steps=20",
    ];
    let (seen, _) = runs.train("all", &common);
    // The second evaluation that is better than all before it and than 0.5, since targets must be above 0.5.
    let is_best = |at: &usize| seen.evaluations[..*at].iter().all(|(_, auc)| *auc < seen.evaluations[*at].1);
    let mut best = (0..seen.evaluations.len()).filter(is_best).filter(|at| seen.evaluations[*at].1 > 0.5);
    let at = best.nth(1).unwrap();
    let (step, auc) = seen.evaluations[at];
    let target = format!("eval.target_auc={auc:?}");
    let sets = [&common[..], &[&target]].concat();
    let (seen, summary) = runs.train("exact", &sets);
    assert_eq!((summary.train.stopped, summary.train.steps), (EndReason::TargetAuc, step));
    assert_eq!(seen.evaluations.last(), Some(&(step, auc)));
    // Nothing is left to do, whether the run is finished or was killed right before its end.
    let (seen, again) = runs.resume("exact", &sets);
    assert!(seen.announced.is_empty() && again == summary);
    std::fs::remove_file(run_paths::summary(&runs.path("exact"))).unwrap();
    let (seen, again) = runs.resume("exact", &sets);
    assert!(seen.steps.is_empty());
    assert_eq!((again.train.stopped, again.train.steps), (EndReason::TargetAuc, step));

    let above = format!("eval.target_auc={:?}", auc.next_up());
    let (seen, _) = runs.train("above", &[&common[..], &[&above]].concat());
    assert!(seen.steps.len() as u64 > step);
}

/// Checkpoints are taken at the interval that the job sets in minutes.
#[test]
fn checkpoints_are_taken_by_the_clock() {
    const PERIOD: Duration = Duration::from_millis(300);
    let runs = Runs::new();
    let (stop, began, mut taken) = (Stop::default(), Instant::now(), 0);
    let options = TrainOptions { stop: Some(&stop), ..TrainOptions::default() };
    let sets = ["train.epochs=1000000", "checkpoint.every_minutes=0.005"];
    let (seen, ended) = runs.try_train("run", &sets, options, |event| {
        taken += usize::from(matches!(event, Event::Checkpointed { .. }));
        // If the interval were in hours, it would be 18 s.
        if taken == 2 || began.elapsed() > 30 * PERIOD {
            stop.ask();
        }
    });
    assert!(matches!(ended, Err(TrainError::Interrupted { .. })));
    let times: Vec<_> = seen.checkpoints.iter().map(|(_, _, time)| *time - began).collect();
    assert!(times.len() >= 2 && times[0] >= PERIOD && times[1] >= 2 * PERIOD, "{times:?}");
    assert!(times[1] < 20 * PERIOD, "{times:?}");
    assert!(seen.checkpoints[0].0 < seen.checkpoints[1].0);
}

#[test]
fn some_checkpoints_are_full_and_the_last_ones_are_kept() {
    let runs = Runs::new();
    let every = ["train.epochs=2", "train.max_steps=18", "checkpoint.every_steps=2"];
    let saved = |name: &str, sets: &[&str]| {
        let (seen, _) = runs.train(name, &[&every[..], sets].concat());
        let steps: Vec<_> = seen.checkpoints.iter().map(|(step, ..)| *step).collect();
        assert_eq!(steps, [2, 4, 6, 8, 10, 12, 14, 16, 18], "{name}");
        runs.checkpoints(name)
    };
    let (all, incremental) = ("checkpoint.keep=100", "checkpoint.incremental=true");
    let thirds = saved("thirds", &[all, incremental, "checkpoint.full_every=3"]);
    let groups = |full: u64| [(full, None), (full + 2, Some(full)), (full + 4, Some(full))];
    assert_eq!(thirds, [2, 8, 14].map(groups).concat());
    let full = [2, 4, 6, 8, 10, 12, 14, 16, 18].map(|step| (step, None));
    assert_eq!(saved("each", &[all, incremental, "checkpoint.full_every=1"]), full);
    assert_eq!(saved("plain", &[all, "checkpoint.full_every=3"]), full);
    assert_eq!(saved("two", &["checkpoint.keep=2"]), [(16, None), (18, None)]);
    assert_eq!(saved("one", &["checkpoint.keep=1"]), [(18, None)]);
    // The base of the last one is kept, too.
    let kept = saved("added", &["checkpoint.keep=1", incremental, "checkpoint.full_every=4"]);
    assert_eq!(kept, [(18, None)]);
    let kept = saved("base", &["checkpoint.keep=1", incremental, "checkpoint.full_every=5"]);
    assert_eq!(kept, [(12, None), (18, Some(12))]);
    // A resumed training does not know which rows were updated before, so its first checkpoint is full.
    let sets = [&every[..], &[all, incremental, "checkpoint.full_every=3", "train.max_steps=22"]].concat();
    runs.resume("thirds", &sets);
    assert_eq!(runs.checkpoints("thirds")[9..], [(20, None), (22, Some(20))]);
    // Checkpoints of an earlier process count, too: step 2 is kept as the base of step 6.
    let sets = ["checkpoint.every_steps=2", incremental, "checkpoint.keep=2"];
    runs.train("earlier", &[&sets[..], &["train.max_steps=6"]].concat());
    assert_eq!(runs.checkpoints("earlier"), [(2, None), (4, Some(2)), (6, Some(2))]);
    runs.resume("earlier", &[&sets[..], &["train.max_steps=8"]].concat());
    assert_eq!(runs.checkpoints("earlier"), [(2, None), (6, Some(2)), (8, None)]);
}

/// An incremental checkpoint holds all rows that were updated since its base, including those of incremental
/// checkpoints in between. A few steps do not update most rows of a large table.
#[test]
fn incremental_checkpoints_hold_all_rows_since_their_base() {
    let runs = Runs::of("name = \"large\"\ndense = 4\nrows = [3000, 40]\n");
    runs.train("whole", &["train.max_steps=9"]);
    let sets = ["checkpoint.every_steps=2", "checkpoint.incremental=true"];
    runs.train("parts", &[&sets[..], &["train.max_steps=6"]].concat());
    assert_eq!(runs.checkpoints("parts"), [(2, None), (4, Some(2)), (6, Some(2))]);
    let (seen, _) = runs.resume("parts", &[&sets[..], &["train.max_steps=9"]].concat());
    assert_eq!(seen.steps[0].step, 7);
    assert!(weights(&runs.place, "parts") == weights(&runs.place, "whole"));
}

/// A training that is asked to stop saves a checkpoint if the last step has none, and reports the step.
#[test]
fn a_stop_leaves_one_checkpoint_of_its_step() {
    let runs = Runs::new();
    runs.train("whole", &["train.epochs=2"]);
    for (every, expected) in [(5, &[5][..]), (3, &[3, 5]), (100, &[5])] {
        let (name, every) = (format!("every-{every}"), format!("checkpoint.every_steps={every}"));
        let (sets, stop) = (["train.epochs=2", &every], Stop::default());
        let options = TrainOptions { stop: Some(&stop), ..TrainOptions::default() };
        let (seen, ended) = runs.try_train(&name, &sets, options, |event| {
            if matches!(event, Event::Step(Progress { step: 5, .. }, _)) {
                stop.ask();
            }
        });
        let Err(TrainError::Interrupted { step: 5, run, .. }) = ended else { panic!("{ended:?}") };
        assert_eq!(run, runs.path(&name));
        assert_eq!(seen.checkpoints.iter().map(|(step, ..)| *step).collect::<Vec<_>>(), expected);
        for (step, bytes, _) in seen.checkpoints {
            let files = support::files_below(&run_paths::checkpoints(&run).join(format!("step-{step}")));
            let lengths = files.iter().map(|path| std::fs::metadata(path).unwrap().len());
            assert_eq!(bytes, lengths.sum::<u64>());
        }
        let saved = run_paths::checkpoints(&run).join("step-5");
        let saved = open_checkpoint(&saved).unwrap().manifest().train.clone();
        let (seen, summary) = runs.resume(&name, &sets);
        assert_eq!(seen.steps[0].step, 6);
        // Times continue from those of the checkpoint.
        let waited = summary.train.reader_wait_share * summary.train.seconds;
        assert!(0.0 < saved.waited_seconds && saved.waited_seconds < waited, "{saved:?}, then {waited} s");
        assert!(saved.waited_seconds < saved.seconds && saved.seconds < summary.train.seconds, "{saved:?}");
        assert!(weights(&runs.place, &name) == weights(&runs.place, "whole"));
    }
}

/// A disk on which renaming takes long.
#[derive(Debug)]
struct SlowDisk(Duration);

impl Files for SlowDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Disk.create_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Disk.create(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        Disk.sync_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        thread::sleep(self.0);
        Disk.rename(from, to)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        Disk.remove_dir(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        Disk.names(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Input>> {
        Disk.open(path)
    }

    fn tree_bytes(&self, path: &Path) -> io::Result<u64> {
        Disk.tree_bytes(path)
    }
}

/// The watchdog does not take a slow checkpoint for a hang, and waiting for it counts as training time.
#[test]
fn waiting_for_a_checkpoint_is_not_a_hang_and_counts_as_training() {
    const RENAME: Duration = Duration::from_secs(2);
    let patience = Patience {
        silence: Duration::from_secs(60),
        standstill: Duration::from_millis(1300),
        grace: Duration::from_millis(50),
    };
    let runs = Runs::new();
    let said = Arc::<Mutex<Option<String>>>::default();
    let end = {
        let said = Arc::clone(&said);
        move |failure: &Failure, _: &Activity| *said.lock().unwrap() = Some(failure.words.clone())
    };
    let processes = ProcessGroup::watched_alone(patience, end).unwrap();
    let files: Arc<dyn Files> = Arc::new(SlowDisk(RENAME));
    let options =
        TrainOptions { processes: Some(&processes), files: Some(&files), ..TrainOptions::default() };
    // The second checkpoint waits for the first one, which is then removed.
    let sets = ["train.max_steps=2", "checkpoint.every_steps=1", "checkpoint.keep=1"];
    let (seen, summary) = runs.try_train("run", &sets, options, |_| ());
    let train = summary.unwrap().train;
    processes.finish();
    assert_eq!(*said.lock().unwrap(), None);
    assert_eq!(seen.checkpoints.len(), 2);
    assert!(train.seconds > 0.95 * RENAME.as_secs_f64(), "{train:?}");
}

#[test]
fn the_summary_describes_the_training() {
    let runs = Runs::new();
    let began = Instant::now();
    let sets = ["device.threads=3", "seed=5", "train.epochs=2", "train.max_steps=12", "reader.mode=pread"];
    let (_, summary) = runs.train("run", &sets);
    let Summary { name, seed, version, data, model, device, exchange, .. } = summary;
    let Summary { iteration, start, train, eval, .. } = summary;
    assert_eq!((&*name, seed, &*version), ("small", 5, env!("CARGO_PKG_VERSION")));
    assert_eq!((data.dir, data.raw), (Some(runs.place.word("data")), vec![]));
    assert_eq!((data.train_samples, data.eval_samples, &*data.reader), (SAMPLES, EVAL_SAMPLES, "pread"));
    // 4-16-4, 25-16-1 with biases; 113 rows of 4.
    assert_eq!((&*model.kind, model.dense_parameters, model.embedding_parameters), ("dlrm", 581, 452));
    assert_eq!((&*device.kind, device.precision, device.threads), ("cpu", None, 3));
    assert_eq!((device.ranks, device.nodes, exchange), (1, 1, None));
    assert_eq!((train.overflow_steps, train.non_finite_steps, train.ids_out_of_range.len()), (None, 0, 0));
    // The two sides differ by two or three rounded operations.
    let is = |found: f64, expected: f64| (found - expected).abs() <= 4.0 * f64::EPSILON * expected;
    assert!(train.seconds > 0.0 && is(train.ms_per_iteration, train.seconds * 1e3 / 12.0), "{train:?}");
    assert!(is(train.samples_per_second, 1101.0 / train.seconds), "{train:?}");
    // Computing takes more than a hundredth of the time.
    assert!(train.reader_wait_share > 0.0 && train.reader_wait_share < 0.99, "{train:?}");
    // One epoch and a part of the second one, which is read ahead.
    let part = Dataset::open(&runs.place.path("data")).unwrap().part(Part::Train).unwrap();
    let epoch: u64 = part.blocks.iter().map(|block| u64::from(block.bytes)).sum();
    assert!(matches!(train.bytes_read[..], [bytes] if epoch < bytes && bytes <= 2 * epoch), "{train:?}");
    let start = start.unwrap();
    let seconds = [
        start.data_seconds,
        start.device_seconds,
        start.model_seconds,
        start.state_seconds,
        start.reader_seconds,
        start.first_step_seconds,
    ];
    assert!(
        seconds.iter().all(|&seconds| (0.0..began.elapsed().as_secs_f64()).contains(&seconds)),
        "{start:?}"
    );
    assert!(
        start.data_seconds > 0.0 && start.model_seconds > 0.0 && start.first_step_seconds > 0.0,
        "{start:?}"
    );
    let IterationSummary { look_ups, phases, dynamic_tables } = iteration.unwrap();
    assert!(dynamic_tables.is_empty());
    assert_eq!((look_ups.len(), phases.len()), (6, 0));
    assert!(look_ups.iter().all(|count| count.distinct_rows <= count.look_ups), "{look_ups:?}");
    let eval = eval.unwrap();
    assert_eq!(eval.metrics.first.unwrap().samples, EVAL_SAMPLES);
    assert!(eval.seconds > 0.0 && eval.auc_achievable.is_some());
}

/// Draws 300 W, and is at its power limit of 300 W.
#[derive(Debug)]
struct Meter;

impl GpuMeter for Meter {
    fn read(&self, uuid: &str) -> Option<GpuReading> {
        let watts = Some(300.0);
        (uuid != "GPU-3").then(|| GpuReading { watts, limit_watts: watts, ..GpuReading::default() })
    }

    fn absence(&self) -> Option<String> {
        None
    }
}

/// The energy of two GPUs of 300 W is the time of the steps and of what is between them, times 600 W. Each attempt
/// has its own.
#[test]
fn the_summary_has_the_power_of_the_gpus() {
    let runs = Runs::new();
    let metered = |uuids: &[&str]| {
        let uuids = uuids.iter().map(|uuid| (*uuid).to_owned()).collect();
        MeteredGpus { meter: Arc::new(Meter), uuids }
    };
    let gpus = metered(&["GPU-1", "GPU-2"]);
    let options = TrainOptions { gpus: Some(&gpus), ..TrainOptions::default() };
    let pause = |event: &Event<'_>| {
        if matches!(event, Event::Step(..)) {
            thread::sleep(Duration::from_millis(100));
        }
    };
    let sets = ["train.max_steps=5", "checkpoint.every_steps=5", "train.epochs=2"];
    let began = Instant::now();
    let power = runs.try_train("run", &sets, options, pause).1.unwrap().power.unwrap();
    let most = began.elapsed().as_secs_f64();
    assert!((power.watts - 600.0).abs() < 1e-6, "{power:?}");
    assert_eq!((power.limit_watts, power.limited_step_share), (Some(600.0), Some(1.0)));
    let joules = power.joules_per_sample * 5.0 * BATCH as f64;
    assert!(joules >= 600.0 * 0.5 && joules <= 600.0 * most, "{joules} J in at most {most} s");

    // Two more steps, of the 200 samples of this attempt.
    let options = TrainOptions { start: Start::Resume, ..options };
    let sets = ["train.max_steps=7", "train.epochs=2"];
    let began = Instant::now();
    let power = runs.try_train("run", &sets, options, pause).1.unwrap().power.unwrap();
    let joules = power.joules_per_sample * 2.0 * BATCH as f64;
    let most = began.elapsed().as_secs_f64();
    assert!(joules >= 600.0 * 0.2 && joules <= 600.0 * most, "{joules} J in at most {most} s");

    let gpus = metered(&["GPU-1", "GPU-3"]);
    let options = TrainOptions { gpus: Some(&gpus), ..TrainOptions::default() };
    assert_eq!(runs.try_train("unknown", &sets, options, |_| ()).1.unwrap().power, None);
    assert_eq!(runs.train("cpu", &sets).1.power, None);
}

/// All-reduces send the same number of bytes in each step, before and after resuming.
#[test]
fn exchanged_bytes_are_those_of_an_iteration() {
    let runs = Runs::new();
    for (nodes, within) in [("device.nodes=1", true), ("device.nodes=2", false)] {
        let sets = ["device.ranks=2", nodes, "embedding.placement=row-wise", "checkpoint.every_steps=4"];
        let (whole, resumed) = (format!("whole-{within}"), format!("resumed-{within}"));
        let (_, summary) = runs.train(&whole, &[&sets[..], &["train.max_steps=10"]].concat());
        let expected = summary.exchange.unwrap().reduced_bytes;
        let (used, unused) = (expected.within_nodes, expected.between_nodes);
        let (used, unused) = if within { (used, unused) } else { (unused, used) };
        assert!(used > 0.0 && unused == 0.0, "{expected:?}");
        runs.train(&resumed, &[&sets[..], &["train.max_steps=4"]].concat());
        let (_, summary) = runs.resume(&resumed, &[&sets[..], &["train.max_steps=10"]].concat());
        assert_eq!(summary.exchange.unwrap().reduced_bytes, expected);
    }
}

/// The watchdog reports an evaluation that hangs, at its start or in the middle.
#[test]
fn an_evaluation_that_hangs_is_reported_as_such() {
    let patience = Patience {
        silence: Duration::from_secs(60),
        standstill: Duration::from_millis(800),
        grace: Duration::from_millis(50),
    };
    let runs = Runs::new();
    let eval = runs.place.word("data/eval/00000.blocks");
    for begins in [true, false] {
        let (stalled, said) = (Arc::<Mutex<Option<Stalled>>>::default(), Arc::<Mutex<String>>::default());
        let end = {
            let (stalled, said) = (Arc::clone(&stalled), Arc::clone(&said));
            move |failure: &Failure, activity: &Activity| {
                said.lock().unwrap().clone_from(&failure.words);
                // The evaluation comes after the model.
                assert!(activity.model_saved);
                *stalled.lock().unwrap() = None;
            }
        };
        let processes = ProcessGroup::watched_alone(patience, end).unwrap();
        let options = TrainOptions { processes: Some(&processes), ..TrainOptions::default() };
        let mut has_leases = true;
        let (_, trained) = runs.try_train(&format!("begins-{begins}"), &[], options, |event| match event {
            Event::Step(Progress { step: STEPS_PER_EPOCH, .. }, _) if begins => {
                *stalled.lock().unwrap() = Stalled::new(&eval);
                has_leases = stalled.lock().unwrap().is_some();
            }
            Event::Evaluating { samples: 200, .. } if !begins => thread::sleep(Duration::from_secs(2)),
            _ => {}
        });
        trained.unwrap();
        if !has_leases {
            skipped("this file system has no leases");
            continue;
        }
        let said = said.lock().unwrap();
        let expected =
            "process 0 has made no progress for 1 s in an evaluation, at step 11: the process hangs";
        assert!(said.starts_with(expected), "{said}");
    }
}
