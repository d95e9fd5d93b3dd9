//! The interaction of a model, and all that follows from its kind without computing it: sizes, layers, limits, work.

use rankine_job as job;
use serde::{Deserialize, Serialize};

/// The most elements or members of any part. With this bound no size in this crate exceeds 64 bits.
pub(super) const COUNT_MAX: usize = 1 << 20;
/// The most cross layers, whose parameters grow with the square of the vectors' elements.
const CROSS_LAYERS_MAX: usize = 1 << 10;

/// The stage between embeddings and top MLP. If a sample has dense columns, its first *vector* is the bottom MLP's
/// output, or the dense columns themselves without a bottom MLP. The other vectors are the pooled embeddings of its
/// features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Interaction {
    /// The dot products of all pairs of vectors, after the bottom MLP's output (DLRM; Naumov et al., "Deep Learning
    /// Recommendation Model for Personalization and Recommendation Systems", 2019). Vectors have equal lengths.
    Dot,
    /// Cross layers over the concatenation `x0` of all vectors, followed by the top MLP (DCN v2, stacked; Wang et al.,
    /// "DCN V2: Improved Deep & Cross Network", 2021): `x' = x0 * (W x + b) + x`, products element by element.
    Cross {
        /// The number of layers.
        layers: usize,
        /// With a rank, `W = U V`, where U has that number of columns and V that number of rows.
        rank: Option<usize>,
    },
    /// The sum of the dot products of all pairs of vectors is added to every logit; the top MLP's input is the
    /// concatenation of the vectors (DeepFM; Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR
    /// Prediction", 2017). Vectors have equal lengths.
    FactorizationMachine,
    /// None: the top MLP's input is the concatenation of the vectors (wide & deep; Cheng et al., "Wide & Deep Learning
    /// for Recommender Systems", 2016).
    Concat,
}

/// The sizes of a sample's vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VectorSizes {
    /// The number of vectors.
    pub count: usize,
    /// Elements of all vectors.
    pub elements: usize,
    /// Elements of the vector made of the dense columns; 0 without dense columns.
    pub first: usize,
    /// Whether all have the same length.
    pub are_equal: bool,
}

/// What an interaction must move and compute per sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InteractionWork {
    /// Elements read and written.
    pub elements: usize,
    /// Multiplications and additions.
    pub flops: usize,
}

/// A layer before its inputs are known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outputs {
    pub(super) outputs: usize,
    pub(super) bias: bool,
    pub(super) relu: bool,
}

impl Interaction {
    /// Returns the interaction of a job's model.
    pub(super) fn of(model: &job::Model) -> Self {
        match model {
            job::Model::Dlrm(_) => Self::Dot,
            job::Model::Dcnv2(model) => Self::Cross {
                layers: model.cross_layers.get() as usize,
                rank: model.cross_rank.map(|rank| rank.get() as usize),
            },
            job::Model::DeepFm(_) => Self::FactorizationMachine,
            job::Model::WideDeep(_) => Self::Concat,
        }
    }

    /// Returns the number of inputs of the top MLP.
    pub(super) fn top_inputs(self, vectors: VectorSizes) -> usize {
        match self {
            Self::Dot => vectors.first + self.pairs(vectors),
            Self::Cross { .. } | Self::FactorizationMachine | Self::Concat => vectors.elements,
        }
    }

    /// Returns the number of pairs of vectors whose products are inputs of the top MLP.
    pub fn pairs(self, vectors: VectorSizes) -> usize {
        match self {
            Self::Dot => vectors.count * vectors.count.saturating_sub(1) / 2,
            Self::Cross { .. } | Self::FactorizationMachine | Self::Concat => 0,
        }
    }

    /// Returns the operations per sample of a step, forward and backward, beside the products of its layers. The
    /// planner neglects what is linear in the elements.
    pub fn flops(self, vectors: VectorSizes) -> usize {
        match self {
            Self::Dot => 3 * 2 * vectors.count * vectors.elements,
            Self::Cross { .. } | Self::FactorizationMachine | Self::Concat => 0,
        }
    }

    /// Returns what a pass must move and compute per sample, beside the products of its layers, if it reads the vectors
    /// `times` times: once in the forward pass, twice in the backward pass.
    pub fn work(self, vectors: VectorSizes, times: usize) -> InteractionWork {
        let VectorSizes { count, elements, .. } = vectors;
        match self {
            Self::Dot => InteractionWork {
                elements: times * elements + self.top_inputs(vectors),
                flops: times * (count - 1) * elements,
            },
            // Each layer reads x0, and in the backward pass the outputs of its products, too.
            Self::Cross { layers, .. } => InteractionWork { elements: times * elements * layers, flops: 0 },
            Self::FactorizationMachine => InteractionWork { elements: times * elements, flops: 0 },
            Self::Concat => InteractionWork::default(),
        }
    }

    /// Returns the layers over vectors of `width` elements: for each, the one or two products that it consists of.
    pub(super) fn layers(self, width: usize) -> Vec<Vec<Outputs>> {
        let plain = |outputs, bias| Outputs { outputs, bias, relu: false };
        match self {
            Self::Cross { layers, rank } => {
                let low_rank = rank.map(|rank| plain(rank, false));
                vec![low_rank.into_iter().chain([plain(width, true)]).collect(); layers]
            }
            Self::Dot | Self::FactorizationMachine | Self::Concat => Vec::new(),
        }
    }

    /// Checks that it suits the vectors.
    ///
    /// # Errors
    /// What does not fit, in words that complete "not a valid model: ".
    pub(super) fn validate(self, vectors: VectorSizes) -> Result<(), String> {
        match self {
            Self::Dot if vectors.count < 2 => {
                Err("the dot interaction needs two vectors, and the model has one".into())
            }
            Self::Dot | Self::FactorizationMachine if !vectors.are_equal => {
                Err("the vectors interact but have different lengths".into())
            }
            Self::Cross { layers, .. } if layers == 0 || layers > CROSS_LAYERS_MAX => {
                Err(format!("the model has {layers} cross layers"))
            }
            Self::Cross { rank: Some(rank), .. } if rank == 0 || rank > COUNT_MAX => {
                Err(format!("the cross layers have rank {rank}"))
            }
            Self::Dot | Self::Cross { .. } | Self::FactorizationMachine | Self::Concat => Ok(()),
        }
    }
}
