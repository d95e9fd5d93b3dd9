//! `rankine ckpt delta`: writes what changes a model that scores into a later one.

use std::path::PathBuf;

use rankine_engine::delta::{DeltaSummary, write_delta};

use crate::table::counted;
use crate::{CommandError, output};

/// Write the delta from one model of a job to a later one, for models that score without a restart
///
/// A delta has the rows of tables that differ, the ids that got or lost a row, and the dense weights. `Ranker::apply`
/// of the library, or `Ranker.apply` in Python, changes the first model into the second one while it scores. A delta
/// appears complete or not at all.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt delta runs/a/checkpoints/step-100 runs/a/checkpoints/step-200 --out deltas/200
  rankine ckpt delta models/monday models/tuesday --out deltas/tuesday --json")]
pub(crate) struct Args {
    /// The model that is scoring: run folder, checkpoint, or export
    base: PathBuf,

    /// The later model: run folder (of a run that has not finished, its latest checkpoint), checkpoint, or export
    run: PathBuf,

    /// Output folder, which must be empty or not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let summary = write_delta(&args.base, &args.run, &args.out)?;
    if args.json {
        return output::json(&serde_json::json!({ "delta": args.out, "summary": summary }));
    }
    let DeltaSummary { base, result, rows, admitted, evicted, bytes, .. } = summary;
    output::text(format_args!(
        "{}: steps {} to {}: {}, {} admitted and {evicted} evicted, {bytes} bytes\n",
        args.out.display(),
        base.steps,
        result.steps,
        counted(rows, "row"),
        counted(admitted, "id"),
    ))
}
