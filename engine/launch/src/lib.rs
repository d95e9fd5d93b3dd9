//! Processes that work together: who each of them is among them ([`ProcessPlace`]), how they hand each other values
//! ([`Meeting`]), and how a job ends everywhere when one of them is lost ([`ProcessGroup`]).
//!
//! Launchers tell a process its number by its environment; nothing of theirs is linked. Processes prove to each other
//! that they know the job's [`Secret`], whoever else can reach the port where they meet. What is handed around is who
//! is where, what GPUs need to reach each other, decisions, and in the end the rows of a model that is saved: never
//! what a step waits for.

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as rankine_launch;

mod activity;
mod address;
mod door;
mod error;
mod frame;
mod group;
mod handshake;
mod link;
mod listen;
mod meeting;
mod outside;
mod process_info;
mod process_place;
mod pulse;
mod reach;
mod rendezvous;
mod secret;
mod source;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

pub use activity::{Activity, RunStage, StepStage};
pub use address::Address;
pub use error::{MeetError, Refusal, Runs};
pub use group::{ProcessGroup, Terms};
pub use link::Link;
pub use meeting::Meeting;
pub use outside::read_stream;
pub use process_info::{Host, ProcessInfo, hosts};
pub use process_place::{LaunchArguments, ProcessPlace, Spread};
pub use pulse::Pulse;
pub use rankine_topology::{LocalProcess, Process};
pub use secret::{Secret, SecretError};
pub use source::{LaunchError, Launcher};
pub use watch::{Failure, Patience};
