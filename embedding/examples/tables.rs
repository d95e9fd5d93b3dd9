//! Measures an iteration of tables on one GPU: the look-ups, the route and the update of a batch.
//!
//! Ids are drawn from a power law, independently per table, as in the benchmark.

use std::error::Error;

use clap::{Parser, ValueEnum};
use half::bf16;
use rankine_cuda::kernels::{Rate, Step, Vectors};
use rankine_cuda::{Buffer, Device, Graph, Lane, Moment, Pointer};
use rankine_embedding::cuda::{Feature, Hotness, Ids, InitialWeights, Layout, LocalTables, UpdateInputs};
use rankine_embedding::{Optimizer, Pooling, UpdateRule};
use rankine_reader::generate::{PowerLaw, Shape};
use rankine_topology::Rank;
use rayon::prelude::*;
use workload::{Workload, id};

mod workload;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures the look-ups, the route and the update of a batch on one GPU.
#[derive(Debug, Parser)]
struct Options {
    /// Samples per batch
    #[arg(long, default_value_t = 65536)]
    batch: usize,
    #[command(flatten)]
    workload: Workload,
    /// The tables' update rule
    #[arg(long, value_enum, default_value_t = Rule::Sgd)]
    rule: Rule,
    /// Batches that are measured in turn, so that none finds its own data in the cache
    #[arg(long, default_value_t = 4)]
    batches: usize,
    /// Measurements of each
    #[arg(long, default_value_t = 11)]
    repeats: usize,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Rule {
    Sgd,
    Adagrad,
    RowwiseAdagrad,
    Adam,
}

impl Rule {
    fn optimizer(self) -> Optimizer {
        let (initial_accumulator, epsilon) = (0.0, 1e-8);
        let rule = match self {
            Self::Sgd => UpdateRule::Sgd,
            Self::Adagrad => UpdateRule::Adagrad { initial_accumulator, epsilon },
            Self::RowwiseAdagrad => UpdateRule::RowwiseAdagrad { initial_accumulator, epsilon },
            Self::Adam => UpdateRule::Adam { beta1: 0.9, beta2: 0.999, epsilon },
        };
        Optimizer { rule, ..Optimizer::sgd(0.01) }
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let dim = options.workload.dim;
    let shape = Shape::load(&options.workload.shape)?;
    let tables = options.workload.tables(&shape);
    let laws = options.workload.laws(&tables);
    let hotness = |column| shape.hotness.get(column).map_or(1, |&hotness| hotness as usize);
    let columns: Vec<_> = (0..tables.len()).map(|column| Hotness::Fixed(hotness(column))).collect();
    let feature = |column| Feature {
        column,
        table: column,
        // A sample's first vector is the bottom MLP's.
        vector_offset: (1 + column) * dim,
        pooling: Pooling::Sum,
    };
    let features: Vec<_> = (0..tables.len()).map(feature).collect();
    let stride = (1 + tables.len()) * dim;
    let layout = Layout::new(1, options.batch, stride, &tables, &columns, &features)?;
    let optimizer = options.rule.optimizer();
    let layout = layout.with_optimizers(&vec![optimizer; tables.len()]);
    let device = Device::open(0)?;
    let lane = Lane::new(&device)?;
    let began = std::time::Instant::now();
    let tables = LocalTables::initialized(
        &device,
        layout.clone(),
        &lane,
        InitialWeights { seed: 1, drawn: tables.len() },
    )?;
    let seconds = began.elapsed().as_secs_f64();
    let gigabytes = 4e-9 * layout.rank_words(Rank(0)) as f64;
    eprintln!("{gigabytes:.1} GB of tables initialized in {seconds:.2} s");

    let batch = |number: usize| -> Result<Buffer<u32>> {
        let of_column = |(column, law): (usize, &PowerLaw)| -> Vec<u32> {
            let of_batch = 0..options.batch * hotness(column);
            of_batch.map(|at| id(law, column, [at as u32, number as u32, 0])).collect()
        };
        let ids: Vec<u32> = laws.par_iter().enumerate().flat_map(of_column).collect();
        Ok(Buffer::of(&device, &ids)?)
    };
    let batches: Vec<_> = (0..options.batches).map(batch).collect::<Result<_>>()?;
    let samples = Buffer::of(&device, &[options.batch as u32])?;
    let offsets = Buffer::<u32>::filled(&device, 1, 0)?;
    let vectors = Buffer::<bf16>::filled(&device, layout.elements(), 0)?;
    let ids = |batch: &Buffer<u32>| Ids {
        ids: batch.pointer(),
        factors: Pointer::NULL,
        offsets: offsets.pointer(),
        samples: samples.pointer(),
    };

    let look_up = Graph::capture(&lane, || {
        // SAFETY: the batches fit the layout, and there are as many vectors; all live until the end.
        batches.iter().try_for_each(|batch| unsafe {
            tables.look_up(&lane, ids(batch), options.batch, Vectors::Elements(vectors.pointer()))
        })
    })?;
    let route = Graph::capture(&lane, || {
        // SAFETY: as for looking up.
        batches.iter().try_for_each(|batch| unsafe { tables.route(&lane, ids(batch)) })
    })?;
    let step = rankine_embedding::Step { number: 1, rate_factor: 1.0 };
    let rates = Buffer::<Rate>::of(&device, &vec![optimizer.at(step).into(); layout.tables().len()])?;
    let step = Buffer::of(&device, &[Step { number: 1, ..Step::default() }])?;
    let stop = Buffer::of(&device, &[0])?;
    let gradient =
        |at: usize| bf16::from_f32(((at.wrapping_mul(0x9e37_79b9) >> 8) % 2001) as f32 * 1e-6 - 1e-3);
    let gradients: Vec<bf16> = (0..layout.elements()).into_par_iter().map(gradient).collect();
    let gradients = Buffer::of(&device, &gradients)?;
    let update = Graph::capture(&lane, || {
        let inputs = UpdateInputs {
            rates: rates.pointer(),
            step: step.pointer(),
            scale: Pointer::NULL,
            stop: stop.pointer(),
        };
        // SAFETY: as for looking up. The batch is the one that was routed last.
        (0..options.batches).try_for_each(|_| unsafe {
            let ids = ids(&batches[options.batches - 1]);
            tables.update(&lane, ids, gradients.pointer(), inputs)
        })
    })?;
    for (what, mut graph) in [("look-up", look_up), ("route", route), ("update", update)] {
        let mut times = Vec::new();
        for _ in 0..options.repeats {
            let (begin, end) = (Moment::new(&device)?, Moment::new(&device)?);
            lane.record(&begin)?;
            // SAFETY: everything that the graph was captured with still lives.
            unsafe { graph.replay(&lane) }?;
            lane.record(&end)?;
            lane.synchronize()?;
            times.push(end.ms_since(&begin)? * 1e3 / options.batches as f64);
        }
        times.sort_by(f64::total_cmp);
        eprintln!("{what}: {:.1} us, {:.1} at best", times[times.len() / 2], times[0]);
    }
    tables.check(&lane)?;
    let found = tables.snapshot(&lane)?;
    let (look_ups, slots) = (found.sorted.len() as f64, found.rows.len() as f64);
    eprintln!("{look_ups} look-ups, {slots} distinct rows, {:.1}%", 100.0 * slots / look_ups);
    Ok(())
}
