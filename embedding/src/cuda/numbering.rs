//! What kernels have of a layout: shards and features by number, and how much room there must be.

use rankine_cuda::kernels::{self, Element, ElementKind, LookUpTask, Route, Segment};

use super::error::{Error, Result};
use super::layout::{Feature, Hotness, Layout, VECTOR};
use super::router::tiles;
use crate::dtype::Dtype;
use crate::placement::{Owner, Shard};
use crate::table::TableSpec;

/// Elements that rows on their way between ranks are filled up to: 16 bytes, of each type.
const WIRE: usize = 8;

impl Layout {
    /// Every feature for each shard of its table: what look-ups, routes and sums are made of.
    pub(super) fn sharded_features(&self) -> impl Iterator<Item = (&Feature, usize)> {
        self.sharded.iter().map(|&(feature, shard)| (&self.features[feature], shard))
    }

    /// Look-ups of a rank's batch, at most: each feature's ids, for each shard.
    pub fn look_ups(&self) -> usize {
        self.sharded_features().map(|(feature, _)| self.feature_look_ups(feature)).sum()
    }

    /// Look-ups of a feature, at most.
    fn feature_look_ups(&self, feature: &Feature) -> usize {
        self.samples * self.columns[feature.column].max()
    }

    /// Look-ups of a shard, at most.
    fn shard_look_ups(&self, shard: usize) -> usize {
        let of_shard = self.sharded_features().filter(|(_, other)| *other == shard);
        of_shard.map(|(feature, _)| self.feature_look_ups(feature)).sum()
    }

    /// Rows of a table's shard that a rank owns.
    pub(super) fn shard_rows(&self, rank: usize, table: usize, shard: &Shard) -> u64 {
        let (rows, ranks) = (self.tables[table].rows, self.ranks as u64);
        match shard.owner {
            Owner::EveryRank => (rows + ranks - 1 - rank as u64) / ranks,
            Owner::Rank(owner) if owner == rank => rows,
            Owner::Rank(_) => 0,
        }
    }

    /// Numbers of rows at every owner.
    pub(super) fn row_numbers(&self) -> usize {
        self.bases[self.shards.len()] as usize
    }

    /// Where each shard begins in a rank's memory, in words of four bytes, and where the last one ends.
    pub(super) fn words(&self, rank: usize) -> Vec<u64> {
        let mut words = vec![0];
        for (number, (table, shard)) in self.shards.iter().enumerate() {
            let rows = self.shard_rows(rank, *table, shard);
            words.push(words[number] + rows * self.row_words(number) as u64);
        }
        words
    }

    /// Words of four bytes that a rank's rows take.
    pub fn rank_words(&self, rank: usize) -> usize {
        self.words(rank)[self.shards.len()] as usize
    }

    /// Words of four bytes from one row of a shard to the next.
    pub(super) fn row_words(&self, shard: usize) -> usize {
        let rule = self.optimizers[self.shards[shard].0].rule;
        self.weight_words(shard) + rule.state_elements(self.filled_dim(shard)).next_multiple_of(VECTOR)
    }

    /// Words that a row's weights take: state begins where rows can be read by vectors of f32.
    fn weight_words(&self, shard: usize) -> usize {
        let table = &self.tables[self.shards[shard].0];
        (self.filled_dim(shard) * table.dtype.bytes() / 4).next_multiple_of(VECTOR)
    }

    /// Elements of a shard's row, filled up to whole vectors.
    fn filled_dim(&self, shard: usize) -> usize {
        self.shards[shard].1.columns.len().next_multiple_of(VECTOR)
    }

    /// Vectors of the widest row.
    pub(super) fn vectors(&self) -> usize {
        (0..self.shards.len()).map(|shard| self.filled_dim(shard) / VECTOR).max().unwrap_or(0)
    }

    /// A rank's shards as the kernels have them.
    pub(super) fn kernel_shards(&self, rank: usize) -> Vec<kernels::Shard> {
        let words = self.words(rank);
        let of = |(number, (table, shard)): (usize, &(usize, Shard))| {
            let (row, step) = match shard.owner {
                Owner::EveryRank => (rank, self.ranks),
                Owner::Rank(_) => (0, 1),
            };
            let weight_words = self.weight_words(number);
            kernels::Shard {
                words: words[number],
                rule: (&self.optimizers[*table]).into(),
                base: self.bases[number] as u32,
                rows: self.shard_rows(rank, *table, shard) as u32,
                row_words: self.row_words(number) as u32,
                dim: shard.columns.len() as u32,
                first: weight_words as u32,
                second: (weight_words + self.filled_dim(number)) as u32,
                dtype: kernel_dtype(&self.tables[*table]),
                table: *table as u32,
                column: shard.columns.start as u32,
                row: row as u32,
                step: step as u32,
                reserved: 0,
            }
        };
        self.shards.iter().enumerate().map(of).collect()
    }

    /// Of each shard, how far from 0 its first weights lie; those of tables from number `drawn` on are zeros.
    pub(super) fn bounds(&self, drawn: usize) -> Vec<f32> {
        let bound = |&(table, _): &(usize, Shard)| match table < drawn {
            true => self.tables[table].initial_bound(),
            false => 0.0,
        };
        self.shards.iter().map(bound).collect()
    }

    /// Features as the kernels of a rank have them.
    pub(super) fn kernel_features(&self, rank: usize) -> Vec<kernels::Feature> {
        let (words, mut slots) = (self.words(rank), 0);
        let of = |(feature, number): (&Feature, usize)| {
            let &Feature { column, table, place, pooling } = feature;
            let ragged = matches!(self.columns[column], Hotness::Ragged { .. });
            let shard = &self.shards[number].1;
            let of_feature = kernels::Feature {
                words: words[number],
                ids: self.ids_begin(column) as u32,
                offsets: if ragged { self.offsets_begin(column) as u32 } else { kernels::Feature::FIXED },
                hotness: self.columns[column].max() as u32,
                mean: u32::from(pooling == crate::Pooling::Mean),
                base: self.bases[number] as u32,
                rows: self.tables[table].rows as u32,
                row_words: self.row_words(number) as u32,
                dim: self.filled_dim(number) as u32,
                place: (place + shard.columns.start) as u32,
                shard: number as u32,
                dtype: kernel_dtype(&self.tables[table]),
                slots,
                owner: match shard.owner {
                    Owner::EveryRank => kernels::Feature::TURNS,
                    Owner::Rank(rank) => rank as u32,
                },
                reserved: 0,
            };
            slots += self.feature_look_ups(feature) as u32;
            of_feature
        };
        self.sharded_features().map(of).collect()
    }
}

/// What look-ups and routes have of a layout.
impl Layout {
    /// The features' numbers in the order of segments.
    pub(super) fn segment_features(&self) -> Vec<u32> {
        let mut order: Vec<_> = (0u32..).zip(self.sharded_features()).collect();
        order.sort_by_key(|(_, (_, shard))| self.segment(*shard));
        order.into_iter().map(|(number, _)| number).collect()
    }

    /// What a shard's look-ups are sorted with: on one GPU with none but those, and else with all, since keys go by
    /// owner first.
    fn segment(&self, shard: usize) -> Option<usize> {
        (self.ranks == 1).then_some(shard)
    }

    /// The segments, as the kernels have them that sort look-ups, each with the look-ups that it has at most.
    pub(super) fn segments(&self) -> Vec<(Segment, usize)> {
        let features: Vec<_> = self.sharded_features().collect();
        let order: Vec<_> =
            self.segment_features().into_iter().map(|number| features[number as usize]).collect();
        let (mut first, mut tile) = (0, 0);
        let of = |features: &[(&Feature, usize)]| {
            let (base, keys) = match self.segment(features[0].1) {
                Some(shard) => (self.bases[shard], self.bases[shard + 1] - self.bases[shard]),
                None => (0, (self.span * self.ranks) as u64),
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

    /// Blocks that look up all features' samples, by the types of their rows, and how many there are of each.
    pub(super) fn look_up_tasks(&self, features: &[kernels::Feature]) -> (Vec<LookUpTask>, [u32; 3]) {
        let (mut tasks, mut counts) = (Vec::new(), [0; 3]);
        for (dtype, count) in (0..).zip(&mut counts) {
            let before = tasks.len();
            for (number, feature) in (0..).zip(features).filter(|(_, feature)| feature.dtype == dtype) {
                let samples = self.samples as u32;
                tasks.extend(LookUpTask::of_feature(number, samples, feature.hotness, feature.dim));
            }
            *count = (tasks.len() - before) as u32;
        }
        (tasks, counts)
    }
}

/// What the exchange between ranks has of a layout.
impl Layout {
    /// Refuses what the exchange cannot number.
    pub(super) fn check_exchange(&self) -> Result<()> {
        let features = self.sharded.len() as u64;
        let limits = [
            ("look-ups of the longest feature, times features", features << self.place_bits()),
            ("rows that all ranks look up at an owner", (self.ranks * self.entries_max()) as u64 + 1),
        ];
        let most = u64::from(u32::MAX);
        match limits.into_iter().find(|(_, have)| *have > most) {
            Some((what, have)) => Err(Error::TooLarge { what, have, most }),
            None => Ok(()),
        }
    }

    /// Bits of a look-up's place in its feature.
    pub(super) fn place_bits(&self) -> u32 {
        let look_ups = self.features.iter().map(|feature| self.feature_look_ups(feature));
        bits_of(look_ups.max().unwrap_or(1))
    }

    /// Elements from one row to the next on their way between ranks.
    pub(super) fn wire_width(&self) -> usize {
        (VECTOR * self.vectors()).next_multiple_of(WIRE)
    }

    /// The features of what has landed: one table of rows as `T`, looked up by slots.
    pub(super) fn landing_features<T: Element>(&self) -> Vec<kernels::Feature> {
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
        self.kernel_features(0).into_iter().map(of).collect()
    }

    /// Distinct rows that a rank can look up.
    pub(super) fn slots_max(&self) -> usize {
        self.distinct_max(1, |(table, _)| self.tables[*table].rows)
    }

    /// Distinct rows that a rank can look up at one owner.
    pub(super) fn entries_max(&self) -> usize {
        let at = |owner| self.distinct_max(1, |(table, shard)| self.shard_rows(owner, *table, shard));
        (0..self.ranks).map(at).max().unwrap_or(0)
    }

    /// Distinct rows of an owner that all ranks together can look up.
    pub(super) fn union_max(&self, owner: usize) -> usize {
        self.distinct_max(self.ranks, |(table, shard)| self.shard_rows(owner, *table, shard))
    }

    /// Distinct rows that so many ranks can look up, where there are so many of a shard.
    fn distinct_max(&self, ranks: usize, rows: impl Fn(&(usize, Shard)) -> u64) -> usize {
        let of_shard = |(number, shard)| rows(shard).min((ranks * self.shard_look_ups(number)) as u64);
        self.shards.iter().enumerate().map(of_shard).sum::<u64>() as usize
    }
}

/// Bits that number so many things.
pub(super) fn bits_of(things: usize) -> u32 {
    usize::BITS - things.saturating_sub(1).leading_zeros()
}

/// What a table is stored as, as the kernels have it.
fn kernel_dtype(table: &TableSpec) -> u32 {
    match table.dtype {
        Dtype::Fp32 => kernels::Dtype::Fp32 as u32,
        Dtype::Bf16 => kernels::Dtype::Bf16 as u32,
        Dtype::Fp16 => kernels::Dtype::Fp16 as u32,
    }
}
