//! The job's dataset: opened, or made first; and what can be said of the job before it is trained.

use rankine_reader::Dataset;
use rankine_reader::dataset::Origin;
use rankine_reader::generate::{GenerateSpec, Shape, generate};

use super::translate::translate;
use super::{Event, Observer, TrainError};
use crate::job::{Conflict, Generate, Job};
use crate::model::ModelSpec;
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
    let (spec, rules) = translate(job, &schema).map_err(TrainError::Conflicts)?;
    Ok(Outlook { columns, table_bytes: rules.table_bytes(&spec), spec: Some(spec) })
}
