//! XQuAD: its paragraphs and questions, and retrieval traces over them: the questions in a fixed random order, each
//! with its best paragraphs by BM25.

use foreword_ordering::document::{Fingerprint, estimate_tokens};
use foreword_ordering::random::Random;
use foreword_ordering::simulation::{Request, Retrieved, Trace};
use foreword_ordering::tree::Scope;
use serde::Deserialize;
use std::collections::HashMap;

/// Names XQuAD's English file, `xquad.en.json` of <https://github.com/google-deepmind/xquad>.
pub const VARIABLE: &str = "FOREWORD_XQUAD";

/// The file, as far as it is needed.
#[derive(Deserialize)]
struct File {
    data: Vec<Article>,
}

#[derive(Deserialize)]
struct Article {
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<Question>,
}

#[derive(Deserialize)]
struct Question {
    question: String,
}

/// What XQuAD asks, and of what.
pub struct Corpus {
    /// The paragraphs' texts.
    pub paragraphs: Vec<String>,
    /// Each question, and the paragraph that answers it.
    pub questions: Vec<(String, usize)>,
}

/// Reads the file that [`VARIABLE`] names.
///
/// # Errors
/// Why it cannot be read, in words.
pub fn corpus() -> Result<Corpus, String> {
    let path = std::env::var_os(VARIABLE)
        .ok_or_else(|| format!("{VARIABLE} does not name XQuAD's English file"))?;
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}", path.to_string_lossy()))?;
    let file: File = serde_json::from_str(&text)
        .map_err(|error| format!("{}: {error}", path.to_string_lossy()))?;
    let mut corpus = Corpus {
        paragraphs: Vec::new(),
        questions: Vec::new(),
    };
    let articles = file.data.into_iter();
    for paragraph in articles.flat_map(|article| article.paragraphs) {
        let asked = paragraph.qas.into_iter();
        let at = corpus.paragraphs.len();
        corpus
            .questions
            .extend(asked.map(|asked| (asked.question, at)));
        corpus.paragraphs.push(paragraph.context);
    }
    Ok(corpus)
}

/// A question, and the paragraphs that are retrieved for it, best first.
pub struct Retrieval {
    /// Its words.
    pub question: String,
    /// Numbers of paragraphs, all of them.
    pub paragraphs: Vec<usize>,
}

impl Corpus {
    /// All questions in a fixed random order, ranked by BM25.
    #[must_use]
    pub fn retrievals(&self) -> Vec<Retrieval> {
        let mut questions: Vec<&str> = self
            .questions
            .iter()
            .map(|(question, _)| question.as_str())
            .collect();
        Random::new(1).shuffle(&mut questions);
        let contexts: Vec<&str> = self.paragraphs.iter().map(String::as_str).collect();
        let index = Bm25::new(&contexts);
        questions
            .iter()
            .map(|&question| Retrieval {
                question: question.to_owned(),
                paragraphs: index.rank(question),
            })
            .collect()
    }
}

/// The traces of the best `depths` paragraphs, from the file that [`VARIABLE`] names.
///
/// # Errors
/// Why there are none, in words.
pub fn traces(depths: &[usize]) -> Result<Vec<Trace>, String> {
    let corpus = corpus()?;
    let ranked = corpus.retrievals();
    let trace = |&depth: &usize| -> Trace {
        ranked
            .iter()
            .map(|ranked| Request {
                scope: Scope(0),
                documents: (ranked.paragraphs.iter())
                    .take(depth)
                    .map(|&paragraph| Retrieved {
                        label: format!("{paragraph:03}"),
                        fingerprint: Fingerprint(paragraph as u64),
                        tokens: estimate_tokens(corpus.paragraphs[paragraph].len()),
                    })
                    .collect(),
            })
            .collect()
    };
    Ok(depths.iter().map(trace).collect())
}

/// BM25 with k1 = 1.2 and b = 0.75 over lower-case words less their commonest endings.
struct Bm25 {
    /// Per word, the documents that hold it and how often.
    postings: HashMap<String, Vec<(usize, f64)>>,
    /// Per document, its words over the mean.
    lengths: Vec<f64>,
}

impl Bm25 {
    fn new(documents: &[&str]) -> Self {
        let mut postings: HashMap<String, Vec<(usize, f64)>> = HashMap::new();
        let mut lengths = Vec::new();
        for (at, document) in documents.iter().enumerate() {
            let words = words(document);
            lengths.push(words.len() as f64);
            for word in words {
                let posted = postings.entry(word).or_default();
                match posted.last_mut() {
                    Some((last, times)) if *last == at => *times += 1.0,
                    _ => posted.push((at, 1.0)),
                }
            }
        }
        let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
        for length in &mut lengths {
            *length /= mean;
        }
        Self { postings, lengths }
    }

    /// All documents, the best first; among equals the earlier one.
    fn rank(&self, query: &str) -> Vec<usize> {
        let mut scores = vec![0.0; self.lengths.len()];
        for word in words(query) {
            let Some(posted) = self.postings.get(&word) else {
                continue;
            };
            let rest = (self.lengths.len() - posted.len()) as f64;
            let rarity = (1.0 + (rest + 0.5) / (posted.len() as f64 + 0.5)).ln();
            for &(document, times) in posted {
                let damped = times + 1.2 * (0.25 + 0.75 * self.lengths[document]);
                scores[document] += rarity * times * 2.2 / damped;
            }
        }
        let mut ranked: Vec<usize> = (0..scores.len()).collect();
        ranked.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        ranked
    }
}

fn words(text: &str) -> Vec<String> {
    const STOP: [&str; 38] = [
        "a", "an", "the", "of", "in", "to", "and", "is", "was", "were", "are", "what", "which",
        "who", "whom", "how", "did", "do", "does", "for", "on", "by", "with", "as", "at", "from",
        "that", "this", "it", "be", "or", "many", "much", "when", "where", "why", "s", "t",
    ];
    text.to_lowercase()
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty() && !STOP.contains(word))
        .map(|word| {
            ["ing", "ed", "es", "s"]
                .iter()
                .find_map(|ending| word.strip_suffix(ending).filter(|stem| stem.len() >= 3))
                .unwrap_or(word)
                .into()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_words_decide_and_endings_do_not() {
        let index = Bm25::new(&["the cats sleep", "a dog sleeps", "dogs chase dogs"]);
        assert_eq!(index.rank("Which cat?"), [0, 1, 2]);
        assert_eq!(index.rank("chasing dogs"), [2, 1, 0]);
    }
}
