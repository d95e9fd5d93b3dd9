//! NCCL between ranks with a GPU each.

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Failed;
use rankine_cuda::nccl::{Communicator, NcclId, Parcel, Reduction};
use rankine_cuda::{Buffer, Device, Error, Graph};

use super::{Body, Machine, Outcome, Random};

pub(crate) const BODIES: &[Body] = &[
    ("collectives_of_nccl_are_captured", 1, collectives_of_nccl_are_captured),
    ("collectives_of_nccl_without_blocking_are_captured", 1, collectives_without_blocking_are_captured),
    ("nccl_says_who_waited_for_whom", 1, nccl_says_who_waited_for_whom),
    ("nccl_leaves_no_thread_that_waits", 1, nccl_leaves_no_thread_that_waits),
];

/// How a rank joins: [`Communicator::new`] or [`Communicator::with_collnet`].
type Join = fn(&Arc<Device>, NcclId, usize, usize, Duration) -> Result<Communicator, Error>;

/// NCCL takes seconds to examine the machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn collectives_of_nccl_are_captured(machine: &Machine, _: &mut Random) -> Outcome {
    collectives_are_captured(machine, Communicator::new)
}

fn collectives_without_blocking_are_captured(machine: &Machine, _: &mut Random) -> Outcome {
    // Without a plugin, the GPUs sum.
    collectives_are_captured(machine, Communicator::with_collnet)
}

fn collectives_are_captured(machine: &Machine, join: Join) -> Outcome {
    let id = match NcclId::new() {
        Ok(id) => id,
        // A machine without NCCL can only train on one node.
        Err(error @ Error::NoNccl(_)) => {
            eprintln!("skipped: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let ranks = machine.gpus();
    machine.on_ranks(ranks, DEADLINE, |peers, lane| {
        let (device, rank) = (peers.device(), peers.local_rank().0);
        let world = join(device, id, rank, ranks, DEADLINE)?;
        const LEN: usize = 1000;
        let own: Vec<f32> = (0..LEN).map(|index| (index + rank) as f32).collect();
        let values = Buffer::of(device, &own)?;
        let greatest = Buffer::<u32>::of(device, &[rank as u32 + 5])?;
        let of_last = Buffer::<u64>::of(device, &[rank as u64 + 100])?;
        // To rank r: r + 1 elements.
        let sent = Buffer::of(device, &vec![rank as u8; ranks * ranks])?;
        let received = Buffer::<u8>::filled(device, ranks * (rank + 1), 0xff)?;
        let parcels = |of: &Buffer<u8>, len: fn(usize, usize) -> usize, step: usize| -> Vec<_> {
            let one = |other| Parcel {
                rank: other,
                pointer: of.pointer().element(other * step),
                len: len(rank, other),
            };
            (0..ranks).map(one).collect()
        };
        let away = parcels(&sent, |_, other| other + 1, ranks);
        let here = parcels(&received, |rank, _| rank + 1, rank + 1);
        let enqueue = || {
            // SAFETY: the buffers have as many elements as are said, and live until the lane has been waited for.
            unsafe {
                world.all_reduce(lane, values.pointer(), values.pointer(), LEN, Reduction::Sum)?;
                let most = greatest.pointer();
                world.all_reduce(lane, most, most, 1, Reduction::Max)?;
                world.broadcast(lane, of_last.pointer(), of_last.pointer(), 1, ranks - 1)?;
                world.exchange(lane, &away, &here)
            }
        };
        enqueue()?;
        lane.synchronize()?;
        values.write(lane, &own)?;
        received.write(lane, &vec![0xff; received.len()])?;
        let mut graph = Graph::capture(lane, enqueue)?;
        // SAFETY: the buffers live until the lane has been waited for.
        unsafe { graph.replay(lane) }?;
        lane.synchronize()?;
        world.check()?;
        let sums = (0..LEN).map(|index| (0..ranks).map(|rank| (index + rank) as f32).sum::<f32>());
        let from: Vec<u8> = (0..ranks).flat_map(|other| vec![other as u8; rank + 1]).collect();
        let right = values.read(lane)? == sums.collect::<Vec<_>>()
            && greatest.read(lane)? == [ranks as u32 + 4]
            && of_last.read(lane)? == [ranks as u64 + 99]
            && received.read(lane)? == from;
        drop(graph);
        peers.gather(0u8)?;
        if right { Ok(()) } else { Err(Failed::from(format!("rank {rank} has a wrong result"))) }
    })?;
    Ok(())
}

fn nccl_says_who_waited_for_whom(machine: &Machine, _: &mut Random) -> Outcome {
    let Ok(id) = NcclId::new() else { return Ok(()) };
    let device = &machine.devices[0];
    device.bind()?;
    match Communicator::new(device, id, 1, 2, Duration::from_millis(300)).map(drop) {
        Err(Error::NcclLate { rank: 1, ranks: 2, deadline_ms: 300 }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

/// The call that creates the communicator returns at once, and is aborted.
fn nccl_leaves_no_thread_that_waits(machine: &Machine, _: &mut Random) -> Outcome {
    let Ok(id) = NcclId::new() else { return Ok(()) };
    let device = &machine.devices[0];
    device.bind()?;
    let threads = || Ok::<_, Failed>(std::fs::read_dir("/proc/self/task")?.count());
    let before = threads()?;
    match Communicator::with_collnet(device, id, 1, 2, Duration::from_millis(300)).map(drop) {
        Err(Error::NcclLate { rank: 1, ranks: 2, deadline_ms: 300 }) => {}
        Err(error @ Error::NoCollNet(_)) => {
            eprintln!("skipped: {error}");
            return Ok(());
        }
        other => return Err(format!("{other:?}").into()),
    }
    let after = threads()?;
    if after > before { Err(format!("{before} threads became {after}").into()) } else { Ok(()) }
}
