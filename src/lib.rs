//! Rankine, a training engine for ranking models: DLRM and its family.
//!
//! [`prelude`] is the stable interface, and [`job`] has all settings of a training. The guide has a page for those who
//! use the library, "Rankine as a library".

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

pub mod prelude;

pub use rankine_job as job;

/// The code of the guide compiles.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/rust.md")]
#[doc = include_str!("../docs/guide/scoring.md")]
#[doc = include_str!("../docs/guide/pushing.md")]
struct Guides;
