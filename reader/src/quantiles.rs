//! The boundaries of buckets of numbers with about as many samples each.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rankine_base::error::{Error, IoContext, Result};

use crate::dataset::{BlockCoding, Dataset, DatasetPart};
use crate::part::Part;
use crate::samples::Samples;
use crate::stream::{check_block, decode_records};

/// Samples from which quantiles are computed: of a longer part, evenly spaced blocks are read.
const QUANTILE_SAMPLES: u64 = 1 << 20;

/// A dense column and the number of buckets, each of which is to have about as many samples.
#[derive(Debug, Clone, Copy)]
pub struct QuantileBuckets<'a> {
    /// The dense column.
    pub column: &'a str,
    /// The number of buckets.
    pub buckets: u32,
}

/// Returns the boundaries of buckets with about as many samples of the training part each, in the order of `wanted`. A
/// frequent number has a bucket of its own, and so does every number of a column with few distinct ones. All samples
/// of a part of up to 2^20 count; of a longer part, about as many are read, in evenly spaced blocks. The same dataset
/// gives the same boundaries in every process.
///
/// # Errors
/// [`Error::Unsuitable`] if there is no training part; [`Error::Columns`] if there is no such column; errors in blocks
/// that are read.
pub fn quantile_boundaries(dataset: &Dataset, wanted: &[QuantileBuckets<'_>]) -> Result<Vec<Vec<f32>>> {
    let part = dataset.part(Part::Train)?;
    let number = |wanted: &QuantileBuckets<'_>| {
        let number = part.schema.dense.iter().position(|dense| dense.name == wanted.column);
        number.ok_or_else(|| {
            Error::columns(Some(wanted.column), format!("there is no dense column {}", wanted.column))
        })
    };
    let numbers = wanted.iter().map(number).collect::<Result<Vec<_>>>()?;
    let values = drawn_values(&part, &numbers)?;
    Ok(wanted.iter().zip(values).map(|(wanted, values)| boundaries_of(values, wanted.buckets)).collect())
}

/// Returns the boundaries of at most `buckets` buckets for some numbers. If there are no more distinct numbers than
/// buckets, each has its own. Otherwise each number that occurs as often as a bucket's share has its own, and the rest
/// are divided evenly over the remaining buckets, as LightGBM does for its bins.
fn boundaries_of(mut values: Vec<f32>, buckets: u32) -> Vec<f32> {
    values.retain(|value| value.is_finite());
    values.sort_unstable_by(f32::total_cmp);
    let buckets = buckets as usize;
    let distinct: Vec<_> =
        values.chunk_by(|one, other| one == other).map(|run| (run[0], run.len())).collect();
    if distinct.len() <= buckets {
        return distinct.iter().skip(1).map(|&(value, _)| value).collect();
    }
    let is_frequent = |count: usize| count * buckets >= values.len();
    // Of the numbers that are not frequent: samples that no bucket has yet, and buckets for them.
    let frequent = || distinct.iter().map(|&(_, count)| count).filter(|&count| is_frequent(count));
    let mut samples = values.len() - frequent().sum::<usize>();
    let mut others = buckets - frequent().count();
    let (mut boundaries, mut filled) = (Vec::new(), 0);
    for pair in distinct.windows(2) {
        let (count, (next, next_count)) = (pair[0].1, pair[1]);
        filled += count;
        let is_full = |filled: usize| filled * others >= samples;
        // A bucket that is nearly empty takes the frequent number that comes next.
        let ends = is_frequent(count) || is_full(filled) || is_frequent(next_count) && is_full(2 * filled);
        if ends && boundaries.len() + 1 < buckets {
            if !is_frequent(count) {
                (samples, others) = (samples - filled, others.saturating_sub(1).max(1));
            }
            boundaries.push(next);
            filled = 0;
        }
    }
    boundaries
}

/// Returns the numbers of some dense columns in evenly spaced blocks of a part.
fn drawn_values(part: &DatasetPart, columns: &[usize]) -> Result<Vec<Vec<f32>>> {
    let selected = |block: u32| match &part.selection {
        Some(selection) => u64::from(selection.samples_of(block)),
        None => part.samples_of(u64::from(block)),
    };
    let blocks: Vec<u32> = (0..part.blocks.len() as u32).filter(|&block| selected(block) > 0).collect();
    let count = blocks.len() as u64;
    let drawn = match part.samples {
        samples if samples <= QUANTILE_SAMPLES => count,
        samples => (count * QUANTILE_SAMPLES).div_ceil(samples),
    };
    let mut values = vec![Vec::new(); columns.len()];
    let mut reader = BlockReader { part, open: None, bytes: Vec::new(), samples: Samples::new(&part.schema) };
    for draw in 0..drawn {
        let block = blocks[(draw * count / drawn) as usize];
        let samples = reader.read(block)?;
        let mut add = |row: usize| {
            for (values, column) in values.iter_mut().zip(columns) {
                values.push(samples.dense[row * samples.dense_columns + column]);
            }
        };
        match &part.selection {
            Some(selection) => selection.rows_of(block).for_each(|row| add(row as usize)),
            None => (0..samples.len).for_each(add),
        }
    }
    Ok(values)
}

/// Reads single blocks of a part.
struct BlockReader<'a> {
    part: &'a DatasetPart,
    /// The file that was read last, with its number.
    open: Option<(u32, File)>,
    bytes: Vec<u8>,
    samples: Samples,
}

impl BlockReader<'_> {
    /// Returns the samples of a block; rules for ids are not applied.
    fn read(&mut self, index: u32) -> Result<&Samples> {
        let location = self.part.blocks[index as usize];
        let path = &self.part.files[location.file as usize];
        if self.open.as_ref().is_none_or(|(file, _)| *file != location.file) {
            self.open = Some((location.file, File::open(path).context("open", path)?));
        }
        self.bytes.resize(location.bytes as usize, 0);
        if let Some((_, file)) = &self.open {
            file.read_exact_at(&mut self.bytes, location.offset).context("read", path)?;
        }
        self.samples.clear();
        match &self.part.coding {
            BlockCoding::Records(decoder) => {
                let rules = (decoder.as_ref(), self.part.ids.as_ref());
                decode_records(rules, path, &location, &self.bytes, &mut self.samples)?;
            }
            BlockCoding::Packed { .. } => check_block(self.part, u64::from(index), &self.bytes)
                .and_then(|layout| {
                    let block = layout.with_bytes(&self.bytes);
                    block.decode_under(&self.part.ids, &self.part.schema, &mut self.samples)
                })
                .map_err(|what| Error::damaged(path, location.offset, what))?,
        }
        Ok(&self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buckets::bucket;
    use crate::split::Split;
    use crate::tests;

    #[test]
    fn quantiles_divide_numbers_evenly() {
        let values: Vec<f32> = (0..1000).rev().map(|number| number as f32).collect();
        let boundaries = boundaries_of(values.clone(), 8);
        assert_eq!(boundaries, [125.0, 250.0, 375.0, 500.0, 625.0, 750.0, 875.0]);
        let mut counts = [0; 8];
        values.iter().for_each(|&value| counts[bucket(&boundaries, value) as usize] += 1);
        assert_eq!(counts, [125; 8]);
    }

    #[test]
    fn frequent_numbers_have_buckets_of_their_own() {
        // 900 zeros, and one sample of each number from 1 to 100, which share the 9 other buckets.
        let values: Vec<_> = (0..1000).map(|number| (number - 899).max(0) as f32).collect();
        let boundaries = boundaries_of(values.clone(), 10);
        assert_eq!(boundaries, [1.0, 13.0, 24.0, 35.0, 46.0, 57.0, 68.0, 79.0, 90.0]);
    }

    proptest::proptest! {
        #[test]
        fn buckets_are_filled_evenly(
            draws in proptest::collection::vec(0.0..1.0_f64, 1..400),
            (skew, buckets) in (1..8, 2..50_u32),
        ) {
            let values: Vec<_> = draws.iter().map(|draw| (draw.powi(skew) * 200.0).floor() as f32).collect();
            let boundaries = boundaries_of(values.clone(), buckets);
            let mut counts = vec![0; boundaries.len() + 1];
            values.iter().for_each(|&value| counts[bucket(&boundaries, value) as usize] += 1);
            assert!(counts.len() <= buckets as usize && !counts.contains(&0), "{counts:?}");
            let share = values.len().div_ceil(buckets as usize);
            for &value in &values {
                let own = values.iter().filter(|other| **other == value).count();
                let all = counts[bucket(&boundaries, value) as usize];
                assert!(all <= own + 2 * share, "{value}: {own} of {all}, {boundaries:?}");
            }
        }
    }

    #[test]
    fn few_distinct_numbers_have_a_bucket_each() {
        let values = [vec![0.0; 60], vec![1.0; 30], vec![2.0; 10], vec![f32::NAN, f32::INFINITY]].concat();
        assert_eq!(boundaries_of(values, 10), [1.0, 2.0]);
        assert_eq!(boundaries_of(vec![3.0; 9], 4), [0.0; 0]);
        assert_eq!(boundaries_of(Vec::new(), 4), [0.0; 0]);
        assert_eq!(boundaries_of(vec![1.0, 2.0], 65_536), [2.0]);
    }

    #[test]
    fn only_samples_to_train_on_are_counted() {
        let folder = tests::dataset(1000, 64);
        let dataset = Dataset::open(&folder.dir()).unwrap();
        for split in [Split::None, Split::Last { share: 0.5 }, Split::Random { share: 0.3, seed: 5 }] {
            let dataset = dataset.clone().with_validation(split).unwrap();
            let part = dataset.part(Part::Train).unwrap();
            let Some(column) = part.schema.dense.first() else { panic!("the dataset has numbers") };
            let options = crate::StreamOptions::one_epoch(part.samples as usize);
            let mut expected = Vec::new();
            for batch in crate::BatchStream::open(part.clone(), &options).unwrap() {
                let samples = &batch.unwrap().samples;
                expected.extend(samples.dense.iter().step_by(samples.dense_columns));
            }
            assert_eq!(drawn_values(&part, &[0]).unwrap(), [expected.clone()]);
            let wanted = QuantileBuckets { column: &column.name, buckets: 4 };
            assert_eq!(quantile_boundaries(&dataset, &[wanted]).unwrap(), [boundaries_of(expected, 4)]);
        }
        let wanted = QuantileBuckets { column: "nothing", buckets: 4 };
        assert!(quantile_boundaries(&dataset, &[wanted]).unwrap_err().to_string().contains("nothing"));
    }
}
