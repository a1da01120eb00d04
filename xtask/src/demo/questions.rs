//! The handbook's questions with their retrieved documents, as input of `foreword evaluate` and as requests.

use anyhow::{Context, Result};
use serde_json::json;

use crate::handbook::{Document, Handbook};
use crate::workspace::Workspace;

/// A question that the handbook answers.
pub(super) struct Question {
    id: String,
    text: String,
    answer: String,
    /// The retrieved documents, best first.
    documents: Vec<Document>,
}

/// Returns the questions that have an answer, with the best `top_k` documents of each.
pub(super) fn all(workspace: &Workspace, top_k: usize) -> Result<Vec<Question>> {
    let handbook = Handbook::read(workspace)?;
    let retrieved = handbook.retrieved()?;
    let documents = handbook.documents_by_id();
    let mut questions = Vec::new();
    for (question, line) in handbook.questions.iter().zip(&retrieved) {
        let Some(answer) = &question.answer else {
            continue;
        };
        let found = line.documents.iter().take(top_k).map(|id| {
            let document = documents.get(id.as_str());
            document
                .map(|document| (*document).clone())
                .with_context(|| format!("no document {id}"))
        });
        questions.push(Question {
            id: question.id.clone(),
            text: question.text.clone(),
            answer: answer.clone(),
            documents: found.collect::<Result<_>>()?,
        });
    }
    Ok(questions)
}

impl Question {
    /// Returns the question as a line of `foreword evaluate`'s input.
    pub(super) fn line(&self) -> String {
        let line = json!({
            "id": self.id, "question": self.text, "documents": self.documents, "answers": [self.answer],
        });
        format!("{line}\n")
    }

    /// Returns a chat request with the question and its documents.
    pub(super) fn body(&self, model: &str) -> Result<Vec<u8>> {
        let mut content = String::new();
        for Document { id, title, text } in &self.documents {
            content += &format!("<document id=\"{id}\">\n{title}\n\n{text}\n</document>\n");
        }
        content += &format!("\n{}", self.text);
        let body = json!({
            "model": model,
            "messages": [
                {"role": "system", "content": "Answer the question from the documents, in as few words as possible."},
                {"role": "user", "content": content},
            ],
            "temperature": 0, "max_tokens": 48, "stream": true, "stream_options": {"include_usage": true},
        });
        Ok(serde_json::to_vec(&body)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answered_question_has_its_documents() {
        let questions = all(&Workspace::find().unwrap(), 5).unwrap();
        assert_eq!(questions.len(), 263);
        for question in &questions {
            let line: serde_json::Value = serde_json::from_str(&question.line()).unwrap();
            assert_eq!(line["documents"].as_array().map(Vec::len), Some(5));
            let body: serde_json::Value =
                serde_json::from_slice(&question.body("m").unwrap()).unwrap();
            let content = body["messages"][1]["content"].as_str().unwrap();
            assert!(content.ends_with(&question.text));
            assert_eq!(content.matches("<document id=").count(), 5);
        }
    }
}
