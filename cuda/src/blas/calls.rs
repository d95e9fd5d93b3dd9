//! cuBLASLt's functions, from the library that [`crate::probe`] finds. Only the types of the bindings are used: their
//! own search prefers an unversioned `libcublasLt.so` to the one of CUDA 13, and panics if there is none.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use cudarc::cublaslt::sys as lt;

use crate::probe::CallError;
use crate::probe::library::LoadedLibrary;
use crate::probe::specs::CUBLAS_LT;
use crate::runtime::{Error, Result};

/// The functions that are used here, typed as the bindings declare them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calls {
    pub(super) create: unsafe extern "C" fn(*mut lt::cublasLtHandle_t) -> lt::cublasStatus_t,
    pub(super) destroy: unsafe extern "C" fn(lt::cublasLtHandle_t) -> lt::cublasStatus_t,
    pub(super) version: unsafe extern "C" fn() -> usize,
    pub(super) matmul: unsafe extern "C" fn(
        lt::cublasLtHandle_t,
        lt::cublasLtMatmulDesc_t,
        *const c_void,
        *const c_void,
        lt::cublasLtMatrixLayout_t,
        *const c_void,
        lt::cublasLtMatrixLayout_t,
        *const c_void,
        *const c_void,
        lt::cublasLtMatrixLayout_t,
        *mut c_void,
        lt::cublasLtMatrixLayout_t,
        *const lt::cublasLtMatmulAlgo_t,
        *mut c_void,
        usize,
        lt::cudaStream_t,
    ) -> lt::cublasStatus_t,
    pub(super) algorithm_check: unsafe extern "C" fn(
        lt::cublasLtHandle_t,
        lt::cublasLtMatmulDesc_t,
        lt::cublasLtMatrixLayout_t,
        lt::cublasLtMatrixLayout_t,
        lt::cublasLtMatrixLayout_t,
        lt::cublasLtMatrixLayout_t,
        *const lt::cublasLtMatmulAlgo_t,
        *mut lt::cublasLtMatmulHeuristicResult_t,
    ) -> lt::cublasStatus_t,
    pub(super) algorithm_heuristic: unsafe extern "C" fn(
        lt::cublasLtHandle_t,
        lt::cublasLtMatmulDesc_t,
        lt::cublasLtMatrixLayout_t,
        lt::cublasLtMatrixLayout_t,
        lt::cublasLtMatrixLayout_t,
        lt::cublasLtMatrixLayout_t,
        lt::cublasLtMatmulPreference_t,
        c_int,
        *mut lt::cublasLtMatmulHeuristicResult_t,
        *mut c_int,
    ) -> lt::cublasStatus_t,
    pub(super) description_create: unsafe extern "C" fn(
        *mut lt::cublasLtMatmulDesc_t,
        lt::cublasComputeType_t,
        lt::cudaDataType_t,
    ) -> lt::cublasStatus_t,
    pub(super) description_destroy: unsafe extern "C" fn(lt::cublasLtMatmulDesc_t) -> lt::cublasStatus_t,
    pub(super) description_set: unsafe extern "C" fn(
        lt::cublasLtMatmulDesc_t,
        lt::cublasLtMatmulDescAttributes_t,
        *const c_void,
        usize,
    ) -> lt::cublasStatus_t,
    pub(super) preference_create:
        unsafe extern "C" fn(*mut lt::cublasLtMatmulPreference_t) -> lt::cublasStatus_t,
    pub(super) preference_destroy: unsafe extern "C" fn(lt::cublasLtMatmulPreference_t) -> lt::cublasStatus_t,
    pub(super) preference_set: unsafe extern "C" fn(
        lt::cublasLtMatmulPreference_t,
        lt::cublasLtMatmulPreferenceAttributes_t,
        *const c_void,
        usize,
    ) -> lt::cublasStatus_t,
    pub(super) layout_create: unsafe extern "C" fn(
        *mut lt::cublasLtMatrixLayout_t,
        lt::cudaDataType,
        u64,
        u64,
        i64,
    ) -> lt::cublasStatus_t,
    pub(super) layout_destroy: unsafe extern "C" fn(lt::cublasLtMatrixLayout_t) -> lt::cublasStatus_t,
}

static CALLS: OnceLock<Result<Calls, String>> = OnceLock::new();

impl Calls {
    /// Loads the library, which stays loaded.
    ///
    /// # Errors
    /// [`Error::NoBlas`] if it is not found in the version that is needed.
    pub(super) fn load() -> Result<&'static Self> {
        let load = || {
            let library = CUBLAS_LT.load().map_err(|why| why.to_string())?;
            Self::of(&library).map_err(|why| why.to_string())
        };
        let calls = CALLS.get_or_init(load);
        calls.as_ref().map_err(|why| Error::NoBlas(why.clone()))
    }

    /// The functions of the library, which must have been loaded before.
    ///
    /// # Panics
    /// If it was not. Every caller has a [`super::Blas`], which loads it.
    pub(super) fn loaded() -> &'static Self {
        Self::load().expect("a `Blas` has loaded the library")
    }

    fn of(library: &LoadedLibrary) -> Result<Self, CallError> {
        // SAFETY: the fields' types are those with which the bindings, made from cublasLt.h of CUDA 13.0, declare the
        // functions of these names; the library is of that major version, within which they keep their types.
        unsafe {
            Ok(Self {
                create: library.symbol(c"cublasLtCreate")?,
                destroy: library.symbol(c"cublasLtDestroy")?,
                version: library.symbol(c"cublasLtGetVersion")?,
                matmul: library.symbol(c"cublasLtMatmul")?,
                algorithm_check: library.symbol(c"cublasLtMatmulAlgoCheck")?,
                algorithm_heuristic: library.symbol(c"cublasLtMatmulAlgoGetHeuristic")?,
                description_create: library.symbol(c"cublasLtMatmulDescCreate")?,
                description_destroy: library.symbol(c"cublasLtMatmulDescDestroy")?,
                description_set: library.symbol(c"cublasLtMatmulDescSetAttribute")?,
                preference_create: library.symbol(c"cublasLtMatmulPreferenceCreate")?,
                preference_destroy: library.symbol(c"cublasLtMatmulPreferenceDestroy")?,
                preference_set: library.symbol(c"cublasLtMatmulPreferenceSetAttribute")?,
                layout_create: library.symbol(c"cublasLtMatrixLayoutCreate")?,
                layout_destroy: library.symbol(c"cublasLtMatrixLayoutDestroy")?,
            })
        }
    }
}
