//! How a job reads its training samples.

use rankine_reader::io::IoOptions;
use rankine_reader::stream::{Order, StreamOptions};

use rankine_job::Job;

/// Unpacked batches that wait while a step computes: enough to hide a slow read, few enough to stay small.
const PREFETCH_BATCHES: usize = 4;

/// The batches that a job trains on.
pub(in crate::training) fn train_options(job: &Job, io: IoOptions) -> StreamOptions {
    let train = &job.train;
    let order = if train.shuffle {
        Order::Shuffled { seed: job.seed, window_blocks: train.shuffle_window_blocks.get() }
    } else {
        Order::File
    };
    StreamOptions {
        epochs: Some(train.epochs.get()),
        order,
        io,
        prefetch: PREFETCH_BATCHES,
        ..StreamOptions::one_epoch(train.batch_size.get() as usize)
    }
}
