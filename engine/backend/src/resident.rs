//! The part of a dataset that a device keeps between evaluations.

use std::ops::ControlFlow;
use std::path::PathBuf;

use rankine_reader::Part;
use rankine_reader::dataset::DatasetPart;

use super::batches::{Batch, Batches};
use super::error::BackendError;

/// The batches of the part that was scored last, if they stay in memory: only its first evaluation reads.
#[derive(Debug, Default)]
pub struct ResidentPart {
    /// The part, its files and the samples per batch.
    of: Option<(Part, Vec<PathBuf>, usize)>,
    batches: Vec<Batch>,
}

impl ResidentPart {
    /// Frees the batches unless they are those of this part.
    pub fn keep_only(&mut self, part: &DatasetPart, batch_size: usize) {
        let of = (part.part, part.files.clone(), batch_size);
        if self.of.as_ref() != Some(&of) {
            *self = Self { of: Some(of), batches: Vec::new() };
        }
    }

    /// Calls `score` with each batch of the part and the number of bytes read so far, until it breaks; returns whether
    /// it did. Calls `open` to read the batches if they are not resident; they become so if `stays` returns true for
    /// each. What it opened is returned, too: a device may still use its memory.
    ///
    /// # Errors
    /// The first error of the functions, or of reading.
    pub fn score(
        &mut self,
        open: impl FnOnce() -> Result<Batches, BackendError>,
        mut stays: impl FnMut(&Batch) -> bool,
        mut score: impl FnMut(&Batch, u64) -> Result<ControlFlow<()>, BackendError>,
    ) -> Result<(ControlFlow<()>, Option<Batches>), BackendError> {
        for batch in &self.batches {
            if score(batch, 0)?.is_break() {
                return Ok((ControlFlow::Break(()), None));
            }
        }
        if !self.batches.is_empty() {
            return Ok((ControlFlow::Continue(()), None));
        }
        let mut batches = open()?;
        let mut kept = Some(Vec::new());
        while let Some(batch) = batches.next().transpose()? {
            if score(&batch, batches.bytes_read())?.is_break() {
                return Ok((ControlFlow::Break(()), Some(batches)));
            }
            kept = kept.filter(|_| stays(&batch));
            if let Some(kept) = &mut kept {
                kept.push(batch);
            }
        }
        self.batches = kept.unwrap_or_default();
        Ok((ControlFlow::Continue(()), Some(batches)))
    }
}
