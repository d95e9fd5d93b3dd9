//! How often the rows of each column's table are looked up: from a dataset's own statistics, from samples drawn from
//! all of it, or from a power law that ids follow or are assumed to follow.

use rankine_embedding::frequency::{BagLengths, CountClass, FrequencySketch, TableFrequencies};
use rankine_reader::generate::PowerLaw;
use rankine_reader::schema::{Categorical, Hotness};
use rankine_reader::statistics::{RowFrequencies, TableStatistics};
use rankine_reader::stream::{BatchStream, Order, StreamOptions};
use rankine_reader::{Dataset, Part, Schema};
use serde::Serialize;

use rankine_job::{Count, Job};

/// Where statistics come from.
#[derive(Debug)]
pub enum Source<'a> {
    /// A dataset: its own statistics, or samples of it.
    Dataset(&'a Dataset),
    /// Columns whose ids follow a power law with this exponent.
    Law {
        /// The columns.
        schema: &'a Schema,
        /// The exponent.
        alpha: f64,
    },
}

impl Source<'_> {
    /// Returns the columns.
    pub fn schema(&self) -> &Schema {
        match self {
            Self::Dataset(dataset) => dataset.schema(),
            Self::Law { schema, .. } => schema,
        }
    }
}

/// The statistics of all categorical columns.
#[derive(Debug, Clone)]
pub struct Statistics {
    /// Where they come from.
    pub origin: Origin,
    /// One per column, in the schema's order.
    pub columns: Vec<ColumnStatistics>,
}

/// Where statistics come from, as reports name it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Origin {
    /// All samples of the dataset were counted when it was made.
    Dataset {
        /// How many there are.
        samples: u64,
    },
    /// Samples were drawn from the dataset.
    Sample {
        /// How many.
        samples: u64,
    },
    /// No sample was looked at: ids are taken to follow a power law.
    Law {
        /// Its exponent.
        alpha: f64,
    },
}

/// What is known of a column's ids.
#[derive(Debug, Clone)]
pub struct ColumnStatistics {
    /// How often each row is looked up.
    pub frequencies: TableFrequencies,
    /// How many ids its bags hold.
    pub lengths: BagLengths,
}

/// Samples to draw if the job sets no number and the dataset has no statistics.
const SAMPLES: u64 = 1_000_000;
/// Samples to draw for the lengths of ragged bags if the dataset has statistics, which lack these lengths.
const LENGTH_SAMPLES: u64 = 65_536;
/// Samples per batch while drawing.
const BATCH_SAMPLES: usize = 8192;
/// Blocks per window of the random order.
const WINDOW_BLOCKS: u32 = 16;
/// Memory limit for the sketches of all columns.
const SKETCH_BYTES: usize = 2 << 30;
/// The most frequent rows of a power law are listed one by one; the others are grouped into classes.
const LAW_HEAD_ROWS: u64 = 1 << 17;
/// The look-ups into which a law is converted: large enough that no row's count rounds to 0.
const LAW_LOOKUPS: f64 = (1u64 << 52) as f64;
/// The end of a class of a law's rows, as a multiple of its first row's position by frequency.
const LAW_CLASS_SPAN: f64 = 1.05;

/// Returns the statistics of a job's columns.
///
/// # Errors
/// If the dataset cannot be read.
pub fn statistics(job: &Job, source: &Source<'_>) -> rankine_base::Result<Statistics> {
    match *source {
        Source::Law { schema, alpha } => {
            let columns = schema.categorical.iter().map(|column| law(column, alpha)).collect();
            Ok(Statistics { origin: Origin::Law { alpha }, columns })
        }
        Source::Dataset(dataset) => match job.embedding.sample_samples {
            Some(samples) => sampled(job, dataset, samples.get()),
            None if dataset.manifest().is_some() => counted(job, dataset),
            None => sampled(job, dataset, SAMPLES),
        },
    }
}

/// Reads the statistics that the dataset has.
fn counted(job: &Job, dataset: &Dataset) -> rankine_base::Result<Statistics> {
    let columns = &dataset.schema().categorical;
    let ragged = columns.iter().any(|column| matches!(column.hotness, Hotness::Ragged { .. }));
    let lengths: Vec<_> = if ragged {
        let sketches = sketches(job, dataset, LENGTH_SAMPLES, 2)?;
        sketches.iter().map(FrequencySketch::bag_lengths).collect()
    } else {
        columns.iter().map(lengths_of).collect()
    };
    let mut of_columns = Vec::new();
    for (number, (statistics, lengths)) in dataset.statistics()?.into_iter().zip(lengths).enumerate() {
        let frequencies = with_frequent_rows(job, dataset, number, statistics)?;
        of_columns.push(ColumnStatistics { frequencies, lengths });
    }
    // Buckets are not counted; their tables are small, and quantiles are looked up about equally often.
    of_columns.extend(dataset.schema().bucket_columns().iter().map(|column| law(column, 0.0)));
    let samples = dataset.samples(Part::Train);
    Ok(Statistics { origin: Origin::Dataset { samples }, columns: of_columns })
}

/// Returns the frequencies of a column. If the job asks for more frequent rows than the statistics list, the popularity
/// of all rows, if there is one, lists the others.
fn with_frequent_rows(
    job: &Job,
    dataset: &Dataset,
    number: usize,
    statistics: TableStatistics,
) -> rankine_base::Result<TableFrequencies> {
    let own = job.table_of(&dataset.schema().categorical[number].name).and_then(|(_, own)| own.frequent_rows);
    let rows = own.or(job.embedding.frequent_rows).map_or(0, Count::get);
    if rows > statistics.head.len() as u64
        && statistics.tail.iter().any(|bucket| bucket.rows > 0)
        && let Some(popularity) = dataset.popularity(number)?
    {
        let mut known = RowFrequencies::new(&statistics, Some(popularity.classes()));
        known.list(&popularity, rows);
        if !known.head.is_empty() {
            return Ok(of_all_rows(&statistics, known));
        }
    }
    Ok(frequencies(statistics))
}

/// Returns how often all rows of each column's table are looked up, as far as the dataset counts them all; `None` if it
/// does not, or its own counts are not used: `statistics` then knows as much.
///
/// # Errors
/// If the dataset cannot be read.
pub fn frequencies_of_all_rows(
    dataset: &Dataset,
    statistics: &Statistics,
) -> rankine_base::Result<Option<Vec<TableFrequencies>>> {
    let Origin::Dataset { .. } = statistics.origin else { return Ok(None) };
    let Some(classes) = dataset.popularity_classes()? else { return Ok(None) };
    let counted = dataset.statistics()?;
    let known = std::iter::zip(&counted, &classes)
        .map(|(counted, classes)| of_all_rows(counted, RowFrequencies::new(counted, Some(classes))));
    let buckets = statistics.columns.iter().skip(counted.len()).map(|column| column.frequencies.clone());
    Ok(Some(known.chain(buckets).collect()))
}

/// Returns the frequencies of a table's rows that `known` has. If they are of other look-ups than the statistics, they
/// are of as many samples as have these look-ups.
fn of_all_rows(statistics: &TableStatistics, known: RowFrequencies<'_>) -> TableFrequencies {
    let RowFrequencies { head, tail, lookups } = known;
    let share = lookups as f64 / statistics.lookups.max(1) as f64;
    TableFrequencies {
        samples: (statistics.bags as f64 * share).round() as u64,
        lookups,
        distinct_rows: head.len() as u64 + tail.iter().map(|class| class.rows).sum::<u64>(),
        head: head.into_owned(),
        tail: tail.iter().map(|class| CountClass { rows: class.rows, lookups: class.lookups }).collect(),
    }
}

fn frequencies(statistics: TableStatistics) -> TableFrequencies {
    let TableStatistics { bags, lookups, distinct_rows, head, tail } = statistics;
    let tail = tail.iter().filter(|bucket| bucket.rows > 0);
    TableFrequencies {
        samples: bags,
        lookups,
        distinct_rows,
        head,
        tail: tail.map(|bucket| CountClass { rows: bucket.rows, lookups: bucket.lookups }).collect(),
    }
}

/// Estimates statistics from samples drawn from the whole dataset.
fn sampled(job: &Job, dataset: &Dataset, samples: u64) -> rankine_base::Result<Statistics> {
    let columns = dataset.schema().categorical.len();
    let capacity = SKETCH_BYTES / FrequencySketch::BYTES_PER_ROW / columns.max(1);
    let sketches = sketches(job, dataset, samples, capacity.clamp(1 << 12, FrequencySketch::CAPACITY))?;
    let columns: Vec<_> = sketches
        .iter()
        .map(|sketch| ColumnStatistics { frequencies: sketch.frequencies(), lengths: sketch.bag_lengths() })
        .collect();
    let samples = samples.min(dataset.samples(Part::Train));
    Ok(Statistics { origin: Origin::Sample { samples }, columns })
}

/// Draws samples: blocks in random order, and rows in random order within some of them.
fn sketches(
    job: &Job,
    dataset: &Dataset,
    samples: u64,
    capacity: usize,
) -> rankine_base::Result<Vec<FrequencySketch>> {
    let columns = &dataset.schema().categorical;
    let mut sketches: Vec<_> = columns.iter().map(|_| FrequencySketch::new(capacity)).collect();
    let options = StreamOptions {
        order: Order::Shuffled { seed: job.seed, window_blocks: WINDOW_BLOCKS },
        io: job.reader.io_options(),
        ..StreamOptions::one_epoch(BATCH_SAMPLES)
    };
    let mut left = samples;
    for batch in BatchStream::open(dataset.part(Part::Train)?, &options)? {
        let batch = batch?;
        let of_batch = left.min(batch.samples.len as u64);
        for (sketch, bags) in sketches.iter_mut().zip(&batch.samples.categorical) {
            sketch.add_samples(of_batch);
            (0..of_batch as usize).for_each(|sample| sketch.add_bag(bags.bag(sample)));
        }
        left -= of_batch;
        if left == 0 {
            break;
        }
    }
    Ok(sketches)
}

/// Returns the lengths of a column's bags according to the schema.
fn lengths_of(column: &Categorical) -> BagLengths {
    match column.hotness {
        Hotness::Fixed(ids) => BagLengths::fixed(ids),
        Hotness::Ragged { max } => BagLengths::uniform(max),
    }
}

/// Computes the statistics of a column whose ids follow a power law, exactly.
pub(super) fn law(column: &Categorical, alpha: f64) -> ColumnStatistics {
    // Laws are of generated and raw data, whose tables have rows.
    let rows = column.rows.unwrap_or(1);
    let law = PowerLaw::new(rows, alpha);
    let lookups =
        |from: u64, to: u64| ((law.share_below(to) - law.share_below(from)) * LAW_LOOKUPS).round() as u64;
    let listed = rows.min(LAW_HEAD_ROWS);
    let mut head: Vec<_> = (0..listed).map(|rank| (law.row(rank), lookups(rank, rank + 1))).collect();
    head.sort_unstable_by_key(|&(row, count)| (std::cmp::Reverse(count), row));
    let mut tail = Vec::new();
    let mut from = listed;
    while from < rows {
        let to = ((from as f64 * LAW_CLASS_SPAN) as u64).clamp(from + 1, rows);
        tail.push(CountClass { rows: to - from, lookups: lookups(from, to) });
        from = to;
    }
    let all = head.iter().map(|row| row.1).sum::<u64>() + tail.iter().map(|class| class.lookups).sum::<u64>();
    let lengths = lengths_of(column);
    let samples = if lengths.mean() > 0.0 { (all as f64 / lengths.mean()) as u64 } else { 0 };
    ColumnStatistics {
        frequencies: TableFrequencies { samples, lookups: all, distinct_rows: rows, head, tail },
        lengths,
    }
}

#[cfg(test)]
mod tests {
    use rankine_embedding::frequency::FrequencyProfile;
    use rankine_reader::generate::Shape;

    use super::*;

    /// Rows of a table beyond those that are listed one by one.
    const TAIL_ROWS: u64 = 50_000;

    #[test]
    fn a_power_law_lists_its_frequent_rows_and_groups_the_rest() {
        let schema = |rows, hotness: u32, ragged| {
            let (name, rows) = ("one".into(), vec![rows]);
            let (hotness, pooling) = (vec![hotness], rankine_reader::schema::Pooling::Sum);
            Shape { name, dense: 0, rows, hotness, ragged, pooling, sequences: Vec::new(), churn: None }
                .schema(None)
        };
        let rows = LAW_HEAD_ROWS + TAIL_ROWS;
        let ColumnStatistics { frequencies, lengths } = law(&schema(rows, 4, false).categorical[0], 1.0);
        let TableFrequencies { samples, lookups, distinct_rows, head, tail } = frequencies;
        assert_eq!((distinct_rows, head.len() as u64), (rows, LAW_HEAD_ROWS));
        assert_eq!(tail.iter().map(|class| class.rows).sum::<u64>(), TAIL_ROWS);
        // With an exponent of 1, the rows of frequency ranks k to m have the share ln((m + 1) / k) / ln(rows + 1).
        let share =
            |from: u64, to: u64| ((to + 1) as f64 / (from + 1) as f64).ln() / ((rows + 1) as f64).ln();
        // Shares are differences of numbers up to 1, so each is off by a few times 2^-53; look-ups are 2^52 times as
        // large.
        let is_close = |found: u64, from, to| (found as f64 - LAW_LOOKUPS * share(from, to)).abs() < 8.0;
        assert!(is_close(head[0].1, 0, 1) && is_close(head[1].1, 1, 2), "{:?}", &head[..2]);
        assert!(head.is_sorted_by_key(|&(row, count)| (std::cmp::Reverse(count), row)));
        let mut from = LAW_HEAD_ROWS;
        for CountClass { rows, lookups } in &tail {
            assert!(is_close(*lookups, from, from + rows), "from {from}");
            // A class ends at 1.05 times its first frequency rank, the last one at the end of the table.
            assert_eq!(from + rows, ((from as f64 * 1.05) as u64).min(LAW_HEAD_ROWS + TAIL_ROWS));
            from += rows;
        }
        let counted =
            head.iter().map(|row| row.1).sum::<u64>() + tail.iter().map(|class| class.lookups).sum::<u64>();
        assert_eq!((lookups, samples, lengths.mean()), (counted, counted / 4, 4.0));
        // Ragged bags have 0 to 4 ids, 2 on average.
        let ragged = law(&schema(7, 4, true).categorical[0], 0.5);
        assert_eq!(
            (ragged.lengths.mean(), ragged.frequencies.samples),
            (2.0, ragged.frequencies.lookups / 2)
        );
        assert_eq!((ragged.frequencies.head.len(), ragged.frequencies.tail.len()), (7, 0));
    }

    /// In a batch of 65536 samples of the reference workload, distinct rows are 12.7% of the look-ups, with tables
    /// capped at 5,000,000 rows.
    #[test]
    fn a_power_law_has_the_share_of_distinct_rows_of_the_reference_workload() {
        for (shape, expected) in [("dlrm", 0.127), ("dlrm-dcnv2", 0.118)] {
            let schema = Shape::load(shape).unwrap().schema(Some(5_000_000));
            let (mut distinct, mut lookups) = (0.0, 0.0);
            for column in &schema.categorical {
                let ColumnStatistics { frequencies, lengths } = law(column, 1.1);
                let profile = FrequencyProfile::new(column.rows.unwrap(), &frequencies);
                assert!((profile.lookups_per_sample() / lengths.mean() - 1.0).abs() < 1e-9);
                distinct += profile.distinct(65536.0);
                lookups += 65536.0 * lengths.mean();
            }
            let share: f64 = distinct / lookups;
            assert!((share - expected).abs() < 0.001, "{shape}: {share}");
        }
    }
}
