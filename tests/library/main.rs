//! Tests of the library's interface: each trains or scores with `rankine` in this process. Some compare with the
//! command.

#[path = "../support/mod.rs"]
mod support;

mod average;
mod beside;
mod buckets;
mod columns;
mod delta;
mod downsampling;
mod early_stopping;
mod eval_batch_size;
mod flips;
mod import;
mod lost_folder;
mod memory;
mod prelude;
mod ranker;
mod sequences;
mod starter;
mod trainer;
mod training;
mod tune;
mod tune_time;
mod weights;
