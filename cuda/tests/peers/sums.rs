//! All-reduces compared with the host's sums, to the bit.

use std::time::Duration;

use libtest_mimic::Failed;
use rankine_cuda::{AllReduce, AllReduceWay, Graph};

use super::{Body, DEADLINE, Machine, Outcome, Random, names_missing};

pub(crate) const BODIES: &[Body] = &[
    ("sums_are_in_the_order_of_ranks", 12, sums_are_in_the_order_of_ranks),
    ("consecutive_sums_stay_separate", 4, consecutive_sums_stay_separate),
    ("a_sum_without_a_rank_names_it", 1, a_sum_without_a_rank_names_it),
];

type Terms = (Vec<f32>, Vec<f64>);

/// A rank's values before the first all-reduce.
fn terms(seed: u64, rank: usize, len: usize, numbers: usize) -> Terms {
    let mut words = Random(seed ^ (rank as u64) << 48);
    let values = (0..len).map(|_| words.number()).collect();
    (values, (0..numbers).map(|_| f64::from(words.number())).collect())
}

/// Between two all-reduces a rank multiplies its values by its own factor.
fn scaled((values, numbers): &Terms, rank: usize) -> Terms {
    let scale = 0.25 + rank as f32 / 64.0;
    let values = values.iter().map(|value| value * scale).collect();
    (values, numbers.iter().map(|number| number * f64::from(scale)).collect())
}

fn sum(all: &[Terms]) -> Terms {
    let mut sum = all[0].clone();
    for (values, numbers) in &all[1..] {
        sum.0.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        sum.1.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
    }
    sum
}

fn sums_are_in_the_order_of_ranks(machine: &Machine, words: &mut Random) -> Outcome {
    const TURNS: usize = 3;
    let ranks = machine.ranks(words);
    let way = words.one_of(&[AllReduceWay::AtOnce, AllReduceWay::BySlices]);
    let len = words.one_of(&[0, 1, 3, 4, 5, 100, 2047, 2048, 2049, 70_000, 1_000_003]);
    let numbers = words.one_of(&[0, 1, 3, 600]);
    let blocks = words.one_of(&[1, 3, 32]);
    let (seed, captured) = (words.next(), words.below(2) == 1);
    let mut expected: Vec<Vec<Terms>> =
        vec![(0..ranks).map(|rank| terms(seed, rank, len, numbers)).collect()];
    let mut sums = Vec::new();
    for turn in 0..TURNS {
        sums.push(sum(&expected[turn]));
        expected.push((0..ranks).map(|rank| scaled(&sums[turn], rank)).collect());
    }
    let found = machine.on_ranks(ranks, DEADLINE, |peers, lane| {
        let all = AllReduce::by(peers, way, blocks, len, numbers)?;
        let mut graph = match captured {
            // SAFETY: the graph is dropped with the sums.
            true => Some(Graph::capture(lane, || unsafe { all.enqueue(lane) })?),
            false => None,
        };
        let mut found = Vec::new();
        for terms in &expected[..TURNS] {
            let (mut values, numbers) = terms[peers.local_rank().0].clone();
            values.resize(all.values().len(), 0.0);
            all.values().write(lane, &values)?;
            all.numbers().write(lane, &numbers)?;
            match &mut graph {
                // SAFETY: all ranks' sums live until all have read theirs.
                Some(graph) => unsafe { graph.replay(lane) }?,
                // SAFETY: as for the graph.
                None => unsafe { all.enqueue(lane) }?,
            }
            all.check(lane)?;
            let mut values = all.values().read(lane)?;
            if values.drain(len..).any(|filling| filling != 0.0) {
                return Err(Failed::from("the padding is no longer 0"));
            }
            found.push((values, all.numbers().read(lane)?));
        }
        peers.gather(0u8)?;
        drop(graph);
        Ok(found)
    })?;
    for (rank, found) in found.iter().enumerate() {
        for (turn, (found, expected)) in found.iter().zip(&sums).enumerate() {
            let index = found.0.iter().zip(&expected.0).position(|(a, b)| a.to_bits() != b.to_bits());
            let number = found.1.iter().zip(&expected.1).position(|(a, b)| a.to_bits() != b.to_bits());
            if index.is_some() || number.is_some() {
                let what = format!("{way:?} of {len} over {ranks} ranks in {blocks} blocks, turn {turn}");
                return Err(format!("{what}: rank {rank} differs at {index:?}, {number:?}").into());
            }
        }
    }
    Ok(())
}

/// Many all-reduces of sums in a graph, with nothing between them: each multiplies the values by the number of ranks.
fn consecutive_sums_stay_separate(machine: &Machine, words: &mut Random) -> Outcome {
    const SUMS: usize = 20;
    let ranks = machine.ranks(words);
    let way = words.one_of(&[AllReduceWay::AtOnce, AllReduceWay::BySlices]);
    let len = words.one_of(&[4, 1000, 200_000]);
    let seed = words.next();
    let terms: Vec<_> = (0..ranks).map(|rank| terms(seed, rank, len, 2)).collect();
    let expected = (0..SUMS).fold(terms.clone(), |terms, _| vec![sum(&terms); ranks]);
    machine.on_ranks(ranks, DEADLINE, |peers, lane| {
        let all = AllReduce::by(peers, way, 32, len, 2)?;
        let enqueue = || {
            // SAFETY: the graph is dropped with the sums.
            (0..SUMS).try_for_each(|_| unsafe { all.enqueue(lane) })
        };
        let mut graph = Graph::capture(lane, enqueue)?;
        for _ in 0..25 {
            all.values().write(lane, &terms[peers.local_rank().0].0)?;
            all.numbers().write(lane, &terms[peers.local_rank().0].1)?;
            // SAFETY: all ranks' sums live until all have read theirs.
            unsafe { graph.replay(lane) }?;
            all.check(lane)?;
            if (all.values().read(lane)?, all.numbers().read(lane)?) != expected[0] {
                return Err(
                    format!("{way:?} of {len} over {ranks}: rank {} differs", peers.local_rank().0).into()
                );
            }
        }
        peers.gather(0u8)?;
        Ok(())
    })?;
    Ok(())
}

fn a_sum_without_a_rank_names_it(machine: &Machine, _: &mut Random) -> Outcome {
    for way in [AllReduceWay::AtOnce, AllReduceWay::BySlices] {
        let deadline = Duration::from_secs(1);
        machine.on_ranks(2, deadline, |peers, lane| {
            let all = AllReduce::by(peers, way, 8, 50_000, 1)?;
            if peers.local_rank().0 == 0 {
                // SAFETY: the sums live until the lane has been waited for.
                unsafe { all.enqueue(lane) }?;
                names_missing(all.check(lane), 0, 1)?;
                names_missing(all.check_now(), 0, 1)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}
