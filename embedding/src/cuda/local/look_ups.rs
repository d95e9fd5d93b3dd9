//! Where the ids of a batch of some size are, and the blocks that look them up.

use std::sync::Arc;

use rankine_cuda::kernels::{Feature, LookUpTask};
use rankine_cuda::{Buffer, Device};
use rankine_topology::Rank;

use crate::cuda::error::Result;
use crate::cuda::layout::Layout;

/// The look-ups of batches in one layout. Layouts that differ only in the number of samples look up the same rows.
#[derive(Debug)]
pub struct LookUps {
    pub(crate) features: Buffer<Feature>,
    pub(crate) tasks: Buffer<LookUpTask>,
    /// Number of tasks per type of table.
    pub(crate) counts: [u32; 3],
}

impl LookUps {
    /// Creates the look-ups of batches in a layout of one rank.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(device: &Arc<Device>, layout: &Layout) -> Result<Self> {
        let features = layout.kernel_features(Rank(0));
        let (tasks, counts) = layout.look_up_tasks(&features);
        Ok(Self { features: Buffer::of(device, &features)?, tasks: Buffer::of(device, &tasks)?, counts })
    }
}
