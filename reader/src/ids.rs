//! Rules for ids that are out of range, that is, not less than the rows of their column's table.
//!
//! Without a rule such an id is an error when its block is unpacked. With a rule, ids stay unchanged until a batch is
//! complete, and the rule is applied to the batch. Each batch therefore knows how many there were, regardless of what
//! was read ahead, and a shuffled sample is counted in the batch that trains on it.

use rankine_base::error::{Error, Result};

use crate::samples::Samples;
use crate::schema::{Hotness, Schema};

/// What happens to an id that is out of range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutOfRange {
    /// It is an error, which names the id and its position.
    #[default]
    Fail,
    /// It is replaced by this row.
    Row(u64),
    /// It is removed from its bag, which may become empty.
    Leave,
}

/// A rule for each categorical column of a schema.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdRules {
    /// Each column's rows and rule. Empty if all ids out of range are errors.
    columns: Vec<(Option<u64>, OutOfRange)>,
}

impl IdRules {
    /// Creates rules for the categorical columns of a schema, in their order.
    ///
    /// # Errors
    /// [`Error::Columns`] if the number of rules differs, or a rule names a row outside its table.
    pub fn new(schema: &Schema, rules: &[OutOfRange]) -> Result<Self> {
        let columns = &schema.categorical;
        if rules.len() != columns.len() {
            let (rules, columns) = (rules.len(), columns.len());
            return Err(Error::columns(
                None,
                format!("{rules} rules for ids, but {columns} categorical columns"),
            ));
        }
        for (column, rule) in columns.iter().zip(rules) {
            if let (OutOfRange::Leave, Some(sequence)) = (rule, schema.sequence_of(&column.name)) {
                let what = format!(
                    "ids out of range of column {} cannot be removed: it is part of the sequence {}, whose columns \
                     have the same number of ids; replace them by a row",
                    column.name, sequence.name
                );
                return Err(Error::columns(Some(&column.name), what));
            }
            if let OutOfRange::Row(row) = rule
                && !column.admits(*row)
            {
                let what = format!(
                    "ids out of range of column {} cannot become row {row}: its table has {}",
                    column.name,
                    column.table()
                );
                return Err(Error::columns(Some(&column.name), what));
            }
        }
        if rules.iter().all(|rule| *rule == OutOfRange::Fail) {
            return Ok(Self::default());
        }
        Ok(Self { columns: columns.iter().map(|column| column.rows).zip(rules.iter().copied()).collect() })
    }

    /// Returns whether all ids out of range are errors.
    pub fn all_fail(&self) -> bool {
        self.columns.is_empty()
    }

    /// Returns the rule of a column.
    pub fn of(&self, column: usize) -> OutOfRange {
        self.columns.get(column).map_or(OutOfRange::Fail, |(_, rule)| *rule)
    }

    /// Returns the number of ids that bags of a column may hold after its rule was applied.
    pub fn hotness(&self, column: usize, stored: Hotness) -> Hotness {
        match (self.of(column), stored) {
            (OutOfRange::Leave, Hotness::Fixed(max)) => Hotness::Ragged { max },
            (_, stored) => stored,
        }
    }

    /// Applies the rules to samples that were unpacked with them. Replaces `counts` by the number of ids that were out
    /// of range, one per categorical column; by nothing if all such ids are errors.
    pub fn apply(&self, samples: &mut Samples, counts: &mut Vec<u64>) {
        counts.clear();
        let columns = self.columns.iter().zip(&mut samples.categorical);
        counts.extend(columns.map(|(&(rows, rule), bags)| {
            let Some(rows) = rows else { return 0 };
            let count = bags.ids.iter().filter(|&&id| id >= rows).count() as u64;
            match rule {
                OutOfRange::Row(row) if count > 0 => {
                    bags.ids.iter_mut().filter(|id| **id >= rows).for_each(|id| *id = row);
                }
                OutOfRange::Leave if count > 0 => bags.retain(0, |id, _| id < rows),
                OutOfRange::Fail | OutOfRange::Row(_) | OutOfRange::Leave => {}
            }
            count
        }));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schema::{Categorical, DenseDtype, Label, Pooling, VocabularyKind};
    use crate::tests;

    proptest! {
        #[test]
        fn rules_replace_or_remove_ids(
            (schema, mut samples) in tests::any_samples(300),
            choices in prop::collection::vec(0..3usize, 20),
            wild in prop::collection::vec(
                (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u64>()),
                0..60,
            ),
        ) {
            let rules: Vec<_> = schema.categorical.iter().zip(choices.iter().cycle()).map(|(column, choice)| {
                [OutOfRange::Fail, OutOfRange::Row(column.rows.unwrap_or(0) / 2), OutOfRange::Leave][*choice]
            }).collect();
            let rules = IdRules::new(&schema, &rules).unwrap();
            for (column, at, id) in wild.iter().filter(|_| !schema.categorical.is_empty()) {
                let column = column.index(schema.categorical.len());
                let (rows, ids) = (schema.categorical[column].rows.unwrap_or(0), &mut samples.categorical[column].ids);
                if rules.of(column) != OutOfRange::Fail && !ids.is_empty() {
                    let at = at.index(ids.len());
                    ids[at] = rows.saturating_add(id % 5).max(*id);
                }
            }
            let mut expected = samples.clone();
            let mut counts = Vec::new();
            for (number, (column, bags)) in schema.categorical.iter().zip(&mut expected.categorical).enumerate() {
                let (mut replaced, mut count) = (crate::samples::Bags::default(), 0);
                for sample in 0..samples.len {
                    let first = bags.offsets[sample] as usize;
                    let kept = bags.bag(sample).iter().enumerate().filter_map(|(at, &id)| {
                        if column.admits(id) {
                            return Some((first + at, id));
                        }
                        count += 1;
                        match rules.of(number) {
                            OutOfRange::Row(row) => Some((first + at, row)),
                            _ => None,
                        }
                    });
                    let kept: Vec<_> = kept.collect();
                    replaced.push(kept.iter().map(|&(_, id)| id));
                    replaced.weights.extend(kept.iter().filter_map(|&(at, _)| bags.weights.get(at)));
                }
                counts.push(count);
                *bags = replaced;
            }
            let mut found = vec![7];
            rules.apply(&mut samples, &mut found);
            prop_assert_eq!(found, if rules.all_fail() { Vec::new() } else { counts });
            prop_assert_eq!(&samples, &expected);
            for (number, (column, bags)) in schema.categorical.iter().zip(&samples.categorical).enumerate() {
                let hotness = rules.hotness(number, column.hotness);
                prop_assert!((0..samples.len).all(|sample| hotness.admits(bags.bag(sample).len() as u64)));
            }
        }
    }

    #[test]
    fn rules_that_do_not_match_the_schema_are_refused() {
        let column = Categorical {
            name: "C1".into(),
            rows: Some(7),
            hotness: Hotness::Fixed(1),
            pooling: Pooling::Sum,
            vocabulary: VocabularyKind::Identity,
            weighted: false,
            shares: None,
        };
        let schema = Schema {
            labels: vec![Label::new("label")],
            weight: None,
            dense: Vec::new(),
            dense_dtype: DenseDtype::F32,
            sequences: Vec::new(),
            categorical: vec![column],
        };
        let refused = |rules: &[OutOfRange]| IdRules::new(&schema, rules).unwrap_err().to_string();
        assert!(refused(&[]).contains("0 rules for ids, but 1 categorical"));
        assert!(refused(&[OutOfRange::Leave; 2]).contains("2 rules for ids, but 1 categorical"));
        assert!(refused(&[OutOfRange::Row(7)]).contains("cannot become row 7: its table has 7 rows"));
        assert!(IdRules::new(&schema, &[OutOfRange::Fail]).unwrap().all_fail());
    }
}
