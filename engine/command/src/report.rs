//! `rankine report`: shows runs as an HTML file.

use std::path::PathBuf;

use bytesize::ByteSize;
use rankine_base::publish::{OwnOutput, replace_file};
use rankine_engine::run_paths;
use rankine_views::report::{self, REPORT_MARK, ReportError, RunView};

use super::{CommandError, Exit, output};

/// Earlier reports, which a further one replaces.
const REPORT: OwnOutput = OwnOutput {
    what: "a report",
    is_own: |start| String::from_utf8_lossy(start).contains(REPORT_MARK),
    way_out: "replace it with --force",
};

/// Write an HTML file that shows runs: curves, where the time went, metrics, tables and settings
///
/// With several runs it compares them first: their metrics, the settings that differ, and their curves. The file needs
/// no other file and no network, so it can be mailed or archived. Runs need not be finished. A curve has
/// at most 2048 points, and fewer if there are more than four runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine report runs/criteo
  rankine report runs/criteo --out criteo.html
  rankine report sweep/* --out sweep.html")]
pub(crate) struct Args {
    /// Run folder, a file in it, or the name of a run in the folder runs; several are compared
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,

    /// File to write, atomically; an earlier report is replaced, any other file needs --force
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,

    /// Replace any file
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let out = args.out.display();
    if !args.force {
        REPORT.check(&args.out)?;
    }
    let views = args.runs.iter().map(|run| report::load(&run_paths::find(run)));
    let views = views.collect::<Result<Vec<RunView>, _>>()?;
    let html = report::render(&views);
    match args.force {
        true => replace_file(&args.out, html.as_bytes())?,
        false => REPORT.replace(&args.out, html.as_bytes())?,
    }
    let size = ByteSize(html.len() as u64).display().si();
    output::text(format_args!("report {out} ({size})\n"))
}

impl From<ReportError> for CommandError {
    fn from(error: ReportError) -> Self {
        let exit = match &error {
            ReportError::NotARun { .. } => Exit::Usage,
            ReportError::Read { .. } => Exit::Failed,
            ReportError::Damaged { .. } => Exit::BadData,
        };
        Self::new(exit, error)
    }
}
