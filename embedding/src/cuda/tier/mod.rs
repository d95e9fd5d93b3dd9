//! Tables of which GPUs store the hot rows, and host memory the others; see [`crate::tier`].
//!
//! A batch's route lists the distinct rows that are looked up on a GPU by their numbers among all of its rows, so that
//! sums are taken in the same order as if it stored all of them. [`DeviceTier::locate`], which follows, finds where
//! each row is stored. Look-ups and updates get these places instead, and find hot rows and rows of a landing region
//! alike.
//!
//! There is a landing region per batch slot. While the step of a batch runs, the rows of the next one are copied into
//! its region, and the rows of the one before are copied back ([`Carrier`]).

mod carrier;
mod divided_part;
mod refresh;

use std::sync::Arc;

use rankine_cuda::kernels::{
    Feature, KeySet, Shard, Tier, TierEntries, TierFind, TierForward, TierIds, TierLocate, TierPart,
};
use rankine_cuda::{Buffer, Device, Lane, PinnedBuffer, Pointer};
use rankine_topology::Rank;

use crate::cuda::error::{Error, Result};
use crate::cuda::layout::Layout;
use crate::cuda::layout::parts::{Holder, Part};
use crate::cuda::{InitialWeights, POISON, blocks};
use crate::placement::Owner;
use crate::random::UniformField;
use crate::tier::{ColdRows, HotRows, TierPlan, TierTraffic};
use carrier::Carrier;
pub(crate) use divided_part::DividedPart;
use divided_part::Place;
use refresh::Refresh;

/// Blocks per part of kernels that go through its cold rows.
const PART_BLOCKS: u32 = 32;
/// If the rows of a table take turns among ranks, each has room for its share of a batch's cold rows, and this many
/// more than a quarter of it.
const SHARE_SLACK_ROWS: u64 = 1024;

/// The rows of a rank that are on its GPU, and what copies the others.
#[derive(Debug)]
pub(crate) struct DeviceTier {
    stored: StoredRows,
    /// The parts with cold rows.
    divided: Vec<DividedPart>,
    parts: Buffer<TierPart>,
    hot: HotRowSet,
    /// Per stored row of these parts, its number in the table.
    listed: Buffer<u32>,
    /// `[region][list]`
    cold: Buffer<u32>,
    sources: Buffer<u32>,
    /// `[region][part]`
    cold_counts: Buffer<u32>,
    /// One per batch slot.
    regions: Vec<Region>,
    carrier: Carrier,
    /// If hot rows are chosen again.
    refresh: Option<Refresh>,
}

/// Where the stored rows of each part are: hot rows, then landing regions.
#[derive(Debug)]
struct StoredRows {
    /// The first word of each part's rows, and where the last one's end.
    words: Vec<u64>,
    /// The number of each part's first row among all stored rows, and where the last one's end.
    bases: Vec<u32>,
}

impl Default for StoredRows {
    fn default() -> Self {
        Self { words: vec![0], bases: vec![0] }
    }
}

impl StoredRows {
    /// Where the last part's rows end: the next word, and the next number among all stored rows.
    fn end(&self) -> (u64, u32) {
        (self.words[self.words.len() - 1], self.bases[self.bases.len() - 1])
    }

    /// Adds the rows of a part.
    fn push(&mut self, rows: u64, row_words: usize) -> Result<()> {
        let (words, base) = self.end();
        let (have, most) = (u64::from(base) + rows, u64::from(u32::MAX));
        if have > most {
            return Err(Error::TooLarge { what: "rows on a GPU", have, most });
        }
        self.words.push(words + rows * row_words as u64);
        self.bases.push(have as u32);
        Ok(())
    }
}

/// What belongs to the landing region of a slot.
#[derive(Debug)]
struct Region {
    stored_rows: Buffer<u32>,
    stored_ids: Buffer<u32>,
    lists: HostLists,
}

/// The cold rows of a batch, in page-locked memory.
#[derive(Debug)]
struct HostLists {
    /// Their numbers among the cold rows of their parts.
    numbers: PinnedBuffer<u32>,
    /// 1 if a row must be copied from host memory.
    absent: PinnedBuffer<u32>,
    /// Per part, how many there are.
    counts: PinnedBuffer<u32>,
}

/// The hot rows of all parts with cold rows.
#[derive(Debug)]
struct HotRowSet {
    bits: Buffer<u32>,
    lines: Buffer<u32>,
}

/// The distinct rows that a batch looks up on a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DistinctRows {
    /// Ascending numbers among all rows of the rank.
    pub(crate) rows: Pointer<u32>,
    /// How many there are.
    pub(crate) count: Pointer<u32>,
}

/// How a rank's rows of a part are divided.
struct Division {
    /// By their numbers in the part.
    hot: HotRows,
    landing_rows: u64,
    /// The number in the table of the first row, and the distance to the next one.
    row: u64,
    step: u64,
}

impl Division {
    /// Divides a part, if the rank has cold rows of it.
    fn of(layout: &Layout, plan: &TierPlan, rank: Rank, part: &Part) -> Result<Option<Self>> {
        let (Some(tier), Holder::Owned(owner)) = (&plan.tables[part.table], &part.holder) else {
            return Ok(None);
        };
        if part.columns.len() != layout.tables[part.table].dim {
            return Err(Error::NotExchanged("rows in host memory of column-wise tables"));
        }
        let rows = layout.part_rows(rank, part);
        if rows == 0 {
            return Ok(None);
        }
        let ranks = layout.ranks() as u64;
        let (row, step, landing_rows) = match owner {
            Owner::EveryRank if ranks > 1 => {
                let share = tier.landing_rows.div_ceil(ranks);
                (rank.0 as u64, ranks, (share + share / 4 + SHARE_SLACK_ROWS).min(tier.landing_rows))
            }
            _ => (0, 1, tier.landing_rows),
        };
        // Rows that every rank stores are looked up there.
        let everywhere = layout.parts.iter().find_map(|other| match &other.holder {
            Holder::Everywhere(frequent) if other.table == part.table => Some(frequent),
            _ => None,
        });
        let is_own = |table_row: &u64| {
            table_row % step == row && everywhere.is_none_or(|frequent| frequent.index(*table_row).is_none())
        };
        let hot = HotRows::of(rows, tier.hot.iter().filter(is_own).map(|table_row| table_row / step));
        let landing_rows = landing_rows.min(rows - hot.len());
        Ok((landing_rows > 0).then_some(Self { hot, landing_rows, row, step }))
    }

    /// Creates `count` initial cold rows of a part: all, or none.
    fn cold_rows(&self, layout: &Layout, part: usize, count: u64, weights: InitialWeights) -> ColdRows {
        let mut cold = ColdRows::zeroed(layout.row_layout(part), count);
        if count > 0 {
            let table = layout.parts[part].table;
            let is_drawn = table < weights.drawn;
            let field = is_drawn.then(|| UniformField::new(weights.seed, table as u32));
            let learned = (&layout.tables[table], layout.optimizers[table].rule);
            cold.initialize(&self.hot, |number| self.row + number * self.step, learned, field);
        }
        cold
    }
}

/// The rows of a rank, part by part.
#[derive(Debug, Default)]
struct DividedRows {
    stored: StoredRows,
    divided: Vec<DividedPart>,
    parts: Vec<TierPart>,
    /// Per stored row of a divided part, its number in the table; anything for others before them.
    listed: Vec<u32>,
    /// The set of hot rows.
    bits: Vec<u32>,
    lines: Vec<u32>,
    /// How many rows it has.
    members: u32,
    /// Entries of a region's lists.
    list: usize,
    /// Words of staging memory.
    staged: usize,
}

impl DividedRows {
    /// Adds a part of the layout: all of its rows, or its hot rows and `slots` landing regions.
    fn push(
        &mut self,
        (device, slots): (&Device, usize),
        (layout, rank): (&Layout, Rank),
        number: usize,
        plan: &TierPlan,
        weights: InitialWeights,
    ) -> Result<()> {
        let part = &layout.parts[number];
        let (row_words, rows) = (layout.row_words(number), layout.part_rows(rank, part));
        let (words, base) = self.stored.end();
        let mut of_part = TierPart {
            words,
            first: layout.bases[number] as u32,
            rows: rows as u32,
            stored: base,
            hot: rows as u32,
            key: Feature::UNLISTED,
            members_before: self.members,
            landing: 0,
            list: self.list as u32,
            row_words: row_words as u32,
            row: 0,
            step: 1,
            reserved: 0,
        };
        let mut stored_rows = rows;
        if let Some(division) = Division::of(layout, plan, rank, part)? {
            let Division { hot, landing_rows, row, step } = &division;
            let landing = *landing_rows as usize;
            stored_rows = hot.len() + slots as u64 * landing_rows;
            of_part.hot = hot.len() as u32;
            of_part.key = 32 * self.bits.len() as u32;
            (of_part.landing, of_part.row, of_part.step) = (landing as u32, *row as u32, *step as u32);
            let landing_words = words as usize + of_part.hot as usize * row_words;
            let place = Place {
                part: number,
                list: self.list,
                staged: self.staged,
                landing,
                landing_words,
                members: self.members as usize,
                bits: self.bits.len(),
                lines: self.lines.len(),
                row: *row,
                step: *step,
            };
            let (bits, lines) = hot.words();
            self.bits.extend_from_slice(bits);
            self.lines.extend(lines.iter().map(|before| self.members + before));
            self.members += of_part.hot;
            self.listed.resize(base as usize, 0);
            self.listed.extend(hot.iter().map(|hot| (row + hot * step) as u32));
            self.listed.resize(base as usize + stored_rows as usize, *row as u32);
            // While memory is only measured, there are no rows.
            let cold_rows = if device.is_measured() { 0 } else { rows - hot.len() };
            let cold = division.cold_rows(layout, number, cold_rows, weights);
            let divided = DividedPart::new(place, &layout.tables[part.table].name, division.hot, cold);
            self.divided.push(if plan.refresh_steps.is_some() { divided.counted() } else { divided });
            self.list += landing;
            self.staged += landing * row_words;
        }
        self.parts.push(of_part);
        self.stored.push(stored_rows, row_words)
    }
}

impl DeviceTier {
    /// Creates it for the rows of a rank, with a landing region for each of `slots` batches, and the initial cold rows.
    /// A batch has at most `distinct_max` distinct rows on this GPU.
    ///
    /// # Panics
    /// If the plan is for other tables, or there are fewer than three slots.
    pub(crate) fn new(
        device: &Arc<Device>,
        (layout, rank): (&Layout, Rank),
        plan: &TierPlan,
        weights: InitialWeights,
        (slots, distinct_max): (usize, usize),
    ) -> Result<Self> {
        assert_eq!(plan.tables.len(), layout.tables.len(), "the plan is for these tables");
        assert!(slots >= 3, "one region is filled and one emptied while one is used");
        if layout.nodes > 1 {
            return Err(Error::NotExchanged("rows in host memory over several nodes"));
        }
        if layout.pooled.iter().any(|part| plan.tables[part.table].is_some()) {
            return Err(Error::NotExchanged("pooled bags of tables with rows in host memory"));
        }
        let _tier = device.purpose("rows from host memory");
        let mut divided = DividedRows::default();
        for number in 0..layout.parts.len() {
            divided.push((device, slots), (layout, rank), number, plan, weights)?;
        }
        let DividedRows { stored, divided, parts, listed, bits, lines, list, staged, .. } = divided;
        let region = || {
            Ok(Region {
                stored_rows: Buffer::filled(device, distinct_max, 0)?,
                stored_ids: Buffer::filled(device, distinct_max, 0)?,
                lists: HostLists {
                    numbers: PinnedBuffer::zeroed(device, list)?,
                    absent: PinnedBuffer::zeroed(device, list)?,
                    counts: PinnedBuffer::zeroed(device, parts.len())?,
                },
            })
        };
        Ok(Self {
            regions: (0..slots).map(|_| region()).collect::<Result<_>>()?,
            parts: Buffer::of(device, &parts)?,
            hot: HotRowSet { bits: Buffer::of(device, &bits)?, lines: Buffer::of(device, &lines)? },
            listed: Buffer::of(device, &listed)?,
            cold: Buffer::filled(device, slots * list, 0)?,
            sources: Buffer::filled(device, slots * list, POISON)?,
            cold_counts: Buffer::filled(device, slots * parts.len(), 0)?,
            carrier: Carrier::new(device, staged)?,
            refresh: plan.refresh_steps.map(|steps| Refresh::new(device, &divided, steps)).transpose()?,
            stored,
            divided,
        })
    }

    /// Words of all stored rows.
    pub(crate) fn words(&self) -> usize {
        self.stored.end().0 as usize
    }

    /// Number of all stored rows.
    pub(crate) fn row_numbers(&self) -> usize {
        self.stored.end().1 as usize
    }

    /// The first word of the stored rows of a part.
    pub(crate) fn part_words(&self, part: usize) -> usize {
        self.stored.words[part] as usize
    }

    /// Changes the shards of all rows to shards of the stored rows.
    pub(crate) fn shards(&self, shards: Vec<Shard>) -> Vec<Shard> {
        let of_part = |(number, shard): (usize, Shard)| {
            let (words, base) = (self.stored.words[number], self.stored.bases[number]);
            let listed = match self.divided(number) {
                Some(_) => self.listed.pointer().element(base as usize),
                None => shard.listed,
            };
            Shard { words, base, rows: self.stored.bases[number + 1] - base, listed, ..shard }
        };
        shards.into_iter().enumerate().map(of_part).collect()
    }

    /// Changes the features of all rows to look up stored rows, by ids in the order of slots.
    pub(crate) fn features(&self, features: Vec<Feature>) -> Vec<Feature> {
        let of_feature = |feature: Feature| {
            let part = feature.shard as usize;
            let (words, base) = (self.stored.words[part], self.stored.bases[part]);
            Feature { words, base, rows: self.stored.bases[part + 1] - base, ids: feature.slots, ..feature }
        };
        features.into_iter().map(of_feature).collect()
    }

    /// Per distinct row of a slot's batch: its number among all stored rows.
    pub(crate) fn rows(&self, slot: usize) -> Pointer<u32> {
        self.regions[slot].stored_rows.pointer()
    }

    /// The part with this number, if host memory has some of its rows.
    pub(crate) fn divided(&self, part: usize) -> Option<&DividedPart> {
        self.divided.iter().find(|divided| divided.place.part == part)
    }

    /// Enqueues finding the distinct rows of a slot's batch. The batch before is the one of the slot before.
    ///
    /// # Safety
    /// The rows must be found on this lane; see [`Lane::launch`].
    pub(crate) unsafe fn locate(&self, lane: &Lane, distinct: DistinctRows, slot: usize) -> Result<()> {
        let tier = self.kernel(distinct, slot)?;
        // SAFETY: all other addresses are of this value's buffers, whose lengths follow from the layout.
        unsafe {
            lane.launch(&TierLocate(tier), (tier.parts_count, 1))?;
            lane.launch(&TierFind(tier), (PART_BLOCKS, tier.parts_count))?;
        }
        Ok(())
    }

    /// Enqueues replacing ids, which number the distinct rows of a slot's batch, by numbers of stored rows.
    ///
    /// # Safety
    /// As for [`DeviceTier::locate`], which must have been enqueued on the lane.
    pub(crate) unsafe fn replace_ids(
        &self,
        lane: &Lane,
        distinct: DistinctRows,
        slot: usize,
        ids: &Buffer<u32>,
    ) -> Result<()> {
        let ids = TierIds {
            ids: ids.pointer(),
            stored_ids: self.regions[slot].stored_ids.pointer(),
            count: distinct.count,
            ids_max: ids.len() as u32,
            reserved: 0,
        };
        // SAFETY: the caller vouches for the ids.
        Ok(unsafe { lane.launch(&ids, (blocks(lane.device()), 1)) }?)
    }

    /// Enqueues the same for the rows that ranks look up at this owner.
    ///
    /// # Safety
    /// As for [`DeviceTier::replace_ids`].
    pub(crate) unsafe fn replace_entries(
        &self,
        lane: &Lane,
        entries: TierEntries,
        slot: usize,
        blocks: (u32, u32),
    ) -> Result<()> {
        // SAFETY: the caller vouches for the entries.
        Ok(unsafe { lane.launch(&TierEntries { stored_rows: self.rows(slot), ..entries }, blocks) }?)
    }

    /// Enqueues copying the cold rows that a slot's batch shares with the batch before, after the step of that one.
    ///
    /// # Safety
    /// As for [`DeviceTier::locate`]; the storage must have the stored rows.
    pub(crate) unsafe fn forward(
        &self,
        lane: &Lane,
        distinct: DistinctRows,
        slot: usize,
        storage: Pointer<f32>,
    ) -> Result<()> {
        let tier = Tier { storage, ..self.kernel(distinct, slot)? };
        // SAFETY: as for `locate`.
        Ok(unsafe { lane.launch(&TierForward(tier), (PART_BLOCKS, tier.parts_count)) }?)
    }

    fn kernel(&self, distinct: DistinctRows, slot: usize) -> Result<Tier> {
        let (region, slots) = (&self.regions[slot], self.regions.len());
        Ok(Tier {
            parts: self.parts.pointer(),
            hot: KeySet {
                bits: self.hot.bits.pointer(),
                groups: Pointer::NULL,
                lines: self.hot.lines.pointer(),
            },
            rows: distinct.rows,
            count: distinct.count,
            stored_rows: region.stored_rows.pointer(),
            stored_ids: region.stored_ids.pointer(),
            listed: self.listed.pointer(),
            places: self.refresh.as_ref().map_or(Pointer::NULL, |refresh| refresh.places.pointer()),
            counts: self.refresh.as_ref().map_or(Pointer::NULL, |refresh| refresh.counts.pointer()),
            cold: self.cold.pointer(),
            sources: self.sources.pointer(),
            cold_counts: self.cold_counts.pointer(),
            host_numbers: region.lists.numbers.device_pointer()?,
            host_absent: region.lists.absent.device_pointer()?,
            host_counts: region.lists.counts.device_pointer()?,
            storage: Pointer::NULL,
            parts_count: self.parts.len() as u32,
            lists: (self.cold.len() / slots) as u32,
            region: slot as u32,
            previous: ((slot + slots - 1) % slots) as u32,
        })
    }

    /// Copies the cold rows of a slot's batch into its landing region, and makes the lane of steps wait for them. The
    /// batch must have been located. Before, the rows of the step before the last one are copied back.
    ///
    /// # Errors
    /// If the batch has more cold rows than the region, or the driver reports an error.
    pub(crate) fn land(&mut self, main: &Lane, slot: usize, storage: Pointer<f32>) -> Result<()> {
        let Self { carrier, divided, regions, .. } = self;
        carrier.bring_back(divided, regions, storage)?;
        let counts = regions[slot].lists.counts.elements();
        for DividedPart { place, table, .. } in &*divided {
            let (have, most) = (counts[place.part] as usize, place.landing);
            if have > most {
                return Err(Error::LandingRegion { table: table.clone(), have, most });
            }
        }
        carrier.bring(main, divided, &regions[slot].lists, slot, storage)
    }

    /// Notes that the step of a slot's batch was enqueued on the lane, and changes rows.
    pub(crate) fn learned(&mut self, main: &Lane, slot: usize) -> Result<()> {
        self.carrier.learned(main, slot)
    }

    /// Copies all rows back that steps have changed, once they are done. Landing regions have no rows after it.
    pub(crate) fn finish(&mut self, main: &Lane, storage: Pointer<f32>) -> Result<()> {
        main.synchronize()?;
        let Self { carrier, divided, regions, cold_counts, .. } = self;
        carrier.finish(divided, regions, storage)?;
        // SAFETY: all batches that were located are done.
        Ok(unsafe { main.fill(cold_counts.pointer(), 0, cold_counts.len()) }?)
    }

    /// What was copied since the tables were created.
    pub(crate) fn traffic(&self) -> TierTraffic {
        self.carrier.traffic()
    }
}
