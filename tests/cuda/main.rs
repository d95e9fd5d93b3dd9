//! Tests of the GPU against the CPU: kernels and products within rounding, whole trainings, and the same bits each
//! time.
//!
//! Inputs are new in each run; a failure prints the seed, and `RANKINE_TEST_SEED` repeats it. `RANKINE_TEST_CASES`
//! limits the random cases per test, for slow tools that check every memory access.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytemuck::Pod;
use libtest_mimic::{Arguments, Failed, Trial};
use rankine_cuda::kernels::{Element, ElementKind};
use rankine_cuda::{Buffer, Device, Lane};
use rankine_embedding::random::philox4x32;

mod attention;
mod auc;
mod bench;
mod calibration;
mod dense;
mod dynamic;
mod fp8;
mod fp8_cross;
mod guard;
mod input;
mod memory;
mod network;
mod nodes;
mod optimizers;
mod products;
mod pushed;
mod ranks;
mod resume;
mod rows;
mod scoring;
mod tier;
mod training;

type Outcome = Result<(), Failed>;
/// A test: its name, its number of random cases, and a function that runs one.
type Body = (&'static str, u64, fn(&Bench, &mut Words) -> Outcome);

/// Half the distance from 1 to the next number.
const F32_ROUNDING: f64 = 1.0 / (1 << 24) as f64;
const BF16_ROUNDING: f64 = 1.0 / 256.0;
const F16_ROUNDING: f64 = 1.0 / 2048.0;
const CASES: u64 = 6;

fn main() -> ExitCode {
    // Ranks on one GPU wait for each other, so no two of their lanes may share a hardware queue, of which there are 8
    // by default.
    // SAFETY: nothing else runs yet.
    unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    let gpus = match Device::count() {
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
    let attention = attention::bodies();
    let bodies = [
        &attention,
        auc::BODIES,
        bench::BODIES,
        calibration::BODIES,
        dense::BODIES,
        dynamic::BODIES,
        fp8::BODIES,
        fp8_cross::BODIES,
        guard::BODIES,
        input::BODIES,
        memory::BODIES,
        network::BODIES,
        optimizers::BODIES,
        products::BODIES,
        pushed::BODIES,
        ranks::BODIES,
        resume::BODIES,
        rows::BODIES,
        scoring::BODIES,
        tier::BODIES,
        training::BODIES,
    ]
    .concat();
    let on_one = bodies.into_iter().map(|body| (body, 1));
    let of_nodes = nodes::BODIES.iter().chain(resume::BODIES_OF_NODES).copied();
    let trials = on_one.chain(of_nodes).map(|((name, cases, body), wanted)| {
        let trial = Trial::test(name, move || {
            let bench = Bench::new()?;
            (0..cases.min(most)).try_for_each(|case| {
                body(&bench, &mut Words { seed: seed ^ case << 32, next: 0 }).map_err(|failed| {
                    let what = failed.message().unwrap_or_default();
                    format!("seed {seed}, case {case}: {what}").into()
                })
            })
        });
        trial.with_ignored_flag(gpus < wanted)
    });
    let mut arguments = Arguments::from_args();
    // Closing a library waits for the whole GPU, which breaks a capture on another thread.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// Random numbers.
struct Words {
    seed: u64,
    next: u32,
}

impl Words {
    fn below(&mut self, end: u64) -> u64 {
        self.next += 1;
        let words = philox4x32([self.next, 0, 0, 0], [self.seed as u32, (self.seed >> 32) as u32]);
        (u64::from(words[0]) << 32 | u64::from(words[1])) % end
    }

    fn one_of<V: Copy>(&mut self, choices: &[V]) -> V {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A number from -1 to 1.
    fn number(&mut self) -> f32 {
        (self.below(1 << 24) as f32) / (1 << 23) as f32 - 1.0
    }

    fn numbers<T: Element>(&mut self, count: usize) -> Vec<T> {
        (0..count).map(|_| T::of(self.number())).collect()
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

    fn buffer<T: Pod>(&self, elements: &[T]) -> Result<Buffer<T>, Failed> {
        Ok(Buffer::of(&self.device, elements)?)
    }

    /// A buffer of NaN, which no test may find in a result.
    fn poison<T: Element>(&self, count: usize) -> Result<Buffer<T>, Failed> {
        Ok(Buffer::filled(&self.device, count, 0xff)?)
    }
}

fn close(what: &str, index: usize, found: f64, expected: f64, tolerance: f64) -> Outcome {
    if (found - expected).abs() <= tolerance {
        return Ok(());
    }
    Err(format!("{what} {index}: {found} instead of {expected}, tolerance {tolerance:e}").into())
}

fn rounding<T: Element>() -> f64 {
    match T::KIND {
        ElementKind::F32 => F32_ROUNDING,
        ElementKind::Bf16 => BF16_ROUNDING,
        ElementKind::F16 => F16_ROUNDING,
    }
}
