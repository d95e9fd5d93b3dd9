//! Malformed Parquet gives an error or a result, never a panic, with proportionate memory; `tests/corpus.rs` does the
//! same for all other readers.

#![allow(clippy::unwrap_used, reason = "the setup of a test may panic")]

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use hostile::{alone, read_variants};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rankine_reader::convert::{BadLimit, ConvertOptions, OnBad, SchemaFile, convert_parquet};

#[path = "../../tests/support/hostile.rs"]
mod hostile;

const SCHEMA: &str = "\
label = { column = \"label\" }
dense = [{ column = \"price\" }]
categorical = [{ column = \"user\" }, { column = \"seen\", vocabulary = { kind = \"hash\", rows = 9 } }]
";

fn write(path: &Path, compression: Compression) {
    let message = "message rows {
        required int32 label; optional double price; required byte_array user (UTF8); repeated int32 seen; }";
    let message = Arc::new(parse_message_type(message).unwrap());
    let properties =
        WriterProperties::builder().set_compression(compression).set_data_page_row_count_limit(100);
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, message, Arc::new(properties.build())).unwrap();
    for _ in 0..2 {
        let mut group = writer.next_row_group().unwrap();
        let labels: Vec<i32> = (0..300).map(|row| row % 2).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&labels, None, None).unwrap();
        column.close().unwrap();
        let defined: Vec<i16> = (0..300).map(|row| i16::from(row % 3 > 0)).collect();
        let prices: Vec<f64> = (0..200).map(|row| f64::from(row) / 4.0).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&prices, Some(&defined), None).unwrap();
        column.close().unwrap();
        let users: Vec<_> =
            (0..300).map(|row| ByteArray::from(format!("user {}", row % 17).into_bytes())).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&users, None, None).unwrap();
        column.close().unwrap();
        let repeated: Vec<i16> = (0..600).map(|value| value % 2).collect();
        let seen: Vec<i32> = (0..600).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&seen, Some(&[1; 600]), Some(&repeated)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn parquet_files() {
    let _alone = alone();
    let temp = tempfile::tempdir().unwrap();
    let (path, out) = (temp.path().join("rows.parquet"), temp.path().join("out"));
    let schema = SchemaFile::parse("schema.toml", SCHEMA).unwrap();
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(Default::default())]
    {
        write(&path, compression);
        read_variants("parquet", &path, false, || {
            let options = ConvertOptions {
                on_bad: OnBad::Skip,
                bad_limit: BadLimit::Percent(100.0),
                threads: NonZeroUsize::MIN,
                ..ConvertOptions::new(vec![path.clone()], out.clone())
            };
            let outcome = convert_parquet(&options, &schema, 1, &|_: &'static str, _: u64, _: u64| ());
            let _ = std::fs::remove_dir_all(&out);
            outcome.map(drop).map_err(|error| error.to_string())
        });
    }
}
