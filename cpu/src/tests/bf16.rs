//! Products in bf16: rounding, packing, and the instructions of AVX512-BF16 and AMX. On processors without them the
//! same code runs with its portable specification.

use half::bf16;
use proptest::prelude::*;

use super::random;
use super::skipped::skipped;
use crate::kernel::{Line, Pair, sum_block};
use crate::matmul::{Epilogue, Mask, Output, product, transposed_product};
use crate::panels::{Matrix, MatrixMut, Pairs, Panels};
use crate::simd::{Kernel, LANES, Simd, has_amx, has_bf16, on_every_instruction_set};

/// Half a unit in the last place of bf16, relative to the number: of eight bits, the first is not stored.
const HALF_UNIT: f64 = 1.0 / 256.0;

fn rounded(value: f32) -> f64 {
    bf16::from_f32(value).to_f64()
}

/// Rounds lines of numbers both ways, also their negatives.
struct Rounding<'a>(&'a [[f32; LANES]]);

impl Kernel for Rounding<'_> {
    type Output = Vec<[u16; 3]>;

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) -> Self::Output {
        let mut rounded = Vec::new();
        for numbers in self.0 {
            let alone = simd.round(numbers);
            let pairs = simd.round_and_interleave(numbers, &numbers.map(|number| -number));
            rounded.extend((0..LANES).map(|lane| [alone[lane], pairs[lane][0], pairs[lane][1]]));
        }
        rounded
    }
}

#[test]
fn numbers_are_rounded_to_the_nearest_and_ties_to_even() {
    // Every upper half, with lower halves below, at and above a tie.
    let uppers = (0..=u16::MAX).collect::<Vec<_>>();
    for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
        let number = |upper: u16| f32::from_bits(u32::from(upper) << 16 | lower);
        let lines = uppers.as_chunks().0.iter().map(|line: &[u16; LANES]| line.map(number));
        let lines: Vec<_> = lines.collect();
        for (name, found) in on_every_instruction_set(|| Rounding(&lines)) {
            for (number, found) in lines.as_flattened().iter().zip(found) {
                let expected = bf16::from_f32(*number).to_bits();
                // Instructions treat subnormal numbers as 0.
                let expected =
                    if name == "AVX512-BF16" && number.is_subnormal() { expected & 0x8000 } else { expected };
                let expected = [expected, expected, expected ^ 0x8000];
                assert_eq!(found, expected, "{name}: {:x}", number.to_bits());
            }
        }
    }
}

/// Two rows of pairs times a panel that is one line wide.
struct Products<'a> {
    left: [&'a [Pair]; 2],
    panel: &'a [Line<Pair>],
}

impl Kernel for Products<'_> {
    type Output = [[Line; 1]; 2];

    #[inline(always)]
    fn run<S: Simd, const ROWS: usize, const LINES: usize, const TALL: usize>(self, simd: S) -> Self::Output {
        let mut sums = [[Line::ZERO]; 2];
        let left = |_| self.left;
        sum_block::<S, Pair, 2, 1, 1>(simd, self.panel, left, (self.panel.len(), 1), &[], &mut sums);
        sums
    }
}

#[test]
fn every_instruction_set_multiplies_pairs_as_specified() {
    const DEPTH: usize = 301;
    let seed = rand_seed();
    let numbers = random(2 * DEPTH * (LANES + 2), seed);
    let pairs: Vec<Pair> =
        numbers.as_chunks().0.iter().map(|&[first, second]| Pair::new(first, second)).collect();
    let (left, right) = pairs.split_at(2 * DEPTH);
    let panel: Vec<Line<Pair>> = right.as_chunks().0.iter().map(|&line| Line(line)).collect();
    let (first, second) = left.split_at(DEPTH);
    let results = on_every_instruction_set(|| Products { left: [first, second], panel: &panel });
    let [(_, specified), others @ ..] = &results[..] else { panic!("there are base instructions") };
    for (name, found) in others {
        for (row, left) in [first, second].into_iter().enumerate() {
            for lane in 0..LANES {
                let products = |(x, line): (&Pair, &Line<Pair>)| {
                    let ([x0, x1], [y0, y1]) = (x.numbers(), line.0[lane].numbers());
                    f64::from((x0 * y0).abs()) + f64::from((x1 * y1).abs())
                };
                let magnitude: f64 = left.iter().zip(&panel).map(products).sum();
                let [found, expected] = [found, specified].map(|of| of[row][0].0[lane]);
                // The specification rounds every sum. The instruction may round another way: both are within 2^-24
                // of a partial sum per product, and no partial sum exceeds the sum of magnitudes.
                let tolerance = match *name {
                    "AVX512-BF16" => 2.0 * 2.0 * DEPTH as f64 * magnitude / f64::from(1 << 24),
                    _ => 0.0,
                };
                let difference = (f64::from(found) - f64::from(expected)).abs();
                assert!(difference <= tolerance, "{name}, seed {seed}: {found} instead of {expected}");
            }
        }
    }
    if !has_bf16() {
        skipped("this CPU has no AVX512-BF16");
    }
}

/// Fresh numbers in each run.
fn rand_seed() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64)
}

/// Returns the numbers of a matrix in pairs, row by row, from both of its forms, which must agree.
fn unpacked(pairs: &Pairs) -> Vec<f32> {
    let (rows, columns) = pairs.shape();
    let element = |matrix: Matrix<'_, Pair>, row: usize, column: usize| -> [f32; 2] {
        matrix.data[row * matrix.shape.stride + matrix.shape.column(column)].numbers()
    };
    let mut numbers = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            let of_rows = element(pairs.of_rows.matrix(), row / 2, column);
            let of_columns = element(pairs.of_columns.matrix(), row, column / 2);
            assert_eq!(of_rows[row % 2].to_bits(), of_columns[column % 2].to_bits(), "({row}, {column})");
            // A number without a partner has a zero, which adds nothing to a product.
            if row + 1 == rows && row % 2 == 0 {
                assert_eq!(of_rows[1].to_bits(), 0);
            }
            if column + 1 == columns && column % 2 == 0 {
                assert_eq!(of_columns[1].to_bits(), 0);
            }
            numbers.push(of_rows[row % 2]);
        }
    }
    numbers
}

fn in_pairs(matrix: Matrix<'_>) -> Pairs {
    let mut pairs = Pairs::default();
    // Packing over older contents leaves no trace of them.
    pairs.pack(Matrix::dense(&[f32::NAN; 90 * 91], 90, 91));
    pairs.pack(matrix);
    pairs
}

proptest! {
    #[test]
    fn products_equal_the_oracle(
        sizes in (1..40usize, 1..140usize, prop_oneof![3 => 1..70usize, 1 => 120..300usize]),
        form in 0..3usize,
        into_pairs in any::<bool>(),
        epilogue in 0..5usize,
        seed in any::<u64>(),
    ) {
        check_product(sizes, form, into_pairs, epilogue, seed)?;
    }
}

/// Every number of lines, and depths around sixteen pairs and around the width of a panel.
#[test]
fn products_in_tile_registers_equal_the_oracle() {
    let seed = rand_seed();
    for (n, form) in [16, 40, 48, 64, 130].into_iter().flat_map(|n| (0..3).map(move |form| (n, form))) {
        for k in [1, 31, 32, 33, 64, 127, 128, 129, 161, 288] {
            if let Err(why) = check_product((49, n, k), form, false, 0, seed) {
                panic!("seed {seed}, {n} columns, depth {k}, form {form}: {why}");
            }
        }
    }
    if !has_amx() {
        skipped("this CPU has no AMX");
    }
}

/// Checks one of the three products of a layer, with one of the epilogues, into f32 or into pairs, against sums in f64
/// of operands that `half` has rounded. The product has m rows and n columns; k is its depth.
fn check_product(
    (m, n, k): (usize, usize, usize),
    form: usize,
    into_pairs: bool,
    epilogue: usize,
    seed: u64,
) -> Result<(), TestCaseError> {
    // Forward: x `[m, k]` times W `[n, k]` transposed. Input gradients: dy `[m, k]` times W `[k, n]`. Weight
    // gradients: dy `[k, m]` transposed times x `[k, n]`.
    let (left, right) = (random(m * k, seed), random(k * n, seed + 1));
    let (before, mask, bias) = (random(m * n, seed + 2), random(m * n, seed + 3), random(n, seed + 4));
    let mask_pairs = in_pairs(Matrix::dense(&mask, m, n));
    prop_assert!(
        unpacked(&mask_pairs).iter().zip(&mask).all(|(found, &of)| f64::from(*found) == rounded(of))
    );
    let epilogue = match epilogue {
        0 => Epilogue::Replace,
        1 if form == 2 || !into_pairs => Epilogue::Add,
        2 => Epilogue::Bias(&bias),
        3 => Epilogue::BiasRelu(&bias),
        _ => Epilogue::WherePositive(Mask::Pairs(&mask_pairs)),
    };
    let mut out = before.clone();
    let mut out_pairs = in_pairs(Matrix::dense(&before, m, n));
    let into_pairs = into_pairs && form != 2;
    let to = if into_pairs { Output::Pairs(&mut out_pairs) } else { MatrixMut::dense(&mut out, m, n).into() };
    match form {
        0 => {
            let mut w = Panels::default();
            w.pack_transposed(Matrix::dense(&right, n, k));
            product(to, epilogue, in_pairs(Matrix::dense(&left, m, k)).of_columns.matrix(), &w);
        }
        1 => {
            let mut w = Panels::default();
            w.pack(Matrix::dense(&right, k, n));
            product(to, epilogue, in_pairs(Matrix::dense(&left, m, k)).of_columns.matrix(), &w);
        }
        _ => {
            let Output::Floats(to) = to else { unreachable!("weight gradients are in f32") };
            let [dy, x] = [Matrix::dense(&left, k, m), Matrix::dense(&right, k, n)].map(in_pairs);
            transposed_product(to, epilogue, (dy.of_rows.matrix(), 0..m), &x.of_rows);
        }
    }
    if into_pairs {
        out = unpacked(&out_pairs);
    }
    for row in 0..m {
        for column in 0..n {
            let left = |i| rounded(if form == 2 { left[i * m + row] } else { left[row * k + i] });
            let right = |i| rounded(if form == 0 { right[column * k + i] } else { right[i * n + column] });
            let sum: f64 = (0..k).map(|i| left(i) * right(i)).sum();
            let here = row * n + column;
            let exact = match epilogue {
                Epilogue::Replace => sum,
                Epilogue::Add => sum + f64::from(before[here]),
                Epilogue::Bias(bias) => sum + f64::from(bias[column]),
                Epilogue::BiasRelu(bias) => (sum + f64::from(bias[column])).max(0.0),
                Epilogue::WherePositive(_) if mask[here] > 0.0 => sum,
                Epilogue::WherePositive(_) => 0.0,
            };
            // k products and sums of numbers of at most 1, each rounded by 2^-24 of a partial sum below k + 2.
            let summing = ((k + 2) * (k + 2)) as f64 / f64::from(1 << 24);
            let tolerance = if into_pairs { summing + HALF_UNIT * (exact.abs() + summing) } else { summing };
            prop_assert!((f64::from(out[here]) - exact).abs() <= tolerance, "{} {exact}", out[here]);
        }
    }
    Ok(())
}

/// Sums of rounded numbers, in the order of the rows.
#[test]
fn rows_are_added_from_any_column_on() {
    let (rows, columns) = (5, 150);
    let values = random(rows * columns, 0);
    let pairs = in_pairs(Matrix::dense(&values, rows, columns));
    for (first, count) in [(0, 150), (3, 61), (63, 70), (140, 10), (7, 0)] {
        let sum =
            |column| (0..rows).fold(1.0, |sum, row| sum + rounded(values[row * columns + column]) as f32);
        let sums: Vec<f32> = (first..first + count).map(sum).collect();
        let mut added = vec![1.0; count];
        pairs.of_rows.matrix().add_rows_to(first, &mut added);
        assert_eq!(added, sums);
    }
}
