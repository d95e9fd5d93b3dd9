//! The kernels' view of a layout: parts of tables and features by number, and sizes of buffers.

use std::ops::Range;

use rankine_cuda::Pointer;
use rankine_cuda::kernels::{
    self, BagPooling, Element, ElementKind, LookUpFp8, LookUpTask, RAIL_HEADER, RANKS_MAX, Route, Segment,
};
use rankine_topology::{LocalRank, Rank};

use crate::cuda::InitialWeights;
use crate::cuda::error::{Error, Result};
use crate::cuda::layout::parts::{Holder, Part};
use crate::cuda::layout::{Feature, Hotness, KeyPart, Layout, bits_of};
use crate::dtype::Dtype;
use crate::placement::Owner;
use crate::rows::{RowLayout, VECTOR};
use crate::table::{Pooling, TableSpec};

/// Exchanged rows are padded to a multiple of this many elements: 16 bytes for any type.
const WIRE: usize = 8;

impl Layout {
    /// Every feature for each part of its table, by number: the basis of look-ups, routes and sums.
    pub(crate) fn sharded_features(&self) -> impl Iterator<Item = (&Feature, usize)> {
        self.sharded.iter().map(|&(feature, part)| (&self.features[feature], part))
    }

    /// The most look-ups in a rank's batch: each feature's ids, for each part of its table.
    pub fn look_ups(&self) -> usize {
        self.sharded_features().map(|(feature, _)| self.feature_look_ups(feature)).sum()
    }

    /// Room for the factors of sorted look-ups: none if no look-up has one.
    pub(crate) fn sorted_factors(&self) -> usize {
        if self.has_factors() { self.look_ups() } else { 0 }
    }

    /// The most look-ups of a feature.
    fn feature_look_ups(&self, feature: &Feature) -> usize {
        self.samples * self.columns[feature.column].max()
    }

    /// The most look-ups of a part of a table.
    pub(crate) fn part_look_ups(&self, part: &Part) -> usize {
        let of_part = self.features.iter().filter(|feature| feature.table == part.table);
        of_part.map(|feature| self.feature_look_ups(feature)).sum()
    }

    /// Rows of a part that a rank stores.
    pub(crate) fn part_rows(&self, rank: Rank, part: &Part) -> u64 {
        part.rows_at(rank, self.tables[part.table].rows, self.topology())
    }

    /// How many row numbers there are at every rank.
    pub(crate) fn row_numbers(&self) -> usize {
        self.bases[self.parts.len()] as usize
    }

    /// Where each part starts in a rank's memory, in words of four bytes, and where the last one ends.
    pub(crate) fn words(&self, rank: Rank) -> Vec<u64> {
        let mut words = vec![0];
        for (number, part) in self.parts.iter().enumerate() {
            words.push(words[number] + self.part_rows(rank, part) * self.row_words(number) as u64);
        }
        words
    }

    /// Words of four bytes of a rank's rows.
    pub fn rank_words(&self, rank: Rank) -> usize {
        self.words(rank)[self.parts.len()] as usize
    }

    /// The memory layout of a part's rows.
    pub(crate) fn row_layout(&self, part: usize) -> RowLayout {
        let Part { table, columns, .. } = &self.parts[part];
        RowLayout::padded(columns.len(), self.tables[*table].dtype, self.optimizers[*table].rule)
    }

    /// Words of four bytes from one row of a part to the next.
    pub(crate) fn row_words(&self, part: usize) -> usize {
        self.row_layout(part).words
    }

    /// Words of a row's weights: state starts where it can be read in vectors of f32.
    pub(crate) fn weight_words(&self, part: usize) -> usize {
        self.row_layout(part).weight_words()
    }

    /// Elements of a part's row, padded to whole vectors.
    pub(crate) fn filled_dim(&self, part: usize) -> usize {
        self.parts[part].columns.len().next_multiple_of(VECTOR)
    }

    /// Vectors of the widest row.
    pub(crate) fn vectors(&self) -> usize {
        (0..self.parts.len()).map(|part| self.filled_dim(part) / VECTOR).max().unwrap_or(0)
    }

    /// A rank's parts in the kernels' form; `listed` has the rows that every rank stores of tables of which it does
    /// not store all, part by part.
    pub(crate) fn kernel_shards(&self, rank: Rank, listed: Pointer<u32>) -> Vec<kernels::Shard> {
        let (words, mut listed_before) = (self.words(rank), 0);
        let mut of = |(number, part): (usize, &Part)| {
            let (row, step) = match &part.holder {
                Holder::Owned(Owner::EveryRank) => (rank.0, self.ranks()),
                _ => (0, 1),
            };
            let weight_words = self.weight_words(number);
            let listed = match part.listed(self.tables[part.table].rows) {
                Some(frequent) => {
                    let own = listed.element(listed_before);
                    listed_before += frequent.len() as usize;
                    own
                }
                None => Pointer::NULL,
            };
            kernels::Shard {
                words: words[number],
                rule: (&self.optimizers[part.table]).into(),
                base: self.bases[number] as u32,
                rows: self.part_rows(rank, part) as u32,
                row_words: self.row_words(number) as u32,
                dim: part.columns.len() as u32,
                first: weight_words as u32,
                second: (weight_words + self.filled_dim(number)) as u32,
                dtype: kernel_dtype(&self.tables[part.table]),
                table: part.table as u32,
                column: part.columns.start as u32,
                row: row as u32,
                step: step as u32,
                shares_squares: u32::from(self.shares_squares(part.table)),
                listed,
            }
        };
        self.parts.iter().enumerate().map(&mut of).collect()
    }

    /// The largest magnitude of the initial weights of each of these parts.
    pub(crate) fn bounds(&self, parts: &[Part], weights: InitialWeights) -> Vec<f32> {
        let bound = |part: &Part| match part.table < weights.drawn {
            true => self.tables[part.table].initial_bound(),
            false => 0.0,
        };
        parts.iter().map(bound).collect()
    }

    /// Features in the kernels' form for a rank.
    pub(crate) fn kernel_features(&self, rank: Rank) -> Vec<kernels::Feature> {
        let (words, mut slots) = (self.words(rank), 0);
        let of = |&(of_layout, number): &(usize, usize)| {
            let (feature, key) = (&self.features[of_layout], self.keys[of_layout]);
            let &Feature { column, table, vector_offset, .. } = feature;
            let begin = |key: KeyPart| self.keys_begin(key.sequence) + key.offset;
            let ragged = matches!(self.columns[column], Hotness::Ragged { .. });
            let part = &self.parts[number];
            let of_feature = kernels::Feature {
                words: words[number],
                ids: self.ids_begin(column) as u32,
                offsets: if ragged { self.offsets_begin(column) as u32 } else { kernels::Feature::FIXED },
                hotness: self.columns[column].max() as u32,
                pooling: key.map_or(self.bag_pooling(feature), |_| BagPooling::Separate) as u32,
                base: self.bases[number] as u32,
                rows: self.tables[table].rows as u32,
                row_words: self.row_words(number) as u32,
                dim: self.filled_dim(number) as u32,
                vector_offset: (key.map_or(vector_offset, begin) + part.columns.start) as u32,
                shard: number as u32,
                dtype: kernel_dtype(&self.tables[table]),
                slots,
                owner: match part.holder {
                    Holder::Owned(Owner::EveryRank) => kernels::Feature::TURNS,
                    Holder::Owned(Owner::Rank(rank)) => {
                        // In the order of keys.
                        let topology = self.topology();
                        (topology.local_rank(rank).0 * self.nodes + topology.node_of(rank).0) as u32
                    }
                    Holder::Everywhere(_) => (self.ranks * self.nodes) as u32,
                },
                frequent: self.listed_keys[table].unwrap_or(kernels::Feature::UNLISTED),
                factors: self.factors_begin(column) as u32,
                key_stride: key.map_or(0, |key| self.sequences[key.sequence].stride) as u32,
            };
            slots += self.feature_look_ups(feature) as u32;
            of_feature
        };
        self.sharded.iter().map(of).collect()
    }

    /// How kernels pool the bags of a feature whose rows are not keys.
    pub(crate) fn bag_pooling(&self, feature: &Feature) -> BagPooling {
        match feature.pooling {
            _ if self.weighted[feature.column] => BagPooling::ByFactors,
            Pooling::Sum => BagPooling::Sum,
            Pooling::Mean => BagPooling::Mean,
        }
    }
}

/// Blocks that look up samples, and their number per kind.
pub(crate) type KindsOfTasks = (Vec<LookUpTask>, [u32; LookUpTask::KINDS]);

/// The layout, as look-ups and routes see it.
impl Layout {
    /// The features' numbers in the order of segments.
    pub(crate) fn segment_features(&self) -> Vec<u32> {
        let mut order: Vec<_> = (0u32..).zip(self.sharded_features()).collect();
        order.sort_by_key(|(_, (_, part))| self.segment(*part));
        order.into_iter().map(|(number, _)| number).collect()
    }

    /// The look-ups that a part's look-ups are sorted with: on one GPU only its own, otherwise all, since keys are
    /// ordered by owner first.
    fn segment(&self, part: usize) -> Option<usize> {
        (self.nodes * self.owners() == 1).then_some(part)
    }

    /// The segments, in the form of the kernels that sort look-ups, each with the most look-ups that it can have.
    pub(crate) fn segments(&self) -> Vec<(Segment, usize)> {
        let features: Vec<_> = self.sharded_features().collect();
        let order: Vec<_> =
            self.segment_features().into_iter().map(|number| features[number as usize]).collect();
        let (mut first, mut tile) = (0, 0);
        let of = |features: &[(&Feature, usize)]| {
            let (base, keys) = match self.segment(features[0].1) {
                Some(part) => (self.bases[part], self.bases[part + 1] - self.bases[part]),
                None => (0, (self.owner_span() * self.owners()) as u64),
            };
            let bits = bits_of(keys as usize).max(1);
            let passes = bits.div_ceil(Route::DIGIT_BITS);
            let segment = Segment {
                first,
                features: features.len() as u32,
                base: base as u32,
                tile,
                passes,
                digit_bits: bits.div_ceil(passes),
            };
            let look_ups = features.iter().map(|(feature, _)| self.feature_look_ups(feature)).sum();
            first += segment.features;
            tile += tiles(look_ups) as u32;
            (segment, look_ups)
        };
        order.chunk_by(|one, other| self.segment(one.1) == self.segment(other.1)).map(of).collect()
    }

    /// Blocks that look up all features' samples, and their number, kind by kind.
    pub(crate) fn look_up_tasks(&self, features: &[kernels::Feature]) -> KindsOfTasks {
        self.look_up_tasks_of(features, 0..features.len())
    }

    /// The same for some of the features.
    pub(crate) fn look_up_tasks_of(&self, features: &[kernels::Feature], some: Range<usize>) -> KindsOfTasks {
        self.tasks_by(features, some, LookUpTask::of_feature)
    }

    /// The same for vectors in fp8; `None` if a feature's are too long, or if some are keys.
    pub(crate) fn look_up_tasks_in_fp8(&self, features: &[kernels::Feature]) -> Option<KindsOfTasks> {
        let fit = self.sequences.is_empty()
            && features.iter().all(|feature| feature.dim as usize <= LookUpFp8::DIM_MAX);
        fit.then(|| self.tasks_by(features, 0..features.len(), LookUpTask::of_feature_in_fp8))
    }

    /// Blocks as `of_feature` divides the samples of a feature of some number, hotness and dimension.
    fn tasks_by<Tasks: Iterator<Item = LookUpTask>>(
        &self,
        features: &[kernels::Feature],
        some: Range<usize>,
        of_feature: impl Fn(u32, u32, u32, u32) -> Tasks,
    ) -> KindsOfTasks {
        let kind = |feature: &kernels::Feature| {
            let of_pooling = match feature.pooling {
                pooling if pooling == BagPooling::ByFactors as u32 => 1,
                pooling if pooling == BagPooling::Separate as u32 => 2,
                _ => 0,
            };
            feature.dtype as usize + of_pooling * LookUpTask::KINDS / 3
        };
        let (mut tasks, mut counts) = (Vec::new(), [0; LookUpTask::KINDS]);
        for (of_kind, count) in counts.iter_mut().enumerate() {
            let before = tasks.len();
            for number in some.clone().filter(|&number| kind(&features[number]) == of_kind) {
                let (samples, feature) = (self.samples as u32, &features[number]);
                if feature.pooling == BagPooling::Separate as u32 {
                    tasks.extend(LookUpTask::of_keys(number as u32, samples * feature.hotness, feature.dim));
                } else {
                    tasks.extend(of_feature(number as u32, samples, feature.hotness, feature.dim));
                }
            }
            *count = (tasks.len() - before) as u32;
        }
        (tasks, counts)
    }
}

/// The layout, as the exchange between ranks sees it.
impl Layout {
    /// Returns an error if the exchange cannot number the layout.
    pub(crate) fn check_exchange(&self) -> Result<()> {
        let (positions, numbered, _) = self.numbered_positions();
        let limits = [
            (positions, numbered),
            ("rows that all ranks look up at an owner", (self.ranks * self.entries_max()) as u64 + 1),
            ("words of the lists that all nodes send a rank", (self.nodes * self.list_words()) as u64 + 1),
        ];
        let (have, most) = (self.ranks as u64, RANKS_MAX as u64);
        if have > most {
            return Err(Error::TooLarge { what: "ranks of a node", have, most });
        }
        let most = u64::from(u32::MAX);
        match limits.into_iter().find(|(_, have)| *have > most) {
            Some((what, have)) => Err(Error::TooLarge { what, have, most }),
            None => Ok(()),
        }
    }

    /// Returns an error if a route cannot number look-ups by their position.
    pub(crate) fn check_positions(&self) -> Result<()> {
        match self.numbered_positions() {
            (what, have, most) if have > most => Err(Error::TooLarge { what, have, most }),
            _ => Ok(()),
        }
    }

    /// The numbers that a route by position needs, and the most that there can be.
    pub(crate) fn numbered_positions(&self) -> (&'static str, u64, u64) {
        let numbers = (self.sharded.len() as u64) << self.position_bits();
        ("look-ups of the longest feature, times features", numbers, u64::from(u32::MAX))
    }

    /// Words of the longest list of rows that a node sends to a rank of another one.
    pub(crate) fn list_words(&self) -> usize {
        RAIL_HEADER + self.node_max().max(1)
    }

    /// Bits of a look-up's position in its feature.
    pub(crate) fn position_bits(&self) -> u32 {
        let look_ups = self.features.iter().map(|feature| self.feature_look_ups(feature));
        bits_of(look_ups.max().unwrap_or(1))
    }

    /// Elements from one exchanged row to the next.
    pub(crate) fn wire_width(&self) -> usize {
        (VECTOR * self.vectors()).next_multiple_of(WIRE)
    }

    /// The features of received rows: one table of rows of `T`, looked up by slot.
    pub(crate) fn landing_features<T: Element>(&self) -> Vec<kernels::Feature> {
        let dtype = match T::KIND {
            ElementKind::F32 => kernels::Dtype::Fp32,
            ElementKind::Bf16 => kernels::Dtype::Bf16,
            ElementKind::F16 => kernels::Dtype::Fp16,
        };
        let of = |feature: kernels::Feature| kernels::Feature {
            words: 0,
            ids: feature.slots,
            rows: u32::MAX,
            row_words: (self.wire_width() * size_of::<T>() / 4) as u32,
            dtype: dtype as u32,
            ..feature
        };
        self.kernel_features(Rank(0)).into_iter().map(of).collect()
    }

    /// Number of key spans that an owner merges: one per rank of its rail; over several nodes one more for rows that
    /// every rank stores.
    pub(crate) fn merged_spans(&self) -> usize {
        self.nodes + usize::from(self.nodes > 1 && self.owners() > self.ranks)
    }

    /// The key, among merged keys, of the first row that every rank stores.
    pub(crate) fn merged_of_all(&self) -> usize {
        if self.nodes > 1 { self.owner_span() } else { 0 }
    }

    /// The most distinct rows that a rank can look up.
    pub(crate) fn slots_max(&self) -> usize {
        // Listed rows belong to tables with an owned part, where their look-ups are counted.
        self.distinct_max(1, |part| {
            let rows = self.tables[part.table].rows;
            if part.listed(rows).is_some() { 0 } else { rows }
        })
    }

    /// The most distinct rows that a rank can look up at one owner and that only this owner stores.
    pub(crate) fn owned_max(&self) -> usize {
        let owned = |owner, part: &Part| if part.is_everywhere() { 0 } else { self.rail_rows(owner, part) };
        self.topology()
            .local_ranks()
            .map(|owner| self.distinct_max(1, |part| owned(owner, part)))
            .max()
            .unwrap_or(0)
    }

    /// The most distinct rows that a rank can look up at one owner, including those that every rank stores.
    pub(crate) fn entries_max(&self) -> usize {
        let everywhere = |part: &Part| if part.is_everywhere() { self.part_rows(Rank(0), part) } else { 0 };
        self.owned_max() + self.distinct_max(1, everywhere)
    }

    /// The most distinct rows of an owner that all ranks together can look up.
    pub(crate) fn union_max(&self, owner: LocalRank) -> usize {
        self.distinct_max(self.ranks, |part| self.rail_rows(owner, part))
    }

    /// The most distinct rows of a rank that the ranks of a node together can look up.
    pub(crate) fn node_max(&self) -> usize {
        let at = |rank| self.distinct_max(self.ranks, |part| self.part_rows(rank, part));
        self.topology().all_ranks().map(at).max().unwrap_or(0)
    }

    /// The same for rows that only this rank stores.
    pub(crate) fn wanted_max(&self) -> usize {
        let rows = |rank, part: &Part| if part.is_everywhere() { 0 } else { self.part_rows(rank, part) };
        let at = |rank| self.distinct_max(self.ranks, |part| rows(rank, part));
        self.topology().all_ranks().map(at).max().unwrap_or(0)
    }

    /// Rows that the smallest message from one node to a rank of another has room for: the expected number per part,
    /// and all rows that every rank stores.
    pub(crate) fn round_rows(&self) -> usize {
        let rows = |part: &Part| {
            self.topology().all_ranks().map(|rank| self.part_rows(rank, part)).max().unwrap_or(0)
        };
        let of_part = |(part, &round): (&Part, &usize)| {
            let round = if part.is_everywhere() { usize::MAX } else { round };
            round.min(rows(part) as usize).min(self.ranks * self.part_look_ups(part))
        };
        self.parts.iter().zip(&self.rounds).map(of_part).sum()
    }

    /// The most distinct rows of a rank that the ranks of all nodes together can look up.
    pub(crate) fn rank_max(&self, rank: Rank) -> usize {
        self.distinct_max(self.ranks(), |part| self.part_rows(rank, part))
    }

    /// Rows of a part that the ranks of a rail store.
    fn rail_rows(&self, local_rank: LocalRank, part: &Part) -> u64 {
        let mut ranks = self.topology().all_nodes().map(|node| self.topology().rank(node, local_rank));
        match part.is_everywhere() {
            true => ranks.next().map_or(0, |rank| self.part_rows(rank, part)),
            false => ranks.map(|rank| self.part_rows(rank, part)).sum(),
        }
    }

    /// The most distinct rows that `ranks` ranks can look up, given the number of rows of each part.
    fn distinct_max(&self, ranks: usize, rows: impl Fn(&Part) -> u64) -> usize {
        let of_part = |part: &Part| rows(part).min((ranks * self.part_look_ups(part)) as u64);
        self.parts.iter().map(of_part).sum::<u64>() as usize
    }

    /// Returns whether several ranks store some columns of a table's rows each, and its rule depends on whole rows.
    pub(crate) fn shares_squares(&self, table: usize) -> bool {
        let rowwise = self.optimizers[table].rule.is_rowwise();
        rowwise && self.parts.iter().filter(|part| part.table == table).count() > 1 && !self.is_listed(table)
    }

    fn is_listed(&self, table: usize) -> bool {
        self.listed_keys[table].is_some()
    }
}

/// A table's storage type in the kernels' form.
fn kernel_dtype(table: &TableSpec) -> u32 {
    match table.dtype {
        Dtype::Fp32 => kernels::Dtype::Fp32 as u32,
        Dtype::Bf16 => kernels::Dtype::Bf16 as u32,
        Dtype::Fp16 => kernels::Dtype::Fp16 as u32,
    }
}

/// Tiles of this many look-ups.
pub(crate) fn tiles(look_ups: usize) -> usize {
    look_ups.div_ceil(Route::TILE)
}
