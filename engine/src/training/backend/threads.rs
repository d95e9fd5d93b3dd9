//! The CPU threads of a job.

use rankine_job::Job;

use crate::training::error::TrainError;

/// The thread pool of a job, and its size.
///
/// # Errors
/// [`TrainError::Threads`] if the operating system refuses to start the threads.
pub fn thread_pool(job: &Job) -> Result<(rayon::ThreadPool, usize), TrainError> {
    let threads = rankine_job::thread_count(job.device.threads).get();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|number| format!("rankine-{number}"));
    let pool = pool
        .build()
        .map_err(|error| TrainError::Threads { what: format!("{threads} threads"), source: error.into() })?;
    Ok((pool, threads))
}
