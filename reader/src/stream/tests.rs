//! Streams over real files: every order and batch size, from every kind of start, and over damaged files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::dataset::{Dataset, DatasetPart};
use crate::io::{AlignedMemory, IoMode, SlabMemory, SlabRing};
use crate::part::Part;
use crate::samples::Samples;
use crate::split::Split;
use crate::tests::{self, TestDataset, working_rungs};

const SAMPLES: usize = 1000;
const BLOCK_SAMPLES: u32 = 64;

fn dataset() -> TestDataset {
    tests::dataset(SAMPLES, BLOCK_SAMPLES)
}

fn options(batch_size: usize, order: Order, start: Position) -> StreamOptions {
    let io = IoOptions { mode: IoMode::Pread, depth: 4 };
    StreamOptions { batch_size, epochs: Some(2), order, start, share: Share::ALL, io, prefetch: 2 }
}

fn part(dataset: &TestDataset) -> DatasetPart {
    Dataset::open(&dataset.dir()).unwrap().part(Part::Train).unwrap()
}

/// Returns all samples of a stream, one run per epoch; checks each batch's size and positions.
fn collect(dataset: &TestDataset, options: &StreamOptions) -> Vec<Samples> {
    let mut epochs = Vec::new();
    let mut at = options.start;
    for batch in BatchStream::open(part(dataset), options).unwrap() {
        let batch = batch.unwrap();
        if at.sample == SAMPLES as u64 {
            at = Position { epoch: at.epoch + 1, sample: 0 };
        }
        if epochs.is_empty() || at.sample == 0 {
            epochs.push(Samples::new(&dataset.schema));
        }
        assert_eq!(batch.start, at);
        at.sample += batch.samples.len as u64;
        assert_eq!(batch.end, at);
        let partial = at.sample == SAMPLES as u64;
        assert!(
            batch.samples.len == options.batch_size || (partial && batch.samples.len < options.batch_size)
        );
        epochs.last_mut().unwrap().append(&batch.samples, 0..batch.samples.len);
    }
    epochs
}

/// Returns the numbers of samples: their first dense column, see `tests::dataset`.
fn numbers(samples: &Samples) -> Vec<u32> {
    samples.dense.chunks(samples.dense_columns).map(|row| row[0] as u32).collect()
}

/// Returns the samples of these numbers.
fn samples_of(dataset: &TestDataset, numbers: &[u32]) -> Samples {
    let mut samples = Samples::new(&dataset.schema);
    for &number in numbers {
        samples.append(&dataset.samples, number as usize..number as usize + 1);
    }
    samples
}

/// Returns the numbers that are stored in the blocks of a window, in reading order.
fn stored(window: &Window) -> Vec<u32> {
    let of_block = |&block: &u32| {
        let first = block * BLOCK_SAMPLES;
        first..(first + BLOCK_SAMPLES).min(SAMPLES as u32)
    };
    window.blocks.iter().flat_map(of_block).collect()
}

/// Puts numbers that come in the order that an epoch draws into batches, each in reading order.
fn in_batches(drawn: &[u32], batch_size: usize, part: &DatasetPart, order: Order, epoch: u64) -> Vec<u32> {
    let plan = Plan::new(part, order, Some(epoch + 1), Position { epoch, sample: 0 }).unwrap();
    let read: Vec<u32> = plan.flat_map(|window| stored(&window)).collect();
    let places: BTreeMap<_, _> = read.into_iter().zip(0..).collect();
    let mut batches = drawn.to_vec();
    for batch in batches.chunks_mut(batch_size) {
        batch.sort_by_key(|number| places[number]);
    }
    batches
}

const ORDERS: [Order; 4] = [
    Order::File,
    Order::Shuffled { seed: 1, window_blocks: 1 },
    Order::Shuffled { seed: 1, window_blocks: 3 },
    Order::Shuffled { seed: 2, window_blocks: 100 },
];

#[test]
fn file_order_is_the_order_of_writing() {
    let dataset = dataset();
    for batch_size in [1, 7, 64, 100, 1000, 5000] {
        let epochs = collect(&dataset, &options(batch_size, Order::File, Position::default()));
        assert_eq!(epochs.len(), 2);
        assert!(epochs.iter().all(|epoch| *epoch == dataset.samples));
    }
}

#[test]
fn each_shuffled_epoch_has_every_sample_once_in_a_new_order() {
    let dataset = dataset();
    for order in &ORDERS[1..] {
        let epochs = collect(&dataset, &options(100, *order, Position::default()));
        let orders: Vec<_> = epochs.iter().map(numbers).collect();
        assert_ne!(orders[0], orders[1]);
        for (epoch, order) in epochs.iter().zip(&orders) {
            assert_eq!(*epoch, samples_of(&dataset, order), "a row's columns stay together");
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..SAMPLES as u32));
        }
    }
}

#[test]
fn the_shuffled_rows_of_a_batch_are_in_reading_order() {
    let dataset = dataset();
    let part = part(&dataset);
    for order in &ORDERS[1..] {
        for batch_size in [1, 7, 100, 400, 5000] {
            let options = options(batch_size, *order, Position { epoch: 0, sample: 70 });
            let mut drawn = [Vec::new(), Vec::new()];
            for window in Plan::new(&part, *order, options.epochs, options.start).unwrap() {
                let (rows, stored) = (window.rows().unwrap(), stored(&window));
                let delivered = rows[window.skip as usize..].iter().map(|&row| stored[row as usize]);
                drawn[window.epoch as usize].extend(delivered);
            }
            let expected =
                [0, 1].map(|epoch| in_batches(&drawn[epoch], batch_size, &part, *order, epoch as u64));
            let found: Vec<_> = collect(&dataset, &options).iter().map(numbers).collect();
            assert_eq!(found, expected, "{order:?} in batches of {batch_size}");
        }
    }
}

#[test]
fn a_stream_resumes_from_anywhere() {
    let dataset = dataset();
    let part = part(&dataset);
    for order in ORDERS {
        // Batches of one sample have the order of which larger ones are consecutive ranges.
        let whole = collect(&dataset, &options(1, order, Position::default()));
        for epoch in 0..2 {
            for sample in [0, 1, 63, 64, 65, 200, 500, 959, 960, 961, 999, 1000] {
                for batch_size in [1, 77, 5000] {
                    let rest = collect(&dataset, &options(batch_size, order, Position { epoch, sample }));
                    let mut expected = Vec::new();
                    for (number, samples) in (0..).zip(&whole).skip(epoch as usize) {
                        let from = if number == epoch { sample as usize } else { 0 };
                        if from < SAMPLES {
                            let run = in_batches(&numbers(samples)[from..], batch_size, &part, order, number);
                            expected.push(samples_of(&dataset, &run));
                        }
                    }
                    assert_eq!(rest, expected, "{order:?} from {epoch}, {sample} in batches of {batch_size}");
                }
            }
        }
    }
}

#[test]
fn a_start_after_the_last_epoch_yields_nothing() {
    let dataset = dataset();
    for order in ORDERS {
        assert!(collect(&dataset, &options(10, order, Position { epoch: 2, sample: 0 })).is_empty());
        assert!(collect(&dataset, &options(10, order, Position { epoch: 5, sample: 3 })).is_empty());
    }
    let late = options(10, Order::File, Position { epoch: 0, sample: 1001 });
    assert!(BatchStream::open(part(&dataset), &late).unwrap_err().to_string().contains("1001"));
}

#[test]
fn an_endless_stream_stops_when_it_is_dropped() {
    let dataset = dataset();
    for order in ORDERS {
        let endless = StreamOptions { epochs: None, ..options(33, order, Position::default()) };
        let mut stream = BatchStream::open(part(&dataset), &endless).unwrap();
        for _ in 0..200 {
            stream.next().unwrap().unwrap();
        }
        let ring = stream.close();
        // The next stream uses the same ring.
        let mut stream = BatchStream::with_ring(part(&dataset), &endless, ring).unwrap();
        stream.next().unwrap().unwrap();
        drop(stream);
        // A stream from which nothing is taken.
        drop(BatchStream::open(part(&dataset), &endless).unwrap());
    }
}

#[test]
fn every_rung_yields_the_same() {
    let dataset = dataset();
    for rung in working_rungs(&dataset.dir()) {
        let options = StreamOptions {
            io: IoOptions { mode: rung.into(), depth: 3 },
            ..options(64, Order::Shuffled { seed: 3, window_blocks: 2 }, Position::default())
        };
        assert_eq!(BatchStream::open(part(&dataset), &options).unwrap().rung(), rung);
        let pread = StreamOptions { io: IoOptions { mode: IoMode::Pread, depth: 1 }, ..options };
        assert_eq!(collect(&dataset, &options), collect(&dataset, &pread), "{rung}");
    }
}

#[test]
fn damage_is_named_and_ends_the_stream() {
    let dataset = dataset();
    let part = part(&dataset);
    let hit = part.blocks[5];
    let path = &part.files[hit.file as usize];
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let whole = fs::read(path).unwrap();
    let flip = |at: u64| {
        file.write_all_at(&[whole[at as usize] ^ 4], at).unwrap();
    };
    let outcome = || {
        let mut stream =
            BatchStream::open(part.clone(), &options(64, Order::File, Position::default())).unwrap();
        let good = stream.by_ref().take_while(Result::is_ok).count();
        assert!(stream.next().is_none(), "the stream ends after the error");
        let mut stream =
            BatchStream::open(part.clone(), &options(64, Order::File, Position::default())).unwrap();
        (good, stream.find_map(Result::err).unwrap().to_string())
    };
    for at in [0, 8, 20, 100, u64::from(hit.bytes) - 1] {
        flip(hit.offset + at);
        let (good, error) = outcome();
        assert_eq!(good, 5, "batches before the damage arrive");
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(error.contains(&format!("at byte {}", hit.offset)), "{error}");
        file.write_all_at(&whole, 0).unwrap();
    }

    // Nothing follows an error, whether blocks are unpacked or not.
    flip(hit.offset + 100);
    let plan = Plan::new(&part, Order::File, Some(1), Position::default()).unwrap();
    let mut blocks =
        BlockStream::open(part.clone(), plan, &IoOptions { mode: IoMode::Pread, depth: 4 }).unwrap();
    assert_eq!(blocks.by_ref().take_while(Result::is_ok).count(), 5);
    assert!(blocks.next().is_none());
    file.write_all_at(&whole, 0).unwrap();

    // An intact block in the wrong position.
    let other = part.blocks[6];
    assert_eq!(hit.bytes, other.bytes);
    file.write_all_at(&whole[other.offset as usize..][..other.bytes as usize], hit.offset).unwrap();
    assert!(outcome().1.contains("index lists"));
    // The index lists it there, but the block itself states another position.
    file.write_all_at(&whole, 0).unwrap();
    let mut swapped = part.clone();
    swapped.blocks.swap(5, 6);
    let stream = BatchStream::open(swapped, &options(64, Order::File, Position::default())).unwrap();
    let outcomes: Vec<_> = stream.collect();
    assert_eq!(outcomes.len(), 6);
    assert!(outcomes[5].as_ref().unwrap_err().to_string().contains("from another position"));
    file.write_all_at(&whole, 0).unwrap();

    // Truncated after the part was opened.
    file.set_len(hit.offset + 1000).unwrap();
    let (good, error) = outcome();
    assert_eq!(good, 5);
    assert!(error.contains(&format!("at byte {}", hit.offset + 1000)), "{error}");
    file.write_all_at(&whole, 0).unwrap();
    assert_eq!(collect(&dataset, &options(64, Order::File, Position::default()))[0], dataset.samples);
}

#[test]
fn memory_is_reused() {
    let dataset = dataset();
    let mut stream = BatchStream::open(
        part(&dataset),
        &StreamOptions { epochs: None, ..options(64, Order::File, Position::default()) },
    )
    .unwrap();
    let mut addresses = std::collections::BTreeSet::new();
    for _ in 0..300 {
        addresses.insert(stream.next().unwrap().unwrap().samples.dense.as_ptr().addr());
    }
    assert!(addresses.len() < 50, "{} buffers for 300 batches", addresses.len());
    // Samples that are moved out belong to the consumer; replaced or incomplete samples are not reused.
    let mut other = tests::dataset(10, 4).samples;
    other.labels.truncate(1);
    for number in 0..60 {
        let mut batch = stream.next().unwrap().unwrap();
        let rows = batch.start.sample as usize..batch.end.sample as usize;
        assert_eq!(batch.samples, dataset.samples.slice(rows), "batch {number} after replacing others");
        match number % 4 {
            0 => drop(std::mem::take(&mut batch.samples)),
            1 => batch.samples = other.clone(),
            2 => batch.samples.dense_columns -= 1,
            _ => drop(batch.samples.categorical.pop()),
        }
    }
}

#[test]
fn packed_blocks_come_in_the_order_of_their_plan() {
    let dataset = dataset();
    let part = Arc::new(part(&dataset));
    let order = Order::Shuffled { seed: 4, window_blocks: 3 };
    let plan = Plan::new(&part, order, Some(1), Position::default()).unwrap();
    let mut stream =
        BlockStream::open(Arc::clone(&part), plan.clone(), &options(1, order, Position::default()).io)
            .unwrap();
    for window in plan {
        for index in window.blocks {
            let block = stream.next().unwrap().unwrap();
            assert_eq!(block.index(), u64::from(index));
            assert_eq!(block.block().unwrap().samples() as u64, part.samples_of(block.index()));
        }
    }
    assert!(stream.next().is_none());
    assert_eq!(stream.close().slabs(), 8);
}

/// Returns the samples of a packed stream's share with the start and end of its batches. With `once` it reads each
/// block once; otherwise blocks are dropped when they are not needed.
fn collect_packed(
    part: &DatasetPart,
    options: &StreamOptions,
    once: bool,
) -> Vec<(Samples, Position, Position)> {
    let (slabs, bytes) = BlockStream::ring_for(part, &options.io);
    let (kept_max, _) = PackedStream::blocks_kept(part, options);
    let ring = SlabRing::allocate(slabs, bytes).unwrap();
    // Where each window starts, and the number of its first block.
    let (mut windows, mut first_block) = (BTreeMap::new(), 0);
    for window in Plan::new(part, options.order, options.epochs, options.start).unwrap() {
        windows.insert(Position { epoch: window.epoch, sample: window.first }, first_block);
        first_block += window.blocks.len();
    }
    let is_whole = options.share == Share::ALL;
    let (mut blocks, mut kept_from, mut batches) = (Vec::new(), 0, Vec::new());
    let mut seen = BTreeMap::new();
    let open = if once { PackedStream::reading_once } else { PackedStream::with_ring };
    let mut stream = open(part.clone(), options, ring).unwrap();
    for packed in stream.by_ref() {
        match packed.unwrap() {
            PackedItem::Block(block) => {
                let mut samples = Samples::new(&part.schema);
                block.decode_into(&mut samples).unwrap();
                assert!(seen.insert(block.index() as u32, samples.clone()).is_none() || !once);
                blocks.push(samples);
            }
            PackedItem::Again(block) => blocks.push(seen[&block].clone()),
            PackedItem::Batch(batch) => {
                assert!(!batch.is_empty() && blocks.len() - kept_from <= kept_max);
                let mut samples = Samples::new(&part.schema);
                let share = options.share.of(batch.len());
                let rows: Vec<_> = batch.rows(share.clone()).collect();
                // A range of a batch has that range of its rows, and they are in the blocks that it names.
                let (third, half) = (rows.len() / 3, rows.len() / 2);
                let range = share.start + third..share.start + half;
                assert!(batch.rows(range.clone()).eq(rows[third..half].iter().copied()));
                let named: Vec<_> = batch.blocks(range).collect();
                assert!(rows[third..half].iter().all(|row| named.contains(&row.block)));
                assert!(named.is_sorted() && named.iter().all(|&block| (block as usize) < blocks.len()));
                // The previous batch named the first block of this batch's window: nothing earlier is kept.
                let (_, &first) = windows.range(..=batch.start).next_back().unwrap();
                let is_tight = !is_whole || batches.is_empty() || kept_from == first;
                assert!(is_tight, "{kept_from} is kept, {first} is needed");
                for BlockRow { block, row } in rows {
                    assert!(block as usize >= kept_from);
                    samples.append(&blocks[block as usize], row as usize..row as usize + 1);
                }
                kept_from = batch.keep_from as usize;
                batches.push((samples, batch.start, batch.end));
            }
        }
    }
    if once {
        let read: u64 = seen.keys().map(|&block| u64::from(part.blocks[block as usize].bytes)).sum();
        assert_eq!(stream.bytes().get(), read);
    }
    batches
}

/// Returns the samples of an unpacked stream with the start and end of its batches.
fn collect_unpacked(part: &DatasetPart, options: &StreamOptions) -> Vec<(Samples, Position, Position)> {
    let batches = BatchStream::open(part.clone(), options).unwrap().map(|batch| {
        let mut batch = batch.unwrap();
        (std::mem::take(&mut batch.samples), batch.start, batch.end)
    });
    batches.collect()
}

/// Returns the numbers of all samples of batches.
fn all_numbers(batches: &[(Samples, Position, Position)]) -> Vec<u32> {
    batches.iter().flat_map(|(samples, ..)| numbers(samples)).collect()
}

#[test]
fn packed_batches_equal_unpacked_batches() {
    let dataset = dataset();
    let part = part(&dataset);
    for order in ORDERS {
        for batch_size in [1, 63, 64, 100, 130, 1000, 5000] {
            for (epoch, sample) in [(0, 0), (0, 65), (1, 700), (0, 1000)] {
                let options = options(batch_size, order, Position { epoch, sample });
                let expected = collect_unpacked(&part, &options);
                for once in [false, true] {
                    let packed = collect_packed(&part, &options, once);
                    assert_eq!(packed, expected, "{order:?} in batches of {batch_size}, once: {once}");
                }
            }
        }
    }
}

/// Windows whose blocks are kept need no read, which would bound how far their order is drawn ahead.
#[test]
fn an_endless_stream_that_reads_once_draws_no_more_than_it_needs() {
    let dataset = dataset();
    let part = part(&dataset);
    for order in ORDERS {
        let options = StreamOptions { epochs: None, ..options(100, order, Position::default()) };
        let (slabs, bytes) = BlockStream::ring_for(&part, &options.io);
        let ring = SlabRing::allocate(slabs, bytes).unwrap();
        let mut stream = PackedStream::reading_once(part.clone(), &options, ring).unwrap();
        let blocks = part.blocks.len();
        // Blocks are dropped at once: they hold slabs.
        let items = stream.by_ref().take(20 * blocks);
        let read = items.filter(|item| matches!(item, Ok(PackedItem::Block(_)))).count();
        assert_eq!(read, blocks, "{order:?}");
        assert_eq!(stream.close().slabs() as usize, slabs, "its threads end");
    }
}

#[test]
fn the_shares_of_processes_are_the_batches() {
    let made = dataset();
    let dataset = Dataset::open(&made.dir()).unwrap();
    let parts =
        SPLITS.map(|split| dataset.clone().with_validation(split).unwrap().part(Part::Validation).unwrap());
    for part in parts.into_iter().chain([dataset.part(Part::Train).unwrap()]) {
        for order in ORDERS {
            for (batch_size, sample) in [(3, 0), (7, 0), (64, 1), (130, part.samples / 2), (5000, 3)] {
                let whole = options(batch_size, order, Position { epoch: 0, sample });
                let expected = collect_unpacked(&part, &whole);
                for processes in [2, 3, 8] {
                    for process in 0..processes {
                        let share = Share { process, processes };
                        let options = StreamOptions { share, ..whole };
                        let what = format!("{share:?}, {order:?} in batches of {batch_size} from {sample}");
                        let cut = |(samples, start, end): &(Samples, Position, Position)| {
                            (samples.slice(share.of(samples.len)), *start, *end)
                        };
                        let expected: Vec<_> = expected.iter().map(cut).collect();
                        let batches = BatchStream::open(part.clone(), &options).unwrap().map(|batch| {
                            let batch = batch.unwrap();
                            let own = share.of(batch.len);
                            let own = own.start - batch.first..own.end - batch.first;
                            (batch.samples.slice(own), batch.start, batch.end)
                        });
                        assert_eq!(batches.collect::<Vec<_>>(), expected, "{what}");
                        assert_eq!(collect_packed(&part, &options, processes == 3), expected, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_process_reads_only_the_blocks_of_its_share() {
    const SAMPLES: u64 = 1 << 14;
    let dataset = tests::dataset(SAMPLES as usize, BLOCK_SAMPLES);
    let part = part(&dataset);
    let shuffled = Order::Shuffled { seed: 5, window_blocks: 256 };
    let read = |share, batch_size, order| {
        let one_epoch = StreamOptions { epochs: Some(1), ..options(batch_size, order, Position::default()) };
        let mut stream = BatchStream::open(part.clone(), &StreamOptions { share, ..one_epoch }).unwrap();
        assert_eq!(stream.by_ref().map(|batch| batch.unwrap().len as u64).sum::<u64>(), SAMPLES);
        stream.bytes().get() as f64
    };
    for (processes, batch_size, order, most) in [
        // The shares of a batch end where blocks end.
        (8, 2048, Order::File, 1.0),
        (2, 4096, shuffled, 1.15),
        (4, 4096, shuffled, 1.15),
        // They do not: each process needs three blocks of four.
        (2, 256 - 32, Order::File, 1.6),
    ] {
        let whole = read(Share::ALL, batch_size, order);
        for process in 0..processes {
            let share = read(Share { process, processes }, batch_size, order) / whole;
            assert!(share * processes as f64 <= most, "{process} of {processes} reads {share} of the bytes");
        }
    }
    // In batches with no sample for some process, every process reads all.
    let few = Share { process: 0, processes: 8 };
    assert!(few.of(3).is_empty());
    assert_eq!(read(few, 3, Order::File), read(Share::ALL, 3, Order::File));
}

/// Random splits of few samples leave blocks without any, and the last block of a training part may be cut in two.
const SPLITS: [Split; 5] = [
    Split::Last { share: 0.1 },
    Split::Last { share: 0.9 },
    Split::Random { share: 0.1, seed: 1 },
    Split::Random { share: 0.01, seed: 2 },
    Split::Random { share: 0.97, seed: 3 },
];

#[test]
fn a_validation_cut_divides_the_training_part_for_every_order_and_start() {
    let dataset = dataset();
    for split in SPLITS {
        let cut = Dataset::open(&dataset.dir()).unwrap().with_validation(split).unwrap();
        assert_eq!(cut.samples(Part::Train) + cut.samples(Part::Validation), SAMPLES as u64);
        for order in ORDERS {
            let mut found = Vec::new();
            for side in [Part::Train, Part::Validation] {
                let (part, count) = (cut.part(side).unwrap(), cut.samples(side));
                assert_eq!(part.samples, count);
                let one_epoch = StreamOptions { epochs: Some(1), ..options(1, order, Position::default()) };
                let whole = collect_unpacked(&part, &one_epoch);
                let in_order = all_numbers(&whole);
                assert_eq!(in_order.len() as u64, count);
                assert_eq!(in_order.is_sorted(), order == Order::File, "{split}, {order:?}");
                for (samples, ..) in &whole {
                    let expected = samples_of(&dataset, &numbers(samples));
                    assert_eq!(*samples, expected, "a row's columns stay together");
                }
                for (batch_size, sample) in [(7, 0), (64, 1), (100, count / 2), (5000, count - 1), (9, count)]
                {
                    let from =
                        StreamOptions { batch_size, start: Position { epoch: 0, sample }, ..one_epoch };
                    let rest = collect_unpacked(&part, &from);
                    assert_eq!(
                        all_numbers(&rest),
                        in_batches(&in_order[sample as usize..], batch_size, &part, order, 0),
                        "{split}, {order:?} from {sample} in batches of {batch_size}"
                    );
                    assert_eq!(
                        collect_packed(&part, &from, false),
                        rest,
                        "{split}, {order:?} in batches of {batch_size}"
                    );
                }
                found.extend(in_order);
            }
            found.sort_unstable();
            assert!(found.into_iter().eq(0..SAMPLES as u32), "{split}: every sample is on one side");
        }
    }
}

#[test]
fn the_last_samples_are_validated_and_random_ones_are_those_of_the_split() {
    let dataset = dataset();
    let opened = Dataset::open(&dataset.dir()).unwrap();
    let one_epoch = StreamOptions { epochs: Some(1), ..options(64, Order::File, Position::default()) };
    for split in SPLITS {
        let part = opened.clone().with_validation(split).unwrap().part(Part::Validation).unwrap();
        let found = all_numbers(&collect_unpacked(&part, &one_epoch));
        let held_out = crate::split::HeldOut::of(split, SAMPLES as u64);
        let expected = (0..SAMPLES as u64).filter(|&sample| held_out.contains(sample));
        assert!(found.into_iter().map(u64::from).eq(expected), "{split}");
        // Only blocks that hold some of it are read.
        let plan = Plan::new(&part, Order::File, Some(1), Position::default()).unwrap();
        let blocks = part.blocks.len() as u32;
        let reads: Vec<_> = plan.flat_map(|window| window.blocks).collect();
        let holds = |block: &u32| {
            let first = u64::from(block * BLOCK_SAMPLES);
            held_out.count(first..(first + u64::from(BLOCK_SAMPLES)).min(SAMPLES as u64)) > 0
        };
        assert_eq!(reads, (0..blocks).filter(holds).collect::<Vec<_>>());
    }
    // The evaluation part stays; a second cut replaces the first; and none restores the whole.
    let cut = opened.clone().with_validation(SPLITS[0]).unwrap();
    assert_eq!(cut.samples(Part::Eval), opened.samples(Part::Eval));
    assert_eq!(cut.clone().with_validation(SPLITS[1]).unwrap().samples(Part::Train), 100);
    let whole = cut.with_validation(Split::None).unwrap();
    assert_eq!((whole.samples(Part::Train), whole.samples(Part::Validation)), (SAMPLES as u64, 0));
    assert!(whole.part(Part::Validation).unwrap_err().to_string().contains("has no validation part"));
    for (share, lacks) in [(0.0001, "holds out no sample"), (0.9999, "leaves no sample to train on")] {
        let error = opened.clone().with_validation(Split::Last { share }).unwrap_err().to_string();
        assert!(error.contains(lacks), "{error}");
    }
}

#[test]
fn a_bound_on_the_blocks_kept_covers_a_batch_and_the_windows_at_its_ends() {
    let dataset = dataset();
    let part = part(&dataset);
    let kept = |batch_size, order| {
        PackedStream::blocks_kept(&part, &options(batch_size, order, Position::default()))
    };
    let shuffled = |window_blocks| Order::Shuffled { seed: 1, window_blocks };
    // Sixteen blocks of 64 samples: a batch of 100 has rows of two, and starts and ends within one.
    assert_eq!(kept(100, Order::File), (2 + 2, 1));
    assert_eq!(kept(64, Order::File), (1 + 2, 1));
    assert_eq!(kept(300, shuffled(3)), (6 + 2 * 3, 3));
    // No window is longer than the part, and no batch longer than two epochs.
    assert_eq!(kept(100, shuffled(100)), (2 * 16, 16));
    assert_eq!(kept(1 << 30, Order::File), (2 * 16, 1));
    // Of a validation part, a batch may come from the blocks that hold the fewest of its samples.
    let validation = Dataset::open(&dataset.dir()).unwrap().with_validation(SPLITS[2]).unwrap();
    let validation = validation.part(Part::Validation).unwrap();
    let selection = validation.selection.as_ref().unwrap();
    let mut counts: Vec<_> = (0..16).map(|block| selection.samples_of(block)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [2, 2, 2, 3, 4, 4, 4, 4, 4, 5, 5, 5, 6, 7, 7, 8]);
    for (batch_size, blocks) in [(2, 1), (9, 4), (10, 5), (30, 10)] {
        let in_file_order = options(batch_size, Order::File, Position::default());
        assert_eq!(PackedStream::blocks_kept(&validation, &in_file_order), (blocks + 2, 1), "{batch_size}");
    }
}

#[test]
fn invalid_streams_are_refused() {
    let dataset = dataset();
    let part = part(&dataset);
    let good = options(64, Order::File, Position::default());
    let ring = |part: &DatasetPart| {
        let (slabs, bytes) = BlockStream::ring_for(part, &good.io);
        assert_eq!(slabs, good.io.depth as usize + 4, "the reads in flight and four ready slabs");
        SlabRing::allocate(slabs, bytes).unwrap()
    };
    let unpacked =
        |options: &StreamOptions| BatchStream::open(part.clone(), options).unwrap_err().to_string();
    for bad in [StreamOptions { batch_size: 0, ..good }, StreamOptions { prefetch: 0, ..good }] {
        assert!(unpacked(&bad).contains("at least 1"));
    }
    assert!(
        unpacked(&StreamOptions { io: IoOptions { depth: 0, ..good.io }, ..good }).contains("depth of 0")
    );
    let packed = |part: &DatasetPart, options: &StreamOptions| {
        PackedStream::with_ring(part.clone(), options, ring(part)).unwrap_err().to_string()
    };
    assert!(packed(&part, &StreamOptions { batch_size: 0, ..good }).contains("at least 1"));
    let rules = [crate::OutOfRange::Row(0); 3];
    let lenient = Dataset::open(&dataset.dir()).unwrap().with_ids(&rules).unwrap().part(Part::Train).unwrap();
    assert!(packed(&lenient, &good).contains("rules for ids"));

    // An index with wrong contents but a valid checksum.
    let blocks = |part: &DatasetPart, ring| {
        let plan = Plan::new(part, Order::File, Some(1), Position::default()).unwrap();
        BlockStream::with_ring(part.clone(), plan, &good.io, ring).unwrap_err()
    };
    for bytes in [0, 4095, 4097] {
        let mut damaged = part.clone();
        damaged.blocks[7].bytes = bytes;
        let error = blocks(&damaged, ring(&part)).to_string();
        assert!(error.contains(&format!("its index lists a block of {bytes} bytes")), "{error}");
    }
    let longer = tests::dataset(SAMPLES, 500);
    let error = blocks(&self::part(&longer), SlabRing::allocate(8, 4096).unwrap()).to_string();
    assert!(error.contains("more than a buffer's 4096"), "{error}");
}

/// Memory of the caller, like memory that a GPU copies from; it reports when it is freed.
struct CallerMemory {
    memory: AlignedMemory,
    freed: Arc<AtomicBool>,
}

// SAFETY: it delegates to the memory in it, which nothing else accesses.
unsafe impl SlabMemory for CallerMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl Drop for CallerMemory {
    fn drop(&mut self) {
        self.freed.store(true, Ordering::Relaxed);
    }
}

#[test]
fn caller_memory_is_read_into_and_kept_for_its_blocks() {
    let dataset = dataset();
    let part = part(&dataset);
    let options = options(100, Order::File, Position::default());
    let (slabs, slab_bytes) = BlockStream::ring_for(&part, &options.io);
    let freed = Arc::new(AtomicBool::new(false));
    let memory = AlignedMemory::new((slabs + 2) * slab_bytes).unwrap();
    let range = memory.as_ptr().addr()..memory.as_ptr().addr() + memory.bytes();
    let ring = SlabRing::new(CallerMemory { memory, freed: Arc::clone(&freed) }, slab_bytes).unwrap();
    assert_eq!(ring.slabs() as usize, slabs + 2);
    let mut stream = PackedStream::with_ring(part, &options, ring).unwrap();
    let mut blocks = Vec::new();
    while blocks.len() < 3 {
        if let PackedItem::Block(block) = stream.next().unwrap().unwrap() {
            assert!(range.contains(&block.bytes().as_ptr().addr()));
            blocks.push(block);
        }
    }
    drop(stream);
    let mut samples = Samples::new(&dataset.schema);
    for block in blocks {
        assert!(!freed.load(Ordering::Relaxed));
        block.decode_into(&mut samples).unwrap();
    }
    assert!(freed.load(Ordering::Relaxed));
    assert_eq!(samples, dataset.samples.slice(0..3 * BLOCK_SAMPLES as usize));
}
