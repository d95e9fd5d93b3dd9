//! The settings that a search varies, and the values that they may take.
//!
//! A space is written like a job, with a range in place of each value that varies:
//!
//! ```toml
//! [optimizer.dense]
//! learning_rate = { log = [0.003, 0.3] }
//!
//! [model]
//! embedding_dim = { choose = [4, 8, 16] }
//! ```

use std::path::Path;

use rankine_base::document::{Conflict, Document, Problem};
use rankine_base::files::read_named_text;
use rankine_embedding::random::philox4x32;
use rankine_reader::buckets::BUCKETS_MAX;
use toml::{Table, Value};

use rankine_job::{Buckets, Feature, Job, JobError, JobFile, Model, Optimizer, Schedule, Width};

/// Settings that cannot vary, and why.
const FIXED: [(&str, &str); 10] = [
    ("train.epochs", STEPS),
    ("train.max_steps", STEPS),
    ("train.validation", "all trials are compared on one validation set; set it in the job"),
    ("train.early_stopping", STEPS),
    ("train.average", "trials are compared without averages"),
    ("eval", "it does not change what is learned"),
    ("data", "all trials are trained on the same samples"),
    ("device", "it does not change what is learned"),
    ("network", "it does not change what is learned"),
    ("seed", "the best of several seeds is not better on other data"),
];
/// A range of whole numbers with at most this many has all of them checked, and a longer one this many.
const WHOLE_MAX: u64 = 500;
/// The most pairs of values of two settings that are checked.
const PAIRS_MAX: usize = 5000;
/// The learning rate of a job is divided and multiplied by these to get the ends of the range around it.
const RATES: [f64; 2] = [5.0, 5.0];
/// Likewise in a search for the least time: larger batches, which take fewer steps, need higher rates.
const RATES_FOR_TIME: [f64; 2] = [4.0, 16.0];
/// The keys that only the kind `dcnv2` has.
const CROSS: &str = ", cross_layers = 3, cross_rank = 32";
/// The share of settings that stay as they are near a good trial, and how far numbers move towards a drawn one.
const STAYS: f64 = 0.6;
const NEAR: f64 = 0.35;
const STEPS: &str = "the search finds the number of steps by itself, up to that of the job";

/// Why a setting cannot vary, if it cannot.
fn why_fixed(key: &str) -> Option<&'static str> {
    let is_below =
        |fixed: &str| key.strip_prefix(fixed).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    FIXED.iter().find(|(fixed, _)| is_below(fixed)).map(|(_, why)| *why)
}

/// The settings that a search varies.
#[derive(Debug, Clone)]
pub struct Space {
    pub(super) dimensions: Vec<Dimension>,
    /// The file that describes them; `None` if they are around those of a job.
    document: Option<Document>,
}

/// A setting that varies.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dimension {
    /// The key in the job.
    key: String,
    range: Range,
}

/// The values that a setting may take.
#[derive(Debug, Clone, PartialEq)]
enum Range {
    /// Between two positive numbers, with uniformly distributed logarithms.
    Log(Bounds),
    /// Between two numbers, uniformly distributed.
    Linear(Bounds),
    /// One of a list.
    Choose(Vec<Value>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Bounds {
    from: f64,
    to: f64,
    /// Whether both are written as whole numbers: so are the values then.
    are_whole: bool,
}

/// Settings of a trial: keys of the job, and their values.
pub type Drawn = Vec<(String, Value)>;

/// What `--set` takes for the settings of a trial. A model of another kind keeps the sizes that both kinds have; where
/// vectors and the bottom MLP interact, its last layer follows the size of the embeddings.
pub(super) fn sets(job: &Job, drawn: &Drawn) -> Vec<String> {
    let has = |key: &str| drawn.iter().find(|(own, _)| own == key).map(|(_, value)| value);
    let own_kind = job.model.kind();
    let kind = has("model.kind").and_then(Value::as_str).unwrap_or(own_kind.name);
    let kind = Model::KINDS.into_iter().find(|known| known.name == kind).unwrap_or(own_kind);
    let own_dim = i64::from(job.model.embedding_dim().get());
    let dim = has("model.embedding_dim").and_then(Value::as_integer).unwrap_or(own_dim);
    let mut bottom: Vec<_> = job.model.bottom_mlp().iter().map(|width| i64::from(width.get())).collect();
    if let (Some(last), true) = (bottom.last_mut(), kind.multiplies_vectors) {
        *last = dim;
    }
    let mut sets = Vec::new();
    let draws_model = has("model").is_some();
    if kind.name != own_kind.name && !draws_model {
        let top: Vec<_> = job.model.top_mlp().iter().map(|width| width.get()).collect();
        let cross = if kind.name == "dcnv2" { CROSS } else { "" };
        let sizes = format!("embedding_dim = {dim}, bottom_mlp = {bottom:?}, top_mlp = {top:?}{cross}");
        sets.push(format!("model={{ kind = \"{}\", {sizes} }}", kind.name));
    }
    sets.extend(drawn.iter().map(|(key, value)| format!("{key}={value}")));
    if dim != own_dim
        && kind.multiplies_vectors
        && !bottom.is_empty()
        && !draws_model
        && has("model.bottom_mlp").is_none()
    {
        sets.push(format!("model.bottom_mlp={bottom:?}"));
    }
    sets
}

impl Space {
    /// Reads a space file.
    ///
    /// # Errors
    /// [`JobError::Read`] if it cannot be read; [`JobError::Invalid`] if it is not a space.
    pub fn read(path: &Path) -> Result<Self, JobError> {
        let text = read_named_text("the space file", path)?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Parses a space; messages name the file `name`.
    ///
    /// # Errors
    /// [`JobError::Invalid`].
    pub fn parse(name: &str, text: &str) -> Result<Self, JobError> {
        let document = Document::parse(name, text)?;
        let table: Table = document.read()?;
        let mut space = Self { dimensions: Vec::new(), document: None };
        let mut problems = Vec::<Problem>::new();
        space.add(&mut problems, &document, ("", &table));
        if space.dimensions.is_empty() && problems.is_empty() {
            let what = "the space has no setting to vary: add a range, such as train.batch_size = { choose = [256, \
                        512] }";
            problems.push(document.problem(&Conflict::new("", what)));
        }
        if !problems.is_empty() {
            return Err(JobError::Invalid(problems));
        }
        space.document = Some(document);
        Ok(space)
    }

    /// Adds the ranges below a key.
    fn add(&mut self, problems: &mut Vec<Problem>, document: &Document, (above, table): (&str, &Table)) {
        for (name, value) in table {
            let key = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
            match value {
                Value::Table(table) => match Range::of(table) {
                    Some(Ok(range)) => match range.keys(&key).iter().find_map(|key| why_fixed(key)) {
                        None => self.dimensions.push(Dimension { key, range }),
                        Some(why) => {
                            let what = format!("a search cannot vary this setting: {why}");
                            problems.push(document.problem(&Conflict::new(key, what)));
                        }
                    },
                    Some(Err(what)) => problems.push(document.problem(&Conflict::new(key, what))),
                    None => self.add(problems, document, (&key, table)),
                },
                value => problems.push(document.problem(&Conflict::new(
                    key,
                    format!(
                        "{value} is not a range: write {{ log = [FROM, TO] }}, {{ linear = [FROM, TO] }} or \
                         {{ choose = [..] }}, and put settings that do not vary into the job"
                    ),
                ))),
            }
        }
    }

    /// Returns the space of a search that names none: around the settings of the job, as far as it allows other values.
    ///
    /// # Errors
    /// [`JobError::Invalid`] if the job is not valid.
    pub fn around(file: &JobFile) -> Result<Self, JobError> {
        let job = &file.job()?;
        let choose = |key: &str, values: Vec<Value>| Range::choose(file, job, key, values);
        let near = |own: i64| [own / 2, own, 2 * own].map(Value::Integer);
        let decays = [0.0, 1e-4, 1e-3, 1e-2, 3e-2].map(Value::Float);
        // Tables with sizes of their own may not fit another size of the others.
        let has_one_dim = job.tables.iter().all(|table| table.dim.is_none());
        let dims = has_one_dim.then(|| near(job.model.embedding_dim().get().into()));
        // Without a schedule the search finds the number of epochs by itself.
        let has_schedule = job.optimizer.schedule != Schedule::Constant;
        let epochs = i64::try_from(job.train.epochs.get())
            .ok()
            .filter(|_| has_schedule && job.train.max_steps.is_none());
        let [dense, sparse] = rates(job, RATES);
        Ok(Self::of([
            choose("model.kind", kinds(job)),
            choose("feature", buckets(job)),
            dense,
            sparse,
            choose("optimizer.sparse.weight_decay", decays.into()),
            choose("train.batch_size", near(job.train.batch_size.get().into()).into()),
            epochs.and_then(|epochs| choose("train.epochs", near(epochs).into())),
            dims.and_then(|dims| choose("model.embedding_dim", dims.into())),
            choose("model.top_mlp", widths(job)),
        ]))
    }

    /// Returns the space of a search for the least time that names none: the batch size and the learning rates. The
    /// model stays, since another one takes other time to serve.
    ///
    /// # Errors
    /// [`JobError::Invalid`] if the job is not valid.
    pub fn for_time(file: &JobFile) -> Result<Self, JobError> {
        let job = &file.job()?;
        let own = i64::from(job.train.batch_size.get());
        let sizes = [own / 4, own / 2, own, 2 * own, 4 * own, 8 * own].map(Value::Integer);
        let [dense, sparse] = rates(job, RATES_FOR_TIME);
        Ok(Self::of([Range::choose(file, job, "train.batch_size", sizes.into()), dense, sparse]))
    }

    /// The space of these settings, around a job.
    fn of<const N: usize>(ranges: [Option<(String, Range)>; N]) -> Self {
        let dimensions = ranges.into_iter().flatten().map(|(key, range)| Dimension { key, range });
        Self { dimensions: dimensions.collect(), document: None }
    }

    /// Returns the job file of a trial. Problems with its settings refer to the space file.
    pub(super) fn applied_to(&self, file: &JobFile, sets: &[String]) -> Result<JobFile, JobError> {
        match &self.document {
            Some(document) => file.with_settings_of(document, sets),
            None => file.with(sets),
        }
    }

    /// Returns settings of which each is a case to check: all values of each setting, and all pairs of values of two
    /// settings, with the first values of the others. Of a range of fractions these are its ends, which limits apply
    /// to first, and its middle. A space around the settings of a job has no cases: its values suit the job.
    pub(super) fn cases(&self) -> Vec<Drawn> {
        if self.document.is_none() {
            return Vec::new();
        }
        let values: Vec<_> = self.dimensions.iter().map(|dimension| dimension.range.values()).collect();
        let ends: Vec<_> = self.dimensions.iter().map(|dimension| dimension.range.ends()).collect();
        let with = |chosen: &[(usize, &Value)]| -> Drawn {
            let value = |number: usize| {
                let own = chosen.iter().find(|(own, _)| *own == number).map(|(_, value)| *value);
                own.unwrap_or(&values[number][0]).clone()
            };
            self.dimensions.iter().enumerate().map(|(number, of)| (of.key.clone(), value(number))).collect()
        };
        let mut cases = vec![with(&[])];
        for (number, values) in values.iter().enumerate() {
            cases.extend(values.iter().skip(1).map(|value| with(&[(number, value)])));
        }
        let singles = cases.len();
        for (number, ends_of_one) in ends.iter().enumerate() {
            for (other, ends_of_other) in ends.iter().enumerate().skip(number + 1) {
                for one in ends_of_one {
                    let pair = |value| with(&[(number, one), (other, value)]);
                    cases.extend(ends_of_other.iter().map(pair));
                }
            }
        }
        cases.truncate(singles + PAIRS_MAX);
        cases
    }

    /// Draws the settings of a trial near a good trial, which lacks settings that it shares with the job. About half of
    /// them stay; numbers move by a fraction of their range.
    pub(super) fn draw_near(&self, seed: u64, trial: u64, good: &Drawn) -> Drawn {
        let fresh = self.draw(seed, trial);
        let value = |number: usize, key: &str| {
            let good = good.iter().find(|(own, _)| own == key).map(|(_, value)| value.clone());
            let drawn = fresh[number].1.clone();
            match share(seed, trial, number, 1) {
                ..STAYS => good,
                _ => Some(match &good {
                    Some(good) => self.dimensions[number].range.near(good, drawn),
                    None => drawn,
                }),
            }
        };
        let keys = self.dimensions.iter().map(|dimension| &dimension.key).enumerate();
        keys.filter_map(|(number, key)| Some((key.clone(), value(number, key)?))).collect()
    }

    /// Draws the settings of a trial, which depend on nothing but the seed, the trial's number, and the range and the
    /// place of each setting.
    pub fn draw(&self, seed: u64, trial: u64) -> Drawn {
        let draw = |(number, dimension): (usize, &Dimension)| {
            (dimension.key.clone(), dimension.range.at(share(seed, trial, number, 0)))
        };
        self.dimensions.iter().enumerate().map(draw).collect()
    }
}

/// A random share from 0 to 1, which is excluded, of a setting of a trial; draws of one setting differ in `purpose`.
fn share(seed: u64, trial: u64, setting: usize, purpose: u32) -> f64 {
    let key = [seed as u32, (seed >> 32) as u32];
    let words = philox4x32([trial as u32, (trial >> 32) as u32, setting as u32, purpose], key);
    let word = u64::from(words[0]) << 32 | u64::from(words[1]);
    (word >> 11) as f64 / (1_u64 << 53) as f64
}

/// The ranges around the learning rates of the dense and the sparse optimizer.
fn rates(job: &Job, [below, above]: [f64; 2]) -> [Option<(String, Range)>; 2] {
    let range = |key: &str, optimizer: &Optimizer| {
        let rate = optimizer.learning_rate();
        let bounds = Bounds { from: rate / below, to: rate * above, are_whole: false };
        // A rate of 0 is meant.
        (rate > 0.0).then(|| (format!("optimizer.{key}.learning_rate"), Range::Log(bounds)))
    };
    [range("dense", &job.optimizer.dense), range("sparse", &job.optimizer.sparse)]
}

/// The kinds of model that suit a job whatever its columns: kinds that multiply vectors need a bottom MLP for dense
/// columns.
fn kinds(job: &Job) -> Vec<Value> {
    let multiplies = job.model.kind().multiplies_vectors || !job.model.bottom_mlp().is_empty();
    let kinds = Model::KINDS.into_iter().filter(|kind| multiplies || !kind.multiplies_vectors);
    kinds.map(|kind| Value::from(kind.name)).collect()
}

/// Lists of `[[feature]]`s: none, and those of the job with fewer and more quantiles.
fn buckets(job: &Job) -> Vec<Value> {
    let all = || Feature { column: "*".into(), buckets: Buckets::Quantiles(256), name: None };
    let features = if job.features.is_empty() { vec![all()] } else { job.features.clone() };
    let scaled = |by: f64| {
        let table = |feature: &Feature| {
            let buckets = match &feature.buckets {
                Buckets::Quantiles(count) => {
                    Value::Integer((f64::from(*count) * by).clamp(2.0, f64::from(BUCKETS_MAX)) as i64)
                }
                Buckets::Log => Value::from("log"),
                Buckets::Boundaries(list) => Value::from(list.clone()),
            };
            let named = feature.name.iter().map(|name| ("name".to_owned(), Value::from(name.as_str())));
            let keys =
                [("column".to_owned(), Value::from(feature.column.as_str())), ("buckets".into(), buckets)];
            Value::Table(keys.into_iter().chain(named).collect())
        };
        Value::Array(features.iter().map(table).collect())
    };
    let mut lists = vec![Value::Array(Vec::new())];
    for list in [0.25, 1.0, 4.0].map(scaled) {
        if !lists.contains(&list) {
            lists.push(list);
        }
    }
    lists
}

/// The widths of the top MLP, half of them, and twice as many.
fn widths(job: &Job) -> Vec<Value> {
    let scaled = |by: f64| {
        let width = |width: &Width| Value::Integer((f64::from(width.get()) * by).max(1.0) as i64);
        Value::Array(job.model.top_mlp().iter().map(width).collect())
    };
    [0.5, 1.0, 2.0].map(scaled).into()
}

impl Range {
    /// The setting with the values that suit a job; `None` if there is no choice.
    fn choose(file: &JobFile, job: &Job, key: &str, mut values: Vec<Value>) -> Option<(String, Self)> {
        values.retain(|value| {
            let sets = sets(job, &vec![(key.to_owned(), value.clone())]);
            file.with(&sets).and_then(|file| file.job()).is_ok()
        });
        (values.len() > 1).then(|| (key.to_owned(), Self::Choose(values)))
    }

    /// The keys that the range sets: that of the setting, and those in its tables.
    fn keys(&self, key: &str) -> Vec<String> {
        fn add(keys: &mut Vec<String>, key: &str, value: &Value) {
            keys.push(key.to_owned());
            for (name, value) in value.as_table().into_iter().flatten() {
                add(keys, &format!("{key}.{name}"), value);
            }
        }
        let mut keys = vec![key.to_owned()];
        if let Self::Choose(values) = self {
            values.iter().for_each(|value| add(&mut keys, key, value));
        }
        keys
    }

    /// The values to check: all of them, as far as they can be counted.
    fn values(&self) -> Vec<Value> {
        let (Self::Log(bounds) | Self::Linear(bounds)) = self else { return self.ends() };
        let length = bounds.to - bounds.from;
        let parts = if bounds.are_whole { length.min(WHOLE_MAX as f64) } else { 2.0 };
        (0..=parts as u64).map(|part| bounds.value(bounds.from + length * part as f64 / parts)).collect()
    }

    /// Both ends of a range of numbers, or all values of a list.
    fn ends(&self) -> Vec<Value> {
        match self {
            Self::Log(bounds) | Self::Linear(bounds) => {
                vec![bounds.value(bounds.from), bounds.value(bounds.to)]
            }
            Self::Choose(values) => values.clone(),
        }
    }

    /// The range that a table describes; `None` if it has other keys.
    fn of(table: &Table) -> Option<Result<Self, String>> {
        let mut entries = table.iter();
        let (Some((kind, value)), None) = (entries.next(), entries.next()) else { return None };
        let list = value.as_array();
        let bounds = || {
            let list = list.filter(|list| list.len() == 2);
            let list = list.ok_or_else(|| format!("{kind} needs two numbers: {{ {kind} = [FROM, TO] }}"))?;
            Bounds::of(&list[0], &list[1])
        };
        Some(match kind.as_str() {
            "log" => bounds().and_then(|bounds| match bounds.from > 0.0 {
                true => Ok(Self::Log(bounds)),
                false => Err(format!("log needs positive numbers, not {}", bounds.from)),
            }),
            "linear" => bounds().map(Self::Linear),
            "choose" => match list.filter(|list| !list.is_empty()) {
                Some(list) => Ok(Self::Choose(list.clone())),
                None => Err("choose needs a list of values".into()),
            },
            _ => return None,
        })
    }

    /// A number a part of the way from a good one to a drawn one; of a list, the drawn value.
    fn near(&self, good: &Value, drawn: Value) -> Value {
        match (self, number(good), number(&drawn)) {
            (Self::Log(bounds), Some(from), Some(to)) => bounds.value(from * (to / from).powf(NEAR)),
            (Self::Linear(bounds), Some(from), Some(to)) => bounds.value(from + (to - from) * NEAR),
            _ => drawn,
        }
    }

    /// The value at a share of the range from 0 to 1, which is excluded.
    fn at(&self, share: f64) -> Value {
        match self {
            Self::Log(bounds) => bounds.value((bounds.to / bounds.from).powf(share) * bounds.from),
            Self::Linear(bounds) => bounds.value(bounds.from + (bounds.to - bounds.from) * share),
            Self::Choose(values) => {
                values[((share * values.len() as f64) as usize).min(values.len() - 1)].clone()
            }
        }
    }
}

/// The number that a value is, whole or not.
fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|number| number as f64))
}

impl Bounds {
    fn of(from: &Value, to: &Value) -> Result<Self, String> {
        let finite = |value: &Value| {
            number(value)
                .filter(|number| number.is_finite())
                .ok_or_else(|| format!("{value} is not a number"))
        };
        let bounds =
            Self { from: finite(from)?, to: finite(to)?, are_whole: from.is_integer() && to.is_integer() };
        match bounds.from < bounds.to {
            true => Ok(bounds),
            false => Err(format!("{from} is not less than {to}")),
        }
    }

    /// A number in a job file, with as many digits as a search tells apart.
    fn value(self, number: f64) -> Value {
        let number = number.clamp(self.from, self.to);
        if self.are_whole {
            return Value::Integer(number.round() as i64);
        }
        let digits = format!("{number:.2e}").parse().unwrap_or(number);
        Value::Float(if (self.from..=self.to).contains(&digits) { digits } else { number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(text: &str) -> Space {
        Space::parse("space.toml", text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn values_are_within_their_ranges_and_reach_all_of_them() {
        let text = "a.rate = { log = [0.001, 1] }\n[b]\nshare = { linear = [-1, 0.5] }\nsize = { log = [1, 8] }\n\
                    kind = { choose = [\"x\", [1, 2]] }";
        let space = space(text);
        assert_eq!(
            space.draw(0, 1).iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(),
            ["a.rate", "b.kind", "b.share", "b.size"]
        );
        let draws: Vec<_> = (0..2000).map(|trial| space.draw(3, trial)).collect();
        let of = |key: &str| {
            let find =
                |drawn: &Drawn| drawn.iter().find(|(own, _)| own == key).expect("it is drawn").1.clone();
            draws.iter().map(find).collect::<Vec<_>>()
        };
        let floats =
            |key: &str| of(key).iter().map(|value| value.as_float().expect("a float")).collect::<Vec<_>>();
        let share = |values: &[f64], below: f64| {
            values.iter().filter(|&&value| value < below).count() as f64 / values.len() as f64
        };
        // Shares of 2000 draws have a standard deviation of at most 0.011.
        let rates = floats("a.rate");
        assert!(rates.iter().all(|rate| (0.001..=1.0).contains(rate)));
        assert!(
            (share(&rates, 0.01) - 1.0 / 3.0).abs() < 0.05 && (share(&rates, 0.1) - 2.0 / 3.0).abs() < 0.05
        );
        let shares = floats("b.share");
        assert!(shares.iter().all(|share| (-1.0..=0.5).contains(share)));
        assert!((share(&shares, 0.0) - 2.0 / 3.0).abs() < 0.05);
        let sizes = of("b.size");
        assert!((1..=8).all(|size| sizes.contains(&Value::Integer(size))));
        assert!(sizes.iter().all(|size| matches!(size, Value::Integer(1..=8))));
        let kinds = of("b.kind");
        let first = kinds.iter().filter(|kind| kind.as_str() == Some("x")).count();
        assert!((900..1100).contains(&first), "{first}");
    }

    #[test]
    fn a_draw_depends_on_seed_and_trial_alone() {
        let space = space("rate = { log = [0.001, 1.0] }");
        assert_eq!(space.draw(3, 5), space.draw(3, 5));
        assert_ne!(space.draw(3, 5), space.draw(3, 6));
        assert_ne!(space.draw(3, 5), space.draw(4, 5));
        assert_ne!(space.draw(3, 5), space.draw(3 + (1 << 32), 5));
    }

    fn job(more: &str) -> JobFile {
        let text = "name = 'small'\ndata.dir = 'none'\ntrain.batch_size = 64\n\
                    model = { kind = 'dlrm', embedding_dim = 4, bottom_mlp = [8, 4], top_mlp = [8] }\n\
                    optimizer.dense = { kind = 'sgd', learning_rate = 0.5 }\n";
        JobFile::parse("job.toml", &format!("{text}{more}"), &[] as &[&str])
            .unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn cases_have_all_values_and_all_pairs() {
        let text = "a = { choose = [1, 2, 3] }\nb = { linear = [0.0, 1.0] }\nc = { log = [4, 8] }";
        let cases = space(text).cases();
        let has = |pairs: &[(&str, Value)]| {
            let is = |drawn: &&Drawn| {
                pairs.iter().all(|(key, value)| drawn.contains(&((*key).into(), value.clone())))
            };
            cases.iter().any(|drawn| is(&drawn))
        };
        assert!(cases.iter().all(|drawn| drawn.len() == 3));
        let (whole, fraction) = (Value::Integer, Value::Float);
        assert!((4..=8).all(|c| has(&[("c", whole(c))])), "{cases:?}");
        assert!([0.0, 0.5, 1.0].iter().all(|&b| has(&[("b", fraction(b))])), "{cases:?}");
        for a in 1..=3 {
            for (b, c) in [(0.0, 4), (1.0, 8)] {
                assert!(
                    has(&[("a", whole(a)), ("b", fraction(b))]) && has(&[("a", whole(a)), ("c", whole(c))])
                );
                assert!(has(&[("b", fraction(b)), ("c", whole(12 - c))]));
            }
        }
        // Long ranges have as many values as are worth the time, their ends among them.
        let cases = space("a = { linear = [1, 1000000] }").cases();
        let values: Vec<_> = cases.iter().map(|drawn| drawn[0].1.as_integer().expect("whole")).collect();
        assert!((100..1000).contains(&values.len()) && values.contains(&1) && values.contains(&1_000_000));
    }

    const ADAGRAD: &str = "optimizer.sparse = { kind = 'adagrad', learning_rate = 0.25 }";

    fn around(file: &JobFile) -> Space {
        Space::around(file).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn the_space_around_a_job_has_values_that_suit_it() {
        let keys = |more: &str| {
            let space = around(&job(more));
            space.dimensions.into_iter().map(|Dimension { key, range }| (key, range)).collect::<Vec<_>>()
        };
        let rate = |at: f64| Range::Log(Bounds { from: at / 5.0, to: at * 5.0, are_whole: false });
        let choose = |list: &str| {
            let table: Table =
                toml::from_str(&format!("list = {list}")).unwrap_or_else(|error| panic!("{error}"));
            Range::Choose(table["list"].as_array().cloned().unwrap_or_default())
        };
        let buckets = "[[], [{ column = '*', buckets = 64 }], [{ column = '*', buckets = 256 }], \
                       [{ column = '*', buckets = 1024 }]]";
        let expected = [
            ("model.kind", choose("['dlrm', 'dcnv2', 'deepfm', 'wide-deep']")),
            ("feature", choose(buckets)),
            ("optimizer.dense.learning_rate", rate(0.5)),
            ("optimizer.sparse.learning_rate", rate(0.25)),
            ("optimizer.sparse.weight_decay", choose("[0.0, 1e-4, 1e-3, 1e-2, 3e-2]")),
            ("train.batch_size", choose("[32, 64, 128]")),
            ("model.embedding_dim", choose("[2, 4, 8]")),
            ("model.top_mlp", choose("[[4], [8], [16]]")),
        ]
        .map(|(key, range)| (key.to_owned(), range));
        assert_eq!(keys(ADAGRAD), expected);
        // A rate of 0 is meant. With a schedule, the number of epochs varies.
        let still = keys("optimizer.sparse = { kind = 'ftrl', learning_rate = 0.0 }");
        assert_eq!(still, [&expected[..3], &expected[4..]].concat());
        let cosine = keys(&format!(
            "{ADAGRAD}\ntrain.epochs = 4\noptimizer.schedule = {{ kind = 'cosine', decay_steps = 9 }}"
        ));
        assert!(cosine.contains(&("train.epochs".into(), choose("[2, 4, 8]"))), "{cosine:?}");
        let own = keys(&format!(
            "{ADAGRAD}\nfeature = [{{ column = 'a', buckets = 2, name = 'b' }}, {{ column = 'a', buckets = [1.5] }}]"
        ));
        let lists = "[[], [{ column = 'a', buckets = 2, name = 'b' }, { column = 'a', buckets = [1.5] }], \
                     [{ column = 'a', buckets = 8, name = 'b' }, { column = 'a', buckets = [1.5] }]]";
        assert!(own.contains(&("feature".into(), choose(lists))), "{own:?}");
        // There is no half of 1.
        let smallest = ["model.embedding_dim=1", "model.bottom_mlp=[8, 1]", "train.batch_size=1"];
        let smallest = around(&job(ADAGRAD).with(&smallest).unwrap_or_else(|error| panic!("{error}")));
        let of = |key: &str| smallest.dimensions.iter().find(|dimension| dimension.key == key);
        let two = choose("[1, 2]");
        assert!(
            ["train.batch_size", "model.embedding_dim"]
                .iter()
                .all(|key| of(key).is_some_and(|of| of.range == two))
        );
    }

    #[test]
    fn every_kind_of_model_has_a_job_with_the_sizes_that_are_drawn() {
        let file = job(ADAGRAD);
        let own = file.job().unwrap_or_else(|error| panic!("{error}"));
        let space = around(&file);
        for trial in 1..200 {
            let drawn = space.draw(5, trial);
            let made = space.applied_to(&file, &sets(&own, &drawn)).and_then(|file| file.job());
            let made = made.unwrap_or_else(|error| panic!("{drawn:?}: {error}"));
            let of = |key: &str| drawn.iter().find(|(own, _)| own == key).map(|(_, value)| value.clone());
            assert_eq!(of("model.kind"), Some(Value::from(made.model.kind().name)));
            let dim = i64::from(made.model.embedding_dim().get());
            assert_eq!(of("model.embedding_dim"), Some(dim.into()));
            let bottom = made.model.bottom_mlp().last().map(|width| i64::from(width.get()));
            assert_eq!(bottom, Some(if made.model.kind().multiplies_vectors { dim } else { 4 }));
        }
    }

    #[test]
    fn draws_near_a_good_trial_have_about_half_of_its_settings() {
        let space = space("rate = { log = [0.001, 1.0] }\nsize = { choose = [1, 2, 3, 4, 5, 6, 7, 8] }");
        let good: Drawn = vec![("rate".into(), Value::Float(0.9)), ("size".into(), Value::Integer(3))];
        let near: Vec<_> = (0..1000).map(|trial| space.draw_near(3, trial, &good)).collect();
        let share =
            |holds: &dyn Fn(&Drawn) -> bool| near.iter().filter(|drawn| holds(drawn)).count() as f64 / 1000.0;
        // Shares of 1000 draws have a standard deviation of at most 0.016. An eighth of the sizes drawn is the old one.
        assert!((share(&|drawn| drawn[0] == good[0]) - STAYS).abs() < 0.08);
        assert!((share(&|drawn| drawn[1] == good[1]) - (STAYS + (1.0 - STAYS) / 8.0)).abs() < 0.08);
        // A rate moves by a part of the way to another one: the lowest is 0.9 * (0.001 / 0.9)^0.35.
        assert!(near.iter().all(|drawn| drawn[0].1.as_float().is_some_and(|rate| rate > 0.08)), "{near:?}");
        // Settings that it shares with the job are left out, or drawn.
        let of_job = space.draw_near(3, 5, &Vec::new());
        assert!(of_job.iter().all(|setting| space.draw(3, 5).contains(setting)), "{of_job:?}");
    }

    #[test]
    fn what_is_no_range_is_refused_with_its_place() {
        let refused = |text: &str, expected: &str| {
            let error = Space::parse("space.toml", text).expect_err("it is no space").to_string();
            assert!(error.contains(expected) && error.contains("space.toml"), "{error}");
        };
        refused("[train]\nbatch_size = 64", "64 is not a range: write { log = [FROM, TO] }");
        refused("rate = { log = [0.0, 1.0] }", "log needs positive numbers, not 0");
        refused("rate = { log = [1.0, 0.1] }", "1.0 is not less than 0.1");
        refused("rate = { linear = [1.0] }", "linear needs two numbers");
        refused("rate = { linear = [1.0, \"x\"] }", "\"x\" is not a number");
        refused("kind = { choose = [] }", "choose needs a list of values");
        refused("", "no setting to vary");
        refused(
            "train = { choose = [{ batch_size = 64 }, { max_steps = 5 }] }",
            "the search finds the number of steps",
        );
    }
}
