//! The lines of a run, in their order.

use std::fs;
use std::io::{self, ErrorKind};
use std::panic::Location;
use std::path::Path;
use std::time::SystemTime;

use serde::Deserialize;
use serde_json::Value;

use super::settings::{OptimizerSettings, RunSettings};
use super::{Kind, Line, MlLog, TOKEN, milliseconds_of, now_ms};
use crate::training::run_logs::records::RecordFile;

/// The organization and the platform, which whoever submits a run fills in.
const UNSPECIFIED: &str = "unspecified";

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunStatus {
    /// It reached the target.
    Success,
    /// It ended without reaching the target.
    Aborted,
}

impl RunStatus {
    fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Aborted => "aborted",
        }
    }
}

/// MLPerf's log of a run. Call [`RunLog::begin`], [`RunLog::train_begins`], for each evaluation
/// [`RunLog::evaluation_begins`] and [`RunLog::evaluation_ends`], and [`RunLog::end`]. A resumed run calls
/// [`RunLog::resume`] instead of the first two.
///
/// The whole training is one block; evaluations lie within it. Progress is logged as `epoch_num`, samples trained on as
/// a fraction of the training part, which is what MLPerf's rules require for DLRM-DCNv2, and as `samples_count`.
#[derive(Debug)]
pub(crate) struct RunLog {
    log: MlLog,
    train_samples: u64,
    epochs: u64,
    /// Samples trained on before the block; 0 unless the log of an earlier part of the run was lost.
    first_samples: u64,
    /// Samples trained on before the current evaluation.
    evaluated_samples: u64,
}

impl RunLog {
    /// Starts the log of a new run with its settings. `began` is when the initialization began, which the rules limit
    /// to 30 minutes in the closed division. A log in which no training began is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if training began in the log at this path, and those of the file system.
    pub(crate) fn begin(path: &Path, settings: &RunSettings, began: SystemTime) -> io::Result<Self> {
        let records = match RecordFile::create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if kept_bytes(&fs::read(path)?, u64::MAX).is_some() {
                    return Err(error);
                }
                RecordFile::open(path, 0)?
            }
            records => records?,
        };
        Self::begin_log(MlLog { records, now: now_ms }, settings, began)
    }

    fn begin_log(log: MlLog, settings: &RunSettings, began: SystemTime) -> io::Result<Self> {
        let mut run = Self::new(log, settings);
        let (time_ms, source) = (milliseconds_of(began), Location::caller());
        let line = Line {
            time_ms,
            kind: Kind::Point,
            key: "cache_clear",
            // Rankine does not clear the caches of the operating system.
            value: false.into(),
            source,
            metadata: &[],
        };
        run.log.append(&line)?;
        run.log.append(&Line { kind: Kind::Start, key: "init_start", value: Value::Null, ..line })?;
        run.log_settings(settings)?;
        Ok(run)
    }

    fn new(log: MlLog, settings: &RunSettings) -> Self {
        let &RunSettings { train_samples, epochs, .. } = settings;
        Self { log, train_samples, epochs, first_samples: 0, evaluated_samples: 0 }
    }

    fn log_settings(&mut self, settings: &RunSettings) -> io::Result<()> {
        let schedule = &settings.schedule;
        let log = &mut self.log;
        log.point("submission_benchmark", settings.benchmark, &[])?;
        log.point("submission_org", UNSPECIFIED, &[])?;
        log.point("submission_division", "open", &[])?;
        log.point("submission_status", "research", &[])?;
        log.point("submission_platform", UNSPECIFIED, &[])?;
        log.point("seed", settings.seed, &[])?;
        log.point("global_batch_size", settings.global_batch_size, &[])?;
        // A step is one update with the gradients of one batch.
        log.point("gradient_accumulation_steps", 1, &[])?;
        log.point("train_samples", settings.train_samples, &[])?;
        log.point("eval_samples", settings.eval_samples, &[])?;
        log.point("lowest_numerical_precision_in_linear", mlperf_precision(settings.precision), &[])?;
        log_optimizer(log, "opt", &settings.dense)?;
        log_optimizer(log, "opt_sparse", &settings.sparse)?;
        log.point("opt_learning_rate_decay_schedule", schedule.name, &[])?;
        log.point("opt_learning_rate_warmup_steps", schedule.warmup_steps, &[])?;
        log.point("opt_learning_rate_decay_start_step", schedule.decay_start_step, &[])?;
        log.point("opt_learning_rate_decay_steps", schedule.decay_steps, &[])
    }

    /// Continues the log of a run that is resumed after this number of samples. Lines about later samples, lines about
    /// the end of the run, an evaluation that did not end and an incomplete last line are removed. The run's time
    /// includes that of the interruption.
    ///
    /// Returns `None` if there is no log, or no training began in it. [`RunLog::begin`] then starts a log, which lacks
    /// the time until now.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn resume(path: &Path, settings: &RunSettings, samples: u64) -> io::Result<Option<Self>> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let Some(bytes) = kept_bytes(&text, samples) else { return Ok(None) };
        let log = MlLog { records: RecordFile::open(path, bytes)?, now: now_ms };
        let mut run = Self::new(log, settings);
        let progress = run.progress("epoch_num", samples);
        // The checker ignores keys that it does not know.
        run.log.point("training_resumed", (), &progress)?;
        Ok(Some(run))
    }

    /// Logs the end of the initialization and the start of the training, and thus of the time to train. Call this
    /// before the first sample is read. `samples` were trained on before: 0 in a new run.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn train_begins(&mut self, samples: u64) -> io::Result<()> {
        self.first_samples = samples;
        self.log.interval_end("init_stop", (), &[])?;
        self.log.interval_start("run_start", (), &[])?;
        let [first_epoch, count] = self.progress("first_epoch_num", samples);
        let metadata = [first_epoch, ("epoch_count", self.epochs.into()), count];
        self.log.interval_start("block_start", (), &metadata)
    }

    /// Logs the start of an evaluation, after this number of samples of the training.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn evaluation_begins(&mut self, samples: u64) -> io::Result<()> {
        self.evaluated_samples = samples;
        let progress = self.progress("epoch_num", samples);
        self.log.interval_start("eval_start", (), &progress)
    }

    /// Logs the AUC, if there is one, and the end of the evaluation.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn evaluation_ends(&mut self, auc: Option<f64>) -> io::Result<()> {
        let progress = self.progress("epoch_num", self.evaluated_samples);
        // The checker fails to compare `null` with the target.
        if let Some(auc) = auc.filter(|auc| auc.is_finite()) {
            self.log.point("eval_accuracy", auc, &progress)?;
        }
        self.log.interval_end("eval_stop", (), &progress)
    }

    /// Logs the end of the training after this number of samples, and makes the log durable. Call this as soon as an
    /// evaluation reaches the target: the time to train ends here.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn end(mut self, status: RunStatus, samples: u64) -> io::Result<()> {
        let [epoch, count] = self.progress("epoch_num", samples);
        // The rules up to 3.1 know a block by its first epoch.
        let [first_epoch, _] = self.progress("first_epoch_num", self.first_samples);
        self.log.interval_end("block_stop", (), &[first_epoch, epoch.clone(), count.clone()])?;
        self.log.interval_end("run_stop", (), &[("status", status.name().into()), epoch, count])?;
        self.log.sync()
    }

    /// Makes all lines durable.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.log.sync()
    }

    /// Returns the metadata that say how many samples were trained on.
    fn progress(&self, epoch_key: &'static str, samples: u64) -> [(&'static str, Value); 2] {
        let epoch = samples as f64 / self.train_samples as f64;
        [(epoch_key, epoch.into()), ("samples_count", samples.into())]
    }
}

fn log_optimizer(log: &mut MlLog, prefix: &str, optimizer: &OptimizerSettings) -> io::Result<()> {
    let key = |name| format!("{prefix}_{name}");
    log.point(&key("name"), optimizer.name, &[])?;
    log.point(&key("base_learning_rate"), optimizer.learning_rate, &[])?;
    log.point(&key("weight_decay"), optimizer.weight_decay, &[])?;
    if let Some(adagrad) = optimizer.adagrad {
        // Only the schedule changes the learning rate.
        log.point(&key("adagrad_learning_rate_decay"), 0, &[])?;
        log.point(&key("adagrad_initial_accumulator_value"), adagrad.initial_accumulator, &[])?;
        log.point(&key("adagrad_epsilon"), adagrad.epsilon, &[])?;
    }
    Ok(())
}

/// Returns MLPerf's name of a precision.
fn mlperf_precision(name: &str) -> &str {
    if name == "bf16" { "bfloat16" } else { name }
}

/// Returns the number of bytes at the start of a log that stay if its run is resumed after this number of samples;
/// `None` if no training began.
fn kept_bytes(text: &[u8], samples: u64) -> Option<u64> {
    #[derive(Deserialize)]
    struct Entry {
        key: String,
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    struct Metadata {
        samples_count: Option<u64>,
    }
    let (mut bytes, mut began) = (0, false);
    // The bytes before an evaluation that has not ended.
    let mut before_evaluation = None;
    for line in text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n")) {
        let entry = line.strip_prefix(TOKEN.as_bytes()).and_then(|line| serde_json::from_slice(line).ok());
        if let Some(Entry { key, metadata }) = entry {
            let is_later = metadata.samples_count.is_some_and(|count| count > samples);
            if is_later || ["block_stop", "run_stop"].contains(&key.as_str()) {
                break;
            }
            match key.as_str() {
                "run_start" => began = true,
                "eval_start" => before_evaluation = Some(bytes),
                "eval_stop" => before_evaluation = None,
                _ => {}
            }
        }
        bytes += line.len() as u64;
    }
    began.then_some(before_evaluation.unwrap_or(bytes))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::training::run_logs::mllog::settings::{AdagradSettings, ScheduleSettings};
    use crate::training::run_logs::mllog::tests::{CLOCK, tick};

    /// Settings of which no two have the same value.
    fn settings() -> RunSettings {
        RunSettings {
            benchmark: "dlrm_dcnv2",
            seed: 7,
            global_batch_size: 20,
            train_samples: 4000,
            eval_samples: 300,
            epochs: 2,
            precision: "bf16",
            dense: OptimizerSettings {
                name: "adagrad",
                learning_rate: 0.004,
                weight_decay: 0.5,
                adagrad: Some(AdagradSettings { initial_accumulator: 0.25, epsilon: 1e-8 }),
            },
            sparse: OptimizerSettings { name: "sgd", learning_rate: 0.03, weight_decay: 0.0, adagrad: None },
            schedule: ScheduleSettings {
                name: "warmup-polynomial",
                warmup_steps: 11,
                decay_start_step: 12,
                decay_steps: 13,
            },
        }
    }

    fn begin(path: &Path, settings: &RunSettings) -> RunLog {
        CLOCK.set(1000);
        let log = MlLog { records: RecordFile::create(path).unwrap(), now: tick };
        RunLog::begin_log(log, settings, UNIX_EPOCH + Duration::from_millis(900)).unwrap()
    }

    /// Returns the lines as `TIME KIND KEY VALUE METADATA`, without the place in the source.
    fn lines(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        let line = |line: &str| {
            let mut line: Value = serde_json::from_str(line.strip_prefix(TOKEN).unwrap()).unwrap();
            assert_eq!(line["namespace"], "");
            let metadata = line["metadata"].as_object_mut().unwrap();
            assert!(metadata.shift_remove("file").unwrap().as_str().unwrap().ends_with("run_log.rs"));
            assert!(metadata.shift_remove("lineno").unwrap().as_u64().is_some());
            let texts = ["event_type", "key"].map(|name| line[name].as_str().unwrap());
            format!("{} {} {} {}", line["time_ms"], texts.join(" "), line["value"], line["metadata"])
        };
        text.lines().map(line).collect()
    }

    #[test]
    fn a_run_logs_its_settings_and_its_evaluations() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mlperf.log");
        let mut run = begin(&path, &settings());
        run.train_begins(0).unwrap();
        run.evaluation_begins(1000).unwrap();
        run.evaluation_ends(Some(0.75)).unwrap();
        run.evaluation_begins(2000).unwrap();
        run.evaluation_ends(None).unwrap();
        run.end(RunStatus::Success, 2000).unwrap();
        let at_1000 = r#"{"epoch_num":0.25,"samples_count":1000}"#;
        let at_2000 = r#"{"epoch_num":0.5,"samples_count":2000}"#;
        let expected = [
            "900 POINT_IN_TIME cache_clear false {}",
            "900 INTERVAL_START init_start null {}",
            r#"1001 POINT_IN_TIME submission_benchmark "dlrm_dcnv2" {}"#,
            r#"1002 POINT_IN_TIME submission_org "unspecified" {}"#,
            r#"1003 POINT_IN_TIME submission_division "open" {}"#,
            r#"1004 POINT_IN_TIME submission_status "research" {}"#,
            r#"1005 POINT_IN_TIME submission_platform "unspecified" {}"#,
            "1006 POINT_IN_TIME seed 7 {}",
            "1007 POINT_IN_TIME global_batch_size 20 {}",
            "1008 POINT_IN_TIME gradient_accumulation_steps 1 {}",
            "1009 POINT_IN_TIME train_samples 4000 {}",
            "1010 POINT_IN_TIME eval_samples 300 {}",
            r#"1011 POINT_IN_TIME lowest_numerical_precision_in_linear "bfloat16" {}"#,
            r#"1012 POINT_IN_TIME opt_name "adagrad" {}"#,
            "1013 POINT_IN_TIME opt_base_learning_rate 0.004 {}",
            "1014 POINT_IN_TIME opt_weight_decay 0.5 {}",
            "1015 POINT_IN_TIME opt_adagrad_learning_rate_decay 0 {}",
            "1016 POINT_IN_TIME opt_adagrad_initial_accumulator_value 0.25 {}",
            "1017 POINT_IN_TIME opt_adagrad_epsilon 1e-8 {}",
            r#"1018 POINT_IN_TIME opt_sparse_name "sgd" {}"#,
            "1019 POINT_IN_TIME opt_sparse_base_learning_rate 0.03 {}",
            "1020 POINT_IN_TIME opt_sparse_weight_decay 0.0 {}",
            r#"1021 POINT_IN_TIME opt_learning_rate_decay_schedule "warmup-polynomial" {}"#,
            "1022 POINT_IN_TIME opt_learning_rate_warmup_steps 11 {}",
            "1023 POINT_IN_TIME opt_learning_rate_decay_start_step 12 {}",
            "1024 POINT_IN_TIME opt_learning_rate_decay_steps 13 {}",
            "1025 INTERVAL_END init_stop null {}",
            "1026 INTERVAL_START run_start null {}",
            r#"1027 INTERVAL_START block_start null {"first_epoch_num":0.0,"epoch_count":2,"samples_count":0}"#,
            &format!("1028 INTERVAL_START eval_start null {at_1000}"),
            &format!("1029 POINT_IN_TIME eval_accuracy 0.75 {at_1000}"),
            &format!("1030 INTERVAL_END eval_stop null {at_1000}"),
            &format!("1031 INTERVAL_START eval_start null {at_2000}"),
            &format!("1032 INTERVAL_END eval_stop null {at_2000}"),
            r#"1033 INTERVAL_END block_stop null {"first_epoch_num":0.0,"epoch_num":0.5,"samples_count":2000}"#,
            r#"1034 INTERVAL_END run_stop null {"status":"success","epoch_num":0.5,"samples_count":2000}"#,
        ];
        assert_eq!(lines(&path), expected);
    }

    /// The keys of lines after those of the settings.
    fn keys_of_training(path: &Path) -> Vec<String> {
        let lines = lines(path).into_iter().skip_while(|line| !line.contains("init_stop"));
        lines.map(|line| line.split(' ').nth(2).unwrap().to_owned()).collect()
    }

    #[test]
    fn a_resumed_run_continues_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mlperf.log");
        let settings = settings();
        assert!(RunLog::resume(&path, &settings, 0).unwrap().is_none());

        let mut run = begin(&path, &settings);
        run.train_begins(0).unwrap();
        for samples in [1000, 2000] {
            run.evaluation_begins(samples).unwrap();
            run.evaluation_ends(Some(0.5)).unwrap();
        }
        run.evaluation_begins(3000).unwrap();
        // A crash tears the last line.
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 5]).unwrap();
        let began = ["init_stop", "run_start", "block_start"];
        let evaluation = ["eval_start", "eval_accuracy", "eval_stop"];

        let mut run = RunLog::resume(&path, &settings, 1990).unwrap().unwrap();
        let resumed = [&began[..], &evaluation, &["training_resumed"]].concat();
        assert_eq!(keys_of_training(&path), resumed);
        let line = lines(&path).pop().unwrap();
        assert!(line.ends_with(r#"{"epoch_num":0.4975,"samples_count":1990}"#), "{line}");
        run.evaluation_begins(2000).unwrap();
        run.evaluation_ends(Some(0.5)).unwrap();
        run.end(RunStatus::Aborted, 4000).unwrap();
        let ended = [&resumed[..], &evaluation, &["block_stop", "run_stop"]].concat();
        assert_eq!(keys_of_training(&path), ended);

        // The job was given more epochs.
        let run = RunLog::resume(&path, &settings, 4000).unwrap().unwrap();
        let resumed = [&ended[..ended.len() - 2], &["training_resumed"]].concat();
        assert_eq!(keys_of_training(&path), resumed);
        drop(run);

        let error = RunLog::begin(&path, &settings, UNIX_EPOCH).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    }

    /// After the last step there may be a checkpoint before the evaluation, during which the process may end.
    #[test]
    fn a_resumed_run_keeps_the_evaluations_that_ended_before_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mlperf.log");
        let settings = settings();
        let mut run = begin(&path, &settings);
        run.train_begins(0).unwrap();
        for samples in [1000, 2000] {
            run.evaluation_begins(samples).unwrap();
            run.evaluation_ends(Some(0.5)).unwrap();
        }
        let began = ["init_stop", "run_start", "block_start"];
        let evaluation = ["eval_start", "eval_accuracy", "eval_stop"];
        let mut expected = [began, evaluation, evaluation].concat();
        for lines_kept in [1, 2] {
            let whole = lines(&path).len();
            run.evaluation_begins(2000).unwrap();
            run.evaluation_ends(Some(0.5)).unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let text: String = text.split_inclusive('\n').take(whole + lines_kept).collect();
            fs::write(&path, text).unwrap();
            run = RunLog::resume(&path, &settings, 2000).unwrap().unwrap();
            expected.push("training_resumed");
            assert_eq!(keys_of_training(&path), expected, "{lines_kept} lines of an evaluation");
        }
    }

    #[test]
    fn a_log_in_which_no_training_began_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mlperf.log");
        drop(begin(&path, &settings()));
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 5]).unwrap();
        assert!(RunLog::resume(&path, &settings(), 0).unwrap().is_none());
        RunLog::begin(&path, &settings(), UNIX_EPOCH).unwrap();
        // As many lines as before the crash.
        assert_eq!(lines(&path).len(), 26);
    }
}
