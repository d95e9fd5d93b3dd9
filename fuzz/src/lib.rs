//! Every reader of outside bytes, for the fuzzer and for the workspace's tests, which include this file by its path
//! and read the seeds of `corpus` and everything that fuzzing has found.
//!
//! Where checksums would reject a fuzzer's bytes, its input is the data behind them: [`sealed`] computes valid
//! checksums. The memory that reading may take is in [`memory`].

#![allow(clippy::unwrap_used, reason = "the setup of a reader may panic")]
#![allow(unreachable_pub, reason = "in tests this is a module")]
#![allow(unused_imports, unused_macros, reason = "each user of this file uses a part of it")]
#![allow(dead_code, reason = "each user of this file uses a part of it")]

mod block;
mod checkpoint;
mod collection;
mod dataset;
mod delta;
mod fit;
mod frames;
mod mapped;
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
pub use collection::Collection;
pub use dataset::{Dataset, read_dataset, stream_dataset};
pub use delta::Delta;
pub use fit::Fit;
pub use frames::Frames;
pub use mapped::Mapped;
pub use model::{Model, read_model};
pub use place::TempFolder;
pub use rows::{CSV_ROWS, CSV_SCHEMAS, Criteo, Csv, Raw, lenient};
pub use texts::{Job, Machine, Schema, Shape};
pub use vocabulary::Vocabulary;

/// Memory for reading a text or a manifest, in addition to a multiple of its length.
pub const TEXT_BASE_BYTES: usize = 1 << 20;
/// The multiple: values of two bytes, such as `0,`, become trees and lists with spans.
pub const TEXT_FACTOR: usize = 128;
/// The multiple for TOML: every dot of a key may start a table, whose first entry takes a node of 1072 bytes, in
/// addition to the tokens and the lists of them, which double as they grow.
pub const TOML_FACTOR: usize = 2048;

/// A reader of outside bytes, with a folder for its files.
pub trait Reader: Sized {
    /// The name of the fuzz target and of the folder of its corpus.
    const NAME: &'static str;
    /// Bytes of memory that it may take for any input: chunks, blocks and buffers of bounded size.
    const BASE_BYTES: usize = 64 << 20;
    /// Additional bytes of memory for each byte that it reads.
    const FACTOR: usize = 16;

    /// Creates the reader and the other files that it needs.
    fn new(folder: TempFolder) -> Self;

    /// Reads `bytes`; any input must give an error or a result.
    ///
    /// # Errors
    /// A description of what is wrong with the bytes.
    fn read(&self, bytes: &[u8]) -> Result<(), String>;

    /// Returns small valid inputs with their names.
    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)>;
}

/// Runs a reader with no more memory than it may take.
///
/// # Panics
/// If an error message is too short to be useful.
pub fn read_bounded<R: Reader>(reader: &R, bytes: &[u8]) {
    let outcome = memory::with_limit(R::BASE_BYTES + R::FACTOR * bytes.len(), || reader.read(bytes));
    if let Err(message) = outcome {
        assert!(message.len() > 10, "the error message is too short: {message:?}");
    }
}

/// Returns the message of an error.
pub fn error_text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Defines the fuzz target of a reader.
#[macro_export]
macro_rules! target {
    ($reader:ident) => {
        #[global_allocator]
        static ALLOCATOR: $crate::memory::CountingAllocator = $crate::memory::CountingAllocator;

        thread_local! {
            static READER: $crate::$reader =
                <$crate::$reader as $crate::Reader>::new($crate::TempFolder::new());
        }

        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            READER.with(|reader| $crate::read_bounded(reader, bytes));
        });
    };
}
