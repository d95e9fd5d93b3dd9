//! A bounded series of values for plotting.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// The number of points up to which a series is exact; no series has more.
pub const POINTS_MAX: usize = 2048;
/// The most points that a bucket keeps.
const KEPT_MAX: usize = 5;
/// Even, so that buckets can be merged in pairs.
const BUCKETS_MAX: usize = POINTS_MAX / KEPT_MAX / 2 * 2;
/// The pushes in a bucket once there is more than [`POINTS_MAX`].
const WIDTH_MIN: u64 = 8;

/// Values by step, at most [`POINTS_MAX`] of them whatever is pushed.
///
/// A longer series is a sequence of buckets of equally many neighbouring points. A bucket keeps its first, smallest,
/// largest and last point, so no extreme is lost, and its first value that is not finite, which is a gap in a plot.
/// When there are too many buckets, neighbours are merged in pairs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// Points pushed.
    pushed: u64,
    /// All points, until there are too many.
    exact: Vec<Point>,
    /// The points after that.
    buckets: Vec<Bucket>,
    /// Pushes in a bucket.
    width: u64,
}

/// A value at a step.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    /// The pushes before it.
    at: u64,
    step: u64,
    value: f64,
}

/// What is kept of neighbouring points.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Bucket {
    first: Option<Point>,
    smallest: Option<Point>,
    largest: Option<Point>,
    last: Option<Point>,
    /// The first value that is not finite.
    gap: Option<Point>,
}

impl Bucket {
    fn of(points: impl IntoIterator<Item = Point>) -> Self {
        let mut bucket = Self::default();
        points.into_iter().for_each(|point| bucket.add(point));
        bucket
    }

    /// Adds a point behind the others.
    fn add(&mut self, point: Point) {
        if !point.value.is_finite() {
            self.gap.get_or_insert(point);
            return;
        }
        self.first.get_or_insert(point);
        self.last = Some(point);
        if self.smallest.is_none_or(|smallest| point.value < smallest.value) {
            self.smallest = Some(point);
        }
        if self.largest.is_none_or(|largest| point.value > largest.value) {
            self.largest = Some(point);
        }
    }

    /// The points that are kept, in order.
    fn kept(&self) -> impl Iterator<Item = Point> + use<> {
        let mut kept = [self.first, self.smallest, self.largest, self.last, self.gap];
        kept.sort_by_key(|point| point.map(|point| point.at));
        let mut next = 0;
        kept.into_iter().flatten().filter(move |point| {
            // One point may be kept for several reasons.
            let is_new = point.at >= next;
            next = next.max(point.at + 1);
            is_new
        })
    }
}

impl Series {
    /// Adds a value behind the others.
    pub fn push(&mut self, step: u64, value: f64) {
        let point = Point { at: self.pushed, step, value };
        self.pushed += 1;
        if self.buckets.is_empty() {
            if self.exact.len() < POINTS_MAX {
                return self.exact.push(point);
            }
            self.width = WIDTH_MIN;
            let exact = std::mem::take(&mut self.exact);
            self.buckets =
                exact.chunks(WIDTH_MIN as usize).map(|some| Bucket::of(some.iter().copied())).collect();
        }
        if point.at.is_multiple_of(self.width) {
            if self.buckets.len() == BUCKETS_MAX {
                let pairs = self.buckets.chunks(2);
                self.buckets = pairs.map(|pair| Bucket::of(pair.iter().flat_map(Bucket::kept))).collect();
                self.width *= 2;
            }
            self.buckets.push(Bucket::default());
        }
        if let Some(bucket) = self.buckets.last_mut() {
            bucket.add(point);
        }
    }

    /// Reduces the series to at most this number of points, at least 5, as if its buckets were wider.
    pub fn thin(&mut self, points: usize) {
        let all: Vec<_> = self.kept().collect();
        if all.len() <= points {
            return;
        }
        let neighbours = all.chunks(all.len().div_ceil(points / KEPT_MAX));
        self.exact = neighbours.flat_map(|some| Bucket::of(some.iter().copied()).kept()).collect();
        self.buckets.clear();
    }

    /// The steps and values that are kept, in order.
    pub fn points(&self) -> impl Iterator<Item = (u64, f64)> {
        self.kept().map(|point| (point.step, point.value))
    }

    fn kept(&self) -> impl Iterator<Item = Point> {
        self.exact.iter().copied().chain(self.buckets.iter().flat_map(Bucket::kept))
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }
}

/// As `{"steps": [...], "values": [...]}`; values that are not finite are null.
impl Serialize for Series {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (steps, values): (Vec<_>, Vec<_>) =
            self.points().map(|(step, value)| (step, value.is_finite().then_some(value))).unzip();
        let mut series = serializer.serialize_struct("Series", 2)?;
        series.serialize_field("steps", &steps)?;
        series.serialize_field("values", &values)?;
        series.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(points: impl IntoIterator<Item = (u64, f64)>) -> Series {
        let mut series = Series::default();
        points.into_iter().for_each(|(step, value)| series.push(step, value));
        series
    }

    /// Values without an order.
    fn scattered(number: u64) -> f64 {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64
    }

    #[test]
    fn a_short_series_is_exact() {
        for length in [0, 1, POINTS_MAX as u64] {
            let points: Vec<_> = (0..length).map(|number| (number * 10, scattered(number))).collect();
            assert_eq!(series(points.clone()).points().collect::<Vec<_>>(), points);
        }
    }

    #[test]
    fn a_long_series_is_bounded_and_ordered_and_spans_all_steps() {
        let lengths = (1..=4).flat_map(|times| {
            let full = (BUCKETS_MAX as u64 * WIDTH_MIN) << times;
            [full - 1, full, full + 1]
        });
        for length in lengths.chain([POINTS_MAX as u64 + 1, 1_000_003]) {
            let kept: Vec<_> = series((0..length).map(|n| (n, scattered(n)))).points().collect();
            assert!(kept.len() <= POINTS_MAX, "{length}: {}", kept.len());
            assert!(kept.len() >= POINTS_MAX / 4, "{length}: {}", kept.len());
            assert!(kept.is_sorted_by(|before, after| before.0 < after.0), "{length}");
            assert!(kept.iter().all(|&(step, value)| value == scattered(step)), "{length}");
            assert_eq!((kept[0].0, kept[kept.len() - 1].0), (0, length - 1));
        }
    }

    #[test]
    fn no_extreme_is_lost_wherever_it_is() {
        let length = 50_000;
        for at in [0, 1, 2047, 2048, 2049, 24_999, 49_998, 49_999] {
            for extreme in [-1e9, 1e9] {
                let value = |number| if number == at { extreme } else { scattered(number) };
                let kept = series((0..length).map(|number| (number, value(number))));
                assert!(kept.points().any(|point| point == (at, extreme)), "{extreme} at {at}");
            }
        }
    }

    #[test]
    fn a_gap_survives_and_is_null() {
        for at in [0, 3, 2048, 29_999] {
            let value = |number| if number == at { f64::NAN } else { 1.0 };
            let kept = series((0..30_000).map(|number| (number, value(number))));
            assert_eq!(
                kept.points().filter(|(_, value)| value.is_nan()).map(|(step, _)| step).collect::<Vec<_>>(),
                [at]
            );
        }
        let short = series([(10, 0.5), (20, f64::INFINITY), (30, f64::NAN)]);
        let json = serde_json::to_string(&short).expect("a series is plain data");
        assert_eq!(json, r#"{"steps":[10,20,30],"values":[0.5,null,null]}"#);
    }

    #[test]
    fn equal_pushes_keep_equal_points() {
        let one = series((0..100_000).map(|number| (number, scattered(number))));
        assert_eq!(one, series((0..100_000).map(|number| (number, scattered(number)))));
    }
}
