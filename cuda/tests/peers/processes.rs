//! Ranks of several processes: this program, started once for each process.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rankine_cuda::{AllReduce, AllReduceWay, Buffer, Device, Error, GatherError, Lane, Peers};
use rankine_topology::LocalRank;

use super::{Body, DEADLINE, Machine, NODE, Outcome, Random};

pub(crate) const BODIES: &[Body] = &[
    ("processes_share_memory_and_sum", 1, processes_share_memory_and_sum),
    ("a_process_that_ends_is_told_of", 1, a_process_that_ends_is_told_of),
];

/// Parameters of a process: its number, the number of processes, ranks per process, number of GPUs, the test, and the
/// folder through which they find each other.
const VARIABLE: &str = "RANKINE_TEST_PROCESS";

/// Runs as a process of a test if this process was started as one.
pub(crate) fn run_as_process() -> Option<ExitCode> {
    let told = std::env::var(VARIABLE).ok()?;
    let told: Vec<_> = told.splitn(6, ' ').collect();
    let number = |index: usize| told[index].parse().expect("the test says numbers");
    let outcome = process([0, 1, 2, 3].map(number), told[4], Path::new(told[5]));
    if let Err(failed) = &outcome {
        eprintln!("{}", failed.message().unwrap_or_default());
    }
    Some(if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A process, with a thread for each of its ranks.
fn process([process, processes, each, gpus]: [usize; 4], what: &str, dir: &Path) -> Outcome {
    let own = process * each..(process + 1) * each;
    let devices = own.clone().map(|rank| Device::open(rank % gpus)).collect::<Result<Vec<_>, _>>()?;
    let mut gather = |own: &[Vec<u8>]| {
        let all = by_files(dir, process, processes, &own.join(&b' '))?;
        Ok(all.iter().flat_map(|of_one| of_one.split(|&byte| byte == b' ')).map(<[u8]>::to_vec).collect())
    };
    let peers =
        Peers::of_processes(&devices, NODE, LocalRank(own.start), processes * each, DEADLINE, &mut gather)?;
    thread::scope(|scope| {
        let running: Vec<_> =
            peers.into_iter().map(|peers| scope.spawn(move || rank(&peers, what))).collect();
        running.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank panicked")?)
    })
}

fn rank(peers: &Peers, what: &str) -> Outcome {
    let (rank, ranks, device) = (peers.local_rank().0, peers.ranks(), peers.device());
    device.bind()?;
    let lane = Lane::new(device)?;
    if what == "end" {
        let _all = peers.share::<u32>(10, 0)?;
        if rank == 1 {
            return Ok(());
        }
        return match peers.share::<u32>(10, 0).map(drop) {
            Err(Error::PeersLeft { .. }) => Ok(()),
            other => Err(format!("{other:?}").into()),
        };
    }
    // Each rank's memory has its own length.
    let shared = peers.share::<u32>(1000 * (rank + 1), 7)?;
    shared.write(&lane, &vec![rank as u32 + 1; 1000 * (rank + 1)])?;
    let all = peers.gather([rank as u64, 5])?;
    if all != (0..ranks as u64).map(|rank| [rank, 5]).collect::<Vec<_>>() {
        return Err(format!("{all:?} were gathered").into());
    }
    for other in 0..ranks {
        let copy = Buffer::<u32>::filled(device, shared.len_of(LocalRank(other)), 0)?;
        // SAFETY: both buffers have as many elements, and the lane is waited for before either is dropped.
        unsafe { lane.copy(shared.of(LocalRank(other)), copy.pointer(), copy.len()) }?;
        if copy.read(&lane)? != vec![other as u32 + 1; 1000 * (other + 1)] {
            return Err(format!("rank {rank} does not see the memory of rank {other}").into());
        }
    }
    for (way, len) in [(AllReduceWay::AtOnce, 5000), (AllReduceWay::BySlices, 700_001)] {
        let sums = AllReduce::by(peers, way, 16, len, 1)?;
        for turn in 0..5 {
            let mut values = vec![(rank + turn) as f32; len];
            values.resize(sums.values().len(), 0.0);
            sums.values().write(&lane, &values)?;
            // SAFETY: all ranks' sums live until all have read theirs.
            unsafe { sums.enqueue(&lane) }?;
            sums.check(&lane)?;
            let expected: usize = (0..ranks).map(|rank| rank + turn).sum();
            if sums.values().read(&lane)?[..len] != vec![expected as f32; len] {
                return Err(format!("rank {rank} has another sum {way:?}").into());
            }
        }
        peers.gather(0u8)?;
    }
    Ok(())
}

/// Gathers values through files in a folder: a launcher for tests.
fn by_files(dir: &Path, rank: usize, ranks: usize, own: &[u8]) -> Result<Vec<Vec<u8>>, GatherError> {
    let hidden = dir.join(format!(".{rank}"));
    let written = fs::write(&hidden, own).and_then(|()| fs::rename(&hidden, dir.join(rank.to_string())));
    written?;
    let begun = Instant::now();
    let wait = |rank: usize| {
        while begun.elapsed() < DEADLINE {
            if let Ok(value) = fs::read(dir.join(rank.to_string())) {
                return Ok(value);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(format!("rank {rank} wrote nothing").into())
    };
    (0..ranks).map(wait).collect()
}

fn on_processes(machine: &Machine, (processes, each): (usize, usize), what: &str) -> Outcome {
    let dir = std::env::temp_dir().join(format!("rankine-peers-{}-{what}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let start = |process| {
        let told = format!("{process} {processes} {each} {} {what} {}", machine.gpus(), dir.display());
        let mut command = Command::new(std::env::current_exe()?);
        command.env(VARIABLE, told).stderr(Stdio::piped()).spawn()
    };
    let running: Vec<_> = (0..processes).map(start).collect::<Result<_, _>>()?;
    let outputs: Vec<_> = running.into_iter().map(|child| child.wait_with_output()).collect();
    fs::remove_dir_all(&dir)?;
    for (process, output) in outputs.into_iter().enumerate() {
        let output = output?;
        if !output.status.success() {
            return Err(format!("process {process}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
    }
    Ok::<_, Failed>(())
}

fn processes_share_memory_and_sum(machine: &Machine, words: &mut Random) -> Outcome {
    // On one GPU, processes run in time slices.
    let ranks = if machine.gpus() > 1 { machine.gpus() } else { words.one_of(&[2, 3]) };
    on_processes(machine, (ranks, 1), "sum")?;
    on_processes(machine, (2, machine.gpus().div_ceil(2).max(2)), "sum")
}

fn a_process_that_ends_is_told_of(machine: &Machine, _: &mut Random) -> Outcome {
    on_processes(machine, (3, 1), "end")
}
