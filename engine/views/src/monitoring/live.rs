//! The training of this process as the live page shows it.
//!
//! Events change a [`RunView`] that the server's thread reads. Training never waits for that thread, which may lose its
//! processor while it holds the lock: a change that finds the view locked is made together with a later one.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use jiff::Timestamp;
use rankine_engine::run_paths;
use rankine_engine::training::{
    Event, IdCounts, Progress, Report, ReportDetails, RunDevices, RunStart, StepDetails, StepTimes,
};
use rankine_model::evaluation::{HeadMetrics, SavedScores};
use rankine_model::guard::SkippedSteps;
use rankine_reader::Part;

use crate::report::{
    Bound, DeviceView, Evaluated, HeadView, History, ModelView, ProcessView, RefitView, RunPhase, RunState,
    RunView, TableView, TaskView, WarningView, name_of, settings_of,
};

/// Warnings that are kept, the latest.
const WARNINGS_MAX: usize = 100;

/// The view, as the server's thread sees it.
#[derive(Debug, Clone)]
pub(super) struct SharedView(Arc<Mutex<RunView>>);

impl SharedView {
    /// The view of a run that has not started.
    pub(super) fn new(name: String) -> Self {
        Self(Arc::new(Mutex::new(RunView { name, ..RunView::default() })))
    }

    /// Returns the view as JSON, with what is known of the processes.
    pub(super) fn json(&self, processes: Vec<ProcessView>) -> Vec<u8> {
        // Locked only while it is copied.
        let view = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        serde_json::to_vec(&RunView { processes, ..view }).expect("the keys of a view are strings")
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, RunView>> {
        match self.0.try_lock() {
            Ok(view) => Some(view),
            // Each change leaves a view that can be shown.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

type Change = Box<dyn FnOnce(&mut RunView) + Send>;

/// Turns events into changes of the view.
pub(super) struct LiveRun {
    shared: SharedView,
    /// Changes that found the view locked, in order.
    pending: Vec<Change>,
    /// Where the time of the steps since the last report went.
    times: StepTimes,
    /// Steps skipped so far.
    skipped: SkippedSteps,
    /// Those of them that warnings have counted.
    skipped_before: SkippedSteps,
    /// Ids out of range that warnings have counted.
    ids_out_of_range: IdCounts,
    auc_achievable: Option<f64>,
}

impl LiveRun {
    pub(super) fn new(shared: SharedView) -> Self {
        Self {
            shared,
            pending: Vec::new(),
            times: StepTimes::default(),
            skipped: SkippedSteps::default(),
            skipped_before: SkippedSteps::default(),
            ids_out_of_range: IdCounts::new(),
            auc_achievable: None,
        }
    }

    pub(super) fn observe(&mut self, event: &Event<'_>) {
        if let Some(text) = event.warning() {
            self.warn(text);
        }
        match event {
            Event::Generating { samples, total } => self.task("generating", "samples", *samples, *total),
            Event::Checksumming { bytes, total } => self.task("comparing", "bytes", *bytes, *total),
            Event::Generated => self.change(|view| view.task = None),
            Event::Started(start) => self.started(start),
            Event::Step(progress, details) => self.step(progress, details),
            Event::Report(report) => self.report(report),
            Event::Evaluating { samples, total, .. } => {
                self.change(|view| view.state = RunState::Evaluating);
                self.task("evaluating", "samples", *samples, *total);
            }
            Event::Evaluated { step, part, set, samples, averaged, seconds, heads } => {
                let first = heads.first().and_then(|head| head.metrics.as_ref());
                let evaluated = Evaluated {
                    step: *step,
                    averaged: *averaged,
                    samples_checksum: *samples,
                    auc: first.and_then(|first| first.auc).unwrap_or(f64::NAN),
                    log_loss: first.map_or(f64::NAN, |first| first.log_loss),
                };
                self.evaluated((*part, *set), evaluated, heads);
                self.took(RunPhase::Evaluation, *seconds);
            }
            Event::Judged(progress) => {
                let progress = *progress;
                self.change(move |view| view.stopping = Some(progress));
            }
            Event::Checkpointed { waited_seconds, .. } => self.took(RunPhase::Checkpoint, *waited_seconds),
            Event::Finished { saved_step, reason, .. } => {
                let (saved, ended) = (Some(*saved_step), Some(*reason));
                self.change(move |view| {
                    view.state = RunState::Finished;
                    view.progress.eta_seconds = None;
                    (view.saved_step, view.ended) = (saved, ended);
                });
            }
            _ => {}
        }
    }

    /// Changes the view now, or with a later change if it is locked.
    fn change(&mut self, change: impl FnOnce(&mut RunView) + Send + 'static) {
        match self.shared.try_lock() {
            Some(mut view) => {
                self.pending.drain(..).for_each(|earlier| earlier(&mut view));
                change(&mut view);
            }
            None => self.pending.push(Box::new(change)),
        }
    }

    fn warn(&mut self, text: String) {
        let time = format!("{:.0}", Timestamp::now());
        self.change(|view| {
            if view.warnings.len() == WARNINGS_MAX {
                view.warnings.remove(0);
            }
            view.warnings.push(WarningView { time, text });
        });
    }

    fn task(&mut self, name: &'static str, unit: &'static str, done: u64, total: u64) {
        self.change(move |view| {
            view.task = Some(TaskView { name: name.into(), unit: unit.into(), done, total });
        });
    }

    fn took(&mut self, phase: RunPhase, seconds: f64) {
        self.change(move |view| view.phases.add(phase, seconds));
    }

    fn started(&mut self, start: &RunStart<'_>) {
        let RunStart { job, spec, dataset, run, devices, step, samples, samples_done, .. } = *start;
        self.auc_achievable = dataset.auc_achievable();
        self.ids_out_of_range.clone_from(start.ids_out_of_range);
        // What the run logged before it was resumed.
        let history = if step > 0 { self.history(run) } else { History::default() };
        let now = Timestamp::now();
        let mut started = RunView {
            version: Some(devices.version.clone()),
            run: Some(run.display().to_string()),
            state: RunState::Training,
            started: Some(history.started().unwrap_or(now)).map(|time| format!("{time:.0}")),
            device: device(start),
            model: ModelView::new(job.model.kind().name, spec),
            series: history.series,
            evaluations: history.evaluations,
            stopping: history.stopping,
            refit: start.refit.map(RefitView::from),
            phases: history.phases,
            tables: devices.tables.iter().map(TableView::from).collect(),
            memory: devices.memory.clone(),
            settings: settings_of(&job.to_toml()).unwrap_or_default(),
            ..RunView::default()
        };
        let progress = &mut started.progress;
        (progress.step, progress.samples, progress.total_samples) = (step, samples_done, samples);
        // A program that pushes samples decides itself.
        progress.total_epochs = samples.map(|_| job.train.epochs.get());
        self.change(move |view| {
            // There may be warnings from before the start.
            let RunView { name, warnings, .. } = std::mem::take(view);
            *view = RunView { name, warnings, ..started };
        });
    }

    fn history(&mut self, run: &Path) -> History {
        History::read(&run_paths::metrics(run)).unwrap_or_else(|error| {
            self.warn(format!("curves start at the resume: {error}"));
            History::default()
        })
    }

    fn step(&mut self, progress: &Progress, details: &StepDetails) {
        self.times.add(&details.times);
        self.skipped = details.skipped;
        let Progress { step, epoch, samples, seconds, .. } = *progress;
        let times = details.times;
        self.change(move |view| {
            view.state = RunState::Training;
            view.task = None;
            let shown = &mut view.progress;
            (shown.step, shown.epoch, shown.samples, shown.seconds) = (step, epoch, samples, seconds);
            shown.estimate();
            view.phases.add_steps(&times);
        });
    }

    fn report(&mut self, report: &Report<'_>) {
        let Progress { step, loss, samples_per_second, dense_learning_rate, .. } = report.progress;
        let bound = Bound::of(&std::mem::take(&mut self.times));
        let ReportDetails { look_ups, phases, dynamic_tables, .. } = report.details.clone();
        let power = report.power;
        self.change(move |view| {
            view.series.loss.push(step, loss);
            view.series.samples_per_second.push(step, samples_per_second);
            view.series.dense_learning_rate.push(step, dense_learning_rate);
            view.progress.loss = Some(loss).filter(|loss| loss.is_finite());
            view.progress.samples_per_second = Some(samples_per_second);
            view.progress.estimate();
            view.bound = bound;
            view.iteration = phases;
            view.power = power;
            view.set_distinct(&look_ups);
            view.set_loads(&dynamic_tables);
        });
        self.warn_of_skipped(step);
        self.warn_of_ids(step, report.ids_out_of_range);
    }

    /// Warns of steps that were skipped since the last report. Under a loss scale, skipped steps are usual.
    fn warn_of_skipped(&mut self, step: u64) {
        let before = std::mem::replace(&mut self.skipped_before, self.skipped);
        for ((reason, now), (_, before)) in self.skipped.iter().zip(before.iter()) {
            if now > before && reason != "loss_scale" {
                let what = reason.replace('_', " ");
                let (skipped, steps) = (now - before, if now - before == 1 { "step" } else { "steps" });
                self.warn(format!("step {step}: {skipped} {steps} skipped, non-finite {what}"));
            }
        }
    }

    fn warn_of_ids(&mut self, step: u64, counts: &IdCounts) {
        for (column, &now) in counts {
            let before = self.ids_out_of_range.insert(column.clone(), now).unwrap_or(0);
            if now > before {
                self.warn(format!("step {step}: ids out of range in column {column}: {}", now - before));
            }
        }
    }

    /// Shows an evaluation of a part, or of an `[[eval.set]]`.
    fn evaluated(&mut self, (part, set): (Part, Option<&str>), evaluated: Evaluated, heads: &[HeadMetrics]) {
        let achievable = self.auc_achievable.filter(|_| (part, set, heads.len()) == (Part::Eval, None, 1));
        let view_of = |HeadMetrics { label, metrics, .. }: &HeadMetrics| HeadView {
            auc_achievable: achievable,
            ..HeadView::new(Some(label), metrics.as_ref())
        };
        let (name, views) = (name_of(part, set), heads.iter().map(view_of).collect());
        // As scores.json has them.
        let scores =
            set.is_none().then(|| SavedScores::of(heads).map(|saved| saved.heads).unwrap_or_default());
        self.change(move |view| {
            (view.state, view.task) = (RunState::Training, None);
            let shown = view.evaluations.of(&name);
            shown.add(evaluated);
            shown.heads = views;
            if let Some(scores) = scores {
                (view.scores, view.scored) = (scores, Some(name));
            }
        });
    }
}

fn device(start: &RunStart<'_>) -> DeviceView {
    let RunDevices { device, ranks, nodes, .. } = start.devices;
    DeviceView {
        kind: start.kind.name().into(),
        name: Some(device.clone()),
        precision: start.precision.map(|precision| precision.name().into()),
        ranks: Some(*ranks),
        nodes: Some(*nodes),
    }
}

#[cfg(test)]
mod tests {
    use rankine_engine::training::EndReason;

    use super::*;

    fn shown(shared: &SharedView) -> RunView {
        shared.try_lock().expect("nothing holds it").clone()
    }

    /// The steps of a curve.
    fn steps(view: &RunView, name: &str) -> Vec<u64> {
        let one = view.evaluations.iter().find(|one| one.name == name).expect("it was evaluated");
        one.auc.points().map(|(step, _)| step).collect()
    }

    #[test]
    fn training_does_not_wait_for_a_reader_of_the_view() {
        let shared = SharedView::new("ads".into());
        let mut run = LiveRun::new(shared.clone());
        let reader = shared.try_lock().expect("nothing holds it");
        for step in [10, 20] {
            run.observe(&Event::Evaluated {
                step,
                part: Part::Eval,
                set: None,
                samples: None,
                averaged: false,
                seconds: 0.5,
                heads: &[],
            });
        }
        assert_eq!((reader.evaluations.iter().count(), run.pending.len()), (0, 4));
        drop(reader);
        run.observe(&Event::Evaluated {
            step: 30,
            part: Part::Eval,
            set: None,
            samples: None,
            averaged: false,
            seconds: 0.5,
            heads: &[],
        });
        let view = shown(&shared);
        assert_eq!(steps(&view, "evaluation"), [10, 20, 30], "in order");
        assert_eq!(view.phases.of(RunPhase::Evaluation), 1.5);
    }

    #[test]
    fn each_set_of_samples_has_a_curve_and_averages_are_no_points() {
        let shared = SharedView::new("ads".into());
        let mut run = LiveRun::new(shared.clone());
        let evaluated = |step, set, averaged| {
            let (part, samples, seconds, heads) = (Part::Eval, None, 0.5, &[]);
            Event::Evaluated { step, part, set, samples, averaged, seconds, heads }
        };
        run.observe(&evaluated(10, None, false));
        run.observe(&evaluated(11, None, true));
        run.observe(&Event::Evaluating { samples: 5, total: 20, bytes_read: 0 });
        let view = shown(&shared);
        assert_eq!(
            (view.state, view.task.map(|task| (task.done, task.total))),
            (RunState::Evaluating, Some((5, 20)))
        );
        run.observe(&evaluated(12, Some("next day"), false));
        let view = shown(&shared);
        assert_eq!((view.state, &view.task), (RunState::Training, &None));
        assert_eq!((steps(&view, "evaluation"), steps(&view, "eval set next day")), (vec![10], vec![12]));
        assert_eq!(view.phases.of(RunPhase::Evaluation), 1.5);

        // A finished run has no time left, whatever was estimated.
        shared.try_lock().expect("nothing holds it").progress.eta_seconds = Some(60.0);
        run.observe(&Event::Finished { step: 12, saved_step: 8, reason: EndReason::EarlyStopping });
        let view = shown(&shared);
        assert_eq!((view.state, view.progress.eta_seconds), (RunState::Finished, None));
        assert_eq!((view.saved_step, view.ended), (Some(8), Some(EndReason::EarlyStopping)));
    }

    #[test]
    fn the_power_of_the_gpus_is_shown_as_of_the_last_report() {
        let shared = SharedView::new("ads".into());
        let mut run = LiveRun::new(shared.clone());
        let (ids, details) = (IdCounts::new(), ReportDetails::default());
        let mut report = Report::new(Progress::default(), &ids, &details);
        let power = r#"{"watts": 650.5, "limit_watts": 700.0, "joules_per_sample": 2.5e-5}"#;
        report.power = Some(serde_json::from_str(power).expect("it is a summary of power"));
        run.observe(&Event::Report(report));
        assert_eq!(shown(&shared).power, report.power);
        let json: serde_json::Value = serde_json::from_slice(&shared.json(Vec::new())).expect("it is JSON");
        assert_eq!((&json["power"]["watts"], &json["power"]["limit_watts"]), (&650.5.into(), &700.0.into()));
    }

    #[test]
    fn the_latest_warnings_are_kept() {
        let shared = SharedView::new("ads".into());
        let mut run = LiveRun::new(shared.clone());
        for bytes in 0..150 {
            run.observe(&Event::Damaged { path: Path::new("<script>"), bytes });
        }
        let warnings = shown(&shared).warnings;
        assert_eq!(warnings.len(), WARNINGS_MAX);
        let expected = "<script> (149 B) is a damaged checkpoint: delete it when you no longer need it";
        assert_eq!(warnings.last().map(|warning| warning.text.as_str()), Some(expected));
    }

    #[test]
    fn skipped_steps_and_ids_out_of_range_are_warned_of_once() {
        let shared = SharedView::new("ads".into());
        let mut run = LiveRun::new(shared.clone());
        run.skipped.add(&rankine_model::guard::SkipReason::LossScale);
        run.skipped.add(&rankine_model::guard::SkipReason::NonFinite(rankine_model::guard::NonFinite {
            loss: true,
            ..Default::default()
        }));
        for step in [10, 20] {
            run.warn_of_skipped(step);
            run.warn_of_ids(step, &[("C1".to_owned(), 3)].into());
        }
        run.warn_of_ids(30, &[("C1".to_owned(), 4)].into());
        let texts: Vec<_> = shown(&shared).warnings.into_iter().map(|warning| warning.text).collect();
        assert_eq!(
            texts,
            [
                "step 10: 1 step skipped, non-finite loss",
                "step 10: ids out of range in column C1: 3",
                "step 30: ids out of range in column C1: 1"
            ]
        );
    }
}
