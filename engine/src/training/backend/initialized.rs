//! A device on which a model was created.

use rankine_backend::Backend;
use rankine_embedding::plan::TierReport;
use rankine_embedding::{EmbeddingPlan, Placement};

/// A device on which a model was created.
pub(in crate::training) struct InitializedDevice {
    pub(in crate::training) backend: Box<dyn Backend>,
    /// The device's name, and its precision.
    pub(in crate::training) name: String,
    /// The placement of each table; empty with a single rank.
    pub(in crate::training) placements: Vec<Placement>,
    /// How rows are divided between a GPU and host memory; `None` if the device stores all rows.
    pub(in crate::training) tier: Option<TierReport>,
}

impl InitializedDevice {
    /// Returns the placements of a plan.
    pub(super) fn placements(plan: Option<&EmbeddingPlan>) -> Vec<Placement> {
        plan.into_iter().flat_map(|plan| &plan.tables).map(|table| table.placement).collect()
    }
}
