//! Ranks of two nodes, simulated by the GPUs of one machine: between nodes NCCL needs one GPU per rank.

use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rankine_cuda::nccl::{NcclId, Parcel};
use rankine_cuda::{Buffer, Cluster, ClusterSum, Error, Graph, Lane, Moment, Peers, Rail};
use rankine_topology::Node;

use super::{Body, Machine, Outcome, Random};

pub(crate) const BODIES: &[Body] = &[
    ("ranks_of_all_nodes_hand_each_other_values", 4, hand_each_other_values),
    ("sums_over_nodes_are_the_same_everywhere", 3, sums_are_the_same_everywhere),
    ("rails_exchange_in_graphs", 1, rails_exchange_in_graphs),
    ("a_rail_without_a_rank_ends", 1, a_rail_without_a_rank_ends),
];

/// NCCL takes seconds to examine the machine.
const DEADLINE: Duration = Duration::from_secs(60);
const NODES: usize = 2;

/// Returns the result of each rank's thread; all ranks end together.
fn on_ranks<V: Send>(
    clusters: Vec<Cluster>,
    run: impl Fn(&Cluster, &Lane) -> Result<V, Failed> + Sync,
) -> Result<Vec<V>, Failed> {
    let one = |cluster: Cluster| {
        cluster.device().bind()?;
        let outcome = run(&cluster, &Lane::new(cluster.device())?)?;
        cluster.gather(0_u8)?;
        Ok::<_, Failed>(outcome)
    };
    let outcomes: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = clusters.into_iter().map(|cluster| scope.spawn(|| one(cluster))).collect();
        running.into_iter().map(|rank| rank.join().expect("its panic has been printed")).collect()
    });
    outcomes.into_iter().collect()
}

/// The ranks of two nodes with equal numbers of GPUs; none with one GPU or without NCCL.
fn clusters(machine: &Machine, deadline: Duration) -> Result<Option<Vec<Cluster>>, Failed> {
    let ranks = machine.gpus() / NODES * NODES;
    if ranks == 0 {
        eprintln!("skipped: two nodes take two GPUs");
        return Ok(None);
    }
    match NcclId::new() {
        Ok(_) => Ok(Some(Cluster::in_process(&machine.devices[..ranks], NODES, deadline)?)),
        // A machine without NCCL can only train on one node.
        Err(error @ Error::NoNccl(_)) => {
            eprintln!("skipped: {error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Gathers values through one rank of each process; a node has one or two processes. Needs fewer GPUs than ranks.
fn hand_each_other_values(machine: &Machine, words: &mut Random) -> Outcome {
    let (processes, each) = (1 + words.below(3) as usize, 1 + words.below(2) as usize);
    let local_ranks = processes * each;
    let devices: Vec<_> =
        (0..NODES * local_ranks).map(|rank| machine.devices[rank % machine.gpus()].clone()).collect();
    // Every caller sends to all callers.
    let callers = NODES * processes;
    let handed = Arc::new((Mutex::new(vec![Vec::new(); callers]), Barrier::new(callers)));
    let mut joined = Vec::new();
    for (node, devices) in devices.chunks(local_ranks).enumerate() {
        let mut peers = Peers::in_process(devices, Node(node), DEADLINE)?.into_iter();
        for process in 0..processes {
            let (caller, handed) = (node * processes + process, Arc::clone(&handed));
            let gather = move |own: &[u8]| {
                let (values, barrier) = &*handed;
                let lock = || values.lock().unwrap_or_else(PoisonError::into_inner);
                lock()[caller] = own.to_vec();
                barrier.wait();
                let all = lock().clone();
                barrier.wait();
                Ok(all)
            };
            let own = peers.by_ref().take(each).collect();
            joined.extend(Cluster::of_process(own, NODES, Box::new(gather)));
        }
    }
    let in_process = Cluster::in_process(&devices, NODES, DEADLINE)?;
    for clusters in [joined, in_process] {
        on_ranks(clusters, |cluster, _| {
            for round in 0..20 {
                let found = cluster.gather(10 * round + cluster.rank().0 as u64)?;
                let expected: Vec<_> = (0..cluster.ranks() as u64).map(|rank| 10 * round + rank).collect();
                if found != expected || cluster.ranks() != NODES * local_ranks {
                    return Err(format!("rank {}: {found:?}", cluster.rank()).into());
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn sums_are_the_same_everywhere(machine: &Machine, words: &mut Random) -> Outcome {
    let Some(clusters) = clusters(machine, DEADLINE)? else { return Ok(()) };
    let (ranks, local_ranks) = (clusters.len(), clusters.len() / NODES);
    let len = words.one_of(&[0, 1, 5, 2049, 70_000, 1_000_003]);
    let numbers = words.one_of(&[0, 1, 3, 600]);
    let terms: Vec<(Vec<f32>, Vec<f64>)> = (0..ranks)
        .map(|_| {
            let values = (0..len).map(|_| words.number()).collect();
            (values, (0..numbers).map(|_| f64::from(words.number())).collect())
        })
        .collect();
    // Over two nodes the order does not matter; within each it is the order of local ranks.
    let of_node = |node: usize| {
        let mut of_node = terms[node * local_ranks..][..local_ranks].iter();
        let mut sum = of_node.next().cloned().unwrap_or_default();
        for (values, numbers) in of_node {
            sum.0.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            sum.1.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        sum
    };
    let (mut expected, other) = (of_node(0), of_node(1));
    expected.0.iter_mut().zip(&other.0).for_each(|(sum, value)| *sum += value);
    expected.1.iter_mut().zip(&other.1).for_each(|(sum, number)| *sum += number);
    on_ranks(clusters, |cluster, lane| {
        let rail = cluster.join_rail("sums")?;
        let sum = ClusterSum::new(cluster, rail.as_ref(), len, numbers)?;
        let (mut values, numbers) = terms[cluster.rank().0].clone();
        values.resize(sum.values().len(), 0.0);
        let begin = || -> Outcome {
            sum.values().write(lane, &values)?;
            sum.numbers().write(lane, &numbers)?;
            cluster.gather(0_u8)?;
            Ok(())
        };
        begin()?;
        // SAFETY: the sums of all ranks live until all have met again, and the graph is dropped before.
        unsafe { sum.enqueue(lane) }?;
        lane.synchronize()?;
        // SAFETY: as above.
        let mut graph = Graph::capture(lane, || unsafe { sum.enqueue(lane) })?;
        for _ in 0..3 {
            begin()?;
            // SAFETY: as above.
            unsafe { graph.replay(lane) }?;
            let moment = Moment::new(cluster.device())?;
            lane.record(&moment)?;
            Rail::wait_for(&moment, &[rail.as_ref().ok_or("no rail")?])?;
            sum.check_now()?;
            let found = (sum.values().read(lane)?, sum.numbers().read(lane)?);
            if found.0[..len] != expected.0 || found.1 != expected.1 {
                return Err(format!("rank {} has another sum", cluster.rank()).into());
            }
        }
        drop(graph);
        Ok(())
    })?;
    Ok(())
}

fn rails_exchange_in_graphs(machine: &Machine, _: &mut Random) -> Outcome {
    const LEN: usize = 100_000;
    let Some(clusters) = clusters(machine, DEADLINE)? else { return Ok(()) };
    on_ranks(clusters, |cluster, lane| {
        let (device, rank, local_ranks) = (cluster.device(), cluster.rank().0, cluster.peers().ranks());
        // Two rails, on two lanes at the same time.
        let aside = Lane::new(device)?;
        let rails =
            [cluster.join_rail("one")?.ok_or("no rail")?, cluster.join_rail("other")?.ok_or("no rail")?];
        let sent = Buffer::of(device, &vec![rank as u32; LEN])?;
        let received = [Buffer::filled(device, LEN, 0xff)?, Buffer::<u32>::filled(device, LEN, 0xff)?];
        let exchange = |lane: &Lane, number: usize| -> Result<(), Error> {
            let rail: &Rail = &rails[number];
            for other in rail.others() {
                let parcel = |pointer| Parcel { rank: other.0, pointer, len: LEN };
                let (from, to) = (parcel(sent.pointer()), parcel(received[number].pointer()));
                // SAFETY: the buffers have as many elements, and live until the lanes have been waited for.
                unsafe { rail.exchange(lane, "an exchange", &[from], &[to]) }?;
            }
            Ok(())
        };
        exchange(lane, 0)?;
        exchange(lane, 1)?;
        lane.synchronize()?;
        cluster.gather(0_u8)?;
        let (forked, joined) = (Moment::new(device)?, Moment::new(device)?);
        let mut graph = Graph::capture(lane, || {
            lane.record(&forked)?;
            aside.wait(&forked)?;
            exchange(lane, 0)?;
            exchange(&aside, 1)?;
            aside.record(&joined)?;
            lane.wait(&joined)
        })?;
        for _ in 0..50 {
            // SAFETY: as above.
            unsafe { graph.replay(lane) }?;
        }
        lane.record(&joined)?;
        Rail::wait_for(&joined, &rails.each_ref())?;
        let other = (rank + local_ranks) % cluster.ranks();
        for received in &received {
            if received.read(lane)?.iter().any(|&from| from as usize != other) {
                return Err(format!("rank {rank} did not receive what rank {other} sent").into());
            }
        }
        drop(graph);
        Ok(())
    })?;
    Ok(())
}

fn a_rail_without_a_rank_ends(machine: &Machine, _: &mut Random) -> Outcome {
    const PATIENCE: Duration = Duration::from_secs(5);
    let Some(clusters) = clusters(machine, PATIENCE)? else { return Ok(()) };
    let last = clusters.len() - 1;
    let begun = Instant::now();
    on_ranks(clusters, |cluster, lane| {
        let rail = cluster.join_rail("sums")?;
        let sum = ClusterSum::new(cluster, rail.as_ref(), 1000, 0)?;
        // SAFETY: the sums of all ranks live until all have met again.
        unsafe { sum.enqueue(lane) }?;
        lane.synchronize()?;
        cluster.gather(0_u8)?;
        let local_ranks = cluster.peers().ranks();
        // The ranks of the last node do not take part; the others time out.
        if cluster.rank().0 + local_ranks <= last {
            // SAFETY: as above.
            unsafe { sum.enqueue(lane) }?;
            let moment = Moment::new(cluster.device())?;
            lane.record(&moment)?;
            let rail = rail.as_ref().ok_or("no rail")?;
            match Rail::wait_for(&moment, &[rail]) {
                Err(Error::RailLate { rank, lane: "sums", collective: "a sum over the nodes", .. })
                    if rank == cluster.rank() => {}
                other => return Err(format!("{other:?}").into()),
            }
            // The GPU is free again.
            lane.synchronize()?;
        } else {
            // Ranks wait for this one at the end.
            thread::sleep(PATIENCE);
        }
        Ok(())
    })?;
    match begun.elapsed() < 6 * PATIENCE {
        true => Ok(()),
        false => Err(format!("it took {} s", begun.elapsed().as_secs()).into()),
    }
}
