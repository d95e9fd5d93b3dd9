//! Compiles each of kernels/*.cu to a fatbin that the crate embeds, and checks that its parameters have the same layout
//! in Rust. What has not changed is not compiled again. Without the feature `cuda` it does nothing. docs.rs has no
//! nvcc: there, the fatbins are empty.
//!
//! `RANKINE_CUDA_ARCHITECTURES=sm_90a` (or several, with commas) compiles only for those, which is faster when
//! working on kernels.

// cargo reads what a build script prints.
#![allow(clippy::print_stdout)]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

mod compile;
mod layout;

use compile::{Compiler, FLAGS, Job, WANTED};

/// Environment variable that docs.rs sets.
const DOCS_RS: &str = "DOCS_RS";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=src/kernels");
    for variable in ["CUDA_HOME", DOCS_RS, WANTED].iter().chain(&FLAGS) {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in error.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let headers = sources("kernels", "cuh")?;
    let kernels = sources("kernels", "cu")?;
    if env::var_os(DOCS_RS).is_some() {
        return compile::empty_fatbins(&kernels, &out);
    }
    let compiler = Compiler::new(contents(&headers)?);
    let mut jobs: Vec<Job> = layout::checks(&sources("src/kernels", "rs")?, &kernels, &headers, &out)?;
    jobs.extend(compile::fatbins(&kernels, &out)?);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            compiler.run(job)?;
        }
        Ok(())
    };
    // A kernel takes seconds to compile, most of it single-threaded, so cargo's number of jobs are compiled in
    // parallel.
    let at_once = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    thread::scope(|scope| {
        let running: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|one| one.join().map_err(|_| "a compiling thread panicked")?)
    })
}

/// The files with an extension in a folder and the folders in it, sorted.
fn sources(folder: impl AsRef<Path>, extension: &str) -> Result<Vec<PathBuf>, String> {
    let folder = folder.as_ref();
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path, extension)?);
        } else if path.extension().is_some_and(|its| its == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn contents(paths: &[PathBuf]) -> Result<String, String> {
    let read =
        |path: &PathBuf| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    paths.iter().map(read).collect()
}
