//! Tables sharded over ranks that are threads of one process: the specification of what ranks exchange, and of the
//! order of sums over ranks.
//!
//! `communicator` is the transport, `hop` the path from the rank that names a row to its owner, `tables` what a rank
//! does with its shards in a step.

mod communicator;
mod hop;
mod tables;
#[cfg(test)]
mod tests;

pub use communicator::Communicator;
pub use tables::{BagGradients, RankTables};
