//! Attention over sequences: which features are the attributes of a sequence, and how the weight of each position is
//! computed.

use rankine_reader::schema::Keep;
use serde::{Deserialize, Serialize};

use super::interaction::Outputs;

/// The most elements of the vectors of a sequence's positions: 256 MB.
pub(super) const POSITION_ELEMENTS_MAX: usize = 1 << 26;

/// Attention over a sequence. Its attributes are features whose bags have the same number of ids in each sample: a
/// *position* of the sequence has one id of each. The *key* of a position is the concatenation of its rows. The sum of
/// the keys, each times the weight of its position, takes the place of the pooled embeddings of the attributes; an
/// empty sequence yields zeros.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    /// The name of the sequence.
    pub sequence: String,
    /// The numbers of the features that are its attributes.
    pub features: Vec<usize>,
    /// The most positions of a sample.
    pub length_max: usize,
    /// How the weight of a position is computed.
    pub unit: AttentionUnit,
    /// If present, each position has a learned vector that is added to its key. Position 0 is at this end of a
    /// sample's sequence, the end that remains of a longer one, so that what is cut off changes no other position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position_embedding: Option<Keep>,
}

/// How the weight of a position is computed. The query of a sample is the concatenation of the vectors of some
/// features, one per attribute, with as many elements as a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AttentionUnit {
    /// The output of an MLP over query, key, query - key and query * key (DIN's activation unit; Zhou et al., "Deep
    /// Interest Network for Click-Through Rate Prediction", 2018). Weights are not normalized.
    Din {
        /// The numbers of the features of the query.
        query: Vec<usize>,
        /// Outputs of the MLP's hidden layers, each followed by a ReLU.
        hidden: Vec<usize>,
    },
    /// The softmax, over the positions of a sample, of the dot product of query and key divided by the root of their
    /// elements (Vaswani et al., "Attention Is All You Need", 2017).
    Dot {
        /// The numbers of the features of the query.
        query: Vec<usize>,
    },
    /// All positions of a sample have the same weight: one divided by their number.
    Mean,
}

impl AttentionUnit {
    /// Returns the numbers of the features of the query; none if the weights do not depend on it.
    pub fn query(&self) -> &[usize] {
        match self {
            Self::Din { query, .. } | Self::Dot { query } => query,
            Self::Mean => &[],
        }
    }

    /// Returns the layers of the unit's MLP; none if it has no MLP.
    pub(super) fn layers(&self) -> Vec<Outputs> {
        let Self::Din { hidden, .. } = self else { return Vec::new() };
        let hidden = hidden.iter().map(|&outputs| Outputs { outputs, bias: true, relu: true });
        hidden.chain([Outputs { outputs: 1, bias: true, relu: false }]).collect()
    }
}
