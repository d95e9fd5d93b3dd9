//! Makes a run of a model that another system trained: `rankine import`.

use std::path::Path;

use rankine_base::blame::Blame;
use rankine_base::publish::{PartialDir, refuse_inputs};
use rankine_job::{Adagrad, Conflict, Dlrm, Job, JobError, conflict_lines};
use rankine_model::translate;
use rankine_reader::write::write_file;
use rankine_reader::{Columns, Dataset};
use rankine_saved::{ModelMetadata, SavedModelError, StateDict, StateDictError, StateDictOrigin};

use crate::run_paths;

/// A model could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The state dict does not fit the dataset, or cannot be read.
    #[error(transparent)]
    StateDict(#[from] StateDictError),
    /// No job describes a model of these sizes.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The dataset's columns cannot have such a model.
    #[error("the model does not suit the dataset: {}", conflict_lines(.0))]
    Conflicts(Vec<Conflict>),
    /// The dataset cannot be opened, or the run cannot be written.
    #[error(transparent)]
    Data(#[from] rankine_base::Error),
    /// The weights cannot be read, or written, or are not finite.
    #[error(transparent)]
    Saved(#[from] SavedModelError),
}

impl ImportError {
    /// Who has to act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::StateDict(StateDictError::Read { .. }) => Blame::System,
            Self::StateDict(StateDictError::Format { .. }) => Blame::Data,
            Self::StateDict(_) | Self::Job(_) | Self::Conflicts(_) => Blame::Usage,
            Self::Data(error) => Blame::of_data(error),
            Self::Saved(error) => error.blame(),
        }
    }
}

/// What was imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// Who wrote the model.
    pub origin: StateDictOrigin,
    /// The number of its weights.
    pub parameters: u64,
}

/// Writes a run folder with the model of a state dict: its job, and the model as a finished run of no steps has it.
/// A dataset gives it its columns. The folder appears only when it is complete.
///
/// # Errors
/// [`ImportError`] if the tensors do not fit the columns, or a file cannot be read or written.
pub fn import(weights: &Path, like: &Path, out: &Path) -> Result<Imported, ImportError> {
    let (dict, dataset) = (StateDict::open(weights)?, Dataset::open(like)?);
    refuse_inputs(out, [weights, like])?;
    let sizes = dict.sizes()?;
    let width = |width: &usize| u32::try_from(*width).unwrap_or(u32::MAX);
    let model = Dlrm::new(width(&sizes.embedding_dim))
        .bottom(sizes.bottom_mlp.iter().map(width).collect::<Vec<_>>())
        .top(sizes.top_mlp.iter().map(width).collect::<Vec<_>>());
    let job = Job::builder("imported")
        .data(like)
        .model(model)
        .dense(Adagrad::rate(0.01))
        .sparse(Adagrad::rate(0.01))
        .batch_size(2048)
        .build()?;
    let spec = translate(&job, dataset.schema()).map_err(ImportError::Conflicts)?.spec;
    let dynamic = job.dynamic_conflicts(|table| {
        format!(
            "the file to import does not say which ids have the rows of table {table}: remove rows from this [[table]]"
        )
    });
    if !dynamic.is_empty() {
        return Err(ImportError::Conflicts(dynamic));
    }
    let parameters = spec.embedding_parameters() + spec.dense_parameters() as u64;
    let weights = dict.weights(spec, dataset.schema())?;

    let partial = PartialDir::create(out)?;
    let text = job.to_toml();
    write_file(partial.path(), run_paths::JOB_NAME, text.as_bytes())?;
    let (columns, folders) = (Columns::of(&dataset), dataset.dirs().into_iter().map(Path::to_owned));
    let folders: Vec<_> = folders.collect();
    let metadata = ModelMetadata {
        steps: 0,
        job: &text,
        columns: &columns,
        vocabulary: &|name| columns.vocabulary(name, &folders),
    };
    rankine_saved::save(&run_paths::model(partial.path()), &weights, &metadata)?;
    partial.publish()?;
    Ok(Imported { origin: dict.origin(), parameters })
}
