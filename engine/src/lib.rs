//! Rankine.
