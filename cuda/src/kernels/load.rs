//! Opens GPUs with all kernels loaded.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::limits::SHARED_BYTES_MAX;
use super::names::{FILES, Family};
use super::{fp8_by_first, fp8_cross, fp8_matmul, matmul};
use crate::runtime::{Device, DriverResult, Functions, Result};

impl Device {
    /// Opens a GPU, loads the kernels onto it and makes it current on this thread.
    ///
    /// # Errors
    /// If there is no driver or no such GPU, or the driver reports an error.
    pub fn open(ordinal: usize) -> Result<Arc<Self>> {
        Self::with_functions(ordinal, load)
    }

    /// Returns whether there are fp8 matrix products for this GPU, which requires Hopper.
    pub fn multiplies_fp8(&self) -> bool {
        self.functions().hopper()
    }
}

/// Loads all kernels into the current context: the first launch of a kernel must not be the one that is captured.
fn load() -> Result<Functions> {
    let mut functions = Vec::<sys::CUfunction>::new();
    for file in FILES {
        // SAFETY: the image is a fatbin that nvcc made, and lives forever.
        let module = unsafe { result::module::load_data(file.image.0.as_ptr().cast()) };
        let module = module.named("cuModuleLoadData")?;
        for name in file.families.iter().flat_map(|names| names.variants()) {
            functions.push(function(module, &CString::new(name).expect("a name has no zeros"))?);
        }
    }
    let all = [
        (Family::MatmulReluGradient, matmul::SHARED_BYTES),
        (Family::MatmulCross, matmul::SHARED_BYTES),
        (Family::MatmulCrossGradient, matmul::SHARED_BYTES),
        (Family::Fp8GradientByFirst, fp8_by_first::SHARED_BYTES),
        (Family::Fp8CrossLayer, fp8_cross::SHARED_BYTES),
        (Family::Fp8CrossGradient, fp8_cross::SHARED_BYTES),
        (Family::Fp8Relu, fp8_matmul::SHARED_BYTES),
        (Family::Fp8ReluGradient, fp8_matmul::SHARED_BYTES),
        (Family::Fp8Plain, fp8_matmul::SHARED_BYTES),
        (Family::Fp8ToBf16, fp8_matmul::SHARED_BYTES),
    ];
    let mut hopper = true;
    for (kernel, shared_bytes) in all {
        hopper &= allow_matmul(functions[kernel.variant([]).index], shared_bytes)?;
    }
    Ok(Functions::new(functions, hopper))
}

/// Allows a kernel of `matmul.cu` or its fp8 counterparts the shared memory that it needs; returns false if it was
/// not loaded for Hopper.
fn allow_matmul(function: sys::CUfunction, shared_bytes: u32) -> Result<bool> {
    let mut target = 0;
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION;
    // SAFETY: the function was just loaded, and the pointer is to a live integer.
    unsafe { sys::cuFuncGetAttribute(&mut target, attribute, function) }
        .result()
        .named("cuFuncGetAttribute")?;
    if target != matmul::TARGET {
        return Ok(false);
    }
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function was just loaded.
    unsafe { result::function::set_function_attribute(function, attribute, shared_bytes as i32) }
        .named("cuFuncSetAttribute")?;
    Ok(true)
}

/// A function of a module, allowed as much shared memory as any launcher requests.
fn function(module: sys::CUmodule, name: &CStr) -> Result<sys::CUfunction> {
    // SAFETY: the module was just loaded in the current context.
    let function =
        unsafe { result::module::get_function(module, name.to_owned()) }.named("cuModuleGetFunction")?;
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function was just got from the module.
    unsafe { result::function::set_function_attribute(function, attribute, SHARED_BYTES_MAX as i32) }
        .named("cuFuncSetAttribute")?;
    Ok(function)
}
