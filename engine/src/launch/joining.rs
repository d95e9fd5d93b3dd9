//! What both sides of a rendezvous know before it.

use std::time::Duration;

use super::address::Address;
use super::seat::Spread;
use super::secret::Secret;

/// How much longer than rank 0 the others wait: rank 0 reports who is missing.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// What a process brings to a rendezvous.
pub(super) struct Joining<'a> {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) address: &'a Address,
    pub(super) spread: Spread,
    pub(super) job: Option<&'a str>,
    pub(super) secret: &'a Secret,
    pub(super) deadline: Duration,
}
