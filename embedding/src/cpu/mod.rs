//! Tables in host memory, worked on by rayon's threads: plain, and the specification of every other back end.
//!
//! Every result is the same for any number of threads: work is cut into pieces that depend on the batch alone, and each
//! sum is taken in a fixed order by one thread.

mod deduplicate;
mod host_rows;
mod memory;
mod pool;
mod ranks;
mod table;

pub use deduplicate::{BagPlace, Route};
pub use host_rows::HostRows;
pub(crate) use memory::Memory;
pub use pool::{Bags, Feature, FeatureSlot};
pub use ranks::{BagGradients, Communicator, RankTables};
pub use table::Table;
