//! Blocks that several threads check.

use std::num::NonZeroUsize;

use crate::background::Background;
use crate::error::{Error, Result};
use crate::io::SlabRing;
use crate::ordered::ordered_map;
use crate::stop::Stop;
use crate::stream::blocks::UncheckedBlock;
use crate::stream::{BlockStream, PackedBlock};

/// The blocks of a stream in its order, checked on so many threads ahead of whoever takes them; `ready` of them may
/// wait for that. The first error is the last item. What it leaves behind is the ring.
pub(super) fn checked_blocks(
    mut blocks: BlockStream,
    threads: usize,
    ready: usize,
) -> Result<Background<Result<PackedBlock>, SlabRing>> {
    let threads = NonZeroUsize::new(threads).expect("somebody checks");
    Background::spawn("rankine-blocks", ready, move |out, _| {
        let unchecked = std::iter::from_fn(|| blocks.next_unchecked());
        let checked = ordered_map(threads, &Stop::default(), unchecked, UncheckedBlock::check, |block| {
            // It stops the others; nobody sees it.
            out.send(Ok(block)).map_err(|_| Error::invalid("nobody takes blocks any more"))
        });
        if let Err(error) = checked {
            let _ = out.send(Err(error));
        }
        blocks.close()
    })
}
