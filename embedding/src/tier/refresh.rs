//! Choosing again which rows of a table a device stores, from what batches have looked up since the last choice.

use rayon::prelude::*;

use super::HotRows;

/// Values of a count.
const COUNTS: usize = 1 << 16;

/// Rows of a table that change places. Both lists ascend and have the same length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowSwaps {
    /// Rows that the device stores, and will no longer.
    pub leaving: Vec<u64>,
    /// Rows of host memory that the device will store.
    pub entering: Vec<u64>,
}

impl RowSwaps {
    /// Chooses the rows by the number of batches that have looked them up: `hot_counts` has the rows that the device
    /// stores, `cold_counts` the others, both ascending. The device stores as many rows as before. A row leaves only
    /// for one that more batches have looked up; of rows with equal counts, the first ones move.
    ///
    /// # Panics
    /// If there is not one count per row.
    pub fn choose(hot: &HotRows, hot_counts: &[u16], cold_counts: &[u16]) -> Self {
        assert_eq!(hot_counts.len() as u64, hot.len(), "a count per hot row");
        assert_eq!(cold_counts.len() as u64, hot.table_rows() - hot.len(), "a count per cold row");
        let (rarest, most_frequent) = (histogram(hot_counts), histogram(cold_counts));
        let moved = swaps(&rarest, &most_frequent);
        let last_to_leave = last(rarest.iter().copied().enumerate(), moved);
        let last_to_enter = last(most_frequent.iter().copied().enumerate().rev(), moved);
        let (Some((leave, leave_at)), Some((enter, enter_at))) = (last_to_leave, last_to_enter) else {
            return Self::default();
        };
        let tasks: Vec<_> = hot.tasks().collect();
        let candidates = tasks.into_par_iter().map(|rows| {
            let mut next_hot = hot.before(rows.start);
            let (mut leaving, mut entering) = (Candidates::default(), Candidates::default());
            for row in rows {
                if hot.contains(row) {
                    let count = hot_counts[next_hot as usize];
                    leaving.add(row, count < leave, count == leave);
                    next_hot += 1;
                } else {
                    let count = cold_counts[(row - next_hot) as usize];
                    entering.add(row, count > enter, count == enter);
                }
            }
            (leaving, entering)
        });
        let (leaving, entering): (Vec<_>, Vec<_>) = candidates.unzip();
        Self { leaving: first(leaving, leave_at), entering: first(entering, enter_at) }
    }

    /// Whether no row moves.
    pub fn is_empty(&self) -> bool {
        self.leaving.is_empty()
    }
}

/// Rows that move, or may.
#[derive(Debug, Default)]
struct Candidates {
    /// Rows that move.
    moving: Vec<u64>,
    /// Rows with the same count as the last one that moves.
    equal: Vec<u64>,
}

impl Candidates {
    fn add(&mut self, row: u64, moves: bool, is_equal: bool) {
        if moves {
            self.moving.push(row);
        } else if is_equal {
            self.equal.push(row);
        }
    }
}

/// All rows that move, and the first `equal` that may, ascending.
fn first(of_tasks: Vec<Candidates>, equal: usize) -> Vec<u64> {
    let equals = of_tasks.iter().flat_map(|task| &task.equal).take(equal);
    let mut rows: Vec<_> = of_tasks.iter().flat_map(|task| &task.moving).chain(equals).copied().collect();
    rows.par_sort_unstable();
    rows
}

/// How many rows have each count.
fn histogram(counts: &[u16]) -> Vec<usize> {
    let of_task = |counts: &[u16]| {
        let mut rows = vec![0; COUNTS];
        counts.iter().for_each(|&count| rows[usize::from(count)] += 1);
        rows
    };
    let add = |mut all: Vec<usize>, own: Vec<usize>| {
        all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
        all
    };
    counts.par_chunks(1 << 20).map(of_task).reduce(|| vec![0; COUNTS], add)
}

/// The largest number of hot rows that can leave for as many cold rows, each of which has a larger count.
fn swaps(hot: &[usize], cold: &[usize]) -> usize {
    let (mut hot, mut cold) = (hot.to_vec(), cold.to_vec());
    let (mut low, mut high, mut moved) = (0, COUNTS - 1, 0);
    while low < high {
        let rows = hot[low].min(cold[high]);
        (hot[low], cold[high], moved) = (hot[low] - rows, cold[high] - rows, moved + rows);
        if hot[low] == 0 {
            low += 1;
        } else {
            high -= 1;
        }
    }
    moved
}

/// Of `moved` rows, taken count by count: the count of the last one, and how many have the same.
fn last(histogram: impl Iterator<Item = (usize, usize)>, moved: usize) -> Option<(u16, usize)> {
    let mut left = moved;
    for (count, rows) in histogram {
        if (1..=rows).contains(&left) {
            return Some((count as u16, left));
        }
        left = left.saturating_sub(rows);
    }
    None
}

/// The new places of the rows of one side, which `hot` or its complement numbers, after rows have changed places.
/// `joined` are those that have come, ascending, and `joined_places` says where they are.
///
/// # Panics
/// If there are not as many places as rows.
pub fn moved_places(
    (before, after): (&HotRows, &HotRows),
    is_hot: bool,
    places: &[u32],
    (joined, joined_places): (&[u64], &[u32]),
) -> Vec<u32> {
    let side = |rows: &HotRows, row| if is_hot { rows.before(row) } else { row - rows.before(row) };
    let mut moved = vec![0; places.len()];
    let (mut tasks, mut left) = (Vec::new(), &mut moved[..]);
    for rows in after.tasks() {
        let own = side(after, rows.end) - side(after, rows.start);
        let (own, behind) = left.split_at_mut(own as usize);
        tasks.push((rows, own));
        left = behind;
    }
    tasks.into_par_iter().for_each(|(rows, own)| {
        let mut next_old = side(before, rows.start) as usize;
        let mut next_joined = joined.partition_point(|&row| row < rows.start);
        let mut own = own.iter_mut();
        for row in rows {
            let was_here = before.contains(row) == is_hot;
            if after.contains(row) == is_hot {
                let place = own.next().expect("a place per row of the side");
                if was_here {
                    *place = places[next_old];
                } else {
                    *place = joined_places[next_joined];
                    next_joined += 1;
                }
            }
            next_old += usize::from(was_here);
        }
    });
    moved
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Exchanges one pair of rows at a time, as long as that helps.
    fn one_by_one(counts: &[u16], hot: &HotRows) -> RowSwaps {
        let mut leaving: Vec<u64> = hot.iter().collect();
        leaving.sort_by_key(|&row| (counts[row as usize], row));
        let mut entering: Vec<u64> = (0..counts.len() as u64).filter(|&row| !hot.contains(row)).collect();
        entering.sort_by_key(|&row| (u16::MAX - counts[row as usize], row));
        let pairs = leaving.iter().zip(&entering);
        let moved =
            pairs.take_while(|&(&leave, &enter)| counts[leave as usize] < counts[enter as usize]).count();
        leaving.truncate(moved);
        entering.truncate(moved);
        leaving.sort_unstable();
        entering.sort_unstable();
        RowSwaps { leaving, entering }
    }

    proptest! {
        #[test]
        fn the_most_frequent_rows_are_stored_after_the_fewest_moves(
            counts in prop::collection::vec(prop_oneof![0_u16..4, any::<u16>(), Just(u16::MAX)], 1..900),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 0..300),
            again in prop::collection::vec(0_u16..3, 900),
        ) {
            let rows = counts.len();
            let mut hot = HotRows::of(rows as u64, picks.iter().map(|pick| pick.index(rows) as u64));
            // What a row holds, by its place: its own number.
            let mut device: Vec<u64> = hot.iter().collect();
            let mut host: Vec<u64> = (0..rows as u64).filter(|&row| !hot.contains(row)).collect();
            let mut places = [(0..device.len() as u32).collect::<Vec<_>>(), (0..host.len() as u32).collect()];
            for counts in [&counts[..], &again[..rows]] {
                let of_side = |is_hot| {
                    let rows = (0..rows as u64).filter(|&row| hot.contains(row) == is_hot);
                    rows.map(|row| counts[row as usize]).collect::<Vec<_>>()
                };
                let swaps = RowSwaps::choose(&hot, &of_side(true), &of_side(false));
                prop_assert_eq!(&swaps, &one_by_one(counts, &hot));
                let after = hot.after(&swaps.leaving, &swaps.entering);
                let from: Vec<u32> = swaps.leaving.iter().map(|&row| places[0][hot.before(row) as usize]).collect();
                let to: Vec<u32> =
                    swaps.entering.iter().map(|&row| places[1][(row - hot.before(row)) as usize]).collect();
                for (&device_place, &host_place) in from.iter().zip(&to) {
                    std::mem::swap(&mut device[device_place as usize], &mut host[host_place as usize]);
                }
                places = [
                    moved_places((&hot, &after), true, &places[0], (&swaps.entering, &from)),
                    moved_places((&hot, &after), false, &places[1], (&swaps.leaving, &to)),
                ];
                prop_assert_eq!(after.len(), hot.len());
                hot = after;
                for row in 0..rows as u64 {
                    let at = if hot.contains(row) {
                        device[places[0][hot.before(row) as usize] as usize]
                    } else {
                        host[places[1][(row - hot.before(row)) as usize] as usize]
                    };
                    prop_assert_eq!(at, row);
                }
            }
        }
    }
}
