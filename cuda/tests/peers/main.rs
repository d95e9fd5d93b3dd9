//! Ranks that share memory, wait for each other and all-reduce, each a thread: several on one GPU, and with more GPUs
//! one on each.
//!
//! Inputs are new in each run. A failure prints the seed, and `RANKINE_TEST_SEED` repeats it.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libtest_mimic::{Arguments, Failed, Trial};
use rankine_cuda::kernels::Pack;
use rankine_cuda::{Buffer, Device, Error, Lane, Peers};
use rankine_topology::{Node, Rank};

mod cluster;
mod memory;
mod nccl;
mod processes;
mod sums;

type Outcome = Result<(), Failed>;
/// A test: its name, the number of random cases, and the function that runs one.
type Body = (&'static str, u64, fn(&Machine, &mut Random) -> Outcome);

const DEADLINE: Duration = Duration::from_secs(10);
/// The node of all ranks, which numbers them in errors.
const NODE: Node = Node(3);

fn main() -> ExitCode {
    if let Some(code) = processes::run_as_process() {
        return code;
    }
    // Ranks on one GPU wait for each other, so no two of their lanes may share a hardware queue, of which there are 8
    // by default.
    // SAFETY: nothing else runs yet.
    unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    let there = match Device::count() {
        Ok(count) => count,
        Err(error) => {
            eprintln!("skipped: {error}");
            0
        }
    };
    let seed = std::env::var("RANKINE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
    });
    let counts: &[usize] = if there > 1 { &[1, there] } else { &[1] };
    let bodies = [cluster::BODIES, memory::BODIES, nccl::BODIES, processes::BODIES, sums::BODIES].concat();
    let trials = bodies.into_iter().flat_map(|(name, cases, body)| {
        counts.iter().map(move |&gpus| {
            let trial = Trial::test(format!("{name}_on_{gpus}"), move || {
                (0..cases).try_for_each(|case| {
                    let mut words = Random(seed ^ case << 32);
                    body(&Machine::new(gpus)?, &mut words).map_err(|failed| {
                        let what = failed.message().unwrap_or_default();
                        format!("seed {seed}, case {case}: {what}").into()
                    })
                })
            });
            trial.with_ignored_flag(there == 0)
        })
    });
    let mut arguments = Arguments::from_args();
    // Ranks that wait for each other hold the GPU.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// Random numbers, by splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_of<V: Copy>(&mut self, choices: &[V]) -> V {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// From -1 to 1, with magnitudes of all orders.
    fn number(&mut self) -> f32 {
        let number = self.below(1 << 25) as f32 / (1 << 24) as f32 - 1.0;
        number * 2.0f32.powi(-(self.below(20) as i32))
    }
}

/// The GPUs that ranks are assigned to in turn.
struct Machine {
    devices: Vec<Arc<Device>>,
}

impl Machine {
    fn new(gpus: usize) -> Result<Self, Failed> {
        Ok(Self { devices: (0..gpus).map(Device::open).collect::<Result<_, _>>()? })
    }

    fn gpus(&self) -> usize {
        self.devices.len()
    }

    /// One rank per GPU, or several on the only one.
    fn ranks(&self, words: &mut Random) -> usize {
        if self.gpus() > 1 { self.gpus() } else { words.one_of(&[1, 2, 3, 4, 5, 8]) }
    }

    /// Returns the result of each rank's thread, or the error of one that did not merely miss another.
    fn on_ranks<V: Send>(
        &self,
        ranks: usize,
        deadline: Duration,
        run: impl Fn(&Peers, &Lane) -> Result<V, Failed> + Sync,
    ) -> Result<Vec<V>, Failed> {
        let devices: Vec<_> = (0..ranks).map(|rank| Arc::clone(&self.devices[rank % self.gpus()])).collect();
        let peers = Peers::in_process(&devices, NODE, deadline)?;
        let outcomes: Vec<Result<V, Failed>> = thread::scope(|scope| {
            let one = |peers: Peers| {
                peers.device().bind()?;
                let lane = Lane::new(peers.device())?;
                run_a_kernel(&lane)?;
                peers.gather(0u8)?;
                run(&peers, &lane)
            };
            let running: Vec<_> = peers.into_iter().map(|peers| scope.spawn(move || one(peers))).collect();
            running.into_iter().map(|rank| rank.join().expect("its panic has been printed")).collect()
        });
        let (values, mut failed): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        failed.sort_by_key(|outcome| {
            outcome
                .as_ref()
                .err()
                .and_then(Failed::message)
                .is_some_and(|words| words.contains("cannot continue without"))
        });
        match failed.into_iter().next() {
            Some(failed) => Err(failed.err().unwrap_or_else(Failed::without_message)),
            None => Ok(values.into_iter().flatten().collect()),
        }
    }
}

/// Runs a first kernel on the lane. Ranks that share a GPU do so before any of them waits for another: the driver
/// sets up a lane at its first kernel, and the GPU may not schedule a new lane while kernels wait on it.
fn run_a_kernel(lane: &Lane) -> Result<(), Error> {
    let row = Buffer::<f32>::filled(lane.device(), Pack::VECTOR, 0)?;
    let position = Buffer::<u32>::filled(lane.device(), 1, 0)?;
    let copy = Buffer::<f32>::filled(lane.device(), Pack::VECTOR, 0)?;
    let pack = Pack {
        rows: row.pointer(),
        positions: position.pointer(),
        packed: copy.pointer(),
        count: 1,
        row_vectors: 1,
    };
    // SAFETY: the buffers have a row each, and live until the lane has been waited for.
    unsafe { lane.launch(&pack, (1, 1)) }?;
    lane.synchronize()
}

/// The rank on [`NODE`] with this local rank, if each node has `ranks` ranks.
fn rank_of(local_rank: usize, ranks: usize) -> Rank {
    Rank(NODE.0 * ranks + local_rank)
}

/// Checks that the error of one of two ranks names the other one as missing from a barrier.
fn names_missing(outcome: Result<(), Error>, waited: usize, absent: usize) -> Outcome {
    match outcome {
        Err(Error::PeerBarrier { waiting, missing, .. })
            if [waiting, missing] == [waited, absent].map(|local_rank| rank_of(local_rank, 2)) =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}").into()),
    }
}
