//! Checks across the fields of a job.

use std::collections::{HashMap, HashSet};

use rankine_base::url::is_url;
use rankine_reader::Split;
use rankine_reader::schema::is_column_name;
use rankine_topology::{Topology, TopologyError};

use super::data::DataCache;
use super::dynamic::{Evict, TableRows};
use super::embedding::{Exchange, Placement, Tier};
use super::model::Table;
use super::network::CollNet;
use super::optimizer::Optimizer;
use super::schedule::Schedule;
use super::train::{Average, AverageKind, DeviceKind};
use super::{Conflict, Job};

impl Job {
    /// Returns all contradictions between settings; none if the job is valid. [`Job::load`] checks this; jobs that are
    /// built in code have not been checked.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let mut found = Vec::new();
        self.check_data(&mut found);
        self.check_model(&mut found);
        self.check_features(&mut found);
        self.check_attention(&mut found);
        self.check_tables(&mut found);
        self.check_memory(&mut found);
        self.check_heads(&mut found);
        self.check_optimizers(&mut found);
        self.check_schedule(&mut found);
        self.check_guard(&mut found);
        let counted = [self.device.ranks, self.device.nodes].iter().all(|ranks| ranks.count().is_some());
        if let (true, Err(error)) = (counted, self.topology()) {
            found.push(Conflict::new("device.nodes", error.to_string()));
        }
        if self.network.collnet == CollNet::Require && self.device.kind == DeviceKind::Cpu {
            let what = "\"require\" needs GPUs on several nodes, and device.kind is \"cpu\"";
            found.push(Conflict::new("network.collnet", what));
        }
        if self.device.tune && self.device.tuning.is_some() {
            found.push(Conflict::new(
                "device.tuning",
                "device.tune times the algorithms, and device.tuning reads them from a file: set only one of them",
            ));
        }
        if self.eval.target_auc.is_some() && !self.eval.is_repeated() {
            found.push(Conflict::new(
                "eval.target_auc",
                "training ends at the first evaluation that reaches the target: set eval.every",
            ));
        }
        if self.eval.every.is_some() && self.eval.every_steps.is_some() {
            let what = "eval.every counts epochs, and eval.every_steps counts steps: set only one of them";
            found.push(Conflict::new("eval.every", what));
        }
        for (number, set) in self.eval.set.iter().enumerate() {
            let mut conflict = |key: &str, what: String| {
                found.push(Conflict::new(format!("eval.set.{number}.{key}"), what));
            };
            if set.name.trim().is_empty() {
                conflict("name", "the name is empty".into());
            } else if self.eval.set[..number].iter().any(|other| other.name == set.name) {
                conflict("name", format!("an earlier [[eval.set]] is named {:?}, too", set.name));
            }
        }
        if self.train.init_optimizer_state && self.train.init_from.is_none() {
            found.push(Conflict::new(
                "train.init_optimizer_state",
                "there is no model to take the state from: set train.init_from",
            ));
        }
        if self.train.early_stopping.is_some() && !self.eval.is_repeated() {
            found.push(Conflict::new(
                "train.early_stopping",
                "early stopping compares evaluations during the training: set eval.every",
            ));
        }
        if let Some(Average { kind: AverageKind::Last, decay: Some(_), .. }) = self.train.average {
            found.push(Conflict::new(
                "train.average.decay",
                "with kind = \"last\" all snapshots count the same: remove decay, or set kind = \"ema\"",
            ));
        }
        let refits = self.train.early_stopping.is_some_and(|stopping| stopping.refit);
        if refits && self.train.validation == Split::None {
            found.push(Conflict::new(
                "train.early_stopping.refit",
                "no samples are held out, so the model is already trained on all of them: set train.validation, for \
                 example to \"last:0.1\", or remove refit",
            ));
        }
        found
    }

    /// Returns the topology of ranks and nodes; `"auto"` counts as 1.
    ///
    /// # Errors
    /// [`TopologyError`] if the ranks are not a multiple of the nodes. This cannot happen for a job that was loaded and
    /// sets both.
    #[doc(hidden)]
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        Topology::new(self.device.ranks.get() as usize, self.device.nodes.get() as usize)
    }

    fn check_data(&self, found: &mut Vec<Conflict>) {
        let mut conflict = |key, message: String| found.push(Conflict::new(key, message));
        let data = &self.data;
        if data.cache == DataCache::Gpu && self.device.kind == DeviceKind::Cpu {
            conflict(
                "data.cache",
                "\"gpu\" keeps the training part on GPUs, and device.kind is \"cpu\"".into(),
            );
        }
        if data.cache == DataCache::Gpu && data.raw.is_some() {
            conflict("data.cache", "raw files are not kept on GPUs: convert them to a dataset folder".into());
        }
        if let Some(cache) = data.cache_folder() {
            if cache.dir.as_os_str().is_empty() {
                conflict("data.cache.dir", "the path is empty".into());
            } else if is_url(&cache.dir) {
                conflict("data.cache.dir", "a cache is a local folder, not a url".into());
            }
            if data.raw.is_some() {
                conflict("data.cache", "raw files are local and are not cached: remove data.cache".into());
            }
        }
        if let Some(url) = data.folders().iter().find(|dir| is_url(dir)).filter(|_| data.generate.is_some()) {
            let url = url.display();
            conflict("data.generate", format!("a dataset is generated in a local folder, not at {url}"));
        }
        if let Some(url) = data.raw_files().find(|path| is_url(path)) {
            conflict("data.raw", format!("raw files are local: convert {} to a dataset", url.display()));
        }
        match (&data.dir, &data.raw) {
            (Some(_), Some(_)) => conflict(
                "data.raw",
                "data.dir and data.raw are both set: keep dir for a folder written by convert or generate, or raw for \
                 HugeCTR's raw files"
                    .into(),
            ),
            (None, None) => conflict(
                "data",
                "no samples: set data.dir to a folder written by convert or generate, or data.raw to HugeCTR's raw \
                 files"
                    .into(),
            ),
            (Some(dir), None) if dir.paths().iter().any(|path| path.as_os_str().is_empty()) => {
                conflict("data.dir", "the path is empty".into());
            }
            (Some(dir), None) if dir.paths().len() > 1 && data.generate.is_some() => {
                conflict("data.generate", "a dataset is generated in one folder: name one in data.dir".into());
            }
            (None, Some(raw)) => {
                if data.generate.is_some() {
                    conflict("data.generate", "raw files cannot be generated: set data.dir instead of data.raw".into());
                }
                if raw.train.is_empty() {
                    conflict("data.raw.train", "the list of training files is empty".into());
                }
            }
            (Some(_), None) => {}
        }
        if data.shape.is_some() && (data.raw.is_some() || data.generate.is_some()) {
            let other = if data.raw.is_some() { "data.raw" } else { "data.generate" };
            conflict("data.shape", format!("{other}.shape already sets the shape: remove data.shape"));
        }
    }

    fn check_model(&self, found: &mut Vec<Conflict>) {
        let dim = self.model.embedding_dim();
        if let Some(&last) = self.model.bottom_mlp().last()
            && self.model.kind().multiplies_vectors
            && last != dim
        {
            found.push(Conflict::new(
                "model.bottom_mlp",
                format!(
                    "the bottom MLP must end with embedding_dim ({dim}), not {last}: its output interacts with the \
                     embeddings"
                ),
            ));
        }
    }

    /// Checks `[[feature]]`s without a dataset.
    fn check_features(&self, found: &mut Vec<Conflict>) {
        let mut names = HashSet::new();
        for (number, feature) in self.features.iter().enumerate() {
            let key = |key: &str| format!("feature.{number}.{key}");
            if let Some(problem) = feature.problem() {
                found.push(Conflict::new(key("buckets"), problem));
            }
            if feature.is_of_others() && feature.name.is_some() {
                let what = "column = \"*\" makes several columns, which cannot have one name: remove it";
                found.push(Conflict::new(key("name"), what));
            }
            let name = feature.name();
            let named_at = key(if feature.name.is_some() { "name" } else { "column" });
            if !is_column_name(&name) {
                let what = "is not a column's name: it must not be empty, contain a slash, tab or line break, or start \
                            with a dot";
                found.push(Conflict::new(named_at, format!("{name:?} {what}")));
            } else if !names.insert(name.clone()) {
                let message = format!("an earlier [[feature]] is named `{name}`, too: set another name");
                found.push(Conflict::new(named_at, message));
            }
        }
    }

    fn check_tables(&self, found: &mut Vec<Conflict>) {
        let (mut owners, mut names) = (HashMap::new(), HashMap::new());
        let (dim, kind) = (self.model.embedding_dim(), self.model.kind().name);
        for (number, table) in self.tables.iter().enumerate() {
            let mut conflict =
                |key, message| found.push(Conflict::new(format!("table.{number}.{key}"), message));
            if table.columns.is_empty() {
                conflict("columns", "a table needs at least one column".into());
            }
            for column in &table.columns {
                match owners.insert(column, number) {
                    Some(owner) if owner == number => {
                        conflict("columns", format!("column `{column}` is listed twice"));
                    }
                    Some(_) => conflict(
                        "columns",
                        format!("column `{column}` already belongs to an earlier [[table]]"),
                    ),
                    None => (),
                }
            }
            let name = table.name();
            if let Err(wrong) = table_name(&name)
                && table.name.is_some()
            {
                conflict("name", wrong);
            }
            if !table.columns.is_empty() && names.insert(name.clone(), number).is_some() {
                conflict("name", format!("another table has the name `{name}`"));
            }
            let exchanges = table.exchange.is_some_and(|exchange| exchange != Exchange::Auto);
            if table.placement == Some(Placement::Replicated) && exchanges {
                conflict(
                    "exchange",
                    "every rank stores the whole of a replicated table, so nothing is exchanged: remove exchange"
                        .into(),
                );
            }
            let unmixed = table.placement.filter(|one| !matches!(one, Placement::Auto | Placement::Hybrid));
            if let (Some(placement), Some(_)) = (unmixed, table.frequent_rows) {
                conflict(
                    "frequent_rows",
                    format!(
                        "a {} table has no frequent rows: remove frequent_rows, or use the placement hybrid",
                        placement.name()
                    ),
                );
            }
            for (key, message) in table.rows.iter().flat_map(|rows| row_problems(rows, table)) {
                conflict(key, message);
            }
            if let Some(own) = table.dim.filter(|&own| own != dim && self.model.kind().multiplies_vectors) {
                conflict(
                    "dim",
                    format!(
                        "dim must equal model.embedding_dim ({dim}), not {own}: {kind} multiplies the vectors of all \
                         columns with each other. Remove dim, or use the kind dcnv2 or wide-deep"
                    ),
                );
            }
        }
    }

    fn check_memory(&self, found: &mut Vec<Conflict>) {
        if self.embedding.host_memory.is_some() && self.host_memory_key().is_none() {
            let what = "no rows are kept in host memory: set embedding.device_memory, too, or tier = \"host\" for a \
                        [[table]]";
            found.push(Conflict::new("embedding.host_memory", what));
        }
        if self.embedding.refresh_steps.is_some() && self.embedding.device_memory.is_none() {
            let what = "without embedding.device_memory, which rows GPUs store is not chosen by look-ups: set it, too";
            found.push(Conflict::new("embedding.refresh_steps", what));
        }
    }

    /// Returns the first key that lets a GPU leave rows of tables in host memory, if there is one.
    #[doc(hidden)]
    pub fn host_memory_key(&self) -> Option<String> {
        if self.embedding.device_memory.is_some() {
            return Some("embedding.device_memory".into());
        }
        let number = self.tables.iter().position(|table| table.tier == Tier::Host)?;
        Some(format!("table.{number}.tier"))
    }

    fn check_attention(&self, found: &mut Vec<Conflict>) {
        let mut seen = HashSet::new();
        for (number, attention) in self.attention.iter().enumerate() {
            if !seen.insert(attention.sequence()) {
                found.push(Conflict::new(
                    format!("attention.{number}.sequence"),
                    format!("the sequence `{}` already has an [[attention]]", attention.sequence()),
                ));
            }
        }
    }

    fn check_heads(&self, found: &mut Vec<Conflict>) {
        let mut seen = HashSet::new();
        for (number, head) in self.heads.iter().enumerate() {
            if !seen.insert(&head.label) {
                found.push(Conflict::new(
                    format!("head.{number}.label"),
                    format!("the label `{}` already has a head", head.label),
                ));
            }
        }
    }

    fn check_optimizers(&self, found: &mut Vec<Conflict>) {
        if matches!(self.optimizer.dense, Optimizer::RowwiseAdagrad(_)) {
            found.push(Conflict::new(
                "optimizer.dense.kind",
                "rowwise-adagrad keeps one sum per table row, and dense parameters have no rows: use adagrad",
            ));
        }
        if self.optimizer.wide.is_some() && !self.model.kind().is_wide {
            found.push(Conflict::new(
                "optimizer.wide",
                format!(
                    "the model {} has no wide part: remove optimizer.wide, or use deepfm or wide-deep",
                    self.model.kind().name
                ),
            ));
        }
    }

    fn check_guard(&self, found: &mut Vec<Conflict>) {
        let (barrier, silence) = (self.guard.barrier_timeout_s.get(), self.guard.silence_timeout_s.get());
        if silence <= barrier {
            found.push(Conflict::new(
                "guard.silence_timeout_s",
                format!(
                    "{silence} s is not longer than guard.barrier_timeout_s ({barrier} s): a barrier that times out \
                     reports the missing rank, and needs time to do so. Raise guard.silence_timeout_s"
                ),
            ));
        }
    }

    fn check_schedule(&self, found: &mut Vec<Conflict>) {
        let mut conflict = |key: &str, message: String| {
            found.push(Conflict::new(format!("optimizer.schedule.{key}"), message));
        };
        let early = |start: u64, warmup: u64| {
            format!(
                "the decay starts at step {start}, before the warm-up ends at step {warmup}: raise decay_start_step, \
                 or lower warmup_steps"
            )
        };
        match &self.optimizer.schedule {
            Schedule::Constant => (),
            Schedule::WarmupPolynomial(schedule) => {
                if schedule.decay_start_step < schedule.warmup_steps {
                    conflict("decay_start_step", early(schedule.decay_start_step, schedule.warmup_steps));
                }
            }
            Schedule::Step(schedule) => {
                if schedule.every_steps.is_some() != schedule.milestones.is_empty() {
                    conflict("kind", "a step schedule needs either every_steps or milestones".into());
                }
                if !schedule.milestones.is_sorted_by(|before, after| before < after) {
                    conflict("milestones", "each milestone must be later than the one before it".into());
                }
            }
            Schedule::Cosine(schedule) => {
                if schedule.decay_start_step() < schedule.warmup_steps {
                    conflict("decay_start_step", early(schedule.decay_start_step(), schedule.warmup_steps));
                }
            }
        }
    }
}

/// Returns what is wrong with the settings of a table's rows: keys and messages.
fn row_problems(rows: &TableRows, table: &Table) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if !rows.dynamic {
        let what = "rows of ids of the dataset need no capacity: remove rows, or set dynamic = true";
        found.push(("rows.dynamic", what.into()));
    }
    match (rows.evict, rows.ttl_steps) {
        (Evict::Ttl, None) => {
            let what = "\"ttl\" needs the steps after which an id loses its row: set ttl_steps";
            found.push(("rows.evict", what.into()));
        }
        (Evict::None | Evict::Lru | Evict::Lfu, Some(_)) => {
            let what = format!("ttl_steps has no effect with evict = \"{}\": remove it", rows.evict.name());
            found.push(("rows.ttl_steps", what));
        }
        _ => {}
    }
    if table.oov_row.is_some() {
        let what = "ids without a row look up a shared row of their own: remove oov_row";
        found.push(("oov_row", what.into()));
    }
    if table.placement == Some(Placement::Hybrid) || table.frequent_rows.is_some() {
        let key = if table.frequent_rows.is_some() { "frequent_rows" } else { "placement" };
        let what = "which rows are frequent is not known before ids have them: use another placement, such as \
                    row-wise, without frequent_rows";
        found.push((key, what.into()));
    }
    found
}

/// Checks the name of a table, which is part of tensor names.
fn table_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the name is empty".into());
    }
    if name.contains(char::is_control) {
        return Err("the name contains a control character".into());
    }
    Ok(())
}
