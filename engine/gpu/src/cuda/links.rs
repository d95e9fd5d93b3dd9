//! The all-reduce bandwidth between the GPUs of several processes: `rankine doctor --cluster` reports it before a job
//! is started.

use std::time::Duration;

use rankine_cuda::nccl::{self, Communicator, NcclId, Reduction};
use rankine_cuda::{AllReduce, Buffer, Device, Lane, Moment, Peers};
use rankine_topology::{LocalRank, Node, Process};

use rankine_launch::{Link, MeetError, Meeting, ProcessInfo, hosts};

/// Number of values: 32 MiB.
const VALUES: usize = 8 << 20;
/// All-reduces that are timed.
const SUMS: usize = 20;

fn link(what: &'static str, gpus: usize, outcome: Result<f64, String>) -> Link {
    let gb = |ms: f64| 2.0 * (VALUES * 4 * (gpus - 1)) as f64 / gpus as f64 / ms / 1e6;
    let (gb_per_second, refused) = match outcome {
        Ok(ms) => ((gpus > 1).then(|| gb(ms)), None),
        Err(why) => (None, Some(why)),
    };
    Link { what, gpus, gb_per_second, refused }
}

/// All-reduces over the GPUs of this process's node through peer memory, and over those of all processes by NCCL.
/// Each process uses the GPU with its number on its host. All processes call this.
///
/// # Errors
/// Those of [`Meeting::gather`].
pub fn links(
    meeting: &mut Meeting,
    members: &[ProcessInfo],
    deadline: Duration,
) -> Result<Vec<Link>, MeetError> {
    let (process, processes) = (meeting.process(), meeting.processes());
    let hosts = hosts(members);
    let number = hosts.iter().position(|host| host.processes.contains(&process)).unwrap_or(0);
    let node = &hosts[number].processes;
    let local_rank = node.iter().position(|&other| other == process).unwrap_or(0);
    let device = match members[process.0].gpus {
        0 => Err("it sees no GPU".to_owned()),
        // A process that sees only one GPU uses it.
        gpus => Device::open(local_rank % gpus).map_err(|error| error.to_string()),
    };
    // No process may wait for one without a GPU.
    let complaint = device.as_ref().err().cloned().unwrap_or_default();
    let complaints = meeting.gather(complaint.as_bytes())?;
    let complaint = complaints.iter().position(|words| !words.is_empty());
    let device = match (complaint, device) {
        (None, Ok(device)) => device,
        (other, _) => {
            let other = other.unwrap_or(process.0);
            let why = format!("process {other}: {}", String::from_utf8_lossy(&complaints[other]));
            return Ok(vec![link("all GPUs", processes, Err(why))]);
        }
    };

    let mut gather = |own: &[Vec<u8>]| {
        let all = meeting.gather(&own[0]).map_err(|error| error.to_string())?;
        Ok(node.iter().map(|other| all[other.0].clone()).collect())
    };
    let devices = std::slice::from_ref(&device);
    let peers =
        Peers::of_processes(devices, Node(number), LocalRank(local_rank), node.len(), deadline, &mut gather);
    let by_peers = peers.and_then(|peers| by_peers(&peers[0])).map_err(|error| error.to_string());
    let of_node = link("the GPUs of a node, by their own memory", node.len(), by_peers);

    let join = |id| Communicator::new(&device, id, process.0, processes, deadline);
    let by_nccl = over_all(meeting, |id| by_nccl(join(id)?))?;
    let by_nccl = link("all GPUs, by NCCL", processes, by_nccl);

    // No process may wait for one without CollNet.
    let complaint = nccl::check_collnet().err().map(|why| why.to_string()).unwrap_or_default();
    let complaints = meeting.gather(complaint.as_bytes())?;
    let by_network = match complaints.iter().position(|words| !words.is_empty()) {
        Some(other) => {
            let why = String::from_utf8_lossy(&complaints[other]);
            Err(format!("not available, process {other}: {why}"))
        }
        None => {
            let join = |id| Communicator::with_collnet(&device, id, process.0, processes, deadline);
            over_all(meeting, |id| self::by_nccl(join(id)?))?
        }
    };
    Ok(vec![of_node, by_nccl, link("all GPUs, by the network (CollNet)", processes, by_network)])
}

/// Measures among all processes, with an id that the first one creates.
fn over_all(
    meeting: &mut Meeting,
    measure: impl FnOnce(NcclId) -> rankine_cuda::Result<f64>,
) -> Result<Result<f64, String>, MeetError> {
    let id = if meeting.process() == Process(0) {
        NcclId::new().map_err(|error| error.to_string())
    } else {
        Err(String::new())
    };
    let told = match &id {
        Ok(id) => bytemuck::bytes_of(id),
        Err(words) => words.as_bytes(),
    };
    let ids = meeting.gather(told)?;
    Ok(match bytemuck::try_pod_read_unaligned::<NcclId>(&ids[0]) {
        Ok(id) => measure(id).map_err(|error| error.to_string()),
        Err(_) => Err(String::from_utf8_lossy(&ids[0]).into_owned()),
    })
}

/// Milliseconds of an all-reduce.
fn by_peers(peers: &Peers) -> rankine_cuda::Result<f64> {
    let lane = Lane::new(peers.device())?;
    let sums = AllReduce::new(peers, VALUES, 0)?;
    // SAFETY: the sums of all ranks live until all have met again.
    let ms = time(&lane, || unsafe { sums.enqueue(&lane) })?;
    sums.check(&lane)?;
    peers.gather(0u8)?;
    Ok(ms)
}

/// Milliseconds of an all-reduce.
fn by_nccl(world: Communicator) -> rankine_cuda::Result<f64> {
    let device = world.device();
    let lane = Lane::new(device)?;
    let values = Buffer::<f32>::filled(device, VALUES, 0x11)?;
    let values = values.pointer();
    // SAFETY: there are as many values, which live until the lane has been waited for.
    time(&lane, || unsafe { world.all_reduce(&lane, values, values, VALUES, Reduction::Sum) })
}

/// Milliseconds of one enqueued operation, the mean over many; the first ones do not count.
fn time(lane: &Lane, enqueue: impl Fn() -> rankine_cuda::Result<()>) -> rankine_cuda::Result<f64> {
    let (begin, end) = (Moment::new(lane.device())?, Moment::new(lane.device())?);
    for _ in 0..SUMS / 4 {
        enqueue()?;
    }
    lane.record(&begin)?;
    for _ in 0..SUMS {
        enqueue()?;
    }
    lane.record(&end)?;
    lane.synchronize()?;
    Ok(end.ms_since(&begin)? / SUMS as f64)
}
