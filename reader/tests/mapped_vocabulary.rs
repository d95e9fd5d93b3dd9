//! A worker that encodes rows looks categories up where the files of the fit are mapped, and has no copy of them.

#![allow(clippy::unwrap_used, reason = "a failed preparation may end the test")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use rankine_reader::convert::{ConvertOptions, KnownColumns, Progress, SchemaFile, convert_like, fit_csv};
use rankine_reader::dataset::{Dataset, Fit};

/// Names the folder of the fits for the process that encodes.
const FOLDER: &str = "RANKINE_TEST_FITS";
/// In memory, a vocabulary takes 40 bytes or more per category: 20 MB.
const CATEGORIES: usize = 500_000;
/// Rows that are encoded. The look-ups of their categories are counted in few pages.
const ROWS: usize = 2000;
const COPY_BYTES: u64 = 40 * CATEGORIES as u64;

const SCHEMA: &str = "[label]\ncolumn = \"y\"\n[[categorical]]\ncolumn = \"number\"\n\
                      [[categorical]]\ncolumn = \"name\"\n";

/// Half of the categories are of the kind that a word holds, half are names.
fn log(rows: usize) -> String {
    let mut log = "y,number,name\n".to_owned();
    for row in 0..rows {
        writeln!(log, "{},{row:08x},name of {row}", row % 2).unwrap();
    }
    log
}

fn fit(folder: &Path, name: &str, rows: usize) {
    let (file, out) = (folder.join(format!("{name}.csv")), folder.join(name));
    fs::write(&file, log(rows)).unwrap();
    let schema = SchemaFile::parse("s.toml", SCHEMA).unwrap();
    fit_csv(&ConvertOptions::new(vec![file], out), &schema, 1, &()).unwrap();
}

/// Returns the memory of this process that is not a page of a file.
fn anonymous_bytes() -> u64 {
    let smaps = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = smaps.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

/// Notes the most memory while rows are encoded.
#[derive(Default)]
struct Peak(AtomicU64);

impl Progress for Peak {
    fn advance(&self, pass: &'static str, _: u64, _: u64) {
        assert_eq!(pass, "writing", "rows are read once");
        self.0.fetch_max(anonymous_bytes(), Ordering::Relaxed);
    }
}

/// Encodes rows, and returns the most memory that it took.
fn encode(folder: &Path, fit: &str) -> u64 {
    let out = folder.join(format!("{fit}-encoded"));
    let mut options = ConvertOptions::new(vec![folder.join("few.csv")], out);
    options.threads = std::num::NonZeroUsize::MIN;
    let peak = Peak::default();
    let known = KnownColumns::of_fit(&Fit::open(&folder.join(fit)).unwrap()).unwrap();
    peak.0.fetch_max(anonymous_bytes(), Ordering::Relaxed);
    convert_like(&options, known, false, &peak).unwrap();
    peak.0.into_inner()
}

/// The process that encodes, which has not made the fit.
fn measure(folder: &Path) {
    // Memory that the first conversion has returned to the allocator serves the second one, too.
    let few = encode(folder, "few");
    let mapped = encode(folder, "many");
    fs::write(folder.join("measured"), format!("{few} {mapped}")).unwrap();
}

#[test]
fn a_vocabulary_is_not_copied_by_the_process_that_encodes() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        measure(Path::new(&folder));
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    fit(temp.path(), "few", ROWS);
    fit(temp.path(), "many", CATEGORIES / 2);
    let status = Command::new(std::env::current_exe().unwrap()).env(FOLDER, temp.path()).status().unwrap();
    assert!(status.success());
    let measured = fs::read_to_string(temp.path().join("measured")).unwrap();
    let (few, mapped) = measured.split_once(' ').unwrap();
    let [few, mapped] = [few, mapped].map(|bytes| bytes.parse::<u64>().unwrap());
    assert!(mapped < few + COPY_BYTES / 4, "{few} bytes with {ROWS} categories, {mapped} with {CATEGORIES}");
    // Equally frequent categories are in the order of their bytes, so that these rows are the same in both.
    let rows_of = |fit: &str| {
        let dataset = Dataset::open(&temp.path().join(format!("{fit}-encoded"))).unwrap();
        dataset.statistics().unwrap().swap_remove(0)
    };
    assert_eq!(rows_of("few").distinct_rows, ROWS as u64);
    assert_eq!(rows_of("many"), rows_of("few"));
}
