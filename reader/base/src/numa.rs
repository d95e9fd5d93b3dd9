//! NUMA nodes: which processors are near which devices, and threads that stay on them.
//!
//! On a machine of several sockets, memory and PCIe devices belong to one of them. A thread that runs there reaches
//! them without crossing the link between sockets; the system gives memory to the node of the thread that first writes
//! it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// The processors of a NUMA node that this process may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// The number of the node.
    pub number: u32,
    /// The numbers of the processors, in order, within the affinity of the process, which its cpuset bounds.
    pub cpus: Vec<usize>,
}

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}: ", self.number)?;
        if self.cpus.is_empty() {
            return f.write_str("no processor for this process");
        }
        for (index, range) in self.cpus.chunk_by(|cpu, next| cpu + 1 == *next).enumerate() {
            let (before, first, last) =
                (if index == 0 { "processors " } else { ", " }, range[0], range[range.len() - 1]);
            match first == last {
                true => write!(f, "{before}{first}")?,
                false => write!(f, "{before}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// The NUMA nodes of a machine, as sysfs describes them.
#[derive(Debug, Clone)]
pub struct NumaNodes {
    /// The folder where sysfs is mounted.
    sysfs: PathBuf,
    nodes: Vec<NumaNode>,
}

impl NumaNodes {
    /// Returns the nodes of this machine; none if the system does not tell.
    pub fn here() -> Self {
        let allowed = allowed().map(|set| numbers(&set)).unwrap_or_default();
        Self::read(Path::new("/sys"), &allowed)
    }

    /// Reads the nodes of a machine whose sysfs is in a folder; `allowed` are the processors that may be used.
    pub fn read(sysfs: &Path, allowed: &[usize]) -> Self {
        let entries = fs::read_dir(sysfs.join("devices/system/node")).into_iter().flatten().flatten();
        let node = |entry: fs::DirEntry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            let mut cpus = parse_list(&list)?;
            cpus.retain(|cpu| allowed.contains(cpu));
            Some(NumaNode { number, cpus })
        };
        let mut nodes: Vec<_> = entries.filter_map(node).collect();
        nodes.sort_by_key(|node| node.number);
        Self { sysfs: sysfs.to_owned(), nodes }
    }

    /// Returns the nodes, in the order of their numbers. Some may have no processor that this process may use.
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// Returns the node of a PCI device, given its address such as `0000:17:00.0`; `None` if the system does not tell.
    pub fn of_pci_device(&self, address: &str) -> Option<&NumaNode> {
        let path = self.sysfs.join("bus/pci/devices").join(address.to_lowercase()).join("numa_node");
        // -1 without a node.
        let number: u32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
        self.nodes.iter().find(|node| node.number == number)
    }

    /// Returns where threads run that use some PCI devices: on the node of all of them, if it is one of several and has
    /// processors that this process may use; otherwise anywhere.
    pub fn near<'a>(&self, addresses: impl IntoIterator<Item = &'a str>) -> Binding {
        let mut of_devices = addresses.into_iter().map(|address| self.of_pci_device(address));
        let first = of_devices.next().flatten();
        match first.filter(|node| of_devices.all(|other| other == Some(node))) {
            Some(node) if self.nodes.len() > 1 && !node.cpus.is_empty() => Binding(Some(node.clone())),
            _ => Binding::ANYWHERE,
        }
    }
}

/// Where a thread runs. The threads that it starts run there, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding(Option<NumaNode>);

impl Binding {
    /// On every processor that the process may use.
    pub const ANYWHERE: Self = Self(None);

    /// Returns the node on which threads run; `None` if they may run anywhere.
    pub fn node(&self) -> Option<&NumaNode> {
        self.0.as_ref()
    }

    /// Moves this thread. If the system refuses that, it stays where it is, with a warning: it is slower, but works.
    pub fn bind_thread(&self) {
        let Some(node) = &self.0 else { return };
        let mut set = CpuSet::new();
        node.cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(
                "cannot move a thread to NUMA node {}: {}; it runs on any processor",
                node.number,
                io::Error::from(error)
            );
        }
    }

    /// Calls a function with this thread moved, and moves it back. Threads that the function starts stay there, and
    /// memory that it first writes belongs to the node.
    pub fn during<T>(&self, function: impl FnOnce() -> T) -> T {
        let before = self.0.as_ref().and_then(|_| allowed());
        if before.is_some() {
            self.bind_thread();
        }
        let value = function();
        if let Some(before) = before {
            // It was allowed before.
            let _ = sched_setaffinity(None, &before);
        }
        value
    }
}

/// The processors on which this thread may run.
fn allowed() -> Option<CpuSet> {
    sched_getaffinity(None).ok()
}

fn numbers(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Parses a list of numbers such as `0-3,8,10-11`.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        numbers.extend(first..=last.min(CpuSet::MAX_CPU));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the sysfs of a machine of two sockets, with two GPUs on the second one and a third device on none.
    fn two_sockets() -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("devices/system/node/node0/cpulist", "0-3,8-11\n"),
            ("devices/system/node/node1/cpulist", "4-7,12-15\n"),
            // Memory without processors, as CXL has it.
            ("devices/system/node/node2/cpulist", "\n"),
            ("devices/system/node/possible", "0-2\n"),
            ("bus/pci/devices/0000:17:00.0/numa_node", "0\n"),
            ("bus/pci/devices/0000:ab:00.0/numa_node", "1\n"),
            ("bus/pci/devices/0000:bd:00.0/numa_node", "1\n"),
            ("bus/pci/devices/0000:c0:00.0/numa_node", "-1\n"),
            ("bus/pci/devices/0000:d0:00.0/numa_node", "2\n"),
        ] {
            let path = sysfs.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        sysfs
    }

    #[test]
    fn threads_run_on_the_node_of_their_devices() {
        let sysfs = two_sockets();
        // A cpuset of some processors of both nodes.
        let nodes = NumaNodes::read(sysfs.path(), &[2, 3, 4, 5, 12]);
        let cpus: Vec<_> = nodes.nodes().iter().map(|node| (node.number, node.cpus.clone())).collect();
        assert_eq!(cpus, [(0, vec![2, 3]), (1, vec![4, 5, 12]), (2, vec![])]);
        let near = |addresses: &[&str]| nodes.near(addresses.iter().copied()).node().map(|node| node.number);
        assert_eq!(near(&["0000:17:00.0"]), Some(0));
        // The driver writes addresses in upper case.
        assert_eq!(near(&["0000:AB:00.0", "0000:bd:00.0"]), Some(1));
        // On two nodes, on an unknown one, absent, without processors, and no device at all.
        assert_eq!(near(&["0000:17:00.0", "0000:ab:00.0"]), None);
        assert_eq!(near(&["0000:ab:00.0", "0000:c0:00.0"]), None);
        for alone in [&["0000:c0:00.0"][..], &["0000:ff:00.0"], &["0000:d0:00.0"], &[]] {
            assert_eq!(near(alone), None, "{alone:?}");
        }
        // All processors of the node belong to others.
        let others = NumaNodes::read(sysfs.path(), &[4]);
        assert_eq!(others.near(["0000:17:00.0"]), Binding::ANYWHERE);
        // With one node there is nothing to choose.
        for node in ["node1", "node2"] {
            fs::remove_dir_all(sysfs.path().join("devices/system/node").join(node)).unwrap();
        }
        assert_eq!(NumaNodes::read(sysfs.path(), &[2]).near(["0000:17:00.0"]), Binding::ANYWHERE);
        assert!(NumaNodes::read(Path::new("/nowhere"), &[0]).nodes().is_empty());
    }

    #[test]
    fn nodes_are_written_with_ranges_of_processors() {
        let text = |cpus: &[usize]| NumaNode { number: 1, cpus: cpus.to_vec() }.to_string();
        assert_eq!(text(&[4, 5, 6, 9, 12, 13]), "node 1: processors 4-6, 9, 12-13");
        assert_eq!(text(&[]), "node 1: no processor for this process");
    }

    #[test]
    fn lists_of_processors_are_parsed() {
        assert_eq!(parse_list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse_list("\n"), Some(Vec::new()));
        assert_eq!((parse_list("1-x"), parse_list("a")), (None, None));
        assert!(parse_list("0-18446744073709551615").unwrap().len() <= CpuSet::MAX_CPU + 1);
    }

    #[test]
    fn a_bound_thread_starts_bound_threads_and_moves_back() {
        let mine = || numbers(&allowed().unwrap());
        let before = mine();
        let node = NumaNode { number: 0, cpus: vec![before[before.len() - 1]] };
        let binding = Binding(Some(node.clone()));
        let (here, child) = binding.during(|| (mine(), std::thread::spawn(mine).join().unwrap()));
        assert_eq!((&here, &child), (&node.cpus, &node.cpus));
        assert_eq!(mine(), before);
        assert_eq!(Binding::ANYWHERE.during(mine), before);
        // A processor that does not exist is refused, and the thread stays where it is.
        Binding(Some(NumaNode { number: 9, cpus: vec![CpuSet::MAX_CPU - 1] })).bind_thread();
        assert_eq!(mine(), before);
    }
}
