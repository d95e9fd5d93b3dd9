//! The parts that a training may know: without the validation set, which is cut from the training part, or without the
//! evaluation part.

use std::sync::Arc;

use rankine_base::error::{Error, Result};

use super::{Dataset, DatasetPart, Source};
use crate::part::Part;
use crate::split::{HeldOut, Split};

impl Dataset {
    /// Holds out samples of the training part as [`Part::Validation`]; the training part is then without them.
    /// [`Split::Random`] hashes the number of every sample here.
    ///
    /// # Errors
    /// As [`Dataset::part`]; [`Error::Setting`] if this leaves no sample to train on, or none for validation.
    #[doc(hidden)]
    pub fn with_validation(self, split: Split) -> Result<Self> {
        let whole = Self { validation: None, ..self };
        if split == Split::None {
            return Ok(whole);
        }
        let cut = ValidationCut::of(&whole.part(Part::Train)?, split)?;
        Ok(Self { validation: Some(Arc::new(cut)), ..whole })
    }

    /// Leaves the evaluation part out, so that nothing can depend on it.
    #[doc(hidden)]
    pub fn without_eval(mut self) -> Self {
        match &mut self.source {
            Source::Folders(folders) => folders.remove(Part::Eval),
            Source::Raw(raw) => drop(raw.parts.remove(&Part::Eval)),
            Source::Columns(_) => {}
        }
        self
    }
}

/// Which samples of a stored training part are held out.
#[derive(Debug)]
pub(super) struct ValidationCut {
    held_out: HeldOut,
    blocks: Vec<BlockCut>,
    /// Samples to train on, and samples that are held out.
    train: u64,
    validation: u64,
}

/// The samples of a block.
#[derive(Debug, Clone, Copy)]
struct BlockCut {
    /// The number of its first sample in the stored part.
    first: u64,
    samples: u32,
    validation: u32,
}

impl ValidationCut {
    /// Cuts a whole training part.
    pub(super) fn of(part: &DatasetPart, split: Split) -> Result<Self> {
        let held_out = HeldOut::of(split, part.samples);
        let mut first = 0;
        let blocks = part.blocks.iter().map(|block| {
            let rows = first..first + u64::from(block.samples);
            first = rows.end;
            // At most the samples of a block.
            BlockCut { first: rows.start, samples: block.samples, validation: held_out.count(rows) as u32 }
        });
        let blocks: Vec<_> = blocks.collect();
        let validation = blocks.iter().map(|block| u64::from(block.validation)).sum();
        let train = part.samples - validation;
        if train == 0 || validation == 0 {
            let lacks = if train == 0 { "leaves no sample to train on" } else { "holds out no sample" };
            let what = format!(
                "the split {split} of a training part of {} samples {lacks}: choose another share",
                part.samples
            );
            return Err(Error::setting("split", what));
        }
        Ok(Self { held_out, blocks, train, validation })
    }

    /// Returns the number of samples on a side of the cut.
    pub(super) fn samples(&self, side: Part) -> u64 {
        if side == Part::Validation { self.validation } else { self.train }
    }

    /// Returns one side of the stored training part. Its blocks remain those of the whole.
    pub(super) fn apply(self: &Arc<Self>, part: DatasetPart, side: Part) -> DatasetPart {
        let selection = Selection { cut: Arc::clone(self), is_validation: side == Part::Validation };
        DatasetPart { samples: self.samples(side), selection: Some(selection), ..part }
    }
}

/// One side of a validation cut: which samples of a stored training part belong to it.
#[derive(Debug, Clone)]
pub struct Selection {
    cut: Arc<ValidationCut>,
    is_validation: bool,
}

impl Selection {
    /// Returns the number of selected samples of a block.
    pub(crate) fn samples_of(&self, block: u32) -> u32 {
        let BlockCut { samples, validation, .. } = self.cut.blocks[block as usize];
        if self.is_validation { validation } else { samples - validation }
    }

    /// Returns the numbers of a block's selected samples within the block, in order.
    pub(crate) fn rows_of(&self, block: u32) -> impl Iterator<Item = u32> {
        let BlockCut { first, samples, .. } = self.cut.blocks[block as usize];
        let is_selected = |row: u64| self.cut.held_out.contains(row) == self.is_validation;
        (0..samples).filter(move |&row| is_selected(first + u64::from(row)))
    }

    /// Returns the number of samples that a block stores.
    pub(crate) fn stored_in(&self, block: u32) -> u32 {
        self.cut.blocks[block as usize].samples
    }
}
