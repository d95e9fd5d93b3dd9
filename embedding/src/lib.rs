//! Rankine's embedding tables: what they are, how their rows are looked up, and what the sparse optimizers mean.
//!
//! [`table`] describes a table, [`optimizer`] the rules by which its rows learn, [`random`] the numbers that depend on
//! nothing but their place; all three are the same on every device. [`cpu`] has the bodies: it is the executable
//! specification that other back ends are tested against. With the feature `cuda`, `cuda` has the same on GPUs. Ids
//! come in as plain arrays, so no reader is needed here. [`rows`] has rows with their state on the way from one place
//! to another.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dtype;
pub mod frequency;
pub mod optimizer;
pub mod placement;
pub mod plan;
pub mod random;
pub mod rows;
pub mod table;
pub mod topology;
pub mod traffic;
pub mod vector;

mod memory;

pub use dtype::{Dtype, Rounding};
pub use frequency::{BagLengths, CountClass, FrequencyProfile, FrequencySketch, TableFrequencies};
pub use optimizer::{Optimizer, Step, Update, UpdateRule};
pub use placement::{
    EmbeddingPlan, Exchange, FrequentRows, Owner, Placement, RoundCapacity, Shard, TablePlan,
};
pub use table::{Pooling, TableSpec};
pub use topology::{Topology, TopologyError};
pub use traffic::{LinkTraffic, Traffic};
