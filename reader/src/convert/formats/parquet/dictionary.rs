//! Columns of strings that are all in a dictionary. The decoder would make an object of each string; it is given the
//! numbers of the dictionary's entries in their place, as a column of integers.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parquet::basic::{Encoding, Repetition, Type as PhysicalType};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::{ColumnDescriptor, Type};

/// The entries of a column's dictionary, once its page is read.
pub(super) type Entries = Arc<OnceLock<Arc<Vec<Bytes>>>>;

/// Returns whether all values of a column of strings are in its dictionary, as far as the footer states that.
pub(super) fn has_all(column: &ColumnChunkMetaData) -> bool {
    let is_dictionary = |encoding| matches!(encoding, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
    let all = match (column.page_encoding_stats_mask(), column.page_encoding_stats()) {
        (Some(mask), _) => mask.is_only(Encoding::RLE_DICTIONARY) || mask.is_only(Encoding::PLAIN_DICTIONARY),
        (None, Some(stats)) => {
            let mut data =
                stats.iter().filter(|stats| stats.page_type != parquet::basic::PageType::DICTIONARY_PAGE);
            data.all(|stats| is_dictionary(stats.encoding))
        }
        (None, None) => false,
    };
    column.column_type() == PhysicalType::BYTE_ARRAY && column.dictionary_page_offset().is_some() && all
}

/// Returns a reader of the numbers of the entries, which are in `entries` after the first value is read.
pub(super) fn numbers(
    column: &ColumnChunkMetaData,
    pages: Box<dyn PageReader>,
    entries: &Entries,
) -> Result<ColumnReader, ParquetError> {
    let strings = column.column_descr();
    let integers = Type::primitive_type_builder(strings.name(), PhysicalType::INT32)
        .with_repetition(Repetition::REQUIRED)
        .build()?;
    let path = strings.path().clone();
    let integers =
        ColumnDescriptor::new(Arc::new(integers), strings.max_def_level(), strings.max_rep_level(), path);
    let pages = Numbered { pages, entries: Arc::clone(entries) };
    Ok(get_column_reader(Arc::new(integers), Box::new(pages)))
}

/// Pages of a column, with a dictionary of the numbers of its entries.
struct Numbered {
    pages: Box<dyn PageReader>,
    entries: Entries,
}

impl PageReader for Numbered {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let Some(mut page) = self.pages.get_next_page()? else { return Ok(None) };
        match &mut page {
            Page::DictionaryPage { buf, num_values, .. } => {
                let entries = split(buf, *num_values)?;
                *buf = (0..*num_values).flat_map(u32::to_le_bytes).collect();
                self.entries
                    .set(Arc::new(entries))
                    .map_err(|_| ParquetError::General("a column has two dictionaries".into()))?;
            }
            Page::DataPage { encoding, .. } | Page::DataPageV2 { encoding, .. } => {
                if !matches!(encoding, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY) {
                    let what = "a page has values that are not in the dictionary, against the footer";
                    return Err(ParquetError::General(what.into()));
                }
            }
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for Numbered {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Returns the strings of a page, each of which is after its length.
fn split(page: &Bytes, count: u32) -> Result<Vec<Bytes>, ParquetError> {
    let mut at = 0;
    let mut next = || {
        let length = page.get(at..at + 4)?;
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        let string = at + 4..at.checked_add(4 + length)?;
        at = string.end;
        (at <= page.len()).then(|| page.slice(string))
    };
    let short = || ParquetError::EOF("a dictionary has fewer strings than its page states".into());
    (0..count).map(|_| next().ok_or_else(short)).collect()
}
