//! Enumerates the borders of cells to cross, the likeliest first: Lv et al.'s query-directed probing (VLDB 2007,
//! section 4.4).
//!
//! The closer a border, the more likely a near row lies across it. For a set of borders, the sum of squared distances
//! matters. A heap yields the sets in that order: a set whose farthest member is the nth nearest border is followed by
//! the set with the (n+1)th in its place, and by the set with the (n+1)th in addition. So every set occurs once.

use foreword_ordering::sort::sort_by_key;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Returns, for each set of `borders`, the sum of the changes made by crossing them, from the likeliest set (the empty
/// one) on. A border is a nonnegative distance and a change. Only the 32 nearest borders are crossed.
pub(super) fn crossings(mut borders: Vec<(f32, u64)>) -> impl Iterator<Item = u64> {
    // Nonnegative floats have the same order as their bits.
    sort_by_key(&mut borders, |border| border.0.to_bits());
    borders.truncate(u32::BITS as usize);
    let mut sets = BinaryHeap::new();
    if !borders.is_empty() {
        sets.push(Reverse((cost(&borders, 1), 1_u32)));
    }
    let rest = std::iter::from_fn(move || {
        let Reverse((_, set)) = sets.pop()?;
        let farthest = set.ilog2();
        if (farthest as usize) + 1 < borders.len() {
            let beside = set | 2 << farthest;
            let instead = beside ^ 1 << farthest;
            for set in [instead, beside] {
                sets.push(Reverse((cost(&borders, set), set)));
            }
        }
        Some(members(&borders, set).fold(0_u64, |sum, (_, change)| sum.wrapping_add(change)))
    });
    std::iter::once(0).chain(rest)
}

/// Returns the sum of a set's squared distances as bits, which order nonnegative floats alike.
fn cost(borders: &[(f32, u64)], set: u32) -> u32 {
    let squares = members(borders, set).map(|(distance, _)| distance * distance);
    squares.sum::<f32>().max(0.0).to_bits()
}

fn members(borders: &[(f32, u64)], set: u32) -> impl Iterator<Item = (f32, u64)> {
    (0..)
        .zip(borders)
        .filter(move |&(at, _)| set >> at & 1 == 1)
        .map(|(_, &border)| border)
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

    #[test]
    fn every_set_comes_once_and_the_likeliest_first() {
        let mut random = Random::new(8);
        let borders: Vec<(f32, u64)> = (0..8).map(|at| (random.unit() as f32, 1 << at)).collect();
        let found: Vec<u64> = crossings(borders.clone()).collect();
        let cost = |set: u64| -> f32 {
            let members = borders.iter().filter(|(_, bit)| set & bit > 0);
            members.map(|(distance, _)| distance * distance).sum()
        };
        assert!(
            found
                .iter()
                .map(|&set| cost(set))
                .is_sorted_by(|a, b| a <= &(b + 1e-6))
        );
        let mut sets = found;
        sets.sort_unstable();
        assert_eq!(sets, (0..256).collect::<Vec<_>>());
    }

    #[test]
    fn no_border_and_strange_distances_do_no_harm() {
        assert_eq!(crossings(Vec::new()).collect::<Vec<_>>(), [0]);
        let strange = vec![(f32::NAN, 1), (f32::INFINITY, 2), (0.0, 4)];
        assert_eq!(crossings(strange).count(), 8);
        assert_eq!(crossings(vec![(1.0, 1); 40]).take(100).count(), 100);
    }
}
