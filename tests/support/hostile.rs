//! Hostile variants of valid files. Reading them must neither panic nor allocate memory out of proportion. Tests of
//! several crates include this file by its path.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "../../fuzz/src/memory.rs"]
#[allow(unreachable_pub, reason = "fuzz targets use it from another crate")]
mod memory;

#[global_allocator]
static ALLOCATOR: memory::CountingAllocator = memory::CountingAllocator;

/// Bytes that a reader may allocate for any input: chunks, blocks and buffers of a bounded size.
const BASE_BYTES: usize = 64 << 20;
/// Bytes that a reader may allocate per byte of input, in addition.
const FACTOR: usize = 16;

/// Lets one test run at a time, from its start, because memory is counted for the whole process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads one case. Both a result and an error pass; a panic or too much memory fails.
pub(crate) fn read(reader: &str, case: &str, bytes: usize, work: impl FnOnce() -> Result<(), String>) {
    read_within(reader, case, (BASE_BYTES + FACTOR * bytes, bytes), work);
}

/// Does the same with `limit` bytes of memory for `bytes` of input.
pub(crate) fn read_within(
    reader: &str,
    case: &str,
    (limit, bytes): (usize, usize),
    work: impl FnOnce() -> Result<(), String>,
) {
    let (outcome, most) = memory::with_peak(|| catch_unwind(AssertUnwindSafe(work)));
    match outcome {
        Err(_) => panic!("{reader}, {case}: panic"),
        Ok(Err(message)) => {
            assert!(message.len() > 10, "{reader}, {case}: the error is not helpful: {message:?}")
        }
        Ok(Ok(())) => {}
    }
    assert!(most <= limit, "{reader}, {case}: {most} bytes of memory for {bytes} of input");
}

/// Replaces a file with each of its variants and reads it. The caller holds the guard of [`alone`].
pub(crate) fn read_variants(reader: &str, path: &Path, text: bool, work: impl Fn() -> Result<(), String>) {
    let whole = fs::read(path).expect("the file exists");
    work().unwrap_or_else(|error| panic!("{reader}: the unchanged file cannot be read: {error}"));
    for (case, bytes) in variants(&whole, text) {
        fs::write(path, &bytes).expect("the file is written");
        read(reader, &case, bytes.len().max(whole.len()), &work);
    }
    fs::write(path, &whole).expect("the file is written");
}

/// Returns variants of a file: truncated, with flipped bits, with huge lengths, doubled, and replaced by other content.
pub(crate) fn variants(whole: &[u8], text: bool) -> Vec<(String, Vec<u8>)> {
    let mut state = whole.len() as u64;
    let mut below = move |count: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % count.max(1)
    };
    let mut variants = Vec::new();
    let ends = (0..16).map(|part| whole.len() * part / 16);
    for end in ends.chain((1..6).map(|less| whole.len().saturating_sub(less))) {
        variants.push((format!("truncated at {end}"), whole[..end].to_vec()));
    }
    for _ in 0..48 {
        let (mut bytes, bit) = (whole.to_vec(), below(whole.len() * 8));
        bytes[bit / 8] ^= 1 << (bit % 8);
        variants.push((format!("bit {bit} flipped"), bytes));
    }
    let hostile: [&[u8]; 5] = [&[0xff; 4], &[0xff; 8], &[0xff, 0xff, 0xff, 0x7f], &[0, 0, 0, 0x80], &[0; 8]];
    let early = (0..24).map(|word| word * 4);
    let offsets: Vec<_> = early.chain((0..24).map(|_| below(whole.len()) & !3)).collect();
    for (number, at) in offsets.into_iter().enumerate() {
        let (mut bytes, word) = (whole.to_vec(), hostile[number % hostile.len()]);
        if at + word.len() <= bytes.len() {
            bytes[at..at + word.len()].copy_from_slice(word);
            variants.push((format!("{word:02x?} at {at}"), bytes));
        }
    }
    variants.push(("doubled".into(), whole.repeat(2)));
    for len in [0, 1, 3, 8, 63, 4096, 70_000] {
        variants.push((format!("{len} random bytes"), (0..len).map(|_| below(256) as u8).collect()));
        variants.push((format!("{len} zeros"), vec![0; len]));
    }
    if text {
        let number = |byte: &u8| byte.is_ascii_digit();
        for hostile in ["99999999999999999999999", "-1", "1e999", "nan", "\"\"", "[", "{", "0"] {
            for _ in 0..3 {
                let start = below(whole.len());
                let Some(at) = whole[start..].iter().position(number).map(|at| at + start) else { continue };
                let end = at + whole[at..].iter().take_while(|byte| number(byte)).count();
                let bytes = [&whole[..at], hostile.as_bytes(), &whole[end..]].concat();
                variants.push((format!("{hostile} at {at}"), bytes));
            }
        }
        for deep in ["[", "{\"a\":", "a = [", "[a.", "\"", "(", "'''"] {
            variants.push((format!("20000 times {deep}"), deep.repeat(20_000).into_bytes()));
        }
    }
    // The folder is above the crate of the test, whichever crate that is.
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|root| root.join("tests/corpus"));
    let corpus = corpus.into_iter().find(|corpus| corpus.is_dir()).expect("tests/corpus exists");
    for entry in fs::read_dir(corpus).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        variants.push((path.display().to_string(), fs::read(path).expect("its files can be read")));
    }
    variants
}
