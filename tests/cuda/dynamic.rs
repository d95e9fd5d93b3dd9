//! Dynamic tables: ids have the rows that they have on the CPU, and models learn as there.

use std::fs;
use std::sync::Arc;

use libtest_mimic::Failed;
use rankine::job::{JobFile, Precision};
use rankine_backend::Backend;
use rankine_cuda::Device;
use rankine_embedding::membership::{IfFull, SavedMembership};
use rankine_embedding::{DynamicRows, Eviction, Membership};
use rankine_engine::training::{TrainError, TrainOptions, train};
use rankine_model::Interaction;
use rankine_saved::Weights;
use tempfile::TempDir;

use super::ranks::some_devices;
use super::resume::{folder, goes_on_with, job_goes_on_to_the_bit, job_is_for_any_ranks, job_keeps_the_best};
use super::training::{Training, draws_train_as_on_the_cpu, factor, overlaps_change_no_bit};
use super::{Body, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("dynamic_tables_train_as_on_the_cpu", 3, |bench, words| {
        let interactions = [
            Interaction::Dot,
            Interaction::Cross { layers: 2, rank: None },
            Interaction::FactorizationMachine,
        ];
        let interaction = words.one_of(&interactions);
        draws_train_as_on_the_cpu(bench, words, interaction, Training::dynamic)
    }),
    ("dynamic_tables_train_with_attention_as_on_the_cpu", 2, |bench, words| {
        let interaction = words.one_of(&[Interaction::Dot, Interaction::Concat]);
        draws_train_as_on_the_cpu(bench, words, interaction, Training::dynamic_and_attended)
    }),
    ("ids_have_the_same_rows_as_on_the_cpu", 6, |bench, words| {
        ids_have_the_same_rows(std::slice::from_ref(&bench.device), words)
    }),
    ("ranks_give_ids_the_same_rows_as_the_cpu", 6, |_, words| {
        ids_have_the_same_rows(&some_devices(words)?, words)
    }),
    ("what_overlaps_changes_no_bit_of_dynamic_tables", 1, |bench, words| {
        overlaps_change_no_bit(
            std::slice::from_ref(&bench.device),
            &Training::dynamic(words, Interaction::Dot, 30),
        )
    }),
    ("a_training_of_dynamic_tables_goes_on_to_the_bit", 1, |_, _| {
        job_goes_on_to_the_bit(dynamic_folder, 1, 1)
    }),
    ("averages_of_dynamic_tables_go_on_to_the_bit", 1, |_, _| {
        let average = "train.average={ kind = 'last', every_steps = 10, count = 3, save = 'always' }";
        goes_on_with(dynamic_folder, (1, 1), &[average], [&[]; 3])
    }),
    ("the_best_model_of_dynamic_tables_is_kept", 1, |_, _| job_keeps_the_best(dynamic_folder, 1, 1)),
    ("a_checkpoint_of_dynamic_tables_is_for_any_ranks_and_devices", 1, |_, _| {
        job_is_for_any_ranks(dynamic_folder, &[])
    }),
    ("ranks_with_dynamic_tables_go_on_to_the_bit", 1, |_, _| {
        let placed = ["table.0.placement=column-wise", "table.1.placement=replicated"];
        job_goes_on_to_the_bit(dynamic_folder, 2, 1)?;
        goes_on_with(dynamic_folder, (2, 1), &placed, [&[]; 3])
    }),
    ("ranks_save_dynamic_tables_for_any_ranks_and_devices", 1, |_, _| {
        job_is_for_any_ranks(dynamic_folder, &["device.ranks=2"])
    }),
    ("a_full_table_ends_the_training", 1, |_, _| a_full_table_ends_the_training()),
];

impl Training {
    /// A training three of whose tables are dynamic, with fewer rows than ids.
    pub(super) fn dynamic(words: &mut Words, interaction: Interaction, steps: usize) -> Self {
        Self::random(words, interaction, steps).with_dynamic_tables(words)
    }

    /// The same with sequences, which attention reads.
    fn dynamic_and_attended(words: &mut Words, interaction: Interaction, steps: usize) -> Self {
        Self::attended(words, interaction, steps).with_dynamic_tables(words)
    }

    fn with_dynamic_tables(mut self, words: &mut Words) -> Self {
        let spec = &mut self.model.spec;
        for (number, table) in spec.tables.iter_mut().enumerate().skip(1) {
            let evict = words.one_of(&[
                Eviction::Lru,
                Eviction::Lfu,
                Eviction::Ttl { steps: 3 },
                Eviction::None { if_full: IfFull::Shared },
            ]);
            let capacity = [0, 20, 300, 5_000][number];
            let rows = DynamicRows { capacity, admit_after: words.one_of(&[1, 2, 3]), evict };
            (table.rows, table.dynamic) = (rows.table_rows(), Some(rows));
        }
        let is_dynamic: Vec<_> =
            spec.features.iter().map(|feature| spec.tables[feature.table].dynamic.is_some()).collect();
        for (step, batch) in (0..).zip(&mut self.batches) {
            for (bags, _) in batch.categorical.iter_mut().zip(&is_dynamic).filter(|(_, dynamic)| **dynamic) {
                // Some ids come and go.
                let moved = |id: u64| if id.is_multiple_of(3) { id + step / 10 } else { id };
                bags.ids.iter_mut().for_each(|id| *id = moved(*id).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            }
        }
        self
    }

    /// Whether the rows of a table of the model, or those that begin anew with them, are given to ids.
    pub(super) fn is_dynamic(&self, table: usize) -> bool {
        let spec = &self.model.spec;
        let of_wide = table.checked_sub(spec.tables.len()).map(|column| spec.features[column].table);
        spec.tables[of_wide.unwrap_or(table)].dynamic.is_some()
    }
}

fn saved<'a>(memberships: impl Iterator<Item = (usize, &'a Membership)>) -> Vec<(usize, SavedMembership)> {
    memberships.map(|(table, membership)| (table, membership.saved())).collect()
}

/// Ids, scores and counts depend on the batches only: they are the CPU's in every precision, also if samples are scored
/// in between, which changes nothing, and after reading and writing them.
fn ids_have_the_same_rows(devices: &[Arc<Device>], words: &mut Words) -> Outcome {
    let training = Training::dynamic(words, Interaction::Dot, 40);
    let precision = words.one_of(&[Precision::Fp32, Precision::Bf16, Precision::Fp16]);
    let (mut on_cpu, mut on_gpu) = (training.cpu_model(), training.over_ranks(devices, precision, None)?);
    for (step, batch) in training.batches.iter().enumerate() {
        on_cpu.train_step(batch, factor(step))?;
        on_gpu.train_on(batch, factor(step))?;
        if step % 9 == 4 {
            on_gpu.logits(&training.batches[(step + 1) % 40], &mut Vec::new())?;
        }
        if step % 13 == 7 {
            on_gpu.take_outcomes(true, &mut |_| ())?;
            let found = on_gpu.memberships()?;
            let found = saved(found.iter().map(|(table, membership)| (*table, membership)));
            let expected = saved(on_cpu.memberships());
            if found != expected {
                return Err(format!("after step {step}, {:?}", training.model.spec.tables).into());
            }
        }
    }
    let states = on_gpu.dynamic_tables()?;
    if states != on_cpu.dynamic_tables() {
        return Err(format!("{states:?} instead of {:?}", on_cpu.dynamic_tables()).into());
    }
    Ok(())
}

/// A folder with the job of other tests, three of whose tables are dynamic.
fn dynamic_folder() -> Result<TempDir, Failed> {
    let folder = folder()?;
    let job = folder.path().join("job.toml");
    let table = |column: &str, rows: &str| {
        format!("[[table]]\ncolumns = [\"{column}\"]\nplacement = \"row-wise\"\nrows = {{ {rows} }}\n")
    };
    let tables = [
        table("C2", "capacity = 25, admit_after = 2"),
        table("C3", "capacity = 150, evict = \"lfu\""),
        table("C4", "capacity = 900, evict = \"ttl\", ttl_steps = 9"),
    ];
    fs::write(&job, fs::read_to_string(&job)? + &tables.concat())?;
    Ok(folder)
}

/// A table without a free row ends the training, if the job says so, and names the id.
fn a_full_table_ends_the_training() -> Outcome {
    let folder = dynamic_folder()?;
    let sets = ["table.2.rows={ capacity = 900, evict = 'none' }"];
    let job = JobFile::read(&folder.path().join("job.toml"), &sets)?.job()?;
    let run = folder.path().join("full");
    let options = TrainOptions { run_dir: Some(&run), ..TrainOptions::default() };
    match train(&job, options, &mut ()) {
        Err(TrainError::FullTable { step, source })
            if step > 0 && source.to_string().contains("900 ids have") =>
        {
            Ok(())
        }
        outcome => Err(format!("{outcome:?}").into()),
    }
}
