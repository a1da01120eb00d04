//! Reads SQuAD's JSON: articles of paragraphs, each with questions. The paragraphs are the documents.
//!
//! **The documents of a question** are the best `documents` paragraphs of the file by BM25, best first. The question's
//! own paragraph is always among them: if BM25 does not rank it high enough, it takes the last place. Questions without
//! an answer (SQuAD 2.0's impossible ones) are left out. Questions are shuffled with the seed: in the file, those of
//! one paragraph are adjacent, which users' questions are not.

use super::{Case, Data, Document, Turn};
use anyhow::{Result, bail};
use foreword_ordering::random::Random;
use foreword_retrieval::Words;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
struct File {
    data: Vec<Article>,
}

#[derive(Deserialize)]
struct Article {
    #[serde(default)]
    title: String,
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<Question>,
}

#[derive(Deserialize)]
struct Question {
    id: Option<String>,
    question: String,
    #[serde(default)]
    answers: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    text: String,
}

/// Returns the questions of a file in SQuAD's JSON, shuffled by `seed`. The documents of each are the best `documents`
/// paragraphs of the file by BM25, its own paragraph among them.
pub(super) fn read(json: &[u8], documents: usize, seed: u64) -> Result<Data> {
    let file: File = serde_json::from_slice(json)?;
    let mut paragraphs: Vec<Arc<Document>> = Vec::new();
    let mut questions = Vec::new();
    for article in file.data {
        // Wikipedia's page names have underscores for spaces.
        let title = article.title.replace('_', " ");
        for Paragraph { context, qas } in article.paragraphs {
            let number = paragraphs.len();
            if context.trim().is_empty() {
                bail!("paragraph {} is empty", number + 1);
            }
            paragraphs.push(Arc::new(Document {
                id: (number + 1).to_string(),
                title: title.clone(),
                text: context,
            }));
            questions.extend(qas.into_iter().map(|question| (number, question)));
        }
    }
    let words = Words::of(paragraphs.iter().map(|paragraph| paragraph.text.as_str()));
    let mut data = Data::default();
    for (at, (own, question)) in questions.into_iter().enumerate() {
        let answers: Vec<_> = question.answers.into_iter().map(|a| a.text).collect();
        if answers.is_empty() {
            data.without_answers += 1;
            continue;
        }
        let mut found = words.best(&question.question, documents);
        if !found.contains(&own) {
            found.truncate(documents - 1);
            found.push(own);
        }
        let documents = found.iter().map(|&at| Arc::clone(&paragraphs[at]));
        let id = question
            .id
            .unwrap_or_else(|| format!("question {}", at + 1));
        let turn = Turn {
            question: question.question,
            answers,
            answer_document: found.iter().position(|&at| at == own),
            choices: Vec::new(),
            documents: documents.collect(),
        };
        let turns = vec![turn];
        data.cases.push(Case { id, turns });
    }
    Random::new(seed).shuffle(&mut data.cases);
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"version": "1.1", "data": [
        {"title": "The_Ferry", "paragraphs": [
            {"context": "The ferry leaves at noon.", "qas": [
                {"id": "a", "question": "When does the ferry leave?", "answers": [{"text": "noon", "answer_start": 21}, {"text": "at noon", "answer_start": 18}]},
                {"id": "b", "question": "Is there a bar on the train?", "answers": [{"text": "The ferry", "answer_start": 0}]}]},
            {"context": "The ferry has a bar.", "qas": [{"id": "c", "question": "Who?", "answers": [], "is_impossible": true}]}]},
        {"title": "Train", "paragraphs": [{"context": "The train has a bar; the train is red.", "qas": [{"question": "Is the train red?", "answers": [{"text": "red", "answer_start": 30}]}]}]}]}"#;

    #[test]
    fn each_question_has_its_own_paragraph_among_the_best_ones() {
        let data = read(FILE.as_bytes(), 2, 0).unwrap();
        assert_eq!((data.cases.len(), data.without_answers), (3, 1));
        let turn = |id: &str| {
            let case = data.cases.iter().find(|case| case.id == id).unwrap();
            &case.turns[0]
        };
        let ids = |turn: &Turn| {
            let ids: Vec<_> = turn.documents.iter().map(|d| d.id.clone()).collect();
            (ids.join(" "), turn.answer_document)
        };
        assert_eq!(ids(turn("a")), ("1 2".into(), Some(0)));
        assert_eq!(turn("a").answers, ["noon", "at noon"]);
        assert_eq!(turn("a").documents[0].title, "The Ferry");
        // The question's own paragraph, 1, ranks below 3 and 2: it takes the last place.
        assert_eq!(ids(turn("b")), ("3 1".into(), Some(1)));
        assert_eq!(ids(turn("question 4")), ("3 1".into(), Some(0)));
    }

    #[test]
    fn a_seed_fixes_the_order_of_questions() {
        let ids = |seed| -> Vec<String> {
            let data = read(FILE.as_bytes(), 1, seed).unwrap();
            data.cases.into_iter().map(|case| case.id).collect()
        };
        assert_eq!(ids(5), ids(5));
        assert!((0..10).any(|seed| ids(seed) != ids(0)));
    }

    #[test]
    fn what_is_no_such_file_is_told_with_its_place() {
        for (file, words) in [
            ("{}", "missing field `data`"),
            ("[", "line 1 column 1"),
            (
                r#"{"data": [{"paragraphs": [{"qas": []}]}]}"#,
                "missing field `context`",
            ),
            (
                r#"{"data": [{"paragraphs": [{"context": " ", "qas": []}]}]}"#,
                "paragraph 1 is empty",
            ),
            (
                r#"{"data": [{"paragraphs": [{"context": "x", "qas": [{"question": 3}]}]}]}"#,
                "expected a string",
            ),
            ("", "EOF"),
        ] {
            let error = read(file.as_bytes(), 1, 0).err().unwrap().to_string();
            assert!(error.contains(words), "{file}: {error}");
        }
    }
}
