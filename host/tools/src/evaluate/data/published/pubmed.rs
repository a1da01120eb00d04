//! PubMedQA (Jin et al., 2019): questions by the number of the abstract that they were made of, answered by yes, no or
//! maybe. The parts of all abstracts are the documents; a question's own ones are always among those that it gets.

use super::{Data, Reading};
use crate::evaluate::data::passages::{Passages, cut};
use crate::evaluate::data::{Case, Document, Turn};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;

#[derive(Deserialize)]
struct Question {
    #[serde(rename = "QUESTION")]
    question: String,
    #[serde(rename = "CONTEXTS")]
    contexts: Vec<String>,
    #[serde(default, rename = "LABELS")]
    labels: Vec<String>,
    final_decision: Option<String>,
}

const CHOICES: [&str; 3] = ["yes", "no", "maybe"];

/// Returns the questions with the best parts of all abstracts, their own before the others.
pub(super) fn read(json: &[u8], reading: &Reading<'_>) -> Result<Data> {
    let file: Map<String, Value> = serde_json::from_slice(json)?;
    let mut questions = Vec::new();
    let mut all: Vec<Arc<Document>> = Vec::new();
    for (id, question) in file {
        let question: Question =
            serde_json::from_value(question).with_context(|| format!("abstract {id}"))?;
        let labels = question.labels.iter().map(String::as_str);
        let labels = labels.chain(std::iter::repeat(""));
        let parts = question.contexts.iter().zip(labels).zip(1..);
        let first = all.len();
        all.extend(parts.flat_map(|((part, label), number)| {
            cut(&format!("{id}-{number}"), label, part, reading.chunk_words)
        }));
        questions.push((id, question, first..all.len()));
    }
    let passages = Passages::of(all.clone());
    let mut data = Data::default();
    for (id, question, own) in questions {
        let Some(decision) = question.final_decision else {
            data.without_answers += 1;
            continue;
        };
        let right = CHOICES.iter().position(|choice| *choice == decision);
        let letter = right.and_then(crate::evaluate::choice::letter);
        let letter = letter
            .with_context(|| format!("abstract {id}: {decision:?} is not one of yes, no, maybe"))?;
        let own = all.get(own).unwrap_or_default();
        ensure!(!own.is_empty(), "abstract {id} has no text");
        let k = reading.k();
        let mut documents: Vec<_> = own.iter().take(k).cloned().collect();
        for found in passages.best(&question.question, k) {
            if documents.len() < k && !documents.contains(&found) {
                documents.push(found);
            }
        }
        data.cases.push(Case {
            id,
            turns: vec![Turn {
                question: question.question,
                documents,
                answers: vec![letter.to_string()],
                answer_document: None,
                choices: CHOICES.map(str::to_owned).to_vec(),
            }],
        });
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ids, reading};
    use super::*;

    #[test]
    fn a_question_has_its_own_abstract_first() {
        let file = r#"{"21645374": {"QUESTION": "Do ferries help?", "CONTEXTS": ["Ferries were studied."], "LABELS": ["BACKGROUND"], "MESHES": [], "YEAR": "2011", "reasoning_required_pred": "yes", "reasoning_free_pred": "yes", "final_decision": "maybe", "LONG_ANSWER": "x"},
            "16418930": {"QUESTION": "Do trains?", "CONTEXTS": ["Trains, not ferries, help.", "Ferries help, too."], "LABELS": ["A", "B"], "final_decision": "no"},
            "1": {"QUESTION": "Test?", "CONTEXTS": ["x"]}}"#;
        let data = read(file.as_bytes(), &reading(None)).unwrap();
        assert_eq!((data.cases.len(), data.without_answers), (2, 1));
        let case = data
            .cases
            .iter()
            .find(|case| case.id == "21645374")
            .unwrap();
        let turn = &case.turns[0];
        assert_eq!((ids(turn)[0], turn.documents.len()), ("21645374-1", 2));
        assert_eq!(turn.documents[0].title, "BACKGROUND");
        assert_eq!((turn.choices.len(), turn.answers[0].as_str()), (3, "C"));
        let bad = file.replace("maybe", "perhaps");
        let error = read(bad.as_bytes(), &reading(None)).err().unwrap();
        assert!(
            error
                .to_string()
                .contains("\"perhaps\" is not one of yes, no, maybe"),
            "{error}"
        );
    }
}
