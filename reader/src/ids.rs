//! Ids that are no rows of their column's table: what becomes of them.
//!
//! Without a rule such an id is an error where its block is unpacked. With one, ids stay as they are until a batch is
//! complete, and the rule is applied to the batch: so each batch knows how many there were, whatever was read ahead,
//! and a shuffled sample is counted where it is learnt from.

use crate::error::{Error, Result};
use crate::samples::{Bags, Samples};
use crate::schema::{Hotness, Schema};

/// What becomes of an id that is no row of its table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutOfRange {
    /// It is an error, which names it and its place.
    #[default]
    Fail,
    /// It stands for this row.
    Row(u64),
    /// It leaves its bag, which may be empty then.
    Leave,
}

/// A rule for each categorical column of a schema.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IdRules {
    /// Each column's rows, and its rule. None where all fail.
    columns: Vec<(u64, OutOfRange)>,
}

impl IdRules {
    /// Rules for the categorical columns of a schema, in their order.
    ///
    /// # Errors
    /// [`Error::Invalid`] where there are not as many rules, or one names a row that is none.
    pub fn new(schema: &Schema, rules: &[OutOfRange]) -> Result<Self> {
        let columns = &schema.categorical;
        if rules.len() != columns.len() {
            let (rules, columns) = (rules.len(), columns.len());
            return Err(Error::invalid(format!("{rules} rules for ids, and {columns} categorical columns")));
        }
        for (column, rule) in columns.iter().zip(rules) {
            if let OutOfRange::Row(row) = rule
                && *row >= column.rows
            {
                return Err(Error::invalid(format!(
                    "ids out of range of column {} are to stand for row {row}, which is not below its table's {} rows",
                    column.name, column.rows
                )));
            }
        }
        if rules.iter().all(|rule| *rule == OutOfRange::Fail) {
            return Ok(Self::default());
        }
        Ok(Self { columns: columns.iter().map(|column| column.rows).zip(rules.iter().copied()).collect() })
    }

    /// Whether all ids out of range are errors.
    pub fn all_fail(&self) -> bool {
        self.columns.is_empty()
    }

    /// What becomes of ids of a column.
    pub fn of(&self, column: usize) -> OutOfRange {
        self.columns.get(column).map_or(OutOfRange::Fail, |(_, rule)| *rule)
    }

    /// How many ids bags of a column may hold once its rule was applied.
    pub fn hotness(&self, column: usize, stored: Hotness) -> Hotness {
        match (self.of(column), stored) {
            (OutOfRange::Leave, Hotness::Fixed(max)) => Hotness::Ragged { max },
            (_, stored) => stored,
        }
    }

    /// Applies the rules to samples that were unpacked under them. Returns how many ids were out of range, one number a
    /// categorical column; none where all fail.
    pub fn apply(&self, samples: &mut Samples) -> Vec<u64> {
        let columns = self.columns.iter().zip(&mut samples.categorical);
        let counts = columns.map(|(&(rows, rule), bags)| {
            let count = bags.ids.iter().filter(|&&id| id >= rows).count() as u64;
            match rule {
                OutOfRange::Row(row) if count > 0 => {
                    bags.ids.iter_mut().filter(|id| **id >= rows).for_each(|id| *id = row);
                }
                OutOfRange::Leave if count > 0 => leave(bags, rows),
                OutOfRange::Fail | OutOfRange::Row(_) | OutOfRange::Leave => {}
            }
            count
        });
        counts.collect()
    }
}

/// Takes all ids that are not below `rows` out of their bags.
fn leave(bags: &mut Bags, rows: u64) {
    let (mut kept, mut begin) = (0, 0);
    for end in &mut bags.offsets[1..] {
        for at in begin..*end as usize {
            let id = bags.ids[at];
            if id < rows {
                bags.ids[kept] = id;
                kept += 1;
            }
        }
        begin = *end as usize;
        *end = kept as u32;
    }
    bags.ids.truncate(kept);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::schema::{Categorical, DenseDtype, Label, Pooling, VocabularyKind};
    use crate::testing;

    proptest! {
        #[test]
        fn rules_do_to_ids_what_they_say(
            (schema, mut samples) in testing::any_samples(300),
            choices in prop::collection::vec(0..3usize, 20),
            wild in prop::collection::vec(
                (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u64>()),
                0..60,
            ),
        ) {
            let rules: Vec<_> = schema.categorical.iter().zip(choices.iter().cycle()).map(|(column, choice)| {
                [OutOfRange::Fail, OutOfRange::Row(column.rows / 2), OutOfRange::Leave][*choice]
            }).collect();
            let rules = IdRules::new(&schema, &rules).unwrap();
            for (column, at, id) in wild.iter().filter(|_| !schema.categorical.is_empty()) {
                let column = column.index(schema.categorical.len());
                let (rows, ids) = (schema.categorical[column].rows, &mut samples.categorical[column].ids);
                if rules.of(column) != OutOfRange::Fail && !ids.is_empty() {
                    let at = at.index(ids.len());
                    ids[at] = rows.saturating_add(id % 5).max(*id);
                }
            }
            let mut expected = samples.clone();
            let mut counts = Vec::new();
            for (number, (column, bags)) in schema.categorical.iter().zip(&mut expected.categorical).enumerate() {
                let (mut replaced, mut count) = (Bags::default(), 0);
                for sample in 0..samples.len {
                    let bag = bags.bag(sample).iter().filter_map(|&id| {
                        if id < column.rows {
                            return Some(id);
                        }
                        count += 1;
                        match rules.of(number) {
                            OutOfRange::Row(row) => Some(row),
                            _ => None,
                        }
                    });
                    replaced.push(bag.collect::<Vec<_>>());
                }
                counts.push(count);
                *bags = replaced;
            }
            let found = rules.apply(&mut samples);
            prop_assert_eq!(found, if rules.all_fail() { Vec::new() } else { counts });
            prop_assert_eq!(&samples, &expected);
            for (number, (column, bags)) in schema.categorical.iter().zip(&samples.categorical).enumerate() {
                let hotness = rules.hotness(number, column.hotness);
                prop_assert!((0..samples.len).all(|sample| hotness.admits(bags.bag(sample).len() as u64)));
            }
        }
    }

    #[test]
    fn rules_are_for_the_columns_that_there_are() {
        let column = Categorical {
            name: "C1".into(),
            rows: 7,
            hotness: Hotness::Fixed(1),
            pooling: Pooling::Sum,
            vocabulary: VocabularyKind::Identity,
            shares: None,
        };
        let schema = Schema {
            labels: vec![Label { name: "label".into() }],
            weight: None,
            dense: Vec::new(),
            dense_dtype: DenseDtype::F32,
            categorical: vec![column],
        };
        let refused = |rules: &[OutOfRange]| IdRules::new(&schema, rules).unwrap_err().to_string();
        assert!(refused(&[]).contains("0 rules for ids, and 1 categorical"));
        assert!(refused(&[OutOfRange::Leave; 2]).contains("2 rules for ids, and 1 categorical"));
        assert!(refused(&[OutOfRange::Row(7)]).contains("which is not below its table's"));
        assert!(IdRules::new(&schema, &[OutOfRange::Fail]).unwrap().all_fail());
    }
}
