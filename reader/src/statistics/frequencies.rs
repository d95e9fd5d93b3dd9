//! How often the rows of a table are looked up, from its statistics and the popularity of all its rows.

use std::borrow::Cow;
use std::collections::HashSet;

use super::TableStatistics;
use crate::popularity::{Popularity, PopularityClasses, TailBucket};

/// How often the rows of a table are looked up, most frequent first: rows with exact counts, then classes of rows.
#[derive(Debug, Clone)]
pub struct RowFrequencies<'a> {
    /// `(row, count)`.
    pub head: Cow<'a, [(u64, u64)]>,
    /// Further rows. Those of a class count as equally frequent.
    pub tail: Vec<TailBucket>,
    /// The look-ups of all rows.
    pub lookups: u64,
}

impl<'a> RowFrequencies<'a> {
    /// Returns what is known of a table: the statistics, with the popularity in place of their histogram. If the
    /// popularity is of other look-ups, as after `convert --grow` or in a collection, it replaces the head, too.
    pub fn new(statistics: &'a TableStatistics, popularity: Option<&PopularityClasses>) -> Self {
        let TableStatistics { lookups, head, tail, .. } = statistics;
        let tail: Vec<_> = tail.iter().rev().copied().filter(|bucket| bucket.rows > 0).collect();
        // Without rows after the head, the statistics are exact.
        let Some(classes) = popularity.filter(|_| !tail.is_empty()) else {
            return Self { head: head.into(), tail, lookups: *lookups };
        };
        match after_head(classes, statistics) {
            Some(tail) => Self { head: head.into(), tail, lookups: *lookups },
            None => Self { head: Cow::default(), tail: classes.descending(), lookups: classes.lookups() },
        }
    }

    /// Lists the hottest `rows` rows in the head: after the statistics' head in the order of
    /// [`Popularity::hottest`]. Rows of a class get its look-ups in equal parts. Does nothing if the head has as many
    /// rows already, or is empty since the popularity is of other look-ups.
    pub fn list(&mut self, popularity: &Popularity, rows: u64) {
        let rows = rows.min(popularity.classes().distinct_rows());
        let more = rows.saturating_sub(self.head.len() as u64) as usize;
        if more == 0 || self.head.is_empty() {
            return;
        }
        let listed: HashSet<u64> = self.head.iter().map(|&(row, _)| row).collect();
        let others = popularity.hottest(rows).into_iter().filter(|row| !listed.contains(row));
        let mut class = 0;
        for row in others.take(more) {
            while self.tail.get(class).is_some_and(|class| class.rows == 0) {
                class += 1;
            }
            let Some(TailBucket { rows, lookups }) = self.tail.get_mut(class) else { break };
            let count = lookups.div_ceil(*rows);
            (*rows, *lookups) = (*rows - 1, *lookups - count);
            self.head.to_mut().push((row, count));
        }
        self.tail.retain(|class| class.rows > 0);
    }

    /// Returns the share of all look-ups that the most frequent `rows` rows have, in `0..=1`. Exact within the head.
    pub fn coverage(&self, rows: u64) -> f64 {
        let listed = usize::try_from(rows).unwrap_or(usize::MAX);
        let in_head: u64 = self.head.iter().take(listed).map(|row| row.1).sum();
        let mut covered = in_head as f64;
        let mut left = rows.saturating_sub(self.head.len() as u64);
        for class in &self.tail {
            let taken = left.min(class.rows);
            covered += class.lookups as f64 * taken as f64 / class.rows as f64;
            left -= taken;
        }
        if self.lookups == 0 { 0.0 } else { covered / self.lookups as f64 }
    }

    /// Returns how many of the most frequent rows have together at least this share of all look-ups.
    pub fn rows_serving(&self, share: f64) -> u64 {
        let mut missing = share * self.lookups as f64;
        let mut rows = 0;
        for &(_, count) in &*self.head {
            if missing <= 0.0 {
                return rows;
            }
            (missing, rows) = (missing - count as f64, rows + 1);
        }
        for class in &self.tail {
            if missing <= 0.0 {
                break;
            }
            let needed = (missing * class.rows as f64 / class.lookups as f64).ceil();
            rows += class.rows.min(needed as u64);
            missing -= class.lookups as f64;
        }
        rows
    }
}

/// Returns the rows after the head of statistics of the same look-ups, most frequent first; `None` if the statistics
/// are of other look-ups.
fn after_head(classes: &PopularityClasses, statistics: &TableStatistics) -> Option<Vec<TailBucket>> {
    if (statistics.lookups, statistics.distinct_rows) != (classes.lookups(), classes.distinct_rows()) {
        return None;
    }
    let mut left = classes.clone();
    statistics.head.iter().try_for_each(|&(_, count)| left.remove(count))?;
    Some(left.descending())
}
