//! Attention over sequences: the kernels against the formula, whole trainings against the CPU, and resuming.

mod bench;
mod formula;
mod kernels;
mod positions;
mod resume;
mod training;

use super::Body;

pub(crate) fn bodies() -> Vec<Body> {
    [kernels::BODIES, positions::BODIES, training::BODIES, resume::BODIES, bench::BODIES].concat()
}
