//! Measurements on the GPUs of a model: times of steps and phases, and traces.

use rankine_backend::{BackendError, Ceilings, MeasuredPhase, Profile, TraceEvent};
use rankine_cuda::{ActivityKind, GpuActivity, Moment, Trace};
use rankine_reader::Samples;

use super::CudaModel;
use crate::cuda::error::Result;
use crate::cuda::input::SLOTS;
use crate::cuda::phase_timer::TimedPhase;

/// Measurements in progress.
#[derive(Debug, Default)]
pub(super) struct Measuring {
    /// Moments that were marked.
    marks: Vec<Moment>,
    trace: Option<Trace>,
}

impl CudaModel {
    /// Returns how the phases of a recent iteration ran on the first GPU of this process, after all steps are done;
    /// nothing if none was timed yet.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub fn phases(&self) -> Result<Vec<TimedPhase>> {
        self.ranks.call_first(|rank| rank.phases())
    }

    /// Trains `count` steps on batches that stay on the GPUs, in turn: as many of the given ones as fit. Returns the
    /// milliseconds of each step on the GPU where it took longest. The losses are not reported.
    ///
    /// # Panics
    /// As [`CudaModel::train_on`]; and if there are no batches.
    ///
    /// # Errors
    /// If an operation of a GPU failed.
    pub(super) fn time_resident(
        &mut self,
        batches: &[Samples],
        rate_factor: f64,
        count: usize,
    ) -> Result<Vec<f64>> {
        let batches = &batches[..SLOTS.min(batches.len())];
        assert!(!batches.is_empty(), "there is a batch to train on");
        self.ranks.call_all_mut(|rank| rank.restart())?;
        let slots = batches.len().max(self.ranks.call_first(|rank| Ok(rank.slots_needed()))?);
        for batch in batches.iter().cycle().take(slots) {
            self.train_on(batch, rate_factor)?;
        }
        self.ranks.call_all_mut(|rank| rank.restart())?;
        self.ranks.take_outcomes(false, drop)?;
        let of_ranks = self.ranks.call_all_mut(move |rank| rank.time_steps(slots, count))?;
        let of_processes =
            of_ranks.into_iter().map(|times| self.of_all_processes("the times of steps", times));
        let of_ranks = of_processes.collect::<Result<Vec<_>>>()?.concat();
        let longest = |step| of_ranks.iter().map(|times| times[step]).fold(0.0, f64::max);
        Ok((0..count).map(longest).collect())
    }
}

/// On the first GPU of this process.
impl Profile for CudaModel {
    fn mark(&mut self) -> Result<(), BackendError> {
        self.measuring.marks.push(self.ranks.call_first(|rank| rank.mark())?);
        Ok(())
    }

    fn ms_between_marks(&self) -> Result<Vec<f64>, BackendError> {
        let ms = |pair: &[Moment]| pair[1].synchronize().and_then(|()| pair[1].ms_since(&pair[0]));
        let all = self.measuring.marks.windows(2).map(ms).collect::<rankine_cuda::Result<_>>();
        all.map_err(|error| BackendError::Failed(error.into()))
    }

    fn time_phases(&mut self) -> Result<(Vec<MeasuredPhase>, Ceilings), BackendError> {
        let times = self.ranks.call_all_mut(|rank| rank.time_phases())?.swap_remove(0);
        let ceilings = Ceilings {
            gb_per_s: times.bytes_per_s / 1e9,
            tflop_per_s: times.flops_per_s / 1e12,
            fp8_tflop_per_s: times.fp8_flops_per_s.map(|flops| flops / 1e12),
        };
        let phases = times.phases.into_iter().map(|(phase, ms, work)| {
            let of_products = ceilings.fp8_tflop_per_s.filter(|_| work.fp8);
            let tflop_ceiling = of_products.unwrap_or(ceilings.tflop_per_s);
            let (gb_per_s, tflop_per_s) = (work.bytes as f64 / ms / 1e6, work.flops as f64 / ms / 1e9);
            let roofline_share = (gb_per_s / ceilings.gb_per_s).max(tflop_per_s / tflop_ceiling);
            let (name, bytes, flops) = (phase.name(), work.bytes, work.flops);
            MeasuredPhase { name, ms, bytes, flops, gb_per_s, tflop_per_s, roofline_share }
        });
        Ok((phases.collect(), ceilings))
    }

    fn repeat_steps(&mut self, steps: usize) -> Result<(), BackendError> {
        let repeated = self.ranks.call_all_mut(move |rank| {
            rank.finish()?;
            rank.time_steps(rank.slots_needed().max(SLOTS), steps).map(drop)
        });
        Ok(repeated.map(drop)?)
    }

    fn begin_trace(&mut self) -> Result<(), BackendError> {
        self.measuring.trace = Some(Trace::begin().map_err(|error| BackendError::Trace(error.into()))?);
        Ok(())
    }

    fn end_trace(&mut self) -> Result<Vec<TraceEvent>, BackendError> {
        let Some(trace) = self.measuring.trace.take() else { return Ok(Vec::new()) };
        let activities = trace.end().map_err(|error| BackendError::Trace(error.into()))?;
        let shown = |activity: GpuActivity| TraceEvent {
            name: activity.name,
            is_kernel: activity.kind == ActivityKind::Kernel,
            device: activity.device,
            lane: activity.lane,
            begin_ns: activity.begin_ns,
            end_ns: activity.end_ns,
            bytes: activity.bytes,
        };
        Ok(activities.into_iter().map(shown).collect())
    }
}
