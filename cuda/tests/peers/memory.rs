//! Shared memory and barriers.

use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rankine_cuda::{Buffer, Error, Graph, Lane, PeerBarrier, Peers};
use rankine_topology::LocalRank;

use super::{Body, DEADLINE, Machine, NODE, Outcome, Random, names_missing, rank_of, run_a_kernel};

pub(crate) const BODIES: &[Body] = &[
    ("values_are_gathered", 1, values_are_gathered),
    ("memory_is_shared", 3, memory_is_shared),
    ("barriers_order_what_is_written", 3, barriers_order_what_is_written),
    ("sequences_of_barriers_do_not_disturb_each_other", 1, sequences_do_not_disturb_each_other),
    ("a_rank_that_does_not_come_is_named", 1, a_rank_that_does_not_come_is_named),
    ("a_rank_that_ends_is_told_of_at_once", 1, a_rank_that_ends_is_told_of_at_once),
    ("a_rank_without_memory_is_told_of", 1, a_rank_without_memory_is_told_of),
    ("what_is_shared_is_measured_alone", 1, what_is_shared_is_measured_alone),
];

fn values_are_gathered(machine: &Machine, words: &mut Random) -> Outcome {
    let ranks = machine.ranks(words);
    let expected: Vec<_> = (0..ranks as u64).map(|rank| [rank, 7 * rank]).collect();
    let found = machine.on_ranks(ranks, DEADLINE, |peers, _| {
        let rank = peers.local_rank().0 as u64;
        Ok(peers.gather([rank, 7 * rank])?)
    })?;
    if found == vec![expected; ranks] { Ok(()) } else { Err(format!("{found:?}").into()) }
}

/// A rank's memory contents.
fn pattern(rank: usize, len: usize) -> Vec<u32> {
    (0..len).map(|index| (index as u32).wrapping_mul(31) ^ (rank as u32) << 24).collect()
}

fn memory_is_shared(machine: &Machine, words: &mut Random) -> Outcome {
    let ranks = machine.ranks(words);
    let lens: Vec<_> = (0..ranks).map(|_| words.one_of(&[1, 3, 5000, 600_000])).collect();
    machine.on_ranks(ranks, DEADLINE, |peers, lane| {
        let shared = peers.share::<u32>(lens[peers.local_rank().0], 0xab)?;
        if shared.read(lane)? != vec![0xabab_abab; lens[peers.local_rank().0]] {
            return Err("the memory is not filled".into());
        }
        shared.write(lane, &pattern(peers.local_rank().0, lens[peers.local_rank().0]))?;
        peers.gather(0u8)?;
        for (rank, &len) in lens.iter().enumerate() {
            let copy = Buffer::<u32>::filled(peers.device(), len, 0)?;
            // SAFETY: both buffers have as many elements, and the lane is waited for before either is dropped.
            unsafe { lane.copy(shared.of(LocalRank(rank)), copy.pointer(), len) }?;
            if copy.read(lane)? != pattern(rank, len) || shared.len_of(LocalRank(rank)) != len {
                return Err(
                    format!("rank {} does not see the memory of rank {rank}", peers.local_rank().0).into()
                );
            }
        }
        // No rank leaves before all have read.
        peers.gather(0u8)?;
        Ok(())
    })?;
    let left: u64 = machine.devices.iter().map(|device| device.budget().map_or(1, |left| left.bytes())).sum();
    if left == 0 { Ok(()) } else { Err(format!("{left} bytes are left").into()) }
}

/// Each rank passes a number to the next one, which adds one and passes it on: as often as the graph is replayed.
fn barriers_order_what_is_written(machine: &Machine, words: &mut Random) -> Outcome {
    const TURNS: usize = 8;
    let ranks = machine.ranks(words);
    let replays = 20;
    let found = machine.on_ranks(ranks, DEADLINE, |peers, lane| {
        let (rank, next) = (peers.local_rank().0, (peers.local_rank().0 + 1) % ranks);
        let (from, to) = (peers.share::<u32>(4096, 0)?, peers.share::<u32>(4096, 0)?);
        from.write(lane, &pattern(rank, 4096))?;
        let barrier = PeerBarrier::new(peers)?;
        let mut graph = Graph::capture(lane, || {
            for _ in 0..TURNS {
                // SAFETY: both have as many elements, and live until the lane has been waited for below.
                unsafe {
                    lane.copy(from.pointer(), to.of(LocalRank(next)), 4096)?;
                    barrier.enqueue(lane)?;
                    lane.copy(to.pointer(), from.pointer(), 4096)?;
                    barrier.enqueue(lane)?;
                }
            }
            Ok::<_, Error>(())
        })?;
        for _ in 0..replays {
            // SAFETY: what was captured lives until the lane has been waited for below.
            unsafe { graph.replay(lane) }?;
        }
        barrier.check(lane)?;
        barrier.check_now()?;
        let found = from.read(lane)?;
        peers.gather(0u8)?;
        Ok(found)
    })?;
    for (rank, found) in found.iter().enumerate() {
        let begun = (rank + ranks * TURNS * replays - TURNS * replays) % ranks;
        if *found != pattern(begun, 4096) {
            return Err(
                format!("of {ranks} ranks, rank {rank} does not have the number of rank {begun}").into()
            );
        }
    }
    Ok(())
}

fn sequences_do_not_disturb_each_other(machine: &Machine, words: &mut Random) -> Outcome {
    let ranks = machine.ranks(words).min(3);
    machine.on_ranks(ranks, DEADLINE, |peers, lane| {
        // Before the ranks meet to make the barriers: making a lane may wait for the GPU, where another rank may wait
        // for this one.
        let other = Lane::new(peers.device())?;
        run_a_kernel(&other)?;
        let (first, second) = (PeerBarrier::new(peers)?, PeerBarrier::new(peers)?);
        for turn in 0..50 {
            // Ranks enqueue the two in different orders.
            let order = [(&first, lane), (&second, &other)];
            for index in [0, 1] {
                let (barrier, lane) = order[(index + turn + peers.local_rank().0) % 2];
                // SAFETY: the barriers live until both lanes have been waited for.
                unsafe { barrier.enqueue(lane) }?;
            }
        }
        first.check(lane)?;
        second.check(&other)?;
        peers.gather(0u8)?;
        Ok(())
    })?;
    Ok(())
}

fn a_rank_that_does_not_come_is_named(machine: &Machine, _: &mut Random) -> Outcome {
    let deadline = Duration::from_secs(1);
    machine.on_ranks(2, deadline, |peers, lane| {
        let barrier = PeerBarrier::new(peers)?;
        if peers.local_rank().0 == 1 {
            let begun = Instant::now();
            for _ in 0..10 {
                // SAFETY: the barrier lives until the lane has been waited for.
                unsafe { barrier.enqueue(lane) }?;
            }
            names_missing(barrier.check(lane), 1, 0)?;
            names_missing(barrier.check_now(), 1, 0)?;
            // Only the first barrier waited.
            if begun.elapsed() > 5 * deadline {
                return Err(format!("it took {:?}", begun.elapsed()).into());
            }
        } else {
            thread::sleep(2 * deadline);
            // It gets the error although it did not wait.
            names_missing(barrier.check(lane), 1, 0)?;
        }
        // The other one's memory is written to until here; both take less than the deadline from here on.
        drop(barrier);
        Ok(())
    })?;
    Ok(())
}

fn a_rank_that_ends_is_told_of_at_once(machine: &Machine, _: &mut Random) -> Outcome {
    let begun = Instant::now();
    machine.on_ranks(3, Duration::from_secs(1000), |peers: &Peers, _| {
        let _all = peers.share::<u32>(10, 0)?;
        if peers.local_rank().0 == 2 {
            return Ok(());
        }
        match peers.share::<u32>(10, 0).map(drop) {
            Err(Error::PeersLeft { rank, left }) if rank == peers.rank() && left.contains(&rank_of(2, 3)) => {
                Ok(())
            }
            other => Err(Failed::from(format!("{other:?}"))),
        }
    })?;
    if begun.elapsed() < DEADLINE { Ok(()) } else { Err(format!("it took {:?}", begun.elapsed()).into()) }
}

fn a_rank_without_memory_is_told_of(machine: &Machine, _: &mut Random) -> Outcome {
    machine.on_ranks(2, DEADLINE, |peers, _| {
        // More than any GPU has.
        let len = if peers.local_rank().0 == 1 { 1 << 43 } else { 10 };
        match (peers.local_rank().0, peers.share::<u8>(len, 0).map(drop)) {
            (0, Err(Error::PeersStray { rank, other })) if [rank, other] == [0, 1].map(|r| rank_of(r, 2)) => {
                Ok(())
            }
            (1, Err(Error::OutOfMemory { .. })) => Ok(()),
            (_, other) => Err(Failed::from(format!("{other:?}"))),
        }
    })?;
    Ok(())
}

fn what_is_shared_is_measured_alone(machine: &Machine, _: &mut Random) -> Outcome {
    let peers = Peers::in_process(&[machine.devices[0].clone(), machine.devices[0].clone()], NODE, DEADLINE)?;
    let device = peers[0].device();
    device.bind()?;
    let make = |peers: &Peers| {
        let shared = peers.share::<f32>(1 << 20, 0)?;
        let barrier = PeerBarrier::new(peers)?;
        let lane = Lane::new(peers.device())?;
        // SAFETY: nothing is done while the device is measured.
        unsafe { barrier.enqueue(&lane) }?;
        barrier.check(&lane)?;
        Ok::<_, Error>((shared, peers.gather(5u32)?))
    };
    // The other rank does nothing.
    let budget = device.measure(|| make(&peers[0]))?;
    let bytes: u64 = budget.parts.iter().filter(|part| part.purpose == "other").map(|part| part.bytes).sum();
    // The values, the barrier's flags and its count.
    let expected = (4 << 20) + (2 << 20) + 8;
    if bytes == expected { Ok(()) } else { Err(format!("{bytes} bytes, not {expected}").into()) }
}
