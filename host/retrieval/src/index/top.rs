//! The best `k` hits of a stream.

use super::{Hit, Slot};

/// At most `k` hits, nearest first, the lower slot first among equals.
#[derive(Clone, Debug)]
pub struct Top {
    hits: Vec<Hit>,
    k: usize,
}

impl Top {
    /// Returns an empty list. Its memory grows with the number of hits, not with `k`.
    #[must_use]
    pub fn new(k: usize) -> Self {
        Self {
            hits: Vec::new(),
            k,
        }
    }

    /// Returns whether a hit would be among the best.
    #[must_use]
    pub fn admits(&self, slot: Slot, score: f32) -> bool {
        if self.hits.len() < self.k {
            return true;
        }
        (self.hits.last()).is_some_and(|last| is_before(Hit { slot, score }, *last))
    }

    /// Inserts a hit if it is among the best. Costs `O(k)`.
    pub fn offer(&mut self, slot: Slot, score: f32) {
        if !self.admits(slot, score) {
            return;
        }
        let hit = Hit { slot, score };
        let at = self.hits.partition_point(|other| is_before(*other, hit));
        if self.hits.len() == self.k {
            self.hits.pop();
        }
        self.hits.insert(at, hit);
    }

    /// Returns the best hits, nearest first.
    #[must_use]
    pub fn hits(&self) -> &[Hit] {
        &self.hits
    }

    /// Returns the lowest score of the `k` hits; `None` while there are fewer, so that every hit is admitted.
    #[must_use]
    pub fn bar(&self) -> Option<f32> {
        (self.hits.len() == self.k).then(|| self.hits.last().map_or(f32::INFINITY, |hit| hit.score))
    }
}

fn is_before(a: Hit, b: Hit) -> bool {
    a.score > b.score || (a.score == b.score && a.slot < b.slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_stand_in_order_and_ties_go_to_the_lower_slot() {
        let mut top = Top::new(3);
        for (slot, score) in [(5, 1.0), (2, 3.0), (9, 1.0), (1, 1.0), (0, 0.5), (7, 2.0)] {
            top.offer(Slot(slot), score);
        }
        let slots: Vec<u32> = top.hits().iter().map(|hit| hit.slot.0).collect();
        assert_eq!(slots, [2, 7, 1]);
        assert_eq!(top.bar(), Some(1.0));
        let mut none = Top::new(0);
        none.offer(Slot(1), 9.0);
        assert!(none.hits().is_empty());
    }
}
