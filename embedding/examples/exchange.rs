//! Measures an iteration of embedding tables on the GPUs of a node, phase by phase, and what it could be instead.
//!
//! ```text
//! cargo run --release -p rankine-embedding --features cuda --example exchange -- --gpus 2 --batch 65536
//! ```
//!
//! The tables are those of a shape (the `dlrm` workload's by default), the ids follow its power law. Every phase is
//! captured in a graph that goes through several batches, and replayed; times are medians of replays, and the slowest
//! rank counts. Table to stderr, JSON to stdout.

use std::error::Error;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use clap::Parser;
use half::bf16;
use rankine_cuda::{Device, Graph, Lane, Moment};
use rankine_embedding::Pooling;
use rankine_embedding::cuda::{self, Feature, Hotness, Layout, Node, Rank, Routing, Schedule, Snapshot};
use rankine_embedding::random::philox4x32;
use rankine_reader::generate::{PowerLaw, Shape};
use rayon::prelude::*;
use serde_json::json;
use workload::{Workload, id};

mod workload;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures an iteration of embedding tables on the GPUs of a node.
#[derive(Debug, Parser)]
struct Options {
    /// GPUs, one rank each
    #[arg(long, default_value_t = 1)]
    gpus: usize,
    /// Samples of a batch, over all GPUs
    #[arg(long, default_value_t = 65536)]
    batch: usize,
    #[command(flatten)]
    workload: Workload,
    /// Batches that phases go through, so that none finds its own data in the cache
    #[arg(long, default_value_t = 8)]
    batches: usize,
    /// Times that each phase is measured
    #[arg(long, default_value_t = 21)]
    repeats: usize,
    /// Seconds that a GPU waits for another
    #[arg(long, default_value_t = 10)]
    deadline: u64,
}

/// A phase: its name, what it enqueues for a batch, and the bytes that it moves in a GPU's memory and into or out of it
/// over NVLink, counted from the routes.
struct Phase {
    name: &'static str,
    enqueue: fn(&Rank, &Lane, usize) -> cuda::Result<()>,
    bytes: fn(&Counts) -> Bytes,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bytes {
    memory: f64,
    link: f64,
}

/// What there is to move for a rank, on the average of its batches.
#[derive(Debug, Clone, Copy)]
struct Counts {
    /// Look-ups.
    ids: f64,
    /// Distinct rows that the rank looks up, and those of them that others own.
    slots: f64,
    slots_far: f64,
    /// Rows that others look up of this owner.
    entries_far: f64,
    /// Distinct rows that the owner updates.
    union: f64,
    /// Look-ups of other owners' rows.
    ids_far: f64,
    dim: f64,
    /// Bits of all keys, in bytes.
    bits: f64,
    ranks: f64,
}

const PHASES: [Phase; 9] = [
    Phase { name: "barrier", enqueue: |rank, lane, _| rank.barrier(lane), bytes: |_| Bytes::default() },
    Phase {
        name: "route",
        enqueue: |rank, lane, batch| rank.route(lane, Routing { batch, route: batch }),
        // Keys, slots and two passes over pairs; bits cleared and read.
        bytes: |counts| Bytes { memory: 52.0 * counts.ids + 2.0 * counts.bits, link: 0.0 },
    },
    Phase {
        name: "merge",
        enqueue: |rank, lane, batch| rank.merge(lane, batch),
        bytes: |counts| Bytes {
            memory: 12.0 * counts.slots + 2.0 * counts.bits / counts.ranks,
            link: 4.0 * counts.entries_far,
        },
    },
    Phase {
        name: "send",
        enqueue: |rank, lane, batch| rank.send(lane, batch),
        bytes: |counts| Bytes {
            memory: 6.0 * counts.dim * counts.slots,
            link: 2.0 * counts.dim * counts.entries_far,
        },
    },
    Phase {
        name: "gather",
        enqueue: |rank, lane, batch| rank.gather(lane, batch),
        bytes: |counts| Bytes { memory: 2.0 * counts.dim * (counts.ids + counts.slots), link: 0.0 },
    },
    Phase {
        name: "reduce",
        enqueue: |rank, lane, batch| rank.reduce(lane, batch),
        bytes: |counts| Bytes {
            memory: 2.0 * counts.dim * (counts.ids + counts.slots),
            link: 2.0 * counts.dim * counts.slots_far,
        },
    },
    Phase {
        name: "update",
        enqueue: |rank, lane, batch| rank.update(lane, batch),
        bytes: |counts| Bytes { memory: counts.dim * (8.0 * counts.union + 2.0 * counts.slots), link: 0.0 },
    },
    Phase {
        name: "fetch (for send)",
        enqueue: |rank, lane, batch| rank.fetch(lane, batch),
        bytes: |counts| Bytes {
            memory: 6.0 * counts.dim * counts.slots,
            link: 4.0 * counts.dim * counts.slots_far,
        },
    },
    Phase {
        name: "vectors (for send, gather)",
        enqueue: |rank, lane, batch| rank.send_vectors(lane, batch),
        bytes: |counts| Bytes {
            memory: 2.0 * counts.dim * counts.ids,
            link: 2.0 * counts.dim * counts.ids_far,
        },
    },
];

/// Whole iterations: in order, and with the next batch's route made aside.
const WHOLES: [(&str, bool); 2] = [("iteration, in order", false), ("iteration, overlapped", true)];
/// Graphs between two moments.
const REPLAYS: usize = 4;

fn main() -> Result<()> {
    let options = Options::parse();
    if options.gpus == 0 || !options.batch.is_multiple_of(options.gpus) {
        return Err("--batch must be a multiple of --gpus, which is 1 at least".into());
    }
    if options.batches == 0 || !options.batches.is_multiple_of(2) {
        return Err("--batches must be even: iterations use two routes in turn".into());
    }
    let Workload { dim, shape, .. } = &options.workload;
    let tables = options.workload.tables(&Shape::load(shape)?);
    // The first vector of a sample is the bottom MLP's.
    let stride = (1 + tables.len()) * dim;
    let place = |table| (1 + table) * dim;
    let feature = |table| Feature { column: table, table, place: place(table), pooling: Pooling::Sum };
    let features: Vec<_> = (0..tables.len()).map(feature).collect();
    let columns = vec![Hotness::Fixed(1); features.len()];
    let samples = options.batch / options.gpus;
    let layout = Layout::new(options.gpus, samples, stride, &tables, &columns, &features)?;
    let devices: Vec<_> = (0..options.gpus).map(Device::open).collect::<Result<_, _>>()?;
    let deadline = Duration::from_secs(options.deadline);
    let ranks = Node::ranks(layout, &devices, options.batches, options.batches, deadline)?;
    let shared_bytes = ranks[0].shared_bytes();

    let laws = options.workload.laws(&tables);
    let together = Together { barrier: Barrier::new(options.gpus), failed: Mutex::new(None) };
    let of_ranks: Vec<_> = thread::scope(|scope| {
        let measure = |rank: Rank| measure_rank(rank, &options, &laws, &together);
        let running: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || measure(rank))).collect();
        running.into_iter().map(|rank| rank.join().expect("a rank's panic has been printed")).collect()
    });
    let of_ranks: Vec<Measured> = of_ranks.into_iter().collect::<Result<_>>()?;

    let counts = of_ranks[0].counts;
    eprintln!(
        "{} of {}, batch {}, {} samples a GPU, {} look-ups a GPU, {:.0} distinct, {:.0} of all GPUs' at an owner",
        options.gpus,
        devices[0].name()?,
        options.batch,
        samples,
        counts.ids,
        counts.slots,
        counts.union
    );
    eprintln!("{:28} {:>9} {:>9} {:>9} {:>9} {:>9}", "", "us", "MB", "GB/s", "link MB", "GB/s");
    let slowest = |of: &dyn Fn(&Measured) -> f64| of_ranks.iter().map(of).fold(0.0, f64::max);
    let mut rows = Vec::new();
    for (number, phase) in PHASES.iter().enumerate() {
        let us = slowest(&|rank| rank.phases_us[number]);
        let Bytes { memory, link } = (phase.bytes)(&counts);
        let (memory_rate, link_rate) = (memory / us / 1e3, link / us / 1e3);
        let (memory_mb, link_mb) = (memory / 1e6, link / 1e6);
        eprintln!(
            "{:28} {us:9.1} {memory_mb:9.1} {memory_rate:9.0} {link_mb:9.1} {link_rate:9.0}",
            phase.name
        );
        rows.push(json!({
            "phase": phase.name, "us": us, "memory_bytes": memory, "link_bytes": link,
        }));
    }
    for (number, (name, _)) in WHOLES.iter().enumerate() {
        let us = slowest(&|rank| rank.wholes_us[number]);
        eprintln!("{name:28} {us:9.1}");
        rows.push(json!({ "phase": name, "us": us }));
    }
    let Workload { shape, rows_cap, dim, .. } = &options.workload;
    let report = json!({
        "gpus": options.gpus, "batch": options.batch, "shape": shape, "rows_cap": rows_cap, "dim": dim,
        "look_ups": counts.ids, "distinct": counts.slots, "distinct_far": counts.slots_far,
        "union": counts.union, "shared_bytes": shared_bytes, "phases": rows,
    });
    #[expect(clippy::print_stdout, reason = "it is what the command is for")]
    {
        println!("{report}");
    }
    Ok(())
}

/// What a rank measured: medians.
struct Measured {
    counts: Counts,
    phases_us: Vec<f64>,
    wholes_us: Vec<f64>,
}

/// Lets ranks begin a measurement together.
struct Together {
    barrier: Barrier,
    failed: Mutex<Option<String>>,
}

impl Together {
    /// Waits for all ranks; fails for all of them where `result` failed for any, so that none waits for it.
    fn agree<T>(&self, result: Result<T>) -> Result<T> {
        let result = result.map_err(|error| {
            let mut failed = self.failed.lock().expect("nobody panics with this lock");
            failed.get_or_insert_with(|| error.to_string());
        });
        self.barrier.wait();
        let failed = self.failed.lock().expect("nobody panics with this lock").clone();
        match (failed, result) {
            (None, Ok(value)) => Ok(value),
            (failed, _) => Err(failed.unwrap_or_default().into()),
        }
    }
}

fn measure_rank(rank: Rank, options: &Options, laws: &[PowerLaw], together: &Together) -> Result<Measured> {
    let prepared = prepare(&rank, options, laws);
    let schedules = together.agree(prepared)?;
    let lane = schedules[0].lane();
    // All routes, once in order: phases use them one by one.
    for batch in 0..options.batches {
        let began = schedules[0].begin(&rank, Routing { batch, route: batch });
        together.agree(began.map_err(Into::into))?;
    }
    let counts = together.agree(count(&rank, lane, options.batches))?;
    let mut phases_us = Vec::new();
    for phase in &PHASES {
        let graph = Graph::capture(lane, || {
            (0..options.batches).try_for_each(|batch| (phase.enqueue)(&rank, lane, batch))
        });
        let graph = together.agree(graph.map_err(Into::into))?;
        phases_us.push(time(&rank, lane, graph, options, together)?);
    }
    let mut wholes_us = Vec::new();
    for schedule in &schedules {
        let first = Routing { batch: 0, route: 0 };
        together.agree(schedule.begin(&rank, first).map_err(Into::into))?;
        let graph = Graph::capture(schedule.lane(), || {
            // Two routes in turn, as training has it.
            (0..options.batches).try_for_each(|batch| {
                let next = Routing { batch: (batch + 1) % options.batches, route: (batch + 1) % 2 };
                schedule.iteration(&rank, batch % 2, next, |_| Ok(()))
            })
        });
        let graph = together.agree(graph.map_err(Into::into))?;
        wholes_us.push(time(&rank, schedule.lane(), graph, options, together)?);
    }
    Ok(Measured { counts, phases_us, wholes_us })
}

/// Fills what the rank reads.
fn prepare(rank: &Rank, options: &Options, laws: &[PowerLaw]) -> Result<Vec<Schedule>> {
    rank.device().bind()?;
    let schedules: Vec<_> =
        WHOLES.iter().map(|(_, overlap)| Schedule::new(rank, *overlap)).collect::<Result<_, _>>()?;
    let lane = schedules[0].lane();
    let layout = rank.layout();
    rank.initialize(lane, 1)?;
    rank.set_rate(lane, 1e-3)?;
    let number = rank.number() as u32;
    for batch in 0..options.batches {
        let samples = layout.samples() as u32;
        let ids: Vec<_> = laws
            .par_iter()
            .enumerate()
            .flat_map(|(feature, law)| {
                let place = move |sample| [sample, batch as u32, number];
                (0..samples).into_par_iter().map(move |sample| id(law, feature, place(sample)))
            })
            .collect();
        rank.set_ids(lane, batch, &ids)?;
    }
    let noise = |at: usize| {
        let words = philox4x32([at as u32, (at >> 32) as u32, number, 1], [0, 2]);
        words.map(|word| bf16::from_f32((f64::from(word) / f64::from(u32::MAX) - 0.5) as f32))
    };
    let gradients: Vec<_> = (0..layout.elements() / 4).into_par_iter().flat_map_iter(noise).collect();
    rank.set_gradients(lane, &gradients)?;
    Ok(schedules)
}

fn count(rank: &Rank, lane: &Lane, batches: usize) -> Result<Counts> {
    rank.check(lane)?;
    let layout = rank.layout();
    let own = rank.number();
    let mut counts = Counts {
        ids: layout.ids() as f64,
        slots: 0.0,
        slots_far: 0.0,
        entries_far: 0.0,
        union: 0.0,
        ids_far: 0.0,
        dim: layout.tables()[0].dim as f64,
        bits: layout.key_bytes() as f64,
        ranks: layout.ranks() as f64,
    };
    for batch in 0..batches {
        let Snapshot { list, slots, union, sources, .. } = rank.snapshot(lane, batch)?;
        let far = |slot: &&u32| list[**slot as usize].0 != own;
        let of_others = sources.iter().map(|of_row| {
            let others = of_row.iter().enumerate().filter(|(rank, slot)| *rank != own && slot.is_some());
            others.count()
        });
        let each = batches as f64;
        counts.slots += list.len() as f64 / each;
        counts.slots_far += list.iter().filter(|(owner, _)| *owner != own).count() as f64 / each;
        counts.entries_far += of_others.sum::<usize>() as f64 / each;
        counts.union += union.len() as f64 / each;
        counts.ids_far += slots.iter().filter(far).count() as f64 / each;
    }
    Ok(counts)
}

/// Microseconds a batch: the median of repeats, after two that do not count.
fn time(rank: &Rank, lane: &Lane, mut graph: Graph, options: &Options, together: &Together) -> Result<f64> {
    let (begin, end) = (Moment::new(rank.device())?, Moment::new(rank.device())?);
    let mut times = Vec::new();
    for repeat in 0..options.repeats + 2 {
        let mut once = || -> Result<f64> {
            // The GPUs begin together.
            rank.barrier(lane)?;
            lane.record(&begin)?;
            for _ in 0..REPLAYS {
                // SAFETY: the rank and the schedule, whose buffers the graph has, outlive it.
                unsafe { graph.replay(lane) }?;
            }
            lane.record(&end)?;
            rank.check(lane)?;
            Ok(end.ms_since(&begin)? * 1e3 / (REPLAYS * options.batches) as f64)
        };
        let us = together.agree(once())?;
        if repeat >= 2 {
            times.push(us);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
