//! Feature hashing (Weinberger et al., ICML 2009) of words and their parts: converts a text to a vector of length 1.
//!
//! ```text
//!   "Who won the game?"
//!      words      who  won  the  game                  short words say little, so they weigh little
//!      trigrams   ^wh who ho$  ^wo won on$  …          what inflections share
//!                  │
//!                  ▼ XXH3 of each
//!      component = high bits, sign = lowest bit; square root of how often
//! ```
//!
//! It captures words, not meanings: texts are near when they share words or parts of them. The vector is the same on
//! every target, bit for bit: additions in a fixed order, square roots, and no transcendental functions.

use foreword_ordering::sort::sort_by_key;
use fxhash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Embeds texts without a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashingEmbedder {
    dimensions: u32,
}

/// The number of dimensions is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} dimensions are out of range, it must be 1 to {MAX_DIMENSIONS}")]
pub struct DimensionsError(u32);

/// Most dimensions of a vector.
pub const MAX_DIMENSIONS: u32 = 16_384;

/// Weight of all trigrams of a word relative to the word, times the square root of their number.
const PARTS: f32 = 0.5;
/// Number of characters of a trigram.
const GRAM: usize = 3;
/// Number of characters at which a word has its full weight.
const FULL_LENGTH: usize = 8;

/// Kinds of features, as the seeds of their hashes.
const WORD_SEED: u64 = 1;
const GRAM_SEED: u64 = 2;

impl HashingEmbedder {
    /// Returns an embedder with this number of dimensions. With fewer than some hundred, different words share
    /// components.
    ///
    /// # Errors
    /// Returns [`DimensionsError`] unless there are 1 to [`MAX_DIMENSIONS`].
    pub fn new(dimensions: u32) -> Result<Self, DimensionsError> {
        if (1..=MAX_DIMENSIONS).contains(&dimensions) {
            Ok(Self { dimensions })
        } else {
            Err(DimensionsError(dimensions))
        }
    }

    /// Returns the number of components of a vector.
    #[must_use]
    pub fn dimensions(&self) -> u32 {
        self.dimensions
    }

    /// Returns the vector of `text`, of length 1. `None` if the text has no letter and no digit, or if its features
    /// cancel out. Case, the order of words and the characters between them are ignored.
    ///
    /// Takes time proportional to the text, and memory proportional to its distinct words.
    #[must_use]
    pub fn embed(&self, text: &str) -> Option<Vec<f32>> {
        let lower = text.to_lowercase();
        self.embed_words(lower.split(|c: char| !c.is_alphanumeric()))
    }

    /// Returns the vector of a text that is already split into `words`, in lower case and with only letters and digits;
    /// `None` as for [`Self::embed`]. Empty words are ignored.
    #[must_use]
    pub fn embed_words<'w>(&self, words: impl Iterator<Item = &'w str>) -> Option<Vec<f32>> {
        let mut vector = vec![0.0; self.dimensions as usize];
        for (hash, weight) in features(words) {
            let at = ((hash >> 32) * u64::from(self.dimensions)) >> 32;
            let sign = if hash & 1 == 0 { 1.0 } else { -1.0 };
            if let Some(component) = vector.get_mut(at as usize) {
                *component += sign * weight.sqrt();
            }
        }
        let squares: f32 = vector.iter().map(|value| value * value).sum();
        // Features that share a component may cancel out, so even a text with words may have no vector.
        if squares == 0.0 {
            return None;
        }
        let length = squares.sqrt();
        for component in &mut vector {
            *component /= length;
        }
        Some(vector)
    }
}

/// Returns the hashes of the words' features, each with the sum of its weights, in ascending order.
fn features<'w>(words: impl Iterator<Item = &'w str>) -> Vec<(u64, f32)> {
    let mut weights: FxHashMap<u64, f32> = FxHashMap::default();
    let mut add = |hash, weight| *weights.entry(hash).or_insert(0.0) += weight;
    let mut marked = Vec::new();
    for word in words {
        if word.is_empty() {
            continue;
        }
        marked.clear();
        marked.push('^');
        marked.extend(word.chars());
        marked.push('$');
        let share = (marked.len() - 2).min(FULL_LENGTH) as f32 / FULL_LENGTH as f32;
        let weight = share * share;
        add(xxh3_64_with_seed(word.as_bytes(), WORD_SEED), weight);
        let grams = marked.windows(GRAM.min(marked.len()));
        let each = PARTS * weight / (grams.len() as f32).sqrt();
        for gram in grams {
            let mut bytes = [0; 4 * GRAM];
            for (bytes, &letter) in bytes.chunks_exact_mut(4).zip(gram) {
                bytes.copy_from_slice(&u32::from(letter).to_le_bytes());
            }
            add(xxh3_64_with_seed(&bytes, GRAM_SEED), each);
        }
    }
    let mut features: Vec<(u64, f32)> = weights.into_iter().collect();
    sort_by_key(&mut features, |&(hash, _)| hash);
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embed(text: &str) -> Vec<f32> {
        HashingEmbedder::new(768).unwrap().embed(text).unwrap()
    }

    fn cosine(a: &str, b: &str) -> f32 {
        embed(a).iter().zip(embed(b)).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn texts_are_near_when_they_share_words_or_their_parts() {
        let question = "Where was the treaty signed?";
        let same = cosine(question, "where, was the TREATY... signed");
        let prefixed = cosine(question, "Please tell me: where was the treaty signed?");
        let inflected = cosine(question, "Where were the treaties signed?");
        let other = cosine(question, "How many people live in Warsaw?");
        assert!((same - 1.0).abs() < 1e-6);
        assert!(1.0 > prefixed && prefixed > inflected && inflected > 0.3 && other < 0.1);
    }

    #[test]
    fn every_script_has_words() {
        assert!(cosine("Где был подписан договор?", "где подписан договор") > 0.7);
        assert!(cosine("条約はどこで署名", "条約は署名") > 0.2);
    }

    #[test]
    fn vectors_are_of_length_one_and_fixed() {
        for text in ["a", "Ünïcödé 42", &"long ".repeat(1000)] {
            let squares: f32 = embed(text).iter().map(|value| value * value).sum();
            assert!((squares - 1.0).abs() < 1e-5);
        }
        // Stored embeddings and other builds depend on these bits.
        let bits = embed("Where was the treaty signed?")
            .iter()
            .fold(0, |seed, value| {
                xxh3_64_with_seed(&value.to_bits().to_le_bytes(), seed)
            });
        assert_eq!(bits, 16_504_362_089_900_646_054);
    }

    #[test]
    fn nothing_to_embed_and_wrong_dimensions_are_told() {
        let embedder = HashingEmbedder::new(8).unwrap();
        for text in ["", " ", "?!…", "🙂"] {
            assert_eq!(embedder.embed(text), None);
        }
        assert_eq!(
            HashingEmbedder::new(0).unwrap_err().to_string(),
            "0 dimensions are out of range, it must be 1 to 16384"
        );
    }
}
