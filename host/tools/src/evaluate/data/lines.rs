//! Reads lines of JSON, each with a question or a chat:
//!
//! ```text
//!   {"id": …, "question": …, "documents": […, …], "answers": […, …]}
//!   {"id": …, "turns": [{"question": …, "documents": […], "answers": […]}, …]}
//! ```
//!
//! Documents are in the retriever's order, best first: each is a text, or an object with `text` and optionally `id` and
//! `title`. A document without an id gets a number, the same in every line. The document with the answer is the only
//! one whose text contains one of the answers, ignoring case; it is unknown if several do, or none. With `"choices":
//! [texts]`, the answer is a choice's letter: A for the first. Other fields and blank lines are ignored. Questions are
//! asked in the file's order, since a log's order has a meaning.

use super::{Case, Data, Document, Turn, lines_of};
use anyhow::{Context, Result, bail, ensure};
use fxhash::FxHashMap;
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
struct Line {
    id: Option<Name>,
    turns: Option<Vec<RawTurn>>,
    #[serde(flatten)]
    turn: RawTurn,
}

#[derive(Deserialize)]
struct RawTurn {
    question: Option<String>,
    #[serde(default)]
    documents: Vec<RawDocument>,
    #[serde(default)]
    answers: Vec<String>,
    #[serde(default)]
    choices: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or a number")]
enum Name {
    Text(String),
    Number(u64),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a document is a string or an object with a string `text`"
)]
enum RawDocument {
    Text(String),
    Parts {
        id: Option<Name>,
        #[serde(default)]
        title: String,
        text: String,
    },
}

/// Returns the questions in `text`, lines of JSON. Each turn keeps at most its first `documents` documents, or all of
/// them if `documents` is `None`.
pub(super) fn read(text: &[u8], documents: Option<usize>) -> Result<Data> {
    let mut known = Known::default();
    let mut data = Data::default();
    for (number, line) in lines_of(text) {
        let case = case(line, number, documents, &mut known);
        let case = case.with_context(|| format!("line {number}"))?;
        data.cases.push(case);
    }
    Ok(data)
}

fn case(line: &[u8], number: usize, documents: Option<usize>, known: &mut Known) -> Result<Case> {
    let line: Line = serde_json::from_slice(line)?;
    let raw = match line.turns {
        Some(turns) if line.turn.question.is_none() => turns,
        Some(_) => bail!("it has `question` and `turns`"),
        None => vec![line.turn],
    };
    let turns = (raw.into_iter()).map(|raw| turn(raw, documents.unwrap_or(usize::MAX), known));
    let turns: Vec<Turn> = turns.collect::<Result<_>>()?;
    let has_answers = turns.iter().any(|turn| !turn.answers.is_empty());
    ensure!(has_answers, "it has no answers");
    let has_documents = turns.iter().any(|turn| !turn.documents.is_empty());
    ensure!(has_documents, "it has no documents");
    let id = line.id.map_or_else(|| format!("line {number}"), Name::text);
    Ok(Case { id, turns })
}

fn turn(raw: RawTurn, documents: usize, known: &mut Known) -> Result<Turn> {
    let question = raw.question.context("it has no `question`")?;
    let found = raw.documents.into_iter().take(documents);
    let documents: Vec<_> = found.map(|document| known.document(document)).collect();
    let answers = raw.answers;
    if !raw.choices.is_empty() {
        let letters = (0..raw.choices.len()).filter_map(super::letter);
        let letters: Vec<String> = letters.map(String::from).collect();
        ensure!(
            raw.choices.len() <= letters.len()
                && answers.iter().all(|answer| letters.contains(answer)),
            "its answers must be letters of its {} choices, of which there may be 26",
            raw.choices.len()
        );
    }
    Ok(Turn {
        answer_document: match &*raw.choices {
            [] => holder(&documents, &answers),
            _ => None,
        },
        question,
        documents,
        answers,
        choices: raw.choices,
    })
}

/// Returns the index of the only document that contains one of the answers, ignoring case; `None` if several documents
/// do, or none does.
fn holder(documents: &[Arc<Document>], answers: &[String]) -> Option<usize> {
    let lower: Vec<_> = answers.iter().map(|answer| answer.to_lowercase()).collect();
    let mut holding = (0..documents.len()).filter(|&at| {
        let text = documents[at].text.to_lowercase();
        lower.iter().any(|answer| text.contains(answer))
    });
    let first = holding.next();
    first.filter(|_| holding.next().is_none())
}

/// The documents read so far to which the file gives no id, by title and text, each with the number that it got as its
/// id.
#[derive(Default)]
struct Known {
    numbered: FxHashMap<(String, String), Arc<Document>>,
}

impl Known {
    fn document(&mut self, raw: RawDocument) -> Arc<Document> {
        let (id, title, text) = match raw {
            RawDocument::Text(text) => (None, String::new(), text),
            RawDocument::Parts { id, title, text } => (id, title, text),
        };
        if let Some(id) = id {
            let id = id.text();
            return Arc::new(Document { id, title, text });
        }
        let number = self.numbered.len() + 1;
        let made = (self.numbered.entry((title, text))).or_insert_with_key(|(title, text)| {
            Arc::new(Document {
                id: number.to_string(),
                title: title.clone(),
                text: text.clone(),
            })
        });
        Arc::clone(made)
    }
}

impl Name {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, documents: Option<usize>) -> Result<Vec<Case>, String> {
        let data = super::read(text.as_bytes(), documents);
        data.map(|data| data.cases)
            .map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn an_answer_among_choices_is_a_letter() {
        let line = r#"{"question": "Who?", "documents": ["It was Ann."], "choices": ["Bo", "Ann"], "answers": ["B"]}"#;
        let cases = read(line, None).unwrap();
        assert_eq!(cases[0].turns[0].choices, ["Bo", "Ann"]);
        // A letter does not identify a document.
        let letter = line.replace("It was Ann.", "It was B.");
        assert_eq!(
            read(&letter, None).unwrap()[0].turns[0].answer_document,
            None
        );
        let error = read(&line.replace("[\"B\"]", "[\"Ann\"]"), None).unwrap_err();
        assert!(
            error.contains("line 1: its answers must be letters of its 2 choices"),
            "{error}"
        );
    }

    #[test]
    fn a_line_is_a_question_or_a_chat() {
        let text = r#"{"question": "Who?", "documents": ["It was Ann.", {"text": "Not her.", "title": "B", "id": 7}, "It was Ann."], "answers": ["ann"], "more": 1}

            {"id": "chat", "turns": [{"question": "Where?", "documents": [{"text": "In Bonn."}], "answers": ["Bonn"]}, {"question": "Why?"}, {"question": "When?", "documents": ["Noon in Bonn", "Not her."], "answers": ["Noon", "Night"]}]}"#;
        let cases = read(text, None).unwrap();
        assert_eq!(cases.len(), 2);
        let [first, chat] = &cases[..] else { panic!() };
        assert_eq!((first.id.as_str(), first.turns.len()), ("line 1", 1));
        let ids =
            |turn: &Turn| -> Vec<String> { turn.documents.iter().map(|d| d.id.clone()).collect() };
        assert_eq!(ids(&first.turns[0]), ["1", "7", "1"]);
        // Two documents contain the answer.
        assert_eq!(first.turns[0].answer_document, None);
        assert_eq!((chat.id.as_str(), chat.turns.len()), ("chat", 3));
        assert_eq!(ids(&chat.turns[0]), ["2"]);
        assert_eq!(ids(&chat.turns[2]), ["3", "4"]);
        assert_eq!(chat.turns[2].answer_document, Some(0));
        assert!(chat.turns[1].answers.is_empty() && chat.turns[1].documents.is_empty());
        assert!(!chat.has_positions());
        let cut = read(text, Some(1)).unwrap();
        assert_eq!(ids(&cut[0].turns[0]), ["1"]);
        assert_eq!(cut[0].turns[0].answer_document, Some(0));
    }

    #[test]
    fn a_bad_line_is_told_with_its_number_and_reason() {
        let good = r#"{"question": "q", "documents": ["d"], "answers": ["a"]}"#;
        for (line, words) in [
            ("nonsense", "line 2: expected"),
            ("[]", "line 2: invalid type"),
            (r#"{"documents": ["d"], "answers": ["a"]}"#, "no `question`"),
            (r#"{"question": "q", "answers": ["a"]}"#, "no documents"),
            (r#"{"question": "q", "documents": ["d"]}"#, "no answers"),
            (
                r#"{"question": "q", "turns": []}"#,
                "`question` and `turns`",
            ),
            (r#"{"turns": []}"#, "no answers"),
            (
                r#"{"question": "q", "documents": [{"id": "x"}], "answers": ["a"]}"#,
                "an object with a string `text`",
            ),
            (
                r#"{"question": "q", "documents": ["d"], "answers": "a"}"#,
                "expected a sequence",
            ),
        ] {
            let error = read(&format!("{good}\n{line}"), None).err().unwrap();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
