//! Mapped features that a program scores, as arrays of any lengths.

use rankine::prelude::{Features, Ids, Ranker};

use super::checkpoint::train_small;
use super::{Reader, TempFolder, error_text, sections};

/// The arrays of some rows: the dense features, then the offsets and the ids of each column. The first byte is the
/// number of rows, and the second has a bit for each column that has offsets, and one for the policy of ids.
#[derive(Debug)]
pub struct Mapped {
    /// The job of the first one refuses ids out of range, that of the second one skips them.
    rankers: [Ranker; 2],
    _folders: [TempFolder; 2],
}

const COLUMNS: usize = 3;
const SECTIONS: usize = 2 + 2 * COLUMNS;
/// A score before it is written.
const UNTOUCHED: f64 = -1.0;

impl Reader for Mapped {
    const NAME: &'static str = "mapped";

    fn new(folder: TempFolder) -> Self {
        let folders = [folder, TempFolder::new()];
        let load = |folder, policy| Ranker::load(train_small(folder, &[policy])).unwrap();
        let rankers = [
            load(&folders[0], "guard.ids_out_of_range=fail"),
            load(&folders[1], "guard.ids_out_of_range=skip"),
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
        let ranker = &self.rankers[usize::from(flags >> COLUMNS & 1)];
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
        vec![("rows", seed(0b0010, 9)), ("skipped", seed(0b1010, 1 << 40))]
    }
}

/// Returns the numbers of some bytes; a rest that is none is left out.
fn numbers<T, const BYTES: usize>(bytes: &[u8], number: impl Fn([u8; BYTES]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&bytes| number(bytes)).collect()
}

fn bytes<T: Copy, const BYTES: usize>(numbers: &[T], bytes: impl Fn(T) -> [u8; BYTES]) -> Vec<u8> {
    numbers.iter().flat_map(|&number| bytes(number)).collect()
}
