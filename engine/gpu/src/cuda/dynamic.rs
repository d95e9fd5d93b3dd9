//! The dynamic tables of a rank: ids become rows as soon as their batch is on the GPU, and everything behind works with
//! rows.

use rankine_cuda::Lane;
use rankine_embedding::Membership;
use rankine_embedding::cuda::{DynamicColumns, DynamicTables, InitialWeights, Result};
use rankine_embedding::membership::{DynamicTableState, FullTable};

use super::context::RankContext;
use super::input::{InputLanes, InputSlot};
use super::setup::ModelSetup;
use super::tables::{ScoredTables, Tables};

/// The dynamic tables of a rank, if its model has some.
#[derive(Debug)]
pub(super) struct RankDynamic {
    tables: Option<ModelDynamic>,
}

#[derive(Debug)]
struct ModelDynamic {
    tables: DynamicTables,
    /// The columns of batches that are scored.
    scored: DynamicColumns,
}

impl RankDynamic {
    /// Creates them without ids.
    pub(super) fn new(
        context: &RankContext,
        setup: &ModelSetup,
        tables: &Tables,
        scored: &ScoredTables,
    ) -> Result<Self> {
        let (device, layout) = (&context.device, tables.layout());
        let weights = InitialWeights { seed: setup.seed, drawn: setup.model.spec.tables.len() };
        let peers = context.links.as_ref().map(|links| links.cluster.peers());
        let tracks = setup.tracks_updates;
        let dynamic = DynamicTables::new(device, peers, layout, tables.slots(), weights, tracks)?;
        let tables = dynamic.map(|tables| {
            Ok::<_, rankine_embedding::cuda::Error>(ModelDynamic {
                tables,
                scored: DynamicColumns::new(device, scored.layout())?,
            })
        });
        Ok(Self { tables: tables.transpose()? })
    }

    /// Whether there are any.
    pub(super) fn exist(&self) -> bool {
        self.tables.is_some()
    }

    /// Returns the last step whose batch was admitted.
    pub(super) fn step(&self) -> u64 {
        self.tables.as_ref().map_or(0, |dynamic| dynamic.tables.step())
    }

    /// Enqueues replacing the ids of the batch of a training step by rows, in a slot to which it was sent. New ids get
    /// rows. With several ranks, the lane of copies must be that of routes, whose barrier is used.
    pub(super) fn admit(
        &mut self,
        lanes: InputLanes<'_>,
        (rows, input): (&Tables, &InputSlot),
        slot: usize,
        step: u64,
    ) -> Result<()> {
        let Some(ModelDynamic { tables, .. }) = &mut self.tables else { return Ok(()) };
        // SAFETY: the slot has ids of the layout of the tables, and lives as long as they do. The batch before was
        // admitted at all ranks when they met to build its route.
        input.find_rows(lanes, |lane, batch| unsafe {
            tables.share(lane, batch)?;
            if let Tables::Node(rows) = rows {
                rows.meet_between_routes(lane)?;
            }
            tables.admit(lane, batch, slot, step)
        })
    }

    /// The same for a batch that is scored; no id gets a row.
    pub(super) fn find(&self, lanes: InputLanes<'_>, input: &InputSlot) -> Result<()> {
        let Some(ModelDynamic { tables, scored }) = &self.tables else { return Ok(()) };
        // SAFETY: the slot has ids of the layout of batches that are scored, and lives as long as the tables do.
        input.find_rows(lanes, |lane, batch| unsafe { tables.find(lane, scored, batch) })
    }

    /// Enqueues setting the rows that another id got in a slot's batch to their initial weights and state.
    ///
    /// # Safety
    /// All of it must live until the lane has done it; see [`Lane::launch`].
    pub(super) unsafe fn begin_rows(&self, lane: &Lane, rows: &Tables, slot: usize) -> Result<()> {
        match (&self.tables, rows) {
            // SAFETY: both are of the model; the caller vouches for the rest.
            (Some(dynamic), Tables::Local(rows)) => unsafe { rows.begin_rows(lane, &dynamic.tables, slot) },
            // SAFETY: as above.
            (Some(dynamic), Tables::Node(rows)) => unsafe { rows.begin_rows(lane, &dynamic.tables, slot) },
            (None, _) | (Some(_), Tables::Tiered(_)) => Ok(()),
        }
    }

    /// Returns why the step of a slot's batch fails, if a table has no row for one of its ids; once it is done.
    pub(super) fn full_table(&self, lane: &Lane, slot: usize) -> Result<Option<FullTable>> {
        self.tables.as_ref().map_or(Ok(None), |dynamic| dynamic.tables.full_table(lane, slot))
    }

    /// Returns how full each table is.
    pub(super) fn states(&self, lane: &Lane) -> Result<Vec<DynamicTableState>> {
        self.tables.as_ref().map_or(Ok(Vec::new()), |dynamic| dynamic.tables.states(lane))
    }

    /// Copies the memberships, with the numbers of their tables.
    pub(super) fn memberships(&self, lane: &Lane) -> Result<Vec<(usize, Membership)>> {
        self.tables.as_ref().map_or(Ok(Vec::new()), |dynamic| dynamic.tables.read(lane))
    }

    /// Replaces them, after `steps` steps.
    pub(super) fn restore(
        &mut self,
        lane: &Lane,
        memberships: &[(usize, Membership)],
        steps: u64,
    ) -> Result<()> {
        self.tables.as_mut().map_or(Ok(()), |dynamic| dynamic.tables.write(lane, memberships, steps))
    }

    /// Records from now on what is changed.
    pub(super) fn begin_tracking(&mut self, lane: &Lane) -> Result<()> {
        self.tables.as_mut().map_or(Ok(()), |dynamic| dynamic.tables.begin_tracking(lane))
    }
}
