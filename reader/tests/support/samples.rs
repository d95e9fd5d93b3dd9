//! What a dataset contains, for unit tests and for tests of the library: both import the reader's types.

use std::fs;

use super::{Block, Dataset, Part, Samples};

/// Returns the samples of a part; none if it is absent.
pub(crate) fn samples_of(dataset: &Dataset, part: Part) -> Samples {
    let mut samples = Samples::new(dataset.schema());
    if dataset.samples(part) == 0 {
        return samples;
    }
    let part = dataset.part(part).unwrap();
    let files: Vec<_> = part.files.iter().map(|path| fs::read(path).unwrap()).collect();
    for (index, location) in part.blocks.iter().enumerate() {
        let bytes = &files[location.file as usize][location.offset as usize..][..location.bytes as usize];
        let block = Block::parse(bytes, dataset.schema()).unwrap();
        part.check_block(index as u64, &block).unwrap();
        block.decode_into(dataset.schema(), &mut samples).unwrap();
    }
    samples
}
