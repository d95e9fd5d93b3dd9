//! Measures barriers and all-reduces over the GPUs of a node, and compares them with NCCL.
//!
//! ```text
//! cargo run --release -p rankine-cuda --features cuda --example all_reduce -- --gpus 4
//! ```
//!
//! Each operation is captured many times in a graph. The result is the median over replays, of the slowest GPU.

use std::error::Error;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use clap::Parser;
use rankine_cuda::nccl::{Communicator, NcclId, Reduction};
use rankine_cuda::{AllReduce, AllReduceWay, Buffer, Device, Graph, Lane, Moment, PeerBarrier, Peers};
use rankine_topology::Node;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures barriers and all-reduces over the GPUs of a node.
#[derive(Debug, Clone, Parser)]
struct Options {
    /// GPUs, one rank each
    #[arg(long, default_value_t = 2)]
    gpus: usize,
    /// Bytes to all-reduce
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4096,65536,262144,524288,1048576,2097152,4194304,10066330,33554432,67108864"
    )]
    bytes: Vec<usize>,
    /// The most blocks of a grid
    #[arg(long, value_delimiter = ',', default_value = "32")]
    blocks: Vec<usize>,
    /// Replays of each graph
    #[arg(long, default_value_t = 15)]
    repeats: usize,
    /// All-reduces per graph
    #[arg(long, default_value_t = 20)]
    sums: usize,
}

const DEADLINE: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let options = Options::parse();
    let devices: Vec<_> = (0..options.gpus).map(Device::open).collect::<Result<_, _>>()?;
    let id = NcclId::new().inspect_err(|error| eprintln!("without NCCL: {error}")).ok();
    let together = Arc::new(Barrier::new(options.gpus));
    let peers = Peers::in_process(&devices, Node(0), DEADLINE)?;
    let of_ranks: Vec<Result<Vec<Row>>> = thread::scope(|scope| {
        let measure = |peers: Peers| Rank::new(peers, options.clone(), Arc::clone(&together))?.measure(id);
        let running: Vec<_> = peers.into_iter().map(|peers| scope.spawn(move || measure(peers))).collect();
        running.into_iter().map(|rank| rank.join().expect("a rank's panic has been printed")).collect()
    });
    let of_ranks: Vec<_> = of_ranks.into_iter().collect::<Result<_>>()?;
    eprintln!("{} x {}", options.gpus, devices[0].name()?);
    for (row, Row { what, bytes, .. }) in of_ranks[0].iter().enumerate() {
        let us = of_ranks.iter().map(|rows| rows[row].us).fold(0.0, f64::max);
        let ranks = options.gpus as f64;
        // The least that must leave each GPU.
        let link = 2.0 * *bytes as f64 * (ranks - 1.0) / ranks;
        eprintln!("{what:28} {bytes:>10} bytes {us:>9.1} us {:>7.1} GB/s", link / us / 1e3);
    }
    Ok(())
}

struct Row {
    what: String,
    bytes: usize,
    us: f64,
}

struct Rank {
    peers: Peers,
    options: Options,
    together: Arc<Barrier>,
    lane: Lane,
    moments: [Moment; 2],
}

impl Rank {
    fn new(peers: Peers, options: Options, together: Arc<Barrier>) -> Result<Self> {
        let device = peers.device();
        device.bind()?;
        let (lane, moments) = (Lane::new(device)?, [Moment::new(device)?, Moment::new(device)?]);
        Ok(Self { peers, options, together, lane, moments })
    }

    fn measure(&self, id: Option<NcclId>) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let barrier = PeerBarrier::new(&self.peers)?;
        // SAFETY: the barrier lives until the lane has been waited for.
        let us = self.time(|| Ok(()), || Ok(unsafe { barrier.enqueue(&self.lane) }?))?;
        rows.push(Row { what: "barrier".into(), bytes: 0, us });
        for &bytes in &self.options.bytes {
            let len = bytes / 4;
            // Not zeros, which would draw less power. The values are reset before they grow too large.
            let terms: Vec<f32> = (0..len).map(|index| ((index * 7919) % 10007) as f32 * 1e-9).collect();
            let source = Buffer::of(self.peers.device(), &terms)?;
            for (way, name) in [(AllReduceWay::AtOnce, "at once"), (AllReduceWay::BySlices, "by slices")] {
                if way == AllReduceWay::AtOnce && bytes > 4 << 20 {
                    continue;
                }
                for &blocks in &self.options.blocks {
                    let all = AllReduce::by(&self.peers, way, blocks, len, 1)?;
                    // SAFETY: both buffers have as many elements, and live until the lane has been waited for.
                    let refill =
                        || Ok(unsafe { self.lane.copy(source.pointer(), all.values().pointer(), len) }?);
                    // SAFETY: the sums live until the lane has been waited for.
                    let us = self.time(refill, || Ok(unsafe { all.enqueue(&self.lane) }?))?;
                    all.check(&self.lane)?;
                    rows.push(Row { what: format!("{name}, {blocks} blocks"), bytes, us });
                    self.together.wait();
                }
            }
        }
        if let Some(id) = id {
            self.measure_nccl(id, &mut rows)?;
        }
        Ok(rows)
    }

    fn measure_nccl(&self, id: NcclId, rows: &mut Vec<Row>) -> Result<()> {
        let Self { peers, lane, .. } = self;
        let world = Communicator::new(peers.device(), id, peers.local_rank().0, peers.ranks(), DEADLINE)?;
        for &bytes in &self.options.bytes {
            let len = bytes / 4;
            let terms: Vec<f32> = (0..len).map(|index| ((index * 7919) % 10007) as f32 * 1e-9).collect();
            let source = Buffer::of(peers.device(), &terms)?;
            let values = Buffer::of(peers.device(), &terms)?;
            let enqueue = || {
                let values = values.pointer();
                // SAFETY: the values live until the lane has been waited for.
                Ok(unsafe { world.all_reduce(lane, values, values, len, Reduction::Sum) }?)
            };
            // SAFETY: both buffers have as many elements, and live until the lane has been waited for.
            let refill = || Ok(unsafe { lane.copy(source.pointer(), values.pointer(), len) }?);
            enqueue()?;
            lane.synchronize()?;
            let us = self.time(refill, enqueue)?;
            rows.push(Row { what: "NCCL, f32".into(), bytes, us });
        }
        Ok(())
    }

    /// Returns the microseconds of one enqueued operation out of many in a graph: the median over replays.
    fn time(&self, prepare: impl Fn() -> Result<()>, enqueue: impl Fn() -> Result<()>) -> Result<f64> {
        let Self { lane, options, .. } = self;
        let mut graph = Graph::capture(lane, || (0..options.sums).try_for_each(|_| enqueue()))?;
        let mut times = Vec::new();
        for repeat in 0..3 + options.repeats {
            prepare()?;
            lane.synchronize()?;
            self.together.wait();
            lane.record(&self.moments[0])?;
            // SAFETY: callers keep what is enqueued until this has returned.
            unsafe { graph.replay(lane) }?;
            lane.record(&self.moments[1])?;
            lane.synchronize()?;
            if repeat >= 3 {
                times.push(self.moments[1].ms_since(&self.moments[0])? * 1e3 / options.sums as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}
