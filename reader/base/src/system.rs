//! Reads the properties of memory from the text files of the operating system.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

/// The machine's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All memory of the machine.
    pub total_bytes: u64,
    /// Memory that is available without swapping.
    pub available_bytes: u64,
    /// The limit of the process's cgroup or of a parent, if it is below `total_bytes`.
    pub cgroup_limit_bytes: Option<u64>,
}

/// The limit on page-locked memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LockedMemory {
    /// No limit.
    Unlimited,
    /// This number of bytes.
    Bytes(u64),
}

impl Memory {
    /// Returns the bytes that this process may still allocate.
    pub fn usable_bytes(&self) -> u64 {
        self.cgroup_limit_bytes.map_or(self.available_bytes, |limit| limit.min(self.available_bytes))
    }
}

/// The host's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns how long ago this process was started, to 10 ms; `None` if the system does not tell.
pub fn process_age() -> Option<Duration> {
    let (stat, uptime) =
        (fs::read_to_string("/proc/self/stat").ok()?, fs::read_to_string("/proc/uptime").ok()?);
    let start = start_ticks(&stat)? as f64 / rustix::param::clock_ticks_per_second() as f64;
    let now: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_secs_f64((now - start).max(0.0)))
}

/// Parses when a process was started, in ticks since the system was: the 22nd field, counted from a name in parentheses
/// that may contain anything.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// Returns the memory of the machine; `None` if the system does not tell.
pub fn memory() -> Option<Memory> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let (total_bytes, available_bytes) =
        (meminfo_bytes(&text, "MemTotal")?, meminfo_bytes(&text, "MemAvailable")?);
    let cgroup_limit_bytes = cgroup_limit().filter(|&limit| limit < total_bytes);
    Some(Memory { total_bytes, available_bytes, cgroup_limit_bytes })
}

/// Returns the limit of this process; `None` if the system does not tell.
pub fn locked_memory() -> Option<LockedMemory> {
    locked_memory_limit(&fs::read_to_string("/proc/self/limits").ok()?)
}

/// Parses a line such as `MemTotal:       24684084 kB`. Its unit is 1024 bytes, despite the name.
fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the smallest limit of the process's cgroup and its parents.
fn cgroup_limit() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    smallest_limit(Path::new("/sys/fs/cgroup"), &own)
}

/// Returns the smallest memory limit of the cgroups in `own`, the text of `/proc/PID/cgroup`, and of their parents up
/// to `mount`, where cgroups are mounted; `None` without a limit.
fn smallest_limit(mount: &Path, own: &str) -> Option<u64> {
    let limits = own.lines().filter_map(|line| {
        // `0::/path` of version 2, `4:cpu,memory:/path` of version 1.
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        if controllers.is_empty() {
            smallest_above(mount, path, "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            smallest_above(&mount.join("memory"), path, "memory.limit_in_bytes")
        } else {
            None
        }
    });
    limits.min()
}

/// Returns the smallest number in the files called `name`, in the folder `path` below `mount` and in its parents up to
/// `mount`. In a container the path may be the host's and not exist; the container's limit is then in `mount`.
fn smallest_above(mount: &Path, path: &str, name: &str) -> Option<u64> {
    let path = Path::new(path.trim_start_matches('/'));
    // The path of a cgroup outside of the mounted tree starts with `..`.
    let path = if path.starts_with("..") { Path::new("") } else { path };
    let limit = |folder: &Path| -> Option<u64> {
        // Without a limit, the file has `max` in version 2, and more bytes than any machine has in version 1.
        fs::read_to_string(mount.join(folder).join(name)).ok()?.trim().parse().ok()
    };
    path.ancestors().filter_map(limit).min()
}

/// Parses the soft limit in a line such as `Max locked memory         8388608              8388608              bytes`.
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
    fn files_of_the_system_are_parsed() {
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

    /// Returns the limit in a tree of cgroups, given the paths and texts of the files below the mount.
    fn limit(files: &[(&str, &str)], own: &str) -> Option<u64> {
        let mount = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = mount.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        smallest_limit(mount.path(), own)
    }

    #[test]
    fn the_smallest_limit_of_a_cgroup_and_its_parents_counts() {
        let tree = |root, slice, job, step| {
            let files = [("", root), ("slice/", slice), ("slice/job/", job), ("slice/job/step/", step)];
            files.map(|(folder, limit): (_, &str)| (format!("{folder}memory.max"), format!("{limit}\n")))
        };
        for (limits, expected) in [
            (["", "max", "max", "max"], None),
            (["", "max", "max", "4096"], Some(4096)),
            (["", "max", "8192", "max"], Some(8192)),
            (["", "8192", "16384", "max"], Some(8192)),
            (["1024", "8192", "4096", "16384"], Some(1024)),
        ] {
            let [root, slice, job, step] = limits;
            let files = tree(root, slice, job, step);
            let files = files.each_ref().map(|(path, text)| (path.as_str(), text.as_str()));
            assert_eq!(limit(&files, "0::/slice/job/step\n"), expected, "{limits:?}");
        }
        // Limits of other cgroups and of children do not count.
        let [root, slice, job, step] = tree("max", "max", "max", "1");
        let files = [&root, &slice, &job, &step].map(|(path, text)| (path.as_str(), text.as_str()));
        assert_eq!(limit(&files, "0::/slice/job\n"), None);
        assert_eq!(limit(&files, "0::/slice/other/step\n"), None);
    }

    #[test]
    fn limits_of_version_1_and_of_containers_are_found() {
        // The kernel's value without a limit.
        let none = "9223372036854771712";
        let v1 = [
            ("memory/memory.limit_in_bytes", none),
            ("memory/slurm/memory.limit_in_bytes", "5000"),
            ("memory/slurm/job/memory.limit_in_bytes", none),
            ("cpu/slurm/job/memory.limit_in_bytes", "3"),
        ];
        let own = "12:cpuset:/slurm\n7:cpu,memory:/slurm/job\n1:name=systemd:/slurm\n0::/slurm/job\n";
        assert_eq!(limit(&v1, own), Some(5000));
        assert_eq!(limit(&v1, "7:cpu,memoryless:/slurm/job\n"), None);
        // The path is the host's; the container sees only its own cgroup.
        let container = [("memory.max", "7000"), ("other/memory.max", "3")];
        assert_eq!(limit(&container, "0::/docker/4f2a\n"), Some(7000));
        assert_eq!(limit(&container, "0::/../other\n"), Some(7000));
        assert_eq!(limit(&container, "0::/\n"), Some(7000));
        assert_eq!((limit(&container, ""), limit(&container, "no cgroup\n")), (None, None));
    }

    #[test]
    fn usable_memory_is_bounded_by_the_limit() {
        let memory = |limit| Memory { total_bytes: 100, available_bytes: 60, cgroup_limit_bytes: limit };
        assert_eq!([None, Some(70), Some(50)].map(|limit| memory(limit).usable_bytes()), [60, 60, 50]);
    }

    #[test]
    fn the_start_of_a_process_is_parsed_after_its_name() {
        let rest: String = (4..=52).map(|field| format!(" {field}")).collect();
        assert_eq!(start_ticks(&format!("7 (a ) 5 (b) S{rest}")), Some(22));
        assert_eq!((start_ticks(""), start_ticks("7 (a) S 1 2")), (None, None));
        let age = process_age().unwrap();
        assert!(age < Duration::from_secs(3600), "a test that takes {age:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_reports_its_memory() {
        let memory = memory().unwrap();
        assert!(memory.available_bytes <= memory.total_bytes);
        assert!(locked_memory().is_some());
    }
}
