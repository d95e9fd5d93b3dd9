//! Measures a dynamic table on one GPU: finding the rows of ids, and giving rows to new ids, whose predecessors leave.
//!
//! Ids that are found are drawn uniformly from those that have a row. Ids that come and go are drawn from a power law
//! over more ids than the table has rows.

use std::error::Error;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use rankine_cuda::kernels::Vectors;
use rankine_cuda::{Buffer, Device, Lane, Moment, Pointer};
use rankine_embedding::cuda::{
    DynamicColumns, DynamicTables, Feature, Hotness, Ids, InitialWeights, Layout, LocalTables, LongIds,
};
use rankine_embedding::random::philox4x32;
use rankine_embedding::{Dtype, DynamicRows, Eviction, Pooling, TableSpec};
use rankine_reader::generate::PowerLaw;
use rayon::prelude::*;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures finding the rows of ids, and giving rows to new ids, on one GPU.
#[derive(Debug, Parser)]
struct Options {
    /// Ids that can have a row
    #[arg(long, default_value_t = 1 << 26)]
    capacity: u64,
    /// Elements per row
    #[arg(long, default_value_t = 64)]
    dim: usize,
    /// Ids per batch
    #[arg(long, default_value_t = 1 << 20)]
    batch: usize,
    /// The ids that come and go, for each id that can have a row
    #[arg(long, default_value_t = 4)]
    ids: u64,
    /// The exponent of their power law
    #[arg(long, default_value_t = 1.1)]
    alpha: f64,
    /// Look-ups after which an id gets a row
    #[arg(long, default_value_t = 1)]
    admit_after: u8,
    /// Which id loses its row
    #[arg(long, value_enum, default_value_t = Evict::Lru)]
    evict: Evict,
    /// Batches that are measured
    #[arg(long, default_value_t = 15)]
    repeats: usize,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Evict {
    Lru,
    Lfu,
}

/// A hash, so that ids are spread over all numbers.
fn id(number: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A random number from 0 to 1.
fn unit(at: usize, batch: usize) -> f64 {
    let words = philox4x32([at as u32, batch as u32, 0, 0], [7, 1]);
    (u64::from(words[0]) << 21 | u64::from(words[1]) >> 11) as f64 / (1u64 << 53) as f64
}

struct Bench {
    lane: Lane,
    ids: Buffer<u32>,
    samples: Buffer<u32>,
    offsets: Buffer<u32>,
    tables: DynamicTables,
    rows: LocalTables,
    step: u64,
}

impl Bench {
    fn batch(&self, long_ids: &Buffer<u64>) -> LongIds {
        let rows = Ids {
            ids: self.ids.pointer(),
            factors: Pointer::NULL,
            offsets: self.offsets.pointer(),
            samples: self.samples.pointer(),
        };
        LongIds { ids: long_ids.pointer(), rows }
    }

    /// Takes batches of ids, one after another; returns the microseconds of each.
    fn admit(&mut self, batches: &[Vec<u64>]) -> Result<Vec<f64>> {
        let device = Arc::clone(self.lane.device());
        let of_batch = |ids: &Vec<u64>| Buffer::of(&device, ids);
        let batches = batches.iter().map(of_batch).collect::<Result<Vec<_>, _>>()?;
        let moments = (0..=batches.len()).map(|_| Moment::new(&device)).collect::<Result<Vec<_>, _>>()?;
        self.lane.record(&moments[0])?;
        for (batch, done) in batches.iter().zip(&moments[1..]) {
            self.step += 1;
            // SAFETY: all buffers have a batch's length, and live until the lane has been waited for.
            unsafe {
                self.tables.admit(&self.lane, self.batch(batch), 0, self.step)?;
                self.rows.begin_rows(&self.lane, &self.tables, 0)?;
            }
            self.lane.record(done)?;
        }
        self.lane.synchronize()?;
        moments.windows(2).map(|pair| Ok(pair[1].ms_since(&pair[0])? * 1e3)).collect()
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let evict = match options.evict {
        Evict::Lru => Eviction::Lru,
        Evict::Lfu => Eviction::Lfu,
    };
    let rows = DynamicRows { capacity: options.capacity, admit_after: options.admit_after, evict };
    let table = TableSpec {
        name: "ids".into(),
        rows: rows.table_rows(),
        dim: options.dim,
        dtype: Dtype::Fp32,
        dynamic: Some(rows),
    };
    let feature = Feature { column: 0, table: 0, vector_offset: 0, pooling: Pooling::Sum };
    let layout = Layout::new(1, options.batch, options.dim, &[table], &[Hotness::Fixed(1)], &[feature])?;
    let device = Device::open(0)?;
    let lane = Lane::new(&device)?;
    let weights = InitialWeights { seed: 1, drawn: 1 };
    let tables =
        DynamicTables::new(&device, None, &layout, 1, weights, false)?.ok_or("a table is dynamic")?;
    let columns = DynamicColumns::new(&device, &layout)?;
    let mut bench = Bench {
        ids: Buffer::filled(&device, options.batch, 0)?,
        samples: Buffer::of(&device, &[options.batch as u32])?,
        offsets: Buffer::filled(&device, 1, 0)?,
        rows: LocalTables::initialized(&device, layout.clone(), &lane, weights)?,
        tables,
        lane,
        step: 0,
    };
    let vectors = Buffer::<f32>::filled(&device, layout.elements(), 0)?;
    let report = |what: &str, times: &mut [f64], more: String| {
        times.sort_by(f64::total_cmp);
        let us = times[times.len() / 2];
        eprintln!(
            "{what}: {us:.1} us, {:.1} at best, {:.2} G ids/s{more}",
            times[0],
            options.batch as f64 / us / 1e3
        );
    };

    // Ids that are new, each as often as it must be looked up for a row.
    let each = usize::from(options.admit_after);
    let mut next = 0;
    let mut new_ids = |batches: u64| -> Vec<Vec<u64>> {
        let batch = |_| {
            let first = next;
            next += (options.batch / each) as u64;
            (0..options.batch).map(|at| id(first + (at / each) as u64)).collect()
        };
        (0..batches).map(batch).collect()
    };
    let batches = |ids: u64| ids.div_ceil((options.batch / each) as u64);
    let present = options.capacity * 3 / 4;
    let mut times = bench.admit(&new_ids(batches(present)))?;
    report("new ids into free rows", &mut times, String::new());

    let drawn = |batch, at| id((unit(at, batch) * present as f64) as u64);
    let of_present = (0..options.repeats)
        .map(|batch| (0..options.batch).into_par_iter().map(|at| drawn(batch, at)).collect::<Vec<_>>())
        .map(|ids| Buffer::of(&device, &ids))
        .collect::<Result<Vec<_>, _>>()?;
    let moments = (0..=2 * options.repeats).map(|_| Moment::new(&device)).collect::<Result<Vec<_>, _>>()?;
    bench.lane.record(&moments[0])?;
    for (ids, moments) in of_present.iter().zip(moments[1..].chunks(2)) {
        let batch = bench.batch(ids);
        // SAFETY: all buffers have a batch's length, and live until the lane has been waited for.
        unsafe {
            bench.tables.find(&bench.lane, &columns, batch)?;
            bench.lane.record(&moments[0])?;
            let to = Vectors::Elements(vectors.pointer());
            bench.rows.look_up(&bench.lane, batch.rows, options.batch, to)?;
        }
        bench.lane.record(&moments[1])?;
    }
    bench.lane.synchronize()?;
    let (mut of_rows, mut of_vectors) = (Vec::new(), Vec::new());
    for repeat in moments.windows(3).step_by(2) {
        of_rows.push(repeat[1].ms_since(&repeat[0])? * 1e3);
        of_vectors.push(repeat[2].ms_since(&repeat[0])? * 1e3);
    }
    report("rows of ids, at load 0.75", &mut of_rows, String::new());
    report("vectors of ids, at load 0.75", &mut of_vectors, String::new());

    // The ids of a power law, after all rows are taken.
    let law = PowerLaw::new(options.ids * options.capacity, options.alpha);
    let mut batch = 1000;
    let mut drawn = |batches: usize| -> Vec<Vec<u64>> {
        let draw = |_| {
            batch += 1;
            let id = |at| id((1 << 40) + law.row(law.rank(unit(at, batch))));
            (0..options.batch).into_par_iter().map(id).collect()
        };
        (0..batches).map(draw).collect()
    };
    bench.admit(&new_ids(batches(options.capacity / 3)))?;
    bench.admit(&drawn(20))?;
    let before = bench.tables.states(&bench.lane)?.swap_remove(0);
    let mut times = bench.admit(&drawn(options.repeats))?;
    let after = bench.tables.states(&bench.lane)?.swap_remove(0);
    let share =
        |after: u64, before: u64| 100.0 * (after - before) as f64 / (options.batch * options.repeats) as f64;
    let more = format!(
        ", {:.1}% admitted, {:.1}% evicted, load {:.3}",
        share(after.counts.admitted, before.counts.admitted),
        share(after.counts.evicted, before.counts.evicted),
        after.load_ratio()
    );
    report("a power law's ids, at load 1", &mut times, more);
    let mut times = bench.admit(&new_ids(options.repeats as u64))?;
    report("new ids, each of which evicts one", &mut times, String::new());
    let budget = device.budget()?;
    for part in budget.parts {
        eprintln!("{}: {:.2} GB", part.purpose, part.bytes as f64 / 1e9);
    }
    bench.rows.check(&bench.lane)?;
    Ok(())
}
