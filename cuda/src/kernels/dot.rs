//! `dot.cu`.

use half::bf16;

use super::limits::SHARED_BYTES_MAX;
use super::names::Family;
use super::{E4m3, Element, ElementKind, FP8_MULTIPLE, Fp8Scaling, Guard, Id, Kernel};
use crate::runtime::{Lane, Pointer, Result};

/// Parameters of both directions of the dot interaction.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Dot<T> {
    /// `[sample][vectors_stride]`: `count` vectors of `dim` elements, one after another.
    pub vectors: Pointer<T>,
    /// `[sample][stride]`: `passed` elements of the first vector, the products, zeros. Backward: the gradients with
    /// respect to them.
    pub products: Pointer<T>,
    /// As the vectors: the gradients with respect to them, which the backward pass writes.
    pub gradients: Pointer<T>,
    /// Backward: records non-finite results.
    pub guard: Pointer<Guard>,
    /// Samples.
    pub samples: u32,
    /// Vectors of a sample.
    pub count: u32,
    /// Elements of a vector, a multiple of 16.
    pub dim: u32,
    /// Elements from one sample's vectors to the next, a multiple of 8.
    pub vectors_stride: u32,
    /// `dim`, or 0 if the first vector is not passed on.
    pub passed: u32,
    /// Elements from one sample's products to the next, a multiple of 8.
    pub stride: u32,
    /// 1 if the first vector is the output of a ReLU, else 0.
    pub relu: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Dot<f32>>() == 64);

/// The forward pass to fp8: its results are rounded to bf16 and then to fp8, and only the latter are written.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DotFp8 {
    /// The vectors. `products` is null, and `stride` the number of columns of the results, a multiple of
    /// [`FP8_MULTIPLE`].
    pub dot: Dot<bf16>,
    /// `[sample][stride]`
    pub rows: Pointer<E4m3>,
    /// `[column][turned_stride]`, with samples ordered by [`super::transposed_position`].
    pub turned: Pointer<E4m3>,
    /// Their scaling.
    pub scaling: Pointer<Fp8Scaling>,
    /// Elements from one transposed row to the next: the samples rounded up to a multiple of [`FP8_MULTIPLE`], or
    /// more.
    pub turned_stride: u32,
    /// 1 if the transposed matrix is written and the largest magnitude is recorded, else 0.
    pub learns: u32,
}

const _: () = assert!(size_of::<DotFp8>() == 96);

/// The most vectors per sample for the tensor-core kernels.
const VECTORS_MAX: u32 = 48;
/// Samples that a block processes at a time on tensor cores.
const WARPS: u32 = 4;

impl<T: Element> Dot<T> {
    /// Returns whether the vectors of a sample fit into a multiprocessor's shared memory.
    pub fn fits(count: u32, dim: u32, stride: u32) -> bool {
        Self::warps_fit(count, dim, stride)
            || fits([true, false].map(|forward| by_blocks(count, dim, forward)))
    }

    /// Returns whether a warp takes a sample, on tensor cores; otherwise a block does.
    fn warps_fit(count: u32, dim: u32, stride: u32) -> bool {
        let bytes = [true, false].map(|forward| by_warps(count, dim, stride, forward));
        T::KIND != ElementKind::F32 && count <= VECTORS_MAX && fits(bytes)
    }

    fn by_warps(&self) -> bool {
        Self::warps_fit(self.count, self.dim, self.stride)
    }

    /// Grid of a kernel that takes `at_once` samples at once, with at most `each` blocks per multiprocessor; blocks
    /// loop over the samples.
    fn grid(&self, lane: &Lane, at_once: u32, each: u32) -> (u32, u32) {
        (self.samples.div_ceil(at_once).min(lane.device().multiprocessors() * each), 1)
    }

    /// Enqueues the forward pass, from vectors to products.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue_forward(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            match self.by_warps() {
                true => lane.launch(&Forward(*self), self.grid(lane, WARPS, 16)),
                false => lane.launch(&ForwardByBlocks(*self), self.grid(lane, 1, 16)),
            }
        }
    }

    /// Enqueues the backward pass, from the gradients with respect to the products to those with respect to the
    /// vectors.
    ///
    /// # Safety
    /// See [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue_backward(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            match self.by_warps() {
                true => lane.launch(&Backward(*self), self.grid(lane, WARPS, 10)),
                false => lane.launch(&BackwardByBlocks(*self), self.grid(lane, 1, 16)),
            }
        }
    }
}

impl DotFp8 {
    /// Returns whether there is a kernel for these sizes.
    pub fn fits(count: u32, dim: u32, stride: u32) -> bool {
        let sizes = count <= VECTORS_MAX && stride.is_multiple_of(FP8_MULTIPLE as u32);
        sizes && Self::bytes(count, dim, stride) <= SHARED_BYTES_MAX
    }

    /// Grid: blocks loop over the samples, four per warp at a time.
    pub fn grid(&self, lane: &Lane) -> (u32, u32) {
        self.dot.grid(lane, 4 * WARPS, 16)
    }

    /// Bytes of shared memory: per warp the vectors and four rows of results; then, unless there is room where the
    /// vectors were, four bytes per column.
    fn bytes(count: u32, dim: u32, stride: u32) -> u32 {
        let (rows, row, words) = (count.next_multiple_of(16), dim + 8, 4 * stride);
        let more = if words <= 2 * count * row { 0 } else { words };
        WARPS * (2 * rows * row + 4 * stride + more).next_multiple_of(128)
    }
}

// SAFETY: `dot.cu` has the same struct, and takes as much shared memory.
unsafe impl Kernel for DotFp8 {
    const ID: Id = Family::DotForwardFp8.variant([]);
    const THREADS: u32 = 128;

    fn shared_bytes(&self) -> u32 {
        Self::bytes(self.dot.count, self.dot.dim, self.dot.stride)
    }
}

/// Bytes of shared memory that the tensor-core kernels of `dot.cu` take.
fn by_warps(count: u32, dim: u32, stride: u32, forward: bool) -> u32 {
    let (rows, row) = (count.next_multiple_of(16), dim + 8);
    if forward {
        return WARPS * (2 * (rows * row + stride)).next_multiple_of(128);
    }
    // Per warp the vectors, the products and their matrix; per block a row of zeros, and the position of each product
    // in the matrix.
    2 * (WARPS * (count * row + stride + rows * (rows + 8)) + row) + 2 * count * (count - 1)
}

/// The same if a block takes a sample.
fn by_blocks(count: u32, dim: u32, forward: bool) -> u32 {
    4 * (count * (dim + 4) + if forward { 0 } else { count * count })
}

fn fits(bytes: [u32; 2]) -> bool {
    bytes.into_iter().all(|bytes| bytes <= SHARED_BYTES_MAX)
}

/// f32 has no tensor-core kernel; `by_warps` never selects it.
const fn by_warps_or(element: ElementKind, by_warps: Family, by_blocks: Family) -> Id {
    match element {
        ElementKind::F32 => by_blocks.variant([0]),
        ElementKind::Bf16 => by_warps.variant([0]),
        ElementKind::F16 => by_warps.variant([1]),
    }
}

macro_rules! kernels {
    ($($name:ident, $id:expr, $bytes:expr;)+) => {$(
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy)]
        struct $name<T>(Dot<T>);

        // SAFETY: `dot.cu` has the same struct, and takes as much shared memory.
        unsafe impl<T: Element> Kernel for $name<T> {
            const ID: Id = $id;
            const THREADS: u32 = 128;

            fn shared_bytes(&self) -> u32 {
                let bytes: fn(Dot<T>) -> u32 = $bytes;
                bytes(self.0)
            }
        }
    )+};
}

kernels! {
    Forward, by_warps_or(T::KIND, Family::DotForward, Family::DotForwardByBlocks),
        |p| by_warps(p.count, p.dim, p.stride, true);
    Backward, by_warps_or(T::KIND, Family::DotBackward, Family::DotBackwardByBlocks),
        |p| by_warps(p.count, p.dim, p.stride, false);
    ForwardByBlocks, Family::DotForwardByBlocks.variant([T::KIND as usize]), |p| by_blocks(p.count, p.dim, true);
    BackwardByBlocks, Family::DotBackwardByBlocks.variant([T::KIND as usize]), |p| by_blocks(p.count, p.dim, false);
}
