//! Rankine: a training engine for ranking models, DLRM and its family.
//!
//! Start at [`job`] for what can be asked of it. [`doctor`] says what a machine offers to it.

pub mod doctor;
pub mod job;
