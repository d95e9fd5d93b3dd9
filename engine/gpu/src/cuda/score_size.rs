//! How many samples are scored at a time: as many as the memory beside the training holds.

use bytesize::ByteSize;
use rankine_cuda::{Budget, Cluster, Device};

use super::error::{Error, Result};
use super::setup::{ModelSetup, ScoreSize};
use crate::limits::SCORING_PARTS;

/// Returns how many training batches are scored together. `create` creates a rank that scores the given number of
/// batches together; it runs here without allocating memory. With several ranks this is a collective call, and all
/// ranks get the same number.
///
/// # Errors
/// Those of `create`, and if the memory does not suffice.
pub(super) fn choose<R>(
    setup: &ModelSetup,
    device: &Device,
    cluster: Option<&Cluster>,
    create: impl Fn(usize) -> Result<R>,
) -> Result<usize> {
    let (wanted, trained) = (setup.batches.score_size, setup.batches.batch_size);
    let largest = match (wanted, &setup.tier) {
        (wanted, None) => wanted.batches_max(trained, setup.topology().ranks()),
        (ScoreSize::Fixed(size), Some(_)) if size > trained => {
            let why = format!(
                "is more than train.batch_size = {trained}, the most that GPUs score at a time with rows in \
                host memory"
            );
            return Err(Error::ScoreSize { size, why });
        }
        // The rows that are copied from host memory for a batch have room for a training batch.
        (_, Some(_)) => 1,
    };
    if !setup.measures_memory {
        return Ok(if matches!(wanted, ScoreSize::Fixed(_)) { largest } else { 1 });
    }
    let training = device.measure(|| create(1))?;
    let mut batches = largest;
    while batches > 1 {
        let scoring = match device.needed(|| create(batches)) {
            Err(error) if error.misses_rank() => return Err(error),
            scoring => scoring,
        };
        if let ScoreSize::Fixed(size) = wanted {
            check(size, scoring)?;
            break;
        }
        // An error means more samples than kernels can number.
        if all(cluster, scoring.is_ok_and(|scoring| fits(&training, &scoring)))? {
            break;
        }
        batches /= 2;
    }
    Ok(batches)
}

impl ScoreSize {
    /// Returns how many training batches of this size may be scored together on some ranks.
    fn batches_max(self, batch_size: usize, ranks: usize) -> usize {
        match self {
            Self::Fixed(samples) => samples.div_ceil(batch_size).max(1),
            Self::Auto { samples_max } => {
                let samples = samples_max.min(ranks * Self::OF_GPU_MAX);
                1 << (samples / batch_size).max(1).ilog2()
            }
        }
    }
}

/// Names the size that a rank cannot be created with.
fn check(size: usize, scoring: Result<Budget>) -> Result<()> {
    let why = match scoring {
        Ok(budget) if budget.bytes() <= budget.free_bytes => return Ok(()),
        Ok(budget) => format!("needs {budget}; {:.2} are free", ByteSize(budget.free_bytes)),
        Err(error) => error.to_string(),
    };
    Err(Error::ScoreSize { size, why })
}

/// Whether scoring more samples than a training batch takes little of the memory that the training leaves free.
fn fits(training: &Budget, scoring: &Budget) -> bool {
    let more = scoring.bytes().saturating_sub(training.bytes());
    more <= training.free_bytes.saturating_sub(training.bytes()) / SCORING_PARTS
}

/// Whether something holds on all ranks.
fn all(cluster: Option<&Cluster>, own: bool) -> Result<bool> {
    let Some(cluster) = cluster else { return Ok(own) };
    Ok(cluster.gather(u8::from(own))?.into_iter().all(|holds| holds == 1))
}

#[cfg(test)]
mod tests {
    use rankine_cuda::Part;

    use super::*;

    fn budget(bytes: u64, free_bytes: u64) -> Budget {
        let parts = vec![Part { purpose: "activations", bytes }];
        Budget { parts, free_bytes, total_bytes: free_bytes }
    }

    #[test]
    fn batches_are_scored_by_powers_of_two_unless_the_job_says_how_many() {
        let auto = |batch_size, samples_max| ScoreSize::Auto { samples_max }.batches_max(batch_size, 4);
        assert_eq!([auto(65_536, 262_144), auto(65_537, 262_144)], [4, 2]);
        assert_eq!([auto(1000, 262_144), auto(300_000, 262_144)], [256, 1]);
        assert_eq!([auto(512, 511), auto(512, 0), auto(512, 1024)], [1, 1, 2]);
        assert_eq!(
            [1, 2, 4].map(|ranks| ScoreSize::Auto { samples_max: 1 << 20 }.batches_max(4096, ranks)),
            [64, 128, 256]
        );
        let fixed = |batch_size, samples| ScoreSize::Fixed(samples).batches_max(batch_size, 2);
        assert_eq!([fixed(64, 1), fixed(64, 64), fixed(64, 65), fixed(64, 700)], [1, 1, 2, 11]);
    }

    #[test]
    fn an_eighth_of_what_is_free_is_for_scoring() {
        // Training leaves 80 bytes.
        assert!(fits(&budget(20, 100), &budget(30, 100)));
        assert!(!fits(&budget(20, 100), &budget(31, 100)));
        assert!(!fits(&budget(100, 100), &budget(101, 100)));
    }
}
