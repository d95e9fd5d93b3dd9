//! Rankine's embedding tables: what they are, how their rows are looked up, and what the sparse optimizers mean.
//!
//! [`table`] describes a table, [`optimizer`] the rules by which its rows learn, [`random`] the numbers that depend on
//! nothing but their place; all three are the same on every device. [`cpu`] has the bodies: it is the executable
//! specification that other back ends are tested against. With the feature `cuda`, `cuda` has the same on GPUs. Ids
//! come in as plain arrays, so no reader is needed here.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod optimizer;
pub mod random;
pub mod table;
pub mod vector;

pub use optimizer::{Optimizer, Step, Update, UpdateRule};
pub use table::{Pooling, TableSpec};
