//! A model in a repository of Triton Inference Server: `config.pbtxt`, the ONNX model as version 1, and beside them the
//! columns and vocabularies, which Triton ignores.

use std::fmt::Write;
use std::path::Path;

use rankine_base::Error;
use rankine_base::publish::create_folders;
use rankine_reader::write::write_file;
use rankine_saved::{SavedModelError, write_vocabularies};

use super::TrainedModel;
use super::onnx::proto::tensor_proto::DataType;
use super::onnx::proto::tensor_shape_proto::dimension::Value;
use super::onnx::proto::{GraphProto, ValueInfoProto, type_proto};
use super::onnx::{self, Numbers, OnnxInputs};

const CONFIG_NAME: &str = "config.pbtxt";
const MAPPING_NAME: &str = "mapping.json";
const VERSION: &str = "1";
/// The most rows that Triton computes at a time, from one or several requests.
const ROWS_MAX: usize = 8192;

/// Writes the files of a model into a folder, which will be renamed to `target`.
pub(super) fn write(
    dir: &Path,
    target: &Path,
    (model, numbers): (&TrainedModel<'_>, Numbers),
) -> Result<(), SavedModelError> {
    let name = target.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        let what = format!("{} has no name for the model: name a folder of the repository", target.display());
        Error::unsuitable(target, what)
    })?;
    let version = dir.join(VERSION);
    create_folders(&version)?;
    // Triton joins the rows of requests, which padded bags have, and offsets do not.
    let inputs = OnnxInputs { numbers, ..OnnxInputs::default() };
    let graph = onnx::write(&version, model, inputs)?;
    write_file(dir, CONFIG_NAME, config(name, &graph).as_bytes())?;
    write_file(dir, MAPPING_NAME, model.metadata.columns.to_json().as_bytes())?;
    write_vocabularies(dir, model.metadata)?;
    Ok(())
}

/// The text of `config.pbtxt`.
fn config(name: &str, graph: &GraphProto) -> String {
    let list = |values: &[ValueInfoProto]| {
        let tensors = values.iter().map(|value| format!("  {{ {} }}", Tensor::of(value).declared()));
        tensors.collect::<Vec<_>>().join(",\n")
    };
    let (inputs, outputs) = (list(&graph.input), list(&graph.output));
    let mut out = format!(
        "name: {}\nbackend: \"onnxruntime\"\nmax_batch_size: {ROWS_MAX}\ninput [\n{inputs}\n]\noutput [\n{outputs}\n]\n\
         # Requests that wait are computed together.\ndynamic_batching {{ }}\n\
         # The first request would otherwise wait for pages of the tables and buffers.\nmodel_warmup [\n",
        quoted(name)
    );
    let warm_ups = [("one row", 1), ("many rows", 64)].map(|(name, rows)| {
        let mut text = format!("  {{\n    name: {}\n    batch_size: {rows}\n", quoted(name));
        for input in &graph.input {
            writeln!(text, "    inputs {{ {} }}", Tensor::of(input).zeros())
                .expect("a string takes any text");
        }
        text + "  }"
    });
    out += &warm_ups.join(",\n");
    out + "\n]\n"
}

/// An input or output, without its first dimension, which is the rows of a batch.
struct Tensor<'a> {
    name: &'a str,
    of: &'static str,
    /// -1 for any size.
    dims: Vec<i64>,
}

impl<'a> Tensor<'a> {
    fn of(info: &'a ValueInfoProto) -> Self {
        let Some(type_proto::Value::TensorType(tensor)) =
            info.r#type.as_ref().and_then(|of| of.value.as_ref())
        else {
            unreachable!("all values of the graph are tensors")
        };
        let of = match tensor.elem_type() {
            value if value == DataType::Double as i32 => "TYPE_FP64",
            value if value == DataType::Int64 as i32 => "TYPE_INT64",
            _ => "TYPE_FP32",
        };
        let dims = tensor.shape.iter().flat_map(|shape| &shape.dim).skip(1);
        let dims = dims.map(|dim| match dim.value {
            Some(Value::DimValue(size)) => size,
            Some(Value::DimParam(_)) | None => -1,
        });
        Self { name: info.name(), of, dims: dims.collect() }
    }

    /// Its declaration. Triton knows no input without dimensions: a client sends `[N, 1]`, and the model gets `[N]`.
    fn declared(&self) -> String {
        let Self { name, of, dims } = self;
        let name = quoted(name);
        match dims.is_empty() {
            true => format!("name: {name} data_type: {of} dims: [ 1 ] reshape: {{ shape: [ ] }}"),
            false => format!("name: {name} data_type: {of} dims: [ {} ]", joined(dims)),
        }
    }

    /// The input of a warm-up: zeros, with one id where any number is possible.
    fn zeros(&self) -> String {
        let dims: Vec<_> = self.dims.iter().map(|&size| size.max(1)).collect();
        let dims = if dims.is_empty() { "1".into() } else { joined(&dims) };
        let (name, of) = (quoted(self.name), self.of);
        format!("key: {name} value: {{ data_type: {of} dims: [ {dims} ] zero_data: true }}")
    }
}

fn joined(dims: &[i64]) -> String {
    dims.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

/// A string of protobuf's text format.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
