//! Every reader of outside bytes as something that takes bytes: for the fuzzer, and for the tests of the workspace,
//! which include this file by its path and read the seeds of `corpus` and all that fuzzing has found.
//!
//! Where checksums would keep a fuzzer at the door, its bytes are what lies behind them: [`sealed`] makes the checksums
//! right again. What reading may take of memory is in [`memory`].

#![allow(clippy::unwrap_used, reason = "what prepares a reader may end it")]
#![allow(unreachable_pub, reason = "in tests it is a module")]
#![allow(unused_imports, unused_macros, reason = "each who includes this takes what it needs")]
#![allow(dead_code, reason = "each who includes this takes what it needs")]

mod block;
mod checkpoint;
mod dataset;
mod frames;
pub mod memory;
mod model;
mod place;
mod rows;
mod sealed;
mod sections;
mod texts;
mod vocabulary;

pub use block::Block;
pub use checkpoint::{Checkpoint, read_checkpoint};
pub use dataset::{Dataset, read_dataset, stream_dataset};
pub use frames::Frames;
pub use model::{Model, read_model};
pub use place::Place;
pub use rows::{CSV_SCHEMAS, Criteo, Csv, Raw, lenient};
pub use texts::{Job, Machine, Schema, Shape};
pub use vocabulary::Vocabulary;

/// What reading a text, or a manifest, may take beside a multiple of its length.
pub const TEXT_BASE_BYTES: usize = 1 << 20;
/// The multiple: values of two bytes, such as `0,`, become trees and lists with places in the text.
pub const TEXT_FACTOR: usize = 128;
/// The multiple in TOML: every dot of a key may begin a table, whose first entry takes a node of 1072 bytes, beside the
/// tokens and the lists of them, which double as they grow.
pub const TOML_FACTOR: usize = 2048;

/// A reader of outside bytes, with the place where it keeps files.
pub trait Reader: Sized {
    /// Its name: that of the fuzz target, and of the folder of its corpus.
    const NAME: &'static str;
    /// Bytes of memory that it may take whatever it reads: chunks, blocks and buffers of a bounded size.
    const BASE_BYTES: usize = 64 << 20;
    /// And so many for each byte that it reads.
    const FACTOR: usize = 16;

    /// Makes what it needs beside the bytes.
    fn new(place: Place) -> Self;

    /// Reads; any bytes lead to an error or to a result.
    ///
    /// # Errors
    /// What is wrong with the bytes, in words.
    fn read(&self, bytes: &[u8]) -> Result<(), String>;

    /// Small inputs that are whole, with their names.
    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)>;
}

/// Lets a reader read where there is no more memory than it may take.
///
/// # Panics
/// Where an error says nothing.
pub fn judge<R: Reader>(reader: &R, bytes: &[u8]) {
    let outcome = memory::within(R::BASE_BYTES + R::FACTOR * bytes.len(), || reader.read(bytes));
    if let Err(message) = outcome {
        assert!(message.len() > 10, "the error says nothing: {message:?}");
    }
}

/// Words of an error.
pub fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Makes a fuzz target of a reader.
#[macro_export]
macro_rules! target {
    ($reader:ident) => {
        #[global_allocator]
        static ALLOCATOR: $crate::memory::Counting = $crate::memory::Counting;

        thread_local! {
            static READER: $crate::$reader =
                <$crate::$reader as $crate::Reader>::new($crate::Place::new());
        }

        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            READER.with(|reader| $crate::judge(reader, bytes));
        });
    };
}
