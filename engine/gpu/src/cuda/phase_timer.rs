//! When the phases of an iteration run, each among the others.
//!
//! Moments between kernels would slow down every iteration, so the graphs of the first slot exist twice: with moments
//! around each phase, and without. The ones with moments are replayed now and then.

use std::cell::RefCell;
use std::sync::Arc;

use rankine_cuda::blas::{Compute, peak_flops_per_s};
use rankine_cuda::{Device, Graph, Lane, Moment};
use rankine_embedding::cuda::Result;

use super::phase::Phase;
use super::phase_work::PhaseWork;

/// One in this many iterations over the first slot is timed.
const TIMED_EVERY: u64 = 64;
/// The first one that is timed: those before it are slower.
const FIRST_TIMED: u64 = 4;

/// Records moments around phases while a graph is captured.
#[derive(Debug, Default)]
pub(super) struct PhaseTimer(RefCell<Vec<Span>>);

/// A phase in a graph.
#[derive(Debug)]
struct Span {
    phase: Phase,
    begin: Moment,
    end: Moment,
}

impl PhaseTimer {
    /// Enqueues a phase between two moments.
    pub(super) fn time(&self, phase: Phase, lane: &Lane, enqueue: impl FnOnce() -> Result<()>) -> Result<()> {
        let (begin, end) = (Moment::new(lane.device())?, Moment::new(lane.device())?);
        lane.record_at_replay(&begin)?;
        enqueue()?;
        lane.record_at_replay(&end)?;
        self.0.borrow_mut().push(Span { phase, begin, end });
        Ok(())
    }
}

/// The graph of an iteration that records when its phases run.
#[derive(Debug)]
pub(super) struct TimedGraph {
    graph: Graph,
    spans: Vec<Span>,
}

impl TimedGraph {
    pub(super) fn new(graph: Graph, timer: PhaseTimer) -> Self {
        Self { graph, spans: timer.0.into_inner() }
    }
}

/// The graphs of the first slot with moments, one per size class.
#[derive(Debug, Default)]
pub(super) struct TimedGraphs {
    graphs: Vec<TimedGraph>,
    /// Iterations over the first slot.
    iterations: u64,
    /// The size class of the last iteration that was timed.
    last: Option<usize>,
}

impl TimedGraphs {
    pub(super) fn new(graphs: Vec<TimedGraph>) -> Self {
        Self { graphs, ..Self::default() }
    }

    /// Counts an iteration over the first slot. Returns the graph to replay if it is to be timed.
    pub(super) fn next(&mut self, size: usize) -> Option<&mut Graph> {
        self.iterations += 1;
        if self.iterations % TIMED_EVERY != FIRST_TIMED {
            return None;
        }
        self.last = Some(size);
        Some(&mut self.graphs[size].graph)
    }

    /// Returns when the phases of the last timed iteration ran, in the order in which they were enqueued: the
    /// milliseconds from the first one's start to each one's start and end. All iterations must be done.
    pub(super) fn last(&self) -> Result<Vec<(Phase, [f64; 2])>> {
        let Some(size) = self.last else { return Ok(Vec::new()) };
        let spans = &self.graphs[size].spans;
        let Some(Span { begin: first, .. }) = spans.first() else { return Ok(Vec::new()) };
        let ms = |span: &Span| Ok((span.phase, [span.begin.ms_since(first)?, span.end.ms_since(first)?]));
        spans.iter().map(ms).collect()
    }
}

/// A phase of an iteration, as it ran among the others.
#[derive(Debug, Clone, Copy)]
pub struct TimedPhase {
    pub phase: Phase,
    /// From the start of the iteration's first phase.
    pub begin_ms: f64,
    pub ms: f64,
    /// The least time that it could take; `None` if the GPU's peak rates are unknown.
    pub roofline_ms: Option<f64>,
}

/// The peak rates of a GPU, by its data sheet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roofline {
    bytes_per_s: Option<f64>,
    flops_per_s: Option<f64>,
    fp8_flops_per_s: Option<f64>,
}

impl Roofline {
    /// For products of this kind, besides those in fp8.
    pub(super) fn of(device: &Arc<Device>, compute: Compute) -> Result<Self> {
        Ok(Self {
            bytes_per_s: device.peak_bytes_per_s()?,
            flops_per_s: peak_flops_per_s(device, compute)?,
            fp8_flops_per_s: peak_flops_per_s(device, Compute::Fp8)?,
        })
    }

    /// Returns the least time that a phase can take: that of its bytes or of its operations, whichever is longer.
    pub(super) fn ms(&self, work: PhaseWork) -> Option<f64> {
        let flops_per_s = if work.fp8 { self.fp8_flops_per_s } else { self.flops_per_s };
        let seconds = |amount: u64, rate: Option<f64>| match amount {
            0 => Some(0.0),
            amount => rate.map(|rate| amount as f64 / rate),
        };
        Some(1e3 * seconds(work.bytes, self.bytes_per_s)?.max(seconds(work.flops, flops_per_s)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roofline_is_the_longer_of_bytes_and_operations() {
        let roofline =
            Roofline { bytes_per_s: Some(1e12), flops_per_s: Some(1e14), fp8_flops_per_s: Some(2e14) };
        let ms = |bytes, flops, fp8| roofline.ms(PhaseWork { bytes, flops, fp8 });
        assert_eq!(ms(2_000_000_000, 100_000_000_000, false), Some(2.0));
        assert_eq!(ms(1_000_000_000, 400_000_000_000, false), Some(4.0));
        assert_eq!(ms(1_000_000_000, 400_000_000_000, true), Some(2.0));
        let unknown = Roofline { flops_per_s: None, ..roofline };
        assert_eq!(unknown.ms(PhaseWork { bytes: 1, flops: 1, fp8: false }), None);
        assert_eq!(
            unknown.ms(PhaseWork { bytes: 1_000_000_000, ..PhaseWork::default() }),
            Some(1.0),
            "nothing is multiplied"
        );
    }
}
