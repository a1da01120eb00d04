//! The arithmetic of distances, with the same bits on every target.
//!
//! ```text
//!   row   |-- segment --|-- segment --|-- segment --| ...     given up once the sum so far exceeds the limit
//!         | 8 steps     |             ▲             ▲
//!         | x 16 lanes  |             compared with it after segments 1, 2, 4, 8, ... and the last one
//! ```
//!
//! The order of additions is part of the definition: sixteen partial sums are accumulated in parallel, and then added
//! in a fixed order. A processor with wider vectors computes more of them at once, with the same bits. No
//! multiplication is fused with an addition, and there are no transcendental functions. [`Machine`] detects the
//! processor's instructions at run time; Wasm and other processors use the portable code.
//!
//! Squares are not negative and rounding is monotonic, so a partial sum never exceeds the total. Stopping early
//! therefore changes nothing, and a distant row costs one segment.

#[cfg(not(target_arch = "wasm32"))]
mod wide;
#[cfg(not(target_arch = "wasm32"))]
pub(super) use wide::Machine;

/// Number of lanes in a quad: one vector of SSE2 or of Wasm.
const QUAD: usize = 4;
/// Number of quads: together one AVX-512 vector, or two of AVX2.
const QUADS: usize = 4;
/// Number of additions to each lane of a segment.
const STEPS: usize = 8;
/// Number of components of a segment: rows are padded to a multiple of it.
pub(super) const SEGMENT: usize = QUAD * QUADS * STEPS;

type Lanes = [[f32; QUAD]; QUADS];
type Segment = [Lanes; STEPS];

/// The processor's instructions; in Wasm those enabled at compile time.
#[cfg(target_arch = "wasm32")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine;

#[cfg(target_arch = "wasm32")]
impl Machine {
    pub(super) fn new() -> Self {
        Self
    }

    /// Computes [`squared_distance`] with these instructions.
    pub(super) fn squared_distance(self, a: &[f32], b: &[f32], limit: f32) -> Option<f32> {
        squared_distance(a, b, limit)
    }

    /// Computes [`inner_product`] with these instructions.
    pub(super) fn inner_product(self, a: &[f32], b: &[f32]) -> f32 {
        inner_product(a, b)
    }
}

/// Returns the squared Euclidean distance of two rows of equal length, a multiple of [`SEGMENT`]; `None` if it exceeds
/// `limit`.
fn squared_distance(a: &[f32], b: &[f32], limit: f32) -> Option<f32> {
    sum(a, b, limit, |a, b| {
        let difference = a - b;
        difference * difference
    })
}

/// Returns the inner product of two rows of equal length, a multiple of [`SEGMENT`].
fn inner_product(a: &[f32], b: &[f32]) -> f32 {
    sum(a, b, f32::INFINITY, |a, b| a * b).unwrap_or_default()
}

/// Returns the sum of `term` over all components; `None` if it exceeds `limit`.
#[inline(always)]
fn sum(a: &[f32], b: &[f32], limit: f32, term: impl Fn(f32, f32) -> f32 + Copy) -> Option<f32> {
    let mut sums = [[0.0; QUAD]; QUADS];
    let mut looks = Looks::default();
    for (a, b) in segments(a).zip(segments(b)) {
        let [first, second, third, fourth] = &mut sums;
        add(first, a, b, |[quad, _, _, _]| quad, term);
        add(second, a, b, |[_, quad, _, _]| quad, term);
        add(third, a, b, |[_, _, quad, _]| quad, term);
        add(fourth, a, b, |[_, _, _, quad]| quad, term);
        if looks.is_due() && total(&sums) > limit {
            return None;
        }
    }
    Some(total(&sums)).filter(|sum| *sum <= limit)
}

/// Adds one quad's terms in a segment. Quads are processed one after another, so that without vectors four sums stay in
/// registers; sixteen would not, which takes twice as long in Wasm.
#[inline(always)]
fn add(
    sums: &mut [f32; QUAD],
    a: &Segment,
    b: &Segment,
    quad: impl Fn(&Lanes) -> &[f32; QUAD],
    term: impl Fn(f32, f32) -> f32,
) {
    for (a, b) in a.iter().zip(b) {
        for ((sum, &a), &b) in sums.iter_mut().zip(quad(a)).zip(quad(b)) {
            *sum += term(a, b);
        }
    }
}

fn segments(row: &[f32]) -> impl Iterator<Item = &Segment> {
    let (quads, _) = row.as_chunks::<QUAD>();
    let (steps, _) = quads.as_chunks::<QUADS>();
    let (segments, _) = steps.as_chunks::<STEPS>();
    segments.iter()
}

/// Adds up the lanes: repeatedly one half to the other.
#[inline(always)]
fn total(sums: &Lanes) -> f32 {
    let added = |a: [f32; QUAD], b: [f32; QUAD]| {
        let ([a, b, c, d], [e, f, g, h]) = (a, b);
        [a + e, b + f, c + g, d + h]
    };
    let [first, second, third, fourth] = *sums;
    let [a, b, c, d] = added(added(first, third), added(second, fourth));
    (a + c) + (b + d)
}

/// The segments after which the sum is compared with the limit; a comparison costs as much as half a segment.
#[derive(Default)]
struct Looks(u32);

impl Looks {
    #[inline(always)]
    fn is_due(&mut self) -> bool {
        self.0 += 1;
        self.0.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

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
        for segments in 1..10 {
            for _ in 0..50 {
                let (a, b) = (row(&mut random, segments), row(&mut random, segments));
                let whole = squared_distance(&a, &b, f32::INFINITY).unwrap();
                assert_eq!(squared_distance(&a, &b, whole), Some(whole));
                assert_eq!(squared_distance(&a, &b, whole.next_down()), None);
            }
        }
    }

    #[test]
    fn every_machine_finds_the_same_bits() {
        let mut random = Random::new(3);
        let machine = Machine::new();
        for segments in 1..10 {
            for _ in 0..50 {
                let (a, b) = (row(&mut random, segments), row(&mut random, segments));
                let products = inner_product(&a, &b);
                assert_eq!(machine.inner_product(&a, &b).to_bits(), products.to_bits());
                let whole = squared_distance(&a, &b, f32::INFINITY).unwrap();
                for limit in [f32::INFINITY, whole, whole.next_down(), whole / 3.0] {
                    assert_eq!(
                        machine.squared_distance(&a, &b, limit),
                        squared_distance(&a, &b, limit)
                    );
                }
            }
        }
    }
}
