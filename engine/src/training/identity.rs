//! Whether a checkpoint is one of a job: the same model, learning by the same rules from the same samples.

use rankine_reader::dataset::{BlockCoding, Manifest as DatasetManifest};
use rankine_reader::sealed::Checksum;
use rankine_reader::{Dataset, Part};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::TrainError;
use crate::checkpoint::{
    Checkpoint, CheckpointError, DataIdentity, Manifest, OrderState, RuleState, TableState,
};
use crate::job::Job;
use crate::model::{ModelSpec, TrainingRules};

/// What tells the training part of a dataset from others.
pub(super) fn of(dataset: &Dataset) -> Result<DataIdentity, TrainError> {
    let part = dataset.part(Part::Train)?;
    let mut blocks = Xxh3::new();
    for block in &part.blocks {
        blocks.update(&block.bytes.to_le_bytes());
        blocks.update(&block.samples.to_le_bytes());
        if let BlockCoding::Packed { .. } = part.coding {
            blocks.update(&block.checksum.to_le_bytes());
        }
    }
    let vocabularies = dataset.files().iter().filter(|file| file.name.starts_with("vocabulary/"));
    Ok(DataIdentity {
        samples: part.samples,
        block_samples: part.block_samples,
        schema: Checksum(DatasetManifest::tag(&part.schema)),
        blocks: Checksum(blocks.digest()),
        vocabularies: vocabularies.cloned().collect(),
    })
}

/// Whether a checkpoint's training part, columns and vocabularies are those of a dataset.
///
/// # Errors
/// [`TrainError::Data`].
pub fn is_of(manifest: &Manifest, dataset: &Dataset) -> Result<bool, TrainError> {
    Ok(of(dataset)? == manifest.data)
}

/// Refuses a checkpoint that a job cannot go on from. Ranks, nodes, placement, device and precision may be others, and
/// so may learning rates, schedule, batch size, evaluation, logging, and where training ends.
///
/// # Errors
/// [`CheckpointError::Mismatch`] with the first difference.
pub(super) fn check(
    checkpoint: &Checkpoint,
    (job, dataset): (&Job, &Dataset),
    (spec, rules): (&ModelSpec, &TrainingRules),
) -> Result<(), TrainError> {
    let found = difference(checkpoint.manifest(), job, &of(dataset)?, spec, rules);
    let path = checkpoint.path().to_owned();
    found.map_or(Ok(()), |what| Err(CheckpointError::Mismatch { path, what }.into()))
}

fn difference(
    saved: &Manifest,
    job: &Job,
    data: &DataIdentity,
    spec: &ModelSpec,
    rules: &TrainingRules,
) -> Option<String> {
    let way_out = "set it back, or train anew in another --run-dir";
    if saved.data != *data {
        let what = if saved.data.schema != data.schema {
            "it was trained on a dataset of other columns"
        } else if saved.data.vocabularies != data.vocabularies {
            "the vocabularies of the dataset are others, so that ids mean other categories"
        } else if saved.data.samples != data.samples {
            return Some(format!(
                "the training part has {} samples, and had {}: give the dataset that it was trained on",
                data.samples, saved.data.samples
            ));
        } else {
            "the samples of the training part are others"
        };
        return Some(format!("{what}: give the dataset that it was trained on"));
    }
    if saved.seed != job.seed {
        return Some(format!("seed is {}, and was {}: {way_out}", job.seed, saved.seed));
    }
    let order =
        OrderState { shuffle: job.train.shuffle, window_blocks: job.train.shuffle_window_blocks.get() };
    if saved.order != order {
        let OrderState { shuffle, window_blocks } = saved.order;
        // In file order the window says nothing.
        if shuffle || order.shuffle {
            return Some(format!(
                "the order of samples is another one, so that a place in it means nothing: train.shuffle was {shuffle} \
                 and train.shuffle_window_blocks {window_blocks}: {way_out}"
            ));
        }
    }
    if saved.spec != *spec {
        let value = |spec: &ModelSpec| serde_json::to_value(spec).expect("a spec is plain data");
        return Some(format!(
            "the model is another one: {}. Its parts cannot be changed: {way_out}",
            first_difference("", &value(&saved.spec), &value(spec))?
        ));
    }
    let learns = |rule: &RuleState| rule.rule.clone();
    let dense = RuleState::of(&rules.dense);
    if saved.dense != dense {
        return Some(format!(
            "optimizer.dense.kind is \"{}\", and was \"{}\", which keeps other things: {way_out}",
            learns(&dense),
            learns(&saved.dense)
        ));
    }
    let tables = TableState::all(spec, rules);
    let other = saved.tables.iter().zip(&tables).find(|(saved, own)| saved.learns != own.learns);
    other.map(|(saved, own)| {
        format!(
            "{} learns by \"{}\", and did by \"{}\", which keeps other things: {way_out}",
            own.tensor,
            learns(&own.learns),
            learns(&saved.learns)
        )
    })
}

/// Where two values differ first, and how.
fn first_difference(path: &str, saved: &Value, own: &Value) -> Option<String> {
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
        _ => Some(format!("{path} is {own}, and was {saved}")),
    }
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Dtype, TableSpec};

    use super::*;

    fn table(name: &str, rows: u64) -> TableSpec {
        TableSpec { name: name.into(), rows, dim: 4, dtype: Dtype::Fp32 }
    }

    #[test]
    fn the_first_difference_is_named() {
        let spec = |rows| serde_json::json!({ "tables": [table("a", 3), table("b", rows)], "top_mlp": [8] });
        assert_eq!(first_difference("", &spec(4), &spec(4)), None);
        let told = first_difference("", &spec(4), &spec(5)).unwrap();
        assert_eq!(told, "tables.1.rows is 5, and was 4");
        let (one, other) = (serde_json::json!({ "a": [1] }), serde_json::json!({ "a": [1, 2] }));
        assert_eq!(first_difference("", &one, &other).unwrap(), "a is [1,2], and was [1]");
    }
}
