//! Compiles kernels/*.cu, each to a fatbin that the crate embeds: machine code for Hopper and for Ampere, and PTX for
//! what comes after. Without the feature `cuda` it does nothing.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;

/// What each kernel is compiled for.
const ARCHITECTURES: [&str; 3] =
    ["arch=compute_90a,code=sm_90a", "arch=compute_80,code=sm_80", "arch=compute_80,code=compute_80"];
const HELP: &str =
    "the feature `cuda` needs nvcc 13.0, at CUDA_HOME/bin/nvcc or on PATH. Without a CUDA toolkit:
  python3 -m venv nvcc
  nvcc/bin/pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' \\
      'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
  export CUDA_HOME=$(echo $PWD/nvcc/lib/python3*/site-packages/nvidia/cu13)";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-env-changed=CUDA_HOME");
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
    let entries = fs::read_dir("kernels").map_err(|error| format!("kernels: {error}"))?;
    let mut sources: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.sort();
    // A kernel takes seconds, most of them in one process: as many at once as cargo has for this crate.
    let at_once = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    for group in sources.chunks(at_once) {
        thread::scope(|scope| {
            let running: Vec<_> =
                group.iter().map(|source| scope.spawn(|| compile(&nvcc, source, &out))).collect();
            running.into_iter().try_for_each(|one| one.join().map_err(|_| "a compiling thread panicked")?)
        })?;
    }
    Ok(())
}

fn compile(nvcc: &Path, source: &Path, out: &Path) -> Result<(), String> {
    let name = source.file_stem().ok_or("a kernel has a name")?;
    let mut command = Command::new(nvcc);
    command.args(["-std=c++17", "-O3", "-fatbin", "-Werror", "all-warnings"]);
    for architecture in ARCHITECTURES {
        command.args(["-gencode", architecture]);
    }
    command.arg("-o").arg(out.join(name).with_extension("fatbin")).arg(source);
    let output = command
        .output()
        .map_err(|error| format!("{} could not be started: {error}\n{HELP}", nvcc.display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{}: {}\n{}{}\n{HELP}",
        source.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}
