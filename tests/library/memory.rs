//! The memory of a step and an evaluation on the CPU, compared with what is counted before anything is allocated,
//! and that of samples between evaluations.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::path::Path;

use rankine::job::Job;
use rankine_backend::{ResidentPart, score_on_cpu};
use rankine_engine::training::translate;
use rankine_engine_cpu::{CpuModel, step_bytes};
use rankine_model::evaluation::JudgedHead;
use rankine_reader::stream::{BatchStream, StreamOptions};
use rankine_reader::{Dataset, Part};

use crate::ranker::allocated_bytes;
use crate::support::{Place, SHAPE, generate, job};

/// Most of the memory of a step on this many columns is activations and interactions.
const COLUMNS: usize = 150;
const BATCH: usize = 128;

#[test]
fn a_step_and_an_evaluation_allocate_what_is_counted() {
    let place = Place::new();
    let shape = format!("name = \"wide\"\ndense = 4\nrows = {:?}\n", [3; COLUMNS]);
    let data = Dataset::open(Path::new(&generate(&place, &shape, BATCH as u64, 0))).unwrap();
    let stream = BatchStream::open(data.part(Part::Train).unwrap(), &StreamOptions::one_epoch(BATCH));
    let batch = stream.unwrap().next().unwrap().unwrap();
    job(&place);
    // This thread is the pool's only one, so it allocates all buffers.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().unwrap();
    for kind in [
        "kind = 'dlrm', bottom_mlp = [16, 4]",
        "kind = 'dcnv2', bottom_mlp = [16, 4], cross_layers = 3",
        "kind = 'dcnv2', bottom_mlp = [16, 4], cross_layers = 3, cross_rank = 50",
        "kind = 'deepfm', bottom_mlp = [16, 4]",
        "kind = 'wide-deep'",
    ] {
        let set = format!("model={{ embedding_dim = 4, top_mlp = [500, 16], {kind} }}");
        let job = Job::load(&place.path("job.toml"), &[set]).unwrap();
        let model = translate(&job, data.schema()).unwrap();
        let mut on_cpu = CpuModel::initialized(&model, 1);
        let mut logits = Vec::with_capacity(BATCH);
        let before = allocated_bytes();
        pool.install(|| {
            on_cpu.train_step(&batch.samples, 1.0).unwrap();
            on_cpu.logits(&batch.samples, &mut logits);
        });
        let allocated = (allocated_bytes() - before) as f64;
        let counted = step_bytes(&model.spec, BATCH, BATCH, 1) as f64;
        // The routes of rows to their updates are not counted.
        assert!((0.99..1.3).contains(&(allocated / counted)), "{kind}: {allocated} of {counted}");
    }
}

#[test]
fn a_part_stays_resident_if_its_samples_fit() {
    let place = Place::new();
    let data = Dataset::open(Path::new(&generate(&place, SHAPE, 10, 300))).unwrap();
    let model = translate(&Job::load(Path::new(&job(&place)), &[""; 0]).unwrap(), data.schema()).unwrap();
    let mut on_cpu = CpuModel::initialized(&model, 1);
    let stream = StreamOptions::one_epoch(128);
    let eval = || data.part(Part::Eval).unwrap();
    let batches = BatchStream::open(eval(), &stream).unwrap();
    let bytes = batches.map(|batch| batch.unwrap().samples.bytes()).sum();
    let mut resident = ResidentPart::default();
    let heads = JudgedHead::of_heads_uncorrected(&model.spec.heads);
    // The bytes read by an evaluation, and its result.
    let mut judge = |limit, part, stream: &StreamOptions| {
        let mut read = 0;
        let scored =
            score_on_cpu(&mut on_cpu, &mut resident, limit, (part, &heads), stream, &mut |progress| {
                read = progress.bytes_read;
                Ok(())
            });
        (read > 0, scored.unwrap().metrics().unwrap().unwrap()[0].clone())
    };
    let (read, expected) = judge(bytes - 1, eval(), &stream);
    assert!(read);
    for (limit, reads) in [(bytes, true), (bytes, false), (0, false)] {
        assert_eq!(judge(limit, eval(), &stream), (reads, expected.clone()), "{limit}");
    }
    // Batches of another size, or of another part, are not those.
    assert!(judge(bytes, eval(), &StreamOptions::one_epoch(64)).0);
    assert!(judge(bytes, data.part(Part::Train).unwrap(), &StreamOptions::one_epoch(64)).0);
    assert!(judge(bytes, eval(), &stream).0);
}
