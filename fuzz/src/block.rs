//! A block of one of several schemas, with a valid checksum and length.

use rankine_reader::block::{self, BlockId, HEADER_BYTES};
use rankine_reader::schema::{
    Categorical, Dense, DenseDtype, DenseFunction, DenseTransform, Hotness, Keep, Label, Pooling, Sequence,
    VocabularyKind,
};
use rankine_reader::{Bags, Part, Samples, Schema};

use super::{Reader, TempFolder};

/// The first byte selects the schema; the rest is the block, padded with zeros.
#[derive(Debug)]
pub struct Block {
    schemas: Vec<Schema>,
}

/// First bytes from this one on select the schema with weights, and from the next one on the one with a sequence.
const WEIGHTED: u8 = 128;
const SEQUENCE: u8 = 192;

/// The dataset tag of all blocks, which is not compared with a schema here.
const DATASET: u64 = 7;

impl Reader for Block {
    const NAME: &'static str = "block";
    // A column of ids that are all equal takes no bytes for them.
    const BASE_BYTES: usize = 512 << 20;
    // One bit unpacks to an id of eight bytes.
    const FACTOR: usize = 128;

    fn new(_: TempFolder) -> Self {
        let one = Hotness::Fixed(1);
        let many = Hotness::Ragged { max: 300 };
        Self {
            schemas: vec![
                schema(1, false, 1, DenseDtype::F16, &[(10, one)]),
                schema(2, true, 2, DenseDtype::F32, &[(1 << 40, many), (5, Hotness::Fixed(3))]),
                schema(1, false, 0, DenseDtype::F32, &[(1, Hotness::Ragged { max: 65_536 })]),
                schema(1, true, 3, DenseDtype::F16, &[]),
                weighted(schema(1, false, 1, DenseDtype::F32, &[(10, many), (5, one)])),
                sequence(schema(1, false, 1, DenseDtype::F32, &[(10, one), (10, many), (5, many)])),
            ],
        }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let (&first, bytes) = bytes.split_first().ok_or("the input is empty")?;
        let number = match first {
            ..WEIGHTED => usize::from(first) % 4,
            WEIGHTED..SEQUENCE => 4,
            SEQUENCE.. => 5,
        };
        let schema = &self.schemas[number];
        let bytes = valid_block(bytes, DATASET);
        let block = block::Block::parse(&bytes, schema)?;
        Ok(block.decode_into(schema, &mut Samples::new(schema))?)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let names = ["one-hot", "ragged", "of-one-row", "dense", "weighted", "sequence"];
        let seed = |(number, (name, schema)): (usize, (_, &Schema))| {
            let id = BlockId { dataset: DATASET, part: Part::Train, index: 0 };
            let block = block::encode(schema, id, &samples(schema, 12)).unwrap();
            let first = match number {
                4 => WEIGHTED,
                5 => SEQUENCE,
                _ => b'0' + number as u8,
            };
            (name, [&[first], trimmed(&block)].concat())
        };
        names.into_iter().zip(&self.schemas).enumerate().map(seed).collect()
    }
}

/// Returns a block with valid length (a multiple of 4096), dataset tag and checksum.
pub fn valid_block(bytes: &[u8], dataset: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(block::BLOCK_ALIGN), 0);
    if bytes.len() >= HEADER_BYTES {
        let len = bytes.len() as u32;
        bytes[36..40].copy_from_slice(&len.to_le_bytes());
        bytes[16..24].copy_from_slice(&dataset.to_le_bytes());
        let sum = rankine_base::sealed::Checksum::of(&bytes[16..]).0;
        bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

/// Returns a block without the zeros at its end.
pub fn trimmed(block: &[u8]) -> &[u8] {
    let end = block.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
    &block[..end]
}

fn schema(
    labels: usize,
    weight: bool,
    dense: usize,
    dense_dtype: DenseDtype,
    columns: &[(u64, Hotness)],
) -> Schema {
    let transform = DenseTransform::plain(DenseFunction::None);
    let categorical = |(number, &(rows, hotness)): (usize, &(u64, Hotness))| Categorical {
        name: format!("C{number}"),
        rows: Some(rows),
        hotness,
        pooling: Pooling::Sum,
        vocabulary: VocabularyKind::Identity,
        weighted: false,
        shares: None,
    };
    Schema {
        labels: (0..labels).map(|number| Label::new(format!("L{number}"))).collect(),
        weight: weight.then(|| "weight".into()),
        dense: (0..dense).map(|number| Dense { name: format!("I{number}"), transform }).collect(),
        dense_dtype,
        sequences: Vec::new(),
        categorical: columns.iter().enumerate().map(categorical).collect(),
    }
}

/// Returns a schema whose first column has weights.
fn weighted(mut schema: Schema) -> Schema {
    schema.categorical[0].weighted = true;
    schema
}

/// Returns a schema whose ragged columns are one sequence.
fn sequence(mut schema: Schema) -> Schema {
    let ragged = schema.categorical.iter().filter(|column| column.hotness.varies());
    let columns = ragged.map(|column| column.name.clone()).collect();
    schema.sequences.push(Sequence { name: "S".into(), columns, max: 3, keep: Keep::Last });
    schema
}

/// Returns some samples of a schema, including a missing label and an empty bag.
fn samples(schema: &Schema, count: usize) -> Samples {
    let mut samples = Samples::new(schema);
    for labels in &mut samples.labels {
        labels.extend((0..count).map(|row| if row == 3 { f32::NAN } else { (row % 2) as f32 }));
    }
    if schema.weight.is_some() {
        samples.weights.extend((0..count).map(|row| row as f32));
    }
    samples.dense.extend((0..count * schema.dense.len()).map(|number| number as f32 / 4.0));
    for (column, bags) in schema.categorical.iter().zip(&mut samples.categorical) {
        *bags = Bags::default();
        for row in 0..count as u64 {
            let ids = match column.hotness {
                Hotness::Fixed(ids) => u64::from(ids),
                Hotness::Ragged { .. } => row % 4,
            };
            let ids = (0..ids).map(|id| (id + row) % column.rows.unwrap_or(u64::MAX));
            match column.weighted {
                true => bags.push_weighted(ids.map(|id| (id, 0.5 + id as f32))),
                false => bags.push(ids),
            }
        }
    }
    samples.len = count;
    samples
}
