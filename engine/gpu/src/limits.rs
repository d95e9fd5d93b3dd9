//! What GPUs do not support of a job. Training, `rankine check` and `rankine plan` all ask [`refusals`], with GPUs and
//! without, so that none of them accepts what another one refuses.

use rankine_embedding::TableSpec;
use rankine_embedding::membership::{Eviction, IfFull};
use rankine_job::{Conflict, Exchange, Job, Optimizer, Placement, Tier};
use rankine_model::ModelSpec;

use crate::refused_by_kernels;

/// The most GPUs of a node: the kernels have one address per GPU. The number of nodes has no limit of its own.
pub(crate) const GPUS_PER_NODE_MAX: usize = 8;
/// The most heads of a model.
pub(crate) const HEADS_MAX: usize = 64;
/// The most features, with those of first-order terms; each shard of a table's columns counts.
pub(crate) const FEATURES_MAX: usize = 512;
/// The most elements of a row.
pub(crate) const DIM_MAX: usize = 1024;
/// Rows of a rank are numbered in whole groups of this many.
pub(crate) const GROUP_ROWS: u64 = 65536;
/// Of the memory that training leaves free, one part of this many is for scoring more samples at a time than it trains.
pub const SCORING_PARTS: u64 = 8;
/// The key of what ranks exchange for all tables.
const EXCHANGE: &str = "embedding.exchange";
/// A way out of every limit.
pub(crate) const ON_CPU: &str = "set device.kind to \"cpu\" for this job";

/// Returns every setting of a job that GPUs do not support, each with what they support. A build without CUDA does not
/// know which layers fit the kernels.
pub fn refusals(job: &Job, spec: &ModelSpec) -> Vec<Conflict> {
    let mut found = Vec::new();
    let mut refuse = |key: String, message: String| found.push(Conflict::new(key, message));
    let ranks = job.device.ranks.get() as usize;
    // Nodes that training counts may be as many as ranks.
    let each = job.device.nodes.count().map_or(1, |nodes| ranks.div_ceil(nodes.get() as usize));
    if each > GPUS_PER_NODE_MAX {
        let why = format!("at most {GPUS_PER_NODE_MAX} GPUs per node are supported, not {each}: {ON_CPU}");
        refuse("device.ranks".into(), why);
    }
    if let Some(key) = job.host_memory_key()
        && ranks > 1
    {
        if job.device.nodes.count().is_some_and(|nodes| nodes.get() > 1) {
            let why = "rows in host memory are supported on one node only: remove embedding.device_memory and tier = \
            \"host\", or set device.nodes to 1";
            refuse(key, why.into());
        }
        for (key, table) in not_by_rows(job, spec) {
            let why = format!(
                "rows in host memory are not supported for tables that are replicated or column-wise, or whose owners \
                 pool: set tier = \"device\" for table {table}, or another placement and exchange = \"rows\""
            );
            refuse(key, why);
        }
    }
    if ranks > 1 {
        if job.device.tune {
            let why = "device.tune is not supported on several GPUs, which must all use the same algorithms: remove \
            it, or set device.tuning to the tuning.json of a run on one GPU with the batch size of one rank";
            refuse("device.tune".into(), why.into());
        }
        for (key, table) in pooled_beyond(job, spec) {
            let why = format!(
                "exchange = \"pooled\" is not supported on GPUs for table {table}, which is hybrid, or column-wise \
                 with rowwise-adagrad: use exchange = \"rows\" or \"auto\" for it, or {ON_CPU}"
            );
            refuse(key, why);
        }
        for (key, table) in attended_beyond(job, spec) {
            let why = format!(
                "exchange = \"pooled\" is not supported on GPUs for table {table}, whose rows attention reads one by \
                 one: use exchange = \"rows\" or \"auto\" for it, or {ON_CPU}"
            );
            refuse(key, why);
        }
    }
    found.extend(dynamic_beyond(job, spec, ranks));
    let mut refuse = |key: String, message: String| found.push(Conflict::new(key, message));
    let heads = spec.heads.len();
    if heads > HEADS_MAX {
        refuse(
            "head".into(),
            format!("GPU training supports at most {HEADS_MAX} heads, not {heads}: {ON_CPU}"),
        );
    }
    found.extend(tables_beyond(spec, ranks as u64));
    found.extend(refused_by_kernels(job, spec));
    found
}

/// Refuses more features, rows or elements than the kernels can number if rows take turns among the ranks. Another
/// placement may need more numbers; then the error comes when training starts.
fn tables_beyond(spec: &ModelSpec, ranks: u64) -> Vec<Conflict> {
    let mut found = Vec::new();
    let mut refuse = |key: &str, message: String| found.push(Conflict::new(key, message));
    let wide = spec.wide_tables();
    let features = spec.features.len() + wide.len();
    if features > FEATURES_MAX {
        let what = if spec.wide { "features and first-order terms" } else { "features" };
        refuse("model.kind", format!("GPUs support at most {FEATURES_MAX} {what}, not {features}: {ON_CPU}"));
    }
    let dim = spec.tables.iter().map(|table| table.dim).max().unwrap_or(0);
    if dim > DIM_MAX {
        let what = format!("GPUs support at most {DIM_MAX} elements per row, not {dim}: {ON_CPU}");
        refuse("model.embedding_dim", what);
    }
    // Every rank numbers its rows alike, in whole groups.
    let of_rank = |table: &TableSpec| table.rows.div_ceil(ranks);
    let each = spec.tables.iter().map(of_rank).chain(wide.iter().map(of_rank));
    let each = each.fold(0, u64::saturating_add).checked_next_multiple_of(GROUP_ROWS);
    let rows = each.and_then(|each| each.checked_mul(ranks)).unwrap_or(u64::MAX);
    if rows > u64::from(u32::MAX) {
        refuse("model.kind", format!("GPUs support at most {} rows, not {rows}: {ON_CPU}", u32::MAX));
    }
    found
}

/// Whether a job says that owners pool the rows of a dynamic table.
fn pools_dynamic(job: &Job) -> bool {
    let mut dynamic = job.tables.iter().filter(|table| table.rows.is_some());
    dynamic.any(|table| table.exchange.unwrap_or(job.embedding.exchange) == Exchange::Pooled)
}

/// Refuses dynamic tables where GPUs do not support them.
fn dynamic_beyond(job: &Job, spec: &ModelSpec, ranks: usize) -> Vec<Conflict> {
    let nodes = job.device.nodes.count().map_or(1, |nodes| nodes.get());
    let why = if ranks > 1 && nodes > 1 {
        "dynamic tables are supported on one node only: set device.nodes to 1,"
    } else if job.host_memory_key().is_some() {
        "dynamic tables are not supported together with rows in host memory: remove embedding.device_memory and tier \
         = \"host\","
    } else if spec
        .tables
        .iter()
        .any(|table| table.dynamic.is_some_and(|rows| rows.evict == Eviction::None { if_full: IfFull::Skip }))
    {
        "GPUs do not remove ids from their bags: set another evict than \"none\", or another ids_out_of_range than \
         \"skip\","
    } else if ranks > 1 && pools_dynamic(job) {
        "owners do not pool its rows on GPUs: use exchange = \"rows\" or \"auto\" for it,"
    } else {
        return Vec::new();
    };
    job.dynamic_conflicts(|table| format!("table {table} is dynamic: {why} or {ON_CPU}"))
}

/// Returns the tables that a job says are pooled, but whose rows attention reads: the key that says so, and the tables'
/// names.
fn attended_beyond(job: &Job, spec: &ModelSpec) -> Vec<(String, String)> {
    let attended = |column: &String| {
        let feature = spec.features.iter().position(|feature| feature.column == *column);
        feature.is_some_and(|feature| spec.attention_of(feature).is_some())
    };
    let (mut found, mut own) = (Vec::new(), Vec::new());
    for (number, table) in job.tables.iter().enumerate() {
        own.extend(&table.columns);
        let exchange = table.exchange.unwrap_or(job.embedding.exchange);
        if exchange == Exchange::Pooled && table.columns.iter().any(attended) {
            let key =
                if table.exchange.is_some() { format!("table.{number}.exchange") } else { EXCHANGE.into() };
            found.push((key, format!("`{}`", table.columns.join(", "))));
        }
    }
    let mut others =
        spec.features.iter().map(|feature| &feature.column).filter(|column| !own.contains(column));
    if job.embedding.exchange == Exchange::Pooled
        && let Some(column) = others.find(|column| attended(column))
    {
        found.push((EXCHANGE.into(), format!("`{column}`")));
    }
    found
}

/// Returns the tables that may have rows in host memory, but are placed so that they cannot: the key that says so, and
/// the tables' names.
fn not_by_rows(job: &Job, spec: &ModelSpec) -> Vec<(String, String)> {
    let cannot = |placement: Placement, exchange: Exchange| {
        matches!(placement, Placement::Replicated | Placement::ColumnWise) || exchange == Exchange::Pooled
    };
    let (placement, exchange) = (job.embedding.placement, job.embedding.exchange);
    let mut found = Vec::new();
    if cannot(placement, exchange) && !spec.tables.is_empty() {
        found.push(("embedding.placement".into(), format!("`{}` and others", spec.tables[0].name)));
    }
    for (number, table) in job.tables.iter().enumerate() {
        let own = (table.placement.unwrap_or(placement), table.exchange.unwrap_or(exchange));
        if table.tier != Tier::Device
            && (table.placement.is_some() || table.exchange.is_some())
            && cannot(own.0, own.1)
        {
            found.push((format!("table.{number}.placement"), format!("`{}`", table.columns.join("+"))));
        }
    }
    found
}

/// Returns the pooled tables that a job places hybrid, or column-wise with row-wise Adagrad: the key that says so, and
/// the tables' names.
fn pooled_beyond(job: &Job, spec: &ModelSpec) -> Vec<(String, String)> {
    let beyond = |placement: Placement, exchange: Exchange, rule: &Optimizer| {
        let rowwise = matches!(rule, Optimizer::RowwiseAdagrad(_));
        let by_columns = placement == Placement::ColumnWise && rowwise;
        exchange == Exchange::Pooled && (placement == Placement::Hybrid || by_columns)
    };
    let (placement, exchange) = (job.embedding.placement, job.embedding.exchange);
    let mut found = Vec::new();
    if beyond(placement, exchange, &job.optimizer.sparse) && !spec.tables.is_empty() {
        found.push((EXCHANGE.into(), format!("`{}` and others", spec.tables[0].name)));
    }
    for (number, table) in job.tables.iter().enumerate() {
        let own = (table.placement.unwrap_or(placement), table.exchange.unwrap_or(exchange));
        let rule = table.optimizer.as_ref().unwrap_or(&job.optimizer.sparse);
        let says = table.placement.is_some() || table.exchange.is_some() || table.optimizer.is_some();
        if says && beyond(own.0, own.1, rule) {
            found.push((format!("table.{number}.exchange"), format!("`{}`", table.columns.join(", "))));
        }
    }
    found
}
