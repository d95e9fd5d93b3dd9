//! The update of the dense parameters, with every rule: the same bits as on the CPU.

use half::bf16;
use rankine_cuda::kernels::{DenseUpdate, Element, Rate};
use rankine_cuda::{Buffer, Pointer};
use rankine_embedding::{Optimizer, Step, UpdateRule};

use super::{Bench, Body, CASES, Outcome, Words};

pub(crate) const BODIES: &[Body] = &[
    ("dense_parameters_learn_as_on_the_cpu_in_f32", CASES, parameters_learn_as_on_the_cpu::<f32>),
    ("dense_parameters_learn_as_on_the_cpu_in_bf16", CASES, parameters_learn_as_on_the_cpu::<bf16>),
    ("a_stopped_update_writes_nothing", 1, a_stopped_update_writes_nothing),
];

const RULES: [UpdateRule; 9] = [
    UpdateRule::Sgd,
    UpdateRule::Momentum { momentum: 0.9, nesterov: false },
    UpdateRule::Momentum { momentum: 0.9, nesterov: true },
    UpdateRule::Adagrad { initial_accumulator: 0.0, epsilon: 1e-8 },
    UpdateRule::Adagrad { initial_accumulator: 0.1, epsilon: 0.0 },
    UpdateRule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
    UpdateRule::Ftrl { beta: 0.0, l1: 0.0, l2: 0.0 },
    UpdateRule::Ftrl { beta: 0.5, l1: 1e-3, l2: 0.0 },
    UpdateRule::Ftrl { beta: 1.0, l1: 0.3, l2: 0.2 },
];
const STEPS: u64 = 20;

/// Parameters with one rule, on the GPU and on the CPU.
struct Learner {
    optimizer: Optimizer,
    parameters: Vec<f32>,
    state: Vec<f32>,
    on_gpu: [Buffer<f32>; 3],
}

impl Learner {
    fn new(bench: &Bench, words: &mut Words, rule: UpdateRule) -> Result<Self, libtest_mimic::Failed> {
        let count = 1 + words.below(3000) as usize;
        let weight_decay = words.one_of(&[0.0, 0.01]);
        let parameters: Vec<f32> = words.numbers(count);
        let mut state = vec![0.0; rule.state_elements(count)];
        rule.initialize(&parameters, &mut state);
        let (first, second) = state.split_at(count.min(state.len()));
        Ok(Self {
            optimizer: Optimizer { rule, learning_rate: 0.125, weight_decay },
            on_gpu: [bench.buffer(&parameters)?, bench.buffer(first)?, bench.buffer(second)?],
            parameters,
            state,
        })
    }

    fn update<T: Element>(&self, copies: &Buffer<T>) -> DenseUpdate<T> {
        let [parameters, first, second] = self.on_gpu.each_ref().map(Buffer::pointer);
        DenseUpdate {
            parameters,
            gradients: Pointer::NULL,
            first,
            second,
            copies: copies.pointer(),
            rate: Pointer::NULL,
            scale: Pointer::NULL,
            stop: Pointer::NULL,
            rule: (&self.optimizer).into(),
            count: self.parameters.len() as u32,
            reserved: 0,
        }
    }

    fn read(&self, bench: &Bench) -> Result<Vec<u32>, libtest_mimic::Failed> {
        let mut bits = Vec::new();
        for buffer in &self.on_gpu {
            bits.extend(buffer.read(&bench.lane)?.into_iter().map(f32::to_bits));
        }
        Ok(bits)
    }
}

fn parameters_learn_as_on_the_cpu<T: Element>(bench: &Bench, words: &mut Words) -> Outcome {
    for rule in RULES {
        let mut learner = Learner::new(bench, words, rule)?;
        let count = learner.parameters.len();
        let copies = bench.poison::<T>(count)?;
        let stop = bench.buffer(&[0u32])?;
        for number in 1..=STEPS {
            let mut gradients: Vec<f32> = words.numbers(count);
            // Zero gradients, and gradients whose square vanishes.
            gradients[0] = words.one_of(&[0.0, -0.0, 1e-30]);
            let (scale, scaled) = (0.3f32, words.below(2) == 0);
            let update = learner.optimizer.at(Step { number, rate_factor: 0.75 });
            let gradients_at = bench.buffer(&gradients)?;
            let (scale_at, rate_at) = (bench.buffer(&[scale])?, bench.buffer(&[Rate::from(update)])?);
            let parameters = DenseUpdate {
                gradients: gradients_at.pointer(),
                rate: rate_at.pointer(),
                scale: if scaled { scale_at.pointer() } else { Pointer::NULL },
                stop: stop.pointer(),
                ..learner.update(&copies)
            };
            // SAFETY: the buffers have as many elements as there are parameters.
            unsafe { bench.lane.launch(&parameters, (3, 1)) }?;
            bench.lane.synchronize()?;
            if scaled {
                gradients.iter_mut().for_each(|gradient| *gradient *= scale);
            }
            update.apply(&mut learner.parameters, &mut learner.state, &gradients);
            let expected = learner.parameters.iter().chain(&learner.state).map(|value| value.to_bits());
            if let Some(index) = learner.read(bench)?.into_iter().zip(expected).position(|(a, b)| a != b) {
                return Err(format!("{rule:?}, step {number}: element {index} of {count} differs").into());
            }
        }
        for (copy, &parameter) in copies.read(&bench.lane)?.into_iter().zip(&learner.parameters) {
            if copy.value().to_bits() != T::of(parameter).value().to_bits() {
                return Err(format!("{rule:?}: the copy of {parameter} is {}", copy.value()).into());
            }
        }
    }
    Ok(())
}

fn a_stopped_update_writes_nothing(bench: &Bench, words: &mut Words) -> Outcome {
    for rule in RULES {
        let learner = Learner::new(bench, words, rule)?;
        let before = learner.read(bench)?;
        let copies = bench.poison::<bf16>(learner.parameters.len())?;
        let gradients = bench.buffer(&vec![f32::NAN; learner.parameters.len()])?;
        let (rate, stop) = (bench.buffer(&[Rate::default()])?, bench.buffer(&[1u32])?);
        let update = DenseUpdate {
            gradients: gradients.pointer(),
            rate: rate.pointer(),
            stop: stop.pointer(),
            ..learner.update(&copies)
        };
        // SAFETY: the buffers have as many elements as there are parameters.
        unsafe { bench.lane.launch(&update, (3, 1)) }?;
        let copies = copies.read(&bench.lane)?;
        if learner.read(bench)? != before || copies.iter().any(|copy| copy.to_bits() != 0xffff) {
            return Err(format!("{rule:?}: a value differs").into());
        }
    }
    Ok(())
}
