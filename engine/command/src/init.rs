//! `rankine init`: writes a first job file for a dataset.

use std::io::Write;
use std::path::{Path, PathBuf};

use rankine_base::publish::{PartialFile, refuse_inputs};
use rankine_engine::starter::{StarterData, StarterTrial, TrialOptions, starter_job};
use rankine_job::Model;
use rankine_reader::Dataset;

use super::editors::schema_line;
use super::raw::RecordArgs;
use super::{CommandError, Exit, output, signals};

/// Write a job file that suits a dataset
///
/// Sizes depend on the columns and the number of samples. Short training runs then compare kinds of model, optimizers,
/// rates, weight decay, embedding sizes and schedules, and find the number of epochs. They are scored on the last tenth
/// of the training part, which is held out; the evaluation part is not read. Comments in the file explain the choices,
/// and show other options. A comment on the first line tells editors where the JSON Schema of job files is: in
/// $XDG_DATA_HOME/rankine, by default ~/.local/share/rankine.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("samples").required(true))]
#[command(after_help = "\
Examples:
  rankine init --data data/criteo
  rankine init --data data/criteo --quick
  rankine init --data data/criteo --model dcnv2 --out dcnv2.toml
  rankine init --raw train_data.bin --eval val_data.bin --shape dlrm-dcnv2 --model dcnv2
  rankine train dcnv2.toml")]
pub(crate) struct Args {
    /// Dataset folder
    #[arg(long, value_name = "DATASET", group = "samples")]
    data: Option<PathBuf>,

    /// Raw files of HugeCTR and MLPerf instead of a dataset
    #[arg(long, value_name = "FILE", num_args = 1.., group = "samples", requires = "shape")]
    raw: Vec<PathBuf>,

    /// Raw files to evaluate on
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "raw")]
    eval: Vec<PathBuf>,

    /// The columns of raw records: dlrm, dlrm-dcnv2, or the path of a shape file
    #[arg(long, value_name = "SHAPE", requires = "raw")]
    shape: Option<String>,

    #[command(flatten)]
    records: RecordArgs,

    /// Kind of the model [default: dlrm, or wide-deep for a single column]
    #[arg(long, value_name = "KIND", value_parser = Model::KINDS.map(|kind| kind.name))]
    model: Option<String>,

    /// Choose by the columns and the number of samples alone, without trials
    #[arg(long)]
    quick: bool,

    /// Job file to write, which must not exist
    #[arg(long, value_name = "JOB.toml", default_value = "job.toml")]
    out: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let shape_file = args.shape.as_deref().map(Path::new);
    let inputs = args.data.as_deref().into_iter().chain(shape_file);
    let raw = args.raw.iter().chain(&args.eval).map(PathBuf::as_path);
    refuse_inputs(&args.out, inputs.chain(raw))?;
    let kind = args.model.as_deref();
    let format;
    let (dataset, data) = match (&args.data, &args.shape) {
        (None, Some(shape)) => {
            format = args.records.format(shape)?;
            let dataset = Dataset::raw(&format, &args.raw, &args.eval)?;
            (dataset, StarterData::Raw { shape, format: &format, train: &args.raw, eval: &args.eval })
        }
        (data, _) => {
            let dir = data.as_deref().unwrap_or(Path::new(""));
            (Dataset::open(dir)?, StarterData::Folder(dir))
        }
    };
    // What stands in the way is found out before the trials.
    let mut file = PartialFile::create_new(&args.out)?;
    let (stop, _deadline) = signals::work()?;
    let place = tempfile::tempdir().map_err(|error| {
        CommandError::new(Exit::Failed, format!("cannot make a temporary folder for trials: {error}"))
    })?;
    let observe = |trial: &StarterTrial| {
        let auc = trial.auc.map_or_else(|| "undefined".into(), |auc| format!("{auc:.4}"));
        tracing::info!("trial of {}: AUC {auc}", trial.value);
    };
    let options = TrialOptions { dir: place.path(), stop: &stop, observe: &observe };
    let starter = starter_job(&dataset, data, kind, (!args.quick).then_some(options))?;
    let text = schema_line("job", rankine_job::SCHEMA) + &starter.text;
    let written = file.write_all(text.as_bytes());
    let out = args.out.display();
    written.map_err(|error| CommandError::new(Exit::Failed, format!("cannot write {out}: {error}")))?;
    file.publish()?;
    if args.json {
        return output::json(&serde_json::json!({ "job": args.out, "auc": starter.auc }));
    }
    output::text(format_args!("job    {out}\nnext   rankine train {out}\n"))
}
