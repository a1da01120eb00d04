//! Passages that a question's documents are retrieved from, by BM25: those of a data set's own file, or a corpus beside
//! it.
//!
//! | corpus | form |
//! | --- | --- |
//! | `.json` | an array of objects, as MultiHop-RAG's `corpus.json`: `title`, `body` (or `text`, `contents`), maybe `url` or `id` |
//! | `.jsonl`, `.ndjson` | such an object on each line, with `_id` for `id` as BEIR has it |
//! | `.tsv` | columns `id`, `text` and `title`, as DPR's `psgs_w100.tsv` |
//!
//! A text of more words than a chunk may have is cut into several passages; each has its place in its name.

use super::{Document, lines_of, table};
use anyhow::{Context, Result, bail, ensure};
use foreword_retrieval::Words;
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;

/// Passages and their words.
pub(super) struct Passages {
    documents: Vec<Arc<Document>>,
    words: Words,
}

impl Passages {
    pub(super) fn of(documents: Vec<Arc<Document>>) -> Self {
        let texts = documents.iter().map(|document| document.text.as_str());
        Self {
            words: Words::of(texts),
            documents,
        }
    }

    /// Returns the `k` passages that match the question best, best first; fewer if fewer share a word with it.
    pub(super) fn best(&self, question: &str, k: usize) -> Vec<Arc<Document>> {
        let best = self.words.best(question, k).into_iter();
        best.map(|at| Arc::clone(&self.documents[at])).collect()
    }
}

#[derive(Deserialize)]
struct Entry {
    #[serde(alias = "_id", alias = "url", alias = "document_id")]
    id: Option<String>,
    #[serde(default)]
    title: String,
    #[serde(alias = "body", alias = "contents")]
    text: String,
}

/// Reads a corpus, in passages of at most `chunk` words.
pub(super) fn corpus(path: &Path, chunk: usize) -> Result<Passages> {
    let failed = || format!("cannot read the corpus {}", path.display());
    let text = super::bytes_of(path)?;
    let ending = path.extension().and_then(|ending| ending.to_str());
    let mut documents = Vec::new();
    let mut add = |entry: Entry, number: usize| {
        let id = entry.id.unwrap_or_else(|| number.to_string());
        documents.extend(cut(&id, &entry.title, &entry.text, chunk));
    };
    match ending {
        Some("json") => {
            let entries: Vec<Entry> = serde_json::from_slice(&text).with_context(failed)?;
            for (at, entry) in entries.into_iter().enumerate() {
                add(entry, at + 1);
            }
        }
        Some("jsonl" | "ndjson") => {
            for (number, line) in lines_of(&text) {
                let entry = serde_json::from_slice(line);
                let entry = entry.with_context(|| format!("line {number}"));
                add(entry.with_context(failed)?, number);
            }
        }
        Some("tsv") => {
            let rows = table::rows(&text, '\t').with_context(failed)?;
            let header = rows.first().with_context(failed)?;
            let column = |name| table::column(header, name).with_context(failed);
            let [id, body, title] = [column("id")?, column("text")?, column("title")?];
            for (at, row) in rows.iter().enumerate().skip(1) {
                let value = |column: usize| row.get(column).cloned().unwrap_or_default();
                let entry = Entry {
                    id: Some(value(id)),
                    title: value(title),
                    text: value(body),
                };
                add(entry, at);
            }
        }
        _ => bail!(
            "{}: a corpus must end in .json, .jsonl or .tsv",
            path.display()
        ),
    }
    ensure!(
        !documents.is_empty(),
        "the corpus {} is empty",
        path.display()
    );
    Ok(Passages::of(documents))
}

/// Returns a text as passages of at most `chunk` words each; one that has no words is left out.
pub(super) fn cut(id: &str, title: &str, text: &str, chunk: usize) -> Vec<Arc<Document>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_whole = words.len() <= chunk;
    let parts = words.chunks(chunk.max(1)).zip(1..);
    parts
        .map(|(part, number)| {
            Arc::new(Document {
                id: if is_whole {
                    id.to_owned()
                } else {
                    format!("{id} ({number})")
                },
                title: title.to_owned(),
                text: if is_whole {
                    text.trim().to_owned()
                } else {
                    part.join(" ")
                },
            })
        })
        .collect()
}

/// Returns the index of the only document that holds one of the answers, in upper or lower case.
pub(super) fn holder(documents: &[Arc<Document>], answers: &[String]) -> Option<usize> {
    let lower: Vec<_> = answers.iter().map(|answer| answer.to_lowercase()).collect();
    let mut holding = (0..documents.len()).filter(|&at| {
        let text = documents[at].text.to_lowercase();
        lower.iter().any(|answer| text.contains(answer))
    });
    let first = holding.next();
    first.filter(|_| holding.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_into_passages_with_names() {
        let cut = super::cut("d", "T", "one two three four five", 2);
        let shown: Vec<_> = cut
            .iter()
            .map(|d| format!("{}: {}", d.id, d.text))
            .collect();
        assert_eq!(
            shown,
            ["d (1): one two", "d (2): three four", "d (3): five"]
        );
        assert_eq!(super::cut("d", "", " one\n two ", 2)[0].text, "one\n two");
        assert!(super::cut("d", "", " \n", 2).is_empty());
    }

    #[test]
    fn a_corpus_is_read_in_each_form() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            corpus(&path, 100).map_err(|error| format!("{error:#}"))
        };
        for (name, text) in [
            (
                "c.json",
                r#"[{"title": "Fox", "body": "A red fox.", "url": "u1", "category": "x"}, {"title": "Hen", "body": "A white hen.", "url": "u2"}]"#,
            ),
            (
                "c.jsonl",
                "{\"_id\": \"u1\", \"title\": \"Fox\", \"text\": \"A red fox.\"}\n\n{\"_id\": \"u2\", \"text\": \"A white hen.\"}\n",
            ),
            (
                "c.tsv",
                "id\ttext\ttitle\nu1\tA red fox.\tFox\nu2\tA white hen.\tHen\n",
            ),
        ] {
            let best = read(name, text).unwrap().best("Which hen is white?", 1);
            assert_eq!((best.len(), best[0].id.as_str()), (1, "u2"), "{name}");
        }
        for (name, text, words) in [
            ("c.txt", "", "must end in .json, .jsonl or .tsv"),
            ("d.json", "[]", "is empty"),
            ("d.json", r#"[{"title": "x"}]"#, "missing field `text`"),
            ("d.jsonl", "{}\n", "line 1"),
            ("d.tsv", "id\tbody\n", "no column \"text\""),
        ] {
            let error = read(name, text).err().unwrap();
            assert!(error.contains(words), "{error}");
        }
    }
}
