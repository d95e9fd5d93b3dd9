//! The blocks of a plan, read and checked, still packed; or raw records, still as in their file.

use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use rankine_base::error::{Error, Malformed, Result};

use crate::block::{self, Block, BlockLayout};
use crate::buckets::append_ids;
use crate::dataset::{BlockCoding, BlockLocation, DatasetPart};
use crate::ids::IdRules;
use crate::io::{BytesRead, IoOptions, Next, ReadRequest, Reads, Requests, Rung, SLAB_ALIGN, Slab, SlabRing};
use crate::raw::{RecordDecoder, RecordFaultKind};
use crate::samples::Samples;
use crate::stream::Plan;

/// Slabs in addition to those being read into: one being unpacked, and some ready for it.
const SLABS_READY: usize = 4;

/// A block that was checked to be undamaged and the expected one. Raw records are only checked when they are
/// unpacked. It holds a slab of the ring while it lives.
#[derive(Debug)]
pub struct PackedBlock {
    slab: Slab,
    /// `None` for raw records.
    layout: Option<BlockLayout>,
    part: Arc<DatasetPart>,
    index: u32,
}

impl PackedBlock {
    /// Returns the block with the positions of its streams, or `None` for raw records.
    pub fn block(&self) -> Option<Block<'_>> {
        self.layout.as_ref().map(|layout| layout.with_bytes(self.bytes()))
    }

    /// Returns the block's number in its part.
    pub fn index(&self) -> u64 {
        u64::from(self.index)
    }

    /// Returns the block's own bytes. Reads start at page boundaries, but blocks of raw records anywhere.
    pub fn bytes(&self) -> &[u8] {
        &self.slab[bytes_before(self.location())..]
    }

    /// Unpacks the block and appends its samples to `out`. The part's rules for ids are not applied yet.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the schema does not admit its contents, [`Error::BadRows`] if a raw record is invalid;
    /// `out` then holds incomplete samples.
    pub fn decode_into(&self, out: &mut Samples) -> Result<()> {
        let location = self.location();
        let path = &self.part.files[location.file as usize];
        let ids = &self.part.ids;
        match (&self.part.coding, self.block()) {
            (BlockCoding::Records(decoder), _) => {
                decode_records((decoder, ids), path, location, self.bytes(), out)?;
                append_ids(&self.part.schema, out);
                Ok(())
            }
            (BlockCoding::Packed { .. }, block) => block
                .expect("a packed block has a layout: see `BlockStream::read`")
                .decode_under(ids, &self.part.schema, out)
                .map_err(|what| Error::damaged(path, location.offset, what)),
        }
    }

    fn location(&self) -> &BlockLocation {
        &self.part.blocks[self.index as usize]
    }
}

/// Returns the bytes of a block's read that precede the block.
pub(crate) fn bytes_before(location: &BlockLocation) -> usize {
    (location.offset % SLAB_ALIGN as u64) as usize
}

/// Unpacks a block of raw records; the error names the first invalid record.
pub(crate) fn decode_records(
    (decoder, ids): (&RecordDecoder, &IdRules),
    path: &Path,
    location: &BlockLocation,
    bytes: &[u8],
    out: &mut Samples,
) -> Result<()> {
    decoder.decode_under(ids, bytes, out).map_err(|(record, fault)| {
        let before = location.offset / decoder.record_bytes() as u64 + record as u64;
        let what = format!(
            "{} record {} (byte {}), column {}: {}. Are these records of the shape {} ({})? If they are, and a \
             few are bad, convert them with --on-bad skip{}",
            path.display(),
            before + 1,
            before * decoder.record_bytes() as u64,
            decoder.name(fault.column),
            decoder.describe(&fault),
            decoder.format().shape.name,
            decoder.format(),
            match fault.kind {
                RecordFaultKind::Id => ", or set the job key guard.ids_out_of_range to handle such ids",
                _ => "",
            }
        );
        Error::bad_rows(Some(path), Some(before + 1), what)
    })
}

/// The blocks of a plan in order, read ahead by [`Reads`] and checked at the speed of the checksum by the thread that
/// calls `next`. After an error it ends.
#[derive(Debug)]
pub struct BlockStream {
    part: Arc<DatasetPart>,
    reads: Reads,
    /// The numbers of the blocks that are being read, in order.
    read: Receiver<u32>,
    failed: bool,
}

impl BlockStream {
    /// Starts reading into a ring of [`BlockStream::ring_for`]'s size.
    ///
    /// # Errors
    /// See [`BlockStream::with_ring`].
    pub fn open(part: impl Into<Arc<DatasetPart>>, plan: Plan, io: &IoOptions) -> Result<Self> {
        let part = part.into();
        let ring = Self::allocate_ring(&part, &plan, io)?;
        Self::with_ring(part, plan, io, ring)
    }

    /// Allocates a ring of [`BlockStream::ring_for`]'s size, or for all blocks of the plan if they are fewer.
    pub(super) fn allocate_ring(part: &DatasetPart, plan: &Plan, io: &IoOptions) -> Result<SlabRing> {
        io.validate()?;
        let (slabs, slab_bytes) = Self::ring_for(part, io);
        // The kernel pins all slabs, which takes longer than to read a small part.
        let blocks = plan.clone().flat_map(|window| window.blocks).take(slabs).count();
        SlabRing::allocate(blocks.max(1), slab_bytes)
    }

    /// Returns the number of slabs, and the bytes of each, that keep the disk busy while blocks are taken one at a
    /// time. A consumer that holds several at once needs that many more.
    pub fn ring_for(part: &DatasetPart, io: &IoOptions) -> (usize, usize) {
        let largest =
            part.blocks.iter().map(|&block| ReadRequest::from(block).bytes as usize).max().unwrap_or(0);
        (io.depth as usize + SLABS_READY, largest.max(1).next_multiple_of(SLAB_ALIGN))
    }

    /// Starts reading into a ring of the caller.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if a block does not fit a slab; those of [`Reads::open`]; [`Error::Damaged`] if the index
    /// lists an impossible block; [`Error::Io`] if the first file cannot be opened.
    pub fn with_ring(
        part: impl Into<Arc<DatasetPart>>,
        plan: Plan,
        io: &IoOptions,
        ring: SlabRing,
    ) -> Result<Self> {
        let mut blocks = plan.flat_map(|window| window.blocks);
        Self::reading(part.into(), move |_| blocks.next().map_or(Next::End, Next::Known), io, ring)
    }

    /// Starts reading blocks. The reading thread calls `blocks` for the number of the next block; the argument is
    /// whether to wait for it, as in [`Requests::next`].
    pub(super) fn reading(
        part: Arc<DatasetPart>,
        blocks: impl FnMut(bool) -> Next<u32> + Send + 'static,
        io: &IoOptions,
        ring: SlabRing,
    ) -> Result<Self> {
        for location in &part.blocks {
            let path = &part.files[location.file as usize];
            let whole = match part.coding {
                BlockCoding::Packed { .. } => (location.bytes as usize).is_multiple_of(block::BLOCK_ALIGN),
                BlockCoding::Records(_) => true,
            };
            if !whole || location.bytes == 0 {
                let what = format!("its index lists a block of {} bytes", location.bytes);
                return Err(Error::damaged(path, location.offset, what));
            }
            if ReadRequest::from(*location).bytes as usize > ring.slab_bytes() {
                let what = format!(
                    "the block at byte {} of {} has {} bytes, more than a buffer's {}",
                    location.offset,
                    path.display(),
                    location.bytes,
                    ring.slab_bytes()
                );
                return Err(Error::too_large(ring.slab_bytes() as u64, what));
            }
        }
        // At most one per slab waits.
        let (to_read, read) = unbounded();
        let requests = BlockRequests { blocks, to_read, part: Arc::clone(&part) };
        let reads = Reads::open(part.read_files(), requests, ring, io)?;
        Ok(Self { part, reads, read, failed: false })
    }

    /// Returns the rung in use.
    pub fn rung(&self) -> Rung {
        self.reads.rung()
    }

    /// Returns the count of the bytes that were read.
    pub fn bytes(&self) -> &BytesRead {
        self.reads.bytes()
    }

    /// Returns the part being read.
    pub fn part(&self) -> &Arc<DatasetPart> {
        &self.part
    }

    /// Stops reading and returns the ring: see [`Reads::close`].
    pub fn close(self) -> SlabRing {
        self.reads.close()
    }

    /// Returns the next block as it was read, unchecked.
    pub(super) fn next_unchecked(&mut self) -> Option<Result<UncheckedBlock>> {
        if self.failed {
            return None;
        }
        let slab = match self.reads.next()? {
            Ok(slab) => slab,
            Err(error) => {
                self.failed = true;
                return Some(Err(error));
            }
        };
        let index = self.read.recv().expect("the number of a block is sent before it is read");
        Some(Ok(UncheckedBlock { slab, part: Arc::clone(&self.part), index }))
    }
}

/// A block as it was read, unchecked.
pub(super) struct UncheckedBlock {
    slab: Slab,
    part: Arc<DatasetPart>,
    index: u32,
}

impl UncheckedBlock {
    /// Checks the block at the speed of the checksum.
    pub(super) fn check(self) -> Result<PackedBlock> {
        let Self { slab, part, index } = self;
        let layout = match part.coding {
            BlockCoding::Records(_) => None,
            BlockCoding::Packed { .. } => {
                Some(check_block(&part, u64::from(index), &slab).map_err(|what| {
                    let location = part.blocks[index as usize];
                    Error::damaged(&part.files[location.file as usize], location.offset, what)
                })?)
            }
        };
        Ok(PackedBlock { slab, layout, part, index })
    }
}

/// Checks that `bytes` are the undamaged block that the index lists at this position.
pub(crate) fn check_block(part: &DatasetPart, index: u64, bytes: &[u8]) -> Result<BlockLayout, Malformed> {
    let block = Block::parse(bytes, &part.schema)?;
    // The block is intact, but may be an intact block from another time: the index has the checksum of the right one.
    let listed = part.blocks[index as usize].checksum;
    if block::stated_checksum(bytes) != Some(listed) {
        let what = format!("it is not the block that the index lists, whose checksum is {listed:016x}");
        return Err(what.into());
    }
    part.check_block(index, &block)?;
    Ok(block.into_layout())
}

/// The requests for blocks of a part.
struct BlockRequests<F> {
    blocks: F,
    /// Gets the numbers of the blocks, in the order of requests.
    to_read: Sender<u32>,
    part: Arc<DatasetPart>,
}

impl<F: FnMut(bool) -> Next<u32> + Send + 'static> Requests for BlockRequests<F> {
    fn next(&mut self, waits: bool) -> Next<ReadRequest> {
        match (self.blocks)(waits) {
            Next::Known(block) => {
                // If the stream is gone, nobody asks for the number.
                let _ = self.to_read.send(block);
                Next::Known(self.part.blocks[block as usize].into())
            }
            Next::Later => Next::Later,
            Next::End => Next::End,
        }
    }
}

impl Iterator for BlockStream {
    type Item = Result<PackedBlock>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_unchecked()?.and_then(UncheckedBlock::check);
        self.failed |= next.is_err();
        Some(next)
    }
}

impl From<BlockLocation> for ReadRequest {
    fn from(block: BlockLocation) -> Self {
        let before = bytes_before(&block);
        Self { file: block.file, offset: block.offset - before as u64, bytes: block.bytes + before as u32 }
    }
}
