//! Trained models in the formats of other systems.
//!
//! A format is a [`Format`] and a module that writes its files into a folder; the folder appears complete or not at
//! all. Weights are read and written piece by piece: no table is in memory as a whole.

#![forbid(unsafe_code)]

mod onnx;
mod triton;

use std::path::Path;

use rankine_base::publish::PartialDir;
use rankine_model::logit::Correction;
use rankine_reader::IdRules;
use rankine_saved::{ModelMetadata, SavedModelError, Weights};

pub use onnx::{BagLayout, Numbers, OnnxInputs};

/// A model to export.
#[derive(Clone, Copy)]
pub struct TrainedModel<'a> {
    /// Its weights and sizes.
    pub weights: &'a dyn Weights,
    /// Its columns, which fit the sizes, and its steps.
    pub metadata: &'a ModelMetadata<'a>,
    /// What happens to ids out of range.
    pub ids: &'a IdRules,
    /// What the logits of each head are corrected by, in the model's order.
    pub corrections: &'a [Correction],
}

/// A format to export to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// ONNX, with these inputs.
    Onnx(OnnxInputs),
    /// A model of Triton Inference Server, which is ONNX with padded bags and these numbers. The folder is one of a
    /// model repository, and its name is the name of the model.
    Triton(Numbers),
}

/// Exports a model into `dir`, which appears only when it is complete and durable.
///
/// # Errors
/// [`SavedModelError::Write`], also if the format cannot have the model's columns; the errors of reading the weights.
pub fn export(dir: &Path, model: &TrainedModel<'_>, format: Format) -> Result<(), SavedModelError> {
    if let Some(table) = model.weights.spec().tables.iter().find(|table| table.dynamic.is_some()) {
        let what = format!(
            "the rows of table {} are given to ids as they come, and this format has no place for the ids: export to \
             safetensors, or score with Rankine",
            table.name
        );
        return Err(rankine_base::Error::columns(None, what).into());
    }
    let partial = PartialDir::create(dir)?;
    match format {
        Format::Onnx(inputs) => drop(onnx::write(partial.path(), model, inputs)?),
        Format::Triton(numbers) => triton::write(partial.path(), dir, (model, numbers))?,
    }
    Ok(partial.publish()?)
}
