//! What is trained: the model, and what its tables and heads have of their own.

use serde::Deserialize;

use super::embedding::{Dtype, Exchange, Placement};
use super::guard::IdPolicy;
use super::optimizer::Optimizer;
use super::values::{Count, NonNegative, Positive, Width};

/// `[model]`: the family of the model, chosen by `kind`, and its sizes.
///
/// Every kind has an embedding a categorical column, pooled to one vector a bag; an MLP over the dense columns, the
/// bottom one; and an MLP that ends in one logit a head, the top one. Layers are separated by ReLU. The kinds differ in
/// what happens to the vectors in between.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(tag = "kind", deny_unknown_fields))]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// The dot products of all pairs of vectors, next to the bottom MLP's output (Naumov et al., 2019).
    Dlrm(Dlrm),
    /// A cross network over all vectors, laid end to end, before the top MLP (Wang et al., 2021; stacked, as MLPerf has
    /// it).
    Dcnv2(Dcnv2),
    /// A factorization machine beside the top MLP; their logits are added (Guo et al., 2017).
    #[serde(rename = "deepfm")]
    DeepFm(DeepFm),
    /// A linear model beside the top MLP; their logits are added (Cheng et al., 2016).
    WideDeep(WideDeep),
}

/// The settings of `kind = "dlrm"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Dlrm {
    /// Elements of every embedding.
    pub embedding_dim: Width,
    /// Units of the bottom MLP's layers; the last must be `embedding_dim`, since its output interacts with the
    /// embeddings. Empty where the dataset has no dense columns.
    #[serde(default)]
    pub bottom_mlp: Vec<Width>,
    /// Units of the top MLP's hidden layers; the last layer, to the logits, is implied.
    pub top_mlp: Vec<Width>,
}

/// The settings of `kind = "dcnv2"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Dcnv2 {
    /// Elements of an embedding, where a `[[table]]` says nothing else.
    pub embedding_dim: Width,
    /// Units of the bottom MLP's layers. Empty, the dense columns enter the cross network as they are.
    #[serde(default)]
    pub bottom_mlp: Vec<Width>,
    /// Layers of the cross network, each `x0 * (W x + b) + x` with `x0` the network's input.
    pub cross_layers: Width,
    /// The rank of `W`, which is then the product of a tall and a wide matrix. Without it `W` is a full matrix.
    pub cross_rank: Option<Width>,
    /// Units of the top MLP's hidden layers; the last layer, to the logits, is implied.
    pub top_mlp: Vec<Width>,
}

/// The settings of `kind = "deepfm"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeepFm {
    /// Elements of every embedding.
    pub embedding_dim: Width,
    /// Units of the bottom MLP's layers; the last must be `embedding_dim`, since its output interacts with the
    /// embeddings. Empty where the dataset has no dense columns.
    #[serde(default)]
    pub bottom_mlp: Vec<Width>,
    /// Units of the top MLP's hidden layers; the last layer, to the logits, is implied.
    pub top_mlp: Vec<Width>,
}

/// The settings of `kind = "wide-deep"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WideDeep {
    /// Elements of an embedding, where a `[[table]]` says nothing else.
    pub embedding_dim: Width,
    /// Units of the bottom MLP's layers. Empty, the dense columns enter the top MLP as they are.
    #[serde(default)]
    pub bottom_mlp: Vec<Width>,
    /// Units of the top MLP's hidden layers; the last layer, to the logits, is implied.
    pub top_mlp: Vec<Width>,
}

impl Model {
    /// The names of all kinds, in a job file.
    pub const KINDS: [&str; 4] = ["dlrm", "dcnv2", "deepfm", "wide-deep"];

    /// The kind's name in a job file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Dlrm(_) => "dlrm",
            Self::Dcnv2(_) => "dcnv2",
            Self::DeepFm(_) => "deepfm",
            Self::WideDeep(_) => "wide-deep",
        }
    }

    /// Elements of an embedding, where a `[[table]]` says nothing else.
    pub fn embedding_dim(&self) -> Width {
        match self {
            Self::Dlrm(model) => model.embedding_dim,
            Self::Dcnv2(model) => model.embedding_dim,
            Self::DeepFm(model) => model.embedding_dim,
            Self::WideDeep(model) => model.embedding_dim,
        }
    }

    /// Units of the bottom MLP's layers.
    pub fn bottom_mlp(&self) -> &[Width] {
        match self {
            Self::Dlrm(model) => &model.bottom_mlp,
            Self::Dcnv2(model) => &model.bottom_mlp,
            Self::DeepFm(model) => &model.bottom_mlp,
            Self::WideDeep(model) => &model.bottom_mlp,
        }
    }

    /// Units of the top MLP's hidden layers.
    pub fn top_mlp(&self) -> &[Width] {
        match self {
            Self::Dlrm(model) => &model.top_mlp,
            Self::Dcnv2(model) => &model.top_mlp,
            Self::DeepFm(model) => &model.top_mlp,
            Self::WideDeep(model) => &model.top_mlp,
        }
    }

    /// Whether vectors are multiplied with each other element by element, so that all must be equally long.
    pub fn wants_equal_dims(&self) -> bool {
        match self {
            Self::Dlrm(_) | Self::DeepFm(_) => true,
            Self::Dcnv2(_) | Self::WideDeep(_) => false,
        }
    }

    /// Whether there is a weight a row of each table and one a dense column, added to the logits: the wide part.
    pub fn is_wide(&self) -> bool {
        match self {
            Self::DeepFm(_) | Self::WideDeep(_) => true,
            Self::Dlrm(_) | Self::Dcnv2(_) => false,
        }
    }
}

/// `[[table]]`: what the table of some columns has of its own. Columns that no `[[table]]` names have a table each,
/// with the model's `embedding_dim` and the rule of `optimizer.sparse`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The categorical columns that look the table up. Several share its rows, so a row must mean the same category in
    /// all of them: one vocabulary for all, or hashing or row numbers with equally many rows.
    pub columns: Vec<String>,
    /// The table's name in the saved model. Without it, the columns' names with `+` in between.
    pub name: Option<String>,
    /// Elements of a row. Without it, the model's `embedding_dim`; kinds that multiply vectors with each other
    /// (`dlrm`, `deepfm`) admit nothing else.
    pub dim: Option<Width>,
    /// The rule for the table, with a learning rate of its own. Without it, `optimizer.sparse`.
    pub optimizer: Option<Optimizer>,
    /// What the learning rate is multiplied with, beside the schedule.
    #[serde(default = "default_learning_rate_factor")]
    pub learning_rate_factor: NonNegative,
    /// What the table's weights are stored as. Without it, `embedding.dtype`.
    pub dtype: Option<Dtype>,
    /// How the table is placed among ranks. Without it, `embedding.placement`.
    pub placement: Option<Placement>,
    /// What crosses between ranks for it. Without it, `embedding.exchange`.
    pub exchange: Option<Exchange>,
    /// What becomes of an id that is no row of it. Without it, `guard.ids_out_of_range`.
    pub ids_out_of_range: Option<IdPolicy>,
    /// The row that such ids stand for under `oov`. Without it, row 0 where columns have vocabularies.
    pub oov_row: Option<u64>,
    /// How many of its rows every rank has where it is hybrid. Without it, `embedding.frequent_rows`.
    pub frequent_rows: Option<Count>,
}

fn default_learning_rate_factor() -> NonNegative {
    NonNegative::new(1.0).expect("a constant in range")
}

impl Table {
    /// The name in the saved model.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.columns.join("+"))
    }
}

/// `[[head]]`: a label that is learnt. Without any head, all labels of the dataset are, with weight 1. The first head
/// is the one by whose AUC a model is judged.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The label column.
    pub label: String,
    /// What the head's loss counts in the sum over all heads.
    #[serde(default = "default_head_weight")]
    pub weight: Positive,
}

fn default_head_weight() -> Positive {
    Positive::new(1.0).expect("a constant in range")
}
