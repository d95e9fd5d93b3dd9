//! Jobs in code: [`Job::builder`], and the settings of the parts of a job.
//!
//! [`Settings::build`] makes the text of a job file of the settings and reads it, so that every check and default is
//! the file's.

use std::path::Path;

use rankine_base::document::Conflict;
use serde::Serialize;
use toml::Value;

use super::attention::Attention;
use super::definition::Job;
use super::error::JobError;
use super::feature::Feature;
use super::file::JobFile;
use super::model::{Head, Model, Table};
use super::optimizer::Optimizer;
use super::schedule::{Cosine, Schedule, Step, WarmupPolynomial};
use super::settings::{Kind, Settings, kinds};

kinds! {
    Schedule: WarmupPolynomial "warmup-polynomial", Step "step", Cosine "cosine";
}

impl Job {
    /// Returns the settings of a job, of which data, model, optimizers and batch size have to be set.
    ///
    /// ```
    /// use rankine_job::{Adagrad, Dlrm, Job, JobError, RowwiseAdagrad};
    ///
    /// let job = Job::builder("ads")
    ///     .data("data/ads")
    ///     .model(Dlrm::new(16).bottom([64, 16]).top([128, 64]))
    ///     .dense(Adagrad::rate(0.02))
    ///     .sparse(RowwiseAdagrad::rate(0.02).set("epsilon", 1e-6))
    ///     .batch_size(512)
    ///     .set("train.epochs", 2)
    ///     .build()?;
    /// assert_eq!(job.train.epochs.get(), 2);
    /// # Ok::<(), JobError>(())
    /// ```
    pub fn builder(name: &str) -> Settings<Self> {
        Settings::new().set("name", name)
    }
}

impl Settings<Job> {
    /// Sets the dataset folder, as `rankine convert` or `rankine generate` wrote it.
    pub fn data(self, dir: impl AsRef<Path>) -> Self {
        self.set("data.dir", dir.as_ref())
    }

    /// Sets the model.
    pub fn model<K: Kind<Model>>(self, model: Settings<K>) -> Self {
        self.part("model", model)
    }

    /// Adds a categorical column that is made of a numeric one.
    pub fn feature(self, feature: Settings<Feature>) -> Self {
        self.element("feature", feature)
    }

    /// Adds attention over a sequence of the dataset.
    pub fn attention<K: Kind<Attention>>(self, attention: Settings<K>) -> Self {
        self.element("attention", attention)
    }

    /// Adds a table that differs from the rest, or that several columns share.
    pub fn table(self, table: Settings<Table>) -> Self {
        self.element("table", table)
    }

    /// Adds a label to learn. Without any, all labels of the dataset are learned.
    pub fn head(self, head: Settings<Head>) -> Self {
        self.element("head", head)
    }

    /// Sets the optimizer of the MLPs, the cross network and the wide part's weights of dense columns.
    pub fn dense<K: Kind<Optimizer>>(self, optimizer: Settings<K>) -> Self {
        self.part("optimizer.dense", optimizer)
    }

    /// Sets the optimizer of the embeddings.
    pub fn sparse<K: Kind<Optimizer>>(self, optimizer: Settings<K>) -> Self {
        self.part("optimizer.sparse", optimizer)
    }

    /// Sets the optimizer of the wide part's weights of categories. Without it, that of the embeddings.
    pub fn wide<K: Kind<Optimizer>>(self, optimizer: Settings<K>) -> Self {
        self.part("optimizer.wide", optimizer)
    }

    /// Sets the learning-rate schedule. Without it, learning rates are constant.
    pub fn schedule<K: Kind<Schedule>>(self, schedule: Settings<K>) -> Self {
        self.part("optimizer.schedule", schedule)
    }

    /// Sets the number of samples per step, over all ranks.
    pub fn batch_size(self, samples: u32) -> Self {
        self.set("train.batch_size", samples)
    }

    /// Sets the number of passes over the training part. Without it, one.
    pub fn epochs(self, epochs: u64) -> Self {
        self.set("train.epochs", epochs)
    }

    /// Returns the job, with all checks of a job file done.
    ///
    /// # Errors
    /// [`JobError::Invalid`], which names the job and the key, and quotes the setting as a job file has it.
    pub fn build(self) -> Result<Job, JobError> {
        let name = format!("job {}", self.map.get("name").and_then(Value::as_str).unwrap_or_default());
        let file = JobFile::parse(&name, &self.map.to_string(), &[] as &[&str])?;
        if self.wrong.is_empty() {
            return file.job();
        }
        let wrong = self
            .wrong
            .iter()
            .map(|Conflict { key, message }| Conflict::new("", format!("`{key}`: {message}")));
        Err(file.error(&wrong.collect::<Vec<_>>()))
    }
}

impl Table {
    /// Returns the settings of the table that these categorical columns look up.
    pub fn of<C: AsRef<str>>(columns: impl IntoIterator<Item = C>) -> Settings<Self> {
        let columns: Vec<_> = columns.into_iter().map(|column| column.as_ref().to_owned()).collect();
        Settings::new().set("columns", columns)
    }
}

impl Settings<Table> {
    /// Sets the number of elements of a row.
    pub fn dim(self, dim: u32) -> Self {
        self.set("dim", dim)
    }

    /// Sets how many ids can have a row of the table: rows are given to ids as they come.
    pub fn capacity(self, ids: u64) -> Self {
        self.set("rows.capacity", ids)
    }

    /// Sets the optimizer of the table.
    pub fn optimizer<K: Kind<Optimizer>>(self, optimizer: Settings<K>) -> Self {
        self.part("optimizer", optimizer)
    }
}

impl Feature {
    /// Returns the settings of the buckets of a numeric column: their number, `"log"` or a list.
    pub fn of(column: &str, buckets: impl Serialize) -> Settings<Self> {
        Settings::new().set("column", column).set("buckets", buckets)
    }
}

impl Settings<Feature> {
    /// Sets the name of the new column.
    pub fn name(self, name: &str) -> Self {
        self.set("name", name)
    }
}

impl Head {
    /// Returns the settings of the head that learns a label.
    pub fn of(label: &str) -> Settings<Self> {
        Settings::new().set("label", label)
    }
}

impl Settings<Head> {
    /// Sets the weight of the head's loss in the sum over all heads.
    pub fn weight(self, weight: f64) -> Self {
        self.set("weight", weight)
    }
}
