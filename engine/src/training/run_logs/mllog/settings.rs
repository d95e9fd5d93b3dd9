//! What MLPerf's log says about a run before it trains.

use rankine_job::{Optimizer, Schedule};
use rankine_reader::Part;

use crate::training::context::RunContext;

/// What MLPerf's log says about a run before it trains.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunSettings {
    /// MLPerf's name of the benchmark.
    pub(crate) benchmark: &'static str,
    /// The job's seed. MLPerf's package checker requires a different one in each run of a submission.
    pub(crate) seed: u64,
    /// Samples per step, over all ranks.
    pub(crate) global_batch_size: u64,
    /// Samples of the training part.
    pub(crate) train_samples: u64,
    /// Samples of the evaluation part.
    pub(crate) eval_samples: u64,
    /// Epochs that the job trains at most.
    pub(crate) epochs: u64,
    /// The lowest precision of matrix products, as a job file names it: `bf16`, for example.
    pub(crate) precision: &'static str,
    /// The optimizer of the dense parameters.
    pub(crate) dense: OptimizerSettings,
    /// The optimizer of the tables.
    pub(crate) sparse: OptimizerSettings,
    /// How learning rates depend on the step.
    pub(crate) schedule: ScheduleSettings,
}

/// An optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OptimizerSettings {
    /// Its name in a job file: `adagrad`, for example.
    pub(crate) name: &'static str,
    /// Learning rate, before the schedule.
    pub(crate) learning_rate: f64,
    /// Weight decay.
    pub(crate) weight_decay: f64,
    /// The settings of Adagrad, if it is that.
    pub(crate) adagrad: Option<AdagradSettings>,
}

/// The settings of Adagrad.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AdagradSettings {
    /// Initial value of the sums of squares.
    pub(crate) initial_accumulator: f64,
    /// Added to the divisor.
    pub(crate) epsilon: f64,
}

/// How learning rates depend on the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScheduleSettings {
    /// The schedule's name in a job file: `constant`, for example.
    pub(crate) name: &'static str,
    /// Steps of the warm-up; 0 without one.
    pub(crate) warmup_steps: u64,
    /// The last step before the decay; 0 without one.
    pub(crate) decay_start_step: u64,
    /// Steps of the decay; 0 without one.
    pub(crate) decay_steps: u64,
}

impl RunSettings {
    /// Returns those of a run that computes in this precision.
    pub(crate) fn of(context: &RunContext<'_>, precision: &'static str) -> Self {
        let RunContext { job, dataset, .. } = context;
        Self {
            benchmark: benchmark_of(job.model.kind().name),
            seed: job.seed,
            global_batch_size: job.train.batch_size.get().into(),
            train_samples: dataset.samples(Part::Train),
            eval_samples: dataset.samples(Part::Eval),
            epochs: job.train.epochs.get(),
            precision,
            dense: (&job.optimizer.dense).into(),
            sparse: (&job.optimizer.sparse).into(),
            schedule: (&job.optimizer.schedule).into(),
        }
    }
}

/// Returns MLPerf's name of its benchmark of ranking models: DLRM in the rules up to 2.1, DLRM-DCNv2 from 3.0 to 6.0.
/// Models of other kinds are variants of the latter in the open division.
fn benchmark_of(kind: &str) -> &'static str {
    if kind == "dlrm" { "dlrm" } else { "dlrm_dcnv2" }
}

impl From<&Optimizer> for OptimizerSettings {
    fn from(of: &Optimizer) -> Self {
        let adagrad = match of {
            Optimizer::Adagrad(rule) => Some((rule.initial_accumulator, rule.epsilon)),
            Optimizer::RowwiseAdagrad(rule) => Some((rule.initial_accumulator, rule.epsilon)),
            _ => None,
        };
        let adagrad = adagrad.map(|(initial_accumulator, epsilon)| AdagradSettings {
            initial_accumulator: initial_accumulator.get(),
            epsilon: epsilon.get(),
        });
        let (name, learning_rate, weight_decay) = (of.name(), of.learning_rate(), of.weight_decay());
        Self { name, learning_rate, weight_decay, adagrad }
    }
}

impl From<&Schedule> for ScheduleSettings {
    fn from(of: &Schedule) -> Self {
        let name = of.name();
        match of {
            Schedule::Constant => Self { name, warmup_steps: 0, decay_start_step: 0, decay_steps: 0 },
            Schedule::WarmupPolynomial(schedule) => Self {
                name,
                warmup_steps: schedule.warmup_steps,
                decay_start_step: schedule.decay_start_step,
                decay_steps: schedule.decay_steps.get(),
            },
            // Each drop takes no step.
            Schedule::Step(schedule) => Self {
                name,
                warmup_steps: schedule.warmup_steps,
                decay_start_step: schedule
                    .every_steps
                    .or(schedule.milestones.first().copied())
                    .map_or(0, |step| step.get()),
                decay_steps: 0,
            },
            Schedule::Cosine(schedule) => Self {
                name,
                warmup_steps: schedule.warmup_steps,
                decay_start_step: schedule.decay_start_step(),
                decay_steps: schedule.decay_steps.get(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_is_known_by_its_model() {
        assert_eq!(["dlrm", "dcnv2", "deepfm"].map(benchmark_of), ["dlrm", "dlrm_dcnv2", "dlrm_dcnv2"]);
    }

    #[test]
    fn settings_are_those_of_the_job() {
        let numbers = |of: &Schedule| {
            let of = ScheduleSettings::from(of);
            (of.name, [of.warmup_steps, of.decay_start_step, of.decay_steps])
        };
        let schedule = |text: &str| numbers(&toml::from_str(text).unwrap());
        assert_eq!(numbers(&Schedule::Constant), ("constant", [0, 0, 0]));
        let text = "[warmup-polynomial]\nwarmup_steps = 3\ndecay_start_step = 5\ndecay_steps = 7";
        assert_eq!(schedule(text), ("warmup-polynomial", [3, 5, 7]));
        let text = "[cosine]\nwarmup_steps = 3\ndecay_steps = 7";
        assert_eq!(schedule(text), ("cosine", [3, 3, 7]));
        let text = "[step]\nfactor = 0.5\nmilestones = [4, 6]\nwarmup_steps = 2";
        assert_eq!(schedule(text), ("step", [2, 4, 0]));
        assert_eq!(schedule("[step]\nfactor = 0.5\nevery_steps = 9"), ("step", [0, 9, 0]));

        let text = "[rowwise-adagrad]\nlearning_rate = 0.5\ninitial_accumulator = 0.25\nepsilon = 0.125";
        let adagrad = AdagradSettings { initial_accumulator: 0.25, epsilon: 0.125 };
        let expected = OptimizerSettings {
            name: "rowwise-adagrad",
            learning_rate: 0.5,
            weight_decay: 0.0,
            adagrad: Some(adagrad),
        };
        assert_eq!(OptimizerSettings::from(&toml::from_str::<Optimizer>(text).unwrap()), expected);
    }
}
