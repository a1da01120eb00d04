//! Natural Questions (Kwiatkowski et al., 2019), in three forms: the simplified lines with `document_text`, the original
//! lines with `document_tokens`, and DPR's array of questions with the contexts that it trains on.
//!
//! A page's documents are its top-level candidates for a long answer, without markup.

use super::{Data, Document, Reading, turn};
use crate::evaluate::data::passages::{Passages, cut};
use crate::evaluate::data::{Case, lines_of};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

#[derive(Deserialize)]
struct Page {
    example_id: Value,
    question_text: String,
    document_text: Option<String>,
    document_tokens: Option<Vec<Token>>,
    #[serde(default)]
    document_title: String,
    long_answer_candidates: Vec<Candidate>,
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

#[derive(Deserialize)]
struct Candidate {
    start_token: i64,
    end_token: i64,
    #[serde(default = "yes")]
    top_level: bool,
}

#[derive(Deserialize)]
struct Annotation {
    #[serde(default)]
    short_answers: Vec<Span>,
    #[serde(default)]
    yes_no_answer: String,
}

#[derive(Deserialize)]
struct Span {
    start_token: i64,
    end_token: i64,
}

#[derive(Deserialize)]
struct Retrieved {
    question: String,
    answers: Vec<String>,
    #[serde(default)]
    positive_ctxs: Vec<Passage>,
    #[serde(default)]
    negative_ctxs: Vec<Passage>,
    #[serde(default)]
    hard_negative_ctxs: Vec<Passage>,
    /// What a retriever found, best first (FiD's form).
    #[serde(default)]
    ctxs: Vec<Passage>,
}

#[derive(Deserialize)]
struct Passage {
    #[serde(default)]
    title: String,
    text: String,
    #[serde(alias = "passage_id", alias = "psg_id")]
    id: Option<Value>,
}

fn yes() -> bool {
    true
}

/// Returns the questions with their documents.
pub(super) fn read(text: &[u8], reading: &Reading<'_>) -> Result<Data> {
    if text.trim_ascii_start().first() == Some(&b'[') {
        return retrieved(text, reading);
    }
    let mut data = Data::default();
    for (number, line) in lines_of(text) {
        let of_line = || format!("line {number}");
        let page: Page = serde_json::from_slice(line).with_context(of_line)?;
        match page.case(reading).with_context(of_line)? {
            Some(case) => data.cases.push(case),
            None => data.without_answers += 1,
        }
    }
    Ok(data)
}

impl Page {
    fn case(self, reading: &Reading<'_>) -> Result<Option<Case>> {
        let tokens: Vec<&str> = match (&self.document_text, &self.document_tokens) {
            (Some(text), _) => text.split(' ').collect(),
            (None, Some(tokens)) => tokens.iter().map(|token| token.token.as_str()).collect(),
            (None, None) => bail!("it has neither `document_text` nor `document_tokens`"),
        };
        let words = |start: i64, end: i64| {
            let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
            let words = tokens.get(range)?.iter().filter(|token| !is_markup(token));
            Some(words.copied().collect::<Vec<_>>().join(" "))
        };
        let mut answers: Vec<String> = Vec::new();
        for annotation in &self.annotations {
            let spans = annotation.short_answers.iter();
            let spans = spans.filter_map(|span| words(span.start_token, span.end_token));
            let said = match annotation.yes_no_answer.as_str() {
                "YES" => Some("yes".to_owned()),
                "NO" => Some("no".to_owned()),
                _ => None,
            };
            for answer in spans.chain(said) {
                if !answer.is_empty() && !answers.contains(&answer) {
                    answers.push(answer);
                }
            }
        }
        let id = match &self.example_id {
            Value::String(id) => id.clone(),
            id => id.to_string(),
        };
        let candidates = self.long_answer_candidates.iter().filter(|c| c.top_level);
        let documents = candidates.zip(1..).flat_map(|(candidate, number)| {
            let text = words(candidate.start_token, candidate.end_token).unwrap_or_default();
            cut(
                &format!("{id}-{number}"),
                &self.document_title,
                &text,
                reading.chunk_words,
            )
        });
        let documents = Passages::of(documents.collect()).best(&self.question_text, reading.k());
        let is_asked = !answers.is_empty() && !documents.is_empty();
        Ok(is_asked.then(|| Case {
            id,
            turns: vec![turn(self.question_text, documents, answers)],
        }))
    }
}

fn is_markup(token: &str) -> bool {
    token.starts_with('<') && token.ends_with('>')
}

fn retrieved(json: &[u8], reading: &Reading<'_>) -> Result<Data> {
    let questions: Vec<Retrieved> = serde_json::from_slice(json)?;
    let mut data = Data::default();
    for (question, number) in questions.into_iter().zip(1..) {
        // One right passage, then those that look right: a retriever's list has both.
        let right = question.positive_ctxs.into_iter().take(1);
        let others = question
            .hard_negative_ctxs
            .into_iter()
            .chain(question.negative_ctxs);
        let passages = question.ctxs.into_iter().chain(right).chain(others);
        let documents = passages.take(reading.k()).zip(1..).map(|(passage, place)| {
            let id = match passage.id {
                Some(Value::String(id)) => id,
                Some(id) => id.to_string(),
                None => format!("{number}-{place}"),
            };
            Arc::new(Document {
                id,
                title: passage.title,
                text: passage.text,
            })
        });
        let documents: Vec<_> = documents.collect();
        if question.answers.is_empty() || documents.is_empty() {
            data.without_answers += 1;
            continue;
        }
        data.cases.push(Case {
            id: format!("question {number}"),
            turns: vec![turn(question.question, documents, question.answers)],
        });
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ids, reading};
    use super::*;

    const LINE: &str = r#"{"example_id": 5655493461695504401, "question_text": "when does the ferry leave", "document_url": "https://x",
        "document_text": "<P> The ferry leaves at noon . </P> <Table> <Tr> <Td> A train </Td> </Tr> </Table>",
        "long_answer_candidates": [{"start_token": 0, "end_token": 8, "top_level": true}, {"start_token": 8, "end_token": 15, "top_level": true}, {"start_token": 9, "end_token": 14, "top_level": false}],
        "annotations": [{"annotation_id": 1, "long_answer": {"start_token": 0, "end_token": 8, "candidate_index": 0}, "short_answers": [{"start_token": 5, "end_token": 6}], "yes_no_answer": "NONE"}]}"#;

    #[test]
    fn a_pages_candidates_are_the_documents() {
        let line = LINE.replace('\n', " ");
        let data = read(line.as_bytes(), &reading(None)).unwrap();
        let turn = &data.cases[0].turns[0];
        assert_eq!(data.cases[0].id, "5655493461695504401");
        assert_eq!(ids(turn), ["5655493461695504401-1"]);
        assert_eq!(turn.documents[0].text, "The ferry leaves at noon .");
        assert_eq!(
            (turn.answers.as_slice(), turn.answer_document),
            (&["noon".to_owned()][..], Some(0))
        );

        let tokens: Vec<Value> = ["<P>", "No", "ferry", "leaves", "</P>"]
            .map(|token| serde_json::json!({"token": token, "html_token": token.starts_with('<')}))
            .to_vec();
        let original = serde_json::json!({
            "example_id": "7", "question_text": "does a ferry leave", "document_title": "Ferry", "document_tokens": tokens,
            "long_answer_candidates": [{"start_token": 0, "end_token": 5, "top_level": true}],
            "annotations": [{"short_answers": [], "yes_no_answer": "NO"}],
        });
        let data = read(original.to_string().as_bytes(), &reading(None)).unwrap();
        assert_eq!(data.cases[0].turns[0].answers, ["no"]);
        assert_eq!(data.cases[0].turns[0].documents[0].text, "No ferry leaves");
    }

    #[test]
    fn dprs_contexts_are_the_documents() {
        let file = r#"[{"dataset": "nq_dev", "question": "who rows", "answers": ["Ann"], "positive_ctxs": [{"title": "Ann", "text": "Ann rows.", "score": 1000, "passage_id": "12"}, {"title": "", "text": "x"}], "negative_ctxs": [], "hard_negative_ctxs": [{"title": "Bo", "text": "Bo sleeps.", "passage_id": 13}]}]"#;
        let data = read(file.as_bytes(), &reading(None)).unwrap();
        assert_eq!(ids(&data.cases[0].turns[0]), ["12", "13"]);
        assert_eq!(data.cases[0].turns[0].answer_document, Some(0));
    }

    #[test]
    fn spans_out_of_the_page_are_left_out() {
        let line = LINE.replace('\n', " ").replace(
            "\"start_token\": 5, \"end_token\": 6",
            "\"start_token\": -1, \"end_token\": 99",
        );
        let data = read(line.as_bytes(), &reading(None)).unwrap();
        assert_eq!((data.cases.len(), data.without_answers), (0, 1));
        let error = read(b"{}", &reading(None)).err().unwrap();
        assert!(
            format!("{error:#}").contains("line 1: missing field"),
            "{error:#}"
        );
    }
}
