//! Mapped features that a program scores, as arrays of any lengths.

use std::path::PathBuf;

use rankine::prelude::{Features, Ids, Ranker};

use super::checkpoint::{train_on, train_small};
use super::dataset::converted;
use super::{CSV_ROWS, CSV_SCHEMAS, Reader, TempFolder, error_text, sections};

/// The arrays of some rows: the dense features, then the offsets and the ids of each column. The first byte is the
/// number of rows, and the second has a bit for each column that has offsets, one for the policy of ids, and one for
/// columns with a sequence.
#[derive(Debug)]
pub struct Mapped {
    /// The job of the first one refuses ids out of range, and the second job skips them. The third one has attention
    /// over a sequence of two columns, and no dense column.
    rankers: [Ranker; 3],
    _folders: [TempFolder; 3],
}

const COLUMNS: usize = 3;
const SECTIONS: usize = 2 + 2 * COLUMNS;
/// A score before it is written.
const UNTOUCHED: f64 = -1.0;

impl Reader for Mapped {
    const NAME: &'static str = "mapped";

    fn new(folder: TempFolder) -> Self {
        let folders = [folder, TempFolder::new(), TempFolder::new()];
        let load = |folder, policy| Ranker::load(train_small(folder, &[policy])).unwrap();
        let rankers = [
            load(&folders[0], "guard.ids_out_of_range=fail"),
            load(&folders[1], "guard.ids_out_of_range=skip"),
            Ranker::load(train_attention(&folders[2])).unwrap(),
        ];
        Self { rankers, _folders: folders }
    }

    fn read(&self, bytes: &[u8]) -> Result<(), String> {
        let [head, dense, arrays @ ..]: [&[u8]; SECTIONS] = sections::split(bytes);
        let [rows, flags, ..] = head else {
            return Err("expected two bytes: the number of rows, and flags".to_owned());
        };
        let rows = usize::from(*rows);
        let dense: Vec<f32> = numbers(dense, f32::from_le_bytes);
        let arrays: Vec<(Vec<u32>, Vec<u64>)> = arrays
            .chunks(2)
            .map(|pair| (numbers(pair[0], u32::from_le_bytes), numbers(pair[1], u64::from_le_bytes)))
            .collect();
        let ids = arrays.iter().enumerate().map(|(column, (offsets, ids))| match flags >> column & 1 {
            0 => Ids::Fixed(ids),
            _ => Ids::Bags { offsets, ids },
        });
        let categorical: Vec<_> = ids.collect();
        let ranker = match flags >> COLUMNS {
            flags if flags & 2 != 0 => &self.rankers[2],
            flags => &self.rankers[usize::from(flags & 1)],
        };
        let mut scores = vec![UNTOUCHED; rows];
        let scored = ranker.score(&Features { rows, dense: &dense, categorical: &categorical }, &mut scores);
        match scored {
            Ok(()) => assert!(scores.iter().all(|score| (0.0..=1.0).contains(score)), "{scores:?}"),
            Err(_) => assert!(scores.iter().all(|&score| score == UNTOUCHED), "{scores:?}"),
        }
        scored.map_err(error_text)
    }

    fn seeds(&self) -> Vec<(&'static str, Vec<u8>)> {
        let dense = bytes(&[0.25f32, -1.5], f32::to_le_bytes);
        let ids = |ids: &[u64]| bytes(ids, u64::to_le_bytes);
        let offsets = bytes(&[0u32, 2, 2], u32::to_le_bytes);
        let seed = |flags: u8, row: u64| {
            let (user, tags, row) = (ids(&[0, 1]), ids(&[1, 0]), ids(&[row, 3]));
            sections::join(&[&[2, flags], &dense, b"", &user, &offsets, &tags, b"", &row])
        };
        // The first row has more positions than count.
        let (offsets_of, item) = (bytes(&[0u32, 3, 3], u32::to_le_bytes), ids(&[1, 0]));
        let (items, rows) = (ids(&[2, 0, 1]), ids(&[9, 0, 3]));
        let sequence =
            sections::join(&[&[2, 0b1_0110], b"", b"", &item, &offsets_of, &items, &offsets_of, &rows]);
        vec![("rows", seed(0b0010, 9)), ("skipped", seed(0b1010, 1 << 40)), ("sequence", sequence)]
    }
}

/// Trains attention over the sequence of the last schema, without its column of keys.
fn train_attention(folder: &TempFolder) -> PathBuf {
    let [.., schema] = CSV_SCHEMAS;
    let [.., rows] = CSV_ROWS;
    let columns = schema.split_inclusive("[[").filter(|column| !column.contains("item_keys"));
    let data = converted(folder, &columns.collect::<String>(), rows.to_owned());
    let attention = "attention=[{ kind = 'din', sequence = 'clicks', query = ['item', 'item'], hidden = [3], \
                     position_embedding = true }]";
    let model = "{ kind = \"dlrm\", embedding_dim = 2, top_mlp = [2] }";
    train_on(folder, &data, model, &[attention, "train.batch_size=2"])
}

/// Returns the numbers of some bytes; a rest that is none is left out.
fn numbers<T, const BYTES: usize>(bytes: &[u8], number: impl Fn([u8; BYTES]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&bytes| number(bytes)).collect()
}

fn bytes<T: Copy, const BYTES: usize>(numbers: &[T], bytes: impl Fn(T) -> [u8; BYTES]) -> Vec<u8> {
    numbers.iter().flat_map(|&number| bytes(number)).collect()
}
