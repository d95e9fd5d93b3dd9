//! Tables in host memory, processed by rayon's threads: simple, and the specification of every other back end.
//!
//! Results do not depend on the number of threads: work is divided into pieces that depend only on the batch, and
//! each sum is taken by one thread in a fixed order.

mod deduplicate;
mod feature;
mod host_rows;
mod patched;
mod pool;
mod ranks;
mod table;

pub use deduplicate::{BagIndex, Route};
pub use feature::{Bags, Feature, FeatureSlot};
pub use host_rows::HostRows;
pub use patched::{ChangedRows, PatchedTable};
pub use pool::RowWeights;
pub use ranks::{BagGradients, Communicator, RankTables};
pub use table::Table;
