//! Measures reading rates: of the device, through each rung, with checks, and in batches, unpacked and packed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rankine_base::error::{Error, IoContext, Result};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use crate::dataset::{Dataset, DatasetPart};
use crate::io::{IoMode, IoOptions, ReadRequest, Reads, Rung, RungRefused, SlabRing};
use crate::part::Part;
use crate::stream::{BatchStream, BlockStream, Order, PackedStream, Plan, Position, StreamOptions};

/// Size of the requests that measure the device: large enough to be cheap, small enough to keep a deep queue busy.
const DEVICE_READ_BYTES: u32 = 1 << 20;
/// The queue depths at which the device is measured; the best one counts.
const DEVICE_DEPTHS: [u32; 5] = [4, 8, 16, 32, 64];

/// The order in which samples are batched for GPUs.
const SHUFFLED: Order = Order::Shuffled { seed: 0, window_blocks: 16 };

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct ReadBenchOptions {
    /// The part to read.
    pub part: Part,
    /// Reads in flight.
    pub depth: u32,
    /// Blocks are read from the start of the part until they have this many bytes.
    pub bytes_max: u64,
    /// Number of measurements of each kind, at least one, taken in turn; the median counts.
    pub passes: u32,
}

impl Default for ReadBenchOptions {
    fn default() -> Self {
        Self { part: Part::Train, depth: IoOptions::default().depth, bytes_max: 2 << 30, passes: 3 }
    }
}

/// The measured rates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadBench {
    /// The part that was read.
    pub part: Part,
    /// Reads in flight, except for the device's own rate.
    pub depth: u32,
    /// The mean length of a block, in bytes.
    pub block_bytes: f64,
    /// The device's rate for reads whose data is not used.
    pub device: DeviceRate,
    /// One entry per rung, best first.
    pub rungs: Vec<RungBench>,
}

/// The rate of the device itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DeviceRate {
    /// The rung used: the best one that works on this machine.
    pub rung: Rung,
    /// The depth at which it was fastest.
    pub depth: u32,
    /// Bytes per read.
    pub read_bytes: u32,
    /// The rate.
    pub rate: Rate,
}

/// The rates of one rung.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RungBench {
    /// The rung.
    pub rung: Rung,
    /// Its rates, or why it was refused.
    pub outcome: Result<RungRates, RungRefused>,
}

/// The rates at which a rung delivers blocks, by what is done with them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RungRates {
    /// Only reading.
    pub packed: Rate,
    /// That rate divided by the device's: the median of the quotients of each pass, since shared disks change their
    /// speed from one minute to the next.
    pub share_of_device: f64,
    /// Reading and checking on one thread.
    pub verified: Rate,
    /// Reading, checking and unpacking into batches on one thread.
    pub decoded: Rate,
    /// Reading, checking and shuffling within windows of 16 blocks into batches that GPUs unpack, with the number of
    /// threads used for GPUs.
    pub packed_batches: Rate,
}

/// An amount and the time it took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    /// Bytes read.
    pub bytes: u64,
    /// Samples in them.
    pub samples: u64,
    /// Seconds from opening the files to the last byte, the median of all passes.
    pub seconds: f64,
    /// 10^9 bytes per second.
    pub gb_per_s: f64,
    /// Samples per second.
    pub samples_per_s: f64,
}

/// Measures how fast a dataset is read. Before each measurement the kernel is asked to drop the files from the page
/// cache, so that rungs which use it are measured at the disk.
///
/// # Errors
/// If the dataset cannot be read. A refused rung is not an error but a result.
pub fn bench_read(dir: &Path, options: &ReadBenchOptions) -> Result<ReadBench> {
    if options.passes == 0 {
        return Err(Error::setting("passes", "a measurement needs at least one pass"));
    }
    let part = Arc::new(prefix(Dataset::open(dir)?.part(options.part)?, options.bytes_max));
    let bench = Bench { bytes: part.blocks.iter().map(|block| u64::from(block.bytes)).sum(), part };
    let mut device = bench.fastest_device()?;
    let mut rungs = Vec::new();
    for rung in Rung::ALL {
        let io = IoOptions { mode: rung.into(), depth: options.depth };
        let (slabs, slab_bytes) = BlockStream::ring_for(&bench.part, &io);
        let ring = SlabRing::allocate(slabs + PackedStream::BLOCKS_AHEAD, slab_bytes)?;
        let subject = match bench.reads(&io, ring) {
            Ok(reads) => Ok(Subject { io, ring: Some(reads.close()), seconds: Default::default() }),
            Err(error) => Err(error.to_string().into()),
        };
        rungs.push((rung, subject));
    }
    let mut device_seconds = Vec::new();
    for _ in 0..options.passes {
        device_seconds.push(bench.pass(&mut device)?);
        for subject in rungs.iter_mut().filter_map(|(_, subject)| subject.as_mut().ok()) {
            for stage in Stage::ALL {
                let seconds = bench.timed(|| bench.run(subject, stage))?;
                subject.seconds[stage as usize].push(seconds);
            }
        }
    }
    let rungs = rungs.into_iter().map(|(rung, subject)| RungBench {
        rung,
        outcome: subject.map(|subject| bench.rates(&subject, &device_seconds)),
    });
    Ok(ReadBench {
        part: options.part,
        depth: options.depth,
        block_bytes: bench.bytes as f64 / bench.part.blocks.len() as f64,
        device: DeviceRate {
            rung: device.rung,
            depth: device.depth,
            read_bytes: DEVICE_READ_BYTES,
            rate: bench.rate(median(&device_seconds)),
        },
        rungs: rungs.collect(),
    })
}

/// Shortens a part to its first blocks, up to `bytes_max` bytes but at least one block.
fn prefix(mut part: DatasetPart, bytes_max: u64) -> DatasetPart {
    let mut bytes = 0;
    let whole = part.blocks.iter().take_while(|block| {
        bytes += u64::from(block.bytes);
        bytes <= bytes_max
    });
    let blocks = whole.count().max(1);
    part.blocks.truncate(blocks);
    part.samples = part.blocks.iter().map(|block| u64::from(block.samples)).sum();
    part
}

struct Bench {
    part: Arc<DatasetPart>,
    bytes: u64,
}

/// The device, read in large pieces whose data is not used.
struct SequentialRead {
    rung: Rung,
    depth: u32,
    ring: Option<SlabRing>,
}

/// A rung that works on this machine. Every pass reads into the same ring, as the streams of a run do: locking its
/// pages and touching them first is not part of the rate.
struct Subject {
    io: IoOptions,
    ring: Option<SlabRing>,
    /// Seconds by stage.
    seconds: [Vec<f64>; 4],
}

/// What is done with the blocks that a rung delivers.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Packed,
    Verified,
    Decoded,
    PackedBatches,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Packed, Self::Verified, Self::Decoded, Self::PackedBatches];
}

const RING_IS_BACK: &str = "the previous pass returned the ring";

impl Bench {
    /// Returns the seconds that `run` takes with files that are not cached.
    fn timed(&self, run: impl FnOnce() -> Result<()>) -> Result<f64> {
        drop_cache(&self.part.files)?;
        let start = Instant::now();
        run()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Returns the device at its fastest depth.
    fn fastest_device(&self) -> Result<SequentialRead> {
        let mut best: Option<(f64, SequentialRead)> = None;
        for depth in DEVICE_DEPTHS {
            let ring = SlabRing::allocate(depth as usize + 2, DEVICE_READ_BYTES as usize)?;
            let mut device = SequentialRead { rung: Rung::Mmap, depth, ring: Some(ring) };
            let seconds = self.pass(&mut device)?;
            if best.as_ref().is_none_or(|(fastest, _)| seconds < *fastest) {
                best = Some((seconds, device));
            }
        }
        Ok(best.expect("it was measured at several depths").1)
    }

    fn pass(&self, device: &mut SequentialRead) -> Result<f64> {
        let io = IoOptions { mode: IoMode::Auto, depth: device.depth };
        self.timed(|| {
            let requests = pieces(&self.part).into_iter();
            let ring = device.ring.take().expect(RING_IS_BACK);
            let mut reads = Reads::open(self.part.read_files(), requests, ring, &io)?;
            device.rung = reads.rung();
            reads.by_ref().try_for_each(|slab| slab.map(drop))?;
            device.ring = Some(reads.close());
            Ok(())
        })
    }

    fn reads(&self, io: &IoOptions, ring: SlabRing) -> Result<Reads> {
        let requests: Vec<ReadRequest> = self.part.blocks.iter().map(|&block| block.into()).collect();
        Reads::open(self.part.read_files(), requests.into_iter(), ring, io)
    }

    fn run(&self, subject: &mut Subject, stage: Stage) -> Result<()> {
        let ring = subject.ring.take().expect(RING_IS_BACK);
        let (part, io) = (Arc::clone(&self.part), subject.io);
        subject.ring = Some(match stage {
            Stage::Packed => {
                let mut reads = self.reads(&io, ring)?;
                reads.by_ref().try_for_each(|slab| slab.map(drop))?;
                reads.close()
            }
            Stage::Verified => {
                let plan = Plan::new(&part, Order::File, Some(1), Position::default())?;
                let mut blocks = BlockStream::with_ring(part, plan, &io, ring)?;
                blocks.by_ref().try_for_each(|block| block.map(drop))?;
                blocks.close()
            }
            Stage::Decoded => {
                let options = StreamOptions { io, ..StreamOptions::one_epoch(part.block_samples as usize) };
                let mut batches = BatchStream::with_ring(part, &options, ring)?;
                batches.by_ref().try_for_each(|batch| batch.map(drop))?;
                batches.close()
            }
            Stage::PackedBatches => {
                let one_epoch = StreamOptions::one_epoch(part.block_samples as usize);
                let options = StreamOptions { io, order: SHUFFLED, ..one_epoch };
                let mut batches = PackedStream::with_ring(part, &options, ring)?;
                batches.by_ref().try_for_each(|packed| packed.map(drop))?;
                batches.close()
            }
        });
        Ok(())
    }

    fn rate(&self, seconds: f64) -> Rate {
        Rate {
            bytes: self.bytes,
            samples: self.part.samples,
            seconds,
            gb_per_s: self.bytes as f64 / seconds / 1e9,
            samples_per_s: self.part.samples as f64 / seconds,
        }
    }

    fn rates(&self, subject: &Subject, device_seconds: &[f64]) -> RungRates {
        let [packed, verified, decoded, packed_batches] = &subject.seconds;
        let shares: Vec<f64> =
            device_seconds.iter().zip(packed).map(|(device, packed)| device / packed).collect();
        RungRates {
            packed: self.rate(median(packed)),
            share_of_device: median(&shares),
            verified: self.rate(median(verified)),
            decoded: self.rate(median(decoded)),
            packed_batches: self.rate(median(packed_batches)),
        }
    }
}

/// Returns the median; for an even number of values, the mean of the middle two.
fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

/// Returns the bytes of a part's blocks as reads of the size used to measure the device.
fn pieces(part: &DatasetPart) -> Vec<ReadRequest> {
    let mut pieces: Vec<ReadRequest> = Vec::new();
    for block in &part.blocks {
        let (mut offset, end) = (block.offset, block.offset + u64::from(block.bytes));
        while offset < end {
            // Blocks are stored without gaps, so a read is filled from the next block.
            let open = pieces.last_mut().filter(|last| {
                last.file == block.file
                    && last.offset + u64::from(last.bytes) == offset
                    && last.bytes < DEVICE_READ_BYTES
            });
            let room = DEVICE_READ_BYTES - open.as_ref().map_or(0, |last| last.bytes);
            let bytes = u64::from(room).min(end - offset) as u32;
            match open {
                Some(last) => last.bytes += bytes,
                None => pieces.push(ReadRequest { file: block.file, offset, bytes }),
            }
            offset += u64::from(bytes);
        }
    }
    pieces
}

/// Asks the kernel to drop the files from the page cache.
fn drop_cache(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let file = File::open(path).context("open", path)?;
        // It is advice, so its result is ignored.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests;

    #[test]
    fn pieces_cover_the_blocks() {
        let dataset = tests::dataset(1000, 64);
        let part = Dataset::open(&dataset.dir()).unwrap().part(Part::Train).unwrap();
        let bytes: u64 = part.blocks.iter().map(|block| u64::from(block.bytes)).sum();
        let pieces = pieces(&part);
        assert_eq!(pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>(), bytes);
        assert!(pieces.windows(2).all(|pair| pair[0].offset + u64::from(pair[0].bytes) == pair[1].offset));
        assert!(pieces.iter().rev().skip(1).all(|piece| piece.bytes == DEVICE_READ_BYTES));
    }

    #[test]
    fn every_rung_is_measured_or_reports_why_not() {
        let dataset = tests::dataset(1000, 64);
        let options = ReadBenchOptions { bytes_max: 20_000, ..ReadBenchOptions::default() };
        let bench = bench_read(&dataset.dir(), &options).unwrap();
        assert_eq!(bench.rungs.iter().map(|rung| rung.rung).collect::<Vec<_>>(), Rung::ALL);
        for rung in &bench.rungs {
            match &rung.outcome {
                Ok(rates) => {
                    assert!(rates.decoded.samples_per_s > 0.0 && rates.decoded.samples < 1000);
                    assert_eq!(rates.packed_batches.samples, rates.decoded.samples);
                }
                Err(why) => eprintln!("skipped: {}: {why}", rung.rung),
            }
        }
        assert!(bench.device.rate.bytes <= 20_000);
    }

    #[test]
    fn rates_are_amounts_per_second() {
        let dataset = tests::dataset(1000, 64);
        let part = Dataset::open(&dataset.dir()).unwrap().part(Part::Train).unwrap();
        let block_bytes = u64::from(part.blocks[0].bytes);
        assert!(part.blocks.iter().all(|block| u64::from(block.bytes) == block_bytes));
        // Whole blocks that fit, and at least one.
        for (bytes_max, blocks) in [(3 * block_bytes - 1, 2), (3 * block_bytes, 3), (0, 1), (u64::MAX, 16)] {
            let prefix = prefix(part.clone(), bytes_max);
            assert_eq!((prefix.blocks.len(), prefix.samples), (blocks, 1000.min(64 * blocks as u64)));
        }
        let bench = Bench { bytes: 3_000_000_000, part: Arc::new(prefix(part, 2 * block_bytes)) };
        let rate = |seconds| Rate {
            bytes: 3_000_000_000,
            samples: 128,
            seconds,
            gb_per_s: 3.0 / seconds,
            samples_per_s: 128.0 / seconds,
        };
        let subject = Subject {
            io: IoOptions::default(),
            ring: None,
            seconds: [vec![4.0, 2.0, 8.0], vec![5.0; 3], vec![16.0; 3], vec![32.0; 3]],
        };
        let expected = RungRates {
            packed: rate(4.0),
            // The median of 2/4, 2/2 and 2/8.
            share_of_device: 0.5,
            verified: rate(5.0),
            decoded: rate(16.0),
            packed_batches: rate(32.0),
        };
        assert_eq!(bench.rates(&subject, &[2.0; 3]), expected);
        let none = ReadBenchOptions { passes: 0, ..ReadBenchOptions::default() };
        assert!(bench_read(&dataset.dir(), &none).unwrap_err().to_string().contains("at least one pass"));
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
