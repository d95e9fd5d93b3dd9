//! Tests of the command: each runs `rankine` as its users do, and reads what it prints and writes.

#[path = "../support/mod.rs"]
mod support;

mod arguments;
mod bench;
mod collections;
mod completions;
mod conversion;
mod downsampling;
mod eval_sets;
mod evaluate;
mod export;
mod failures;
mod formats;
mod golden;
mod guards;
mod hostile;
mod html_reports;
mod ids;
mod importance;
mod init_schema;
mod inputs;
mod journey;
mod json_messages;
mod launch;
mod like;
mod lost_folder;
mod memory;
mod metrics;
mod models;
mod notes;
mod one_class;
mod outputs;
mod plan;
mod predict;
mod ranks;
mod rate;
mod raw;
mod reports;
mod resume;
mod resume_refusals;
mod run_logs;
mod runs;
mod shards;
mod warm_start;
mod watchdog;
