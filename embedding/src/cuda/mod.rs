//! Tables in the memory of GPUs, and the exchange of rows and gradients among them over NVLink.
//!
//! Ranks are GPUs of one NVLink domain, each with its share of the rows and of every batch. [`Layout`] says who owns
//! what and where vectors lie, [`Node`] makes the ranks, [`Rank`] enqueues the operations of an iteration, all of which
//! can be captured in a graph. No operation returns a count to the host: buffers hold the worst case, and counts stay
//! beside what they count.
//!
//! An iteration over batch `i`, each rank:
//!
//! 1. [`Rank::send`]: the owner writes the rows that its peers look up, as bf16, into the peers' memory, where their
//!    routes want them.
//! 2. [`Rank::barrier`]: all rows have arrived.
//! 3. [`Rank::gather`]: each look-up's row goes to where its vector belongs. The model follows.
//! 4. [`Rank::reduce`]: the gradients of each distinct row are summed, in the order of look-ups, and written to the
//!    owner.
//! 5. [`Rank::route`], beside all of this: the distinct rows of batch `i + 1`.
//! 6. [`Rank::barrier`]: gradients have arrived, and lists of rows lie ready.
//! 7. [`Rank::update`]: the owner adds the gradients of its rows in the order of ranks and updates.
//! 8. [`Rank::merge`], beside it: the owner reads which rows its peers look up in batch `i + 1`.
//!
//! One GPU alone needs none of this: [`LocalTables`] are looked up and updated where they lie.
//!
//! No sum depends on timing, so that a run has the same bits each time.

mod error;
mod layout;
mod local;
mod local_route;
mod node;
mod optimizer;
mod rank;
mod route;
mod router;
mod schedule;

use std::sync::Arc;

use rankine_cuda::kernels::Initialize;
use rankine_cuda::{Buffer, Device, Lane, Pointer};

pub use error::{Error, Result};
pub use layout::{Feature, Hotness, Ids, Layout};
pub use local::LocalTables;
pub use local_route::LocalSnapshot;
pub use node::Node;
pub use rank::{Rank, Routing};
pub use route::Snapshot;
pub use schedule::Schedule;

/// What fills memory at first: an index that would be far out of any buffer.
const POISON: u8 = 0xff;

/// Blocks of kernels that loop: as many as the GPU holds, with 256 threads each.
fn blocks(device: &Device) -> u32 {
    8 * device.multiprocessors()
}

/// Sets an owner's rows to what [`crate::cpu::Table::initialized`] gives for the seed and the tables' numbers, those of
/// tables from number `drawn` on to zeros, and waits for the lane.
///
/// # Safety
/// There must be as many rows behind `rows` as the layout says of an owner; see [`Lane::launch`].
unsafe fn initialize(
    device: &Arc<Device>,
    lane: &Lane,
    layout: &Layout,
    rank: usize,
    rows: Pointer<f32>,
    seed: u64,
    drawn: usize,
) -> Result<()> {
    let tables = Buffer::of(device, &layout.kernel_tables(drawn))?;
    let parameters = Initialize {
        rows,
        tables: tables.pointer(),
        seed,
        tables_count: tables.len() as u32,
        rows_count: layout.owner_rows() as u32,
        rank: rank as u32,
        ranks: layout.ranks as u32,
    };
    // SAFETY: the caller vouches for the rows; `tables` lives until the lane has been waited for.
    unsafe { lane.launch(&parameters, (blocks(device), 1)) }?;
    Ok(lane.synchronize()?)
}
