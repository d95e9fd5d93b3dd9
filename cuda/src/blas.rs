//! Products of matrices by cuBLASLt, with bias and ReLU behind them where a layer has those.
//!
//! Gradients are not taken through a ReLU here, nor summed for a bias: the library (13.1) has kernels of its own run
//! behind the product for both, which take longer than `columns.cu`, by a factor of three for a layer of 1024.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::cublaslt::sys as lt;

use crate::buffer::{Buffer, Pointer};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernels::Element;
use crate::lane::Lane;

/// What a product may work in. Products on lanes that run side by side must not share it.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Algorithms to choose from: the heuristics put the best first, and it is used unless it cannot be had.
const CANDIDATES: usize = 4;

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

/// cuBLASLt on a GPU, with the memory that products on one lane work in.
#[derive(Debug)]
pub struct Blas {
    device: Arc<Device>,
    handle: lt::cublasLtHandle_t,
    workspace: Buffer<u8>,
}

// SAFETY: the library allows the use of a handle from any thread.
unsafe impl Send for Blas {}

impl Blas {
    /// cuBLASLt for products on one lane of the GPU, which must be the current one of this thread.
    ///
    /// # Errors
    /// Where the library is not found or does not start.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        // The bindings panic where the library is missing: so it is asked for first.
        // SAFETY: loading the library runs its initializers, which it allows at any time.
        if !unsafe { lt::is_culib_present() } {
            return Err(Error::NoBlas("the library, libcublasLt.so.13, was not found".into()));
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        named(unsafe { lt::cublasLtCreate(&mut handle) }, "cublasLtCreate")?;
        let _workspaces = device.purpose("workspaces");
        let workspace = Buffer::uninitialized(device, WORKSPACE_BYTES)?;
        Ok(Self { device: Arc::clone(device), handle, workspace })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: the handle was made by `new` and is destroyed once; products hold it only while they are enqueued.
        let _ = unsafe { lt::cublasLtDestroy(self.handle) };
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

/// What a product does to its sums.
#[derive(Debug)]
pub enum Epilogue<T> {
    /// Nothing.
    None,
    /// Adds a bias to each row, and sets what is negative to 0.
    BiasRelu {
        /// One a column.
        bias: Pointer<T>,
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
    description: Description,
    // As the library counts: column by column, so what is the right matrix of a row-major product comes first.
    a: (u64, Layout),
    b: (u64, Layout),
    out: (u64, Layout),
    /// What is in `out` before is multiplied by this, and added.
    keep: f32,
    algorithm: lt::cublasLtMatmulAlgo_t,
}

// SAFETY: descriptions and layouts are plain memory of the library, which products only read.
unsafe impl Send for Product {}

impl Product {
    /// `out = x yᵀ`: x `[m, k]`, y `[n, k]`.
    ///
    /// # Errors
    /// Where the library has no algorithm for it.
    pub fn by_transposed<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        x: Matrix<T>,
        y: Matrix<T>,
        out: Matrix<O>,
        epilogue: Epilogue<T>,
    ) -> Result<Self> {
        assert_eq!((x.columns, x.rows, y.rows), (y.columns, out.rows, out.columns));
        Self::new(blas, compute, (y, true), (x, false), out, epilogue)
    }

    /// `out = x y`: x `[m, k]`, y `[k, n]`.
    ///
    /// # Errors
    /// Where the library has no algorithm for it.
    pub fn straight<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        x: Matrix<T>,
        y: Matrix<T>,
        out: Matrix<O>,
    ) -> Result<Self> {
        assert_eq!((x.columns, x.rows, y.columns), (y.rows, out.rows, out.columns));
        Self::new(blas, compute, (y, false), (x, false), out, Epilogue::None)
    }

    /// `out = xᵀ y`: x `[k, m]`, y `[k, n]`.
    ///
    /// # Errors
    /// Where the library has no algorithm for it.
    pub fn of_transposed<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        x: Matrix<T>,
        y: Matrix<T>,
        out: Matrix<O>,
    ) -> Result<Self> {
        assert_eq!((x.rows, x.columns, y.columns), (y.rows, out.rows, out.columns));
        Self::new(blas, compute, (y, false), (x, true), out, Epilogue::None)
    }

    fn new<T: Element, O: Element>(
        blas: &Blas,
        compute: Compute,
        (a, transpose_a): (Matrix<T>, bool),
        (b, transpose_b): (Matrix<T>, bool),
        out: Matrix<O>,
        epilogue: Epilogue<T>,
    ) -> Result<Self> {
        assert_eq!(T::BF16, compute == Compute::Bf16, "elements are of the type that is computed with");
        use lt::cublasLtMatmulDescAttributes_t as Attribute;
        let description = Description::new(compute)?;
        let transposition = |transpose| if transpose { 1u32 } else { 0 };
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, transposition(transpose_a))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, transposition(transpose_b))?;
        if let Epilogue::BiasRelu { bias } = epilogue {
            let kind = lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS as u32;
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, kind)?;
            description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.address())?;
        }
        let (a, b) = ((a.pointer.address(), Layout::new(a)?), (b.pointer.address(), Layout::new(b)?));
        let out = (out.pointer.address(), Layout::new(out)?);
        let algorithm = first_algorithm(blas, &description, [&a.1, &b.1, &out.1])?;
        Ok(Self { description, a, b, out, keep: 0.0, algorithm })
    }

    /// The product, added to what `out` has.
    pub fn added(self) -> Self {
        Self { keep: 1.0, ..self }
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// The matrices, and what the epilogue names, must lie where they lay, as [`Lane::launch`] says; nobody else must
    /// use the workspace of `blas`.
    ///
    /// # Errors
    /// Where the library refuses.
    pub unsafe fn enqueue(&self, blas: &Blas, lane: &Lane) -> Result<()> {
        if lane.measures() {
            return Ok(());
        }
        let one = 1f32;
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: all handles live, and were made for each other by `new`; the factors are read before this returns.
        // The caller vouches for the memory.
        let status = unsafe {
            lt::cublasLtMatmul(
                blas.handle,
                self.description.0,
                std::ptr::from_ref(&one).cast(),
                pointer(self.a.0),
                self.a.1.0,
                pointer(self.b.0),
                self.b.1.0,
                std::ptr::from_ref(&self.keep).cast(),
                pointer(self.out.0),
                self.out.1.0,
                pointer(self.out.0).cast_mut(),
                self.out.1.0,
                &self.algorithm,
                pointer(blas.workspace.pointer().address()).cast_mut(),
                blas.workspace.len(),
                lane.stream().cast(),
            )
        };
        named(status, "cublasLtMatmul")
    }
}

/// The algorithm that the library's heuristics put first: the same each time on the same GPU with the same library.
/// None that adds up pieces in the order in which they are done.
fn first_algorithm(
    blas: &Blas,
    description: &Description,
    [a, b, out]: [&Layout; 3],
) -> Result<lt::cublasLtMatmulAlgo_t> {
    use lt::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference = Preference::new()?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, blas.workspace.len() as u64)?;
    // Pieces go to the workspace and are added up in order; `INPLACE` would add them atomically.
    let schemes = lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes)?;
    let mut found = [MaybeUninit::<lt::cublasLtMatmulHeuristicResult_t>::uninit(); CANDIDATES];
    let mut count = 0;
    // SAFETY: all handles live; there is room for as many results as are asked for.
    let status = unsafe {
        lt::cublasLtMatmulAlgoGetHeuristic(
            blas.handle,
            description.0,
            a.0,
            b.0,
            out.0,
            out.0,
            preference.0,
            CANDIDATES as i32,
            found.as_mut_ptr().cast(),
            &mut count,
        )
    };
    named(status, "cublasLtMatmulAlgoGetHeuristic")?;
    let found = found.iter().take(count.unsigned_abs() as usize);
    // SAFETY: the library has set as many results as it counted.
    let mut found = found.map(|result| unsafe { result.assume_init_ref() });
    let usable = found.find(|result| result.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
    usable.map(|result| result.algo).ok_or(Error::Blas {
        call: "cublasLtMatmulAlgoGetHeuristic",
        status: "no algorithm for this product".into(),
    })
}

#[derive(Debug)]
struct Description(lt::cublasLtMatmulDesc_t);

impl Description {
    fn new(compute: Compute) -> Result<Self> {
        use lt::cublasComputeType_t as Type;
        let compute = match compute {
            Compute::F32 | Compute::Bf16 => Type::CUBLAS_COMPUTE_32F,
            Compute::Tf32 => Type::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        let mut description = std::ptr::null_mut();
        let scale = lt::cudaDataType_t::CUDA_R_32F;
        // SAFETY: the pointer is to a live variable.
        let status = unsafe { lt::cublasLtMatmulDescCreate(&mut description, compute, scale) };
        named(status, "cublasLtMatmulDescCreate")?;
        Ok(Self(description))
    }

    fn set<V: Copy>(&self, attribute: lt::cublasLtMatmulDescAttributes_t, value: V) -> Result<()> {
        let (bytes, value) = (size_of::<V>(), std::ptr::from_ref(&value).cast());
        // SAFETY: the description lives, and the library copies as many bytes as the value has.
        let status = unsafe { lt::cublasLtMatmulDescSetAttribute(self.0, attribute, value, bytes) };
        named(status, "cublasLtMatmulDescSetAttribute")
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { lt::cublasLtMatmulDescDestroy(self.0) };
    }
}

#[derive(Debug)]
struct Layout(lt::cublasLtMatrixLayout_t);

impl Layout {
    /// A row of ours is a column of the library's.
    fn new<T: Element>(matrix: Matrix<T>) -> Result<Self> {
        use lt::cudaDataType_t as Type;
        let kind = if T::BF16 { Type::CUDA_R_16BF } else { Type::CUDA_R_32F };
        let (rows, columns, stride) = (matrix.columns as u64, matrix.rows as u64, matrix.stride as i64);
        let mut layout = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        let status = unsafe { lt::cublasLtMatrixLayoutCreate(&mut layout, kind, rows, columns, stride) };
        named(status, "cublasLtMatrixLayoutCreate")?;
        Ok(Self(layout))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { lt::cublasLtMatrixLayoutDestroy(self.0) };
    }
}

struct Preference(lt::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        let status = unsafe { lt::cublasLtMatmulPreferenceCreate(&mut preference) };
        named(status, "cublasLtMatmulPreferenceCreate")?;
        Ok(Self(preference))
    }

    fn set<V: Copy>(&self, attribute: lt::cublasLtMatmulPreferenceAttributes_t, value: V) -> Result<()> {
        let (bytes, value) = (size_of::<V>(), std::ptr::from_ref(&value).cast());
        // SAFETY: the preference lives, and the library copies as many bytes as the value has.
        let status = unsafe { lt::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, value, bytes) };
        named(status, "cublasLtMatmulPreferenceSetAttribute")
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { lt::cublasLtMatmulPreferenceDestroy(self.0) };
    }
}

fn named(status: lt::cublasStatus_t, call: &'static str) -> Result<()> {
    match status {
        lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(Error::Blas { call, status: format!("{status:?}") }),
    }
}
