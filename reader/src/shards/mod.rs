//! Datasets that many processes write together: each converts a piece of the rows to a shard, and a commit lists the
//! shards in a collection.
//!
//! A shard counts once it is listed, so every sample is there exactly once, however many processes are killed, run
//! again or run twice. The folder of the collection has its shards below `shards`, each with the name that the caller
//! gave its piece and the checksum of its manifest. A piece that is encoded again gives the same folder; what no
//! collection lists is garbage, which [`unlisted`] finds.

mod commit;
mod encode;
mod garbage;
#[cfg(test)]
mod tests;

pub use commit::{CommitMode, commit};
pub use encode::{EncodedShard, encode};
pub use garbage::{Unlisted, remove, unlisted};

/// The folder of a collection that has its shards.
const FOLDER: &str = "shards";
/// Digits of a checksum at the end of a shard's name.
const CHECKSUM_DIGITS: usize = 16;

/// Returns whether a name is a shard's: a piece, `-` and a checksum.
fn is_shard_name(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.rsplit_once('-').is_some_and(|(_, sum)| sum.len() == CHECKSUM_DIGITS && sum.bytes().all(is_digit))
}
