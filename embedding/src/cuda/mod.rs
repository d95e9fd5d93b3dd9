//! Tables in the memory of GPUs, and the exchange of rows and gradients among them over NVLink.
//!
//! Ranks are GPUs of one NVLink domain, each with its part of the tables and of every batch. [`Layout`] says who owns
//! what and where vectors lie; a rank's [`NodeTables`] enqueue the operations of an iteration, all of which can be
//! captured in a graph. No operation returns a count to the host: buffers hold the worst case, and counts stay beside
//! what they count.
//!
//! An iteration over a batch, each rank:
//!
//! 1. [`NodeTables::route`], on a lane aside, while the batch before is worked on: the distinct rows of the rank's
//!    samples; a barrier; owners read which of their rows their peers look up.
//! 2. [`NodeTables::look_up`]: the owner writes those rows, in the type that the model computes in, into the peers'
//!    memory, where their routes want them; a barrier; each bag is pooled from what has landed. The model follows.
//! 3. [`NodeTables::reduce`]: the gradients of each distinct row are summed, in the order of look-ups, and written to
//!    the owner.
//! 4. [`NodeTables::meet`]: a barrier; gradients have arrived.
//! 5. [`NodeTables::update`]: the owner adds up the sums of its rows in the order of ranks, and updates each row.
//!
//! Rows that every rank has go the same way. Each rank counts as their owner where it looks them up itself, so that no
//! link is crossed; the sums of their gradients go to all ranks, each of which adds up the same and learns the same.
//!
//! Of tables whose owners pool, ranks send ids in place of keys, owners parts of bags in place of rows, and ranks the
//! gradients of bags in place of sums: at the same steps.
//!
//! One GPU alone needs none of this: [`LocalTables`] are looked up and updated where they lie.
//!
//! No sum depends on timing, so that a run has the same bits each time.

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

/// What fills memory at first: an index that would be far out of any buffer.
const POISON: u8 = 0xff;

/// Blocks of kernels that loop: as many as the GPU holds, with 256 threads each.
fn blocks(device: &Device) -> u32 {
    8 * device.multiprocessors()
}
