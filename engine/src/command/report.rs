//! `rankine report`: shows runs as an HTML file.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use rankine::report::{self, REPORT_MARK, ReportError, RunView};
use rankine_reader::publish::replace_file;

use super::{CommandError, Exit, output};

/// The bytes at the start of a file in which a report has its mark.
const START_BYTES: u64 = 4096;

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
    /// Run folder; several are compared
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
    if !args.force && is_other_file(&args.out) {
        let what =
            format!("{out} exists and is not a report: choose another file, or replace it with --force");
        return Err(CommandError::new(Exit::Usage, what));
    }
    let views = args.runs.iter().map(|run| report::load(run)).collect::<Result<Vec<RunView>, _>>()?;
    let html = report::render(&views);
    replace_file(&args.out, html.as_bytes())?;
    let size = ByteSize(html.len() as u64).display().si();
    output::text(format_args!("report {out} ({size})\n"))
}

/// Returns whether a path is a file with content that is not a report. Pipes and devices have none.
fn is_other_file(path: &Path) -> bool {
    let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
    let mut start = Vec::new();
    let mut read = || File::open(path)?.take(START_BYTES).read_to_end(&mut start);
    // A file that cannot be read is not known to be a report.
    is_file && (read().is_err() || !String::from_utf8_lossy(&start).contains(REPORT_MARK))
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
