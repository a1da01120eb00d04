//! Prompts that no cache can contain yet.

use foreword_ordering::random::Random;
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};

/// A generator of texts of random words without digits and colons, so that dates and times in a rendered prompt are the
/// chat template's.
pub(super) struct Words(Random);

impl Words {
    /// Returns a generator with a random seed, so that its texts differ from those of all other runs.
    pub(super) fn new() -> Self {
        Self(Random::new(RandomState::new().hash_one(())))
    }

    /// Returns a new text of `words` random words. Two texts begin with the same eight words by chance once in 2^40.
    pub(super) fn text(&mut self, words: u64) -> String {
        let word = |_| WORDS[self.0.below(WORDS.len() as u64) as usize];
        (0..words).map(word).collect::<Vec<_>>().join(" ")
    }
}

/// The texts of four documents, and a question about them.
pub(super) struct Documents {
    texts: Vec<String>,
    question: String,
    /// Number of words in each document.
    pub(super) words: u64,
}

impl Documents {
    pub(super) fn new(source: &mut Words, words: u64) -> Self {
        Self {
            texts: (0..4).map(|_| source.text(words)).collect(),
            question: source.text(8),
            words,
        }
    }

    /// Returns the body of a chat request with the documents in tags and the question; `ranks` are the documents'
    /// indices, best first.
    pub(super) fn chat(&self, model: &str, ranks: [usize; 4]) -> Value {
        let document = |rank: usize| {
            let text = &self.texts[rank];
            format!("<document id=\"probe-{rank}\">{text}</document>\n")
        };
        let documents = ranks.map(document).concat();
        let content = format!("<documents>\n{documents}</documents>\n\n{}", self.question);
        json!({"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1})
    }
}

/// The first order in which the documents are sent: their indices, best first.
pub(super) const FIRST: [usize; 4] = [0, 1, 2, 3];
/// Another order of the same documents: their indices, best first. The best one is the same.
pub(super) const AGAIN: [usize; 4] = [0, 3, 2, 1];

/// Short, common words, each about one token in most vocabularies.
const WORDS: [&str; 32] = [
    "apple", "bread", "chair", "door", "earth", "field", "glass", "house", "iron", "jacket",
    "king", "lake", "moon", "north", "ocean", "paper", "queen", "river", "stone", "table", "under",
    "voice", "water", "yellow", "bridge", "cloud", "dream", "flower", "garden", "horse", "island",
    "letter",
];
