//! Learns from a stream of rows while it serves: each batch is scored by the newest model before it is trained on.
//! Every 50 steps a delta brings the model that scores up to date: rows that changed, and ids that came or went.
//!
//! ```text
//! rankine train configs/online.toml                   # generates the dataset
//! cargo run --release --example online -- configs/online.toml FOLDER
//! ```
//!
//! The stream is the training part of the job's dataset, once and in its order.

#![allow(clippy::print_stdout, reason = "it is what the example does")]

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use rankine::prelude::*;

/// Steps from one delta to the next.
const STEPS: u64 = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(job), Some(folder), None) = (words.next(), words.next(), words.next()) else {
        return Err("expected a job and a folder for the run and its models".into());
    };
    let job = Job::load(&job, &[] as &[&str])?;
    let data = job.data.folder().ok_or("the job has no dataset to stream")?;
    let stream = StreamOptions::one_epoch(job.train.batch_size.get() as usize);
    let batches = BatchStream::open(Dataset::open(data)?.part(Part::Train)?, &stream)?;

    let options = TrainerOptions { run_dir: Some(folder.join("run")), ..TrainerOptions::default() };
    let mut trainer = Trainer::start(&job, options, ())?;
    let mut ranker: Option<Ranker> = None;
    let mut scored = LogLoss::default();
    for batch in batches {
        let batch = batch?;
        let Samples { len, labels, weights, dense, categorical, .. } = &batch.samples;
        let categorical: Vec<_> =
            categorical.iter().map(|bags| Ids::Bags { offsets: &bags.offsets, ids: &bags.ids }).collect();
        let features = Features { rows: *len, dense, categorical: &categorical };
        if let Some(ranker) = &ranker {
            let heads = ranker.labels().len();
            let mut scores = vec![0.0; len * heads];
            ranker.score(&features, &mut scores)?;
            scored.add(&labels[0], scores.iter().step_by(heads));
        }
        let labels: Vec<_> = labels.iter().map(Vec::as_slice).collect();
        let weights = Some(weights.as_slice()).filter(|weights| !weights.is_empty());
        trainer.push(&TrainingRows { features, labels: &labels, weights })?;
        if trainer.steps().is_multiple_of(STEPS) {
            let model = folder.join(format!("model-{}", trainer.steps()));
            trainer.save(&model)?;
            match &ranker {
                Some(ranker) => {
                    let before = folder.join(format!("model-{}", ranker.steps()));
                    let delta = folder.join(format!("delta-{}", trainer.steps()));
                    // A program that serves elsewhere would copy the delta there, which is smaller than the model.
                    let DeltaSummary { rows, admitted, evicted, .. } = write_delta(&before, &model, &delta)?;
                    ranker.apply(&delta)?;
                    fs::remove_dir_all(before)?;
                    println!(
                        "step {}: log loss {:.4} of rows before they were learned; {rows} rows changed, {admitted} \
                         ids came and {evicted} went",
                        ranker.steps(),
                        scored.take()
                    );
                }
                None => {
                    ranker = Some(Ranker::load(&model)?);
                    println!("step {}: the first model", trainer.steps());
                }
            }
        }
    }
    let summary = trainer.finish()?;
    println!("{} rows in {} steps", summary.train.samples, summary.train.steps);
    Ok(())
}

/// The mean log loss of some scores.
#[derive(Default)]
struct LogLoss {
    sum: f64,
    rows: f64,
}

impl LogLoss {
    fn add<'a>(&mut self, labels: &[f32], scores: impl Iterator<Item = &'a f64>) {
        for (&label, &score) in labels.iter().zip(scores).filter(|(label, _)| !label.is_nan()) {
            self.sum -= if label == 1.0 { score.ln() } else { (1.0 - score).ln() };
            self.rows += 1.0;
        }
    }

    fn take(&mut self) -> f64 {
        let Self { sum, rows } = std::mem::take(self);
        sum / rows
    }
}
