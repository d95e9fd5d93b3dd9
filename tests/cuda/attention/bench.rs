//! How long attention takes.

use half::bf16;
use rankine_cuda::kernels::AttentionKind;
use rankine_cuda::{Graph, Moment};

use super::kernels::{Case, Shape};
use crate::{Bench, Body, Outcome, Words};

pub(super) const BODIES: &[Body] =
    &[("attention_of_50_positions_takes_no_millisecond", 1, takes_no_millisecond)];

const SAMPLES: usize = 16384;
const LENGTH: usize = 50;
const DIM: usize = 64;
const TIMES: usize = 20;

/// Forward and backward pass over 16384 samples of 50 positions with keys of 64 elements in bf16. They move 315 MB, in
/// 66 us at 4.8 TB/s; an H200 takes 104 us forward and 287 us backward, so that other work may run beside it.
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
        let mut us = [f64::INFINITY; 2];
        let mut graphs = [
            Graph::capture(&bench.lane, || (0..TIMES).try_for_each(|_| on_gpu.forward()))?,
            Graph::capture(&bench.lane, || (0..TIMES).try_for_each(|_| on_gpu.backward()))?,
        ];
        for (graph, us) in graphs.iter_mut().zip(&mut us) {
            for _ in 0..5 {
                let [begin, end] = [Moment::new(&bench.device)?, Moment::new(&bench.device)?];
                bench.lane.record(&begin)?;
                // SAFETY: the buffers live until the lane has been waited for.
                unsafe { graph.replay(&bench.lane) }?;
                bench.lane.record(&end)?;
                bench.lane.synchronize()?;
                *us = us.min(end.ms_since(&begin)? * 1e3 / TIMES as f64);
            }
        }
        eprintln!("attention {kind:?} {hidden:?}: {:.0} us forward, {:.0} us backward", us[0], us[1]);
        let limit = if kind == AttentionKind::Din && hidden.len() == 1 { 1000.0 } else { f64::INFINITY };
        if bench.device.multiplies_fp8() && us[0] + us[1] > limit {
            return Err(format!("{kind:?} {hidden:?} takes {:.0} us", us[0] + us[1]).into());
        }
    }
    Ok(())
}
