//! Copies of datasets, for tests that compare what is learned from both.

use std::path::Path;

use rankine_base::publish::PartialDir;
use rankine_reader::write::DatasetWriter;
use rankine_reader::{BatchStream, Dataset, Part, Samples, StreamOptions};

/// Copies the samples of a dataset that its parts have, such as those that a validation set leaves to train on, with a
/// change.
pub(crate) fn copy(from: &Dataset, to: &Path, change: impl Fn(Part, &mut Samples)) -> Dataset {
    let dir = PartialDir::create(to).expect("a folder can be made");
    let manifest = from.manifest().expect("a folder has a manifest");
    let writer = DatasetWriter::new(&dir, from.schema().clone(), manifest.block_samples);
    let mut writer = writer.expect("the schema is valid");
    for part in Part::STORED {
        let part_of = from.part(part).expect("the dataset has both parts");
        for batch in BatchStream::open(part_of, &StreamOptions::one_epoch(100)).expect("blocks can be read") {
            let mut samples = batch.expect("blocks are intact").samples.clone();
            change(part, &mut samples);
            writer.push(part, &samples).expect("there is room");
        }
    }
    writer.finish(manifest.origin.clone()).expect("there is room");
    dir.publish().expect("the folder is new");
    Dataset::open(to).expect("it was just written")
}

/// Flips the first label of the samples of the evaluation part.
pub(crate) fn flip_eval_labels(part: Part, samples: &mut Samples) {
    if part == Part::Eval {
        samples.labels[0].iter_mut().for_each(|label| *label = 1.0 - *label);
    }
}
