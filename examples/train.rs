//! Trains a model on a small generated dataset, from a job in code, and evaluates it.
//!
//! ```text
//! cargo run --release --example train [-- FOLDER]
//! ```

#![allow(clippy::print_stdout, reason = "it is what the example does")]

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use rankine::prelude::*;

/// Four dense columns and six categorical ones, with these numbers of rows.
const SHAPE: &str = "name = \"small\"\ndense = 4\nrows = [4000, 3000, 200, 120, 80, 3]\n";

/// Prints the loss where the job reports it.
struct Printer;

impl Observer for Printer {
    fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::Started(start) => println!("training on {} samples", start.samples.unwrap_or(0)),
            Event::Report(Report { progress, .. }) => {
                println!("step {}: loss {:.4}", progress.step, progress.loss)
            }
            _ => {}
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os().nth(1).map_or_else(
        || env::temp_dir().join(format!("rankine-example-{}", std::process::id())),
        PathBuf::from,
    );
    fs::create_dir_all(&folder)?;
    let (shape, run) = (folder.join("shape.toml"), folder.join("run"));
    fs::write(&shape, SHAPE)?;

    let job = Job::builder("small")
        .data(folder.join("data"))
        .set("data.generate.shape", &shape)
        .set("data.generate.samples", 100_000)
        .set("data.generate.eval_samples", 20_000)
        .model(Dlrm::new(8).bottom([32, 8]).top([64]))
        .dense(Adagrad::rate(0.03))
        .sparse(RowwiseAdagrad::rate(0.05))
        .batch_size(256)
        .build()?;
    let options = TrainOptions { run_dir: Some(&run), ..TrainOptions::default() };
    let (summary, _) = train(&job, options, &mut Printer)?;
    println!("{} steps in {:.1} s, in {}", summary.train.steps, summary.train.seconds, run.display());

    let eval = evaluate(&run, &EvaluateOptions::default(), &mut ())?;
    let auc = eval.metrics.first.and_then(|metrics| metrics.auc).ok_or("all labels are equal")?;
    println!("AUC {auc:.4}, of at most {:.4}", eval.auc_achievable.unwrap_or(1.0));
    Ok(())
}
