//! Why the processes of a job cannot train it together.

use std::path::PathBuf;

use rankine_topology::{Process, TopologyError};

/// Why the ranks of a job do not suit the processes that were launched, or their GPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssignmentError {
    /// The number of ranks or nodes is impossible.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Several processes for a job on the CPU.
    #[error(
        "{processes} processes were launched, and device.kind is \"cpu\": on the CPU ranks are threads of one \
         process. Launch one process, or ignore the launcher with --launcher none"
    )]
    OnCpu {
        /// The number of processes.
        processes: usize,
    },
    /// Processes cannot be divided into the job's nodes.
    #[error(
        "device.nodes is {nodes}, and the {processes} processes are on {} ({}): set it to that number or to a \
         multiple that gives each node the same number of processes, or remove the key",
        count_of(hosts.len(), "host", "hosts"),
        hosts.join(", ")
    )]
    Nodes {
        /// `device.nodes`.
        nodes: usize,
        /// The number of processes.
        processes: usize,
        /// The names of their hosts.
        hosts: Vec<String>,
    },
    /// Processes would have different numbers of ranks.
    #[error(
        "device.ranks is {ranks}, and {processes} processes were launched: all processes must have the same number \
         of ranks, so device.ranks must be a multiple of the number of processes. device.ranks = \"auto\" uses all \
         GPUs that they see"
    )]
    Ranks {
        /// `device.ranks`.
        ranks: usize,
        /// The number of processes.
        processes: usize,
    },
    /// Hosts have different numbers of processes.
    #[error("every host must have the same number of processes: {}", processes_of(hosts))]
    UnequalHosts {
        /// The processes of each host.
        hosts: Vec<(String, Vec<Process>)>,
    },
    /// Processes are not numbered host by host.
    #[error(
        "processes must be numbered host by host: {}. Use Slurm's --distribution=block, or mpirun's --map-by slot",
        processes_of(hosts)
    )]
    Order {
        /// The processes of each host.
        hosts: Vec<(String, Vec<Process>)>,
    },
    /// Hosts have different numbers of GPUs, and the job leaves the number of ranks open.
    #[error(
        "device.ranks is \"auto\", and {} and {}: set device.ranks, or make the same number of GPUs visible on each \
         host (CUDA_VISIBLE_DEVICES)",
        gpus_of(one),
        gpus_of(other)
    )]
    UnequalGpus {
        /// A host, and the number of its GPUs.
        one: (String, usize),
        /// A host with another number.
        other: (String, usize),
    },
    /// The processes of a host cannot share its GPUs evenly, and the job leaves the number of ranks open.
    #[error(
        "device.ranks is \"auto\", and {} for {}: launch one process per GPU, or one per node",
        gpus_of(host),
        count_of(*processes, "process", "processes")
    )]
    GpusPerProcess {
        /// The host, and the number of its GPUs.
        host: (String, usize),
        /// The number of its processes.
        processes: usize,
    },
    /// A process sees fewer GPUs than it needs.
    #[error(
        "device.ranks is {}, so each of the {} needs {}, but process {process} on {host} sees {}{others}: lower \
         device.ranks, or make more GPUs visible (CUDA_VISIBLE_DEVICES)",
        each * processes,
        count_of(*processes, "process", "processes"),
        count_of(*each, "GPU", "GPUs"),
        count_of(*seen, "GPU", "GPUs")
    )]
    TooFewGpus {
        /// The process.
        process: Process,
        /// Its host.
        host: String,
        /// The number of processes.
        processes: usize,
        /// GPUs that each of them needs.
        each: usize,
        /// GPUs that it sees.
        seen: usize,
        /// Whether the other processes of its host see the same ones; empty if that does not matter.
        others: &'static str,
    },
    /// Two processes would take one GPU.
    #[error(
        "processes {} and {} on {host} would both take GPU {gpu}: make different GPUs visible to each process with \
         CUDA_VISIBLE_DEVICES, or all GPUs to all processes",
        processes[0],
        processes[1]
    )]
    SharedGpu {
        /// The UUID of the GPU.
        gpu: String,
        /// Its host.
        host: String,
        /// The processes.
        processes: [Process; 2],
    },
}

/// How the inputs of a process differ from those of process 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Disagreement {
    /// The job or the dataset.
    #[error(
        "the {what} of process {process} differs from that of process 0: {difference}; give all processes the same \
         {what}"
    )]
    Differs {
        /// What differs.
        what: String,
        /// The process.
        process: Process,
        /// The first difference.
        difference: String,
    },
    /// A process has no dataset.
    #[error(
        "there is no dataset at {} here, but process 0 has one: all processes must see the same files",
        .0.display()
    )]
    NoDataset(PathBuf),
    /// A decision of process 0 cannot be read.
    #[error("process 0 sent an invalid decision on {what}: {error}")]
    Decision {
        /// What was decided.
        what: &'static str,
        /// What is wrong with it.
        error: String,
    },
}

fn count_of(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

fn gpus_of((host, gpus): &(String, usize)) -> String {
    format!("host {host} has {}", count_of(*gpus, "GPU", "GPUs"))
}

fn processes_of(hosts: &[(String, Vec<Process>)]) -> String {
    let of_host = |(host, processes): &(String, Vec<Process>)| {
        let numbers: Vec<_> = processes.iter().map(Process::to_string).collect();
        format!("{host} has {}", numbers.join(", "))
    };
    hosts.iter().map(of_host).collect::<Vec<_>>().join("; ")
}
