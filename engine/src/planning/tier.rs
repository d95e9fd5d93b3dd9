//! How the rows of a job's tables are divided between GPUs and host memory, by the budgets of the job and how often
//! the rows are looked up. Training, `rankine plan` and `rankine check` all use [`Tiers::of`].

use bytesize::ByteSize;
use rankine_base::document::Conflict;
use rankine_embedding::frequency::{CountClass, FrequencyProfile, TableFrequencies};
use rankine_embedding::plan::{
    BudgetTooSmall, DividedTable, MOVABLE_ROW_BYTES, Machine, TierInput, TierReport, TierRequest, divide,
    row_bytes,
};
use rankine_embedding::{HotRows, Optimizer, TableSpec, TableTier, TierPlan};
use rankine_job::{DataCache, DataSource, DenseUpdate, Job, MemoryBudget, Tier};
use rankine_model::Model;
use rankine_reader::{Dataset, Part, Schema};
use rankine_topology::Topology;

use super::rest::{id_bytes, rest};
use super::statistics::{Source, law, statistics};

/// One part of this many of a GPU's memory is not for rows if the budget is `"auto"`: libraries, routes and scoring
/// take memory that is not estimated.
const RESERVED_PARTS: u64 = 16;

/// How the rows of a model's tables are divided between the GPUs of a node and host memory.
#[derive(Debug, Clone)]
pub struct Tiers {
    ranks: usize,
    /// The tables, but not of first-order terms, with the features that look them up.
    tables: Vec<(DividedTable, Vec<usize>)>,
    first_order_tables: usize,
    report: TierReport,
}

/// Why the rows of a job's tables cannot be divided.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The dataset cannot be read.
    #[error(transparent)]
    Data(#[from] rankine_base::Error),
    /// The job does not suit its dataset, or the GPU.
    #[error("{0}")]
    Conflict(Conflict),
}

impl Tiers {
    /// Divides the rows of the tables of a job that `ranks` GPUs train, each with `memory_bytes` bytes of memory;
    /// `None` if they store all rows. Rows take turns among the ranks, so each has about the same share of both kinds.
    ///
    /// # Errors
    /// [`TierError::Conflict`] if nobody counted the rows of the dataset, or a budget is too small.
    pub fn of(
        job: &Job,
        model: &Model,
        source: &Source<'_>,
        (ranks, memory_bytes): (usize, u64),
    ) -> Result<Option<Self>, TierError> {
        if job.host_memory_key().is_none() {
            return Ok(None);
        }
        let schema = source.schema();
        let all_tables = model.all_tables();
        let (tables, first_order) = all_tables.split_at(model.spec.tables.len());
        let features = features_of_tables(model);
        let profiles = profiles(job, schema, source, (tables, &features))?;
        let stored = schema.stored_categorical().len();
        let batch_size = u64::from(job.train.batch_size.get());
        let input = |number: usize| {
            let of_table = &features[number];
            let hotness =
                of_table.iter().map(|&feature| u64::from(schema.categorical[feature].hotness.max()));
            let tier = of_table.first().map(|&feature| tier_of(job, model, feature)).unwrap_or_default();
            let request = match tier {
                Tier::Host => TierRequest::Host,
                // Buckets are few, and not counted.
                Tier::Auto if of_table.iter().all(|&feature| feature < stored) => TierRequest::Hottest,
                Tier::Auto | Tier::Device => TierRequest::Device,
            };
            let (spec, Optimizer { rule, .. }) = &tables[number];
            let lookups_max = batch_size * hotness.sum::<u64>();
            TierInput { spec, rule: *rule, request, profile: &profiles[number], lookups_max }
        };
        let inputs: Vec<_> = (0..tables.len()).map(input).collect();
        let first_order_bytes: u64 =
            first_order.iter().map(|(spec, optimizer)| spec.rows * row_bytes(spec, optimizer.rule)).sum();
        let budget = budget(job, model, schema, source, (ranks, memory_bytes))?;
        let budget = budget.map(|budget| budget.saturating_mul(ranks as u64));
        let of_rows = budget.map(|budget| budget.saturating_sub(first_order_bytes));
        let divided = divide(&inputs, batch_size, of_rows).map_err(|BudgetTooSmall { needed_bytes }| {
            let of_rank = |bytes: u64| bytes.div_ceil(ranks as u64);
            let budget = of_rank(budget.unwrap_or(0));
            let needed = of_rank(needed_bytes.saturating_add(first_order_bytes));
            budget_too_small(job, budget, needed)
        })?;
        if divided.iter().all(|table| table.cold_rows() == 0) {
            return Ok(None);
        }
        let mut report = TierReport::new(tables.iter().map(|table| &table.0).zip(&divided));
        if job.embedding.refresh_steps.is_some() {
            report.staging_bytes += MOVABLE_ROW_BYTES * report.host_rows;
        }
        check_host_budget(job, &report)?;
        let first_order_tables = first_order.len();
        let tables = std::iter::zip(divided, features).collect();
        Ok(Some(Self { ranks, tables, first_order_tables, report }))
    }

    /// Returns the rows and bytes of each tier.
    pub fn report(&self) -> &TierReport {
        &self.report
    }

    /// Returns which rows the GPU stores: one entry per table of [`Model::all_tables`].
    ///
    /// # Errors
    /// [`TierError::Data`] if the dataset cannot be read.
    pub fn plan(&self, job: &Job, dataset: &Dataset) -> Result<TierPlan, TierError> {
        let of_table = |(table, features): &(DividedTable, Vec<usize>)| {
            if table.cold_rows() == 0 {
                return Ok(None);
            }
            let hot = if table.hot_rows == 0 {
                HotRows::of(table.rows, [])
            } else {
                let popularity = dataset.shared_popularity(features)?.ok_or_else(|| not_counted(job))?;
                HotRows::of(table.rows, popularity.hottest_ascending(table.hot_rows))
            };
            Ok(Some(TableTier { hot, landing_rows: table.landing_rows }))
        };
        let of_tables = self.tables.iter().map(of_table);
        let tables = of_tables.chain((0..self.first_order_tables).map(|_| Ok(None)));
        let tables = tables.collect::<Result<_, TierError>>()?;
        Ok(TierPlan { tables, refresh_steps: job.embedding.refresh_steps.map(|steps| steps.get()) })
    }

    /// Returns how many rows of each table of [`Model::all_tables`] a GPU has memory for, landing regions included;
    /// `None` if all rows stay on the GPUs.
    pub(super) fn device_rows(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        let of_table =
            |table: &DividedTable| (table.device_bytes() / table.row_bytes).div_ceil(self.ranks as u64);
        let of_tables =
            self.tables.iter().map(move |(table, _)| (table.cold_rows() > 0).then(|| of_table(table)));
        of_tables.chain((0..self.first_order_tables).map(|_| None))
    }
}

/// Returns the features that look up each table.
fn features_of_tables(model: &Model) -> Vec<Vec<usize>> {
    let mut of_tables = vec![Vec::new(); model.spec.tables.len()];
    for (number, feature) in model.spec.features.iter().enumerate() {
        of_tables[feature.table].push(number);
    }
    of_tables
}

/// Returns what a job says of the table of a feature.
fn tier_of(job: &Job, model: &Model, feature: usize) -> Tier {
    job.table_of(&model.spec.features[feature].column).map(|(_, own)| own.tier).unwrap_or_default()
}

/// Returns how often the rows of each table are looked up, with rows of equal codes as a class.
fn profiles(
    job: &Job,
    schema: &Schema,
    source: &Source<'_>,
    (tables, features): (&[(TableSpec, Optimizer)], &[Vec<usize>]),
) -> Result<Vec<FrequencyProfile>, TierError> {
    let of_tables = std::iter::zip(tables, features);
    let dataset = match source {
        Source::Dataset(dataset) => dataset,
        Source::Law { .. } => {
            let columns = statistics(job, source)?.columns;
            let merged = |features: &[usize]| {
                TableFrequencies::merged(features.iter().map(|&feature| columns[feature].frequencies.clone()))
            };
            let profile = of_tables.map(|((spec, _), of)| FrequencyProfile::new(spec.rows, &merged(of)));
            return Ok(profile.collect());
        }
    };
    let classes = dataset.popularity_classes()?.ok_or_else(|| not_counted(job))?;
    let samples = dataset.stored_part(Part::Train)?.samples;
    let profile = |((spec, _), features): (&(TableSpec, Optimizer), &Vec<usize>)| {
        if let Some(&bucket) = features.iter().find(|&&feature| feature >= classes.len()) {
            let buckets = law(&schema.categorical[bucket], 0.0);
            return Ok(FrequencyProfile::new(spec.rows, &buckets.frequencies));
        }
        let shared;
        let classes = match features[..] {
            [feature] => &classes[feature],
            _ => {
                shared = dataset.shared_popularity(features)?.ok_or_else(|| not_counted(job))?;
                shared.classes()
            }
        };
        let tail = classes.descending();
        let tail = tail.iter().map(|class| CountClass { rows: class.rows, lookups: class.lookups });
        let frequencies = TableFrequencies {
            samples,
            lookups: classes.lookups(),
            distinct_rows: classes.distinct_rows(),
            head: Vec::new(),
            tail: tail.collect(),
        };
        Ok(FrequencyProfile::new(spec.rows, &frequencies))
    };
    of_tables.map(profile).collect()
}

/// Returns the bytes that rows may take on a GPU with this much memory, if they are limited.
fn budget(
    job: &Job,
    model: &Model,
    schema: &Schema,
    source: &Source<'_>,
    (ranks, memory_bytes): (usize, u64),
) -> Result<Option<u64>, TierError> {
    match &job.embedding.device_memory {
        None => return Ok(None),
        Some(MemoryBudget::Bytes(bytes)) => return Ok(Some(bytes.get())),
        Some(MemoryBudget::Auto) => {}
    }
    let features = model.spec.features.iter().zip(&schema.categorical);
    let ids = features.map(|(feature, column)| f64::from(column.hotness.max()) * id_bytes(feature.weighted));
    let vector_element_bytes = job.device.precision_on_gpus().vector_element_bytes();
    let machine = Machine { vector_element_bytes, ..Machine::h200() };
    let batch_size = u64::from(job.train.batch_size.get());
    let sharded = job.device.dense_update == DenseUpdate::Sharded;
    let topology = Topology::new(ranks, 1).unwrap_or(Topology::ONE);
    let rest = rest(model, ids.sum(), batch_size, topology, &machine, sharded).memory.bytes();
    let cached = match source {
        Source::Dataset(dataset) if job.data.cache == DataCache::Gpu => {
            let part = dataset.part(Part::Train)?;
            part.blocks.iter().map(|block| u64::from(block.bytes)).sum::<u64>() / ranks as u64
        }
        _ => 0,
    };
    Ok(Some(memory_bytes.saturating_sub(memory_bytes / RESERVED_PARTS + rest + cached)))
}

/// Refuses more rows in host memory than the job allows.
fn check_host_budget(job: &Job, report: &TierReport) -> Result<(), TierError> {
    let Some(budget) = &job.embedding.host_memory else { return Ok(()) };
    let TierReport { host_bytes, staging_bytes, .. } = *report;
    if host_bytes.saturating_add(staging_bytes) <= budget.get() {
        return Ok(());
    }
    let what = format!(
        "the rows in host memory take {:.2}, and copies of a batch's rows {:.2}, but embedding.host_memory is {:.2}: \
         raise it, or embedding.device_memory, or {SMALLER_TABLES}",
        ByteSize(host_bytes),
        ByteSize(staging_bytes),
        ByteSize(budget.get())
    );
    Err(TierError::Conflict(Conflict::new("embedding.host_memory", what)))
}

/// A way out of budgets that are too small.
pub(crate) const SMALLER_TABLES: &str = "make tables smaller with embedding.dtype = \"bf16\" or an optimizer.sparse \
with less state per row";

fn budget_too_small(job: &Job, budget: u64, needed: u64) -> TierError {
    let is_auto = job.embedding.device_memory == Some(MemoryBudget::Auto);
    let which = if is_auto { "the rest of the GPU's memory" } else { "embedding.device_memory" };
    let raise = if is_auto { "" } else { "raise it, " };
    let what = format!(
        "the rows of a batch that are in host memory, and tables that must be on the GPU, take at least {:.2} there, \
         but {which} is {:.2}: {raise}use a smaller train.batch_size, or {SMALLER_TABLES}",
        ByteSize(needed),
        ByteSize(budget)
    );
    TierError::Conflict(Conflict::new("embedding.device_memory", what))
}

/// The rows of the job's dataset are not counted.
fn not_counted(job: &Job) -> TierError {
    let what = match job.data.source() {
        DataSource::Raw(_) => {
            "which rows are hot is not known of raw files: convert them to a dataset".into()
        }
        DataSource::Folders(folders) => {
            let name = folders.name();
            format!(
                "which rows are hot is not known of {name}: count them with `rankine inspect {name} --count`"
            )
        }
    };
    TierError::Conflict(Conflict::new(job.host_memory_key().unwrap_or_default(), what))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::num::NonZeroUsize;
    use std::path::Path;

    use rankine_base::Stop;
    use rankine_embedding::plan::LANDING_REGIONS;
    use rankine_reader::generate::{GenerateSpec, Shape, generate};
    use rankine_reader::schema::Pooling;
    use rankine_reader::stream::{BatchStream, StreamOptions};

    use super::*;
    use crate::training::translate;

    /// Three columns, of which two share a table.
    fn dataset(dir: &Path) -> Dataset {
        let shape = Shape {
            name: "three".into(),
            dense: 1,
            rows: vec![20_000, 50, 20_000],
            hotness: vec![2, 3, 1],
            ragged: false,
            pooling: Pooling::Sum,
            sequences: Vec::new(),
            churn: None,
        };
        let spec =
            GenerateSpec { shape, rows_cap: None, samples: 60_000, eval_samples: 10, alpha: 1.05, seed: 3 };
        generate(&spec, dir, NonZeroUsize::MIN, &Stop::default(), |_| ()).unwrap();
        Dataset::open(dir).unwrap()
    }

    fn job(dir: &Path, sets: &[&str]) -> Job {
        let text = format!(
            "
            name = \"tiers\"
            data.dir = {dir:?}
            model = {{ kind = \"wide-deep\", embedding_dim = 8, bottom_mlp = [], top_mlp = [5] }}
            optimizer.dense = {{ kind = \"sgd\", learning_rate = 1 }}
            optimizer.sparse = {{ kind = \"adagrad\", learning_rate = 1 }}
            train.batch_size = 256
            "
        );
        Job::from_toml("job.toml", &text, sets).unwrap()
    }

    /// Look-ups of each row of a table over all samples, and the mean number of distinct rows of a set per batch.
    fn counted(dataset: &Dataset, columns: &[usize], cold: &dyn Fn(u64) -> bool) -> (Vec<u64>, f64) {
        let mut counts = vec![0; dataset.schema().categorical[columns[0]].rows.unwrap() as usize];
        let (mut missed, mut batches) = (0, 0);
        for batch in
            BatchStream::open(dataset.part(Part::Train).unwrap(), &StreamOptions::one_epoch(256)).unwrap()
        {
            let batch = batch.unwrap();
            let samples = &batch.samples;
            let ids = || columns.iter().flat_map(|&column| samples.categorical[column].ids.iter().copied());
            ids().for_each(|id| counts[id as usize] += 1);
            missed += ids().filter(|&id| cold(id)).collect::<HashSet<_>>().len();
            batches += 1;
        }
        (counts, missed as f64 / f64::from(batches))
    }

    #[test]
    fn the_hottest_rows_stay_on_the_gpu_and_batches_miss_as_many_as_expected() {
        let home = tempfile::tempdir().unwrap();
        let dataset = dataset(home.path());
        for (tables, columns) in
            [("", vec![vec![0], vec![1], vec![2]]), ("C1, C3", vec![vec![0, 2], vec![1]])]
        {
            let shared = "table=[{ columns = [\"C1\", \"C3\"] }]";
            let budget = "embedding.device_memory=2.2MB";
            let sets = if tables.is_empty() { vec![budget] } else { vec![budget, shared] };
            let job = job(home.path(), &sets);
            let model = translate(&job, dataset.schema()).unwrap();
            let tiers = Tiers::of(&job, &model, &Source::Dataset(&dataset), (1, 0)).unwrap().unwrap();
            let plan = tiers.plan(&job, &dataset).unwrap();
            // Three tables of first-order terms, whose rows have a weight and a sum.
            assert_eq!(plan.tables.len(), columns.len() + 3);
            assert!(plan.tables[columns.len()..].iter().all(Option::is_none));
            let first_order = (20_000 + 50 + 20_000) * 32;
            let mut bytes = first_order;
            let (mut hits, mut lookups) = (0, 0);
            for (number, columns) in columns.iter().enumerate() {
                let report = &tiers.report().tables[number];
                let Some(table) = &plan.tables[number] else {
                    assert_eq!((report.device_rows, report.host_rows), (50, 0));
                    bytes += 50 * 64;
                    let (counts, _) = counted(&dataset, columns, &|_| false);
                    let all: u64 = counts.iter().sum();
                    (hits, lookups) = (hits + all, lookups + all);
                    continue;
                };
                let (counts, missed) = counted(&dataset, columns, &|row| !table.hot.contains(row));
                assert!((report.missed_rows / missed - 1.0).abs() < 0.1, "{report:?} for {missed}");
                assert_eq!((report.device_rows, report.host_rows), (table.hot.len(), table.cold_rows()));
                assert_eq!(report.landing_rows, table.landing_rows);
                assert!(table.landing_rows as f64 > missed);
                bytes += (table.hot.len() + LANDING_REGIONS * table.landing_rows) * 64;
                let (hot, cold): (Vec<_>, Vec<_>) = (0..20_000).partition(|&row| table.hot.contains(row));
                let coldest = hot.iter().map(|&row| counts[row as usize]).min().unwrap();
                let hottest = cold.iter().map(|&row| counts[row as usize]).max().unwrap();
                // Counts with the same code differ by less than an eighth, and so do sums of two columns' codes.
                let slack = if columns.len() == 1 { 1.125 } else { 1.125 * 1.125 };
                assert!(hottest as f64 <= slack * coldest as f64, "{hottest} is cold, and {coldest} hot");
                hits += hot.iter().map(|&row| counts[row as usize]).sum::<u64>();
                lookups += counts.iter().sum::<u64>();
            }
            let share = hits as f64 / lookups as f64;
            assert!((tiers.report().lookup_share - share).abs() < 0.01, "{share} and {:?}", tiers.report());
            assert!((2_190_000..=2_200_000).contains(&bytes), "{bytes}");
            assert_eq!(bytes, first_order + tiers.report().device_bytes + tiers.report().landing_bytes);
        }
    }

    #[test]
    fn tables_stay_where_the_job_says_and_budgets_are_checked() {
        let home = tempfile::tempdir().unwrap();
        let dataset = dataset(home.path());
        let of = |memory: u64, sets: &[&str]| {
            let job = job(home.path(), sets);
            let model = translate(&job, dataset.schema()).unwrap();
            let tiers = Tiers::of(&job, &model, &Source::Dataset(&dataset), (1, memory));
            tiers.map(|tiers| tiers.map(|tiers| (tiers.plan(&job, &dataset).unwrap(), tiers.report)))
        };
        let refused = |sets: &[&str]| of(0, sets).unwrap_err().to_string();
        assert!(of(0, &[]).unwrap().is_none());
        assert!(of(0, &["embedding.device_memory=1GB"]).unwrap().is_none());
        let host =
            "table=[{ columns = [\"C1\"], tier = \"host\" }, { columns = [\"C3\"], tier = \"device\" }]";
        let (plan, report) = of(0, &[host]).unwrap().unwrap();
        let on_host = plan.tables[0].as_ref().unwrap();
        assert_eq!((on_host.hot.len(), on_host.cold_rows(), on_host.landing_rows), (0, 20_000, 512));
        assert!(plan.tables[1..].iter().all(Option::is_none));
        assert_eq!((report.host_rows, report.host_bytes), (20_000, 20_000 * 64));
        // C3 is on the device, whose memory is too small for it.
        let message = refused(&[host, "embedding.device_memory=1MB"]);
        assert!(
            message.contains("take at least 2.5") && message.contains("raise it, use a smaller"),
            "{message}"
        );
        assert!(of(0, &[host, "embedding.device_memory=3MB"]).unwrap().is_some());
        let message = refused(&[host, "embedding.host_memory=1.3MB"]);
        assert!(
            message.contains("the rows in host memory take 1.22 MiB, and copies of a batch's"),
            "{message}"
        );
        assert!(of(0, &[host, "embedding.host_memory=1.5MB"]).unwrap().is_some());
        // What is estimated of everything else, and a sixteenth, is not for rows.
        let auto = ["embedding.device_memory=auto"];
        assert!(of(10_000_000, &auto).unwrap().is_none());
        let (_, report) = of(4_000_000, &auto).unwrap().unwrap();
        assert!(report.device_bytes + report.landing_bytes < 4_000_000 / 16 * 15);
        assert!(of(1000, &auto).unwrap_err().to_string().contains("the rest of the GPU's memory is"));
        std::fs::remove_file(home.path().join("popularity.bin")).unwrap();
        for sets in [&auto[..], &[host]] {
            let message = refused(sets);
            assert!(message.contains("count them with `rankine inspect "), "{message}");
        }
        assert!(of(0, &[]).unwrap().is_none());
    }
}
