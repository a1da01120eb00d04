//! BM25 over words, for questions that depend on exact words, such as names, numbers and identifiers.
//!
//! Words are runs of letters and digits in lower case. A file's words are sorted and looked up by bisection; those of
//! documents added since are in a map. A deleted document is never returned, but its words stay until the file is
//! rewritten and still count in the estimate of how rare a word is, which changes ranks little.

use crate::file::{Array, FileError, Part, Parts};
use crate::index::{Hit, Slot, SlotFilter, Top};
use fxhash::FxHashMap;
use std::collections::BTreeMap;

/// Okapi BM25's k1, at its usual value.
const K1: f32 = 1.2;
/// Okapi BM25's b, at its usual value.
const B: f32 = 0.75;
/// Longest word in bytes; longer words are truncated.
const MAX_WORD: usize = 64;

/// The words of all documents, ranked by Okapi BM25 (k1 = 1.2, b = 0.75): lower-case runs of letters and digits.
#[derive(Default)]
pub struct Words {
    mapped: Mapped,
    /// Postings of the words of the slots that were added since the file was read, by word.
    added: FxHashMap<String, Vec<Posting>>,
    /// Number of words in each slot.
    lengths: Array<u32>,
    /// Number of words in all slots together.
    total: u64,
}

/// A slot, and the number of times that a word occurs in it.
type Posting = [u32; 2];

#[derive(Default)]
struct Mapped {
    /// The words as UTF-8.
    text: Array<u8>,
    /// Start of each word in `text`, then the end.
    starts: Array<u64>,
    /// Start of each word's postings in `postings`, then the end.
    posting_starts: Array<u64>,
    postings: Array<Posting>,
}

impl Words {
    /// Returns an index of the words of `texts`.
    #[must_use]
    pub fn of<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let mut words = Self::default();
        for (slot, text) in (0..).zip(texts) {
            words.add(Slot(slot), text);
        }
        words
    }

    /// Returns the indexes of the `k` texts that match `question` best, best first; among equals, the earlier one
    /// first. Texts without a word of the question are not returned.
    #[must_use]
    pub fn best(&self, question: &str, k: usize) -> Vec<usize> {
        let hits = self.search(question, k, &|_| true, &|| false);
        hits.iter().map(|hit| hit.slot.0 as usize).collect()
    }

    /// Reads the words from a file of `count` slots.
    pub(crate) fn over(parts: &Parts, count: usize) -> Result<Self, FileError> {
        let mapped = Mapped {
            text: parts.numbers(Part::Words)?,
            starts: parts.numbers(Part::WordStarts)?,
            posting_starts: parts.numbers(Part::PostingStarts)?,
            postings: parts.numbers(Part::Postings)?,
        };
        let lengths: Array<u32> = parts.numbers(Part::Lengths)?;
        let spans = |starts: &[u64], end: usize| {
            starts.first() == Some(&0) && starts.last() == Some(&(end as u64)) && starts.is_sorted()
        };
        let fits = lengths.len() == count
            && mapped.starts.len() == mapped.posting_starts.len()
            && spans(&mapped.starts, mapped.text.len())
            && spans(&mapped.posting_starts, mapped.postings.len())
            && (mapped.postings.iter()).all(|[slot, _]| (*slot as usize) < count);
        if !fits {
            return Err(parts.damaged("the words and their places do not fit each other"));
        }
        Ok(Self {
            mapped,
            added: FxHashMap::default(),
            total: lengths.iter().map(|length| u64::from(*length)).sum(),
            lengths,
        })
    }

    /// Adds the text of the next slot.
    pub(crate) fn add(&mut self, slot: Slot, text: &str) {
        let mut counts: FxHashMap<String, u32> = FxHashMap::default();
        let mut length = 0;
        for word in words(text) {
            *counts.entry(word).or_default() += 1;
            length += 1;
        }
        for (word, times) in counts {
            self.added.entry(word).or_default().push([slot.0, times]);
        }
        self.lengths.to_mut().push(length);
        self.total += u64::from(length);
    }

    /// Returns the best `k` slots accepted by `keep`, for the words of `text`; a repeated word counts each time. Costs
    /// `O(postings of its words)`. Returns none if `is_cancelled` is true before a word.
    pub(crate) fn search(
        &self,
        text: &str,
        k: usize,
        keep: &SlotFilter<'_>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Vec<Hit> {
        let count = self.lengths.len() as f32;
        let mean = (self.total as f32 / count).max(1.0);
        let mut asked: Vec<String> = words(text).collect();
        asked.sort_unstable();
        let mut scores: FxHashMap<u32, f32> = FxHashMap::default();
        for again in asked.chunk_by(|one, next| one == next) {
            if is_cancelled() {
                return Vec::new();
            }
            let (mapped, added) = self.postings(&again[0]);
            let frequency = (mapped.len() + added.len()) as f32;
            let rarity = (1.0 + (count - frequency + 0.5) / (frequency + 0.5)).ln();
            let weight = again.len() as f32 * rarity;
            for &[slot, times] in mapped.iter().chain(added) {
                let length = self.lengths[slot as usize] as f32;
                let times = times as f32;
                let damped = times + K1 * (1.0 - B + B * length / mean);
                *scores.entry(slot).or_default() += weight * times * (K1 + 1.0) / damped;
            }
        }
        let mut top = Top::new(k);
        for (slot, score) in scores {
            if top.admits(Slot(slot), score) && keep(Slot(slot)) {
                top.offer(Slot(slot), score);
            }
        }
        top.hits().to_vec()
    }

    fn postings(&self, word: &str) -> (&[Posting], &[Posting]) {
        let added = self.added.get(word).map_or(&[][..], Vec::as_slice);
        (self.mapped.postings(word), added)
    }

    /// Returns the parts that a file stores.
    pub(crate) fn parts(&self) -> Vec<(Part, Vec<u8>)> {
        let mut all: BTreeMap<&[u8], Vec<Posting>> = (0..self.mapped.len())
            .map(|at| (self.mapped.word(at), self.mapped.postings_at(at).to_vec()))
            .collect();
        for (word, postings) in &self.added {
            all.entry(word.as_bytes()).or_default().extend(postings);
        }
        let (mut text, mut starts) = (Vec::new(), vec![0_u64]);
        let (mut postings, mut posting_starts) = (Vec::new(), vec![0_u64]);
        for (word, of_word) in &all {
            text.extend_from_slice(word);
            starts.push(text.len() as u64);
            postings.extend_from_slice(of_word);
            posting_starts.push(postings.len() as u64);
        }
        vec![
            (Part::Words, text),
            (Part::WordStarts, bytemuck::cast_slice(&starts).to_vec()),
            (
                Part::PostingStarts,
                bytemuck::cast_slice(&posting_starts).to_vec(),
            ),
            (Part::Postings, bytemuck::cast_slice(&postings).to_vec()),
            (Part::Lengths, bytemuck::cast_slice(&self.lengths).to_vec()),
        ]
    }
}

impl Mapped {
    fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    fn word(&self, at: usize) -> &[u8] {
        &self.text[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    fn postings_at(&self, at: usize) -> &[Posting] {
        &self.postings[self.posting_starts[at] as usize..self.posting_starts[at + 1] as usize]
    }

    fn postings(&self, word: &str) -> &[Posting] {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.word(middle).cmp(word.as_bytes()) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return self.postings_at(middle),
            }
        }
        &[]
    }
}

/// Returns whether a text has a word.
pub fn has_words(text: &str) -> bool {
    text.contains(char::is_alphanumeric)
}

/// Iterates over the words of a text, in order.
fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(|word| {
        let mut word = word.to_lowercase();
        if word.len() > MAX_WORD {
            word.truncate(word.floor_char_boundary(MAX_WORD));
        }
        word
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const TEXTS: [&str; 4] = [
        "The ferry leaves the harbour at noon with forty passengers.",
        "The train leaves the station at noon with forty passengers.",
        "Tickets are sold on board of the ferry. The ferry has a bar.",
        "Ångström wrote to the INSPECTOR of train 4711.",
    ];

    fn slots(words: &Words, question: &str) -> Vec<u32> {
        let hits = words.search(question, 3, &|slot| slot != Slot(1), &|| false);
        hits.iter().map(|hit| hit.slot.0).collect()
    }

    #[test]
    fn rare_words_and_repeated_ones_count_and_deleted_documents_do_not() {
        let words = Words::of(TEXTS);
        assert_eq!(slots(&words, "When does the ferry leave?"), [2, 0, 3]);
        assert_eq!(slots(&words, "ångström, 4711"), [3]);
        assert_eq!(slots(&words, "station"), [0_u32; 0]);
        assert_eq!(slots(&words, "?!"), [0_u32; 0]);
        // Equal scores: the earlier text first. A word that the question repeats counts more.
        assert_eq!(words.best("noon passengers", 4), [0, 1]);
        assert_eq!(words.best("ferry bar bar station station station", 1), [1]);
    }

    #[test]
    fn a_cancelled_search_reads_no_further_word() {
        let words = Words::of(TEXTS);
        let checks = Cell::new(0);
        let is_cancelled = || checks.replace(checks.get() + 1) == 1;
        let hits = words.search("ferry noon train", 3, &|_| true, &is_cancelled);
        assert_eq!((hits.len(), checks.get()), (0, 2));
    }

    #[test]
    fn words_from_a_file_and_words_added_since_are_found_alike() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let before = Words::of(TEXTS[..2].iter().copied());
        crate::file::write(&path, &before.parts()).unwrap();
        let mut words = Words::over(&Parts::open(&path).unwrap(), 2).unwrap();
        for (slot, text) in (2..).zip(&TEXTS[2..]) {
            words.add(Slot(slot), text);
        }
        let whole = Words::of(TEXTS);
        for question in ["the ferry", "train 4711", "noon passengers tickets"] {
            let search = |words: &Words| words.search(question, 4, &|_| true, &|| false);
            assert_eq!(search(&words), search(&whole));
        }
        assert!(Words::over(&Parts::open(&path).unwrap(), 1).is_err());
        assert_eq!(words.parts(), whole.parts());
    }
}
