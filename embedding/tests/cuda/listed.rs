//! Selected rows are copied from a GPU to the host unchanged and in order, whatever is stored between them.

use rankine_embedding::cuda::{InitialWeights, LocalTables};
use rankine_embedding::rows::{Rows, RowsMut};

use super::update::{Case, KINDS, RULES};
use super::{Bench, Body, Outcome, Random};

pub(crate) const BODIES: &[Body] = &[("listed_rows_come_as_they_lie", 2, listed_rows_come_as_they_lie)];

/// The word at a position of a part; all words of a part differ.
fn word(part: usize, index: usize) -> f32 {
    f32::from_bits((index as u32).wrapping_mul(0x9e37_79b1) ^ (part as u32).wrapping_mul(0x85eb_ca77))
}

/// Tables of every rule, with rows of all widths. One has more rows than are selected at a time; two have more words
/// than are copied at a time, and in one of these a piece does not end with a whole row.
fn listed_rows_come_as_they_lie(bench: &Bench, words: &mut Random) -> Outcome {
    let small = |_| {
        let dim = words.one_of(&[1, 3, 4, 16, 20, 64, 100, 128, 132, 256, 1000, 1024]);
        (words.one_of(&[1, 3, 33, 2_000]), dim, words.one_of(&RULES))
    };
    let mut tables: Vec<_> = (0..4).map(small).collect();
    tables.extend([(1_300_000, 4, RULES[0]), (60_000, 128, RULES[6]), (40_001, 260, RULES[3])]);
    let case = Case::new(words, 1, &tables, tables.len(), &KINDS)?;
    let on_gpu = LocalTables::initialized(
        &bench.device,
        case.layout,
        &bench.lane,
        InitialWeights { seed: case.seed, drawn: 0 },
    )?;
    let mut rows = on_gpu.rows(&bench.lane);
    for part in 0..rows.parts().len() {
        let all = 0..rows.parts()[part].rows.len();
        rows.edit(part, all, true, &mut |all| {
            all.iter_mut().enumerate().for_each(|(index, to)| *to = word(part, index));
        })?;
    }
    for (number, part) in rows.parts().iter().enumerate() {
        let row_words = part.layout.words;
        for eighths in [0, 1, 5, 8] {
            let positions: Vec<_> = (0..part.rows.len()).filter(|_| words.below(8) < eighths).collect();
            let mut found = vec![0.0; positions.len() * row_words];
            rows.copy_listed(number, &positions, &mut found)?;
            check(&found, |at| word(number, positions[at / row_words] as usize * row_words + at % row_words))
                .map_err(|at| format!("{eighths} eighths of {part:?}: word {at} differs"))?;
        }
        let mut found = vec![0.0; part.rows.len() as usize * row_words];
        rows.copy(number, 0..part.rows.len(), &mut found)?;
        check(&found, |at| word(number, at)).map_err(|at| format!("all of {part:?}: word {at} differs"))?;
    }
    Ok(())
}

/// The first word that is not the expected one.
fn check(found: &[f32], expected: impl Fn(usize) -> f32) -> Result<(), usize> {
    let differs = |&at: &usize| found[at].to_bits() != expected(at).to_bits();
    (0..found.len()).find(differs).map_or(Ok(()), Err)
}
