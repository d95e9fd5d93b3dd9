//! The set, in a GPU's memory, of rows that every rank stores, of tables of which it does not store all.

use std::sync::Arc;

use rankine_cuda::kernels::{KeySet, LINE_KEYS};
use rankine_cuda::{Buffer, Device, Pointer};

use crate::cuda::error::Result;
use crate::cuda::layout::Layout;

/// The set of frequent rows, with one bit per row of their tables. A member's number in the set is its number among
/// the rows of each rank, minus the number of the first.
///
/// Finding a look-up's row takes 1.125 bits per row of these tables: 26 MB for the 187.8 million rows of dlrm, half
/// of an H200's L2 cache. One word per row would be 751 MB, of which each look-up would read 32 bytes from memory.
#[derive(Debug)]
pub(crate) struct FrequentRowSet {
    bits: Buffer<u32>,
    lines: Buffer<u32>,
    /// Per member, its row of its table.
    listed: Buffer<u32>,
}

impl FrequentRowSet {
    /// The set for a layout; `None` if no table has such rows.
    pub(crate) fn of(device: &Arc<Device>, layout: &Layout) -> Result<Option<Self>> {
        let (mut bits, mut lines, mut listed) = (Vec::new(), Vec::new(), Vec::new());
        for (_, table, frequent) in layout.listed() {
            let first = 32 * bits.len();
            bits.resize((first + layout.tables[table].rows as usize).next_multiple_of(LINE_KEYS) / 32, 0_u32);
            for number in 0..frequent.len() {
                let row = frequent.row(number);
                let key = first + row as usize;
                bits[key / 32] |= 1 << (key % 32);
                listed.push(row as u32);
            }
        }
        if listed.is_empty() {
            return Ok(None);
        }
        let mut before = 0;
        for line in bits.chunks(LINE_KEYS / 32) {
            lines.push(before);
            before += line.iter().map(|word| word.count_ones()).sum::<u32>();
        }
        let of = |words: &[u32]| Buffer::of(device, words);
        Ok(Some(Self { bits: of(&bits)?, lines: of(&lines)?, listed: of(&listed)? }))
    }

    pub(crate) fn set(&self) -> KeySet {
        KeySet { bits: self.bits.pointer(), groups: Pointer::NULL, lines: self.lines.pointer() }
    }

    /// Per member, in order: its row of its table.
    pub(crate) fn listed(&self) -> Pointer<u32> {
        self.listed.pointer()
    }
}

/// The empty set.
pub(crate) const NONE: KeySet = KeySet { bits: Pointer::NULL, groups: Pointer::NULL, lines: Pointer::NULL };
