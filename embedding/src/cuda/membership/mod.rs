//! Dynamic tables on a GPU: which id of a batch has which row, and the rows that begin anew.
//!
//! The GPU does what [`Membership::admit`] does, with the same result, before anything else sees the batch: its ids of
//! 64 bits become rows, and everything behind works with rows. This happens while the step before is running, so rows
//! that another id gets begin anew only at the start of the batch's own step ([`DynamicTables::begin_rows`]).
//!
//! Several ranks of a node send each other the ids of their samples ([`DynamicTables::share`]). Each of them then does
//! the same for the ids of all ranks: all have the same memberships, as the CPU's ranks do.

mod columns;
mod shared;
mod table;
mod work;

use std::sync::Arc;

use rankine_cuda::kernels::{self, Eviction, Members, MembershipIndex, NewRow, NewRows, NewRowsOf};
use rankine_cuda::{Buffer, Device, Lane, Peers, PinnedBuffer, Pointer};
use rankine_topology::Rank;

use crate::cuda::error::Result;
use crate::cuda::layout::{Ids, Layout};
use crate::cuda::storage::RowStore;
use crate::cuda::{InitialWeights, blocks};
use crate::membership::{DynamicTableState, FullTable, Membership};
use crate::random::UniformField;
pub use columns::DynamicColumns;
use shared::SharedIds;
use table::DynamicTable;
use work::Work;

/// The dynamic tables of a model on a rank.
#[derive(Debug)]
pub struct DynamicTables {
    tables: Vec<DynamicTable>,
    /// One per table.
    members: Buffer<Members>,
    columns: DynamicColumns,
    /// With several ranks.
    shared: Option<SharedIds>,
    work: Work,
    slots: Vec<SlotRows>,
    /// By table: this rank's shards whose rows begin anew with its rows.
    begun: Buffer<NewRowsOf>,
    /// Where each table's begin, and where the last one's end.
    begins: Buffer<u32>,
    /// `[slot][table]`: 1 and an id if the slot's batch has an id without a row, and must fail.
    full: PinnedBuffer<[u64; 2]>,
    seed: u64,
    /// The last step whose batch was admitted.
    step: u64,
}

/// The rows of a slot's batch that begin anew.
#[derive(Debug)]
struct SlotRows {
    rows: Buffer<NewRow>,
    count: Buffer<u32>,
}

/// A batch whose ids are to be replaced by rows.
#[derive(Debug, Clone, Copy)]
pub struct LongIds {
    /// The ids of dynamic tables, at [`Layout::long_ids_begin`].
    pub ids: Pointer<u64>,
    /// Receives the rows, and has the offsets and the number of samples.
    pub rows: Ids,
}

impl DynamicTables {
    /// Creates the dynamic tables of a layout, without ids, for batches in as many slots; `None` if there are no such
    /// tables. `tracks` says whether changes are recorded for incremental checkpoints. With several ranks, which are
    /// `peers`, this is a collective call.
    ///
    /// # Panics
    /// If the layout has several ranks, but there are no peers; or several nodes.
    ///
    /// # Errors
    /// If there is not enough memory, a batch has too many ids, or a peer does not take part.
    pub fn new(
        device: &Arc<Device>,
        peers: Option<&Peers>,
        layout: &Layout,
        slots: usize,
        weights: InitialWeights,
        tracks: bool,
    ) -> Result<Option<Self>> {
        if layout.dynamic_tables().next().is_none() {
            return Ok(None);
        }
        assert_eq!(peers.map_or(1, Peers::ranks), layout.ranks(), "ranks of one node have peers");
        let _purpose = device.purpose("ids of dynamic tables");
        let mut shards = 0;
        let mut tables = Vec::new();
        for (number, rows) in layout.dynamic_tables() {
            let name = layout.tables[number].name.clone();
            tables.push(DynamicTable::new(device, (number, name), rows, shards, tracks)?);
            shards += rows.shards() as usize;
        }
        let columns = DynamicColumns::new(device, layout)?;
        let shared = peers.map(|peers| SharedIds::new(peers, layout)).transpose()?;
        let look_ups = layout.ranks() * columns.look_ups();
        let rank = peers.map_or(Rank(0), Peers::rank);
        let rows = tables.iter().map(|table| table.rows.table_rows() as usize - 1).sum::<usize>();
        let slot = |_| {
            Ok(SlotRows {
                rows: Buffer::uninitialized(device, look_ups.min(rows))?,
                count: Buffer::filled(device, 1, 0)?,
            })
        };
        let of_tables: Vec<_> =
            tables.iter().map(|table| begun_with(layout, rank, table.number, weights)).collect();
        let mut begins = vec![0];
        for of_table in &of_tables {
            begins.push(begins[begins.len() - 1] + of_table.len() as u32);
        }
        let members: Vec<_> = tables.iter().map(DynamicTable::members).collect();
        Ok(Some(Self {
            members: Buffer::of(device, &members)?,
            columns,
            shared,
            work: Work::new(device, look_ups, shards, tables.len())?,
            slots: (0..slots).map(slot).collect::<Result<_>>()?,
            begun: Buffer::of(device, &of_tables.concat())?,
            begins: Buffer::of(device, &begins)?,
            full: PinnedBuffer::zeroed(device, slots * tables.len())?,
            tables,
            seed: weights.seed,
            step: 0,
        }))
    }

    /// Returns the last step whose batch was admitted.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Enqueues sending this rank's ids of a step's batch to all ranks, if there are several. Before
    /// [`DynamicTables::admit`], all ranks must have done so; and before the next batch is sent, all must have admitted
    /// this one.
    ///
    /// # Safety
    /// The ids must fit the layout; the dynamic tables of all ranks must live until the lane has done it; see
    /// [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn share(&self, lane: &Lane, batch: LongIds) -> Result<()> {
        // SAFETY: the caller vouches for it.
        self.shared.as_ref().map_or(Ok(()), |shared| unsafe { shared.send(lane, batch) })
    }

    /// Enqueues replacing the ids of a step's batch by rows; new ids of all ranks get rows. What was enqueued for the
    /// slot before must be done.
    ///
    /// # Safety
    /// The ids must fit the layout; see [`Lane::launch`]; with several ranks, see [`DynamicTables::share`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn admit(&mut self, lane: &Lane, batch: LongIds, slot: usize, step: u64) -> Result<()> {
        self.step = step;
        let tables = self.tables.len();
        self.full.elements_mut()[slot * tables..][..tables].fill([0; 2]);
        let SlotRows { rows, count } = &self.slots[slot];
        let task = kernels::Membership {
            new_rows: rows.pointer(),
            new_count: count.pointer(),
            full: self.full.device_pointer()?.element(slot * tables),
            admits: 1,
            ..self.task(&self.columns, batch)
        };
        let task = self.shared.as_ref().map_or(task, |shared| shared.task(task));
        // SAFETY: all buffers are this value's and have the lengths that the kernels need; the caller vouches for the
        // batch.
        unsafe {
            for table in &self.tables {
                table.begin_batch(lane)?;
            }
            self.work.admit(lane, task, &self.columns)
        }
    }

    /// Enqueues replacing the ids of a batch by rows. The columns' layout may have another number of samples. No id
    /// gets a row, and ids without one look up the shared row.
    ///
    /// # Safety
    /// As for [`DynamicTables::admit`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub unsafe fn find(&self, lane: &Lane, columns: &DynamicColumns, batch: LongIds) -> Result<()> {
        // SAFETY: as above.
        unsafe { columns.find(lane, self.task(columns, batch)) }
    }

    fn task(&self, columns: &DynamicColumns, batch: LongIds) -> kernels::Membership {
        kernels::Membership {
            tables: self.members.pointer(),
            columns: columns.pointer(),
            long_ids: batch.ids,
            ids: batch.rows.ids,
            offsets: batch.rows.offsets,
            samples: batch.rows.samples,
            step: self.step,
            tables_count: self.tables.len() as u32,
            room: columns.room(),
            columns_count: columns.count(),
            ..self.work.buffers()
        }
    }

    /// Enqueues setting weights and state of the rows of a slot's batch that begin anew, before the batch's step.
    ///
    /// # Safety
    /// The store must have the rows of the layout; see [`Lane::launch`].
    ///
    /// # Errors
    /// If the driver reports an error.
    pub(crate) unsafe fn begin_rows(&self, lane: &Lane, slot: usize, store: &RowStore) -> Result<()> {
        let SlotRows { rows, count } = &self.slots[slot];
        let begin = NewRows {
            rows: store.table.pointer(),
            shards: store.shards.pointer(),
            tables: self.begun.pointer(),
            begins: self.begins.pointer(),
            new_rows: rows.pointer(),
            count: count.pointer(),
            touched: store.touched.as_ref().map_or(Pointer::NULL, Buffer::pointer),
            seed: self.seed,
        };
        // SAFETY: the caller vouches for the store; the rows are numbers of its tables.
        unsafe { lane.launch(&begin, (blocks(lane.device()), 1)) }?;
        Ok(())
    }

    /// Returns why a slot's batch must fail, if a table has no row for one of its ids and the job says so; once the
    /// batch's step is done.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn full_table(&self, lane: &Lane, slot: usize) -> Result<Option<FullTable>> {
        let tables = self.tables.len();
        let full = &self.full.elements()[slot * tables..][..tables];
        let Some(at) = full.iter().position(|&[full, _]| full != 0) else { return Ok(None) };
        let DynamicTableState { table, rows: keys, capacity, .. } = self.tables[at].state(lane)?;
        Ok(Some(FullTable { table, key: full[at][1], keys, capacity }))
    }

    /// Returns how full each table is, once the lane has finished all enqueued work.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn states(&self, lane: &Lane) -> Result<Vec<DynamicTableState>> {
        self.tables.iter().map(|table| table.state(lane)).collect()
    }

    /// Copies the memberships, with the numbers of their tables, once the lane has finished all enqueued work.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn read(&self, lane: &Lane) -> Result<Vec<(usize, Membership)>> {
        self.tables.iter().map(|table| Ok((table.number, table.read(lane, self.step)?))).collect()
    }

    /// Replaces memberships, given with the numbers of their tables, once the lane has finished all enqueued work. The
    /// batches of steps up to `step` were admitted.
    ///
    /// # Panics
    /// If one is of a table with other rows.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn write(&mut self, lane: &Lane, memberships: &[(usize, Membership)], step: u64) -> Result<()> {
        self.step = step;
        for (number, membership) in memberships {
            let table = self.tables.iter_mut().find(|table| table.number == *number);
            table.expect("the table is dynamic").write(lane, membership)?;
        }
        let index = MembershipIndex(kernels::Membership {
            tables: self.members.pointer(),
            tables_count: self.tables.len() as u32,
            ..self.work.buffers()
        });
        // SAFETY: the tables are this value's.
        unsafe { lane.launch(&index, (blocks(lane.device()), 1)) }?;
        Ok(lane.synchronize()?)
    }

    /// Records from now on what is changed, once the lane has finished all enqueued work.
    ///
    /// # Panics
    /// If this was created without tracking.
    ///
    /// # Errors
    /// If the lane's work failed.
    pub fn begin_tracking(&mut self, lane: &Lane) -> Result<()> {
        self.tables.iter_mut().try_for_each(|table| table.begin_tracking(lane))
    }
}

/// Returns the shards of a rank whose rows begin anew with a dynamic table's rows: of that table, and of others that
/// its columns look up.
fn begun_with(layout: &Layout, rank: Rank, number: usize, weights: InitialWeights) -> Vec<NewRowsOf> {
    let columns = layout.id_columns(number);
    let is_begun = |table: usize| !layout.id_columns(table).is_disjoint(&columns);
    let shards = layout.parts.iter().zip(layout.bounds(&layout.parts, weights)).enumerate();
    let own = shards.filter(|(_, (part, _))| is_begun(part.table) && layout.part_rows(rank, part) > 0);
    let begun = own.map(|(shard, (part, bound))| NewRowsOf {
        shard: shard as u32,
        stream: UniformField::of_keys(weights.seed, part.table as u32).stream(),
        bound,
        reserved: 0,
    });
    begun.collect()
}

impl From<crate::membership::Eviction> for Eviction {
    fn from(eviction: crate::membership::Eviction) -> Self {
        use crate::membership::Eviction as Rule;
        match eviction {
            Rule::None { .. } => Self::Keep,
            Rule::Lru => Self::Lru,
            Rule::Lfu => Self::Lfu,
            Rule::Ttl { .. } => Self::Ttl,
        }
    }
}
