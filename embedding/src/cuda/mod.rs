//! Tables in the memory of GPUs, and the exchange of rows and gradients among them over NVLink.
//!
//! Ranks are GPUs of one NVLink domain, each with its part of the tables and of every batch. [`Layout`] defines who
//! owns what and where vectors are stored; a rank's [`NodeTables`] and their [`BatchExchange`] enqueue the operations
//! of an iteration, all of which can be captured in a graph. No operation returns a count to the host: buffers have
//! room for the worst case, and counts stay on the GPU.
//!
//! Each rank, in an iteration over a batch:
//!
//! 1. [`BatchExchange::route`], on a separate lane, in parallel with the batch before: finds the distinct rows of the
//!    rank's samples; a barrier; owners read which of their rows their peers look up.
//!
//! 2. [`BatchExchange::look_up`]: the owner writes those rows, in the type that the model computes in, into the peers'
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
//! [`NodeTables::count_traffic`] counts what ranks send each other in training.
//!
//! A single GPU needs none of this: [`LocalTables`] are looked up and updated in place. It may store the hottest rows
//! only, and get the others from host memory for each batch (`tier`).
//!
//! No sum depends on timing, so runs are bitwise reproducible.

mod error;
mod exchange;
mod layout;
mod local;
mod look_ups;
mod membership;
mod routing;
mod storage;
mod tier;

use rankine_cuda::kernels::{Rate, Step};
use rankine_cuda::{Device, Pointer};

pub use error::{Error, Result};
pub use exchange::NodeTables;
pub use exchange::batch::BatchExchange;
pub use exchange::route::RouteSnapshot;
pub use layout::{Feature, Hotness, Ids, KeyPart, KeySequence, Layout};
pub use local::LocalTables;
pub use local::route::LocalRouteSnapshot;
pub use local::tiered::TieredTables;
pub use look_ups::LookUps;
pub use membership::{DynamicColumns, DynamicTables, LongIds};
pub use routing::router::LookUpCounts;
pub use storage::device_rows::DeviceRows;

/// The weights with which training starts.
#[derive(Debug, Clone, Copy)]
pub struct InitialWeights {
    /// Together with a table's number, it determines the table's weights, as in [`crate::cpu::Table::initialized`].
    pub seed: u64,
    /// The number of tables with random weights. Those after them start with zeros, as first-order terms do.
    pub drawn: usize,
}

/// A batch of a rank.
#[derive(Debug, Clone, Copy)]
pub struct RoutedBatch {
    /// Its ids.
    pub ids: Ids,
    /// The batch slot, which holds the batch's route if there are several ranks.
    pub slot: usize,
    /// The size class of its messages between nodes; 0 with one node.
    pub size: usize,
}

/// What an update of rows depends on besides gradients, in the GPU's memory.
#[derive(Debug, Clone, Copy)]
pub struct UpdateInputs {
    /// `[table]`: learning rates.
    pub rates: Pointer<Rate>,
    /// The step's number, for stochastic rounding.
    pub step: Pointer<Step>,
    /// The factor of gradients, or null for 1.
    pub scale: Pointer<f32>,
    /// No row is updated unless this is 0.
    pub stop: Pointer<u32>,
}

/// Fill value for uninitialized memory: as an index it would be far out of any buffer.
const POISON: u8 = 0xff;

/// Grid of kernels that loop: as many blocks of 256 threads as the GPU holds.
fn blocks(device: &Device) -> u32 {
    8 * device.multiprocessors()
}
