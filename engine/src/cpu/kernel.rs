//! The innermost loops of matrix products, compiled for each kind of vector unit and chosen at run time.
//!
//! A *block* of a product, a few rows by a few vectors, is summed in registers: each step loads vectors of the right
//! matrix and multiplies them by elements of the left one. Every element of a block is one chain of sums in the order
//! of the depth. Shapes of blocks differ between units, and with them nothing but speed: where products and sums are
//! fused, all units give the same bits.

/// Floats of a [`Line`].
pub(super) const LANES: usize = 16;

/// Sixteen floats on a cache line of their own: one vector register, two, or four. Vectors that straddle two cache
/// lines cost a twelfth of the kernel's speed.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [f32; LANES]);

impl Line {
    pub(super) const ZERO: Self = Self([0.0; LANES]);
}

/// The sums of a block of `ROWS` rows and `LINES` lines.
pub(super) type Sums<const ROWS: usize, const LINES: usize> = [[[f32; LANES]; LINES]; ROWS];

/// Lines of a full panel of a right matrix: as many as the blocks of this machine's kernels are wide.
pub(super) fn panel_lines() -> usize {
    struct Width;
    impl Work for Width {
        type Output = usize;
        #[inline(always)]
        fn run<const ROWS: usize, const LINES: usize, const FUSED: bool>(self) -> usize {
            LINES
        }
    }
    dispatch(Width)
}

/// What is compiled for each kind of vector unit.
pub(super) trait Work {
    /// What comes out.
    type Output;

    /// Does the work in blocks of up to `ROWS` rows and `LINES` lines; `FUSED` where products and sums are rounded
    /// once. Implementations are `#[inline(always)]`, as is all that they call, or the loops would be compiled for the
    /// base instructions.
    fn run<const ROWS: usize, const LINES: usize, const FUSED: bool>(self) -> Self::Output;
}

/// Does work with the best vector unit that the processor has.
#[inline]
pub(super) fn dispatch<W: Work>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    {
        // 24 of 32 registers hold sums.
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,fma")]
        fn avx512<W: Work>(work: W) -> W::Output {
            work.run::<6, 4, true>()
        }
        // 12 of 16 registers hold sums.
        #[target_feature(enable = "avx2,fma")]
        fn avx2<W: Work>(work: W) -> W::Output {
            work.run::<6, 1, true>()
        }
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("fma")
        {
            // SAFETY: the processor was just found to have every feature that the function is compiled for.
            return unsafe { avx512(work) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor was just found to have every feature that the function is compiled for.
            return unsafe { avx2(work) };
        }
    }
    // 8 of 16 registers of four floats, or 16 of 32, hold sums.
    if cfg!(target_arch = "aarch64") { work.run::<4, 1, true>() } else { work.run::<2, 1, false>() }
}

/// `sums[r][v] = sum over i of a(r, i) panel[i][v]`, where `row(i, r)` is the left matrix.
#[inline(always)]
pub(super) fn sum_block<const ROWS: usize, const LINES: usize, const FUSED: bool>(
    panel: &[Line],
    left: impl Fn(usize, usize) -> f32,
) -> Sums<ROWS, LINES> {
    let mut sums = [[[0.0; LANES]; LINES]; ROWS];
    let (steps, _) = panel.as_chunks::<LINES>();
    for (i, lines) in steps.iter().enumerate() {
        for r in 0..ROWS {
            let x = left(r, i);
            for v in 0..LINES {
                for lane in 0..LANES {
                    sums[r][v][lane] = if FUSED {
                        x.mul_add(lines[v].0[lane], sums[r][v][lane])
                    } else {
                        sums[r][v][lane] + x * lines[v].0[lane]
                    };
                }
            }
        }
    }
    sums
}
