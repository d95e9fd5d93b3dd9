//! Products of matrices, with what is done to their elements before they are written.
//!
//! cuBLASLt multiplies, and adds biases and applies ReLUs on the way. What it does not do on the way (the way back
//! through a ReLU with the sums for a bias, for which it has kernels of its own run behind the product, three times as
//! long as `columns.cu`; cross layers) is done by `matmul.cu` where the GPU is a Hopper and elements are bf16, and
//! elsewhere by kernels behind the product.

mod calls;
mod fp8;
mod library;
mod tuning;

use std::any::TypeId;
use std::fmt;

use half::bf16;

use crate::buffer::Pointer;
use crate::error::Result;
use crate::kernels::{
    Columns, Cross, CrossGradient, Element, ElementKind, Factors, Kernel, MatmulCross, MatmulCrossGradient,
    MatmulReluGradient, Total, is_tiled, matmul_pieces,
};
use crate::lane::Lane;

pub use fp8::{Fp8CrossKept, Fp8Matrix, Fp8Outputs, Fp8Tensor};
pub use library::Blas;
use library::{Library, Multiplied};
pub use tuning::{Algorithms, Tuning};

/// Checks that cuBLASLt is here, in the version that is needed.
///
/// # Errors
/// [`crate::Error::NoBlas`].
pub fn check_library() -> Result<()> {
    calls::Calls::load().map(drop)
}

/// How elements are multiplied. Sums are in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compute {
    /// f32, as it is.
    F32,
    /// f32, rounded to the 11 bits that tensor cores take.
    Tf32,
    /// bf16.
    Bf16,
    /// f16.
    F16,
    /// fp8, of tensors that have scales: what [`Product::fp8_to_bf16`] and its like do.
    Fp8,
}

impl Compute {
    /// What is multiplied, where that has no scale.
    fn elements(self) -> Option<ElementKind> {
        match self {
            Self::F32 | Self::Tf32 => Some(ElementKind::F32),
            Self::Bf16 => Some(ElementKind::Bf16),
            Self::F16 => Some(ElementKind::F16),
            Self::Fp8 => None,
        }
    }
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
    pub fn cast<U>(self) -> Matrix<U> {
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
    /// A cross layer: the output becomes `first * (product + bias) + input`, and the product is kept. All are as large
    /// as the output.
    Cross {
        /// What the product is multiplied with.
        first: Matrix<T>,
        /// What is added.
        input: Matrix<T>,
        /// One a column.
        bias: Pointer<f32>,
        /// Where the product goes; its rows lie one behind the other, as those of the output do.
        product: Matrix<T>,
    },
    /// The way back of a cross layer: the sums are, with what is added, gradients by its result, and `first` times them
    /// those by its product. The latter are summed, column by column, in an order that is always the same. All are as
    /// large as the output.
    CrossGradient {
        /// What is added to the sums, if anything; its rows lie one behind the other.
        added: Option<Matrix<T>>,
        /// What the layer's product is multiplied with.
        first: Matrix<T>,
        /// Where the gradients by the product go; its rows lie one behind the other, as those of the output do.
        product: Matrix<T>,
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
    /// Of epilogues that sum columns: what adds up the parts.
    sums: Option<Total>,
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
        assert_eq!(Some(T::KIND), compute.elements(), "elements are of the type that is computed with");
        match epilogue {
            Epilogue::None | Epilogue::Add | Epilogue::BiasRelu { .. } => {
                let library = Library::new(blas, compute, factors, out, epilogue, None)?;
                Ok(Self { library: Some(library), kernels: Vec::new(), sums: None })
            }
            Epilogue::ReluGradient { outputs, sums } => {
                Self::relu_gradient(blas, compute, factors, same(out), (outputs, sums))
            }
            Epilogue::Cross { first, input, bias, product } => {
                Self::cross(blas, compute, factors, [first, input, product, same(out)], bias)
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
        factors: [(Matrix<T>, bool); 2],
        out: Matrix<T>,
        (outputs, sums): (Matrix<T>, Pointer<f32>),
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
        factors: [(Matrix<T>, bool); 2],
        matrices: [Matrix<T>; 4],
        bias: Pointer<f32>,
    ) -> Result<Self> {
        let [first, input, product, out] = matrices;
        for matrix in matrices {
            assert_eq!((matrix.rows, matrix.columns), (out.rows, out.columns));
        }
        assert_eq!([product.stride, out.stride], [out.columns; 2], "rows lie one behind the other");
        if let Some(factors) = for_hopper(blas, factors, true, &matrices) {
            // The first layer's input is what all are multiplied with: it is read once.
            let own_input =
                (first.pointer.address(), first.stride) != (input.pointer.address(), input.stride);
            let inputs = (first.cast(), own_input.then(|| input.cast()));
            let own = MatmulCross::new(factors, inputs, [product.cast(), out.cast()], bias)?;
            let grid = own.grid(blas.device().multiprocessors());
            return Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: None });
        }
        let library = Library::new(blas, compute, factors, product, Epilogue::None, None)?;
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
        factors: [(Matrix<T>, bool); 2],
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
            assert_eq!(matrix.stride, out.columns, "rows lie one behind the other");
        }
        if let Some(factors) = for_hopper(blas, factors, false, &all) {
            let sums = total(blas, matmul_pieces(out.rows), out.columns, sums)?;
            let (inputs, outputs) = ((first.cast(), added.map(Matrix::cast)), [out.cast(), product.cast()]);
            let own = MatmulCrossGradient::new(factors, inputs, outputs, sums.parts)?;
            let grid = own.grid(blas.device().multiprocessors());
            return Ok(Self { library: None, kernels: vec![launcher(own, grid)], sums: Some(sums) });
        }
        let library = Library::new(blas, compute, factors, out, Epilogue::None, None)?;
        let (kernel, sums) = cross_gradient_behind(blas, added, matrices, sums)?;
        Ok(Self { library: Some(library), kernels: vec![kernel], sums: Some(sums) })
    }

    /// Enqueues the product, and the sums of its columns where the epilogue wants them.
    ///
    /// # Safety
    /// The matrices, and what the epilogue names, must lie where they lay, as [`Lane::launch`] says; nobody else must
    /// use the workspace of `blas`.
    ///
    /// # Errors
    /// Where library or driver refuse.
    pub unsafe fn enqueue(&self, blas: &Blas, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for it.
        unsafe {
            self.enqueue_product(blas, lane)?;
            self.enqueue_sums(lane)
        }
    }

    /// Enqueues the product without the sums of its columns, for which [`Product::enqueue_sums`] is left.
    ///
    /// # Safety
    /// The matrices, and what the epilogue names, must lie where they lay, as [`Lane::launch`] says; nobody else must
    /// use the workspace of `blas`.
    ///
    /// # Errors
    /// Where library or driver refuse.
    pub unsafe fn enqueue_product(&self, blas: &Blas, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the matrices; there are as many parts of sums as kernels are told.
        unsafe {
            self.library.iter().try_for_each(|library| library.enqueue(blas, lane))?;
            self.kernels.iter().try_for_each(|kernel| kernel.launch(lane))
        }
    }

    /// Enqueues the sums of the product's columns, where the epilogue wants them. It must be done before the product is
    /// enqueued again.
    ///
    /// # Safety
    /// [`Product::enqueue_product`] must come before; see [`Lane::launch`].
    ///
    /// # Errors
    /// Where the driver refuses.
    pub unsafe fn enqueue_sums(&self, lane: &Lane) -> Result<()> {
        let Some(total) = &self.sums else { return Ok(()) };
        // SAFETY: the parts lie in memory of the product's `Blas`; the caller vouches for it and for the sums.
        unsafe { lane.launch(total, total.grid()) }
    }
}

fn launcher<K: Kernel + fmt::Debug + Send + 'static>(kernel: K, blocks: (u32, u32)) -> Box<dyn Launch> {
    Box::new(Launcher(kernel, blocks))
}

/// What adds up the parts of a matrix's columns, for which it has room, to `sums`.
fn total(blas: &Blas, pieces: usize, columns: usize, sums: Pointer<f32>) -> Result<Total> {
    let parts = blas.parts(pieces * columns)?;
    Ok(Total { parts, sums, pieces: pieces as u32, columns: columns as u32 })
}

/// What takes gradients by a cross layer's result, which lie in `out` behind a product, to those by its own product.
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

/// A matrix of the type that is computed with, as which it is known.
fn same<T: Element, O: Element>(matrix: Matrix<O>) -> Matrix<T> {
    assert_eq!(TypeId::of::<T>(), TypeId::of::<O>(), "the output has the type of what it is combined with");
    matrix.cast()
}

/// The factors of a product that `matmul.cu` can take: `x y` or, where `transposed`, `x yᵀ`; in bf16, on a Hopper, of
/// matrices with rows that begin at multiples of 16 bytes.
fn for_hopper<T: Element>(
    blas: &Blas,
    [(x, x_transposed), (y, y_transposed)]: [(Matrix<T>, bool); 2],
    transposed: bool,
    others: &[Matrix<T>],
) -> Option<Factors> {
    let tiled = |matrix: &Matrix<T>| is_tiled(&matrix.cast());
    let fits = TypeId::of::<T>() == TypeId::of::<bf16>()
        && blas.device().kernels().hopper()
        && (x_transposed, y_transposed) == (false, transposed)
        && [x, y].iter().chain(others).all(tiled);
    fits.then(|| Factors { samples: x.cast(), weights: y.cast() })
}
