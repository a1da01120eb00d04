//! A random rotation in O(n log n), from which random hyperplanes and random lines are taken.
//!
//! Three rounds of random signs and a Walsh-Hadamard transform act like a matrix of independent Gaussians (Andoni et
//! al., *Practical and Optimal LSH for Angular Distance*, NIPS 2015, section 3), and need three bits per dimension
//! instead of a float for each matrix element. They use only sums and one scaling by a power of two, so the bits are
//! the same everywhere.

use foreword_ordering::random::Random;

/// Number of rounds of signs and transform.
const ROUNDS: usize = 3;
/// Least number of coordinates of a rotation: with fewer, three rounds do not mix well.
const MIN_COORDINATES: usize = 256;

/// As many random rotations as a number of coordinates needs.
#[derive(Debug)]
pub(super) struct Rotation {
    /// Number of coordinates of one rotation, a power of two.
    size: usize,
    /// For each rotation and round, `size` factors, 1 or -1.
    signs: Vec<f32>,
}

impl Rotation {
    /// Returns rotations of vectors with `dimensions` components that yield at least that many `coordinates`.
    pub(super) fn new(dimensions: u32, coordinates: usize) -> Self {
        let size = size(dimensions);
        let mut random = Random::new(0x0f0e_0d0c);
        let count = coordinates.div_ceil(size) * ROUNDS * size;
        let sign = |_| if random.bits() & 1 == 0 { 1.0 } else { -1.0 };
        Self {
            size,
            signs: (0..count).map(sign).collect(),
        }
    }

    /// Writes the coordinates of `row` to `out`. Each is the inner product with a random vector whose components have
    /// variance 1.
    pub(super) fn apply(&self, row: &[f32], out: &mut Vec<f32>) {
        out.clear();
        for signs in self.signs.chunks_exact(self.size * ROUNDS) {
            let from = out.len();
            out.extend(row.iter().take(self.size));
            out.resize(from + self.size, 0.0);
            let Some(coordinates) = out.get_mut(from..) else {
                return;
            };
            for signs in signs.chunks_exact(self.size) {
                for (value, sign) in coordinates.iter_mut().zip(signs) {
                    *value *= sign;
                }
                transform(coordinates);
            }
            // Each round multiplies lengths by the root of `size`; a coordinate's variance must be the squared length
            // of the row.
            let scale = 1.0 / self.size as f32;
            for value in coordinates {
                *value *= scale;
            }
        }
    }

    /// Returns the bytes used by the rotations and the coordinates that they write.
    pub(super) fn bytes(dimensions: u32, coordinates: usize) -> u64 {
        let size = size(dimensions);
        let floats = coordinates.div_ceil(size) * size * (ROUNDS + 1);
        (floats * size_of::<f32>()) as u64
    }
}

fn size(dimensions: u32) -> usize {
    (dimensions as usize)
        .next_power_of_two()
        .max(MIN_COORDINATES)
}

/// Applies the unscaled Walsh-Hadamard transform to `values`, whose number is a power of two.
fn transform(values: &mut [f32]) {
    let mut half = 1;
    while half < values.len() {
        for block in values.chunks_exact_mut(2 * half) {
            let (low, high) = block.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high) {
                (*low, *high) = (*low + *high, *low - *high);
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotate(rotation: &Rotation, row: &[f32]) -> Vec<f32> {
        let mut out = Vec::new();
        rotation.apply(row, &mut out);
        out
    }

    fn length(values: &[f32]) -> f32 {
        values.iter().map(|value| value * value).sum::<f32>().sqrt()
    }

    #[test]
    fn lengths_and_angles_are_kept() {
        let rotation = Rotation::new(300, 600);
        let mut random = Random::new(3);
        let mut row = || -> Vec<f32> { (0..300).map(|_| random.unit() as f32 - 0.5).collect() };
        let (a, b) = (row(), row());
        let difference: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        let (x, y) = (rotate(&rotation, &a), rotate(&rotation, &b));
        assert_eq!(x.len(), 1024);
        let apart: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x - y).collect();
        for (before, after) in [(&a, &x), (&b, &y), (&difference, &apart)] {
            let ratio = length(after) / length(before) / 1024_f32.sqrt();
            assert!((ratio - 1.0).abs() < 1e-4, "{ratio}");
        }
    }

    #[test]
    fn even_a_single_component_is_spread() {
        let coordinates = rotate(&Rotation::new(2, 64), &[1.0, 0.0]);
        let large = coordinates.iter().filter(|value| value.abs() > 3.5).count();
        let positive = coordinates.iter().filter(|value| **value > 0.0).count();
        assert!(
            large < 8 && (90..166).contains(&positive),
            "{large}, {positive}"
        );
    }
}
