//! Processes that work together: who each of them is among them ([`Seat`]), and how they hand each other small values
//! ([`Meeting`]).
//!
//! Launchers tell a process its rank by its environment; nothing of theirs is linked. Large values never go this way:
//! what is handed around is who is where, and what GPUs need to reach each other.

mod address;
mod error;
mod frame;
#[cfg(feature = "cuda")]
mod gpus;
mod meeting;
mod member;
mod seat;
mod source;
#[cfg(test)]
mod tests;

pub use address::Address;
pub use error::{LaunchError, MeetError};
#[cfg(feature = "cuda")]
pub use gpus::{Link, links};
pub use meeting::Meeting;
pub use member::{Member, Node, nodes};
pub use seat::{Seat, Wanted};
pub use source::Launcher;
