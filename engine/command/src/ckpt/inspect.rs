//! `rankine ckpt inspect`: shows what a checkpoint contains.

use std::fmt;
use std::path::PathBuf;

use bytesize::ByteSize;
use rankine_checkpoint::{Checkpoint, Manifest, PieceContents};
use rankine_embedding::Membership;
use rankine_engine::source::{Artifact, ModelSource};
use rankine_saved::SavedModel;
use serde::Serialize;

use super::open;
use crate::table::counted;
use crate::{CommandError, output};

/// Show what a checkpoint contains: position of the training, tables and their optimizer state, shards
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rankine ckpt inspect runs/criteo-1
  rankine ckpt inspect runs/criteo-1/checkpoints/step-5000 --json | jq .manifest.train.position")]
pub(crate) struct Args {
    /// Run folder (for its latest checkpoint), checkpoint, or export
    path: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), CommandError> {
    if let ModelSource::Export(dir) = ModelSource::find(&args.path, Artifact::Any)? {
        let inspection = ExportInspection { model: SavedModel::open(&dir)?, path: dir };
        return if args.json { output::json(&inspection) } else { output::text(&inspection) };
    }
    let checkpoint = open(&args.path)?;
    let inspection = Inspection::of(&checkpoint, &checkpoint.memberships()?);
    if args.json { output::json(&inspection) } else { output::text(&inspection) }
}

/// The contents of an export.
#[derive(Serialize)]
struct ExportInspection {
    path: PathBuf,
    model: SavedModel,
}

impl fmt::Display for ExportInspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SavedModel { spec, schema, steps, .. } = &self.model;
        writeln!(f, "{}: export of the model of step {steps}", self.path.display())?;
        writeln!(f, "  {} dense parameters; {} dense columns", spec.dense_parameters(), schema.dense.len())?;
        for table in &spec.tables {
            let dtype = format!("{:?}", table.dtype).to_lowercase();
            writeln!(f, "  embedding.{}: {} rows of {} {dtype}", table.name, table.rows, table.dim)?;
        }
        let wide = spec.wide_tables();
        wide.iter()
            .try_for_each(|table| writeln!(f, "  wide.{}: {} rows of {}", table.name, table.rows, table.dim))
    }
}

#[derive(Serialize)]
struct Inspection<'a> {
    path: PathBuf,
    bytes: u64,
    shards: Vec<ShardReport>,
    /// Number of table rows in an incremental checkpoint; 0 in a full one.
    rows_added: u64,
    manifest: &'a Manifest,
    /// Ids that have rows of tables, with the tables' numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ids: Vec<(usize, u64)>,
}

#[derive(Serialize)]
struct ShardReport {
    name: String,
    bytes: u64,
    pieces: usize,
}

impl<'a> Inspection<'a> {
    fn of(checkpoint: &'a Checkpoint, memberships: &[(usize, Membership)]) -> Self {
        let shards = checkpoint.shards();
        let pieces = shards.iter().flat_map(|shard| &shard.pieces);
        let rows = pieces.map(|piece| match &piece.contents {
            PieceContents::Rows { rows, .. } => rows.len(),
            PieceContents::Dense { .. } | PieceContents::Keys { .. } | PieceContents::Counts { .. } => 0,
        });
        Self {
            path: checkpoint.path().to_owned(),
            bytes: shards.iter().map(|shard| shard.bytes).sum(),
            rows_added: if checkpoint.base().is_some() { rows.sum() } else { 0 },
            shards: shards
                .iter()
                .map(|shard| ShardReport {
                    name: shard.name.clone(),
                    bytes: shard.bytes,
                    pieces: shard.pieces.len(),
                })
                .collect(),
            manifest: checkpoint.manifest(),
            ids: memberships.iter().map(|(table, membership)| (*table, membership.keys())).collect(),
        }
    }
}

impl fmt::Display for Inspection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Manifest { train, seed, version, spec, dense, tables, device, ranks, nodes, base, .. } =
            self.manifest;
        writeln!(f, "{}: {}, saved by Rankine {version}", self.path.display(), ByteSize(self.bytes))?;
        writeln!(
            f,
            "  step {}, {} samples; continues in epoch {} at sample {}; loss {:.5}, seed {seed}",
            train.step, train.samples, train.position.epoch, train.position.sample, train.loss
        )?;
        if let Some(base) = base {
            writeln!(
                f,
                "  incremental, based on step {}: {} rows updated since",
                base.step, self.rows_added
            )?;
        }
        writeln!(f, "  saved on {} and {}", counted(*ranks as u64, "rank"), counted(*nodes as u64, "node"))?;
        let keeps = |state: &[String]| match state {
            [] => String::new(),
            names => format!(" with {}", names.join(" and ")),
        };
        writeln!(
            f,
            "  {} dense parameters, optimizer {}{}",
            spec.dense_parameters(),
            dense.rule,
            keeps(&dense.state)
        )?;
        for table in tables {
            writeln!(
                f,
                "  {}: {} rows of {} {}, optimizer {}{}",
                table.tensor,
                table.table.rows,
                table.table.dim,
                format!("{:?}", table.table.dtype).to_lowercase(),
                table.learns.rule,
                keeps(&table.learns.state)
            )?;
        }
        for (table, ids) in &self.ids {
            writeln!(f, "  {}: {ids} ids have rows", tables[*table].tensor)?;
        }
        if let Some(scale) = device.as_ref().and_then(|device| device.loss_scale) {
            writeln!(f, "  loss scale {}; {} steps were skipped", scale.scale, scale.skipped)?;
        }
        for shard in &self.shards {
            writeln!(f, "  {}: {} pieces, {} bytes", shard.name, shard.pieces, shard.bytes)?;
        }
        Ok(())
    }
}
