//! Messages that processes exchange over TCP; the port is open to everybody.

use rankine_launch::read_stream;

use super::{Reader, TEXT_BASE_BYTES, TempFolder, error_text};

/// The data of a connection up to its end.
#[derive(Debug)]
pub struct Frames;

impl Reader for Frames {
    const NAME: &'static str = "frames";
    const BASE_BYTES: usize = TEXT_BASE_BYTES;

    fn new(_: TempFolder) -> Self {
        Self
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        read_stream(bytes).map(drop).map_err(error_text)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let frame = |kind: u8, bytes: &[u8]| {
            let len = (bytes.len() as u32).to_le_bytes();
            // Tags are not checked here: see `read_stream`.
            [&[kind], &1u64.to_le_bytes()[..], &len, bytes, &[0; 32]].concat()
        };
        let hello = |process: u32, line: u32| {
            let numbers = [process, 2, line, 1].map(u32::to_le_bytes).concat();
            // The job, the instance of the process and the nonce.
            [&b"rankine4"[..], &numbers, &[7; 64]].concat()
        };
        let member = concat!(
            r#"{"process":1,"host":"a","boot":"b","pid":7,"local":null,"#,
            r#""gpus":0,"gpu_ids":[],"version":"0.1.0"}"#
        );
        let activity = br#"{"phase":"training","step":7,"waits_for":null,"signs":3}"#;
        let failure = br#"{"process":1,"words":"it failed","follows":false}"#;
        let joined = [&3u32.to_le_bytes()[..], b"abc", &0u32.to_le_bytes()].concat();
        let values =
            [hello(1, 0), frame(1, member.as_bytes()), frame(1, &joined), frame(2, &[1, 0, 0, 0])].concat();
        let watch = [hello(1, 1), frame(5, activity), frame(6, failure), frame(7, b"null")].concat();
        let others = [hello(1, 0), frame(3, &[1, 0, 0, 0]), frame(4, b"stray")].concat();
        vec![("values", values), ("watch", watch), ("others", others)]
    }
}
