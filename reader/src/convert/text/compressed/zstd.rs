//! Zstandard: frames one after another. The headers of frames are read in Rust; their blocks are decoded by the C
//! library in builds that have it, because that is more than twice as fast, and otherwise in Rust. Whole and truncated
//! files give the same results and errors; damage may be described differently.

use std::error::Error as _;
use std::io::{self, BufRead, ErrorKind, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::buffer::{buffered, invalid};

/// Maximum window size of a frame: that of `zstd --long`, and more than that of any level.
const WINDOW_BYTES_MAX: u64 = 128 << 20;
const WRONG_CHECKSUM: &str = "a frame's checksum does not match its text";
const CORRUPT: &str = "a frame is corrupt";

/// What decodes blocks in this build.
#[cfg(feature = "zstd")]
pub(super) type Blocks = c::Blocks;
#[cfg(not(feature = "zstd"))]
pub(super) type Blocks = RustBlocks;

/// Decodes the blocks of frames.
pub(super) trait DecodeBlocks: Default {
    /// Starts a frame, whose header was read by a decoder and has these bytes.
    fn start(&mut self, frame: FrameDecoder, header: Vec<u8>);

    /// Reads more of the frame's text into a buffer that is not empty. Returns 0 at the end, after the checksum was
    /// compared.
    fn read(&mut self, file: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize>;
}

/// The text of consecutive frames.
pub(super) struct ZstdFrames<R, B> {
    file: R,
    blocks: B,
    /// Whether `blocks` is within a frame.
    open: bool,
}

impl<R: BufRead, B: DecodeBlocks> ZstdFrames<R, B> {
    pub(super) fn new(file: R) -> Self {
        Self { file, blocks: B::default(), open: false }
    }

    /// Advances to the next frame; returns whether there is one.
    fn next(&mut self) -> io::Result<bool> {
        loop {
            if buffered(&mut self.file)?.is_empty() {
                return Ok(false);
            }
            // One per frame: a reused decoder allocates memory for the whole window that a frame states.
            let mut frame = FrameDecoder::new();
            frame.set_max_window_size(WINDOW_BYTES_MAX);
            let mut header = Recorded { file: &mut self.file, bytes: Vec::new() };
            match frame.init(&mut header) {
                Ok(()) => {
                    let bytes = header.bytes;
                    self.blocks.start(frame, bytes);
                    self.open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.file.by_ref().take(length), &mut io::sink())? < length {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(decode_error(error)),
            }
        }
    }
}

impl<R: BufRead, B: DecodeBlocks> Read for ZstdFrames<R, B> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.open || self.next()? {
            let bytes = self.blocks.read(&mut self.file, buffer)?;
            if bytes > 0 {
                return Ok(bytes);
            }
            self.open = false;
        }
        Ok(0)
    }
}

/// A file whose bytes are kept as they are read.
struct Recorded<'a, R> {
    file: &'a mut R,
    bytes: Vec<u8>,
}

impl<R: Read> Read for Recorded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

/// Decodes blocks in Rust.
#[cfg_attr(feature = "zstd", allow(dead_code, reason = "tests compare it with the C library"))]
#[derive(Default)]
pub(super) struct RustBlocks(FrameDecoder);

impl DecodeBlocks for RustBlocks {
    fn start(&mut self, frame: FrameDecoder, _: Vec<u8>) {
        self.0 = frame;
    }

    fn read(&mut self, file: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize> {
        let Self(frame) = self;
        while frame.can_collect() == 0 && !frame.is_finished() {
            frame.decode_blocks(&mut *file, BlockDecodingStrategy::UptoBlocks(1)).map_err(decode_error)?;
        }
        let bytes = frame.read(buffer)?;
        let (stated, found) = (frame.get_checksum_from_data(), frame.get_calculated_checksum());
        if bytes == 0 && stated.is_some() && stated != found {
            return Err(invalid(WRONG_CHECKSUM));
        }
        Ok(bytes)
    }
}

/// Describes what is wrong with a frame; if the file could not be read, returns the system's error.
fn decode_error(error: FrameDecoderError) -> io::Error {
    match &error {
        FrameDecoderError::WindowSizeTooBig { requested, max } => {
            let (requested, max) = (requested >> 20, max >> 20);
            return invalid(format!("a frame needs a window of {requested} MiB; the limit is {max} MiB"));
        }
        FrameDecoderError::DictNotProvided { .. } => return invalid("a frame needs a dictionary"),
        _ => {}
    }
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(inner) = inner.downcast_ref::<io::Error>() {
            return match inner.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => inner.kind().into(),
            };
        }
        cause = inner.source();
    }
    invalid(CORRUPT)
}

/// The C library.
#[cfg(feature = "zstd")]
mod c {
    use std::io::{self, BufRead, ErrorKind};

    use ruzstd::decoding::FrameDecoder;
    use zstd_safe::zstd_sys::ZSTD_ErrorCode::ZSTD_error_checksum_wrong;
    use zstd_safe::{DCtx, DParameter, ErrorCode, InBuffer, OutBuffer};

    use super::{CORRUPT, DecodeBlocks, WINDOW_BYTES_MAX, WRONG_CHECKSUM, buffered, invalid};

    /// Decodes blocks with the C library.
    #[derive(Default)]
    pub(in crate::convert::text) struct Blocks {
        /// The frame's context; `None` after its end.
        context: Option<DCtx<'static>>,
        /// Bytes of the frame's header that the context has not read.
        header: Vec<u8>,
    }

    impl DecodeBlocks for Blocks {
        fn start(&mut self, _: FrameDecoder, header: Vec<u8>) {
            let mut context = DCtx::create();
            // The header was accepted, so this only repeats its limit; an unknown parameter would leave a lower one.
            let _ = context.set_parameter(DParameter::WindowLogMax(WINDOW_BYTES_MAX.ilog2()));
            *self = Self { context: Some(context), header };
        }

        fn read(&mut self, file: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize> {
            let Some(context) = &mut self.context else { return Ok(0) };
            loop {
                let of_header = !self.header.is_empty();
                let bytes = if of_header { &self.header } else { buffered(file)? };
                let (mut input, mut output) = (InBuffer::around(bytes), OutBuffer::around(&mut *buffer));
                let (at_end, hint) = (bytes.is_empty(), context.decompress_stream(&mut output, &mut input));
                let (read, written) = (input.pos(), output.pos());
                if of_header {
                    self.header.drain(..read);
                } else {
                    file.consume(read);
                }
                if hint.map_err(decode_error)? == 0 {
                    self.context = None;
                    return Ok(written);
                }
                if written > 0 {
                    return Ok(written);
                }
                if at_end {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
        }
    }

    fn decode_error(code: ErrorCode) -> io::Error {
        // The library returns negative codes as large unsigned numbers.
        let wrong_checksum = code == (ZSTD_error_checksum_wrong as usize).wrapping_neg();
        invalid(if wrong_checksum { WRONG_CHECKSUM } else { CORRUPT })
    }
}

#[cfg(all(test, feature = "zstd"))]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use zstd_safe::{CCtx, CParameter};

    use super::*;

    /// Returns the text, or the kind and the text of the error.
    fn text_of<B: DecodeBlocks>(bytes: &[u8]) -> Result<Vec<u8>, (ErrorKind, String)> {
        let mut text = Vec::new();
        // A small buffer, so that all parts of a frame lie across its end somewhere.
        let file = io::BufReader::with_capacity(7, bytes);
        let read = ZstdFrames::<_, B>::new(file).read_to_end(&mut text);
        read.map(|_| text).map_err(|error| (error.kind(), error.to_string()))
    }

    fn compressed(text: &[u8], level: i32, checksum: bool) -> Vec<u8> {
        let mut context = CCtx::create();
        context.set_parameter(CParameter::CompressionLevel(level)).expect("the level exists");
        context.set_parameter(CParameter::ChecksumFlag(checksum)).expect("the flag exists");
        let mut bytes = vec![0; zstd_safe::compress_bound(text.len())];
        let count = context.compress2(&mut bytes[..], text).expect("there is room");
        bytes.truncate(count);
        bytes
    }

    /// Frames with and without matches, checksums and stated sizes.
    fn frames(text: &[u8]) -> Vec<Vec<u8>> {
        let settings = [(1, true), (1, false), (19, true), (19, false)];
        let in_c = settings.into_iter().map(|(level, checksum)| compressed(text, level, checksum));
        in_c.chain([compress_to_vec(text, CompressionLevel::Fastest)]).collect()
    }

    fn texts() -> [(&'static str, Vec<u8>); 3] {
        let lines = b"1,5,f12,t3|t4,0.25\n2,,f7,,1.5\n".repeat(20);
        let long = (0..300_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 27) as u8).collect();
        [("nothing", Vec::new()), ("lines", lines), ("long", long)]
    }

    #[test]
    fn both_decoders_read_whole_and_truncated_files_alike() {
        for (name, text) in texts() {
            let frames = frames(&text);
            let skipped = b"\x50\x2a\x4d\x18\x05\0\0\0skip!".to_vec();
            let all = [frames.clone(), vec![skipped], frames.clone()].concat().concat();
            let found = [text_of::<RustBlocks>(&all), text_of::<c::Blocks>(&all)];
            assert!(found == [Ok(text.repeat(10)), Ok(text.repeat(10))], "{name}");
            for (number, frame) in frames.iter().enumerate() {
                for end in (4..frame.len()).step_by(frame.len().div_ceil(100)) {
                    let two = [&frame[..], &frame[..end]].concat();
                    let found = [text_of::<RustBlocks>(&two), text_of::<c::Blocks>(&two)];
                    let kinds = found.map(|found| found.map_err(|(kind, _)| kind));
                    let expected = Err(ErrorKind::UnexpectedEof);
                    assert!(kinds == [expected.clone(), expected], "frame {number}, {name}, cut at {end}");
                }
            }
        }
    }

    /// Either decoder finds damage to a frame with a checksum, which `zstd` writes by default. (Without a checksum, the
    /// C library finds more damage. Some bits of a frame mean nothing.)
    #[test]
    fn both_decoders_find_damage() {
        for (name, text) in texts() {
            for (number, frame) in frames(&text).iter().enumerate().step_by(2) {
                for bit in (32..8 * frame.len()).step_by(frame.len().div_ceil(100)) {
                    let mut flipped = frame.clone();
                    flipped[bit / 8] ^= 1 << (bit % 8);
                    for found in [text_of::<RustBlocks>(&flipped), text_of::<c::Blocks>(&flipped)] {
                        let kinds = [ErrorKind::InvalidData, ErrorKind::UnexpectedEof];
                        let good = found
                            .as_ref()
                            .map_or_else(|(kind, _)| kinds.contains(kind), |found| *found == text);
                        assert!(
                            good,
                            "frame {number}, {name}, bit {bit}: {:?}",
                            found.map(|found| found.len())
                        );
                    }
                }
            }
        }
    }
}
