//! What GPUs of several processes do together: their memory, and the rails between nodes.

use std::sync::Arc;
use std::time::Duration;

use rankine_cuda::{Cluster, Device, GatherNodes, Peers};
use rankine_embedding::Topology;

use super::Result;
use crate::launch::ProcessGroup;

/// Lets the GPUs of the ranks here wait for nobody any more once another process is lost.
fn give_up_with(processes: &ProcessGroup, peers: &[Peers]) {
    let giving_up: Vec<_> = peers.iter().map(|peers| Arc::clone(peers.giving_up())).collect();
    processes.when_lost(move || giving_up.iter().for_each(|rank| rank.give_up()));
}

/// The ranks of this process, on its GPUs, among those of all processes on so many nodes; each waits for others as long
/// as is said.
pub(super) fn of_processes(
    devices: &[Arc<Device>],
    nodes: usize,
    processes: &ProcessGroup,
    deadline: Duration,
) -> Result<Vec<Cluster>> {
    let topology = Topology::new(processes.size(), nodes).expect("as many processes a node");
    let process = processes.rank();
    let of_node = topology.node_group(process);
    let mut gather = |own: &[Vec<u8>]| {
        // Names have no new lines.
        let all = processes.gather("the sockets by which memory is shared", &own.join(&b'\n'));
        let all = all.map_err(|error| error.to_string())?;
        let names = of_node.iter().flat_map(|&other| all[other].split(|&byte| byte == b'\n'));
        Ok(names.map(<[u8]>::to_vec).collect())
    };
    let peers = match of_node.len() {
        // Threads alone.
        1 => Peers::in_process(devices, deadline)?,
        each => {
            let (first, ranks) = (topology.place_of(process) * devices.len(), each * devices.len());
            Peers::of_processes(devices, first, ranks, deadline, &mut gather)?
        }
    };
    give_up_with(processes, &peers);
    Ok(Cluster::of_process(peers, topology.node_of(process), nodes, between(processes)))
}

/// What hands values around among processes of several nodes.
fn between(processes: &ProcessGroup) -> GatherNodes {
    let processes = processes.clone();
    Box::new(move |own: &[u8]| {
        processes.gather("what ranks of several nodes do together", own).map_err(|error| error.to_string())
    })
}
