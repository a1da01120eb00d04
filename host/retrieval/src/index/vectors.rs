//! Vectors of one length, and their similarity.
//!
//! Vectors from a file stay in the file, mapped; added ones follow them in memory. A slot is never reused.

use super::Slot;
use crate::file::Array;
use serde::{Deserialize, Serialize};

/// A measure of similarity; larger is nearer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The cosine of the angle between the vectors, from -1 to 1.
    #[default]
    Cosine,
    /// The inner product.
    InnerProduct,
    /// The negative squared Euclidean distance: 0 for equal vectors, -4 at a distance of 2.
    L2,
}

/// The reason why a vector was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(String);

/// Largest component: sums of squares of such components stay finite in an `f32`, whatever the dimensions.
const MAX_COMPONENT: f32 = 1e15;

/// Vectors by slot: rows in a file, then rows in memory.
pub struct Vectors {
    dimensions: u32,
    metric: Metric,
    mapped: Array<f32>,
    added: Vec<f32>,
}

impl Vectors {
    /// Returns an empty list; `dimensions` is at least 1.
    #[must_use]
    pub fn new(dimensions: u32, metric: Metric) -> Self {
        Self::over(dimensions, metric, Array::default())
    }

    /// Returns the vectors in `mapped`, whose length must be a multiple of `dimensions`.
    pub(crate) fn over(dimensions: u32, metric: Metric, mapped: Array<f32>) -> Self {
        Self {
            dimensions: dimensions.max(1),
            metric,
            mapped,
            added: Vec::new(),
        }
    }

    /// Returns the number of components of every vector.
    #[must_use]
    pub fn dimensions(&self) -> u32 {
        self.dimensions
    }

    /// Returns the measure of similarity between the vectors.
    #[must_use]
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Returns the number of vectors, deleted ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.mapped.len() + self.added.len()) / self.dimensions as usize
    }

    /// Returns whether there are no vectors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks `vector` and returns it in the form in which vectors are compared: with length 1 for the cosine.
    ///
    /// # Errors
    /// Returns [`Refused`] when the vector is unusable.
    pub fn prepare(&self, vector: &[f32]) -> Result<Vec<f32>, Refused> {
        if vector.len() != self.dimensions as usize {
            return Err(Refused(format!(
                "the vector has {} dimensions, this index has {}",
                vector.len(),
                self.dimensions
            )));
        }
        let wrong = |value: &f32| value.is_nan() || value.abs() > MAX_COMPONENT;
        if let Some(at) = vector.iter().position(wrong) {
            return Err(Refused(format!(
                "the vector's component {at} is {}, it must be a number of at most {MAX_COMPONENT:e}",
                vector[at]
            )));
        }
        if self.metric != Metric::Cosine {
            return Ok(vector.to_vec());
        }
        // In f64, no component's square underflows.
        let squares: f64 = vector.iter().map(|&value| f64::from(value).powi(2)).sum();
        if squares == 0.0 {
            let reason =
                "the vector is zero in every component: it has no direction to compare by cosine";
            return Err(Refused(reason.to_owned()));
        }
        let scale = squares.sqrt();
        let unit = |&value: &f32| (f64::from(value) / scale) as f32;
        Ok(vector.iter().map(unit).collect())
    }

    /// Adds a vector and returns its slot.
    ///
    /// # Errors
    /// Returns [`Refused`] when the vector is unusable; it is then not added.
    pub fn push(&mut self, vector: &[f32]) -> Result<Slot, Refused> {
        let row = self.prepare(vector)?;
        let full = |_| {
            let most = u32::MAX;
            Refused(format!(
                "there are {most} vectors, the most that an index holds"
            ))
        };
        let slot = u32::try_from(self.len()).map_err(full)?;
        self.added.extend(row);
        Ok(Slot(slot))
    }

    /// Returns the vector in `slot`, in the form in which it is compared.
    ///
    /// # Panics
    /// Panics when there is no such slot. Slots come only from this type.
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

    /// Returns the similarity of a prepared vector to the one in `slot`.
    #[inline]
    #[must_use]
    pub fn score(&self, query: &[f32], slot: Slot) -> f32 {
        self.metric.score(query, self.row(slot))
    }

    /// Returns all rows, concatenated, for a file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [
            bytemuck::cast_slice(&self.mapped),
            bytemuck::cast_slice(&self.added),
        ]
        .concat()
    }
}

impl Metric {
    /// Returns the similarity of two prepared vectors.
    #[inline]
    pub(crate) fn score(self, a: &[f32], b: &[f32]) -> f32 {
        match self {
            Self::Cosine | Self::InnerProduct => sum(a, b, |a, b| a * b),
            Self::L2 => -sum(a, b, |a, b| (a - b) * (a - b)),
        }
    }
}

/// Sums `term` over the components, in sixteen partial sums: vector instructions can compute them, with the same bits
/// everywhere.
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
