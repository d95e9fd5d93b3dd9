//! What identifies the samples that were trained on.

use rankine_base::Result;
use rankine_base::sealed::Checksum;
use rankine_reader::dataset::{BlockCoding, DatasetPart, Manifest as DatasetManifest};
use rankine_reader::{Columns, Dataset, Part};
use xxhash_rust::xxh3::Xxh3;

use super::manifest::DataIdentity;

impl DataIdentity {
    /// What identifies a part of a dataset, except for the contents of raw files.
    ///
    /// # Errors
    /// [`rankine_base::Error::Unsuitable`] if there is no such part.
    pub fn of(dataset: &Dataset, part: Part) -> Result<Self> {
        let part = dataset.stored_part(part)?;
        Ok(Self {
            samples: part.samples,
            block_samples: part.block_samples,
            blocks: Self::blocks_of(&part),
            ..Self::of_pushed(dataset)
        })
    }

    /// A checksum of the checksums of all blocks of a part; for raw files, of the record count of each.
    pub fn blocks_of(part: &DatasetPart) -> Checksum {
        let mut blocks = Xxh3::new();
        for block in &part.blocks {
            blocks.update(&block.bytes.to_le_bytes());
            blocks.update(&block.samples.to_le_bytes());
            if let BlockCoding::Packed { .. } = part.coding {
                blocks.update(&block.checksum.to_le_bytes());
            }
        }
        Checksum(blocks.digest())
    }

    /// What identifies samples that a program pushes: their columns alone.
    pub fn of_pushed(dataset: &Dataset) -> Self {
        let Columns { schema, vocabularies, .. } = Columns::of(dataset);
        Self {
            samples: 0,
            block_samples: 0,
            schema: Checksum(DatasetManifest::tag(&schema)),
            blocks: Checksum(0),
            vocabularies,
            raw: Vec::new(),
        }
    }

    fn is_pushed(&self) -> bool {
        self.samples == 0
    }

    /// Returns whether columns, vocabularies and the training part are those of a dataset, as far as that can be
    /// determined without reading raw files. Pushed samples have only columns and vocabularies.
    ///
    /// # Errors
    /// As [`DataIdentity::of`].
    pub fn is_of(&self, dataset: &Dataset) -> Result<bool> {
        let own = if self.is_pushed() { Self::of_pushed(dataset) } else { Self::of(dataset, Part::Train)? };
        Ok(self.difference(&own).is_none())
    }

    /// How a part differs from this one, which was read before, after "the part". Contents of raw files are not
    /// compared.
    pub fn difference(&self, own: &Self) -> Option<String> {
        if self.schema != own.schema {
            return Some("has different columns".into());
        }
        if self.vocabularies != own.vocabularies {
            return Some("has different vocabularies, so ids mean different categories".into());
        }
        match (self.is_pushed(), own.is_pushed()) {
            (true, false) => return Some("is read from a dataset, but a program pushed it before".into()),
            (false, true) => {
                return Some("is pushed by a program, but was read from a dataset before".into());
            }
            _ => {}
        }
        if self.samples != own.samples {
            return Some(format!("has {} samples but had {}", own.samples, self.samples));
        }
        let same = (self.block_samples, self.blocks) == (own.block_samples, own.blocks);
        (!same).then(|| "has different samples".into())
    }
}
