//! The trained model that a training starts from (`train.init_from`).
//!
//! Its tables may have fewer rows than those of the job: new categories come after the old ones, and their rows start
//! as those of a new model do.

use std::path::Path;
use std::sync::Arc;

use rankine_base::blame::Blame;
use rankine_checkpoint::{
    Checkpoint, CheckpointError, DenseState, DeviceState, InitialState, RuleState, StateSource, StoredRows,
    TableState,
};
use rankine_embedding::Membership;
use rankine_embedding::rows::{RowsMut, gather};
use rankine_engine_cpu::CpuModel;
use rankine_job::{Conflict, Job};
use rankine_model::{Model, ModelSpec};
use rankine_reader::Dataset;
use rankine_reader::convert::{KnownColumns, TableGrowth};

use super::error::TrainError;
use super::fresh_state;
use super::identity::{first_difference, rule_difference};
use crate::source::{Artifact, ModelSource, OpenModel, SourceError, open_checkpoint};

/// The key of the model's path.
const FROM: &str = "train.init_from";
/// The key that asks for its optimizer state.
const OPTIMIZER_STATE: &str = "train.init_optimizer_state";

/// A trained model whose columns and sizes are those of a job, except for new rows.
pub(super) struct InitialModel {
    stored: StoredModel,
    /// The job's model, which has the rules that set fresh optimizer state.
    model: Model,
    /// Rows of each table of the trained model, those of first-order terms last.
    rows: Vec<u64>,
    state: InitialState,
}

/// What is taken from the trained model, and where it is read.
enum StoredModel {
    /// The weights of an export or of the model of a run.
    Loaded(CpuModel),
    /// The weights of a checkpoint.
    Checkpoint(Box<Checkpoint>),
    /// The weights and the state of the optimizers.
    State(Box<Checkpoint>),
}

impl InitialModel {
    /// Opens the model that a job starts from, if it names one, and checks that it fits the job and its dataset.
    ///
    /// # Errors
    /// [`TrainError::Conflicts`] if there is none or it does not fit; [`TrainError::InitialModel`] if it is damaged or
    /// cannot be read; [`TrainError::Data`] if a vocabulary of the dataset cannot be read.
    pub(super) fn of(job: &Job, dataset: &Dataset, model: &Model) -> Result<Option<Arc<Self>>, TrainError> {
        let Some(path) = &job.train.init_from else { return Ok(None) };
        let source = ModelSource::find(path, Artifact::Model).map_err(|error| unusable(FROM, error))?;
        let opened = source.open().map_err(|error| unusable(FROM, error))?;
        let grown = growth(path, &opened, dataset)?;
        if let Some(what) = model_difference(opened.spec(), &model.spec) {
            let what = format!("the model of {} has a different shape: {what}", path.display());
            return Err(conflict(FROM, what));
        }
        let (stored, optimizer_steps) = if job.train.init_optimizer_state {
            let checkpoint = checkpoint_of(&source, opened.steps(), model)?;
            let steps = checkpoint.manifest().train.optimizer_steps();
            (StoredModel::State(Box::new(checkpoint)), Some(steps))
        } else {
            (StoredModel::of(&source, &opened).map_err(|error| unusable(FROM, error))?, None)
        };
        let (spec, new_rows) = (opened.spec(), grown.iter().filter(|table| table.new_rows > table.old_rows));
        Ok(Some(Arc::new(Self {
            stored,
            model: model.clone(),
            rows: spec.tables.iter().chain(&spec.wide_tables()).map(|table| table.rows).collect(),
            state: InitialState {
                from: path.display().to_string(),
                steps: opened.steps(),
                optimizer_steps,
                new_rows: new_rows
                    .map(|table| (table.column.clone(), table.new_rows - table.old_rows))
                    .collect(),
            },
        })))
    }

    /// The record of where the training starts.
    pub(super) fn state(&self) -> &InitialState {
        &self.state
    }

    /// The model in words, with its new rows.
    pub(super) fn description(&self) -> String {
        let InitialState { from, steps, optimizer_steps, new_rows } = &self.state;
        let state =
            if optimizer_steps.is_some() { "with its optimizer state" } else { "with fresh optimizer state" };
        let rows = match (new_rows.len(), new_rows.values().sum::<u64>()) {
            (0, _) => String::new(),
            (tables, rows) => {
                let (of, are) = if rows == 1 { ("row", "is") } else { ("rows", "are") };
                let tables_named = if tables == 1 { "1 table".into() } else { format!("{tables} tables") };
                format!("; {rows} {of} of {tables_named} {are} new")
            }
        };
        format!("the model of {from} (step {steps}), {state}{rows}")
    }
}

impl StateSource for InitialModel {
    fn optimizer_steps(&self) -> u64 {
        self.state.optimizer_steps.unwrap_or(0)
    }

    fn dense(&self) -> Result<DenseState, CheckpointError> {
        let parameters = match &self.stored {
            StoredModel::State(checkpoint) => return checkpoint.dense(),
            StoredModel::Checkpoint(checkpoint) => checkpoint.dense()?.parameters,
            StoredModel::Loaded(model) => model.parameters().to_vec(),
        };
        Ok(fresh_state::dense(&self.model, parameters))
    }

    fn load_rows(&self, rows: &mut dyn RowsMut) -> Result<(), CheckpointError> {
        match &self.stored {
            StoredModel::State(checkpoint) => checkpoint.load_rows(rows),
            StoredModel::Checkpoint(checkpoint) => {
                let stored = StoredRows::new(checkpoint)?;
                fresh_state::load_rows(&self.model, &self.rows, rows, &mut |number, range, weights| {
                    Ok(gather(&stored, number, range, false, weights)?)
                })
            }
            StoredModel::Loaded(model) => {
                fresh_state::load_rows(&self.model, &self.rows, rows, &mut |number, range, weights| {
                    model.gather(number, range, weights);
                    Ok(())
                })
            }
        }
    }

    fn memberships(&self) -> Result<Vec<(usize, Membership)>, CheckpointError> {
        match &self.stored {
            StoredModel::State(checkpoint) | StoredModel::Checkpoint(checkpoint) => checkpoint.memberships(),
            StoredModel::Loaded(model) => {
                Ok(model.memberships().map(|(table, membership)| (table, membership.clone())).collect())
            }
        }
    }

    fn device(&self) -> Option<&DeviceState> {
        match &self.stored {
            StoredModel::State(checkpoint) => checkpoint.manifest().device.as_ref(),
            StoredModel::Checkpoint(_) | StoredModel::Loaded(_) => None,
        }
    }
}

impl StoredModel {
    /// The weights of a model. Those of an export in fp32 are mapped into memory; those of a checkpoint are read when
    /// they are needed.
    fn of(source: &ModelSource, opened: &OpenModel) -> Result<Self, SourceError> {
        Ok(match source {
            ModelSource::Checkpoint(path) => Self::Checkpoint(Box::new(open_checkpoint(path)?)),
            ModelSource::Run(_) | ModelSource::Export(_) => Self::Loaded(opened.load()?),
        })
    }
}

fn conflict(key: &str, what: String) -> TrainError {
    TrainError::Conflicts(vec![Conflict::new(key, what)])
}

/// The error of a model that cannot be opened: a conflict at the key that asks for it if the job has to change.
fn unusable(key: &str, error: SourceError) -> TrainError {
    match error.blame() {
        Blame::Usage => conflict(key, error.to_string()),
        Blame::System | Blame::Data | Blame::Nobody => TrainError::InitialModel(Box::new(error)),
    }
}

/// Opens the checkpoint with the optimizer state of a model that was trained for `steps` steps.
///
/// # Errors
/// [`TrainError::Conflicts`] if there is none, or the job's optimizers cannot use it; [`TrainError::InitialModel`].
fn checkpoint_of(source: &ModelSource, steps: u64, model: &Model) -> Result<Checkpoint, TrainError> {
    let paths = source.checkpoints().map_err(|error| unusable(OPTIMIZER_STATE, error))?;
    let mut found = Vec::new();
    for path in paths {
        let checkpoint = open_checkpoint(&path).map_err(|error| unusable(OPTIMIZER_STATE, error.into()))?;
        let manifest = checkpoint.manifest();
        if manifest.train.step != steps {
            found.push(manifest.train.step.to_string());
            continue;
        }
        let (dense, tables) = (RuleState::of(&model.rules.dense), TableState::all(model));
        return match rule_difference((&manifest.dense, &manifest.tables), (&dense, &tables)) {
            Some(what) => {
                let what = format!("{what}: use the same optimizers, or start with fresh state");
                Err(conflict(OPTIMIZER_STATE, what))
            }
            None => Ok(checkpoint),
        };
    }
    let what = format!(
        "the model was saved after step {steps}, and there are only checkpoints of {} {}: set train.init_from to one \
         of these, or start with fresh state",
        if found.len() == 1 { "step" } else { "steps" },
        found.join(", ")
    );
    Err(conflict(OPTIMIZER_STATE, what))
}

/// How a trained model differs from the one that a job describes, other than in the number and type of its rows.
fn model_difference(trained: &ModelSpec, own: &ModelSpec) -> Option<String> {
    let value = |spec: &ModelSpec| serde_json::to_value(spec).expect("a spec is plain data");
    let mut alike = trained.clone();
    for (table, own) in alike.tables.iter_mut().zip(&own.tables) {
        (table.rows, table.dtype) = (own.rows, own.dtype);
    }
    for (head, own) in alike.heads.iter_mut().zip(&own.heads) {
        head.weight = own.weight;
    }
    if alike != *own {
        return first_difference("", &value(&alike), &value(own));
    }
    let mut tables = trained.tables.iter().zip(&own.tables);
    let (trained, own) = tables.find(|(trained, own)| trained.rows > own.rows)?;
    Some(format!("table {} has {} rows in the job but had {}", own.name, own.rows, trained.rows))
}

/// Compares the columns of a trained model with those of a dataset, and returns the tables that grew.
///
/// # Errors
/// [`TrainError::Conflicts`] with the first other difference; [`TrainError::InitialModel`] and [`TrainError::Data`] if
/// a vocabulary of the model or of the dataset cannot be read.
fn growth(path: &Path, model: &OpenModel, dataset: &Dataset) -> Result<Vec<TableGrowth>, TrainError> {
    if model.columns().difference(dataset).is_none() {
        return Ok(Vec::new());
    }
    let known = model.known_columns(path).map_err(|error| unusable(FROM, error))?;
    known.growth(&KnownColumns::of(dataset)?).map_err(|what| {
        let (path, dataset) = (path.display(), dataset.dir().display());
        let what = format!(
            "the columns of A = {path} and of B = {dataset} differ: {what}. Convert the rows of B with `rankine \
             convert ... --like {path} --grow`"
        );
        conflict(FROM, what)
    })
}
