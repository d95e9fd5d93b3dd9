//! Copies rows between host memory and the landing regions of a GPU, beside its steps.
//!
//! Threads of the host gather rows in page-locked memory, from which the GPU's copy engines take them, and scatter
//! those that come back. No kernel reads host memory, and no step waits for the host once it has begun. While the step
//! of batch `i` runs, the rows of batch `i - 1` return, and then the rows of batch `i + 1` come: so rows that only
//! these two share are taken from host memory, and only rows of batch `i` are copied on the GPU.

use std::ops::Range;
use std::sync::Arc;

use rankine_cuda::{Device, Lane, Moment, PinnedBuffer, Pointer};

use super::divided_part::{DividedPart, Place};
use super::{HostLists, Region};
use crate::cuda::error::Result;
use crate::tier::{ColdRows, Gathering, Scattering, TierTraffic, gather, scatter};

/// The copies, and how far they are.
#[derive(Debug)]
pub(super) struct Carrier {
    to_device: Lane,
    to_host: Lane,
    gathered: PinnedBuffer<f32>,
    returned: PinnedBuffer<f32>,
    /// When the rows that were gathered last are in their region.
    landed: Moment,
    /// When the rows that return are in host memory.
    copied: Moment,
    /// When the last two steps are done.
    done: [Moment; 2],
    /// Which of these is the last one's.
    last_done: usize,
    /// Whether the rows that landed last are for a step, and whether the rows before them were.
    landed_for_steps: [bool; 2],
    /// The slot of the last step, whose rows do not return yet.
    learned: Option<usize>,
    /// The slot of the step whose rows return.
    returning: Option<usize>,
    traffic: TierTraffic,
}

impl Carrier {
    /// Creates it with page-locked memory for the rows of a landing region: `words` words each way.
    pub(super) fn new(device: &Arc<Device>, words: usize) -> Result<Self> {
        let moment = || Moment::new(device);
        Ok(Self {
            to_device: Lane::new(device)?,
            to_host: Lane::new(device)?,
            gathered: PinnedBuffer::zeroed(device, words)?,
            returned: PinnedBuffer::zeroed(device, words)?,
            landed: moment()?,
            copied: moment()?,
            done: [moment()?, moment()?],
            last_done: 0,
            landed_for_steps: [false; 2],
            learned: None,
            returning: None,
            traffic: TierTraffic::default(),
        })
    }

    pub(super) fn traffic(&self) -> TierTraffic {
        self.traffic
    }

    /// Counts that the hot rows were chosen again, and how many rows came to the GPU.
    pub(super) fn count_moves(&mut self, rows: u64) {
        self.traffic.refreshes += 1;
        self.traffic.moved_rows += rows;
    }

    /// Writes the rows of the step before the last one to host memory, once they are back, and enqueues copying those
    /// of the last one.
    pub(super) fn bring_back(
        &mut self,
        parts: &[DividedPart],
        regions: &[Region],
        storage: Pointer<f32>,
    ) -> Result<()> {
        if let Some(slot) = self.returning.take() {
            self.copied.synchronize()?;
            let mut rows: Vec<_> = parts.iter().map(DividedPart::cold_mut).collect();
            let returned = self.returned.elements();
            let scattering = |(part, rows): (&DividedPart, _)| {
                let (list, (numbers, _)) = of_part(part.place, &regions[slot].lists);
                let rows: &mut ColdRows = rows;
                let words = staged(part.place, list.len(), rows.layout().words);
                Scattering { rows, numbers: &numbers[list], from: &returned[words] }
            };
            scatter(parts.iter().zip(rows.iter_mut().map(|rows| &mut **rows)).map(scattering).collect());
        }
        let Some(slot) = self.learned.take() else { return Ok(()) };
        for part in parts {
            let (list, _) = of_part(part.place, &regions[slot].lists);
            if list.is_empty() {
                continue;
            }
            let row_words = part.cold().layout().words;
            let words = staged(part.place, list.len(), row_words);
            let from = region(part.place, slot, row_words, storage);
            let to = bytemuck::cast_slice_mut(&mut self.returned.elements_mut()[words]);
            self.traffic.bytes_to_host += to.len() as u64;
            // SAFETY: the region has as many rows, which the lane's steps no longer change; the page-locked memory is
            // read after the moment has passed.
            unsafe { self.to_host.download_bytes(from.cast(), to) }?;
        }
        self.to_host.record(&self.copied)?;
        self.returning = Some(slot);
        Ok(())
    }

    /// Copies the cold rows of a batch from host memory to the region of its slot, and makes the lane of steps wait
    /// for them.
    pub(super) fn bring(
        &mut self,
        main: &Lane,
        parts: &[DividedPart],
        lists: &HostLists,
        slot: usize,
        storage: Pointer<f32>,
    ) -> Result<()> {
        // The page-locked memory is free once the rows of the batch before have landed.
        self.landed.synchronize()?;
        self.count_wait()?;
        self.traffic.batches += 1;
        let rows: Vec<_> = parts.iter().map(DividedPart::cold).collect();
        let (mut gathering, mut uploads) = (Vec::new(), Vec::new());
        let (mut left, mut begin) = (self.gathered.elements_mut(), 0);
        for (part, rows) in parts.iter().zip(&rows) {
            let (list, (numbers, absent)) = of_part(part.place, lists);
            let (numbers, absent) = (&numbers[list.clone()], &absent[list.clone()]);
            let missing = absent.iter().filter(|&&absent| absent != 0).count();
            self.traffic.cold_rows += numbers.len() as u64;
            self.traffic.forwarded_rows += (numbers.len() - missing) as u64;
            if missing == 0 {
                continue;
            }
            let words = staged(part.place, list.len(), rows.layout().words);
            let (own, behind) = left.split_at_mut(words.end - begin);
            let to = &mut own[words.start - begin..];
            (left, begin) = (behind, words.end);
            uploads.push((words, region(part.place, slot, rows.layout().words, storage)));
            gathering.push(Gathering { rows, numbers, absent, to });
        }
        gather(gathering);
        for (words, to) in uploads {
            let bytes: &[u8] = bytemuck::cast_slice(&self.gathered.elements()[words]);
            self.traffic.bytes_to_device += bytes.len() as u64;
            // SAFETY: the region has room for as many rows, and no step uses it before it has waited for them; the
            // page-locked memory is not changed before they have landed.
            unsafe { self.to_device.upload_bytes(bytes, to.cast()) }?;
        }
        self.to_device.record(&self.landed)?;
        Ok(main.wait(&self.landed)?)
    }

    /// Adds the time between the end of a step and the moment when the rows of the next one had landed, if that was
    /// later.
    fn count_wait(&mut self) -> Result<()> {
        let [last, before] = self.landed_for_steps;
        // The last step waited for these rows while the one before it was running.
        let done = &self.done[1 - self.last_done];
        if last && before && done.has_passed()? {
            self.traffic.waited_s += self.landed.ms_since(done)?.max(0.0) / 1e3;
        }
        self.landed_for_steps = [false, last];
        Ok(())
    }

    /// Notes that the step of a slot's batch was enqueued.
    pub(super) fn learned(&mut self, main: &Lane, slot: usize) -> Result<()> {
        self.last_done = 1 - self.last_done;
        let done = &self.done[self.last_done];
        main.record(done)?;
        self.to_host.wait(done)?;
        self.learned = Some(slot);
        self.landed_for_steps[0] = true;
        Ok(())
    }

    /// Writes all rows to host memory that steps have changed.
    pub(super) fn finish(
        &mut self,
        parts: &[DividedPart],
        regions: &[Region],
        storage: Pointer<f32>,
    ) -> Result<()> {
        while self.learned.is_some() || self.returning.is_some() {
            self.bring_back(parts, regions, storage)?;
        }
        self.landed_for_steps = [false; 2];
        Ok(())
    }
}

/// The part of a batch's lists that has the cold rows of a part; and all of these lists: numbers, and whether rows are
/// absent.
fn of_part(place: Place, lists: &HostLists) -> (Range<usize>, (&[u32], &[u32])) {
    let count = lists.counts.elements()[place.part] as usize;
    (place.list..place.list + count, (lists.numbers.elements(), lists.absent.elements()))
}

/// The words of staging memory for some rows of a part.
fn staged(place: Place, rows: usize, row_words: usize) -> Range<usize> {
    place.staged..place.staged + rows * row_words
}

/// Where a part's landing region for a slot is.
fn region(place: Place, slot: usize, row_words: usize, storage: Pointer<f32>) -> Pointer<f32> {
    storage.element(place.landing_words + slot * place.landing * row_words)
}
