//! Vectors of one length, and how near two of them are.
//!
//! Those that came from a file stay there, mapped; those that are added stand behind them in memory. A slot is never
//! used twice.

use super::Slot;
use crate::file::Array;
use serde::{Deserialize, Serialize};

/// How near two vectors are. Larger is nearer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The cosine of the angle between them, from -1 to 1.
    #[default]
    Cosine,
    /// Their inner product.
    InnerProduct,
    /// Their squared Euclidean distance, less than nothing: 0 for equal ones, -4 for ones at a distance of 2.
    L2,
}

/// Why a vector was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// It has the wrong number of components.
    #[error("the vector has {found} dimensions, this index has {expected}")]
    Dimensions {
        /// Components given.
        found: usize,
        /// Components of every vector here.
        expected: u32,
    },
    /// A component is not a number, infinite, or too large to be squared.
    #[error(
        "the vector's component {at} is {value}, it must be a number of at most {MAX_COMPONENT:e}"
    )]
    NotFinite {
        /// Its index.
        at: usize,
        /// Its value.
        value: f32,
    },
    /// It has no direction, so no cosine.
    #[error("the vector is zero in every component: it has no direction to compare by cosine")]
    NoDirection,
    /// There is no room for more.
    #[error("there are {} vectors, the most that an index holds", u32::MAX)]
    Full,
}

/// Sums of squares of so large components stay finite in an `f32`, whatever the dimensions.
const MAX_COMPONENT: f32 = 1e15;

/// See the module's text.
pub struct Vectors {
    dimensions: u32,
    metric: Metric,
    mapped: Array<f32>,
    added: Vec<f32>,
}

impl Vectors {
    /// None yet. `dimensions` is at least 1.
    #[must_use]
    pub fn new(dimensions: u32, metric: Metric) -> Self {
        Self::over(dimensions, metric, Array::default())
    }

    /// Those in `mapped`, row by row, as they were written: whole rows.
    pub(crate) fn over(dimensions: u32, metric: Metric, mapped: Array<f32>) -> Self {
        Self {
            dimensions: dimensions.max(1),
            metric,
            mapped,
            added: Vec::new(),
        }
    }

    /// Components of every vector.
    #[must_use]
    pub fn dimensions(&self) -> u32 {
        self.dimensions
    }

    /// How they are compared.
    #[must_use]
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// How many there are, deleted ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.mapped.len() + self.added.len()) / self.dimensions as usize
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `vector`, checked, as it is compared: of length 1 for the cosine.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn prepare(&self, vector: &[f32]) -> Result<Vec<f32>, Refused> {
        if vector.len() != self.dimensions as usize {
            return Err(Refused::Dimensions {
                found: vector.len(),
                expected: self.dimensions,
            });
        }
        let wrong = |value: &f32| value.is_nan() || value.abs() > MAX_COMPONENT;
        if let Some(at) = vector.iter().position(wrong) {
            return Err(Refused::NotFinite {
                at,
                value: vector[at],
            });
        }
        if self.metric != Metric::Cosine {
            return Ok(vector.to_vec());
        }
        // In f64 no component is too small for its square.
        let squares: f64 = vector.iter().map(|&value| f64::from(value).powi(2)).sum();
        if squares == 0.0 {
            return Err(Refused::NoDirection);
        }
        let scale = squares.sqrt();
        let unit = |&value: &f32| (f64::from(value) / scale) as f32;
        Ok(vector.iter().map(unit).collect())
    }

    /// Takes in a vector.
    ///
    /// # Errors
    /// [`Refused`]; nothing was taken in then.
    pub fn push(&mut self, vector: &[f32]) -> Result<Slot, Refused> {
        let row = self.prepare(vector)?;
        let slot = u32::try_from(self.len()).map_err(|_| Refused::Full)?;
        self.added.extend(row);
        Ok(Slot(slot))
    }

    /// The vector in `slot`, as it is compared.
    ///
    /// # Panics
    /// When there is none: slots come from here.
    #[inline]
    #[must_use]
    pub fn row(&self, slot: Slot) -> &[f32] {
        let dimensions = self.dimensions as usize;
        let start = slot.0 as usize * dimensions;
        match start.checked_sub(self.mapped.len()) {
            None => &self.mapped[start..start + dimensions],
            Some(start) => &self.added[start..start + dimensions],
        }
    }

    /// How near a prepared vector is to the one in `slot`.
    #[inline]
    #[must_use]
    pub fn score(&self, query: &[f32], slot: Slot) -> f32 {
        self.metric.score(query, self.row(slot))
    }

    /// All rows, one behind another, for a file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [
            bytemuck::cast_slice(&self.mapped),
            bytemuck::cast_slice(&self.added),
        ]
        .concat()
    }
}

impl Metric {
    /// How near two prepared vectors are.
    #[inline]
    pub(crate) fn score(self, a: &[f32], b: &[f32]) -> f32 {
        match self {
            Self::Cosine | Self::InnerProduct => sum(a, b, |a, b| a * b),
            Self::L2 => -sum(a, b, |a, b| (a - b) * (a - b)),
        }
    }
}

/// Terms added up in sixteen sums side by side: enough for the compiler to use vectors, and the same bits everywhere.
#[inline(always)]
fn sum(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    const LANES: usize = 16;
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += term(*a, *b);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for at in 0..half {
            sums[at] += sums[at + half];
        }
        half /= 2;
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| term(*a, *b)).sum();
    sums[0] + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_their_definitions() {
        let a: Vec<f32> = (0..21).map(|at| at as f32 - 7.0).collect();
        let b: Vec<f32> = (0..21).map(|at| (at % 4) as f32).collect();
        let product: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
        let distance: f32 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
        assert_eq!(Metric::InnerProduct.score(&a, &b), product);
        assert_eq!(Metric::L2.score(&a, &b), -distance);
        let vectors = Vectors::new(21, Metric::Cosine);
        let [a, b] = [&a, &b].map(|vector| vectors.prepare(vector).unwrap());
        assert!((Metric::Cosine.score(&a, &a) - 1.0).abs() < 1e-6);
        let cosine = product / 770f32.sqrt() / 71f32.sqrt();
        let lengths: Vec<f32> = [&a, &b].map(|v| v.iter().map(|x| x * x).sum()).to_vec();
        assert!(
            lengths
                .iter()
                .all(|length: &f32| (length - 1.0).abs() < 1e-6)
        );
        assert!((Metric::Cosine.score(&a, &b) - cosine).abs() < 0.05);
    }

    #[test]
    fn what_cannot_be_compared_is_refused_by_name() {
        let vectors = Vectors::new(2, Metric::Cosine);
        let refusal = |vector: &[f32]| vectors.prepare(vector).unwrap_err().to_string();
        assert_eq!(
            refusal(&[1.0]),
            "the vector has 1 dimensions, this index has 2"
        );
        assert_eq!(
            refusal(&[0.0, f32::NAN]),
            "the vector's component 1 is NaN, it must be a number of at most 1e15"
        );
        assert!(refusal(&[1e30, 0.0]).contains("component 0 is"));
        assert!(refusal(&[0.0, 0.0]).contains("no direction"));
        assert!(Vectors::new(2, Metric::L2).prepare(&[0.0, 0.0]).is_ok());
        assert!(vectors.prepare(&[1e-40, 0.0]).unwrap()[0] > 0.99);
    }
}
