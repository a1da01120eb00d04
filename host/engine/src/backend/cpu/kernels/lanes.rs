//! Sums and exponentials over slices in a fixed order, written so that the compiler vectorises them.
//!
//! A sum consists of sixteen interleaved partial sums that are then added in a fixed tree, so its order depends on the
//! length alone. `FMA` says that the instruction set has fused multiply-adds, see [`super::Loop`].

use super::LANES;
use half::bf16;

/// Returns `a * b + c`, rounded once if `FMA` is true and twice otherwise.
#[inline(always)]
pub(in super::super) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Returns the bf16 nearest to `x`, ties to even; a NaN stays a NaN.
#[inline(always)]
pub(in super::super) fn narrow(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
}

/// Returns `x` as the sum of two bf16: the one nearest to `x`, and the one nearest to the remainder.
#[inline(always)]
pub(in super::super) fn split(x: f32) -> [bf16; 2] {
    let high = narrow(x);
    let rest = x - f32::from_bits(u32::from(high.to_bits()) << 16);
    [high, narrow(rest)]
}

/// Returns two finite numbers rounded to bf16 in one word, `even` in the low half, ties away from zero.
#[inline(always)]
pub(in super::super) fn narrow_pair(even: f32, odd: f32) -> u32 {
    let round = |x: f32| x.to_bits().wrapping_add(0x8000);
    round(odd) & 0xffff_0000 | round(even) >> 16
}

/// Returns two finite numbers as a high and a low part in bf16: a word with both high parts, then a word with both low
/// parts. The high part is the upper half of the number's bits, which takes less to compute than the nearest bf16; the
/// sum of both parts is within a relative 2^-16 of the number.
#[inline(always)]
pub(in super::super) fn split_pair(even: f32, odd: f32) -> [u32; 2] {
    let high = |x: f32| x.to_bits() & 0xffff_0000;
    let rest = |x: f32| x - f32::from_bits(high(x));
    [
        high(odd) | high(even) >> 16,
        narrow_pair(rest(even), rest(odd)),
    ]
}

/// Returns the sum of the squares of `values`.
#[inline(always)]
pub(in super::super) fn sum_of_squares<const FMA: bool>(values: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum = fma::<FMA>(*value, *value, *sum);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum = fma::<FMA>(*value, *value, *sum);
    }
    tree(sums, |a, b| a + b)
}

/// Combines sixteen values pairwise by `combine` in a fixed order: value `i + 8` with value `i`, then `i + 4` with `i`,
/// and so on, until one is left.
#[inline(always)]
pub(in super::super) fn tree(mut values: [f32; LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            values[i] = combine(values[i], values[i + half]);
        }
        half /= 2;
    }
    values[0]
}

/// Returns the larger of two values, or `b` where `a` is NaN (one instruction, unlike `f32::max`).
#[inline(always)]
pub(in super::super) fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns `e^x`, clamped: below -87.3 the result is `e^-87.3` (1.2e-38), and above 88.3 it is `e^88.3` (2.2e38), so it
/// is never zero and never infinite. In between, the relative error is below 2e-7 with and without `FMA` (tested),
/// which is two units in the last place.
///
/// Range reduction and polynomial are those of Cephes' `expf` (netlib.org/cephes, `single/expf.c`).
#[inline(always)]
pub(in super::super) fn exp<const FMA: bool>(x: f32) -> f32 {
    // ln 2 in two parts; multiples of the first part are exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // A NaN passes both comparisons.
    let x = max(-87.3, if x > 88.3 { 88.3 } else { x });
    let shifted = fma::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let whole = shifted - ROUND;
    let rest = fma::<FMA>(whole, -LN2_LOW, fma::<FMA>(whole, -LN2_HIGH, x));
    let mut sum = 1.987_569_1e-4;
    sum = fma::<FMA>(sum, rest, 1.398_199_9e-3);
    sum = fma::<FMA>(sum, rest, 8.333_452e-3);
    sum = fma::<FMA>(sum, rest, 4.166_579_6e-2);
    sum = fma::<FMA>(sum, rest, 1.666_666_5e-1);
    sum = fma::<FMA>(sum, rest, 0.5);
    sum = fma::<FMA>(sum, rest * rest, rest) + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    sum * f32::from_bits(exponent.wrapping_add(127) << 23)
}

/// Returns `2^x` for `x` up to 0. For softmax weights that are rounded to bf16 afterwards: the relative error is below
/// 4e-6 (tested), and `2^0` is exact. Below -125 the result is `2^-125` (2.4e-38), so it is never zero.
#[inline(always)]
pub(in super::super) fn exp2_of_nonpositive<const FMA: bool>(x: f32) -> f32 {
    // A NaN passes.
    let x = max(-125.0, x);
    let shifted = x + ROUND;
    let rest = x - (shifted - ROUND);
    // The polynomial of degree 4 with the least relative error from -1/2 to 1/2 among those that are 1 at 0.
    let mut sum = 9.782_912e-3;
    sum = fma::<FMA>(sum, rest, 5.597_688_4e-2);
    sum = fma::<FMA>(sum, rest, 0.240_207_1);
    sum = fma::<FMA>(sum, rest, 0.693_113_6);
    sum = fma::<FMA>(sum, rest, 1.0);
    // The rounded number is added to the exponent, which it does not leave; the shift drops what `ROUND` added.
    f32::from_bits(sum.to_bits().wrapping_add(shifted.to_bits() << 23))
}

/// Adding this to a float below 2^22 rounds the float to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Returns the activation function SiLU: `x / (1 + e^-x)`.
#[inline(always)]
pub(in super::super) fn silu<const FMA: bool>(x: f32) -> f32 {
    x / (1.0 + exp::<FMA>(-x))
}

/// Returns the activation function GELU by its approximation `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`
/// (Hendrycks and Gimpel, arXiv 1606.08415, section 2). With `(1 + tanh(a)) / 2 = 1 / (1 + e^-2a)` it has the form of
/// [`silu`].
#[inline(always)]
pub(in super::super) fn gelu<const FMA: bool>(x: f32) -> f32 {
    // 2 √(2/π).
    const SCALE: f32 = 1.595_769;
    let inner = SCALE * fma::<FMA>(0.044_715 * x * x, x, x);
    x / (1.0 + exp::<FMA>(-inner))
}

#[cfg(test)]
mod tests {
    use super::super::tests::numbers;
    use super::*;

    fn worst_error<const FMA: bool>() -> f64 {
        let mut worst = 0f64;
        let mut x = -87.3f32;
        while x < 88.3 {
            let expected = f64::from(x).exp();
            worst = worst.max(((f64::from(exp::<FMA>(x)) - expected) / expected).abs());
            x += 0.000_937;
        }
        worst
    }

    #[test]
    fn exp_has_the_stated_error() {
        assert!(worst_error::<true>() < 2e-7, "{}", worst_error::<true>());
        assert!(worst_error::<false>() < 2e-7, "{}", worst_error::<false>());
        assert_eq!(exp::<true>(0.0), 1.0);
        assert_eq!(exp::<false>(0.0), 1.0);
    }

    #[test]
    fn exp2_has_the_stated_error() {
        fn worst_error<const FMA: bool>() -> f64 {
            (0..1_250_000)
                .map(|i| -i as f32 * 1e-4)
                .map(|x| {
                    let expected = f64::from(x).exp2();
                    ((f64::from(exp2_of_nonpositive::<FMA>(x)) - expected) / expected).abs()
                })
                .fold(0.0, f64::max)
        }
        assert!(worst_error::<true>() < 4e-6, "{}", worst_error::<true>());
        assert!(worst_error::<false>() < 4e-6, "{}", worst_error::<false>());
        assert_eq!(exp2_of_nonpositive::<true>(0.0), 1.0);
        for x in [-125.0, -1e30, f32::NEG_INFINITY] {
            assert_eq!(exp2_of_nonpositive::<false>(x), 2f32.powi(-125));
        }
        assert!(exp2_of_nonpositive::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn narrowing_is_that_of_half_for_all_upper_halves() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let (got, expected) = (narrow(x), bf16::from_f32(x));
                assert_eq!(got.to_bits(), expected.to_bits(), "{x:e}");
            }
        }
    }

    #[test]
    fn two_parts_are_within_the_stated_error() {
        for x in numbers(1, 10_000)
            .into_iter()
            .chain([0.0, 1.0, -3e-30, 1e30])
        {
            let [high, low] = split(x);
            let error = (f64::from(high.to_f32()) + f64::from(low.to_f32()) - f64::from(x)).abs();
            assert!(error <= f64::from(x.abs()) * 2f64.powi(-17), "{x:e}");
            let [high, low] = split_pair(x, -x);
            for (expected, bits) in [
                (x, [high, low].map(|w| w << 16)),
                (-x, [high, low].map(|w| w & 0xffff_0000)),
            ] {
                let [high, low] = bits.map(f32::from_bits).map(f64::from);
                let error = (high + low - f64::from(expected)).abs();
                assert!(error <= f64::from(x.abs()) * 2f64.powi(-16), "{expected:e}");
            }
        }
    }

    #[test]
    fn exp_saturates() {
        for (x, expected) in [
            (-1e30, 1.2e-38),
            (f32::NEG_INFINITY, 1.2e-38),
            (1e30, 2.2e38),
            (f32::INFINITY, 2.2e38),
        ] {
            let ratio = exp::<true>(x) / expected;
            assert!((0.9..1.1).contains(&ratio), "exp({x}) = {}", exp::<true>(x));
        }
        assert!(silu::<true>(-1e4).abs() < 1e-30);
        assert_eq!(silu::<true>(1e4), 1e4);
    }

    #[test]
    fn gelu_is_its_approximation_with_tanh() {
        for x in (-1200..=1200).map(|i| i as f32 / 100.0) {
            let wide = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
            let expected = wide / 2.0 * (1.0 + inner.tanh());
            let error = (f64::from(gelu::<true>(x)) - expected).abs();
            assert!(error <= 1e-6 * wide.abs(), "gelu({x}): {error}");
        }
        assert!(gelu::<true>(-1e4).abs() < 1e-30);
        assert_eq!(gelu::<true>(1e4), 1e4);
    }

    #[test]
    fn sums_of_squares_agree_with_f64_at_any_length() {
        for length in [0, 1, 15, 16, 17, 100, 1000] {
            let values = numbers(length as u32, length);
            let expected: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
            let error = (f64::from(sum_of_squares::<true>(&values)) - expected).abs();
            assert!(error <= 1e-6 * expected, "{length}: {error}");
        }
    }
}
