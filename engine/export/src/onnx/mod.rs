//! ONNX: `model.onnx` is the graph, and `weights.bin` has all weights, which the graph names as external data. A tensor
//! begins at a page of that file, so that a runtime can map it, and no size is limited by protobuf's 2 GB.
//!
//! `docs/guide/onnx.md` describes the inputs and outputs.

mod attention;
mod graph;
mod inputs;
mod network;
pub(super) mod proto;

use std::path::Path;

use prost::Message;
use rankine_base::Error;
use rankine_model::logit::Correction;
use rankine_reader::write::write_file;
use rankine_saved::{SavedModelError, Tensor, write_tensors};
use serde_json::json;

use super::TrainedModel;
use graph::{Dim, Graph, entry};
use network::Network;
use proto::{GraphProto, ModelProto, OperatorSetIdProto};

const MODEL_NAME: &str = "model.onnx";
const WEIGHTS_NAME: &str = "weights.bin";
/// Where tensors may begin in the file of weights: at pages.
const ALIGN: u64 = 4096;
/// The version of the operators, and the oldest version of the format that has them.
const OPSET: i64 = 18;
const IR_VERSION: i64 = 8;

/// How the inputs have bags with different numbers of ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BagLayout {
    /// `NAME [N, width]`, as wide as the longest bag of a request, and `NAME.count [N]`.
    #[default]
    Padded,
    /// `NAME`, the ids of all rows, and `NAME.offsets [N + 1]`.
    Offsets,
}

/// What the numbers of dense columns are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Numbers {
    /// Transformed as in training, in single precision.
    #[default]
    Mapped,
    /// As in the files, in double precision; the graph transforms them.
    Raw,
}

/// What the inputs look like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OnnxInputs {
    /// Bags with different numbers of ids.
    pub bags: BagLayout,
    /// Numbers of dense columns.
    pub numbers: Numbers,
}

/// Writes the files of a model into a folder; returns its graph.
pub(super) fn write(
    dir: &Path,
    model: &TrainedModel<'_>,
    inputs: OnnxInputs,
) -> Result<GraphProto, SavedModelError> {
    let described = describe(model, inputs)?;
    write_tensors(&dir.join(WEIGHTS_NAME), model.weights, ALIGN)?;
    write_file(dir, MODEL_NAME, &described.encode_to_vec())?;
    Ok(described.graph.unwrap_or_default())
}

/// Describes a model.
fn describe(model: &TrainedModel<'_>, inputs: OnnxInputs) -> Result<ModelProto, Error> {
    let (spec, schema) = (model.weights.spec(), &model.metadata.columns.schema);
    if let Some(column) = schema.categorical.iter().find(|column| column.is_open()) {
        let what = "has an open vocabulary, whose ids are keys; ONNX finds no rows by keys: score with \
                    `rankine predict` or a Ranker instead";
        return Err(Error::column(&column.name, what));
    }
    let tensors = Tensor::all_of(spec, ALIGN);
    let mut graph = Graph::default();
    tensors.iter().try_for_each(|tensor| graph.weights(tensor))?;
    let dense = inputs::dense(&mut graph, schema, inputs.numbers)?;
    let bags = inputs::bags(&mut graph, (schema, model.ids), (dense.as_deref(), inputs.bags))?;
    let logits = Network::new(&mut graph, spec, &tensors).logits(dense.as_deref(), &bags);
    let logits = corrected(&mut graph, logits, model.corrections);
    let probabilities = probabilities(&mut graph, &logits);
    let dims = [Dim::rows(), Dim::Fixed(spec.heads.len())];
    graph.output(&logits, ("logit", "The logit of each head"), &dims)?;
    graph.output(&probabilities, ("probability", "The probability of each head's label"), &dims)?;

    let labels: Vec<_> = spec.heads.iter().map(|head| &head.label).collect();
    let columns: Vec<_> = schema.dense.iter().map(|column| &column.name).collect();
    Ok(ModelProto {
        ir_version: Some(IR_VERSION),
        opset_import: vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(OPSET) }],
        producer_name: Some("rankine".into()),
        producer_version: Some(env!("CARGO_PKG_VERSION").into()),
        doc_string: None,
        graph: Some(graph.finish("rankine")),
        metadata_props: vec![
            entry("rankine.heads", json!(labels).to_string()),
            entry("rankine.dense", json!(columns).to_string()),
            entry("rankine.steps", model.metadata.steps.to_string()),
        ],
    })
}

/// Adds what negatives that were left out change in the logits, if any were: `[N, heads]`, as `logits`.
fn corrected(graph: &mut Graph, logits: String, corrections: &[Correction]) -> String {
    if corrections.iter().all(|&correction| correction == Correction::NONE) {
        return logits;
    }
    graph.enter("correction");
    let offsets: Vec<_> = corrections.iter().map(|correction| correction.offset() as f32).collect();
    let offsets = graph.numbers(&[offsets.len()], &offsets);
    graph.node("Add", &[&logits, &offsets], &[])
}

/// `1 / (1 + e^-z)`. Runtimes approximate the operator Sigmoid, and ONNX Runtime's approximation of small probabilities
/// is wrong in the fifth digit from z = -5 on.
fn probabilities(graph: &mut Graph, logits: &str) -> String {
    graph.enter("probability");
    let negative = graph.node("Neg", &[logits], &[]);
    let power = graph.node("Exp", &[&negative], &[]);
    let one = graph.numbers(&[], &[1.0]);
    let sum = graph.node("Add", &[&power, &one], &[]);
    graph.node("Reciprocal", &[&sum], &[])
}

#[cfg(test)]
mod tests;
