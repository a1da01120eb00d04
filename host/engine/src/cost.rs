//! The cost of prefill: seconds to compute new tokens after cached ones, interpolated from measurements.
//!
//! ```text
//!   seconds      1    16    64   256   new tokens
//!   cached   0   ·     ·     ·     ·
//!          256   ·     ·  ×  ·     ·    × lies between four points: bilinear (RAGCache §5.1)
//!         1024   ·     ·     ·     ·
//! ```
//!
//! This module knows no backend and no clock; [`profile`](crate::engine::profile) measures.

use serde::{Deserialize, Serialize};

/// A table of measured prefill times, from which the seconds for a number of cached and of new tokens are interpolated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Table")]
pub struct CostProfile {
    /// The rows of the table `seconds`: numbers of cached tokens, ascending, not empty.
    cached: Vec<u32>,
    /// The columns of the table `seconds`: numbers of new tokens, ascending from at least 1, not empty.
    new: Vec<u32>,
    /// Seconds `[cached, new]`, row-major: one for each pair of `cached` and `new`, finite, non-decreasing along both
    /// axes.
    seconds: Vec<f64>,
}

/// A [`CostProfile`] as it is serialised, not yet validated.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    cached: Vec<u32>,
    new: Vec<u32>,
    seconds: Vec<f64>,
}

/// The error for a table that is not a valid cost profile; the message names the offending value and the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unusable cost profile: {0}")]
pub struct CostError(String);

impl CostProfile {
    /// Builds a profile from measurements: `seconds` is `[cached, new]`, row-major. More cached or new tokens are
    /// assumed to cost at least as much. Disturbances only ever add to a measurement, so each point of the table is
    /// lowered to the least of the points with at least as many tokens of both kinds.
    ///
    /// # Errors
    /// [`CostError`] when an axis is empty or does not ascend, `new` begins with 0, or there is not one finite and
    /// positive value for each point.
    pub fn new(cached: Vec<u32>, new: Vec<u32>, seconds: Vec<f64>) -> Result<Self, CostError> {
        let wrong = |what: String| Err(CostError(what));
        for (name, axis) in [("cached", &cached), ("new", &new)] {
            if axis.is_empty() {
                return wrong(format!("{name} is empty"));
            }
            if let Some([a, b]) = axis.array_windows().find(|[a, b]| a >= b) {
                return wrong(format!("{name} has {b} after {a}, it must ascend"));
            }
        }
        if new[0] == 0 {
            return wrong("new begins with 0, at least 1 is needed".to_owned());
        }
        if seconds.len() != cached.len() * new.len() {
            let (rows, columns, found) = (cached.len(), new.len(), seconds.len());
            return wrong(format!(
                "seconds has {found} values, not {rows} × {columns}"
            ));
        }
        if let Some(value) = seconds
            .iter()
            .find(|value| !(value.is_finite() && **value > 0.0))
        {
            return wrong(format!(
                "seconds has {value}, supported: above 0 and finite"
            ));
        }
        let mut this = Self {
            cached,
            new,
            seconds,
        };
        this.level();
        Ok(this)
    }

    /// Returns the seconds to compute `new` tokens after `cached` ones, interpolated in the table of measurements; 0
    /// when `new` is 0. More cached or new tokens never cost less.
    ///
    /// Below the table's first number of new tokens, the cost is proportional to `new`. Beyond the last number of new
    /// tokens, it rises at the slope between the last two, or at that of a row with fewer cached tokens if that is
    /// steeper. Beyond the last number of cached tokens, it rises by a constant for each further pair of a new and a
    /// cached token, as attention does.
    pub fn seconds(&self, cached: u32, new: u32) -> f64 {
        if new == 0 {
            return 0.0;
        }
        let (row, part) = cell(&self.cached, cached);
        let last = self.cached.len() - 1;
        if row < last {
            return between(self.along(row, new), self.along(row + 1, new), part);
        }
        let beyond = f64::from(cached.saturating_sub(self.cached[last]));
        self.along(last, new) + self.per_pair() * beyond * f64::from(new)
    }

    /// Returns the seconds to compute `new` tokens after the cached tokens of table row `row`: interpolated between the
    /// row's points, and extrapolated beyond the first and the last.
    fn along(&self, row: usize, new: u32) -> f64 {
        if new < self.new[0] {
            return self.at(row, 0) * f64::from(new) / f64::from(self.new[0]);
        }
        let (column, part) = cell(&self.new, new);
        let last = self.new.len() - 1;
        if column < last {
            return between(self.at(row, column), self.at(row, column + 1), part);
        }
        // At least as steep as every row above it, or the rows would cross.
        let slopes = (0..=row).map(|row| self.slope(row));
        let beyond = f64::from(new - self.new[last]);
        self.at(row, last) + slopes.fold(0.0, f64::max) * beyond
    }

    /// Returns the seconds per new token between the last two points of table row `row`; 0 if the row has one point.
    fn slope(&self, row: usize) -> f64 {
        match self.new.as_slice() {
            [.., a, b] => {
                let last = self.new.len() - 1;
                (self.at(row, last) - self.at(row, last - 1)) / f64::from(b - a)
            }
            _ => 0.0,
        }
    }

    /// Returns the seconds per pair of a new and a cached token, from the difference between the last two rows of the
    /// table in the last column; 0 if the table has one row.
    fn per_pair(&self) -> f64 {
        match (self.cached.as_slice(), self.new.last()) {
            ([.., a, b], Some(&new)) => {
                let (row, column) = (self.cached.len() - 1, self.new.len() - 1);
                let more = self.at(row, column) - self.at(row - 1, column);
                more / (f64::from(b - a) * f64::from(new))
            }
            _ => 0.0,
        }
    }

    /// Returns the number of points in the table of prefill times: numbers of cached tokens times numbers of new
    /// tokens.
    pub fn points(&self) -> usize {
        self.seconds.len()
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.seconds[row * self.new.len() + column]
    }

    /// Lowers each point of the table to the least of the points with at least as many tokens, so that seconds never
    /// decrease along an axis.
    fn level(&mut self) {
        let width = self.new.len();
        for index in (0..self.seconds.len()).rev() {
            if index % width + 1 < width {
                self.seconds[index] = self.seconds[index].min(self.seconds[index + 1]);
            }
            if let Some(&below) = self.seconds.get(index + width) {
                self.seconds[index] = self.seconds[index].min(below);
            }
        }
    }
}

/// Returns the index of the last value of `axis` (ascending) that is not above `value`, or 0 if all are above it. Also
/// returns where `value` is between that one and the next, as a fraction of their distance; 0 beyond the ends.
fn cell(axis: &[u32], value: u32) -> (usize, f64) {
    let index = axis
        .partition_point(|point| *point <= value)
        .saturating_sub(1);
    match axis.get(index..index + 2) {
        Some(&[from, to]) => {
            let way = f64::from(value.saturating_sub(from));
            (index, way / f64::from(to - from))
        }
        _ => (index, 0.0),
    }
}

fn between(a: f64, b: f64, part: f64) -> f64 {
    a + (b - a) * part
}

impl TryFrom<Table> for CostProfile {
    type Error = CostError;

    fn try_from(table: Table) -> Result<Self, CostError> {
        Self::new(table.cached, table.new, table.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12 * (1.0 + b.abs())
    }

    fn profile() -> CostProfile {
        // 1 + cached / 100 + new / 10 + cached · new / 1000 at the points: bilinear, so exact everywhere.
        let seconds = |cached: u32, new: u32| {
            let (cached, new) = (f64::from(cached), f64::from(new));
            1.0 + cached / 100.0 + new / 10.0 + cached * new / 1000.0
        };
        let (cached, new) = (vec![0, 10, 40], vec![2, 4, 20]);
        let points = cached
            .iter()
            .flat_map(|&c| new.iter().map(move |&n| seconds(c, n)));
        let points = points.collect();
        CostProfile::new(cached, new, points).unwrap()
    }

    #[test]
    fn a_bilinear_cost_is_met_exactly_between_and_beyond_the_points() {
        let profile = profile();
        for (cached, new) in [
            (0, 2),
            (10, 4),
            (5, 3),
            (39, 19),
            (40, 20),
            (50, 20),
            (10, 25),
            (40, 100),
        ] {
            let (c, n) = (f64::from(cached), f64::from(new));
            let expected = 1.0 + c / 100.0 + n / 10.0 + c * n / 1000.0;
            assert!(
                near(profile.seconds(cached, new), expected),
                "{cached} {new}"
            );
        }
    }

    #[test]
    fn no_tokens_cost_nothing_and_few_cost_their_share_of_the_first_point() {
        let profile = profile();
        assert_eq!(profile.seconds(30, 0), 0.0);
        assert!(near(profile.seconds(0, 1), profile.seconds(0, 2) / 2.0));
    }

    #[test]
    fn a_disturbed_point_counts_no_more_than_those_beyond_it() {
        let seconds = vec![1.0, 9.0, 3.0, 2.0, 2.5, 4.0];
        let profile = CostProfile::new(vec![0, 10], vec![1, 2, 3], seconds).unwrap();
        assert_eq!(profile.seconds, [1.0, 2.5, 3.0, 2.0, 2.5, 4.0]);
    }

    #[test]
    fn more_tokens_never_cost_less_whatever_was_measured() {
        let mut random = Random::new(3);
        for _ in 0..50 {
            let seconds = (0..16).map(|_| random.unit() + 1e-6).collect();
            let axis = vec![1, 5, 6, 30];
            let profile = CostProfile::new(axis.clone(), axis, seconds).unwrap();
            for cached in 0..35 {
                for new in 0..35 {
                    let here = profile.seconds(cached, new);
                    assert!(here.is_finite() && here >= 0.0);
                    assert!(profile.seconds(cached, new + 1) >= here - 1e-12);
                    assert!(profile.seconds(cached + 1, new) >= here - 1e-12);
                }
            }
        }
    }

    #[test]
    fn one_point_is_a_profile() {
        let profile = CostProfile::new(vec![0], vec![4], vec![2.0]).unwrap();
        assert_eq!(profile.seconds(1000, 2), 1.0);
        assert_eq!(profile.seconds(0, 4000), 2.0);
    }

    /// Builds a profile from a formula: `per_token` seconds for each new token, and `per_pair` seconds for each pair of
    /// a new token and a position that it attends to.
    fn proportional(per_token: f64, per_pair: f64) -> CostProfile {
        let cached = vec![0, 1 << 10, 1 << 12, 1 << 14, 1 << 16];
        let new = vec![1, 1 << 6, 1 << 8, 1 << 10, 1 << 12, 1 << 14];
        let mut seconds = Vec::new();
        for cached in cached.iter().copied().map(f64::from) {
            let row = new.iter().copied().map(f64::from);
            seconds.extend(row.map(|new| new * (per_token + per_pair * (cached + new / 2.0))));
        }
        CostProfile {
            cached,
            new,
            seconds,
        }
    }

    #[test]
    fn a_profile_survives_being_stored() {
        for profile in [profile(), proportional(1e-3, 1e-7)] {
            let text = serde_json::to_string(&profile).unwrap();
            let read: CostProfile = serde_json::from_str(&text).unwrap();
            assert_eq!((&read.cached, &read.new), (&profile.cached, &profile.new));
            // A decimal fraction may come back with a different last bit.
            let mut values = read.seconds.iter().zip(&profile.seconds);
            assert!(values.all(|(a, b)| near(*a, *b)));
        }
    }

    #[test]
    fn unusable_tables_are_refused_by_name() {
        for (cached, new, seconds, expected) in [
            (vec![], vec![1], vec![], "cached is empty"),
            (vec![0], vec![], vec![], "new is empty"),
            (vec![0, 5, 5], vec![1], vec![1.0; 3], "cached has 5 after 5"),
            (vec![0], vec![0, 1], vec![1.0; 2], "new begins with 0"),
            (
                vec![0],
                vec![1, 2],
                vec![1.0; 3],
                "seconds has 3 values, not 1 × 2",
            ),
            (vec![0], vec![1, 2], vec![1.0, 0.0], "seconds has 0"),
            (vec![0], vec![1, 2], vec![1.0, f64::NAN], "seconds has NaN"),
        ] {
            let error = CostProfile::new(cached, new, seconds)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(expected),
                "{error:?} does not say {expected:?}"
            );
        }
        let text = r#"{"cached":[0],"new":[2,1],"seconds":[1,2]}"#;
        let error = serde_json::from_str::<CostProfile>(text)
            .unwrap_err()
            .to_string();
        assert!(error.contains("new has 1 after 2"), "{error}");
    }
}
