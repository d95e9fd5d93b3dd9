//! Metrics for Prometheus, as commands start them.

use std::path::{Path, PathBuf};

use rankine_base::publish::refuse_inputs;
use rankine_base::system::host_name;
use rankine_job::{Job, ListenAddress};
use rankine_launch::{Host, ProcessGroup, ProcessPlace, Pulse, hosts};
use rankine_topology::{LocalProcess, Process};
use rankine_views::monitoring::{Command, Monitor, MonitorError, MonitorOptions, Readiness, RunInfo};
use rankine_views::report::ProcessView;

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
            info: RunInfo { command, name, process: Process(0), processes: 1 },
            listen: address.of_process(LocalProcess(0)),
            textfile: None,
            readiness: None,
            processes: None,
        })?;
        announce(&monitor);
        Ok(Some(monitor))
    }
}

/// Starts to export the metrics of a training, if its job asks for that.
pub(crate) fn of_training(
    job: &Job,
    place: &ProcessPlace,
    processes: &ProcessGroup,
    quiet: bool,
) -> Result<Option<Monitor>, CommandError> {
    let metrics = &job.metrics;
    if metrics.listen.is_none() && metrics.textfile.is_none() {
        return Ok(None);
    }
    metrics.textfile.as_deref().map_or(Ok(()), |textfile| refuse_inputs(textfile, inputs(job)))?;
    let local = local_process(place, processes);
    let listen = metrics.listen.as_ref().map(|address| {
        address.of_process(local).ok_or_else(|| {
            let what = format!(
                "metrics.listen: there is no port for process {local} of this host, since ports are counted from \
                 {address}: choose a lower port"
            );
            CommandError::new(Exit::Usage, what)
        })
    });
    let (group, watched) = (processes.clone(), processes.clone());
    let monitor = Monitor::start(MonitorOptions {
        info: RunInfo {
            command: Command::Train,
            name: job.name.to_string(),
            process: place.process,
            processes: place.processes,
        },
        listen: listen.transpose()?,
        textfile: metrics.textfile.clone(),
        readiness: Some(Box::new(move || readiness(&group))),
        processes: Some(Box::new(move || views(&watched))),
    })?;
    if processes.is_first() {
        announce(&monitor);
    } else if let (Some(address), false) = (monitor.address(), quiet) {
        // Only process 0 logs what is no warning, but nobody else knows this port.
        stderr::line(format_args!("process {}: metrics: http://{address}/metrics", place.process));
    }
    Ok(Some(monitor))
}

/// Returns the data and the model that a training reads.
fn inputs(job: &Job) -> impl Iterator<Item = &Path> {
    let sets = job.eval.set.iter().flat_map(|set| set.data.paths());
    let data = job.data.folders().iter().chain(sets).chain(job.data.raw_files());
    data.chain(&job.train.init_from).map(PathBuf::as_path)
}

fn announce(monitor: &Monitor) {
    if let Some(address) = monitor.address() {
        tracing::info!("metrics: http://{address}/metrics");
    }
}

/// Returns the number of this process among those of its host.
fn local_process(place: &ProcessPlace, processes: &ProcessGroup) -> LocalProcess {
    let position = || {
        let hosts = hosts(processes.members());
        let of_host = |host: &Host| host.processes.iter().position(|process| *process == place.process);
        hosts.iter().find_map(of_host).map(LocalProcess)
    };
    place.local.or_else(position).unwrap_or_default()
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

/// What the watchdog knows of the job's processes.
fn views(processes: &ProcessGroup) -> Vec<ProcessView> {
    // A process alone has no members.
    let host = |Process(number)| {
        processes.members().get(number).map_or_else(host_name, |member| member.host.clone())
    };
    let view = |pulse: Pulse| ProcessView {
        process: pulse.process,
        host: host(pulse.process),
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
