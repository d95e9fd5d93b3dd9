//! `rankine plan`: plans the placement of a job's tables, and predicts memory, traffic and the time of a step.
//!
//! Nothing is trained, and no GPU is needed: the prediction uses the job, the frequencies of its rows, and the known or
//! measured speeds of a machine.

use std::fmt::{self, Display};

use bytesize::ByteSize;
use rankine_base::did_you_mean;
use rankine_base::size::parse_size;
use rankine_embedding::frequency::TableFrequencies;
use rankine_embedding::plan::{
    Alternative, HottestRows, Machine, NonTableMemory, PlanReport, RowBudget, TableReport, TierReport,
};
use rankine_embedding::{Exchange, Placement};
use rankine_engine::build;
use rankine_engine::planning::{self, Origin, Planning, Source, Sweep, SweepBatch, Tiers};
use rankine_engine::training::{self, JobData, TrainError};
use rankine_engine_gpu as gpu;
use rankine_job::{
    BatchSize, Count, DataCache, DataSource, DeviceKind, EvalBatchSize, Job, NonNegative, RankCount, Ranks,
};
use rankine_reader::Part;
use rankine_topology::{RANKS_MAX, Topology};
use serde::Serialize;

use super::job::JobArgs;
use super::table::{DecimalCount, TextTable};
use super::tier::TierText;
use super::{CommandError, Exit, arguments, output};

/// Plan which ranks store a job's tables; predict memory, traffic and step time
///
/// No GPU is needed. If the job has a shape, no dataset is needed either: ids are assumed to follow a power law. The
/// exit code is 0 if the model fits and 4 if it does not; the message then says what would make it fit.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine plan configs/mlperf-dlrm.toml --ranks 8 --machine h200
  rankine plan job.toml --ranks 16 --nodes 2 --machine h200 --batch 65536 --explain C1
  rankine plan job.toml --ranks 8 --machine h200 --sweep-nodes 1,2,4,8,16
  rankine plan job.toml --hottest 5%,9.6GB
  rankine plan job.toml --ranks 4 --json | jq '.tables[] | {name, placement, exchange}'")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,

    /// Number of ranks over all nodes [default: device.ranks]
    #[arg(long, value_name = "N", value_parser = arguments::ranks)]
    ranks: Option<RankCount>,

    /// Number of nodes [default: device.nodes]
    #[arg(long, value_name = "N", value_parser = arguments::ranks)]
    nodes: Option<RankCount>,

    /// Samples per step, over all ranks [default: train.batch_size]
    #[arg(long, value_name = "N", value_parser = arguments::count)]
    batch: Option<Count>,

    /// Machine of the ranks: cpu, h200, here (the measured GPUs of this machine), or the path of a machine file
    /// [default: device.machine; else here, if this machine has the GPUs of a node; else h200, if device.kind is cuda;
    /// else cpu]
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,

    /// Memory per rank, such as 80GiB [default: that of the machine]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,

    /// Number of samples, drawn from the whole dataset, to estimate frequencies from [default:
    /// embedding.sample_samples]
    #[arg(long, value_name = "N", value_parser = arguments::count)]
    sample: Option<Count>,

    /// Exponent of the power law that ids are assumed to follow without a dataset
    #[arg(long, value_name = "ALPHA", default_value = "1.1", value_parser = arguments::non_negative)]
    alpha: NonNegative,

    /// Show a table's alternatives and what they would cost
    #[arg(long, value_name = "TABLE")]
    explain: Option<String>,

    /// Show how many look-ups the hottest rows serve that fit into these amounts of memory: shares of the bytes of all
    /// rows, such as 5%, or sizes, such as 9.6GB
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = row_budget)]
    #[arg(default_value = "1%,5%,10%,25%,50%")]
    hottest: Vec<RowBudget>,

    /// Plan for each of these numbers of nodes, with the same number of ranks per node and of samples per rank
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = arguments::ranks)]
    #[arg(conflicts_with = "explain")]
    sweep_nodes: Vec<RankCount>,

    /// With --sweep-nodes: keep the number of samples over all ranks instead
    #[arg(long, requires = "sweep_nodes")]
    fixed_batch: bool,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let file = args.job.read()?;
    let mut job = file.job()?;
    job.device.ranks = args.ranks.map_or(job.device.ranks, Ranks::Count);
    job.device.nodes = args.nodes.map_or(job.device.nodes, Ranks::Count);
    if job.device.ranks == Ranks::Auto {
        let what = "device.ranks is \"auto\", which is only known when the job runs: set --ranks";
        return Err(CommandError::new(Exit::Usage, what));
    }
    if job.device.nodes == Ranks::Auto {
        job.device.nodes = Ranks::ONE;
    }
    job.embedding.sample_samples = args.sample.or(job.embedding.sample_samples);
    let topology = job.topology().map_err(|error| CommandError::new(Exit::Usage, error))?;
    let machine = machine(&args, &job, topology)?;
    let train_error = |error| match error {
        TrainError::Conflicts(conflicts) => file.error(&conflicts).into(),
        error => CommandError::from(error),
    };
    let prepared =
        prepare(&job, &args, topology, &machine).map_err(|error| error.unwrap_or_else(train_error))?;
    let Prepared { planning, origin, all_rows, train_bytes, tiers } = prepared;
    let batch_size = args.batch.map_or(u64::from(job.train.batch_size.get()), Count::get);
    if !args.sweep_nodes.is_empty() {
        let nodes: Vec<_> = args.sweep_nodes.iter().map(|nodes| nodes.get() as usize).collect();
        let most = RANKS_MAX / topology.ranks_per_node();
        if let Some(nodes) = nodes.iter().find(|nodes| **nodes > most) {
            let what =
                format!("--sweep-nodes: a job has at most {RANKS_MAX} ranks, so {most} nodes, not {nodes}");
            return Err(CommandError::new(Exit::Usage, what));
        }
        let batch = if args.fixed_batch {
            SweepBatch::All(batch_size)
        } else {
            SweepBatch::PerRank(batch_size as f64 / topology.ranks() as f64)
        };
        let sweep = planning::sweep(&planning, &machine, topology.ranks_per_node(), &nodes, batch)
            .map_err(|error| CommandError::new(Exit::Usage, error))?;
        let shown = SweepReport { job: job.name.as_str(), machine: &machine.name, statistics: origin, sweep };
        if args.json {
            output::json(&shown)?
        } else {
            output::text(&shown)?
        }
        let fits = shown.sweep.points.iter().any(|point| point.iteration.is_some());
        let what = "the model does not fit on any of these numbers of nodes: try more nodes";
        return if fits { Ok(()) } else { Err(CommandError::new(Exit::DoesNotFit, what)) };
    }
    let planning = tiers.iter().fold(planning, Planning::with_tiers);
    let planned = planning.plan(topology, &machine, batch_size);
    let planned = planned.map_err(|error| CommandError::new(Exit::DoesNotFit, error))?;
    let memory = &planned.report.memory;
    let cache = train_bytes.map(|bytes| {
        let rank_bytes = bytes.div_ceil(topology.ranks_per_node() as u64);
        CachePlan { rank_bytes, fits: memory.needed_bytes + rank_bytes <= memory.available_bytes }
    });
    let hottest = planning.hottest(all_rows.as_deref(), &machine, batch_size, &args.hottest);
    // Owners of rows pool all bags on CPUs only.
    let are_gpus = !machine.pools_all;
    let scoring_bytes = (are_gpus && tiers.is_none() && job.eval.batch_size == EvalBatchSize::Auto)
        .then(|| memory.available_bytes.saturating_sub(memory.needed_bytes) / gpu::SCORING_PARTS);
    let (job, report) = (job.name.as_str(), &planned.report);
    let tier = tiers.as_ref().map(Tiers::report);
    let shown = Report { job, statistics: origin, cache, scoring_bytes, hottest, tier, report };
    match &args.explain {
        Some(name) => {
            let table = find(&planned.report.tables, name)?;
            if args.json { output::json(table) } else { output::text(Explanation { shown: &shown, table }) }
        }
        None if args.json => output::json(&shown),
        None => output::text(&shown),
    }?;
    match cache {
        Some(CachePlan { fits: false, .. }) => Err(CommandError::new(
            Exit::DoesNotFit,
            "the training part does not fit beside the model: use more ranks, or remove data.cache",
        )),
        _ => Ok(()),
    }
}

/// Returns the machine of the ranks.
fn machine(args: &Args, job: &Job, topology: Topology) -> Result<Machine, CommandError> {
    let usage = |what: String| CommandError::new(Exit::Usage, what);
    let of_job = job.device.machine.as_ref().map(|path| path.to_string_lossy().into_owned());
    let name = args.machine.clone().or(of_job);
    let here = match name.as_deref() {
        Some("here") => Some(measured(job, topology).map_err(usage)?),
        None if job.device.kind != DeviceKind::Cpu => measured(job, topology).ok(),
        _ => None,
    };
    let mut machine = match here {
        Some(machine) => machine,
        None => {
            let by_kind = if job.device.kind == DeviceKind::Cuda { "h200" } else { "cpu" };
            let name = name.as_deref().unwrap_or(by_kind);
            let cpu_memory = planning::memory_of_a_thread_rank(topology);
            planning::read_machine(name, cpu_memory, job.device.precision_on_gpus())
                .map_err(|error| CommandError::new(Exit::Usage, error))?
        }
    };
    if let Some(bytes) = args.memory {
        (machine.memory_bytes, machine.memory_is_shared) = (bytes, false);
    }
    Ok(machine)
}

/// Returns the measured GPUs of this machine, as training would use them.
fn measured(job: &Job, topology: Topology) -> Result<Machine, String> {
    if !gpu::IN_BUILD {
        let why = "the machine `here` needs GPUs, and this build has no CUDA support (the feature `cuda`)";
        return Err(why.into());
    }
    let per_node = topology.ranks_per_node();
    if per_node == 1 {
        return Err("the machine `here` needs several ranks per node".into());
    }
    let machine = gpu::machine_here(per_node, job.device.precision_on_gpus(), build::here());
    let machine = machine.map_err(|error| format!("the machine `here` needs {per_node} GPUs: {error}"))?;
    Ok(planning::write_machine(&machine, "h200", job.device.precision_on_gpus()).1)
}

/// A conflict between the job and its columns, or another error.
enum PlanningError {
    Train(TrainError),
    Other(CommandError),
}

impl PlanningError {
    fn unwrap_or_else(self, of_train: impl Fn(TrainError) -> CommandError) -> CommandError {
        match self {
            Self::Train(error) => of_train(error),
            Self::Other(error) => error,
        }
    }
}

impl From<TrainError> for PlanningError {
    fn from(error: TrainError) -> Self {
        Self::Train(error)
    }
}

/// The tables to plan.
struct Prepared {
    planning: Planning,
    /// The origin of their statistics.
    origin: Origin,
    /// How often all rows of each column's table are looked up, if the dataset counts them.
    all_rows: Option<Vec<TableFrequencies>>,
    /// The bytes of the training part, if GPUs are to keep it and the dataset exists.
    train_bytes: Option<u64>,
    /// How rows are divided between a GPU and host memory.
    tiers: Option<Tiers>,
}

fn prepare(job: &Job, args: &Args, topology: Topology, machine: &Machine) -> Result<Prepared, PlanningError> {
    let data = training::find_data(job)?;
    let alpha = job.data.generate().map_or(args.alpha, |generate| generate.alpha).get();
    let (schema, source) = match &data {
        JobData::Dataset(dataset) => (dataset.schema(), Source::Dataset(dataset)),
        JobData::Shape(_) if args.sample.is_some() => {
            let what = "--sample needs a dataset: remove it to assume a power law";
            return Err(PlanningError::Other(CommandError::new(Exit::Usage, what)));
        }
        JobData::Shape(schema) => (schema, Source::Law { schema, alpha }),
        JobData::Unknown => {
            let dir = match job.data.source() {
                DataSource::Folders(folders) => folders.name(),
                DataSource::Raw(_) => String::new(),
            };
            return Err(PlanningError::Other(CommandError::new(
                Exit::Usage,
                format!(
                    "no dataset at {dir}, so its tables are unknown: convert it, or set data.shape (--set \
                     data.shape=dlrm) to plan without it"
                ),
            )));
        }
    };
    let model = training::translate(job, schema).map_err(TrainError::Conflicts)?;
    let refused =
        if machine.has_gpus() || job.requires_gpus() { gpu::refusals(job, &model.spec) } else { Vec::new() };
    if !refused.is_empty() {
        return Err(TrainError::Conflicts(refused).into());
    }
    let statistics = planning::statistics(job, &source).map_err(TrainError::Data)?;
    let origin = statistics.origin;
    let all_rows = match &data {
        JobData::Dataset(dataset) => {
            planning::frequencies_of_all_rows(dataset, &statistics).map_err(TrainError::Data)?
        }
        _ => None,
    };
    let train_bytes = match &data {
        JobData::Dataset(dataset) if job.data.cache == DataCache::Gpu => {
            let part = dataset.part(Part::Train).map_err(TrainError::Data)?;
            Some(part.blocks.iter().map(|block| u64::from(block.bytes)).sum())
        }
        _ => None,
    };
    let tiers = if machine.has_gpus() {
        let mut job = job.clone();
        if let Some(batch) = args.batch {
            let batch = u32::try_from(batch.get()).ok().and_then(BatchSize::new);
            job.train.batch_size = batch.unwrap_or(job.train.batch_size);
        }
        Tiers::of(&job, &model, &source, (topology.ranks(), machine.memory_bytes))
            .map_err(TrainError::from)?
    } else {
        None
    };
    Ok(Prepared { planning: Planning::new(job, &model, statistics), origin, all_rows, train_bytes, tiers })
}

/// Parses `5%` or `9.6GB`.
fn row_budget(text: &str) -> Result<RowBudget, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return parse_size(text).map(RowBudget::Bytes).map_err(|error| error.to_string());
    };
    let share = percent.trim().parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    let share = share.ok_or_else(|| format!("{text} is not a share from 0% to 100%"))?;
    Ok(RowBudget::Share(share / 100.0))
}

fn find<'a>(tables: &'a [TableReport], name: &str) -> Result<&'a TableReport, CommandError> {
    tables.iter().find(|table| table.name == name).ok_or_else(|| {
        let names = tables.iter().map(|table| table.name.as_str());
        let meant = did_you_mean(name, names);
        CommandError::new(Exit::Usage, format!("the model has no table `{name}`{meant}"))
    })
}

/// The report on a plan.
#[derive(Serialize)]
struct Report<'a> {
    job: &'a str,
    statistics: Origin,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CachePlan>,
    /// The most bytes with which each GPU of a node scores more samples at a time than it trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    scoring_bytes: Option<u64>,
    hottest: Vec<HottestRows>,
    /// How rows are divided between a GPU and host memory; absent if the ranks store all rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'a TierReport>,
    #[serde(flatten)]
    report: &'a PlanReport,
}

/// The training part in the memory of the GPUs: `data.cache`.
#[derive(Clone, Copy, Serialize)]
struct CachePlan {
    /// Bytes that each rank keeps, if one process has all ranks of a node.
    rank_bytes: u64,
    /// Whether they fit beside what training needs.
    fits: bool,
}

/// The report on plans for several numbers of nodes.
#[derive(Serialize)]
struct SweepReport<'a> {
    job: &'a str,
    machine: &'a str,
    statistics: Origin,
    #[serde(flatten)]
    sweep: Sweep,
}

/// A table and its alternatives.
struct Explanation<'a> {
    shown: &'a Report<'a>,
    table: &'a TableReport,
}

/// Seconds, shown in milliseconds.
struct Ms(f64);

impl Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.3} ms", self.0 * 1e3))
    }
}

fn origin(f: &mut fmt::Formatter<'_>, origin: Origin) -> fmt::Result {
    match origin {
        Origin::Dataset { samples } => {
            writeln!(f, "frequencies  counted in all {samples} samples of the dataset")
        }
        Origin::Sample { samples } => {
            writeln!(f, "frequencies  estimated from {samples} samples, drawn from the whole dataset")
        }
        Origin::Law { alpha } => {
            writeln!(f, "frequencies  assumed to follow a power law with exponent {alpha}")
        }
    }
}

fn placed(placement: Placement, exchange: Option<Exchange>) -> String {
    match exchange {
        Some(exchange) => format!("{}, {}", placement.name(), exchange.name()),
        None => placement.name().into(),
    }
}

impl Report<'_> {
    fn fmt_head(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report;
        let nodes = if report.nodes == 1 { "one node".into() } else { format!("{} nodes", report.nodes) };
        let ranks = if report.ranks == 1 { "one rank".into() } else { format!("{} ranks", report.ranks) };
        writeln!(f, "job          {}, batches of {}", self.job, report.batch_size)?;
        writeln!(f, "machine      {}, {ranks} on {nodes}", report.machine)?;
        origin(f, self.statistics)
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_head(f)?;
        let report = self.report;
        let headings = [
            "table",
            "rows",
            "dim",
            "placement",
            "frequent",
            "of ids",
            "on a rank",
            "within",
            "between",
            "why",
        ];
        let mut lines = TextTable::new(headings, &[0, 3, 9]);
        for table in &report.tables {
            lines.row([
                &table.name,
                &DecimalCount(table.rows as f64),
                &table.dim,
                &placed(table.placement, table.exchange),
                &DecimalCount(table.frequent_rows as f64),
                &format_args!("{:.1}%", table.frequent_share * 100.0),
                &ByteSize(table.rank_bytes),
                &ByteSize(table.traffic.within_nodes.bytes),
                &ByteSize(table.traffic.between_nodes.bytes),
                &table.reason,
            ]);
        }
        write!(f, "\n{lines}")?;
        self.fmt_memory(f)?;
        self.tier.map_or(Ok(()), |tier| write!(f, "\n{}", TierText(tier)))?;
        self.fmt_hottest(f)?;
        self.fmt_traffic(f)?;
        self.fmt_time(f)
    }
}

impl Report<'_> {
    fn fmt_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = &self.report.per_rank;
        let spread = |of: &dyn Fn(&rankine_embedding::plan::RankReport) -> u64| {
            let (least, most) = ranks
                .iter()
                .fold((u64::MAX, 0), |(least, most), rank| (least.min(of(rank)), most.max(of(rank))));
            if ByteSize(least).to_string() == ByteSize(most).to_string() {
                ByteSize(most).to_string()
            } else {
                format!("{} to {}", ByteSize(least), ByteSize(most))
            }
        };
        let memory = &self.report.memory;
        writeln!(f, "\nmemory per rank")?;
        writeln!(f, "  tables and optimizer state     {}", spread(&|rank| rank.table_bytes))?;
        writeln!(f, "  messages and frequent rows     {}", spread(&|rank| rank.buffer_bytes))?;
        let NonTableMemory {
            parameter_bytes,
            gradient_bytes,
            state_bytes,
            activation_bytes,
            batch_bytes,
            membership_bytes,
        } = memory.rest;
        writeln!(f, "  dense parameters               {}", ByteSize(parameter_bytes))?;
        writeln!(f, "  their gradients and state      {}", ByteSize(gradient_bytes + state_bytes))?;
        writeln!(f, "  activations                    {}", ByteSize(activation_bytes))?;
        writeln!(f, "  batches                        {}", ByteSize(batch_bytes))?;
        if membership_bytes > 0 {
            writeln!(f, "  ids of dynamic tables          {}", ByteSize(membership_bytes))?;
        }
        if let Some(CachePlan { rank_bytes, fits }) = self.cache {
            let fits = if fits { "fits beside the fullest rank" } else { "does not fit" };
            writeln!(f, "  training data (data.cache)     {}: {fits}", ByteSize(rank_bytes))?;
        }
        writeln!(
            f,
            "  fullest rank                   {} of {} ({:.1}%)",
            ByteSize(memory.needed_bytes),
            ByteSize(memory.available_bytes),
            memory.needed_bytes as f64 / memory.available_bytes as f64 * 100.0
        )?;
        match self.scoring_bytes {
            None => Ok(()),
            Some(bytes) => {
                writeln!(f, "  scoring (eval.batch_size)      at most {} of the rest", ByteSize(bytes))
            }
        }
    }

    fn fmt_hottest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = ["of all bytes", "rows", "bytes", "look-ups", "missed rows", "missed bytes"];
        let mut lines = TextTable::new(headings, &[]);
        for hottest in &self.hottest {
            lines.row([
                &format_args!("{:.1}%", hottest.share * 100.0),
                &DecimalCount(hottest.rows as f64),
                &ByteSize(hottest.bytes),
                &format_args!("{:.1}%", hottest.lookup_share * 100.0),
                &DecimalCount(hottest.missed_rows),
                &ByteSize(hottest.missed_bytes as u64),
            ]);
        }
        write!(
            f,
            "\nhottest rows of all tables with optimizer state, and what a batch misses of its distinct rows\n{lines}"
        )
    }

    fn fmt_traffic(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlanReport { traffic, all_reduce, .. } = self.report;
        writeln!(f, "\ntraffic per step, over all ranks")?;
        for (name, link) in [("within nodes", traffic.within_nodes), ("between nodes", traffic.between_nodes)]
        {
            write!(f, "  {name:<30} {} in {} vectors", ByteSize(link.bytes), DecimalCount(link.rows as f64))?;
            if link.padding_bytes > 0 {
                write!(f, ", and {} of padding", ByteSize(link.padding_bytes))?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "  {:<30} {} within nodes, {} between nodes ({} elements, {} of frequent rows)",
            "all-reduce",
            ByteSize(all_reduce.within_bytes),
            ByteSize(all_reduce.between_bytes),
            DecimalCount(all_reduce.elements as f64),
            DecimalCount(all_reduce.frequent_elements as f64)
        )
    }

    fn fmt_time(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = &self.report.iteration;
        writeln!(f, "\ntime per step, on the slowest rank")?;
        let parts = [
            ("dense compute", time.dense_s),
            ("memory traffic", time.memory_s),
            ("exchange within nodes", time.exchange_within_s),
            ("exchange between nodes", time.exchange_between_s),
            ("all-reduce within nodes", time.all_reduce_within_s),
            ("all-reduce between nodes", time.all_reduce_between_s),
            ("latencies", time.latency_s),
            ("overlapped", -time.hidden_s),
        ];
        for (name, seconds) in parts.into_iter().filter(|&(_, seconds)| seconds != 0.0) {
            writeln!(f, "  {name:<30} {:>12}", Ms(seconds))?;
        }
        writeln!(f, "  {:<30} {:>12}", "total", Ms(time.total_s))?;
        writeln!(
            f,
            "\n{} samples/s, limited by {}; the mean load is {:.1}% of that of the slowest rank",
            DecimalCount(self.report.samples_per_second),
            self.report.limit.name(),
            self.report.balance * 100.0
        )
    }
}

impl Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (report, table) = (self.shown.report, self.table);
        self.shown.fmt_head(f)?;
        writeln!(f, "table        {}, {} rows of {} elements", table.name, table.rows, table.dim)?;
        writeln!(
            f,
            "look-ups     {:.2} per sample; {} distinct rows per batch ({:.1}%)",
            table.lookups_per_sample,
            DecimalCount(table.distinct_rows as f64),
            table.distinct_rows as f64 / (table.lookups_per_sample * report.batch_size as f64).max(1.0)
                * 100.0
        )?;
        writeln!(f, "placement    {}: {}\n", placed(table.placement, table.exchange), table.reason)?;
        let headings =
            ["", "owners", "frequent", "on a rank", "within", "between", "all-reduce", "step", "", ""];
        let mut lines = TextTable::new(headings, &[0, 9]);
        let all_reduce = report.all_reduce;
        // The share of this table in the all-reduce.
        let share = table.reduced_elements as f64 / all_reduce.elements.max(1) as f64;
        let chosen = Alternative {
            placement: table.placement,
            exchange: table.exchange,
            owners: table.owners.len(),
            frequent_rows: table.frequent_rows,
            allowed: true,
            fits: true,
            rank_bytes: table.rank_bytes,
            within_bytes: table.traffic.within_nodes.bytes,
            between_bytes: table.traffic.between_nodes.bytes,
            all_reduce_bytes: ((all_reduce.within_bytes + all_reduce.between_bytes) as f64 * share) as u64,
            iteration_s: report.iteration.total_s,
        };
        for alternative in std::iter::once(&chosen).chain(&table.alternatives) {
            let note = match alternative {
                Alternative { fits: false, .. } => "does not fit",
                Alternative { allowed: false, .. } => "excluded by the job",
                _ if std::ptr::eq(alternative, &chosen) => "chosen",
                _ => "",
            };
            let owners = match alternative.owners {
                0 => "all".into(),
                owners => owners.to_string(),
            };
            let change = (alternative.iteration_s / report.iteration.total_s - 1.0) * 100.0;
            lines.row([
                &placed(alternative.placement, alternative.exchange),
                &owners,
                &DecimalCount(alternative.frequent_rows as f64),
                &ByteSize(alternative.rank_bytes),
                &ByteSize(alternative.within_bytes),
                &ByteSize(alternative.between_bytes),
                &ByteSize(alternative.all_reduce_bytes),
                &Ms(alternative.iteration_s),
                &format_args!("{change:+.2}%"),
                &note,
            ]);
        }
        lines.fmt(f)
    }
}

impl Display for SweepReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sweep { ranks_per_node, fixed_batch, points } = &self.sweep;
        let same = if *fixed_batch { "same batch size over all ranks" } else { "same batch size per rank" };
        writeln!(f, "job          {}, {same}", self.job)?;
        writeln!(f, "machine      {}, {ranks_per_node} ranks per node", self.machine)?;
        origin(f, self.statistics)?;
        let headings = [
            "nodes",
            "ranks",
            "batch",
            "step",
            "samples/s",
            "efficiency",
            "on a rank",
            "within",
            "between",
            "limited by",
        ];
        let mut lines = TextTable::new(headings, &[9]);
        for point in points {
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
            lines.row([
                &point.nodes,
                &point.ranks,
                &point.batch_size,
                &or_none(point.iteration.map(|parts| Ms(parts.total_s).to_string())),
                &or_none(point.samples_per_second.map(|rate| DecimalCount(rate).to_string())),
                &or_none(point.efficiency.map(|share| format!("{:.1}%", share * 100.0))),
                &ByteSize(point.needed_bytes),
                &or_none(point.traffic.map(|traffic| ByteSize(traffic.within_nodes.bytes).to_string())),
                &or_none(point.traffic.map(|traffic| ByteSize(traffic.between_nodes.bytes).to_string())),
                &point.limit.name(),
            ]);
        }
        write!(f, "\n{lines}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(format!("{:>10}", Ms(0.0123456)), " 12.346 ms");
    }

    #[test]
    fn budgets_are_shares_or_sizes() {
        let parsed = ["5%", "0.5 %", "100%", "9.6GB", "1GiB"].map(|text| row_budget(text).unwrap());
        let shares = [0.05, 0.005, 1.0].map(RowBudget::Share);
        assert_eq!(parsed, [&shares[..], &[9_600_000_000, 1 << 30].map(RowBudget::Bytes)].concat()[..]);
        for wrong in ["101%", "-1%", "%", "x%", "NaN%", "rows"] {
            assert!(row_budget(wrong).is_err(), "{wrong}");
        }
    }
}
