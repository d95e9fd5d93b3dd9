//! Products of matrices, with what is done to their elements before they are written.
//!
//! cuBLASLt multiplies, and adds biases and applies ReLUs on the way. What it does not do on the way (the way back through
//! a ReLU, and the sums for a bias: it has kernels of its own run behind the product, three times as long as
//! `columns.cu`) is done by `matmul.cu` where the GPU is a Hopper and elements are bf16, and by `columns.cu` elsewhere.

mod library;
mod tuning;

use std::any::TypeId;
use std::fmt;

use half::bf16;

use crate::buffer::{Buffer, Pointer};
use crate::error::Result;
use crate::kernels::{Columns, Element, Kernel, MatmulReluGradient, Matrices, Total};
use crate::lane::Lane;

pub use library::Blas;
use library::Library;
pub use tuning::{Algorithms, Tuning};

/// How elements are multiplied. Sums are in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// f32, as it is.
    F32,
    /// f32, rounded to the 11 bits that tensor cores take.
    Tf32,
    /// bf16.
    Bf16,
}

/// A matrix, row by row in memory.
#[derive(Debug)]
pub struct Matrix<T> {
    /// Its first element.
    pub pointer: Pointer<T>,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

impl<T> Clone for Matrix<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Matrix<T> {}

impl<T> Matrix<T> {
    /// The same matrix, of other elements of the same size.
    fn cast<U>(self) -> Matrix<U> {
        let Self { pointer, rows, columns, stride } = self;
        Matrix { pointer: pointer.cast(), rows, columns, stride }
    }
}

/// What a product does to its sums.
#[derive(Debug)]
pub enum Epilogue<T> {
    /// Nothing.
    None,
    /// Adds them to what the output has.
    Add,
    /// Adds a bias to each row, and sets what is negative to 0.
    BiasRelu {
        /// One a column.
        bias: Pointer<T>,
    },
    /// The sums are gradients by a ReLU's outputs, and become those by its inputs: 0 where outputs are not above 0.
    /// Then they are summed, column by column, in an order that is always the same.
    ReluGradient {
        /// The ReLU's, as large as the product.
        outputs: Matrix<T>,
        /// One a column.
        sums: Pointer<f32>,
    },
}

impl<T> Clone for Epilogue<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Epilogue<T> {}

/// A product whose matrices lie where they lie.
#[derive(Debug)]
pub struct Product {
    /// None where the first of the kernels multiplies.
    library: Option<Library>,
    /// What is done by kernels of ours, in their order.
    kernels: Vec<Box<dyn Launch>>,
    /// Sums over pieces of the rows.
    _parts: Option<Buffer<f32>>,
}

/// A kernel that is always launched alike.
trait Launch: fmt::Debug + Send {
    /// # Safety
    /// As for [`Lane::launch`].
    unsafe fn launch(&self, lane: &Lane) -> Result<()>;
}

/// A launcher with its blocks.
#[derive(Debug)]
struct Launcher<K>(K, (u32, u32));

impl<K: Kernel + fmt::Debug + Send> Launch for Launcher<K> {
    unsafe fn launch(&self, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe { lane.launch(&self.0, self.1) }
    }
}

impl Product {
    /// `out = x yᵀ`: x `[m, k]`, y `[n, k]`.
    ///
    /// # Errors
    /// Where there is no algorithm for it, or the memory does not suffice.
    pub fn by_transposed<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        x: Matrix<T>,
        y: Matrix<T>,
        out: Matrix<O>,
        epilogue: Epilogue<T>,
    ) -> Result<Self> {
        assert_eq!((x.columns, x.rows, y.rows), (y.columns, out.rows, out.columns));
        Self::new(blas, compute, [(x, false), (y, true)], out, epilogue)
    }

    /// `out = x y`: x `[m, k]`, y `[k, n]`.
    ///
    /// # Errors
    /// As for [`Product::by_transposed`].
    pub fn straight<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        x: Matrix<T>,
        y: Matrix<T>,
        out: Matrix<O>,
        epilogue: Epilogue<T>,
    ) -> Result<Self> {
        assert_eq!((x.columns, x.rows, y.columns), (y.rows, out.rows, out.columns));
        Self::new(blas, compute, [(x, false), (y, false)], out, epilogue)
    }

    /// `out = xᵀ y`: x `[k, m]`, y `[k, n]`.
    ///
    /// # Errors
    /// As for [`Product::by_transposed`].
    pub fn of_transposed<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        x: Matrix<T>,
        y: Matrix<T>,
        out: Matrix<O>,
        epilogue: Epilogue<T>,
    ) -> Result<Self> {
        assert_eq!((x.rows, x.columns, y.columns), (y.rows, out.rows, out.columns));
        Self::new(blas, compute, [(x, true), (y, false)], out, epilogue)
    }

    fn new<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        factors: [(Matrix<T>, bool); 2],
        out: Matrix<O>,
        epilogue: Epilogue<T>,
    ) -> Result<Self> {
        assert_eq!(T::BF16, compute == Compute::Bf16, "elements are of the type that is computed with");
        let Epilogue::ReluGradient { outputs, sums } = epilogue else {
            let library = Library::new(blas, compute, factors, out, epilogue)?;
            return Ok(Self { library: Some(library), kernels: Vec::new(), _parts: None });
        };
        assert_eq!((outputs.rows, outputs.columns), (out.rows, out.columns));
        assert_eq!(TypeId::of::<T>(), TypeId::of::<O>(), "gradients have the outputs' type");
        let (device, out) = (blas.device(), out.cast::<T>());
        if let Some(matrices) = for_hopper(blas, factors, out, outputs) {
            let pieces = MatmulReluGradient::pieces(out.rows);
            let parts = Buffer::uninitialized(device, pieces * out.columns)?;
            let own = MatmulReluGradient::new(&matrices, outputs.cast(), parts.pointer())?;
            let grid = own.grid(device.multiprocessors());
            let kernels = vec![launcher(own, grid), total(&parts, sums, pieces, out.columns)];
            return Ok(Self { library: None, kernels, _parts: Some(parts) });
        }
        let library = Library::new(blas, compute, factors, out, Epilogue::None)?;
        let pieces = Columns::<T>::pieces(out.rows as u32) as usize;
        let parts = Buffer::uninitialized(device, pieces * out.columns)?;
        let columns = Columns {
            gradients: out.pointer,
            outputs: outputs.pointer,
            parts: parts.pointer(),
            samples: out.rows as u32,
            columns: out.columns as u32,
            stride: out.stride as u32,
            outputs_stride: outputs.stride as u32,
        };
        let kernels = vec![launcher(columns, columns.grid()), total(&parts, sums, pieces, out.columns)];
        Ok(Self { library: Some(library), kernels, _parts: Some(parts) })
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// The matrices, and what the epilogue names, must lie where they lay, as [`Lane::launch`] says; nobody else must
    /// use the workspace of `blas`.
    ///
    /// # Errors
    /// Where library or driver refuse.
    pub unsafe fn enqueue(&self, blas: &Blas, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the matrices; the parts are this value's, as many as the kernels are told.
        unsafe {
            self.library.iter().try_for_each(|library| library.enqueue(blas, lane))?;
            self.kernels.iter().try_for_each(|kernel| kernel.launch(lane))
        }
    }
}

fn launcher<K: Kernel + fmt::Debug + Send + 'static>(kernel: K, blocks: (u32, u32)) -> Box<dyn Launch> {
    Box::new(Launcher(kernel, blocks))
}

/// Adds up parts, `[piece][column]`.
fn total(parts: &Buffer<f32>, sums: Pointer<f32>, pieces: usize, columns: usize) -> Box<dyn Launch> {
    let total = Total { parts: parts.pointer(), sums, pieces: pieces as u32, columns: columns as u32 };
    launcher(total, total.grid())
}

/// The matrices of a product that `matmul.cu` can take: `x y` in bf16, on a Hopper, with rows that begin at multiples of
/// 16 bytes.
fn for_hopper<T: Element>(
    blas: &Blas,
    [(x, x_transposed), (y, y_transposed)]: [(Matrix<T>, bool); 2],
    out: Matrix<T>,
    outputs: Matrix<T>,
) -> Option<Matrices> {
    if TypeId::of::<T>() != TypeId::of::<bf16>()
        || x_transposed
        || y_transposed
        || !blas.device().kernels().hopper()
    {
        return None;
    }
    let matrices = Matrices { samples: x.cast(), weights: y.cast(), out: out.cast() };
    (matrices.tiled() && Matrices::is_tiled(&outputs.cast())).then_some(matrices)
}
