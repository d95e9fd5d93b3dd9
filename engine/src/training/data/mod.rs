//! The job's dataset: opened, or generated first; and what is known of a job before it is trained.

use std::path::Path;

use rankine_base::Stop;
use rankine_base::files::check_folder;
use rankine_embedding::plan::TierReport;
use rankine_engine_gpu::refusals;
use rankine_job::{
    AverageSave, Conflict, DataFolders, DataSource, DeviceKind, Generate, Job, MemoryBudget, Ranks,
};
use rankine_launch::ProcessGroup;
use rankine_model::ModelSpec;
use rankine_model::translate;
use rankine_reader::generate::{GenerateSpec, Shape, generate};
use rankine_reader::origin::Origin;
use rankine_reader::schema::DenseDtype;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Part, Schema};

use super::error::{Disagreement, TrainError};
use super::event::{Event, Observer};
use super::features::{with_features, with_shape};
use super::ids::with_ids;
use super::processes::same_everywhere;
use crate::planning::{Source, TierError, Tiers};

mod stream;

/// The exponent of the power law that ids are taken to follow if nothing is known of them.
const USUAL_ALPHA: f64 = 1.1;
/// Samples that are read at a time to find one with a weight.
const WEIGHED_SAMPLES: usize = 4096;

pub(super) use stream::train_options;

/// Opens the dataset of a job, a folder or raw files. Generates the folder first if it is missing and the job says
/// how; `stop` interrupts that.
///
/// # Errors
/// [`TrainError::Data`]; [`TrainError::NotBegun`]; [`TrainError::Conflicts`] if the folder has a dataset that was
/// made with other settings than the job's.
pub fn open_or_generate(job: &Job, stop: &Stop, observer: &mut dyn Observer) -> Result<Dataset, TrainError> {
    prepare(job, open_or_make(job, stop, observer)?, None)
}

/// Applies what a job says about its samples: the validation set, further columns, and the policy for ids. Buckets are
/// those of the columns `known`, if there are any.
fn prepare(job: &Job, dataset: Dataset, known: Option<&Schema>) -> Result<Dataset, TrainError> {
    let dataset = dataset.with_validation(job.train.validation).map_err(|error| match error {
        rankine_base::Error::Setting { what, .. } | rankine_base::Error::Unsuitable { what, .. } => {
            conflict("train.validation", what)
        }
        error => error.into(),
    })?;
    // Quantiles are those of the samples to train on.
    let dataset = with_ids(job, with_features(job, dataset, known)?)?;
    [Part::Train, Part::Validation, Part::Eval]
        .into_iter()
        .try_for_each(|part| check_weights(&dataset, part))?;
    let is_watched = [Part::Validation, Part::Eval].iter().any(|&part| dataset.samples(part) > 0);
    if job.train.early_stopping.is_some() && !is_watched {
        let message = "early stopping compares evaluations, but the dataset has no evaluation part: set \
                       train.validation, for example to \"last:0.1\"";
        return Err(conflict("train.early_stopping", message.into()));
    }
    let compares = job.train.average.is_some_and(|average| average.save == AverageSave::Better);
    if compares && !is_watched {
        let message = "the average is evaluated beside the model, but the dataset has no evaluation part: set \
                       train.validation, for example to \"last:0.1\", or train.average.save = \"always\"";
        return Err(conflict("train.average", message.into()));
    }
    Ok(dataset)
}

/// Checks that not all samples of a part weigh 0. Reads up to the first one that does not, which is among the first in
/// most datasets.
fn check_weights(dataset: &Dataset, part: Part) -> Result<(), TrainError> {
    if dataset.schema().weight.is_none() || dataset.samples(part) == 0 {
        return Ok(());
    }
    for batch in BatchStream::open(dataset.part(part)?, &StreamOptions::one_epoch(WEIGHED_SAMPLES))? {
        if batch?.samples.weights.iter().any(|&weight| weight > 0.0) {
            return Ok(());
        }
    }
    let what = format!(
        "all samples of the {part} part of {} weigh 0, so that none counts: convert its rows again with other weights, \
         or without [weight] in the schema file",
        dataset.dir().display()
    );
    Err(TrainError::Data(rankine_base::Error::bad_rows(Some(dataset.dir()), None, what)))
}

fn conflict(key: &str, message: String) -> TrainError {
    TrainError::Conflicts(vec![Conflict::new(key, message)])
}

fn open_or_make(job: &Job, stop: &Stop, observer: &mut dyn Observer) -> Result<Dataset, TrainError> {
    let (dir, settings) = match job.data.source() {
        DataSource::Raw(raw) => return Ok(Dataset::raw(&raw.format()?, &raw.train, &raw.eval)?),
        DataSource::Folders(DataFolders { dirs: [dir], generate: Some(settings), .. }) => (dir, settings),
        DataSource::Folders(folders) => return Ok(folders.open()?),
    };
    let spec = generate_spec(settings)?;
    if !Dataset::exists(dir) {
        tracing::info!(
            "generating the dataset {} ({} samples)",
            dir.display(),
            spec.samples + spec.eval_samples
        );
        let threads = rankine_job::thread_count(job.device.threads);
        let total = spec.samples + spec.eval_samples;
        observer.observe(Event::Generating { samples: 0, total });
        let progress = |samples| observer.observe(Event::Generating { samples, total });
        generate(&spec, dir, threads, stop, progress).map_err(|error| match error {
            rankine_base::Error::Stopped(cause) => TrainError::NotBegun { cause },
            error => error.into(),
        })?;
        observer.observe(Event::Generated);
    }
    let dataset = Dataset::open(dir)?;
    match dataset.manifest().map(|manifest| &manifest.origin) {
        Some(Origin::Generated(generation)) if generation.spec == spec => Ok(dataset),
        Some(Origin::Generated(_)) => Err(other_dataset(dir, "was generated with different settings")),
        _ => Err(other_dataset(dir, "was converted from click logs, not generated")),
    }
}

/// Opens the dataset of a job, and generates none: `None` if training would generate it.
///
/// # Errors
/// As [`open_or_generate`].
pub(super) fn open_existing(job: &Job) -> Result<Option<Dataset>, TrainError> {
    match job.data.source() {
        DataSource::Folders(folders) if folders.generate.is_some() && folders.missing().is_some() => Ok(None),
        _ => open_or_generate(job, &Stop::default(), &mut ()).map(Some),
    }
}

/// The same for one of several processes, which must all open the same samples. The first one generates the dataset
/// if needed, while the others wait. A run that is resumed has `known` columns, whose buckets it keeps.
///
/// # Errors
/// As [`open_or_generate`]; [`TrainError::Processes`]; [`TrainError::Disagreement`].
pub(super) fn open_together(
    job: &Job,
    processes: &ProcessGroup,
    stop: &Stop,
    known: Option<&Schema>,
    observer: &mut dyn Observer,
) -> Result<Dataset, TrainError> {
    let mut open = || prepare(job, open_or_make(job, stop, observer)?, known);
    let first = if processes.is_first() { Some(open()?) } else { None };
    processes.wait("the dataset")?;
    let missing = match job.data.source() {
        DataSource::Folders(folders) => folders.missing(),
        DataSource::Raw(_) => None,
    };
    let dataset = match (first, missing) {
        (Some(dataset), _) => dataset,
        (None, Some(dir)) => return Err(Disagreement::NoDataset(dir.to_owned()).into()),
        (None, None) => open()?,
    };
    let manifest = dataset.manifest().map(serde_json::to_string_pretty).transpose();
    let counts = [Part::Train, Part::Eval].map(|part| format!("{part}: {} samples\n", dataset.samples(part)));
    let buckets = serde_json::to_string_pretty(dataset.schema().bucket_columns()).unwrap_or_default();
    let identity = counts.concat() + &buckets + &manifest.ok().flatten().unwrap_or_default();
    same_everywhere(processes, "dataset", &identity)?;
    Ok(dataset)
}

fn other_dataset(dir: &Path, what: &str) -> TrainError {
    let message = format!(
        "the dataset in {} {what}: choose another data.dir, remove that folder, or remove [data.generate] to train on \
         the existing dataset",
        dir.display()
    );
    conflict("data.generate", message)
}

fn generate_spec(settings: &Generate) -> Result<GenerateSpec, TrainError> {
    Ok(GenerateSpec {
        shape: Shape::load(&settings.shape.to_string())?,
        rows_cap: settings.rows_cap.map(|cap| cap.get()),
        samples: settings.samples.get(),
        eval_samples: settings.eval_samples,
        alpha: settings.alpha.get(),
        seed: settings.seed,
    })
}

/// What is known of a job without training it.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    /// Where the columns are known from.
    pub columns: Columns,
    /// The model, if the columns are known.
    pub spec: Option<ModelSpec>,
    /// Bytes of the tables and their optimizer state, if the columns are known.
    pub table_bytes: u64,
    /// How rows are divided between a GPU and host memory, if the job says so, and it does not depend on the memory of
    /// the GPU.
    pub tier: Option<TierReport>,
}

/// Where a job's columns are known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// An existing dataset.
    Dataset,
    /// The shape of the dataset that training will generate, or of a dataset or raw files that are missing.
    Shape,
    /// Nowhere: the dataset is missing.
    Unknown,
}

/// Checks a job against its dataset, or against the shape of the one that it would generate, as far as either exists.
///
/// # Errors
/// [`TrainError::Data`] if the dataset is damaged, [`TrainError::Conflicts`] if the job does not suit it, or if GPUs do
/// not support a job that requires them.
pub fn preview(job: &Job) -> Result<Preview, TrainError> {
    let data = find_data(job)?;
    let columns = match &data {
        JobData::Dataset(_) => Columns::Dataset,
        JobData::Shape(_) => Columns::Shape,
        JobData::Unknown => Columns::Unknown,
    };
    let Some(source) = data.source(job) else {
        return Ok(Preview { columns, spec: None, table_bytes: 0, tier: None });
    };
    let schema = source.schema();
    let model = translate(job, schema).map_err(TrainError::Conflicts)?;
    job.id_rules(schema).map_err(TrainError::Conflicts)?;
    let refused = if job.requires_gpus() { refusals(job, &model.spec) } else { Vec::new() };
    if !refused.is_empty() {
        return Err(TrainError::Conflicts(refused));
    }
    let tiers = match job.embedding.device_memory {
        Some(MemoryBudget::Auto) => None,
        _ if job.device.kind == DeviceKind::Cpu || job.device.ranks == Ranks::Auto => None,
        _ => match Tiers::of(job, &model, &source, (job.device.ranks.get() as usize, 0)) {
            // The CPU may train it.
            Err(TierError::Conflict(_)) if !job.requires_gpus() => None,
            tiers => tiers?,
        },
    };
    let tier = tiers.map(|tiers| tiers.report().clone());
    Ok(Preview { columns, table_bytes: model.table_bytes(), spec: Some(model.spec), tier })
}

/// How much of a job's data exists.
#[derive(Debug)]
pub enum JobData {
    /// All of them.
    Dataset(Box<Dataset>),
    /// Their columns: those of a dataset that training will generate, or of a dataset or raw files that are missing.
    /// Buckets of quantiles have no boundaries.
    Shape(Schema),
    /// Nothing.
    Unknown,
}

impl JobData {
    /// Returns where the frequencies of rows come from, if the columns are known. Ids of a dataset that does not exist
    /// are taken to follow the power law of a job that generates it, or the usual one.
    pub fn source(&self, job: &Job) -> Option<Source<'_>> {
        match self {
            Self::Dataset(dataset) => Some(Source::Dataset(dataset)),
            Self::Shape(schema) => {
                let alpha = job.data.generate().map_or(USUAL_ALPHA, |generate| generate.alpha.get());
                Some(Source::Law { schema, alpha })
            }
            Self::Unknown => None,
        }
    }
}

/// Looks for the data of a job, and generates none.
///
/// # Errors
/// [`TrainError::Data`] if they are damaged, or if a shape cannot be read.
pub fn find_data(job: &Job) -> Result<JobData, TrainError> {
    let folders = match job.data.source() {
        DataSource::Folders(folders) => folders,
        DataSource::Raw(raw) => {
            let format = raw.format()?;
            if job.data.raw_files().all(|path| path.exists()) {
                let dataset = Dataset::raw(&format, &raw.train, &raw.eval)?;
                return Ok(JobData::Dataset(Box::new(prepare(job, dataset, None)?)));
            }
            format.record_bytes()?;
            return Ok(JobData::Shape(with_shape(job, format.schema(DenseDtype::F32))?));
        }
    };
    folders.dirs.iter().try_for_each(|dir| check_folder(dir, "a dataset"))?;
    if folders.missing().is_none() {
        return Ok(JobData::Dataset(Box::new(prepare(job, folders.open()?, None)?)));
    }
    let schema = match (folders.generate, folders.shape) {
        (Some(settings), _) => {
            let spec = generate_spec(settings)?;
            spec.shape.schema(spec.rows_cap)
        }
        (None, Some(shape)) => Shape::load(&shape.to_string())?.schema(None),
        (None, None) => return Ok(JobData::Unknown),
    };
    Ok(JobData::Shape(with_shape(job, schema)?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::groups::in_group;

    /// A job on 100 samples, which it generates.
    pub(in crate::training) fn job(dir: &Path, seed: usize) -> Job {
        let text = format!(
            r#"
            name = "together"
            data.dir = {dir:?}
            data.generate = {{ shape = "dlrm", rows_cap = 10, samples = 100, eval_samples = 0, seed = {seed} }}
            model = {{ kind = "dlrm", embedding_dim = 4, bottom_mlp = [4], top_mlp = [4] }}
            optimizer.dense = {{ kind = "sgd", learning_rate = 0.1 }}
            optimizer.sparse = {{ kind = "sgd", learning_rate = 0.1 }}
            train.batch_size = 10
            "#
        );
        Job::from_toml("job.toml", &text, &[] as &[&str]).unwrap()
    }

    #[test]
    fn all_processes_must_see_the_dataset_of_the_first() {
        let place = tempfile::tempdir().unwrap();
        // What each of two processes gets, whose datasets have these names and seeds.
        let opened = |data: [(&str, usize); 2]| {
            in_group(2, |group| {
                let (name, seed) = data[group.process().0];
                let job = job(&place.path().join(name), seed);
                let opened = open_together(&job, group, &Stop::default(), None, &mut ());
                opened.map(|dataset| dataset.samples(Part::Train)).map_err(|error| error.to_string())
            })
        };
        // The first process generates it for both.
        assert_eq!(opened([("a", 1), ("a", 1)]), [Ok(100), Ok(100)]);
        let there = place.path().join("b");
        let absent = format!(
            "there is no dataset at {} here, but process 0 has one: all processes must see the same files",
            there.display()
        );
        assert_eq!(opened([("a", 1), ("b", 2)])[1], Err(absent));
        open_or_generate(&job(&there, 2), &Stop::default(), &mut ()).unwrap();
        let differ = opened([("a", 1), ("b", 2)]);
        assert_eq!(differ[0], Ok(100));
        let error = differ[1].as_ref().unwrap_err();
        assert!(error.starts_with("the dataset of process 1 differs from that of process 0: `"), "{error}");
    }
}
