//! Monitoring: the metrics of a command, for Prometheus, over HTTP or in a file; and the live page of a training.
//!
//! A [`Monitor`] keeps the metrics of one process. What happens reaches it as events: [`Monitor::training`] observes a
//! training, and a [`Task`] follows any other piece of work. `families/` lists every metric; [`server`] answers
//! requests, on a thread that only gets idle processor time, and never waits for training, nor training for it.

mod catalog;
mod families;
mod gpus;
mod live;
mod monitor;
mod observer;
mod process;
pub mod server;
mod store;
#[cfg(test)]
mod tests;
mod text;
mod textfile;

pub use families::{Command, RunInfo, Task};
pub use monitor::{Monitor, MonitorError, MonitorOptions, Readiness};
pub use observer::{EvaluationObserver, TrainingObserver};
