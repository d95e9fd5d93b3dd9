//! SIMD instruction sets, chosen at run time.
//!
//! A register holds sixteen f32 numbers, or sixteen pairs of bf16 numbers.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m256bh, __m256i, __m512, __m512bh, __m512i, _CMP_GT_OQ, _mm256_add_ps, _mm256_and_ps,
    _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm512_add_ps,
    _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepu16_epi32,
    _mm512_cvtneps_pbh, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_maskz_mov_ps,
    _mm512_max_ps, _mm512_or_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32,
    _mm512_storeu_ps,
};

#[cfg(target_arch = "x86_64")]
use std::mem::transmute;

use crate::amx::{self, TileRegisters};

/// Numbers, or pairs of bf16 numbers, in the registers of one cache line: one, two or four registers.
pub(crate) const LANES: usize = 16;

/// A SIMD instruction set. Its values are proofs: only functions that dispatch make one, after they have found the
/// instructions on the processor.
pub(crate) trait Simd: Copy {
    /// A line in registers.
    type Vector: Copy;

    /// Whether blocks of [`amx::ROWS`] rows are summed in tile registers.
    const HAS_TILE_REGISTERS: bool = false;

    /// Runs a kernel as a function of its own, which is compiled for these instructions.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;
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
    /// The first numbers of a line of pairs, and the second ones.
    fn unpack(self, pairs: Self::Vector) -> [Self::Vector; 2];

    /// Returns the tile registers, for products of `depth` pairs, if there are any.
    #[inline(always)]
    fn tile_registers(self, _depth: usize) -> Option<TileRegisters> {
        None
    }

    /// Rounds numbers to bf16.
    #[inline(always)]
    fn round(self, numbers: &[f32; LANES]) -> [u16; LANES] {
        numbers.map(round)
    }

    /// Rounds two lines of numbers to bf16: pairs of a number of the first line and one of the second.
    #[inline(always)]
    fn round_and_interleave(self, first: &[f32; LANES], second: &[f32; LANES]) -> [[u16; 2]; LANES] {
        std::array::from_fn(|lane| [round(first[lane]), round(second[lane])])
    }

    /// `x0 y0 + (x1 y1 + sum)` of pairs, in f32.
    #[inline(always)]
    fn multiply_add_pairs(self, x: Self::Vector, y: Self::Vector, sum: Self::Vector) -> Self::Vector {
        specified_multiply_add_pairs(self, x, y, sum)
    }
}

/// The specification of [`Simd::multiply_add_pairs`]. Products of bf16 numbers are exact in f32, so only the two sums
/// are rounded.
#[inline(always)]
fn specified_multiply_add_pairs<S: Simd>(simd: S, x: S::Vector, y: S::Vector, sum: S::Vector) -> S::Vector {
    let ([x0, x1], [y0, y1]) = (simd.unpack(x), simd.unpack(y));
    simd.multiply_add(x0, y0, simd.multiply_add(x1, y1, sum))
}

/// Rounds a number to bf16, to the nearest and on a tie to the even one. NaN stays NaN.
#[inline(always)]
pub(crate) fn round(number: f32) -> u16 {
    let bits = number.to_bits();
    // Adding to a NaN could carry into its sign.
    let rounded = if number.is_nan() { bits | 0x0040_0000 } else { bits + 0x7fff + (bits >> 16 & 1) };
    (rounded >> 16) as u16
}

/// Code that is compiled once per SIMD instruction set.
pub(crate) trait Kernel {
    /// The result.
    type Output;

    /// Runs in blocks of up to `ROWS` rows and `LINES` lines, or of `TALL` rows and one line. Implementations, and
    /// everything that they call, are `#[inline(always)]`; otherwise they would be compiled for the base instructions.
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) -> Self::Output;
}

/// Runs a kernel with the best SIMD instructions of the processor.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if has_avx512() {
            return Avx512::<false, false>(()).run(kernel);
        }
        if has_avx2() {
            return Avx2(()).run(kernel);
        }
    }
    BaseSimd.run(kernel)
}

/// Runs a kernel that multiplies pairs of bf16 numbers, with the best instructions for that that the processor has.
#[inline]
pub(crate) fn dispatch_bf16<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if has_amx() {
            return Avx512::<true, true>(()).run(kernel);
        }
        if has_bf16() {
            return Avx512::<true, false>(()).run(kernel);
        }
    }
    dispatch(kernel)
}

/// Whether the processor multiplies pairs with an instruction (AVX512-BF16). Without it, pairs give the same results
/// within rounding, but more slowly than f32 numbers.
pub fn has_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        has_avx512() && is_x86_feature_detected!("avx512bf16")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Whether products of pairs are summed in tile registers (AMX).
pub fn has_amx() -> bool {
    has_bf16() && amx::is_available()
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw")
}

/// Runs a kernel with every instruction set that the processor has; returns each one's name and result.
#[cfg(test)]
pub(crate) fn on_every_instruction_set<K: Kernel>(kernel: impl Fn() -> K) -> Vec<(&'static str, K::Output)> {
    let mut results = vec![("base", BaseSimd.run(kernel()))];
    #[cfg(target_arch = "x86_64")]
    {
        if has_avx2() {
            results.push(("AVX2", Avx2(()).run(kernel())));
        }
        if has_avx512() {
            results.push(("AVX-512", dispatch(kernel())));
        }
        if has_bf16() {
            results.push(("AVX512-BF16", dispatch_bf16(kernel())));
        }
    }
    results
}

/// AVX-512, with AVX512-BF16 or without, and with AMX or without: a line is one register.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx512<const BF16: bool, const AMX: bool>(());

#[cfg(target_arch = "x86_64")]
impl<const BF16: bool, const AMX: bool> Simd for Avx512<BF16, AMX> {
    type Vector = __m512;

    const HAS_TILE_REGISTERS: bool = AMX;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // 24 of 32 registers hold sums.
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
        fn avx512<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx512<false, false>, 6, 4, 24>(Avx512(()))
        }
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")]
        fn avx512_bf16<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx512<true, false>, 6, 4, 24>(Avx512(()))
        }
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")]
        fn amx<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx512<true, true>, { amx::ROWS }, 4, { amx::ROWS }>(Avx512(()))
        }
        // SAFETY: an `Avx512` exists only if the processor was found to have every feature that the function of the
        // same type is compiled for.
        unsafe {
            if const { AMX } {
                amx(kernel)
            } else if const { BF16 } {
                avx512_bf16(kernel)
            } else {
                avx512(kernel)
            }
        }
    }

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

    #[inline(always)]
    fn unpack(self, pairs: __m512) -> [__m512; 2] {
        // SAFETY: as above.
        unsafe {
            let pairs = _mm512_castps_si512(pairs);
            let second = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(second)]
        }
    }

    /// The instruction also treats subnormal numbers as 0.
    #[inline(always)]
    fn round(self, numbers: &[f32; LANES]) -> [u16; LANES] {
        if BF16 {
            // SAFETY: an `Avx512<true, _>` exists only if the processor was found to have AVX512-BF16, too. Both types
            // have 32 bytes, and every bit pattern is valid.
            unsafe { transmute::<__m256bh, [u16; LANES]>(_mm512_cvtneps_pbh(self.load(numbers))) }
        } else {
            BaseSimd.round(numbers)
        }
    }

    #[inline(always)]
    fn round_and_interleave(self, first: &[f32; LANES], second: &[f32; LANES]) -> [[u16; 2]; LANES] {
        if !BF16 {
            return BaseSimd.round_and_interleave(first, second);
        }
        // SAFETY: as above; types of the same size, of which every bit pattern is valid.
        unsafe {
            let halves = |numbers| {
                let rounded = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(self.load(numbers)));
                _mm512_cvtepu16_epi32(rounded)
            };
            let pairs = _mm512_or_si512(halves(first), _mm512_slli_epi32::<16>(halves(second)));
            transmute::<__m512i, [[u16; 2]; LANES]>(pairs)
        }
    }

    /// The instruction also treats subnormal numbers as 0.
    #[inline(always)]
    fn multiply_add_pairs(self, x: __m512, y: __m512, sum: __m512) -> __m512 {
        if BF16 {
            // SAFETY: an `Avx512<true, _>` exists only if the processor was found to have AVX512-BF16, too. Registers
            // of both types have 64 bytes, and every bit pattern is valid.
            unsafe {
                _mm512_dpbf16_ps(sum, transmute::<__m512, __m512bh>(x), transmute::<__m512, __m512bh>(y))
            }
        } else {
            specified_multiply_add_pairs(self, x, y, sum)
        }
    }

    #[inline(always)]
    fn tile_registers(self, depth: usize) -> Option<TileRegisters> {
        // SAFETY: an `Avx512<_, true>` exists only if AMX was found to be available. Products, which ask for the
        // registers, are not nested.
        AMX.then(|| unsafe { TileRegisters::configure(depth) })
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
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // 12 of 16 registers hold sums.
        #[inline(never)]
        #[target_feature(enable = "avx2,fma")]
        fn avx2<K: Kernel>(kernel: K) -> K::Output {
            kernel.run::<Avx2, 6, 1, 6>(Avx2(()))
        }
        // SAFETY: an `Avx2` exists only if the processor was found to have AVX2 and FMA.
        unsafe { avx2(kernel) }
    }

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

    #[inline(always)]
    fn unpack(self, pairs: [__m256; 2]) -> [[__m256; 2]; 2] {
        // SAFETY: as above.
        unsafe {
            let upper = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32.cast_signed()));
            let first = |pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(pairs)));
            [
                [first(pairs[0]), first(pairs[1])],
                [_mm256_and_ps(pairs[0], upper), _mm256_and_ps(pairs[1], upper)],
            ]
        }
    }
}

/// The instructions that every processor of the target has.
#[derive(Clone, Copy)]
struct BaseSimd;

impl Simd for BaseSimd {
    type Vector = [f32; LANES];

    #[inline(never)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // 8 of 16 registers of four floats hold sums.
        kernel.run::<Self, 2, 1, 2>(self)
    }

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

    #[inline(always)]
    fn unpack(self, pairs: [f32; LANES]) -> [[f32; LANES]; 2] {
        let first = |pair: f32| f32::from_bits(pair.to_bits() << 16);
        let second = |pair: f32| f32::from_bits(pair.to_bits() & 0xffff_0000);
        [pairs.map(first), pairs.map(second)]
    }
}
