//! The writing pass: rows become samples and samples become blocks, each in order and on separate threads.

pub(crate) mod encode;
pub(crate) mod keys;
pub(crate) mod unknown;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::{Sender, bounded};
use rankine_base::error::{Error, Result};

use crate::convert::pass::{Pass, chunks_in_flight};
use crate::convert::pool::{Pool, Pooled};
use crate::convert::rows::RawRows;
use crate::convert::rows::fault::{BadReason, BadRow};
use crate::convert::rows::source::{RowSource, Span};
use crate::convert::write::encode::{Counters, Encoder};
use crate::convert::write::keys::{KeyCounter, KeyReport};
use crate::convert::write::unknown::{UnknownCategories, UnknownCounter};
use crate::ordered::{ordered_map, ordered_map_within};
use crate::origin::RowCounts;
use crate::part::Part;
use crate::samples::Samples;
use crate::schema::Schema;
use crate::write::DatasetWriter;

/// Putting a block together and packing it takes about a third of the time of parsing and encoding its rows.
const PARSERS_PER_PACKER: usize = 3;

/// The result of the writing pass.
#[derive(Debug, Default)]
pub(crate) struct WriteResult {
    pub(crate) rows: RowCounts,
    pub(crate) bad_by_reason: BTreeMap<BadReason, u64>,
    /// Training rows in which the number is missing, per dense column.
    pub(crate) missing_train: Vec<u64>,
    /// Unknown categories of the training and the evaluation part, per categorical column.
    pub(crate) unknown_train: Vec<UnknownCategories>,
    pub(crate) unknown_eval: Vec<UnknownCategories>,
    /// Categories of both parts, per stored categorical column that owns an open vocabulary.
    pub(crate) keys: Vec<Option<KeyReport>>,
}

/// The samples of a chunk.
struct EncodedChunk<C> {
    chunk: C,
    bad: Vec<BadRow>,
    train: Arc<Pooled<Samples>>,
    eval: Arc<Pooled<Samples>>,
    missing_train: Vec<u64>,
}

/// A block's samples, ready to be put together and packed.
struct FilledBlock {
    part: Part,
    index: u64,
    pieces: Vec<Piece>,
}

/// Some samples of a chunk.
struct Piece {
    chunk: Arc<Pooled<Samples>>,
    range: Range<usize>,
}

/// Reads all sources and writes every good row; bad ones are named and kept in `dir`.
pub(crate) fn write<S: RowSource>(
    pass: &Pass<'_, S>,
    encoder: &Encoder,
    schema: &Schema,
    dir: &Path,
    writer: &mut DatasetWriter<'_>,
) -> Result<WriteResult> {
    let packer = writer.encoder();
    let pack_threads = NonZeroUsize::new(pass.options.threads.get().div_ceil(PARSERS_PER_PACKER));
    let pack_threads = pack_threads.unwrap_or(NonZeroUsize::MIN);
    // Further blocks wait for the packing threads.
    let (filled_out, filled_in) = bounded(1);
    std::thread::scope(|scope| {
        let block_samples = packer.block_samples() as usize;
        let encoding = scope.spawn(move || {
            let blocks = BlockFiller::new(block_samples, filled_out);
            encode_chunks(pass, encoder, schema, dir, blocks)
        });
        let blocks = filled_in.into_iter().map(Ok);
        let spare = Pool::default();
        // One thread would take longer to put blocks together than 16 threads to parse their rows.
        let pack = |FilledBlock { part, index, pieces }: FilledBlock| {
            let mut samples = spare.take().unwrap_or_else(|| Samples::new(schema));
            samples.clear();
            for Piece { chunk, range } in pieces {
                samples.append(&chunk, range);
            }
            let block = packer.encode(part, index, &samples);
            spare.put(samples);
            block
        };
        let packed =
            ordered_map(pack_threads, &pass.options.stop, blocks, pack, |block| writer.push_block(&block));
        let encoded = encoding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // If packing failed, encoding failed after it because its output is closed.
        packed.and(encoded)
    })
}

fn encode_chunks<S: RowSource>(
    pass: &Pass<'_, S>,
    encoder: &Encoder,
    schema: &Schema,
    dir: &Path,
    mut blocks: BlockFiller,
) -> Result<WriteResult> {
    let spare = Arc::default();
    let [unknown_train, unknown_eval] = [(); 2].map(|()| UnknownCounter::new(schema.categorical.len()));
    let keys = KeyCounter::new(schema)?;
    let encode = |rows: &RawRows, unknown: &UnknownCounter| {
        let mut samples = Pool::take(&spare).unwrap_or_else(|| Samples::new(schema));
        samples.clear();
        encoder.encode(rows, &mut samples, Some(Counters { unknown, keys: Some(&keys) }));
        Arc::new(Pooled::new(samples, &spare))
    };
    let work = |mut chunk: S::Chunk| {
        let ((train, eval, missing_train), bad) = pass.read(&mut chunk, |rows| {
            let missing = |values: &Vec<f64>| values.iter().filter(|value| value.is_nan()).count() as u64;
            let missing_train: Vec<u64> = rows.train.dense.iter().map(missing).collect();
            let (train, eval) = (encode(&rows.train, &unknown_train), encode(&rows.eval, &unknown_eval));
            Ok((train, eval, missing_train))
        })?;
        Ok(EncodedChunk { chunk, bad, train, eval, missing_train })
    };

    let mut written = WriteResult { missing_train: vec![0; schema.dense.len()], ..WriteResult::default() };
    let mut bad_rows = pass.bad_rows(Some(dir));
    ordered_map_within(
        chunks_in_flight(pass.options.threads),
        pass.options.threads,
        &pass.options.stop,
        pass.source.chunks(),
        work,
        |encoded: EncodedChunk<S::Chunk>| -> Result<()> {
            let span @ Span { rows, .. } = pass.source.span(&encoded.chunk);
            bad_rows.take(&encoded.chunk, &encoded.bad)?;
            written.rows.add(rows, encoded.train.len as u64, encoded.eval.len as u64);
            add(&mut written.missing_train, &encoded.missing_train);
            blocks.push(Part::Train, &encoded.train)?;
            blocks.push(Part::Eval, &encoded.eval)?;
            pass.advance("writing", span);
            Ok(())
        },
    )?;
    (written.unknown_train, written.unknown_eval) = (unknown_train.counts(), unknown_eval.counts());
    written.keys = keys.reports();
    written.bad_by_reason = bad_rows.finish()?;
    blocks.finish()?;
    Ok(written)
}

fn add(sums: &mut [u64], counts: &[u64]) {
    sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

/// Divides the samples of each part into blocks and sends them.
struct BlockFiller {
    block_samples: usize,
    out: Sender<FilledBlock>,
    parts: [Pending; 2],
}

/// The block of a part that is not full yet.
struct Pending {
    part: Part,
    index: u64,
    samples: usize,
    pieces: Vec<Piece>,
}

impl BlockFiller {
    fn new(block_samples: usize, out: Sender<FilledBlock>) -> Self {
        let parts = Part::STORED.map(|part| Pending { part, index: 0, samples: 0, pieces: Vec::new() });
        Self { block_samples, out, parts }
    }

    fn push(&mut self, part: Part, chunk: &Arc<Pooled<Samples>>) -> Result<()> {
        let mut from = 0;
        while from < chunk.len {
            let pending = &mut self.parts[part as usize];
            let to = chunk.len.min(from + self.block_samples - pending.samples);
            pending.pieces.push(Piece { chunk: Arc::clone(chunk), range: from..to });
            pending.samples += to - from;
            from = to;
            if pending.samples == self.block_samples {
                self.send(part)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, part: Part) -> Result<()> {
        let Pending { part, index, samples, pieces } = &mut self.parts[part as usize];
        let filled = FilledBlock { part: *part, index: *index, pieces: std::mem::take(pieces) };
        (*index, *samples) = (*index + 1, 0);
        self.out.send(filled).map_err(|_| Error::refused("hand on a block", ErrorKind::BrokenPipe.into()))
    }

    /// Sends the last blocks, which may be partial.
    fn finish(mut self) -> Result<()> {
        for part in Part::STORED {
            if self.parts[part as usize].samples > 0 {
                self.send(part)?;
            }
        }
        Ok(())
    }
}
