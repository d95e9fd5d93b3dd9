//! The lanes of an iteration, and the moments at which they wait for each other.

use rankine_cuda::{Lane, Moment};
use rankine_embedding::cuda::Result;

use rankine_model::overlap::{Overlap, Overlaps};

/// The lanes of an iteration. In parallel with the layers, the look-ups and the steps that lead to the tables' update
/// run on lanes of their own, and so do the weight gradients: only the verdict waits for them, and they use what the
/// backward pass leaves idle. With several ranks, gradients are all-reduced on one more lane.
pub(super) struct Lanes<'a> {
    pub(super) main: &'a Lane,
    /// `None` if everything runs on the main lane.
    side: Option<SideLanes>,
    overlaps: Overlaps,
    pub(super) started: Moment,
    pub(super) looked_up: Moment,
    pub(super) routed: Moment,
    /// The backward pass has finished the top MLP, the interaction and the bottom MLP.
    pub(super) backward_done: [Moment; 3],
    /// The weight gradients of the top MLP and of the interaction are done.
    pub(super) weights_done: [Moment; 2],
    pub(super) reduced: Moment,
    pub(super) summed: Moment,
    pub(super) verdict_done: Moment,
    pub(super) updated: Moment,
}

/// The lanes besides the main one.
struct SideLanes {
    tables: Lane,
    routes: Lane,
    weights: Lane,
    /// Used with several ranks.
    sums: Lane,
}

impl<'a> Lanes<'a> {
    /// Creates lanes for work that may overlap with the main lane, which starts and ends an iteration. If several
    /// ranks share a GPU there are no such lanes: the GPU has fewer queues than they would have lanes, and in one
    /// queue a rank's work could wait for work of another rank that waits for it.
    pub(super) fn new(main: &'a Lane, shared: bool, overlaps: Overlaps) -> Result<Self> {
        let device = main.device();
        let side = || -> Result<_> {
            Ok(SideLanes {
                tables: Lane::of_high_priority(device)?,
                routes: Lane::new(device)?,
                weights: Lane::new(device)?,
                sums: Lane::of_high_priority(device)?,
            })
        };
        let moment = || Moment::new(device);
        Ok(Self {
            main,
            side: (!shared).then(side).transpose()?,
            overlaps,
            started: moment()?,
            looked_up: moment()?,
            routed: moment()?,
            backward_done: [moment()?, moment()?, moment()?],
            weights_done: [moment()?, moment()?],
            reduced: moment()?,
            summed: moment()?,
            verdict_done: moment()?,
            updated: moment()?,
        })
    }

    /// Returns the lane of the work that may overlap: the main one if the overlap is off.
    pub(super) fn of(&self, overlap: Overlap) -> &Lane {
        let Some(side) = self.side.as_ref().filter(|_| self.overlaps.has(overlap)) else {
            return self.main;
        };
        match overlap {
            Overlap::LookUps | Overlap::RowGradients => &side.tables,
            Overlap::Routes => &side.routes,
            Overlap::WeightGradients | Overlap::DenseUpdate => &side.weights,
            Overlap::GradientSums => &side.sums,
            Overlap::Input => unreachable!("batches come before the iteration"),
        }
    }

    /// Returns the lane of the bias gradients, short kernels that run in parallel with others.
    pub(super) fn of_biases(&self) -> &Lane {
        let side = self.side.as_ref().filter(|_| self.overlaps.has(Overlap::WeightGradients));
        side.map_or(self.main, |side| &side.tables)
    }
}
