//! Tables spread over ranks that are threads of one process: the specification of what ranks exchange, and in which
//! order sums over them are taken.
//!
//! `communicator` is how ranks talk, `hop` the way from whoever names a row to whoever owns it, `tables` what a rank
//! does with its part of the tables in a step.

mod communicator;
mod hop;
mod tables;
#[cfg(test)]
mod tests;

pub use communicator::Communicator;
pub use tables::{BagGradients, RankTables};
