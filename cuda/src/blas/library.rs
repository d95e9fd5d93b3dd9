//! cuBLASLt, and products computed by it.

use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::cublaslt::sys as lt;

use super::calls::Calls;
use super::{Algorithms, Compute, Epilogue, Factor, Tuning};
use crate::kernels::E4m3;
use crate::kernels::{Element, ElementKind};
use crate::runtime::{Buffer, Device, Error, Lane, Matrix, Moment, Pointer, Result};

/// Workspace of a product. Products on lanes that run in parallel must not share one.
const WORKSPACE_BYTES: usize = 32 << 20;
/// Candidate algorithms. The heuristics return no more, and list the expected fastest first.
const CANDIDATES: usize = 8;
/// Rounds of timing over all algorithms (the fastest time counts), and products per timing.
const ROUNDS: usize = 4;
const RUNS: usize = 3;
/// Distinct random numbers for timing; they are repeated.
const PATTERN: usize = 1 << 20;

/// fp8 sums of more terms than this are promoted to f32 every few terms. Shorter ones stay in the tensor cores, which
/// keep about 14 bits of them.
const FAST_DEPTH_MAX: usize = 4096;

/// Element types that the library multiplies.
pub(super) trait BlasElement: Pod {
    /// The library's name for the type.
    const TYPE: lt::cudaDataType_t;
    /// The type's name in tuning records.
    const NAME: &'static str;

    /// Rounds to this type.
    fn rounded(value: f32) -> Self;
}

impl<T: Element> BlasElement for T {
    const TYPE: lt::cudaDataType_t = match T::KIND {
        ElementKind::F32 => lt::cudaDataType_t::CUDA_R_32F,
        ElementKind::Bf16 => lt::cudaDataType_t::CUDA_R_16BF,
        ElementKind::F16 => lt::cudaDataType_t::CUDA_R_16F,
    };
    const NAME: &'static str = match T::KIND {
        ElementKind::F32 => "f32",
        ElementKind::Bf16 => "bf16",
        ElementKind::F16 => "f16",
    };

    fn rounded(value: f32) -> Self {
        T::of(value)
    }
}

impl BlasElement for E4m3 {
    const TYPE: lt::cudaDataType_t = lt::cudaDataType_t::CUDA_R_8F_E4M3;
    const NAME: &'static str = "fp8";

    fn rounded(value: f32) -> Self {
        Self::of(value)
    }
}

/// cuBLASLt on a GPU, with the workspace for products on one lane.
#[derive(Debug)]
pub struct Blas {
    device: Arc<Device>,
    handle: lt::cublasLtHandle_t,
    workspace: Buffer<u8>,
    /// Buffers for partial column sums.
    parts: RefCell<Vec<Buffer<f32>>>,
    algorithms: Algorithms,
    known: Tuning,
    /// The algorithms of all products planned so far.
    taken: RefCell<Tuning>,
}

// SAFETY: the library allows the use of a handle from any thread.
unsafe impl Send for Blas {}

impl Blas {
    /// Creates a handle for products on one lane of the GPU, which must be current on this thread.
    ///
    /// # Errors
    /// If the library is not found or does not initialize, or if `algorithms` is a record for another GPU or library.
    pub fn new(device: &Arc<Device>, algorithms: Algorithms) -> Result<Self> {
        let calls = Calls::load()?;
        // SAFETY: the function takes nothing and has no precondition.
        let (gpu, library) = (device.name()?, unsafe { (calls.version)() });
        if let Algorithms::Recorded(tuning) = &algorithms {
            tuning.check(&gpu, library)?;
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        named(unsafe { (calls.create)(&mut handle) }, "cublasLtCreate")?;
        let _workspaces = device.purpose("workspaces");
        let workspace = Buffer::uninitialized(device, WORKSPACE_BYTES)?;
        let known = Tuning::known(&gpu, library);
        let taken = RefCell::new(Tuning { gpu, library, ..Tuning::default() });
        let parts = RefCell::default();
        Ok(Self { device: Arc::clone(device), handle, workspace, parts, algorithms, known, taken })
    }

    /// Returns the algorithms of all products planned so far. Given as [`Algorithms::Recorded`], they reproduce the
    /// same bits.
    pub fn tuning(&self) -> Tuning {
        self.taken.borrow().clone()
    }

    /// Returns a buffer for partial sums, which lives as long as `self`: graphs outlive the products they were
    /// captured from.
    pub(super) fn parts(&self, len: usize) -> Result<Pointer<f32>> {
        let room = Buffer::uninitialized(&self.device, len)?;
        let pointer = room.pointer();
        self.parts.borrow_mut().push(room);
        Ok(pointer)
    }

    /// The GPU.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let _ = self.device.bind();
        // SAFETY: the handle was made by `new` and is destroyed once; products hold it only while they are enqueued.
        let _ = unsafe { (Calls::loaded().destroy)(self.handle) };
    }
}

/// A product computed by the library.
#[derive(Debug)]
pub(super) struct Library {
    description: Description,
    // In the library's order, column by column: so the right matrix of a row-major product comes first.
    a: Operand,
    b: Operand,
    out: Operand,
    /// Factor of the previous contents of `out`, which are added.
    keep: f32,
    algorithm: lt::cublasLtMatmulAlgo_t,
}

// SAFETY: descriptions and layouts are plain memory of the library, which products only read.
unsafe impl Send for Library {}

impl Library {
    /// Plans `out` as the product of the left and the right factor, either of which may be transposed. `scales` are
    /// the factors that both are multiplied by.
    ///
    /// # Panics
    /// With an epilogue that the library does not fuse.
    ///
    /// # Errors
    /// If the library has no algorithm for it.
    pub(super) fn new<T: BlasElement, O: BlasElement>(
        blas: &Blas,
        compute: Compute,
        factors: [Factor<T>; 2],
        out: Matrix<O>,
        epilogue: Epilogue<T>,
        scales: Option<[Pointer<f32>; 2]>,
    ) -> Result<Self> {
        use lt::cublasLtMatmulDescAttributes_t as Attribute;
        let description = Description::new(compute)?;
        let [b, a] = factors;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, u32::from(a.transposed))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, u32::from(b.transposed))?;
        match epilogue {
            Epilogue::None | Epilogue::Add => {}
            Epilogue::BiasRelu { bias } => {
                let kind = lt::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS as u32;
                description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, kind)?;
                description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.address())?;
            }
            Epilogue::ReluGradient { .. } | Epilogue::Cross { .. } | Epilogue::CrossGradient { .. } => {
                unreachable!("the library computes no product with this epilogue")
            }
        }
        if let Some([of_b, of_a]) = scales {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_a.address())?;
            description.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_b.address())?;
            let depth = if b.transposed { b.matrix.rows } else { b.matrix.columns };
            description.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, i8::from(depth <= FAST_DEPTH_MAX))?;
        }
        let keep = if matches!(epilogue, Epilogue::Add) { 1.0 } else { 0.0 };
        let name = name(compute, factors, out, epilogue);
        let product = Self {
            description,
            a: Operand::new(a.matrix)?,
            b: Operand::new(b.matrix)?,
            out: Operand::new(out)?,
            keep,
            algorithm: lt::cublasLtMatmulAlgo_t { data: [0; 8] },
        };
        let taken = blas.taken.borrow().get(&name)?;
        let algorithm = match (taken, &blas.algorithms) {
            (Some(algorithm), _) => algorithm,
            (None, Algorithms::Timed) => product.fastest(blas, [&a.matrix, &b.matrix], &out)?,
            (None, Algorithms::Recorded(tuning)) => product.recorded(blas, &name, tuning)?,
            (None, Algorithms::Known) => product.known(blas, &name)?,
        };
        blas.taken.borrow_mut().set(name, &algorithm);
        Ok(Self { algorithm, ..product })
    }

    /// The same with the algorithm of the product whose left factor has `rows` rows, if that is given and the library
    /// accepts it for these factors. Sums are then taken in the same order.
    ///
    /// # Panics
    /// As [`Library::new`].
    ///
    /// # Errors
    /// As [`Library::new`].
    pub(super) fn like<T: BlasElement, O: BlasElement>(
        blas: &Blas,
        compute: Compute,
        factors: [Factor<T>; 2],
        out: Matrix<O>,
        epilogue: Epilogue<T>,
        rows: Option<usize>,
    ) -> Result<Self> {
        let [x, y] = factors;
        let Some(rows) = rows.filter(|&rows| rows != x.matrix.rows) else {
            return Self::new(blas, compute, factors, out, epilogue, None);
        };
        let other = Factor { matrix: x.matrix.first_rows(rows), ..x };
        let like = Self::new(blas, compute, [other, y], out.first_rows(rows), epilogue, None)?;
        let product = Self { a: like.a, b: Operand::new(x.matrix)?, out: Operand::new(out)?, ..like };
        match product.is_taken(blas, &product.algorithm) {
            true => Ok(product),
            false => Self::new(blas, compute, factors, out, epilogue, None),
        }
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// The matrices and the epilogue's buffers must still be valid, as [`Lane::launch`] says; nobody else may use the
    /// workspace of `blas`.
    ///
    /// # Errors
    /// If the library reports an error.
    pub(super) unsafe fn enqueue(&self, blas: &Blas, lane: &Lane) -> Result<()> {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            self.enqueue_at(blas, lane, [self.a.address, self.b.address, self.out.address], &self.algorithm)
        }
    }

    /// The same with a given algorithm and other matrices.
    unsafe fn enqueue_at(
        &self,
        blas: &Blas,
        lane: &Lane,
        [a, b, out]: [u64; 3],
        algorithm: &lt::cublasLtMatmulAlgo_t,
    ) -> Result<()> {
        if lane.measures() {
            return Ok(());
        }
        let one = 1f32;
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: all handles live, and were made for each other by `new`; the factors are read before this returns.
        // The caller vouches for the memory.
        let status = unsafe {
            (Calls::loaded().matmul)(
                blas.handle,
                self.description.0,
                std::ptr::from_ref(&one).cast(),
                pointer(a),
                self.a.layout.0,
                pointer(b),
                self.b.layout.0,
                std::ptr::from_ref(&self.keep).cast(),
                pointer(out),
                self.out.layout.0,
                pointer(out).cast_mut(),
                self.out.layout.0,
                algorithm,
                pointer(blas.workspace.pointer().address()).cast_mut(),
                blas.workspace.len(),
                lane.stream().cast(),
            )
        };
        named(status, "cublasLtMatmul")
    }

    /// The algorithm recorded for the product, or the known one if the record has none.
    fn recorded(&self, blas: &Blas, name: &str, record: &Tuning) -> Result<lt::cublasLtMatmulAlgo_t> {
        let Some(algorithm) = record.get(name)? else { return self.known(blas, name) };
        if self.is_taken(blas, &algorithm) {
            return Ok(algorithm);
        }
        Err(Error::Tuning(format!("the library rejects its algorithm for {name}")))
    }

    /// The algorithm that was measured to be the fastest, if there is a measurement and the library accepts it;
    /// otherwise the first one of the heuristics.
    fn known(&self, blas: &Blas, name: &str) -> Result<lt::cublasLtMatmulAlgo_t> {
        let measured = blas.known.get(name)?.filter(|algorithm| self.is_taken(blas, algorithm));
        measured.map_or_else(|| Ok(self.candidates(blas)?[0]), Ok)
    }

    /// Returns whether the library accepts an algorithm for this product.
    fn is_taken(&self, blas: &Blas, algorithm: &lt::cublasLtMatmulAlgo_t) -> bool {
        let mut found = MaybeUninit::<lt::cublasLtMatmulHeuristicResult_t>::uninit();
        let (a, b, out) = (&self.a.layout, &self.b.layout, &self.out.layout);
        // SAFETY: all handles live; the pointer is to memory for the result.
        let status = unsafe {
            (Calls::loaded().algorithm_check)(
                blas.handle,
                self.description.0,
                a.0,
                b.0,
                out.0,
                out.0,
                algorithm,
                found.as_mut_ptr(),
            )
        };
        status == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS
            // SAFETY: the call succeeded, and so has set the result.
            && unsafe { found.assume_init_ref() }.workspaceSize <= blas.workspace.len()
    }

    /// Returns the algorithms that the library's heuristics name, at least one. The same library on the same GPU
    /// always returns the same. Algorithms that add up partial sums in the order of completion are excluded.
    fn candidates(&self, blas: &Blas) -> Result<Vec<lt::cublasLtMatmulAlgo_t>> {
        use lt::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference::new()?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, blas.workspace.len() as u64)?;
        // Partial sums go to the workspace and are added up in order; `INPLACE` would add them atomically.
        let schemes = lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes)?;
        let mut found = [MaybeUninit::<lt::cublasLtMatmulHeuristicResult_t>::uninit(); CANDIDATES];
        let mut count = 0;
        // SAFETY: all handles live; there is memory for the requested number of results.
        let status = unsafe {
            (Calls::loaded().algorithm_heuristic)(
                blas.handle,
                self.description.0,
                self.a.layout.0,
                self.b.layout.0,
                self.out.layout.0,
                self.out.layout.0,
                preference.0,
                CANDIDATES as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            )
        };
        named(status, "cublasLtMatmulAlgoGetHeuristic")?;
        let found = found.iter().take(count.unsigned_abs() as usize);
        // SAFETY: the library has set as many results as it counted.
        let found = found.map(|result| unsafe { result.assume_init_ref() });
        let usable = found.filter(|result| result.state == lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        let usable: Vec<_> = usable.map(|result| result.algo).collect();
        if usable.is_empty() {
            let status = "no algorithm for this product".into();
            return Err(Error::Blas { call: "cublasLtMatmulAlgoGetHeuristic", status });
        }
        Ok(usable)
    }

    /// Times the candidates on random numbers and returns the fastest.
    fn fastest<T: BlasElement, O: BlasElement>(
        &self,
        blas: &Blas,
        [a, b]: [&Matrix<T>; 2],
        out: &Matrix<O>,
    ) -> Result<lt::cublasLtMatmulAlgo_t> {
        let candidates = self.candidates(blas)?;
        if blas.device.ledger().measures() {
            return Ok(candidates[0]);
        }
        let (a, b, out) = (random(blas, a)?, random(blas, b)?, random(blas, out)?);
        let addresses = [a.pointer().address(), b.pointer().address(), out.pointer().address()];
        let lane = Lane::new(&blas.device)?;
        let (begin, end) = (Moment::new(&blas.device)?, Moment::new(&blas.device)?);
        let mut times = vec![f64::INFINITY; candidates.len()];
        for _ in 0..ROUNDS {
            for (algorithm, fastest) in candidates.iter().zip(&mut times) {
                lane.record(&begin)?;
                for _ in 0..RUNS {
                    // SAFETY: the buffers are as large as the matrices and live until the lane was waited for.
                    unsafe { self.enqueue_at(blas, &lane, addresses, algorithm) }?;
                }
                lane.record(&end)?;
                lane.synchronize()?;
                *fastest = fastest.min(end.ms_since(&begin)?);
            }
        }
        let first = times.iter().enumerate().min_by(|(_, one), (_, other)| one.total_cmp(other));
        Ok(candidates[first.map_or(0, |(number, _)| number)])
    }
}

/// The product's name in tuning records: all that decides which algorithm is fastest.
fn name<T: BlasElement, O: BlasElement>(
    compute: Compute,
    [x, y]: [Factor<T>; 2],
    out: Matrix<O>,
    epilogue: Epilogue<T>,
) -> String {
    let factor = |Factor { matrix, transposed }: Factor<T>| {
        let turned = if transposed { " transposed" } else { "" };
        format!("{}x{} of {}{turned}", matrix.rows, matrix.columns, matrix.stride)
    };
    let epilogue = match epilogue {
        Epilogue::None
        | Epilogue::ReluGradient { .. }
        | Epilogue::Cross { .. }
        | Epilogue::CrossGradient { .. } => "",
        Epilogue::Add => ", added",
        Epilogue::BiasRelu { .. } => ", bias, relu",
    };
    let (x, y) = (factor(x), factor(y));
    format!("{compute:?}: {x} by {y} to {} of {}{epilogue}", O::NAME, out.stride)
}

/// Random numbers in a buffer of a matrix's size.
fn random<T: BlasElement>(blas: &Blas, matrix: &Matrix<T>) -> Result<Buffer<T>> {
    let buffer = Buffer::uninitialized(&blas.device, matrix.rows * matrix.stride)?;
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let numbers = (0..PATTERN.min(buffer.len())).map(|_| {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        T::rounded((word >> 40) as f32 / (1 << 23) as f32 - 1.0)
    });
    buffer.repeat(&numbers.collect::<Vec<_>>())?;
    Ok(buffer)
}

#[derive(Debug)]
struct Description(lt::cublasLtMatmulDesc_t);

impl Description {
    fn new(compute: Compute) -> Result<Self> {
        use lt::cublasComputeType_t as Type;
        let compute = match compute {
            Compute::F32 | Compute::Bf16 | Compute::F16 | Compute::Fp8 => Type::CUBLAS_COMPUTE_32F,
            Compute::Tf32 => Type::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        let mut description = std::ptr::null_mut();
        let scale = lt::cudaDataType_t::CUDA_R_32F;
        // SAFETY: the pointer is to a live variable.
        let status = unsafe { (Calls::loaded().description_create)(&mut description, compute, scale) };
        named(status, "cublasLtMatmulDescCreate")?;
        Ok(Self(description))
    }

    fn set<V: Copy>(&self, attribute: lt::cublasLtMatmulDescAttributes_t, value: V) -> Result<()> {
        let (bytes, value) = (size_of::<V>(), std::ptr::from_ref(&value).cast());
        // SAFETY: the description lives, and the library copies as many bytes as the value has.
        let status = unsafe { (Calls::loaded().description_set)(self.0, attribute, value, bytes) };
        named(status, "cublasLtMatmulDescSetAttribute")
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { (Calls::loaded().description_destroy)(self.0) };
    }
}

/// A matrix as the library takes it.
#[derive(Debug)]
struct Operand {
    address: u64,
    layout: Layout,
}

impl Operand {
    fn new<T: BlasElement>(matrix: Matrix<T>) -> Result<Self> {
        Ok(Self { address: matrix.pointer.address(), layout: Layout::new(matrix)? })
    }
}

#[derive(Debug)]
struct Layout(lt::cublasLtMatrixLayout_t);

impl Layout {
    /// Our row is the library's column.
    fn new<T: BlasElement>(matrix: Matrix<T>) -> Result<Self> {
        let (rows, columns, stride) = (matrix.columns as u64, matrix.rows as u64, matrix.stride as i64);
        let mut layout = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        let status = unsafe { (Calls::loaded().layout_create)(&mut layout, T::TYPE, rows, columns, stride) };
        named(status, "cublasLtMatrixLayoutCreate")?;
        Ok(Self(layout))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { (Calls::loaded().layout_destroy)(self.0) };
    }
}

struct Preference(lt::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: the pointer is to a live variable.
        let status = unsafe { (Calls::loaded().preference_create)(&mut preference) };
        named(status, "cublasLtMatmulPreferenceCreate")?;
        Ok(Self(preference))
    }

    fn set<V: Copy>(&self, attribute: lt::cublasLtMatmulPreferenceAttributes_t, value: V) -> Result<()> {
        let (bytes, value) = (size_of::<V>(), std::ptr::from_ref(&value).cast());
        // SAFETY: the preference lives, and the library copies as many bytes as the value has.
        let status = unsafe { (Calls::loaded().preference_set)(self.0, attribute, value, bytes) };
        named(status, "cublasLtMatmulPreferenceSetAttribute")
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: it was made by `new` and is destroyed once.
        let _ = unsafe { (Calls::loaded().preference_destroy)(self.0) };
    }
}

fn named(status: lt::cublasStatus_t, call: &'static str) -> Result<()> {
    match status {
        lt::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        status => Err(Error::Blas { call, status: format!("{status:?}") }),
    }
}
