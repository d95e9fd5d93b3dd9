//! The positions of sequences in samples: checks that columns have equally many, and trimming.

use std::collections::HashSet;

use rankine_base::error::{Error, Result};

use crate::samples::{Bags, Samples};
use crate::schema::{HOTNESS_MAX, Keep, Schema, Sequence, UnequalLengths};

impl Schema {
    /// Checks what the types of sequences cannot express.
    ///
    /// # Errors
    /// [`Error::Columns`] for two sequences of one name, or columns that cannot be in a sequence.
    pub(crate) fn check_sequences(&self) -> Result<()> {
        let (mut names, mut used) = (HashSet::new(), HashSet::new());
        for Sequence { name, columns, max, .. } in &self.sequences {
            let refuse = |why: String| Err(Error::columns(None, format!("sequence {name:?} {why}")));
            if name.is_empty() || !names.insert(name) {
                return refuse("has no name of its own".into());
            }
            if columns.is_empty() {
                return refuse("has no columns".into());
            }
            if !(1..=HOTNESS_MAX).contains(max) {
                return refuse(format!("has up to {max} positions; there can be 1 to {HOTNESS_MAX}"));
            }
            for column in columns {
                let Some(found) = self.stored_categorical().iter().find(|other| other.name == *column) else {
                    return refuse(format!(
                        "has the column {column}, and no categorical column has that name"
                    ));
                };
                if !used.insert(column) {
                    return refuse(format!("has the column {column}, which is already in a sequence"));
                }
                if !found.hotness.varies() || found.weighted {
                    let what = if found.weighted { "weights" } else { "bags of one size" };
                    return refuse(format!("has the column {column}, which has {what}"));
                }
            }
        }
        Ok(())
    }

    /// Returns the numbers of the columns of each sequence.
    pub fn columns_of_sequences(&self) -> Vec<Vec<usize>> {
        let number = |name: &String| self.categorical.iter().position(|column| column.name == *name);
        self.sequences.iter().map(|sequence| sequence.columns.iter().filter_map(number).collect()).collect()
    }

    /// Returns the sequence that a categorical column is in.
    pub fn sequence_of(&self, column: &str) -> Option<&Sequence> {
        self.sequences.iter().find(|sequence| sequence.columns.iter().any(|own| own == column))
    }

    /// Checks that the columns of each sequence have the same number of ids in each sample, from sample `first` on.
    ///
    /// # Errors
    /// The first sample where they have not.
    pub fn check_lengths(&self, samples: &Samples, first: usize) -> std::result::Result<(), UnequalLengths> {
        for (sequence, columns) in self.sequences.iter().zip(self.columns_of_sequences()) {
            let bags: Vec<&Bags> = columns.iter().map(|&column| &samples.categorical[column]).collect();
            let Some((one, others)) = bags.split_first() else { continue };
            for (number, other) in (1..).zip(others) {
                // Equal offsets from a common start are equal lengths.
                let starts = [one, other].map(|bags| bags.offsets[first]);
                let ends = one.offsets[first..].iter().zip(&other.offsets[first..]);
                let differs = |(one, other): (&u32, &u32)| one - starts[0] != other - starts[1];
                if let Some(at) = ends.into_iter().position(differs) {
                    let sample = first + at - 1;
                    return Err(UnequalLengths {
                        sequence: sequence.name.clone(),
                        sample,
                        column: sequence.columns[number].clone(),
                        found: other.bag(sample).len(),
                        of: sequence.columns[0].clone(),
                        expected: one.bag(sample).len(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Removes the positions of sequences that are too many, from sample `first` on.
    pub fn trim_sequences(&self, samples: &mut Samples, first: usize) {
        for (sequence, columns) in self.sequences.iter().zip(self.columns_of_sequences()) {
            for column in columns {
                samples.categorical[column].trim(first, sequence.max as usize, sequence.keep);
            }
        }
    }
}

impl Bags {
    /// Removes the ids of bag `first` and all after it that are more than `max`; they have no weights.
    fn trim(&mut self, first: usize, max: usize, keep: Keep) {
        let mut start = self.offsets[first] as usize;
        let mut kept = start;
        for end in &mut self.offsets[first + 1..] {
            let bag = start..*end as usize;
            let count = bag.len().min(max);
            let from = match keep {
                Keep::First => bag.start,
                Keep::Last => bag.end - count,
            };
            self.ids.copy_within(from..from + count, kept);
            start = bag.end;
            kept += count;
            *end = kept as u32;
        }
        self.ids.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Categorical, DenseDtype, Hotness, Label, Pooling, VocabularyKind};

    fn schema() -> Schema {
        let column = |name: &str| Categorical {
            name: name.into(),
            rows: Some(100),
            hotness: Hotness::Ragged { max: 3 },
            pooling: Pooling::Sum,
            vocabulary: VocabularyKind::Identity,
            weighted: false,
            shares: None,
        };
        Schema {
            labels: vec![Label::new("label")],
            weight: None,
            dense: Vec::new(),
            dense_dtype: DenseDtype::F32,
            sequences: vec![Sequence {
                name: "clicks".into(),
                columns: vec!["items".into(), "shops".into()],
                max: 3,
                keep: Keep::Last,
            }],
            categorical: ["items", "tags", "shops"].map(column).into(),
        }
    }

    #[test]
    fn sequences_that_types_cannot_rule_out_are_refused() {
        schema().validate().unwrap();
        type Change = fn(&mut Schema);
        let cases: [(Change, &str); 8] = [
            (|schema| schema.sequences[0].name.clear(), "has no name of its own"),
            (|schema| schema.sequences.push(schema.sequences[0].clone()), "has no name of its own"),
            (|schema| schema.sequences[0].columns.clear(), "has no columns"),
            (|schema| schema.sequences[0].max = 0, "has up to 0 positions"),
            (|schema| schema.sequences[0].max = 65_537, "has up to 65537 positions"),
            (|schema| schema.sequences[0].columns[1] = "shop".into(), "no categorical column has that name"),
            (|schema| schema.sequences[0].columns[1] = "items".into(), "which is already in a sequence"),
            (|schema| schema.categorical[2].weighted = true, "the column shops, which has weights"),
        ];
        for (change, what) in cases {
            let mut changed = schema();
            change(&mut changed);
            let error = changed.validate().unwrap_err().to_string();
            assert!(error.contains(what), "{error} does not contain: {what}");
        }
        let mut fixed = schema();
        fixed.categorical[0].hotness = Hotness::Fixed(3);
        assert!(fixed.validate().unwrap_err().to_string().contains("items, which has bags of one size"));
    }

    #[test]
    fn the_first_unequal_sample_is_found() {
        let schema = schema();
        let mut samples = Samples { len: 3, labels: vec![vec![0.0; 3]], ..Samples::new(&schema) };
        for (items, shops) in [(2, 2), (0, 0), (1, 3)] {
            samples.categorical[0].push(0..items);
            samples.categorical[1].push(0..7);
            samples.categorical[2].push(0..shops);
        }
        let found = schema.check_lengths(&samples, 0).unwrap_err();
        assert_eq!((found.sample, found.found, found.expected), (2, 3, 1));
        let text = "column shops has 3 ids and column items has 1, but both are of the sequence clicks";
        assert_eq!(found.to_string(), text);
        assert_eq!(schema.check_lengths(&samples, 1).unwrap_err(), found);
        assert_eq!(schema.check_lengths(&samples, 3), Ok(()));
        assert_eq!(schema.check_lengths(&samples.slice(0..2), 0), Ok(()));
    }

    #[test]
    fn the_positions_to_keep_remain_in_order() {
        for (keep, first, expected) in [
            (Keep::Last, 0, [&[5, 5, 4][..], &[], &[1, 2], &[8, 7, 6]]),
            (Keep::First, 0, [&[9, 5, 5], &[], &[1, 2], &[9, 8, 7]]),
            (Keep::First, 1, [&[9, 5, 5, 4], &[], &[1, 2], &[9, 8, 7]]),
        ] {
            let mut schema = schema();
            schema.sequences[0].keep = keep;
            let mut samples = Samples { len: 4, ..Samples::new(&schema) };
            for bag in [&[9, 5, 5, 4][..], &[], &[1, 2], &[9, 8, 7, 6]] {
                samples.categorical.iter_mut().for_each(|bags| bags.push(bag.iter().copied()));
            }
            schema.trim_sequences(&mut samples, first);
            for column in [0, 2] {
                let bags = &samples.categorical[column];
                assert_eq!([0, 1, 2, 3].map(|sample| bags.bag(sample)), expected, "{keep:?} {first}");
            }
            assert_eq!(samples.categorical[1].bag(0), [9, 5, 5, 4], "not in a sequence");
        }
    }
}
