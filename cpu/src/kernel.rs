//! The innermost loops of matrix products, one version per SIMD instruction set, chosen at run time.
//!
//! A *block* of a product, a few rows by a few vectors, is summed in registers: each step loads vectors of the right
//! matrix and multiplies them by elements of the left one. Every element of a block is one chain of sums in the order
//! of the depth. The shapes of blocks differ between instruction sets, but only speed depends on them: if products and
//! sums are fused, all instruction sets give the same bits.
//!
//! The kernels use intrinsics because the compiler, left to itself, keeps a block's sums in memory as soon as any loop
//! around them is not unrolled, at a twentieth of the speed.
//!
//! The elements of both matrices are numbers, or pairs of bf16 numbers that follow each other along the depth: see
//! [`Element`].

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

#[cfg(test)]
use crate::simd::round;
use crate::simd::{Kernel, LANES, Simd, dispatch, dispatch_bf16, has_amx};

/// Sixteen elements on one cache line: one, two or four vector registers. Vectors that straddle two cache lines cost a
/// twelfth of the kernels' speed.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(test, derive(PartialEq))]
#[repr(C, align(64))]
pub(crate) struct Line<E = f32>(pub(crate) [E; LANES]);

/// Lines of the largest block, of four lines in sixteen rows.
pub(crate) const BLOCK_LINES: usize = 64;

// SAFETY: sixteen elements of four bytes, without padding, since size and alignment are equal; every bit pattern is an
// element.
unsafe impl<E: Element> bytemuck::Zeroable for Line<E> {}
// SAFETY: as above.
unsafe impl<E: Element> bytemuck::Pod for Line<E> {}

impl Line {
    pub(crate) const ZERO: Self = Self([0.0; LANES]);
}

/// Two bf16 numbers that follow each other along the depth of a product, the first in the lower half: on little-endian
/// processors, two `u16` in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Pair(u32);

// SAFETY: four bytes, and every bit pattern is a pair.
unsafe impl bytemuck::Zeroable for Pair {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Pair {}

impl Pair {
    /// Rounds two numbers to bf16.
    #[cfg(test)]
    pub(crate) fn new(first: f32, second: f32) -> Self {
        let [first, second] = [first, second].map(|number| u32::from(round(number)));
        Self(first | second << 16)
    }

    /// Returns both numbers.
    #[inline(always)]
    pub(crate) fn numbers(self) -> [f32; 2] {
        [self.0 << 16, self.0 & 0xffff_0000].map(f32::from_bits)
    }
}

/// What a kernel multiplies at once, in 32 bits: one f32 number, or a pair of bf16 numbers, whose products are added.
/// Elements of one number ignore the second half, or the second row, of what they are made of.
pub(crate) trait Element: bytemuck::Pod {
    /// Numbers of an element, along the depth of a product.
    const NUMBERS: usize;

    /// Makes elements of consecutive numbers.
    fn consecutive<S: Simd>(simd: S, numbers: &[[f32; LANES]; 2]) -> [Self; LANES];
    /// Makes elements of two rows of numbers.
    fn interleave<S: Simd>(simd: S, first: &[f32; LANES], second: &[f32; LANES]) -> [Self; LANES];
    /// Returns the same element in all lanes.
    fn splat<S: Simd>(self, simd: S) -> S::Vector;
    /// Loads a line of elements.
    fn load<S: Simd>(simd: S, elements: &[Self; LANES]) -> S::Vector;
    /// Adds the product of two elements to an f32 sum.
    fn multiply_add<S: Simd>(simd: S, x: S::Vector, y: S::Vector, sum: S::Vector) -> S::Vector;
    /// Adds the numbers, one after another.
    fn add_to(self, sum: f32) -> f32;
    /// Whether products of these elements are summed in tile registers on this processor.
    fn in_tile_registers() -> bool;
    /// Runs a kernel for these elements with the best SIMD instructions of the processor.
    fn dispatch<K: Kernel>(kernel: K) -> K::Output;
}

impl Element for f32 {
    const NUMBERS: usize = 1;

    #[inline(always)]
    fn consecutive<S: Simd>(_: S, numbers: &[[f32; LANES]; 2]) -> [f32; LANES] {
        numbers[0]
    }

    #[inline(always)]
    fn interleave<S: Simd>(_: S, first: &[f32; LANES], _: &[f32; LANES]) -> [f32; LANES] {
        *first
    }

    #[inline(always)]
    fn splat<S: Simd>(self, simd: S) -> S::Vector {
        simd.splat(self)
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, elements: &[f32; LANES]) -> S::Vector {
        simd.load(elements)
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, x: S::Vector, y: S::Vector, sum: S::Vector) -> S::Vector {
        simd.multiply_add(x, y, sum)
    }

    #[inline(always)]
    fn add_to(self, sum: f32) -> f32 {
        sum + self
    }

    #[inline]
    fn in_tile_registers() -> bool {
        false
    }

    #[inline]
    fn dispatch<K: Kernel>(kernel: K) -> K::Output {
        dispatch(kernel)
    }
}

impl Element for Pair {
    const NUMBERS: usize = 2;

    #[inline(always)]
    fn consecutive<S: Simd>(simd: S, numbers: &[[f32; LANES]; 2]) -> [Self; LANES] {
        bytemuck::cast(numbers.each_ref().map(|numbers| simd.round(numbers)))
    }

    #[inline(always)]
    fn interleave<S: Simd>(simd: S, first: &[f32; LANES], second: &[f32; LANES]) -> [Self; LANES] {
        bytemuck::cast(simd.round_and_interleave(first, second))
    }

    #[inline(always)]
    fn splat<S: Simd>(self, simd: S) -> S::Vector {
        simd.splat(f32::from_bits(self.0))
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, elements: &[Self; LANES]) -> S::Vector {
        simd.load(bytemuck::cast_ref(elements))
    }

    #[inline(always)]
    fn multiply_add<S: Simd>(simd: S, x: S::Vector, y: S::Vector, sum: S::Vector) -> S::Vector {
        simd.multiply_add_pairs(x, y, sum)
    }

    #[inline(always)]
    fn add_to(self, sum: f32) -> f32 {
        let [first, second] = self.numbers();
        sum + first + second
    }

    #[inline]
    fn in_tile_registers() -> bool {
        has_amx()
    }

    #[inline]
    fn dispatch<K: Kernel>(kernel: K) -> K::Output {
        dispatch_bf16(kernel)
    }
}

/// Returns the lines of a full panel of a right matrix: the width of the blocks on this machine.
pub(crate) fn panel_lines() -> usize {
    struct Width;
    impl Kernel for Width {
        type Output = usize;
        #[inline(always)]
        fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, _: S) -> usize {
            LINES
        }
    }
    dispatch(Width)
}

/// Requests that a line, needed much later, be brought into the second-level cache.
#[inline(always)]
fn prefetch<E>(line: &Line<E>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that every x86-64 processor has; no address makes it fail.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(line).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// `out[r][v] = sum over i of x(r, i) panel[i][v]`, of the first `LINES` of the panel's `FULL` lines. The left matrix
/// is read in pieces of `piece` columns each, the last one shorter: `left` returns a piece of all rows, with columns
/// `stride` apart. Prefetches the lines `ahead`, one every second step.
///
/// Sums are stored here, by simple loops that the compiler is sure to unroll; otherwise it would keep all of them in
/// memory throughout.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "iterators in closures become calls without the instruction set's features"
)]
pub(crate) fn sum_block<'a, S: Simd, E: Element, const ROWS: usize, const LINES: usize, const FULL: usize>(
    simd: S,
    panel: &[Line<E>],
    left: impl Fn(usize) -> [&'a [E]; ROWS],
    (piece, stride): (usize, usize),
    mut ahead: &[Line<E>],
    out: &mut [[Line; LINES]],
) {
    let mut sums = [[simd.splat(0.0); LINES]; ROWS];
    for (number, steps) in panel.as_chunks::<FULL>().0.chunks(piece).enumerate() {
        let left = left(number);
        let (pairs, last) = steps.as_chunks::<2>();
        let (now, later) = ahead.split_at(ahead.len().min(pairs.len()));
        ahead = later;
        for (i, pair) in pairs.iter().enumerate() {
            if let Some(line) = now.get(i) {
                prefetch(line);
            }
            for (half, lines) in pair.iter().enumerate() {
                for r in 0..ROWS {
                    let x = left[r][(2 * i + half) * stride].splat(simd);
                    for v in 0..LINES {
                        sums[r][v] = E::multiply_add(simd, x, E::load(simd, &lines[v].0), sums[r][v]);
                    }
                }
            }
        }
        for lines in last {
            for r in 0..ROWS {
                let x = left[r][(steps.len() - 1) * stride].splat(simd);
                for v in 0..LINES {
                    sums[r][v] = E::multiply_add(simd, x, E::load(simd, &lines[v].0), sums[r][v]);
                }
            }
        }
    }
    for r in 0..ROWS {
        for v in 0..LINES {
            simd.store(sums[r][v], &mut out[r][v].0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::on_every_instruction_set;

    /// The results of one instruction set on some lines.
    #[derive(Debug, PartialEq)]
    struct Results {
        splat: Line,
        sum: Line,
        product: Line,
        relu: Line,
        masked: Line,
        /// A block of two rows and one line, of a panel that is one line wide and three long.
        block: [Line; 2],
    }

    struct AllOperations<'a> {
        x: &'a Line,
        y: &'a Line,
        sum: &'a Line,
    }

    impl Kernel for AllOperations<'_> {
        type Output = Results;

        #[inline(always)]
        fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) -> Results {
            let Self { x, y, sum } = self;
            let line = |vector: S::Vector| {
                let mut line = Line::ZERO;
                simd.store(vector, &mut line.0);
                line
            };
            let [a, b, c] = [x, y, sum].map(|line| simd.load(&line.0));
            let panel = [*x, *y, *sum];
            let mut block = [[Line::ZERO]; 2];
            let rows = |_| [&x.0[..5], &y.0[..5]];
            sum_block::<S, f32, 2, 1, 1>(simd, &panel, rows, (3, 2), &[], &mut block);
            Results {
                splat: line(simd.splat(x.0[3])),
                sum: line(simd.add(a, b)),
                product: line(simd.multiply_add(a, b, c)),
                relu: line(simd.relu(a)),
                masked: line(simd.where_positive(b, a)),
                block: block.map(|[line]| line),
            }
        }
    }

    /// Checks every instruction set of this processor, not only the best one. The numbers are small integers, so
    /// rounding a product before it is added makes no difference.
    #[test]
    fn every_instruction_set_computes_the_same_operations() {
        let line = |of: &dyn Fn(i32) -> i32| {
            let mut line = Line::ZERO;
            (0..).zip(&mut line.0).for_each(|(lane, value)| *value = of(lane) as f32);
            line
        };
        let x = line(&|lane| 2 * lane - 17);
        let y = line(&|lane| 7 - lane * lane % 13);
        let sum = line(&|lane| lane * 5 - 31);
        let lanes = |of: &dyn Fn(f32, f32, f32) -> f32| {
            let mut line = Line::ZERO;
            (0..LANES).for_each(|lane| line.0[lane] = of(x.0[lane], y.0[lane], sum.0[lane]));
            line
        };
        // Columns 0, 2 and 4 of each row, times the lines of the panel.
        let block = |row: &Line| lanes(&|x, y, sum| row.0[0] * x + row.0[2] * y + row.0[4] * sum);
        let expected = Results {
            splat: lanes(&|_, _, _| x.0[3]),
            sum: lanes(&|x, y, _| x + y),
            product: lanes(&|x, y, sum| x * y + sum),
            relu: lanes(&|x, _, _| x.max(0.0)),
            masked: lanes(&|x, y, _| if y > 0.0 { x } else { 0.0 }),
            block: [block(&x), block(&y)],
        };
        for (name, results) in on_every_instruction_set(|| AllOperations { x: &x, y: &y, sum: &sum }) {
            assert_eq!(results, expected, "{name}");
        }
        let broken = Line([f32::NAN; LANES]);
        let Results { relu, masked, .. } = dispatch(AllOperations { x: &broken, y: &x, sum: &sum });
        assert!(relu.0.iter().all(|value| value.is_nan()), "a ReLU hides NaN");
        let nans = masked.0.iter().zip(&x.0).all(|(value, mask)| value.is_nan() == (*mask > 0.0));
        assert!(nans, "{masked:?}");
    }
}
