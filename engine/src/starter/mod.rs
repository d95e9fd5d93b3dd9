//! A job to start from: settings that suit a dataset's columns and samples, and further options.
//!
//! Sizes follow from the columns and the number of samples. Short trainings then compare the settings that matter most
//! (`trials.rs`). The text is for people to edit: an option that is commented out is valid as it stands once the mark
//! is removed.

mod choices;
mod columns;
mod trials;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use rankine_base::system;
use rankine_job::{Job, JobName, Model, ModelKind};
use rankine_reader::raw::RawFormat;
use rankine_reader::{Dataset, Part, Schema};

use crate::training::translate;
use crate::tuning::TuneError;
use choices::{Choices, Notes, Topic};

pub use trials::{StarterTrial, TrialOptions};

/// The data of a starter job.
#[derive(Debug, Clone, Copy)]
pub enum StarterData<'a> {
    /// A dataset folder, as the job shall name it.
    Folder(&'a Path),
    /// Raw files.
    Raw {
        /// Their shape, as the job shall name it: a built-in one, or a file.
        shape: &'a str,
        /// The rest of their format.
        format: &'a RawFormat,
        /// The files to train on.
        train: &'a [PathBuf],
        /// The files to evaluate on.
        eval: &'a [PathBuf],
    },
}

/// A starter job.
#[derive(Debug)]
pub struct StarterJob {
    /// The job file.
    pub text: String,
    /// The AUC on the validation set in the trial with its settings; `None` if there were no trials.
    pub auc: Option<f64>,
    /// Trials that ended.
    pub trials: u64,
}

/// Writes a job for a dataset that was opened from `data`. `kind` is the model's kind, by default one that suits the
/// columns. With `trials`, short trainings compare settings until their time is over; they never read the evaluation
/// part.
///
/// # Errors
/// [`TuneError`] if a trial fails for another reason than its settings.
pub fn starter_job(
    dataset: &Dataset,
    data: StarterData<'_>,
    kind: Option<&str>,
    trials: Option<TrialOptions<'_>>,
) -> Result<StarterJob, TuneError> {
    let samples = |part| dataset.samples(part);
    let starter = Starter::new(dataset.schema(), data, samples(Part::Train), samples(Part::Eval));
    let mut choices = starter.by_size(kind);
    if trials.is_some() && !dataset.schema().dense.is_empty() {
        choices.buckets = BUCKETS;
    }
    match trials {
        Some(options) => trials::run(&starter, choices, kind.is_some(), options),
        None => Ok(StarterJob { text: starter.text(&choices), auc: None, trials: 0 }),
    }
}

/// Buckets of a dense column, if it has any.
const BUCKETS: u32 = 256;
/// The least part of the samples that is worth a second training, in percent.
const REFIT_PERCENT: u64 = 5;

struct Starter<'a> {
    schema: &'a Schema,
    data: StarterData<'a>,
    train_samples: u64,
    eval_samples: u64,
}

/// The text in progress. Remarks are aligned in a column.
struct Lines<'a> {
    text: String,
    notes: &'a Notes,
}

impl Lines<'_> {
    const REMARK_COLUMN: usize = 32;

    fn line(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
    }

    fn remarked(&mut self, line: &str, remark: &str) {
        writeln!(self.text, "{line:width$}# {remark}", width = Self::REMARK_COLUMN)
            .expect("a string takes whatever is written");
    }

    /// What trials found out about a choice.
    fn note(&mut self, topic: Topic) {
        self.notes.about(topic).for_each(|note| self.line(&format!("# {note}")));
    }

    /// A table's header, after an empty line.
    fn table(&mut self, header: &str) {
        self.line("");
        self.line(header);
    }
}

/// The kind of a starter's choice.
fn kind_named(name: &str) -> ModelKind {
    Model::KINDS.into_iter().find(|kind| kind.name == name).expect("starters choose among the kinds")
}

impl<'a> Starter<'a> {
    fn new(schema: &'a Schema, data: StarterData<'a>, train_samples: u64, eval_samples: u64) -> Self {
        Self { schema, data, train_samples, eval_samples }
    }

    /// Whether there are two vectors, which dot products need.
    fn has_pairs(&self) -> bool {
        self.schema.categorical.len() + usize::from(!self.schema.dense.is_empty()) > 1
    }

    /// The kinds of model that suit the columns: those for few samples first.
    fn kinds(&self) -> impl Iterator<Item = &'static str> + use<> {
        let pairs: &[&str] = if self.has_pairs() { &["deepfm", "dlrm"] } else { &[] };
        ["wide-deep", "dcnv2"].into_iter().chain(pairs.iter().copied())
    }

    /// The choices that follow from the columns and the number of samples.
    fn by_size(&self, kind: Option<&str>) -> Choices {
        let is_small = self.train_samples < 1_000_000 || !self.has_pairs();
        let choices = Choices {
            kind: kind.unwrap_or(if is_small { "wide-deep" } else { "dlrm" }).into(),
            buckets: 0,
            dim: 16,
            width: if self.train_samples < 10_000_000 { 128 } else { 512 },
            optimizer: "adagrad",
            rate: 0.03,
            decay: 0.0,
            batch_size: self.batch_size(),
            epochs: match self.train_samples {
                0..200_000 => 6,
                200_000..2_000_000 => 3,
                2_000_000..20_000_000 => 2,
                _ => 1,
            },
        };
        // Half of the memory is left to other programs.
        let bytes_max = system::memory().map_or(u64::MAX, |memory| memory.usable_bytes() / 2);
        let with = |dim| Choices { dim, ..choices.clone() };
        let fits =
            |choices: &Choices| self.table_bytes(&self.text(choices)).is_none_or(|bytes| bytes <= bytes_max);
        let mut last = choices.clone();
        for dim in self.dims(&choices.kind) {
            last = with(dim);
            if fits(&last) {
                break;
            }
        }
        last
    }

    /// Embedding sizes: the one that suits the samples first, then smaller ones.
    fn dims(&self, kind: &str) -> impl Iterator<Item = usize> + use<> {
        let dim: usize = match self.train_samples {
            0..50_000_000 => 16,
            50_000_000..1_000_000_000 => 32,
            _ => 128,
        };
        // The factorization machine adds each product to the logit unchanged, and overfits sooner.
        let dim = if kind == "deepfm" { dim / 2 } else { dim };
        std::iter::successors(Some(dim), |&dim| (dim > 4).then_some(dim / 2))
    }

    /// Near the square root of the samples: about as many steps as samples per step.
    fn batch_size(&self) -> u64 {
        let root = (self.train_samples as f64).sqrt();
        1 << (root.max(1.0).log2().round() as u32).clamp(6, 16)
    }

    /// The share of the samples that the job holds out, in percent; 0 if there are too few. At most about 200,000
    /// samples, but for the largest datasets.
    fn held_out_percent(&self) -> u64 {
        match self.train_samples {
            0..trials::SAMPLES_MIN => 0,
            samples => (20_000_000 / samples).clamp(1, 8),
        }
    }

    /// Samples that are not held out.
    fn searched_samples(&self) -> u64 {
        self.train_samples - self.train_samples * self.held_out_percent() / 100
    }

    fn table_bytes(&self, text: &str) -> Option<u64> {
        let job = Job::from_toml("starter", text, &[] as &[&str]).ok()?;
        Some(translate(&job, self.schema).ok()?.table_bytes())
    }

    fn text(&self, choices: &Choices) -> String {
        self.noted_text(choices, &Notes::default())
    }

    /// The text with what trials found out.
    fn noted_text(&self, choices: &Choices, notes: &Notes) -> String {
        let mut out = Lines { text: String::new(), notes };
        self.begin(&mut out);
        self.data(&mut out);
        self.model(&mut out, choices);
        self.features(&mut out, choices);
        self.attention(&mut out);
        self.tables(&mut out);
        self.heads(&mut out);
        self.optimizers(&mut out, choices);
        self.train(&mut out, choices);
        out.text
    }

    fn begin(&self, out: &mut Lines<'_>) {
        let Schema { dense, categorical, .. } = self.schema;
        let rows: u64 = categorical.iter().filter_map(|column| column.rows).sum();
        out.line(&format!(
            "# A starter job: {} samples to train on and {} to evaluate with, {} dense columns,\n\
             # {} categorical ones with {rows} rows in all. Lines that are commented out are options;\n\
             # docs/reference/job.md lists all of them.",
            self.train_samples,
            self.eval_samples,
            dense.len(),
            categorical.len()
        ));
        if Topic::ALL.into_iter().flat_map(|topic| out.notes.about(topic)).any(|note| note.starts_with("AUC"))
        {
            out.line(
                "# Short training runs compared some settings by their AUC on the validation set.\n\
                 # `rankine tune` searches further.",
            );
        }
        out.line(&format!("name = {}\nseed = 1", quoted(&self.name())));
    }

    fn data(&self, out: &mut Lines<'_>) {
        match self.data {
            StarterData::Folder(dir) => {
                out.table("[data]");
                out.line(&format!("dir = {}", quoted(&dir.to_string_lossy())));
            }
            StarterData::Raw { shape, format, train, eval } => {
                out.table("[data.raw]");
                out.line(&format!("shape = {}", quoted(shape)));
                if let Some(cap) = format.rows_cap {
                    out.line(&format!("rows_cap = {cap}"));
                }
                out.line(&format!("train = {}\neval = {}", list(train), list(eval)));
                let RawFormat { labels, dense, ids, .. } = format;
                out.line(&format!("labels = {labels}\ndense = \"{dense}\"\nids = \"{ids}\""));
            }
        }
    }

    fn model(&self, out: &mut Lines<'_>, choices: &Choices) {
        let (kind, dim) = (choices.kind.as_str(), choices.dim);
        let (width, half) = (choices.width, choices.width / 2);
        let (hidden, top_mlp) = (
            if width < 512 { half.to_string() } else { format!("{half}, 64") },
            format!("[{width}, {half}]"),
        );
        let has_dense = !self.schema.dense.is_empty();
        let bottom_mlp = format!("bottom_mlp = [{hidden}, {dim}]");
        let own = kind_named(kind);
        let others = Model::KINDS.iter().map(|other| other.name).filter(|other| *other != kind);
        out.table("[model]");
        out.note(Topic::Kind);
        out.remarked(&format!("kind = \"{kind}\""), &format!("or {}", others.collect::<Vec<_>>().join(", ")));
        out.note(Topic::Dim);
        out.line(&format!("embedding_dim = {dim}"));
        match kind {
            _ if !has_dense => (),
            _ if own.multiplies_vectors => {
                out.remarked(&bottom_mlp, "over the dense columns; ends with embedding_dim");
            }
            "wide-deep" => {
                out.remarked(&format!("# {bottom_mlp}"), "without it the dense columns are used as they are");
            }
            _ => out.remarked(&bottom_mlp, "over the dense columns"),
        }
        if kind == "dcnv2" {
            let elements = dim * (self.schema.categorical.len() + usize::from(has_dense));
            let rank = (elements / 4).next_power_of_two().clamp(16, 512);
            out.line("cross_layers = 3");
            out.remarked(&format!("cross_rank = {rank}"), "without it the matrices are full");
        }
        out.note(Topic::Width);
        out.remarked(&format!("top_mlp = {top_mlp}"), "the last layer, to the logits, is implied");
    }

    /// Buckets of the dense columns.
    fn features(&self, out: &mut Lines<'_>, choices: &Choices) {
        if self.schema.dense.is_empty() {
            return;
        }
        let (mark, buckets) = if choices.buckets > 0 { ("", choices.buckets) } else { ("# ", BUCKETS) };
        out.line("");
        out.note(Topic::Buckets);
        out.remarked(&format!("{mark}[[feature]]"), "an embedding for each bucket of numbers as well");
        out.remarked(&format!("{mark}column = \"*\""), "of all dense columns");
        out.line(&format!("{mark}buckets = {buckets}"));
    }

    fn heads(&self, out: &mut Lines<'_>) {
        let labels: Vec<_> = self.schema.labels.iter().map(|label| quoted(&label.name).to_string()).collect();
        if labels.len() > 1 {
            out.line("");
            out.remarked(
                "# [[head]]",
                &format!("without any [[head]], the model learns all labels: {}", labels.join(", ")),
            );
            out.line(&format!("# label = {}\n# weight = 1.0", labels[0]));
        }
    }

    fn optimizers(&self, out: &mut Lines<'_>, choices: &Choices) {
        let others = |own: &[&str]| {
            let others: Vec<_> = own.iter().filter(|kind| **kind != choices.optimizer).copied().collect();
            format!("or {}", others.join(", "))
        };
        let (kind, rate) =
            (format!("kind = \"{}\"", choices.optimizer), format!("learning_rate = {}", choices.rate));
        out.table("[optimizer.dense]");
        out.note(Topic::Optimizer);
        out.remarked(&kind, &others(&["adagrad", "sgd", "momentum", "adam", "ftrl"]));
        out.note(Topic::Rate);
        out.line(&rate);
        out.remarked("# weight_decay = 1e-6", "every kind has this key");
        out.table("[optimizer.sparse]");
        let rowwise = "rowwise-adagrad (little memory)";
        out.remarked(&kind, &others(&["adagrad", "sgd", "momentum", rowwise, "adam", "ftrl"]));
        out.line(&rate);
        out.note(Topic::Decay);
        let (mark, decay) = if choices.decay > 0.0 { ("", choices.decay) } else { ("# ", 1e-3) };
        out.remarked(
            &format!("{mark}weight_decay = {decay:?}"),
            "for the rows in a batch; keeps the model from memorizing rare categories",
        );
        if kind_named(&choices.kind).is_wide {
            out.line("");
            out.remarked(
                "# [optimizer.wide]",
                "for the weights of categories; without it, optimizer.sparse applies",
            );
            out.line("# kind = \"ftrl\"\n# learning_rate = 0.1");
            out.remarked("# l1 = 1e-4", "sets weights of little use to exactly 0");
        }
        self.schedule(out, choices);
    }

    fn schedule(&self, out: &mut Lines<'_>, choices: &Choices) {
        // Of the training that finds the number of steps; that on all samples has them in proportion.
        let steps = self.steps(choices) * choices.epochs;
        let warmup = steps.div_ceil(20);
        out.line("");
        out.remarked("[optimizer.schedule]", "without it, rates are constant");
        out.remarked("kind = \"cosine\"", "or step, warmup-polynomial");
        out.line(&format!("warmup_steps = {warmup}"));
        out.remarked(&format!("decay_steps = {}", (steps - warmup).max(1)), "the rest of the epochs");
    }

    /// Steps of an epoch without the validation set.
    fn steps(&self, choices: &Choices) -> u64 {
        self.searched_samples().div_ceil(choices.batch_size).max(1)
    }

    fn train(&self, out: &mut Lines<'_>, choices: &Choices) {
        let percent = self.held_out_percent();
        out.table("[train]");
        out.note(Topic::BatchSize);
        out.remarked(
            &format!("batch_size = {}", choices.batch_size),
            &format!("{} steps per epoch", self.steps(choices)),
        );
        out.note(Topic::Epochs);
        out.line(&format!("epochs = {}", choices.epochs));
        out.remarked("# max_steps = 100", "ends the training, whatever the epochs");
        if percent == 0 {
            out.line("# There is no validation set and no early stopping: the samples are too few to hold some out.");
        } else {
            let share = percent as f64 / 100.0;
            out.remarked(&format!("validation = \"last:{share}\""), "held out of the training part");
            out.table("[train.early_stopping]");
            // The first evaluation, which reads its samples, takes at most as long as training on them, later ones a
            // third of it; the best model is evaluated once more at the end: a tenth of the time in all.
            let every_min = (10.0 * share / (1.0 - share)).max(choices.epochs as f64 / 8.0);
            let every = [0.1, 0.25, 0.5].into_iter().find(|&every| every >= every_min);
            let patience = if every.is_none() { 3 } else { 5 };
            out.remarked(&format!("patience = {patience}"), "evaluations in a row without a better AUC");
            if percent >= REFIT_PERCENT {
                out.remarked("refit = true", "then trains again on all samples, for as many steps");
            } else {
                out.line(&format!(
                    "# Not trained again on all samples: the validation set is {percent}% of them."
                ));
                out.line("# refit = true");
            }
            out.table("[eval]");
            let every = every.map_or_else(|| "\"epoch\"".into(), |every| every.to_string());
            out.remarked(&format!("every = {every}"), "epochs; scores the validation set");
            out.remarked("# target_auc = 0.8", "ends the training once it is reached");
        }
        if self.eval_samples == 0 {
            out.line("");
            out.line("# The dataset has no evaluation part: convert with --split, or generate with --eval-samples.");
        }
    }

    /// The name of the dataset folder, or of the first raw file, if it is valid as a job name.
    fn name(&self) -> String {
        let name = match self.data {
            StarterData::Folder(dir) => dir.file_name(),
            StarterData::Raw { train, .. } => train.first().and_then(|file| file.file_stem()),
        };
        let name = name.map(|name| name.to_string_lossy().into_owned());
        name.filter(|name| name.parse::<JobName>().is_ok()).unwrap_or_else(|| "job".into())
    }
}

fn quoted(text: &str) -> toml::Value {
    toml::Value::String(text.to_owned())
}

fn list(paths: &[PathBuf]) -> toml::Value {
    toml::Value::Array(paths.iter().map(|path| quoted(&path.to_string_lossy())).collect())
}

fn list_of(names: Vec<&str>) -> toml::Value {
    toml::Value::Array(names.into_iter().map(quoted).collect())
}

#[cfg(test)]
mod tests {
    use rankine_reader::schema::{
        Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Label, Pooling,
        VocabularyKind,
    };

    use super::*;
    use rankine_job::DataSource;

    pub(super) fn schema(dense: usize, columns: usize) -> Schema {
        let label = |name: &str| Label::new(name);
        let number = |number: usize| Dense {
            name: format!("I{number}"),
            transform: DenseTransform::plain(DenseFunction::None),
        };
        let column = |number: usize| Categorical {
            name: format!("C{number}"),
            rows: Some(1000),
            hotness: Hotness::Fixed(1),
            pooling: Pooling::Sum,
            vocabulary: VocabularyKind::Exact { min_count: 1 },
            weighted: false,
            shares: (number == 1).then(|| "C0".into()),
        };
        Schema {
            labels: vec![label("click"), label("buy")],
            weight: None,
            dense: (0..dense).map(number).collect(),
            dense_dtype: DenseDtype::F16,
            sequences: Vec::new(),
            categorical: (0..columns).map(column).collect(),
        }
    }

    /// Whether a job is valid for the columns, as it is and with every option.
    #[track_caller]
    pub(super) fn assert_sound(text: &str, schema: &Schema) {
        let is_option = |rest: &str| {
            rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
        };
        let all: Vec<_> = text
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| is_option(rest)).unwrap_or(line))
            .collect();
        let all = all.join("\n");
        assert_ne!(all, text);
        for text in [text, &all] {
            let job =
                Job::from_toml("job.toml", text, &[] as &[&str]).unwrap_or_else(|error| panic!("{error}"));
            translate(&job, schema).unwrap_or_else(|conflicts| panic!("{conflicts:?}\n{text}"));
        }
    }

    #[test]
    fn jobs_and_their_options_hold_for_all_columns_and_sizes() {
        let data = StarterData::Folder(Path::new("data/a \"b\""));
        for kind in [None].into_iter().chain(Model::KINDS.map(|kind| Some(kind.name))) {
            for (dense, columns) in [(3, 4), (0, 4), (1, 1), (3, 0), (0, 2)] {
                let schema = schema(dense, columns);
                let few = dense.min(1) + columns < 2;
                if few && kind.is_some_and(|kind| kind_named(kind).multiplies_vectors) {
                    continue;
                }
                for samples in [1, 12_000, 1_000_000_000] {
                    let starter = Starter::new(&schema, data, samples, samples / 2);
                    let choices = starter.by_size(kind);
                    for dim in starter.dims(&choices.kind) {
                        assert_sound(&starter.text(&Choices { dim, ..choices.clone() }), &schema);
                    }
                    let others = Choices {
                        optimizer: "adam",
                        decay: 0.01,
                        buckets: 64,
                        epochs: 3,
                        width: 16,
                        ..choices
                    };
                    assert_sound(&starter.text(&others), &schema);
                }
            }
        }
        let schema = schema(0, 3);
        let shared = Starter::new(&schema, data, 10, 0);
        let shared = shared.text(&shared.by_size(None));
        assert!(shared.contains("# columns = [\"C0\", \"C1\"]"), "{shared}");
    }

    #[test]
    fn sizes_follow_the_samples() {
        let schema = schema(3, 4);
        let data = StarterData::Folder(Path::new("data/clicks"));
        let of = |samples| {
            let starter = Starter::new(&schema, data, samples, 0);
            (starter.batch_size(), starter.dims("dlrm").next())
        };
        assert_eq!(of(1), (64, Some(16)));
        assert_eq!(of(12_000), (128, Some(16)));
        assert_eq!(of(40_000_000), (8192, Some(16)));
        assert_eq!(of(4_195_197_692), (65_536, Some(128)));
        assert_eq!(Starter::new(&schema, data, 1, 0).name(), "clicks");
        // The factorization machine takes half, and less memory leads to smaller ones.
        let dims = |kind| Starter::new(&schema, data, 12_000, 0).dims(kind).collect::<Vec<_>>();
        assert_eq!((dims("dlrm"), dims("deepfm")), (vec![16, 8, 4], vec![8, 4]));
        let text = |samples, eval_samples| {
            let starter = Starter::new(&schema, data, samples, eval_samples);
            starter.text(&starter.by_size(None))
        };
        let says = |text: &str, lines: &[&str]| {
            lines.iter().for_each(|line| assert!(text.contains(line), "{line}: {text}"));
        };
        // 8% are held out. The other 11,040 samples are 87 steps of 128; a twentieth of 522 is 26.1.
        says(
            &text(12_000, 500),
            &[
                "batch_size = 128                # 87 steps per epoch\n",
                "\nwarmup_steps = 27\ndecay_steps = 495 ",
                "validation = \"last:0.08\" ",
                "patience = 3 ",
                "\nrefit = true ",
                "every = \"epoch\" ",
                "12000 samples to train on and 500 to evaluate with, 3 dense columns,\n# 4 categorical ones with 4000 \
                 rows",
            ],
        );
        // Of many samples, a hundredth tells models apart, and is not worth a second training.
        says(
            &text(1_000_000_000, 500),
            &["\"last:0.01\"", "\n# refit = true\n", "every = 0.25 ", "patience = 5 "],
        );
        says(&text(4_000_000, 500), &["\"last:0.05\"", "\nrefit = true ", "every = \"epoch\" "]);
        let none = text(12_000, 0);
        says(&none, &["no evaluation part: convert with --split", "\n[eval]\nevery = "]);
        let few = text(999, 500);
        assert!(few.contains("too few to hold some out") && !few.contains("validation ="), "{few}");
    }

    #[test]
    fn raw_files_are_named_with_all_that_their_records_are() {
        let shape = rankine_reader::generate::Shape::load("dlrm").unwrap();
        let format = RawFormat { rows_cap: Some(99), labels: 2, ..RawFormat::new(shape) };
        let train = ["day_0.bin".into(), "day \"1\".bin".into()];
        let data = StarterData::Raw { shape: "dlrm", format: &format, train: &train, eval: &[] };
        let schema = format.schema(DenseDtype::F32);
        let starter = Starter::new(&schema, data, 1000, 0);
        let text = starter.text(&Choices { dim: 8, ..starter.by_size(None) });
        assert_sound(&text, &schema);
        let job = Job::from_toml("job.toml", &text, &[] as &[&str]).unwrap();
        let DataSource::Raw(raw) = job.data.source() else { panic!("not raw") };
        assert_eq!((&raw.train[..], &raw.eval[..], raw.labels.get()), (&train[..], &[][..], 2));
        assert_eq!((raw.rows_cap.map(|cap| cap.get()), job.name.as_str()), (Some(99), "day_0"));
    }
}
