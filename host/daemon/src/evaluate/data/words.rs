//! Which paragraphs a retriever would find for a question: Okapi BM25 (k1 = 1.2, b = 0.75) over words, runs of letters
//! and digits in lower case.

use fxhash::FxHashMap;

/// The words of a list of texts.
pub(super) struct Words {
    /// For every word, the texts that it stands in and how often, in the texts' order.
    postings: FxHashMap<String, Vec<(usize, f64)>>,
    /// Words of each text.
    lengths: Vec<f64>,
    mean_length: f64,
}

const K1: f64 = 1.2;
const B: f64 = 0.75;

impl Words {
    pub(super) fn of<'t>(texts: impl Iterator<Item = &'t str>) -> Self {
        let mut postings: FxHashMap<String, Vec<(usize, f64)>> = FxHashMap::default();
        let mut lengths = Vec::new();
        for (at, text) in texts.enumerate() {
            let mut length = 0.0;
            for word in words(text) {
                length += 1.0;
                let list = postings.entry(word).or_default();
                match list.last_mut() {
                    Some((last, count)) if *last == at => *count += 1.0,
                    _ => list.push((at, 1.0)),
                }
            }
            lengths.push(length);
        }
        let mean_length = (lengths.iter().sum::<f64>() / lengths.len().max(1) as f64).max(1.0);
        Self {
            postings,
            lengths,
            mean_length,
        }
    }

    /// The `k` texts that fit `question` best, best first; of equal ones the earlier. Fewer when fewer share a word.
    pub(super) fn best(&self, question: &str, k: usize) -> Vec<usize> {
        let mut asked: Vec<_> = words(question).collect();
        asked.sort_unstable();
        asked.dedup();
        let count = self.lengths.len() as f64;
        let mut scores: FxHashMap<usize, f64> = FxHashMap::default();
        for list in asked.iter().filter_map(|word| self.postings.get(word)) {
            let found = list.len() as f64;
            let rarity = (1.0 + (count - found + 0.5) / (found + 0.5)).ln();
            for &(at, times) in list {
                let damping = K1 * (1.0 - B + B * self.lengths[at] / self.mean_length);
                *scores.entry(at).or_default() += rarity * times * (K1 + 1.0) / (times + damping);
            }
        }
        let mut ranked: Vec<_> = scores.into_iter().collect();
        ranked.sort_unstable_by(|(at, score), (other, than)| {
            than.total_cmp(score).then_with(|| at.cmp(other))
        });
        ranked.truncate(k);
        ranked.into_iter().map(|(at, _)| at).collect()
    }
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: [&str; 4] = [
        "The ferry leaves the harbour at noon with forty passengers.",
        "The train leaves the station at noon with forty passengers.",
        "Tickets are sold on board of the ferry. The ferry has a bar.",
        "Ångström wrote to the INSPECTOR of train 4711.",
    ];

    #[test]
    fn rare_and_repeated_words_count_most_and_short_texts_more() {
        let words = Words::of(TEXTS.into_iter());
        assert_eq!(words.best("When does the ferry leave?", 2), [2, 0]);
        assert_eq!(words.best("ångström, 4711", 3), [3]);
        assert_eq!(words.best("?!", 3), [0_usize; 0]);
        // Alike: the earlier one first.
        assert_eq!(words.best("noon passengers", 4), [0, 1]);
    }
}
