//! Rows come to the host as they lie on a GPU, in order, whatever lies between those that are wanted.

use rankine_embedding::cuda::LocalTables;
use rankine_embedding::rows::{Rows, RowsMut};

use super::update::{Case, KINDS, RULES};
use super::{Bench, Body, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[("listed_rows_come_as_they_lie", 2, listed_rows_come_as_they_lie)];

/// The word at a place of a part, of which no other place of the part has the same.
fn word(part: usize, place: usize) -> f32 {
    f32::from_bits((place as u32).wrapping_mul(0x9e37_79b1) ^ (part as u32).wrapping_mul(0x85eb_ca77))
}

/// Tables of every rule, of rows of all widths: among them one whose rows are more than are listed at a time, and two
/// whose words are more than come at a time, of which one has no whole number of rows there.
fn listed_rows_come_as_they_lie(bench: &Bench, words: &mut Words) -> Outcome {
    let small = |_| {
        let dim = words.one_of(&[1, 3, 4, 16, 20, 64, 100, 128, 132, 256, 1000, 1024]);
        (words.one_of(&[1, 3, 33, 2_000]), dim, words.one_of(&RULES))
    };
    let mut tables: Vec<_> = (0..4).map(small).collect();
    tables.extend([(1_300_000, 4, RULES[0]), (60_000, 128, RULES[6]), (40_001, 260, RULES[3])]);
    let case = Case::new(words, 1, &tables, tables.len(), &KINDS)?;
    let on_gpu = LocalTables::initialized(&bench.device, case.layout, &bench.lane, case.seed, 0)?;
    let mut rows = on_gpu.rows(&bench.lane);
    for part in 0..rows.parts().len() {
        let all = 0..rows.parts()[part].rows.len();
        rows.edit(part, all, true, &mut |all| {
            all.iter_mut().enumerate().for_each(|(place, to)| *to = word(part, place));
        })?;
    }
    for (number, part) in rows.parts().iter().enumerate() {
        let row_words = part.layout.words;
        for eighths in [0, 1, 5, 8] {
            let positions: Vec<_> = (0..part.rows.len()).filter(|_| words.below(8) < eighths).collect();
            let mut found = vec![0.0; positions.len() * row_words];
            rows.copy_listed(number, &positions, &mut found)?;
            check(&found, |at| word(number, positions[at / row_words] as usize * row_words + at % row_words))
                .map_err(|at| format!("{eighths} eighths of {part:?}: word {at} is another one"))?;
        }
        let mut found = vec![0.0; part.rows.len() as usize * row_words];
        rows.copy(number, 0..part.rows.len(), &mut found)?;
        check(&found, |at| word(number, at))
            .map_err(|at| format!("all of {part:?}: word {at} is another one"))?;
    }
    Ok(())
}

/// The first word that is not the expected one.
fn check(found: &[f32], expected: impl Fn(usize) -> f32) -> Result<(), usize> {
    let differs = |&at: &usize| found[at].to_bits() != expected(at).to_bits();
    (0..found.len()).find(differs).map_or(Ok(()), Err)
}
