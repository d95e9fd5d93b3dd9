//! Reading a planned sequence of byte ranges, in order, into a bounded ring of buffers.
//!
//! [`Reads`] is the entry point: it takes files, requests and a [`SlabRing`], and yields one filled [`Slab`] per
//! request. The methods of reading form a ladder of [`Rung`]s with io_uring and direct I/O at the top; a trial read
//! at open selects one. Objects in buckets have a rung of their own. See [`crate::stream`] for what is read.

mod backend;
mod count;
mod files;
mod ladder;
mod mapped;
mod memory_file;
mod object;
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

pub use count::BytesRead;
pub use files::ReadFiles;
pub use ladder::RungRefused;
pub use memory_file::{MappedOutput, is_in_memory};
pub use options::{DEPTH_MAX, IoMode, IoOptions, Rung};
pub use probe::probe;
pub use reads::Reads;
pub use request::{Next, ReadRequest, Requests, SLAB_ALIGN};
pub use slab::{AlignedMemory, Slab, SlabMemory, SlabRing};
