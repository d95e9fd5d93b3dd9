//! Compares costs with a count of every single row, and with times computed by hand.

use proptest::prelude::*;

use super::*;
use crate::dtype::Dtype;
use crate::frequency::CountClass;
use crate::placement::{Owner, RoundCapacity, Shard, TablePlan};
use crate::plan::error::list;
use crate::plan::search::Search;
use crate::plan::tests::counted::{
    KnownTable, choice_of, counted, known, machine, rest, seconds, shards_of, summed, topologies,
};
use crate::plan::{Alternative, LinkSpeed, NonTableMemory, PlanInput, PlanOutcome, plan};
use crate::traffic::{LinkTraffic, Traffic};

#[track_caller]
fn assert_equal(found: f64, expected: f64, what: &str) {
    // A few hundred additions and powers in f64, of numbers that do not cancel.
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1e-9), "{what}: {found} for {expected}");
}

/// The report's counts are rounded; a number halfway between two integers may go either way.
#[track_caller]
fn assert_rounded(found: u64, expected: f64, what: &str) {
    assert!((found as f64 - expected).abs() <= 0.5 + 1e-6, "{what}: {found} for {expected}");
}

#[track_caller]
fn assert_flow(found: Flow, expected: Flow, what: &str) {
    // A rank that requests everything but its own is counted as the difference of sums.
    let slack = |expected: f64, all: f64| expected.max(1e-3 * all);
    let all = expected.asked + expected.served + 1.0;
    for (found, expected, what) in [
        (found.rows, expected.rows, format!("{what}, rows")),
        (found.asked, expected.asked, format!("{what}, asked")),
        (found.served, expected.served, format!("{what}, served")),
    ] {
        assert!((found - expected).abs() <= 1e-9 * slack(expected, all), "{what}: {found} for {expected}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_table_costs_each_rank_what_its_rows_cost(
        known in known(),
        topology in topologies(),
        (kind, pooled, number) in (0..5usize, any::<bool>(), 0..100usize),
        share in 0.05..1.0f64,
        gpu in any::<bool>(),
    ) {
        let (machine, choice) = (machine(gpu), choice_of(&known, topology, kind, pooled, number));
        let batch = (share * known.samples as f64) as u64;
        let context = Context::new(topology, &machine, rest(), batch.max(1));
        let input = known.input(None, None);
        let costs = TableCosts::new(&input, context);
        let load = costs.load(&choice);
        let what = format!("{choice:?} over {topology:?}");
        for (rank, (found, expected)) in load.ranks.iter().zip(counted(&known, &choice, &context)).enumerate() {
            let what = format!("{what}, rank {rank}");
            assert_flow(found.within, expected.within, &format!("{what}, within"));
            assert_flow(found.between, expected.between, &format!("{what}, between"));
            assert_equal(found.table_bytes, expected.table_bytes, &format!("{what}, table bytes"));
            assert_equal(found.buffer_bytes, expected.buffer_bytes, &format!("{what}, buffer bytes"));
            assert_equal(found.memory_traffic, expected.memory_traffic, &format!("{what}, memory traffic"));
        }
        prop_assert_eq!(load.ranks.len(), topology.ranks());
        assert_equal(load.reduced_elements, summed(&known, &choice, &context), &what);
        let shards = shards_of(&known, &choice);
        let squares = matches!(known.rule, UpdateRule::RowwiseAdagrad { .. }) && shards > 1;
        prop_assert_eq!((load.shards, load.sharing_squares), (shards, usize::from(squares)));
        let frequent = |row: &(Option<usize>, f64, f64)| known.is_frequent(&choice, row.0);
        let named: f64 = known.rows().filter(frequent).map(|(_, rows, count)| rows * count).sum();
        assert_equal(costs.frequent_share(&choice), named / known.lookups(), &what);

        // The longest lists along a rail: those of the owner or node with the most requests.
        let of_rank = |of: &dyn Fn(f64) -> f64, owner| {
            let mut of_owner = vec![0.0; topology.ranks()];
            for (number, rows, count) in known.rows().filter(|row| !frequent(row)) {
                for (rank, share) in known.owners(number, owner, topology.ranks()) {
                    of_owner[rank.0] += share * rows * of(count);
                }
            }
            of_owner
        };
        let (mut vectors, mut ids) = (0.0f64, 0.0f64);
        let plan = choice.plan(&input);
        for Shard { owner, .. } in &plan.shards {
            let samples = context.of_rank;
            if choice.exchange == Exchange::Rows {
                let of_node = samples * topology.ranks_per_node() as f64;
                let named = of_rank(&|count| known.named(count, of_node), *owner);
                vectors = named.into_iter().fold(vectors, f64::max);
            } else {
                let lookups = of_rank(&|count| count / known.samples as f64, *owner);
                let of_nodes = lookups.chunks(topology.ranks_per_node()).map(|node| node.iter().sum::<f64>());
                let most = of_nodes.fold(0.0, f64::max);
                let share = most * known.samples as f64 / known.lookups();
                vectors = vectors.max(samples * known.hits(share));
                ids = ids.max(samples * most);
            }
        }
        let RailLists { vectors: found_vectors, ids: found_ids } = costs.rail_lists(&choice);
        assert!((found_vectors - vectors).abs() <= 1e-9 * (1.0 + vectors), "{what}: {found_vectors} {vectors}");
        assert!((found_ids - ids).abs() <= 1e-9 * (1.0 + ids), "{what}: {found_ids} {ids}");
    }

    /// The report of a plan that the job fixes, number by number.
    #[test]
    fn a_report_has_the_counted_numbers(
        tables in prop::collection::vec(known(), 1..3),
        topology in topologies(),
        (kind, pooled) in (prop::sample::select(vec![0usize, 1, 3]), any::<bool>()),
        gpu in any::<bool>(),
    ) {
        prop_assume!(topology.ranks() > 1);
        let machine = Machine { overlap: 0.5, ..machine(gpu) };
        let exchange = if pooled { Exchange::Pooled } else { Exchange::Rows };
        let placement = [Placement::Replicated, Placement::RowWise, Placement::Hybrid, Placement::TableWise][kind];
        let inputs = tables.iter().map(|known| known.input(Some(placement), Some(exchange)));
        let input = PlanInput { tables: inputs.collect(), batch_size: 18, topology, machine: &machine, rest: rest() };
        let PlanOutcome { plan, report } = plan(&input).unwrap();
        let context = Context::new(topology, &machine, rest(), 18);
        let choice = |known: &KnownTable, planned: &TablePlan| match planned.shards.first() {
            None => (Choice::replicated(), known.spec.rows),
            Some(Shard { owner: Owner::EveryRank, .. }) => (Choice::row_wise(exchange), 0),
            Some(Shard { owner: Owner::Rank(rank), .. }) => (Choice::table_wise(exchange, *rank), 0),
        };
        let chosen: Vec<_> = tables.iter().zip(&plan.tables).map(|(known, planned)| choice(known, planned)).collect();
        let of_tables: Vec<_> =
            tables.iter().zip(&chosen).map(|(known, (choice, _))| (known, choice.clone())).collect();
        let loads: Vec<_> = of_tables.iter().map(|(known, choice)| counted(known, choice, &context)).collect();

        let seconds_of = seconds(&of_tables, &context);
        let slowest = seconds_of.iter().copied().fold(0.0, f64::max);
        assert_equal(report.iteration.total_s, slowest, "total");
        assert_equal(report.samples_per_second, 18.0 / slowest, "samples per second");
        assert_equal(report.balance, seconds_of.iter().sum::<f64>() / topology.ranks() as f64 / slowest, "balance");
        let parts = report.iteration;
        // Of several equally slow ranks, the first one.
        let slowest_rank = report.per_rank.iter().position(|rank| rank.seconds == parts.total_s).unwrap();
        let of_slowest = report.per_rank[slowest_rank];
        assert_equal(parts.dense_s, 1e4 / machine.flops, "dense");
        assert_equal(parts.memory_s, of_slowest.memory_s, "memory");
        let within = of_slowest.within_bytes as f64 / machine.within_nodes.bytes_per_s;
        let between = of_slowest.between_bytes as f64 / machine.between_nodes.bytes_per_s;
        // Reports round bytes to whole numbers.
        prop_assert!((parts.exchange_within_s - within).abs() <= 1.0 / machine.within_nodes.bytes_per_s);
        prop_assert!((parts.exchange_between_s - between).abs() <= 1.0 / machine.between_nodes.bytes_per_s);
        let all_reduced = report.all_reduce;
        let of_rank = |bytes: u64| bytes as f64 / topology.ranks() as f64;
        let within = of_rank(all_reduced.within_bytes) / machine.within_nodes.bytes_per_s;
        let speed = machine.between_nodes.bytes_per_s * machine.between_nodes.reduction_efficiency;
        let between = of_rank(all_reduced.between_bytes) / speed;
        prop_assert!((parts.all_reduce_within_s - within).abs() <= 1.0 / machine.within_nodes.bytes_per_s);
        prop_assert!((parts.all_reduce_between_s - between).abs() <= 1.0 / speed);
        let sum = parts.dense_s + parts.memory_s + parts.exchange_within_s + parts.exchange_between_s
            + parts.all_reduce_within_s + parts.all_reduce_between_s + parts.latency_s - parts.hidden_s;
        assert_equal(sum, slowest, "the sum of the parts");
        let most = [
            ("dense compute", parts.dense_s),
            ("memory bandwidth", parts.memory_s),
            ("link within nodes", parts.exchange_within_s + parts.all_reduce_within_s),
            ("link between nodes", parts.exchange_between_s + parts.all_reduce_between_s),
            ("latency", parts.latency_s),
        ];
        let most = most.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        prop_assert_eq!(report.limit.name(), most.0);

        let sum = |rank: usize, of: &dyn Fn(&RankLoad) -> f64| -> f64 {
            loads.iter().map(|loads| of(&loads[rank])).sum()
        };
        let mut needed = 0;
        prop_assert_eq!(report.per_rank.len(), topology.ranks());
        for (rank, (found, &seconds)) in report.per_rank.iter().zip(&seconds_of).enumerate() {
            prop_assert_eq!((found.rank, found.node), (Rank(rank), topology.node_of(Rank(rank))));
            assert_equal(found.seconds, seconds, "seconds of a rank");
            let memory = (1e3 + sum(rank, &|load| load.memory_traffic)) / machine.memory_bytes_per_s;
            assert_equal(found.memory_s, memory, "memory of a rank");
            assert_rounded(found.table_bytes, sum(rank, &|load| load.table_bytes), "table bytes");
            assert_rounded(found.buffer_bytes, sum(rank, &|load| load.buffer_bytes), "found.buffer_bytes");
            prop_assert_eq!(found.rest_bytes, 1000);
            let within = sum(rank, &|load| load.within.asked).max(sum(rank, &|load| load.within.served));
            let between = sum(rank, &|load| load.between.asked).max(sum(rank, &|load| load.between.served));
            assert_rounded(found.within_bytes, within, "found.within_bytes");
            assert_rounded(found.between_bytes, between, "found.between_bytes");
            needed = needed.max(found.table_bytes + found.buffer_bytes + 1000);
        }
        prop_assert!(report.memory.needed_bytes.abs_diff(needed) <= 2);
        prop_assert_eq!((report.memory.available_bytes, report.memory.rest_bytes), (machine.memory_bytes, 1000));

        // Within a byte or a row of the sum over all ranks.
        let near = |found: Traffic, of: &dyn Fn(usize) -> Vec<RankLoad>| {
            let (mut within, mut between) = (Flow::default(), Flow::default());
            for load in (0..tables.len()).flat_map(of) {
                within += load.within;
                between += load.between;
            }
            for (found, expected) in [(found.within_nodes, within), (found.between_nodes, between)] {
                let LinkTraffic { rows, bytes, .. } = found;
                assert_rounded(rows, expected.rows, "rows");
                assert_rounded(bytes, expected.asked, "bytes");
            }
        };
        near(report.traffic, &|table| loads[table].clone());
        let frequent: f64 = of_tables.iter().map(|(known, choice)| summed(known, choice, &context)).sum();
        let reduced = report.all_reduce;
        assert_rounded(reduced.elements, frequent + 100.0, "elements");
        assert_rounded(reduced.frequent_elements, frequent, "frequent elements");
        let (nodes, per_node) = (topology.nodes() as f64, topology.ranks_per_node() as f64);
        let reduced_bytes = 2.0 * 4.0 * (frequent + 100.0) * nodes;
        assert_rounded(reduced.within_bytes, reduced_bytes * (per_node - 1.0), "bytes within");
        assert_rounded(reduced.between_bytes, reduced_bytes * (nodes - 1.0) / nodes, "bytes between");

        for (table, (known, (choice, frequent))) in tables.iter().zip(&chosen).enumerate() {
            let found = &report.tables[table];
            prop_assert_eq!((&found.name, found.rows, found.dim), (&known.spec.name, known.spec.rows, known.spec.dim));
            assert_equal(found.lookups_per_sample, known.lookups() / known.samples as f64, "look-ups");
            let distinct: f64 = known.rows().map(|(_, rows, count)| rows * known.named(count, 18.0)).sum();
            assert_rounded(found.distinct_rows, distinct, "distinct rows");
            prop_assert_eq!((found.placement, found.frequent_rows), (placement, *frequent));
            prop_assert_eq!(found.exchange, (kind > 0).then_some(exchange));
            prop_assert_eq!(&found.owners, &choice.owners);
            let bytes = || loads[table].iter().map(|load| load.table_bytes);
            assert_rounded(found.bytes, bytes().sum(), "bytes");
            assert_rounded(found.rank_bytes, bytes().fold(0.0, f64::max), "bytes of a rank");
            near(found.traffic, &|other| if other == table { loads[table].clone() } else { Vec::new() });
            assert_rounded(found.reduced_elements, summed(known, choice, &context), "elements");
            prop_assert_eq!(&found.reason, "set in the job");

            prop_assert!(found.alternatives.is_sorted_by(|a, b| a.iteration_s <= b.iteration_s));
            for other in &found.alternatives {
                let choice = match (other.placement, other.exchange) {
                    (Placement::Replicated, _) => Choice::replicated(),
                    (Placement::RowWise, Some(exchange)) => Choice::row_wise(exchange),
                    _ => continue,
                };
                let mut instead = of_tables.clone();
                instead[table].1 = choice.clone();
                let slowest = seconds(&instead, &context).into_iter().fold(0.0, f64::max);
                assert_equal(other.iteration_s, slowest, "seconds of another choice");
                let load = counted(known, &choice, &context);
                let within: f64 = load.iter().map(|load| load.within.asked).sum();
                let between: f64 = load.iter().map(|load| load.between.asked).sum();
                assert_rounded(other.within_bytes, within, "other.within_bytes");
                assert_rounded(other.between_bytes, between, "other.between_bytes");
                let most = load.iter().map(|load| load.table_bytes).fold(0.0, f64::max);
                assert_rounded(other.rank_bytes, most, "bytes of a rank");
                let summed = 2.0 * 4.0 * summed(known, &choice, &context) * nodes;
                let bytes = summed * (per_node - 1.0) + summed * (nodes - 1.0) / nodes;
                assert_rounded(other.all_reduce_bytes, bytes, "all-reduce bytes");
                prop_assert!(other.fits);
                // The job allows no other placement.
                prop_assert!(!other.allowed);
            }
        }
    }

    /// Moving one table to another placement makes no plan of small tables faster, so a single table is placed
    /// optimally.
    #[test]
    fn no_table_is_better_elsewhere(
        tables in prop::collection::vec(known(), 1..4),
        ranks in 2..5usize,
        gpu in any::<bool>(),
    ) {
        let topology = Topology::new(ranks, 1).unwrap();
        // Bytes matter, and latencies do not decide everything.
        let latency_s = 1e-2;
        let link =
            LinkSpeed { bytes_per_s: 1e3, latency_s, reduction_efficiency: 0.5, reduction_latency_s: latency_s };
        let machine =
            Machine { within_nodes: link, memory_bytes_per_s: 1e4, shard_latency_s: latency_s, ..machine(gpu) };
        let inputs = tables.iter().map(|known| known.input(None, None));
        let input = PlanInput { tables: inputs.collect(), batch_size: 18, topology, machine: &machine, rest: rest() };
        let search = Search::new(&input);
        let (chosen, _) = search.run();
        let context = Context::new(topology, &machine, rest(), 18);
        let mut plan: Vec<_> = tables.iter().zip(chosen).collect();
        let found = seconds(&plan, &context).into_iter().fold(0.0, f64::max);
        for (table, known) in tables.iter().enumerate() {
            let kept = plan[table].1.clone();
            let mut choices = vec![Choice::replicated()];
            for exchange in Exchange::ALL {
                choices.push(Choice::row_wise(exchange));
                choices.extend(Rank::first(ranks).map(|owner| Choice::table_wise(exchange, owner)));
                // GPUs pool no bags of hybrid tables, nor of columns that share squares.
                let pools = !gpu || exchange == Exchange::Rows;
                if pools {
                    choices.push(Choice::hybrid(exchange, search.tables[table].best_split(exchange)));
                }
                let rowwise = matches!(known.rule, UpdateRule::RowwiseAdagrad { .. });
                if known.spec.dim > 4 * (ranks - 1) && (pools || !rowwise) {
                    choices.push(Choice::column_wise(exchange, Rank::first(ranks).collect()));
                }
            }
            for choice in choices {
                plan[table].1 = choice;
                let slowest = seconds(&plan, &context).into_iter().fold(0.0, f64::max);
                prop_assert!(found <= slowest * (1.0 + 1e-6), "{found} > {slowest} of table {table} in {plan:?}");
            }
            plan[table].1 = kept;
        }
    }

    /// Every split, tried one by one, as if each rank owned the mean of all.
    #[test]
    fn the_best_split_takes_least_time(known in known(), ranks in 2..5usize, gpu in any::<bool>()) {
        let topology = Topology::new(ranks, 1).unwrap();
        let link = LinkSpeed { bytes_per_s: 1e3, latency_s: 1.0, reduction_efficiency: 0.5, reduction_latency_s: 1.0 };
        let machine = Machine { within_nodes: link, memory_bytes_per_s: 1e4, ..machine(gpu) };
        let context = Context::new(topology, &machine, NonTableLoad::default(), 18);
        let input = known.input(None, None);
        let best = TableCosts::new(&input, context).best_split(Exchange::Rows);
        let time = |split| {
            let choice = Choice::hybrid(Exchange::Rows, split);
            let loads = counted(&known, &choice, &context);
            let mean = |of: &dyn Fn(&RankLoad) -> f64| loads.iter().map(of).sum::<f64>() / ranks as f64;
            let reduced = 2.0 * 4.0 * summed(&known, &choice, &context) * (ranks - 1) as f64 / ranks as f64;
            mean(&|load| load.memory_traffic) / 1e4 + mean(&|load| load.within.asked) / 1e3 + reduced / 500.0
        };
        let least = (0..=known.counts.len()).map(time).fold(f64::INFINITY, f64::min);
        prop_assert!(time(best) <= least * (1.0 + 1e-9), "{best}: {} for {least}", time(best));
    }
}

#[test]
fn alternatives_tell_what_the_job_allows_and_what_fits() {
    let spec = TableSpec { name: "t".into(), rows: 4000, dim: 16, dtype: Dtype::Fp32, dynamic: None };
    let others = CountClass { rows: 4000, lookups: 4000 };
    let known = KnownTable::new(spec, UpdateRule::Sgd, 4000, Vec::new(), others, vec![vec![(1, 1)]]);
    let topology = Topology::new(4, 1).unwrap();
    let kinds = |memory_bytes, placement, exchange| {
        let machine = Machine { memory_bytes, ..Machine::cpu(0) };
        let tables = vec![known.input(placement, exchange)];
        let input = PlanInput { tables, batch_size: 100, topology, machine: &machine, rest: rest() };
        let report = plan(&input).unwrap().report;
        let table = &report.tables[0];
        let other = |other: &Alternative| (other.placement, other.exchange, other.allowed, other.fits);
        let mut others: Vec<_> = table.alternatives.iter().map(other).collect();
        others.push((table.placement, table.exchange, true, true));
        (others, table.reason.clone())
    };
    let (roomy, tight) = (1 << 30, 150_000);
    let (all, reason) = kinds(roomy, None, None);
    // No row is known to be frequent, so no alternative is hybrid.
    assert_eq!(all.len(), 7);
    assert!(all.iter().all(|(_, _, allowed, fits)| *allowed && *fits), "{all:?}");
    assert!(reason.starts_with("next best is ") || reason.starts_with("the slowest rank"), "{reason}");
    // A table of 256,000 bytes fits if its rows or columns are spread.
    let (all, reason) = kinds(tight, None, None);
    for (placement, _, allowed, fits) in all {
        assert!(allowed);
        assert_eq!(fits, !matches!(placement, Placement::Replicated | Placement::TableWise), "{placement:?}");
    }
    assert!(!reason.is_empty());
    // A replicated table is not exchanged, so any exchange setting allows it.
    let (all, _) = kinds(roomy, None, Some(Exchange::Rows));
    for (placement, exchange, allowed, _) in all {
        assert_eq!(allowed, exchange != Some(Exchange::Pooled), "{placement:?}, {exchange:?}");
    }
    let (all, reason) = kinds(roomy, Some(Placement::TableWise), None);
    for (placement, _, allowed, _) in all {
        assert_eq!(allowed, placement == Placement::TableWise, "{placement:?}");
    }
    assert_eq!(reason, "set in the job");
}

#[test]
fn long_lists_of_names_are_shortened() {
    let names: Vec<_> = (0..7).map(|number| format!("C{number}")).collect();
    assert_eq!(list(&names[..5]), "C0, C1, C2, C3, C4");
    assert_eq!(list(&names), "C0, C1, C2, C3, C4 and 2 more");
}

/// The capacity of a round between nodes: the longest expected list plus five standard deviations.
#[test]
fn rounds_have_room_for_chance() {
    // Every row is looked up once in 4000 samples of one id. A batch of 2000 has a thousand per node, half of them
    // owned by the other node.
    let spec = TableSpec { name: "t".into(), rows: 4000, dim: 4, dtype: Dtype::Fp32, dynamic: None };
    let others = CountClass { rows: 4000, lookups: 4000 };
    let known = KnownTable::new(spec, UpdateRule::Sgd, 4000, Vec::new(), others, vec![vec![(1, 1)]]);
    let round = |batch_size, exchange, nodes| {
        let (machine, topology) = (Machine::cpu(1 << 30), Topology::new(2, nodes).unwrap());
        let tables = vec![known.input(Some(Placement::RowWise), Some(exchange))];
        let input = PlanInput { tables, batch_size, topology, machine: &machine, rest: rest() };
        plan(&input).unwrap().plan.tables[0].round
    };
    // 500 plus five times its square root is 611.8.
    assert_eq!(round(2000, Exchange::Rows, 2), RoundCapacity { vectors: 612, ids: 16 });
    assert_eq!(round(2000, Exchange::Pooled, 2), RoundCapacity { vectors: 612, ids: 612 });
    assert_eq!(round(4, Exchange::Pooled, 2), RoundCapacity { vectors: 16, ids: 16 });
    assert_eq!(round(2000, Exchange::Rows, 1), RoundCapacity::default());
}

/// The times of a load on a machine of round numbers.
#[test]
fn times_are_those_computed_by_hand() {
    let link = |bytes_per_s, latency_s, reduction_efficiency, reduction_latency_s| LinkSpeed {
        bytes_per_s,
        latency_s,
        reduction_efficiency,
        reduction_latency_s,
    };
    let machine = Machine {
        memory_bytes: 10,
        memory_bytes_per_s: 1000.0,
        flops: 10.0,
        matmul_latency_s: 0.5,
        shard_latency_s: 0.25,
        within_nodes: link(100.0, 2.0, 0.5, 3.0),
        between_nodes: link(10.0, 4.0, 0.25, 5.0),
        overlap: 0.5,
        ..Machine::cpu(0)
    };
    let memory = NonTableMemory {
        parameter_bytes: 1,
        gradient_bytes: 2,
        state_bytes: 4,
        activation_bytes: 8,
        batch_bytes: 16,
        membership_bytes: 32,
    };
    assert_eq!(memory.bytes(), 63);
    let memory = NonTableMemory { batch_bytes: 7, ..NonTableMemory::default() };
    let rest =
        NonTableLoad { memory, flops: 20.0, matmuls: 3, memory_traffic_bytes: 2000.0, reduced_elements: 100 };
    let context = Context::new(Topology::new(4, 2).unwrap(), &machine, rest, 8);
    assert_eq!((context.batch, context.of_node, context.of_rank), (8.0, 4.0, 2.0));
    let mut load = Load { reduced_elements: 60.0, shards: 2, sharing_squares: 1, ..Load::none(&context) };
    load.ranks[1] = RankLoad {
        table_bytes: 5.0,
        buffer_bytes: 6.0,
        memory_traffic: 500.0,
        within: Flow { rows: 1.0, asked: 300.0, served: 200.0 },
        between: Flow { rows: 1.0, asked: 10.0, served: 70.0 },
    };
    let common = load.common(&context);
    // 160 elements are 640 bytes: within nodes twice half of them at 50 bytes per second; between nodes twice a
    // quarter at 2.5.
    assert_eq!((common.reduce_within, common.reduce_between), (640.0 / 50.0, 320.0 / 2.5));
    assert_eq!((common.dense, common.memory, common.matmul_latency), (2.0, 2.0, 1.5));
    // Four exchanges and an all-reduce on each kind of link, and two shards.
    assert_eq!(common.link_latency, (4.0 * 2.0 + 3.0) + (4.0 * 4.0 + 5.0) + 0.5);
    let parts = load.parts(Rank(1), &common, &machine);
    assert_eq!((parts.memory, parts.exchange_within, parts.exchange_between), (2.5, 3.0, 7.0));
    // Computing takes 6 and communicating 183.3; half of the shorter is hidden.
    assert!((parts.hidden(&machine) - 3.0).abs() < 1e-9);
    assert!((parts.total(&machine) - 186.3).abs() < 1e-9, "{}", parts.total(&machine));
    assert_eq!((load.memory_of(Rank(1), &context), load.memory_of(Rank(0), &context)), (18.0, 7.0));
    assert_eq!(load.excess(&context), 8.0);

    let (alone, one_node) =
        (Load::none(&context), Context::new(Topology::new(2, 1).unwrap(), &machine, rest, 8));
    assert_eq!(alone.common(&context).link_latency, 3.0 + 5.0);
    assert_eq!(load.common(&one_node).link_latency, 4.0 * 2.0 + 3.0 + 0.5);
    assert_eq!(Reduction::new(Topology::ONE, &machine, 1e6).seconds(&machine), 0.0);

    // Adding it twice doubles it, and subtracting it once restores it.
    let mut twice = load.clone();
    twice += &load;
    let of_rank = &twice.ranks[1];
    assert_eq!((of_rank.table_bytes, of_rank.buffer_bytes, of_rank.memory_traffic), (10.0, 12.0, 1000.0));
    assert_eq!(of_rank.within, Flow { rows: 2.0, asked: 600.0, served: 400.0 });
    assert_eq!(of_rank.between, Flow { rows: 2.0, asked: 20.0, served: 140.0 });
    assert_eq!((twice.reduced_elements, twice.shards, twice.sharing_squares), (120.0, 4, 2));
    twice -= &load;
    assert_eq!(twice, load);
}
