//! Measurements of GPUs.

use rankine::job::Precision;
use rankine_cuda::Device;
use rankine_cuda::calibration::{Figures, Links, Sum};
use rankine_engine::build;
use rankine_engine_gpu::calibration::{Gpus, machine_of};

use super::{Bench, Body, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("figures_are_those_of_a_gpu", 1, figures_are_those_of_a_gpu),
    ("ranks_measure_what_they_send", 1, ranks_measure_what_they_send),
];

/// Rates must be possible for a supported GPU, and times must be short: then the measurements measure what they
/// should.
fn check(figures: &Figures) -> Outcome {
    let Figures { copy_bytes_per_s, gather_bytes_per_s, product_flops_per_s, kernel_s, .. } = *figures;
    let within = |what: &str, value: f64, from: f64, to: f64| match value >= from && value <= to {
        true => Ok(()),
        false => Err(format!("{what} is {value:e}, not between {from:e} and {to:e}")),
    };
    within("a copy", copy_bytes_per_s, 2e11, 2e13)?;
    within("a gather", gather_bytes_per_s, 1e11, 2e13)?;
    within("a product", product_flops_per_s, 2e13, 2e16)?;
    within("a kernel", kernel_s, 2e-7, 1e-3)?;
    within("an upload", figures.upload_bytes_per_s, 1e9, 1e12)?;
    within("an upload to all", figures.upload_all_bytes_per_s, 1e8, 1e12)?;
    if let Some(Links { one_bytes_per_s, all_bytes_per_s, barrier_s, sums }) = &figures.links {
        within("the rate of one sender", *one_bytes_per_s, 1e9, 1e13)?;
        within("the rate of all senders", *all_bytes_per_s, 1e9, 1e13)?;
        within("a barrier", *barrier_s, 5e-7, 1e-2)?;
        if !sums.is_sorted_by_key(|sum| sum.bytes) {
            return Err(format!("sums are not in order: {sums:?}").into());
        }
        sums.iter().try_for_each(|Sum { seconds, .. }| within("a sum", *seconds, 1e-6, 1.0))?;
    }
    Ok(())
}

fn figures_are_those_of_a_gpu(bench: &Bench, _: &mut Words) -> Outcome {
    let figures = Figures::measure(std::slice::from_ref(&bench.device))?;
    if figures.links.is_some() || Gpus::of(std::slice::from_ref(&bench.device), build::here())?.count != 1 {
        return Err("one GPU has no links".into());
    }
    check(&figures)
}

fn ranks_measure_what_they_send(_: &Bench, _: &mut Words) -> Outcome {
    let count = Device::count()?;
    let devices = (0..2).map(|rank| Device::open(rank % count)).collect::<Result<Vec<_>, _>>()?;
    let figures = Figures::measure(&devices)?;
    check(&figures)?;
    if figures.links.is_none() {
        return Err("two ranks have links".into());
    }
    // Without measuring, known figures are used.
    let known = machine_of(&devices, 2, Precision::Fp32, None)?;
    let total = devices[0].budget()?.total_bytes;
    if (known.memory_bytes, known.vector_element_bytes) != (total, 4) {
        return Err(format!("{known:?}").into());
    }
    Ok(())
}
