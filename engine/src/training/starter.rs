//! A job to begin with: sizes and rates that suit a dataset's columns and samples, and the options beside them.
//!
//! The text is for people to change: what is commented out holds as it stands once the mark is removed.

use std::fmt::{self, Write};
use std::path::Path;

use rankine_reader::{Dataset, Part, Schema};

use super::translate::translate;
use crate::job::{Job, JobName, Model};
use crate::system;

/// Writes a job for a dataset; `data` is its folder, as the job shall name it, and `kind` the model's kind.
pub fn starter_job(dataset: &Dataset, data: &Path, kind: &str) -> String {
    let starter = Starter {
        schema: dataset.schema(),
        data,
        kind,
        train_samples: dataset.samples(Part::Train),
        eval_samples: dataset.samples(Part::Eval),
    };
    let mut text = String::new();
    // Half of the memory is left to whatever else runs.
    let bytes_max = system::memory().map_or(u64::MAX, |memory| memory.usable_bytes() / 2);
    for dim in starter.dims() {
        text.clear();
        starter.write(&mut text, dim).expect("a string takes whatever is written");
        if starter.table_bytes(&text).is_none_or(|bytes| bytes <= bytes_max) {
            break;
        }
    }
    text
}

/// The kind of model to begin with, where nobody names one.
pub fn starter_kind(schema: &Schema) -> &'static str {
    let vectors = schema.categorical.len() + usize::from(!schema.dense.is_empty());
    // Dot products need two vectors.
    if vectors > 1 { "dlrm" } else { "wide-deep" }
}

struct Starter<'a> {
    schema: &'a Schema,
    data: &'a Path,
    kind: &'a str,
    train_samples: u64,
    eval_samples: u64,
}

impl Starter<'_> {
    /// Sizes of embeddings, the one that suits the samples first, then smaller ones.
    fn dims(&self) -> impl Iterator<Item = usize> {
        let dim: usize = match self.train_samples {
            0..50_000_000 => 16,
            50_000_000..1_000_000_000 => 32,
            _ => 128,
        };
        std::iter::successors(Some(dim), |&dim| (dim > 4).then_some(dim / 2))
    }

    /// Near the square root of the samples: as many steps as samples a step.
    fn batch_size(&self) -> u64 {
        let root = (self.train_samples as f64).sqrt();
        1 << (root.max(1.0).log2().round() as u32).clamp(6, 16)
    }

    fn table_bytes(&self, text: &str) -> Option<u64> {
        let job = Job::from_toml("starter", text, &[] as &[&str]).ok()?;
        let (spec, rules) = translate(&job, self.schema).ok()?;
        Some(rules.table_bytes(&spec))
    }

    fn write(&self, out: &mut String, dim: usize) -> fmt::Result {
        let Self { schema, data, kind, train_samples, eval_samples } = self;
        let (batch_size, steps) = (self.batch_size(), train_samples.div_ceil(self.batch_size()));
        let rows: u64 = schema.categorical.iter().map(|column| column.rows).sum();
        writeln!(
            out,
            "# A {kind} for {}: {train_samples} samples to train on and {eval_samples} to evaluate with,\n\
             # {} dense columns, {} categorical ones with {rows} rows in all.\n\
             #\n\
             # What is commented out is an option; docs/job-reference.md has all of them.\n\
             name = {}\n\
             seed = 1\n\
             \n\
             [data]\n\
             dir = {}",
            data.display(),
            schema.dense.len(),
            schema.categorical.len(),
            quoted(&self.name()),
            quoted(&data.to_string_lossy()),
        )?;
        self.write_model(out, dim)?;
        self.write_tables(out)?;
        self.write_heads(out)?;
        self.write_optimizers(out, steps)?;
        writeln!(
            out,
            "\n[train]\n\
             batch_size = {batch_size}\n\
             epochs = 1\n\
             # max_steps = {steps}              # end earlier"
        )?;
        let every_steps = (steps / 10).max(1);
        if *eval_samples == 0 {
            return writeln!(out, "\n# The dataset has no evaluation part, so nothing is evaluated.");
        }
        writeln!(
            out,
            "\n[eval]\n\
             every_steps = {every_steps}             # and always at the end\n\
             # target_auc = 0.8           # stop at the first evaluation that reaches it"
        )
    }

    fn write_model(&self, out: &mut String, dim: usize) -> fmt::Result {
        let large = self.train_samples >= 10_000_000;
        let (hidden, top_mlp) = if large { ("256, 64", "[512, 256]") } else { ("64", "[128, 64]") };
        let has_dense = !self.schema.dense.is_empty();
        let bottom_mlp = if has_dense { format!("[{hidden}, {dim}]") } else { "[]".into() };
        let kinds: Vec<_> = Model::KINDS.into_iter().filter(|kind| *kind != self.kind).collect();
        writeln!(out, "\n[model]\nkind = \"{}\"               # or {}", self.kind, kinds.join(", "))?;
        writeln!(out, "embedding_dim = {dim}")?;
        match self.kind {
            "dcnv2" => {
                let elements = dim * (self.schema.categorical.len() + usize::from(has_dense));
                let rank = (elements / 4).next_power_of_two().clamp(16, 512);
                writeln!(out, "bottom_mlp = {bottom_mlp}          # over the dense columns")?;
                writeln!(
                    out,
                    "cross_layers = 3\ncross_rank = {rank}             # without it: full matrices"
                )?;
            }
            "wide-deep" if has_dense => {
                writeln!(
                    out,
                    "# bottom_mlp = {bottom_mlp}        # without it the dense columns are used as they are"
                )?;
            }
            "wide-deep" => (),
            _ if has_dense => {
                writeln!(
                    out,
                    "bottom_mlp = {bottom_mlp}          # over the dense columns; ends with embedding_dim"
                )?;
            }
            _ => (),
        }
        writeln!(out, "top_mlp = {top_mlp}          # the last layer, to the logits, is implied")
    }

    /// Columns that share a vocabulary may share a table.
    fn write_tables(&self, out: &mut String) -> fmt::Result {
        for owner in &self.schema.categorical {
            let shares = |column: &&rankine_reader::schema::Categorical| {
                column.name == owner.name || column.shares.as_ref() == Some(&owner.name)
            };
            let columns: Vec<_> = self
                .schema
                .categorical
                .iter()
                .filter(shares)
                .map(|column| quoted(&column.name).to_string())
                .collect();
            if columns.len() > 1 {
                writeln!(
                    out,
                    "\n# [[table]]                  # they have one vocabulary, and may have one table"
                )?;
                writeln!(out, "# columns = [{}]", columns.join(", "))?;
            }
        }
        Ok(())
    }

    fn write_heads(&self, out: &mut String) -> fmt::Result {
        let labels: Vec<_> = self.schema.labels.iter().map(|label| quoted(&label.name).to_string()).collect();
        if labels.len() > 1 {
            writeln!(
                out,
                "\n# All labels are learnt, {}; with heads, those that are named.",
                labels.join(", ")
            )?;
            writeln!(out, "# [[head]]\n# label = {}\n# weight = 1.0", labels[0])?;
        }
        Ok(())
    }

    fn write_optimizers(&self, out: &mut String, steps: u64) -> fmt::Result {
        writeln!(
            out,
            "\n[optimizer.dense]\n\
             kind = \"adagrad\"            # or sgd, momentum, adam, ftrl\n\
             learning_rate = 0.02\n\
             # weight_decay = 1e-6\n\
             \n\
             [optimizer.sparse]\n\
             kind = \"adagrad\"            # or sgd, momentum, rowwise-adagrad (least memory), adam, ftrl\n\
             learning_rate = 0.02"
        )?;
        if matches!(self.kind, "deepfm" | "wide-deep") {
            writeln!(
                out,
                "\n# [optimizer.wide]           # by default that of optimizer.sparse\n\
                 # kind = \"ftrl\"\n\
                 # learning_rate = 0.02\n\
                 # l1 = 0.1"
            )?;
        }
        writeln!(
            out,
            "\n# [optimizer.schedule]       # by default constant\n\
             # kind = \"cosine\"            # or step, warmup-polynomial\n\
             # warmup_steps = {}\n\
             # decay_steps = {}",
            steps.div_ceil(20),
            (steps - steps.div_ceil(20)).max(1)
        )
    }

    /// The dataset's own name, where a job can be called so.
    fn name(&self) -> String {
        let name = self.data.file_name().map(|name| name.to_string_lossy().into_owned());
        name.filter(|name| name.parse::<JobName>().is_ok()).unwrap_or_else(|| "job".into())
    }
}

fn quoted(text: &str) -> toml::Value {
    toml::Value::String(text.to_owned())
}
