//! Whether attention suits its features.

use std::collections::HashSet;

use rankine_reader::schema::HOTNESS_MAX;

use crate::attention::{AttentionSpec, AttentionUnit, POSITION_ELEMENTS_MAX};
use crate::interaction::COUNT_MAX;
use crate::spec::ModelSpec;

impl ModelSpec {
    /// Checks that each attention has features that suit it.
    ///
    /// # Errors
    /// What does not fit, in words that complete "not a valid model: ".
    pub(super) fn check_attention(&self) -> Result<(), String> {
        let attributes: Vec<_> = self.attention.iter().flat_map(|attention| &attention.features).collect();
        let mut seen = HashSet::new();
        if !attributes.iter().all(|attribute| seen.insert(*attribute)) {
            return Err("a feature is twice an attribute of a sequence".into());
        }
        for AttentionSpec { sequence, features, length_max, unit, position_embedding } in &self.attention {
            let refuse = |what: String| Err(format!("the attention over {sequence} {what}"));
            if features.is_empty() {
                return refuse("has no attributes".into());
            }
            if let Some(absent) = features.iter().chain(unit.query()).find(|&&one| one >= self.features.len())
            {
                return refuse(format!("reads feature {absent}, which does not exist"));
            }
            if !(1..=HOTNESS_MAX as usize).contains(length_max) {
                return refuse(format!("has up to {length_max} positions; the limit is {HOTNESS_MAX}"));
            }
            if features.iter().any(|&feature| self.features[feature].weighted) {
                return refuse("has ids with weights".into());
            }
            if let Some(query) = unit.query().iter().find(|query| seen.contains(query)) {
                return refuse(format!("has feature {query}, an attribute of a sequence, in its query"));
            }
            let dims = |numbers: &[usize]| -> Vec<usize> {
                numbers.iter().map(|&number| self.feature_dim(&self.features[number])).collect()
            };
            if *unit != AttentionUnit::Mean && dims(features) != dims(unit.query()) {
                return refuse("has a query whose vectors differ in length from its attributes".into());
            }
            let elements = length_max * dims(features).iter().sum::<usize>();
            if position_embedding.is_some() && elements > POSITION_ELEMENTS_MAX {
                return refuse(format!(
                    "has vectors of {elements} elements for its positions; the limit is {POSITION_ELEMENTS_MAX}"
                ));
            }
            let AttentionUnit::Din { hidden, .. } = unit else { continue };
            if hidden.len() > COUNT_MAX {
                return refuse(format!("has {} hidden layers; {COUNT_MAX} are possible", hidden.len()));
            }
            if let Some(count) = hidden.iter().find(|count| !(1..=COUNT_MAX).contains(*count)) {
                return refuse(format!(
                    "has a hidden layer of {count} elements; 1 to {COUNT_MAX} are possible"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rankine_embedding::{Dtype, Pooling, TableSpec};
    use rankine_reader::schema::Keep;

    use super::*;
    use crate::spec::{FeatureSpec, HeadSpec};
    use crate::{Interaction, Layer};

    /// Features 0 and 1 with rows of 4 and 6 elements, and a sequence of features 2 and 3 over the same tables.
    fn spec() -> ModelSpec {
        let table = |(number, dim)| TableSpec {
            name: format!("T{number}"),
            rows: 10,
            dim,
            dtype: Dtype::Fp32,
            dynamic: None,
        };
        let feature = |number: usize| FeatureSpec {
            column: format!("C{number}"),
            table: number % 2,
            pooling: Pooling::Sum,
            weighted: false,
        };
        let unit = AttentionUnit::Din { query: vec![0, 1], hidden: vec![36, 5] };
        let attention = AttentionSpec {
            sequence: "S".into(),
            features: vec![2, 3],
            length_max: 50,
            unit,
            position_embedding: None,
        };
        ModelSpec {
            dense_columns: 3,
            bottom_mlp: vec![7],
            interaction: Interaction::Cross { layers: 1, rank: None },
            wide: false,
            top_mlp: Vec::new(),
            heads: vec![HeadSpec { label: "click".into(), label_number: 0, weight: 1.0 }],
            tables: [(0, 4), (1, 6)].map(table).into(),
            features: (0..5).map(feature).collect(),
            attention: vec![attention],
        }
    }

    #[test]
    fn units_are_layers_between_bottom_and_cross_layers() {
        let mut spec = spec();
        spec.attention.push(AttentionSpec {
            sequence: "T".into(),
            features: vec![4],
            length_max: 1,
            unit: AttentionUnit::Dot { query: vec![0] },
            position_embedding: Some(Keep::Last),
        });
        assert_eq!((spec.validate(), spec.key_elements(&spec.attention[0])), (Ok(()), 10));
        assert_eq!([1, 3, 4].map(|feature| spec.attention_of(feature)), [None, Some(0), Some(1)]);
        let layers = spec.dense_layout().named_layers();
        let layer = |(name, layer): &(String, Layer)| (name.clone(), layer.inputs, layer.outputs, layer.relu);
        let unit: Vec<_> = layers[1..4].iter().map(layer).collect();
        let expected = [(0, 40, 36, true), (1, 36, 5, true), (2, 5, 1, false)]
            .map(|(number, inputs, outputs, relu)| (format!("attention.S.{number}"), inputs, outputs, relu));
        assert_eq!(unit, expected);
        let (name, positions) = &layers[4];
        assert_eq!((name.as_str(), positions.inputs, positions.outputs), ("positions.T", 4, 1));
        assert_eq!((layers[0].0.as_str(), layers[5].0.as_str()), ("bottom.0", "cross.0"));
        assert!(layers.iter().all(|(name, layer)| layer.bias == (name != "positions.T")));
        assert!(layers.windows(2).all(|pair| pair[0].1.end() == pair[1].1.offset));
        // The vectors of a sample are as many, and as long, as if the sequence were pooled.
        assert_eq!((spec.vectors(), spec.vector_elements()), (6, 7 + 4 + 6 + 4 + 6 + 4));
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ModelSpec>(&text).unwrap(), spec);
        spec.attention.clear();
        assert!(!serde_json::to_string(&spec).unwrap().contains("attention"));
    }

    #[test]
    fn attention_that_does_not_suit_its_features_is_refused() {
        type Change = fn(&mut ModelSpec);
        let din = |query, hidden| AttentionUnit::Din { query, hidden };
        let cases: [(Change, &str); 9] = [
            (|spec| spec.attention[0].features[1] = 2, "a feature is twice an attribute"),
            (
                |spec| {
                    let again = AttentionSpec { sequence: "again".into(), ..spec.attention[0].clone() };
                    spec.attention.push(again);
                },
                "a feature is twice an attribute",
            ),
            (|spec| spec.attention[0].features.clear(), "over S has no attributes"),
            (|spec| spec.attention[0].features[1] = 5, "reads feature 5, which does not exist"),
            (|spec| spec.attention[0].length_max = 0, "has up to 0 positions"),
            (|spec| spec.attention[0].length_max = 65_537, "has up to 65537 positions"),
            (|spec| spec.features[3].weighted = true, "has ids with weights"),
            (|spec| spec.attention[0].features.swap(0, 1), "whose vectors differ in length"),
            (
                |spec| spec.attention[0].unit = AttentionUnit::Dot { query: vec![0] },
                "whose vectors differ in length",
            ),
        ];
        let refused = |change: &dyn Fn(&mut ModelSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.validate().unwrap_err().what
        };
        for (change, words) in cases {
            let what = refused(&change);
            assert!(what.contains(words), "{what}");
        }
        for (query, hidden, words) in [
            (vec![0, 9], vec![], "reads feature 9, which does not exist"),
            (vec![0, 3], vec![], "has feature 3, an attribute of a sequence, in its query"),
            (vec![0, 1], vec![3, 0], "has a hidden layer of 0 elements"),
            (vec![0, 1], vec![(1 << 20) + 1], "has a hidden layer of 1048577 elements"),
            (vec![0, 1], vec![1; (1 << 20) + 1], "has 1048577 hidden layers"),
        ] {
            let what = refused(&|spec| spec.attention[0].unit = din(query.clone(), hidden.clone()));
            assert!(what.contains(words), "{what}");
        }
        let large = |position_embedding| {
            let mut spec = spec();
            (spec.attention[0].length_max, spec.tables[1].dim) = (65_536, 1021);
            spec.attention[0].position_embedding = position_embedding;
            spec.validate()
        };
        let what = large(Some(Keep::First)).unwrap_err().what;
        assert!(what.contains("vectors of 67174400 elements for its positions"), "{what}");
        assert_eq!(large(None), Ok(()));
        let twice = refused(&|spec| {
            let unit = AttentionUnit::Mean;
            spec.attention.push(AttentionSpec { features: vec![4], unit, ..spec.attention[0].clone() });
        });
        assert_eq!(twice, "two attended sequences are named `S`");
        let mut one_layer = spec();
        one_layer.attention[0].unit = din(vec![0, 1], Vec::new());
        assert_eq!(one_layer.validate(), Ok(()));
    }
}
