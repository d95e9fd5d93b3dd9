//! `[model]`, `[[table]]` and `[[head]]`: the model, and the settings of single tables and heads.

use serde::Deserialize;

use super::dynamic::TableRows;
use super::embedding::{Dtype, Exchange, Placement, Tier};
use super::guard::IdPolicy;
use super::optimizer::Optimizer;
use super::settings::{Kind, Settings, kinds};
use super::values::{Count, NonNegative, Positive, Width};

/// `[model]`: the model family, chosen by `kind`, and its sizes.
///
/// Every kind has an embedding table for each categorical column, pooled to one vector per bag; a bottom MLP over the
/// dense columns; and a top MLP that ends in one logit per head. ReLU separates the layers. The kinds differ in how the
/// vectors interact in between.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(tag = "kind", deny_unknown_fields))]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// Dot products of all pairs of vectors, concatenated with the bottom MLP's output (Naumov et al., 2019).
    Dlrm(Dlrm),
    /// A cross network over the concatenated vectors, followed by the top MLP (Wang et al., 2021; the stacked variant,
    /// as in MLPerf).
    Dcnv2(Dcnv2),
    /// A factorization machine in parallel with the top MLP; their logits are added (Guo et al., 2017).
    #[serde(rename = "deepfm")]
    DeepFm(DeepFm),
    /// A linear model in parallel with the top MLP; their logits are added (Cheng et al., 2016).
    WideDeep(WideDeep),
}

/// The settings of `kind = "dlrm"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Dlrm {
    /// Elements of every embedding vector.
    pub embedding_dim: Width,
    /// Widths of the bottom MLP's layers. The last must be `embedding_dim`, since its output interacts with the
    /// embeddings. Empty if the dataset has no dense columns.
    #[serde(default)]
    pub bottom_mlp: Vec<Width>,
    /// Widths of the top MLP's hidden layers. The output layer is added to them.
    pub top_mlp: Vec<Width>,
}

/// The settings of `kind = "dcnv2"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Dcnv2 {
    /// Elements of an embedding vector. A `[[table]]` can override it.
    pub embedding_dim: Width,
    /// Widths of the bottom MLP's layers. If empty, the dense columns are inputs of the cross network.
    #[serde(default)]
    pub bottom_mlp: Vec<Width>,
    /// Number of layers of the cross network. A layer computes `x0 * (W x + b) + x`, with `x0` the network's input.
    pub cross_layers: Width,
    /// Rank of `W`, which is then the product of two low-rank matrices. Without it, `W` is a full matrix.
    pub cross_rank: Option<Width>,
    /// Widths of the top MLP's hidden layers. The output layer is added to them.
    pub top_mlp: Vec<Width>,
}

/// The settings of `kind = "deepfm"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeepFm {
    /// Elements of every embedding vector.
    pub embedding_dim: Width,
    /// Widths of the bottom MLP's layers. The last must be `embedding_dim`, since its output interacts with the
    /// embeddings. Empty if the dataset has no dense columns.
    #[serde(default)]
    pub bottom_mlp: Vec<Width>,
    /// Widths of the top MLP's hidden layers. The output layer is added to them.
    pub top_mlp: Vec<Width>,
}

/// The settings of `kind = "wide-deep"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WideDeep {
    /// Elements of an embedding vector. A `[[table]]` can override it.
    pub embedding_dim: Width,
    /// Widths of the bottom MLP's layers. If empty, the dense columns are inputs of the top MLP.
    #[serde(default)]
    pub bottom_mlp: Vec<Width>,
    /// Widths of the top MLP's hidden layers. The output layer is added to them.
    pub top_mlp: Vec<Width>,
}

/// What all models of a kind have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelKind {
    /// The name in a job file.
    pub name: &'static str,
    /// Whether vectors are multiplied with each other, so that all must have the same length.
    pub multiplies_vectors: bool,
    /// Whether there is a wide part: one weight per table row and per dense column, added to the logits.
    pub is_wide: bool,
}

/// A key that only one kind has, for writing it.
pub(crate) struct OwnKey {
    pub(crate) name: &'static str,
    /// `None` if it is not set.
    pub(crate) value: Option<String>,
    /// What applies if it is not set.
    pub(crate) otherwise: &'static str,
}

/// The settings of a model, of whatever kind.
pub(crate) struct ModelParts<'a> {
    pub(crate) kind: ModelKind,
    pub(crate) embedding_dim: Width,
    pub(crate) bottom_mlp: &'a [Width],
    pub(crate) top_mlp: &'a [Width],
    pub(crate) own: Vec<OwnKey>,
}

kinds! {
    Model: Dlrm "dlrm", Dcnv2 "dcnv2", DeepFm "deepfm", WideDeep "wide-deep";
}

impl Model {
    /// All kinds.
    pub const KINDS: [ModelKind; 4] = [
        ModelKind { name: Dlrm::NAME, multiplies_vectors: true, is_wide: false },
        ModelKind { name: Dcnv2::NAME, multiplies_vectors: false, is_wide: false },
        ModelKind { name: DeepFm::NAME, multiplies_vectors: true, is_wide: true },
        ModelKind { name: WideDeep::NAME, multiplies_vectors: false, is_wide: true },
    ];

    pub(crate) fn parts(&self) -> ModelParts<'_> {
        let [dlrm, dcnv2, deepfm, wide_deep] = Self::KINDS;
        let (kind, embedding_dim, bottom_mlp, top_mlp, own) = match self {
            Self::Dlrm(Dlrm { embedding_dim, bottom_mlp, top_mlp }) => {
                (dlrm, embedding_dim, bottom_mlp, top_mlp, Vec::new())
            }
            Self::Dcnv2(Dcnv2 { embedding_dim, bottom_mlp, cross_layers, cross_rank, top_mlp }) => {
                let rank = cross_rank.map(|rank| rank.to_string());
                let own = vec![
                    OwnKey { name: "cross_layers", value: Some(cross_layers.to_string()), otherwise: "" },
                    OwnKey { name: "cross_rank", value: rank, otherwise: "full matrices" },
                ];
                (dcnv2, embedding_dim, bottom_mlp, top_mlp, own)
            }
            Self::DeepFm(DeepFm { embedding_dim, bottom_mlp, top_mlp }) => {
                (deepfm, embedding_dim, bottom_mlp, top_mlp, Vec::new())
            }
            Self::WideDeep(WideDeep { embedding_dim, bottom_mlp, top_mlp }) => {
                (wide_deep, embedding_dim, bottom_mlp, top_mlp, Vec::new())
            }
        };
        ModelParts { kind, embedding_dim: *embedding_dim, bottom_mlp, top_mlp, own }
    }

    /// Returns the kind.
    pub fn kind(&self) -> ModelKind {
        self.parts().kind
    }

    /// Returns the length of embedding vectors, unless a `[[table]]` overrides it.
    pub fn embedding_dim(&self) -> Width {
        self.parts().embedding_dim
    }

    /// Returns the widths of the bottom MLP's layers.
    pub fn bottom_mlp(&self) -> &[Width] {
        self.parts().bottom_mlp
    }

    /// Returns the widths of the top MLP's hidden layers.
    pub fn top_mlp(&self) -> &[Width] {
        self.parts().top_mlp
    }
}

impl Dlrm {
    /// Returns the settings of a DLRM with embedding vectors of this many elements.
    pub fn new(embedding_dim: u32) -> Settings<Self> {
        Self::settings().set("embedding_dim", embedding_dim)
    }
}

impl Dcnv2 {
    /// Returns the settings of a DCN v2 with embedding vectors of this many elements and this many cross layers.
    pub fn new(embedding_dim: u32, cross_layers: u32) -> Settings<Self> {
        Self::settings().set("embedding_dim", embedding_dim).set("cross_layers", cross_layers)
    }
}

impl DeepFm {
    /// Returns the settings of a DeepFM with embedding vectors of this many elements.
    pub fn new(embedding_dim: u32) -> Settings<Self> {
        Self::settings().set("embedding_dim", embedding_dim)
    }
}

impl WideDeep {
    /// Returns the settings of a wide & deep model with embedding vectors of this many elements.
    pub fn new(embedding_dim: u32) -> Settings<Self> {
        Self::settings().set("embedding_dim", embedding_dim)
    }
}

impl<K: Kind<Model>> Settings<K> {
    /// Sets the widths of the bottom MLP's layers.
    pub fn bottom(self, widths: impl IntoIterator<Item = u32>) -> Self {
        self.set("bottom_mlp", Vec::from_iter(widths))
    }

    /// Sets the widths of the top MLP's hidden layers.
    pub fn top(self, widths: impl IntoIterator<Item = u32>) -> Self {
        self.set("top_mlp", Vec::from_iter(widths))
    }
}

/// `[[table]]`: settings of one table, which one or more columns use. Each column that no `[[table]]` names has its
/// own table, with the model's `embedding_dim` and the optimizer `optimizer.sparse`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The categorical columns that use the table. If there are several, they share its rows, so a row must mean
    /// the same category in all of them: they share one exact vocabulary, or use hashing or ids with the same number
    /// of rows.
    pub columns: Vec<String>,
    /// Makes the table dynamic: its rows are given to ids as they come, and the columns may have different numbers of
    /// rows. Without it, each id of the columns has its own row.
    pub rows: Option<TableRows>,
    /// Name of the table in the saved model. Without it, the names of the columns, joined with `+`.
    pub name: Option<String>,
    /// Elements of a row. Without it, the model's `embedding_dim`, which `dlrm` and `deepfm` require: they multiply the
    /// vectors of all columns with each other.
    pub dim: Option<Width>,
    /// Optimizer of the table, with its own learning rate. Without it, `optimizer.sparse`.
    pub optimizer: Option<Optimizer>,
    /// Factor of the learning rate, in addition to the schedule.
    #[serde(default = "default_learning_rate_factor")]
    pub learning_rate_factor: NonNegative,
    /// Type of the table's weights. Without it, `embedding.dtype`.
    pub dtype: Option<Dtype>,
    /// Placement of the table. Without it, `embedding.placement`.
    pub placement: Option<Placement>,
    /// What ranks exchange for the table. Without it, `embedding.exchange`.
    pub exchange: Option<Exchange>,
    /// What to do with an id outside of the table. Without it, `guard.ids_out_of_range`.
    pub ids_out_of_range: Option<IdPolicy>,
    /// The row that replaces such ids under `oov`. Without it, row 0 if the columns have an exact vocabulary.
    pub oov_row: Option<u64>,
    /// Number of frequent rows, which every rank stores, of a hybrid table. Without it, `embedding.frequent_rows`.
    pub frequent_rows: Option<Count>,
    /// Which memory has the rows while a GPU trains.
    #[serde(default)]
    pub tier: Tier,
}

fn default_learning_rate_factor() -> NonNegative {
    NonNegative::new(1.0).expect("a constant in range")
}

impl Table {
    /// Returns the name in the saved model.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.columns.join("+"))
    }
}

/// `[[head]]`: a label to learn. Without any `[[head]]`, all labels of the dataset are learned with weight 1. The AUC
/// of the first head is the AUC of the model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The label column.
    pub label: String,
    /// Weight of the head's loss in the sum over all heads.
    #[serde(default = "default_head_weight")]
    pub weight: Positive,
}

fn default_head_weight() -> Positive {
    Positive::new(1.0).expect("a constant in range")
}
