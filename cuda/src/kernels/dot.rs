//! `dot.cu`.

use half::bf16;

use super::limits::SHARED_BYTES_MAX;
use super::names::Family;
use super::{E4m3, Element, ElementKind, FP8_MULTIPLE, Feature, Fp8Scaling, Guard, Id, Kernel};
use crate::runtime::{Device, Lane, Pointer, Result};

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
    /// Forward: 1 if a backward pass follows, else 0.
    pub learns: u32,
}

/// The forward pass to fp8: its results are rounded to bf16 and then to fp8, and only the latter are written. The
/// transposed matrix and the largest magnitude are for a backward pass.
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
    /// 0.
    pub reserved: u32,
}

/// Tables on this GPU, of which each vector of a sample but the first is a row.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TableRows {
    /// All tables.
    pub tables: Pointer<f32>,
    /// One per vector, in their order, with one id per sample and f32 rows of as many elements as a vector.
    pub features: Pointer<Feature>,
    /// Indexed as the features say.
    pub ids: Pointer<u32>,
    /// The number of samples; vectors after them become zeros.
    pub samples_count: Pointer<u32>,
}

/// The forward pass from the first vector and rows of tables. It writes the other vectors if a backward pass follows.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DotOfRows<T> {
    dot: Dot<T>,
    rows: TableRows,
}

/// The same to fp8.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct DotOfRowsFp8 {
    dot: DotFp8,
    rows: TableRows,
}

const _: () = assert!(size_of::<DotOfRows<bf16>>() == 96 && size_of::<DotOfRowsFp8>() == 128);

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

    /// Returns whether the forward pass can look up rows itself.
    pub fn looks_up(device: &Device, count: u32, dim: u32, stride: u32) -> bool {
        let own = by_warps(count, dim, stride, true);
        Self::warps_fit(count, dim, stride) && TableRows::fit(device, count, dim, own)
    }

    /// Enqueues the forward pass, from vectors to products, or from the first vector and `rows`.
    ///
    /// # Safety
    /// See [`Lane::launch`]; with rows, [`Dot::looks_up`] must be true.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue_forward(&self, lane: &Lane, rows: Option<TableRows>) -> Result<()> {
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            match rows {
                Some(rows) => {
                    let kernel = DotOfRows { dot: *self, rows };
                    lane.launch(&kernel, self.grid(lane, WARPS, TableRows::blocks(kernel.shared_bytes())))
                }
                None if self.by_warps() => lane.launch(&Forward(*self), self.grid(lane, WARPS, 16)),
                None => lane.launch(&ForwardByBlocks(*self), self.grid(lane, 1, 16)),
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

    /// Returns whether it can look up rows itself.
    pub fn looks_up(device: &Device, count: u32, dim: u32, stride: u32) -> bool {
        TableRows::fit(device, count, dim, Self::bytes(count, dim, stride))
    }

    /// Enqueues it, from vectors, or from the first vector and `rows`.
    ///
    /// # Safety
    /// See [`Lane::launch`]; with rows, [`DotFp8::looks_up`] must be true.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue(&self, lane: &Lane, rows: Option<TableRows>) -> Result<()> {
        // Blocks loop over the samples, four per warp at a time.
        let grid = |each| self.dot.grid(lane, 4 * WARPS, each);
        // SAFETY: the caller vouches for the addresses.
        unsafe {
            match rows {
                Some(rows) => {
                    let kernel = DotOfRowsFp8 { dot: *self, rows };
                    lane.launch(&kernel, grid(TableRows::blocks(kernel.shared_bytes())))
                }
                None => lane.launch(self, grid(16)),
            }
        }
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

impl TableRows {
    /// Bytes of shared memory of a multiprocessor, and those of a block in addition to what its launcher requests.
    const MULTIPROCESSOR: u32 = 228 << 10;
    const RESERVED: u32 = 2 << 10;

    /// Bytes of shared memory of kernels that take `own` bytes without rows.
    fn bytes(count: u32, dim: u32, own: u32) -> u32 {
        WARPS * (own / WARPS + (count - 1) * dim * 4).next_multiple_of(128)
    }

    /// Each lane of a warp fetches one row. The kernels are for Hopper only.
    fn fit(device: &Device, count: u32, dim: u32, own: u32) -> bool {
        let fits = (2..=33).contains(&count) && Self::bytes(count, dim, own) <= SHARED_BYTES_MAX;
        fits && device.functions().hopper()
    }

    /// Blocks that fit on a multiprocessor at once.
    fn blocks(bytes: u32) -> u32 {
        Self::MULTIPROCESSOR / (bytes + Self::RESERVED)
    }
}

// SAFETY: `dot.cu` has the same struct, and takes as much shared memory.
unsafe impl<T: Element> Kernel for DotOfRows<T> {
    // f32 has no tensor-core kernel; `looks_up` is never true for it.
    const ID: Id = Family::DotOfRows.variant([(T::KIND as usize).saturating_sub(1)]);
    const THREADS: u32 = 128;

    fn shared_bytes(&self) -> u32 {
        let Dot { count, dim, stride, .. } = self.dot;
        TableRows::bytes(count, dim, by_warps(count, dim, stride, true))
    }
}

// SAFETY: as for `DotOfRows`.
unsafe impl Kernel for DotOfRowsFp8 {
    const ID: Id = Family::DotOfRowsFp8.variant([]);
    const THREADS: u32 = 128;

    fn shared_bytes(&self) -> u32 {
        let Dot { count, dim, .. } = self.dot.dot;
        TableRows::bytes(count, dim, self.dot.shared_bytes())
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
