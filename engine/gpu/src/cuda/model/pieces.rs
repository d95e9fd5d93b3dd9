//! Rows of tables on their way from the processes that have them to the one that saves them.
//!
//! A piece is a range of a table's rows, in which each process has filled in the rows that it has. It sends the runs
//! that it has filled, whatever the tables' placement.

/// The value of weights that no process has filled in: a NaN. A model with such a weight is not saved.
pub(super) const MISSING: f32 = f32::from_bits(0x7fc0_dead);

/// Bytes of a run's header: its start and its length.
const HEAD_BYTES: usize = 8;

fn is_missing(weight: &f32) -> bool {
    weight.to_bits() == MISSING.to_bits()
}

/// Encodes the runs of weights that are filled in.
pub(super) fn pack(weights: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = 0;
    for run in weights.chunk_by(|one, next| is_missing(one) == is_missing(next)) {
        if !is_missing(&run[0]) {
            bytes.extend((at as u32).to_le_bytes());
            bytes.extend((run.len() as u32).to_le_bytes());
            bytes.extend(run.iter().flat_map(|weight| weight.to_le_bytes()));
        }
        at += run.len();
    }
    bytes
}

/// Writes runs to their positions; `None` if they do not fit.
pub(super) fn unpack(mut bytes: &[u8], weights: &mut [f32]) -> Option<()> {
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let (run, rest) = rest.split_at_checked(4 * number(4))?;
        let targets = weights.get_mut(number(0)..number(0) + number(4))?;
        for (target, weight) in targets.iter_mut().zip(run.as_chunks::<4>().0) {
            *target = f32::from_le_bytes(*weight);
        }
        bytes = rest;
    }
    bytes.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_of_all_processes_are_put_together(owners in proptest::collection::vec(0usize..3, 0..50)) {
            let whole: Vec<f32> = (0..owners.len()).map(|index| index as f32 - 7.0).collect();
            let of_process = |process: usize| -> Vec<f32> {
                let own = |(&owner, &weight)| if owner == process { weight } else { MISSING };
                owners.iter().zip(&whole).map(own).collect()
            };
            let mut found = of_process(0);
            for process in 1..3 {
                prop_assert_eq!(unpack(&pack(&of_process(process)), &mut found), Some(()));
            }
            prop_assert_eq!(found, whole);
        }
    }

    #[test]
    fn runs_out_of_range_are_refused() {
        let bytes = pack(&[MISSING, 1.0, 2.0, MISSING]);
        assert_eq!(bytes.len(), HEAD_BYTES + 8);
        assert_eq!(unpack(&bytes, &mut [0.0; 2]), None);
        assert_eq!(unpack(&bytes[..12], &mut [0.0; 4]), None);
        assert!(pack(&[MISSING; 5]).is_empty() && !MISSING.is_finite());
    }
}
