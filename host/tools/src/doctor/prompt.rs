//! Prompts that no cache has seen.

use foreword_ordering::random::Random;
use std::hash::{BuildHasher, RandomState};

/// Makes texts of random words. They have no digit and no colon, so a date or a clock in a rendered prompt is the template's.
pub(super) struct Words(Random);

impl Words {
    /// Returns a source that no other run has.
    pub(super) fn new() -> Self {
        Self(Random::new(RandomState::new().hash_one(())))
    }

    /// Returns a text of so many words. Two texts share their first eight words once in 2^40 times.
    pub(super) fn text(&mut self, words: u64) -> String {
        let word = |_| WORDS[self.0.below(WORDS.len() as u64) as usize];
        (0..words).map(word).collect::<Vec<_>>().join(" ")
    }
}

/// Short, common words: about a token each in most vocabularies.
const WORDS: [&str; 32] = [
    "apple", "bread", "chair", "door", "earth", "field", "glass", "house", "iron", "jacket",
    "king", "lake", "moon", "north", "ocean", "paper", "queen", "river", "stone", "table", "under",
    "voice", "water", "yellow", "bridge", "cloud", "dream", "flower", "garden", "horse", "island",
    "letter",
];
