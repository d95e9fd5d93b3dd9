//! Batches that a program pushes, on GPUs.

use std::fs;
use std::path::Path;

use libtest_mimic::Failed;
use rankine::job::{Job, JobFile};
use rankine_engine::trainer::{Features, Ids, Trainer, TrainerOptions, TrainingRows};
use rankine_engine::training::{TrainOptions, train};
use rankine_reader::{BatchStream, Dataset, Order, Part, Samples, StreamOptions};

use super::resume::have_gpus;
use super::{Bench, Body, Outcome, Words};

pub(crate) const BODIES: &[Body] =
    &[("pushed_batches_give_the_bits_of_a_dataset", 1, pushed_batches_give_the_bits_of_a_dataset)];

/// Columns with one id and with several.
const JOB: &str = r#"
name = "pushed"
[data]
dir = "DIR/data"
[data.generate]
shape = "DIR/shape.toml"
samples = 10000
eval_samples = 1000
[model]
kind = "dcnv2"
embedding_dim = 8
bottom_mlp = [16, 8]
cross_layers = 2
top_mlp = [32]
[optimizer.dense]
kind = "adagrad"
learning_rate = 0.02
[optimizer.sparse]
kind = "adagrad"
learning_rate = 0.02
[train]
batch_size = 512
epochs = 2
[device]
kind = "cuda"
"#;
const SHAPE: &str = "name = \"mixed\"\ndense = 5\nrows = [400, 3000, 20, 5]\nhotness = [1, 3, 2, 1]\n";

fn pushed_batches_give_the_bits_of_a_dataset(_: &Bench, words: &mut Words) -> Outcome {
    for (number, precision) in ["fp32", "bf16"].into_iter().enumerate() {
        for ranks in [1, 2] {
            if !have_gpus(ranks)? {
                continue;
            }
            let folder = tempfile::tempdir()?;
            let place = folder.path();
            fs::write(place.join("shape.toml"), SHAPE)?;
            fs::write(place.join("job.toml"), JOB.replace("DIR", &place.display().to_string()))?;
            let seed = format!("seed={}", words.below(1000) + number as u64);
            let sets =
                [format!("device.precision={precision}"), format!("device.ranks={ranks}"), seed.clone()];
            let job = JobFile::read(&place.join("job.toml"), &sets)?.job()?;
            let (read, pushed) = (place.join("read"), place.join("pushed"));
            let options = TrainOptions { run_dir: Some(&read), ..TrainOptions::default() };
            let (expected, _) = train(&job, options, &mut ())?;
            let summary = push(&job, &pushed)?;
            let what = format!("{precision}, {ranks} ranks, {seed}");
            let auc = |eval: &Option<rankine_model::evaluation::EvalSummary>| {
                eval.as_ref().and_then(|eval| eval.metrics.first?.auc)
            };
            if auc(&summary.eval) != auc(&expected.eval) {
                return Err(format!("{what}: {:?}, but {:?}", summary.eval, expected.eval).into());
            }
            let weights = |run: &Path| fs::read(run.join("model/model.safetensors"));
            if weights(&read)? != weights(&pushed)? {
                return Err(format!("{what}: the weights differ").into());
            }
        }
    }
    Ok(())
}

/// Pushes the batches that the job trains on, in its order.
fn push(job: &Job, run: &Path) -> Result<rankine_engine::training::Summary, Failed> {
    let dataset = Dataset::open(job.data.folder().ok_or("the job has a dataset")?)?;
    let order = Order::Shuffled { seed: job.seed, window_blocks: job.train.shuffle_window_blocks.get() };
    let stream = StreamOptions { epochs: Some(2), order, ..StreamOptions::one_epoch(512) };
    let options = TrainerOptions { run_dir: Some(run.to_owned()), ..TrainerOptions::default() };
    let mut trainer = Trainer::start(job, options, ())?;
    for batch in BatchStream::open(dataset.part(Part::Train)?, &stream)? {
        let batch = batch?;
        let Samples { len, labels, dense, categorical, .. } = &batch.samples;
        let labels: Vec<_> = labels.iter().map(Vec::as_slice).collect();
        let categorical: Vec<_> = categorical.iter().map(ids_of).collect();
        let features = Features { rows: *len, dense, categorical: &categorical };
        trainer.push(&TrainingRows { features, labels: &labels, weights: None })?;
    }
    Ok(trainer.finish()?)
}

fn ids_of(bags: &rankine_reader::Bags) -> Ids<'_> {
    Ids::Bags { offsets: &bags.offsets, ids: &bags.ids }
}
