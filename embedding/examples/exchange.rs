//! Measures an iteration of embedding tables on the GPUs of a node, phase by phase and as a whole.
//!
//! ```text
//! cargo run --release -p rankine-embedding --features cuda --example exchange -- --gpus 4 --batch 65536
//! cargo run --release -p rankine-embedding --features cuda --example exchange -- --gpus 4 --batch 65536 \
//!     --shape dlrm-dcnv2 --optimizer adagrad
//! ```
//!
//! The tables are those of a shape (by default the `dlrm` workload's), ids follow its power law, and rows travel as
//! bf16. Every phase is captured in a graph that goes through several batches, and replayed. Times are medians over
//! replays, of the slowest rank. The table goes to stderr, JSON to stdout.

use std::error::Error;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use half::bf16;
use rankine_cuda::kernels::{Rate, Step, Vectors};
use rankine_cuda::{Buffer, Cluster, Device, Graph, Lane, Moment, PeerBarrier, Pointer};
use rankine_embedding::cuda::{
    self, Feature, Hotness, Ids, InitialWeights, Layout, NodeTables, RoutedBatch, UpdateInputs,
};
use rankine_embedding::random::philox4x32;
use rankine_embedding::{Optimizer, Pooling, TableSpec, UpdateRule};
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
    /// Samples per batch, over all GPUs
    #[arg(long, default_value_t = 65536)]
    batch: usize,
    #[command(flatten)]
    workload: Workload,
    /// The tables' update rule
    #[arg(long, value_enum, default_value = "sgd")]
    optimizer: Rule,
    /// Batches per phase, so that none finds its own data in the cache
    #[arg(long, default_value_t = 4)]
    batches: usize,
    /// Measurements per phase
    #[arg(long, default_value_t = 21)]
    repeats: usize,
    /// Seconds that a GPU waits for another one
    #[arg(long, default_value_t = 10)]
    deadline: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Rule {
    Sgd,
    Adagrad,
}

impl Rule {
    fn optimizer(self) -> Optimizer {
        let rule = match self {
            Self::Sgd => UpdateRule::Sgd,
            Self::Adagrad => UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 },
        };
        Optimizer { rule, ..Optimizer::sgd(1e-3) }
    }
}

/// A phase: its name, what it enqueues for a batch, and the bytes that it moves within a GPU's memory and out over
/// NVLink, counted from the routes.
struct Phase {
    name: &'static str,
    enqueue: fn(&Bench, &Lane, usize) -> cuda::Result<()>,
    bytes: fn(&Counts) -> Bytes,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bytes {
    memory: f64,
    link: f64,
}

/// A rank's work, averaged over its batches.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    look_ups: f64,
    bags: f64,
    /// Distinct rows that the rank looks up, and how many of them other ranks own.
    slots: f64,
    slots_far: f64,
    /// Rows of this owner that all ranks look up, and how many of these other ranks do.
    entries: f64,
    entries_far: f64,
    /// Distinct rows that the owner updates.
    union: f64,
    dim: f64,
    /// Numbers of state per element.
    states: f64,
}

const PHASES: [Phase; 8] = [
    Phase { name: "barrier", enqueue: |bench, lane, _| bench.meet(lane), bytes: |_| Bytes::default() },
    Phase {
        name: "route: own",
        enqueue: |bench, lane, batch| bench.route_own(lane, batch),
        // Ids, three or four passes over pairs, slots.
        bytes: |counts| Bytes { memory: (4.0 + 4.0 * 16.0 + 4.0) * counts.look_ups, link: 0.0 },
    },
    Phase {
        name: "route: merge",
        enqueue: |bench, lane, batch| bench.merge(lane, batch),
        bytes: |counts| Bytes { memory: 20.0 * counts.entries, link: 4.0 * counts.entries_far },
    },
    Phase {
        name: "look-up: send",
        enqueue: |bench, lane, batch| bench.send(lane, batch),
        bytes: |counts| Bytes {
            memory: counts.dim * (4.0 * counts.entries + 2.0 * counts.slots),
            link: 2.0 * counts.dim * counts.entries_far,
        },
    },
    Phase {
        name: "look-up: pool",
        enqueue: |bench, lane, batch| bench.pool(lane, batch),
        bytes: |counts| Bytes { memory: 2.0 * counts.dim * (counts.bags + counts.slots), link: 0.0 },
    },
    Phase {
        name: "reduce",
        enqueue: |bench, lane, batch| bench.reduce(lane, batch),
        bytes: |counts| Bytes {
            memory: 2.0 * counts.dim * (counts.bags + counts.slots),
            link: 2.0 * counts.dim * counts.slots_far,
        },
    },
    Phase {
        name: "update",
        enqueue: |bench, lane, batch| bench.update(lane, batch),
        bytes: |counts| Bytes {
            memory: counts.dim * (8.0 * (1.0 + counts.states) * counts.union + 2.0 * counts.entries),
            link: 0.0,
        },
    },
    Phase {
        name: "all but the route",
        enqueue: |bench, lane, batch| bench.iterate(lane, batch),
        bytes: |_| Bytes::default(),
    },
];

/// Graphs between two moments.
const REPLAYS: usize = 4;

fn main() -> Result<()> {
    let options = Options::parse();
    if options.gpus == 0 || !options.batch.is_multiple_of(options.gpus) {
        return Err("--batch must be a multiple of --gpus, which must be at least 1".into());
    }
    if options.batches < 2 {
        return Err("--batches must be at least 2: a route is built while another is in use".into());
    }
    let Workload { dim, shape, .. } = &options.workload;
    let shape = Shape::load(shape)?;
    let tables = options.workload.tables(&shape);
    let feature = |table| Feature {
        column: table,
        table,
        // A sample's first vector is the bottom MLP's.
        vector_offset: (1 + table) * dim,
        pooling: Pooling::Sum,
    };
    let features: Vec<_> = (0..tables.len()).map(feature).collect();
    let hotness = |column| shape.hotness.get(column).map_or(1, |&hotness| hotness as usize);
    let columns: Vec<_> = (0..tables.len()).map(|column| Hotness::Fixed(hotness(column))).collect();
    let samples = options.batch / options.gpus;
    let stride = (1 + tables.len()) * dim;
    let layout = Layout::new(options.gpus, samples, stride, &tables, &columns, &features)?;
    let layout = layout.with_optimizers(&vec![options.optimizer.optimizer(); tables.len()]);
    let devices: Vec<_> = (0..options.gpus).map(Device::open).collect::<Result<_, _>>()?;
    let ranks = Cluster::in_process(&devices, 1, Duration::from_secs(options.deadline))?;

    let laws = options.workload.laws(&tables);
    let sync = RankSync { barrier: Barrier::new(options.gpus), failed: Mutex::new(None) };
    let of_ranks: Vec<_> = thread::scope(|scope| {
        let measure = |rank: Cluster| measure_rank(&rank, &options, &layout, &laws, &sync);
        let running: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || measure(rank))).collect();
        running.into_iter().map(|rank| rank.join().expect("a rank's panic has been printed")).collect()
    });
    let of_ranks: Vec<Measured> = of_ranks.into_iter().collect::<Result<_>>()?;
    report(&options, &devices, &tables, &of_ranks)
}

fn report(
    options: &Options,
    devices: &[Arc<Device>],
    tables: &[TableSpec],
    ranks: &[Measured],
) -> Result<()> {
    let counts = ranks[0].counts;
    eprintln!(
        "{} of {}, batch {}, {} tables; per GPU {:.0} look-ups, {:.0} distinct rows, {:.0} updated as owner",
        options.gpus,
        devices[0].name()?,
        options.batch,
        tables.len(),
        counts.look_ups,
        counts.slots,
        counts.union
    );
    eprintln!("{:28} {:>9} {:>9} {:>9} {:>9} {:>9}", "", "us", "MB", "GB/s", "link MB", "GB/s");
    let slowest = |of: &dyn Fn(&Measured) -> f64| ranks.iter().map(of).fold(0.0, f64::max);
    let mut rows = Vec::new();
    for (number, phase) in PHASES.iter().enumerate() {
        let us = slowest(&|rank| rank.phases_us[number]);
        let Bytes { memory, link } = (phase.bytes)(&counts);
        let (memory_rate, link_rate) = (memory / us / 1e3, link / us / 1e3);
        let (memory_mb, link_mb) = (memory / 1e6, link / 1e6);
        let name = phase.name;
        eprintln!("{name:28} {us:9.1} {memory_mb:9.1} {memory_rate:9.0} {link_mb:9.1} {link_rate:9.0}");
        rows.push(json!({ "phase": name, "us": us, "memory_bytes": memory, "link_bytes": link }));
    }
    let us = slowest(&|rank| rank.whole_us);
    let name = "iteration, next route in parallel";
    eprintln!("{name:28} {us:9.1}");
    rows.push(json!({ "phase": name, "us": us }));
    let Workload { shape, rows_cap, dim, .. } = &options.workload;
    let report = json!({
        "gpus": options.gpus, "batch": options.batch, "shape": shape, "rows_cap": rows_cap, "dim": dim,
        "look_ups": counts.look_ups, "distinct": counts.slots, "distinct_far": counts.slots_far,
        "union": counts.union, "shared_bytes": ranks[0].shared_bytes, "phases": rows,
    });
    #[expect(clippy::print_stdout, reason = "the command's output")]
    {
        println!("{report}");
    }
    Ok(())
}

/// A rank's measurements: medians.
struct Measured {
    counts: Counts,
    phases_us: Vec<f64>,
    whole_us: f64,
    shared_bytes: usize,
}

/// Starts the ranks' measurements at the same time.
struct RankSync {
    barrier: Barrier,
    failed: Mutex<Option<String>>,
}

impl RankSync {
    /// Waits for all ranks. Fails for all if `result` failed for any, so that none waits for it.
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

/// A rank's tables and batches, and stand-ins for the model's buffers.
struct Bench {
    tables: NodeTables,
    device: Arc<Device>,
    /// Starts the ranks' measurements at the same time.
    begin: PeerBarrier,
    batches: Vec<Buffer<u32>>,
    samples: Buffer<u32>,
    offsets: Buffer<u32>,
    vectors: Buffer<bf16>,
    gradients: Buffer<bf16>,
    rates: Buffer<Rate>,
    step: Buffer<Step>,
    stop: Buffer<u32>,
}

impl Bench {
    /// Fills all inputs of the rank.
    fn new(
        cluster: &Cluster,
        options: &Options,
        layout: &Layout,
        laws: &[PowerLaw],
        lane: &Lane,
    ) -> Result<Self> {
        let (device, rank, drawn) = (cluster.device(), cluster.rank().0 as u32, layout.tables().len());
        let batch = |number: usize| -> Result<Buffer<u32>> {
            let of_column = |(column, law): (usize, &PowerLaw)| -> Vec<u32> {
                let ids = 0..layout.samples() * layout.columns()[column].max();
                ids.map(|at| id(law, column, [at as u32, number as u32, rank])).collect()
            };
            let ids: Vec<u32> = laws.par_iter().enumerate().flat_map(of_column).collect();
            Ok(Buffer::of(device, &ids)?)
        };
        let noise = |at: usize| {
            let words = philox4x32([at as u32, (at >> 32) as u32, rank, 1], [0, 2]);
            words.map(|word| bf16::from_f32((f64::from(word) / f64::from(u32::MAX) - 0.5) as f32))
        };
        let gradients: Vec<_> = (0..layout.elements() / 4).into_par_iter().flat_map_iter(noise).collect();
        let rate = Rate { rate: 1e-3, root_correction: 1.0 };
        let layout_of_tables = layout.clone();
        Ok(Self {
            tables: NodeTables::initialized::<bf16>(
                cluster,
                None,
                layout_of_tables,
                lane,
                InitialWeights { seed: 1, drawn },
                options.batches,
                None,
            )?,
            device: Arc::clone(device),
            begin: PeerBarrier::new(cluster.peers())?,
            batches: (0..options.batches).map(batch).collect::<Result<_>>()?,
            samples: Buffer::of(device, &[layout.samples() as u32])?,
            offsets: Buffer::filled(device, 1, 0)?,
            vectors: Buffer::filled(device, layout.elements(), 0)?,
            gradients: Buffer::of(device, &gradients)?,
            rates: Buffer::of(device, &vec![rate; drawn])?,
            step: Buffer::of(device, &[Step { number: 1, ..Step::default() }])?,
            stop: Buffer::filled(device, 1, 0)?,
        })
    }

    fn ids(&self, batch: usize) -> Ids {
        let ids = self.batches[batch].pointer();
        Ids { ids, factors: Pointer::NULL, offsets: self.offsets.pointer(), samples: self.samples.pointer() }
    }

    /// The batch in the slot of its number, with its route.
    fn routed(&self, batch: usize) -> RoutedBatch {
        RoutedBatch { ids: self.ids(batch), slot: batch, size: 0 }
    }

    fn route_own(&self, lane: &Lane, batch: usize) -> cuda::Result<()> {
        // SAFETY: as for the route.
        unsafe { self.tables.exchange().route_own(lane, self.ids(batch), batch) }
    }

    fn merge(&self, lane: &Lane, batch: usize) -> cuda::Result<()> {
        // SAFETY: as for the route, whose first part all ranks have done.
        unsafe { self.tables.exchange().merge(&self.tables, lane, batch) }
    }

    fn meet(&self, lane: &Lane) -> cuda::Result<()> {
        // SAFETY: as for the route.
        unsafe { self.tables.meet(lane) }
    }

    fn send(&self, lane: &Lane, batch: usize) -> cuda::Result<()> {
        // SAFETY: as for the route; nothing depends on the received rows while phases are measured separately.
        unsafe { self.tables.exchange().send::<bf16>(&self.tables, lane, self.routed(batch)) }
    }

    fn pool(&self, lane: &Lane, batch: usize) -> cuda::Result<()> {
        let samples = self.tables.layout().samples();
        // SAFETY: as for sending.
        unsafe {
            self.tables.exchange().pool(
                &self.tables,
                lane,
                self.routed(batch),
                samples,
                Vectors::Elements(self.vectors.pointer()),
            )
        }
    }

    fn reduce(&self, lane: &Lane, batch: usize) -> cuda::Result<()> {
        // SAFETY: as for sending; each rank writes to its own buffers.
        unsafe { self.tables.reduce(lane, self.routed(batch), self.gradients.pointer()) }
    }

    fn update(&self, lane: &Lane, batch: usize) -> cuda::Result<()> {
        let inputs = UpdateInputs {
            rates: self.rates.pointer(),
            step: self.step.pointer(),
            scale: Pointer::NULL,
            stop: self.stop.pointer(),
        };
        // SAFETY: as for sending.
        unsafe { self.tables.update(lane, self.routed(batch), inputs) }
    }

    /// All phases of a batch that has a route.
    fn iterate(&self, lane: &Lane, batch: usize) -> cuda::Result<()> {
        self.send(lane, batch)?;
        self.meet(lane)?;
        self.pool(lane, batch)?;
        self.reduce(lane, batch)?;
        self.meet(lane)?;
        self.update(lane, batch)
    }

    fn route(&self, lane: &Lane, batch: usize) -> cuda::Result<()> {
        // SAFETY: the buffers have the sizes that the layout says, and live until all ranks are done.
        unsafe { self.tables.exchange().route(&self.tables, lane, self.ids(batch), batch) }
    }

    /// Counts the work, once all routes are built.
    fn count(&self, lane: &Lane, options: &Options) -> Result<Counts> {
        self.tables.check(lane)?;
        let (layout, own) = (self.tables.layout(), self.tables.rank().0);
        let states = options.optimizer.optimizer().rule.state_elements(1) as f64;
        let bags = (layout.samples() * layout.features().len()) as f64;
        let mut counts = Counts { bags, dim: options.workload.dim as f64, states, ..Counts::default() };
        let each = options.batches as f64;
        for batch in 0..options.batches {
            let route = self.tables.snapshot(lane, batch)?;
            let entries = route.sources.iter().flat_map(|of_row| of_row.iter().enumerate());
            let entries: Vec<_> = entries.filter(|(_, entry)| entry.is_some()).collect();
            counts.look_ups += route.sorted.len() as f64 / each;
            counts.slots += route.list.len() as f64 / each;
            counts.slots_far += route.list.iter().filter(|(owner, _)| *owner != own).count() as f64 / each;
            counts.entries += entries.len() as f64 / each;
            counts.entries_far += entries.iter().filter(|(rank, _)| *rank != own).count() as f64 / each;
            counts.union += route.union.len() as f64 / each;
        }
        Ok(counts)
    }

    /// Returns microseconds per batch: the median over repeats, after two warm-ups.
    fn time(&self, lane: &Lane, mut graph: Graph, options: &Options, sync: &RankSync) -> Result<f64> {
        let (begin, end) = (Moment::new(&self.device)?, Moment::new(&self.device)?);
        let mut times = Vec::new();
        for repeat in 0..options.repeats + 2 {
            let mut once = || -> Result<f64> {
                // SAFETY: the ranks' benches live until all are done.
                unsafe { self.begin.enqueue(lane) }?;
                lane.record(&begin)?;
                for _ in 0..REPLAYS {
                    // SAFETY: the bench and the lanes, which the graph has, outlive it.
                    unsafe { graph.replay(lane) }?;
                }
                lane.record(&end)?;
                self.tables.check(lane)?;
                Ok(end.ms_since(&begin)? * 1e3 / (REPLAYS * options.batches) as f64)
            };
            let us = sync.agree(once())?;
            if repeat >= 2 {
                times.push(us);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

fn measure_rank(
    cluster: &Cluster,
    options: &Options,
    layout: &Layout,
    laws: &[PowerLaw],
    sync: &RankSync,
) -> Result<Measured> {
    let device = cluster.device();
    let prepare = || -> Result<_> {
        device.bind()?;
        let (lane, side) = (Lane::new(device)?, Lane::of_high_priority(device)?);
        let bench = Bench::new(cluster, options, layout, laws, &lane)?;
        Ok((lane, side, [Moment::new(device)?, Moment::new(device)?], bench))
    };
    let (lane, side, [forked, joined], bench) = sync.agree(prepare())?;
    // All routes, once in order: the phases use them later.
    let routed = (0..options.batches).try_for_each(|batch| bench.route(&lane, batch));
    sync.agree(routed.map_err(Into::into))?;
    let counts = sync.agree(bench.count(&lane, options))?;
    let mut phases_us = Vec::new();
    for phase in &PHASES {
        let enqueue = || (0..options.batches).try_for_each(|batch| (phase.enqueue)(&bench, &lane, batch));
        let graph = sync.agree(Graph::capture(&lane, enqueue).map_err(Into::into))?;
        phases_us.push(bench.time(&lane, graph, options, sync)?);
    }
    let iterations = || -> cuda::Result<()> {
        for batch in 0..options.batches {
            lane.record(&forked)?;
            side.wait(&forked)?;
            bench.route(&side, (batch + 1) % options.batches)?;
            side.record(&joined)?;
            bench.iterate(&lane, batch)?;
            lane.wait(&joined)?;
        }
        Ok(())
    };
    let graph = sync.agree(Graph::capture(&lane, iterations).map_err(Into::into))?;
    let whole_us = bench.time(&lane, graph, options, sync)?;
    Ok(Measured { counts, phases_us, whole_us, shared_bytes: bench.tables.shared_bytes() })
}
