//! A choice for one table, before it becomes a plan.

use rankine_topology::Rank;

use super::input::TableInput;
use crate::placement::{Exchange, Placement, TablePlan};

/// A way to place one table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    pub(super) placement: Placement,
    pub(super) exchange: Exchange,
    /// Classes of the profile before this one are frequent.
    pub(super) split: usize,
    /// The owners of the table or of its columns, unless every rank is an owner.
    pub(super) owners: Vec<Rank>,
}

impl Choice {
    pub(super) fn replicated() -> Self {
        Self { placement: Placement::Replicated, exchange: Exchange::Rows, split: 0, owners: Vec::new() }
    }

    pub(super) fn row_wise(exchange: Exchange) -> Self {
        Self { placement: Placement::RowWise, exchange, ..Self::replicated() }
    }

    pub(super) fn hybrid(exchange: Exchange, split: usize) -> Self {
        Self { placement: Placement::Hybrid, exchange, split, ..Self::replicated() }
    }

    pub(super) fn table_wise(exchange: Exchange, owner: Rank) -> Self {
        Self { placement: Placement::TableWise, exchange, split: 0, owners: vec![owner] }
    }

    pub(super) fn column_wise(exchange: Exchange, owners: Vec<Rank>) -> Self {
        Self { placement: Placement::ColumnWise, exchange, split: 0, owners }
    }

    /// Converts the choice to the form that the back ends use.
    pub(super) fn plan(&self, table: &TableInput<'_>) -> TablePlan {
        let spec = table.spec;
        match self.placement {
            Placement::Replicated => TablePlan::replicated(spec),
            Placement::Hybrid => TablePlan::hybrid(spec, self.exchange, table.profile.frequent(self.split)),
            Placement::RowWise => TablePlan::row_wise(spec, self.exchange),
            Placement::TableWise => TablePlan::table_wise(spec, self.exchange, self.owners[0]),
            Placement::ColumnWise => TablePlan::column_wise(spec, self.exchange, &self.owners),
        }
    }
}
