//! What GPUs of several processes share: memory within a node, and rails between nodes.

use std::sync::Arc;
use std::time::Duration;

use rankine_cuda::{Cluster, Device, GatherNodes, Peers};
use rankine_launch::ProcessGroup;
use rankine_topology::{LocalRank, Node};

use crate::cuda::error::Result;

/// Makes the GPUs of this process stop waiting when another process is lost.
fn give_up_when_lost(processes: &ProcessGroup, peers: &[Peers]) {
    let giving_up: Vec<_> = peers.iter().map(|peers| Arc::clone(peers.give_up_flag())).collect();
    processes.when_lost(move || giving_up.iter().for_each(|rank| rank.give_up()));
}

/// Connects the ranks of this process, on its GPUs, with those of all processes on `nodes` nodes; `deadline` limits
/// how long a rank waits for another.
pub(super) fn connect_processes(
    devices: &[Arc<Device>],
    nodes: usize,
    processes: &ProcessGroup,
    deadline: Duration,
) -> Result<Vec<Cluster>> {
    let each = processes.size() / nodes;
    let (node, index) = (Node(processes.process().0 / each), processes.process().0 % each);
    let of_node = node.0 * each..(node.0 + 1) * each;
    let mut gather = |own: &[Vec<u8>]| {
        // Names contain no line breaks.
        let all = processes.gather("the sockets by which memory is shared", &own.join(&b'\n'))?;
        let names = all[of_node.clone()].iter().flat_map(|names| names.split(|&byte| byte == b'\n'));
        Ok(names.map(<[u8]>::to_vec).collect())
    };
    let peers = match each {
        // Only threads of this process.
        1 => Peers::in_process(devices, node, deadline)?,
        _ => {
            let (first, ranks) = (LocalRank(index * devices.len()), each * devices.len());
            Peers::of_processes(devices, node, first, ranks, deadline, &mut gather)?
        }
    };
    give_up_when_lost(processes, &peers);
    Ok(Cluster::of_process(peers, nodes, between(processes)))
}

/// Returns the function that gathers values among processes of several nodes.
fn between(processes: &ProcessGroup) -> GatherNodes {
    let processes = processes.clone();
    Box::new(move |own: &[u8]| Ok(processes.gather("values of ranks on several nodes", own)?))
}
