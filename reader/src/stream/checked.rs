//! Checking blocks with several threads.

use std::num::NonZeroUsize;

use crate::background::Background;
use crate::error::{Error, Result};
use crate::io::SlabRing;
use crate::ordered::ordered_map;
use crate::stop::Stop;
use crate::stream::blocks::UncheckedBlock;
use crate::stream::{BlockStream, PackedBlock};

/// Returns the blocks of a stream in order, checked ahead by `threads` threads; up to `ready` of them wait for the
/// consumer. The first error is the last item. The result of the thread is the ring.
pub(super) fn checked_blocks(
    mut blocks: BlockStream,
    threads: usize,
    ready: usize,
) -> Result<Background<Result<PackedBlock>, SlabRing>> {
    let threads = NonZeroUsize::new(threads).expect("at least one thread checks");
    Background::spawn("rankine-blocks", ready, move |out, _| {
        let unchecked = std::iter::from_fn(|| blocks.next_unchecked());
        let checked = ordered_map(threads, &Stop::default(), unchecked, UncheckedBlock::check, |block| {
            // This error stops the other threads; it is never returned.
            out.send(Ok(block)).map_err(|_| Error::invalid("the consumer of blocks was dropped"))
        });
        if let Err(error) = checked {
            let _ = out.send(Err(error));
        }
        blocks.close()
    })
}
