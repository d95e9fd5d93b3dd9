//! What this machine offers, and what training would use: answers "why is it slow here" and "why is my GPU not used"
//! before a job is started.
//!
//! [`doctor`] collects the data, [`Report`] is plain data, and its `Display` is readable text. Nothing is changed on
//! the machine.

mod cpu;

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;

use bytesize::ByteSize;
use rankine_base::build::Build;
use rankine_base::numa::{NumaNode, NumaNodes};
use rankine_base::system::{self, LockedMemory, Memory};
use rankine_cuda::probe::{Attempt, Driver, Library, Presence, Probe, VisibleGpu};
use rankine_engine_gpu as gpu;
use rankine_reader::io::RungRefused;
use serde::Serialize;

use crate::build;
use cpu::Cpu;

/// Tries every mode of reading files in a folder: returns its name in a job file, and the error if it does not work.
pub type ReadProbe<'a> = dyn Fn(&Path) -> Vec<(String, Result<(), RungRefused>)> + 'a;

/// Options of [`doctor`].
pub struct Options<'a> {
    /// The folder whose file system is tested.
    pub dir: &'a Path,
    /// Tests how files can be read; without it the report does not mention reading.
    pub read_probe: Option<&'a ReadProbe<'a>>,
}

/// What a machine offers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The version of Rankine.
    pub version: String,
    /// The build of Rankine.
    pub build: Build,
    /// The processor.
    pub cpu: Cpu,
    /// The NUMA nodes; none if the system does not report them.
    pub numa: Vec<NumaNode>,
    /// The memory; `None` if the system does not report it.
    pub memory: Option<Memory>,
    /// The limit of locked memory, which io_uring needs for registered buffers; `None` if the system does not report
    /// it.
    pub locked_memory: Option<LockedMemory>,
    /// How datasets can be read; `None` if this was not tested.
    pub reading: Option<Reading>,
    /// The GPU libraries and the GPUs.
    pub gpu: Probe,
    /// The number of the NUMA node of each GPU, in their order; `None` if the system does not report it.
    pub gpu_nodes: Vec<Option<u32>>,
    /// Whether the CUDA back end can use each GPU, in their order; empty in builds without CUDA.
    pub backends: Vec<Backend>,
    /// The device that a training would use.
    pub training: Training,
}

/// How the files of a folder can be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// The folder.
    pub dir: PathBuf,
    /// The modes, the best first.
    pub modes: Vec<ReadingMode>,
}

/// A mode of reading files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadingMode {
    /// Its name for `reader.mode` in a job file.
    pub name: String,
    /// Why it does not work here; `None` if it works.
    pub refused: Option<String>,
}

/// The state of a GPU for the CUDA back end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Backend {
    /// Free bytes of its memory; `None` if it cannot be used.
    pub free_bytes: Option<u64>,
    /// Why it cannot be used; `None` if the kernels were loaded.
    pub refused: Option<String>,
}

/// The device that a training would use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Training {
    /// Its name for `device.kind` in a job file.
    pub device: &'static str,
    /// Number of CPU threads.
    pub threads: usize,
    /// Why this device.
    pub why: &'static str,
}

/// Collects what the machine offers. This takes a moment: GPUs are opened and files are read.
pub fn doctor(options: &Options<'_>) -> Report {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let backends = backends();
    let reading = options.read_probe.map(|probe| {
        let modes = probe(options.dir).into_iter();
        let modes = modes
            .map(|(name, result)| ReadingMode { name, refused: result.err().map(|error| error.why) })
            .collect();
        Reading { dir: options.dir.to_owned(), modes }
    });
    let (gpu, numa) = (rankine_cuda::probe::probe(), NumaNodes::here());
    let gpus = match &gpu.driver {
        Presence::Found(Driver { devices: Ok(gpus), .. }) => gpus.as_slice(),
        _ => &[],
    };
    let node = |gpu: &VisibleGpu| numa.of_pci_device(&gpu.pci_address).map(|node| node.number);
    Report {
        version: build::here().version.clone(),
        build: build::here().clone(),
        cpu: cpu::cpu(threads),
        numa: numa.nodes().to_vec(),
        gpu_nodes: gpus.iter().map(node).collect(),
        memory: system::memory(),
        locked_memory: system::locked_memory(),
        reading,
        gpu,
        training: training(threads, &backends),
        backends,
    }
}

/// Opens each GPU, which loads the kernels.
fn backends() -> Vec<Backend> {
    let opened = gpu::open_each().into_iter();
    let backends = opened.map(|opened| match opened {
        Ok(free) => Backend { free_bytes: Some(free), refused: None },
        Err(error) => Backend { free_bytes: None, refused: Some(error.to_string()) },
    });
    backends.collect()
}

/// Returns what `device.kind = "auto"` chooses for jobs that GPUs support.
fn training(threads: usize, backends: &[Backend]) -> Training {
    let (device, why) = match backends.first() {
        _ if !gpu::IN_BUILD => {
            ("cpu", "this build has no CUDA support (the feature `cuda`), so it does not use GPUs")
        }
        Some(Backend { refused: None, .. }) => (
            "cuda",
            "GPU 0; jobs that GPUs do not support are trained on the CPU, and `rankine train` reports why",
        ),
        _ => ("cpu", "no usable GPU"),
    };
    Training { device, threads, why }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Rankine {}\n", self.version)?;
        for (name, text) in self.build.details() {
            line(f, name, format_args!("{text}"))?;
        }
        let Cpu { model, available_threads, features } = &self.cpu;
        line(f, "cpu", format_args!("{model}, {available_threads} threads for this process"))?;
        for feature in features {
            line(f, "", format_args!("{:<9} {}", feature.name, if feature.present { "yes" } else { "no" }))?;
        }
        for (index, node) in self.numa.iter().enumerate() {
            line(f, if index == 0 { "numa" } else { "" }, format_args!("{node}"))?;
        }
        if let Some(memory) = &self.memory {
            let (available, total) = (ByteSize(memory.available_bytes), ByteSize(memory.total_bytes));
            line(f, "memory", format_args!("{available} available of {total}"))?;
            if let Some(limit) = memory.cgroup_limit_bytes {
                line(f, "", format_args!("limit of this process: {}", ByteSize(limit)))?;
            }
        }
        match self.locked_memory {
            Some(LockedMemory::Unlimited) => line(f, "memlock", format_args!("unlimited"))?,
            Some(LockedMemory::Bytes(bytes)) => {
                line(f, "memlock", format_args!("{} (raise it with `ulimit -l`)", ByteSize(bytes)))?;
            }
            None => {}
        }
        if let Some(reading) = &self.reading {
            write_reading(f, reading)?;
        }
        write_gpu(f, self)?;
        let Training { device, threads, why } = &self.training;
        line(f, "training", format_args!("{device}, {threads} threads: {why}"))
    }
}

fn write_reading(f: &mut fmt::Formatter<'_>, reading: &Reading) -> fmt::Result {
    line(f, "reading", format_args!("files in {}", reading.dir.display()))?;
    for ReadingMode { name, refused } in &reading.modes {
        match refused {
            None => line(f, "", format_args!("{name:<15} works"))?,
            Some(why) => line(f, "", format_args!("{name:<15} {why}"))?,
        }
    }
    Ok(())
}

fn write_gpu(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let Report { gpu, gpu_nodes, backends, .. } = report;
    match &gpu.driver {
        Presence::Found(Driver { library, devices }) => {
            write_library(f, "driver", library, "CUDA ")?;
            match devices {
                Ok(devices) if devices.is_empty() => line(f, "", format_args!("no GPU"))?,
                Ok(devices) => {
                    for (i, device) in devices.iter().enumerate() {
                        let VisibleGpu { name, memory_bytes, compute_capability: (major, minor), .. } =
                            device;
                        let memory = ByteSize(*memory_bytes);
                        let node = gpu_nodes.get(i).copied().flatten();
                        let node = node.map_or(String::new(), |node| format!(", NUMA node {node}"));
                        line(
                            f,
                            "",
                            format_args!(
                                "GPU {i}: {name}, {memory}, compute capability {major}.{minor}{node}"
                            ),
                        )?;
                        match backends.get(i) {
                            Some(Backend { refused: Some(why), .. }) => {
                                line(f, "", format_args!("  not used: {why}"))?;
                            }
                            Some(Backend { free_bytes: Some(free), .. }) => {
                                line(f, "", format_args!("  {} free; kernels were loaded", ByteSize(*free)))?;
                            }
                            _ => {}
                        }
                    }
                }
                Err(why) => line(f, "", format_args!("no GPU: {why}"))?,
            }
        }
        Presence::Missing(attempts) => write_missing(f, "driver", attempts)?,
    }
    for (name, presence) in [("cublasLt", &gpu.cublas_lt), ("nccl", &gpu.nccl), ("cupti", &gpu.cupti)] {
        match presence {
            Presence::Found(library) => write_library(f, name, library, "")?,
            Presence::Missing(attempts) => write_missing(f, name, attempts)?,
        }
    }
    Ok(())
}

fn write_library(f: &mut fmt::Formatter<'_>, what: &str, library: &Library, of: &str) -> fmt::Result {
    let Library { name, path, version, refused } = library;
    let path = path.as_ref().map_or(name.into(), |path| path.display().to_string());
    match version {
        Ok(version) => line(f, what, format_args!("{of}{version} ({path})"))?,
        Err(_) => line(f, what, format_args!("unknown version ({path})"))?,
    }
    refused.as_ref().map_or(Ok(()), |why| line(f, "", format_args!("not used: {why}")))
}

/// Names that do not exist are listed together; any other reason gets its own line.
fn write_missing(f: &mut fmt::Formatter<'_>, what: &str, attempts: &[Attempt]) -> fmt::Result {
    line(f, what, format_args!("not found"))?;
    let (absent, broken): (Vec<_>, Vec<_>) = attempts.iter().partition(|attempt| attempt.is_absence());
    for attempt in broken {
        line(f, "", format_args!("{}", attempt.why))?;
    }
    let mut names = Vec::new();
    let mut folders = Vec::new();
    for path in absent.iter().map(|attempt| Path::new(&attempt.candidate)) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(folder) => format!("in {}", folder.display()),
            None => "on the loader's search path".into(),
        };
        push_new(&mut names, name.into_owned());
        push_new(&mut folders, folder);
    }
    if names.is_empty() {
        return Ok(());
    }
    line(f, "", format_args!("missing: {}", names.join(", ")))?;
    folders.iter().try_for_each(|folder| line(f, "", format_args!("  {folder}")))
}

fn push_new(list: &mut Vec<String>, item: String) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Writes a line of the report: a heading, which may be empty, and a text.
fn line(f: &mut fmt::Formatter<'_>, heading: &str, text: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(f, "{heading:<9} {text}")
}

#[cfg(test)]
mod tests {
    use rankine_base::sealed::Checksum;
    use rankine_cuda::probe::{CallError, Version};

    use super::cpu::Feature;
    use super::*;

    const CUDA_13: Version = Version { major: 13, minor: 0, patch: None };

    #[test]
    fn a_report_lists_what_was_found_and_what_would_be_used() {
        let probe = |_: &Path| {
            vec![
                ("uring-direct".to_owned(), Err("refused by seccomp".to_owned().into())),
                ("pread".to_owned(), Ok(())),
            ]
        };
        let report = doctor(&Options { dir: Path::new("data"), read_probe: Some(&probe) });
        let text = report.to_string();
        for expected in [
            concat!("Rankine ", env!("CARGO_PKG_VERSION")),
            "reading   files in data\n          uring-direct    refused by seccomp\n          pread           works\n",
            if gpu::IN_BUILD { "\ntraining  c" } else { "training  cpu, " },
            if gpu::IN_BUILD { " GPU" } else { "this build has no CUDA support" },
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["reading"]["modes"][0]["refused"], "refused by seccomp");
        assert!(gpu::IN_BUILD || json["training"]["device"] == "cpu");
        assert!(json["gpu"]["driver"]["found"].is_object() || json["gpu"]["driver"]["missing"].is_array());
    }

    #[test]
    fn every_part_of_a_report_has_its_line() {
        let library = |name: &str, version: Result<Version, CallError>| Library {
            name: name.into(),
            path: Some(format!("/lib/{name}").into()),
            version,
            refused: None,
        };
        let gpu = VisibleGpu {
            name: "Some GPU".into(),
            memory_bytes: 80 << 30,
            compute_capability: (9, 0),
            uuid: "GPU-1".into(),
            pci_address: "0000:17:00.0".into(),
        };
        let refused =
            Library { refused: Some("it is too old".into()), ..library("libcublasLt.so.13", Ok(CUDA_13)) };
        let feature = |name, present| Feature { name, present };
        let report = Report {
            version: "9.9".into(),
            build: Build {
                version: "9.9".into(),
                commit: Some("1a2b3c".into()),
                dirty: true,
                features: vec!["cli".into(), "cuda".into()],
                target: "a-target".into(),
                rustc: "1.95.0".into(),
                checksum: Some(Checksum(0xab)),
            },
            cpu: Cpu {
                model: "A Processor".into(),
                available_threads: 6,
                features: vec![feature("avx2", true), feature("avx512f", false)],
            },
            numa: vec![NumaNode { number: 0, cpus: vec![0, 1, 2, 6] }, NumaNode { number: 1, cpus: vec![] }],
            gpu_nodes: vec![Some(1), None],
            memory: Some(Memory {
                total_bytes: 64 << 30,
                available_bytes: 12 << 30,
                cgroup_limit_bytes: Some(3 << 29),
            }),
            locked_memory: Some(LockedMemory::Bytes(8 << 20)),
            reading: None,
            gpu: Probe {
                driver: Presence::Found(Driver {
                    library: library("libcuda.so.1", Ok(CUDA_13)),
                    devices: Ok(vec![gpu.clone(), gpu.clone(), gpu]),
                }),
                cublas_lt: Presence::Found(refused),
                nccl: Presence::Found(library(
                    "libnccl.so.2",
                    Err(CallError::Missing { why: "no such symbol".into() }),
                )),
                cupti: Presence::Missing(Vec::new()),
            },
            backends: vec![
                Backend { free_bytes: Some(79 << 30), refused: None },
                Backend { free_bytes: None, refused: Some("it is busy".into()) },
            ],
            training: Training { device: "cpu", threads: 6, why: "a reason" },
        };
        let expected = "\
Rankine 9.9

commit    1a2b3c, dirty, checksum 00000000000000ab
features  cli, cuda
target    a-target
rustc     1.95.0
cpu       A Processor, 6 threads for this process
          avx2      yes
          avx512f   no
numa      node 0: processors 0-2, 6
          node 1: no processor for this process
memory    12.0 GiB available of 64.0 GiB
          limit of this process: 1.5 GiB
memlock   8.0 MiB (raise it with `ulimit -l`)
driver    CUDA 13.0 (/lib/libcuda.so.1)
          GPU 0: Some GPU, 80.0 GiB, compute capability 9.0, NUMA node 1
            79.0 GiB free; kernels were loaded
          GPU 1: Some GPU, 80.0 GiB, compute capability 9.0
            not used: it is busy
          GPU 2: Some GPU, 80.0 GiB, compute capability 9.0
cublasLt  13.0 (/lib/libcublasLt.so.13)
          not used: it is too old
nccl      unknown version (/lib/libnccl.so.2)
cupti     not found
training  cpu, 6 threads: a reason
";
        assert_eq!(report.to_string(), expected);
        let (locked_memory, numa) = (Some(LockedMemory::Unlimited), Vec::new());
        let unlimited = Report { locked_memory, numa, memory: None, ..report };
        let text = unlimited.to_string();
        assert!(text.contains("  avx512f   no\nmemlock   unlimited\ndriver "), "{text}");
    }

    #[test]
    fn absences_are_gathered_and_other_reasons_are_not() {
        struct Missing(Vec<Attempt>);
        impl fmt::Display for Missing {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_missing(f, "nccl", &self.0)
            }
        }
        let attempt = |candidate: &str, why: &str| Attempt {
            candidate: candidate.into(),
            why: format!("{candidate}: {why}"),
        };
        let absent = "cannot open shared object file: No such file or directory";
        let attempts = ["a.so.2", "b.so", "/x/a.so.2", "/x/b.so"].map(|name| attempt(name, absent));
        let mut attempts = attempts.to_vec();
        attempts.insert(1, attempt("c.so", "invalid ELF header"));
        assert_eq!(
            Missing(attempts).to_string(),
            "nccl      not found\n          c.so: invalid ELF header\n          \
             missing: a.so.2, b.so\n            on the loader's search path\n            in /x\n"
        );
    }
}
