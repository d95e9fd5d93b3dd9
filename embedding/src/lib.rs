//! Rankine's embedding tables: their description, look-ups, and sparse optimizers.
//!
//! This crate is a part of `rankine` and may change with any version; `rankine::prelude` is stable.
//!
//! [`table`] describes a table, [`optimizer`] the rules by which its rows learn, [`random`] the random numbers, which
//! depend only on their position; all three are the same on every device. [`cpu`] is the executable specification,
//! with which other back ends are compared in tests. With the feature `cuda`, `cuda` has the same on GPUs. Ids are
//! plain arrays, so no reader is needed here. [`membership`] gives rows to ids that come and go. [`rows`] moves
//! rows with their state between placements, host and checkpoints.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dtype;
pub mod frequency;
pub mod membership;
pub mod optimizer;
pub mod placement;
pub mod plan;
pub mod random;
pub mod rows;
pub mod table;
pub mod tier;
pub mod traffic;
pub mod vector;

mod memory;

pub use dtype::{Dtype, Rounding, all_finite};
pub use frequency::{BagLengths, CountClass, FrequencyProfile, FrequencySketch, TableFrequencies};
pub use membership::{DynamicRows, Eviction, Membership};
pub use optimizer::{Optimizer, Step, Update, UpdateRule};
pub use placement::{
    EmbeddingPlan, Exchange, FrequentRows, Owner, Placement, RoundCapacity, Shard, TablePlan,
};
pub use table::{Pooling, TableSpec};
pub use tier::{HotRows, TableTier, TierPlan, TierTraffic};
pub use traffic::{LinkTraffic, RankTraffic, Traffic};
