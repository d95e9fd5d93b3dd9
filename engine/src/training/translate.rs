//! From a job to its model: what the job says, for the columns that a dataset has.

use rankine_embedding::{Optimizer, Pooling, TableSpec, UpdateRule};
use rankine_reader::Schema;
use rankine_reader::schema::{self, Categorical, VocabularyKind};

use super::TrainError;
use crate::job::nearest::nearest;
use crate::job::{self, Conflict, Job, Model, Width};
use crate::model::{FeatureSpec, HeadSpec, Interaction, ModelSpec, TrainingRules};
use crate::system;

/// The model of a job for a dataset's columns, and the rules by which it learns.
///
/// # Errors
/// Everything about the job that does not suit the columns.
pub fn translate(job: &Job, schema: &Schema) -> Result<(ModelSpec, TrainingRules), Vec<Conflict>> {
    let mut conflicts = Vec::new();
    check_columns(job, schema, &mut conflicts);
    let heads = heads(job, schema, &mut conflicts);
    let tables = Tables::new(job, schema, &mut conflicts);
    if !conflicts.is_empty() {
        return Err(conflicts);
    }
    let features = schema.categorical.iter().zip(&tables.of_columns).map(|(column, &table)| FeatureSpec {
        column: column.name.clone(),
        table,
        pooling: match column.pooling {
            schema::Pooling::Sum => Pooling::Sum,
            schema::Pooling::Mean => Pooling::Mean,
        },
    });
    let widths = |mlp: &[Width]| mlp.iter().map(|width| width.get() as usize).collect();
    let spec = ModelSpec {
        dense_columns: schema.dense.len(),
        bottom_mlp: widths(job.model.bottom_mlp()),
        interaction: match &job.model {
            Model::Dlrm(_) => Interaction::Dot,
            Model::Dcnv2(model) => Interaction::Cross {
                layers: model.cross_layers.get() as usize,
                rank: model.cross_rank.map(|rank| rank.get() as usize),
            },
            Model::DeepFm(_) => Interaction::FactorizationMachine,
            Model::WideDeep(_) => Interaction::Concat,
        },
        wide: job.model.is_wide(),
        top_mlp: widths(job.model.top_mlp()),
        heads,
        features: features.collect(),
        tables: tables.specs,
    };
    let rules = TrainingRules {
        dense: optimizer(&job.optimizer.dense),
        dense_clip_norm: job.optimizer.dense_clip_norm.map(|norm| norm.get() as f32),
        tables: tables.rules,
        wide: optimizer(job.optimizer.wide()),
    };
    Ok((spec, rules))
}

/// Whether a model of the job's kind can be built over the columns at all.
fn check_columns(job: &Job, schema: &Schema, conflicts: &mut Vec<Conflict>) {
    let mut conflict = |key, message: String| conflicts.push(Conflict::new(key, message));
    let (dense, bottom) = (schema.dense.len(), job.model.bottom_mlp());
    let (kind, dim) = (job.model.kind(), job.model.embedding_dim());
    if dense > 0 && bottom.is_empty() && job.model.wants_equal_dims() {
        conflict(
            "model.bottom_mlp",
            format!(
                "the dataset has {dense} dense columns, so {kind} needs a bottom MLP: [64, {dim}], for example"
            ),
        );
    }
    if dense == 0 && !bottom.is_empty() {
        conflict("model.bottom_mlp", "the dataset has no dense columns: remove the bottom MLP".into());
    }
    let vectors = schema.categorical.len() + usize::from(dense > 0);
    if vectors < 2 && job.model.wants_equal_dims() {
        conflict(
            "model.kind",
            format!(
                "the dataset has too few columns: {kind} needs two categorical ones, or one and dense ones, to interact"
            ),
        );
    } else if vectors == 0 {
        conflict("model.kind", "the dataset has no columns to learn from".into());
    }
}

/// The labels that are learnt.
fn heads(job: &Job, schema: &Schema, conflicts: &mut Vec<Conflict>) -> Vec<HeadSpec> {
    let names: Vec<_> = schema.labels.iter().map(|label| label.name.as_str()).collect();
    let head = |label_number: usize, weight| HeadSpec {
        label: names[label_number].to_owned(),
        label_number,
        weight,
    };
    if job.heads.is_empty() {
        return (0..names.len()).map(|number| head(number, 1.0)).collect();
    }
    let mut heads = Vec::new();
    for (number, wanted) in job.heads.iter().enumerate() {
        match names.iter().position(|&name| name == wanted.label) {
            Some(label_number) => heads.push(head(label_number, wanted.weight.get())),
            None => conflicts.push(Conflict::new(
                format!("head.{number}.label"),
                format!("the dataset has no label {}: {}", wanted.label, known(&wanted.label, &names)),
            )),
        }
    }
    heads
}

/// The tables of a model, in the order of the first columns that look them up.
struct Tables {
    specs: Vec<TableSpec>,
    /// One a table.
    rules: Vec<Optimizer>,
    /// The number of each categorical column's table.
    of_columns: Vec<usize>,
}

impl Tables {
    fn new(job: &Job, schema: &Schema, conflicts: &mut Vec<Conflict>) -> Self {
        for (number, table) in job.tables.iter().enumerate() {
            check_table(number, table, schema, conflicts);
        }
        let mut tables = Self { specs: Vec::new(), rules: Vec::new(), of_columns: Vec::new() };
        // The tables of `[[table]]`s that a column has looked up already.
        let mut numbers = vec![None; job.tables.len()];
        for column in &schema.categorical {
            let own = job.tables.iter().position(|table| table.columns.contains(&column.name));
            let number = match own.and_then(|own| numbers[own]) {
                Some(number) => number,
                None => tables.push(job, column, own.map(|own| &job.tables[own])),
            };
            if let Some(own) = own {
                numbers[own] = Some(number);
            }
            tables.of_columns.push(number);
        }
        tables.check_names(job, conflicts);
        tables
    }

    /// Adds the table that a column is the first to look up; returns its number.
    fn push(&mut self, job: &Job, column: &Categorical, own: Option<&job::Table>) -> usize {
        let dim = own.and_then(|table| table.dim).unwrap_or(job.model.embedding_dim());
        let name = own.map_or_else(|| column.name.clone(), job::Table::name);
        self.specs.push(TableSpec { name, rows: column.rows, dim: dim.get() as usize });
        let rule = own.and_then(|table| table.optimizer.as_ref()).unwrap_or(&job.optimizer.sparse);
        let mut rule = optimizer(rule);
        rule.learning_rate *= own.map_or(1.0, |table| table.learning_rate_factor.get());
        self.rules.push(rule);
        self.specs.len() - 1
    }

    /// A `[[table]]` may be named like the column of a table that has none.
    fn check_names(&self, job: &Job, conflicts: &mut Vec<Conflict>) {
        for (number, table) in job.tables.iter().enumerate() {
            let name = table.name();
            let named = self.specs.iter().filter(|spec| spec.name == name).count();
            if named > 1 {
                let message = format!("the table of the column {name} is named so already");
                conflicts.push(Conflict::new(format!("table.{number}.name"), message));
            }
        }
    }
}

/// Whether the columns of a `[[table]]` are there, and mean the same by a row.
fn check_table(number: usize, table: &job::Table, schema: &Schema, conflicts: &mut Vec<Conflict>) {
    let names: Vec<_> = schema.categorical.iter().map(|column| column.name.as_str()).collect();
    let mut conflict = |message| conflicts.push(Conflict::new(format!("table.{number}.columns"), message));
    let mut first: Option<&Categorical> = None;
    for name in &table.columns {
        let Some(column) = schema.categorical.iter().find(|column| column.name == *name) else {
            let what =
                if schema.names().any(|other| other == name) { "is not categorical" } else { "is not there" };
            conflict(format!("the column {name} {what}: {}", known(name, &names)));
            continue;
        };
        let Some(first) = first else {
            first = Some(column);
            continue;
        };
        if first.rows != column.rows {
            conflict(format!(
                "the columns {} and {name} cannot share a table: their ids are below {} and {}. Convert them with one \
                 vocabulary (kind \"shared\"), or hashed to equally many rows",
                first.name, first.rows, column.rows
            ));
        } else if !share_meaning(first, column) {
            conflict(format!(
                "the columns {} and {name} cannot share a table: each has a vocabulary of its own, so a row means \
                 another category in each. Convert them with one vocabulary (kind \"shared\"), or hashed",
                first.name
            ));
        }
    }
}

/// Whether a row number means the same category in two columns with equally many rows.
fn share_meaning(a: &Categorical, b: &Categorical) -> bool {
    match (a.vocabulary, b.vocabulary) {
        (VocabularyKind::Hash, VocabularyKind::Hash)
        | (VocabularyKind::Identity, VocabularyKind::Identity) => true,
        _ => false,
    }
}

/// The names that there are, or the one that was probably meant.
fn known(word: &str, names: &[&str]) -> String {
    match nearest(word, names.iter().copied()) {
        Some(name) => format!("did you mean {name}?"),
        None if names.is_empty() => "there are none".into(),
        None => format!("there are {}", names.join(", ")),
    }
}

/// An optimizer of a job file, as what trains takes it.
fn optimizer(optimizer: &job::Optimizer) -> Optimizer {
    let rule = match *optimizer {
        job::Optimizer::Sgd(_) => UpdateRule::Sgd,
        job::Optimizer::Momentum(job::Momentum { momentum, nesterov, .. }) => {
            UpdateRule::Momentum { momentum: momentum.get() as f32, nesterov }
        }
        job::Optimizer::Adagrad(job::Adagrad { initial_accumulator, epsilon, .. }) => UpdateRule::Adagrad {
            initial_accumulator: initial_accumulator.get() as f32,
            epsilon: epsilon.get() as f32,
        },
        job::Optimizer::RowwiseAdagrad(job::RowwiseAdagrad { initial_accumulator, epsilon, .. }) => {
            UpdateRule::RowwiseAdagrad {
                initial_accumulator: initial_accumulator.get() as f32,
                epsilon: epsilon.get() as f32,
            }
        }
        job::Optimizer::Adam(job::Adam { beta1, beta2, epsilon, .. }) => UpdateRule::Adam {
            beta1: beta1.get() as f32,
            beta2: beta2.get() as f32,
            epsilon: epsilon.get() as f32,
        },
        job::Optimizer::Ftrl(job::Ftrl { beta, l1, l2, .. }) => {
            UpdateRule::Ftrl { beta: beta.get() as f32, l1: l1.get() as f32, l2: l2.get() as f32 }
        }
    };
    let (learning_rate, weight_decay) = (optimizer.learning_rate(), optimizer.weight_decay() as f32);
    Optimizer { rule, learning_rate, weight_decay }
}

/// Refuses tables that memory does not hold, before anything is allocated: the system would end the process later on,
/// without a word.
pub(super) fn check_memory(spec: &ModelSpec, rules: &TrainingRules) -> Result<(), TrainError> {
    const GIB: f64 = (1u64 << 30) as f64;
    let needed = rules.table_bytes(spec);
    let Some(usable) = system::memory().map(|memory| memory.usable_bytes()) else { return Ok(()) };
    if needed <= usable {
        return Ok(());
    }
    let largest = spec.tables.iter().max_by_key(|table| table.rows).map_or("", |table| table.name.as_str());
    Err(TrainError::Device(format!(
        "the tables and their optimizer state take {:.1} GiB, and {:.1} GiB of memory are free. The largest table is \
         {largest}: fewer rows (a higher --min-count, or hashing, at conversion), a smaller model.embedding_dim, or \
         optimizer.sparse.kind = \"rowwise-adagrad\", which keeps one number a row, or \"sgd\", which keeps none, take \
         less",
        needed as f64 / GIB,
        usable as f64 / GIB
    )))
}
