//! What is trained.

use serde::Deserialize;

use super::values::Width;

/// `[model]`: a bottom MLP over the dense columns, an embedding a categorical column, an interaction of their
/// vectors, and a top MLP that ends in one logit. Layers are separated by ReLU.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The family, which decides the interaction.
    pub kind: ModelKind,
    /// Elements of every embedding.
    pub embedding_dim: Width,
    /// Units of the bottom MLP's layers; the last must be `embedding_dim`, since its output interacts with the
    /// embeddings. Empty, the default, where the dataset has no dense columns.
    #[serde(default)]
    pub bottom_mlp: Vec<Width>,
    /// Units of the top MLP's hidden layers; the last layer, to one logit, is implied.
    pub top_mlp: Vec<Width>,
}

/// A family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    /// DLRM: the dot products of all pairs of vectors, next to the bottom MLP's output (Naumov et al., 2019).
    Dlrm,
}

impl ModelKind {
    /// The name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dlrm => "dlrm",
        }
    }
}
