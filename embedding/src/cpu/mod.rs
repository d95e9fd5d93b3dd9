//! Tables in host memory, worked on by rayon's threads: plain, and the specification of every other back end.
//!
//! Every result is the same for any number of threads: work is cut into pieces that depend on the batch alone, and each
//! sum is taken in a fixed order by one thread.

mod deduplicate;
mod feature;
mod host_rows;
mod pool;
mod ranks;
mod table;

pub use deduplicate::{BagPlace, Route};
pub use feature::{Bags, Feature, FeatureSlot};
pub use host_rows::HostRows;
pub use ranks::{BagGradients, Communicator, RankTables};
pub use table::Table;
