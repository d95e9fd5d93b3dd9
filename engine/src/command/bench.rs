//! `rankine bench`: measures how fast this machine reads, trains and evaluates.

use std::fmt::{self, Display};
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::Subcommand;
use rankine::job::ThreadCount;
use rankine::launch::ProcessRank;
use rankine::overlap::Overlap;
use rankine::training::{
    self, Ceilings, EvalBench, EvalBenchOptions, Input, MemoryPart, Phase, Reading, Times, TraceSummary,
    TrainBench, TrainBenchOptions,
};
use rankine_reader::Part;
use rankine_reader::bench::{ReadBench, ReadBenchOptions, bench_read};

use super::job::{JobArgs, setting};
use super::table::TextTable;
use super::{CommandError, arguments, launch, output};

/// Measure how fast this machine reads, trains or evaluates
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Read(Read),
    Train(Train),
    Eval(Eval),
}

/// Read a dataset in every mode that this machine supports, and compare with the speed of the disk
///
/// Reports medians of several interleaved passes; the page cache is dropped before each pass. The passes measure the
/// disk alone, reading blocks, reading and checking blocks on one thread, unpacking samples into batches on one
/// thread, and shuffling samples into batches that GPUs unpack, on all feeding threads.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench read data/criteo
  rankine bench read data/criteo --part eval --json | jq .device.rate.gb_per_s")]
struct Read {
    /// Dataset folder
    #[arg(value_name = "DATASET")]
    path: PathBuf,

    /// Part of the dataset: train or eval
    #[arg(long, default_value = "train", value_parser = arguments::part)]
    part: Part,

    /// Number of reads in flight
    #[arg(long, value_name = "N", default_value_t = ReadBenchOptions::default().depth)]
    queue_depth: u32,

    /// Maximum amount of data to read, such as 512MiB or 2GiB
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = arguments::bytes)]
    bytes: u64,

    /// Number of passes; the median is reported
    #[arg(long, value_name = "N", default_value_t = ReadBenchOptions::default().passes)]
    passes: u32,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Train a job for some steps, and report the time of a step and of its parts
///
/// Batches are read as in training, epoch after epoch; with --resident they are already in the memory of the device. On
/// a GPU, each part of a step is also timed alone, and compared with the bytes that it must move, its operations, and
/// the limits of the GPU: the speeds of a memory copy and of a large product, which are measured at the start. There
/// are no evaluations, and the model is not saved.
///
/// To exclude the disk, copy the dataset to memory: --set data.dir=/dev/shm/NAME.
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

    /// Number of warm-up steps, which are not timed
    #[arg(long, value_name = "N", default_value_t = TrainBenchOptions::default().warm_up)]
    warm_up: usize,

    /// Number of timed steps
    #[arg(long, value_name = "N", default_value_t = TrainBenchOptions::default().steps)]
    steps: usize,

    /// Cycle through the first batches, kept in device memory, instead of reading
    #[arg(long)]
    resident: bool,

    /// Write a trace of a few steps on the GPU to a file, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Switch off overlaps, to measure what they gain: input, look-ups, routes, weight-gradients, row-gradients,
    /// gradient-sums or dense-update. Only on GPUs; losses stay bitwise identical
    #[arg(long, value_name = "OVERLAP", value_delimiter = ',', value_parser = arguments::overlap)]
    without: Vec<Overlap>,

    /// Number of CPU threads, the same as --set device.threads=N
    #[arg(long, value_name = "N", value_parser = arguments::threads)]
    threads: Option<ThreadCount>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    launch: launch::Args,
}

/// Evaluate a job's model repeatedly, and report the time
///
/// The model is not trained. The first evaluation reads the evaluation part. If it fits into GPU memory, it is kept
/// there, and later evaluations read nothing, as in training. The time includes the metrics.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine bench eval configs/quickstart.toml
  rankine bench eval configs/bench-dlrm.toml --set device.kind=cuda --set data.generate.eval_samples=89137319 \\
      --set data.dir=/dev/shm/dlrm --set eval.batch_size=65536")]
struct Eval {
    #[command(flatten)]
    job: JobArgs,

    /// Number of evaluations after the first one; the median is reported
    #[arg(long, value_name = "N", default_value_t = EvalBenchOptions::default().passes)]
    passes: usize,

    /// Number of CPU threads, the same as --set device.threads=N
    #[arg(long, value_name = "N", value_parser = arguments::threads)]
    threads: Option<ThreadCount>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    launch: launch::Args,
}

impl Args {
    /// Returns the arguments about processes, for commands that can run in several.
    pub(crate) fn launch(&self) -> Option<&launch::Args> {
        match &self.command {
            Command::Read(_) => None,
            Command::Train(train) => Some(&train.launch),
            Command::Eval(eval) => Some(&eval.launch),
        }
    }
}

pub(crate) fn run(args: Args, process: &ProcessRank) -> Result<(), CommandError> {
    match args.command {
        Command::Read(args) => run_read(args),
        Command::Train(args) => run_train(args, process),
        Command::Eval(args) => run_eval(args, process),
    }
}

fn run_train(args: Train, process: &ProcessRank) -> Result<(), CommandError> {
    let file = args.job.read_with(setting("device.threads", args.threads))?;
    let job = file.job()?;
    let processes = args.launch.form(process, &job.guard)?;
    let Train { warm_up, steps, resident, trace, without, json, .. } = args;
    let options = TrainBenchOptions { warm_up, steps, resident, trace, without };
    let bench = training::bench_train(&job, &options, &processes, &mut ());
    let bench = launch::outcome(&processes, &file, bench)?;
    if !processes.is_first() {
        return Ok(());
    }
    if json { output::json(&bench) } else { output::text(Iteration(&bench)) }
}

fn run_eval(args: Eval, process: &ProcessRank) -> Result<(), CommandError> {
    let file = args.job.read_with(setting("device.threads", args.threads))?;
    let job = file.job()?;
    let processes = args.launch.form(process, &job.guard)?;
    let options = EvalBenchOptions { passes: args.passes };
    let bench = training::bench_eval(&job, &options, &processes, &mut ());
    let bench = launch::outcome(&processes, &file, bench)?;
    if !processes.is_first() {
        return Ok(());
    }
    if args.json { output::json(&bench) } else { output::text(Passes(&bench)) }
}

struct Passes<'a>(&'a EvalBench);

impl Display for Passes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bench = self.0;
        let EvalBench { device, samples, batch_size, first_seconds, seconds, seconds_median, .. } = bench;
        writeln!(f, "device              {device}")?;
        writeln!(f, "samples             {samples}, in batches of {batch_size}")?;
        writeln!(f, "first evaluation    {first_seconds:.4} s")?;
        let passes = seconds.len();
        writeln!(f, "later evaluations   {seconds_median:.4} s, median of {passes}")?;
        writeln!(f, "samples/s           {:.0}", bench.samples_per_second)?;
        match bench.metrics.first.and_then(|metrics| metrics.auc) {
            Some(auc) => writeln!(f, "auc                 {auc:.5}"),
            None => Ok(()),
        }
    }
}

struct Iteration<'a>(&'a TrainBench);

impl Display for Iteration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bench = self.0;
        let times = |times: &Times| {
            let Times { ms_per_iteration, ms_p10, ms_p99, ms_mean } = times;
            format!("{ms_per_iteration:.3} (p10 {ms_p10:.3}, p99 {ms_p99:.3}, mean {ms_mean:.3})")
        };
        writeln!(f, "device              {}", bench.device)?;
        match &bench.input {
            Input::Resident { batches } => {
                writeln!(f, "input               {batches} batches in device memory")?
            }
            Input::Read(Reading { rung, samples, reader_wait_share }) => writeln!(
                f,
                "input               {samples} samples read with {rung}; waited {:.1}% of the time",
                100.0 * reader_wait_share
            )?,
        }
        if !bench.without.is_empty() {
            writeln!(f, "not overlapped      {}", bench.without.join(", "))?;
        }
        writeln!(f, "ms/iteration        {}, {} steps", times(&bench.iteration), bench.steps)?;
        if let Some(on_device) = &bench.on_device {
            writeln!(f, "  on the GPU        {}", times(on_device))?;
        }
        writeln!(f, "samples/s           {:.0}, {} per step", bench.samples_per_second, bench.batch_size)?;
        if let (Some(begin), Some(end)) = (bench.loss_at_begin, bench.loss_at_end) {
            writeln!(f, "loss                {begin:.5} at the start, {end:.5} at the end")?;
        }
        if let Some(trace) = &bench.trace {
            let TraceSummary { path, iterations, kernels_per_iteration, kernel_free_share } = trace;
            writeln!(
                f,
                "trace               {path}: {iterations} steps of {kernels_per_iteration:.0} kernels; no kernel runs \
                 {:.1}% of the time",
                100.0 * kernel_free_share
            )?;
        }
        if let Some(memory) = &bench.memory {
            let rows = memory.parts.iter().map(|MemoryPart { purpose, bytes }| (purpose.as_str(), *bytes));
            let all = [("free", memory.free_bytes), ("total", memory.total_bytes)];
            let mut lines = TextTable::new(["memory", ""], &[0]);
            for (purpose, bytes) in rows.chain(all) {
                lines.row([&purpose, &ByteSize(bytes)]);
            }
            write!(f, "\n{lines}")?;
        }
        let Some(Ceilings { gb_per_s, tflop_per_s, fp8_tflop_per_s }) = bench.ceilings else { return Ok(()) };
        let mut lines = TextTable::new(["part, timed alone", "ms", "GB/s", "TFLOP/s", "roofline"], &[0]);
        for phase in &bench.phases {
            let Phase { name, ms, gb_per_s, tflop_per_s, roofline_share, .. } = phase;
            let share = 100.0 * roofline_share;
            lines.row([
                name,
                &format_args!("{ms:.3}"),
                &format_args!("{gb_per_s:.0}"),
                &format_args!("{tflop_per_s:.1}"),
                &format_args!("{share:.0}%"),
            ]);
        }
        lines.row([&"limit", &"", &format_args!("{gb_per_s:.0}"), &format_args!("{tflop_per_s:.1}")]);
        if let Some(fp8) = fp8_tflop_per_s {
            lines.row([&"limit in fp8", &"", &"", &format_args!("{fp8:.1}")]);
        }
        write!(f, "\n{lines}")
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

impl Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadBench { part, depth, block_bytes, device, rungs } = self.0;
        writeln!(f, "{part} part, blocks of {block_bytes:.0} bytes, {depth} reads in flight")?;
        let raw = device.rate.gb_per_s;
        let reads =
            format!("{}, {} reads of {}", device.rung, device.depth, ByteSize(device.read_bytes.into()));
        writeln!(f, "device          {raw:>6.2} GB/s  ({reads})\n")?;
        let headings = [
            "",
            "read GB/s",
            "of device",
            "checked GB/s",
            "unpacked GB/s",
            "unpacked samp/s",
            "for GPUs samp/s",
        ];
        let mut lines = TextTable::new(headings, &[0]);
        let mut refused = Vec::new();
        for rung in rungs {
            match &rung.outcome {
                Ok(rates) => lines.row([
                    &rung.rung,
                    &format_args!("{:.2}", rates.packed.gb_per_s),
                    &format_args!("{:.0}%", 100.0 * rates.share_of_device),
                    &format_args!("{:.2}", rates.verified.gb_per_s),
                    &format_args!("{:.2}", rates.decoded.gb_per_s),
                    &format_args!("{:.0}", rates.decoded.samples_per_s),
                    &format_args!("{:.0}", rates.packed_batches.samples_per_s),
                ]),
                Err(why) => refused.push(format!("{}: refused: {why}", rung.rung)),
            }
        }
        lines.fmt(f)?;
        refused.iter().try_for_each(|line| writeln!(f, "{line}"))
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
    fn a_benchmark_of_training_has_these_lines() {
        let text = "device              the CPU\n\
                    input               1000 samples read with pread; waited 12.3% of the time\n\
                    ms/iteration        1.000 (p10 1.125, p99 1.250, mean 1.500), 9 steps\n\
                    samples/s           12346, 300 per step\n\
                    loss                0.70000 at the start, 0.60000 at the end\n";
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
            memory: Some(DeviceMemory {
                gpu: 0,
                uuid: String::new(),
                parts,
                free_bytes: 3_000_000_000,
                total_bytes: 5_001_000_000,
            }),
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
        let times = "1.000 (p10 1.125, p99 1.250, mean 1.500)";
        assert_eq!(
            Iteration(&on_gpu).to_string(),
            format!(
                "device              the CPU\ninput               3 batches in device memory\n\
                 not overlapped      routes, input\nms/iteration        {times}, 9 steps\n  on the GPU        {times}\n\
                 samples/s           12346, 300 per step\n\
                 trace               t.json: 4 steps of 55 kernels; no kernel runs 25.0% of the time\n\n\
                 memory\ntables    1.9 GiB\nroutes  976.6 KiB\nfree      2.8 GiB\ntotal     4.7 GiB\n\n\
                 part, timed alone     ms  GB/s  TFLOP/s  roofline\n\
                 update             0.250  2000    100.0       50%\n\
                 limit                     4000    700.0\n\
                 limit in fp8                     1300.0\n"
            )
        );
    }

    #[test]
    fn a_benchmark_of_evaluations_has_these_lines() {
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
        let text = "device              the CPU\nsamples             500, in batches of 64\n\
                    first evaluation    1.5000 s\nlater evaluations   0.2500 s, median of 3\n\
                    samples/s           2000\nauc                 0.75000\n";
        assert_eq!(Passes(&bench).to_string(), text);
    }

    #[test]
    fn a_benchmark_of_reading_has_a_line_per_mode() {
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
        assert_eq!(lines[1], "device            2.00 GB/s  (pread, 8 reads of 256.0 KiB)");
        let cells: Vec<_> = lines[4].split_whitespace().collect();
        assert_eq!(cells, ["pread", "1.50", "75%", "1.25", "0.50", "1234", "5678"]);
        assert_eq!(lines[5], "mmap: refused: no");
    }
}
