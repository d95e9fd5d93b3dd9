//! Matrix products, fused with the element-wise work that follows them.
//!
//! cuBLASLt multiplies, and fuses biases and ReLUs. What it does not fuse (the backward pass of a ReLU with the sums
//! for a bias, for which it runs separate kernels that take three times as long as `columns.cu`; and cross layers) is
//! fused by `matmul.cu` on Hopper with bf16, and done by separate kernels after the product elsewhere.

mod calls;
mod fp8;
mod library;
mod peak;
mod tuning;

use std::any::TypeId;
use std::fmt;

use half::bf16;

use crate::kernels::{
    Columns, Cross, CrossGradient, Element, ElementKind, Factors, Kernel, MatmulCross, MatmulCrossGradient,
    MatmulInputs, MatmulReluGradient, Total, is_tiled, matmul_pieces,
};
use crate::runtime::{Lane, Pointer, Result};

pub use crate::kernels::{
    Fp8CrossGradientMatrices, Fp8CrossKept, Fp8CrossMatrices, Fp8Factors, Fp8Matrix, Fp8Outputs, Fp8Tensor,
};
pub use crate::runtime::Matrix;
pub use library::Blas;
use library::{BlasElement, Library};
pub use peak::peak_flops_per_s;
pub use tuning::{Algorithms, Tuning};

/// Checks that cuBLASLt is installed in the version that is needed.
///
/// # Errors
/// [`crate::Error::NoBlas`].
pub fn check_library() -> Result<()> {
    calls::Calls::load().map(drop)
}

/// The number type of a product's factors. Sums are in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// f32, unrounded.
    F32,
    /// f32, rounded to the 11 bits that tensor cores take.
    Tf32,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// fp8, for tensors with scales: used by [`Product::fp8_to_bf16`] and the other fp8 products.
    Fp8,
}

impl Compute {
    /// The element type of the factors, if they have no scale.
    fn elements(self) -> Option<ElementKind> {
        match self {
            Self::F32 | Self::Tf32 => Some(ElementKind::F32),
            Self::Bf16 => Some(ElementKind::Bf16),
            Self::F16 => Some(ElementKind::F16),
            Self::Fp8 => None,
        }
    }
}

/// What is done with a product's sums.
#[derive(Debug)]
pub enum Epilogue<T> {
    /// Writes them.
    None,
    /// Adds them to the previous contents of the output.
    Add,
    /// Adds a bias to each row, and sets what is negative to 0 (a ReLU).
    BiasRelu {
        /// One per column.
        bias: Pointer<T>,
    },
    /// The sums are gradients with respect to a ReLU's outputs and become those with respect to its inputs: 0 where
    /// an output is not above 0. Then they are summed, column by column, in a fixed order.
    ReluGradient {
        /// The ReLU's outputs, of the product's shape.
        outputs: Matrix<T>,
        /// One per column.
        sums: Pointer<f32>,
    },
    /// A cross layer: the output becomes `first * (product + bias) + input`, and the product is kept. All matrices
    /// have the shape of the output.
    Cross {
        /// The factor of the product.
        first: Matrix<T>,
        /// The matrix that is added.
        input: Matrix<T>,
        /// One per column.
        bias: Pointer<f32>,
        /// Receives the product; its rows are contiguous, as are those of the output.
        product: Matrix<T>,
    },
    /// The backward pass of a cross layer: the sums plus `added` are gradients with respect to its result, and
    /// `first` times these are gradients with respect to its product. The latter are summed, column by column, in a
    /// fixed order. All matrices have the shape of the output.
    CrossGradient {
        /// Added to the sums, if given; its rows are contiguous.
        added: Option<Matrix<T>>,
        /// The factor of the layer's product.
        first: Matrix<T>,
        /// Receives the gradients with respect to the product; its rows are contiguous, as are those of the output.
        product: Matrix<T>,
        /// One per column.
        sums: Pointer<f32>,
    },
}

impl<T> Clone for Epilogue<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Epilogue<T> {}

/// A factor of a product.
#[derive(Debug)]
struct Factor<T> {
    matrix: Matrix<T>,
    /// Whether the product is that of the transposed matrix.
    transposed: bool,
}

impl<T> Factor<T> {
    fn straight(matrix: Matrix<T>) -> Self {
        Self { matrix, transposed: false }
    }

    fn transposed(matrix: Matrix<T>) -> Self {
        Self { matrix, transposed: true }
    }
}

impl<T> Clone for Factor<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Factor<T> {}

/// A product of matrices at fixed addresses.
#[derive(Debug)]
pub struct Product {
    /// None if the first of the kernels multiplies.
    library: Option<Library>,
    /// Our own kernels, in order.
    kernels: Vec<Box<dyn Launch>>,
    /// For epilogues that sum columns: adds up the partial sums.
    sums: Option<Total>,
}

/// A kernel that is always launched with the same parameters.
trait Launch: fmt::Debug + Send {
    /// # Safety
    /// As for [`Lane::launch`].
    unsafe fn launch(&self, lane: &Lane) -> Result<()>;
}

/// A kernel's launcher with its grid.
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
    /// If the library has no algorithm for it, or there is not enough memory.
    pub fn by_transposed<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        x: Matrix<T>,
        y: Matrix<T>,
        out: Matrix<O>,
        epilogue: Epilogue<T>,
    ) -> Result<Self> {
        assert_eq!((x.columns, x.rows, y.rows), (y.columns, out.rows, out.columns));
        Self::new(blas, compute, [Factor::straight(x), Factor::transposed(y)], out, epilogue, None)
    }

    /// The same with the algorithm of the product whose x has `rows` rows, unless the library does not accept it for
    /// this x. A row of x then gives the same bits in both products.
    ///
    /// # Errors
    /// As for [`Product::by_transposed`].
    pub fn by_transposed_like<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        [x, y]: [Matrix<T>; 2],
        out: Matrix<O>,
        epilogue: Epilogue<T>,
        rows: usize,
    ) -> Result<Self> {
        assert_eq!((x.columns, x.rows, y.rows), (y.columns, out.rows, out.columns));
        Self::new(blas, compute, [Factor::straight(x), Factor::transposed(y)], out, epilogue, Some(rows))
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
        Self::new(blas, compute, [Factor::straight(x), Factor::straight(y)], out, epilogue, None)
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
        Self::new(blas, compute, [Factor::transposed(x), Factor::straight(y)], out, epilogue, None)
    }

    /// `like` is the number of rows of the left factor whose product has the algorithm to be used, if that is given.
    fn new<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        factors: [Factor<T>; 2],
        out: Matrix<O>,
        epilogue: Epilogue<T>,
        like: Option<usize>,
    ) -> Result<Self> {
        assert_eq!(Some(T::KIND), compute.elements(), "elements have the type that is computed with");
        match epilogue {
            Epilogue::None | Epilogue::Add | Epilogue::BiasRelu { .. } => {
                let library = Library::like(blas, compute, factors, out, epilogue, like)?;
                Ok(Self { library: Some(library), kernels: Vec::new(), sums: None })
            }
            Epilogue::ReluGradient { outputs, sums } => {
                Self::relu_gradient(blas, compute, factors, same(out), outputs, sums)
            }
            Epilogue::Cross { first, input, bias, product } => {
                Self::cross(blas, compute, factors, [first, input, product, same(out)], bias, like)
            }
            Epilogue::CrossGradient { added, first, product, sums } => {
                let matrices = [first, product, same(out)];
                Self::cross_gradient(blas, compute, factors, added, matrices, sums)
            }
        }
    }

    fn relu_gradient<T: Element>(
        blas: &Blas,
        compute: Compute,
        factors: [Factor<T>; 2],
        out: Matrix<T>,
        outputs: Matrix<T>,
        sums: Pointer<f32>,
    ) -> Result<Self> {
        assert_eq!((outputs.rows, outputs.columns), (out.rows, out.columns));
        let device = blas.device();
        if let Some(factors) = for_hopper(blas, factors, false, &[out, outputs]) {
            let sums = total(blas, matmul_pieces(out.rows), out.columns, sums)?;
            let own = MatmulReluGradient::new(factors, out.cast(), outputs.cast(), sums.parts)?;
            let grid = own.grid(device.multiprocessors());
            return Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: Some(sums) });
        }
        let library = Library::new(blas, compute, factors, out, Epilogue::None, None)?;
        let pieces = Columns::<T>::pieces(out.rows as u32) as usize;
        let sums = total(blas, pieces, out.columns, sums)?;
        let columns = Columns {
            gradients: out.pointer,
            outputs: outputs.pointer,
            parts: sums.parts,
            samples: out.rows as u32,
            columns: out.columns as u32,
            stride: out.stride as u32,
            outputs_stride: outputs.stride as u32,
        };
        let kernels = vec![launcher(columns, columns.grid())];
        Ok(Self { library: Some(library), kernels, sums: Some(sums) })
    }

    fn cross<T: Element>(
        blas: &Blas,
        compute: Compute,
        factors: [Factor<T>; 2],
        matrices: [Matrix<T>; 4],
        bias: Pointer<f32>,
        like: Option<usize>,
    ) -> Result<Self> {
        let [first, input, product, out] = matrices;
        for matrix in matrices {
            assert_eq!((matrix.rows, matrix.columns), (out.rows, out.columns));
        }
        assert_eq!([product.stride, out.stride], [out.columns; 2], "rows are contiguous");
        if let Some(factors) = for_hopper(blas, factors, true, &matrices) {
            // The first layer's input is also the factor of all products; then it is read once.
            let own_input =
                (first.pointer.address(), first.stride) != (input.pointer.address(), input.stride);
            let inputs = MatmulInputs { first: first.cast(), second: own_input.then(|| input.cast()) };
            let own = MatmulCross::new(factors, inputs, [product.cast(), out.cast()], bias)?;
            let grid = own.grid(blas.device().multiprocessors());
            return Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None });
        }
        let library = Library::like(blas, compute, factors, product, Epilogue::None, like)?;
        let cross = Cross {
            first: first.pointer,
            input: input.pointer,
            product: product.pointer,
            bias,
            output: out.pointer,
            samples: out.rows as u32,
            columns: out.columns as u32,
            first_stride: first.stride as u32,
            input_stride: input.stride as u32,
        };
        let kernels = vec![launcher(cross, cross.grid())];
        Ok(Self { library: Some(library), kernels, sums: None })
    }

    fn cross_gradient<T: Element>(
        blas: &Blas,
        compute: Compute,
        factors: [Factor<T>; 2],
        added: Option<Matrix<T>>,
        matrices: [Matrix<T>; 3],
        sums: Pointer<f32>,
    ) -> Result<Self> {
        let [first, product, out] = matrices;
        let all: Vec<_> = matrices.into_iter().chain(added).collect();
        for matrix in &all {
            assert_eq!((matrix.rows, matrix.columns), (out.rows, out.columns));
        }
        for matrix in &all[1..] {
            assert_eq!(matrix.stride, out.columns, "rows are contiguous");
        }
        if let Some(factors) = for_hopper(blas, factors, false, &all) {
            let sums = total(blas, matmul_pieces(out.rows), out.columns, sums)?;
            let inputs = MatmulInputs { first: first.cast(), second: added.map(Matrix::cast) };
            let outputs = [out.cast(), product.cast()];
            let own = MatmulCrossGradient::new(factors, inputs, outputs, sums.parts)?;
            let grid = own.grid(blas.device().multiprocessors());
            return Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: Some(sums) });
        }
        let library = Library::new(blas, compute, factors, out, Epilogue::None, None)?;
        let (kernel, sums) = cross_gradient_behind(blas, added, matrices, sums)?;
        Ok(Self { library: Some(library), kernels: vec![kernel], sums: Some(sums) })
    }

    /// Enqueues the product, and the column sums if the epilogue has any.
    ///
    /// # Safety
    /// The matrices and the epilogue's buffers must still be valid, as [`Lane::launch`] says; nobody else may use the
    /// workspace of `blas`.
    ///
    /// # Errors
    /// If the library or the driver reports an error.
    pub unsafe fn enqueue(&self, blas: &Blas, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.enqueue_product(blas, lane)?;
            self.enqueue_sums(lane)
        }
    }

    /// Enqueues the product without its column sums, which [`Product::enqueue_sums`] adds.
    ///
    /// # Safety
    /// The matrices and the epilogue's buffers must still be valid, as [`Lane::launch`] says; nobody else may use the
    /// workspace of `blas`.
    ///
    /// # Errors
    /// If the library or the driver reports an error.
    pub unsafe fn enqueue_product(&self, blas: &Blas, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the matrices; the buffer of partial sums has the size that the kernels
        // expect.
        unsafe {
            self.library.iter().try_for_each(|library| library.enqueue(blas, lane))?;
            self.kernels.iter().try_for_each(|kernel| kernel.launch(lane))
        }
    }

    /// Enqueues the product's column sums, if the epilogue has any. Must be called before the product is enqueued
    /// again.
    ///
    /// # Safety
    /// [`Product::enqueue_product`] must come before; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn enqueue_sums(&self, lane: &Lane) -> Result<()> {
        let Some(total) = &self.sums else { return Ok(()) };
        // SAFETY: the partial sums are in memory of the product's `Blas`; the caller vouches for it and for the sums.
        unsafe { lane.launch(total, total.grid()) }
    }
}

fn launcher<K: Kernel + fmt::Debug + Send + 'static>(kernel: K, blocks: (u32, u32)) -> Box<dyn Launch> {
    Box::new(Launcher(kernel, blocks))
}

/// Allocates the partial sums of a matrix's columns and plans adding them up to `sums`.
fn total(blas: &Blas, pieces: usize, columns: usize, sums: Pointer<f32>) -> Result<Total> {
    let parts = blas.parts(pieces * columns)?;
    Ok(Total { parts, sums, pieces: pieces as u32, columns: columns as u32 })
}

/// Plans the step from the gradients with respect to a cross layer's result, in `out`, to those with respect to its
/// product, as a separate kernel after the product.
fn cross_gradient_behind<T: Element>(
    blas: &Blas,
    added: Option<Matrix<T>>,
    [first, product, out]: [Matrix<T>; 3],
    sums: Pointer<f32>,
) -> Result<(Box<dyn Launch>, Total)> {
    let pieces = CrossGradient::<T>::pieces(out.rows as u32) as usize;
    let sums = total(blas, pieces, out.columns, sums)?;
    let gradient = CrossGradient {
        first: first.pointer,
        added: added.map_or(Pointer::NULL, |added| added.pointer),
        gradients: out.pointer,
        product_gradients: product.pointer,
        parts: sums.parts,
        samples: out.rows as u32,
        columns: out.columns as u32,
        first_stride: first.stride as u32,
        reserved: 0,
    };
    Ok((launcher(gradient, gradient.grid()), sums))
}

/// Casts a matrix to the type that is computed with; asserts that it already has this type.
fn same<T: Element, O: Element>(matrix: Matrix<O>) -> Matrix<T> {
    assert_eq!(
        TypeId::of::<T>(),
        TypeId::of::<O>(),
        "the output has the type of the matrices it is combined with"
    );
    matrix.cast()
}

/// The factors of a product that `matmul.cu` supports: `x y` or, if `transposed`, `x yᵀ`; in bf16, on Hopper, with
/// rows that start at multiples of 16 bytes. Otherwise none.
fn for_hopper<T: Element>(
    blas: &Blas,
    [x, y]: [Factor<T>; 2],
    transposed: bool,
    others: &[Matrix<T>],
) -> Option<Factors> {
    let tiled = |matrix: &Matrix<T>| is_tiled(&matrix.cast());
    let fits = TypeId::of::<T>() == TypeId::of::<bf16>()
        && blas.device().functions().hopper()
        && (x.transposed, y.transposed) == (false, transposed)
        && [x.matrix, y.matrix].iter().chain(others).all(tiled);
    fits.then(|| Factors { samples: x.matrix.cast(), weights: y.matrix.cast() })
}
