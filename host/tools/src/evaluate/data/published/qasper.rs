//! QASPER (Dasigi et al., 2021): papers, each with its paragraphs and questions about it.
//!
//! An answer is spans of the paper, words of its own, yes or no, or that the paper does not say; the last is scored
//! against `unanswerable`, as the authors' script does.

use super::{Data, Reading, turn};
use crate::evaluate::data::Case;
use crate::evaluate::data::passages::{Passages, cut};
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Paper {
    #[serde(default)]
    title: String,
    #[serde(default, rename = "abstract")]
    summary: String,
    full_text: Vec<Section>,
    qas: Vec<Question>,
}

#[derive(Deserialize)]
struct Section {
    section_name: Option<String>,
    paragraphs: Vec<String>,
}

#[derive(Deserialize)]
struct Question {
    question: String,
    question_id: String,
    #[serde(default)]
    answers: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Annotation {
    answer: Answer,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    unanswerable: bool,
    #[serde(default)]
    extractive_spans: Vec<String>,
    yes_no: Option<bool>,
    #[serde(default)]
    free_form_answer: String,
}

impl Answer {
    fn words(self) -> Option<String> {
        if self.unanswerable {
            Some("unanswerable".into())
        } else if !self.extractive_spans.is_empty() {
            Some(self.extractive_spans.join(", "))
        } else if !self.free_form_answer.is_empty() {
            Some(self.free_form_answer)
        } else {
            let words = |yes| if yes { "yes" } else { "no" };
            self.yes_no.map(words).map(str::to_owned)
        }
    }
}

/// Returns the questions, each with the best paragraphs of its paper.
pub(super) fn read(json: &[u8], reading: &Reading<'_>) -> Result<Data> {
    let papers: serde_json::Map<String, Value> = serde_json::from_slice(json)?;
    let mut data = Data::default();
    for (id, paper) in papers {
        let paper: Paper = serde_json::from_value(paper).with_context(|| format!("paper {id}"))?;
        let mut documents = cut(
            &format!("{id} abstract"),
            &paper.title,
            &paper.summary,
            reading.chunk_words,
        );
        let mut number = 0;
        for section in paper.full_text {
            let name = section.section_name.unwrap_or_default();
            for paragraph in section.paragraphs {
                number += 1;
                let id = format!("{id} {number}");
                documents.extend(cut(&id, &name, &paragraph, reading.chunk_words));
            }
        }
        let passages = Passages::of(documents);
        for question in paper.qas {
            let mut answers: Vec<String> = Vec::new();
            let given = question.answers.into_iter();
            for words in given.filter_map(|annotation| annotation.answer.words()) {
                if !answers.contains(&words) {
                    answers.push(words);
                }
            }
            let documents = passages.best(&question.question, reading.k());
            if answers.is_empty() || documents.is_empty() {
                data.without_answers += 1;
                continue;
            }
            data.cases.push(Case {
                id: question.question_id,
                turns: vec![turn(question.question, documents, answers)],
            });
        }
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ids, reading};
    use super::*;

    const FILE: &str = r#"{"1909.00694": {"title": "Ferries", "abstract": "We study ferries.",
        "full_text": [{"section_name": "Data", "paragraphs": ["Our ferry data has nine ports.", "", "Trains are left out."]}, {"section_name": null, "paragraphs": ["Ports vary."]}],
        "qas": [{"question": "How many ports are in the ferry data?", "question_id": "q1", "nlp_background": "two",
            "answers": [{"answer": {"unanswerable": false, "extractive_spans": ["nine", "ports"], "yes_no": null, "free_form_answer": "", "evidence": [], "highlighted_evidence": []}, "annotation_id": "x", "worker_id": "y"},
                        {"answer": {"unanswerable": true, "extractive_spans": [], "yes_no": null, "free_form_answer": ""}}]},
           {"question": "Are trains left out?", "question_id": "q2", "answers": [{"answer": {"unanswerable": false, "extractive_spans": [], "yes_no": false, "free_form_answer": ""}}]},
           {"question": "Why ports?", "question_id": "q3", "answers": []}], "figures_and_tables": []}}"#;

    #[test]
    fn questions_find_paragraphs_of_their_paper() {
        let data = read(FILE.as_bytes(), &reading(None)).unwrap();
        assert_eq!((data.cases.len(), data.without_answers), (2, 1));
        let [first, second] = [&data.cases[0].turns[0], &data.cases[1].turns[0]];
        assert_eq!(ids(first)[0], "1909.00694 1");
        assert_eq!(first.documents[0].title, "Data");
        assert_eq!(first.answers, ["nine, ports", "unanswerable"]);
        assert_eq!(
            (ids(second)[0], second.answers[0].as_str()),
            ("1909.00694 3", "no")
        );
        let bad = read(br#"{"p": {"qas": []}}"#, &reading(None))
            .err()
            .unwrap();
        assert!(format!("{bad:#}").contains("paper p: missing field `full_text`"));
    }
}
