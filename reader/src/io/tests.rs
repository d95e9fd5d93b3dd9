//! The reader over a disk that fails on request, and every rung over real files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rankine_base::error::{Error, Result};

use crate::tests::seccomp::{Refused, refuse_in_this_thread};
use crossbeam_channel::{Receiver, unbounded};
use proptest::prelude::*;

use super::backend::{Backend, Completion, ReadOp};
use super::*;
use crate::rng::Rng;
use crate::tests::{skipped, working_rungs};

/// The disk's response to a read.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    Errno(i32),
    Short(u32),
    /// The backend itself fails: no more completions.
    Lost,
}

/// Chooses the response to a read, given how often this position was read before.
type FaultPlan = dyn FnMut(&ReadOp, u32) -> Fault + Send;

/// A disk with known bytes at every position that answers in any order and fails on request.
struct FakeDisk {
    rng: Rng,
    granularity: u32,
    pending: Vec<ReadOp>,
    /// How often each (file, offset) was read, and how to respond.
    asked: BTreeMap<(u32, u64), u32>,
    fault: Box<FaultPlan>,
    depth: u32,
    in_flight: Arc<AtomicUsize>,
}

// SAFETY: only the pointers of pending reads are not `Send` by themselves, and the caller that started these reads
// guarantees the bytes behind them on any thread.
unsafe impl Send for FakeDisk {}

fn byte_at(file: u32, offset: u64) -> u8 {
    (offset.wrapping_mul(31) ^ (offset >> 12) ^ (u64::from(file) * 101)) as u8
}

impl Backend for FakeDisk {
    fn granularity(&self) -> u32 {
        self.granularity
    }

    unsafe fn start(&mut self, op: &ReadOp) -> io::Result<()> {
        assert!(op.offset.is_multiple_of(u64::from(self.granularity)));
        assert!(self.pending.iter().all(|pending| pending.slab != op.slab), "one read per slab");
        self.pending.push(*op);
        assert!(self.pending.len() <= self.depth as usize, "more reads in flight than requested");
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn wait(&mut self) -> io::Result<Completion> {
        let op = self.pending.swap_remove(self.rng.below(self.pending.len() as u64) as usize);
        let asked = self.asked.entry((op.file, op.offset)).or_default();
        *asked += 1;
        let bytes = match (self.fault)(&op, *asked) {
            Fault::None => op.bytes,
            Fault::Short(bytes) => bytes.min(op.bytes),
            Fault::Errno(errno) => {
                self.in_flight.fetch_sub(1, Ordering::SeqCst);
                return Ok(Completion { slab: op.slab, result: Err(io::Error::from_raw_os_error(errno)) });
            }
            Fault::Lost => {
                self.pending.push(op);
                return Err(io::Error::other("lost"));
            }
        };
        for at in 0..bytes {
            // SAFETY: `start`'s caller guarantees `op.bytes` bytes until this read's completion is returned.
            unsafe { op.into.add(at as usize).write(byte_at(op.file, op.offset + u64::from(at))) };
        }
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        Ok(Completion { slab: op.slab, result: Ok(bytes) })
    }
}

const FILES: u32 = 3;
const READ: u32 = 3 * 4096;

fn plan(reads: u64) -> impl Iterator<Item = ReadRequest> + Send + 'static {
    (0..reads).map(|number| ReadRequest {
        file: (number % u64::from(FILES)) as u32,
        offset: number * 2 * u64::from(READ),
        bytes: READ - 4096 * (number % 3) as u32,
    })
}

struct FakeReads {
    reads: Reads,
    in_flight: Arc<AtomicUsize>,
}

fn start(
    reads: u64,
    slabs: usize,
    depth: u32,
    granularity: u32,
    fault: impl FnMut(&ReadOp, u32) -> Fault + Send + 'static,
) -> FakeReads {
    let in_flight = Arc::new(AtomicUsize::new(0));
    let disk = FakeDisk {
        rng: Rng::new(reads),
        granularity,
        pending: Vec::new(),
        asked: BTreeMap::new(),
        fault: Box::new(fault),
        depth,
        in_flight: Arc::clone(&in_flight),
    };
    let files: Arc<[PathBuf]> = (0..FILES).map(|file| PathBuf::from(format!("file{file}"))).collect();
    let ring = SlabRing::allocate(slabs, READ as usize).unwrap();
    let reads = Reads::start(files, plan(reads), ring, depth, Rung::Pread, Box::new(disk)).unwrap();
    FakeReads { reads, in_flight }
}

/// Takes all items and checks bytes and order; returns the number of slabs, and the error that ended them.
fn check(reads: &mut Reads) -> (u64, Option<Error>) {
    let mut count = 0;
    for (number, (slab, request)) in reads.by_ref().zip(plan(u64::MAX / READ as u64 / 2)).enumerate() {
        let slab = match slab {
            Ok(slab) => slab,
            Err(error) => {
                assert!(reads.next().is_none(), "nothing comes after an error");
                return (count, Some(error));
            }
        };
        assert_eq!((slab.request(), slab.number()), (request, number as u64));
        assert_eq!(slab.len(), request.bytes as usize);
        let right = |(at, &byte): (usize, &u8)| byte == byte_at(request.file, request.offset + at as u64);
        assert!(slab.iter().enumerate().all(right));
        count += 1;
    }
    (count, None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn recoverable_faults_are_recovered(
        seed in any::<u64>(),
        reads in 0..60u64,
        slabs in 1..9usize,
        depth in 1..12u32,
        direct in any::<bool>(),
    ) {
        let granularity = if direct { 4096 } else { 1 };
        let mut started = start(reads, slabs, depth, granularity, move |op, asked| {
            // A read is postponed at most ten times for any random draw: 20 in a row would be an error.
            let mut rng = Rng::from_parts(&[seed, op.offset, u64::from(asked)]);
            match rng.below(6) {
                0 if asked < 10 => Fault::Errno(libc::EINTR),
                1 if asked < 3 => Fault::Errno(libc::EAGAIN),
                2 => Fault::Short(granularity + rng.below(u64::from(op.bytes)) as u32),
                _ => Fault::None,
            }
        });
        let (count, error) = check(&mut started.reads);
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(count, reads);
        prop_assert_eq!(started.in_flight.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_disk_error_is_reported_in_order_with_its_position() {
    for errno in [libc::EIO, libc::ENXIO, libc::EBADF] {
        let at = 7 * 2 * u64::from(READ);
        let fault = move |op: &ReadOp, _| if op.offset == at { Fault::Errno(errno) } else { Fault::None };
        let mut started = start(50, 8, 8, 1, fault);
        let (count, error) = check(&mut started.reads);
        let error = error.unwrap().to_string();
        assert_eq!(count, 7, "everything before it arrives");
        assert!(error.contains("file1") && error.contains(&format!("at byte {at}")), "{error}");
        assert!(error.contains(&io::Error::from_raw_os_error(errno).to_string()), "{error}");
        assert_eq!(started.in_flight.load(Ordering::SeqCst), 0, "later reads were waited for");
    }
}

#[test]
fn the_end_of_a_file_is_damage() {
    // The file ends in the middle of a page, so a direct read is short there twice.
    let end = 4 * 2 * u64::from(READ) + 5000;
    for granularity in [1, 4096] {
        let fault = move |op: &ReadOp, _| {
            if op.offset + u64::from(op.bytes) > end && op.offset < end + u64::from(READ) {
                Fault::Short(end.saturating_sub(op.offset) as u32)
            } else {
                Fault::None
            }
        };
        let mut started = start(50, 8, 3, granularity, fault);
        let (count, error) = check(&mut started.reads);
        assert_eq!(count, 4);
        match error.unwrap() {
            Error::Damaged { offset, path, .. } => {
                assert_eq!((offset, path), (Some(end), PathBuf::from("file1")));
            }
            other => panic!("{other}"),
        }
    }
}

/// Twenty times in a row, which takes a second with the waits; after a successful piece the count restarts.
#[test]
fn a_read_may_be_postponed_a_limited_number_of_times() {
    for (times, errors) in [(20, false), (21, true)] {
        let mut started =
            start(
                2,
                2,
                2,
                1,
                move |_, asked| {
                    if asked <= times { Fault::Errno(libc::EINTR) } else { Fault::Short(4096) }
                },
            );
        let (count, error) = check(&mut started.reads);
        assert_eq!(
            (count, error.is_some()),
            (if errors { 0 } else { 2 }, errors),
            "{times} times: {error:?}"
        );
    }
}

/// A rung whose trial read fails is not used: another one is, or the error explains why.
#[test]
fn a_rung_is_used_if_its_trial_read_works() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, [7; 8192]).unwrap();
    let open = |mode| {
        let requests = (0..2).map(|page| ReadRequest { file: 0, offset: 4096 * page, bytes: 4096 });
        let ring = SlabRing::allocate(3, 4096).unwrap();
        Reads::open([path.clone()], requests, ring, &IoOptions { mode, depth: 2 })
    };
    std::thread::scope(|scope| {
        let refusing = scope.spawn(|| {
            refuse_in_this_thread(&[
                Refused { call: libc::SYS_io_uring_setup, errno: libc::EPERM },
                Refused { call: libc::SYS_pread64, errno: libc::EINVAL },
            ]);
            let error = open(IoMode::Pread).unwrap_err().to_string();
            assert!(error.contains("pread is refused: its trial read failed"), "{error}");
            let error = open(IoMode::UringBuffered).unwrap_err().to_string();
            assert!(error.contains("uring-buffered is refused: cannot set up io_uring"), "{error}");
            let reads = open(IoMode::Auto).unwrap();
            assert_eq!(reads.rung(), Rung::Mmap);
            assert!(reads.map(|slab| slab.unwrap().iter().all(|&byte| byte == 7)).eq([true; 2]));
        });
        refusing.join().unwrap();
    });
}

#[test]
fn a_read_that_is_postponed_forever_is_an_error() {
    let mut started = start(3, 2, 2, 1, |_, _| Fault::Errno(libc::EINTR));
    let (count, error) = check(&mut started.reads);
    assert_eq!(count, 0);
    assert!(error.unwrap().to_string().contains("at byte 0"));
}

#[test]
fn a_reader_dropped_early_waits_for_its_reads() {
    for taken in [0, 1, 5] {
        let mut started = start(1000, 6, 6, 1, |_, _| {
            std::thread::sleep(Duration::from_millis(1));
            Fault::None
        });
        for _ in 0..taken {
            started.reads.next().unwrap().unwrap();
        }
        let held = started.reads.next();
        drop(started.reads);
        assert_eq!(started.in_flight.load(Ordering::SeqCst), 0);
        drop(held);
    }
}

#[test]
fn a_reader_that_waits_for_slabs_stops_at_once() {
    let mut started = start(1000, 2, 2, 1, |_, _| Fault::None);
    let held: Vec<_> = started.reads.by_ref().take(2).map(|slab| slab.unwrap()).collect();
    let ring = started.reads.close();
    assert!(ring.try_take().is_none(), "both are still held");
    drop(held);
    assert!(ring.try_take().is_some());
}

#[test]
fn buffers_of_lost_reads_are_never_reused() {
    let started = start(10, 4, 4, 1, |_, asked| if asked > 0 { Fault::Lost } else { Fault::None });
    let mut reads = started.reads;
    let error = reads.find_map(Result::err).unwrap();
    assert!(error.to_string().contains("lost"), "{error}");
    let ring = reads.close();
    let free = std::iter::from_fn(|| ring.try_take()).take(5).collect::<Vec<_>>().len();
    assert_eq!(free + started.in_flight.load(Ordering::SeqCst), 4);
    assert!(free < 4);
}

/// Requests of one page each, of which later ones are known only when earlier pages have been received.
struct KnownAfter {
    next: u64,
    received: Receiver<()>,
}

impl Requests for KnownAfter {
    fn next(&mut self, waits: bool) -> Next<ReadRequest> {
        // Two are known from the start.
        if self.next >= 2 {
            match waits {
                // A reader that waits here although it has pages to send fails the test instead of blocking it.
                true if self.received.recv_timeout(Duration::from_secs(60)).is_err() => return Next::End,
                true => {}
                false if self.received.try_recv().is_err() => return Next::Later,
                false => {}
            }
        }
        let offset = 4096 * (self.next % 4);
        self.next += 1;
        Next::Known(ReadRequest { file: 0, offset, bytes: 4096 })
    }
}

#[test]
fn what_was_read_does_not_wait_for_the_next_request() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("file");
    fs::write(&path, (0..4 * 4096).map(|at| (at / 4096) as u8).collect::<Vec<_>>()).unwrap();
    let (received, known) = unbounded();
    let ring = SlabRing::allocate(8, 4096).unwrap();
    let requests = KnownAfter { next: 0, received: known };
    let mut reads =
        Reads::open([path], requests, ring, &IoOptions { depth: 8, ..IoOptions::default() }).unwrap();
    for page in 0..40_u8 {
        assert_eq!(reads.next().unwrap().unwrap().bytes(), [page % 4; 4096]);
        received.send(()).unwrap();
    }
    drop(received);
    assert_eq!(reads.count(), 2, "the requests that were known");
}

#[test]
fn invalid_requests_are_errors() {
    let good = ReadRequest { file: 0, offset: 0, bytes: 4096 };
    for bad in [
        ReadRequest { bytes: 16384, ..good },
        ReadRequest { bytes: 0, ..good },
        ReadRequest { bytes: 8193, ..good },
        ReadRequest { offset: 512, ..good },
        ReadRequest { offset: u64::MAX - 4095, ..good },
        // The kernel's byte counts are signed.
        ReadRequest { offset: (1 << 63) - 4096, ..good },
        ReadRequest { file: 1, ..good },
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, [1; 8192]).unwrap();
        let ring = SlabRing::allocate(2, 8192).unwrap();
        let options = IoOptions { mode: IoMode::Pread, depth: 1 };
        let mut reads = Reads::open([path], [good, bad, good].into_iter(), ring, &options).unwrap();
        assert!(reads.next().unwrap().is_ok());
        assert!(matches!(reads.next(), Some(Err(Error::Setting { .. }))), "{bad:?}");
        assert!(reads.next().is_none());
    }
}

#[test]
fn every_rung_reads_the_same_from_more_files_than_may_be_open() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> =
        (0..window::OPEN_FILES_MAX + 44).map(|file| dir.path().join(file.to_string())).collect();
    for (number, path) in files.iter().enumerate() {
        let bytes: Vec<u8> = (0..12288).map(|at| byte_at(number as u32, at)).collect();
        fs::write(path, bytes).unwrap();
    }
    for rung in working_rungs(dir.path()) {
        let ring = SlabRing::allocate(20, 8192).unwrap();
        let count = files.len() as u64;
        // Every file several times, with neighbouring requests far apart.
        let requests = (0..3 * count).map(move |number| ReadRequest {
            file: (number * 7 % count) as u32,
            offset: 4096 * (number % 2),
            bytes: 4096 * (1 + number as u32 % 2),
        });
        let expected = requests.clone();
        let mut reads =
            Reads::open(files.clone(), requests, ring, &IoOptions { mode: rung.into(), depth: 16 }).unwrap();
        assert_eq!(reads.rung(), rung);
        for request in expected {
            let slab = reads.next().unwrap().unwrap();
            assert_eq!(slab.request(), request);
            let right = |(at, &byte): (usize, &u8)| byte == byte_at(request.file, request.offset + at as u64);
            assert!(slab.iter().enumerate().all(right), "{rung}");
        }
        assert!(reads.next().is_none());
    }
}

#[test]
fn every_rung_reports_the_end_of_a_truncated_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for length in [0, 1, 4096, 10000, 16384] {
        fs::write(&path, vec![3; length]).unwrap();
        for rung in working_rungs(dir.path()) {
            let ring = SlabRing::allocate(3, 8192).unwrap();
            let requests = (0..4).map(|number| ReadRequest { file: 0, offset: 8192 * number, bytes: 8192 });
            let options = IoOptions { mode: rung.into(), depth: 2 };
            let mut reads = Reads::open([path.clone()], requests, ring, &options).unwrap();
            let good = reads.by_ref().map_while(|slab| {
                slab.map_err(|error| match error {
                    Error::Damaged { offset, .. } => assert_eq!(offset, Some(length as u64), "{rung}"),
                    other => panic!("{rung}: {other}"),
                })
                .ok()
            });
            assert_eq!(good.count(), length / 8192, "{rung}");
        }
    }
}

/// Files of other programs may end anywhere.
#[test]
fn every_rung_reads_ranges_that_end_within_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for length in [1u64, 4095, 4097, 8191, 9000] {
        fs::write(&path, (0..length).map(|at| byte_at(0, at)).collect::<Vec<_>>()).unwrap();
        let ranges = [(0, length.min(5)), (0, length.min(8192)), (length / 4096 * 4096, length % 4096)];
        for rung in working_rungs(dir.path()) {
            let requests = ranges.map(|(offset, bytes)| ReadRequest { file: 0, offset, bytes: bytes as u32 });
            let ring = SlabRing::allocate(4, 8192).unwrap();
            let options = IoOptions { mode: rung.into(), depth: 2 };
            let reads = Reads::open([path.clone()], requests.into_iter(), ring, &options).unwrap();
            let slabs: Vec<Slab> = reads.collect::<Result<_>>().unwrap();
            for (slab, (offset, bytes)) in slabs.iter().zip(ranges) {
                assert!(slab.iter().copied().eq((offset..offset + bytes).map(|at| byte_at(0, at))), "{rung}");
            }
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let missing = PathBuf::from("/nowhere/at/all");
    for mode in IoMode::ALL {
        let ring = SlabRing::allocate(1, 4096).unwrap();
        let options = IoOptions { mode, depth: 1 };
        let error = Reads::open([missing.clone()], std::iter::empty(), ring, &options).unwrap_err();
        assert!(matches!(error, Error::Io { doing: "open", .. }), "{error}");
    }
}

#[test]
fn depths_out_of_range_are_refused() {
    for depth in [0, DEPTH_MAX + 1] {
        let ring = SlabRing::allocate(1, 4096).unwrap();
        let options = IoOptions { depth, ..IoOptions::default() };
        let error = Reads::open([PathBuf::from("/")], std::iter::empty(), ring, &options).unwrap_err();
        assert!(error.to_string().contains(&format!("a depth of {depth} reads in flight")), "{error}");
    }
}

#[test]
fn files_in_memory_are_copied_by_several_threads() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return skipped("/dev/shm is not writable");
    };
    let path = dir.path().join("file");
    fs::write(&path, [7; 5 * SLAB_ALIGN]).unwrap();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    if !mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
        return skipped("/dev/shm is not a tmpfs");
    }
    let open = |mode| {
        let requests =
            (0..5).map(|page| ReadRequest { file: 0, offset: page * SLAB_ALIGN as u64, bytes: 4096 });
        let ring = SlabRing::allocate(3, SLAB_ALIGN).unwrap();
        Reads::open([path.clone()], requests, ring, &IoOptions { mode, depth: 2 }).unwrap()
    };
    let reads = open(IoMode::Auto);
    assert_eq!(reads.rung(), Rung::Pread);
    assert!(reads.map(|slab| slab.unwrap().iter().all(|&byte| byte == 7)).eq([true; 5]));
    assert_eq!(open(IoMode::Mmap).rung(), Rung::Mmap);
}
