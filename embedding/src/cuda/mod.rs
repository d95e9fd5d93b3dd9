//! Tables in the memory of GPUs, and the exchange of rows and gradients among them over NVLink.
//!
//! Ranks are GPUs of one NVLink domain, each with its part of the tables and of every batch. [`Layout`] defines who
//! owns what and where vectors are stored; a rank's [`NodeTables`] enqueue the operations of an iteration, all of
//! which can be captured in a graph. No operation returns a count to the host: buffers have room for the worst case,
//! and counts stay on the GPU.
//!
//! Each rank, in an iteration over a batch:
//!
//! 1. [`NodeTables::route`], on a separate lane, in parallel with the batch before: finds the distinct rows of the
//!    rank's samples; a barrier; owners read which of their rows their peers look up.
//!
//! 2. [`NodeTables::look_up`]: the owner writes those rows, in the type that the model computes in, into the peers'
//!    memory, at the positions of their routes; a barrier; each bag is pooled from the received rows. The model
//!    follows.
//!
//! 3. [`NodeTables::reduce`]: sums the gradients of each distinct row, in the order of look-ups, and writes them to
//!    the owner.
//!
//! 4. [`NodeTables::meet`]: a barrier; gradients have arrived.
//!
//! 5. [`NodeTables::update`]: the owner adds up the sums of its rows in the order of ranks, and updates each row.
//!
//! Rows that every rank stores take the same path. Each rank acts as their owner for its own look-ups, so that no
//! link is crossed; the sums of their gradients are sent to all ranks, each of which adds up the same sums and learns
//! the same.
//!
//! For tables whose owners pool, ranks send ids instead of keys, owners send parts of bags instead of rows, and ranks
//! send the gradients of bags instead of sums, at the same steps.
//!
//! A single GPU needs none of this: [`LocalTables`] are looked up and updated in place.
//!
//! No sum depends on timing, so runs are bitwise reproducible.

mod device_rows;
mod error;
mod frequent;
mod layout;
mod local;
mod local_route;
mod node;
mod numbering;
mod optimizer;
mod parts;
mod pooled;
mod rails;
mod route;
mod router;
mod squares;
mod stage;
mod storage;

use rankine_cuda::Device;

pub use device_rows::DeviceRows;
pub use error::{Error, Result};
pub use layout::{Feature, Hotness, Ids, Layout};
pub use local::LocalTables;
pub use local_route::LocalSnapshot;
pub use node::NodeTables;
pub use route::Snapshot;

/// Fill value for uninitialized memory: as an index it would be far out of any buffer.
const POISON: u8 = 0xff;

/// Grid of kernels that loop: as many blocks of 256 threads as the GPU holds.
fn blocks(device: &Device) -> u32 {
    8 * device.multiprocessors()
}
