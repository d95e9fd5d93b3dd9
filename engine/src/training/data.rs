//! The job's dataset: opened, or made first; and the model that fits it.

use rankine_embedding::{Pooling, TableSpec};
use rankine_reader::dataset::Origin;
use rankine_reader::generate::{GenerateSpec, Shape, generate};
use rankine_reader::{Dataset, Schema, schema};

use super::{Event, Observer, TrainError};
use crate::job::{Conflict, Generate, Job, ModelKind};
use crate::model::ModelSpec;

/// Opens the dataset of a job; makes it first where it is not there and the job says how.
///
/// # Errors
/// [`TrainError::Data`]; [`TrainError::Conflicts`] where the folder holds a dataset made by other settings than the job's.
pub fn open_or_generate(job: &Job, observer: &mut dyn Observer) -> Result<Dataset, TrainError> {
    let dir = &job.data.dir;
    let Some(settings) = &job.data.generate else {
        return Ok(Dataset::open(dir)?);
    };
    let spec = generate_spec(settings)?;
    if !Dataset::exists(dir) {
        tracing::info!("making the dataset {} ({} samples)", dir.display(), spec.samples + spec.eval_samples);
        let threads = thread_count(job);
        let total = spec.samples + spec.eval_samples;
        generate(&spec, dir, threads, |samples| observer.observe(Event::Generating { samples, total }))?;
    }
    let dataset = Dataset::open(dir)?;
    match &dataset.manifest().origin {
        Origin::Generated(generation) if generation.spec == spec => Ok(dataset),
        Origin::Generated(_) => Err(other_dataset(dir, "was generated with other settings")),
        Origin::Converted(_) => Err(other_dataset(dir, "was converted from click logs")),
    }
}

fn other_dataset(dir: &std::path::Path, what: &str) -> TrainError {
    let message = format!(
        "the dataset in {} {what} than these: choose another data.dir, remove that folder, or remove [data.generate] to \
         train on what is there",
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

/// CPU threads that the job may use.
pub(super) fn thread_count(job: &Job) -> std::num::NonZeroUsize {
    let asked = job.device.threads.and_then(|threads| std::num::NonZeroUsize::new(threads.get() as usize));
    asked.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(std::num::NonZeroUsize::MIN)
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
    if schema.labels.len() != 1 {
        conflict(
            "model.kind",
            format!("the dataset has {} labels, and dlrm learns one", schema.labels.len()),
        );
    }
    if schema.categorical.len() + usize::from(dense > 0) < 2 {
        conflict(
            "model.kind",
            "the dataset has too few columns: dlrm needs two categorical ones, or one and dense ones, to interact".into(),
        );
    }
    if !conflicts.is_empty() {
        return Err(conflicts);
    }
    let table = |column: &schema::Categorical| TableSpec {
        name: column.name.clone(),
        rows: column.rows,
        dim,
        pooling: match column.pooling {
            schema::Pooling::Sum => Pooling::Sum,
            schema::Pooling::Mean => Pooling::Mean,
        },
    };
    let widths = |mlp: &[crate::job::Width]| mlp.iter().map(|width| width.get() as usize).collect();
    Ok(ModelSpec {
        dense_columns: dense,
        embedding_dim: dim,
        bottom_mlp: widths(bottom),
        top_mlp: widths(&job.model.top_mlp),
        tables: schema.categorical.iter().map(table).collect(),
    })
}
