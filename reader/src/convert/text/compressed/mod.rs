//! Compressed sources: gzip and Zstandard, read from start to end as one text with any number of members or frames.

mod buffer;
mod gzip;
mod zstd;

use std::fmt;
#[cfg(feature = "parquet")]
use std::io::BufRead;
use std::io::{BufReader, Read};

use gzip::GzipMembers;
use zstd::{Blocks, ZstdFrames};

/// Compressed bytes read at a time.
const BUFFER_BYTES: usize = 1 << 18;

/// The compression of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// Bytes at the start of a file that identify its compression format.
    pub(crate) const MAGIC_BYTES: usize = 4;

    /// Returns the compression of the file with these first bytes; `None` if it is not compressed.
    pub(crate) fn of(first: &[u8]) -> Option<Self> {
        match first {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            // A frame, or a skippable frame, which parallel compressors write first.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns the text of a compressed file. Reading fails with `InvalidData` or `UnexpectedEof` if the bytes are not
    /// what a compressor wrote, and with the file's own errors.
    pub(crate) fn text(self, file: impl Read + Send + 'static) -> Box<dyn Read + Send> {
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        match self {
            Self::Gzip => Box::new(GzipMembers::new(file)),
            Self::Zstd => Box::new(ZstdFrames::<_, Blocks>::new(file)),
        }
    }
}

/// Returns the text of consecutive Zstandard frames.
#[cfg(feature = "parquet")]
pub(crate) fn zstd_frames(frames: impl BufRead) -> impl Read {
    ZstdFrames::<_, Blocks>::new(frames)
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind, Write};

    use super::*;

    fn text_of(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let compression = Compression::of(&bytes).expect("it is compressed");
        let mut text = Vec::new();
        compression.text(io::Cursor::new(bytes)).read_to_end(&mut text).map(|_| text)
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(text).unwrap();
        out.finish().unwrap()
    }

    /// `printf 'one\ntwo\n' | zstd`: a frame with a checksum, by the reference compressor.
    const ZSTD: [u8; 21] = [
        0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x41, 0x00, 0x00, 0x6f, 0x6e, 0x65, 0x0a, 0x74, 0x77, 0x6f, 0x0a,
        0xe6, 0xa6, 0x0e, 0x40,
    ];

    #[test]
    fn the_first_bytes_identify_the_compression() {
        assert_eq!(Compression::of(&gzip(b"")), Some(Compression::Gzip));
        assert_eq!(Compression::of(&ZSTD), Some(Compression::Zstd));
        assert_eq!(Compression::of(b"\x5f\x2a\x4d\x18"), Some(Compression::Zstd));
        for text in [&b""[..], b"\x1f", b"\x28\xb5\x2f", b"\x60\x2a\x4d\x18", b"(/a,b"] {
            assert_eq!(Compression::of(text), None, "{text:?}");
        }
    }

    #[test]
    fn gzip_members_may_only_be_followed_by_zeros() {
        let long = b"0123456789".repeat(1 << 16);
        let two = [gzip(b"one\n"), gzip(&long)].concat();
        let text = [&b"one\n"[..], &long].concat();
        assert!(text_of(two.clone()).unwrap() == text);
        for zeros in [1, 511, BUFFER_BYTES, 3 * BUFFER_BYTES + 1] {
            assert!(text_of([&two[..], &vec![0; zeros]].concat()).unwrap() == text, "{zeros} zeros");
        }
        for rest in [&b"\0\0x"[..], &[&[0][..], &gzip(b"three\n")].concat(), b"x", b"\x1f\x8b"] {
            let error = text_of([&two[..], rest].concat()).unwrap_err();
            let kinds = [ErrorKind::InvalidData, ErrorKind::InvalidInput, ErrorKind::UnexpectedEof];
            assert!(kinds.contains(&error.kind()), "{rest:?}: {error:?}");
        }
    }

    #[test]
    fn consecutive_zstd_frames_are_read() {
        assert_eq!(text_of(ZSTD.to_vec()).unwrap(), b"one\ntwo\n");
        // A skippable frame of five bytes, first and between.
        let skipped = b"\x50\x2a\x4d\x18\x05\0\0\0skip!";
        let both = [&skipped[..], &ZSTD, &skipped[..], &ZSTD].concat();
        assert_eq!(text_of(both).unwrap(), b"one\ntwo\none\ntwo\n");
        assert_eq!(text_of(skipped.to_vec()).unwrap(), b"");
        // Several blocks, with matches that reach far back.
        let mut state = 1_u64;
        let long: Vec<u8> = (0..600_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                b"abcdefgh"[(state >> 61) as usize]
            })
            .collect();
        let long = long.repeat(2);
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        assert!(text_of(ruzstd::encoding::compress_to_vec(&long[..], level)).unwrap() == long);
    }

    #[test]
    fn a_broken_frame_is_an_error_wherever_it_breaks() {
        for end in 4..ZSTD.len() {
            let error = text_of([&ZSTD, &ZSTD[..end]].concat()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "at {end}");
        }
        let mut flipped = ZSTD;
        flipped[ZSTD.len() - 1] ^= 1;
        let error = text_of(flipped.to_vec()).unwrap_err();
        assert_eq!(error.to_string(), "a frame's checksum does not match its text");
        let short = text_of(b"\x50\x2a\x4d\x18\x06\0\0\0skip!".to_vec()).unwrap_err();
        assert_eq!(short.kind(), ErrorKind::UnexpectedEof);
        // Windows of 2^28 and 2^27 bytes; nothing follows.
        let window = |exponent: u8| text_of(vec![0x28, 0xb5, 0x2f, 0xfd, 0, (exponent - 10) << 3]);
        let large = window(28).unwrap_err().to_string();
        assert_eq!(large, "a frame needs a window of 256 MiB; the limit is 128 MiB");
        assert_eq!(window(27).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let trailing = text_of([&ZSTD[..], b"text"].concat()).unwrap_err();
        assert_eq!(trailing.kind(), ErrorKind::InvalidData);
    }

    /// A disk error is not damage of the file.
    #[test]
    fn the_files_own_errors_are_returned() {
        struct Broken(io::Cursor<Vec<u8>>);
        impl Read for Broken {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                match self.0.read(buffer)? {
                    0 => Err(io::Error::from_raw_os_error(libc::EIO)),
                    bytes => Ok(bytes),
                }
            }
        }
        let whole_gzip = gzip(b"one\ntwo\n");
        for bytes in [&ZSTD[..15], &ZSTD, &whole_gzip, &whole_gzip[..15]] {
            let file = Broken(io::Cursor::new(bytes.to_vec()));
            let mut text = Compression::of(bytes).unwrap().text(file);
            let error = text.read_to_end(&mut Vec::new()).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error:?}");
            assert!(text.read(&mut [0; 8]).is_err(), "a later read does not look like the end");
        }
    }
}
