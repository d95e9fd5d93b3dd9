//! Measures the speed of conversion on a log of any size. Not part of a normal test run:
//!
//! `RANKINE_SPEED_MB=500 cargo test --release -p rankine-reader speed -- --ignored --nocapture`

use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use super::{ConvertOptions, CriteoColumns, Progress, SchemaFile, convert_criteo, convert_csv};

/// Distinct categories of each column, similar to Criteo's log.
const CATEGORIES: [u64; 26] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12517, 633, 3, 93145, 5683, 8_351_593, 3194, 27, 14992,
    5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// Returns the seconds of processor time used by this process: wall time means little on a machine with other work.
pub(crate) fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Writes lines whose categories follow a power law of exponent 1.1, as hexadecimal digits, until the file has
/// `bytes`.
fn write_log(path: &Path, bytes: u64) -> u64 {
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    };
    let mut unit = move || next() as f64 / (1u64 << 53) as f64;
    let mut out = BufWriter::new(File::create(path).unwrap());
    let mut written = 0;
    let mut line = Vec::new();
    while written < bytes {
        line.clear();
        write!(line, "{}", u8::from(unit() < 0.25)).unwrap();
        for _ in 0..13 {
            match unit() < 0.85 {
                true => write!(line, "\t{}", (unit() * 14.0 - 3.0).exp() as i64).unwrap(),
                false => line.push(b'\t'),
            }
        }
        for (column, &categories) in CATEGORIES.iter().enumerate() {
            line.push(b'\t');
            // The inverse of the continuous distribution of density k^-1.1 over 1 to n + 1.
            let tail = ((categories + 1) as f64).powf(-0.1);
            let rank = (1.0 - unit() * (1.0 - tail)).powf(-10.0) as u64;
            let key = (rank * 26 + column as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            if rank != 3 {
                write!(line, "{key:08x}").unwrap();
            }
        }
        line.push(b'\n');
        out.write_all(&line).unwrap();
        written += line.len() as u64;
    }
    out.flush().unwrap();
    written
}

/// Returns a schema file for the same columns with the same transformations.
fn schema_file() -> String {
    let names: Vec<String> = std::iter::once("label".to_owned())
        .chain((1..=13).map(|column| format!("I{column}")))
        .chain((1..=26).map(|column| format!("C{column}")))
        .collect();
    let mut text = format!(
        "format = {{ delimiter = \"\\t\", header = false, columns = {names:?} }}\nlabel = {{ column = \"label\" }}\n"
    );
    for name in &names[1..] {
        text += &match name.starts_with('I') {
            true => format!("[[dense]]\ncolumn = \"{name}\"\ntransform = [\"log1p\", \"standardize\"]\n"),
            false => format!("[[categorical]]\ncolumn = \"{name}\"\n"),
        };
    }
    text
}

#[test]
#[ignore = "takes minutes and half a gigabyte of disk"]
fn speed_of_conversion() {
    let megabytes = std::env::var("RANKINE_SPEED_MB").map_or(100, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log.tsv");
    let bytes = write_log(&log, megabytes * 1_000_000);
    let schema = SchemaFile::parse("speed.toml", &schema_file()).unwrap();
    let columns = CriteoColumns { min_count: 2, ..CriteoColumns::default() };
    for (form, threads, memory) in [
        ("criteo-tsv", 1, 2 << 30),
        ("criteo-tsv", 2, 2 << 30),
        ("criteo-tsv", 2, 64 << 20),
        ("csv", 1, 2 << 30),
        ("csv", 2, 2 << 30),
    ] {
        let out = dir.path().join(format!("{threads}-{memory}"));
        let options = ConvertOptions {
            threads: NonZeroUsize::new(threads).unwrap(),
            memory,
            ..ConvertOptions::new(vec![log.clone()], out.clone())
        };
        let (start, processor_start) = (Instant::now(), processor_seconds());
        let passes = std::sync::Mutex::new(Vec::<(&'static str, f64)>::new());
        let progress = |pass: &'static str, _: u64, _: u64| {
            let mut passes = passes.lock().unwrap();
            let now = processor_seconds() - processor_start;
            match passes.last_mut() {
                Some(last) if last.0 == pass => last.1 = now,
                _ => passes.push((pass, now)),
            }
        };
        let progress: &dyn Progress = &progress;
        let report = match form {
            "csv" => convert_csv(&options, &schema, 2, progress).unwrap(),
            _ => convert_criteo(&options, &columns, progress).unwrap(),
        };
        let (seconds, processor) = (start.elapsed().as_secs_f64(), processor_seconds() - processor_start);
        let megabytes = bytes as f64 / 1e6;
        println!(
            "{form}, {threads} threads, {} MiB for counts, {} rows: {:.0} MB/s, {:.0} MB per processor second; \
             passes end at processor seconds {:.2?} of {processor:.2}",
            memory >> 20,
            report.conversion.rows.read,
            megabytes / seconds,
            megabytes / processor,
            passes.into_inner().unwrap()
        );
        std::fs::remove_dir_all(out).unwrap();
    }
}
