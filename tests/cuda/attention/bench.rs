//! How long attention takes.

use half::bf16;
use rankine_cuda::kernels::AttentionKind;
use rankine_cuda::{Graph, Moment};

use super::kernels::{Case, Shape};
use super::positions;
use crate::{Bench, Body, Outcome, Words};

pub(super) const BODIES: &[Body] = &[
    ("attention_of_50_positions_takes_no_millisecond", 1, takes_no_millisecond),
    ("vectors_of_50_positions_take_no_half_millisecond", 1, vectors_take_no_half_millisecond),
];

const SAMPLES: usize = 16384;
const LENGTH: usize = 50;
const DIM: usize = 64;
const TIMES: usize = 20;

/// Forward and backward pass over 16384 samples of 50 positions with keys of 64 elements in bf16. They move 315 MB, in
/// 66 us at 4.8 TB/s; an H200 takes 84 us forward and 198 us backward, so that other work may run beside it.
fn takes_no_millisecond(bench: &Bench, words: &mut Words) -> Outcome {
    for (kind, hidden) in [
        (AttentionKind::Din, &[40][..]),
        (AttentionKind::Din, &[80, 40]),
        (AttentionKind::Dot, &[]),
        (AttentionKind::Mean, &[]),
    ] {
        let shape = Shape { kind, dims: &[DIM], hidden, room: SAMPLES, samples: SAMPLES, length_max: LENGTH };
        let case = Case::<bf16>::new(words, shape, |_, max| max);
        let on_gpu = case.on_gpu(bench)?;
        let us = [us_of(bench, || on_gpu.forward())?, us_of(bench, || on_gpu.backward())?];
        eprintln!("attention {kind:?} {hidden:?}: {:.0} us forward, {:.0} us backward", us[0], us[1]);
        let limit = if kind == AttentionKind::Din && hidden.len() == 1 { 1000.0 } else { f64::INFINITY };
        if bench.device.multiplies_fp8() && us[0] + us[1] > limit {
            return Err(format!("{kind:?} {hidden:?} takes {:.0} us", us[0] + us[1]).into());
        }
    }
    Ok(())
}

/// The same samples and keys. The vectors are added while 210 MB are moved, in 44 us at 4.8 TB/s, and their gradients
/// are summed while 105 MB are read.
fn vectors_take_no_half_millisecond(bench: &Bench, words: &mut Words) -> Outcome {
    let case = positions::Case::<bf16>::new(words, [DIM, LENGTH], [SAMPLES; 2], |_, most| most);
    let on_gpu = case.on_gpu(bench)?;
    let blocks = 8 * bench.device.multiprocessors();
    let us = [us_of(bench, || on_gpu.add(blocks))?, us_of(bench, || on_gpu.sum_gradients())?];
    eprintln!("vectors of positions: {:.0} us forward, {:.0} us backward", us[0], us[1]);
    if bench.device.multiplies_fp8() && us[0] + us[1] > 500.0 {
        return Err(format!("vectors of positions take {:.0} us", us[0] + us[1]).into());
    }
    Ok(())
}

/// Returns the microseconds that something takes on the GPU, the least of five measurements.
fn us_of(
    bench: &Bench,
    enqueue: impl Fn() -> Result<(), rankine_cuda::Error>,
) -> Result<f64, libtest_mimic::Failed> {
    let mut graph = Graph::capture(&bench.lane, || (0..TIMES).try_for_each(|_| enqueue()))?;
    let mut us = f64::INFINITY;
    for _ in 0..5 {
        let [begin, end] = [Moment::new(&bench.device)?, Moment::new(&bench.device)?];
        bench.lane.record(&begin)?;
        // SAFETY: the buffers live until the lane has been waited for.
        unsafe { graph.replay(&bench.lane) }?;
        bench.lane.record(&end)?;
        bench.lane.synchronize()?;
        us = us.min(end.ms_since(&begin)? * 1e3 / TIMES as f64);
    }
    Ok(us)
}
