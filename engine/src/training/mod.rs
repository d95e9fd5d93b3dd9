//! Training as a whole: from a job to a run folder with a model, metrics and a summary.
//!
//! Start at [`train`], which prepares a run and ends it; `run/training_loop.rs` has the loop. Nothing here
//! prints: an [`Observer`] receives events, and the log gets what readers of logs need.

mod averaged_model;
mod backend;
mod bench;
mod checkpoints;
mod context;
mod data;
mod devices;
mod error;
mod eval_sets;
mod evaluate;
mod event;
mod feasibility;
mod features;
mod fresh_state;
mod identity;
pub(crate) mod ids;
mod initial_model;
mod memory;
mod power;
mod processes;
mod resume;
mod run;
mod run_dir;
mod run_logs;
mod shortcut;
mod start;
mod summary;

pub use backend::thread_pool;
pub use bench::{
    EvalBench, EvalBenchOptions, Input, Reading, TimeToAuc, TimeToAucOptions, TimedEvaluation, Times,
    TraceSummary, TrainBench, TrainBenchOptions, bench_eval, bench_time_to_auc, bench_train,
};
pub use data::{Columns, JobData, Preview, find_data, open_or_generate, preview};
pub use devices::{DeviceTable, RunDevices};
pub use error::{
    AssignmentError, BenchError, DeviceError, Disagreement, LeftResults, MemoryError, TrainError,
    UnusableGpus,
};
pub use evaluate::{EvaluationOptions, evaluate};
pub use event::{
    Event, Observer, Progress, RefitStage, Report, RunStart, StepDetails, StepTimes, StoppingProgress,
};
pub use feasibility::{Feasibility, feasibility};
pub(crate) use features::{with_features, with_shape};
pub use ids::{IdCounts, with_ids};
pub use memory::check_scoring_memory;
pub use power::{MeteredGpus, PowerSummary};
pub use rankine_backend::{
    Ceilings, DeviceMemory, ExchangedBytes, LookUpCount, MeasuredPhase, MemoryPart, PhaseRun, ReportDetails,
    Scorer, ScoringProgress,
};
pub use rankine_base::{Stop, StopCause};
pub use rankine_embedding::TierTraffic;
pub use rankine_embedding::membership::DynamicTableState;
pub use rankine_model::translate;
pub(crate) use run::{Ready, Request, Requests, TrainingPart, refit, train_pushed};
pub use run::{RunPhaseSeconds, TrainOptions, train};
pub use run_dir::RunDir;
pub(crate) use run_dir::finished_steps;
pub use shortcut::JobExt;
pub use start::Start;
pub use summary::{
    AverageSummary, BestSummary, DataSummary, DeviceSummary, EndReason, ExchangeSummary, IterationSummary,
    LinkMeans, ModelSummary, StartSummary, Summary, TierSummary, TrainSummary,
};
