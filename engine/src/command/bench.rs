//! `rankine bench`: how fast is this machine at one of the things that a training does?

use std::fmt;
use std::path::PathBuf;

use clap::Subcommand;
use rankine::training::{self, TrainBenchOptions, TrainError};
use rankine_reader::Part;
use rankine_reader::bench::{ReadBench, ReadBenchOptions, bench_read};

use super::job::JobArgs;
use super::{CommandError, arguments, output};

/// Measure how fast this machine does one of the things that a training does
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Read(Read),
    Train(Train),
}

/// Read a dataset on every path that this machine allows, and compare it with the device itself
///
/// Rates are medians of several passes, made in turn, with the page cache dropped before each: of the device alone, of
/// blocks read, of blocks read and checked on one thread, and of samples unpacked into batches on one thread.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench read data/criteo
  rankine bench read data/criteo --part eval --json | jq .device.rate.gb_per_s")]
struct Read {
    /// The dataset's folder
    #[arg(value_name = "DATASET")]
    path: PathBuf,

    /// The part of the dataset: train or eval
    #[arg(long, default_value = "train", value_parser = arguments::part)]
    part: Part,

    /// Reads in flight
    #[arg(long, value_name = "N", default_value_t = ReadBenchOptions::default().depth)]
    queue_depth: u32,

    /// Read no more than this much, such as 512MiB or 2GiB
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = arguments::bytes)]
    bytes: u64,

    /// Passes; the median counts
    #[arg(long, value_name = "N", default_value_t = ReadBenchOptions::default().passes)]
    passes: u32,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Train on the first batches of a job, over and over, and tell how long a step takes
///
/// The batches lie ready where they are computed with: reading, copying and evaluating are not in it. What is learnt is
/// not kept.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench train configs/quickstart.toml
  rankine bench train job.toml --set device.kind=cuda --json | jq .ms_per_iteration")]
struct Train {
    #[command(flatten)]
    job: JobArgs,

    /// Steps before those that count
    #[arg(long, value_name = "N", default_value_t = TrainBenchOptions::default().warm_up)]
    warm_up: usize,

    /// Steps that count
    #[arg(long, value_name = "N", default_value_t = TrainBenchOptions::default().steps)]
    steps: usize,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    match args.what {
        What::Read(args) => run_read(args),
        What::Train(args) => run_train(args),
    }
}

fn run_train(args: Train) -> Result<(), CommandError> {
    let file = args.job.read()?;
    let options = TrainBenchOptions { warm_up: args.warm_up, steps: args.steps };
    let bench = training::bench_train(&file.job()?, &options, &mut ()).map_err(|error| match error {
        TrainError::Conflicts(conflicts) => file.error(&conflicts).into(),
        error => CommandError::from(error),
    })?;
    if args.json {
        return output::json(&bench);
    }
    output::text(format_args!(
        "device              {}\nms/iteration        {:.3} (10% below {:.3}, 1% from {:.3}), {} steps\n\
         samples/s           {:.0}, {} a step\n",
        bench.device,
        bench.ms_per_iteration,
        bench.ms_p10,
        bench.ms_p99,
        bench.steps,
        bench.samples_per_second,
        bench.batch_size
    ))
}

fn run_read(args: Read) -> Result<(), CommandError> {
    let options = ReadBenchOptions {
        part: args.part,
        depth: args.queue_depth,
        bytes_max: args.bytes,
        passes: args.passes,
    };
    let bench = bench_read(&args.path, &options)?;
    if args.json { output::json(&bench) } else { output::text(Table(&bench)) }
}

struct Table<'a>(&'a ReadBench);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadBench { part, depth, block_bytes, device, rungs } = self.0;
        writeln!(f, "{part} part, blocks of {block_bytes:.0} bytes, {depth} reads in flight")?;
        let raw = device.rate.gb_per_s;
        let reads = format!("{}, {} reads of {} KiB", device.rung, device.depth, device.read_bytes / 1024);
        writeln!(f, "device          {raw:>6.2} GB/s  ({reads})\n")?;
        writeln!(
            f,
            "{:<15} {:>11} {:>10} {:>14} {:>14} {:>16}",
            "", "read GB/s", "of device", "checked GB/s", "unpacked GB/s", "unpacked samp/s"
        )?;
        for rung in rungs {
            match &rung.outcome {
                Ok(rates) => writeln!(
                    f,
                    "{:<15} {:>11.2} {:>9.0}% {:>14.2} {:>14.2} {:>16.0}",
                    rung.rung,
                    rates.packed.gb_per_s,
                    100.0 * rates.share_of_device,
                    rates.verified.gb_per_s,
                    rates.decoded.gb_per_s,
                    rates.decoded.samples_per_s
                )?,
                Err(why) => writeln!(f, "{:<15} refused: {why}", rung.rung)?,
            }
        }
        Ok(())
    }
}
