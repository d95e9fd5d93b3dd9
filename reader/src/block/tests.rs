//! Round trips of blocks, and bytes that are not blocks.

use super::*;
use crate::schema::{Hotness, Label, Pooling, VocabularyKind};
use crate::tests;
use proptest::prelude::*;

const ID: BlockId = BlockId { dataset: 7, part: Part::Eval, index: 3 };

/// Returns the block with other bytes at `at` of descriptor `number` and a valid checksum.
fn with_descriptor(bytes: &[u8], number: usize, at: usize, to: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[HEADER_BYTES + number * DESCRIPTOR_BYTES + at..][..to.len()].copy_from_slice(to);
    let checksum = xxh3_64(&bytes[CHECKSUMMED_FROM..]);
    bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn one_column(rows: u64, hotness: Hotness) -> Schema {
    let column = Categorical {
        name: "C1".into(),
        rows: Some(rows),
        hotness,
        pooling: Pooling::Sum,
        vocabulary: VocabularyKind::Identity,
        weighted: false,
        shares: None,
    };
    Schema {
        labels: vec![Label::new("label")],
        weight: None,
        dense: Vec::new(),
        dense_dtype: DenseDtype::F16,
        sequences: Vec::new(),
        categorical: vec![column],
    }
}

/// Millions of equal ids take no bytes, and were once mistaken for a damaged count.
#[test]
fn large_bags_of_one_row_are_restored() {
    let schema = one_column(1, Hotness::Fixed(64));
    let samples = tests::samples_of(&schema, 40_000, 1);
    let bytes = encode(&schema, ID, &samples).unwrap();
    assert_eq!(bytes.len(), 2 * BLOCK_ALIGN);
    let mut back = Samples::new(&schema);
    Block::parse(&bytes, &schema).unwrap().decode_into(&schema, &mut back).unwrap();
    assert!(back == samples);
}

/// Values that take no bits need no bytes: without a limit, a few bytes could request any amount of memory.
#[test]
fn values_that_take_no_bits_are_limited() {
    let schema = one_column(1, Hotness::Fixed(64));
    let bytes = encode(&schema, ID, &tests::samples_of(&schema, 100, 1)).unwrap();
    let hostile = with_descriptor(&bytes, 3, 12, &u32::MAX.to_le_bytes());
    let refusal = Block::parse(&hostile, &schema).unwrap_err();
    assert!(refusal.what.contains("values that take no bits, over the limit of 33554432"), "{refusal}");
    let stream = |bits, count| Stream { base: 0, offset: 0, count, bits, kind: StreamKind::Packed };
    let half = stream(0, 1 << 24);
    assert_eq!(too_many_free_values(&[half, half, stream(1, u32::MAX)]), None);
    assert_eq!(too_many_free_values(&[half, half, stream(0, 1)]), Some((1 << 25) + 1));
}

#[test]
fn streams_that_violate_the_format_are_refused() {
    let schema = one_column(50, Hotness::Ragged { max: 4 });
    let samples = tests::samples_of(&schema, 600, 1);
    let bytes = encode(&schema, ID, &samples).unwrap();
    let offset = |by: u32| (Block::parse(&bytes, &schema).unwrap().streams()[3].offset + by).to_le_bytes();
    for (number, at, to, what) in [
        (0, 16, &[3][..], "does not have one or two bits"),
        (0, 16, &[0], "does not have one or two bits"),
        (0, 0, &[1], "does not have one or two bits"),
        (2, 12, &[2], "2 starts but should have 3"),
        (3, 12, &2401u16.to_le_bytes(), "more than the schema allows"),
        (3, 8, &offset(4), "does not fit"),
        (3, 8, &[0; 4], "does not fit"),
    ] {
        let refusal = Block::parse(&with_descriptor(&bytes, number, at, to), &schema).unwrap_err();
        assert!(refusal.what.contains(what), "{refusal}");
    }
    // Two bits per label where one was packed: some pair is 11.
    let block = with_descriptor(&bytes, 0, 16, &[2]);
    let block = Block::parse(&block, &schema).unwrap();
    let refusal = block.decode_into(&schema, &mut Samples::new(&schema)).unwrap_err();
    assert!(refusal.what.contains("neither 0 nor 1 nor missing"), "{refusal}");
    let shifted = with_descriptor(&bytes, 2, 0, &[1]);
    let block = Block::parse(&shifted, &schema).unwrap();
    let refusal = block.decode_into(&schema, &mut Samples::new(&schema)).unwrap_err();
    assert!(refusal.what.contains("its starts"), "{refusal}");
}

#[test]
fn a_header_and_ids_of_another_schema_are_refused() {
    let schema = one_column(50, Hotness::Ragged { max: 4 });
    let mut samples = tests::samples_of(&schema, 600, 1);
    samples.categorical[0].ids[7] = 49;
    let bytes = encode(&schema, ID, &samples).unwrap();
    let with = |at: usize, to: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        let checksum = xxh3_64(&bytes[CHECKSUMMED_FROM..]);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        Block::parse(&bytes, &schema).map(|_| ()).unwrap_err().what
    };
    for version in [1u16, 3] {
        let expected = format!("the block has layout version {version}, but this program reads 2");
        assert_eq!(with(44, &version.to_le_bytes()), expected);
    }
    assert_eq!(with(46, &[2]), "there is no part number 2");
    assert_eq!(with(40, &[5]), "the block has 5 streams, but the schema has 4");
    assert!(with(36, &0u32.to_le_bytes()).contains("states a length of 0 bytes"));
    assert!(with(0, b"X").contains("no block starts here"));
    // Among the descriptors, so near the end that eight bytes cannot be loaded at once.
    let ids = Block::parse(&bytes, &schema).unwrap().streams()[3];
    let packed = bits::packed_bytes(ids.count as usize, u32::from(ids.bits));
    let last = (bytes.len() - packed) / STREAM_ALIGN * STREAM_ALIGN;
    for offset in [HEADER_BYTES, HEADER_BYTES + 3 * DESCRIPTOR_BYTES, last] {
        let refused = with(HEADER_BYTES + 3 * DESCRIPTOR_BYTES + 8, &(offset as u32).to_le_bytes());
        assert!(refused.contains("does not fit the block"), "{refused}");
    }
    // A schema whose table has one row less.
    let smaller = one_column(49, Hotness::Ragged { max: 4 });
    let block = Block::parse(&bytes, &smaller).unwrap();
    let refused = block.decode_into(&smaller, &mut Samples::new(&smaller)).unwrap_err();
    assert_eq!(refused.what, "column C1: id 49 is out of range: its table has 49 rows");
    // Weights that do not fit the ids.
    let mut weighted = one_column(50, Hotness::Ragged { max: 4 });
    weighted.categorical[0].weighted = true;
    let mut samples = Samples::new(&weighted);
    samples.len = 2;
    samples.labels[0].extend([0.0, 1.0]);
    samples.categorical[0].push_weighted([(7, 0.5), (8, 0.0), (9, 2.0)]);
    samples.categorical[0].push_weighted([]);
    let right = encode(&weighted, ID, &samples).unwrap();
    let stream = Block::parse(&right, &weighted).unwrap().streams()[4];
    assert_eq!((stream.kind, stream.count, samples.categorical[0].bag(0)), (StreamKind::F32, 2, &[7, 9][..]));
    let with_weight = |weight: f32| {
        let mut bytes = right.clone();
        bytes[stream.offset as usize + 4..][..4].copy_from_slice(&weight.to_le_bytes());
        sealed(bytes, &weighted)
    };
    assert_eq!(with_weight(3.0), Ok(vec![0.5, 3.0]));
    for (weight, shown) in [(0.0, "0"), (-1.0, "-1"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let expected = format!("column C1: an id has the weight {shown}: weights are finite and above 0");
        assert_eq!(with_weight(weight), Err(expected));
    }
    let mut fewer = right.clone();
    fewer[HEADER_BYTES + 4 * DESCRIPTOR_BYTES + 12] = 1;
    let expected = "column C1 has 2 ids, but 1 weights of kind F32: expected one of kind F32 per id";
    assert_eq!(sealed(fewer, &weighted), Err(expected.into()));
    // The checksum is checked before anything that it covers.
    let mut flipped = bytes.clone();
    flipped[44] ^= 1;
    assert!(Block::parse(&flipped, &schema).unwrap_err().what.contains("its checksum is"));
}

/// Parses and decodes bytes with a valid checksum; returns the weights of the first column.
fn sealed(mut bytes: Vec<u8>, schema: &Schema) -> Result<Vec<f32>, String> {
    let checksum = xxh3_64(&bytes[CHECKSUMMED_FROM..]);
    bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
    let mut samples = Samples::new(schema);
    let block = Block::parse(&bytes, schema).map_err(|error| error.what)?;
    block.decode_into(schema, &mut samples).map_err(|error| error.what)?;
    Ok(samples.categorical[0].weights.clone())
}

proptest! {
    #[test]
    fn decoding_restores_the_encoded_samples((schema, samples) in tests::any_samples(600)) {
        let bytes = encode(&schema, ID, &samples).unwrap();
        prop_assert_eq!(bytes.len() % BLOCK_ALIGN, 0);
        let block = Block::parse(&bytes, &schema).unwrap();
        prop_assert_eq!(block.id(), ID);
        let mut back = Samples::new(&schema);
        block.decode_into(&schema, &mut back).unwrap();
        prop_assert_eq!(&back, &samples);
        block.decode_into(&schema, &mut back).unwrap();
        let mut twice = samples.clone();
        twice.append(&samples, 0..samples.len);
        prop_assert_eq!(back, twice);
    }

    #[test]
    fn starts_point_into_the_middle((schema, samples) in tests::any_samples(1200)) {
        let bytes = encode(&schema, ID, &samples).unwrap();
        let block = Block::parse(&bytes, &schema).unwrap();
        let mut rest = &block.streams()[flat_streams_of(&schema)..];
        for (column, bags) in schema.categorical.iter().zip(&samples.categorical) {
            let (streams, after) = rest.split_at(streams_of_column(column));
            rest = after;
            let mut starts = Vec::new();
            block.unpack(&streams[1], |start| starts.push(start as u32));
            let ragged = streams[0].bits > 0;
            let expected: Vec<u32> =
                bags.offsets[..samples.len].iter().copied().step_by(START_EVERY).filter(|_| ragged).collect();
            prop_assert_eq!(starts, expected);
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error(
        (schema, samples) in tests::any_samples(50),
        at in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encode(&schema, ID, &samples).unwrap();
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Block::parse(&bytes, &schema).is_err());
    }

    /// Bytes with a valid checksum that are wrong anywhere else must not panic either.
    #[test]
    fn arbitrary_bytes_do_not_panic(
        (schema, samples) in tests::any_samples(50),
        changes in prop::collection::vec((16..1000usize, any::<u8>()), 1..8),
    ) {
        let mut bytes = encode(&schema, ID, &samples).unwrap();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at.max(16)] = byte;
        }
        let checksum = xxh3_64(&bytes[CHECKSUMMED_FROM..]);
        bytes[8..16].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(block) = Block::parse(&bytes, &schema) {
            let _ = block.decode_into(&schema, &mut Samples::new(&schema));
        }
    }
}
