//! What a process knows before a rendezvous.

use std::time::Duration;

use super::address::Address;
use super::process_place::ProcessPlace;
use super::secret::Secret;

/// How much longer than process 0 the others wait: process 0 reports who is missing.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// A process at a rendezvous, and the terms on which it meets the others.
#[derive(Clone, Copy)]
pub(super) struct Rendezvous<'a> {
    pub(super) place: &'a ProcessPlace,
    /// Where process 0 listens.
    pub(super) address: &'a Address,
    pub(super) secret: &'a Secret,
    pub(super) deadline: Duration,
}
