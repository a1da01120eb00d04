//! HotpotQA (Yang et al., 2018): an array of questions, each with the paragraphs that it comes with.

use super::{Data, Document, Reading, turn};
use crate::evaluate::data::Case;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
struct Question {
    #[serde(alias = "id", rename = "_id")]
    id: String,
    question: String,
    /// The answer; the test set has none, so it cannot be scored.
    answer: Option<String>,
    context: Vec<(String, Vec<String>)>,
}

/// Returns the questions with their paragraphs, in the order of the file.
pub(super) fn read(json: &[u8], reading: &Reading<'_>) -> Result<Data> {
    let questions: Vec<Question> = serde_json::from_slice(json)?;
    let mut data = Data::default();
    for question in questions {
        let Some(answer) = question.answer.filter(|answer| !answer.is_empty()) else {
            data.without_answers += 1;
            continue;
        };
        let most = reading.documents.unwrap_or(usize::MAX);
        let paragraphs = question.context.into_iter().take(most);
        let documents = paragraphs.map(|(title, sentences)| {
            Arc::new(Document {
                id: title,
                title: String::new(),
                text: sentences.concat().trim().to_owned(),
            })
        });
        let documents: Vec<_> = documents.filter(|d| !d.text.is_empty()).collect();
        (!documents.is_empty())
            .then_some(())
            .with_context(|| format!("{:?} has no paragraph in its context", question.id))?;
        data.cases.push(Case {
            id: question.id,
            turns: vec![turn(question.question, documents, vec![answer])],
        });
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ids, reading};
    use super::*;

    const FILE: &str = r#"[
        {"_id": "5a8b", "answer": "yes", "question": "Are both ferries red?", "type": "comparison", "level": "hard",
         "supporting_facts": [["Old ferry", 0], ["New ferry", 0]],
         "context": [["Old ferry", ["The old ferry is red.", " It leaves at noon."]], ["Train", ["A train."]], ["New ferry", ["The new ferry is red."]]]},
        {"_id": "5a8c", "question": "Which?", "context": [["Train", ["A train."]]]}]"#;

    #[test]
    fn questions_have_the_paragraphs_that_they_come_with() {
        let data = read(FILE.as_bytes(), &reading(None)).unwrap();
        assert_eq!((data.cases.len(), data.without_answers), (1, 1));
        let turn = &data.cases[0].turns[0];
        assert_eq!(ids(turn), ["Old ferry", "Train"]);
        assert_eq!(
            turn.documents[0].text,
            "The old ferry is red. It leaves at noon."
        );
        assert_eq!(
            (turn.answers.as_slice(), turn.answer_document),
            (&["yes".to_owned()][..], None)
        );
        let bad = FILE.replace("[\"Train\", [\"A train.\"]]", "[\"Train\"]");
        assert!(read(bad.as_bytes(), &reading(None)).is_err());
    }
}
