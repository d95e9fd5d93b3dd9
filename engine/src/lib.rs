//! Rankine: a training engine for ranking models, DLRM and its family.
//!
//! Start at [`job`] for what can be asked of it.

pub mod job;
