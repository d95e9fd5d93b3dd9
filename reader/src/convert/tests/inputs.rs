//! Inputs that are changed while they are read: never is a mixture of two files converted or predicted.
//!
//! Reports of progress come from within a pass, so each test changes its file at a known moment.

use std::fs::{self, File};
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use crate::convert::tests::{SMALL, TestFolder, convert_criteo_within, convert_csv_within, good_lines, text};
use crate::convert::*;
use crate::dataset::Dataset;
use crate::generate::Shape;
use crate::raw::RawFormat;

/// What is done to a file.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// It is written again.
    Written,
    /// Another file is renamed to its name.
    Replaced,
    Removed,
}

impl Change {
    const ALL: [Self; 3] = [Self::Written, Self::Replaced, Self::Removed];

    fn make(self, path: &Path, new: &[u8]) {
        match self {
            Self::Written => fs::write(path, new).unwrap(),
            Self::Replaced => {
                let beside = path.with_extension("new");
                fs::write(&beside, new).unwrap();
                fs::rename(beside, path).unwrap();
            }
            Self::Removed => fs::remove_file(path).unwrap(),
        }
    }

    #[track_caller]
    fn assert_named(self, path: &Path, error: &Error) {
        let what = match self {
            Self::Written => "changed (its length or times differ)",
            Self::Replaced => "replaced by another file",
            Self::Removed => "removed",
        };
        let words = format!("{} was {what} while it was read", path.display());
        assert!(matches!(error, Error::Changed { path: Some(_), .. }), "{error:?}");
        assert!(error.to_string().starts_with(&words), "{self:?}: {error}");
    }
}

/// Writes a file that is old, so that a write now changes its times however slowly the clock advances.
fn old_file(temp: &TestFolder, name: &str, bytes: &[u8]) -> PathBuf {
    let path = temp.file(name, bytes);
    File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    path
}

/// Converts `old` once for each way to change it into `new`, in each pass, at its first and at its last report.
fn changes_are_refused(
    [old, new]: [&[u8]; 2],
    split: Split,
    passes: &[&str],
    convert: impl Fn(&ConvertOptions, &dyn Progress) -> Result<ConversionReport>,
) {
    for change in Change::ALL {
        for &changed_in in passes {
            for at_end in [false, true] {
                let temp = TestFolder::new();
                let untouched = old_file(&temp, "first", old);
                let path = old_file(&temp, "second", old);
                let changed = AtomicBool::new(false);
                let progress = |pass: &'static str, done: u64, total: u64| {
                    let now = pass == changed_in && (!at_end || done == total);
                    if now && !changed.swap(true, Ordering::Relaxed) {
                        change.make(&path, new);
                    }
                };
                let options = ConvertOptions {
                    split: split.into(),
                    threads: NonZeroUsize::new(2).unwrap(),
                    ..ConvertOptions::new(vec![untouched.clone(), path.clone()], temp.path("out"))
                };
                let outcome = convert(&options, &progress);
                assert!(changed.into_inner(), "there is no pass {changed_in}");
                change.assert_named(&path, &outcome.unwrap_err());
                for name in ["out", "out.partial"] {
                    assert!(!temp.path(name).exists(), "{name} after {change:?} in {changed_in}");
                }
            }
        }
    }
}

/// Rows with a label and a category, of several chunks; with other numbers they have the same length.
fn csv(from: u32) -> Vec<u8> {
    let rows = (from..from + 3000).map(|row| format!("{},{row}\n", row % 2));
    format!("l,row\n{}", rows.collect::<String>()).into_bytes()
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text).unwrap();
    gzip.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn a_csv_file_that_changes_in_any_pass_is_refused() {
    let schema = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"row\"\n";
    let schema = SchemaFile::parse("s.toml", schema).unwrap();
    let convert = |options: &ConvertOptions, progress: &dyn Progress| {
        convert_csv_within(options, &schema, 1, SMALL, progress)
    };
    let (old, new) = (csv(1000), csv(5000));
    let passes = ["counting rows", "learning", "writing"];
    changes_are_refused([&old, &new], Split::Last { share: 0.5 }, &passes, convert);
    // With other lengths, rows can be bad that are good in both files: the change is what went wrong.
    let short = &new[..new.len() / 2];
    changes_are_refused([&old, short], Split::None, &["learning"], convert);
    for compressed in [gzip, zstd] {
        changes_are_refused([&compressed(&old), &compressed(&new)], Split::None, &passes[1..], convert);
    }
}

#[test]
fn a_file_that_changes_in_the_only_pass_is_refused() {
    let schema = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"row\"\n\
                  vocabulary = { kind = \"hash\", rows = 97 }\n";
    let schema = SchemaFile::parse("s.toml", schema).unwrap();
    changes_are_refused([&csv(1000), &csv(5000)], Split::None, &["writing"], |options, progress| {
        convert_csv_within(options, &schema, 1, SMALL, progress)
    });
}

#[test]
fn a_log_of_criteo_that_changes_is_refused() {
    let [old, new] = [1, 2].map(|seed| text(&good_lines(100, seed)));
    changes_are_refused(
        [old.as_bytes(), new.as_bytes()],
        Split::None,
        &["learning", "writing"],
        |options, progress| convert_criteo_within(options, &CriteoColumns::default(), SMALL, progress),
    );
}

#[test]
fn raw_records_that_change_are_refused() {
    let temp = TestFolder::new();
    let shape = temp.file("shape.toml", "name = \"x\"\ndense = 1\nrows = [9]\n");
    let format = RawFormat::new(Shape::load(shape.to_str().unwrap()).unwrap());
    let [old, new] = [3_u32, 4].map(|id| {
        let record = |row: u32| [row % 2, 1.0_f32.to_bits(), id].into_iter().flat_map(u32::to_le_bytes);
        (0..500).flat_map(record).collect::<Vec<u8>>()
    });
    let last = Split::Last { share: 0.2 };
    changes_are_refused([&old, &new], last, &["counting rows", "writing"], |options, progress| {
        convert_hugectr_raw(options, &format, progress)
    });
}

#[test]
fn rows_to_predict_that_change_are_refused() {
    let schema = "label = { column = \"l\" }\n[[categorical]]\ncolumn = \"row\"\n";
    let schema = SchemaFile::parse("s.toml", schema).unwrap();
    for change in Change::ALL {
        let temp = TestFolder::new();
        let path = old_file(&temp, "rows", &csv(1000));
        let options = ConvertOptions::new(vec![path.clone()], temp.path("out"));
        convert_csv(&options, &schema, 1, &|_: &'static str, _: u64, _: u64| ()).unwrap();
        let dataset = Dataset::open(&options.out).unwrap();
        let encoder = Encoder::open(&dataset).unwrap();
        let reader = RawReader {
            format: &dataset.row_format().unwrap(),
            schema: dataset.schema(),
            encoder: &encoder,
            ids: &crate::IdRules::default(),
            labelled: false,
            keep: &[],
            threads: NonZeroUsize::MIN,
        };
        let read = |changes: bool| {
            reader.read(std::slice::from_ref(&path), &|_: &'static str, _: u64, _: u64| (), |chunk| {
                assert_eq!(chunk.bad_rows, 0);
                if changes {
                    change.make(&path, &csv(5000));
                }
                Ok::<_, Error>(())
            })
        };
        read(false).unwrap();
        change.assert_named(&path, &read(true).unwrap_err());
    }
}
