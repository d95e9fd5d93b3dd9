//! The input of a step: copying or unpacking batches into slots of a GPU.

mod layout;
mod unpack;

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use rankine_cuda::kernels::{Rate, Step, Totals};
use rankine_cuda::{Buffer, CopyGate, Device, Lane, Moment, PinnedBuffer, Pointer};
use rankine_embedding::cuda::{Hotness, Ids, LongIds, Result};
use rankine_reader::{Bags, Samples, Schema};
use rayon::prelude::*;

use super::feed::FeedPart;
pub(super) use layout::Input;
pub use layout::InputLayout;
use layout::{STEP_SAMPLES, STEP_WORDS};
pub use unpack::Unpacker;

/// Batches that are on the GPU at once: one that is computed, one that is ready, one that is being copied.
pub(super) const SLOTS: usize = 3;
/// The same if rows are in host memory: one whose rows return there, one that is computed, one whose rows come, and one
/// that is being copied.
pub(super) const SLOTS_WITH_COLD_ROWS: usize = 4;

/// The lanes that work on the slot of a batch.
#[derive(Debug, Clone, Copy)]
pub struct InputLanes<'a> {
    /// Copies the batch, and unpacks it if it is packed.
    pub copies: &'a Lane,
    /// Waits until the batch is in its slot.
    pub reader: &'a Lane,
    /// What copies from the host pass, if they wait for transfers between nodes.
    pub gate: Option<&'a CopyGate>,
    /// What kernels on the batch wait for, besides its copy.
    pub after: Option<&'a Moment>,
}

impl InputLanes<'_> {
    /// Copies words from page-locked memory.
    ///
    /// # Safety
    /// As for [`Lane::upload_bytes`].
    unsafe fn upload(&self, words: &[u32], to: Pointer<u32>) -> Result<()> {
        // SAFETY: the caller vouches for the memory.
        Ok(unsafe { CopyGate::upload(self.gate, self.copies, bytemuck::cast_slice(words), to.cast()) }?)
    }

    /// Makes kernels that follow on the copies' lane wait.
    fn wait(&self) -> Result<()> {
        Ok(self.after.map_or(Ok(()), |after| self.copies.wait(after))?)
    }
}

/// The parameters of a step.
#[derive(Debug, Clone, Copy)]
pub struct StepParameters<'a> {
    /// Its number and the dense learning rate. The number of samples is that of the batch.
    pub step: Step,
    /// One per table.
    pub rates: &'a [Rate],
}

/// The buffers of a batch in host memory and on the GPU.
#[derive(Debug)]
pub struct InputSlot {
    layout: InputLayout,
    /// The step's parameters, and the rows.
    header: PinnedBuffer<u32>,
    /// The batch, if it is not unpacked on the GPU.
    staged: Option<PinnedBuffer<u32>>,
    words: Buffer<u32>,
    ready: Moment,
}

impl InputSlot {
    /// Allocates a slot on the GPU, which must be the current one of this thread.
    ///
    /// # Errors
    /// If the GPU or the host has too little memory.
    pub fn new(device: &Arc<Device>, layout: InputLayout) -> Result<Self> {
        Ok(Self {
            header: PinnedBuffer::zeroed(device, layout.totals)?,
            staged: None,
            words: Buffer::filled(device, layout.words, 0)?,
            ready: Moment::new(device)?,
            layout,
        })
    }

    pub(super) fn input(&self) -> Input {
        let (layout, words) = (&self.layout, self.words.pointer());
        Input {
            step: words.cast(),
            rates: words.element(layout.rates).cast(),
            totals: words.element(layout.totals).cast(),
            own_totals: words.element(layout.own_totals).cast(),
            labels: words.element(layout.labels).cast(),
            weights: words.element(layout.weights).cast(),
            dense: words.element(layout.dense).cast(),
            ids: Ids {
                ids: words.element(layout.ids),
                factors: words.element(layout.factors).cast(),
                offsets: words.element(layout.offsets),
                samples: words.element(STEP_SAMPLES),
            },
            long_ids: words.element(layout.long_ids).cast(),
        }
    }

    /// Returns the unpacker for batches of a schema into such slots.
    ///
    /// # Errors
    /// If the GPU has too little memory.
    pub fn unpacker(&self, device: &Arc<Device>, schema: &Schema) -> Result<Unpacker> {
        Unpacker::new(device, schema, &self.layout)
    }

    /// Enqueues copying samples of a batch, with the step's parameters. All work enqueued for the slot before must be
    /// done.
    ///
    /// # Panics
    /// If there are more samples than the slot holds, or their columns do not match the layout.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn send(
        &mut self,
        lanes: InputLanes<'_>,
        batch: &Samples,
        samples: Range<usize>,
        parameters: StepParameters<'_>,
    ) -> Result<()> {
        let lane = lanes.copies;
        self.write_header(samples.len(), parameters);
        let (layout, header_words) = (&self.layout, self.layout.rows);
        let staged = match &mut self.staged {
            Some(staged) => staged,
            none => none.insert(PinnedBuffer::zeroed(lane.device(), layout.words - layout.totals)?),
        };
        layout.stage(batch, samples, staged.elements_mut());
        // SAFETY: the pinned memory has these parts of the layout's words, and is not written before the reader has
        // been waited for.
        unsafe {
            lanes.upload(&self.header.elements()[..header_words], self.words.pointer())?;
            lanes.upload(staged.elements(), self.words.pointer().element(layout.totals))?;
        }
        lanes.wait()?;
        self.complete(lanes)
    }

    /// The same for batches whose blocks are on the GPU or being copied there: the GPU unpacks them, one after another.
    /// A value that the schema does not admit sets the entry of `faults` at the step's index of losses.
    ///
    /// # Panics
    /// If there are more samples than the slot holds, or no batches.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn unpack(
        &mut self,
        lanes: InputLanes<'_>,
        batches: &[Arc<FeedPart>],
        unpacker: &Unpacker,
        faults: Pointer<u32>,
        parameters: StepParameters<'_>,
    ) -> Result<()> {
        let lane = lanes.copies;
        let samples = batches.iter().map(|batch| batch.len()).sum();
        self.write_header(samples, parameters);
        let rows = self.layout.rows;
        let (mut to, mut of_batches) = (&mut self.header.elements_mut()[rows..], Vec::new());
        for batch in batches {
            let (own, behind) = mem::take(&mut to).split_at_mut(2 * batch.len());
            of_batches.push((own, batch));
            to = behind;
        }
        let fill = |(to, batch): (&mut [u32], &Arc<FeedPart>)| {
            to.chunks_exact_mut(2).zip(batch.rows()).for_each(|(to, row)| to.copy_from_slice(&row));
        };
        match batches.len() {
            1 => of_batches.into_iter().for_each(fill),
            // One thread takes as long as the GPU takes to score them.
            _ => of_batches.into_par_iter().for_each(fill),
        }
        batches.iter().try_for_each(|batch| lane.wait(batch.copied()))?;
        let ring = batches.first().expect("there is a batch").ring();
        let rows_at = self.words.pointer().element(rows).cast();
        // SAFETY: the pinned memory has these words, and is not written before the reader has been waited for; until
        // then the batch is kept, and with it its blocks, for which the lane has just waited.
        unsafe {
            let words = &self.header.elements()[..rows + 2 * samples];
            lanes.upload(words, self.words.pointer())?;
            lanes.wait()?;
            unpacker.enqueue(lane, ring, rows_at, self.input(), faults)?;
        }
        self.complete(lanes)
    }

    /// Enqueues replacing the ids of dynamic tables by rows, after the batch was sent or unpacked, by what `find`
    /// enqueues.
    ///
    /// # Errors
    /// If the driver refuses, or `find` fails.
    pub fn find_rows(
        &self,
        lanes: InputLanes<'_>,
        find: impl FnOnce(&Lane, LongIds) -> Result<()>,
    ) -> Result<()> {
        let Input { ids, long_ids, .. } = self.input();
        find(lanes.copies, LongIds { ids: long_ids, rows: ids })?;
        lanes.copies.record(&self.ready)?;
        Ok(lanes.reader.wait(&self.ready)?)
    }

    fn write_header(&mut self, samples: usize, parameters: StepParameters<'_>) {
        let (layout, StepParameters { step, rates }) = (&self.layout, parameters);
        assert!(samples <= layout.samples() && rates.len() == layout.ids_layout.tables().len());
        let words = self.header.elements_mut();
        let step = Step { samples: samples as u32, ..step };
        words[..STEP_WORDS].copy_from_slice(bytemuck::cast_slice(&[step]));
        words[layout.rates..][..2 * rates.len()].copy_from_slice(bytemuck::cast_slice(rates));
    }

    /// Returns the number of ids in a ragged column of the batch that was sent last, after the lane has finished all
    /// work enqueued before.
    pub(super) fn ids_of(&self, lane: &Lane, column: usize) -> Result<u64> {
        let samples = self.words.read_part(lane, STEP_SAMPLES, 1)?[0] as usize;
        let offset = self.layout.offsets + self.layout.ids_layout.offsets_begin(column) + samples;
        Ok(self.words.read_part(lane, offset, 1)?[0].into())
    }

    /// Enqueues computing the sums of weights from the batch.
    fn complete(&self, lanes: InputLanes<'_>) -> Result<()> {
        let InputLanes { copies: lane, reader, .. } = lanes;
        let (layout, input) = (&self.layout, self.input());
        let totals = Totals {
            labels: input.labels,
            weights: input.weights,
            totals: input.own_totals,
            samples: layout.samples() as u32,
            reserved: 0,
        };
        // SAFETY: all these addresses are within the slot's words, according to the layout.
        unsafe { lane.launch(&totals, (layout.labels_of.len() as u32, 1)) }?;
        lane.record(&self.ready)?;
        Ok(reader.wait(&self.ready)?)
    }
}

/// Access to a batch for tests and tools.
impl InputSlot {
    /// Returns the batch that was sent last, after the lane has finished all work enqueued before; its labels are
    /// those of the heads, and ids with weights have their factors instead.
    ///
    /// # Errors
    /// If work enqueued on the lane failed.
    pub fn samples(&self, lane: &Lane) -> Result<Samples> {
        let (layout, words) = (&self.layout, self.words.read(lane)?);
        let (len, room) = (words[STEP_SAMPLES] as usize, layout.samples());
        let floats = |begin: usize, count: usize| bytemuck::cast_slice(&words[begin..][..count]).to_vec();
        let (ids, hotness) = (&layout.ids_layout, layout.ids_layout.columns());
        let bags = |(column, hotness): (usize, &Hotness)| {
            let offsets = match hotness {
                Hotness::Fixed(ids) => (0..=len).map(|sample| (sample * ids) as u32).collect(),
                Hotness::Ragged { .. } => {
                    words[layout.offsets + ids.offsets_begin(column)..][..=len].to_vec()
                }
            };
            let count = offsets[len] as usize;
            let weights = match ids.is_weighted(column) {
                true => floats(layout.factors + ids.factors_begin(column), count),
                false => Vec::new(),
            };
            let ids = match ids.is_dynamic(column) {
                true => {
                    let first = layout.long_ids + 2 * ids.long_ids_begin(column);
                    bytemuck::pod_collect_to_vec(&words[first..][..2 * count])
                }
                false => {
                    let ids = &words[layout.ids + ids.ids_begin(column)..][..count];
                    ids.iter().map(|&id| u64::from(id)).collect()
                }
            };
            Bags { ids, offsets, weights }
        };
        Ok(Samples {
            len,
            labels: (0..layout.labels_of.len())
                .map(|head| floats(layout.labels + head * room, len))
                .collect(),
            weights: floats(layout.weights, len),
            dense: floats(layout.dense, len * layout.dense_columns),
            dense_columns: layout.dense_columns,
            categorical: hotness.iter().enumerate().map(bags).collect(),
        })
    }
}
