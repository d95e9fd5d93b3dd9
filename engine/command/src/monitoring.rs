//! Metrics for Prometheus, as commands start them.

use std::path::{Path, PathBuf};

use rankine_base::publish::refuse_inputs;
use rankine_base::system::host_name;
use rankine_job::{Job, ListenAddress};
use rankine_launch::{ProcessGroup, ProcessRank, Pulse, hosts};
use rankine_topology::{LocalRank, Process};
use rankine_views::monitoring::{Command, Monitor, MonitorError, MonitorOptions, Readiness, RunInfo};
use rankine_views::report::RankView;

use super::{CommandError, Exit, stderr};

/// The argument of commands that have no job.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Serve metrics for Prometheus on this address, or on this port of the loopback interface
    #[arg(long, value_name = "HOST:PORT|PORT")]
    metrics: Option<ListenAddress>,
}

impl Args {
    /// Starts to serve metrics, if that is requested, before the command opens its data. `output` names the work.
    pub(crate) fn start(&self, command: Command, output: &Path) -> Result<Option<Monitor>, CommandError> {
        let Some(address) = &self.metrics else { return Ok(None) };
        let name = output.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let monitor = Monitor::start(MonitorOptions {
            info: RunInfo { command, name, rank: Process(0), processes: 1 },
            listen: address.of_local_rank(LocalRank(0)),
            textfile: None,
            readiness: None,
            ranks: None,
        })?;
        announce(&monitor);
        Ok(Some(monitor))
    }
}

/// Starts to export the metrics of a training, if its job asks for that.
pub(crate) fn of_training(
    job: &Job,
    process: &ProcessRank,
    processes: &ProcessGroup,
    quiet: bool,
) -> Result<Option<Monitor>, CommandError> {
    let metrics = &job.metrics;
    if metrics.listen.is_none() && metrics.textfile.is_none() {
        return Ok(None);
    }
    metrics.textfile.as_deref().map_or(Ok(()), |textfile| refuse_inputs(textfile, inputs(job)))?;
    let local_rank = local_rank(process, processes);
    let listen = metrics.listen.as_ref().map(|address| {
        address.of_local_rank(local_rank).ok_or_else(|| {
            let what = format!(
                "metrics.listen: there is no port for local rank {local_rank}, since ports are counted from {address}: \
                 choose a lower port"
            );
            CommandError::new(Exit::Usage, what)
        })
    });
    let (group, watched) = (processes.clone(), processes.clone());
    let monitor = Monitor::start(MonitorOptions {
        info: RunInfo {
            command: Command::Train,
            name: job.name.to_string(),
            rank: process.rank,
            processes: process.ranks,
        },
        listen: listen.transpose()?,
        textfile: metrics.textfile.clone(),
        readiness: Some(Box::new(move || readiness(&group))),
        ranks: Some(Box::new(move || ranks(&watched))),
    })?;
    if processes.is_first() {
        announce(&monitor);
    } else if let (Some(address), false) = (monitor.address(), quiet) {
        // Only rank 0 logs what is no warning, but nobody else knows this port.
        stderr::line(format_args!("rank {}: metrics: http://{address}/metrics", process.rank));
    }
    Ok(Some(monitor))
}

/// Returns the data and the model that a training reads.
fn inputs(job: &Job) -> impl Iterator<Item = &Path> {
    let raw = job.data.raw.iter().flat_map(|raw| raw.train.iter().chain(&raw.eval));
    let folders = job.data.dir.iter().chain(job.eval.set.iter().map(|set| &set.data));
    folders.chain(raw).chain(&job.train.init_from).map(PathBuf::as_path)
}

fn announce(monitor: &Monitor) {
    if let Some(address) = monitor.address() {
        tracing::info!("metrics: http://{address}/metrics");
    }
}

/// Returns the rank of this process among those of its host.
fn local_rank(process: &ProcessRank, processes: &ProcessGroup) -> LocalRank {
    let position = || {
        let hosts = hosts(processes.members());
        hosts.iter().find_map(|host| host.ranks.iter().position(|rank| *rank == process.rank)).map(LocalRank)
    };
    process.local_rank.or_else(position).unwrap_or_default()
}

/// Whether training advances: the watchdog has seen progress within half of the time after which it would end the
/// process.
fn readiness(processes: &ProcessGroup) -> Readiness {
    let Some(pulse) = processes.pulse() else { return Readiness::Ready };
    let still = pulse.still.as_secs_f64();
    if !pulse.activity.stage.goes_by_small_steps() {
        return Readiness::NotReady(format!("not training yet, {}", pulse.activity));
    }
    if pulse.still > pulse.limit / 2 {
        return Readiness::NotReady(format!("no progress for {still:.0} s {}", pulse.activity));
    }
    Readiness::Ready
}

/// What the watchdog knows of the ranks of the job's processes.
fn ranks(processes: &ProcessGroup) -> Vec<RankView> {
    // A process alone has no members.
    let host =
        |Process(rank)| processes.members().get(rank).map_or_else(host_name, |member| member.host.clone());
    let view = |pulse: Pulse| RankView {
        rank: pulse.rank,
        host: host(pulse.rank),
        healthy: pulse.is_healthy(),
        activity: pulse.activity.to_string(),
        still_seconds: pulse.still.as_secs_f64(),
    };
    processes.pulses().into_iter().map(view).collect()
}

impl From<MonitorError> for CommandError {
    fn from(error: MonitorError) -> Self {
        match error {
            MonitorError::Write(error) => error.into(),
            error => Self::new(Exit::Failed, error),
        }
    }
}
