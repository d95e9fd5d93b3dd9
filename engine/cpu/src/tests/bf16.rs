//! Training in bf16, compared with training in f32.

use rankine_cpu::Arithmetic;
use rankine_embedding::{Optimizer, UpdateRule};
use rankine_model::evaluation::auc;
use rankine_model::{Interaction, Model, ModelSpec, TrainingRules};
use rankine_reader::Samples;

use super::oracle::{BatchShape, models, random_batch};
use crate::CpuModel;

/// Half a unit in the last place of bf16, relative to the number: of eight bits, the first is not stored.
const HALF_UNIT: f64 = 1.0 / 256.0;

/// Returns a model that learns with Adagrad, in some arithmetic.
fn model(spec: &ModelSpec, seed: u64, arithmetic: Arithmetic) -> CpuModel {
    let optimizer = |learning_rate| Optimizer {
        rule: UpdateRule::Adagrad { initial_accumulator: 0.1, epsilon: 1e-8 },
        learning_rate,
        weight_decay: 0.0,
    };
    let rules = TrainingRules {
        dense: optimizer(0.05),
        dense_clip_norm: None,
        tables: vec![optimizer(0.2); spec.tables.len()],
        wide: optimizer(0.1),
    };
    let mut model = CpuModel::initialized(&Model { spec: spec.clone(), rules }, seed);
    model.set_arithmetic(arithmetic);
    model
}

/// Returns samples whose labels say whether another model's logits are above their median.
fn labelled(teacher: &mut CpuModel, samples: usize, seed: u64) -> Samples {
    let shape = BatchShape { samples, one_hot: false, weighted: false, missing: false };
    let mut batch = random_batch(teacher.spec(), shape, seed);
    let mut logits = Vec::new();
    teacher.logits(&batch, &mut logits);
    let heads = teacher.spec().heads.len();
    for number in 0..heads {
        let of_head: Vec<f32> = logits.iter().copied().skip(number).step_by(heads).collect();
        let mut sorted = of_head.clone();
        sorted.sort_by(f32::total_cmp);
        let label_number = teacher.spec().heads[number].label_number;
        let labels = of_head.iter().map(|&logit| f32::from(logit > sorted[samples / 2]));
        batch.labels[label_number] = labels.collect();
    }
    batch
}

/// In both arithmetics, every kind of model learns what another model with other weights knows, equally well.
#[test]
fn training_in_bf16_reaches_the_auc_of_f32() {
    for spec in models() {
        let mut teacher = model(&spec, 77, Arithmetic::F32);
        let batches: Vec<_> = (0..16).map(|number| labelled(&mut teacher, 500, number)).collect();
        let unseen = labelled(&mut teacher, 4000, 99);
        let heads = spec.heads.len();
        let trained = [Arithmetic::F32, Arithmetic::Bf16].map(|arithmetic| {
            let mut model = model(&spec, 5, arithmetic);
            let losses: Vec<f64> =
                batches.iter().map(|batch| model.train_step(batch, 1.0).unwrap().loss).collect();
            let mut logits = Vec::new();
            model.logits(&unseen, &mut logits);
            let logits: Vec<f32> = logits.into_iter().step_by(heads).collect();
            let auc = auc(&logits, &unseen.labels[spec.heads[0].label_number]).expect("both classes");
            (losses, auc)
        });
        let [(losses, auc), (bf16_losses, bf16_auc)] = &trained;
        let case = format!("{:?}: {trained:?}", spec.interaction);
        assert!(*auc > 0.6, "{case}");
        assert!((auc - bf16_auc).abs() < 0.01, "{case}");
        // Operands are rounded by 2^-8 of their size. Logits, of size 1, are a chain of at most five products, which
        // the first loss sums up; its slope is at most 1.
        assert!((losses[0] - bf16_losses[0]).abs() < 10.0 * HALF_UNIT, "{case}");
        assert_ne!(losses[0], bf16_losses[0], "nothing was rounded: {case}");
    }
}

/// The gradients of a step, which with plain SGD at rate 1 are the change of the parameters.
#[test]
fn gradients_in_bf16_are_those_of_f32_within_rounding() {
    for spec in models() {
        let shape = BatchShape { samples: 333, one_hot: false, weighted: true, missing: false };
        let batch = random_batch(&spec, shape, 4);
        let gradients = [Arithmetic::F32, Arithmetic::Bf16].map(|arithmetic| {
            let mut model = CpuModel::initialized(&Model::sgd(spec.clone(), 1.0), 8);
            model.set_arithmetic(arithmetic);
            let before = model.parameters().to_vec();
            model.train_step(&batch, 1.0).unwrap();
            let change =
                before.iter().zip(model.parameters()).map(|(before, after)| f64::from(before - after));
            change.collect::<Vec<f64>>()
        });
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let [exact, found] = &gradients;
        let difference = norm(&mut exact.iter().zip(found).map(|(exact, found)| exact - found));
        // Up to eight products in a row, whose operands are both rounded by at most 2^-8 of their size.
        let bound = 8.0 * 2.0 * HALF_UNIT * norm(&mut exact.iter().copied());
        assert!(0.0 < difference && difference < bound, "{:?}: {difference} {bound}", spec.interaction);
    }
}

#[test]
fn any_number_of_threads_and_any_run_give_the_same_bits() {
    for spec in models() {
        let run = |threads| {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
                let mut model = model(&spec, 7, Arithmetic::Bf16);
                // Ten tiles: two rounds of them on one thread, one round on more. The last tile has an odd number.
                let shape = BatchShape { samples: 2499, one_hot: false, weighted: true, missing: false };
                let batch = random_batch(&spec, shape, 1);
                let losses: Vec<f64> = (0..4).map(|_| model.train_step(&batch, 1.0).unwrap().loss).collect();
                (losses, model.parameters().to_vec())
            })
        };
        let one = run(1);
        assert!(one.0[3] < one.0[0], "{:?}: {:?}", spec.interaction, one.0);
        assert_eq!(one, run(1));
        assert_eq!(one, run(2));
        assert_eq!(one, run(5));
    }
}

/// A model that changes its arithmetic computes as if it had always had it, also in buffers that were used before.
#[test]
fn the_arithmetic_of_a_model_can_be_changed() {
    let spec = models().into_iter().find(|spec| spec.interaction == Interaction::Dot).expect("a DLRM");
    let shape = BatchShape { samples: 70, one_hot: false, weighted: false, missing: false };
    let batch = random_batch(&spec, shape, 1);
    let logits = |changes: &[Arithmetic]| {
        let mut model = model(&spec, 3, Arithmetic::F32);
        let mut logits = Vec::new();
        for &arithmetic in changes {
            model.set_arithmetic(arithmetic);
            logits.clear();
            model.logits(&batch, &mut logits);
        }
        logits
    };
    let [f32, bf16] = [Arithmetic::F32, Arithmetic::Bf16].map(|arithmetic| logits(&[arithmetic]));
    assert_ne!(f32, bf16);
    assert_eq!(logits(&[Arithmetic::F32, Arithmetic::Bf16]), bf16);
    assert_eq!(logits(&[Arithmetic::Bf16, Arithmetic::F32]), f32);
}
