//! The job's dataset: opened, or made first; and the model that fits it.

use rankine_embedding::{Optimizer, Pooling, TableSpec, UpdateRule};
use rankine_reader::dataset::Origin;
use rankine_reader::generate::{GenerateSpec, Shape, generate};
use rankine_reader::{Dataset, Schema, schema};

use super::{Event, Observer, TrainError};
use crate::job::{self, Conflict, Generate, Job, ModelKind};
use crate::model::{FeatureSpec, HeadSpec, Interaction, ModelSpec, TrainingRules};
use crate::system;

/// Opens the dataset of a job; makes it first where it is not there and the job says how.
///
/// # Errors
/// [`TrainError::Data`]; [`TrainError::Conflicts`] where the folder holds a dataset made by other settings than the
/// job's.
pub fn open_or_generate(job: &Job, observer: &mut dyn Observer) -> Result<Dataset, TrainError> {
    let dir = &job.data.dir;
    let Some(settings) = &job.data.generate else {
        return Ok(Dataset::open(dir)?);
    };
    let spec = generate_spec(settings)?;
    if !Dataset::exists(dir) {
        tracing::info!("making the dataset {} ({} samples)", dir.display(), spec.samples + spec.eval_samples);
        let threads = system::thread_count(job.device.threads);
        let total = spec.samples + spec.eval_samples;
        generate(&spec, dir, threads, |samples| observer.observe(Event::Generating { samples, total }))?;
    }
    let dataset = Dataset::open(dir)?;
    match &dataset.manifest().origin {
        Origin::Generated(generation) if generation.spec == spec => Ok(dataset),
        Origin::Generated(_) => Err(other_dataset(dir, "was generated with other settings than these")),
        Origin::Converted(_) => Err(other_dataset(dir, "was converted from click logs, not generated")),
    }
}

fn other_dataset(dir: &std::path::Path, what: &str) -> TrainError {
    let message = format!(
        "the dataset in {} {what}: choose another data.dir, remove that folder, or remove [data.generate] to train on \
         what is there",
        dir.display()
    );
    TrainError::Conflicts(vec![Conflict::new("data.generate", message)])
}

fn generate_spec(settings: &Generate) -> Result<GenerateSpec, TrainError> {
    Ok(GenerateSpec {
        shape: Shape::load(&settings.shape.to_string())?,
        rows_cap: settings.rows_cap.map(|cap| cap.get()),
        samples: settings.samples.get(),
        eval_samples: settings.eval_samples,
        alpha: settings.alpha.get(),
        seed: settings.seed,
    })
}

/// What can be said of a job without training it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// Where the columns are known from.
    pub columns: Columns,
    /// The model, where the columns are known.
    pub spec: Option<ModelSpec>,
    /// Bytes of the tables and their optimizer state, where the columns are known.
    pub table_bytes: u64,
}

/// Where a job's columns are known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// The dataset, which is there.
    Dataset,
    /// The shape of the dataset that training will make.
    Shape,
    /// Nowhere: the dataset is not there.
    Unknown,
}

/// Checks a job against its dataset, or against the shape of the one that it would make, as far as either is there.
///
/// # Errors
/// [`TrainError::Data`] where the dataset is there and damaged, [`TrainError::Conflicts`] where the job does not suit
/// it.
pub fn outlook(job: &Job) -> Result<Outlook, TrainError> {
    let (columns, schema) = match &job.data.generate {
        _ if Dataset::exists(&job.data.dir) => {
            (Columns::Dataset, Dataset::open(&job.data.dir)?.schema().clone())
        }
        Some(settings) => {
            let spec = generate_spec(settings)?;
            (Columns::Shape, spec.shape.schema(spec.rows_cap))
        }
        None => return Ok(Outlook { columns: Columns::Unknown, spec: None, table_bytes: 0 }),
    };
    let spec = model_spec(job, &schema).map_err(TrainError::Conflicts)?;
    Ok(Outlook { columns, table_bytes: training_rules(job, &spec).table_bytes(&spec), spec: Some(spec) })
}

/// Refuses tables that memory does not hold, before anything is allocated: the system would end the process later on,
/// without a word.
pub(super) fn check_memory(spec: &ModelSpec, rules: &TrainingRules) -> Result<(), TrainError> {
    const GIB: f64 = (1u64 << 30) as f64;
    let needed = rules.table_bytes(spec);
    let Some(usable) = system::memory().map(|memory| memory.usable_bytes()) else { return Ok(()) };
    if needed <= usable {
        return Ok(());
    }
    let largest = spec.tables.iter().max_by_key(|table| table.rows).map_or("", |table| table.name.as_str());
    Err(TrainError::Device(format!(
        "the tables and their optimizer state take {:.1} GiB, and {:.1} GiB of memory are free. The largest table is \
         {largest}: fewer rows (a higher --min-count, or hashing, at conversion), a smaller model.embedding_dim, or \
         optimizer.sparse.kind = \"sgd\", which keeps no state, take less",
        needed as f64 / GIB,
        usable as f64 / GIB
    )))
}

/// The optimizers of a job, for its model.
pub(super) fn training_rules(job: &Job, spec: &ModelSpec) -> TrainingRules {
    let sparse = optimizer(&job.optimizer.sparse);
    TrainingRules {
        dense: optimizer(&job.optimizer.dense),
        dense_clip_norm: None,
        tables: vec![sparse; spec.tables.len()],
        wide: sparse,
    }
}

fn optimizer(optimizer: &job::Optimizer) -> Optimizer {
    let rule = match optimizer {
        job::Optimizer::Sgd(_) => UpdateRule::Sgd,
        job::Optimizer::Adagrad(adagrad) => UpdateRule::Adagrad {
            initial_accumulator: adagrad.initial_accumulator.get() as f32,
            epsilon: adagrad.epsilon.get() as f32,
        },
    };
    Optimizer { rule, learning_rate: optimizer.learning_rate(), weight_decay: 0.0 }
}

/// The model of a job for a dataset's columns.
///
/// # Errors
/// Everything about the job's model that does not suit the columns.
pub fn model_spec(job: &Job, schema: &Schema) -> Result<ModelSpec, Vec<Conflict>> {
    let ModelKind::Dlrm = job.model.kind;
    let mut conflicts = Vec::new();
    let mut conflict = |key, message: String| conflicts.push(Conflict::new(key, message));
    let (dense, bottom) = (schema.dense.len(), &job.model.bottom_mlp);
    let dim = job.model.embedding_dim.get() as usize;
    if dense > 0 && bottom.is_empty() {
        conflict(
            "model.bottom_mlp",
            format!(
                "the dataset has {dense} dense columns, so a bottom MLP is needed: [64, {dim}], for example"
            ),
        );
    }
    if dense == 0 && !bottom.is_empty() {
        conflict("model.bottom_mlp", "the dataset has no dense columns: remove the bottom MLP".into());
    }
    if schema.categorical.len() + usize::from(dense > 0) < 2 {
        conflict(
            "model.kind",
            "the dataset has too few columns: dlrm needs two categorical ones, or one and dense ones, to interact"
                .into(),
        );
    }
    if !conflicts.is_empty() {
        return Err(conflicts);
    }
    let table =
        |column: &schema::Categorical| TableSpec { name: column.name.clone(), rows: column.rows, dim };
    let feature = |(table, column): (usize, &schema::Categorical)| FeatureSpec {
        column: column.name.clone(),
        table,
        pooling: match column.pooling {
            schema::Pooling::Sum => Pooling::Sum,
            schema::Pooling::Mean => Pooling::Mean,
        },
    };
    let head = |(label_number, label): (usize, &schema::Label)| HeadSpec {
        label: label.name.clone(),
        label_number,
        weight: 1.0,
    };
    let widths = |mlp: &[job::Width]| mlp.iter().map(|width| width.get() as usize).collect();
    Ok(ModelSpec {
        dense_columns: dense,
        bottom_mlp: widths(bottom),
        interaction: Interaction::Dot,
        wide: false,
        top_mlp: widths(&job.model.top_mlp),
        heads: schema.labels.iter().enumerate().map(head).collect(),
        tables: schema.categorical.iter().map(table).collect(),
        features: schema.categorical.iter().enumerate().map(feature).collect(),
    })
}
