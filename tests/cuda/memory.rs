//! The purposes of a GPU's memory, and estimates of it.

use half::bf16;
use rankine::job::Precision;
use rankine_cuda::{Buffer, Error, Part};
use rankine_model::Interaction;

use super::training::Training;
use super::{Bench, Body, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("measured_memory_is_the_memory_used", 2, measured_memory_is_the_memory_used),
    ("a_model_that_does_not_fit_is_refused_before_allocation", 1, a_model_that_does_not_fit_is_refused),
    ("large_pieces_are_whole_pages", 1, large_pieces_are_whole_pages),
];

fn bytes_of(parts: &[Part], purpose: &str) -> u64 {
    parts.iter().filter(|part| part.purpose == purpose).map(|part| part.bytes).sum()
}

fn measured_memory_is_the_memory_used(bench: &Bench, words: &mut Words) -> Outcome {
    let training = Training::random(words, Interaction::Dot, 3);
    let measured = bench.device.measure(|| training.on_gpu(bench, Precision::Bf16))?;
    let before = bench.device.budget()?;
    if !before.parts.is_empty() {
        return Err(format!("measuring left {before}").into());
    }
    let mut model = training.on_gpu(bench, Precision::Bf16)?;
    let taken = bench.device.budget()?;
    for Part { purpose, bytes } in &taken.parts {
        let expected = bytes_of(&measured.parts, purpose);
        // These models are too small for whole pages.
        if *bytes != expected {
            return Err(format!("{purpose}: {bytes} bytes, but {expected} were measured").into());
        }
    }
    // The measurement did not disturb the model created after it.
    let losses = training.losses_on_gpu(&mut model)?;
    let (_, expected) = training.on_cpu();
    if losses.len() != expected.len() || losses.iter().any(|loss| !loss.is_finite()) {
        return Err(format!("the losses are {losses:?}, but those of the CPU are {expected:?}").into());
    }
    drop(model);
    let after = bench.device.budget()?;
    if after.bytes() != 0 { Err(format!("{after} are left").into()) } else { Ok(()) }
}

fn a_model_that_does_not_fit_is_refused(bench: &Bench, _: &mut Words) -> Outcome {
    let total = bench.device.budget()?.total_bytes;
    let make = || {
        let small = Buffer::<u32>::filled(&bench.device, 1000, 0)?;
        let _tables = bench.device.purpose("tables");
        let tables = Buffer::<f32>::uninitialized(&bench.device, total as usize / 4 + 1)?;
        Ok::<_, Error>((small, tables))
    };
    let (measured, made) = (bench.device.measure(make).map(drop), make().map(drop));
    for refused in [measured, made] {
        let Err(Error::OutOfMemory { needed }) = &refused else {
            return Err(format!("{refused:?} for more memory than the GPU has").into());
        };
        if needed.parts[0].purpose != "tables" || bytes_of(&needed.parts, "other") != 4000 {
            return Err(format!("the parts are {:?}", needed.parts).into());
        }
    }
    let left = bench.device.budget()?.bytes();
    if left == 0 { Ok(()) } else { Err(format!("{left} bytes are left").into()) }
}

fn large_pieces_are_whole_pages(bench: &Bench, words: &mut Words) -> Outcome {
    let elements = words.numbers::<bf16>((24 << 20) + 5);
    let buffer = bench.buffer(&elements)?;
    if buffer.bytes() % (2 << 20) != 0 || buffer.read(&bench.lane)? != elements {
        return Err(format!("a buffer of {} bytes has lost its contents", buffer.bytes()).into());
    }
    let taken = bench.device.budget()?.bytes();
    if taken != buffer.bytes() as u64 { Err(format!("{taken} bytes are entered").into()) } else { Ok(()) }
}
