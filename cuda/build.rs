//! Compiles each of kernels/*.cu to a fatbin that the crate embeds: machine code for Hopper and Ampere, and PTX for
//! later GPUs. Unchanged kernels are not recompiled. Without the feature `cuda` it does nothing.
//!
//! `RANKINE_CUDA_ARCHITECTURES=sm_90a` (or several, with commas) compiles only for those, which is faster when
//! working on kernels.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The architectures that each kernel is compiled for.
const ARCHITECTURES: [&str; 3] =
    ["arch=compute_90a,code=sm_90a", "arch=compute_80,code=sm_80", "arch=compute_80,code=compute_80"];
/// Environment variable that selects some of them, by their `code=`.
const WANTED: &str = "RANKINE_CUDA_ARCHITECTURES";
const HELP: &str =
    "the feature `cuda` needs nvcc 13.0, at CUDA_HOME/bin/nvcc or on PATH. Without a CUDA toolkit:
  python3 -m venv nvcc
  nvcc/bin/pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' \\
      'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
  export CUDA_HOME=$(echo $PWD/nvcc/lib/python3*/site-packages/nvidia/cu13)";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-env-changed=CUDA_HOME");
    println!("cargo::rerun-if-env-changed={WANTED}");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match compile_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in error.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn compile_all() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let nvcc = match env::var_os("CUDA_HOME") {
        Some(home) => Path::new(&home).join("bin/nvcc"),
        None => "nvcc".into(),
    };
    let mut arguments: Vec<String> =
        ["-std=c++17", "-O3", "-fatbin", "-Werror", "all-warnings"].map(Into::into).into();
    for architecture in architectures()? {
        arguments.extend(["-gencode".into(), architecture]);
    }
    let compiler = Compiler { nvcc, arguments, headers: contents(&sources("cuh")?)?, out };
    let (sources, next) = (sources("cu")?, AtomicUsize::new(0));
    let work = || {
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            compiler.compile(source)?;
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

/// The architectures to compile for: all, or those that the environment names.
fn architectures() -> Result<Vec<String>, String> {
    let Ok(wanted) = env::var(WANTED) else { return Ok(ARCHITECTURES.map(Into::into).into()) };
    let find = |code: &str| {
        let of = |architecture: &&&str| architecture.ends_with(&format!("code={code}"));
        ARCHITECTURES.iter().find(of).map(|&found| found.to_owned()).ok_or_else(|| {
            format!("{WANTED} names {code}: use sm_90a, sm_80 or compute_80, or several with commas")
        })
    };
    wanted.split(',').map(find).collect()
}

/// The files in `kernels` with an extension, sorted.
fn sources(extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir("kernels").map_err(|error| format!("kernels: {error}"))?;
    let mut sources: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    sources.retain(|path| path.extension().is_some_and(|found| found == extension));
    sources.sort();
    Ok(sources)
}

fn contents(paths: &[PathBuf]) -> Result<String, String> {
    let read =
        |path: &PathBuf| fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    paths.iter().map(read).collect()
}

struct Compiler {
    nvcc: PathBuf,
    arguments: Vec<String>,
    /// The text of all headers.
    headers: String,
    out: PathBuf,
}

impl Compiler {
    /// Compiles a kernel unless its fatbin was made from the same inputs.
    fn compile(&self, source: &Path) -> Result<(), String> {
        let name = source.file_stem().ok_or("a kernel has a name")?;
        let fatbin = self.out.join(name).with_extension("fatbin");
        let compiled_from = fatbin.with_extension("inputs");
        let nvcc = self.nvcc.display();
        let inputs =
            format!("{nvcc} {:?}\n{}{}", self.arguments, self.headers, contents(&[source.to_owned()])?);
        if fatbin.exists() && fs::read_to_string(&compiled_from).is_ok_and(|before| before == inputs) {
            return Ok(());
        }
        // If anything fails from here on, the next build compiles the kernel again.
        let _ = fs::remove_file(&compiled_from);
        let output = Command::new(&self.nvcc)
            .args(&self.arguments)
            .arg("-o")
            .arg(&fatbin)
            .arg(source)
            .output()
            .map_err(|error| format!("{nvcc} could not be started: {error}\n{HELP}"))?;
        if !output.status.success() {
            return Err(format!(
                "{}: {}\n{}{}\n{HELP}",
                source.display(),
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        fs::write(&compiled_from, inputs).map_err(|error| format!("{}: {error}", compiled_from.display()))
    }
}
