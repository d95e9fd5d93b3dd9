//! Compares tables on GPUs with the CPU's: routes exactly, sums within rounding errors, and runs bitwise with each
//! other.
//!
//! Inputs are new in each run. A failure prints the seed, and `RANKINE_TEST_SEED` repeats it. `RANKINE_TEST_CASES`
//! limits the random cases of a test, for tools that check each memory access and are slow.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use libtest_mimic::{Arguments, Failed, Trial};
use rankine_cuda::{Device, Lane};
use rankine_embedding::random::philox4x32;

mod exchange;
mod keys;
mod listed;
mod local;
mod membership;
mod nodes;
mod traffic;
mod update;

type Outcome = Result<(), Failed>;
/// A test on one GPU: its name, the number of random cases, and the function that runs one.
type Body = (&'static str, u64, fn(&Bench, &mut Random) -> Outcome);

/// Half the distance from 1 to the next bf16, and to the next f32.
const BF16_ROUNDING: f64 = 1.0 / 256.0;
const F32_ROUNDING: f64 = 1.0 / (1 << 24) as f64;
const CASES: u64 = 12;

fn main() -> ExitCode {
    // Ranks on one GPU wait for each other, so no two of their lanes may share a hardware queue, of which there are 8
    // by default.
    // SAFETY: nothing else runs yet.
    unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    let devices = match Device::count() {
        Ok(count) => count,
        Err(error) => {
            eprintln!("skipped: {error}");
            0
        }
    };
    let set = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let most = set("RANKINE_TEST_CASES").unwrap_or(u64::MAX);
    let seed = set("RANKINE_TEST_SEED").unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64)
    });
    let on_one = |(name, cases, body): Body| {
        Trial::test(name, move || {
            let bench = Bench::new()?;
            (0..cases.min(most)).try_for_each(|case| {
                body(&bench, &mut Random { seed: seed ^ case << 32, next: 0 }).map_err(|failed| {
                    let what = failed.message().unwrap_or_default();
                    format!("seed {seed}, case {case}: {what}").into()
                })
            })
        })
    };
    let bodies =
        [local::BODIES, keys::BODIES, membership::BODIES, update::BODIES, listed::BODIES, nodes::BODIES]
            .concat();
    let bodies = bodies.into_iter();
    let on_one = bodies.map(|body| (on_one(body), devices == 0));
    let trials = exchange::trials((seed, most), devices).into_iter().chain(on_one);
    let mut arguments = Arguments::from_args();
    // Ranks that wait for each other hold the GPU.
    arguments.test_threads = Some(1);
    let trials = trials.map(|(trial, skipped)| trial.with_ignored_flag(skipped)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Random words.
pub(crate) struct Random {
    seed: u64,
    next: u32,
}

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next += 1;
        let words = philox4x32([self.next, 0, 0, 0], [self.seed as u32, (self.seed >> 32) as u32]);
        (u64::from(words[0]) << 32 | u64::from(words[1])) % end
    }

    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    pub(crate) fn unit(&mut self) -> f64 {
        self.below(1 << 40) as f64 / (1u64 << 40) as f64
    }
}

/// A GPU and a lane.
struct Bench {
    device: Arc<Device>,
    lane: Lane,
}

impl Bench {
    fn new() -> Result<Self, Failed> {
        let device = Device::open(0)?;
        Ok(Self { lane: Lane::new(&device)?, device })
    }
}
