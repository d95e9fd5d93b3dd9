//! Raw rows read on one thread, in chunks as short as one likes: what fuzz targets are given, since what happens at the
//! ends of chunks takes a file of megabytes otherwise.

use std::path::{Path, PathBuf};

use crate::convert::lines::Limits;
use crate::convert::predict::{WithSource, with_source};
use crate::convert::selection::Selection;
use crate::convert::source::{Needed, PartRows, RowSource};
use crate::error::Result;
use crate::ids::IdRules;
use crate::origin::RowFormat;
use crate::schema::Schema;

/// Reads the raw rows of a file twice, as conversion does and as prediction does, and copies and names all bad ones.
/// Returns how many rows are good.
///
/// # Errors
/// As [`super::RawReader::read`].
///
/// # Panics
/// Where `chunk_bytes`, the length of a chunk, is below 2.
pub fn rehearse(file: &Path, format: &RowFormat, schema: &Schema, chunk_bytes: usize) -> Result<usize> {
    assert!(chunk_bytes > 1, "a chunk is longer than a line, and a line than nothing");
    let limits = Limits { chunk_bytes, line_bytes_max: chunk_bytes / 2 };
    let (files, mut good) = ([PathBuf::from(file)], 0);
    for needed in [Needed::All, Needed::Features] {
        with_source(
            &files,
            format,
            schema,
            (needed, limits, &IdRules::default()),
            ReadHere { schema, good: &mut good },
        )?;
    }
    Ok(good)
}

/// Reads rows on this thread.
struct ReadHere<'a> {
    schema: &'a Schema,
    good: &'a mut usize,
}

impl WithSource for ReadHere<'_> {
    fn with<S: RowSource>(self, source: &S) -> Result<()> {
        let (mut rows, mut copies) = (PartRows::new(self.schema), Vec::new());
        let mut goes_on = false;
        for chunk in source.chunks() {
            let chunk = chunk?;
            rows.clear();
            copies.clear();
            let bad = source.read(&chunk, Selection::EVAL, &mut rows)?;
            if goes_on {
                goes_on = source.copy_rest(&chunk, &mut copies);
            }
            for row in &bad {
                goes_on = source.copy(&chunk, row, &mut copies);
                assert!(!source.name(&chunk, row).to_string().is_empty(), "a bad row has a name");
            }
            let span = source.span(&chunk);
            assert_eq!(rows.eval.len() + bad.len(), span.rows as usize, "each row is good or bad");
            *self.good += rows.eval.len();
        }
        Ok(())
    }
}
