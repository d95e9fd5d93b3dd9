//! Rankine's dataset format, and everything that makes or reads it: converters, the generator, io_uring.
//!
//! This crate is a part of `rankine` and may change with any version; `rankine::prelude` is stable.
//!
//! Start at [`dataset`] for what is on disk, [`block`] for its bytes, [`samples`] for what they unpack to. [`stream`]
//! goes from a part of a dataset to batches, over [`io`], which fills a bounded ring of buffers. The reader knows
//! nothing of models or devices: it fills buffers that it is handed.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod bench;
pub mod block;
pub mod buckets;
pub mod convert;
pub mod counting;
pub mod dataset;
pub mod generate;
pub mod ids;
pub mod io;
pub mod merge;
pub mod origin;
pub mod own_history;
pub mod popularity;
pub mod raw;
pub mod samples;
pub mod schema;
pub mod shards;
pub mod statistics;
pub mod store;
pub mod stream;
pub mod survey;
pub mod verify;
pub mod vocabulary;
pub mod write;

mod background;
mod bits;
mod columns;
mod hotness;
#[cfg(test)]
#[path = "../../tests/support/json_schema.rs"]
mod json_schema;
mod key;
mod label;
mod ordered;
mod part;
mod positions;
mod precomputed;
mod quantiles;
mod rng;
mod sequence;
mod shape;
mod split;
#[cfg(test)]
mod tests;
mod vocabulary_kind;

pub use columns::Columns;
pub use dataset::{Dataset, Fit};
pub use ids::{IdRules, OutOfRange};
pub use part::Part;
pub use quantiles::{QuantileBuckets, quantile_boundaries};
pub use samples::{Bags, Samples};
pub use schema::Schema;
pub use split::Split;
pub use stream::{Batch, BatchStream, BlockStream, Order, Position, StreamOptions};
pub use vocabulary::Vocabulary;
