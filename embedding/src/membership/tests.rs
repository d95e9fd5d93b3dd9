//! The membership against a simple model: maps, walked from end to end for every question.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A membership as its description says, without arrays, slots and indexes.
struct Simple {
    rows: DynamicRows,
    /// The row and the score of each key.
    keys: BTreeMap<u64, (u64, u32)>,
    /// Per shard, the counters that are not 0, by line and place, and the look-ups since they were halved.
    counters: Vec<BTreeMap<(u64, u64), u8>>,
    added: Vec<u64>,
    step: u64,
    counts: MembershipCounts,
}

impl Simple {
    fn new(rows: DynamicRows) -> Self {
        let shards = rows.shards() as usize;
        Self {
            rows,
            keys: BTreeMap::new(),
            counters: vec![BTreeMap::new(); shards],
            added: vec![0; shards],
            step: 0,
            counts: MembershipCounts::default(),
        }
    }

    fn expired(&self, score: u32) -> bool {
        matches!(self.rows.evict, Eviction::Ttl { steps } if u64::from(score) + steps < self.step)
    }

    fn find(&self, key: u64) -> Option<u64> {
        self.keys.get(&key).filter(|(_, score)| !self.expired(*score)).map(|(row, _)| *row)
    }

    /// Adds look-ups to the count of a key; returns the count.
    fn count(&mut self, key: u64, look_ups: u64) -> u64 {
        if self.rows.admit_after == 1 {
            return look_ups;
        }
        let shard = self.rows.shard_of(key);
        let width = self.rows.shard_rows().next_power_of_two();
        let hash = mix(mix(key) ^ 0xA24B_AED4_963E_E407);
        let place = |line: u64| (line, hash.wrapping_add(line.wrapping_mul(hash >> 32 | 1)) % width);
        let counters = &mut self.counters[shard];
        let before = (0..4).map(|line| counters.get(&place(line)).copied().unwrap_or(0)).min().unwrap();
        let count = u64::from(before) + look_ups;
        for line in 0..4 {
            let counter = counters.entry(place(line)).or_default();
            *counter = (*counter).max(count.min(255) as u8);
        }
        self.added[shard] += look_ups;
        if self.added[shard] >= 8 * width {
            counters.values_mut().for_each(|counter| *counter /= 2);
            self.added[shard] = 0;
        }
        count
    }

    fn free_row(&self, shard: u64) -> Option<u64> {
        let own = 1 + shard * self.rows.shard_rows()..1 + (shard + 1) * self.rows.shard_rows();
        let taken: BTreeSet<u64> = self.keys.values().map(|(row, _)| *row).collect();
        own.into_iter().find(|row| !taken.contains(row))
    }

    fn admit(&mut self, step: u64, keys: &[u64]) -> Admission {
        self.step = step;
        let mut look_ups = BTreeMap::new();
        let mut distinct = Vec::new();
        for &key in keys {
            let count = look_ups.entry(key).or_insert(0_u64);
            *count += 1;
            if *count == 1 {
                distinct.push(key);
            }
        }
        let look_ups = |key: u64| look_ups[&key];
        let in_batch: BTreeSet<u64> = keys.iter().copied().collect();
        let absent: Vec<u64> = distinct.iter().copied().filter(|&key| self.find(key).is_none()).collect();
        for &key in &distinct {
            let lfu = self.rows.evict == Eviction::Lfu;
            match self.keys.get(&key).copied() {
                None => {}
                Some((_, score)) if self.expired(score) => {
                    self.keys.remove(&key);
                    self.counts.evicted += 1;
                }
                Some((row, score)) => {
                    let more = (u64::from(score) + look_ups(key)).min(u64::from(u32::MAX)) as u32;
                    self.keys.insert(key, (row, if lfu { more } else { step as u32 }));
                }
            }
        }
        let mut out = Admission::default();
        for &key in &absent {
            let count = self.count(key, look_ups(key));
            if count < u64::from(self.rows.admit_after) {
                continue;
            }
            let shard = self.rows.shard_of(key) as u64;
            let mut row = self.free_row(shard);
            if row.is_none() {
                if matches!(self.rows.evict, Eviction::None { .. }) {
                    out.refused.extend((0..keys.len()).filter(|&at| keys[at] == key));
                    continue;
                }
                let others = self.keys.iter().filter(|(other, _)| {
                    self.rows.shard_of(**other) as u64 == shard && !in_batch.contains(other)
                });
                if let Some((_, leaves)) = others.map(|(&key, &(_, score))| (score, key)).min() {
                    row = self.keys.remove(&leaves).map(|(row, _)| row);
                    self.counts.evicted += 1;
                }
            }
            if let Some(row) = row {
                let score = if self.rows.evict == Eviction::Lfu { count as u32 } else { step as u32 };
                self.keys.insert(key, (row, score));
                out.new_rows.push(NewRow { row, key });
                self.counts.admitted += 1;
            }
        }
        out.rows = keys.iter().map(|&key| self.find(key).unwrap_or(SHARED_ROW)).collect();
        self.counts.unadmitted_lookups += out.rows.iter().filter(|&&row| row == SHARED_ROW).count() as u64;
        out.new_rows.sort();
        out.refused.sort();
        out
    }
}

fn any_evict() -> impl Strategy<Value = Eviction> {
    prop_oneof![
        Just(Eviction::None { if_full: IfFull::Fail }),
        Just(Eviction::Lru),
        Just(Eviction::Lfu),
        (1..5_u64).prop_map(|steps| Eviction::Ttl { steps }),
    ]
}

/// Keys that repeat often, the smallest and the largest number among them.
fn any_key(distinct: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        1 => Just(u64::MAX),
        20 => (0..distinct).prop_map(|number| number.wrapping_mul(0x0123_4567_89AB_CDEF)),
        5 => 0..distinct,
    ]
}

/// Batches, some of them empty, some of old keys alone, some larger than the table.
fn any_batches(distinct: u64, look_ups: usize) -> impl Strategy<Value = Vec<Vec<u64>>> {
    let batch = prop_oneof![
        6 => prop::collection::vec(any_key(distinct), 0..look_ups),
        1 => (any::<u64>(), 0..2 * look_ups).prop_map(|(first, count)| {
            (0..count as u64).map(|number| first.wrapping_add(number)).collect()
        }),
    ];
    prop::collection::vec(batch, 1..25)
}

fn same(membership: &Membership, simple: &Simple) -> Result<(), TestCaseError> {
    let saved = membership.saved();
    let mut expected: Vec<_> = simple.keys.iter().map(|(&key, &(row, score))| (row, key, score)).collect();
    expected.sort();
    let entries = saved.keys.rows.iter().zip(&saved.keys.keys).zip(&saved.keys.scores);
    let entries: Vec<_> = entries.map(|((&row, &key), &score)| (row, key, score)).collect();
    prop_assert_eq!(entries, expected);
    prop_assert_eq!(membership.keys(), simple.keys.len() as u64);
    prop_assert_eq!(membership.counts(), simple.counts);
    for key in simple.keys.keys().flat_map(|&key| [key, key.wrapping_add(1)]) {
        prop_assert_eq!(membership.find(key), simple.find(key));
    }
    Ok(())
}

proptest! {
    /// Every step gives the rows, the evictions and the counts that the model gives. In between, the membership is
    /// saved and restored, or its changes are applied to an older one: it goes on as if nothing had happened.
    #[test]
    fn a_membership_is_its_simple_model(
        capacity in 1..40_u64,
        admit_after in prop_oneof![3 => Just(1_u8), 1 => 2..5_u8, 1 => Just(255)],
        evict in any_evict(),
        batches in any_batches(50, 60),
        steps in prop::collection::vec(1..4_u64, 25),
        saves in prop::collection::vec(0..6_u8, 25),
    ) {
        let rows = DynamicRows { capacity, admit_after, evict };
        let (mut membership, mut simple) = (Membership::new(rows), Simple::new(rows));
        let mut base = membership.clone();
        membership.begin_tracking();
        let mut step = 0;
        for ((batch, pause), save) in batches.iter().zip(steps).zip(saves) {
            step += pause;
            let admission = membership.admit(step, batch);
            prop_assert_eq!(&admission, &simple.admit(step, batch));
            same(&membership, &simple)?;
            match save {
                0 => {
                    let mut restored = Membership::new(rows);
                    restored.restore(&membership.saved()).unwrap();
                    restored.continue_from(step);
                    restored.counts = membership.counts();
                    base = restored.clone();
                    membership = restored;
                    membership.begin_tracking();
                }
                1 => {
                    let mut changed = base.clone();
                    changed.restore(&membership.changed().unwrap()).unwrap();
                    changed.continue_from(step);
                    prop_assert_eq!(changed.saved(), membership.saved());
                    changed.counts = membership.counts();
                    changed.touched = membership.touched.take();
                    membership = changed;
                }
                _ => {}
            }
        }
    }
}

/// Several shards, of which some are full long before others.
#[test]
fn shards_are_independent_and_threads_do_not_matter() {
    let rows = DynamicRows { capacity: 4100, admit_after: 2, evict: Eviction::Lru };
    assert_eq!((rows.shards(), rows.shard_rows(), rows.table_rows()), (4, 1025, 4101));
    let of_one_shard: Vec<u64> = (0..).filter(|&key| rows.shard_of(key) == 2).take(1500).collect();
    let batches = [
        (0..3000).chain(0..1000).collect(),
        of_one_shard.iter().chain(&of_one_shard).copied().collect(),
        of_one_shard[700..].to_vec(),
        (0..5000).chain([u64::MAX, 0, u64::MAX]).collect::<Vec<u64>>(),
        (0..5000).rev().collect(),
    ];
    let (mut membership, mut simple) = (Membership::new(rows), Simple::new(rows));
    let mut alone = membership.clone();
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for (step, batch) in (1..).zip(&batches) {
        let admission = membership.admit(step, batch);
        assert_eq!(admission, simple.admit(step, batch), "step {step}");
        assert_eq!(one_thread.install(|| alone.admit(step, batch)), admission);
        same(&membership, &simple).unwrap();
    }
    let MembershipCounts { admitted, evicted, unadmitted_lookups } = simple.counts;
    assert!(admitted > 4100 && evicted > 500 && unadmitted_lookups > 1000, "{:?}", simple.counts);
}

#[test]
fn sizes_are_functions_of_the_capacity() {
    let rows = |capacity| DynamicRows { capacity, admit_after: 3, evict: Eviction::Lru };
    let sizes = |capacity| (rows(capacity).shards(), rows(capacity).shard_rows());
    assert_eq!(sizes(1), (1, 1));
    assert_eq!(sizes(2047), (1, 2047));
    assert_eq!(sizes(2048), (2, 1024));
    assert_eq!(sizes(50_000_000), (4096, 12_208));
    assert_eq!(sizes(CAPACITY_MAX), (4096, 24_414_063));
    assert_eq!(rows(50_000_000).sketch_bytes(), 4 * 16_384);
    assert_eq!(rows(CAPACITY_MAX).sketch_bytes(), 4 << 20);
    for (capacity, admit_after, steps) in [(0, 1, 1), (CAPACITY_MAX + 1, 1, 1), (1, 0, 1), (1, 1, 0)] {
        assert!(!DynamicRows { capacity, admit_after, evict: Eviction::Ttl { steps } }.is_valid());
    }
}

/// A key whose count is 255 keeps it, and ageing halves all counts.
#[test]
fn counts_saturate_and_age() {
    let rows = DynamicRows { capacity: 16, admit_after: 255, evict: Eviction::Lfu };
    let mut membership = Membership::new(rows);
    assert!(membership.admit(1, &[7; 100]).new_rows.is_empty());
    // 8 look-ups per counter of a line of 16: the counts of key 7 are halved at 128.
    assert!(membership.admit(2, &[7; 27]).new_rows.is_empty());
    assert!(membership.admit(3, &[7; 1]).new_rows.is_empty());
    assert!(membership.admit(4, &[7; 127]).new_rows.is_empty());
    assert_eq!(membership.admit(5, &[7; 64]).new_rows, [NewRow { row: 1, key: 7 }]);
    let score = |membership: &Membership| membership.saved().keys.scores[0];
    assert_eq!(score(&membership), 255);
    membership.shards[0].scores[0] = u32::MAX - 1;
    membership.admit(6, &[7; 5]);
    assert_eq!(score(&membership), u32::MAX);
}

#[test]
fn contents_of_another_membership_are_refused() {
    let rows = DynamicRows { capacity: 2048, admit_after: 2, evict: Eviction::Lru };
    let mut membership = Membership::new(rows);
    membership.admit(1, &[3, 4, 5, 3, 4, 6]);
    let saved = membership.saved();
    assert_eq!(saved.keys.rows.len(), 2);
    let refused = |change: &dyn Fn(&mut SavedMembership)| {
        let mut other = saved.clone();
        change(&mut other);
        Membership::new(rows).restore(&other).expect_err("it is damaged").to_string()
    };
    let no_row = "is no row of a key in its table";
    assert!(refused(&|saved| saved.keys.rows[0] = 0).contains(no_row));
    assert!(refused(&|saved| saved.keys.rows[1] = 2049).contains(no_row));
    assert!(refused(&|saved| saved.keys.freed = vec![u64::MAX]).contains(no_row));
    assert!(refused(&|saved| saved.keys.rows[1] = saved.keys.rows[0]).contains("key"));
    assert!(
        refused(&|saved| saved.keys.rows[0] = 1 + (saved.keys.rows[0] + 1023) % 2048).contains("wrong shard")
    );
    let twice = |saved: &mut SavedMembership| {
        saved.keys.rows.push(saved.keys.rows[0] + 100);
        saved.keys.keys.push(saved.keys.keys[0]);
        saved.keys.scores.push(1);
    };
    assert!(refused(&twice).contains("occurs twice"));
    assert!(refused(&|saved| saved.keys.scores.truncate(1)).contains("one score per row"));
    assert!(refused(&|saved| saved.sketches.counters.truncate(1)).contains("counts"));
    assert!(refused(&|saved| saved.sketches.shards[0] = 2).contains("no shard 2"));
    assert!(refused(&|saved| saved.sketches.shards[0] = u64::MAX).contains("no shard"));
}

/// Optimizers that start afresh count their steps from 0, and so do the keys of the model that they start from.
#[test]
fn keys_of_an_earlier_training_are_older_than_new_ones() {
    let rows = DynamicRows { capacity: 2, admit_after: 1, evict: Eviction::Ttl { steps: 3 } };
    let mut earlier = Membership::new(rows);
    earlier.admit(1000, &[8, 9]);
    let mut membership = Membership::new(rows);
    membership.restore(&earlier.saved()).unwrap();
    membership.continue_from(0);
    membership.admit(1, &[9]);
    assert_eq!(membership.admit(3, &[10]).new_rows[0].row, earlier.find(8).unwrap());
    assert_eq!((membership.find(9), membership.find(8)), (earlier.find(9), None));
    membership.admit(5, &[10]);
    assert_eq!(membership.find(9), None);
}

#[test]
fn initial_rows_depend_on_seed_table_and_key() {
    let of = |seed, number, key| {
        let mut weights = vec![9.0; 5];
        InitialRows::new(0.25, seed, number).fill(key, &mut weights);
        weights
    };
    let mut all =
        vec![of(1, 0, 0), of(2, 0, 0), of(1, 1, 0), of(1, 0, 1), of(1, 0, 1 << 32), of(1, 0, u64::MAX)];
    let mut row = vec![0.0; 5];
    UniformField::new(1, 0).fill_row(0, 0.25, &mut row);
    all.push(row);
    assert!(all.iter().flatten().all(|weight| weight.abs() <= 0.25 && *weight != 0.0));
    for (number, one) in all.iter().enumerate() {
        assert!(all[..number].iter().all(|other| other.iter().zip(one).all(|(a, b)| a != b)));
    }
    assert_eq!(of(1, 0, 7), of(1, 0, 7));
    let mut zeros = vec![1.0; 3];
    InitialRows::zeros().fill(7, &mut zeros);
    assert_eq!(zeros, [0.0; 3]);
}
