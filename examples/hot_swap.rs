//! Replaces a model while threads score with it: no request is lost, and none is scored by two models.
//!
//! ```text
//! cargo run --release --example hot_swap -- RUN OTHER_RUN
//! ```

#![allow(clippy::print_stdout, reason = "it is what the example does")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rankine::prelude::*;

const THREADS: usize = 2;
const SWAPS: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(first), Some(second), None) = (words.next(), words.next(), words.next()) else {
        return Err("expected two runs, checkpoints or exports".into());
    };
    let ranker = Ranker::load(&first)?;
    let schema = ranker.schema();
    // One row: zeros, and row 0 of each table.
    let dense = vec![0.0; schema.dense.len()];
    let sizes = schema.categorical.iter().map(|column| match column.hotness {
        Hotness::Fixed(count) => count,
        Hotness::Ragged { .. } => 1,
    });
    let bags: Vec<_> = sizes.map(|count| ([0, count], vec![0; count as usize])).collect();
    let categorical: Vec<_> = bags.iter().map(|(offsets, ids)| Ids::Bags { offsets, ids }).collect();
    let features = Features { rows: 1, dense: &dense, categorical: &categorical };

    let done = AtomicBool::new(false);
    let serve = || {
        let (mut requests, mut longest) = (0, Duration::ZERO);
        let mut scores = vec![0.0; ranker.labels().len()];
        while !done.load(Ordering::Relaxed) {
            let began = Instant::now();
            ranker.score(&features, &mut scores)?;
            longest = longest.max(began.elapsed());
            requests += 1;
        }
        Ok::<_, ScoreError>((requests, longest))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(serve)).collect();
        let models = [&second, &first];
        let swapped = models.iter().cycle().take(SWAPS).try_for_each(|path| ranker.swap(path));
        done.store(true, Ordering::Relaxed);
        for thread in threads {
            let (requests, longest) = thread.join().map_err(|_| "a thread panicked")??;
            println!("{requests} requests, the longest took {longest:?}, during {SWAPS} swaps");
        }
        Ok::<_, Box<dyn Error>>(swapped?)
    })
}
