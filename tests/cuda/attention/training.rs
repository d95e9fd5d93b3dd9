//! Trainings with several sequences, each read by another kind of attention.

use rankine::job::Precision;
use rankine_embedding::Pooling;
use rankine_model::{AttentionSpec, AttentionUnit, FeatureSpec, Interaction};
use rankine_reader::Bags;
use rankine_reader::schema::{Hotness, Keep};

use crate::scoring::scores_have_the_same_bits;
use crate::training::{
    Training, draws_train_as_on_the_cpu, is_learned_as_on_the_cpu, overlaps_change_no_bit,
};
use crate::{Bench, Body, Outcome, Words};

pub(super) const BODIES: &[Body] = &[
    ("attention_trains_as_on_the_cpu", 6, |bench, words| {
        let interaction = words.one_of(&INTERACTIONS);
        draws_train_as_on_the_cpu(bench, words, interaction, Training::attended)
    }),
    ("attention_is_learned_from_in_all_precisions", 3, is_learned_from_in_all_precisions),
    ("scores_by_attention_have_the_same_bits", 6, |bench, words| {
        scores_have_the_same_bits(std::slice::from_ref(&bench.device), words, Training::attended, None)
    }),
    ("what_overlaps_changes_no_bit_of_attention", 1, |bench, words| {
        let interaction = words.one_of(&INTERACTIONS);
        overlaps_change_no_bit(
            std::slice::from_ref(&bench.device),
            &Training::attended(words, interaction, 30),
        )
    }),
];

const INTERACTIONS: [Interaction; 4] = [
    Interaction::Dot,
    Interaction::Cross { layers: 2, rank: Some(16) },
    Interaction::FactorizationMachine,
    Interaction::Concat,
];

impl Training {
    /// A training with three sequences: of two columns, whose query is twice the same vector half of the time, and of
    /// one column each. Some samples have no position.
    pub(crate) fn attended(words: &mut Words, interaction: Interaction, steps: usize) -> Self {
        let mut training = Self::random(words, interaction, steps);
        let spec = &mut training.model.spec;
        let before = spec.features.len();
        // Each attribute has the table of the feature of its query.
        let of_pair = words.one_of(&[[1, 2], [1, 1]]);
        let sequences = [of_pair.to_vec(), vec![3], vec![0]];
        let hidden = words.one_of(&[&[][..], &[36], &[16, 5]]).to_vec();
        let [first, second, third] = words.one_of(&[[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
        let mut units = [None, None, None];
        units[first] = Some(AttentionUnit::Din { query: sequences[first].clone(), hidden });
        units[second] = Some(AttentionUnit::Dot { query: sequences[second].clone() });
        units[third] = Some(AttentionUnit::Mean);
        for ((query, unit), name) in sequences.iter().zip(units).zip(["S", "T", "U"]) {
            let length_max = words.one_of(&[1, 6, 40]);
            let features: Vec<_> = (spec.features.len()..).take(query.len()).collect();
            for &feature in query {
                spec.features.push(FeatureSpec {
                    column: format!("c{}", spec.features.len()),
                    table: spec.features[feature].table,
                    pooling: Pooling::Sum,
                    weighted: false,
                });
                training.hotness.push(Hotness::Ragged { max: length_max as u32 });
            }
            let unit = unit.expect("each sequence has a kind");
            let position_embedding = words.one_of(&[None, Some(Keep::Last), Some(Keep::First)]);
            let sequence = name.into();
            spec.attention.push(AttentionSpec { sequence, features, length_max, unit, position_embedding });
        }
        let tables: Vec<_> =
            spec.features[before..].iter().map(|feature| spec.tables[feature.table].rows).collect();
        for batch in &mut training.batches {
            for AttentionSpec { features, length_max, .. } in &spec.attention {
                let lengths: Vec<_> = (0..batch.len)
                    .map(|_| match words.below(4) {
                        0 => 0,
                        _ => words.below(*length_max as u64 + 1),
                    })
                    .collect();
                for feature in features {
                    let mut bags = Bags::default();
                    for &length in &lengths {
                        bags.ids.extend((0..length).map(|_| words.below(tables[feature - before])));
                        bags.offsets.push(bags.ids.len() as u32);
                    }
                    batch.categorical.push(bags);
                }
            }
        }
        training
    }
}

fn is_learned_from_in_all_precisions(bench: &Bench, words: &mut Words) -> Outcome {
    for precision in [Precision::Bf16, Precision::Fp16, Precision::Fp8] {
        if precision == Precision::Fp8 && !bench.device.multiplies_fp8() {
            continue;
        }
        let interaction = words.one_of(&[Interaction::Dot, Interaction::Cross { layers: 2, rank: Some(32) }]);
        let mut training = Training::attended(words, interaction, 200);
        if precision == Precision::Fp8 {
            training.widen_for_fp8();
        }
        is_learned_as_on_the_cpu(bench, &training, precision)?;
    }
    Ok(())
}
