//! What the operating system says of processor and memory, read from its text files.

use std::fs;
use std::num::NonZeroUsize;

use serde::Serialize;

use crate::job::ThreadCount;

/// The processor, as this process may use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The product's name.
    pub model: String,
    /// Hardware threads that affinity and cgroup leave to this process.
    pub available_threads: usize,
    /// Instructions that the matrix multiplications profit from.
    pub features: Vec<Feature>,
}

/// A group of instructions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// Whether the processor has it and the system lets it be used.
    pub present: bool,
}

/// The machine's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// What can be had without swapping.
    pub available_bytes: u64,
    /// What the process's cgroup may use, where that is less than the machine has.
    pub cgroup_limit_bytes: Option<u64>,
}

/// How much memory a process may lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LockedMemory {
    /// As much as there is.
    Unlimited,
    /// So much.
    Bytes(u64),
}

pub(crate) fn cpu(available_threads: usize) -> Cpu {
    let model = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| cpu_model(&text));
    Cpu {
        model: model.unwrap_or_else(|| format!("a processor of unknown model ({})", std::env::consts::ARCH)),
        available_threads,
        features: features(),
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<Feature> {
    let feature = |name, present| Feature { name, present };
    vec![
        feature("avx2", is_x86_feature_detected!("avx2")),
        feature("fma", is_x86_feature_detected!("fma")),
        feature("f16c", is_x86_feature_detected!("f16c")),
        feature("avx512f", is_x86_feature_detected!("avx512f")),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<Feature> {
    Vec::new()
}

impl Memory {
    /// What a process may still take.
    pub fn usable_bytes(&self) -> u64 {
        self.cgroup_limit_bytes.map_or(self.available_bytes, |limit| limit.min(self.available_bytes))
    }
}

/// The threads asked for, by default all that this process may use.
pub fn thread_count(asked: Option<ThreadCount>) -> NonZeroUsize {
    let asked = asked.and_then(|threads| NonZeroUsize::new(threads.get() as usize));
    asked.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
}

pub(crate) fn memory() -> Option<Memory> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let (total_bytes, available_bytes) =
        (meminfo_bytes(&text, "MemTotal")?, meminfo_bytes(&text, "MemAvailable")?);
    let cgroup_limit_bytes = cgroup_limit().filter(|&limit| limit < total_bytes);
    Some(Memory { total_bytes, available_bytes, cgroup_limit_bytes })
}

pub(crate) fn locked_memory() -> Option<LockedMemory> {
    locked_memory_limit(&fs::read_to_string("/proc/self/limits").ok()?)
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// A line such as `MemTotal:       24684084 kB`, whose unit is 1024 bytes whatever it says.
fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The limit of the process's own cgroup; a limit further up is not looked for.
fn cgroup_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    // Version 2 has one line, `0::/path`; in a container the path is the root of what is mounted.
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limit = fs::read_to_string(format!("/sys/fs/cgroup/{path}/memory.max")).ok()?;
    limit.trim().parse().ok()
}

/// The soft limit in a line such as `Max locked memory         8388608              8388608              bytes`.
fn locked_memory_limit(limits: &str) -> Option<LockedMemory> {
    let soft =
        limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?.split_whitespace().next()?;
    match soft {
        "unlimited" => Some(LockedMemory::Unlimited),
        bytes => bytes.parse().ok().map(LockedMemory::Bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_texts_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A Processor @ 2 GHz\nflags\t\t: fpu\n";
        assert_eq!(cpu_model(cpuinfo).as_deref(), Some("A Processor @ 2 GHz"));
        let meminfo =
            "MemTotal:       24684084 kB\nMemFree:        22914576 kB\nMemAvailable:   24019904 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemAvailable"), Some(24_019_904 * 1024));
        assert_eq!(meminfo_bytes(meminfo, "Mem"), None);
        let limits =
            "Max processes   96365   96365   processes\nMax locked memory   8388608   unlimited  bytes\n";
        assert_eq!(locked_memory_limit(limits), Some(LockedMemory::Bytes(8 << 20)));
        assert_eq!(
            locked_memory_limit("Max locked memory  unlimited  unlimited"),
            Some(LockedMemory::Unlimited)
        );
        assert_eq!(locked_memory_limit(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_tells() {
        let memory = memory().unwrap();
        assert!(memory.available_bytes <= memory.total_bytes);
        assert!(locked_memory().is_some());
    }
}
