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
use toml::{Table, Value};

use rankine_job::{Job, JobError, JobFile, Optimizer};

/// Settings that cannot vary, and why.
const FIXED: [(&str, &str); 9] = [
    ("train.epochs", STEPS),
    ("train.max_steps", STEPS),
    ("train.validation", "all trials are compared on one validation set; set it in the job"),
    ("train.early_stopping", STEPS),
    ("train.average", "trials are compared without averages"),
    ("eval", "it does not change what is learned"),
    ("data", "all trials are trained on the same samples"),
    ("device", "it does not change what is learned"),
    ("seed", "the best of several seeds is not better on other data"),
];
/// A range of whole numbers with at most this many has all of them checked, and a longer one this many.
const WHOLE_MAX: u64 = 500;
/// The most pairs of values of two settings that are checked.
const PAIRS_MAX: usize = 5000;
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

/// What `--set` takes for the settings of a trial. Where vectors and the bottom MLP interact, its last layer follows
/// the size of the embeddings.
pub(super) fn sets(job: &Job, drawn: &Drawn) -> Vec<String> {
    let mut sets: Vec<_> = drawn.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let has = |key: &str| drawn.iter().find(|(own, _)| own == key).map(|(_, value)| value);
    let is_fixed = has("model").is_some() || has("model.bottom_mlp").is_some();
    let (bottom, dim) = (job.model.bottom_mlp(), has("model.embedding_dim").and_then(Value::as_integer));
    if let (Some(dim), true, false) =
        (dim, job.model.kind().multiplies_vectors && !bottom.is_empty(), is_fixed)
    {
        let hidden = bottom[..bottom.len() - 1].iter().map(|width| i64::from(width.get()));
        let widths: Vec<_> = hidden.chain([dim]).collect();
        sets.push(format!("model.bottom_mlp={widths:?}"));
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

    /// Returns the space of a search that names none: learning rates around those of the job, the weight decay of the
    /// embeddings, their size, and the batch size, as far as the job allows other values.
    ///
    /// # Errors
    /// [`JobError::Invalid`] if the job is not valid.
    pub fn around(file: &JobFile) -> Result<Self, JobError> {
        let job = &file.job()?;
        let rate = |key: &str, optimizer: &Optimizer| {
            let rate = optimizer.learning_rate();
            let bounds = Bounds { from: rate / 10.0, to: rate * 10.0, are_whole: false };
            // A rate of 0 is meant.
            (rate > 0.0).then(|| (format!("optimizer.{key}.learning_rate"), Range::Log(bounds)))
        };
        let choose = |key: &str, mut values: Vec<Value>| {
            values.retain(|value| {
                let sets = sets(job, &vec![(key.to_owned(), value.clone())]);
                file.with(&sets).and_then(|file| file.job()).is_ok()
            });
            (values.len() > 1).then(|| (key.to_owned(), Range::Choose(values)))
        };
        let near = |own: u32| [i64::from(own) / 2, own.into(), 2 * i64::from(own)].map(Value::Integer);
        let decays = [0.0, 1e-5, 1e-4, 1e-3, 1e-2].map(Value::Float);
        // Tables with sizes of their own may not fit another size of the others.
        let has_one_dim = job.tables.iter().all(|table| table.dim.is_none());
        let dims = has_one_dim.then(|| near(job.model.embedding_dim().get()));
        let dimensions = [
            rate("dense", &job.optimizer.dense),
            rate("sparse", &job.optimizer.sparse),
            choose("optimizer.sparse.weight_decay", decays.into()),
            choose("train.batch_size", near(job.train.batch_size.get()).into()),
            dims.and_then(|dims| choose("model.embedding_dim", dims.into())),
        ];
        let dimensions = dimensions.into_iter().flatten().map(|(key, range)| Dimension { key, range });
        Ok(Self { dimensions: dimensions.collect(), document: None })
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

    /// Draws the settings of a trial, which depend on nothing but the seed, the trial's number, and the range and the
    /// place of each setting.
    pub fn draw(&self, seed: u64, trial: u64) -> Drawn {
        let key = [seed as u32, (seed >> 32) as u32];
        let draw = |(number, dimension): (usize, &Dimension)| {
            let words = philox4x32([trial as u32, (trial >> 32) as u32, number as u32, 0], key);
            let word = u64::from(words[0]) << 32 | u64::from(words[1]);
            (dimension.key.clone(), dimension.range.at((word >> 11) as f64 / (1_u64 << 53) as f64))
        };
        self.dimensions.iter().enumerate().map(draw).collect()
    }
}

impl Range {
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

impl Bounds {
    fn of(from: &Value, to: &Value) -> Result<Self, String> {
        let number =
            |value: &Value| value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
        let number = |value: &Value| {
            number(value)
                .filter(|number| number.is_finite())
                .ok_or_else(|| format!("{value} is not a number"))
        };
        let bounds =
            Self { from: number(from)?, to: number(to)?, are_whole: from.is_integer() && to.is_integer() };
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

    #[test]
    fn the_space_around_a_job_has_values_that_suit_it() {
        let keys = |more: &str| {
            let space = Space::around(&job(more)).unwrap_or_else(|error| panic!("{error}"));
            space.dimensions.into_iter().map(|Dimension { key, range }| (key, range)).collect::<Vec<_>>()
        };
        let rate = |at: f64| Range::Log(Bounds { from: at / 10.0, to: at * 10.0, are_whole: false });
        let whole = |values: [i64; 3]| Range::Choose(values.map(Value::Integer).into());
        let adagrad = "optimizer.sparse = { kind = 'adagrad', learning_rate = 0.25 }";
        let decays = Range::Choose([0.0, 1e-5, 1e-4, 1e-3, 1e-2].map(Value::Float).into());
        let expected = [
            ("optimizer.dense.learning_rate".to_owned(), rate(0.5)),
            ("optimizer.sparse.learning_rate".to_owned(), rate(0.25)),
            ("optimizer.sparse.weight_decay".to_owned(), decays),
            ("train.batch_size".to_owned(), whole([32, 64, 128])),
            ("model.embedding_dim".to_owned(), whole([2, 4, 8])),
        ];
        assert_eq!(keys(adagrad), expected);
        // A rate of 0 is meant, and there is no half of 1.
        let still = keys("optimizer.sparse = { kind = 'ftrl', learning_rate = 0.0 }");
        assert_eq!(still, [&expected[..1], &expected[2..]].concat());
        let smallest = ["model.embedding_dim=1", "model.bottom_mlp=[8, 1]", "train.batch_size=1"];
        let smallest = Space::around(&job(adagrad).with(&smallest).unwrap_or_else(|error| panic!("{error}")));
        let smallest = smallest.unwrap_or_else(|error| panic!("{error}")).dimensions;
        let two = Range::Choose([1, 2].map(Value::Integer).into());
        assert!(smallest[3..].iter().all(|dimension| dimension.range == two), "{smallest:?}");
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
