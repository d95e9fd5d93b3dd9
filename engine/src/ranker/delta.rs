//! Changes the model that is scoring by a delta.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use rankine_checkpoint::{CheckpointError, Delta, Disk, Files};

use super::{ApplyError, LoadedModel, Ranker};

impl Ranker {
    /// Changes the model by a delta, which `rankine ckpt delta` writes. Afterwards scores have the bits of the model
    /// that the delta leads to. Only what the delta has is read. Rows that are being scored meanwhile are scored with
    /// the old model as a whole.
    ///
    /// # Errors
    /// [`ApplyError`] if the delta is damaged, or of another model than the one that is scoring, which then goes on.
    pub fn apply(&self, path: impl AsRef<Path>) -> Result<(), ApplyError> {
        let path = path.as_ref();
        let files: Arc<dyn Files> = Arc::new(Disk);
        let delta = Delta::open(&files, path)?;
        delta.verify()?;
        let _replacing = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        self.replace(self.model().with(&delta, path)?);
        Ok(())
    }
}

impl LoadedModel {
    /// Returns the model that a delta leads to. It shares with this one what does not change.
    fn with(&self, delta: &Delta, path: &Path) -> Result<Self, ApplyError> {
        self.check_base(delta, path)?;
        let weights =
            self.weights.with(delta.read()?).map_err(|(table, wrong)| CheckpointError::Damaged {
                path: path.to_owned(),
                what: format!("the ids of table {}: {wrong}", self.weights.spec().tables[table].name),
            })?;
        Ok(Self {
            weights,
            corrections: self.corrections.clone(),
            schema: self.schema.clone(),
            ids: self.ids.clone(),
            raw: Arc::clone(&self.raw),
            identity: delta.header().result,
            columns: self.columns,
            buffers: Arc::clone(&self.buffers),
        })
    }

    fn check_base(&self, delta: &Delta, path: &Path) -> Result<(), ApplyError> {
        let header = delta.header();
        let (step, base) = (self.identity.steps, header.base.steps);
        let same = (header.columns, &header.spec) == (self.columns, self.weights.spec());
        let held = if !same {
            "one of other columns or sizes is scoring".to_owned()
        } else if self.identity.weights == header.base.weights {
            return Ok(());
        } else if self.identity == header.result {
            format!("the model of step {step}, to which it leads, is scoring already")
        } else if step == base {
            "another model of that step is scoring".to_owned()
        } else {
            format!("the model of step {step} is scoring")
        };
        Err(ApplyError::OtherBase { path: path.to_owned(), base, held })
    }
}
