//! Reads raw rows on one thread in chunks of any length: for fuzz targets, since otherwise only files of megabytes
//! would cross chunk boundaries.

use std::num::NonZeroUsize;
use std::path::Path;

use rankine_base::error::{Error, Result};

use crate::convert::predict::{RawInput, SourceTask, with_source};
use crate::convert::rows::selection::Selection;
use crate::convert::rows::source::{PartRows, RequiredColumns, RowSource};
use crate::convert::text::lines::{Limits, Source};
use crate::ids::IdRules;
use crate::origin::RowFormat;
use crate::schema::Schema;

/// Reads the raw rows of a file twice, as in conversion and as in prediction, and copies and names all bad ones.
/// Returns the number of good rows.
///
/// # Errors
/// As [`crate::convert::RawReader::read`].
///
/// # Panics
/// If `chunk_bytes`, the length of a chunk, is less than 2.
pub fn rehearse(file: &Path, format: &RowFormat, schema: &Schema, chunk_bytes: usize) -> Result<usize> {
    assert!(chunk_bytes > 1, "a chunk must be longer than a line, and a line must not be empty");
    let limits = Limits { chunk_bytes, line_bytes_max: chunk_bytes / 2, readers: NonZeroUsize::MIN };
    let mut good = 0;
    for needed in [RequiredColumns::All, RequiredColumns::Features] {
        let ids = &IdRules::default();
        let files = vec![Source::new(file, true)?];
        let input = RawInput {
            files,
            format,
            schema,
            needed,
            keep: &[],
            limits,
            ids,
            threads: NonZeroUsize::MIN,
            hint: "",
        };
        with_source(input, SingleThreadedRead { schema, good: &mut good })?;
    }
    Ok(good)
}

/// Reads rows on this thread.
struct SingleThreadedRead<'a> {
    schema: &'a Schema,
    good: &'a mut usize,
}

impl SourceTask for SingleThreadedRead<'_> {
    type Output = ();
    type Error = Error;

    fn run<S: RowSource>(self, source: S) -> Result<()> {
        let (mut rows, mut copies) = (PartRows::new(self.schema), Vec::new());
        let mut continues = false;
        for chunk in source.chunks() {
            let chunk = chunk?;
            rows.clear();
            copies.clear();
            let bad = source.read(&chunk, Selection::EVAL, &mut rows)?;
            if continues {
                continues = source.copy_rest(&chunk, &mut copies);
            }
            for row in &bad {
                continues = source.copy(&chunk, row, &mut copies);
                assert!(!source.name(&chunk, row).to_string().is_empty(), "a bad row has a name");
            }
            let span = source.span(&chunk);
            assert_eq!(rows.eval.len() + bad.len(), span.rows as usize, "each row is good or bad");
            *self.good += rows.eval.len();
        }
        Ok(())
    }
}
