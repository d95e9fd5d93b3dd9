//! Whether a machine's memory holds a model on the CPU: its tables, its layers and its batches.

use rankine_base::system;
use rankine_embedding::EmbeddingPlan;
use rankine_embedding::cpu::RankTables;
use rankine_embedding::plan::TierReport;
use rankine_engine_cpu as cpu;
use rankine_job::{DenseUpdate, Job};
use rankine_model::{Model, ModelSpec};

use super::error::MemoryError;

/// Refuses a model that does not fit into memory before anything is allocated: otherwise the system would kill the
/// process later, without a message. All ranks of a plan share this machine's memory.
pub(super) fn check_memory(
    job: &Job,
    model: &Model,
    plan: Option<&EmbeddingPlan>,
) -> Result<(), MemoryError> {
    let threads = rankine_job::thread_count(job.device.threads).get();
    match system::memory() {
        Some(memory) => check_memory_of(memory.usable_bytes(), (job, threads), model, plan),
        None => Ok(()),
    }
}

/// Refuses to score batches of this many samples with a model on the CPU, if the memory that remains beside the model
/// does not hold their activations.
///
/// # Errors
/// [`MemoryError::Scoring`].
pub fn check_scoring_memory(job: &Job, spec: &ModelSpec) -> Result<(), MemoryError> {
    let threads = rankine_job::thread_count(job.device.threads).get();
    let bytes = cpu::scoring_bytes(spec, job.eval.batch_size_on_cpu(), threads);
    match system::memory().map(|memory| memory.usable_bytes()) {
        Some(free) if bytes > free => {
            let way_out = fewer_activations(spec, "eval.batch_size", threads);
            Err(MemoryError::Scoring { batch: bytes, free, way_out })
        }
        _ => Ok(()),
    }
}

/// Refuses rows in host memory that it does not hold. If the job says how much memory they may take, only the limit of
/// the cgroup counts: the memory of some machines grows as it is used.
pub(super) fn check_host_rows(
    job: &Job,
    report: &TierReport,
    share: (usize, usize),
) -> Result<(), MemoryError> {
    match system::memory() {
        Some(memory) => check_host_rows_of(&memory, job, report, share),
        None => Ok(()),
    }
}

fn check_host_rows_of(
    memory: &system::Memory,
    job: &Job,
    report: &TierReport,
    (own, ranks): (usize, usize),
) -> Result<(), MemoryError> {
    let free = match job.embedding.host_memory {
        Some(_) => memory.cgroup_limit_bytes.unwrap_or(u64::MAX),
        None => memory.usable_bytes(),
    };
    let of_own = |bytes: u64| (u128::from(bytes) * own as u128 / ranks as u128) as u64;
    let (rows, staging) = (of_own(report.host_bytes), of_own(report.staging_bytes));
    if rows.saturating_add(staging) > free {
        return Err(MemoryError::ColdRows { rows, staging, free });
    }
    Ok(())
}

/// Bytes of the buffers of a step and of an evaluation on all ranks of the CPU.
fn batch_bytes(job: &Job, spec: &ModelSpec, ranks: usize, threads: usize) -> u64 {
    let share = |samples: usize| samples.div_ceil(ranks);
    let samples = share(job.train.batch_size.get() as usize);
    let scored = share(job.eval.batch_size_on_cpu());
    let of_step = cpu::step_bytes(spec, samples, scored, (threads / ranks).max(1));
    // With several ranks, vectors are looked up for the whole batch before tiles take them.
    let vectors =
        if ranks > 1 { samples.max(scored).saturating_mul(4 * spec.vector_elements()) as u64 } else { 0 };
    of_step.saturating_add(vectors).saturating_mul(ranks as u64)
}

/// How to need less memory for a batch.
fn fewer_activations(spec: &ModelSpec, batch_size: &str, threads: usize) -> String {
    let threads = if threads > 1 { ", fewer threads (device.threads)" } else { "" };
    let pairs = match spec.interaction.pairs(spec.vector_sizes()) {
        0 => String::new(),
        pairs => {
            format!(", or a model.kind other than dlrm, which multiplies all {pairs} pairs of its vectors")
        }
    };
    format!("To need less, use a smaller {batch_size}{threads}, narrower layers{pairs}")
}

fn check_memory_of(
    usable: u64,
    (job, threads): (&Job, usize),
    model: &Model,
    plan: Option<&EmbeddingPlan>,
) -> Result<(), MemoryError> {
    let Model { spec, rules } = model;
    let tables = model.all_tables();
    let of_rows = match plan {
        None => model.table_bytes(),
        Some(plan) => plan.topology.all_ranks().map(|rank| RankTables::bytes(plan, rank, &tables)).sum(),
    };
    let of_ids = spec.tables.iter().filter_map(|table| table.dynamic).map(|rows| rows.bytes());
    let of_tables = of_ids.fold(of_rows, u64::saturating_add);
    if of_tables > usable {
        let largest =
            spec.tables.iter().max_by_key(|table| table.rows).map_or("", |table| table.name.as_str());
        return Err(MemoryError::Tables { tables: of_tables, free: usable, largest: largest.into() });
    }
    let ranks = plan.map_or(1, |plan| plan.topology.ranks()) as u64;
    let states = if job.device.dense_update == DenseUpdate::Sharded { 1 } else { ranks };
    let parameters = spec.dense_parameters() as u64;
    let state = rules.dense.rule.state_elements(spec.dense_parameters()) as u64;
    // Each rank has the weights, their gradients, and the weights packed for the forward and the backward products.
    let elements = (4 * ranks).saturating_mul(parameters).saturating_add(states.saturating_mul(state));
    let of_layers = elements.saturating_mul(size_of::<f32>() as u64);
    if of_layers > usable - of_tables {
        return Err(MemoryError::Layers { layers: of_layers, tables: of_tables, free: usable });
    }
    let of_batch = batch_bytes(job, spec, ranks as usize, threads);
    if of_batch > usable - of_tables - of_layers {
        return Err(MemoryError::Batch {
            batch: of_batch,
            model: of_tables + of_layers,
            free: usable,
            way_out: fewer_activations(spec, "train.batch_size and eval.batch_size", threads),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rankine_model::translate;
    use rankine_reader::Schema;
    use rankine_reader::schema::{
        Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Label, Pooling,
        VocabularyKind,
    };

    use super::*;

    const JOB: &str = r#"
        name = "test"
        data.dir = "data"
        model = { kind = "dlrm", embedding_dim = 4, bottom_mlp = [4], top_mlp = [65536, 65536] }
        optimizer.dense = { kind = "momentum", learning_rate = 0.5 }
        optimizer.sparse = { kind = "adagrad", learning_rate = 0.125 }
        train.batch_size = 8
    "#;

    fn schema() -> Schema {
        let transform = DenseTransform::plain(DenseFunction::None);
        let categorical = Categorical {
            name: "ad".into(),
            rows: Some(10),
            hotness: Hotness::Fixed(1),
            pooling: Pooling::Sum,
            vocabulary: VocabularyKind::Hash,
            weighted: false,
            shares: None,
        };
        Schema {
            labels: vec![Label::new("click")],
            weight: None,
            dense: vec![Dense { name: "age".into(), transform }],
            dense_dtype: DenseDtype::F32,
            sequences: Vec::new(),
            categorical: vec![categorical],
        }
    }

    fn job(sets: &[&str]) -> Job {
        Job::from_toml("job.toml", JOB, sets).unwrap()
    }

    #[test]
    fn rows_in_host_memory_must_fit_into_what_is_free_or_what_the_job_says() {
        let memory = |available_bytes, cgroup_limit_bytes| system::Memory {
            total_bytes: 1 << 40,
            available_bytes,
            cgroup_limit_bytes,
        };
        let report = TierReport {
            device_rows: 0,
            device_bytes: 0,
            landing_bytes: 0,
            host_rows: 1,
            host_bytes: 6 << 20,
            staging_bytes: 2 << 20,
            lookup_share: 1.0,
            missed_rows: 0.0,
            missed_bytes: 0.0,
            tables: Vec::new(),
        };
        let fits =
            |memory: &system::Memory, sets: &[&str]| check_host_rows_of(memory, &job(sets), &report, (1, 1));
        assert!(fits(&memory(8 << 20, None), &[]).is_ok());
        let error = fits(&memory((8 << 20) - 1, None), &[]).unwrap_err().to_string();
        assert!(
            error.contains("the rows in host memory take 6.0 MiB, and copies of a batch's rows 2.0 MiB"),
            "{error}"
        );
        assert!(error.contains("Raise embedding.device_memory, or make tables smaller"), "{error}");
        assert!(fits(&memory(1 << 30, Some(8 << 20)), &[]).is_ok());
        // The job says what may be assumed, but no process exceeds the limit of its cgroup.
        let sets = ["embedding.device_memory=1GB", "embedding.host_memory=1GB"];
        assert!(fits(&memory(1, None), &sets).is_ok());
        assert!(fits(&memory(1 << 30, Some((8 << 20) - 1)), &sets).is_err());
    }

    #[test]
    fn a_model_that_memory_does_not_hold_is_refused_for_what_is_too_large() {
        let job = job(&[]);
        let model = translate(&job, &schema()).unwrap();
        let tables = model.table_bytes();
        // Momentum keeps one value per parameter; added to these are gradients, and weights packed in two layouts.
        let layers = 5 * 4 * model.spec.dense_parameters() as u64;
        assert!(layers > 20 << 32);
        let threads = 3;
        let batch = batch_bytes(&job, &model.spec, 1, threads);
        let told = |usable| match check_memory_of(usable, (&job, threads), &model, None) {
            Ok(()) => "fits".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(told(tables + layers + batch), "fits");
        let too_large = told(tables + layers + batch - 1);
        assert!(
            too_large.starts_with("a batch takes ") && too_large.contains("fewer threads"),
            "{too_large}"
        );
        assert!(told(tables + layers - 1).contains("the dense layers take 80."), "{}", told(0));
        assert!(told(tables).contains("use narrower layers in model.bottom_mlp and model.top_mlp"));
        assert!(told(tables - 1).contains("the tables and their optimizer state take "));

        // Each rank has its own, and a share of the state where updates are sharded.
        let topology = rankine_topology::Topology::new(3, 1).unwrap();
        let plan = EmbeddingPlan::replicated(
            topology,
            &model.all_tables().into_iter().map(|table| table.0).collect::<Vec<_>>(),
        );
        for (update, elements) in [("replicated", 15), ("sharded", 13)] {
            let job = self::job(&[&format!("device.dense_update={update}")]);
            let of_batch = batch_bytes(&job, &model.spec, 3, threads);
            let needed = 3 * tables + of_batch + elements * 4 * model.spec.dense_parameters() as u64;
            let check = |usable| check_memory_of(usable, (&job, threads), &model, Some(&plan));
            assert!(check(needed).is_ok() && check(needed - 1).is_err(), "{update}");
        }
    }
}
