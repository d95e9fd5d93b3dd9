//! Choosing the hot rows again while training goes on: rows of the GPU and of host memory change places.

use std::sync::Arc;

use rankine_cuda::kernels::TierSwap;
use rankine_cuda::{Buffer, Device, Lane, Pointer};

use super::DeviceTier;
use super::divided_part::DividedPart;
use crate::cuda::blocks;
use crate::cuda::error::Result;
use crate::tier::RowSwaps;

/// What a GPU needs to choose its hot rows again.
#[derive(Debug)]
pub(super) struct Refresh {
    /// After how many steps.
    steps: u64,
    /// Per hot row, where it is among the stored rows of its part.
    pub(super) places: Buffer<u32>,
    /// Per hot row, how many batches have looked it up since the last choice.
    pub(super) counts: Buffer<u16>,
    /// Per row of a landing region, for rows that change places: where on the GPU, and its number in the table.
    swapped: Buffer<u32>,
    numbers: Buffer<u32>,
}

impl Refresh {
    /// Allocates it for the hot rows of these parts, which are stored in order.
    pub(super) fn new(device: &Arc<Device>, parts: &[DividedPart], steps: u64) -> Result<Self> {
        let places: Vec<u32> = parts.iter().flat_map(|part| part.places()).copied().collect();
        let landing = parts.iter().map(|part| part.place.landing).max().unwrap_or(0);
        Ok(Self {
            steps,
            counts: Buffer::filled(device, places.len(), 0)?,
            places: Buffer::of(device, &places)?,
            swapped: Buffer::filled(device, landing, 0)?,
            numbers: Buffer::filled(device, landing, 0)?,
        })
    }
}

impl DeviceTier {
    /// Whether the hot rows are to be chosen again before a step, which are numbered from 1.
    pub(crate) fn refreshes_before(&self, step: u64) -> bool {
        self.refresh.as_ref().is_some_and(|refresh| step > 1 && (step - 1).is_multiple_of(refresh.steps))
    }

    /// Chooses the hot rows again: those that most batches have looked up since the last time. All steps must be done,
    /// and their rows back in host memory.
    pub(crate) fn refresh(&mut self, main: &Lane, storage: Pointer<f32>) -> Result<()> {
        let Some(refresh) = &self.refresh else { return Ok(()) };
        let mut moved = 0;
        for number in 0..self.divided.len() {
            let members = self.divided[number].members();
            let counts = refresh.counts.read_part(main, members.start, members.len())?;
            let swaps = self.divided[number].choose(&counts);
            if swaps.is_empty() {
                continue;
            }
            moved += swaps.entering.len() as u64;
            self.swap(main, refresh, (number, &swaps), storage)?;
            let part = &mut self.divided[number];
            part.exchange(&swaps);
            let (bits, lines) = part.hot_rows_words();
            let lines: Vec<_> = lines.iter().map(|before| members.start as u32 + before).collect();
            refresh.places.write_part(main, members.start, part.places())?;
            self.hot.bits.write_part(main, part.place.bits, bits)?;
            self.hot.lines.write_part(main, part.place.lines, &lines)?;
        }
        refresh.counts.write(main, &vec![0; refresh.counts.len()])?;
        self.carrier.count_moves(moved);
        Ok(())
    }

    /// Makes rows of a part change places, as many at a time as a landing region has room for.
    fn swap(
        &self,
        main: &Lane,
        refresh: &Refresh,
        (number, swaps): (usize, &RowSwaps),
        storage: Pointer<f32>,
    ) -> Result<()> {
        let part = &self.divided[number];
        let (place, row_words) = (part.place, part.cold().layout().words);
        let landed = storage.element(place.landing_words);
        let mut words = vec![0.0; place.landing.min(swaps.entering.len()) * row_words];
        let pairs = swaps.leaving.chunks(place.landing).zip(swaps.entering.chunks(place.landing));
        for (leaving, entering) in pairs {
            let words = &mut words[..entering.len() * row_words];
            entering
                .iter()
                .zip(words.chunks_exact_mut(row_words))
                .for_each(|(&row, to)| part.copy_cold(row, to));
            let places: Vec<u32> =
                leaving.iter().filter_map(|&row| part.hot_place(row)).map(|at| at as u32).collect();
            let numbers: Vec<u32> = entering.iter().map(|&row| place.number_in_table(row)).collect();
            refresh.swapped.write_part(main, 0, &places)?;
            refresh.numbers.write_part(main, 0, &numbers)?;
            let swap = TierSwap {
                rows: storage.element(self.stored.words[place.part] as usize),
                landed,
                places: refresh.swapped.pointer(),
                numbers: refresh.numbers.pointer(),
                listed: self.listed.pointer().element(self.stored.bases[place.part] as usize),
                count: entering.len() as u32,
                row_words: row_words as u32,
            };
            // SAFETY: no step is running; the region has room for the rows, which the part stores. The lane is waited
            // for before the words go away.
            unsafe {
                main.upload_bytes(bytemuck::cast_slice(words), landed.cast())?;
                main.launch(&swap, (blocks(main.device()), 1))?;
                main.download_bytes(landed.cast(), bytemuck::cast_slice_mut(words))?;
            }
            main.synchronize()?;
            let mut cold = part.cold_mut();
            for (&row, from) in entering.iter().zip(words.chunks_exact(row_words)) {
                cold.row_mut(part.cold_number(row)).copy_from_slice(from);
            }
        }
        Ok(())
    }
}
