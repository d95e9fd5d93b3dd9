//! Look-ups of a batch in rows on this GPU, to vectors of elements or in fp8.

use std::sync::Arc;

use rankine_cuda::kernels::{Element, Feature, LookUp, LookUpFp8, LookUpTask, Vectors};
use rankine_cuda::{Buffer, Device, Lane};
use rankine_topology::Rank;

use crate::cuda::error::Result;
use crate::cuda::layout::Layout;
use crate::cuda::layout::numbering::KindsOfTasks;

/// The features of batches in one layout, and how blocks divide their look-ups. Layouts that differ only in the number
/// of samples look up the same rows.
#[derive(Debug)]
pub struct LookUps {
    pub(crate) features: Buffer<Feature>,
    to_elements: Tasks,
    /// Unless vectors are too long for it, or some are keys.
    to_fp8: Option<Tasks>,
}

#[derive(Debug)]
struct Tasks {
    tasks: Buffer<LookUpTask>,
    /// Their number per kind.
    counts: [u32; LookUpTask::KINDS],
}

impl Tasks {
    fn new(device: &Arc<Device>, (tasks, counts): KindsOfTasks) -> Result<Self> {
        Ok(Self { tasks: Buffer::of(device, &tasks)?, counts })
    }
}

impl LookUps {
    /// Creates the look-ups of batches in a layout of one rank.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(device: &Arc<Device>, layout: &Layout) -> Result<Self> {
        Self::of_features(device, layout, &layout.kernel_features(Rank(0)))
    }

    /// Those of a layout's samples by these features.
    pub(crate) fn of_features(device: &Arc<Device>, layout: &Layout, features: &[Feature]) -> Result<Self> {
        let to_fp8 = layout.look_up_tasks_in_fp8(features);
        Ok(Self {
            features: Buffer::of(device, features)?,
            to_elements: Tasks::new(device, layout.look_up_tasks(features))?,
            to_fp8: to_fp8.map(|tasks| Tasks::new(device, tasks)).transpose()?,
        })
    }

    /// Whether vectors can be written in fp8.
    pub(crate) fn fit_fp8(&self) -> bool {
        self.to_fp8.is_some()
    }

    /// Whether some features look up keys.
    fn have_keys(&self) -> bool {
        self.to_elements.counts[LookUpTask::KINDS / 3 * 2..].iter().any(|&count| count > 0)
    }

    /// Enqueues look-ups, given without features, tasks and output.
    ///
    /// # Panics
    /// If the vectors are in fp8 and do not fit, or if there is no memory for keys that features look up.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    pub(crate) unsafe fn enqueue<T: Element>(
        &self,
        lane: &Lane,
        look_up: LookUp<T>,
        vectors: Vectors<T>,
    ) -> Result<()> {
        let look_up = LookUp { features: self.features.pointer(), ..look_up };
        // SAFETY: features and tasks belong to this value; the caller vouches for the rest.
        unsafe {
            match vectors {
                Vectors::Elements(output) => {
                    let Tasks { tasks, counts } = &self.to_elements;
                    assert!(!self.have_keys(), "there is memory for keys");
                    LookUp { tasks: tasks.pointer(), output, ..look_up }.enqueue(lane, *counts)?;
                }
                Vectors::WithKeys { vectors: output, keys } => {
                    let Tasks { tasks, counts } = &self.to_elements;
                    LookUp { tasks: tasks.pointer(), output, keys, ..look_up }.enqueue(lane, *counts)?;
                }
                Vectors::Fp8(vectors) => {
                    let Tasks { tasks, counts } = self.to_fp8.as_ref().expect("the vectors are short enough");
                    let look_up = LookUp { tasks: tasks.pointer(), ..look_up };
                    LookUpFp8::new(look_up, vectors).enqueue(lane, *counts)?;
                }
            }
        }
        Ok(())
    }
}
