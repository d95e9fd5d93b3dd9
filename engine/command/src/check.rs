//! `rankine check`: checks a job file, and whether this machine can train the job, without training.

use bytesize::ByteSize;
use rankine_embedding::plan::TierReport;
use rankine_engine::training::{self, Columns, Feasibility, Preview, TrainError};
use rankine_job::{DataSource, Job, JobFile};
use rankine_model::ModelSpec;
use serde::Serialize;

use super::job::JobArgs;
use super::table::counted;
use super::tier::TierText;
use super::{CommandError, output};

/// Check a job file, and whether it suits the dataset and this machine
///
/// The exit code is 0 for a valid job and 2 for an invalid one; errors give the line and column. Lines that start with
/// `here` report whether this build and this machine can train the job in one process: the device, its libraries,
/// memory for the tables, and how the dataset is read, if it exists. Nothing is written.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine check job.toml
  rankine check job.toml --set train.batch_size=4096 --set eval.every_steps=500
  rankine check job.toml --here && sbatch train.sh
  rankine check job.toml --effective > everything.toml")]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,

    /// Print the job with all defaults, as TOML
    #[arg(long)]
    effective: bool,

    /// Fail if this build or this machine cannot train the job, with the exit code of the training
    #[arg(long)]
    here: bool,

    /// Print JSON instead of text
    #[arg(long, conflicts_with = "effective")]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct CheckReport<'a> {
    job: &'a str,
    /// Whether the dataset or the raw files exist.
    dataset_exists: bool,
    /// The model; absent if the columns are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelSizes>,
    here: MachineReport<'a>,
}

#[derive(Serialize)]
struct ModelSizes {
    kind: &'static str,
    tables: usize,
    rows: u64,
    embedding_parameters: u64,
    dense_parameters: u64,
    /// Bytes of the tables and their optimizer state.
    table_bytes: u64,
    /// How rows are divided between a GPU and host memory, if that does not depend on the GPU; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<TierReport>,
}

#[derive(Serialize)]
struct MachineReport<'a> {
    device: Option<&'a str>,
    reading: Option<&'a str>,
    /// How rows would be divided between a GPU and host memory; absent if they would not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'a TierReport>,
    /// Why this build and machine cannot train the job; empty if they can.
    obstacles: Vec<String>,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    let file = args.job.read()?;
    let job = file.job()?;
    let preview = training::preview(&job).map_err(|error| match error {
        TrainError::Conflicts(conflicts) => file.error(&conflicts).into(),
        error => CommandError::from(error),
    })?;
    if args.effective {
        output::text(job.to_toml())?;
        return if args.here { verdict(training::feasibility(&job), &file) } else { Ok(()) };
    }
    let feasibility = if args.json {
        let feasibility = training::feasibility(&job);
        output::json(&CheckReport::new(&job, preview, &feasibility))?;
        feasibility
    } else {
        output::text(format_args!("{} is valid: job `{}`\n", args.job.path.display(), job.name))?;
        output::text(dataset_line(&job, preview.columns)?)?;
        if let Some(spec) = &preview.spec {
            output::text(model_lines(&job, spec, preview.table_bytes))?;
        }
        let feasibility = training::feasibility(&job);
        if let Some(tier) = preview.tier.as_ref().or(feasibility.tier.as_ref()) {
            output::text(TierText(tier))?;
        }
        print_feasibility(&feasibility)?;
        feasibility
    };
    if args.here { verdict(feasibility, &file) } else { Ok(()) }
}

impl<'a> CheckReport<'a> {
    fn new(job: &'a Job, preview: Preview, feasibility: &'a Feasibility) -> Self {
        Self {
            job: job.name.as_str(),
            dataset_exists: preview.columns == Columns::Dataset,
            model: preview.spec.map(|spec| ModelSizes {
                kind: job.model.kind().name,
                tables: spec.tables.len(),
                rows: spec.tables.iter().map(|table| table.rows).sum(),
                embedding_parameters: spec.embedding_parameters(),
                dense_parameters: spec.dense_parameters() as u64,
                table_bytes: preview.table_bytes,
                tier: preview.tier,
            }),
            here: MachineReport {
                device: feasibility.device.as_deref(),
                reading: feasibility.reading.as_deref(),
                tier: feasibility.tier.as_ref(),
                obstacles: feasibility.obstacles.iter().map(ToString::to_string).collect(),
            },
        }
    }
}

fn dataset_line(job: &Job, columns: Columns) -> Result<String, CommandError> {
    let folders = match job.data.source() {
        DataSource::Folders(folders) => folders,
        DataSource::Raw(raw) => {
            let record_bytes = raw.format()?.record_bytes()?;
            let missing = match columns {
                Columns::Dataset => "",
                Columns::Shape | Columns::Unknown => ": not found, so their lengths were not checked",
            };
            let files = counted(job.data.raw_files().count() as u64, "raw file");
            return Ok(format!("dataset   {files} with records of {record_bytes} bytes{missing}\n"));
        }
    };
    let dir = folders.name();
    Ok(match columns {
        Columns::Dataset => format!("dataset   {dir}\n"),
        Columns::Shape if folders.generate.is_some() => {
            format!("dataset   {dir}: does not exist yet; training generates it\n")
        }
        Columns::Shape => {
            format!("dataset   {dir}: does not exist; its columns were taken from data.shape\n")
        }
        Columns::Unknown => format!(
            "dataset   {dir}: does not exist, so its columns were not checked; convert or generate it\n"
        ),
    })
}

fn model_lines(job: &Job, spec: &ModelSpec, table_bytes: u64) -> String {
    format!(
        "model     {}: {} with {}, {} embedding and {} dense parameters\n\
         memory    {} for the tables and their optimizer state\n",
        job.model.kind().name,
        counted(spec.tables.len() as u64, "table"),
        counted(spec.tables.iter().map(|table| table.rows).sum(), "row"),
        spec.embedding_parameters(),
        spec.dense_parameters(),
        ByteSize(table_bytes)
    )
}

fn print_feasibility(feasibility: &Feasibility) -> Result<(), CommandError> {
    if let Some(device) = &feasibility.device {
        output::text(format_args!("here      the job would be trained on {device}\n"))?;
    }
    if let Some(reading) = &feasibility.reading {
        output::text(format_args!("here      the dataset is read with {reading}\n"))?;
    }
    for obstacle in &feasibility.obstacles {
        output::text(format_args!("here      the job cannot be trained: {obstacle}\n"))?;
    }
    Ok(())
}

/// Fails with the first obstacle, as training would.
fn verdict(feasibility: Feasibility, file: &JobFile) -> Result<(), CommandError> {
    match feasibility.obstacles.into_iter().next() {
        None => Ok(()),
        Some(TrainError::Conflicts(conflicts)) => Err(file.error(&conflicts).into()),
        Some(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dataset_line_says_what_exists() {
        const REST: &str = "name = 'a'\nmodel = { kind = 'wide-deep', embedding_dim = 4, top_mlp = [4] }\n\
            optimizer.dense = { kind = 'sgd', learning_rate = 1 }\n\
            optimizer.sparse = { kind = 'sgd', learning_rate = 1 }\ntrain.batch_size = 8\n";
        let line = |data: &str, columns| {
            let job = Job::from_toml("a.toml", &format!("{REST}{data}"), &[""; 0]).unwrap();
            dataset_line(&job, columns).unwrap()
        };
        let folder = "data.dir = 'd'\n";
        let generated = "data.dir = 'd'\ndata.generate = { shape = 'dlrm', samples = 9 }\n";
        assert_eq!(line(folder, Columns::Dataset), "dataset   d\n");
        assert_eq!(line(generated, Columns::Dataset), "dataset   d\n");
        let generates = "dataset   d: does not exist yet; training generates it\n";
        assert_eq!(line(generated, Columns::Shape), generates);
        let of_shape = "dataset   d: does not exist; its columns were taken from data.shape\n";
        assert_eq!(line(&format!("{folder}data.shape = 'dlrm'\n"), Columns::Shape), of_shape);
        let unknown =
            "dataset   d: does not exist, so its columns were not checked; convert or generate it\n";
        assert_eq!(line(folder, Columns::Unknown), unknown);
        // A record of a label, 13 dense values and 26 ids of four bytes each.
        let raw = "data.raw = { shape = 'dlrm', train = ['a', 'b'], eval = ['c'] }\n";
        assert_eq!(line(raw, Columns::Dataset), "dataset   3 raw files with records of 160 bytes\n");
        let missing = "dataset   3 raw files with records of 160 bytes: not found, so their lengths were not \
            checked\n";
        assert_eq!(line(raw, Columns::Shape), missing);
    }
}
