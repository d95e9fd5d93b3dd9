//! One rank's part of all tables, and what it does with them in a step.
//!
//! Forward: the ids of the rank's own samples are split into frequent rows, which are looked up in the rank's
//! replica, and infrequent ones, for which either the distinct rows or the pooled bags are fetched from their owners.
//! Backward: gradients of frequent rows are left for an all-reduce, those of infrequent rows are sent to the owners.
//! Then each distinct row is updated once; frequent rows are updated by every rank alike.

use std::sync::Arc;

use rankine_topology::Rank;
use rayon::prelude::*;

use super::communicator::Communicator;
use super::hop::{BagList, Path, StreamSizes};
use crate::cpu::table::sum_in_runs;
use crate::cpu::{Bags, Feature, FeatureSlot, HostRows, Route, RowWeights, Table};
use crate::dtype::Rounding;
use crate::optimizer::{Optimizer, Step};
use crate::placement::{EmbeddingPlan, Exchange, Owner, Shard, TablePlan};
use crate::random::UniformField;
use crate::rows::{RowPart, RowSet};
use crate::table::{Pooling, TableSpec};

/// One rank's part of all tables of a model.
#[derive(Debug)]
pub struct RankTables {
    plan: Arc<EmbeddingPlan>,
    rank: Rank,
    tables: Vec<RankTable>,
    /// The routed batch whose gradients are still to come.
    batch: Option<RankBatch>,
}

/// One rank's part of a table.
#[derive(Debug)]
struct RankTable {
    spec: TableSpec,
    optimizer: Optimizer,
    /// The frequent rows, if there are any.
    replica: Option<Table>,
    /// The rank's rows of each shard, if it has any.
    shards: Vec<Option<Table>>,
    /// The random field of the initial weights, if they were drawn from one.
    field: Option<UniformField>,
}

/// Position of the gradients of a feature's vectors in a `[sample, stride]` matrix.
#[derive(Debug, Clone, Copy)]
pub struct BagGradients<'a> {
    /// The matrix.
    pub matrix: &'a [f32],
    /// The feature's position in it.
    pub slot: FeatureSlot,
}

/// A rank's batch between its forward pass and its update.
#[derive(Debug)]
struct RankBatch {
    tables: Vec<TableBatch>,
    rows: Option<Streams<Vec<u64>>>,
    bags: Option<Streams<BagList>>,
    /// The gradients of the infrequent rows that this rank owns, from [`RankTables::backward`] on.
    pending: Vec<ShardGradients>,
}

/// The bags of a table's features, one after another.
#[derive(Debug, Default)]
struct TableBatch {
    /// The number of bags of each feature.
    counts: Vec<usize>,
    /// The factor of the sum of each bag's rows.
    scales: Vec<f32>,
    /// Each bag's frequent rows, as numbers in the replica.
    frequent: BagList,
    /// Each bag's rows that have an owner.
    infrequent: BagList,
    /// The distinct rows of `infrequent`; empty if owners pool.
    route: Route,
}

/// The shards of all tables that use the same exchange.
#[derive(Debug)]
struct Streams<T> {
    /// Table and shard of each stream.
    of: Vec<(usize, usize)>,
    dims: Vec<usize>,
    round_vectors: Vec<usize>,
    round_ids: Vec<usize>,
    /// Whether some features have weights.
    weighted: bool,
    path: Path,
    /// Per stream, what this rank owns, by the table's own row numbers.
    owned: Vec<T>,
}

/// The summed gradients of some distinct rows of a shard.
#[derive(Debug)]
struct ShardGradients {
    table: usize,
    shard: usize,
    /// By their numbers at the owner, ascending.
    rows: Vec<u64>,
    /// `[row, columns of the shard]`
    sums: Vec<f32>,
}

impl RankTables {
    /// A rank's part of the tables at the start of training: the weights that [`Table::initialized`] gives to each
    /// whole table, or zeros without a seed.
    ///
    /// # Panics
    /// If the plan is for other tables.
    pub fn initialized(
        plan: Arc<EmbeddingPlan>,
        rank: Rank,
        tables: impl IntoIterator<Item = (TableSpec, Optimizer, Option<UniformField>)>,
    ) -> Self {
        let mut planned = plan.tables.iter();
        let tables = tables.into_iter().map(|(spec, optimizer, field)| {
            let plan_of_table = planned.next().expect("every table is planned");
            RankTable::initialized(plan_of_table, &plan, rank, spec, optimizer, field)
        });
        let tables = tables.collect();
        assert!(planned.next().is_none(), "every plan belongs to a table");
        Self { plan, rank, tables, batch: None }
    }

    /// The plan.
    pub fn plan(&self) -> &EmbeddingPlan {
        &self.plan
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Bytes of tables and optimizer state of a rank, or the largest number if there are more.
    pub fn bytes(plan: &EmbeddingPlan, rank: Rank, tables: &[(TableSpec, Optimizer)]) -> u64 {
        let of_table = |(plan_of_table, (spec, optimizer)): (&TablePlan, &(TableSpec, Optimizer))| -> u64 {
            let bytes = |rows, dim| {
                Table::bytes(
                    &TableSpec { name: String::new(), rows, dim, dtype: spec.dtype, dynamic: None },
                    optimizer.rule,
                )
            };
            let shards = plan_of_table
                .shards
                .iter()
                .map(|shard| bytes(shard.owner.rows_at(rank, spec.rows, plan.topology), shard.columns.len()));
            shards.fold(bytes(plan_of_table.frequent.len(), spec.dim), u64::saturating_add)
        };
        plan.tables.iter().zip(tables).map(of_table).fold(0, u64::saturating_add)
    }

    /// This rank's copy of the frequent rows, table by table: bitwise equal on all ranks.
    pub fn replicas(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter_map(|table| table.replica.as_ref())
    }

    /// All rows of this rank, for reading. Of frequent rows, which all ranks have, each rank is responsible for a
    /// share.
    pub fn rows(&self) -> HostRows<&Table> {
        let mut found = Vec::new();
        for (number, (planned, table)) in self.plan.tables.iter().zip(&self.tables).enumerate() {
            let location = PartLocation { plan: &self.plan, rank: self.rank, table: number };
            found.extend(table.replica.iter().map(|own| (location.of_frequent(own), own)));
            let shards = planned.shards.iter().zip(&table.shards);
            found.extend(shards.filter_map(|(shard, own)| {
                let own = own.as_ref()?;
                Some((location.of_shard(shard, own), own))
            }));
        }
        HostRows::new(found)
    }

    /// The same, for writing.
    pub fn rows_mut(&mut self) -> HostRows<&mut Table> {
        let mut found = Vec::new();
        for (number, (planned, table)) in self.plan.tables.iter().zip(&mut self.tables).enumerate() {
            let location = PartLocation { plan: &self.plan, rank: self.rank, table: number };
            found.extend(table.replica.iter_mut().map(|own| (location.of_frequent(own), own)));
            let shards = planned.shards.iter().zip(&mut table.shards);
            found.extend(shards.filter_map(|(shard, own)| {
                let own = own.as_mut()?;
                Some((location.of_shard(shard, own), own))
            }));
        }
        HostRows::new(found)
    }

    /// Looks up a batch: `batch` has the features of each table, over the samples of this rank only. Their vectors
    /// are written to their slots in `out`.
    ///
    /// # Panics
    /// If another rank has gone, or an id is not below its table's rows.
    pub fn forward(&mut self, communicator: &mut Communicator, batch: &[Vec<Feature<'_>>], out: &mut [f32]) {
        let mut tables: Vec<_> = self
            .tables
            .par_iter()
            .zip(&self.plan.tables)
            .zip(batch)
            .map(|((table, planned), features)| TableBatch::split(planned, table.spec.rows, features))
            .collect();
        let weighted = batch.iter().any(|features| are_weighted(features));
        let rows = self.open_rows(communicator, &tables);
        let bags = self.open_bags(communicator, &tables, weighted);

        let mut vectors: Vec<_> =
            self.tables.par_iter().zip(&mut tables).map(RankTable::pool_frequent).collect();
        if let Some(streams) = &rows {
            let owned = streams.of.iter().zip(&streams.owned);
            let weights = owned.map(|(&at, rows)| self.weights_of(at, rows)).collect::<Vec<_>>();
            let sizes = streams.sizes();
            let fetched = streams.path.down(communicator, sizes, &weights);
            for (&(table, shard), fetched) in streams.of.iter().zip(&fetched) {
                let columns = self.plan.tables[table].shards[shard].columns.clone();
                let (route, dim) = (&tables[table].route, self.tables[table].spec.dim);
                for (index, weights) in fetched.chunks_exact(columns.len()).enumerate() {
                    for bag in route.bags_of(index) {
                        let sum = &mut vectors[table][bag.sample * dim..][columns.clone()];
                        add_times(sum, weights, bag.factor);
                    }
                }
            }
        }
        if let Some(streams) = &bags {
            let owned = streams.of.iter().zip(&streams.owned);
            let pooled = owned.map(|(&at, parts)| self.pool_parts(at, parts)).collect::<Vec<_>>();
            let sizes = streams.sizes();
            let fetched = streams.path.down(communicator, sizes, &pooled);
            for (&(table, shard), fetched) in streams.of.iter().zip(&fetched) {
                let columns = self.plan.tables[table].shards[shard].columns.clone();
                let dim = self.tables[table].spec.dim;
                for (bag, part) in fetched.chunks_exact(columns.len()).enumerate() {
                    add(&mut vectors[table][bag * dim..][columns.clone()], part);
                }
            }
        }
        for ((table, vectors), (routed, features)) in
            self.tables.iter().zip(&vectors).zip(tables.iter().zip(batch))
        {
            let dim = table.spec.dim;
            let mut bags = vectors.chunks_exact(dim).zip(&routed.scales);
            for (&Feature { slot, .. }, &count) in features.iter().zip(&routed.counts) {
                for (sample, (vector, &scale)) in bags.by_ref().take(count).enumerate() {
                    let out = &mut out[sample * slot.stride + slot.offset..][..dim];
                    out.iter_mut().zip(vector).for_each(|(out, value)| *out = value * scale);
                }
            }
        }
        self.batch = Some(RankBatch { tables, rows, bags, pending: Vec::new() });
    }

    /// Elements that the gradients of all frequent rows take in an all-reduce: a vector and a mark per row.
    pub fn frequent_elements(&self) -> usize {
        self.plan.tables.iter().zip(&self.tables).map(|(p, table)| frequent_elements(p, table.spec.dim)).sum()
    }

    /// Takes the gradients of the vectors that [`RankTables::forward`] returned, feature by feature as there.
    /// Gradients of infrequent rows are sent to their owners; those of frequent rows are summed over this rank's
    /// samples into `frequent`, to be all-reduced.
    ///
    /// # Panics
    /// If [`RankTables::forward`] was not called before, or if another rank has gone.
    pub fn backward(
        &mut self,
        communicator: &mut Communicator,
        gradients: &[Vec<BagGradients<'_>>],
        frequent: &mut [f32],
    ) {
        let mut batch = self.batch.take().expect("a batch was looked up");
        let of_bags: Vec<_> = self
            .tables
            .par_iter()
            .zip(&batch.tables)
            .zip(gradients)
            .map(|((table, routed), gradients)| routed.gradients(table.spec.dim, gradients))
            .collect();
        frequent.fill(0.0);
        let mut rest = frequent;
        for (((planned, table), routed), gradients) in
            self.plan.tables.iter().zip(&self.tables).zip(&batch.tables).zip(&of_bags)
        {
            let (own, behind) = rest.split_at_mut(frequent_elements(planned, table.spec.dim));
            rest = behind;
            let (sums, marks) = own.split_at_mut(own.len() - planned.frequent.len() as usize);
            let route = routed.frequent.route(planned.frequent.len());
            let dim = table.spec.dim;
            for (&row, sum) in route.rows.iter().zip(sum_gradients(&route, dim, gradients).chunks_exact(dim))
            {
                sums[row as usize * dim..][..dim].copy_from_slice(sum);
                marks[row as usize] = 1.0;
            }
        }
        if let Some(streams) = &batch.rows {
            // All shards of a table have the same rows.
            let of_rows = self.tables.iter().zip(&batch.tables).zip(&of_bags);
            let of_rows = of_rows
                .map(|((table, routed), gradients)| sum_gradients(&routed.route, table.spec.dim, gradients));
            let of_rows: Vec<_> = of_rows.collect();
            let sums = streams.of.iter().map(|&(table, shard)| {
                let columns = self.plan.tables[table].shards[shard].columns.clone();
                columns_of(&of_rows[table], self.tables[table].spec.dim, columns)
            });
            let sums: Vec<_> = sums.collect();
            let owned = streams.path.up(communicator, streams.sizes(), &sums);
            for ((&(table, shard), rows), sums) in streams.of.iter().zip(&streams.owned).zip(owned) {
                let rows = self.local(table, shard, rows);
                batch.pending.push(ShardGradients { table, shard, rows, sums });
            }
        }
        if let Some(streams) = &batch.bags {
            let own = streams.of.iter().map(|&(table, shard)| {
                let columns = self.plan.tables[table].shards[shard].columns.clone();
                columns_of(&of_bags[table], self.tables[table].spec.dim, columns)
            });
            let own: Vec<_> = own.collect();
            let owned = streams.path.up(communicator, streams.sizes(), &own);
            for ((&(table, shard), parts), gradients) in streams.of.iter().zip(&streams.owned).zip(&owned) {
                let route = parts.route(self.tables[table].spec.rows);
                let dim = self.plan.tables[table].shards[shard].columns.len();
                let sums = sum_gradients(&route, dim, gradients);
                let rows = self.local(table, shard, &route.rows);
                batch.pending.push(ShardGradients { table, shard, rows, sums });
            }
        }
        self.batch = Some(batch);
    }

    /// Updates every row that the global batch names, once, from the gradients of [`RankTables::backward`];
    /// `frequent` is its output, all-reduced. Instead, all ranks may call [`RankTables::forget`].
    ///
    /// # Panics
    /// If [`RankTables::backward`] was not called before, or if another rank has gone.
    pub fn update(&mut self, communicator: &mut Communicator, frequent: &[f32], step: Step) {
        let pending = self.batch.take().expect("gradients were summed").pending;
        let mut rest = frequent;
        for (planned, table) in self.plan.tables.iter().zip(&mut self.tables) {
            let (own, behind) = rest.split_at(frequent_elements(planned, table.spec.dim));
            rest = behind;
            let rounding = table.rounding(step);
            let Some(replica) = &mut table.replica else { continue };
            let (sums, marks) = own.split_at(own.len() - planned.frequent.len() as usize);
            let touched = (0..planned.frequent.len()).filter(|&row| marks[row as usize] > 0.0);
            let touched: Vec<_> = touched.collect();
            let dim = table.spec.dim;
            let of_touched: Vec<_> =
                touched.iter().flat_map(|&row| &sums[row as usize * dim..][..dim]).copied().collect();
            replica.update_summed(&touched, &of_touched, None, step);
            if let Some(rounding) = rounding {
                let rows = touched.iter().map(|&index| (index, planned.frequent.row(index)));
                replica.round(rows, 0, rounding);
            }
        }
        for ShardGradients { table, shard, rows, sums } in pending {
            let squares = self.squares(communicator, (table, shard), &rows, &sums);
            let dim = self.tables[table].spec.dim;
            let squares: Option<Vec<_>> =
                squares.map(|squares| squares.iter().map(|square| square / dim as f32).collect());
            let rounding = self.tables[table].rounding(step);
            let Some(part) = &mut self.tables[table].shards[shard] else { continue };
            part.update_summed(&rows, &sums, squares.as_deref(), step);
            if let Some(rounding) = rounding {
                let Shard { owner, columns } = &self.plan.tables[table].shards[shard];
                let whole = |&row: &u64| (row, owner.global(row, self.rank, self.plan.topology));
                part.round(rows.iter().map(whole), columns.start, rounding);
            }
        }
    }

    /// Drops the batch whose gradients were summed: nothing is updated by it.
    pub fn forget(&mut self) {
        self.batch = None;
    }

    /// For rules with one number per row whose columns several ranks own: the sum of each row's squared gradients
    /// over all columns, in the order of shards.
    fn squares(
        &self,
        communicator: &mut Communicator,
        (table, shard): (usize, usize),
        rows: &[u64],
        sums: &[f32],
    ) -> Option<Vec<f32>> {
        let (planned, own) = (&self.plan.tables[table], &self.tables[table]);
        let rowwise = own.optimizer.rule.is_rowwise();
        if !rowwise || planned.shards.len() < 2 {
            return None;
        }
        let owners = planned.shards.iter().map(|shard| match shard.owner {
            Owner::Rank(rank) => rank,
            Owner::EveryRank => unreachable!("columns are owned by one rank each"),
        });
        let owners: Vec<_> = owners.collect();
        let part = own.shards[shard].as_ref()?;
        let squares = part.row_squares(rows, sums);
        let mut of_shards = communicator.swap_counted(&owners, vec![squares; owners.len()]).into_iter();
        let mut total = of_shards.next()?;
        of_shards.for_each(|squares| add(&mut total, &squares));
        Some(total)
    }

    fn open_rows(&self, communicator: &mut Communicator, tables: &[TableBatch]) -> Option<Streams<Vec<u64>>> {
        Streams::open(&self.plan, Exchange::Rows, false, |of, sizes, owners| {
            let rows: Vec<_> = of.iter().map(|&(table, _)| tables[table].route.rows.as_slice()).collect();
            Path::of_rows(communicator, sizes, &rows, owners)
        })
    }

    fn open_bags(
        &self,
        communicator: &mut Communicator,
        tables: &[TableBatch],
        weighted: bool,
    ) -> Option<Streams<BagList>> {
        Streams::open(&self.plan, Exchange::Pooled, weighted, |of, sizes, owners| {
            let bags: Vec<_> = of.iter().map(|&(table, _)| &tables[table].infrequent).collect();
            Path::of_bags(communicator, sizes, &bags, owners)
        })
    }

    /// Converts rows that this rank owns to their numbers at this rank.
    fn local(&self, table: usize, shard: usize, rows: &[u64]) -> Vec<u64> {
        let owner = self.plan.tables[table].shards[shard].owner;
        rows.iter().map(|&row| owner.local(row, self.plan.topology)).collect()
    }

    /// The weights of rows that this rank owns, one after another.
    fn weights_of(&self, (table, shard): (usize, usize), rows: &[u64]) -> Vec<f32> {
        let Some(part) = &self.tables[table].shards[shard] else { return Vec::new() };
        self.local(table, shard, rows).iter().flat_map(|&row| part.weights(row)).copied().collect()
    }

    /// The sums of bags of rows that this rank owns.
    fn pool_parts(&self, (table, shard): (usize, usize), parts: &BagList) -> Vec<f32> {
        let Some(part) = &self.tables[table].shards[shard] else { return Vec::new() };
        let ids = self.local(table, shard, &parts.ids);
        BagList { offsets: parts.offsets.clone(), ids, factors: parts.factors.clone() }.pool(part)
    }
}

/// Describes where a rank's part of a table is in the table.
struct PartLocation<'a> {
    plan: &'a EmbeddingPlan,
    rank: Rank,
    table: usize,
}

impl PartLocation<'_> {
    fn of_frequent(&self, own: &Table) -> RowPart {
        let frequent = &self.plan.tables[self.table].frequent;
        let share = self.plan.topology.share(frequent.len() as usize, self.rank);
        RowPart {
            table: self.table,
            rows: frequent.set(),
            own: share.start as u64..share.end as u64,
            ..RowPart::whole(self.table, own)
        }
    }

    fn of_shard(&self, Shard { columns, owner }: &Shard, own: &Table) -> RowPart {
        let topology = self.plan.topology;
        let rows = |number| owner.global(number, self.rank, topology);
        let count = own.spec().rows;
        let rows = RowSet::Every { first: rows(0), step: rows(1) - rows(0), count };
        // Frequent rows are holes in it, where the initial weights stay: listed rows take precedence, see `RowPart`.
        RowPart { rows, columns: columns.clone(), ..RowPart::whole(self.table, own) }
    }
}

impl<T> Streams<T> {
    /// Routes the shards of all tables that use the same exchange, if there are any.
    fn open(
        plan: &EmbeddingPlan,
        exchange: Exchange,
        weighted: bool,
        route: impl FnOnce(&[(usize, usize)], StreamSizes<'_>, &[Owner]) -> (Path, Vec<T>),
    ) -> Option<Self> {
        let tables = plan.tables.iter().enumerate().filter(|(_, planned)| planned.exchange == exchange);
        let of: Vec<_> =
            tables.flat_map(|(t, planned)| (0..planned.shards.len()).map(move |s| (t, s))).collect();
        if of.is_empty() {
            return None;
        }
        let shards = of.iter().map(|&(table, shard)| &plan.tables[table].shards[shard]);
        let (dims, owners): (Vec<_>, Vec<_>) = shards.map(|shard| (shard.columns.len(), shard.owner)).unzip();
        let rounds = of.iter().map(|&(table, _)| plan.tables[table].round);
        let (round_vectors, round_ids): (Vec<_>, Vec<_>) =
            rounds.map(|round| (round.vectors, round.ids)).unzip();
        let sizes =
            StreamSizes { dims: &dims, round_vectors: &round_vectors, round_ids: &round_ids, weighted };
        let (path, owned) = route(&of, sizes, &owners);
        Some(Self { of, dims, round_vectors, round_ids, weighted, path, owned })
    }

    fn sizes(&self) -> StreamSizes<'_> {
        let Self { dims, round_vectors, round_ids, weighted, .. } = self;
        StreamSizes { dims, round_vectors, round_ids, weighted: *weighted }
    }
}

impl RankTable {
    fn initialized(
        planned: &TablePlan,
        plan: &EmbeddingPlan,
        rank: Rank,
        spec: TableSpec,
        optimizer: Optimizer,
        field: Option<UniformField>,
    ) -> Self {
        let bound = spec.initial_bound();
        // The part of the table with these columns, and the rows that `row_of` returns.
        let part = |rows: u64, columns: std::ops::Range<usize>, row_of: &(dyn Fn(u64) -> u64 + Sync)| {
            if rows == 0 {
                return None;
            }
            let part = TableSpec {
                name: spec.name.clone(),
                rows,
                dim: columns.len(),
                dtype: spec.dtype,
                dynamic: None,
            };
            let Some(field) = field else { return Some(Table::zeroed(part, optimizer)) };
            Some(Table::filled(part, optimizer, |local, weights| {
                let mut whole = vec![0.0; spec.dim];
                field.fill_row(row_of(local), bound, &mut whole);
                weights.copy_from_slice(&whole[columns.clone()]);
            }))
        };
        let replica = part(planned.frequent.len(), 0..spec.dim, &|index| planned.frequent.row(index));
        let shards = planned.shards.iter().map(|shard| {
            let rows = shard.owner.rows_at(rank, spec.rows, plan.topology);
            part(rows, shard.columns.clone(), &|local| shard.owner.global(local, rank, plan.topology))
        });
        Self { shards: shards.collect(), replica, spec, optimizer, field }
    }

    /// How a step's weights are rounded, if they are.
    fn rounding(&self, step: Step) -> Option<Rounding> {
        Rounding::new(self.spec.dtype, self.field, step.number)
    }

    /// The sums of the frequent rows of each bag.
    fn pool_frequent((table, routed): (&Self, &mut TableBatch)) -> Vec<f32> {
        match &table.replica {
            Some(replica) => routed.frequent.pool(replica),
            None => vec![0.0; routed.scales.len() * table.spec.dim],
        }
    }
}

impl TableBatch {
    fn split(planned: &TablePlan, rows: u64, features: &[Feature<'_>]) -> Self {
        let mut batch = Self::default();
        let weighted = are_weighted(features);
        for feature in features {
            let Feature { bags, pooling, .. } = feature;
            batch.counts.push(bags.len());
            for sample in 0..bags.len() {
                let bag = bags.bag(sample);
                let mut factors = bags.factors(sample, *pooling);
                batch.scales.push(if factors.is_some() { 1.0 } else { pooling.scale(bag.len()) });
                for &row in bag {
                    assert!(row < rows, "row {row} is not below {rows}");
                    let (list, id) = match planned.frequent.index(row) {
                        Some(index) => (&mut batch.frequent, index),
                        None => (&mut batch.infrequent, row),
                    };
                    list.ids.push(id);
                    if weighted {
                        list.factors.push(factors.as_mut().and_then(Iterator::next).unwrap_or(1.0));
                    }
                }
                batch.frequent.end_bag();
                batch.infrequent.end_bag();
            }
        }
        if planned.exchange == Exchange::Rows {
            batch.route = batch.infrequent.route(rows);
        }
        batch
    }

    /// The gradients with respect to the sums of the bags' rows, `[bag, dim]`.
    fn gradients(&self, dim: usize, features: &[BagGradients<'_>]) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.scales.len() * dim);
        let mut scales = self.scales.iter();
        for (BagGradients { matrix, slot }, &count) in features.iter().zip(&self.counts) {
            for (bag, scale) in scales.by_ref().take(count).enumerate() {
                let gradient = &matrix[bag * slot.stride + slot.offset..][..dim];
                out.extend(gradient.iter().map(|gradient| gradient * scale));
            }
        }
        out
    }
}

impl BagList {
    fn feature(&self, dim: usize) -> Feature<'_> {
        let weights = (!self.factors.is_empty()).then_some(self.factors.as_slice());
        let bags = Bags { offsets: &self.offsets, ids: &self.ids, weights };
        Feature { bags, pooling: Pooling::Sum, slot: FeatureSlot { stride: dim, offset: 0 } }
    }

    fn route(&self, rows: u64) -> Route {
        let mut route = Route::default();
        route.build(&[self.feature(1)], rows);
        route
    }

    /// The sum of each bag's rows.
    fn pool(&self, table: &Table) -> Vec<f32> {
        let dim = table.spec().dim;
        let mut out = vec![0.0; self.len() * dim];
        table.pool(&self.feature(dim), 0, &mut out);
        out
    }
}

/// The sums of the gradients of each distinct row, `[row, dim]`, from those of the bags, `[bag, dim]`: in the order
/// of bags, in runs, as [`Table::update`] needs them.
fn sum_gradients(route: &Route, dim: usize, gradients: &[f32]) -> Vec<f32> {
    let mut sums = vec![0.0; route.rows.len() * dim];
    sums.par_chunks_exact_mut(dim).enumerate().for_each_init(
        || vec![0.0; dim],
        |run_sum, (index, total)| {
            sum_in_runs(route.bags_of(index), total, run_sum, |bag, sums| {
                add_times(sums, &gradients[bag.sample * dim..][..dim], bag.factor);
            });
        },
    );
    sums
}

/// Some columns of a `[row, dim]` matrix.
fn columns_of(matrix: &[f32], dim: usize, columns: std::ops::Range<usize>) -> Vec<f32> {
    matrix.chunks_exact(dim).flat_map(|row| &row[columns.clone()]).copied().collect()
}

fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// Whether the ids of some of a table's features have weights.
fn are_weighted(features: &[Feature<'_>]) -> bool {
    features.iter().any(|feature| feature.bags.weights.is_some())
}

/// Adds values times a factor, if there is one.
fn add_times(sums: &mut [f32], values: &[f32], factor: Option<f32>) {
    match factor {
        None => add(sums, values),
        Some(factor) => sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * factor),
    }
}

fn frequent_elements(planned: &TablePlan, dim: usize) -> usize {
    planned.frequent.len() as usize * (dim + 1)
}
