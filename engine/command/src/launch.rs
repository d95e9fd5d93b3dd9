//! Arguments about the processes of a job, and `rankine doctor --cluster`.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rankine_base::InvalidValue;
use rankine_cuda::probe::{Presence, probe};
use rankine_engine::build;
use rankine_engine::training::TrainError;
use rankine_engine_gpu as gpu;
use rankine_job::{Guard, JobFile, Seconds};
use rankine_launch::{
    Activity, Address, Failure, Host, LaunchArguments, LaunchError, Launcher, Link, MeetError, Meeting,
    Patience, ProcessGroup, ProcessInfo, ProcessPlace, Secret, SecretError, Terms, hosts,
};
use rankine_topology::Process;
use serde::Serialize;

use super::table::{TextTable, counted};
use super::{CommandError, Exit, output};

/// Number of timed exchanges.
const EXCHANGES: u32 = 100;

#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Several processes")]
pub(crate) struct Args {
    /// Use only this launcher: torchrun, kubernetes, openmpi, pmi, slurm, or none to ignore the environment
    #[arg(long, value_name = "NAME", value_parser = Launcher::named)]
    launcher: Option<Launcher>,

    /// Number of this process, from 0; launchers set it in the environment
    #[arg(long, alias = "rank", requires = "processes", value_name = "N")]
    process: Option<usize>,

    /// Number of processes
    #[arg(long, alias = "ranks", requires = "process", value_name = "COUNT")]
    processes: Option<usize>,

    /// Address for the rendezvous: process 0 listens there
    #[arg(long, value_name = "HOST:PORT")]
    meet: Option<Address>,

    /// File with the secret that all processes share; only its owner may have access [default: RANKINE_SECRET_FILE, or
    /// else the secret in RANKINE_SECRET]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// How long to wait for the other processes, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    meet_timeout: f64,
}

impl Args {
    /// Returns whether any of these arguments is set.
    pub(crate) fn any(&self) -> bool {
        self.launcher.is_some() || self.process.is_some() || self.meet.is_some() || self.secret_file.is_some()
    }

    /// Returns the place of this process among all of them.
    pub(crate) fn place(&self) -> Result<ProcessPlace, LaunchError> {
        let process = self.process.map(Process).zip(self.processes);
        ProcessPlace::find(&LaunchArguments { launcher: self.launcher, process, meet: self.meet.clone() })
    }

    /// Returns the secret that the processes share.
    fn secret(&self) -> Result<Secret, SecretError> {
        Secret::find(self.secret_file.as_deref())
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.meet_timeout)
    }

    /// Meets the other processes. The watchdog ends this process if it hangs, or if another is lost while this one
    /// cannot report it.
    pub(crate) fn form(&self, place: &ProcessPlace, guard: &Guard) -> Result<ProcessGroup, CommandError> {
        let patience = patience(place.processes, guard);
        if place.processes == 1 {
            if place.launcher != Launcher::None {
                tracing::info!("{place}");
            }
            return Ok(ProcessGroup::watched_alone(patience, hangs)?);
        }
        let process = place.process;
        let end = move |failure: &Failure, activity: &Activity| lost(process, failure, activity);
        let here = ProcessInfo::here(place, gpu_ids(), build::here());
        let terms = Terms { secret: self.secret()?, deadline: self.timeout(), patience };
        let processes = ProcessGroup::form(place, here, &terms, end)?;
        let hosts = hosts(processes.members());
        let hosts: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
        tracing::info!("{place}; {} processes are on {}", processes.size(), hosts.join(", "));
        Ok(processes)
    }
}

/// Returns the timeouts of the watchdog for a job.
fn patience(processes: usize, guard: &Guard) -> Patience {
    let usual = if processes == 1 { Patience::ALONE } else { Patience::USUAL };
    let standstill = guard.step_timeout_s.map_or(usual.standstill, Seconds::duration);
    Patience { silence: guard.silence_timeout_s.duration(), standstill, ..usual }
}

/// Returns the ids of the GPUs that this process sees.
fn gpu_ids() -> Vec<String> {
    match probe().driver {
        Presence::Found(driver) => driver
            .devices
            .map_or_else(|_| Vec::new(), |devices| devices.into_iter().map(|device| device.uuid).collect()),
        Presence::Missing(_) => Vec::new(),
    }
}

/// Shares the outcome of a training with the other processes, and returns it.
pub(crate) fn outcome<V>(
    processes: &ProcessGroup,
    file: &JobFile,
    outcome: Result<V, TrainError>,
) -> Result<V, CommandError> {
    let error = match outcome {
        Ok(value) => {
            processes.finish();
            return Ok(value);
        }
        // All processes were interrupted at the same step.
        Err(error @ TrainError::Interrupted { .. }) => {
            processes.finish();
            return Err(error.into());
        }
        Err(error) => error,
    };
    let misses_process = error.misses_process();
    let error = match error {
        TrainError::Conflicts(conflicts) => file.error(&conflicts).into(),
        error => CommandError::from(error),
    };
    match processes.fail(&error.to_string(), misses_process) {
        Some(failure) if misses_process => {
            Err(CommandError::new(Exit::Lost, format!("{failure}\n  error of this process: {error}")))
        }
        _ => Err(error),
    }
}

/// Ends this process, which makes no progress.
fn hangs(failure: &Failure, activity: &Activity) {
    super::print_error(&Hang { failure, activity }, None, Exit::Lost);
    Exit::Lost.now()
}

/// The message of a process that makes no progress.
struct Hang<'a> {
    failure: &'a Failure,
    activity: &'a Activity,
}

impl fmt::Display for Hang<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, activity } = self;
        write!(f, "{failure}; guard.step_timeout_s sets the limit. ")?;
        f.write_str(match activity.model_saved {
            true => "The model was saved; the run may lack its summary",
            false => "The model was not saved",
        })
    }
}

/// Ends this process, whose other threads may wait for the lost one.
fn lost(process: Process, failure: &Failure, activity: &Activity) {
    super::print_error(&format_args!("{failure}\n  this process was {activity}"), Some(process), Exit::Lost);
    Exit::Lost.now()
}

fn seconds(text: &str) -> Result<f64, InvalidValue> {
    let seconds: f64 = text.parse().map_err(|_| InvalidValue::expected(text, "a number of seconds"))?;
    match (0.1..=86400.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err(InvalidValue::expected(text, "0.1 to 86400 seconds")),
    }
}

/// The processes of a launch.
#[derive(Debug, Serialize)]
struct ClusterReport {
    launcher: Launcher,
    meet: Option<String>,
    /// Mean time of an exchange among all processes.
    exchange_ms: f64,
    /// All-reduce speed of the GPUs of process 0's node, and of all GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<Vec<Link>>,
    nodes: Vec<Host>,
    members: Vec<ProcessInfo>,
}

/// Meets the other processes; process 0 prints all of them.
pub(crate) fn run(args: &Args, json: bool) -> Result<(), CommandError> {
    let place = args.place()?;
    tracing::info!("{place}");
    let timeout = args.timeout();
    let secret = if place.processes == 1 { Secret::none() } else { args.secret()? };
    let mut meeting = Meeting::join(&place, &secret, timeout)?;
    let members = ProcessInfo::here(&place, gpu_ids(), build::here()).introduce(&mut meeting)?;
    let begun = Instant::now();
    for _ in 0..EXCHANGES {
        meeting.gather(&[0; 128])?;
    }
    let exchange_ms = begun.elapsed().as_secs_f64() * 1e3 / f64::from(EXCHANGES);
    let links = match members.iter().any(|member| member.gpus > 0) {
        true => gpu::links(&mut meeting, &members, timeout)?,
        false => Vec::new(),
    };
    if place.process != Process(0) {
        return Ok(());
    }
    let cluster = ClusterReport {
        launcher: place.launcher,
        meet: place.meet.as_ref().map(Address::to_string),
        exchange_ms,
        links: gpu::IN_BUILD.then_some(links),
        nodes: hosts(&members),
        members,
    };
    if json { output::json(&cluster) } else { output::text(cluster) }
}

impl fmt::Display for ClusterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exchange_ms, nodes, members, .. } = self;
        let mut lines = TextTable::new(["process", "node", "pid", "GPUs", "host"], &[4]);
        for ProcessInfo { process, pid, gpus, host, .. } in members {
            let node = nodes.iter().position(|host| host.processes.contains(process)).unwrap_or(0);
            lines.row([process, &node, pid, gpus, host]);
        }
        let processes = if members.len() == 1 { "process" } else { "processes" };
        let of_nodes = counted(nodes.len() as u64, "node");
        let count = members.len();
        writeln!(f, "{lines}{count} {processes} on {of_nodes}; an exchange takes {exchange_ms:.2} ms")?;
        self.links.iter().flatten().try_for_each(|link| link.fmt(f))
    }
}

impl From<LaunchError> for CommandError {
    fn from(error: LaunchError) -> Self {
        Self::new(Exit::Usage, error)
    }
}

impl From<SecretError> for CommandError {
    fn from(error: SecretError) -> Self {
        Self::new(Exit::Usage, error)
    }
}

impl From<MeetError> for CommandError {
    fn from(error: MeetError) -> Self {
        let exit = match error {
            MeetError::Late { .. } | MeetError::Left { .. } | MeetError::Unreached { .. } => Exit::Lost,
            MeetError::Refused { .. } => Exit::Usage,
            _ => Exit::Failed,
        };
        Self::new(exit, error)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{Cli, Command};

    #[test]
    fn earlier_names_of_arguments_are_accepted() {
        let parsed = |words: &str| {
            let cli = Cli::try_parse_from(words.split_whitespace()).map_err(|error| error.to_string())?;
            let launch = match cli.command {
                Command::Train(args) => args.launch,
                Command::Doctor(args) => args.launch,
                Command::Bench(args) => return Ok(args.launch().map(|args| (args.process, args.processes))),
                other => panic!("{other:?}"),
            };
            Ok::<_, String>(Some((launch.process, launch.processes)))
        };
        for command in ["train job.toml", "bench train job.toml", "bench eval job.toml", "doctor --cluster"] {
            for names in ["--process 1 --processes 2", "--rank 1 --ranks 2", "--rank=1 --processes 2"] {
                let words = format!("rankine {command} {names}");
                assert_eq!(parsed(&words), Ok(Some((Some(1), Some(2)))), "{words}");
            }
        }
        let refused = parsed("rankine doctor --cluster --rank 1").unwrap_err();
        assert!(refused.contains("--processes <COUNT>") && !refused.contains("--rank"), "{refused}");
    }

    #[test]
    fn the_watchdog_has_the_timeouts_of_the_job() {
        let seconds = |seconds| Seconds::new(seconds).unwrap();
        let waits = |processes, guard: &Guard| {
            let Patience { silence, standstill, grace } = patience(processes, guard);
            [silence, standstill, grace].map(|time| time.as_secs_f64())
        };
        // As in the reference of job files.
        assert_eq!(waits(1, &Guard::default()), [40.0, 300.0, 3.0]);
        assert_eq!(waits(2, &Guard::default()), [40.0, 45.0, 3.0]);
        let silence_timeout_s = seconds(90.0);
        let guard = Guard { silence_timeout_s, step_timeout_s: Some(seconds(7.5)), ..Guard::default() };
        assert_eq!((waits(1, &guard), waits(4096, &guard)), ([90.0, 7.5, 3.0], [90.0, 7.5, 3.0]));
    }

    #[test]
    fn a_hang_says_whether_the_model_was_saved() {
        let failure: Failure =
            serde_json::from_str(r#"{ "process": 0, "words": "process 0 has hung", "follows": false }"#)
                .unwrap();
        let said = |model_saved| {
            let mut activity = Activity::default();
            activity.model_saved = model_saved;
            Hang { failure: &failure, activity: &activity }.to_string()
        };
        let expected = "process 0 has hung; guard.step_timeout_s sets the limit. ";
        assert_eq!(said(false), format!("{expected}The model was not saved"));
        assert_eq!(said(true), format!("{expected}The model was saved; the run may lack its summary"));
    }

    #[test]
    fn a_time_to_meet_is_from_a_tenth_of_a_second_to_a_day() {
        assert_eq!((seconds("0.1"), seconds("86400"), seconds("1.5")), (Ok(0.1), Ok(86400.0), Ok(1.5)));
        for wrong in ["0.09", "86400.1", "-1", "nan", "inf", "1s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_failure_to_meet_has_its_exit_code() {
        let address: Address = "127.0.0.1:7".parse().unwrap();
        let source = || std::io::Error::other("taken");
        let refusal = rankine_launch::Refusal::WrongSecret;
        for (error, exit) in [
            (MeetError::Late { late: vec![Process(1)], seconds: 1.0, refused: None }, Exit::Lost),
            (MeetError::Left { left: vec![Process(1)] }, Exit::Lost),
            (
                MeetError::Unreached {
                    process: Process(1),
                    address: address.clone(),
                    seconds: 1.0,
                    why: String::new(),
                },
                Exit::Lost,
            ),
            (MeetError::Refused { process: Process(1), address: address.clone(), refusal }, Exit::Usage),
            (MeetError::Listen { address, source: source() }, Exit::Failed),
            (MeetError::Stray(Process(1)), Exit::Failed),
        ] {
            let words = error.to_string();
            assert_eq!(CommandError::from(error).exit(), exit, "{words}");
        }
    }

    #[test]
    fn a_cluster_is_listed_by_process() {
        let member = |process: usize, host: &str, gpus| ProcessInfo {
            process: Process(process),
            host: host.into(),
            boot: host.into(),
            pid: 100 + process as u32,
            local: None,
            gpus,
            gpu_ids: Vec::new(),
            build: build::compiled(),
        };
        let cluster = |members: Vec<ProcessInfo>| ClusterReport {
            launcher: Launcher::None,
            meet: None,
            exchange_ms: 0.254,
            links: None,
            nodes: hosts(&members),
            members,
        };
        assert_eq!(
            cluster(vec![member(0, "a", 1), member(1, "b", 2), member(2, "a", 0)]).to_string(),
            "process  node  pid  GPUs  host\n\
             \u{20}     0     0  100     1  a\n\
             \u{20}     1     1  101     2  b\n\
             \u{20}     2     0  102     0  a\n\
             3 processes on 2 nodes; an exchange takes 0.25 ms\n"
        );
        let alone = cluster(vec![member(0, "a", 0)]).to_string();
        assert!(alone.ends_with("\n1 process on 1 node; an exchange takes 0.25 ms\n"), "{alone}");
    }
}
