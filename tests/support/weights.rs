//! Weights of a saved model that training would not save.

use std::fs;
use std::ops::Range;
use std::path::Path;

use rankine_base::sealed;
use safetensors::SafeTensors;

use super::json_file;

/// Makes some elements of a tensor NaN in the model of a run, sealed as if it had been saved so.
pub(crate) fn spoil(run: &Path, tensor: &str, elements: Range<usize>) {
    let path = run.join("model/model.safetensors");
    let mut weights = fs::read(&path).expect("the run has a model");
    let at = {
        let tensors = SafeTensors::deserialize(&weights).expect("the model is complete");
        let tensor = tensors.tensor(tensor).expect("the model has the tensor");
        tensor.data().as_ptr().addr() - weights.as_ptr().addr()
    };
    for element in elements {
        weights[at + 4 * element..at + 4 * (element + 1)].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    fs::write(&path, &weights).expect("the model is written");
    let path = run.join("model/model.json");
    let envelope = json_file(&path);
    let mut content = envelope["content"].clone();
    let stripe_bytes = content["weights_stripe_bytes"].as_u64().expect("the checksum is by stripes") as usize;
    let stripes = weights.chunks(stripe_bytes).map(sealed::Checksum::of);
    let sums: Vec<u8> = stripes.flat_map(|sum| sum.0.to_le_bytes()).collect();
    let sum = serde_json::to_value(sealed::Checksum::of(&sums)).expect("a checksum is plain data");
    content["weights"]["xxh3"] = sum;
    let version = envelope["format"].as_u64().and_then(|version| version.try_into().ok());
    let version = version.expect("a format has a version");
    fs::write(&path, sealed::to_json("rankine model", version, &content)).expect("the model is written");
}
