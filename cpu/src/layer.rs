//! The three products of a fully connected layer: forward, and the gradients with respect to its input and its weights.

use std::ops::Range;

use crate::kernel::{Element, Pair};
use crate::matmul::{Epilogue, Output, product, transposed_product};
use crate::panels::{Arithmetic, Matrix, MatrixMut, Operand, Panels};

/// The weights of a fully connected layer in the form that its products read: `y = x Wᵀ + b`, W `[outputs, inputs]`.
#[derive(Debug)]
pub struct PackedWeights(Form);

#[derive(Debug)]
enum Form {
    Floats(WeightPanels<f32>),
    Pairs(WeightPanels<Pair>),
}

/// Both orientations of W.
#[derive(Debug, Default)]
struct WeightPanels<E> {
    transposed: Panels<E>,
    untransposed: Panels<E>,
}

impl<E: Element> WeightPanels<E> {
    fn pack(&mut self, weights: Matrix<'_>) {
        self.transposed.pack_transposed(weights);
        self.untransposed.pack(weights);
    }
}

impl PackedWeights {
    /// Creates weights that are not packed yet.
    pub fn new(arithmetic: Arithmetic) -> Self {
        Self(match arithmetic {
            Arithmetic::F32 => Form::Floats(WeightPanels::default()),
            Arithmetic::Bf16 => Form::Pairs(WeightPanels::default()),
        })
    }

    /// Packs W; to be repeated after each change of it.
    pub fn pack(&mut self, weights: Matrix<'_>) {
        match &mut self.0 {
            Form::Floats(panels) => panels.pack(weights),
            Form::Pairs(panels) => panels.pack(weights),
        }
    }

    /// Computes `out = x Wᵀ` with an epilogue; x is `[samples, inputs]`, out `[samples, outputs]`.
    pub fn forward(&self, x: &Operand, epilogue: Epilogue<'_>, out: Output<'_>) {
        match (&self.0, x) {
            (Form::Floats(w), Operand::Floats(x)) => product(out, epilogue, x.matrix(), &w.transposed),
            (Form::Pairs(w), Operand::Pairs(x)) => {
                product(out, epilogue, x.of_columns.matrix(), &w.transposed)
            }
            _ => unreachable!("{MIXED}"),
        }
    }

    /// Computes `out = dy W` with an epilogue: the gradients with respect to x, given those with respect to the
    /// outputs.
    pub fn input_gradients(&self, dy: &Operand, epilogue: Epilogue<'_>, out: Output<'_>) {
        match (&self.0, dy) {
            (Form::Floats(w), Operand::Floats(dy)) => product(out, epilogue, dy.matrix(), &w.untransposed),
            (Form::Pairs(w), Operand::Pairs(dy)) => {
                product(out, epilogue, dy.of_columns.matrix(), &w.untransposed);
            }
            _ => unreachable!("{MIXED}"),
        }
    }
}

/// Computes `out = dyᵀ x` with an epilogue, for some of the outputs: the gradients with respect to W, given dy
/// `[samples, outputs]` with respect to the outputs, and the input x `[samples, inputs]`.
pub fn weight_gradients(
    dy: &Operand,
    outputs: Range<usize>,
    x: &Operand,
    epilogue: Epilogue<'_>,
    out: MatrixMut<'_>,
) {
    match (dy, x) {
        (Operand::Floats(dy), Operand::Floats(x)) => {
            transposed_product(out, epilogue, (dy.matrix(), outputs), x);
        }
        (Operand::Pairs(dy), Operand::Pairs(x)) => {
            transposed_product(out, epilogue, (dy.of_rows.matrix(), outputs), &x.of_rows);
        }
        _ => unreachable!("{MIXED}"),
    }
}

const MIXED: &str = "all operands of a layer have the same arithmetic";
