//! MLPerf's log of a training run, for PyPI's `mlperf-logging`: its compliance checker, and its tools that compute
//! times to train. [`MlLog`] writes single lines, and [`RunLog`] those of a run, in their order.

use std::io;
use std::panic::Location;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::records::RecordFile;

mod run_log;
mod settings;

pub(super) use run_log::{RunLog, RunStatus};
pub(super) use settings::RunSettings;

/// Starts every line.
const TOKEN: &str = ":::MLLOG ";

/// A log in MLPerf's format. Every line is written at once, with the time and the place in the source that wrote it.
#[derive(Debug)]
struct MlLog {
    records: RecordFile,
    /// Returns the milliseconds since 1970.
    now: fn() -> u64,
}

impl MlLog {
    /// Logs a value. Numbers that are not finite become `null`, since JSON has none.
    ///
    /// # Errors
    /// Those of the file system.
    #[track_caller]
    fn point(&mut self, key: &str, value: impl Into<Value>, metadata: &[(&str, Value)]) -> io::Result<()> {
        self.log(Kind::Point, key, value.into(), metadata)
    }

    /// Logs the start of an interval. MLPerf names the two ends of an interval by different keys, such as `eval_start`
    /// and `eval_stop`.
    ///
    /// # Errors
    /// Those of the file system.
    #[track_caller]
    fn interval_start(
        &mut self,
        key: &str,
        value: impl Into<Value>,
        metadata: &[(&str, Value)],
    ) -> io::Result<()> {
        self.log(Kind::Start, key, value.into(), metadata)
    }

    /// Logs the end of an interval.
    ///
    /// # Errors
    /// Those of the file system.
    #[track_caller]
    fn interval_end(
        &mut self,
        key: &str,
        value: impl Into<Value>,
        metadata: &[(&str, Value)],
    ) -> io::Result<()> {
        self.log(Kind::End, key, value.into(), metadata)
    }

    /// Makes all lines durable.
    ///
    /// # Errors
    /// Those of the file system.
    fn sync(&mut self) -> io::Result<()> {
        self.records.sync()
    }

    #[track_caller]
    fn log(&mut self, kind: Kind, key: &str, value: Value, metadata: &[(&str, Value)]) -> io::Result<()> {
        let (time_ms, source) = ((self.now)(), Location::caller());
        self.append(&Line { time_ms, kind, key, value, source, metadata })
    }

    fn append(&mut self, line: &Line<'_>) -> io::Result<()> {
        self.records.append(line.encode().as_bytes())
    }
}

fn now_ms() -> u64 {
    milliseconds_of(SystemTime::now())
}

/// Returns the milliseconds since 1970; 0 before.
fn milliseconds_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

struct Line<'a> {
    time_ms: u64,
    kind: Kind,
    key: &'a str,
    value: Value,
    source: &'a Location<'a>,
    metadata: &'a [(&'a str, Value)],
}

#[derive(Clone, Copy)]
enum Kind {
    Point,
    Start,
    End,
}

impl Line<'_> {
    /// Encodes the line as Python's `mllog` does, which has a space after each colon and comma.
    fn encode(&self) -> String {
        let kind = match self.kind {
            Kind::Point => "POINT_IN_TIME",
            Kind::Start => "INTERVAL_START",
            Kind::End => "INTERVAL_END",
        };
        let (time_ms, value) = (self.time_ms, &self.value);
        let key = Value::from(self.key);
        let file = Value::from(self.source.file());
        let mut metadata = format!("\"file\": {file}, \"lineno\": {}", self.source.line());
        for (name, value) in self.metadata {
            metadata += &format!(", {}: {value}", Value::from(*name));
        }
        format!(
            "{TOKEN}{{\"namespace\": \"\", \"time_ms\": {time_ms}, \"event_type\": \"{kind}\", \"key\": {key}, \
             \"value\": {value}, \"metadata\": {{{metadata}}}}}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    thread_local! {
        pub(super) static CLOCK: Cell<u64> = const { Cell::new(0) };
    }

    /// Returns 1, 2, 3 and so on in each test.
    pub(super) fn tick() -> u64 {
        CLOCK.set(CLOCK.get() + 1);
        CLOCK.get()
    }

    #[test]
    fn lines_are_those_of_mllog() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mlperf.log");
        CLOCK.set(1_700_000_000_000);
        let mut log = MlLog { records: RecordFile::create(&path).unwrap(), now: tick };
        let first = line!() + 1;
        log.point("seed", 7, &[]).unwrap();
        log.interval_start("eval_start", (), &[("epoch_num", 0.05.into())]).unwrap();
        log.point("eval \"x\"", f64::NAN, &[("a", "b".into()), ("c", true.into())]).unwrap();
        log.interval_end("run_stop", (), &[("status", "success".into())]).unwrap();
        let expected = [
            r#""time_ms": 1700000000001, "event_type": "POINT_IN_TIME", "key": "seed", "value": 7, "#,
            r#""time_ms": 1700000000002, "event_type": "INTERVAL_START", "key": "eval_start", "value": null, "#,
            r#""time_ms": 1700000000003, "event_type": "POINT_IN_TIME", "key": "eval \"x\"", "value": null, "#,
            r#""time_ms": 1700000000004, "event_type": "INTERVAL_END", "key": "run_stop", "value": null, "#,
        ];
        let metadata = ["", r#", "epoch_num": 0.05"#, r#", "a": "b", "c": true"#, r#", "status": "success""#];
        let file = file!();
        let expected = (first..).zip(expected.iter().zip(metadata)).map(|(line, (start, metadata))| {
            let place = format!(r#""file": "{file}", "lineno": {line}"#);
            format!(":::MLLOG {{\"namespace\": \"\", {start}\"metadata\": {{{place}{metadata}}}}}\n")
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), expected.collect::<String>());
    }
}
