//! Scores the evaluation part of a dataset with a trained model, batch by batch, as a server would score requests.
//!
//! ```text
//! cargo run --release --example score -- RUN DATASET
//! ```

#![allow(clippy::print_stdout, reason = "it is what the example does")]

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use rankine::prelude::*;

/// Rows of a request.
const ROWS: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(run), Some(data), None) = (words.next(), words.next(), words.next()) else {
        return Err("expected a run, a checkpoint or an export, and a dataset".into());
    };
    let (ranker, dataset) = (Ranker::load(run)?, Dataset::open(&data)?);
    let heads = ranker.labels().len();
    let (mut scored, mut seconds, mut sum) = (0, 0.0, vec![0.0; heads]);
    let mut scores = vec![0.0; ROWS * heads];
    for batch in BatchStream::open(dataset.part(Part::Eval)?, &StreamOptions::one_epoch(ROWS))? {
        let batch = batch?;
        let samples = &batch.samples;
        let columns = samples.categorical.iter();
        let categorical: Vec<_> =
            columns.map(|bags| Ids::Bags { offsets: &bags.offsets, ids: &bags.ids }).collect();
        let features = Features { rows: samples.len, dense: &samples.dense, categorical: &categorical };
        let scores = &mut scores[..samples.len * heads];
        let began = Instant::now();
        ranker.score(&features, scores)?;
        seconds += began.elapsed().as_secs_f64();
        scored += samples.len;
        scores.chunks(heads).for_each(|row| sum.iter_mut().zip(row).for_each(|(sum, score)| *sum += score));
    }
    println!("{scored} rows, {:.0} rows/s on one thread", scored as f64 / seconds);
    for (label, sum) in ranker.labels().iter().zip(sum) {
        println!("{label}: mean score {:.4}", sum / scored as f64);
    }
    Ok(())
}
