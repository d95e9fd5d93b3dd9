//! State dicts of PyTorch's DLRMs, saved as safetensors: which of their tensors is which weight of a model.
//!
//! Both implementations concatenate the output of the bottom MLP with the products of pairs of vectors. The reference
//! lists the pairs as Rankine does: 1 with 0, 2 with 0, 2 with 1, ... TorchRec lists them as 0 with 1, 0 with 2, ..., 1
//! with 2, ... So the columns of the first top layer are permuted, and outputs stay the same.

mod names;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rankine_base::files::open_regular;
use rankine_embedding::Dtype;
use rankine_model::{Interaction, ModelSpec};
use rankine_reader::Schema;
use safetensors::tensor::{self, Metadata};

use super::mapped::HEADER_BYTES_MAX;
use super::{GATHER_BYTES, SavedModelError, Tensor, Weights};

pub use names::Origin;
use names::{Part, TensorName};

/// A state dict does not fit a dataset, or cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateDictError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is not what safetensors writes.
    #[error(
        "{} is not a safetensors file: {what}. Save the state dict with `safetensors.torch.save_file(\
         model.state_dict(), PATH)`",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A tensor is of no DLRM, or of another implementation than the others.
    #[error(
        "{}: the tensor {name} is not part of {origin}; remove it from the state dict before saving, if it is no \
         weight", path.display()
    )]
    Extra {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What the other tensors are of; `a DLRM` without any.
        origin: String,
    },
    /// A tensor is missing.
    #[error("{}: there is no tensor {name}, {needed}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What needs it.
        needed: String,
    },
    /// A tensor has another shape than the model of the dataset.
    #[error(
        "{}: the tensor {name} is {found:?}, but the model of the dataset needs {expected:?}: {why}",
        path.display()
    )]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its dimensions.
        found: Vec<usize>,
        /// Those that fit.
        expected: Vec<usize>,
        /// Where they come from.
        why: String,
    },
    /// A tensor's elements are not numbers of a type that weights have.
    #[error(
        "{}: the tensor {name} has elements of type {found}: convert it with `tensor.float()` before saving",
        path.display()
    )]
    Elements {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Their type.
        found: String,
    },
}

/// The tensors of a DLRM, whose elements are still in the file.
#[derive(Debug)]
pub struct StateDict {
    path: PathBuf,
    file: File,
    origin: Origin,
    tensors: BTreeMap<TensorName, Stored>,
}

/// A tensor in the file.
#[derive(Debug, Clone)]
struct Stored {
    name: String,
    shape: Vec<usize>,
    dtype: Dtype,
    begin: u64,
}

/// The widths that a job states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDictSizes {
    /// Elements of a row of the tables.
    pub embedding_dim: usize,
    /// Outputs of the bottom MLP's layers.
    pub bottom_mlp: Vec<usize>,
    /// Outputs of the top MLP's hidden layers.
    pub top_mlp: Vec<usize>,
}

impl StateDict {
    /// Opens a file of safetensors, and finds out whose tensors it has.
    ///
    /// # Errors
    /// [`StateDictError::Read`], [`StateDictError::Format`], [`StateDictError::Extra`], [`StateDictError::Elements`].
    pub fn open(path: &Path) -> Result<Self, StateDictError> {
        let read = |source| StateDictError::Read { path: path.to_owned(), source };
        let format = |what: String| StateDictError::Format { path: path.to_owned(), what };
        let file = open_regular(path).map_err(read)?;
        let bytes = file.metadata().map_err(read)?.len();
        let mut length = [0; 8];
        if bytes < 8 {
            return Err(format(format!("it has {bytes} bytes")));
        }
        file.read_exact_at(&mut length, 0).map_err(read)?;
        let length = u64::from_le_bytes(length);
        if length > HEADER_BYTES_MAX || length > bytes - 8 {
            return Err(format(format!("a header of {length} bytes is too long")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8).map_err(read)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| format(error.to_string()))?;
        let begin = 8 + length;
        if metadata.data_len() as u64 != bytes - begin {
            return Err(format(
                "its length does not fit its tensors: check that it was copied completely".into(),
            ));
        }
        // The header has no order.
        let stored: BTreeMap<_, _> = metadata.tensors().into_iter().collect();
        let origin = most_common_origin(stored.keys());
        let mut tensors = BTreeMap::new();
        for (name, info) in stored {
            let extra = || StateDictError::Extra {
                path: path.to_owned(),
                name: name.clone(),
                origin: origin.map_or_else(|| "a DLRM".into(), |origin| origin.to_string()),
            };
            let (of, parsed) = TensorName::parse(&name).ok_or_else(extra)?;
            if Some(of) != origin {
                return Err(extra());
            }
            let dtype = match info.dtype {
                tensor::Dtype::F32 => Dtype::Fp32,
                tensor::Dtype::F16 => Dtype::Fp16,
                tensor::Dtype::BF16 => Dtype::Bf16,
                other => {
                    let found = format!("{other:?}");
                    return Err(StateDictError::Elements { path: path.to_owned(), name, found });
                }
            };
            let begin = begin + info.data_offsets.0 as u64;
            let stored = Stored { name: name.clone(), shape: info.shape.clone(), dtype, begin };
            if tensors.insert(parsed, stored).is_some() {
                return Err(extra());
            }
        }
        let origin = origin.ok_or_else(|| format("it has no tensors".into()))?;
        Ok(Self { path: path.to_owned(), file, origin, tensors })
    }

    /// Returns who wrote the model.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the widths of its layers and rows.
    ///
    /// # Errors
    /// [`StateDictError::Missing`] if it has no table or no layer; [`StateDictError::Shape`] if a weight is no matrix.
    pub fn sizes(&self) -> Result<StateDictSizes, StateDictError> {
        let outputs = |part: Part| Ok::<_, StateDictError>(self.matrix(&TensorName::weight(part))?[0]);
        let count = |is_in: fn(&Part) -> bool| {
            self.tensors.keys().filter(|name| !name.is_bias && is_in(&name.part)).count()
        };
        let bottoms = count(|part| matches!(part, Part::Bottom(_)));
        let mut tops = count(|part| matches!(part, Part::Top(_)));
        if self.origin == Origin::Reference {
            // The last one gives the logits.
            tops = tops.saturating_sub(1);
        }
        let table = self.tensors.keys().find(|name| matches!(name.part, Part::Table(_)));
        let table = table.cloned().unwrap_or_else(|| TensorName::weight(Part::Table("0".into())));
        Ok(StateDictSizes {
            embedding_dim: self.matrix(&table)?[1],
            bottom_mlp: (0..bottoms).map(|layer| outputs(Part::Bottom(layer))).collect::<Result<_, _>>()?,
            top_mlp: (0..tops).map(|layer| outputs(Part::Top(layer))).collect::<Result<_, _>>()?,
        })
    }

    fn matrix(&self, name: &TensorName) -> Result<[usize; 2], StateDictError> {
        let stored = self.stored(name, "which a DLRM has")?;
        <[usize; 2]>::try_from(stored.shape.as_slice()).map_err(|_| StateDictError::Shape {
            path: self.path.clone(),
            name: stored.name.clone(),
            found: stored.shape.clone(),
            expected: vec![0, 0],
            why: "a weight is a matrix".into(),
        })
    }

    fn stored(&self, name: &TensorName, needed: &str) -> Result<&Stored, StateDictError> {
        self.tensors.get(name).ok_or_else(|| StateDictError::Missing {
            path: self.path.clone(),
            name: name.of(self.origin),
            needed: needed.to_owned(),
        })
    }

    /// Returns the weights of a model that was made of [`StateDict::sizes`] and the columns of a dataset. The k-th
    /// table of the reference is the k-th column's; a table of TorchRec has its column's name, with or without `t_`, or
    /// is `t_cat_K` for the K-th column.
    ///
    /// # Errors
    /// [`StateDictError::Missing`], [`StateDictError::Extra`] and [`StateDictError::Shape`].
    pub fn weights(&self, spec: ModelSpec, schema: &Schema) -> Result<StateDictWeights<'_>, StateDictError> {
        let mut left = self.tensors.clone();
        let mut sources = Vec::new();
        for Tensor { name, shape, .. } in Tensor::all_of(&spec, 1) {
            let (own, needed, why) = self.counterpart(&name, &spec, schema);
            let stored = self.stored(&own, &needed)?.clone();
            if stored.shape != shape {
                return Err(StateDictError::Shape {
                    path: self.path.clone(),
                    name: stored.name,
                    found: stored.shape,
                    expected: shape,
                    why,
                });
            }
            left.remove(&own);
            let columns =
                (name == "top.0.weight" && self.origin == Origin::TorchRec).then(|| torchrec_columns(&spec));
            sources.push(Source { stored, columns });
        }
        match left.into_values().next() {
            None => Ok(StateDictWeights { dict: self, spec, sources }),
            Some(stored) => Err(StateDictError::Extra {
                path: self.path.clone(),
                name: stored.name,
                origin: format!("a model of the dataset's {} categorical columns", spec.features.len()),
            }),
        }
    }

    /// Returns the tensor that a tensor of a model corresponds to, what needs it, and what decides on its shape.
    fn counterpart(&self, name: &str, spec: &ModelSpec, schema: &Schema) -> (TensorName, String, String) {
        let (part, kind) = name.rsplit_once('.').unwrap_or((name, ""));
        let layer = |number: &str| number.parse::<usize>().unwrap_or(0);
        if let Some(table) = name.strip_prefix("embedding.") {
            let number = spec.features.iter().position(|feature| spec.tables[feature.table].name == table);
            let number = number.unwrap_or(0);
            let column = &schema.categorical[number];
            let names = match self.origin {
                Origin::Reference => vec![number.to_string()],
                Origin::TorchRec => {
                    let name = &column.name;
                    vec![format!("t_{name}"), name.clone(), format!("t_cat_{number}")]
                }
            };
            let mut tables = names.into_iter().map(|name| TensorName::weight(Part::Table(name)));
            let first = tables.next().expect("each column has a name");
            let own = match self.tensors.contains_key(&first) {
                true => first,
                false => tables.find(|name| self.tensors.contains_key(name)).unwrap_or(first),
            };
            let needed = format!("the table of column {}", column.name);
            return (own, needed, format!("column {} has {}", column.name, column.table()));
        }
        let bottom = part.strip_prefix("bottom.").map(|number| Part::Bottom(layer(number)));
        let top = part.strip_prefix("top.").map(|number| match layer(number) {
            last if last == spec.top_mlp.len() && self.origin == Origin::TorchRec => Part::Last,
            number => Part::Top(number),
        });
        let part = bottom.or(top).unwrap_or(Part::Last);
        let why = format!(
            "it has {} dense columns, {} categorical columns and {} labels",
            schema.dense.len(),
            schema.categorical.len(),
            schema.labels.len()
        );
        let is_bias = kind == "bias";
        (TensorName { part, is_bias }, "which its other tensors need".into(), why)
    }
}

/// Returns the implementation that most of the names belong to; `None` if no DLRM has any of them.
fn most_common_origin<'a>(names: impl Iterator<Item = &'a String>) -> Option<Origin> {
    let origins: Vec<_> = names.filter_map(|name| Some(TensorName::parse(name)?.0)).collect();
    let torchrec = origins.iter().filter(|&&origin| origin == Origin::TorchRec).count();
    let most_common = if torchrec * 2 > origins.len() { Origin::TorchRec } else { Origin::Reference };
    (!origins.is_empty()).then_some(most_common)
}

/// Returns the column of TorchRec's first top layer for each column of Rankine's.
fn torchrec_columns(spec: &ModelSpec) -> Vec<usize> {
    debug_assert_eq!(spec.interaction, Interaction::Dot);
    let (dense, count) = (spec.bottom_outputs(), spec.vectors());
    // Row `a` of the upper triangle comes after the rows before it, of `count - 1`, `count - 2`, ... pairs.
    let of_pair = |a: usize, b: usize| a * count - a * (a + 1) / 2 + (b - a - 1);
    let pairs = (0..count).flat_map(|b| (0..b).map(move |a| dense + of_pair(a, b)));
    (0..dense).chain(pairs).collect()
}

/// The weights of a model, in a state dict.
#[derive(Debug)]
pub struct StateDictWeights<'a> {
    dict: &'a StateDict,
    spec: ModelSpec,
    /// In the order of [`Tensor::all_of`].
    sources: Vec<Source>,
}

#[derive(Debug)]
struct Source {
    stored: Stored,
    /// The column of the stored matrix for each column of the model's, if they differ.
    columns: Option<Vec<usize>>,
}

impl StateDictWeights<'_> {
    /// Reads consecutive elements of a tensor.
    fn read(&self, stored: &Stored, elements: Range<usize>) -> Result<Vec<f32>, SavedModelError> {
        let size = stored.dtype.bytes();
        let mut bytes = vec![0; elements.len() * size];
        let at = stored.begin + (elements.start * size) as u64;
        let read = self.dict.file.read_exact_at(&mut bytes, at);
        read.map_err(|source| SavedModelError::Read { path: self.dict.path.clone(), source })?;
        let mut weights = vec![0.0; elements.len()];
        stored.dtype.read_all(&bytes, &mut weights);
        Ok(weights)
    }
}

impl Weights for StateDictWeights<'_> {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn try_for_each_run(
        &self,
        visit: &mut dyn FnMut(&[f32]) -> Result<(), SavedModelError>,
    ) -> Result<(), SavedModelError> {
        for Source { stored, columns } in &self.sources {
            let all = stored.shape.iter().product::<usize>();
            // Whole rows, so that their columns can be permuted.
            let row = stored.shape.last().copied().unwrap_or(1).max(1);
            let at_once = (GATHER_BYTES / 4 / row).max(1) * row;
            for first in (0..all).step_by(at_once) {
                let weights = self.read(stored, first..all.min(first + at_once))?;
                match columns {
                    None => visit(&weights)?,
                    Some(columns) => {
                        let rows = weights.chunks_exact(row);
                        let permuted = rows.flat_map(|row| columns.iter().map(|&column| row[column]));
                        visit(&permuted.collect::<Vec<_>>())?;
                    }
                }
            }
        }
        Ok(())
    }
}
