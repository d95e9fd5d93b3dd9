//! Event files, which TensorBoard plots. They have the format of TensorFlow's `EventsWriter`: framed and checksummed
//! records, each of which is an `Event` message of `tensorflow/core/util/event.proto`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rankine_base::system;

use super::records::RecordFile;

/// What TensorBoard expects in the first record. From version 2 on, it takes a `START` event for the start of an
/// attempt.
const FILE_VERSION: &str = "brain.Event:2";
/// The start of the names of event files, by which TensorBoard finds them.
const NAME_START: &str = "events.out.tfevents.";

/// A new event file in a folder of event files.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    records: RecordFile,
}

impl EventFile {
    /// Creates an event file in a folder, which is created if it does not exist. Its name is
    /// `events.out.tfevents.SECONDS.HOST.PID.rankine`; it sorts after the names of all event files in the folder, since
    /// TensorBoard reads them in that order.
    ///
    /// `start_step` is the first step that the file will describe: 0 in a new run, and the step after the checkpoint's
    /// in a resumed one. TensorBoard then hides the values that earlier files in the folder have for this step and
    /// later ones; its fast loader, the default, does so as soon as their tag has a new value.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if another process creates the same file, and those of the file system.
    pub(super) fn create(dir: &Path, start_step: u64) -> io::Result<Self> {
        Self::create_at(dir, start_step, SystemTime::now())
    }

    fn create_at(dir: &Path, start_step: u64, now: SystemTime) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let seconds = match latest_seconds(dir)? {
            Some(latest) => (seconds_of(now) as u64).max(latest.saturating_add(1)),
            None => seconds_of(now) as u64,
        };
        let process = std::process::id();
        let path = dir.join(format!("{NAME_START}{seconds:010}.{}.{process}.rankine", host_name()));
        let mut file = Self { records: RecordFile::create(&path)?, path };
        file.append(&Event { time: now, step: 0, what: What::FileVersion })?;
        file.append(&Event { time: now, step: start_step, what: What::Start })?;
        Ok(file)
    }

    /// The file's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends the values of a step, by tag. TensorBoard groups tags by what precedes their first `/`.
    ///
    /// Values are stored as `f32`, as all scalars of this format are. TensorBoard shows values that are not finite as
    /// gaps.
    ///
    /// # Errors
    /// Those of the file system. Later values can still be written.
    pub(super) fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        self.append(&Event { time: SystemTime::now(), step, what: What::Scalars(values) })
    }

    /// Makes everything that was written durable.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.records.sync()
    }

    fn append(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.records.append(&framed(&event.encode()))
    }
}

/// Returns the latest time in the names of the folder's event files.
fn latest_seconds(dir: &Path) -> io::Result<Option<u64>> {
    let mut latest = None;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let seconds =
            name.to_str().and_then(|name| name.strip_prefix(NAME_START)?.split('.').next()?.parse().ok());
        latest = latest.max(seconds);
    }
    Ok(latest)
}

/// Returns the machine's name, with `-` for characters that do not belong into a file name.
fn host_name() -> String {
    system::host_name()
        .replace(|char: char| !(char.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&char)), "-")
}

/// Returns the seconds since 1970; 0 before.
fn seconds_of(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Frames a record as TensorFlow's `RecordWriter` does: its length, the checksum of the length, the record, and its
/// checksum; all numbers are little-endian.
fn framed(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    let checksum = |bytes: &[u8]| masked(crc32c::crc32c(bytes)).to_le_bytes();
    [&length[..], &checksum(&length)[..], record, &checksum(record)[..]].concat()
}

/// Masks a checksum, as TensorFlow's `crc32c::Mask` does: the CRC of data that contain their own CRC would be weak.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// An `Event` message.
struct Event<'a> {
    time: SystemTime,
    step: u64,
    what: What<'a>,
}

enum What<'a> {
    FileVersion,
    /// A session log with the status `START`.
    Start,
    /// A summary of values by tag.
    Scalars(&'a [(&'a str, f64)]),
}

impl Event<'_> {
    fn encode(&self) -> Vec<u8> {
        const WALL_TIME: Field = Field(1);
        const STEP: Field = Field(2);
        const FILE_VERSION_TEXT: Field = Field(3);
        const SUMMARY: Field = Field(5);
        const SESSION_LOG: Field = Field(7);
        const SESSION_LOG_STATUS: Field = Field(1);
        const STATUS_START: u64 = 1;
        const SUMMARY_VALUE: Field = Field(1);
        const VALUE_TAG: Field = Field(1);
        const VALUE_SIMPLE_VALUE: Field = Field(2);

        let mut event = Vec::new();
        WALL_TIME.put_f64(&mut event, seconds_of(self.time));
        // Fields with the value 0 are left out.
        if self.step != 0 {
            STEP.put_varint(&mut event, self.step);
        }
        match self.what {
            What::FileVersion => FILE_VERSION_TEXT.put_bytes(&mut event, FILE_VERSION.as_bytes()),
            What::Start => {
                let mut log = Vec::new();
                SESSION_LOG_STATUS.put_varint(&mut log, STATUS_START);
                SESSION_LOG.put_bytes(&mut event, &log);
            }
            What::Scalars(values) => {
                let mut summary = Vec::new();
                for &(tag, scalar) in values {
                    let mut value = Vec::new();
                    VALUE_TAG.put_bytes(&mut value, tag.as_bytes());
                    // One of several alternatives, which is written even if it is 0.
                    VALUE_SIMPLE_VALUE.put_f32(&mut value, scalar as f32);
                    SUMMARY_VALUE.put_bytes(&mut summary, &value);
                }
                SUMMARY.put_bytes(&mut event, &summary);
            }
        }
        event
    }
}

/// The number of a field in a message of protocol buffers, and how its values are encoded:
/// <https://protobuf.dev/programming-guides/encoding/>.
#[derive(Clone, Copy)]
struct Field(u64);

impl Field {
    fn put_varint(self, message: &mut Vec<u8>, value: u64) {
        put_varint(message, self.0 << 3);
        put_varint(message, value);
    }

    fn put_f64(self, message: &mut Vec<u8>, value: f64) {
        put_varint(message, self.0 << 3 | 1);
        message.extend(value.to_le_bytes());
    }

    /// Of a string or an embedded message.
    fn put_bytes(self, message: &mut Vec<u8>, bytes: &[u8]) {
        put_varint(message, self.0 << 3 | 2);
        put_varint(message, bytes.len() as u64);
        message.extend(bytes);
    }

    fn put_f32(self, message: &mut Vec<u8>, value: f32) {
        put_varint(message, self.0 << 3 | 5);
        message.extend(value.to_le_bytes());
    }
}

/// Appends a number, seven bits per byte, the least significant first.
fn put_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A time that the golden records have.
    fn time() -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_700_000_000_250)
    }

    fn record(step: u64, what: What<'_>) -> String {
        let bytes = framed(&Event { time: time(), step, what }.encode());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The vectors of RFC 3720, B.4; the masked value is that of PyPI's tensorboard 2.21.0 (`masked_crc32c`).
    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c::crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(masked(0xe306_9283), 0xc78a_b0e5);
    }

    /// The expected bytes were written by PyPI's tensorboard 2.21.0: `RecordWriter` and the generated classes of
    /// `event_pb2`.
    #[test]
    fn records_are_those_of_tensorboard() {
        let expected = "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9";
        assert_eq!(record(0, What::FileVersion), expected);

        let expected = "100000000000000095fbfe180900001040fc54d94110ad023a020801cb79b93b";
        assert_eq!(record(301, What::Start), expected);

        let long = "x".repeat(130);
        let values = [("train/loss", 0.4375), ("eval/auc", f64::NAN), ("rate", 0.0), (&long, -1e30)];
        let expected = [
            "ce00000000000000c791cdc80900001040fc54d94110f0a2042abe01",
            "0a110a0a747261696e2f6c6f7373150000e03e",
            "0a0f0a086576616c2f617563150000c07f",
            "0a0b0a04726174651500000000",
            "0a8a010a8201",
            &"78".repeat(130),
            "15caf249f1",
            "11ffe52d",
        ];
        assert_eq!(record(70_000, What::Scalars(&values)), expected.concat());

        let expected = "1500000000000000d6ab6b2b0900001040fc54d9412a0a0a080a0161150000807f625fa5c3";
        // Beyond the largest f32.
        assert_eq!(record(0, What::Scalars(&[("a", 1e300)])), expected);
    }

    #[test]
    fn varints_are_those_of_the_specification() {
        let varint = |value| {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            bytes
        };
        assert_eq!((varint(0), varint(127), varint(128)), (vec![0], vec![127], vec![0x80, 1]));
        // The example of the specification.
        assert_eq!(varint(150), [0x96, 0x01]);
        assert_eq!(varint(u64::MAX), [[0xff; 9].as_slice(), &[1]].concat());
    }

    #[test]
    fn a_file_begins_with_its_version_and_its_first_step() {
        let dir = tempfile::tempdir().unwrap();
        let file = EventFile::create_at(&dir.path().join("made/tensorboard"), 301, time()).unwrap();
        let bytes: String = fs::read(file.path()).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes, record(0, What::FileVersion) + &record(301, What::Start));
    }

    /// Even if a run is resumed in the same second, or the clock was set back.
    #[test]
    fn file_names_sort_in_the_order_of_creation() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("events.out.tfevents.notes"), "").unwrap();
        let times = [time(), time(), time() - Duration::from_secs(3600), time() + Duration::from_secs(60)];
        let names = times.map(|time| {
            let file = EventFile::create_at(dir.path(), 0, time).unwrap();
            file.path().file_name().unwrap().to_str().unwrap().to_owned()
        });
        assert!(names.is_sorted(), "{names:?}");
        let end = format!(".{}.{}.rankine", host_name(), std::process::id());
        for (name, seconds) in names.iter().zip([0, 1, 2, 60]) {
            assert_eq!(*name, format!("events.out.tfevents.{}{end}", 1_700_000_000 + seconds));
        }
    }
}
