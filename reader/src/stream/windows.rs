//! The windows of a stream, divided and drawn ahead, and the blocks that are read for them.

use std::sync::Arc;

use crossbeam_channel::{bounded, select};
use rankine_base::error::{Error, Result};

use crate::background::Background;
use crate::dataset::DatasetPart;
use crate::io::SlabRing;
use crate::stream::division::Division;
use crate::stream::rows::RowsOfWindow;
use crate::stream::{BlockStream, Plan, StreamOptions};

/// Windows in order. A thread draws them ahead of the reads, because which blocks a share needs depends on the order of
/// the rows. The thread never waits for its consumer: the ring of the blocks bounds how far it is ahead. Each sample of
/// these windows takes 4 bytes, unless samples are in file order.
pub(super) type Windows = Background<Arc<RowsOfWindow>, ()>;

/// Windows whose blocks are to be read next.
const WINDOWS_AHEAD: usize = 1;

/// Starts to draw the windows of a plan, and to read the needed blocks of each one.
///
/// The consumer drops the windows before the blocks: otherwise the thread that reads may wait for the next window.
///
/// # Errors
/// See [`BlockStream::with_ring`]; [`Error::Setting`] for a batch size of 0.
pub(super) fn open(
    part: &Arc<DatasetPart>,
    plan: Plan,
    options: &StreamOptions,
    ring: SlabRing,
) -> Result<(Windows, BlockStream)> {
    if options.batch_size == 0 {
        return Err(Error::setting("batch_size", "a stream of batches needs a batch size of at least 1"));
    }
    let (to_read, reads) = bounded::<Arc<RowsOfWindow>>(WINDOWS_AHEAD);
    let needed = reads.into_iter().flat_map(|window| window.needed_blocks().collect::<Vec<_>>());
    let blocks = BlockStream::reading(Arc::clone(part), needed, &options.io, ring)?;
    let mut division = Division::new(options.batch_size, part.samples, options.share);
    let part = Arc::clone(part);
    let windows = Background::spawn_unbounded("rankine-order", move |out, stop| {
        let mut first_block = 0_u32;
        for window in plan {
            let portions = division.divide(&window);
            let rows = Arc::new(RowsOfWindow::new(&part, window, portions, first_block));
            first_block = first_block.wrapping_add(rows.needed_len());
            select! {
                send(to_read, Arc::clone(&rows)) -> sent => if sent.is_err() { break },
                recv(stop.0) -> _ => break,
            }
            if out.send(rows).is_err() {
                break;
            }
        }
    })?;
    Ok((windows, blocks))
}
