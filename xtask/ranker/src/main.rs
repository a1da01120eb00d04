//! Ranks documents for queries by BM25: reads one JSON object from stdin, and writes one to stdout.
//!
//! ```text
//! in   {"documents": [{"id", "title", "text"}, …], "queries": ["…", …], "top": 10}
//! out  [["doc-a", "doc-b", …], …]            one ranking per query, best first
//! ```
//!
//! The retriever is SQLite's FTS5: Porter stems over Unicode words, Okapi BM25 with k1 = 1.2 and b = 0.75 (fixed by
//! FTS5). Files, labels and the demo are the business of `cargo xtask corpus`. This is a separate program because
//! SQLite takes half a minute to compile and only changes to the corpus need it.

use std::io;

use anyhow::{Context, Result};
use rusqlite::{Connection, params};
use serde::Deserialize;

/// The input: documents and queries.
#[derive(Deserialize)]
struct Job {
    documents: Vec<Document>,
    queries: Vec<String>,
    /// Most documents per ranking.
    top: u32,
}

#[derive(Deserialize)]
struct Document {
    id: String,
    title: String,
    text: String,
}

fn main() -> Result<()> {
    let job: Job =
        serde_json::from_reader(io::stdin().lock()).context("the job on stdin is not readable")?;
    let index = Index::build(&job.documents)?;
    let rankings = job
        .queries
        .iter()
        .map(|query| index.rank(query, job.top))
        .collect::<Result<Vec<Vec<String>>>>()?;
    serde_json::to_writer(io::stdout().lock(), &rankings)?;
    Ok(())
}

/// A full-text index in memory.
struct Index {
    connection: Connection,
}

impl Index {
    fn build(documents: &[Document]) -> Result<Self> {
        let connection = Connection::open_in_memory()?;
        connection.execute_batch(
            "CREATE VIRTUAL TABLE documents USING fts5(id UNINDEXED, title, text, tokenize = 'porter unicode61');",
        )?;
        let mut insert =
            connection.prepare("INSERT INTO documents (id, title, text) VALUES (?1, ?2, ?3)")?;
        for document in documents {
            insert.execute(params![document.id, document.title, document.text])?;
        }
        drop(insert);
        Ok(Self { connection })
    }

    /// Returns the best documents for a query, best first; on a tie, the smaller id first. Documents without a word of
    /// the query are omitted, so there may be fewer than `top`.
    fn rank(&self, query: &str, top: u32) -> Result<Vec<String>> {
        let expression = any_word_of(query);
        if expression.is_empty() {
            return Ok(Vec::new());
        }
        let mut select = self.connection.prepare(
            "SELECT id FROM documents WHERE documents MATCH ?1 \
             ORDER BY bm25(documents, 0.0, ?2, 1.0), id LIMIT ?3",
        )?;
        let rows = select.query_map(params![expression, TITLE_WEIGHT, top], |row| row.get(0))?;
        rows.collect::<Result<_, _>>()
            .with_context(|| format!("ranking for {query:?}"))
    }
}

/// Weight of the title, whose words are more relevant than the same words in the text.
const TITLE_WEIGHT: f64 = 2.0;

/// Returns FTS5's expression for "any of the query's words". Each word is quoted, so that none is parsed as an
/// operator.
fn any_word_of(query: &str) -> String {
    let words = query
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    words
        .map(|word| format!("\"{word}\""))
        .collect::<Vec<_>>()
        .join(" OR ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Index {
        let document = |id: &str, title: &str, text: &str| Document {
            id: id.into(),
            title: title.into(),
            text: text.into(),
        };
        Index::build(&[
            document(
                "boats",
                "Boats",
                "The ferry leaves the harbour at noon with forty passengers.",
            ),
            document(
                "trains",
                "Trains",
                "The train leaves the station at noon with forty passengers.",
            ),
            document(
                "ferry",
                "Ferry tickets",
                "Tickets are sold on board of the ferry.",
            ),
        ])
        .unwrap()
    }

    #[test]
    fn the_document_with_the_rare_word_comes_first() {
        assert_eq!(
            index().rank("When does the train leave?", 3).unwrap()[0],
            "trains"
        );
    }

    #[test]
    fn words_match_by_their_stems_and_titles_weigh_more() {
        assert_eq!(index().rank("ferries", 3).unwrap(), ["ferry", "boats"]);
    }

    #[test]
    fn operators_and_quotes_in_a_question_are_words() {
        assert_eq!(
            index()
                .rank("\"station\" NOT NEAR(train, 2) AND (", 1)
                .unwrap(),
            ["trains"]
        );
        assert!(index().rank("?!", 3).unwrap().is_empty());
    }

    #[test]
    fn a_ranking_is_no_longer_than_asked() {
        assert_eq!(index().rank("noon ferry train", 2).unwrap().len(), 2);
    }
}
