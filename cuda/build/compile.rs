//! Runs nvcc on what has changed since the last build.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use crate::contents;

/// The architectures that each kernel is compiled for: machine code for Hopper and Ampere, and PTX for later GPUs.
const ARCHITECTURES: [&str; 3] =
    ["arch=compute_90a,code=sm_90a", "arch=compute_80,code=sm_80", "arch=compute_80,code=compute_80"];
/// Environment variable that selects some of them, by their `code=`.
pub(crate) const WANTED: &str = "RANKINE_CUDA_ARCHITECTURES";
/// Environment variable that names a folder for compiled kernels, which builds then share. Without it, Clippy, debug
/// builds and release builds each compile all kernels.
const CACHE: &str = "RANKINE_CUDA_CACHE";
/// Environment variables of nvcc's own that change what it makes.
pub(crate) const FLAGS: [&str; 2] = ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"];
const HELP: &str =
    "the feature `cuda` needs nvcc 13.0, at CUDA_HOME/bin/nvcc or on PATH. Without a CUDA toolkit:
  python3 -m venv nvcc
  nvcc/bin/pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' \\
      'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
  export CUDA_HOME=$(echo $PWD/nvcc/lib/python3*/site-packages/nvidia/cu13)";

/// One run of nvcc.
pub(crate) struct Job {
    pub(crate) arguments: Vec<String>,
    pub(crate) source: PathBuf,
    /// Other files that the source includes, apart from headers.
    pub(crate) included: Vec<PathBuf>,
    pub(crate) output: PathBuf,
}

/// Writes empty fatbins, with which the crate can be documented.
pub(crate) fn empty_fatbins(kernels: &[PathBuf], out: &Path) -> Result<(), String> {
    kernels.iter().try_for_each(|source| {
        let path = fatbin_of(source, out)?;
        fs::write(&path, []).map_err(|error| format!("{}: {error}", path.display()))
    })
}

/// The file in `out` that a kernel is compiled to.
fn fatbin_of(source: &Path, out: &Path) -> Result<PathBuf, String> {
    let name = source.file_stem().ok_or("a kernel has a name")?;
    Ok(out.join(name).with_extension("fatbin"))
}

/// The runs that compile kernels to fatbins in `out`.
pub(crate) fn fatbins(kernels: &[PathBuf], out: &Path) -> Result<Vec<Job>, String> {
    let mut arguments: Vec<String> =
        ["-std=c++17", "-O3", "-fatbin", "-Werror", "all-warnings"].map(Into::into).into();
    for architecture in architectures()? {
        arguments.extend(["-gencode".into(), architecture]);
    }
    let fatbin = |source: &PathBuf| {
        Ok(Job {
            arguments: arguments.clone(),
            source: source.clone(),
            included: Vec::new(),
            output: fatbin_of(source, out)?,
        })
    };
    kernels.iter().map(fatbin).collect()
}

/// The architectures to compile for: all, or those that the environment names.
fn architectures() -> Result<Vec<String>, String> {
    let Ok(wanted) = env::var(WANTED) else { return Ok(ARCHITECTURES.map(Into::into).into()) };
    let find = |code: &str| {
        let has_code = |architecture: &&&str| architecture.ends_with(&format!("code={code}"));
        ARCHITECTURES.iter().find(has_code).map(|&found| found.to_owned()).ok_or_else(|| {
            format!("{WANTED} names {code}: use sm_90a, sm_80 or compute_80, or several with commas")
        })
    };
    wanted.split(',').map(find).collect()
}

pub(crate) struct Compiler {
    nvcc: PathBuf,
    /// The values of [`FLAGS`].
    flags: [Option<OsString>; 2],
    /// The text of all headers.
    headers: String,
    cache: Option<PathBuf>,
}

impl Compiler {
    pub(crate) fn new(headers: String) -> Self {
        let nvcc = match env::var_os("CUDA_HOME") {
            Some(home) => Path::new(&home).join("bin/nvcc"),
            None => "nvcc".into(),
        };
        Self { nvcc, flags: FLAGS.map(env::var_os), headers, cache: env::var_os(CACHE).map(Into::into) }
    }

    /// Compiles a source unless its output, or one in the cache, was made from the same inputs.
    pub(crate) fn run(&self, job: &Job) -> Result<(), String> {
        let Job { arguments, source, included, output } = job;
        let sources = contents(std::slice::from_ref(source))? + &contents(included)?;
        let Self { flags, headers, .. } = self;
        let inputs = format!("{} {arguments:?} {flags:?}\n{headers}{sources}", self.nvcc.display());
        if is_made_from(output, &inputs) {
            return Ok(());
        }
        // If anything fails from here on, the next build compiles the source again.
        let _ = fs::remove_file(inputs_of(output));
        match self.cache.as_ref().map(|cache| cache.join(hash(&inputs))) {
            None => self.compile(job)?,
            Some(kept) if is_made_from(&kept, &inputs) => copy(&kept, output)?,
            Some(kept) => {
                self.compile(job)?;
                copy(output, &kept)?;
                write_inputs(&kept, &inputs)?;
            }
        }
        write_inputs(output, &inputs)
    }

    fn compile(&self, Job { arguments, source, output, .. }: &Job) -> Result<(), String> {
        let nvcc = self.nvcc.display();
        let ran = Command::new(&self.nvcc)
            .args(arguments)
            .arg("-o")
            .arg(output)
            .arg(source)
            .output()
            .map_err(|error| format!("{nvcc} could not be started: {error}\n{HELP}"))?;
        if !ran.status.success() {
            return Err(format!(
                "{}: {}\n{}{}\n{HELP}",
                source.display(),
                ran.status,
                String::from_utf8_lossy(&ran.stdout),
                String::from_utf8_lossy(&ran.stderr)
            ));
        }
        Ok(())
    }
}

fn hash(inputs: &str) -> String {
    let mut hasher = DefaultHasher::new();
    inputs.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The file with the inputs of an output.
fn inputs_of(output: &Path) -> PathBuf {
    output.with_extension("inputs")
}

fn is_made_from(output: &Path, inputs: &str) -> bool {
    output.exists() && fs::read_to_string(inputs_of(output)).is_ok_and(|before| before == inputs)
}

fn write_inputs(output: &Path, inputs: &str) -> Result<(), String> {
    let path = inputs_of(output);
    fs::write(&path, inputs).map_err(|error| format!("{}: {error}", path.display()))
}

/// Copies a file atomically, since other builds may use the same cache. Creates the folder.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let partial = to.with_extension(process::id().to_string());
    to.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::copy(from, &partial))
        .and_then(|_| fs::rename(&partial, to))
        .map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}
