//! Counts the look-ups of a batch, for monitoring.

use rankine_backend::LookUpCount;
use rankine_model::ModelSpec;
use rankine_reader::Samples;
use rayon::prelude::*;

/// Counts the look-ups of a batch, and the distinct rows among them, table by table.
pub(super) fn count(spec: &ModelSpec, samples: &Samples) -> Vec<LookUpCount> {
    let tables = spec.tables.par_iter().enumerate().map(|(number, table)| {
        let features = spec.features.iter().zip(&samples.categorical);
        let of_table = features.filter(|(feature, _)| feature.table == number);
        let mut rows: Vec<u64> = of_table.flat_map(|(_, bags)| bags.ids.iter().copied()).collect();
        let look_ups = rows.len() as u64;
        rows.sort_unstable();
        rows.dedup();
        LookUpCount { table: table.name.clone(), look_ups, distinct_rows: rows.len() as u64 }
    });
    tables.collect()
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Dtype, Pooling, TableSpec};
    use rankine_reader::samples::Bags;

    use super::*;
    use rankine_model::{FeatureSpec, HeadSpec, Interaction};

    #[test]
    fn rows_count_once_per_table_and_look_ups_each_time() {
        let table =
            |name: &str| TableSpec { name: name.into(), rows: 10, dim: 4, dtype: Dtype::Fp32, dynamic: None };
        let feature = |column: &str, table| FeatureSpec {
            column: column.into(),
            table,
            pooling: Pooling::Sum,
            weighted: false,
        };
        let spec = ModelSpec {
            dense_columns: 0,
            bottom_mlp: Vec::new(),
            interaction: Interaction::Dot,
            wide: false,
            top_mlp: vec![4],
            heads: vec![HeadSpec { label: "label".into(), label_number: 0, weight: 1.0 }],
            tables: vec![table("shared"), table("own"), table("unused")],
            features: vec![feature("a", 0), feature("b", 1), feature("c", 0)],
            attention: Vec::new(),
        };
        let bags = |ids: &[u64]| Bags {
            offsets: vec![0, 1, ids.len() as u32],
            ids: ids.to_vec(),
            weights: Vec::new(),
        };
        let categorical = vec![bags(&[3, 3, 5]), bags(&[3, 3]), bags(&[5, 7])];
        let samples = Samples { len: 2, categorical, ..Samples::default() };
        let counted = |table: &str, look_ups, distinct_rows| LookUpCount {
            table: table.into(),
            look_ups,
            distinct_rows,
        };
        let expected = [counted("shared", 5, 3), counted("own", 2, 1), counted("unused", 0, 0)];
        assert_eq!(count(&spec, &samples), expected);
    }
}
