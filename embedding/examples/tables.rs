//! Measures what tables on one GPU do in an iteration: the look-ups and the route of a batch.
//!
//! Ids are drawn table by table from a power law, each by itself, as the benchmark's are.

use std::error::Error;

use clap::Parser;
use half::bf16;
use rankine_cuda::{Buffer, Device, Graph, Lane, Moment};
use rankine_embedding::cuda::{Feature, Hotness, Ids, Layout, LocalTables};
use rankine_embedding::random::philox4x32;
use rankine_embedding::{Pooling, TableSpec};
use rankine_reader::generate::{PowerLaw, Shape};
use rayon::prelude::*;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures the look-ups and the route of a batch on one GPU.
#[derive(Debug, Parser)]
struct Options {
    /// Samples of a batch
    #[arg(long, default_value_t = 65536)]
    batch: usize,
    /// The tables: a built-in shape, or the file of one
    #[arg(long, default_value = "dlrm")]
    shape: String,
    /// No table has more rows than this
    #[arg(long, default_value_t = 5_000_000)]
    rows_cap: u64,
    /// Elements of a row
    #[arg(long, default_value_t = 128)]
    dim: usize,
    /// The exponent of the ids' power law
    #[arg(long, default_value_t = 1.1)]
    alpha: f64,
    /// Batches that are measured in turn, so that none finds its own data in the cache
    #[arg(long, default_value_t = 4)]
    batches: usize,
    /// Times that each is measured
    #[arg(long, default_value_t = 11)]
    repeats: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let shape = Shape::load(&options.shape)?;
    let rows: Vec<_> = shape.rows.iter().map(|&rows| rows.min(options.rows_cap)).collect();
    let of = |(number, &rows)| TableSpec { name: format!("c{number}"), rows, dim: options.dim };
    let tables: Vec<_> = rows.iter().enumerate().map(of).collect();
    let hotness = |column| shape.hotness.get(column).map_or(1, |&hotness| hotness as usize);
    let columns: Vec<_> = (0..tables.len()).map(|column| Hotness::Fixed(hotness(column))).collect();
    let feature = |column| Feature {
        column,
        table: column,
        // The first vector of a sample is the bottom MLP's.
        place: (1 + column) * options.dim,
        pooling: Pooling::Sum,
    };
    let features: Vec<_> = (0..tables.len()).map(feature).collect();
    let stride = (1 + tables.len()) * options.dim;
    let layout = Layout::new(1, options.batch, stride, &tables, &columns, &features)?;
    let device = Device::open(0)?;
    let lane = Lane::new(&device)?;
    let began = std::time::Instant::now();
    let tables = LocalTables::initialized(&device, layout.clone(), &lane, 1, tables.len())?;
    let seconds = began.elapsed().as_secs_f64();
    let gigabytes = 4e-9 * layout.owner_words() as f64;
    eprintln!("{gigabytes:.1} GB of tables initialized in {seconds:.2} s");

    let laws: Vec<_> = rows.iter().map(|&rows| PowerLaw::new(rows, options.alpha)).collect();
    let batch = |number: usize| -> Result<Buffer<u32>> {
        let of_column = |(column, law): (usize, &PowerLaw)| -> Vec<u32> {
            let id = |at: usize| {
                let words = philox4x32([at as u32, number as u32, 0, 0], [column as u32, 1]);
                let bits = u64::from(words[0]) << 21 | u64::from(words[1]) >> 11;
                law.row(law.rank(bits as f64 / (1u64 << 53) as f64)) as u32
            };
            (0..options.batch * hotness(column)).map(id).collect()
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
        offsets: offsets.pointer(),
        samples: samples.pointer(),
    };

    let look_up = Graph::capture(&lane, || {
        // SAFETY: the batches are of the layout, and there are as many vectors; all live until the end.
        batches.iter().try_for_each(|batch| unsafe {
            tables.look_up(&lane, ids(batch), options.batch, vectors.pointer())
        })
    })?;
    let route = Graph::capture(&lane, || {
        // SAFETY: as for looking up.
        batches.iter().try_for_each(|batch| unsafe { tables.route(&lane, ids(batch)) })
    })?;
    for (what, mut graph) in [("look-up", look_up), ("route", route)] {
        let mut times = Vec::new();
        for _ in 0..options.repeats {
            let (begin, end) = (Moment::new(&device)?, Moment::new(&device)?);
            lane.record(&begin)?;
            // SAFETY: what the graph was captured with lives.
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
