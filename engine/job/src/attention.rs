//! `[[attention]]`: how a sequence of the dataset becomes the vectors of its columns.

use serde::Deserialize;

use super::settings::{Kind, Settings, kinds};
use super::values::Width;

/// `[[attention]]`: attention over a sequence of the dataset, chosen by `kind`.
///
/// A sequence is several categorical columns with the same number of ids in each sample. The key of a position is the
/// concatenation of the rows of its ids; the query of a sample is the concatenation of the vectors of other columns,
/// such as the item to be ranked. Attention gives each position a weight, and sums the keys times their weights. The
/// sum takes the place of the pooled embeddings of the columns of the sequence: one vector for each. An empty sequence
/// yields zeros. Without an `[[attention]]`, the columns of a sequence are pooled as all others are.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(tag = "kind", deny_unknown_fields))]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// An MLP computes the weight of a position from query, key, query - key and query * key (Zhou et al., 2018). ReLU
    /// follows its hidden layers; weights are not normalized.
    Din(DinAttention),
    /// The weights are the softmax of the dot products of query and key, divided by the root of their elements
    /// (Vaswani et al., 2017).
    Dot(DotAttention),
    /// All positions of a sample have the same weight: their mean.
    Mean(MeanAttention),
}

/// The settings of `kind = "din"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DinAttention {
    /// The sequence. Each has at most one `[[attention]]`.
    pub sequence: String,
    /// The categorical columns of the query: one for each column of the sequence, in their order, with vectors of the
    /// same length. They usually share a table with it.
    pub query: Vec<String>,
    /// Widths of the hidden layers of the MLP. A last layer, one weight per position, is added to them.
    #[serde(default = "default_hidden")]
    pub hidden: Vec<Width>,
    /// Whether each position has a learned vector, which is added to its key. Positions are counted from the end that
    /// the sequence keeps: from the last one with `keep = "last"`, so that the most recent item always has the same
    /// vector. All vectors start at 0.
    #[serde(default)]
    pub position_embedding: bool,
}

/// The settings of `kind = "dot"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DotAttention {
    /// The sequence. Each has at most one `[[attention]]`.
    pub sequence: String,
    /// The categorical columns of the query: one for each column of the sequence, in their order, with vectors of the
    /// same length. They usually share a table with it.
    pub query: Vec<String>,
    /// Whether each position has a learned vector, which is added to its key. Positions are counted from the end that
    /// the sequence keeps: from the last one with `keep = "last"`, so that the most recent item always has the same
    /// vector. All vectors start at 0.
    #[serde(default)]
    pub position_embedding: bool,
}

/// The settings of `kind = "mean"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MeanAttention {
    /// The sequence. Each has at most one `[[attention]]`.
    pub sequence: String,
}

fn default_hidden() -> Vec<Width> {
    vec![Width::new(36).expect("a constant in range")]
}

kinds! {
    Attention: DinAttention "din", DotAttention "dot", MeanAttention "mean";
}

impl Attention {
    /// Returns the name of the kind in a job file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Din(_) => DinAttention::NAME,
            Self::Dot(_) => DotAttention::NAME,
            Self::Mean(_) => MeanAttention::NAME,
        }
    }

    /// Returns the name of the sequence.
    pub fn sequence(&self) -> &str {
        match self {
            Self::Din(DinAttention { sequence, .. })
            | Self::Dot(DotAttention { sequence, .. })
            | Self::Mean(MeanAttention { sequence }) => sequence,
        }
    }

    /// Returns the columns of the query; none if the kind has no query.
    pub fn query(&self) -> &[String] {
        match self {
            Self::Din(DinAttention { query, .. }) | Self::Dot(DotAttention { query, .. }) => query,
            Self::Mean(_) => &[],
        }
    }

    /// Returns whether each position has a learned vector. Those of a mean would only depend on its length.
    pub fn position_embedding(&self) -> bool {
        match self {
            Self::Din(DinAttention { position_embedding, .. })
            | Self::Dot(DotAttention { position_embedding, .. }) => *position_embedding,
            Self::Mean(_) => false,
        }
    }
}

impl DinAttention {
    /// Returns the settings of an activation unit over a sequence, with these columns as its query.
    pub fn new<C: AsRef<str>>(sequence: &str, query: impl IntoIterator<Item = C>) -> Settings<Self> {
        Self::settings().set("sequence", sequence).set("query", names(query))
    }
}

impl Settings<DinAttention> {
    /// Sets the widths of the hidden layers.
    pub fn hidden(self, widths: impl IntoIterator<Item = u32>) -> Self {
        self.set("hidden", Vec::from_iter(widths))
    }

    /// Sets whether each position has a learned vector.
    pub fn position_embedding(self, has: bool) -> Self {
        self.set("position_embedding", has)
    }
}

impl DotAttention {
    /// Returns the settings of dot-product attention over a sequence, with these columns as its query.
    pub fn new<C: AsRef<str>>(sequence: &str, query: impl IntoIterator<Item = C>) -> Settings<Self> {
        Self::settings().set("sequence", sequence).set("query", names(query))
    }
}

impl Settings<DotAttention> {
    /// Sets whether each position has a learned vector.
    pub fn position_embedding(self, has: bool) -> Self {
        self.set("position_embedding", has)
    }
}

impl MeanAttention {
    /// Returns the settings of the mean over a sequence.
    pub fn new(sequence: &str) -> Settings<Self> {
        Self::settings().set("sequence", sequence)
    }
}

fn names<C: AsRef<str>>(columns: impl IntoIterator<Item = C>) -> Vec<String> {
    columns.into_iter().map(|column| column.as_ref().to_owned()).collect()
}
