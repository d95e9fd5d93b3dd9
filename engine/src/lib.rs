//! Rankine, a training engine for ranking models: DLRM and its family.

pub mod cpu;
pub mod evaluation;
pub mod model;
pub mod saved;
