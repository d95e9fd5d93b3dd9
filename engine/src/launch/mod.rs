//! Processes that work together: who each of them is among them ([`Seat`]), how they hand each other values
//! ([`Meeting`]), and how a job ends everywhere when one of them is lost ([`ProcessGroup`]).
//!
//! Launchers tell a process its rank by its environment; nothing of theirs is linked. What is handed around is who is
//! where, what GPUs need to reach each other, decisions, and in the end the rows of a model that is saved: never what a
//! step waits for.

mod activity;
mod address;
mod error;
mod frame;
#[cfg(feature = "cuda")]
mod gpus;
mod group;
mod meeting;
mod member;
mod outside;
mod seat;
mod source;
#[cfg(test)]
mod tests;
mod watch;

pub use activity::{Activity, Phase, Stage};
pub use address::Address;
pub use error::{LaunchError, MeetError};
#[cfg(feature = "cuda")]
pub use gpus::{Link, links};
pub use group::ProcessGroup;
pub use meeting::Meeting;
pub use member::{Member, Node, nodes};
#[doc(hidden)]
pub use outside::read_stream;
pub use seat::{Seat, Wanted};
pub use source::Launcher;
pub use watch::{Failure, Patience};
