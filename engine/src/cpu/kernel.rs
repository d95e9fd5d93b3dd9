//! The innermost loops of matrix products, one version per SIMD instruction set, chosen at run time.
//!
//! A *block* of a product, a few rows by a few vectors, is summed in registers: each step loads vectors of the right
//! matrix and multiplies them by elements of the left one. Every element of a block is one chain of sums in the order
//! of the depth. The shapes of blocks differ between instruction sets, but only speed depends on them: if products and
//! sums are fused, all instruction sets give the same bits.
//!
//! The kernels use intrinsics because the compiler, left to itself, keeps a block's sums in memory as soon as any loop
//! around them is not unrolled, at a twentieth of the speed.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m512, _CMP_GT_OQ, _MM_HINT_T1, _mm_prefetch, _mm256_add_ps, _mm256_and_ps, _mm256_cmp_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
    _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_ps,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

/// Floats of a [`Line`].
pub(super) const LANES: usize = 16;

/// Sixteen floats on one cache line: one, two or four vector registers. Vectors that straddle two cache lines cost a
/// twelfth of the kernels' speed.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(test, derive(PartialEq))]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; LANES]);

/// Lines of the largest block.
pub(super) const BLOCK_LINES: usize = 24;

// SAFETY: sixteen floats without padding, since size and alignment are equal; every bit pattern is a float.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Line {}

impl Line {
    pub(super) const ZERO: Self = Self([0.0; LANES]);
}

/// A SIMD instruction set. Its values are proofs: only [`dispatch`] makes one, after it has found the instructions on
/// the processor.
pub(super) trait Simd: Copy {
    /// A line in registers.
    type Vector: Copy;

    /// Returns the same number in all lanes.
    fn splat(self, x: f32) -> Self::Vector;
    /// Loads a line of floats.
    fn load(self, floats: &[f32; LANES]) -> Self::Vector;
    /// Stores a line of floats.
    fn store(self, vector: Self::Vector, floats: &mut [f32; LANES]);
    /// `x + y`
    fn add(self, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// `x y + sum`
    fn multiply_add(self, x: Self::Vector, y: Self::Vector, sum: Self::Vector) -> Self::Vector;
    /// `max(x, 0)`, except that NaN stays NaN. `f32::max` would make it 0, and training on broken weights would
    /// continue unnoticed.
    fn relu(self, x: Self::Vector) -> Self::Vector;
    /// `x` where `mask` is positive, else 0.
    fn where_positive(self, mask: Self::Vector, x: Self::Vector) -> Self::Vector;
}

/// Code that is compiled once per SIMD instruction set.
pub(super) trait Kernel {
    /// The result.
    type Output;

    /// Runs in blocks of up to `ROWS` rows and `LINES` lines, or of `TALL` rows and one line. Implementations, and
    /// everything that they call, are `#[inline(always)]`; otherwise they would be compiled for the base instructions.
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) -> Self::Output;
}

/// Runs a kernel with the best SIMD instructions of the processor.
#[inline]
pub(super) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        // 24 of 32 registers hold sums.
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
        fn avx512<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx512, 6, 4, 24>(Avx512(()))
        }
        // 12 of 16 registers hold sums.
        #[target_feature(enable = "avx2,fma")]
        fn avx2<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx2, 6, 1, 6>(Avx2(()))
        }
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
        {
            // SAFETY: the checks above found every feature that the function is compiled for.
            return unsafe { avx512(kernel) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the checks above found every feature that the function is compiled for.
            return unsafe { avx2(kernel) };
        }
    }
    // 8 of 16 registers of four floats hold sums.
    kernel.run::<BaseSimd, 2, 1, 2>(BaseSimd)
}

/// AVX-512: a line is one register.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Simd for Avx512 {
    type Vector = __m512;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: an `Avx512` exists only if the processor was found to have AVX-512.
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
        // Of a number and NaN, the instruction returns the second operand.
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
impl Simd for Avx2 {
    type Vector = [__m256; 2];

    #[inline(always)]
    fn splat(self, x: f32) -> [__m256; 2] {
        // SAFETY: an `Avx2` exists only if the processor was found to have AVX2 and FMA.
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
        // Of a number and NaN, the instruction returns the second operand.
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
struct BaseSimd;

impl Simd for BaseSimd {
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
            // On targets without such an instruction, `mul_add` is a call of some hundred cycles.
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

/// Returns the lines of a full panel of a right matrix: the width of the blocks on this machine.
pub(super) fn panel_lines() -> usize {
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
fn prefetch(line: &Line) {
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
pub(super) fn sum_block<'a, S: Simd, const ROWS: usize, const LINES: usize, const FULL: usize>(
    simd: S,
    panel: &[Line],
    left: impl Fn(usize) -> [&'a [f32]; ROWS],
    (piece, stride): (usize, usize),
    mut ahead: &[Line],
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
                    let x = simd.splat(left[r][(2 * i + half) * stride]);
                    for v in 0..LINES {
                        sums[r][v] = simd.multiply_add(x, simd.load(&lines[v].0), sums[r][v]);
                    }
                }
            }
        }
        for lines in last {
            for r in 0..ROWS {
                let x = simd.splat(left[r][(steps.len() - 1) * stride]);
                for v in 0..LINES {
                    sums[r][v] = simd.multiply_add(x, simd.load(&lines[v].0), sums[r][v]);
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
            sum_block::<S, 2, 1, 1>(simd, &panel, rows, (3, 2), &[], &mut block);
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
        let kernel = || AllOperations { x: &x, y: &y, sum: &sum };
        assert_eq!(dispatch(kernel()), expected);
        assert_eq!(kernel().run::<BaseSimd, 2, 1, 2>(BaseSimd), expected);
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn avx2(kernel: AllOperations<'_>) -> Results {
                kernel.run::<Avx2, 6, 1, 6>(Avx2(()))
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: the checks above found every feature that the function is compiled for.
                assert_eq!(unsafe { avx2(kernel()) }, expected);
            }
        }
        let broken = Line([f32::NAN; LANES]);
        let Results { relu, masked, .. } = dispatch(AllOperations { x: &broken, y: &x, sum: &sum });
        assert!(relu.0.iter().all(|value| value.is_nan()), "a ReLU hides NaN");
        let nans = masked.0.iter().zip(&x.0).all(|(value, mask)| value.is_nan() == (*mask > 0.0));
        assert!(nans, "{masked:?}");
    }
}
