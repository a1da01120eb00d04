//! The requests of the demo's second part: RAGCache++'s bursty trace (section 4.1), over documents of 200 tokens.

use anyhow::{Context, Result};
use foreword_ordering::random::Random;
use foreword_simulation::workload::{self, Bursty};

use super::replay::Question;
use crate::handbook::{Document, Handbook, WORLD};
use crate::workspace::Workspace;

/// Seed of the trace and of its documents.
const SEED: u64 = 1;

/// Bytes of a document's text: 200 tokens of the reader's tokenizer, on the average, with the tags around them.
const TEXT_BYTES: usize = 430;

/// Returns the first `requests` of the trace: bursts of ten for one region, five documents each, of which the next
/// request keeps three.
pub(super) fn bursty(workspace: &Workspace, requests: usize) -> Result<Vec<Question>> {
    let handbook = Handbook::read(workspace, WORLD)?;
    let sentences: Vec<&str> = (handbook.documents.iter())
        .flat_map(|document| document.text.split_inclusive(". "))
        .map(str::trim_end)
        .collect();
    let questions = handbook.questions.iter().cycle();
    let trace = workload::bursty(SEED, requests, Bursty::default());
    let asked = trace.iter().zip(questions).map(|(request, question)| {
        let documents = request.documents.iter();
        Question {
            text: question.text.clone(),
            answer: None,
            documents: documents
                .map(|document| made_up(document.fingerprint.0, &sentences))
                .collect(),
            max_tokens: 1,
        }
    });
    let asked: Vec<Question> = asked.collect();
    asked.first().context("the corpus has no question")?;
    Ok(asked)
}

/// Returns the document with this number: sentences of the world in an order of their own.
fn made_up(number: u64, sentences: &[&str]) -> Document {
    let mut random = Random::new(SEED ^ (number << 32));
    let mut text = String::new();
    while text.len() < TEXT_BYTES {
        let sentence = random.below(sentences.len() as u64) as usize;
        text.push_str(sentences.get(sentence).copied().unwrap_or("…"));
        text.push(' ');
    }
    Document {
        id: format!("record-{number}"),
        title: format!("Record {number}"),
        text: text.trim_end().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_the_same_in_every_request_and_no_other() {
        let workspace = Workspace::find().unwrap();
        let asked = bursty(&workspace, 40).unwrap();
        assert_eq!(asked.len(), 40);
        let mut texts = std::collections::BTreeMap::new();
        for document in asked.iter().flat_map(|question| &question.documents) {
            let known = texts.entry(&document.id).or_insert(&document.text);
            assert_eq!(*known, &document.text);
        }
        let distinct: std::collections::BTreeSet<_> = texts.values().collect();
        assert_eq!(distinct.len(), texts.len());
        // Three of five documents stay from one request of a burst to the next.
        let shared = |a: &Question, b: &Question| {
            let ids = |question: &Question| -> Vec<String> {
                question.documents.iter().map(|d| d.id.clone()).collect()
            };
            let (a, b) = (ids(a), ids(b));
            a.iter().filter(|id| b.contains(id)).count()
        };
        assert!(
            asked[..10]
                .windows(2)
                .all(|two| shared(&two[0], &two[1]) >= 3)
        );
    }
}
