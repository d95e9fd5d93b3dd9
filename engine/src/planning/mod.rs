//! Plans which ranks store a job's tables, from how often their rows are looked up.
//!
//! `statistics` counts look-ups, `rest` estimates the cost of the dense part, `machine` reads the rates of a machine,
//! `sweep` plans for several numbers of nodes, and `tier` divides rows between a GPU and host memory. The
//! planner itself is [`rankine_embedding::plan`]; this module prepares its input from jobs, models and datasets. The
//! same job and dataset give the same plan.

use std::path::Path;

use rankine_base::document::Conflict;
use rankine_base::system;
use rankine_embedding::frequency::{BagLengths, CountClass, FrequencyProfile, TableFrequencies};
use rankine_embedding::plan::{
    HottestInput, HottestRows, Machine, PlanError, PlanInput, PlanOutcome, RowBudget, TableInput,
};
use rankine_embedding::{EmbeddingPlan, Exchange, Optimizer, Placement, TableSpec};
use rankine_job as job;
use rankine_job::Job;
use rankine_reader::Dataset;
use rankine_topology::{Topology, TopologyError};

use rankine_model::Model;

pub(crate) mod machine;
mod rest;
mod statistics;
mod sweep;
mod tier;

pub use machine::{MachineError, parse_machine, read_machine, write_machine};
pub use rest::rest;
pub use statistics::{ColumnStatistics, Origin, Source, Statistics, frequencies_of_all_rows, statistics};
pub use sweep::{Sweep, SweepBatch, SweepPoint, sweep};
pub(crate) use tier::SMALLER_TABLES;
pub use tier::{TierError, Tiers};

/// The input of the planner for one model, except for the ranks, the machine and the batch size.
#[derive(Debug)]
pub struct Planning {
    model: Model,
    /// The model's tables, then the tables of first-order terms.
    tables: Vec<(TableSpec, Optimizer)>,
    /// The features that look each of them up.
    features: Vec<Vec<usize>>,
    /// What the job requires of each table's placement.
    requests: Vec<PlacementRequest>,
    lengths: Vec<BagLengths>,
    profiles: Vec<FrequencyProfile>,
    /// The rows of the table of each profile, and the features that look them up.
    profiled: Vec<(u64, Vec<usize>)>,
    /// The number of each table's profile. If a column shares its table with no other, its first-order terms have the
    /// profile of that table.
    profile_of: Vec<usize>,
    sharded_dense_update: bool,
    /// How many rows of each table a rank has memory for, if host memory has some of them.
    device_rows: Vec<Option<u64>>,
}

/// An error while placing the tables of a training.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The dataset cannot be read.
    #[error(transparent)]
    Data(#[from] rankine_base::Error),
    /// The number of ranks or nodes is impossible.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The ranks have too little memory.
    #[error(transparent)]
    Memory(#[from] PlanError),
}

/// What a job requires of a table's placement. The planner chooses what is `None`.
#[derive(Debug, Clone, Copy)]
struct PlacementRequest {
    placement: Option<Placement>,
    exchange: Option<Exchange>,
    frequent_rows: Option<u64>,
}

impl PlacementRequest {
    /// Returns the request of a dynamic table: which of its rows are frequent is not known, so that it is not hybrid.
    fn of_dynamic_rows(self) -> Self {
        let placement = self.placement.filter(|&placement| placement != Placement::Hybrid);
        Self { placement: placement.or(Some(Placement::RowWise)), frequent_rows: None, ..self }
    }
}

impl Planning {
    /// Prepares planning for a job's model from the statistics of its columns.
    pub fn new(job: &Job, model: &Model, statistics: Statistics) -> Self {
        let (spec, tables) = (&model.spec, model.all_tables());
        let of_table = |table: usize| -> Vec<usize> {
            (0..spec.features.len()).filter(|&feature| spec.features[feature].table == table).collect()
        };
        let mut features: Vec<_> = (0..spec.tables.len()).map(of_table).collect();
        let of_columns = spec.features.iter().zip(statistics.columns);
        let (frequencies, lengths): (Vec<_>, Vec<_>) = of_columns
            .map(|(feature, ColumnStatistics { frequencies, lengths })| {
                match spec.tables[feature.table].dynamic {
                    Some(rows) => (of_dynamic_rows(frequencies, rows.table_rows()), lengths),
                    None => (frequencies, lengths),
                }
            })
            .unzip();
        let mut profiled: Vec<_> =
            std::iter::zip(&spec.tables, &features).map(|(table, of)| (table.rows, of.clone())).collect();
        let mut profile_of: Vec<_> = (0..profiled.len()).collect();
        for (number, (table, _)) in tables[spec.tables.len()..].iter().enumerate() {
            let shared = spec.features[number].table;
            if features[shared].len() == 1 {
                profile_of.push(shared);
            } else {
                profile_of.push(profiled.len());
                profiled.push((table.rows, vec![number]));
            }
            features.push(vec![number]);
        }
        let own = |number: usize| {
            let of_spec = features[..spec.tables.len()].get(number)?;
            Some(job.table_of(&spec.features[*of_spec.first()?].column)?.1)
        };
        // Attention reads rows one by one, so owners have nothing to pool.
        let is_attended = |number: &usize| spec.attention_of(*number).is_some();
        let rows_only =
            |number: usize| number < spec.tables.len() && features[number].iter().any(is_attended);
        let requests = (0..tables.len()).map(|number| {
            let own = own(number);
            let placement = own.and_then(|own| own.placement).unwrap_or(job.embedding.placement);
            let exchange = own.and_then(|own| own.exchange).unwrap_or(job.embedding.exchange);
            let frequent_rows = own.and_then(|own| own.frequent_rows).or(job.embedding.frequent_rows);
            let request = PlacementRequest {
                placement: placement.chosen(),
                exchange: exchange.chosen().or(rows_only(number).then_some(Exchange::Rows)),
                frequent_rows: frequent_rows.map(job::Count::get),
            };
            let table = number.checked_sub(spec.tables.len()).map(|column| spec.features[column].table);
            if spec.tables[table.unwrap_or(number)].dynamic.is_none() {
                return request;
            }
            // On GPUs, owners do not pool them.
            let exchange = (job.device.kind != job::DeviceKind::Cpu).then_some(Exchange::Rows);
            let request = request.of_dynamic_rows();
            PlacementRequest { exchange: request.exchange.or(exchange), ..request }
        });
        Self {
            requests: requests.collect(),
            device_rows: vec![None; tables.len()],
            model: model.clone(),
            tables,
            features,
            lengths,
            profiles: profiles(&profiled, &frequencies),
            profiled,
            profile_of,
            sharded_dense_update: job.device.dense_update == job::DenseUpdate::Sharded,
        }
    }

    /// Makes ranks store some of their rows, instead of all. Tables with rows in host memory are hybrid, and their rows
    /// are exchanged, unless the job says something else.
    pub fn with_tiers(mut self, tiers: &Tiers) -> Self {
        self.device_rows = tiers.device_rows().collect();
        self
    }

    /// Plans for the ranks of a topology on a machine. `batch_size` counts the samples over all ranks.
    ///
    /// # Errors
    /// [`PlanError`] if the model does not fit into memory.
    pub fn plan(
        &self,
        topology: Topology,
        machine: &Machine,
        batch_size: u64,
    ) -> Result<PlanOutcome, PlanError> {
        let is_weighted = |feature: usize| self.model.spec.features[feature].weighted;
        let table = |number: usize| {
            let (spec, optimizer) = &self.tables[number];
            let PlacementRequest { mut placement, mut exchange, frequent_rows } = self.requests[number];
            if topology.ranks() > 1 && self.device_rows[number].is_some() {
                placement = placement.or(Some(Placement::Hybrid));
                exchange = exchange.or(Some(Exchange::Rows));
            }
            TableInput {
                spec,
                rule: optimizer.rule,
                features: self.features[number].iter().map(|&feature| &self.lengths[feature]).collect(),
                weighted: self.features[number].iter().any(|&feature| is_weighted(feature)),
                profile: &self.profiles[self.profile_of[number]],
                placement,
                exchange,
                frequent_rows,
                device_rows: self.device_rows[number],
            }
        };
        let ids = self.lengths.iter().enumerate();
        let id_bytes = ids.map(|(feature, bags)| bags.mean() * rest::id_bytes(is_weighted(feature))).sum();
        let rest = rest(&self.model, id_bytes, batch_size, topology, machine, self.sharded_dense_update);
        let tables = (0..self.tables.len()).map(table).collect();
        rankine_embedding::plan::plan(&PlanInput { tables, batch_size, topology, machine, rest })
    }

    /// Returns, for each budget of memory, the hottest rows over all tables, how many look-ups they serve and how many
    /// rows a batch needs besides. `all_rows` has the frequencies of all rows of each column's table, if they are known
    /// better than those with which the planning was made.
    pub fn hottest(
        &self,
        all_rows: Option<&[TableFrequencies]>,
        machine: &Machine,
        batch_size: u64,
        budgets: &[RowBudget],
    ) -> Vec<HottestRows> {
        let of_all_rows = all_rows.map(|frequencies| profiles(&self.profiled, frequencies));
        let profiles = of_all_rows.as_ref().unwrap_or(&self.profiles);
        let tables: Vec<_> = std::iter::zip(&self.tables, &self.profile_of)
            .map(|((spec, optimizer), &profile)| HottestInput {
                spec,
                rule: optimizer.rule,
                profile: &profiles[profile],
            })
            .collect();
        rankine_embedding::plan::hottest(&tables, machine, batch_size, budgets)
    }
}

/// Returns how often rows of a dynamic table are looked up, from the frequencies of the ids: any row may have any of
/// them.
fn of_dynamic_rows(frequencies: TableFrequencies, table_rows: u64) -> TableFrequencies {
    let TableFrequencies { samples, lookups, distinct_rows, head, tail } = frequencies;
    let head = head.into_iter().map(|(_, lookups)| CountClass { rows: 1, lookups });
    let mut left = table_rows;
    let classes = head.chain(tail).filter_map(|class| {
        let rows = class.rows.min(left);
        left -= rows;
        // Ids beyond the table's rows share one.
        (rows > 0).then_some(CountClass { rows, lookups: class.lookups / class.rows.max(1) * rows })
    });
    let tail: Vec<_> = classes.collect();
    TableFrequencies {
        samples,
        lookups,
        distinct_rows: distinct_rows.min(table_rows),
        head: Vec::new(),
        tail,
    }
}

/// Returns the profile of each table, given its rows and features and the frequencies of each feature.
fn profiles(profiled: &[(u64, Vec<usize>)], frequencies: &[TableFrequencies]) -> Vec<FrequencyProfile> {
    let profile = |(rows, features): &(u64, Vec<usize>)| {
        let of_features = features.iter().map(|&feature| frequencies[feature].clone());
        FrequencyProfile::new(*rows, &TableFrequencies::merged(of_features))
    };
    profiled.iter().map(profile).collect()
}

/// Reads the machine that a job names in `device.machine`.
///
/// # Errors
/// A conflict at `device.machine` if the file cannot be read or is not valid.
pub fn machine_of_job(path: &Path, memory_bytes: u64, job: &Job) -> Result<Machine, Conflict> {
    read_machine(&path.to_string_lossy(), memory_bytes, job.device.precision_on_gpus())
        .map_err(|error| Conflict::new("device.machine", error.to_string()))
}

/// Plans which ranks of a machine store the tables of a training, some of whose rows may be in host memory. The plan
/// has one entry per table of [`Model::all_tables`].
///
/// # Errors
/// See [`PlacementError`].
pub fn plan(
    job: &Job,
    model: &Model,
    dataset: &Dataset,
    (machine, tiers): (&Machine, Option<&Tiers>),
) -> Result<EmbeddingPlan, PlacementError> {
    let topology = job.topology()?;
    if topology.ranks() == 1 {
        let tables: Vec<_> = model.all_tables().into_iter().map(|(table, _)| table).collect();
        return Ok(EmbeddingPlan::replicated(topology, &tables));
    }
    let statistics = statistics(job, &Source::Dataset(dataset))?;
    let batch_size = u64::from(job.train.batch_size.get());
    let planning = tiers.into_iter().fold(Planning::new(job, model, statistics), Planning::with_tiers);
    Ok(planning.plan(topology, machine, batch_size)?.plan)
}

/// Returns the bytes of host memory per rank if all ranks are threads of one process on this machine. It is a share of
/// all memory, not of what is free now: a plan must not depend on what else runs.
pub fn memory_of_a_thread_rank(topology: Topology) -> u64 {
    let memory = system::memory();
    let bytes = memory
        .map_or(u64::MAX, |memory| memory.cgroup_limit_bytes.unwrap_or(u64::MAX).min(memory.total_bytes));
    bytes / topology.ranks() as u64
}

#[cfg(test)]
mod tests {
    use rankine_reader::generate::Shape;
    use rankine_reader::schema::Pooling;

    use super::*;
    use crate::training::translate;

    const JOB: &str = "
        name = \"planned\"
        data.dir = \"d\"
        model = { kind = \"wide-deep\", embedding_dim = 4, bottom_mlp = [], top_mlp = [5] }
        optimizer.dense = { kind = \"sgd\", learning_rate = 1 }
        optimizer.sparse = { kind = \"sgd\", learning_rate = 1 }
        train.batch_size = 8
        embedding = { placement = \"row-wise\", exchange = \"pooled\", frequent_rows = 9 }
        table = [
            { columns = [\"C1\", \"C3\"], placement = \"hybrid\", exchange = \"rows\", frequent_rows = 3 },
            { columns = [\"C4\"], placement = \"auto\", exchange = \"auto\" },
        ]
    ";

    fn planning() -> Planning {
        let job = Job::from_toml("job.toml", JOB, &[""; 0]).unwrap();
        let (name, rows, pooling) = ("four".into(), vec![30, 20, 30, 10], Pooling::Sum);
        let (hotness, sequences) = (Vec::new(), Vec::new());
        let shape = Shape { name, dense: 0, rows, hotness, ragged: false, pooling, sequences, churn: None };
        let schema = shape.schema(None);
        let model = translate(&job, &schema).unwrap();
        let statistics = statistics(&job, &Source::Law { schema: &schema, alpha: 1.2 }).unwrap();
        assert_eq!(statistics.origin, Origin::Law { alpha: 1.2 });
        Planning::new(&job, &model, statistics)
    }

    #[test]
    fn options_of_a_table_override_those_of_all_tables() {
        let planning = planning();
        let tables: Vec<_> =
            planning.tables.iter().map(|(table, _)| (table.name.as_str(), table.rows)).collect();
        let first_order = [("C1", 30), ("C2", 20), ("C3", 30), ("C4", 10)];
        assert_eq!(tables, [&[("C1+C3", 30), ("C2", 20), ("C4", 10)][..], &first_order].concat());
        assert_eq!(planning.features, [vec![0, 2], vec![1], vec![3], vec![0], vec![1], vec![2], vec![3]]);
        let request = |own: &PlacementRequest| (own.placement, own.exchange, own.frequent_rows);
        let requests: Vec<_> = planning.requests.iter().map(request).collect();
        let general = (Some(Placement::RowWise), Some(Exchange::Pooled), Some(9));
        let own = (Some(Placement::Hybrid), Some(Exchange::Rows), Some(3));
        // With `auto` the planner chooses. Options of single tables do not apply to first-order terms.
        assert_eq!(requests, [own, general, (None, None, Some(9)), general, general, general, general]);
        // First-order terms of columns that share a table have their own frequencies.
        assert_eq!(planning.profile_of, [0, 1, 2, 3, 1, 4, 2]);
        let of_sample: Vec<_> = planning.profiles.iter().map(FrequencyProfile::lookups_per_sample).collect();
        for (found, expected) in of_sample.iter().zip([2.0, 1.0, 1.0, 1.0, 1.0]) {
            assert!((found - expected).abs() < 1e-9, "{of_sample:?}");
        }
    }

    #[test]
    fn ranks_of_one_process_share_the_memory_of_the_machine() {
        let of = |ranks, nodes| memory_of_a_thread_rank(Topology::new(ranks, nodes).unwrap());
        let memory = system::memory().unwrap();
        assert_eq!(of(1, 1), memory.cgroup_limit_bytes.unwrap_or(memory.total_bytes));
        assert_eq!((of(4, 1), of(4, 2)), (of(1, 1) / 4, of(1, 1) / 4));
    }

    #[test]
    fn an_update_is_sharded_if_the_job_says_so() {
        let planning = planning();
        assert!(!planning.sharded_dense_update);
        let planned = planning.plan(Topology::new(2, 1).unwrap(), &Machine::cpu(1 << 30), 8).unwrap();
        assert_eq!((planned.report.ranks, planned.report.batch_size), (2, 8));
        assert!(planned.report.tables.iter().skip(1).all(|table| table.placement != Placement::Hybrid));
    }
}
