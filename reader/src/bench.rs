//! How fast data comes here: from the device, through each rung, checked, and unpacked.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::dataset::{Dataset, DatasetPart, Part};
use crate::error::{Error, IoContext, Result};
use crate::io::{IoMode, IoOptions, ReadRequest, Reads, Rung, SlabRing};
use crate::stream::{BatchStream, BlockStream, Order, Plan, Position, StreamOptions};

/// Requests by which the device is measured: large enough to be cheap, small enough to keep a deep queue in step.
const DEVICE_READ_BYTES: u32 = 1 << 20;
/// The depths at which the device is measured; its best counts.
const DEVICE_DEPTHS: [u32; 5] = [4, 8, 16, 32, 64];

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct ReadBenchOptions {
    /// Which part is read.
    pub part: Part,
    /// Reads in flight.
    pub depth: u32,
    /// Blocks are read from the part's beginning until they have this many bytes.
    pub bytes_max: u64,
    /// Every measurement is made so many times, at least once, and the fastest counts.
    pub passes: u32,
}

impl Default for ReadBenchOptions {
    fn default() -> Self {
        Self { part: Part::Train, depth: IoOptions::default().depth, bytes_max: 2 << 30, passes: 2 }
    }
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadBench {
    /// The part that was read.
    pub part: Part,
    /// Reads in flight, but for the device's own rate.
    pub depth: u32,
    /// The mean length of a block, in bytes.
    pub block_bytes: f64,
    /// What the device gives to reads that nothing is done with.
    pub device: DeviceRate,
    /// One entry a rung, best first.
    pub rungs: Vec<RungBench>,
}

/// The rate of the device itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DeviceRate {
    /// The rung that it was measured with: the best that works here.
    pub rung: Rung,
    /// The depth at which it was fastest.
    pub depth: u32,
    /// Bytes a read.
    pub read_bytes: u32,
    /// The rate.
    pub rate: Rate,
}

/// The rates of one rung.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RungBench {
    /// The rung.
    pub rung: Rung,
    /// Its rates, or what refused it.
    pub outcome: Result<RungRates, String>,
}

/// How fast a rung brings blocks, by what is done with them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RungRates {
    /// Read, and nothing else.
    pub packed: Rate,
    /// Read and checked, on one thread.
    pub verified: Rate,
    /// Read, checked and unpacked into batches, on one thread.
    pub decoded: Rate,
}

/// An amount and the time that it took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    /// Bytes read.
    pub bytes: u64,
    /// Samples in them.
    pub samples: u64,
    /// Seconds, from opening the files to the last byte.
    pub seconds: f64,
    /// 10^9 bytes a second.
    pub gb_per_s: f64,
    /// Samples a second.
    pub samples_per_s: f64,
}

/// Measures how fast a dataset is read. The page cache is asked to drop the files before each measurement, so that the
/// rungs which go through it are measured at the disk.
///
/// # Errors
/// Where the dataset cannot be read; a rung that is refused is no error but an outcome.
pub fn bench_read(dir: &Path, options: &ReadBenchOptions) -> Result<ReadBench> {
    if options.passes == 0 {
        return Err(Error::invalid("a measurement needs at least one pass"));
    }
    let part = Arc::new(prefix(Dataset::open(dir)?.part(options.part)?, options.bytes_max));
    let bench = Bench { bytes: part.blocks.iter().map(|block| u64::from(block.bytes)).sum(), part, options };
    let device = bench.device()?;
    let mut rungs = Vec::new();
    for rung in Rung::ALL {
        let io = IoOptions { mode: rung.into(), depth: options.depth };
        let outcome = match bench.open(&io, bench.ring(&io)?) {
            Ok(reads) => Ok(bench.rung(&io, reads.close())?),
            Err(error) => Err(error.to_string()),
        };
        rungs.push(RungBench { rung, outcome });
    }
    let block_bytes = bench.bytes as f64 / bench.part.blocks.len() as f64;
    Ok(ReadBench { part: options.part, depth: options.depth, block_bytes, device, rungs })
}

/// The first blocks of a part: as many as have `bytes_max` bytes, and one at least.
fn prefix(mut part: DatasetPart, bytes_max: u64) -> DatasetPart {
    let mut bytes = 0;
    let whole = part.blocks.iter().take_while(|block| {
        bytes += u64::from(block.bytes);
        bytes <= bytes_max
    });
    let blocks = whole.count().max(1);
    part.blocks.truncate(blocks);
    part.samples = part.samples.min(blocks as u64 * u64::from(part.block_samples));
    part
}

struct Bench<'a> {
    part: Arc<DatasetPart>,
    bytes: u64,
    options: &'a ReadBenchOptions,
}

impl Bench<'_> {
    /// Runs a measurement as often as asked, from cold files each time, and takes the fastest.
    fn fastest(&self, mut run: impl FnMut() -> Result<()>) -> Result<Rate> {
        let mut seconds = f64::INFINITY;
        for _ in 0..self.options.passes {
            drop_cache(&self.part.files)?;
            let start = Instant::now();
            run()?;
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        Ok(Rate {
            bytes: self.bytes,
            samples: self.part.samples,
            seconds,
            gb_per_s: self.bytes as f64 / seconds / 1e9,
            samples_per_s: self.part.samples as f64 / seconds,
        })
    }

    fn device(&self) -> Result<DeviceRate> {
        let mut best: Option<DeviceRate> = None;
        for depth in DEVICE_DEPTHS {
            let io = IoOptions { mode: IoMode::Auto, depth };
            let mut rung = Rung::Mmap;
            // Memory that was touched before: the first touch of a page is not the device's time.
            let mut ring = Some(SlabRing::allocate(depth as usize + 2, DEVICE_READ_BYTES as usize)?);
            let rate = self.fastest(|| {
                let ring_now = ring.take().expect("the ring came back from the pass before");
                let requests = pieces(&self.part).into_iter();
                let mut reads = Reads::open(self.part.files.clone(), requests, ring_now, &io)?;
                rung = reads.rung();
                reads.by_ref().try_for_each(|slab| slab.map(drop))?;
                ring = Some(reads.close());
                Ok(())
            })?;
            if best.is_none_or(|best| best.rate.seconds > rate.seconds) {
                best = Some(DeviceRate { rung, depth, read_bytes: DEVICE_READ_BYTES, rate });
            }
        }
        Ok(best.expect("it was measured at several depths"))
    }

    fn ring(&self, io: &IoOptions) -> Result<SlabRing> {
        let (slabs, slab_bytes) = BlockStream::ring_for(&self.part, io);
        SlabRing::allocate(slabs, slab_bytes)
    }

    fn open(&self, io: &IoOptions, ring: SlabRing) -> Result<Reads> {
        let requests: Vec<ReadRequest> = self.part.blocks.iter().map(|&block| block.into()).collect();
        Reads::open(self.part.files.clone(), requests.into_iter(), ring, io)
    }

    /// Every pass reads into the same ring, as the streams of a run do: locking and first touching its pages is no
    /// part of the rate.
    fn rung(&self, io: &IoOptions, ring: SlabRing) -> Result<RungRates> {
        const BACK: &str = "the ring came back from the pass before";
        let mut ring = Some(ring);
        let packed = self.fastest(|| {
            let mut reads = self.open(io, ring.take().expect(BACK))?;
            reads.by_ref().try_for_each(|slab| slab.map(drop))?;
            ring = Some(reads.close());
            Ok(())
        })?;
        let verified = self.fastest(|| {
            let plan = Plan::new(&self.part, Order::File, Some(1), Position::default())?;
            let part = Arc::clone(&self.part);
            let mut blocks = BlockStream::with_ring(part, plan, io, ring.take().expect(BACK))?;
            blocks.by_ref().try_for_each(|block| block.map(drop))?;
            ring = Some(blocks.close());
            Ok(())
        })?;
        let batch_size = self.part.block_samples as usize;
        let options = StreamOptions { io: *io, ..StreamOptions::one_epoch(batch_size) };
        let decoded = self.fastest(|| {
            let part = Arc::clone(&self.part);
            let mut batches = BatchStream::with_ring(part, &options, ring.take().expect(BACK))?;
            batches.by_ref().try_for_each(|batch| batch.map(drop))?;
            ring = Some(batches.close());
            Ok(())
        })?;
        Ok(RungRates { packed, verified, decoded })
    }
}

/// The bytes of a part's blocks, in reads of the size by which the device is measured.
fn pieces(part: &DatasetPart) -> Vec<ReadRequest> {
    let mut pieces: Vec<ReadRequest> = Vec::new();
    for block in &part.blocks {
        let (mut offset, end) = (block.offset, block.offset + u64::from(block.bytes));
        while offset < end {
            // Blocks follow each other without gaps: what is left of a read is filled from the next.
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

/// Asks the kernel to drop what it has of the files in memory.
fn drop_cache(files: &[PathBuf]) -> Result<()> {
    for path in files {
        let file = File::open(path).context("open", path)?;
        // SAFETY: the descriptor is open, and the call touches no memory of this process. It is advice: what it
        // returns changes nothing.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn pieces_cover_the_blocks() {
        let dataset = testing::dataset(1000, 64);
        let part = Dataset::open(&dataset.dir()).unwrap().part(Part::Train).unwrap();
        let bytes: u64 = part.blocks.iter().map(|block| u64::from(block.bytes)).sum();
        let pieces = pieces(&part);
        assert_eq!(pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>(), bytes);
        assert!(pieces.windows(2).all(|pair| pair[0].offset + u64::from(pair[0].bytes) == pair[1].offset));
        assert!(pieces.iter().rev().skip(1).all(|piece| piece.bytes == DEVICE_READ_BYTES));
    }

    #[test]
    fn every_rung_is_measured_or_says_why_not() {
        let dataset = testing::dataset(1000, 64);
        let options = ReadBenchOptions { bytes_max: 20_000, ..ReadBenchOptions::default() };
        let bench = bench_read(&dataset.dir(), &options).unwrap();
        assert_eq!(bench.rungs.iter().map(|rung| rung.rung).collect::<Vec<_>>(), Rung::ALL);
        for rung in &bench.rungs {
            match &rung.outcome {
                Ok(rates) => assert!(rates.decoded.samples_per_s > 0.0 && rates.decoded.samples < 1000),
                Err(why) => eprintln!("skipped: {}: {why}", rung.rung),
            }
        }
        assert!(bench.device.rate.bytes <= 20_000);
    }

    /// The figures of a real disk: `BENCH_DIR=/some/folder cargo test --release -p rankine-reader -- --ignored
    /// --nocapture figures`. It writes some GB of random samples there.
    #[test]
    #[ignore = "writes gigabytes and measures the disk"]
    fn figures() {
        let dir = std::env::var_os("BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let dataset = testing::large_dataset(&dir, 3 << 30);
        let options = ReadBenchOptions { bytes_max: 1 << 30, ..ReadBenchOptions::default() };
        let bench = bench_read(&dataset, &options).unwrap();
        eprintln!("{}", serde_json::to_string_pretty(&bench).unwrap());
    }
}
