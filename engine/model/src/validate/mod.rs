//! Whether a model can be computed: checked for every spec that is read from a file.

mod attention;

use std::collections::HashSet;
use std::fmt::Display;

use rankine_embedding::TableSpec;
use rankine_reader::schema::ROWS_MAX;

use super::interaction::COUNT_MAX;
use super::spec::ModelSpec;

/// A model cannot be computed. `Display` completes "not a valid model: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct InvalidModel {
    /// The first thing that does not fit.
    pub what: String,
}

impl ModelSpec {
    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// [`InvalidModel`] with the first thing that does not fit.
    pub fn validate(&self) -> Result<(), InvalidModel> {
        self.check().map_err(|what| InvalidModel { what })
    }

    fn check(&self) -> Result<(), String> {
        let widths = self.bottom_mlp.iter().chain(&self.top_mlp).chain(self.tables.iter().map(|t| &t.dim));
        let counts = [self.bottom_mlp.len(), self.top_mlp.len(), self.tables.len(), self.features.len()];
        let counts = counts.iter().chain([&self.dense_columns]);
        if let Some(count) = widths.clone().chain(counts).find(|count| **count > COUNT_MAX) {
            return Err(format!(
                "a part of the model has {count} elements; at most {COUNT_MAX} are possible"
            ));
        }
        if widths.clone().any(|width| *width == 0) {
            return Err("a layer or an embedding has no elements".into());
        }
        if self.dense_columns == 0 && !self.bottom_mlp.is_empty() {
            return Err("the model has a bottom MLP but no dense columns".into());
        }
        unique("table", self.tables.iter().map(|table| &table.name))?;
        unique("feature", self.features.iter().map(|feature| &feature.column))?;
        unique("attended sequence", self.attention.iter().map(|attention| &attention.sequence))?;
        unique("head", self.heads.iter().map(|head| &head.label))?;
        if let Some(table) = self.tables.iter().find(|table| !(1..=ROWS_MAX).contains(&table.rows)) {
            return Err(format!("table {} has {} rows; a table has 1 to {ROWS_MAX}", table.name, table.rows));
        }
        let fits = |table: &TableSpec| {
            table.dynamic.is_none_or(|rows| rows.is_valid() && rows.table_rows() == table.rows)
        };
        if let Some(table) = self.tables.iter().find(|table| !fits(table)) {
            let rows = table.rows;
            return Err(format!(
                "table {} has {rows} rows, which is not the number for its capacity",
                table.name
            ));
        }
        if let Some(feature) = self.features.iter().find(|feature| feature.table >= self.tables.len()) {
            return Err(format!("feature {} uses a table that does not exist", feature.column));
        }
        let used: HashSet<_> = self.features.iter().map(|feature| feature.table).collect();
        if used.len() < self.tables.len() {
            return Err("no feature uses one of the tables".into());
        }
        if self.heads.is_empty() || self.heads.len() > COUNT_MAX {
            return Err(format!("the model has {} heads", self.heads.len()));
        }
        if let Some(head) = self.heads.iter().find(|head| !(head.weight.is_finite() && head.weight >= 0.0)) {
            return Err(format!("head {} has weight {}", head.label, head.weight));
        }
        self.check_attention()?;
        let elements = self.vector_elements();
        if elements == 0 || elements > 16 * COUNT_MAX {
            return Err(format!("the vectors of a sample have {elements} elements"));
        }
        self.interaction.validate(self.vector_sizes())
    }
}

fn unique<'a, T: Display + Eq + std::hash::Hash + 'a>(
    what: &str,
    names: impl Iterator<Item = &'a T>,
) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("two {what}s are named `{name}`"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Dtype, Pooling, TableSpec};

    use super::*;
    use crate::{FeatureSpec, HeadSpec, Interaction};

    fn spec() -> ModelSpec {
        let table = |number: usize| TableSpec {
            name: format!("T{number}"),
            rows: 10,
            dim: 4,
            dtype: Dtype::Fp32,
            dynamic: None,
        };
        let feature = |table: usize| FeatureSpec {
            column: format!("C{table}"),
            table,
            pooling: Pooling::Sum,
            weighted: false,
        };
        let head =
            |number: usize| HeadSpec { label: format!("L{number}"), label_number: number, weight: 1.0 };
        ModelSpec {
            dense_columns: 2,
            bottom_mlp: vec![3, 4],
            interaction: Interaction::Dot,
            wide: false,
            top_mlp: vec![5],
            heads: (0..2).map(head).collect(),
            tables: (0..2).map(table).collect(),
            features: (0..2).map(feature).collect(),
            attention: Vec::new(),
        }
    }

    #[track_caller]
    fn assert_refused(change: impl Fn(&mut ModelSpec), words: &str) {
        let mut spec = spec();
        change(&mut spec);
        let refused = spec.validate().expect_err("the model is invalid");
        assert!(refused.what.contains(words), "{refused}");
    }

    #[track_caller]
    fn assert_admitted(change: impl Fn(&mut ModelSpec)) {
        let mut spec = spec();
        change(&mut spec);
        assert_eq!(spec.validate(), Ok(()));
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        assert_admitted(|_| {});
        assert_refused(|spec| spec.tables[1].name = "T0".into(), "two tables are named `T0`");
        assert_refused(|spec| spec.features[1].column = "C0".into(), "two features are named `C0`");
        assert_refused(|spec| spec.heads[1].label = "L0".into(), "two heads are named `L0`");
        assert_refused(|spec| spec.features[1].table = 2, "feature C1 uses a table that does not exist");
        assert_refused(|spec| spec.features[1].table = 0, "no feature uses one of the tables");
        assert_refused(|spec| spec.heads.clear(), "the model has 0 heads");
        assert_refused(|spec| spec.dense_columns = 0, "a bottom MLP but no dense columns");
        assert_refused(|spec| spec.top_mlp[0] = 0, "has no elements");
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            assert_refused(|spec| spec.heads[1].weight = weight, "head L1 has weight");
        }
        assert_admitted(|spec| spec.heads[1].weight = 0.0);
        let nothing = |spec: &mut ModelSpec| {
            (spec.dense_columns, spec.interaction) = (0, Interaction::Concat);
            spec.bottom_mlp.clear();
            spec.tables.clear();
            spec.features.clear();
        };
        assert_refused(nothing, "the vectors of a sample have 0 elements");
    }

    #[test]
    fn sizes_have_bounds() {
        assert_admitted(|spec| spec.top_mlp[0] = 1 << 20);
        assert_refused(
            |spec| spec.top_mlp[0] = (1 << 20) + 1,
            "1048577 elements; at most 1048576 are possible",
        );
        assert_refused(|spec| spec.bottom_mlp[0] = (1 << 20) + 1, "has 1048577 elements");
        assert_refused(|spec| spec.dense_columns = (1 << 20) + 1, "has 1048577 elements");
        assert_refused(|spec| spec.top_mlp = vec![1; (1 << 20) + 1], "has 1048577 elements");
        assert_admitted(|spec| spec.tables[1].rows = 1 << 40);
        assert_refused(|spec| spec.tables[1].rows = (1 << 40) + 1, "table T1 has 1099511627777 rows");
        assert_refused(|spec| spec.tables[1].rows = 0, "table T1 has 0 rows; a table has 1 to");
        // Sixteen vectors of the largest length are admitted, and one element more is not.
        let wide = |elements: usize| {
            move |spec: &mut ModelSpec| {
                spec.interaction = Interaction::Concat;
                spec.bottom_mlp = vec![elements];
                spec.tables = (0..15)
                    .map(|number| TableSpec {
                        name: format!("T{number}"),
                        rows: 1,
                        dim: 1 << 20,
                        dtype: Dtype::Fp32,
                        dynamic: None,
                    })
                    .collect();
                let feature = |table| FeatureSpec {
                    column: format!("C{table}"),
                    table,
                    pooling: Pooling::Sum,
                    weighted: false,
                };
                spec.features = (0..15).map(feature).collect();
            }
        };
        assert_admitted(wide(1 << 20));
        let one_more = |spec: &mut ModelSpec| {
            wide(1 << 20)(spec);
            spec.tables.push(TableSpec {
                name: "more".into(),
                rows: 1,
                dim: 1,
                dtype: Dtype::Fp32,
                dynamic: None,
            });
            spec.features.push(FeatureSpec {
                column: "more".into(),
                table: 15,
                pooling: Pooling::Sum,
                weighted: false,
            });
        };
        assert_refused(one_more, "have 16777217 elements");
    }

    #[test]
    fn interactions_check_their_vectors() {
        for interaction in [Interaction::Dot, Interaction::FactorizationMachine] {
            let unequal = "the vectors interact but have different lengths";
            assert_refused(|spec| (spec.interaction, spec.tables[1].dim) = (interaction, 5), unequal);
            assert_refused(|spec| (spec.interaction, spec.bottom_mlp[1]) = (interaction, 5), unequal);
        }
        let single = |spec: &mut ModelSpec| {
            spec.tables.truncate(1);
            spec.features.truncate(1);
            spec.bottom_mlp.clear();
            spec.dense_columns = 0;
        };
        assert_refused(single, "needs two vectors, and the model has one");
        let cross = |layers, rank| {
            move |spec: &mut ModelSpec| {
                spec.interaction = Interaction::Cross { layers, rank };
                spec.tables[1].dim = 5;
            }
        };
        assert_admitted(cross(1, None));
        assert_admitted(cross(1 << 10, Some(1 << 20)));
        assert_refused(cross(0, None), "the model has 0 cross layers");
        assert_refused(cross((1 << 10) + 1, None), "the model has 1025 cross layers");
        assert_refused(cross(1, Some(0)), "the cross layers have rank 0");
        assert_refused(cross(1, Some((1 << 20) + 1)), "the cross layers have rank 1048577");
    }
}
