//! Timings of a model's steps and of their phases.

use rankine_cuda::Moment;
use rankine_reader::Samples;

use super::CudaModel;
use crate::cuda::error::Result;
use crate::cuda::input::SLOTS;
use crate::cuda::phase_timer::TimedPhase;
use crate::cuda::phase_work::PhaseTimes;

impl CudaModel {
    /// Returns the moment at which the started steps will be done, on the first GPU.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn mark(&self) -> Result<Moment> {
        self.ranks.call_first(|rank| rank.mark())
    }

    /// Trains `count` steps on the batches that are in the GPUs' slots, in turn, and waits for them. At least as many
    /// steps must have been done as there are slots. Their losses are not reported.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn repeat_steps(&mut self, count: usize) -> Result<()> {
        self.ranks.call_all_mut(move |rank| {
            rank.finish()?;
            rank.time_steps(SLOTS, count).map(drop)
        })?;
        Ok(())
    }

    /// Measures how long each phase of an iteration takes by itself on the first GPU, and that GPU's peak rates. At
    /// least one step must have been done. Changes the weights.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn time_phases(&mut self) -> Result<PhaseTimes> {
        Ok(self.ranks.call_all_mut(|rank| rank.time_phases())?.swap_remove(0))
    }

    /// Returns how the phases of a recent iteration ran on the first GPU of this process, after all steps are done;
    /// nothing if none was timed yet.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn phases(&self) -> Result<Vec<TimedPhase>> {
        self.ranks.call_first(|rank| rank.phases())
    }

    /// The number of batches that can be on the GPUs at once.
    pub const RESIDENT_BATCHES: usize = SLOTS;

    /// Trains `count` steps on batches that stay on the GPUs, in turn; returns the milliseconds of each step on the
    /// GPU where it took longest. The losses are not reported.
    ///
    /// # Panics
    /// As [`CudaModel::train_step`]; and if there are no batches, or more than [`CudaModel::RESIDENT_BATCHES`].
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn time_steps(&mut self, batches: &[Samples], rate_factor: f64, count: usize) -> Result<Vec<f64>> {
        assert!((1..=SLOTS).contains(&batches.len()), "between 1 and {SLOTS} batches fit");
        self.ranks.call_all_mut(|rank| rank.restart())?;
        for batch in batches {
            self.train_step(batch, rate_factor)?;
        }
        self.ranks.call_all_mut(|rank| rank.restart())?;
        self.take_outcomes(false, drop)?;
        let slots = batches.len();
        let of_ranks = self.ranks.call_all_mut(move |rank| rank.time_steps(slots, count))?;
        let of_processes =
            of_ranks.into_iter().map(|times| self.of_all_processes("the times of steps", times));
        let of_ranks = of_processes.collect::<Result<Vec<_>>>()?.concat();
        let longest = |step| of_ranks.iter().map(|times| times[step]).fold(0.0, f64::max);
        Ok((0..count).map(longest).collect())
    }
}
