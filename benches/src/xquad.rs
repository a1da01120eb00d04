//! XQuAD: its paragraphs and questions, and retrieval traces over them: the questions in a fixed random order, each
//! with its best paragraphs by BM25.

use foreword_ordering::document::{Fingerprint, estimate_tokens};
use foreword_ordering::random::Random;
use foreword_ordering::tree::Scope;
use foreword_retrieval::Words;
use foreword_simulation::{Request, Retrieved, Trace};
use serde::Deserialize;

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

/// XQuAD's paragraphs and the questions about them.
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
    /// The words of the question.
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
        let texts: Vec<String> = self.paragraphs.iter().map(|text| plain(text)).collect();
        let index = Words::of(texts.iter().map(String::as_str));
        questions
            .iter()
            .map(|&question| Retrieval {
                question: question.to_owned(),
                paragraphs: rank(&index, texts.len(), question),
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
                is_ranked: true,
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

/// All of the texts that `index` holds as [`plain`], the best for `question` first; those without any of its words come
/// last, in their order.
fn rank(index: &Words, texts: usize, question: &str) -> Vec<usize> {
    let mut ranked = index.best(&plain(question), texts);
    let rest: Vec<usize> = (0..texts).filter(|at| !ranked.contains(at)).collect();
    ranked.extend(rest);
    ranked
}

/// The words of a text, less their commonest endings and without the commonest words.
fn plain(text: &str) -> String {
    const STOP: [&str; 38] = [
        "a", "an", "the", "of", "in", "to", "and", "is", "was", "were", "are", "what", "which",
        "who", "whom", "how", "did", "do", "does", "for", "on", "by", "with", "as", "at", "from",
        "that", "this", "it", "be", "or", "many", "much", "when", "where", "why", "s", "t",
    ];
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| !word.is_empty() && !STOP.contains(word));
    let stems = words.map(|word| {
        ["ing", "ed", "es", "s"]
            .iter()
            .find_map(|ending| word.strip_suffix(ending).filter(|stem| stem.len() >= 3))
            .unwrap_or(word)
    });
    stems.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_words_decide_and_endings_do_not() {
        let texts = ["the cats sleep", "a dog sleeps", "dogs chase dogs"].map(plain);
        let index = Words::of(texts.iter().map(String::as_str));
        assert_eq!(rank(&index, 3, "Which cat?"), [0, 1, 2]);
        assert_eq!(rank(&index, 3, "chasing dogs"), [2, 1, 0]);
    }
}
