//! `rankine bench`: how fast is this machine at one of the things that a training does?

use std::fmt;
use std::path::PathBuf;

use clap::Subcommand;
use rankine::launch::Seat;
use rankine::overlap::Overlap;
use rankine::training::{
    self, Ceilings, EvalBench, EvalBenchOptions, Input, MemoryPart, Phase, Reading, Times, TraceSummary,
    TrainBench, TrainBenchOptions,
};
use rankine_reader::Part;
use rankine_reader::bench::{ReadBench, ReadBenchOptions, bench_read};

use super::job::JobArgs;
use super::{CommandError, arguments, launch, output};

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
    Eval(Eval),
}

/// Read a dataset on every path that this machine allows, and compare it with the device itself
///
/// Rates are medians of several passes, made in turn, with the page cache dropped before each: of the device alone, of
/// blocks read, of blocks read and checked on one thread, of samples unpacked into batches on one thread, and of
/// samples shuffled into batches that GPUs unpack, on the threads that feed these.
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

/// Train a job for some steps, and tell how long an iteration takes and where the time goes
///
/// Batches are read as training reads them, epoch after epoch; with --resident they lie ready where they are computed
/// with. On a GPU the parts of an iteration are timed too, each alone, beside the bytes that it must at least move, its
/// operations, and the share of what the GPU reaches at most: a copy of memory or a large product, measured here and
/// now. Evaluating is not in it, and what is learnt is not kept.
///
/// To leave the disk out, have the dataset in memory: --set data.dir=/dev/shm/NAME.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench train configs/quickstart.toml --steps 200
  rankine bench train configs/bench-dlrm.toml --set device.kind=cuda --set data.dir=/dev/shm/dlrm
  rankine bench train job.toml --resident --trace trace.json
  rankine bench train job.toml --json | jq '.phases[] | {name, ms, roofline_share}'")]
struct Train {
    #[command(flatten)]
    job: JobArgs,

    /// Steps before those that count
    #[arg(long, value_name = "N", default_value_t = TrainBenchOptions::default().warm_up)]
    warm_up: usize,

    /// Steps that count
    #[arg(long, value_name = "N", default_value_t = TrainBenchOptions::default().steps)]
    steps: usize,

    /// Take turns with the first batches, which lie ready, instead of reading
    #[arg(long)]
    resident: bool,

    /// Write what the GPU does in a few iterations to a file, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Do something after the rest that is done beside it otherwise, to see what that gains: input, look-ups, routes,
    /// weight-gradients, row-gradients, gradient-sums or dense-update. On GPUs; losses stay the same to the bit
    #[arg(long, value_name = "OVERLAP", value_delimiter = ',', value_parser = arguments::overlap)]
    without: Vec<Overlap>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    launch: launch::Args,
}

/// Evaluate a job's model again and again, and tell how long that takes
///
/// The model has learnt nothing. The first evaluation reads; where the evaluation part fits on the GPUs it stays there,
/// and the others read nothing, as in a training that evaluates now and then. Each ends with its metrics.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench eval configs/quickstart.toml
  rankine bench eval configs/bench-dlrm.toml --set device.kind=cuda --set data.generate.eval_samples=89137319 \\
      --set data.dir=/dev/shm/dlrm --set eval.batch_size=65536")]
struct Eval {
    #[command(flatten)]
    job: JobArgs,

    /// Evaluations after the first one; the median counts
    #[arg(long, value_name = "N", default_value_t = EvalBenchOptions::default().passes)]
    passes: usize,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    launch: launch::Args,
}

impl Args {
    /// What is said of several processes, where there can be such.
    pub(crate) fn launch(&self) -> Option<&launch::Args> {
        match &self.what {
            What::Read(_) => None,
            What::Train(train) => Some(&train.launch),
            What::Eval(eval) => Some(&eval.launch),
        }
    }
}

pub(crate) fn run(args: Args, seat: &Seat) -> Result<(), CommandError> {
    match args.what {
        What::Read(args) => run_read(args),
        What::Train(args) => run_train(args, seat),
        What::Eval(args) => run_eval(args, seat),
    }
}

fn run_train(args: Train, seat: &Seat) -> Result<(), CommandError> {
    let file = args.job.read()?;
    let job = file.job()?;
    let processes = args.launch.form(seat, &job.guard)?;
    let Train { warm_up, steps, resident, trace, without, json, .. } = args;
    let options = TrainBenchOptions { warm_up, steps, resident, trace, without };
    let bench = training::bench_train(&job, &options, &processes, &mut ());
    let bench = launch::outcome(&processes, &file, bench)?;
    if !processes.is_first() {
        return Ok(());
    }
    if json { output::json(&bench) } else { output::text(Iteration(&bench)) }
}

fn run_eval(args: Eval, seat: &Seat) -> Result<(), CommandError> {
    let file = args.job.read()?;
    let job = file.job()?;
    let processes = args.launch.form(seat, &job.guard)?;
    let options = EvalBenchOptions { passes: args.passes };
    let bench = training::bench_eval(&job, &options, &processes, &mut ());
    let bench = launch::outcome(&processes, &file, bench)?;
    if !processes.is_first() {
        return Ok(());
    }
    if args.json { output::json(&bench) } else { output::text(Passes(&bench)) }
}

struct Passes<'a>(&'a EvalBench);

impl fmt::Display for Passes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bench = self.0;
        let EvalBench { device, samples, batch_size, first_seconds, seconds, seconds_median, .. } = bench;
        writeln!(f, "device              {device}")?;
        writeln!(f, "samples             {samples}, {batch_size} at a time")?;
        writeln!(f, "first evaluation    {first_seconds:.4} s")?;
        let passes = seconds.len();
        writeln!(f, "others              {seconds_median:.4} s, the median of {passes}")?;
        writeln!(f, "samples/s           {:.0}", bench.samples_per_second)?;
        match bench.metrics.first.and_then(|metrics| metrics.auc) {
            Some(auc) => writeln!(f, "auc                 {auc:.5}"),
            None => Ok(()),
        }
    }
}

struct Iteration<'a>(&'a TrainBench);

impl fmt::Display for Iteration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bench = self.0;
        let times = |times: &Times| {
            let Times { ms_per_iteration, ms_p10, ms_p99, ms_mean } = times;
            format!(
                "{ms_per_iteration:.3} (10% below {ms_p10:.3}, 1% from {ms_p99:.3}; {ms_mean:.3} on average)"
            )
        };
        writeln!(f, "device              {}", bench.device)?;
        match &bench.input {
            Input::Resident { batches } => {
                writeln!(f, "input               {batches} batches that lie ready")?
            }
            Input::Read(Reading { rung, samples, reader_wait_share }) => writeln!(
                f,
                "input               {samples} samples read with {rung}; waiting for them {:.1}% of the time",
                100.0 * reader_wait_share
            )?,
        }
        if !bench.without.is_empty() {
            writeln!(f, "not beside the rest {}", bench.without.join(", "))?;
        }
        writeln!(f, "ms/iteration        {}, {} steps", times(&bench.iteration), bench.steps)?;
        if let Some(on_device) = &bench.on_device {
            writeln!(f, "  on the GPU        {}", times(on_device))?;
        }
        writeln!(f, "samples/s           {:.0}, {} a step", bench.samples_per_second, bench.batch_size)?;
        if let (Some(begin), Some(end)) = (bench.loss_at_begin, bench.loss_at_end) {
            writeln!(f, "loss                {begin:.5} at the beginning, {end:.5} at the end")?;
        }
        if let Some(trace) = &bench.trace {
            let TraceSummary { path, iterations, kernels_per_iteration, kernel_free_share } = trace;
            writeln!(
                f,
                "trace               {path}: {iterations} iterations of {kernels_per_iteration:.0} kernels; none runs \
                 in {:.1}% of the time",
                100.0 * kernel_free_share
            )?;
        }
        if let Some(memory) = &bench.memory {
            writeln!(f, "\n{:<26} {:>10}", "memory", "GB")?;
            let rows = memory.parts.iter().map(|MemoryPart { purpose, bytes }| (purpose.as_str(), *bytes));
            let all = [("free beside it", memory.free_bytes), ("of the GPU", memory.total_bytes)];
            for (purpose, bytes) in rows.chain(all) {
                writeln!(f, "{purpose:<26} {:>10.3}", bytes as f64 / 1e9)?;
            }
        }
        let Some(Ceilings { gb_per_s, tflop_per_s, fp8_tflop_per_s }) = bench.ceilings else { return Ok(()) };
        writeln!(
            f,
            "\n{:<26} {:>10} {:>10} {:>10} {:>10}",
            "phase, alone", "ms", "GB/s", "TFLOP/s", "roofline"
        )?;
        for phase in &bench.phases {
            let Phase { name, ms, gb_per_s, tflop_per_s, roofline_share, .. } = phase;
            let share = 100.0 * roofline_share;
            writeln!(f, "{name:<26} {ms:>10.3} {gb_per_s:>10.0} {tflop_per_s:>10.1} {share:>9.0}%")?;
        }
        writeln!(f, "{:<26} {:>10} {gb_per_s:>10.0} {tflop_per_s:>10.1}", "at most", "")?;
        fp8_tflop_per_s
            .map_or(Ok(()), |fp8| writeln!(f, "{:<26} {:>10} {:>10} {fp8:>10.1}", "in fp8", "", ""))
    }
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
            "{:<15} {:>11} {:>10} {:>14} {:>14} {:>16} {:>16}",
            "",
            "read GB/s",
            "of device",
            "checked GB/s",
            "unpacked GB/s",
            "unpacked samp/s",
            "for GPUs samp/s"
        )?;
        for rung in rungs {
            match &rung.outcome {
                Ok(rates) => writeln!(
                    f,
                    "{:<15} {:>11.2} {:>9.0}% {:>14.2} {:>14.2} {:>16.0} {:>16.0}",
                    rung.rung,
                    rates.packed.gb_per_s,
                    100.0 * rates.share_of_device,
                    rates.verified.gb_per_s,
                    rates.decoded.gb_per_s,
                    rates.decoded.samples_per_s,
                    rates.packed_batches.samples_per_s
                )?,
                Err(why) => writeln!(f, "{:<15} refused: {why}", rung.rung)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rankine::evaluation::{EvalMetrics, Metrics};
    use rankine::training::DeviceMemory;
    use rankine_reader::bench::{DeviceRate, Rate, RungBench, RungRates};
    use rankine_reader::io::Rung;

    use super::*;

    fn trained() -> TrainBench {
        let times = |first| Times {
            ms_per_iteration: first,
            ms_p10: first + 0.125,
            ms_p99: first + 0.25,
            ms_mean: first + 0.5,
        };
        TrainBench {
            name: "job".into(),
            device: "the CPU".into(),
            batch_size: 300,
            without: Vec::new(),
            embedding_parameters: 7,
            dense_parameters: 8,
            input: Input::Read(Reading { rung: "pread".into(), samples: 1000, reader_wait_share: 0.123 }),
            steps: 9,
            iteration: times(1.0),
            on_device: None,
            samples_per_second: 12_345.6,
            seconds: 2.5,
            loss_at_begin: Some(0.7),
            loss_at_end: Some(0.6),
            memory: None,
            ceilings: None,
            phases: Vec::new(),
            trace: None,
        }
    }

    #[test]
    fn a_benchmark_of_training_is_told_line_by_line() {
        let text = "device              the CPU\n\
                    input               1000 samples read with pread; waiting for them 12.3% of the time\n\
                    ms/iteration        1.000 (10% below 1.125, 1% from 1.250; 1.500 on average), 9 steps\n\
                    samples/s           12346, 300 a step\n\
                    loss                0.70000 at the beginning, 0.60000 at the end\n";
        assert_eq!(Iteration(&trained()).to_string(), text);
        let part = |purpose: &str, bytes| MemoryPart { purpose: purpose.into(), bytes };
        let parts = vec![part("tables", 2_000_000_000), part("routes", 1_000_000)];
        let (gb_per_s, tflop_per_s, roofline_share) = (2000.0, 100.0, 0.5);
        let phase =
            Phase { name: "update", ms: 0.25, bytes: 1, flops: 2, gb_per_s, tflop_per_s, roofline_share };
        let on_gpu = TrainBench {
            input: Input::Resident { batches: 3 },
            without: vec!["routes".into(), "input".into()],
            on_device: Some(trained().iteration),
            loss_at_begin: None,
            memory: Some(DeviceMemory { parts, free_bytes: 3_000_000_000, total_bytes: 5_001_000_000 }),
            ceilings: Some(Ceilings { gb_per_s: 4000.0, tflop_per_s: 700.0, fp8_tflop_per_s: Some(1300.0) }),
            phases: vec![phase],
            trace: Some(TraceSummary {
                path: "t.json".into(),
                iterations: 4,
                kernels_per_iteration: 55.0,
                kernel_free_share: 0.25,
            }),
            ..trained()
        };
        let times = "1.000 (10% below 1.125, 1% from 1.250; 1.500 on average)";
        assert_eq!(
            Iteration(&on_gpu).to_string(),
            format!(
                "device              the CPU\ninput               3 batches that lie ready\n\
                 not beside the rest routes, input\nms/iteration        {times}, 9 steps\n  on the GPU        {times}\n\
                 samples/s           12346, 300 a step\n\
                 trace               t.json: 4 iterations of 55 kernels; none runs in 25.0% of the time\n\n\
                 memory                             GB\ntables                          2.000\n\
                 routes                          0.001\nfree beside it                  3.000\n\
                 of the GPU                      5.001\n\n\
                 phase, alone                       ms       GB/s    TFLOP/s   roofline\n\
                 update                          0.250       2000      100.0        50%\n\
                 at most                                     4000      700.0\n\
                 in fp8                                               1300.0\n"
            )
        );
    }

    #[test]
    fn a_benchmark_of_evaluations_is_told_line_by_line() {
        let metrics = Metrics {
            samples: 500,
            auc: Some(0.75),
            log_loss: 0.5,
            normalized_entropy: None,
            calibration: None,
            label_rate: 0.25,
        };
        let bench = EvalBench {
            name: "job".into(),
            device: "the CPU".into(),
            samples: 500,
            batch_size: 64,
            first_seconds: 1.5,
            seconds: vec![0.5, 0.25, 0.125],
            seconds_median: 0.25,
            samples_per_second: 2000.0,
            metrics: EvalMetrics { first: Some(metrics), ..EvalMetrics::default() },
            memory: None,
        };
        let text = "device              the CPU\nsamples             500, 64 at a time\n\
                    first evaluation    1.5000 s\nothers              0.2500 s, the median of 3\n\
                    samples/s           2000\nauc                 0.75000\n";
        assert_eq!(Passes(&bench).to_string(), text);
    }

    #[test]
    fn a_benchmark_of_reading_is_told_rung_by_rung() {
        let rate =
            |gb_per_s, samples_per_s| Rate { bytes: 1, samples: 2, seconds: 3.0, gb_per_s, samples_per_s };
        let rates = RungRates {
            packed: rate(1.5, 1.0),
            share_of_device: 0.75,
            verified: rate(1.25, 2.0),
            decoded: rate(0.5, 1234.0),
            packed_batches: rate(0.25, 5678.0),
        };
        let device = DeviceRate { rung: Rung::Pread, depth: 8, read_bytes: 1 << 18, rate: rate(2.0, 3.0) };
        let rungs = vec![
            RungBench { rung: Rung::Pread, outcome: Ok(rates) },
            RungBench { rung: Rung::Mmap, outcome: Err("no".into()) },
        ];
        let bench = ReadBench { part: Part::Eval, depth: 16, block_bytes: 1000.4, device, rungs };
        let text = Table(&bench).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "eval part, blocks of 1000 bytes, 16 reads in flight");
        assert_eq!(lines[1], "device            2.00 GB/s  (pread, 8 reads of 256 KiB)");
        let cells: Vec<_> = lines[4].split_whitespace().collect();
        assert_eq!(cells, ["pread", "1.50", "75%", "1.25", "0.50", "1234", "5678"]);
        assert_eq!(lines[5], "mmap            refused: no");
    }
}
