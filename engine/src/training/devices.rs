//! The contents of `devices.json`: the devices of a run, and the tables on them.

use rankine_backend::DeviceMemory;
use rankine_base::build::Build;
use rankine_embedding::Placement;
use rankine_embedding::plan::TierReport;
use rankine_model::ModelSpec;
use rankine_reader::Dataset;
use rankine_topology::Topology;
use serde::{Deserialize, Serialize};

use crate::build;

/// The devices that train a run, and the tables on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDevices {
    /// The version of Rankine.
    pub version: String,
    /// The build of Rankine; absent in the files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    /// The device, in words.
    pub device: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// The memory of each GPU of this process, when training starts.
    pub memory: Vec<DeviceMemory>,
    /// The tables, in the model's order.
    pub tables: Vec<DeviceTable>,
}

/// A table on the devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceTable {
    /// Its name.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// Bytes of its weights.
    pub bytes: u64,
    /// How it is placed on the ranks; `None` with a single rank.
    pub placement: Option<Placement>,
    /// The share of the look-ups that the most frequent 1% of the rows have, by the dataset's statistics of the first
    /// column that looks rows up in it; `None` without statistics, as of raw files.
    pub top_share: Option<f64>,
    /// How many of its rows are in host memory while a GPU trains; absent if it stores all rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_rows: Option<u64>,
}

/// What the devices of this process are, for [`RunDevices::new`].
#[derive(Debug)]
pub(super) struct DevicesInUse<'a> {
    /// In words.
    pub(super) name: String,
    pub(super) topology: Topology,
    pub(super) memory: Vec<DeviceMemory>,
    /// The placement of each table; empty with a single rank.
    pub(super) placements: Vec<Placement>,
    /// How rows are divided between the GPU and host memory.
    pub(super) tier: &'a Option<TierReport>,
}

impl RunDevices {
    /// Reads the skew of the tables from a dataset, if there is one.
    pub(super) fn new(spec: &ModelSpec, dataset: Option<&Dataset>, devices: DevicesInUse<'_>) -> Self {
        let DevicesInUse { name, topology, memory, placements, tier } = devices;
        let table = |(number, table): (usize, &rankine_embedding::TableSpec)| DeviceTable {
            name: table.name.clone(),
            rows: table.rows,
            dim: table.dim,
            bytes: table.rows.saturating_mul((table.dim * table.dtype.bytes()) as u64),
            placement: placements.get(number).copied(),
            top_share: None,
            host_rows: tier.as_ref().map(|tier| tier.tables[number].host_rows).filter(|&rows| rows > 0),
        };
        let mut tables: Vec<_> = spec.tables.iter().enumerate().map(table).collect();
        let statistics = dataset.and_then(|dataset| dataset.statistics().ok()).unwrap_or_default();
        for (feature, statistics) in spec.features.iter().zip(&statistics) {
            let table = &mut tables[feature.table];
            table.top_share.get_or_insert(statistics.top_1_percent_share(table.rows));
        }
        let build = build::here().clone();
        Self {
            version: build.version.clone(),
            build: Some(build),
            device: name,
            ranks: topology.ranks(),
            nodes: topology.nodes(),
            memory,
            tables,
        }
    }
}
