//! Dynamic tables: which id of a batch has which row, and the rows that begin anew.
//!
//! All ranks share one membership per table, and its rows are found before samples are divided among the ranks. So
//! neither memberships nor rows depend on the number of ranks.

use std::collections::HashSet;
use std::sync::Arc;

use rankine_embedding::cpu::{HostRows, Table};
use rankine_embedding::membership::{
    Admission, DynamicTableState, Eviction, FullTable, IfFull, InitialRows, InvalidMembership, NewRow,
    SHARED_ROW, SavedMembership,
};
use rankine_embedding::rows::{RowPiece, RowSet};
use rankine_embedding::{Dtype, Membership, Optimizer, TableSpec};
use rankine_model::{Model, ModelSpec};
use rankine_reader::Samples;
use rankine_reader::samples::Bags;

/// The memberships of a model's tables.
#[derive(Debug, Clone, Default)]
pub(super) struct DynamicTables {
    tables: Vec<DynamicTable>,
}

/// A table with its membership.
#[derive(Debug, Clone)]
struct DynamicTable {
    /// Its number among the tables of the spec.
    number: usize,
    name: String,
    /// Shared with older versions of a model that scores, if they have the same ids.
    membership: Arc<Membership>,
    /// The columns that look it up, ascending.
    columns: Vec<usize>,
    /// The tables that have the membership's rows: itself, then the tables of first-order terms.
    followers: Vec<Follower>,
}

/// A table whose rows begin anew when an id gets them.
#[derive(Debug, Clone)]
struct Follower {
    /// Its number among all tables of the model.
    number: usize,
    table: TableSpec,
    optimizer: Optimizer,
    initial: InitialRows,
}

/// The rows of a table that begin anew in a step.
#[derive(Debug)]
pub(super) struct NewRows {
    /// The number of the table among those with a membership.
    of: usize,
    rows: Vec<NewRow>,
}

impl DynamicTables {
    /// Creates memberships without ids. Without a seed, rows begin with zeros.
    pub(super) fn new(model: &Model, seed: Option<u64>) -> Self {
        let spec = &model.spec;
        let all = model.all_tables();
        let follower = |number: usize| {
            let (table, optimizer) = all[number].clone();
            let initial = match seed.filter(|_| number < spec.tables.len()) {
                Some(seed) => InitialRows::new(table.initial_bound(), seed, number as u32),
                None => InitialRows::zeros(),
            };
            Follower { number, table, optimizer, initial }
        };
        let dynamic = spec.tables.iter().enumerate();
        let dynamic = dynamic.filter_map(|(number, table)| Some((number, table, table.dynamic?)));
        let tables = dynamic.map(|(number, table, rows)| {
            let columns = columns_of(spec, number);
            let wide = columns.iter().filter(|_| spec.wide).map(|column| spec.tables.len() + column);
            DynamicTable {
                number,
                name: table.name.clone(),
                membership: Arc::new(Membership::new(rows)),
                followers: std::iter::once(number).chain(wide).map(follower).collect(),
                columns,
            }
        });
        Self { tables: tables.collect() }
    }

    /// Returns the memberships, each with the number of its table.
    pub(super) fn memberships(&self) -> impl Iterator<Item = (usize, &Membership)> {
        self.tables.iter().map(|table| (table.number, &*table.membership))
    }

    /// Returns the same, mutable.
    pub(super) fn memberships_mut(&mut self) -> impl Iterator<Item = (usize, &mut Membership)> {
        self.tables.iter_mut().map(|table| (table.number, Arc::make_mut(&mut table.membership)))
    }

    /// Replaces memberships, given with the numbers of their tables.
    ///
    /// # Panics
    /// If one is of a table with other rows.
    pub(super) fn set(&mut self, saved: Vec<(usize, Membership)>) {
        for (number, membership) in saved {
            let table = self.tables.iter_mut().find(|table| table.number == number);
            let table = table.expect("the table has a membership");
            assert_eq!(table.membership.rows(), membership.rows(), "the table has as many rows");
            table.membership = Arc::new(membership);
        }
    }

    /// Changes which ids have rows of a table, given by its number.
    ///
    /// # Errors
    /// If the changes do not belong to its membership.
    pub(super) fn change(&mut self, number: usize, saved: &SavedMembership) -> Result<(), InvalidMembership> {
        let table = self.tables.iter_mut().find(|table| table.number == number);
        table.map_or(Ok(()), |table| Arc::make_mut(&mut table.membership).restore(saved))
    }

    /// Returns how full each table is.
    pub(super) fn states(&self) -> Vec<DynamicTableState> {
        let state = |table: &DynamicTable| DynamicTableState {
            table: table.name.clone(),
            rows: table.membership.keys(),
            capacity: table.membership.rows().table_rows() - 1,
            counts: table.membership.counts(),
        };
        self.tables.iter().map(state).collect()
    }

    /// Admits the ids of a step's batch. Returns the batch with rows in place of ids, and the rows that begin anew;
    /// `None` if the model has no such tables.
    ///
    /// # Errors
    /// [`FullTable`], after which the memberships must not be used any more.
    pub(super) fn admit(
        &mut self,
        batch: &Samples,
        step: u64,
    ) -> Result<Option<(Samples, Vec<NewRows>)>, FullTable> {
        if self.tables.is_empty() {
            return Ok(None);
        }
        let mut translated = batch.clone();
        let mut new_rows = Vec::new();
        for (of, table) in self.tables.iter_mut().enumerate() {
            let keys = keys_in_order(batch, &table.columns);
            let membership = Arc::make_mut(&mut table.membership);
            let Admission { rows, new_rows: rows_of_table, refused } = membership.admit(step, &keys);
            set_in_order(&mut translated, &table.columns, &rows);
            if let Some(&first) = refused.first() {
                table.refuse(&mut translated, &refused, keys[first])?;
            }
            new_rows.push(NewRows { of, rows: rows_of_table });
        }
        Ok(Some((translated, new_rows)))
    }

    /// Returns a batch with rows in place of ids, without admitting any; `None` if the model has no such tables. Ids
    /// without a row have the shared row.
    pub(super) fn find(&self, batch: &Samples) -> Option<Samples> {
        if self.tables.is_empty() {
            return None;
        }
        let mut translated = batch.clone();
        for table in &self.tables {
            for &column in &table.columns {
                for id in &mut translated.categorical[column].ids {
                    *id = table.membership.find(*id).unwrap_or(SHARED_ROW);
                }
            }
        }
        Some(translated)
    }

    /// Sets the rows that begin anew to their initial weights and state, as far as they are among `rows`.
    pub(super) fn reset(&self, new_rows: &[NewRows], mut rows: HostRows<&mut Table>) {
        for NewRows { of, rows: new } in new_rows {
            if !new.is_empty() {
                self.tables[*of].followers.iter().for_each(|follower| follower.reset(new, &mut rows));
            }
        }
    }
}

impl DynamicTable {
    /// Does what the job says with look-ups of ids that were refused, given by their places among the table's look-ups.
    fn refuse(&self, batch: &mut Samples, refused: &[usize], key: u64) -> Result<(), FullTable> {
        match self.membership.rows().evict {
            Eviction::None { if_full: IfFull::Fail } => Err(FullTable {
                table: self.name.clone(),
                key,
                keys: self.membership.keys(),
                capacity: self.membership.rows().table_rows() - 1,
            }),
            Eviction::None { if_full: IfFull::Skip } => {
                remove_in_order(batch, &self.columns, refused);
                Ok(())
            }
            Eviction::None { if_full: IfFull::Shared }
            | Eviction::Lru
            | Eviction::Lfu
            | Eviction::Ttl { .. } => Ok(()),
        }
    }
}

impl Follower {
    fn reset(&self, new: &[NewRow], rows: &mut HostRows<&mut Table>) {
        let (dim, rule) = (self.table.dim, self.optimizer.rule);
        let mut weights = vec![0.0; new.len() * dim];
        for (row, weights) in new.iter().zip(weights.chunks_exact_mut(dim)) {
            self.initial.fill(row.key, weights);
            weights.iter_mut().for_each(|weight| *weight = self.table.dtype.nearest(*weight));
        }
        let per_kind = if rule.is_rowwise() { new.len() } else { weights.len() };
        let mut state = vec![0.0; per_kind * rule.state_names().len()];
        rule.initialize(&weights, &mut state);
        rows.replace(&RowPiece {
            table: self.number,
            columns: 0..dim,
            rows: RowSet::from(new.iter().map(|new| new.row).collect::<Vec<_>>()),
            dtype: Dtype::Fp32,
            weights: bytemuck::cast_slice(&weights),
            state: state.chunks_exact(per_kind).collect(),
        });
    }
}

/// Returns the columns that look up a table, ascending.
fn columns_of(spec: &ModelSpec, table: usize) -> Vec<usize> {
    let columns = spec.features.iter().enumerate();
    columns.filter(|(_, feature)| feature.table == table).map(|(column, _)| column).collect()
}

/// Calls `visit` with the column and the place of every id of some columns: sample by sample, then column by column.
fn in_order(batch: &Samples, columns: &[usize], mut visit: impl FnMut(usize, usize)) {
    for sample in 0..batch.len {
        for &column in columns {
            let offsets = &batch.categorical[column].offsets;
            (offsets[sample]..offsets[sample + 1]).for_each(|place| visit(column, place as usize));
        }
    }
}

fn keys_in_order(batch: &Samples, columns: &[usize]) -> Vec<u64> {
    let mut keys =
        Vec::with_capacity(columns.iter().map(|&column| batch.categorical[column].ids.len()).sum());
    in_order(batch, columns, |column, place| keys.push(batch.categorical[column].ids[place]));
    keys
}

fn set_in_order(batch: &mut Samples, columns: &[usize], rows: &[u64]) {
    let mut next = rows.iter();
    for sample in 0..batch.len {
        for &column in columns {
            let Bags { offsets, ids, .. } = &mut batch.categorical[column];
            let bag = &mut ids[offsets[sample] as usize..offsets[sample + 1] as usize];
            bag.iter_mut().zip(next.by_ref()).for_each(|(id, &row)| *id = row);
        }
    }
}

/// Removes ids from their bags, given by their places in the order of [`in_order`], ascending.
fn remove_in_order(batch: &mut Samples, columns: &[usize], removed: &[usize]) {
    let (mut removed, mut number) = (removed.iter().peekable(), 0);
    let mut places = HashSet::new();
    in_order(batch, columns, |column, place| {
        if removed.next_if(|&&next| next == number).is_some() {
            places.insert((column, place));
        }
        number += 1;
    });
    for &column in columns {
        let bags = &batch.categorical[column];
        let mut kept = Bags::default();
        for sample in 0..batch.len {
            let bag = bags.offsets[sample] as usize..bags.offsets[sample + 1] as usize;
            let stay = bag.filter(|&place| !places.contains(&(column, place)));
            let stay: Vec<usize> = stay.collect();
            if !bags.weights.is_empty() {
                kept.weights.extend(stay.iter().map(|&place| bags.weights[place]));
            }
            kept.push(stay.iter().map(|&place| bags.ids[place]));
        }
        batch.categorical[column] = kept;
    }
}
