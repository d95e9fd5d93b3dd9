//! A block: up to 65536 samples by default, stored column by column, each column packed, with one checksum over
//! everything.
//!
//! `docs/reference/dataset-format.md` specifies the layout byte by byte; the constants here are its source.

use std::borrow::Cow;

use half::f16;
use half::slice::HalfFloatSliceExt;
use rankine_base::{Error, Malformed};
use xxhash_rust::xxh3::xxh3_64;

use crate::bits;
use crate::buckets;
use crate::ids::{IdRules, OutOfRange};
use crate::part::Part;
use crate::samples::{Bags, Samples};
use crate::schema::{Categorical, DenseDtype, Schema};

/// The first eight bytes of a block.
pub const MAGIC: [u8; 8] = *b"RKNBLOCK";
/// The version of the block layout.
pub const VERSION: u16 = 2;
/// Blocks start at multiples of this in their file and are padded to a multiple of it, so that direct reads work on
/// any disk.
pub const BLOCK_ALIGN: usize = 4096;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of one stream descriptor.
pub const DESCRIPTOR_BYTES: usize = 32;
/// Streams start at multiples of this in their block.
pub const STREAM_ALIGN: usize = 16;
/// A ragged column stores the offset of every `START_EVERY`th bag, so that a reader can start in the middle.
pub const START_EVERY: usize = 256;
/// Maximum number of values in a block that take no bits because all values of their stream are equal: twice what the
/// largest block of [`Schema::default_block_samples`] has, unless 256 samples of it have more. All other values take
/// at least one bit, so a block's length bounds its unpacked size.
pub const FREE_VALUES_MAX: u64 = 1 << 25;
/// Encodes a missing label; a block without missing labels packs its labels to one bit.
const MISSING_LABEL: u64 = 2;
/// Offset of the first checksummed byte: everything after magic and checksum.
const CHECKSUMMED_FROM: usize = 16;

/// How the values of a stream are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamKind {
    /// Unsigned integers minus a base, packed to `bits` bits.
    Packed = 0,
    /// IEEE half precision.
    F16 = 1,
    /// IEEE single precision.
    F32 = 2,
}

/// The position of a stream in its block, and its encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Added to every packed value.
    pub base: u64,
    /// Bytes from the block's start.
    pub offset: u32,
    /// Values.
    pub count: u32,
    /// Bits per value.
    pub bits: u8,
    /// The encoding of the values.
    pub kind: StreamKind,
}

/// Identifies a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockId {
    /// The dataset: see [`crate::dataset::Manifest::tag`].
    pub dataset: u64,
    /// The part.
    pub part: Part,
    /// The block's number in its part.
    pub index: u64,
}

/// Packs samples into a block whose length is a multiple of [`BLOCK_ALIGN`].
///
/// # Errors
/// [`Error::TooLarge`] if the samples exceed 2^32 bytes or [`FREE_VALUES_MAX`].
///
/// # Panics
/// If the samples do not match the schema: an id outside its table, a bag size that its column does not admit.
/// Converters and generators check outside data before they call this.
pub fn encode(schema: &Schema, id: BlockId, samples: &Samples) -> Result<Vec<u8>, Error> {
    let stream_count = streams_of(schema);
    let mut streams = Vec::with_capacity(stream_count);
    let mut out = vec![0; (HEADER_BYTES + stream_count * DESCRIPTOR_BYTES).next_multiple_of(STREAM_ALIGN)];

    for labels in &samples.labels {
        let values = labels.iter().map(|&label| {
            if label.is_nan() {
                return MISSING_LABEL;
            }
            assert!(label == 0.0 || label == 1.0, "a label must be 0, 1 or missing, not {label}");
            label as u64
        });
        streams.push(put_packed(values, 1, &mut out));
    }
    if schema.weight.is_some() {
        streams.push(put_floats(samples.weights.iter().copied(), DenseDtype::F32, &mut out));
    }
    for column in 0..schema.dense.len() {
        let values = samples.dense.iter().skip(column).step_by(schema.dense.len()).copied();
        streams.push(put_floats(values, schema.dense_dtype, &mut out));
    }
    if let Err(unequal) = schema.check_lengths(samples, 0) {
        panic!("{unequal}");
    }
    for (column, bags) in schema.stored_categorical().iter().zip(&samples.categorical) {
        put_bags(column, bags, &mut out, &mut streams);
    }

    assert_eq!(streams.len(), stream_count);
    if let Some(free) = too_many_free_values(&streams) {
        let what = format!(
            "a block of {} samples has {free} values in constant columns, over the limit of {FREE_VALUES_MAX}",
            samples.len
        );
        return Err(Error::too_large(FREE_VALUES_MAX, what));
    }
    out.resize((out.len() + bits::GUARD_BYTES).next_multiple_of(BLOCK_ALIGN), 0);
    let bytes = u32::try_from(out.len()).map_err(|_| {
        let (samples, bytes) = (samples.len, out.len());
        Error::too_large(
            1 << 32,
            format!("a block of {samples} samples takes {bytes} bytes, over the limit of 2^32"),
        )
    })?;
    out[0..8].copy_from_slice(&MAGIC);
    out[16..24].copy_from_slice(&id.dataset.to_le_bytes());
    out[24..32].copy_from_slice(&id.index.to_le_bytes());
    out[32..36].copy_from_slice(&(samples.len as u32).to_le_bytes());
    out[36..40].copy_from_slice(&bytes.to_le_bytes());
    out[40..44].copy_from_slice(&(stream_count as u32).to_le_bytes());
    out[44..46].copy_from_slice(&VERSION.to_le_bytes());
    out[46] = id.part as u8;
    for (descriptor, stream) in out[HEADER_BYTES..].chunks_exact_mut(DESCRIPTOR_BYTES).zip(&streams) {
        descriptor[0..8].copy_from_slice(&stream.base.to_le_bytes());
        descriptor[8..12].copy_from_slice(&stream.offset.to_le_bytes());
        descriptor[12..16].copy_from_slice(&stream.count.to_le_bytes());
        descriptor[16] = stream.bits;
        descriptor[17] = stream.kind as u8;
    }
    let checksum = xxh3_64(&out[CHECKSUMMED_FROM..]);
    out[8..16].copy_from_slice(&checksum.to_le_bytes());
    Ok(out)
}

/// Returns the number of streams in a block of this schema.
fn streams_of(schema: &Schema) -> usize {
    flat_streams_of(schema) + schema.stored_categorical().iter().map(streams_of_column).sum::<usize>()
}

/// Returns the number of streams before the categorical columns: one per label, weight and dense column.
fn flat_streams_of(schema: &Schema) -> usize {
    schema.labels.len() + schema.weight.iter().len() + schema.dense.len()
}

/// Returns the number of streams of a categorical column: sizes, starts, ids, and the weights of ids if it has some.
pub fn streams_of_column(column: &Categorical) -> usize {
    3 + usize::from(column.weighted)
}

/// Returns the number of values that take no bits if it exceeds the limit.
fn too_many_free_values(streams: &[Stream]) -> Option<u64> {
    let free = streams.iter().filter(|stream| stream.bits == 0).map(|stream| u64::from(stream.count)).sum();
    (free > FREE_VALUES_MAX).then_some(free)
}

/// Appends the streams of a categorical column: bag sizes, the offset of every 256th bag (only if sizes differ), ids,
/// and their weights if the column has some.
fn put_bags(column: &Categorical, bags: &Bags, out: &mut Vec<u8>, streams: &mut Vec<Stream>) {
    let counts = || bags.offsets.windows(2).map(|pair| u64::from(pair[1] - pair[0]));
    for count in counts() {
        assert!(column.hotness.admits(count), "column {} does not allow a bag of {count} ids", column.name);
    }
    if let Some(id) = bags.ids.iter().find(|&&id| !column.admits(id)) {
        panic!("column {}: id {id} is out of range: its table has {}", column.name, column.table());
    }
    let sizes = put_packed(counts(), 0, out);
    let starts: &[u32] = if sizes.bits == 0 { &[] } else { &bags.offsets[..bags.offsets.len() - 1] };
    streams.push(sizes);
    streams.push(put_packed(starts.iter().step_by(START_EVERY).map(|&start| u64::from(start)), 0, out));
    streams.push(put_packed(bags.ids.iter().copied(), 0, out));
    if column.weighted {
        assert_eq!(bags.weights.len(), bags.ids.len(), "column {} has one weight per id", column.name);
        if let Some(weight) = bags.weights.iter().find(|&&weight| !is_weight(weight)) {
            panic!("column {}: {weight} is not a weight", column.name);
        }
        streams.push(put_floats(bags.weights.iter().copied(), DenseDtype::F32, out));
    }
}

/// Returns whether a number is a weight of a stored id: ids with weight 0 are not stored.
fn is_weight(weight: f32) -> bool {
    weight > 0.0 && weight.is_finite()
}

fn put_packed(values: impl Iterator<Item = u64> + Clone, bits_min: u32, out: &mut Vec<u8>) -> Stream {
    let (mut low, mut high, mut count) = (u64::MAX, 0, 0);
    for value in values.clone() {
        (low, high, count) = (low.min(value), high.max(value), count + 1);
    }
    // Labels keep at least one bit and base 0, so that the block's length bounds its number of samples.
    let base = if count == 0 || bits_min > 0 { 0 } else { low };
    let bits = bits::width(high - base.min(high)).max(bits_min);
    let offset = start_stream(out);
    bits::pack(values, base, bits, out);
    Stream { base, offset, count, bits: bits as u8, kind: StreamKind::Packed }
}

fn put_floats(values: impl Iterator<Item = f32>, dtype: DenseDtype, out: &mut Vec<u8>) -> Stream {
    let offset = start_stream(out);
    let mut count = 0;
    for value in values {
        count += 1;
        match dtype {
            DenseDtype::F16 => out.extend_from_slice(&f16::from_f32(value).to_le_bytes()),
            DenseDtype::F32 => out.extend_from_slice(&value.to_le_bytes()),
        }
    }
    let kind = match dtype {
        DenseDtype::F16 => StreamKind::F16,
        DenseDtype::F32 => StreamKind::F32,
    };
    Stream { base: 0, offset, count, bits: dtype.bytes() as u8 * 8, kind }
}

fn start_stream(out: &mut Vec<u8>) -> u32 {
    out.resize(out.len().next_multiple_of(STREAM_ALIGN), 0);
    // A block longer than 2^32 bytes is refused as a whole once its length is known.
    out.len() as u32
}

/// A block whose checksum and layout were checked: every stream is within its bytes.
#[derive(Debug)]
pub struct Block<'a> {
    bytes: &'a [u8],
    layout: Cow<'a, BlockLayout>,
}

/// The contents of a block's header and descriptors without its bytes, for an owner that stores both together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockLayout {
    id: BlockId,
    samples: usize,
    streams: Vec<Stream>,
}

impl BlockLayout {
    /// Restores the block without checking it again. `bytes` must be those that this layout was parsed from;
    /// otherwise decoding may panic.
    pub(crate) fn with_bytes<'a>(&'a self, bytes: &'a [u8]) -> Block<'a> {
        Block { bytes, layout: Cow::Borrowed(self) }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Returns whether bytes have the checksum that their header states. It says nothing of their layout.
pub(crate) fn is_intact(bytes: &[u8]) -> bool {
    stated_checksum(bytes).is_some_and(|stated| xxh3_64(&bytes[CHECKSUMMED_FROM..]) == stated)
}

/// Returns the checksum stated in a block's header, for the index, or `None` without a header.
pub fn stated_checksum(bytes: &[u8]) -> Option<u64> {
    (bytes.len() >= HEADER_BYTES).then(|| u64_at(bytes, 8))
}

impl<'a> Block<'a> {
    /// Parses a block and checks its bytes, which may be arbitrary.
    ///
    /// # Errors
    /// A description of what is wrong: too short, not a block, a wrong checksum, a stream out of bounds.
    pub fn parse(bytes: &'a [u8], schema: &Schema) -> Result<Self, Malformed> {
        if bytes.len() < HEADER_BYTES {
            let bytes = bytes.len();
            return Err(
                format!("a block header has {HEADER_BYTES} bytes, but only {bytes} are present").into()
            );
        }
        if bytes[0..8] != MAGIC {
            return Err("no block starts here: its first bytes are not RKNBLOCK".into());
        }
        let stated_bytes = u32_at(bytes, 36) as usize;
        if stated_bytes != bytes.len() {
            let bytes = bytes.len();
            return Err(format!("the block states a length of {stated_bytes} bytes, but has {bytes}").into());
        }
        let (stated, actual) = (u64_at(bytes, 8), xxh3_64(&bytes[CHECKSUMMED_FROM..]));
        if stated != actual {
            return Err(format!(
                "its checksum is {actual:016x} but should be {stated:016x}: it changed on disk or while being copied; \
                 restore it from a copy, or create the dataset again"
            )
            .into());
        }
        let version = u16::from_le_bytes([bytes[44], bytes[45]]);
        if version != VERSION {
            let what = format!("the block has layout version {version}, but this program reads {VERSION}");
            return Err(what.into());
        }
        let part =
            Part::from_code(bytes[46]).ok_or_else(|| format!("there is no part number {}", bytes[46]))?;
        let id = BlockId { dataset: u64_at(bytes, 16), part, index: u64_at(bytes, 24) };
        let samples = u32_at(bytes, 32) as usize;
        let stream_count = u32_at(bytes, 40) as usize;
        if stream_count != streams_of(schema) {
            return Err(format!(
                "the block has {stream_count} streams, but the schema has {}",
                streams_of(schema)
            )
            .into());
        }
        if bytes.len() < HEADER_BYTES + stream_count * DESCRIPTOR_BYTES + bits::GUARD_BYTES {
            return Err("the block ends within its stream descriptors".into());
        }
        let streams = (0..stream_count)
            .map(|number| parse_stream(bytes, number, stream_count))
            .collect::<Result<Vec<_>, _>>()?;
        let block = Self { bytes, layout: Cow::Owned(BlockLayout { id, samples, streams }) };
        block.check_counts(schema)?;
        Ok(block)
    }

    /// Checks that every column has one value per sample. Bag sizes that differ are summed when they are decoded.
    ///
    /// A label takes one or two bits, so the block's length bounds its number of samples, and all other values except
    /// those of streams without bits, which [`FREE_VALUES_MAX`] limits: no count can cause a disproportionate
    /// allocation.
    fn check_counts(&self, schema: &Schema) -> Result<(), String> {
        if let Some(free) = too_many_free_values(&self.layout.streams) {
            return Err(format!(
                "it has {free} values that take no bits, over the limit of {FREE_VALUES_MAX}"
            ));
        }
        let (flat, mut bags) = self.layout.streams.split_at(flat_streams_of(schema));
        let dense_kind = match schema.dense_dtype {
            DenseDtype::F16 => StreamKind::F16,
            DenseDtype::F32 => StreamKind::F32,
        };
        let kinds = std::iter::repeat_n(StreamKind::Packed, schema.labels.len())
            .chain(std::iter::repeat_n(StreamKind::F32, schema.weight.iter().len()))
            .chain(std::iter::repeat_n(dense_kind, schema.dense.len()));
        for (number, (stream, kind)) in flat.iter().zip(kinds).enumerate() {
            if stream.count as usize != self.layout.samples || stream.kind != kind {
                return Err(format!(
                    "stream {number} has {} values of kind {:?}, but the schema requires {} of kind {kind:?}",
                    stream.count, stream.kind, self.layout.samples
                ));
            }
            if kind == StreamKind::Packed && !matches!((stream.bits, stream.base), (1 | 2, 0)) {
                return Err(format!(
                    "stream {number} is a label but does not have one or two bits per sample"
                ));
            }
        }
        for column in schema.stored_categorical() {
            let (streams, rest) = bags.split_at(streams_of_column(column));
            bags = rest;
            let packed = streams[..3].iter().all(|stream| stream.kind == StreamKind::Packed);
            if !packed || streams[0].count as usize != self.layout.samples {
                return Err(format!("column {} does not have one bag per sample", column.name));
            }
            let [sizes, starts, ids] = [0, 1, 2].map(|number| &streams[number]);
            if let Some(weights) = streams.get(3)
                && (weights.kind, weights.count) != (StreamKind::F32, ids.count)
            {
                return Err(format!(
                    "column {} has {} ids, but {} weights of kind {:?}: expected one of kind F32 per id",
                    column.name, ids.count, weights.count, weights.kind
                ));
            }
            let starts_expected = if sizes.bits == 0 { 0 } else { self.layout.samples.div_ceil(START_EVERY) };
            if starts.count as usize != starts_expected {
                return Err(format!(
                    "column {} has {} starts but should have {starts_expected}",
                    column.name, starts.count
                ));
            }
            let samples = self.layout.samples as u64;
            if u64::from(ids.count) > samples * u64::from(column.hotness.max()) {
                return Err(format!(
                    "column {} has {} ids, more than the schema allows for {samples} samples",
                    column.name, ids.count
                ));
            }
            // Sizes that take no bits are checked here, other sizes when they are unpacked.
            let varied = sizes.bits > 0;
            let admitted = if varied { column.hotness.varies() } else { column.hotness.admits(sizes.base) };
            if samples > 0 && !admitted {
                let size = if varied { "several sizes".into() } else { format!("{} ids", sizes.base) };
                return Err(format!(
                    "column {} has bags of {size}, but the schema requires {}",
                    column.name, column.hotness
                ));
            }
            if !varied && sizes.base.checked_mul(samples) != Some(u64::from(ids.count)) {
                return Err(format!(
                    "column {}: bag sizes do not sum to the {} ids that the block holds",
                    column.name, ids.count
                ));
            }
        }
        Ok(())
    }

    /// Returns the block's identity.
    pub fn id(&self) -> BlockId {
        self.layout.id
    }

    /// Returns the contents of its header and descriptors.
    pub(crate) fn into_layout(self) -> BlockLayout {
        self.layout.into_owned()
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> usize {
        self.layout.samples
    }

    /// Returns the streams in the schema's order: labels, weight, dense columns, then sizes, starts and ids of each
    /// categorical column, and the weights of its ids if it has some.
    pub fn streams(&self) -> &[Stream] {
        &self.layout.streams
    }

    /// Appends all samples to `out`.
    ///
    /// # Errors
    /// A description of what is wrong: an id outside its table, a bag size that its column does not admit, bag sizes
    /// that do not sum to the number of ids. `out` then holds incomplete samples and must be cleared.
    pub fn decode_into(&self, schema: &Schema, out: &mut Samples) -> Result<(), Malformed> {
        self.decode_under(&IdRules::default(), schema, out)
    }

    /// Like [`Block::decode_into`], but keeps ids that are out of range in columns with a rule for them: see
    /// [`IdRules::apply`].
    ///
    /// # Errors
    /// As [`Block::decode_into`].
    pub fn decode_under(&self, ids: &IdRules, schema: &Schema, out: &mut Samples) -> Result<(), Malformed> {
        let mut streams = self.layout.streams.iter();
        let mut next = || streams.next().expect("the number of streams was checked at parse");
        for labels in &mut out.labels {
            let mut highest = 0;
            self.unpack(next(), |code| {
                highest = highest.max(code);
                labels.push(if code == MISSING_LABEL { f32::NAN } else { code as f32 });
            });
            if highest > MISSING_LABEL {
                return Err("a label is neither 0 nor 1 nor missing".into());
            }
        }
        if schema.weight.is_some() {
            let stream = next();
            out.weights.extend(bytes_f32(self.stream_bytes(stream)));
        }
        let columns = schema.dense.len();
        let first = out.dense.len();
        out.dense.resize(first + self.layout.samples * columns, 0.0);
        let mut halves =
            vec![f16::ZERO; if schema.dense_dtype == DenseDtype::F16 { self.layout.samples } else { 0 }];
        let mut floats = vec![0.0; self.layout.samples];
        for column in 0..columns {
            let bytes = self.stream_bytes(next());
            match schema.dense_dtype {
                DenseDtype::F16 => {
                    for (half, pair) in halves.iter_mut().zip(bytes.chunks_exact(2)) {
                        *half = f16::from_le_bytes([pair[0], pair[1]]);
                    }
                    halves.convert_to_f32_slice(&mut floats);
                }
                DenseDtype::F32 => {
                    floats.iter_mut().zip(bytes_f32(bytes)).for_each(|(float, value)| *float = value);
                }
            }
            let rows = out.dense[first..].chunks_exact_mut(columns);
            rows.zip(&floats).for_each(|(row, &value)| row[column] = value);
        }
        let columns = schema.stored_categorical().iter().zip(&mut out.categorical);
        for (number, (column, bags)) in columns.enumerate() {
            let checks = ids.of(number) == OutOfRange::Fail;
            self.decode_bags((column, checks), [next(), next(), next()], bags)
                .and_then(|()| if column.weighted { self.decode_weights(next(), bags) } else { Ok(()) })
                .map_err(|what| format!("column {}: {what}", column.name))?;
        }
        schema.check_lengths(out, out.len).map_err(|what| what.to_string())?;
        out.len += self.layout.samples;
        buckets::append_ids(schema, out);
        Ok(())
    }

    fn decode_bags(
        &self,
        (column, checks_ids): (&Categorical, bool),
        [sizes, starts, ids]: [&Stream; 3],
        bags: &mut Bags,
    ) -> Result<(), String> {
        let before = bags.ids.len();
        let first = bags.offsets.len() - 1;
        let mut end = before as u64;
        let mut refused = None;
        bags.offsets.reserve(self.layout.samples);
        self.unpack(sizes, |size| {
            if !column.hotness.admits(size) {
                refused = Some(size);
            }
            end = end.saturating_add(size);
            bags.offsets.push(end as u32);
        });
        if let Some(size) = refused {
            return Err(format!("a bag has {size} ids, but the schema requires {}", column.hotness));
        }
        if end != before as u64 + u64::from(ids.count) || end > u64::from(u32::MAX) {
            return Err(format!("bag sizes do not sum to the {} ids that the block holds", ids.count));
        }
        // Not needed here, but decoders that start in the middle rely on them.
        let mut offsets = bags.offsets[first..].iter().step_by(START_EVERY);
        let mut starts_right = true;
        self.unpack(starts, |start| {
            let offset = offsets.next().map(|&offset| u64::from(offset) - before as u64);
            starts_right &= offset == Some(start);
        });
        if !starts_right {
            return Err("its starts are not the running sums of its bag sizes".into());
        }
        let mut highest = 0;
        bags.ids.reserve(ids.count as usize);
        self.unpack(ids, |id| {
            highest = highest.max(id);
            bags.ids.push(id);
        });
        if let Some(rows) = column.rows.filter(|&rows| checks_ids && highest >= rows) {
            return Err(format!("id {highest} is out of range: its table has {rows} rows"));
        }
        Ok(())
    }

    fn decode_weights(&self, stream: &Stream, bags: &mut Bags) -> Result<(), String> {
        let before = bags.weights.len();
        bags.weights.extend(bytes_f32(self.stream_bytes(stream)));
        match bags.weights[before..].iter().find(|&&weight| !is_weight(weight)) {
            Some(weight) => Err(format!("an id has the weight {weight}: weights are finite and above 0")),
            None => Ok(()),
        }
    }

    fn unpack(&self, stream: &Stream, take: impl FnMut(u64)) {
        let bytes = &self.bytes[stream.offset as usize..];
        bits::unpack(bytes, stream.count as usize, stream.base, u32::from(stream.bits), take);
    }

    fn stream_bytes(&self, stream: &Stream) -> &'a [u8] {
        let start = stream.offset as usize;
        &self.bytes[start..start + bits::packed_bytes(stream.count as usize, u32::from(stream.bits))]
    }
}

fn bytes_f32(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

fn parse_stream(bytes: &[u8], number: usize, stream_count: usize) -> Result<Stream, String> {
    let descriptor = &bytes[HEADER_BYTES + number * DESCRIPTOR_BYTES..][..DESCRIPTOR_BYTES];
    let (kind, bits_right) = match (descriptor[17], descriptor[16]) {
        (0, bits) => (StreamKind::Packed, bits <= 64),
        (1, bits) => (StreamKind::F16, bits == 16),
        (2, bits) => (StreamKind::F32, bits == 32),
        (kind, _) => return Err(format!("stream {number} has the unknown kind {kind}")),
    };
    let stream = Stream {
        base: u64_at(descriptor, 0),
        offset: u32_at(descriptor, 8),
        count: u32_at(descriptor, 12),
        bits: descriptor[16],
        kind,
    };
    let end = stream.offset as usize
        + bits::packed_bytes(stream.count as usize, u32::from(stream.bits))
        + bits::GUARD_BYTES;
    let placed = stream.offset as usize >= HEADER_BYTES + stream_count * DESCRIPTOR_BYTES
        && (stream.offset as usize).is_multiple_of(STREAM_ALIGN);
    if !bits_right || !placed || end > bytes.len() {
        return Err(format!(
            "stream {number} ({} values of {} bits at byte {}) does not fit the block of {} bytes",
            stream.count,
            stream.bits,
            stream.offset,
            bytes.len()
        ));
    }
    Ok(stream)
}

#[cfg(test)]
mod tests;
