//! What a model must be so that it can be computed: asked of every spec that comes from outside.

use std::collections::HashSet;
use std::fmt::Display;

use super::spec::{Interaction, ModelSpec};

/// No part has more elements or members than this. With it no size in this crate exceeds 64 bits.
const COUNT_MAX: usize = 1 << 20;
/// No table has more rows.
const ROWS_MAX: u64 = 1 << 40;
/// Cross layers, whose parameters grow with the square of the vectors' elements.
const CROSS_LAYERS_MAX: usize = 1 << 10;

impl ModelSpec {
    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// The first thing that does not, in words that complete "the model is not one: ".
    pub fn validate(&self) -> Result<(), String> {
        let widths = self.bottom_mlp.iter().chain(&self.top_mlp).chain(self.tables.iter().map(|t| &t.dim));
        let counts = [self.bottom_mlp.len(), self.top_mlp.len(), self.tables.len(), self.features.len()];
        let counts = counts.iter().chain([&self.dense_columns]);
        if let Some(count) = widths.clone().chain(counts).find(|count| **count > COUNT_MAX) {
            return Err(format!("no part may have more than {COUNT_MAX} elements, and one has {count}"));
        }
        if widths.clone().any(|width| *width == 0) {
            return Err("a layer or an embedding has no elements".into());
        }
        if self.dense_columns == 0 && !self.bottom_mlp.is_empty() {
            return Err("it has a bottom MLP and no dense columns".into());
        }
        unique("table", self.tables.iter().map(|table| &table.name))?;
        unique("feature", self.features.iter().map(|feature| &feature.column))?;
        unique("head", self.heads.iter().map(|head| &head.label))?;
        if let Some(table) = self.tables.iter().find(|table| !(1..=ROWS_MAX).contains(&table.rows)) {
            return Err(format!(
                "table {} has {} rows, and may have 1 to {ROWS_MAX}",
                table.name, table.rows
            ));
        }
        if let Some(feature) = self.features.iter().find(|feature| feature.table >= self.tables.len()) {
            return Err(format!("feature {} looks up a table that is not there", feature.column));
        }
        let used: HashSet<_> = self.features.iter().map(|feature| feature.table).collect();
        if used.len() < self.tables.len() {
            return Err("a table is looked up by no feature".into());
        }
        if self.heads.is_empty() || self.heads.len() > COUNT_MAX {
            return Err(format!("it has {} heads", self.heads.len()));
        }
        if let Some(head) = self.heads.iter().find(|head| !(head.weight.is_finite() && head.weight >= 0.0)) {
            return Err(format!("head {} weighs {}", head.label, head.weight));
        }
        let elements = self.vector_elements();
        if elements == 0 || elements > 16 * COUNT_MAX {
            return Err(format!("the vectors of a sample have {elements} elements"));
        }
        self.validate_interaction()
    }

    fn validate_interaction(&self) -> Result<(), String> {
        let equal_lengths = || {
            let mut lengths: Vec<_> = self.features.iter().map(|feature| self.feature_dim(feature)).collect();
            lengths.extend((self.dense_columns > 0).then(|| self.bottom_outputs()));
            if lengths.windows(2).all(|pair| pair[0] == pair[1]) {
                Ok(())
            } else {
                Err("its vectors interact, and have different lengths".into())
            }
        };
        match self.interaction {
            Interaction::Dot if self.vectors() < 2 => {
                Err("it has one vector, and takes two to interact".into())
            }
            Interaction::Dot | Interaction::FactorizationMachine => equal_lengths(),
            Interaction::Cross { layers, rank } => {
                if layers == 0 || layers > CROSS_LAYERS_MAX {
                    Err(format!("it has {layers} cross layers"))
                } else if rank.is_some_and(|rank| rank == 0 || rank > COUNT_MAX) {
                    Err(format!("its cross layers have rank {}", rank.unwrap_or_default()))
                } else {
                    Ok(())
                }
            }
            Interaction::Concat => Ok(()),
        }
    }
}

fn unique<'a, T: Display + Eq + std::hash::Hash + 'a>(
    what: &str,
    names: impl Iterator<Item = &'a T>,
) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("two {what}s are named '{name}'"));
        }
    }
    Ok(())
}
