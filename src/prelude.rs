//! The stable interface of the library: `use rankine::prelude::*;`.
//!
//! - **Training:** [`Job::builder`] or [`Job::load`] makes a [`Job`], and [`JobExt::train`] or [`train`] trains it. An
//!   [`Observer`] receives [`Event`]s; a [`Stop`] ends the training. A [`Trainer`] trains on rows that are pushed.
//! - **Evaluating:** [`evaluate`] has the numbers of `rankine eval`.
//! - **Scoring:** a [`Ranker`] scores rows on any number of threads. [`write_delta`] writes what changes its model into
//!   a later one.
//! - **Data:** [`convert_csv`] and [`convert_parquet`] make a dataset of click logs. A [`Dataset`] is opened, and a
//!   [`BatchStream`] reads its samples.
//!
//! Names, fields and methods of the items here change only with a new minor version while the major version is 0. Types
//! that they refer to and that are not here may change with any version.

pub use rankine_base::{Error as DataError, Stop, StopCause};
#[doc(inline)]
pub use rankine_engine::delta::{DeltaError, DeltaSummary, write_delta};
#[doc(inline)]
pub use rankine_engine::evaluate::{EvaluateError, EvaluateOptions, evaluate};
#[cfg(feature = "arrow")]
#[doc(inline)]
pub use rankine_engine::features::{ArrowColumn, ArrowRows};
#[doc(inline)]
pub use rankine_engine::features::{
    FeatureError, Features, Ids, RawColumn, RawColumnError, RawColumnValues, TrainingRows,
};
#[doc(inline)]
pub use rankine_engine::ranker::{ApplyError, Ranker, ScoreError, SwapError};
#[doc(inline)]
pub use rankine_engine::source::SourceError;
#[doc(inline)]
pub use rankine_engine::trainer::{Trainer, TrainerError, TrainerOptions};
#[doc(inline)]
pub use rankine_engine::training::{
    AverageSummary, BestSummary, EndReason, Event, JobExt, Observer, Progress, Report, RunStart, Start,
    Summary, TrainError, TrainOptions, TrainSummary, train,
};
#[doc(inline)]
pub use rankine_job::{
    Adagrad, Adam, Conflict, Cosine, Dcnv2, DeepFm, DinAttention, Dlrm, DotAttention, Feature, Ftrl, Head,
    Job, JobError, Kind, MeanAttention, Momentum, Problem, RowwiseAdagrad, Settings, Sgd, Step, Table,
    WarmupPolynomial, WideDeep,
};
#[doc(inline)]
pub use rankine_model::evaluation::{EvalMetrics, EvalSummary, HeadMetrics, Metrics, RowCounts};
#[doc(inline)]
pub use rankine_reader::convert::{
    BadLimit, ColumnSplit, ConversionReport, ConvertOptions, NegativesKept, OnBad, RowSplit, SchemaFile,
    Split, UnknownCategories, convert_csv, convert_parquet,
};
#[doc(inline)]
pub use rankine_reader::schema::{DenseDtype, Hotness};
#[doc(inline)]
pub use rankine_reader::stream::{Batch, BatchStream, StreamOptions};
#[doc(inline)]
pub use rankine_reader::{Bags, Dataset, Part, Samples, Schema};
