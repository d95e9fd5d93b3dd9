//! The windows of a stream, divided and drawn ahead, and the blocks that are read for them.

use std::mem;
use std::sync::Arc;

use crossbeam_channel::{TryRecvError, bounded, select};
use rankine_base::error::{Error, Result};

use crate::background::Background;
use crate::dataset::DatasetPart;
use crate::io::{Next, SlabRing};
use crate::stream::division::Division;
use crate::stream::rows::RowsOfWindow;
use crate::stream::{BlockStream, Plan, StreamOptions};

/// Windows in order. A thread draws them ahead of the reads, because which blocks a share needs depends on the order of
/// the rows. The thread is ahead of its consumer by the blocks of the ring and a few windows. Each sample of these
/// windows takes 4 bytes, unless samples are in file order.
pub(super) type Windows = Background<Arc<RowsOfWindow>, ()>;

/// Windows whose blocks are to be read next.
const WINDOWS_AHEAD: usize = 1;
/// Windows that are drawn beside those whose blocks fill the ring.
const WINDOWS_DRAWN: usize = 3;

/// Starts to draw the windows of a plan, and to read the needed blocks of each one: with `once` only those that it has
/// not read before.
///
/// The consumer drops the windows before the blocks: otherwise the thread that reads may wait for the next window.
///
/// # Errors
/// See [`BlockStream::with_ring`]; [`Error::Setting`] for a batch size of 0.
pub(super) fn open(
    part: &Arc<DatasetPart>,
    plan: Plan,
    options: &StreamOptions,
    once: bool,
    ring: SlabRing,
) -> Result<(Windows, BlockStream)> {
    if options.batch_size == 0 {
        return Err(Error::setting("batch_size", "a stream of batches needs a batch size of at least 1"));
    }
    let (to_read, next) = bounded::<Arc<RowsOfWindow>>(WINDOWS_AHEAD);
    let mut of_window = Vec::new().into_iter();
    let needed = move |waits| loop {
        if let Some(block) = of_window.next() {
            return Next::Known(block);
        }
        let window = match waits {
            true => next.recv().map_err(|_| TryRecvError::Disconnected),
            false => next.try_recv(),
        };
        match window {
            Ok(window) => of_window = window.blocks_to_read().collect::<Vec<_>>().into_iter(),
            Err(TryRecvError::Empty) => return Next::Later,
            Err(TryRecvError::Disconnected) => return Next::End,
        }
    };
    // Windows whose blocks were read before would be drawn without end. Those whose blocks fill the ring are fewer than
    // this, so reading does not wait for it.
    let filling = ring.slabs() as usize * options.share.processes / options.order.window_blocks().max(1);
    let blocks = BlockStream::reading(Arc::clone(part), needed, &options.io, ring)?;
    let mut division = Division::new(options.batch_size, part.samples, options.share);
    let part = Arc::clone(part);
    let windows = Background::spawn("rankine-order", filling + WINDOWS_DRAWN, move |out, stop| {
        let mut first_block = 0_u32;
        let mut was_read = vec![false; part.blocks.len()];
        for window in plan {
            let portions = division.divide(&window);
            let mut rows = RowsOfWindow::new(&part, window, portions, first_block);
            if once {
                rows.leave_out(|block| mem::replace(&mut was_read[block as usize], true));
            }
            let rows = Arc::new(rows);
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
