//! The kernels between nodes, for more nodes than there are GPUs: one rank's side of a hop, with messages that the test
//! makes, against a naive computation.

use half::bf16;
use rankine_cuda::kernels::{
    self, Addresses, BagPooling, Dtype, GROUP_KEYS, Groups, KeySet, LINE_KEYS, Link, LinkCounts, Number,
    PooledFeature, Pooling, RAIL_HEADER, RANKS_MAX, RailLists, RailMark, RailRows, Rule, Send, Shard,
};
use rankine_cuda::{Buffer, PinnedBuffer, Pointer};

use super::{Bench, Body, Outcome, Random};

pub(crate) const BODIES: &[Body] = &[
    ("rows_travel_between_any_number_of_nodes", 3, rows_travel),
    ("bags_are_split_among_any_number_of_nodes", 3, bags_are_split),
];

const NODES: [usize; 5] = [1, 3, 8, 16, 64];
/// What buffers have before a kernel writes them.
const POISON: u32 = 0x7fc1_2345;

/// Data of each node, or of each rank of a node, that a kernel writes: poison elsewhere.
struct Places {
    buffers: Vec<Buffer<u32>>,
    words: usize,
    /// Over nodes: this node.
    node: Option<usize>,
    count: usize,
}

impl Places {
    fn of_nodes(bench: &Bench, words: usize, nodes: usize, node: usize) -> Result<Self, rankine_cuda::Error> {
        let poison = vec![POISON; nodes * words];
        let both = [(); 2].map(|()| Buffer::of(&bench.device, &poison));
        let buffers = both.into_iter().collect::<Result<_, _>>()?;
        Ok(Self { buffers, words, node: Some(node), count: nodes })
    }

    fn of_ranks(bench: &Bench, words: usize, ranks: usize) -> Result<Self, rankine_cuda::Error> {
        let one = |_| Buffer::of(&bench.device, &vec![POISON; words]);
        Ok(Self { buffers: (0..ranks).map(one).collect::<Result<_, _>>()?, words, node: None, count: ranks })
    }

    fn addresses(&self) -> Addresses {
        let pointers: Vec<_> = self.buffers.iter().map(Buffer::pointer).collect();
        match self.node {
            Some(node) => Addresses::of_nodes(pointers[0], pointers[1], 4 * self.words, node),
            None => Addresses::of_ranks(self.pointers()),
        }
    }

    fn pointers(&self) -> [Pointer<u32>; RANKS_MAX] {
        std::array::from_fn(|rank| self.buffers.get(rank).map_or(Pointer::NULL, Buffer::pointer))
    }

    /// Compares all data with what is expected of each; nothing else may be written.
    fn check(&self, bench: &Bench, what: &str, expected: &[Vec<u32>]) -> Outcome {
        assert_eq!(expected.len(), self.count);
        let mut whole = vec![vec![POISON; self.words]; self.count];
        whole.iter_mut().zip(expected).for_each(|(whole, own)| whole[..own.len()].copy_from_slice(own));
        let buffers: Vec<_> = match self.node {
            None => whole,
            Some(node) => (0..2)
                .map(|buffer| {
                    let of_node = |(number, own): (usize, &Vec<u32>)| match (number == node) == (buffer == 1)
                    {
                        true => own.clone(),
                        false => vec![POISON; self.words],
                    };
                    whole.iter().enumerate().flat_map(of_node).collect()
                })
                .collect(),
        };
        for (number, (buffer, expected)) in self.buffers.iter().zip(buffers).enumerate() {
            equal(&format!("{what}, buffer {number}"), &buffer.read(&bench.lane)?, &expected)?;
        }
        Ok(())
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], expected: &[T]) -> Outcome {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        Some(at) => Err(format!("{what}: {at}: {:?}, not {:?}", found[at], expected[at]).into()),
        None if found.len() != expected.len() => Err(format!("{what}: {} elements", found.len()).into()),
        None => Ok(()),
    }
}

fn some_rows(words: &mut Random, rows: u32) -> Vec<u32> {
    let eighths = words.one_of(&[0, 1, 4, 8]);
    (0..rows).filter(|_| words.below(8) < eighths).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Two of bf16 in a word.
fn packed(values: &[f32]) -> Vec<u32> {
    let half = |value: f32| u32::from(bf16::from_f32(value).to_bits());
    values.chunks_exact(2).map(|two| half(two[0]) | half(two[1]) << 16).collect()
}

const WIDTH: usize = 24;
/// Rows of two shards, whose vectors have this many elements without and with padding.
const SHARDS: [(u32, usize, usize); 2] = [(90, 7, 8), (210, 21, 24)];
const ROWS: u32 = SHARDS[0].0 + SHARDS[1].0;

fn shards() -> Vec<Shard> {
    let mut base = 0;
    let of = |(rows, dim, _): (u32, usize, usize)| {
        let shard = Shard {
            words: u64::from(base) * WIDTH as u64,
            rule: Rule::sgd(),
            base,
            rows,
            row_words: WIDTH as u32,
            dim: dim as u32,
            first: WIDTH as u32,
            second: WIDTH as u32,
            dtype: Dtype::Fp32 as u32,
            table: 0,
            column: 0,
            row: 0,
            step: 1,
            shares_squares: 0,
            listed: Pointer::NULL,
        };
        base += rows;
        shard
    };
    SHARDS.map(of).into()
}

/// Elements of a row, with padding.
fn dim(row: u32) -> usize {
    SHARDS[usize::from(row >= SHARDS[0].0)].2
}

/// The rows that the ranks of a node look up at other nodes.
struct Named {
    nodes: usize,
    node: usize,
    /// By node; last, those that every rank stores.
    rows: Vec<Vec<u32>>,
    of_all: usize,
    /// Ranks of the node, and entries of each.
    ranks: usize,
    capacity: usize,
    /// `[row][rank]`
    sources: Vec<u32>,
}

impl Named {
    fn new(words: &mut Random, nodes: usize) -> Self {
        let (ranks, of_all) = (3, words.below(2) as usize);
        let rows: Vec<_> = (0..nodes + of_all).map(|_| some_rows(words, ROWS)).collect();
        let count = rows.iter().map(Vec::len).sum::<usize>();
        let mut entries = vec![0; ranks];
        let capacity = count.max(1);
        let mut source = |rank: usize| {
            if words.below(3) == 0 {
                return 0;
            }
            entries[rank] += 1;
            (rank * capacity + entries[rank]) as u32
        };
        let sources = (0..count).flat_map(|_| (0..ranks).map(&mut source).collect::<Vec<_>>()).collect();
        Self { nodes, node: words.below(nodes as u64) as usize, rows, of_all, ranks, capacity, sources }
    }

    fn starts(&self) -> Vec<u32> {
        let mut starts = vec![0];
        starts.extend(self.rows.iter().scan(0, |end, rows| {
            *end += rows.len() as u32;
            Some(*end)
        }));
        starts
    }

    fn of_every_rank(&self) -> &[u32] {
        self.rows.get(self.nodes).map_or(&[], Vec::as_slice)
    }
}

fn rows_travel(bench: &Bench, words: &mut Random) -> Outcome {
    for nodes in NODES {
        let named = Named::new(words, nodes);
        lists_are_sent_and_marked(bench, words, &named)
            .and_then(|()| rows_are_sent_and_spread(bench, words, &named))
            .and_then(|()| sums_are_gathered(bench, words, &named))
            .map_err(|failed| format!("{nodes} nodes: {}", failed.message().unwrap_or_default()))?;
    }
    Ok(())
}

fn lists_are_sent_and_marked(bench: &Bench, words: &mut Random, named: &Named) -> Outcome {
    let Bench { device, lane } = bench;
    let (nodes, node, stride) = (named.nodes, named.node, RAIL_HEADER + 2 * ROWS as usize);
    let grid = (3, nodes as u32);
    let (rows, starts) = (Buffer::of(device, &named.rows.concat())?, Buffer::of(device, &named.starts())?);
    let lists = Places::of_nodes(bench, stride, nodes, node)?;
    let of_all = named.of_every_rank();
    let kernel = RailLists {
        named: rows.pointer(),
        starts: starts.pointer(),
        lists: lists.addresses(),
        node: node as u32,
        nodes: nodes as u32,
        of_all: named.of_all as u32,
        reserved: 0,
    };
    // SAFETY: lists have room for all rows, and the lane is waited for by reading.
    unsafe { lane.launch(&kernel, grid) }?;
    let others = (0..nodes).filter(|&other| other != node);
    let most = others.map(|other| named.rows[other].len()).max().unwrap_or(0) + of_all.len();
    let list = |wanted: &Vec<u32>| {
        let header = [wanted.len() + of_all.len(), most, wanted.len()].map(|word| word as u32);
        [&header[..], &[POISON], wanted, of_all].concat()
    };
    let expected: Vec<_> = named.rows[..nodes].iter().map(list).collect();
    lists.check(bench, "lists", &expected)?;

    // As if each node had sent such a list; the other nodes' lists have arrived up to a length.
    let there = words.one_of(&[0, 5, ROWS as usize, 2 * ROWS as usize]);
    let received: Vec<_> = (0..nodes).map(|_| (some_rows(words, ROWS), words.below(900) as u32)).collect();
    let wanted: Vec<_> = received.iter().map(|(rows, _)| words.below(1 + rows.len() as u64) as u32).collect();
    let mut flat = vec![POISON; nodes * stride];
    for (number, ((rows, most), wanted)) in received.iter().zip(&wanted).enumerate() {
        let list = &mut flat[number * stride..][..RAIL_HEADER + rows.len()];
        list[..3].copy_from_slice(&[rows.len() as u32, *most, *wanted]);
        list[RAIL_HEADER..].copy_from_slice(rows);
    }
    let (flat, counts) = (Buffer::of(device, &flat)?, Buffer::filled(device, nodes, 0xff)?);
    let wanted_here = Buffer::filled(device, nodes, 0xff)?;
    let longest = PinnedBuffer::<u32>::zeroed(device, 1)?;
    let keys = GROUP_KEYS;
    let (in_bits, groups) = (Buffer::filled(device, keys / 32, 0)?, Buffer::filled(device, 1, 0)?);
    let lines = Buffer::filled(device, keys / LINE_KEYS, 0)?;
    let set = KeySet { bits: in_bits.pointer(), groups: groups.pointer(), lines: lines.pointer() };
    let mark = RailMark {
        lists: flat.pointer(),
        counts: counts.pointer(),
        wanted: wanted_here.pointer(),
        most: longest.device_pointer()?,
        set,
        stride: stride as u32,
        there: there as u32,
        node: node as u32,
        nodes: nodes as u32,
    };
    let union = Buffer::<u32>::filled(device, ROWS as usize, 0xff)?;
    let (union_starts, sources) =
        (Buffer::<u32>::filled(device, 2, 0)?, Buffer::<u32>::filled(device, ROWS as usize * nodes, 0xff)?);
    let number = Number {
        set,
        rows: union.pointer(),
        starts: union_starts.pointer(),
        sources: sources.pointer(),
        owners: 1,
        span: keys as u32,
        sources_width: nodes as u32,
        reserved: 0,
    };
    let link = Link {
        entries: flat.pointer().element(RAIL_HEADER),
        counts: counts.pointer(),
        set,
        sources: sources.pointer(),
        capacity: stride as u32,
        owned: 0,
        ranks: nodes as u32,
        of_all: 0,
    };
    // SAFETY: as above.
    unsafe {
        lane.launch(&mark, grid)?;
        lane.launch(&Groups(number), (1, 1))?;
        lane.launch(&number, (1, 1))?;
        lane.launch(&link, grid)?;
    }
    let arrived: Vec<_> = received
        .iter()
        .enumerate()
        .map(|(number, (rows, _))| if number == node { rows.len() } else { rows.len().min(there) })
        .collect();
    let counted: Vec<_> = arrived.iter().map(|&count| count as u32).collect();
    equal("counts of rows", &counts.read(lane)?, &counted)?;
    let wanted: Vec<_> = wanted.iter().zip(&counted).map(|(&wanted, &count)| wanted.min(count)).collect();
    equal("counts of wanted rows", &wanted_here.read(lane)?, &wanted)?;
    let most = received.iter().map(|(_, most)| most + 1).max();
    equal("the longest list", longest.elements(), most.as_slice())?;
    let position = |number: usize, row: u32| {
        received[number].0[..arrived[number]].iter().position(|&other| other == row)
    };
    let (mut rows, mut of_rows) = (Vec::new(), Vec::new());
    for row in 0..ROWS {
        let source = |number| position(number, row).map_or(0, |at| (number * stride + at + 1) as u32);
        let of_row: Vec<_> = (0..nodes).map(source).collect();
        if of_row.iter().any(|&source| source != 0) {
            rows.push(row);
            of_rows.extend(of_row);
        }
    }
    equal("the number of rows", &union_starts.read(lane)?, &[0, rows.len() as u32])?;
    equal("rows that nodes name", &union.read_part(lane, 0, rows.len())?, &rows)?;
    equal("their entries", &sources.read_part(lane, 0, of_rows.len())?, &of_rows)
}

fn rows_are_sent_and_spread(bench: &Bench, words: &mut Random, named: &Named) -> Outcome {
    let Bench { device, lane } = bench;
    let (nodes, node, capacity) = (named.nodes, named.node, ROWS as usize);
    let storage: Vec<_> = (0..ROWS as usize * WIDTH).map(|word| word as f32 / 4.0).collect();
    let (stored, of_shards) = (Buffer::of(device, &storage)?, Buffer::of(device, &shards())?);
    // What each node wants of this rank.
    let wanted: Vec<_> = (0..nodes).map(|_| some_rows(words, ROWS)).collect();
    let mut entries = vec![POISON; nodes * capacity];
    wanted.iter().enumerate().for_each(|(number, rows)| {
        entries[number * capacity..][..rows.len()].copy_from_slice(rows);
    });
    let counts: Vec<_> = wanted.iter().map(|rows| rows.len() as u32).collect();
    let (entries, counts) = (Buffer::of(device, &entries)?, Buffer::of(device, &counts)?);
    let firsts = Buffer::<u32>::filled(device, nodes, 0)?;
    let outgoing = Places::of_nodes(bench, capacity * WIDTH, nodes, node)?;
    let send = Send {
        storage: stored.pointer(),
        shards: of_shards.pointer(),
        entries: entries.pointer(),
        firsts: firsts.pointer(),
        counts: counts.pointer(),
        landings: outgoing.addresses(),
        shards_count: SHARDS.len() as u32,
        capacity: capacity as u32,
        rank: node as u32,
        ranks: nodes as u32,
        width: WIDTH as u32,
        owned: 0,
    };
    // SAFETY: each node has room for all rows, and the lane is waited for by reading.
    unsafe { send.enqueue::<f32>(lane, (2, nodes as u32)) }?;
    let row_of = |&row: &u32| {
        let own = &storage[row as usize * WIDTH..][..dim(row)];
        let mut sent = bits(own);
        sent.resize(WIDTH, POISON);
        sent
    };
    let expected: Vec<_> = wanted.iter().map(|rows| rows.iter().flat_map(row_of).collect()).collect();
    outgoing.check(bench, "rows that are sent", &expected)?;

    // Rows that have arrived from each node go to the ranks of this one.
    let arrived: Vec<_> = (0..nodes * capacity * WIDTH).map(|word| word as u32 ^ 0x5a5a).collect();
    let (rows, starts) = (Buffer::of(device, &named.rows.concat())?, Buffer::of(device, &named.starts())?);
    let (sources, from) = (Buffer::of(device, &named.sources)?, Buffer::of(device, &arrived)?);
    let first_slots: Vec<_> = (0..named.ranks).map(|_| words.below(5) as u32).collect();
    let firsts = Buffer::of(device, &first_slots)?;
    let landings = Places::of_ranks(bench, (named.capacity + 5) * WIDTH, named.ranks)?;
    let spread = RailRows {
        named: rows.pointer(),
        starts: starts.pointer(),
        sources: sources.pointer(),
        firsts: firsts.pointer(),
        shards: of_shards.pointer(),
        rows: Addresses::of_nodes(from.pointer(), from.pointer(), 4 * capacity * WIDTH, node),
        landings: landings.pointers(),
        sums: Pointer::NULL,
        shards_count: SHARDS.len() as u32,
        nodes: nodes as u32,
        ranks: named.ranks as u32,
        rank: 1,
        capacity: named.capacity as u32,
        width: WIDTH as u32,
        element: 4,
        of_all: named.of_all as u32,
    };
    // SAFETY: ranks have room for all rows, and the lane is waited for by reading.
    unsafe { spread.spread(lane, 3) }?;
    let mut expected = vec![vec![POISON; (named.capacity + 5) * WIDTH]; named.ranks];
    let mut sources = named.sources.chunks_exact(named.ranks);
    for (number, rows) in named.rows[..nodes].iter().enumerate() {
        for ((index, &row), sources) in rows.iter().enumerate().zip(sources.by_ref()) {
            for (rank, &source) in sources.iter().enumerate().filter(|(_, source)| **source != 0) {
                let slot = first_slots[rank] as usize + source as usize - 1 - rank * named.capacity;
                let row_words = &arrived[(number * capacity + index) * WIDTH..][..dim(row)];
                expected[rank][slot * WIDTH..][..dim(row)].copy_from_slice(row_words);
            }
        }
    }
    landings.check(bench, "rows that are spread", &expected)
}

fn sums_are_gathered(bench: &Bench, words: &mut Random, named: &Named) -> Outcome {
    let Bench { device, lane } = bench;
    let (nodes, node, capacity) = (named.nodes, named.node, 2 * ROWS as usize);
    let (rows, starts) = (Buffer::of(device, &named.rows.concat())?, Buffer::of(device, &named.starts())?);
    let (sources, of_shards) = (Buffer::of(device, &named.sources)?, Buffer::of(device, &shards())?);
    // Sums of three small integers are exact in bf16.
    let sums: Vec<_> =
        (0..named.ranks * named.capacity * WIDTH).map(|_| words.below(64) as f32 - 32.0).collect();
    for (element, as_words) in [(Dtype::Fp32, bits as fn(&[f32]) -> Vec<u32>), (Dtype::Bf16, packed)] {
        let own_sums = Buffer::of(device, &as_words(&sums))?;
        let row_words = as_words(&[0.0; WIDTH]).len();
        let outgoing = Places::of_nodes(bench, capacity * row_words, nodes, node)?;
        let gather = RailRows {
            named: rows.pointer(),
            starts: starts.pointer(),
            sources: sources.pointer(),
            firsts: Pointer::NULL,
            shards: of_shards.pointer(),
            rows: outgoing.addresses(),
            landings: [Pointer::NULL; RANKS_MAX],
            sums: own_sums.pointer(),
            shards_count: SHARDS.len() as u32,
            nodes: nodes as u32,
            ranks: named.ranks as u32,
            rank: 1,
            capacity: named.capacity as u32,
            width: WIDTH as u32,
            element: element as u32,
            of_all: named.of_all as u32,
        };
        // SAFETY: nodes have room for all rows, and the lane is waited for by reading.
        unsafe { gather.gather(lane, 3) }?;
        let of_row = |(&row, sources): (&u32, &[u32])| {
            let mut sum = vec![0.0; dim(row)];
            for &source in sources.iter().filter(|&&source| source != 0) {
                let own = &sums[(source as usize - 1) * WIDTH..];
                sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            }
            let mut sum = as_words(&sum);
            sum.resize(row_words, POISON);
            sum
        };
        let (named_rows, starts) = (named.rows.concat(), named.starts());
        let all: Vec<_> =
            named_rows.iter().zip(named.sources.chunks_exact(named.ranks)).flat_map(of_row).collect();
        let of_node = |number: usize| {
            &all[starts[number] as usize * row_words..starts[number + 1] as usize * row_words]
        };
        let of_all = &all[starts[nodes] as usize * row_words..];
        let expected: Vec<_> = (0..nodes).map(|number| [of_node(number), of_all].concat()).collect();
        outgoing.check(bench, &format!("sums in {element:?}"), &expected)?;
    }
    Ok(())
}

/// A hop of bags: to the nodes that own rows, or within a node.
#[derive(Debug, Clone, Copy)]
struct Hop {
    owners: usize,
    sources: usize,
    owner_rows: usize,
    turns: usize,
    over_nodes: bool,
}

fn bags_are_split(bench: &Bench, words: &mut Random) -> Outcome {
    for nodes in NODES {
        let ranks = words.one_of(&[1, 2, 5, 8]);
        let first = Hop { owners: nodes, sources: 1, owner_rows: ranks, turns: 1, over_nodes: true };
        let (owners, turns) = (ranks, nodes * ranks);
        let second = Hop { owners, sources: nodes, owner_rows: 1, turns, over_nodes: false };
        for hop in [first, second] {
            let outcome = bags_of(bench, words, hop);
            outcome.map_err(|failed| format!("{hop:?}: {}", failed.message().unwrap_or_default()))?;
        }
    }
    Ok(())
}

fn bags_of(bench: &Bench, words: &mut Random, hop: Hop) -> Outcome {
    const TABLE_ROWS: u32 = 900;
    let Bench { device, lane } = bench;
    let Hop { owners, sources, .. } = hop;
    // Several blocks of threads, and more than one block of a scan; fewer if there are many of them.
    let samples = if sources > 8 { 40 } else { words.one_of(&[1, 31, 300, 1100]) };
    let there = words.below(1 + samples as u64) as usize;
    let rank = words.below(owners as u64) as usize;
    let owner = words.below(owners as u64) as u32;
    // Ids per sample, whether that is always so, whether rows take turns, and elements.
    let shapes = [(2, true, true, 4), (6, false, true, 132), (3, false, false, 8)];
    // Which features are pooled by factors.
    let by_factors = [false, true, words.below(2) == 0];
    let (mut features, mut ids_begin, mut offsets_begin) = (Vec::<PooledFeature>::new(), 0, 0);
    let (mut vector_offset, mut part_offset, mut part_ids) = (4, 0, 0);
    let (mut factors_begin, mut part_factors) = (0, 0);
    for ((hotness, fixed, takes_turns, dim), by_factors) in shapes.into_iter().zip(by_factors) {
        features.push(PooledFeature {
            ids: ids_begin as u32,
            offsets: if fixed { kernels::Feature::FIXED } else { offsets_begin as u32 },
            hotness: hotness as u32,
            pooling: match (by_factors, fixed) {
                (true, _) => BagPooling::ByFactors as u32,
                (false, true) => BagPooling::Mean as u32,
                (false, false) => BagPooling::Sum as u32,
            },
            rows: TABLE_ROWS,
            owner: if takes_turns { kernels::Feature::TURNS } else { owner },
            dim,
            vector_offset,
            part_offset,
            part_ids: part_ids as u32,
            factors: factors_begin as u32,
            part_factors: part_factors as u32,
        });
        if by_factors {
            factors_begin += samples * hotness;
            part_factors += sources * samples * hotness;
        }
        ids_begin += samples * hotness;
        offsets_begin += if fixed { 0 } else { samples + 1 };
        vector_offset += dim + 4;
        part_offset += dim;
        part_ids += sources * samples * hotness;
    }
    let (width, stride) = (part_offset as usize, vector_offset as usize);
    // One id of the first feature is out of range: the last row takes its place.
    let mut all_ids: Vec<_> =
        (0..sources * ids_begin).map(|_| words.below(u64::from(TABLE_ROWS)) as u32).collect();
    all_ids[0] = TABLE_ROWS + 7;
    let all_factors: Vec<_> =
        (0..sources * factors_begin).map(|_| words.below(1 << 20) as f32 / 7.0).collect();
    let mut offsets = Vec::new();
    let mut factors = vec![vec![Vec::new(); sources * samples]; shapes.len()];
    let mut bags = vec![vec![Vec::new(); sources * samples]; shapes.len()];
    for source in 0..sources {
        for (feature, (hotness, fixed, ..)) in features.iter().zip(shapes) {
            let mut end = 0;
            let number = part_of(&features, feature);
            for sample in 0..samples {
                if !fixed {
                    offsets.push(end as u32);
                }
                let size = match (sample < there, fixed) {
                    (false, _) => 0,
                    (true, true) => hotness,
                    (true, false) => words.below(1 + hotness as u64) as usize,
                };
                let begin = source * ids_begin + feature.ids as usize + end;
                let ids = all_ids[begin..begin + size].iter().map(|&id| id.min(TABLE_ROWS - 1));
                bags[number][source * samples + sample] = ids.collect::<Vec<_>>();
                if by_factors[number] {
                    let begin = source * factors_begin + feature.factors as usize + end;
                    factors[number][source * samples + sample] = all_factors[begin..begin + size].to_vec();
                }
                end += size;
            }
            if !fixed {
                offsets.push(end as u32);
            }
        }
    }
    let owner_of = |feature: usize, id: u32| match shapes[feature].2 {
        true => id as usize / hop.owner_rows % owners,
        false => owner as usize,
    };
    let part = |of: usize, feature: usize, number: usize| -> Vec<u32> {
        let bag = bags[feature][number].iter().filter(|&&id| owner_of(feature, id) == of);
        bag.map(|&id| if shapes[feature].2 { id / hop.turns as u32 } else { id }).collect()
    };
    let part_of_factors = |of: usize, feature: usize, number: usize| -> Vec<f32> {
        let bag = bags[feature][number].iter().zip(&factors[feature][number]);
        bag.filter(|&(&id, _)| owner_of(feature, id) == of).map(|(_, &factor)| factor).collect()
    };
    let (numbers, count) = (sources * samples, shapes.len());
    let places = |words| match hop.over_nodes {
        true => Places::of_nodes(bench, words, owners, rank),
        false => Places::of_ranks(bench, words, owners),
    };
    let (their_starts, their_ids) = (places(count * (numbers + 1))?, places(part_ids)?);
    let (their_factors, their_gradients) = (places(part_factors)?, places(numbers * width)?);
    let of_parts: Vec<_> = (0..owners * numbers * width).map(|_| words.below(4096) as f32 - 2048.0).collect();
    let gradients: Vec<_> = (0..numbers * stride).map(|_| words.below(4096) as f32 - 2048.0).collect();
    let (parts, own_gradients) = (Buffer::of(device, &of_parts)?, Buffer::of(device, &gradients)?);
    let vectors = Places::of_nodes(bench, samples * stride, sources, sources / 2)?;
    let (of_features, ids) = (Buffer::of(device, &features)?, Buffer::of(device, &all_ids)?);
    let device_factors = Buffer::of(device, &all_factors)?;
    let (offsets, samples_count) = (Buffer::of(device, &offsets)?, Buffer::of(device, &[there as u32])?);
    let starts = Buffer::<u32>::filled(device, owners * count * (numbers + 1), 0xff)?;
    let faults = Buffer::<u32>::filled(device, 1, 0)?;
    let counted = Buffer::of(device, &[LinkCounts::default()])?;
    let added = words.below(1 + samples as u64) as usize;
    let kernel = Pooling {
        features: of_features.pointer(),
        ids: ids.pointer(),
        factors: device_factors.pointer(),
        offsets: offsets.pointer(),
        samples_count: samples_count.pointer(),
        starts: starts.pointer(),
        their_starts: their_starts.addresses(),
        their_ids: their_ids.addresses(),
        their_factors: their_factors.addresses(),
        parts: parts.pointer().cast(),
        their_gradients: their_gradients.addresses(),
        vectors: vectors.addresses(),
        gradients: own_gradients.pointer().cast(),
        faults: faults.pointer(),
        counts: counted.pointer(),
        ids_spacing: ids_begin as u64,
        factors_spacing: factors_begin as u64,
        offsets_spacing: offsets_begin as u64,
        features_count: count as u32,
        sources: sources as u32,
        samples: samples as u32,
        owners: owners as u32,
        owner_rows: hop.owner_rows as u32,
        turns: hop.turns as u32,
        width: width as u32,
        their_stride: width as u32,
        stride: stride as u32,
        rank: rank as u32,
        contained: u32::from(hop.over_nodes),
        added: added as u32,
    };
    // SAFETY: all buffers have the lengths that the parameters say, and the lane is waited for by reading.
    unsafe {
        kernel.cut(lane)?;
        kernel.add::<f32>(lane, 2)?;
        kernel.send::<f32>(lane, 2)?;
    }
    let (mut expected_starts, mut expected_ids, mut expected_factors) = (Vec::new(), Vec::new(), Vec::new());
    for of in 0..owners {
        let (mut starts, mut ids) = (Vec::new(), vec![POISON; part_ids]);
        let mut factors = vec![POISON; part_factors];
        for (feature, own) in features.iter().enumerate() {
            let mut end = 0;
            for number in 0..numbers {
                starts.push(end as u32);
                let part = part(of, feature, number);
                ids[own.part_ids as usize + end..][..part.len()].copy_from_slice(&part);
                let own_factors = bits(&part_of_factors(of, feature, number));
                factors[own.part_factors as usize + if by_factors[feature] { end } else { 0 }..]
                    [..own_factors.len()]
                    .copy_from_slice(&own_factors);
                end += part.len();
            }
            starts.push(end as u32);
        }
        expected_starts.push(starts);
        expected_ids.push(ids);
        expected_factors.push(factors);
    }
    equal("starts", &starts.read(lane)?, &expected_starts.concat())?;
    their_starts.check(bench, "starts at owners", &expected_starts)?;
    their_ids.check(bench, "ids at owners", &expected_ids)?;
    their_factors.check(bench, "factors at owners", &expected_factors)?;
    equal("faults", &faults.read(lane)?, &[u32::from(there > 0)])?;

    let (mut sent, mut ids_sent, mut bytes) = (0, 0, 0);
    let mut expected_vectors = vec![vec![POISON; samples * stride]; sources];
    let mut expected_gradients = vec![vec![POISON; numbers * width]; owners];
    for (feature, own) in features.iter().enumerate() {
        let (dim, at) = (own.dim as usize, own.part_offset as usize);
        for number in 0..numbers {
            let is_mean = own.pooling == BagPooling::Mean as u32;
            let scale = if is_mean { 1.0 / bags[feature][number].len().max(1) as f32 } else { 1.0 };
            let gradient = &gradients[number * stride + own.vector_offset as usize..][..dim];
            let mut sum = vec![0.0; dim];
            for of in 0..owners {
                let ids = part(of, feature, number).len();
                if ids == 0 {
                    continue;
                }
                let part = &of_parts[(of * numbers + number) * width + at..][..dim];
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                let scaled: Vec<_> = gradient.iter().map(|gradient| gradient * scale).collect();
                expected_gradients[of][number * width + at..][..dim].copy_from_slice(&bits(&scaled));
                if of != rank {
                    let id_words = 1 + u64::from(by_factors[feature]);
                    ids_sent += ids as u64 * id_words;
                    (sent, bytes) = (sent + 1, bytes + 2 * 4 * dim as u64);
                }
            }
            if number % samples >= added {
                continue;
            }
            let vector: Vec<_> = sum.iter().map(|sum| sum * scale).collect();
            let to = &mut expected_vectors[number / samples][number % samples * stride..];
            to[own.vector_offset as usize..][..dim].copy_from_slice(&bits(&vector));
        }
    }
    vectors.check(bench, "vectors", &expected_vectors)?;
    their_gradients.check(bench, "gradients at owners", &expected_gradients)?;
    let all = bytes + 4 * (sent + ids_sent);
    // Within a node only lengths and vectors are always sent in full.
    let padding = if hop.over_nodes { all } else { bytes / 2 + 4 * sent };
    let found = counted.read(lane)?[0];
    let found = [found.rows, found.bytes, found.padding.wrapping_neg(), found.reduced];
    equal("counted rows, bytes, padding and reduced bytes", &found, &[sent, all, padding, 0])
}

/// The number of a feature.
fn part_of(features: &[PooledFeature], feature: &PooledFeature) -> usize {
    features.iter().position(|other| other.ids == feature.ids).expect("it is one of them")
}
