//! `rankine export`: writes a trained model for other programs.

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use rankine_base::publish::refuse_inputs;
use rankine_base::url::is_url;
use rankine_engine::run_paths;
use rankine_engine::source::{Artifact, ModelSource, OpenModel};
use rankine_export::{BagLayout, OnnxInputs, TrainedModel};
use rankine_model::logit::Correction;
use rankine_reader::store;
use rankine_saved::MANIFEST_NAME;

use crate::{CommandError, Exit, output};

/// Export a trained model to a folder, as ONNX, for Triton, or as safetensors
///
/// onnx: `model.onnx` and `weights.bin`, for mapped features, with the outputs `logit` and `probability`, one column
/// per head. ONNX Runtime and others run it; docs/guide/onnx.md describes its inputs.
///
/// triton: the same as a model of Triton Inference Server, with `config.pbtxt`; and `mapping.json` and the
/// vocabularies, which map raw rows. The folder is one of a model repository, and its name is the name of the model.
///
/// safetensors: a folder like the folder `model` of a finished run, with the vocabularies. `eval` and `predict` accept
/// it without the run, and PyTorch and NumPy can read its tensors. docs/reference/checkpoint-format.md describes how to
/// compute predictions from them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine export runs/criteo-1 --format onnx --out models/criteo-onnx
  rankine export runs/criteo-1 --format triton --out repository/criteo
  rankine export runs/criteo-1 --format safetensors --out models/criteo
  rankine export runs/criteo-1 --format onnx --out s3://models/criteo-onnx
  rankine export runs/criteo-1/checkpoints/step-5000 --format safetensors --out models/criteo --data data/criteo")]
pub(crate) struct Args {
    /// Model: the folder of a run or its name in the folder runs (its model, or its latest checkpoint if it has not
    /// finished), a checkpoint, or an export
    run: PathBuf,

    /// Format to write
    #[arg(long, value_enum)]
    format: Format,

    /// Output folder, which must be empty or not exist, or its url in an object store
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// With --format onnx, how the inputs have bags with different numbers of ids [default: padded]
    #[arg(long, value_name = "LAYOUT", value_enum)]
    bags: Option<Bags>,

    /// With --format onnx or triton, what the numbers of dense columns are [default: mapped]
    #[arg(long, value_name = "KIND", value_enum)]
    numbers: Option<Numbers>,

    /// With --format onnx or triton, leave out the correction for downsampled negatives (negatives_kept)
    #[arg(long)]
    no_correction: bool,

    /// The dataset that a checkpoint was trained on, if it is no longer in the folder that the job names
    #[arg(long, value_name = "DATASET")]
    data: Option<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// ONNX, opset 18
    Onnx,
    /// A model of Triton Inference Server
    Triton,
    /// Tensors with the columns and vocabularies
    Safetensors,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Bags {
    /// NAME [N, width], as wide as the longest bag, and NAME.count [N]
    Padded,
    /// NAME, the ids of all rows, and NAME.offsets [N + 1]; TensorRT cannot run it
    Offsets,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Numbers {
    /// After the transforms of training, in single precision
    Mapped,
    /// As in the files, in double precision, NaN if missing; the model transforms them
    Raw,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let other = args.other_format()?;
    let source = ModelSource::find(&args.run, Artifact::Any)?;
    let model = source.open_latest(args.data.as_deref())?;
    // Nothing that training wrote is overwritten, whether it is read or not.
    let run = match &source {
        ModelSource::Run(run) => run_paths::all(run),
        ModelSource::Checkpoint(_) | ModelSource::Export(_) => Vec::new(),
    };
    refuse_inputs(&args.out, model.inputs().iter().chain(&run))?;
    match is_url(&args.out) {
        false => export(&model, &args, &args.out, other)?,
        true => export_to_url(&model, &args, other)?,
    }
    report(&model, &args.out, args.json)
}

fn export(
    model: &OpenModel,
    args: &Args,
    out: &Path,
    other: Option<rankine_export::Format>,
) -> Result<(), CommandError> {
    match other {
        Some(format) => write(model, args, out, format),
        None => Ok(model.export(out)?),
    }
}

/// Exports to a temporary folder and copies its files. What tells readers that the export is there comes last.
fn export_to_url(
    model: &OpenModel,
    args: &Args,
    other: Option<rankine_export::Format>,
) -> Result<(), CommandError> {
    let url = &args.out;
    if store::list(url)? != store::Listing::default() {
        let why = "has objects already: name another url".to_owned();
        return Err(rankine_base::Error::Exists { path: url.clone(), why }.into());
    }
    let temporary = tempfile::tempdir().map_err(|error| {
        CommandError::new(Exit::Failed, format!("cannot create a temporary folder: {error}"))
    })?;
    // Triton's models are called like their folder.
    let folder = temporary.path().join(url.file_name().unwrap_or("export".as_ref()));
    export(model, args, &folder, other)?;
    let mut files = Vec::new();
    let mut folders = vec![folder.clone()];
    while let Some(of) = folders.pop() {
        let failed = |error| format!("cannot read the folder {}: {error}", of.display());
        for entry in fs::read_dir(&of).map_err(|error| CommandError::new(Exit::Failed, failed(error)))? {
            let path = entry.map_err(|error| CommandError::new(Exit::Failed, failed(error)))?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    let is_last = |file: &PathBuf| {
        [MANIFEST_NAME, "model.onnx", "config.pbtxt"]
            .iter()
            .any(|name| file.file_name() == Some(name.as_ref()))
    };
    files.sort_unstable_by_key(|file| (is_last(file), file.clone()));
    for file in files {
        store::copy(&file, &url.join(file.strip_prefix(&folder).expect("it is below")))?;
    }
    Ok(())
}

impl Args {
    /// Returns the format, unless it is safetensors.
    fn other_format(&self) -> Result<Option<rankine_export::Format>, CommandError> {
        let refused = |option: &str, formats: &str| {
            Err(CommandError::new(
                Exit::Usage,
                format!("{option} needs {formats}: leave it out, or change --format"),
            ))
        };
        let numbers = match self.numbers {
            None | Some(Numbers::Mapped) => rankine_export::Numbers::Mapped,
            Some(Numbers::Raw) => rankine_export::Numbers::Raw,
        };
        let bags = match self.bags {
            None | Some(Bags::Padded) => BagLayout::Padded,
            Some(Bags::Offsets) => BagLayout::Offsets,
        };
        match self.format {
            Format::Onnx => Ok(Some(rankine_export::Format::Onnx(OnnxInputs { bags, numbers }))),
            Format::Triton | Format::Safetensors if self.bags.is_some() => refused("--bags", "--format onnx"),
            Format::Triton => Ok(Some(rankine_export::Format::Triton(numbers))),
            Format::Safetensors if self.numbers.is_some() => refused("--numbers", "--format onnx or triton"),
            Format::Safetensors if self.no_correction => {
                refused("--no-correction", "--format onnx or triton")
            }
            Format::Safetensors => Ok(None),
        }
    }
}

/// Writes a model in the format of another system.
fn write(
    model: &OpenModel,
    args: &Args,
    out: &Path,
    format: rankine_export::Format,
) -> Result<(), CommandError> {
    let ids = model.ids()?;
    if let rankine_export::Format::Triton(_) = format {
        model.check_vocabularies()?;
    }
    let (heads, schema) = (&model.spec().heads, &model.columns().schema);
    let corrections = match args.no_correction {
        true => vec![Correction::NONE; heads.len()],
        false => Correction::of_heads(heads, schema),
    };
    let written = model.with_contents(|weights, metadata| {
        let trained = TrainedModel { weights, metadata, ids: &ids, corrections: &corrections };
        rankine_export::export(out, &trained, format)
    });
    Ok(written?)
}

/// Prints what was exported.
pub(crate) fn report(model: &OpenModel, out: &Path, json: bool) -> Result<(), CommandError> {
    if json {
        return output::json(&serde_json::json!({ "export": out, "step": model.steps() }));
    }
    output::text(format_args!("exported the model of step {} to {}\n", model.steps(), out.display()))
}
