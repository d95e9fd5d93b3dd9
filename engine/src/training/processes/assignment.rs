//! Where the ranks of a job run: how many, on how many nodes, and which of them, on which GPUs, a process has.

use rankine_base::hooks;
use rankine_engine_gpu as gpu;
use rankine_job::{DeviceKind, Job, RankCount, Ranks};
use rankine_launch::{Host, ProcessGroup, ProcessInfo, hosts};
use rankine_topology::{Process, Topology};

use super::agreement::same_everywhere;
use crate::training::error::{AssignmentError, TrainError};

/// The ranks assigned to a process: consecutive, equally many for each process, in the order of processes.
#[derive(Debug, Clone)]
pub(in crate::training) struct RankAssignment {
    pub(in crate::training) processes: ProcessGroup,
    pub(in crate::training) topology: Topology,
    /// The GPU of each rank here, numbered as the driver numbers those that the process sees.
    pub(in crate::training) gpus: Vec<usize>,
}

impl RankAssignment {
    /// Counts the ranks of a job, if it leaves that open, and finds their GPUs. Returns the job with the counts. The
    /// ranks of a single process take the GPUs from `first_gpu`.
    ///
    /// # Errors
    /// [`TrainError::Assignment`] if the job, the launcher and the GPUs that processes see contradict each other, or if
    /// processes have different jobs; [`TrainError::Processes`].
    pub(in crate::training) fn of(
        job: &Job,
        processes: &ProcessGroup,
        first_gpu: usize,
    ) -> Result<(Job, Self), TrainError> {
        same_everywhere(processes, "job", &job.to_toml())?;
        let shared = hooks::variable(hooks::LOOPBACK).is_some();
        let found = match processes.size() {
            1 => alone(job, gpu::gpu_count(), shared),
            _ => among(job, processes.members(), processes.process(), shared),
        };
        let (topology, mut gpus) = found?;
        gpus.iter_mut().for_each(|gpu| *gpu += first_gpu);
        let mut job = job.clone();
        let count = |count: usize| u32::try_from(count).ok().and_then(RankCount::new).map(Ranks::Count);
        job.device.ranks = count(topology.ranks()).unwrap_or(job.device.ranks);
        job.device.nodes = count(topology.nodes()).unwrap_or(job.device.nodes);
        Ok((job, Self { processes: processes.clone(), topology, gpus }))
    }
}

/// The ranks, and the GPUs of those in this process.
type RanksHere = (Topology, Vec<usize>);

/// All ranks are in this process.
fn alone(job: &Job, seen: usize, shared: bool) -> Result<RanksHere, AssignmentError> {
    let ranks = match job.device.ranks.count() {
        Some(ranks) => ranks.get() as usize,
        None if job.device.kind == DeviceKind::Cpu => 1,
        None => seen.max(1),
    };
    let topology = Topology::new(ranks, job.device.nodes.get() as usize);
    let modulus = if shared { seen.max(1) } else { ranks };
    let gpus = (0..ranks).map(|rank| rank % modulus).collect();
    Ok((topology?, gpus))
}

/// Some ranks are in this process, and equally many in each other one.
fn among(
    job: &Job,
    members: &[ProcessInfo],
    own: Process,
    shared: bool,
) -> Result<RanksHere, AssignmentError> {
    let (processes, hosts) = (members.len(), hosts(members));
    if job.device.kind == DeviceKind::Cpu {
        return Err(AssignmentError::OnCpu { processes });
    }
    check_order(&hosts)?;
    let nodes = job.device.nodes.count().map_or(hosts.len(), |nodes| nodes.get() as usize);
    if nodes < hosts.len() || !nodes.is_multiple_of(hosts.len()) || !processes.is_multiple_of(nodes) {
        let hosts = hosts.into_iter().map(|host| host.name).collect();
        return Err(AssignmentError::Nodes { nodes, processes, hosts });
    }
    let each = match job.device.ranks.count() {
        Some(ranks) => {
            let ranks = ranks.get() as usize;
            if !ranks.is_multiple_of(processes) {
                return Err(AssignmentError::Ranks { ranks, processes });
            }
            ranks / processes
        }
        None => seen_by_each(members, &hosts)?,
    };
    let of_member = |process| gpus_of(members, &hosts, process, each, shared);
    let all = Process::first(processes).map(of_member).collect::<Result<Vec<_>, _>>()?;
    if !shared {
        check_apart(members, &hosts, &all)?;
    }
    let topology = Topology::new(each * processes, nodes)?;
    Ok((topology, all[own.0].clone()))
}

/// Ranks are numbered node by node, equally many on each, so processes must be numbered host by host.
fn check_order(hosts: &[Host]) -> Result<(), AssignmentError> {
    let all = || hosts.iter().map(|host| (host.name.clone(), host.processes.clone())).collect();
    if hosts.iter().any(|host| host.processes.len() != hosts[0].processes.len()) {
        return Err(AssignmentError::UnequalHosts { hosts: all() });
    }
    if hosts
        .iter()
        .flat_map(|host| &host.processes)
        .enumerate()
        .any(|(index, &process)| process != Process(index))
    {
        return Err(AssignmentError::Order { hosts: all() });
    }
    Ok(())
}

/// The distinct GPUs that the processes of a host see.
fn distinct<'a>(members: &'a [ProcessInfo], host: &Host) -> Vec<&'a str> {
    let mut ids: Vec<_> =
        host.processes.iter().flat_map(|process| &members[process.0].gpu_ids).map(String::as_str).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The GPUs per process if they share all GPUs of their host.
fn seen_by_each(members: &[ProcessInfo], hosts: &[Host]) -> Result<usize, AssignmentError> {
    let counts: Vec<_> = hosts.iter().map(|host| distinct(members, host).len()).collect();
    let (first, processes) = (counts[0], hosts[0].processes.len());
    if let Some(other) = counts.iter().position(|&count| count != first) {
        let of = |index: usize| (hosts[index].name.clone(), counts[index]);
        return Err(AssignmentError::UnequalGpus { one: of(0), other: of(other) });
    }
    if first == 0 || !first.is_multiple_of(processes) {
        return Err(AssignmentError::GpusPerProcess { host: (hosts[0].name.clone(), first), processes });
    }
    Ok(first / processes)
}

/// The GPUs that a process takes, numbered as its driver does.
fn gpus_of(
    members: &[ProcessInfo],
    hosts: &[Host],
    process: Process,
    each: usize,
    shared: bool,
) -> Result<Vec<usize>, AssignmentError> {
    let host =
        hosts.iter().find(|host| host.processes.contains(&process)).expect("every process is on a host");
    let index = host.processes.iter().position(|&other| other == process).unwrap_or(0);
    let seen = members[process.0].gpus;
    // Processes that see different GPUs have them to themselves.
    let all_alike =
        host.processes.iter().all(|&other| members[other.0].gpu_ids == members[process.0].gpu_ids);
    let first = if all_alike { index * each } else { 0 };
    if seen == 0 || (first + each > seen && !shared) {
        let others = match (seen, host.processes.len(), all_alike) {
            (0, ..) | (_, 1, _) => "",
            (.., true) => ", the same ones as the other processes of its host",
            (.., false) => ", not the same ones as the other processes of its host",
        };
        let (host, processes) = (host.name.clone(), members.len());
        return Err(AssignmentError::TooFewGpus { process, host, processes, each, seen, others });
    }
    Ok((first..first + each).map(|gpu| gpu % seen).collect())
}

/// Checks that no GPU has two ranks.
fn check_apart(members: &[ProcessInfo], hosts: &[Host], gpus: &[Vec<usize>]) -> Result<(), AssignmentError> {
    for host in hosts {
        let mut taken: Vec<(&str, Process)> = Vec::new();
        for &process in &host.processes {
            for id in gpus[process.0].iter().filter_map(|&gpu| members[process.0].gpu_ids.get(gpu)) {
                if let Some((_, other)) = taken.iter().find(|(taken, _)| taken == id) {
                    let (gpu, host, processes) = ((*id).to_owned(), host.name.clone(), [*other, process]);
                    return Err(AssignmentError::SharedGpu { gpu, host, processes });
                }
                taken.push((id, process));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;

    const JOB: &str = r#"
        name = "tiny"
        data.dir = "data/tiny"
        model = { kind = "dlrm", embedding_dim = 16, bottom_mlp = [64, 16], top_mlp = [64] }
        optimizer.dense = { kind = "sgd", learning_rate = 0.1 }
        optimizer.sparse = { kind = "adagrad", learning_rate = 0.02 }
        train.batch_size = 512
    "#;

    /// Processes on hosts, each with the GPUs that it sees: `a:01` is a process on host a that sees GPUs 0 and 1.
    fn members(text: &str) -> Vec<ProcessInfo> {
        let member = |(process, text): (usize, &str)| {
            let (host, gpus) = text.split_once(':').unwrap();
            let gpu_ids: Vec<_> = gpus.chars().map(|gpu| format!("GPU-{gpu}")).collect();
            let (host, boot) = (host.to_owned(), host.to_owned());
            ProcessInfo {
                process: Process(process),
                host,
                boot,
                pid: 1,
                local: None,
                gpus: gpu_ids.len(),
                gpu_ids,
                build: build::compiled(),
            }
        };
        text.split_whitespace().enumerate().map(member).collect()
    }

    /// Ranks, nodes and the GPUs of each process; or the first error.
    fn found(sets: &[&str], processes: &str) -> Result<(usize, usize, Vec<Vec<usize>>), String> {
        let job = Job::from_toml("tiny.toml", JOB, sets).unwrap();
        let members = members(processes);
        let each = Process::first(members.len()).map(|own| among(&job, &members, own, false));
        let each: Vec<RanksHere> = each.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        let topology = each[0].0;
        Ok((topology.ranks(), topology.nodes(), each.into_iter().map(|(_, gpus)| gpus).collect()))
    }

    #[test]
    fn ranks_are_counted_and_find_their_gpus() {
        let auto = &["device.ranks=auto"][..];
        for (sets, processes, expected) in [
            // One process per GPU: all see all, or each its own.
            (auto, "a:012 a:012 a:012", (3, 1, vec![vec![0], vec![1], vec![2]])),
            (auto, "a:2 a:0", (2, 1, vec![vec![0], vec![0]])),
            (&["device.ranks=2"], "a:0123 a:0123", (2, 1, vec![vec![0], vec![1]])),
            // Between: equally many GPUs for each.
            (auto, "a:0123 a:0123", (4, 1, vec![vec![0, 1], vec![2, 3]])),
            (auto, "a:01 a:23 b:01 b:23", (8, 2, vec![vec![0, 1]; 4])),
            // One process per node; some GPUs may stay idle.
            (auto, "a:01 b:01", (4, 2, vec![vec![0, 1], vec![0, 1]])),
            (&["device.ranks=4"], "a:0123 b:01", (4, 2, vec![vec![0, 1], vec![0, 1]])),
            // One process per GPU on several nodes.
            (auto, "a:01 a:01 b:01 b:01", (4, 2, vec![vec![0], vec![1], vec![0], vec![1]])),
            // Parts of a host as nodes.
            (&["device.ranks=auto", "device.nodes=2"], "a:0123 a:0123", (4, 2, vec![vec![0, 1], vec![2, 3]])),
        ] {
            assert_eq!(found(sets, processes), Ok(expected), "{sets:?} {processes}");
        }
    }

    #[test]
    fn contradictions_are_refused_with_both_values() {
        let auto = &["device.ranks=auto"][..];
        for (sets, processes, words) in [
            (&["device.ranks=3"][..], "a:01 a:01", "device.ranks is 3, and 2 processes were launched"),
            (&[], "a:01 a:01", "device.ranks is 1, and 2 processes were launched"),
            (
                &["device.ranks=4"],
                "a:01 b:0",
                "needs 2 GPUs, but process 1 on b sees 1 GPU: lower device.ranks",
            ),
            (&["device.ranks=2"], "a: a:", "needs 1 GPU, but process 0 on a sees 0 GPUs: lower device.ranks"),
            (
                &["device.ranks=6"],
                "a:01 a:01",
                "sees 2 GPUs, the same ones as the other processes of its host",
            ),
            (
                &["device.ranks=4"],
                "a:01 a:2",
                "sees 1 GPU, not the same ones as the other processes of its host",
            ),
            (auto, "a:01 b:012", "host a has 2 GPUs and host b has 3"),
            (auto, "a:012 a:012", "host a has 3 GPUs for 2 processes"),
            (auto, "a:01 b:01 a:01 b:01", "a has 0, 2; b has 1, 3"),
            (auto, "a:01 a:01 b:01", "a has 0, 1; b has 2"),
            (
                &["device.ranks=2", "device.nodes=1"],
                "a:0 b:0",
                "device.nodes is 1, and the 2 processes are on 2 hosts",
            ),
            (&["device.ranks=2"], "a:01 a:02", "processes 0 and 1 on a would both take GPU GPU-0"),
            (
                &["device.ranks=2", "device.kind=cpu"],
                "a:0 b:0",
                "2 processes were launched, and device.kind is",
            ),
        ] {
            let error = found(sets, processes).unwrap_err();
            assert!(error.contains(words), "{sets:?} {processes}: {error}");
        }
    }

    #[test]
    fn one_process_has_all_ranks() {
        let of = |sets: &[&str], seen| {
            let (topology, gpus) =
                alone(&Job::from_toml("tiny.toml", JOB, sets).unwrap(), seen, false).unwrap();
            (topology.ranks(), topology.nodes(), gpus)
        };
        assert_eq!(of(&[], 8), (1, 1, vec![0]));
        assert_eq!(of(&["device.ranks=auto"], 3), (3, 1, vec![0, 1, 2]));
        assert_eq!(of(&["device.ranks=auto"], 0), (1, 1, vec![0]));
        assert_eq!(of(&["device.ranks=auto", "device.kind=cpu"], 4), (1, 1, vec![0]));
        assert_eq!(of(&["device.ranks=4", "device.nodes=2"], 0), (4, 2, vec![0, 1, 2, 3]));
    }
}
