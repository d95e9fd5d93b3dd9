//! Measures a GPU's memory, products, kernels and transfers from the host.

use half::bf16;

use super::MeasuringRank;
use crate::blas::{Algorithms, Blas, Compute, Epilogue, Matrix, Product};
use crate::kernels::{self, LookUp, LookUpTask, Totals};
use crate::runtime::{Buffer, PinnedBuffer, Result};

/// Bytes copied within the GPU.
const COPIED: usize = 128 << 20;
/// Bytes copied from the host.
const UPLOADED: usize = 16 << 20;
/// Rows of a table, elements per row, samples, and features that look up one row each.
const ROWS: usize = 4 << 20;
const DIM: usize = 128;
const SAMPLES: usize = 32_768;
const FEATURES: usize = 8;
/// Rows and columns of the product's matrices.
const SIDE: usize = 4096;

pub(super) fn copy(rank: &MeasuringRank) -> Result<f64> {
    let buffer = || Buffer::<u8>::uninitialized(rank.device(), COPIED);
    let (from, to) = (buffer()?, buffer()?);
    // SAFETY: both have as many bytes, and live until the lane has been waited for.
    let seconds = rank.seconds(2, true, |lane| unsafe { lane.copy(from.pointer(), to.pointer(), COPIED) })?;
    Ok(2.0 * COPIED as f64 / seconds)
}

/// Scattered numbers below `end`, the same at each call.
pub(super) fn scattered(count: usize, end: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        // Xorshift: Marsaglia, "Xorshift RNGs", 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % end as u64) as u32
    };
    (0..count).map(next).collect()
}

pub(super) fn gather(rank: &MeasuringRank) -> Result<f64> {
    let device = rank.device();
    let table = Buffer::<f32>::uninitialized(device, ROWS * DIM)?;
    let ids = Buffer::of(device, &scattered(SAMPLES * FEATURES, ROWS))?;
    let vectors = Buffer::<f32>::uninitialized(device, SAMPLES * FEATURES * DIM)?;
    let samples = Buffer::of(device, &[SAMPLES as u32])?;
    let feature = |number: usize| kernels::Feature {
        words: 0,
        ids: (number * SAMPLES) as u32,
        offsets: kernels::Feature::FIXED,
        hotness: 1,
        pooling: kernels::BagPooling::Sum as u32,
        base: 0,
        rows: ROWS as u32,
        row_words: DIM as u32,
        dim: DIM as u32,
        vector_offset: (number * DIM) as u32,
        shard: 0,
        dtype: kernels::Dtype::Fp32 as u32,
        slots: 0,
        owner: 0,
        frequent: kernels::Feature::UNLISTED,
        factors: 0,
        key_stride: 0,
    };
    let features: Vec<_> = (0..FEATURES).map(feature).collect();
    let tasks = (0..FEATURES)
        .flat_map(|feature| LookUpTask::of_feature(feature as u32, SAMPLES as u32, 1, DIM as u32));
    let tasks: Vec<_> = tasks.collect();
    let (features, tasks) = (Buffer::of(device, &features)?, Buffer::of(device, &tasks)?);
    let look_up = LookUp {
        tables: table.pointer(),
        features: features.pointer(),
        tasks: tasks.pointer(),
        ids: ids.pointer(),
        factors: crate::Pointer::NULL,
        offsets: crate::Pointer::NULL,
        samples_count: samples.pointer(),
        output: vectors.pointer(),
        keys: crate::Pointer::NULL,
        samples: SAMPLES as u32,
        stride: (FEATURES * DIM) as u32,
    };
    let mut counts = [0; LookUpTask::KINDS];
    counts[0] = tasks.len() as u32;
    // SAFETY: the buffers have the sizes that the features say, and live until the lane has been waited for.
    let seconds = rank.seconds(2, true, |lane| unsafe { look_up.enqueue(lane, counts) })?;
    Ok(2.0 * vectors.bytes() as f64 / seconds)
}

pub(super) fn product(rank: &MeasuringRank) -> Result<f64> {
    let device = rank.device();
    let blas = Blas::new(device, Algorithms::Known)?;
    let numbers = scattered(SIDE * SIDE, 1 << 16).into_iter();
    let numbers: Vec<_> = numbers.map(|number| bf16::from_f32(number as f32 / 32_768.0 - 1.0)).collect();
    let (from, to) = (Buffer::of(device, &numbers)?, Buffer::<bf16>::uninitialized(device, SIDE * SIDE)?);
    let matrix =
        |buffer: &Buffer<bf16>| Matrix { pointer: buffer.pointer(), rows: SIDE, columns: SIDE, stride: SIDE };
    let (x, out) = (matrix(&from), matrix(&to));
    let product = Product::by_transposed(&blas, Compute::Bf16, x, x, out, Epilogue::None)?;
    // Once without a graph, so that the library loads what it needs.
    // SAFETY: both buffers have these many elements, and live until the lane has been waited for.
    unsafe { product.enqueue(&blas, &rank.lane) }?;
    rank.lane.synchronize()?;
    // SAFETY: as above.
    let seconds = rank.seconds(4, true, |lane| unsafe { product.enqueue(&blas, lane) })?;
    Ok(2.0 * (SIDE as f64).powi(3) / seconds)
}

pub(super) fn kernel(rank: &MeasuringRank) -> Result<f64> {
    let device = rank.device();
    let labels = Buffer::filled(device, 32, 0)?;
    let totals = Buffer::filled(device, 1, 0)?;
    let short = Totals {
        labels: labels.pointer(),
        weights: labels.pointer(),
        totals: totals.pointer(),
        samples: labels.len() as u32,
        reserved: 0,
    };
    // SAFETY: the buffers have this many samples and one head, and live until the lane has been waited for.
    rank.seconds(100, true, |lane| unsafe { lane.launch(&short, (1, 1)) })
}

/// Uploads to each of the first `gpus` GPUs at once.
pub(super) fn upload(rank: &MeasuringRank, gpus: usize) -> Result<f64> {
    let takes_part = rank.peers.local_rank().0 < gpus;
    let from = PinnedBuffer::<u8>::zeroed(rank.device(), if takes_part { UPLOADED } else { 1 })?;
    let to = Buffer::<u8>::uninitialized(rank.device(), from.elements().len())?;
    // SAFETY: both have as many bytes, and live until the lane has been waited for.
    let seconds = rank.seconds(1, takes_part, |lane| unsafe { lane.upload(&from, to.pointer()) })?;
    Ok(UPLOADED as f64 / seconds)
}
