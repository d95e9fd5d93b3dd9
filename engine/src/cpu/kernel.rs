//! The innermost loops of matrix products, for each kind of vector unit, chosen at run time.
//!
//! A *block* of a product, a few rows by a few vectors, is summed in registers: each step loads vectors of the right
//! matrix and multiplies them by elements of the left one. Every element of a block is one chain of sums in the order
//! of the depth. Shapes of blocks differ between units, and with them nothing but speed: where products and sums are
//! fused, all units give the same bits.
//!
//! Left to itself, the compiler keeps a block's sums in memory as soon as any loop around them is not unrolled, at a
//! twentieth of the speed; hence the units' own instructions.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m512, _CMP_GT_OQ, _MM_HINT_T1, _mm_prefetch, _mm256_add_ps, _mm256_and_ps, _mm256_cmp_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
    _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_ps,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

/// Floats of a [`Line`].
pub(super) const LANES: usize = 16;

/// Sixteen floats on a cache line of their own: one vector register, two, or four. Vectors that straddle two cache
/// lines cost a twelfth of the kernels' speed.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(test, derive(PartialEq))]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; LANES]);

/// Lines of the largest block.
pub(super) const BLOCK_LINES: usize = 24;

// SAFETY: sixteen floats and no padding, since that is the alignment; all bits are floats.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Line {}

impl Line {
    pub(super) const ZERO: Self = Self([0.0; LANES]);
}

/// A kind of vector unit. Its values are proofs: only [`dispatch`] makes one, where the processor has the unit.
pub(super) trait Unit: Copy {
    /// A line in registers.
    type Vector: Copy;

    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::Vector;
    /// Reads a line's worth of floats.
    fn load(self, floats: &[f32; LANES]) -> Self::Vector;
    /// Writes a line's worth of floats.
    fn store(self, vector: Self::Vector, floats: &mut [f32; LANES]);
    /// `x + y`
    fn add(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// `x y + sum`
    fn multiply_add(self, x: Self::Vector, y: Self::Vector, sum: Self::Vector) -> Self::Vector;
    /// `max(x, 0)`, but NaN stays NaN, where `f32::max` makes it 0: training on broken weights would go on unnoticed.
    fn relu(self, x: Self::Vector) -> Self::Vector;
    /// `x` where `mask` is positive, else 0.
    fn where_positive(self, mask: Self::Vector, x: Self::Vector) -> Self::Vector;
}

/// What is compiled for each kind of vector unit.
pub(super) trait Work {
    /// What comes out.
    type Output;

    /// Does the work in blocks of up to `ROWS` rows and `LINES` lines, or of `TALL` rows and one line. Implementations
    /// are `#[inline(always)]`, as is all that they call, or they would be compiled for the base instructions.
    fn run<U: Unit, const ROWS: usize, const LINES: usize, const TALL: usize>(self, unit: U) -> Self::Output;
}

/// Does work with the best vector unit that the processor has.
#[inline]
pub(super) fn dispatch<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        // 24 of 32 registers hold sums.
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
        fn avx512<W: Work>(work: W) -> W::Output {
            work.run::<Avx512, 6, 4, 24>(Avx512(()))
        }
        // 12 of 16 registers hold sums.
        #[target_feature(enable = "avx2,fma")]
        fn avx2<W: Work>(work: W) -> W::Output {
            work.run::<Avx2, 6, 1, 6>(Avx2(()))
        }
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
        {
            // SAFETY: the processor was just found to have every feature that the function is compiled for.
            return unsafe { avx512(work) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor was just found to have every feature that the function is compiled for.
            return unsafe { avx2(work) };
        }
    }
    // 8 of 16 registers of four floats hold sums.
    work.run::<Base, 2, 1, 2>(Base)
}

/// AVX-512: a line is one register.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Unit for Avx512 {
    type Vector = __m512;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: there is an `Avx512` only where the processor was found to have AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, floats: &[f32; LANES]) -> __m512 {
        // SAFETY: as above; sixteen floats are 64 bytes.
        unsafe { _mm512_loadu_ps(floats.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, vector: __m512, floats: &mut [f32; LANES]) {
        // SAFETY: as above; sixteen floats are 64 bytes.
        unsafe { _mm512_storeu_ps(floats.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn add(self, x: __m512, y: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(x, y) }
    }

    #[inline(always)]
    fn multiply_add(self, x: __m512, y: __m512, sum: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(x, y, sum) }
    }

    #[inline(always)]
    fn relu(self, x: __m512) -> __m512 {
        // Of a number and NaN the instruction gives the second.
        // SAFETY: as above.
        unsafe { _mm512_max_ps(_mm512_setzero_ps(), x) }
    }

    #[inline(always)]
    fn where_positive(self, mask: __m512, x: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(mask, _mm512_setzero_ps()), x) }
    }
}

/// AVX2 with FMA: a line is two registers.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Unit for Avx2 {
    type Vector = [__m256; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> [__m256; 2] {
        // SAFETY: there is an `Avx2` only where the processor was found to have AVX2 and FMA.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(self, floats: &[f32; LANES]) -> [__m256; 2] {
        let (halves, _) = floats.as_chunks::<8>();
        // SAFETY: as above; both halves are 32 bytes.
        unsafe { [_mm256_loadu_ps(halves[0].as_ptr()), _mm256_loadu_ps(halves[1].as_ptr())] }
    }

    #[inline(always)]
    fn store(self, vector: [__m256; 2], floats: &mut [f32; LANES]) {
        let (halves, _) = floats.as_chunks_mut::<8>();
        for (half, register) in halves.iter_mut().zip(vector) {
            // SAFETY: as above; both halves are 32 bytes.
            unsafe { _mm256_storeu_ps(half.as_mut_ptr(), register) }
        }
    }

    #[inline(always)]
    fn add(self, x: [__m256; 2], y: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: as above.
        unsafe { [_mm256_add_ps(x[0], y[0]), _mm256_add_ps(x[1], y[1])] }
    }

    #[inline(always)]
    fn multiply_add(self, x: [__m256; 2], y: [__m256; 2], sum: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: as above.
        unsafe { [_mm256_fmadd_ps(x[0], y[0], sum[0]), _mm256_fmadd_ps(x[1], y[1], sum[1])] }
    }

    #[inline(always)]
    fn relu(self, x: [__m256; 2]) -> [__m256; 2] {
        // Of a number and NaN the instruction gives the second.
        // SAFETY: as above.
        unsafe { [_mm256_max_ps(_mm256_setzero_ps(), x[0]), _mm256_max_ps(_mm256_setzero_ps(), x[1])] }
    }

    #[inline(always)]
    fn where_positive(self, mask: [__m256; 2], x: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: as above.
        let positive = |mask| unsafe { _mm256_cmp_ps::<_CMP_GT_OQ>(mask, _mm256_setzero_ps()) };
        // SAFETY: as above.
        unsafe { [_mm256_and_ps(positive(mask[0]), x[0]), _mm256_and_ps(positive(mask[1]), x[1])] }
    }
}

/// The instructions that every processor of the target has.
#[derive(Clone, Copy)]
struct Base;

impl Unit for Base {
    type Vector = [f32; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; LANES] {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, floats: &[f32; LANES]) -> [f32; LANES] {
        *floats
    }

    #[inline(always)]
    fn store(self, vector: [f32; LANES], floats: &mut [f32; LANES]) {
        *floats = vector;
    }

    #[inline(always)]
    fn add(self, mut x: [f32; LANES], y: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            x[lane] += y[lane];
        }
        x
    }

    #[inline(always)]
    fn multiply_add(self, x: [f32; LANES], y: [f32; LANES], mut sum: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            // Where the target has no such instruction, `mul_add` is a call of some hundred cycles.
            sum[lane] = if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                x[lane].mul_add(y[lane], sum[lane])
            } else {
                sum[lane] + x[lane] * y[lane]
            };
        }
        sum
    }

    #[inline(always)]
    fn relu(self, x: [f32; LANES]) -> [f32; LANES] {
        x.map(|x| if 0.0 > x { 0.0 } else { x })
    }

    #[inline(always)]
    fn where_positive(self, mask: [f32; LANES], mut x: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            x[lane] = if mask[lane] > 0.0 { x[lane] } else { 0.0 };
        }
        x
    }
}

/// Lines of a full panel of a right matrix: as many as the blocks of this machine's kernels are wide.
pub(super) fn panel_lines() -> usize {
    struct Width;
    impl Work for Width {
        type Output = usize;
        #[inline(always)]
        fn run<U: Unit, const ROWS: usize, const LINES: usize, const TALL: usize>(self, _: U) -> usize {
            LINES
        }
    }
    dispatch(Width)
}

/// Asks for a line that is read a good deal later to be brought into the second-level cache.
#[inline(always)]
fn prefetch(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, of instructions that every x86-64 processor has; no address makes it fail.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(line).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// `out[r][v] = sum over i of x(r, i) panel[i][v]`, of the first `LINES` of the `FULL` lines that the panel is wide.
/// The left matrix comes in pieces of `piece` columns each, the last one shorter: `left` gives those of all rows,
/// columns `stride` apart. On its way it asks for the lines `ahead`, one every second step.
///
/// Sums go to memory here, by simple loops that the compiler is sure to unroll: otherwise all of them would lie in
/// memory all along.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "iterators in closures end up as calls without the unit's features"
)]
pub(super) fn sum_block<'a, U: Unit, const ROWS: usize, const LINES: usize, const FULL: usize>(
    unit: U,
    panel: &[Line],
    left: impl Fn(usize) -> [&'a [f32]; ROWS],
    (piece, stride): (usize, usize),
    mut ahead: &[Line],
    out: &mut [[Line; LINES]],
) {
    let mut sums = [[unit.splat(0.0); LINES]; ROWS];
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
                    let x = unit.splat(left[r][(2 * i + half) * stride]);
                    for v in 0..LINES {
                        sums[r][v] = unit.multiply_add(x, unit.load(&lines[v].0), sums[r][v]);
                    }
                }
            }
        }
        for lines in last {
            for r in 0..ROWS {
                let x = unit.splat(left[r][(steps.len() - 1) * stride]);
                for v in 0..LINES {
                    sums[r][v] = unit.multiply_add(x, unit.load(&lines[v].0), sums[r][v]);
                }
            }
        }
    }
    for r in 0..ROWS {
        for v in 0..LINES {
            unit.store(sums[r][v], &mut out[r][v].0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a unit makes of some lines.
    #[derive(Debug, PartialEq)]
    struct Results {
        splat: Line,
        sum: Line,
        product: Line,
        relu: Line,
        masked: Line,
        /// Of a block of two rows and a line, of a panel that is a line wide and three long.
        block: [Line; 2],
    }

    struct Everything<'a> {
        x: &'a Line,
        y: &'a Line,
        sum: &'a Line,
    }

    impl Work for Everything<'_> {
        type Output = Results;

        #[inline(always)]
        fn run<U: Unit, const ROWS: usize, const LINES: usize, const TALL: usize>(self, unit: U) -> Results {
            let Self { x, y, sum } = self;
            let line = |vector: U::Vector| {
                let mut line = Line::ZERO;
                unit.store(vector, &mut line.0);
                line
            };
            let [a, b, c] = [x, y, sum].map(|line| unit.load(&line.0));
            let panel = [*x, *y, *sum];
            let mut block = [[Line::ZERO]; 2];
            let rows = |_| [&x.0[..5], &y.0[..5]];
            sum_block::<U, 2, 1, 1>(unit, &panel, rows, (3, 2), &[], &mut block);
            Results {
                splat: line(unit.splat(x.0[3])),
                sum: line(unit.add(a, b)),
                product: line(unit.multiply_add(a, b, c)),
                relu: line(unit.relu(a)),
                masked: line(unit.where_positive(b, a)),
                block: block.map(|[line]| line),
            }
        }
    }

    /// Every unit that this processor has, not the best one alone. The numbers are small and whole, so that it makes no
    /// difference whether a product is rounded before it is added.
    #[test]
    fn every_vector_unit_computes_what_is_asked() {
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
        let work = || Everything { x: &x, y: &y, sum: &sum };
        assert_eq!(dispatch(work()), expected);
        assert_eq!(work().run::<Base, 2, 1, 2>(Base), expected);
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn avx2(work: Everything<'_>) -> Results {
                work.run::<Avx2, 6, 1, 6>(Avx2(()))
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the processor was just found to have every feature that the function is compiled for.
                assert_eq!(unsafe { avx2(work()) }, expected);
            }
        }
        let broken = Line([f32::NAN; LANES]);
        let Results { relu, masked, .. } = dispatch(Everything { x: &broken, y: &x, sum: &sum });
        assert!(relu.0.iter().all(|value| value.is_nan()), "a ReLU hides NaN");
        let nans = masked.0.iter().zip(&x.0).all(|(value, mask)| value.is_nan() == (*mask > 0.0));
        assert!(nans, "{masked:?}");
    }
}
