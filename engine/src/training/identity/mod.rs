//! What is trained: the model, its update rules, the samples and their order. A checkpoint or a finished run belongs
//! to a job if these are the same; the contents of raw files are in `contents.rs`.

use std::fs;

use rankine_base::build::Build;
use rankine_base::sealed::Checksum;
use rankine_checkpoint::{DataIdentity, Manifest, OrderState, RuleState, TableState};
use rankine_job::Job;
use rankine_model::ModelSpec;
use rankine_reader::dataset::BlockCoding;
use rankine_reader::{Dataset, Part};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::context::{RunContext, SampleSource};
use super::error::TrainError;
use crate::build;

mod contents;

/// A checksum of what identifies the samples that an evaluation scores. Raw files are identified by their paths, sizes
/// and times of modification.
///
/// # Errors
/// [`TrainError::Data`].
pub(super) fn samples_checksum(job: &Job, dataset: &Dataset, part: Part) -> Result<Checksum, TrainError> {
    let is_held_out = part == Part::Validation;
    let stored = if is_held_out { Part::Train } else { part };
    let split = is_held_out.then_some(job.train.validation);
    let stored = dataset.stored_part(stored)?;
    let is_raw = matches!(stored.coding, BlockCoding::Records(_));
    let files = stored.files.iter().filter(|_| is_raw).map(|path| {
        let stamp = fs::metadata(path).and_then(|file| Ok((file.len(), file.modified()?))).ok();
        (path, stamp)
    });
    // Not the columns: buckets, for one, change what a model makes of a sample.
    let identity = (stored.samples, DataIdentity::blocks_of(&stored), split, files.collect::<Vec<_>>());
    Ok(Checksum::of(&serde_json::to_vec(&identity).expect("an identity is plain data")))
}

pub(super) use contents::{ContentsCheck, RunIdentity};

/// What was trained, or is to be: everything that must stay the same when a run is resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrainingIdentity {
    /// The version of Rankine that trained it.
    pub(super) version: String,
    /// The build that trained it; unknown of checkpoints, whose bytes do not depend on it, and of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) build: Option<Build>,
    pub(super) seed: u64,
    pub(super) order: OrderState,
    /// The training part.
    pub(super) data: DataIdentity,
    /// The evaluation part. It may change on resuming, but the result of a finished run was measured on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) eval: Option<DataIdentity>,
    /// The trained model that training starts from; absent if it starts from a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) init: Option<InitialIdentity>,
    pub(super) spec: ModelSpec,
    pub(super) dense: RuleState,
    pub(super) tables: Vec<TableState>,
}

/// What a job says of the trained model that it starts from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InitialIdentity {
    from: String,
    optimizer_state: bool,
}

impl TrainingIdentity {
    /// What a job is to train, without the contents of raw files.
    ///
    /// # Errors
    /// [`TrainError::Data`].
    pub(super) fn of(context: &RunContext<'_>) -> Result<Self, TrainError> {
        let RunContext { job, dataset, source, model, .. } = *context;
        let has_eval = dataset.parts().contains(&Part::Eval);
        let (shuffle, data) = match source {
            SampleSource::Dataset => (job.train.shuffle, DataIdentity::of(dataset, Part::Train)?),
            SampleSource::Program => (false, DataIdentity::of_pushed(dataset)),
        };
        Ok(Self {
            version: build::here().version.clone(),
            build: Some(build::here().clone()),
            seed: job.seed,
            order: OrderState {
                shuffle,
                window_blocks: job.train.shuffle_window_blocks.get(),
                validation: job.train.validation,
            },
            data,
            eval: has_eval.then(|| DataIdentity::of(dataset, Part::Eval)).transpose()?,
            init: job.train.init_from.as_ref().map(|from| InitialIdentity {
                from: from.display().to_string(),
                optimizer_state: job.train.init_optimizer_state,
            }),
            spec: model.spec.clone(),
            dense: RuleState::of(&model.rules.dense),
            tables: TableState::all(model),
        })
    }

    /// What a checkpoint was trained on. It does not record the evaluation part.
    pub(super) fn of_checkpoint(manifest: &Manifest) -> Self {
        Self {
            version: manifest.version.clone(),
            build: None,
            seed: manifest.seed,
            order: manifest.order,
            data: manifest.data.clone(),
            eval: None,
            init: manifest.train.init.as_ref().map(|init| InitialIdentity {
                from: init.from.clone(),
                optimizer_state: init.optimizer_steps.is_some(),
            }),
            spec: manifest.spec.clone(),
            dense: manifest.dense.clone(),
            tables: manifest.tables.clone(),
        }
    }

    /// The first difference from what is to be trained. Contents of raw files and the evaluation part are not compared.
    /// Ranks, nodes, placement, device and precision may differ, and so may learning rates, schedule, batch size,
    /// evaluation, logging, and where training ends.
    pub(super) fn difference(&self, own: &Self) -> Option<String> {
        if let Some(what) = self.data.difference(&own.data) {
            return Some(format!("the training part {what}"));
        }
        if self.seed != own.seed {
            return Some(format!("seed is {} but was {}", own.seed, self.seed));
        }
        let OrderState { shuffle, window_blocks, validation } = self.order;
        if validation != own.order.validation {
            return Some(format!(
                "train.validation is \"{}\" but was \"{validation}\"",
                own.order.validation
            ));
        }
        // In file order the window has no effect.
        if self.order != own.order && (shuffle || own.order.shuffle) {
            return Some(format!(
                "the order of samples differs, so the saved position cannot be used: train.shuffle was {shuffle} \
                 and train.shuffle_window_blocks was {window_blocks}"
            ));
        }
        if self.init != own.init {
            let [was, is] = [self, own].map(|identity| match &identity.init {
                None => "not set".to_owned(),
                Some(InitialIdentity { from, optimizer_state: false }) => format!("\"{from}\""),
                Some(InitialIdentity { from, .. }) => format!("\"{from}\" with its optimizer state"),
            });
            return Some(format!("train.init_from is {is} but was {was}"));
        }
        if self.spec != own.spec {
            let value = |spec: &ModelSpec| serde_json::to_value(spec).expect("a spec is plain data");
            return Some(format!(
                "the model differs: {}",
                first_difference("", &value(&self.spec), &value(&own.spec))?
            ));
        }
        rule_difference((&self.dense, &self.tables), (&own.dense, &own.tables))
    }
}

/// The rules of the dense parameters and of the tables.
type Rules<'a> = (&'a RuleState, &'a [TableState]);

/// The first rule whose state differs.
pub(super) fn rule_difference(saved: Rules<'_>, own: Rules<'_>) -> Option<String> {
    let ((saved_dense, saved_tables), (dense, tables)) = (saved, own);
    if saved_dense != dense {
        return Some(format!(
            "optimizer.dense.kind is \"{}\" but was \"{}\", which has different state",
            dense.rule, saved_dense.rule
        ));
    }
    let other = saved_tables.iter().zip(tables).find(|(saved, own)| saved.learns != own.learns);
    other.map(|(saved, own)| {
        format!(
            "the optimizer of {} is \"{}\" but was \"{}\", which has different state",
            own.tensor, own.learns.rule, saved.learns.rule
        )
    })
}

/// The first difference between two values, by its path.
pub(super) fn first_difference(path: &str, saved: &Value, own: &Value) -> Option<String> {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (saved, own) {
        (Value::Object(saved), Value::Object(own)) => {
            let keys = saved.keys().chain(own.keys().filter(|key| !saved.contains_key(*key)));
            let value = |of: &serde_json::Map<String, Value>, key| of.get(key).cloned().unwrap_or_default();
            keys.into_iter()
                .find_map(|key| first_difference(&below(key), &value(saved, key), &value(own, key)))
        }
        (Value::Array(saved), Value::Array(own)) if saved.len() == own.len() => {
            let pairs = saved.iter().zip(own).enumerate();
            let mut pairs =
                pairs.map(|(number, (saved, own))| first_difference(&below(&number.to_string()), saved, own));
            pairs.find_map(|found| found)
        }
        _ if saved == own => None,
        _ => {
            let said = |value: &Value| if value.is_null() { "not set".into() } else { value.to_string() };
            Some(format!("{path} is {} but was {}", said(own), said(saved)))
        }
    }
}

#[cfg(test)]
mod tests {
    use rankine_base::sealed::Checksum;
    use rankine_embedding::{Dtype, Optimizer, Pooling, TableSpec, UpdateRule};
    use rankine_reader::Split;
    use rankine_reader::dataset::FileManifest;

    use super::*;
    use rankine_model::{FeatureSpec, HeadSpec, Interaction, Model};

    fn table(name: &str, rows: u64) -> TableSpec {
        TableSpec { name: name.into(), rows, dim: 4, dtype: Dtype::Fp32, dynamic: None }
    }

    #[test]
    fn the_first_difference_is_named() {
        let spec = |rows| serde_json::json!({ "tables": [table("a", 3), table("b", rows)], "top_mlp": [8] });
        assert_eq!(first_difference("", &spec(4), &spec(4)), None);
        let told = first_difference("", &spec(4), &spec(5)).unwrap();
        assert_eq!(told, "tables.1.rows is 5 but was 4");
        let (one, other) = (serde_json::json!({ "a": [1] }), serde_json::json!({ "a": [1, 2] }));
        assert_eq!(first_difference("", &one, &other).unwrap(), "a is [1,2] but was [1]");
    }

    fn trained() -> TrainingIdentity {
        let spec = ModelSpec {
            dense_columns: 3,
            bottom_mlp: vec![4],
            interaction: Interaction::Concat,
            wide: false,
            top_mlp: vec![8],
            heads: vec![HeadSpec { label: "label".into(), label_number: 0, weight: 1.0 }],
            tables: vec![table("a", 3)],
            features: vec![FeatureSpec {
                column: "a".into(),
                table: 0,
                pooling: Pooling::Sum,
                weighted: false,
            }],
            attention: Vec::new(),
        };
        let model = Model::sgd(spec, 0.5);
        TrainingIdentity {
            version: "1".into(),
            build: None,
            seed: 1,
            order: OrderState { shuffle: true, window_blocks: 4, validation: Split::None },
            data: DataIdentity {
                samples: 10,
                block_samples: 5,
                schema: Checksum(1),
                blocks: Checksum(2),
                vocabularies: Vec::new(),
                raw: Vec::new(),
            },
            eval: None,
            init: None,
            dense: RuleState::of(&model.rules.dense),
            tables: TableState::all(&model),
            spec: model.spec,
        }
    }

    #[test]
    fn whatever_may_not_change_is_compared() {
        fn momentum() -> RuleState {
            let rule = UpdateRule::Momentum { momentum: 0.5, nesterov: false };
            RuleState::of(&Optimizer { rule, ..Optimizer::sgd(0.5) })
        }
        type Change = fn(&mut TrainingIdentity);
        let cases: [(&str, Change); 14] = [
            ("train.validation is \"last:0.5\" but was \"none\"", |own| {
                own.order.validation = Split::Last { share: 0.5 }
            }),
            ("train.init_from is \"runs/a\" with its optimizer state but was not set", |own| {
                own.init = Some(InitialIdentity { from: "runs/a".into(), optimizer_state: true })
            }),
            ("part has different columns", |own| own.data.schema = Checksum(9)),
            ("part has different vocabularies", |own| {
                let (name, bytes, xxh3) = ("vocabulary/a.tsv".into(), 1, Checksum(1));
                own.data.vocabularies.push(FileManifest { name, bytes, xxh3 });
            }),
            ("part has 11 samples but had 10", |own| own.data.samples = 11),
            ("part has different samples", |own| own.data.block_samples = 4),
            ("part has different samples", |own| own.data.blocks = Checksum(9)),
            ("seed is 2 but was 1", |own| own.seed = 2),
            ("train.shuffle was true and train.shuffle_window_blocks was 4", |own| own.order.shuffle = false),
            ("train.shuffle was true and train.shuffle_window_blocks was 4", |own| {
                own.order.window_blocks = 5
            }),
            ("top_mlp.0 is 9 but was 8", |own| own.spec.top_mlp = vec![9]),
            ("tables.0.rows is 4 but was 3", |own| own.spec.tables[0].rows = 4),
            ("optimizer.dense.kind is \"momentum\" but was \"sgd\"", |own| own.dense = momentum()),
            ("the optimizer of embedding.a is \"momentum\" but was \"sgd\"", |own| {
                own.tables[0].learns = momentum()
            }),
        ];
        let saved = trained();
        assert_eq!(saved.difference(&trained()), None);
        for (words, change) in cases {
            let mut own = trained();
            change(&mut own);
            let what = saved.difference(&own).unwrap_or_else(|| panic!("no difference: {words}"));
            assert!(what.contains(words), "{what}");
        }
        // In file order windows have no effect; and another version or build may resume.
        let in_order = |window_blocks| {
            let order = OrderState { shuffle: false, window_blocks, validation: Split::None };
            let build = (window_blocks == 2).then(|| build::here().clone());
            TrainingIdentity { order, version: window_blocks.to_string(), build, ..trained() }
        };
        assert_eq!(in_order(1).difference(&in_order(2)), None);
    }
}
