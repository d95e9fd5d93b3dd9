//! The decoder alone.

use std::env;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parquet::data_type::{ByteArrayType, Int64Type};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rankine_base::error::Error;

use super::columns::{Leaf, value_type};
use super::decode::{Decoder, FileColumns};
use super::file::OpenFile;
use crate::convert::rows::tables::{TableColumn, TableRows, TableValues, Tables};
use crate::convert::tests::speed::processor_seconds;
use crate::convert::text::lines::Source;

/// Returns a file with all of its columns.
fn all_columns(path: &Path) -> FileColumns {
    let source = Source::new(path, false).unwrap();
    let file = OpenFile::new(&source).unwrap();
    let columns = file.metadata.file_metadata().schema_descr().columns().iter().enumerate();
    let leaves =
        columns.map(|(index, leaf)| Leaf::new(index, leaf.name(), leaf, value_type(leaf).unwrap())).collect();
    FileColumns { source: Arc::new(source), leaves }
}

/// Writes row groups of these sizes, whose rows have their number in the file and its text.
fn write(path: &Path, groups: &[usize]) {
    write_with(path, groups, WriterProperties::builder());
}

fn write_with(path: &Path, groups: &[usize], properties: WriterPropertiesBuilder) {
    let message = "message rows { required int64 number; required byte_array text (UTF8); }";
    let message = Arc::new(parse_message_type(message).unwrap());
    let properties = Arc::new(properties.set_data_page_row_count_limit(1000).build());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, message, properties).unwrap();
    let mut first = 0;
    for rows in groups {
        let numbers: Vec<i64> = (first..first + *rows as i64).collect();
        let texts: Vec<_> = numbers.iter().map(|number| number.to_string().into_bytes().into()).collect();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&numbers, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&texts, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        first += *rows as i64;
    }
    writer.close().unwrap();
}

/// Tables give the same rows as a file, until some do not fit the columns.
#[test]
fn tables_are_read_like_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows");
    write(&path, &[5]);
    let FileColumns { leaves, .. } = all_columns(&path);
    let columns = OpenFile::new(&Source::new(&path, false).unwrap()).unwrap();
    let columns = columns.metadata.file_metadata().schema_descr_ptr();
    let column =
        |values, ends: &[u32]| TableColumn { values, ends: Some(ends.to_vec()), with_nulls: Vec::new() };
    let rows = |first: i64, texts: TableColumn| {
        let numbers = TableColumn {
            values: TableValues::Int64(vec![first, first + 1]),
            ends: None,
            with_nulls: Vec::new(),
        };
        Ok(TableRows { rows: 2, columns: vec![numbers, texts] })
    };
    let texts =
        |bytes: &[u8], ends: &[usize]| TableValues::Texts { bytes: bytes.to_vec(), ends: ends.to_vec() };
    let read = |last: TableColumn| {
        let all = [rows(0, column(texts(b"01", &[1, 2]), &[1, 2])), rows(2, last)];
        let tables = Tables::new(Arc::clone(&columns), all.into_iter());
        let read: Vec<_> = tables.read(leaves.clone()).collect();
        let again = tables.read(leaves.clone()).map(|rows| rows.unwrap_err().to_string()).collect::<Vec<_>>();
        assert_eq!(again, ["tables in memory: rows that are in no file can be read once"]);
        read
    };
    let mut found = Vec::new();
    for rows in read(column(texts(b"two", &[3]), &[0, 1])) {
        let rows = rows.unwrap();
        assert_eq!(rows.file_row as usize, found.len());
        for row in 0..rows.rows {
            let text = |column: usize| {
                rows.columns[column]
                    .with_text_of(row, &mut Vec::new(), |text| String::from_utf8_lossy(text).into())
            };
            found.push((0..2).map(text).collect::<Vec<String>>().join("-"));
        }
    }
    // The third text is null.
    assert_eq!(found, ["0-0", "1-1", "2-", "3-two"]);
    for wrong in [
        column(texts(b"two", &[3]), &[1, 0]),
        column(texts(b"two", &[3]), &[1]),
        column(texts(b"two", &[3]), &[1, 2]),
        column(texts(b"twothree", &[3, 8]), &[0, 2]),
    ] {
        let refused = read(wrong).pop().unwrap().unwrap_err().to_string();
        assert_eq!(refused, "tables in memory: column text has rows that do not add up");
    }
    let one = Ok(TableRows { rows: 0, columns: Vec::new() });
    let refused = Tables::new(columns, std::iter::once(one)).read(leaves).next().unwrap().unwrap_err();
    assert_eq!(refused.to_string(), "tables in memory: 0 columns; expected 2");
}

#[test]
fn rows_arrive_in_order_with_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let files = [vec![1, 4096, 0, 9000, 4097], vec![], vec![0], vec![70; 60], vec![20_000]];
    let paths: Vec<_> = (0..files.len()).map(|file| dir.path().join(file.to_string())).collect();
    paths.iter().zip(&files).for_each(|(path, groups)| write(path, groups));
    for threads in [1, 2, 7] {
        let columns = paths.iter().map(|path| all_columns(path)).collect();
        let mut found = vec![0; files.len()];
        let mut last = 0;
        for decoded in Decoder::new(columns, NonZeroUsize::new(threads).unwrap()) {
            let decoded = decoded.unwrap();
            assert!(decoded.file >= last && (1..=4096).contains(&decoded.rows));
            last = decoded.file;
            assert_eq!(decoded.file_row, found[last]);
            for row in 0..decoded.rows {
                let text = found[last].to_string();
                for column in &decoded.columns {
                    column.with_text_of(row, &mut Vec::new(), |value| assert_eq!(value, text.as_bytes()));
                }
                found[last] += 1;
            }
        }
        let expected: Vec<_> = files.iter().map(|groups| groups.iter().sum::<usize>() as u64).collect();
        assert_eq!(found, expected, "{threads} threads");
    }
}

/// Strings are read as numbers of a dictionary's entries if it has all of them.
#[test]
fn strings_in_and_beside_a_dictionary_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows");
    let properties = WriterProperties::builder;
    for (properties, all_in_dictionary) in [
        (properties(), true),
        (properties().set_dictionary_enabled(false), false),
        // The first pages have numbers, and later ones strings.
        (properties().set_dictionary_page_size_limit(8000).set_write_batch_size(100), false),
    ] {
        write_with(&path, &[5000, 1], properties);
        let mut found = [0_u64, 0];
        for decoded in Decoder::new(vec![all_columns(&path)], NonZeroUsize::MIN) {
            let decoded = decoded.unwrap();
            let texts = &decoded.columns[1];
            let group = usize::from(decoded.file_row >= 5000);
            if group == 0 {
                assert_eq!(format!("{texts:?}").contains("Numbers("), all_in_dictionary);
            }
            for row in 0..decoded.rows {
                let text = (decoded.file_row + row as u64).to_string();
                texts.with_text_of(row, &mut Vec::new(), |found| assert_eq!(found, text.as_bytes()));
                found[group] += 1;
            }
        }
        assert_eq!(found, [5000, 1]);
    }
}

#[test]
fn threads_decode_a_limited_number_of_chunks_ahead() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows");
    write(&path, &[10; 50]);
    let mut decoder = Decoder::new(vec![all_columns(&path)], NonZeroUsize::new(3).unwrap());
    for returned in 1..=5 {
        decoder.next().unwrap().unwrap();
        // Two columns of four chunks per thread.
        let start = Instant::now();
        while decoder.values_ahead() < 2 * 12 {
            assert!(start.elapsed() < Duration::from_secs(60), "threads do not use their limit");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(decoder.values_ahead(), 2 * 12, "{returned} chunks were returned");
    }
}

#[test]
fn rows_before_an_error_arrive_and_none_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows");
    write(&path, &[5000, 5000, 5000]);
    let (source, mut bytes) = (Source::new(&path, false).unwrap(), fs::read(&path).unwrap());
    let file = OpenFile::new(&source).unwrap();
    let page = file.metadata.row_group(1).column(0).byte_range().0 as usize;
    bytes[page..page + 20].fill(0xff);
    fs::write(&path, bytes).unwrap();
    for threads in [1, 2, 7] {
        let mut decoder = Decoder::new(vec![all_columns(&path)], NonZeroUsize::new(threads).unwrap());
        let rows: Vec<_> = decoder.by_ref().map_while(Result::ok).map(|decoded| decoded.rows).collect();
        assert_eq!(rows, [4096, 904], "{threads} threads");
        assert!(decoder.next().is_none());
        let error = Decoder::new(vec![all_columns(&path)], NonZeroUsize::MIN).find_map(Result::err);
        assert!(matches!(error, Some(Error::Damaged { .. })), "{error:?}");
    }
}

/// Measures how fast all columns of the file `RANKINE_SPEED_PARQUET` are decoded, on `RANKINE_SPEED_THREADS` threads;
/// `benchmarks/parquet.py` compares it with PyArrow.
#[test]
#[ignore = "needs a file"]
fn speed_of_parquet() {
    let file = env::var("RANKINE_SPEED_PARQUET").unwrap();
    let threads = env::var("RANKINE_SPEED_THREADS").map_or(1, |text| text.parse().unwrap());
    let threads = NonZeroUsize::new(threads).unwrap();
    let columns = all_columns(Path::new(&file));
    let (start, processor_start) = (Instant::now(), processor_seconds());
    let mut rows = 0;
    for decoded in Decoder::new(vec![columns], threads) {
        rows += decoded.unwrap().rows;
    }
    let (wall, processor) = (start.elapsed().as_secs_f64(), processor_seconds() - processor_start);
    println!("{{\"rows\": {rows}, \"wall_seconds\": {wall}, \"processor_seconds\": {processor}}}");
}
