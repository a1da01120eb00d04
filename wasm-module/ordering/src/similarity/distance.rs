//! The arithmetic of distances, in portable code that the compiler turns into vector instructions.
//!
//! ```text
//!   row  |-- segment --|-- segment --|-- segment --| ...     given up once the sum so far exceeds the limit
//!        | 32 steps    |
//!        |  x 4 lanes  |
//! ```
//!
//! The order of additions is part of the definition: it is the same with SSE2, with Wasm SIMD and without either, so
//! every build finds the same distance, bit for bit. No sum is contracted with a product (Rust does not), and there
//! are no transcendental functions.
//!
//! Squares are not negative and rounding is monotonic: a partial sum never exceeds the whole one. So giving up early
//! loses nothing, and a row that is far away costs one segment.

/// Sums that run side by side: a vector of SSE2 and of Wasm. More would spill where there are no vectors.
const LANES: usize = 4;
/// Additions to each lane of a segment.
const STEPS: usize = 32;
/// Components of a segment: rows are padded to a multiple of it.
pub(super) const SEGMENT: usize = LANES * STEPS;

type Segment = [[f32; LANES]; STEPS];

/// The squared Euclidean distance of two rows of equal length, a multiple of [`SEGMENT`]; `None` once it exceeds
/// `limit`.
pub(super) fn squared_distance(a: &[f32], b: &[f32], limit: f32) -> Option<f32> {
    let mut sum = 0.0;
    for (a, b) in segments(a).zip(segments(b)) {
        sum += sum_of(a, b, |a, b| {
            let difference = a - b;
            difference * difference
        });
        if sum > limit {
            return None;
        }
    }
    Some(sum)
}

/// The inner product of two rows of equal length, a multiple of [`SEGMENT`].
pub(super) fn inner_product(a: &[f32], b: &[f32]) -> f32 {
    segments(a)
        .zip(segments(b))
        .map(|(a, b)| sum_of(a, b, |a, b| a * b))
        .sum()
}

fn segments(row: &[f32]) -> impl Iterator<Item = &Segment> {
    let (lanes, _) = row.as_chunks::<LANES>();
    let (segments, _) = lanes.as_chunks::<STEPS>();
    segments.iter()
}

#[inline(always)]
fn sum_of(a: &Segment, b: &Segment, term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += term(a, b);
        }
    }
    let [a, b, c, d] = sums;
    (a + c) + (b + d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn row(random: &mut Random, segments: usize) -> Vec<f32> {
        (0..segments * SEGMENT)
            .map(|_| random.unit() as f32 - 0.5)
            .collect()
    }

    #[test]
    fn the_sums_are_those_of_the_textbook() {
        let mut random = Random::new(1);
        for segments in [1, 3, 6] {
            let (a, b) = (row(&mut random, segments), row(&mut random, segments));
            let pairs = || {
                a.iter()
                    .zip(&b)
                    .map(|(&a, &b)| (f64::from(a), f64::from(b)))
            };
            let squares: f64 = pairs().map(|(a, b)| (a - b) * (a - b)).sum();
            let products: f64 = pairs().map(|(a, b)| a * b).sum();
            let found = f64::from(squared_distance(&a, &b, f32::INFINITY).unwrap());
            assert!((found - squares).abs() < 1e-6 * squares);
            assert!((f64::from(inner_product(&a, &b)) - products).abs() < 1e-4);
            assert_eq!(squared_distance(&a, &a, 0.0), Some(0.0));
        }
    }

    #[test]
    fn a_limit_is_inclusive_and_giving_up_loses_nothing() {
        let mut random = Random::new(2);
        for _ in 0..200 {
            let (a, b) = (row(&mut random, 6), row(&mut random, 6));
            let whole = squared_distance(&a, &b, f32::INFINITY).unwrap();
            assert_eq!(squared_distance(&a, &b, whole), Some(whole));
            assert_eq!(squared_distance(&a, &b, whole.next_down()), None);
        }
    }
}
