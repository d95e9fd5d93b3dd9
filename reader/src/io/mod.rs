//! Reading a planned sequence of byte ranges, in order, into a bounded ring of buffers.
//!
//! [`Reads`] is the way in: it takes files, requests and a [`SlabRing`], and yields a filled [`Slab`] a request. How
//! the bytes come is a ladder of [`Rung`]s, io_uring with direct I/O at its top, and a trial read at open decides which
//! one is used. Nothing here knows what a block is: see [`crate::stream`].

mod backend;
mod ladder;
mod mapped;
mod options;
mod pool;
mod probe;
mod reads;
mod request;
mod slab;
#[cfg(test)]
mod tests;
mod uring;
mod window;

pub use options::{DEPTH_MAX, IoMode, IoOptions, Rung};
pub use probe::probe;
pub use reads::Reads;
pub use request::{ReadRequest, SLAB_ALIGN};
pub use slab::{AlignedMemory, Slab, SlabMemory, SlabRing};
