//! MultiHop-RAG (Tang and Yang, 2024): an array of questions about news articles, which stand in a file beside it.

use super::{Data, Reading, turn};
use crate::evaluate::data::Case;
use anyhow::Result;
use serde::Deserialize;

#[derive(Deserialize)]
struct Question {
    query: String,
    answer: String,
}

/// Returns the questions with the best passages of the corpus.
pub(super) fn read(json: &[u8], reading: &Reading<'_>) -> Result<Data> {
    let questions: Vec<Question> = serde_json::from_slice(json)?;
    let passages = reading.passages("multihop-rag")?;
    let mut data = Data::default();
    for (Question { query, answer }, number) in questions.into_iter().zip(1..) {
        let documents = passages.best(&query, reading.k());
        if answer.is_empty() || documents.is_empty() {
            data.without_answers += 1;
            continue;
        }
        data.cases.push(Case {
            id: format!("question {number}"),
            turns: vec![turn(query, documents, vec![answer])],
        });
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ids, reading};
    use super::*;

    #[test]
    fn questions_find_passages_of_the_corpus() {
        let folder = tempfile::tempdir().unwrap();
        let corpus = folder.path().join("corpus.json");
        let articles = r#"[{"title": "Ferries", "author": null, "source": "S", "published_at": "2023-11-01", "category": "c", "url": "https://a", "body": "The ferry to Arran is late."},
            {"title": "Trains", "author": "B", "source": "S", "published_at": "2023-11-02", "category": "c", "url": "https://b", "body": "The train is late, too."}]"#;
        std::fs::write(&corpus, articles).unwrap();
        let file = r#"[{"query": "Which ferry is late?", "answer": "Arran's", "question_type": "inference_query", "evidence_list": [{"title": "Ferries", "url": "https://a", "fact": "The ferry to Arran is late."}]}]"#;
        let data = read(file.as_bytes(), &reading(Some(&corpus))).unwrap();
        assert_eq!(ids(&data.cases[0].turns[0])[0], "https://a");
        assert_eq!(data.cases[0].turns[0].answers, ["Arran's"]);
        let error = read(file.as_bytes(), &reading(None)).err().unwrap();
        assert!(error.to_string().contains("--corpus"), "{error}");
    }
}
