//! The pages of a column, decompressed: Zstandard and brotli here, other codecs by the `parquet` crate, whose
//! Zstandard needs a C compiler.

use std::io::{Cursor, Read};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;

use super::object::ParquetInput;
use crate::convert::text::compressed::zstd_frames;

/// Bytes that brotli reads at a time.
const BUFFER_BYTES: usize = 1 << 14;

/// Pages that are decompressed here.
struct Decompressed {
    /// The pages as if they were not compressed.
    stored: SerializedPageReader<ParquetInput>,
    codec: Codec,
    /// Maximum number of bytes of a page: the column's in its row group.
    bytes_max: u64,
}

#[derive(Debug, Clone, Copy)]
enum Codec {
    Zstd,
    Brotli,
}

/// Returns the pages of a column in a row group of `rows` rows.
pub(super) fn pages(
    input: &Arc<ParquetInput>,
    column: &ColumnChunkMetaData,
    rows: usize,
) -> Result<Box<dyn PageReader>, ParquetError> {
    let codec = match column.compression() {
        Compression::ZSTD(_) => Codec::Zstd,
        Compression::BROTLI(_) => Codec::Brotli,
        _ => return Ok(Box::new(SerializedPageReader::new(Arc::clone(input), column, rows, None)?)),
    };
    // The length of a page has 31 bits.
    let bytes_max = u64::try_from(column.uncompressed_size()).unwrap_or(0).min(i32::MAX as u64);
    let stored = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
    let stored = SerializedPageReader::new(Arc::clone(input), &stored, rows, None)?;
    Ok(Box::new(Decompressed { stored, codec, bytes_max }))
}

impl Decompressed {
    /// Decompresses a page after its first `levels` bytes, which are not compressed.
    fn decompress(&self, stored: &Bytes, levels: usize) -> Result<Bytes, ParquetError> {
        if levels > stored.len() {
            return Err(ParquetError::General("a page has fewer bytes than its levels".into()));
        }
        let (mut page, compressed) = (stored[..levels].to_vec(), Cursor::new(stored.slice(levels..)));
        // A page without values may have no bytes.
        if levels < stored.len() {
            let limit = self.bytes_max + 1;
            match self.codec {
                Codec::Zstd => zstd_frames(compressed).take(limit).read_to_end(&mut page)?,
                Codec::Brotli => brotli_decompressor::Decompressor::new(compressed, BUFFER_BYTES)
                    .take(limit)
                    .read_to_end(&mut page)?,
            };
        }
        if page.len() as u64 > self.bytes_max {
            return Err(ParquetError::General("a page has more bytes than its column".into()));
        }
        Ok(page.into())
    }
}

impl PageReader for Decompressed {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let Some(mut page) = self.stored.get_next_page()? else { return Ok(None) };
        match &mut page {
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, is_compressed, .. } => {
                if *is_compressed {
                    *buf =
                        self.decompress(buf, *def_levels_byte_len as usize + *rep_levels_byte_len as usize)?;
                }
            }
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => {
                *buf = self.decompress(buf, 0)?
            }
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.stored.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.stored.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.stored.at_record_boundary()
    }
}

impl Iterator for Decompressed {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
