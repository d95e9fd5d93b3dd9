//! The layout of tables whose owners pool, as the exchange of bags sees it.

use rankine_cuda::Pointer;
use rankine_cuda::kernels::{self, BagPooling, PooledFeature};
use rankine_topology::Rank;

use crate::cuda::error::Result;
use crate::cuda::layout::parts::{Holder, Part};
use crate::cuda::layout::{Feature, Hotness, Layout};
use crate::placement::Owner;
use crate::rows::VECTOR;
use crate::table::{Pooling, TableSpec};

/// Sizes of a rank's own bags that owners pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PooledSizes {
    pub(crate) samples: usize,
    /// Features, one for each part of their tables.
    pub(crate) features: usize,
    /// Room for their ids.
    pub(crate) ids: usize,
    /// Room for the factors of ids with weights.
    pub(crate) factors: usize,
    /// Elements of the vectors of a sample.
    pub(crate) width: usize,
    /// Bytes per element of vectors and gradients.
    pub(crate) element_bytes: usize,
}

impl PooledSizes {
    pub(crate) fn new(layout: &Layout, element_bytes: usize) -> Self {
        let features = layout.pooled_features();
        let ids = |&(feature, _): &(usize, usize)| layout.columns[layout.features[feature].column].max();
        let weighted = |(feature, _): &&(usize, usize)| layout.weighted[layout.features[*feature].column];
        Self {
            samples: layout.samples,
            features: features.len(),
            ids: layout.samples * features.iter().map(ids).sum::<usize>(),
            factors: layout.samples * features.iter().filter(weighted).map(ids).sum::<usize>(),
            width: layout.pooled_width(),
            element_bytes,
        }
    }

    /// Words that say where the parts of each feature's bags start at an owner.
    pub(crate) fn starts(&self) -> usize {
        self.features * (self.samples + 1)
    }

    /// Bytes of the vectors of all samples.
    pub(crate) fn vector_bytes(&self) -> usize {
        self.samples * self.width * self.element_bytes
    }
}

impl Layout {
    /// Look-ups of tables whose owners pool: each feature, by number, for each of these parts, by number.
    pub(crate) fn pooled_features(&self) -> Vec<(usize, usize)> {
        let of_feature = |(number, feature): (usize, &Feature)| {
            let parts = self.pooled.iter().enumerate();
            let own = parts.filter(|(_, part)| part.table == feature.table);
            own.map(|(part, _)| (number, part)).collect::<Vec<_>>()
        };
        self.features.iter().enumerate().flat_map(of_feature).collect()
    }

    /// Elements of a part's row, padded.
    fn pooled_dim(&self, part: usize) -> usize {
        self.pooled[part].columns.len().next_multiple_of(VECTOR)
    }

    /// Elements of a sample's parts.
    fn pooled_width(&self) -> usize {
        self.pooled_features().into_iter().map(|(_, part)| self.pooled_dim(part)).sum()
    }

    /// What a rank receives as an owner: a column per rank and feature, and a table per part.
    pub(crate) fn received(&self, rank: Rank) -> Result<Self> {
        let of_part = |part: &Part| {
            let TableSpec { name, rows, dtype, .. } = &self.tables[part.table];
            // A table needs a row, even if another rank owns all of it; then nobody names it.
            let rows = part.rows_at(rank, *rows, self.topology()).max(1);
            TableSpec { name: name.clone(), rows, dim: part.columns.len(), dtype: *dtype, dynamic: None }
        };
        let tables: Vec<_> = self.pooled.iter().map(of_part).collect();
        let optimizers: Vec<_> = self.pooled.iter().map(|part| self.optimizers[part.table]).collect();
        let (mut columns, mut weighted, mut features) = (Vec::new(), Vec::new(), Vec::new());
        let mut vector_offset = 0;
        // Each rank of the node sends the parts of its rail's bags.
        let samples = self.nodes * self.samples;
        for _ in 0..self.ranks {
            for (feature, part) in self.pooled_features() {
                let column = self.features[feature].column;
                let max = self.columns[column].max();
                features.push(Feature {
                    column: columns.len(),
                    table: part,
                    vector_offset,
                    pooling: Pooling::Sum,
                });
                columns.push(Hotness::Ragged { max });
                weighted.push(self.weighted[column]);
                vector_offset += self.pooled_dim(part);
            }
        }
        let layout = Self::new(1, samples, vector_offset, &tables, &columns, &features)?;
        let layout = layout.with_weights(&weighted)?;
        Ok(layout.with_optimizers(&optimizers))
    }

    /// The shards of a rank's rows in the kernels' form, given the layout of what it receives.
    pub(crate) fn pooled_shards(&self, rank: Rank, received: &Self) -> Vec<kernels::Shard> {
        let topology = self.topology();
        let shard = |(part, shard): (&Part, kernels::Shard)| {
            let every_rank = matches!(part.holder, Holder::Owned(Owner::EveryRank));
            kernels::Shard {
                table: part.table as u32,
                column: part.columns.start as u32,
                rows: part.rows_at(rank, self.tables[part.table].rows, topology) as u32,
                row: if every_rank { rank.0 as u32 } else { 0 },
                step: if every_rank { self.ranks() as u32 } else { 1 },
                ..shard
            }
        };
        self.pooled.iter().zip(received.kernel_shards(Rank(0), Pointer::NULL)).map(shard).collect()
    }

    /// The features of a rank's batch in the kernels' form; the owners are `number_of` the ranks that own rows.
    pub(crate) fn pooled_by(&self, number_of: impl Fn(Rank) -> usize) -> Vec<PooledFeature> {
        let (mut part_offset, mut part_ids, mut part_factors) = (0, 0, 0);
        let of = |(number, part): (usize, usize)| {
            let (feature, dim) = (&self.features[number], self.pooled_dim(part));
            let hotness = self.columns[feature.column];
            let ragged = matches!(hotness, Hotness::Ragged { .. });
            let begin = self.offsets_begin(feature.column) as u32;
            let of_feature = PooledFeature {
                ids: self.ids_begin(feature.column) as u32,
                offsets: if ragged { begin } else { kernels::Feature::FIXED },
                hotness: hotness.max() as u32,
                pooling: self.bag_pooling(feature) as u32,
                rows: self.tables[feature.table].rows as u32,
                owner: match self.pooled[part].holder {
                    Holder::Owned(Owner::Rank(rank)) => number_of(rank) as u32,
                    _ => kernels::Feature::TURNS,
                },
                dim: dim as u32,
                vector_offset: (feature.vector_offset + self.pooled[part].columns.start) as u32,
                part_offset: part_offset as u32,
                part_ids: part_ids as u32,
                factors: self.factors_begin(feature.column) as u32,
                part_factors: part_factors as u32,
            };
            part_offset += dim;
            part_ids += self.samples * hotness.max();
            if self.weighted[feature.column] {
                part_factors += self.samples * hotness.max();
            }
            of_feature
        };
        self.pooled_features().into_iter().map(of).collect()
    }

    /// The features of the bags that a rank splits among the owners of its node, in the kernels' form.
    pub(crate) fn pooled_within_node(&self) -> Vec<PooledFeature> {
        let features = self.pooled_by(|owner| self.topology().local_rank(owner).0);
        if self.nodes == 1 {
            return features;
        }
        // Over several nodes these are what the first hop delivers: parts of bags, which have been summed only later.
        let by_factors = BagPooling::ByFactors as u32;
        let of = |(number, feature): (usize, PooledFeature)| PooledFeature {
            ids: feature.part_ids,
            offsets: (number * (self.samples + 1)) as u32,
            pooling: if feature.pooling == by_factors { by_factors } else { BagPooling::Sum as u32 },
            vector_offset: feature.part_offset,
            part_ids: (self.nodes * feature.part_ids as usize) as u32,
            factors: feature.part_factors,
            part_factors: (self.nodes * feature.part_factors as usize) as u32,
            ..feature
        };
        features.into_iter().enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::placement::{EmbeddingPlan, Exchange, TablePlan};
    use rankine_topology::Topology;

    /// Two GPUs per node, batches of five samples: a table whose rows take turns and one of the last rank.
    fn layout(nodes: usize) -> Layout {
        let ranks = 2 * nodes;
        let table = |dim| TableSpec { name: "t".into(), rows: 90, dim, dtype: Dtype::Fp32, dynamic: None };
        let tables = [table(6), table(8)];
        let columns = [Hotness::Ragged { max: 3 }, Hotness::Fixed(2)];
        let feature =
            |table, vector_offset| Feature { column: table, table, vector_offset, pooling: Pooling::Mean };
        let layout = Layout::new(ranks, 5, 40, &tables, &columns, &[feature(0, 4), feature(1, 20)]).unwrap();
        let plans = vec![
            TablePlan::row_wise(&tables[0], Exchange::Pooled),
            TablePlan::table_wise(&tables[1], Exchange::Pooled, Rank(ranks - 1)),
        ];
        let plan = EmbeddingPlan { topology: Topology::new(ranks, nodes).unwrap(), tables: plans };
        layout.with_nodes(nodes).unwrap().with_plan(&plan).unwrap()
    }

    #[test]
    fn bags_within_a_node_are_those_of_all_nodes() {
        for nodes in [1, 3] {
            let layout = layout(nodes);
            let received = layout.received(Rank(1)).unwrap();
            // A column for each rank and feature, with the samples of all nodes.
            assert_eq!((received.samples(), received.columns().len()), (5 * nodes, 4));
            assert_eq!(received.ids(), 2 * 5 * nodes * (3 + 2));
            let sizes = PooledSizes::new(&layout, 2);
            assert_eq!((sizes.ids, sizes.starts(), sizes.vector_bytes()), (25, 2 * 6, 5 * 16 * 2));
            let features = layout.pooled_within_node();
            let of = |value: fn(&PooledFeature) -> u32| [value(&features[0]), value(&features[1])];
            assert_eq!(of(|feature| feature.part_ids), [0, 15 * nodes as u32]);
            assert_eq!(of(|feature| feature.part_offset), [0, 8]);
            assert_eq!(of(|feature| feature.owner), [kernels::Feature::TURNS, 1]);
            // Over several nodes they are parts as they arrive, of which the first hop makes means.
            let (ids, offsets, means, vectors) = match nodes {
                1 => ([0, 15], [0, kernels::Feature::FIXED], [BagPooling::Mean; 2], [4, 20]),
                _ => ([0, 15], [0, 6], [BagPooling::Sum; 2], [0, 8]),
            };
            assert_eq!(of(|feature| feature.ids), ids);
            assert_eq!(of(|feature| feature.offsets), offsets);
            assert_eq!(of(|feature| feature.pooling), means.map(|pooling| pooling as u32));
            assert_eq!(of(|feature| feature.vector_offset), vectors);
            // Only columns with weights have factors.
            let weighted = layout.clone().with_weights(&[true, false]).unwrap();
            let sizes = PooledSizes::new(&weighted, 2);
            assert_eq!((weighted.factors(), sizes.ids, sizes.factors), (15, 25, 15));
            assert_eq!(weighted.received(Rank(1)).unwrap().factors(), 2 * 15 * nodes);
            let features = weighted.pooled_within_node();
            let of = |value: fn(&PooledFeature) -> u32| [value(&features[0]), value(&features[1])];
            assert_eq!(of(|feature| feature.pooling), [BagPooling::ByFactors as u32, means[1] as u32]);
            assert_eq!(of(|feature| feature.factors), [0, 15]);
            assert_eq!(of(|feature| feature.part_factors), [0, 15 * nodes as u32]);
            let by_node = layout.pooled_by(|owner| layout.topology().node_of(owner).0);
            assert_eq!(by_node[1].owner as usize, nodes - 1);
        }
    }
}
