//! Quantiles of numbers: the boundaries of buckets with about as many samples each.

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

/// Returns the boundaries of buckets with about as many samples of the training part each, in the order of `wanted`.
/// Equal quantiles make one boundary, so a column with few distinct numbers has fewer of them. They are exact for a
/// part of up to 2^20 samples; of a longer part, about as many samples are read, in evenly spaced blocks. The same
/// dataset gives the same boundaries in every process.
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

/// Returns the quantiles of some numbers.
fn boundaries_of(mut values: Vec<f32>, buckets: u32) -> Vec<f32> {
    values.retain(|value| value.is_finite());
    values.sort_unstable_by(f32::total_cmp);
    let Some(&least) = values.first() else { return Vec::new() };
    let quantile = |number: u64| values[(number * values.len() as u64 / u64::from(buckets)) as usize];
    // A boundary at the minimum would leave the first bucket empty.
    let mut boundaries: Vec<_> =
        (1..u64::from(buckets)).map(quantile).filter(|&boundary| boundary > least).collect();
    boundaries.dedup();
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
    fn equal_quantiles_make_one_boundary() {
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
