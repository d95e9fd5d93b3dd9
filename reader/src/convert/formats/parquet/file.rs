//! An open Parquet file, and the decoder's errors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::column::reader::get_column_reader;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use rankine_base::error::{Error, Result};

use super::columns::Leaf;
use super::dictionary::{self, Entries};
use super::object::ParquetInput;
use super::pages::pages;
use super::values::ValueReader;
use crate::convert::rows::value_type::ValueType;
use crate::convert::text::lines::Source;
use crate::convert::text::unchanged::SourceFile;

/// An open file, whose footer was read.
pub(super) struct OpenFile {
    input: Arc<ParquetInput>,
    pub(super) metadata: ParquetMetaData,
}

impl OpenFile {
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] for a file whose footer cannot be read.
    pub(super) fn new(source: &Source) -> Result<Self> {
        let input = match (source.open_file()?, source.object()) {
            (SourceFile::Local(file), _) => ParquetInput::local(file.into_file(), source.bytes),
            (SourceFile::Object(_), object) => {
                let (url, version) = object.expect("an object has a version");
                ParquetInput::object(url, version)
            }
        };
        let metadata = guarded(source, || ParquetMetaDataReader::new().parse_and_finish(&input))?;
        Ok(Self { input: Arc::new(input), metadata })
    }

    /// Returns the number of rows of a row group, and a reader for each of some leaves.
    pub(super) fn row_group(
        &self,
        group: usize,
        leaves: &[Leaf],
    ) -> Result<(usize, Vec<ValueReader>), ParquetError> {
        let group = self.metadata.row_group(group);
        let rows = usize::try_from(group.num_rows())
            .map_err(|_| ParquetError::General("a row group has a negative number of rows".into()))?;
        let reader = |leaf: &Leaf| {
            let column = group.column(leaf.index);
            let pages = pages(&self.input, column, rows)?;
            if leaf.values == ValueType::Text && dictionary::has_all(column) {
                let entries = Entries::default();
                let numbers = dictionary::numbers(column, pages, &entries)?;
                return Ok(ValueReader { column: numbers, entries: Some(entries) });
            }
            let column = get_column_reader(column.column_descr_ptr(), pages);
            Ok(ValueReader { column, entries: None })
        };
        Ok((rows, leaves.iter().map(reader).collect::<Result<_, ParquetError>>()?))
    }
}

/// Runs the Parquet decoder; its errors and panics are reported as damage of the file.
pub(super) fn guarded<T>(source: &Source, work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    let damaged = |what: String| {
        Error::damaged(
            &source.path,
            None,
            format!("it is not a readable Parquet file ({what}): write it again"),
        )
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => {
            outcome.map_err(|error| of_object(error).unwrap_or_else(|error| damaged(error.to_string())))
        }
        Err(_) => Err(damaged("the decoder panicked".into())),
    }
}

/// Returns the error of an object that is in an error of the decoder.
fn of_object(error: ParquetError) -> Result<Error, ParquetError> {
    match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(inner) => inner.downcast::<Error>().map_err(|inner| ParquetError::External(Box::new(inner))),
            Err(inner) => Err(ParquetError::External(inner)),
        },
        error => Err(error),
    }
}
