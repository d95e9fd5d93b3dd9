//! What no field can say alone: the checks across the fields of a job.

use super::schedule::Schedule;
use super::{Conflict, Job};

impl Job {
    /// Everything about the job that contradicts itself; nothing where the job is sound. [`Job::load`] has done this;
    /// jobs made in code have not.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let mut found = Vec::new();
        let mut conflict = |key, message: String| found.push(Conflict::new(key, message));

        let data = &self.data;
        match (&data.dir, &data.raw) {
            (Some(_), Some(_)) => conflict(
                "data.raw",
                "data.dir and data.raw both say where the samples are: keep dir for a folder that convert or generate \
                 wrote, or raw for HugeCTR's raw files as they are"
                    .into(),
            ),
            (None, None) => conflict(
                "data",
                "nothing says where the samples are: set data.dir to a folder that convert or generate wrote, or \
                 data.raw to HugeCTR's raw files"
                    .into(),
            ),
            (Some(dir), None) if dir.as_os_str().is_empty() => conflict("data.dir", "the path is empty".into()),
            (None, Some(raw)) => {
                if data.generate.is_some() {
                    conflict("data.generate", "raw files are not generated: set data.dir in place of data.raw".into());
                }
                if raw.train.is_empty() {
                    conflict("data.raw.train", "there is no file to train on".into());
                }
            }
            (Some(_), None) => {}
        }
        let dim = self.model.embedding_dim;
        if let Some(&last) = self.model.bottom_mlp.last()
            && last != dim
        {
            conflict(
                "model.bottom_mlp",
                format!(
                    "the bottom MLP must end with embedding_dim, {dim}, and ends with {last}: its output interacts \
                     with the embeddings"
                ),
            );
        }
        if let Schedule::WarmupPolynomial(schedule) = &self.optimizer.schedule
            && schedule.decay_start_step < schedule.warmup_steps
        {
            conflict(
                "optimizer.schedule.decay_start_step",
                format!(
                    "the decay starts at step {}, before the warm-up ends at step {}",
                    schedule.decay_start_step, schedule.warmup_steps
                ),
            );
        }
        if self.eval.target_auc.is_some() && self.eval.every_steps.is_none() {
            conflict(
                "eval.target_auc",
                "training ends at the first evaluation that reaches the target, so eval.every_steps is needed".into(),
            );
        }
        found
    }
}
