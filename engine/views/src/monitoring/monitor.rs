//! The metrics of one process, and how they get out.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use rankine_engine::training::Observer;
use rankine_job::ListenAddress;

use super::catalog::Catalog;
use super::families::{Beat, Command, Common, Evaluating, RunInfo, Task, Training};
use super::live::{LiveRun, SharedView};
use super::observer::{EvaluationObserver, TrainingObserver};
use super::process::{self, ProcessCollector};
use super::server::{Host, Request, Response, Server};
use super::store::{self, StoreCollector};
use super::text;
use super::textfile::{Textfile, path_of_process};
use crate::report::ProcessView;
use crate::report::assets::assets;

/// A command without a watchdog is ready while it made progress within this time.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Whether the work of a process advances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Ready,
    /// It does not, for this reason.
    NotReady(String),
}

/// What a monitor is started with.
pub struct MonitorOptions {
    /// What runs.
    pub info: RunInfo,
    /// Where to listen for requests.
    pub listen: Option<ListenAddress>,
    /// The file to write metrics to.
    pub textfile: Option<PathBuf>,
    /// Returns whether the work makes progress. Without it, the progress of [`Task`]s decides.
    pub readiness: Option<Box<dyn Fn() -> Readiness + Send>>,
    /// Returns what is known of the processes of a training.
    pub processes: Option<Box<dyn Fn() -> Vec<ProcessView> + Send>>,
}

/// Why metrics cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The address cannot be listened on.
    #[error("cannot serve metrics on {address}: {}", why_not(.source))]
    Listen {
        /// The address.
        address: ListenAddress,
        /// What the system says.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("metrics file: {0}")]
    Write(#[from] rankine_base::Error),
}

/// Says what a failure to listen means, and the way out.
fn why_not(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process uses this port. Choose another port, or 0 for any".into()
        }
        io::ErrorKind::PermissionDenied => "this port is not permitted. Choose one above 1023".into(),
        io::ErrorKind::AddrNotAvailable => "no network interface here has this address".into(),
        _ => error.to_string(),
    }
}

/// The metrics of one process. Dropping it ends their export.
pub struct Monitor {
    common: Common,
    metrics: Metrics,
    /// What the live page shows of a training.
    view: SharedView,
    server: Option<Server>,
    /// Writes the final values when it is dropped.
    _textfile: Option<Textfile>,
}

/// The metrics of a command, besides those that all commands have.
enum Metrics {
    Training(Box<Training>),
    Evaluation(Evaluating),
    Tasks,
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Monitor {
    /// Starts to export metrics; nothing but what the options name.
    ///
    /// # Errors
    /// [`MonitorError`]; nothing is exported then.
    pub fn start(options: MonitorOptions) -> Result<Self, MonitorError> {
        let MonitorOptions { info, listen, textfile, readiness, processes } = options;
        let mut catalog = Catalog::default();
        let (name, process) = (info.name.clone(), info.process);
        let view = SharedView::new(name.clone());
        let shows_run = info.command == Command::Train;
        let (common, metrics) = register(&mut catalog, info);
        let readiness = readiness.unwrap_or_else(|| {
            let beat = Arc::clone(&common.beat);
            Box::new(move || readiness_of(&beat))
        });
        let registry = catalog.registry;
        let server = listen.map(|address| {
            let registry = registry.clone();
            let listener = address.bind();
            let page = Page { view: view.clone(), processes, name: address.name().map(Into::into) };
            let page = shows_run.then_some(page);
            let refused = |source| MonitorError::Listen { address, source };
            let routes = move |request: &Request<'_>| {
                let of_page = page.as_ref().and_then(|page| page.answer(request));
                of_page.unwrap_or_else(|| answer(request, &registry, &*readiness))
            };
            listener.and_then(|listener| Server::start(listener, routes)).map_err(refused)
        });
        let server = server.transpose()?;
        let textfile = textfile.map(|path| {
            let path = path_of_process(&path, process);
            Textfile::start(&path, move || text::for_textfile(&registry, &name, process))
        });
        let textfile = textfile.transpose()?;
        Ok(Self { common, metrics, view, server, _textfile: textfile })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    /// Returns an observer of a training that records its events as metrics, and passes them on.
    ///
    /// # Panics
    /// If the monitor is of another command.
    pub fn training<'a>(&'a self, inner: &'a mut dyn Observer) -> TrainingObserver<'a> {
        let Metrics::Training(metrics) = &self.metrics else { panic!("the monitor is not of a training") };
        TrainingObserver::new(&self.common, metrics, LiveRun::new(self.view.clone()), inner)
    }

    /// Returns an observer of a single evaluation.
    ///
    /// # Panics
    /// If the monitor is of another command.
    pub fn evaluation<'a>(&'a self, inner: &'a mut dyn Observer) -> EvaluationObserver<'a> {
        let Metrics::Evaluation(metrics) = &self.metrics else {
            panic!("the monitor is not of an evaluation")
        };
        EvaluationObserver::new(&self.common, metrics, inner)
    }

    /// Starts a task of `total` units, whose progress is exported.
    pub fn task(&self, task: &'static str, unit: &str, total: u64) -> Task {
        self.common.task(task, unit, total)
    }
}

/// Registers the metrics of a command.
fn register(catalog: &mut Catalog, info: RunInfo) -> (Common, Metrics) {
    let command = info.command;
    let common = Common::new(catalog, info);
    let metrics = match command {
        Command::Train => {
            common.gpus.register(catalog);
            Metrics::Training(Box::new(Training::new(catalog)))
        }
        Command::Eval => Metrics::Evaluation(Evaluating::new(catalog)),
        Command::Predict | Command::Convert | Command::Fit | Command::Generate => Metrics::Tasks,
    };
    catalog.collector(StoreCollector::new(), &store::FAMILIES);
    catalog.collector(ProcessCollector::new(), &process::FAMILIES);
    (common, metrics)
}

/// Returns every family that any command exports, for the reference.
#[cfg(test)]
pub(super) fn families() -> Vec<super::catalog::Family> {
    let mut catalog = Catalog::default();
    register(&mut catalog, RunInfo { command: Command::Train, ..RunInfo::default() });
    catalog.families
}

/// The live page of a training.
struct Page {
    view: SharedView,
    processes: Option<Box<dyn Fn() -> Vec<ProcessView> + Send>>,
    /// The host name in the address to listen on, if it has one.
    name: Option<String>,
}

impl Page {
    /// Answers a request for a file of the page or for the run's view; `None` if it is for something else.
    fn answer(&self, request: &Request<'_>) -> Option<Response> {
        let name = request.path.strip_prefix('/')?;
        let asset = assets().find(|asset| asset.name == name);
        if asset.is_none() && name != RUN_NAME {
            return None;
        }
        if let Some(refusal) = refusal(request.host, self.name.as_deref()) {
            return Some(Response::text(403, refusal));
        }
        Some(match asset {
            Some(asset) => {
                Response { status: 200, content_type: asset.content_type, body: asset.text.into() }
            }
            None => {
                let processes = self.processes.as_ref().map(|processes| processes()).unwrap_or_default();
                let body = self.view.json(processes);
                Response { status: 200, content_type: "application/json", body }
            }
        })
    }
}

/// Says why the live page is not shown under this name of the host; `None` if it is. `own` is the configured name.
///
/// A web site can make its own name lead to this server's address (DNS rebinding). A browser behind the same firewall
/// would then let the site's scripts read the page, as if it were the site's own.
pub(super) fn refusal(host: Option<Host<'_>>, own: Option<&str>) -> Option<String> {
    let Some(Host::Name(name)) = host else { return None };
    let is_shown = ["localhost"].into_iter().chain(own).any(|shown| shown.eq_ignore_ascii_case(name));
    (!is_shown).then(|| {
        format!(
            "Rankine does not show this page as {name}, because a web site could give that name to this server and \
             read the page: open it by an IP address or as localhost, or train with --metrics {name}:PORT.\n"
        )
    })
}

/// What the page polls.
const RUN_NAME: &str = "run.json";

/// What the server of a command without a page says about itself at `/`.
const INDEX: &str = "\
Rankine

/metrics  metrics for Prometheus
/healthz  whether the process is alive
/readyz   whether its work advances
";

/// Answers a request.
fn answer(request: &Request<'_>, registry: &Registry, readiness: &dyn Fn() -> Readiness) -> Response {
    match request.path {
        "/metrics" => Response { status: 200, content_type: text::CONTENT_TYPE, body: text::of(registry) },
        "/healthz" => Response::text(200, "ok\n"),
        "/readyz" => match readiness() {
            Readiness::Ready => Response::text(200, "ready\n"),
            Readiness::NotReady(why) => Response::text(503, format!("{why}\n")),
        },
        "/" => Response::text(200, INDEX),
        _ => Response::text(404, "not found: / lists what is here\n"),
    }
}

/// A command without a watchdog is ready while it makes progress.
fn readiness_of(beat: &Beat) -> Readiness {
    let still = beat.still();
    if still < STANDSTILL {
        return Readiness::Ready;
    }
    Readiness::NotReady(format!("no progress for {:.0} s", still.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_stands_still_for_a_minute_is_not_ready() {
        // The margin of ten seconds is for a busy machine.
        let readiness = |began: u64, advanced: u64| {
            readiness_of(&Beat::of(Duration::from_secs(began), Duration::from_secs(advanced)))
        };
        assert_eq!(readiness(40, 40), Readiness::Ready);
        assert_eq!(readiness(3600, 0), Readiness::Ready);
        assert_eq!(readiness(3600, 40), Readiness::Ready);
        for (began, advanced) in [(80, 80), (3600, 80)] {
            let Readiness::NotReady(why) = readiness(began, advanced) else { panic!("{began} {advanced}") };
            let seconds = why.strip_prefix("no progress for ").and_then(|why| why.strip_suffix(" s"));
            let seconds: u64 =
                seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or_else(|| panic!("{why}"));
            assert!((80..90).contains(&seconds), "{why}");
        }
    }
}
