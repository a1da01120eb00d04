//! The metrics: which vectors can be compared, their distance, and the meaning of a tolerance.

use super::distance::Machine;
use serde::Deserialize;

foreword_ordering::named! {
    /// The distance between two embeddings. Choose the retriever's metric.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Metric {
        /// Compares embeddings by the Euclidean distance between them.
        L2 = "l2",
        /// One minus the cosine of the angle: 0 for the same direction, 2 for opposite ones. Lengths do not matter.
        #[default]
        Cosine = "cosine",
        /// One minus the inner product: the cosine distance if both have length 1, and below 0 for long vectors with
        /// similar directions.
        InnerProduct = "inner-product",
    }
}

/// Why an embedding or its entry is invalid. The cache is then unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SimilarityError(pub(super) String);

/// Longest embedding: squared differences of two such stay finite in an `f32`.
const MAX_LENGTH: f64 = 4e18;

impl Metric {
    /// Returns the range of valid tolerances.
    pub(super) fn tolerances(self) -> (f64, f64) {
        match self {
            Self::L2 => (0.0, 8e18),
            Self::Cosine => (0.0, 2.0),
            Self::InnerProduct => (-1e37, 1e37),
        }
    }

    pub(super) fn check(self, tolerance: f64) -> Result<(), SimilarityError> {
        let (low, high) = self.tolerances();
        if (low..=high).contains(&tolerance) {
            return Ok(());
        }
        Err(SimilarityError(format!(
            "a tolerance of {tolerance} is out of range, it must be {low} to {high}"
        )))
    }

    /// Returns the largest [measure](Self::measure) within `tolerance`.
    pub(super) fn limit(self, tolerance: f64) -> f32 {
        let tolerance = tolerance as f32;
        match self {
            Self::L2 => tolerance * tolerance,
            Self::Cosine => 2.0 * tolerance,
            Self::InnerProduct => tolerance - 1.0,
        }
    }

    /// Returns a measure of the distance of two rows: it is cheaper, and orders rows alike. `None` if it exceeds
    /// `limit`. Rows must be written by [`Self::row`].
    #[inline]
    pub(super) fn measure(self, machine: Machine, a: &[f32], b: &[f32], limit: f32) -> Option<f32> {
        match self {
            // For unit vectors, the squared chord is twice the cosine distance.
            Self::L2 | Self::Cosine => machine.squared_distance(a, b, limit),
            Self::InnerProduct => {
                Some(-machine.inner_product(a, b)).filter(|&measure| measure <= limit)
            }
        }
    }

    /// Converts a measure to the distance.
    pub(super) fn distance(self, measure: f32) -> f32 {
        match self {
            Self::L2 => measure.sqrt(),
            Self::Cosine => measure / 2.0,
            Self::InnerProduct => 1.0 + measure,
        }
    }

    /// Checks `embedding`, and writes it to `row` in the form in which rows are compared: of length 1 for the cosine,
    /// and padded with zeros to `stride` components.
    pub(super) fn row(
        self,
        embedding: &[f32],
        dimensions: u32,
        stride: usize,
        row: &mut Vec<f32>,
    ) -> Result<(), SimilarityError> {
        row.clear();
        if embedding.len() != dimensions as usize {
            return Err(SimilarityError(format!(
                "the embedding has {} dimensions, this cache is for {dimensions}",
                embedding.len()
            )));
        }
        let length = length(embedding);
        if !length.is_finite() {
            let wrong = embedding.iter().position(|value| !value.is_finite());
            let at = wrong.unwrap_or_default();
            let value = embedding.get(at).copied().unwrap_or(f32::NAN);
            return Err(SimilarityError(format!(
                "the embedding's component {at} is {}, it must be finite",
                f64::from(value)
            )));
        }
        match self {
            Self::Cosine if length == 0.0 => {
                let reason = "the embedding is zero in every component: it has no direction to compare by cosine";
                return Err(SimilarityError(reason.to_owned()));
            }
            Self::Cosine => row.extend(
                embedding
                    .iter()
                    .map(|&value| (f64::from(value) / length) as f32),
            ),
            Self::L2 | Self::InnerProduct if length > MAX_LENGTH => {
                return Err(SimilarityError(format!(
                    "the embedding's length is {length}, it may be at most {MAX_LENGTH}"
                )));
            }
            Self::L2 | Self::InnerProduct => row.extend_from_slice(embedding),
        }
        row.resize(stride, 0.0);
        Ok(())
    }
}

/// Returns the Euclidean length in `f64`, in which the square of an `f32` neither overflows nor underflows.
fn length(embedding: &[f32]) -> f64 {
    const LANES: usize = 8;
    let (chunks, rest) = embedding.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += f64::from(value) * f64::from(value);
    }
    sums.iter().sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::distance::SEGMENT;
    use super::*;

    fn row(metric: Metric, embedding: &[f32]) -> Result<Vec<f32>, SimilarityError> {
        let mut row = Vec::new();
        metric.row(embedding, 2, SEGMENT, &mut row)?;
        Ok(row)
    }

    fn distance(metric: Metric, a: &[f32], b: &[f32]) -> f32 {
        let (a, b) = (row(metric, a).unwrap(), row(metric, b).unwrap());
        let measure = metric.measure(Machine::new(), &a, &b, f32::INFINITY);
        metric.distance(measure.unwrap())
    }

    #[test]
    fn distances_are_those_of_their_definitions() {
        let near = |a: f32, b: f32| (a - b).abs() < 1e-6;
        assert_eq!(distance(Metric::L2, &[0.0, 0.0], &[3.0, 4.0]), 5.0);
        assert_eq!(distance(Metric::Cosine, &[2.0, 2.0], &[5.0, 5.0]), 0.0);
        assert!(near(
            distance(Metric::Cosine, &[1.0, 0.0], &[0.0, 7.0]),
            1.0
        ));
        assert!(near(
            distance(Metric::Cosine, &[1.0, 0.0], &[-3.0, 0.0]),
            2.0
        ));
        assert_eq!(
            distance(Metric::InnerProduct, &[2.0, 1.0], &[3.0, 4.0]),
            -9.0
        );
    }

    #[test]
    fn directions_survive_the_smallest_and_the_largest_numbers() {
        for scale in [1e-44_f32, 1e-38, 1.0, 1e38] {
            let far = distance(Metric::Cosine, &[scale, 0.0], &[0.0, scale]);
            assert!((far - 1.0).abs() < 1e-6, "{scale:e}: {far}");
        }
    }

    #[test]
    fn what_cannot_be_compared_is_refused_by_name() {
        let error = |metric, embedding: &[f32]| row(metric, embedding).unwrap_err().to_string();
        assert_eq!(
            error(Metric::L2, &[1.0]),
            "the embedding has 1 dimensions, this cache is for 2"
        );
        assert_eq!(
            error(Metric::Cosine, &[1.0, f32::NAN]),
            "the embedding's component 1 is NaN, it must be finite"
        );
        assert_eq!(
            error(Metric::InnerProduct, &[f32::NEG_INFINITY, 0.0]),
            "the embedding's component 0 is -inf, it must be finite"
        );
        assert_eq!(
            error(Metric::Cosine, &[0.0, -0.0]),
            "the embedding is zero in every component: it has no direction to compare by cosine"
        );
        assert!(row(Metric::L2, &[0.0, 0.0]).is_ok());
        assert!(error(Metric::L2, &[1e30, 0.0]).ends_with("it may be at most 4000000000000000000"));
    }

    #[test]
    fn a_tolerance_accepts_its_own_distance() {
        for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
            assert_eq!(metric.limit(0.5), [0.25, 1.0, -0.5][metric as usize]);
            assert_eq!(metric.distance(metric.limit(0.5)), 0.5);
            assert!(metric.check(f64::NAN).is_err());
        }
        assert_eq!(
            Metric::Cosine.check(2.5).unwrap_err().to_string(),
            "a tolerance of 2.5 is out of range, it must be 0 to 2"
        );
    }
}
