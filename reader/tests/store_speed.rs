//! Measures how fast a dataset is read from a store and from the cache, against local files. Not part of a normal test
//! run:
//!
//! `RANKINE_SPEED_DATA=data/dlrm cargo test --release -p rankine-reader --features cloud --test store_speed --
//! --ignored --nocapture`

#[allow(dead_code, reason = "faults are for other tests")]
#[path = "../../tests/support/bucket.rs"]
mod bucket;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bucket::Bucket;
use rankine_reader::io::{IoMode, IoOptions};
use rankine_reader::store::CacheOptions;
use rankine_reader::stream::{Order, Plan};
use rankine_reader::{BlockStream, Dataset, Part};

const ROUNDS: usize = 5;

/// Returns the seconds of processor time that threads of the reader have used, without those of the store.
fn reader_seconds() -> f64 {
    let tasks = fs::read_dir("/proc/thread-self/../").expect("Linux lists threads");
    let ticks = tasks.flatten().filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let (before, after) = stat.rsplit_once(')')?;
        let name = before.split_once('(')?.1;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let used = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        (name.starts_with("rankine") || name == "measured").then_some(used)
    });
    ticks.sum::<f64>() / 100.0
}

/// Reads a part once; returns bytes, seconds and seconds of processors.
fn read(dataset: &Dataset, mode: IoMode) -> [f64; 3] {
    let part = dataset.part(Part::Train).expect("it has the part");
    let bytes: u64 = part.blocks.iter().map(|block| u64::from(block.bytes)).sum();
    let plan = Plan::new(&part, Order::File, Some(1), Default::default()).expect("the plan is valid");
    let (began, used) = (Instant::now(), reader_seconds());
    let mut blocks =
        BlockStream::open(part, plan, &IoOptions { mode, ..IoOptions::default() }).expect("it can be read");
    assert!(blocks.by_ref().all(|block| block.is_ok()));
    // Threads that ended are no longer counted, so this comes before the stream ends.
    let figures = [bytes as f64, began.elapsed().as_secs_f64(), reader_seconds() - used];
    drop(blocks);
    figures
}

#[test]
#[ignore = "a measurement"]
fn reading_from_a_store() {
    let data =
        PathBuf::from(std::env::var_os("RANKINE_SPEED_DATA").expect("RANKINE_SPEED_DATA names a dataset"));
    let (folder, name) =
        (data.parent().expect("it is in a folder"), data.file_name().expect("it has a name"));
    let bucket = Bucket::of(folder);
    let mut command = std::process::Command::new("true");
    for (key, value) in bucket.set(&mut command).get_envs() {
        // SAFETY: this is the only test of the program, and threads of the store read no variables.
        unsafe { std::env::set_var(key, value.expect("it is set")) };
    }
    let url = bucket.url(name.to_str().expect("it is UTF-8"));
    let place = tempfile::tempdir_in(folder).expect("there is room");
    let options = CacheOptions { dir: place.path().to_owned(), bytes: 1 << 40 };
    let measured = std::thread::Builder::new().name("measured".into());
    let work = move || {
        let open = |path: &str| Dataset::open(Path::new(path)).expect("it is a dataset");
        let (local, cold) = (open(data.to_str().expect("it is UTF-8")), open(&url));
        let warm = open(&url).with_cache(&options).expect("there is room");
        read(&warm, IoMode::Auto);
        // The blocks of a warm cache are in the page cache here, and `pread` reads local files through it, too.
        let cases = [
            ("local, auto", &local, IoMode::Auto),
            ("local, pread", &local, IoMode::Pread),
            ("cold", &cold, IoMode::Auto),
            ("warm", &warm, IoMode::Auto),
        ];
        let mut all: [Vec<[f64; 3]>; 4] = Default::default();
        for _ in 0..ROUNDS {
            for (figures, (_, dataset, mode)) in all.iter_mut().zip(cases) {
                figures.push(read(dataset, mode));
            }
        }
        for ((name, ..), mut figures) in cases.into_iter().zip(all) {
            figures.sort_by(|a, b| a[1].total_cmp(&b[1]));
            let [bytes, seconds, used] = figures[ROUNDS / 2];
            let (rate, per_core) = (bytes / seconds / 1e9, bytes / used / 1e9);
            println!(
                "{name:12} {:.2} GB in {seconds:.3} s: {rate:.2} GB/s, {per_core:.2} GB/s a core",
                bytes / 1e9
            );
        }
    };
    measured.spawn(work).expect("a thread starts").join().expect("it does not panic");
}
