//! Reads questions from SQuAD's JSON or from lines of JSON, and converts them to one form.
//!
//! ```text
//!   FILE.json  ── squad ── words: BM25 over the file's paragraphs ──┐
//!   FILE.jsonl ── lines ── documents as they were retrieved ────────┴──▶ cases, each of one turn or several
//! ```
//!
//! `examples/datasets.py` converts other published data sets to such lines. This module does not depend on how
//! questions are asked.

mod lines;
mod squad;

use anyhow::{Context, Result, bail, ensure};
use foreword_ordering::document::Fingerprint;
use fxhash::FxHashSet;
use std::path::Path;
use std::sync::Arc;

/// A retrieved document, as the data file gives it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Document {
    /// The document's name in order hints (sentences with the retriever's ranking) and location hints (references to an
    /// earlier copy).
    pub(super) id: String,
    /// The document's title; empty if it has none.
    pub(super) title: String,
    pub(super) text: String,
}

/// A question with its retrieved documents; one turn of a chat.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) question: String,
    /// The documents, in the retriever's order, best first.
    pub(super) documents: Vec<Arc<Document>>,
    /// The right answers; if it is empty, the turn is asked but not scored.
    pub(super) answers: Vec<String>,
    /// Index in `documents` of the only document that contains the answer; `None` if it is not known.
    pub(super) answer_document: Option<usize>,
    /// The texts among which the model chooses, if the right answer is a letter; empty if it is in words.
    pub(super) choices: Vec<String>,
}

/// A question, or a chat of several turns, which is asked as a whole under every arm (way to ask).
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// The case's id, unique in the file.
    pub(super) id: String,
    /// The case's turns, at least one. At least one of them has a right answer, and at least one has documents.
    pub(super) turns: Vec<Turn>,
}

/// The questions of a data file, as [`read`] returns them.
#[derive(Debug, Default)]
pub(super) struct Data {
    /// The questions and chats to ask, in the order in which they are asked.
    pub(super) cases: Vec<Case>,
    /// Number of the file's questions that were left out because they have no answer.
    pub(super) without_answers: usize,
    /// Hash of the data file's bytes.
    pub(super) fingerprint: u64,
}

foreword_ordering::named! {
    /// A format of data files, which contain questions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Format {
        /// SQuAD's JSON: paragraphs, each with questions and answers.
        Squad = "squad",
        /// Lines of JSON, each with a question or a chat and its documents.
        Lines = "lines",
    }
}

impl Format {
    /// Returns the format that the file name's extension stands for. Returns an error that names `--format` if it
    /// stands for none.
    fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => Ok(Self::Squad),
            Some("jsonl" | "ndjson") => Ok(Self::Lines),
            _ => bail!(
                "{}: the name must end in .json (SQuAD) or .jsonl (lines), or --format must name one of both",
                path.display()
            ),
        }
    }
}

/// The options for reading a file of questions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// The file's format; `None` to choose it by the file name's extension.
    pub(super) format: Option<Format>,
    /// Maximum number of documents of one question; `None` for the format's default: 10 for SQuAD, all for lines.
    pub(super) documents: Option<usize>,
    /// Maximum number of questions and chats read from the file, the first ones (of SQuAD's, after shuffling). `None`
    /// for all.
    pub(super) questions: Option<usize>,
    pub(super) seed: u64,
}

impl Case {
    /// Returns whether the case can be asked under the arms (ways to ask) that put the answer's document in a given
    /// position: each turn with right answers has at least three documents, and it is known which of them contains the
    /// answer.
    pub(super) fn has_positions(&self) -> bool {
        let mut scored = self.turns.iter().filter(|turn| !turn.answers.is_empty());
        scored.all(|turn| turn.answer_document.is_some() && turn.documents.len() >= 3)
    }
}

/// Returns the letter of the choice with index `at`: A for 0; `None` from index 26 on.
pub(super) fn letter(at: usize) -> Option<char> {
    (at < 26).then(|| char::from(b'A' + at as u8))
}

/// Iterates over the lines of `text` that are not blank, with their line numbers, from 1.
fn lines_of(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = (1..).zip(text.split(|&byte| byte == b'\n'));
    lines.filter(|(_, line)| !line.trim_ascii().is_empty())
}

/// Returns the bytes of a file. Returns an error if the file cannot be read or has more than [`MAX_BYTES`].
fn bytes_of(path: &Path) -> Result<Vec<u8>> {
    let failed = || format!("cannot read {}", path.display());
    let bytes = std::fs::metadata(path).with_context(failed)?.len();
    if bytes > MAX_BYTES {
        bail!(
            "cannot read {}: it has {bytes} bytes, more than {MAX_BYTES}",
            path.display()
        );
    }
    std::fs::read(path).with_context(failed)
}

/// Reads the questions of the file at `path`.
///
/// # Errors
/// Returns an error if the file is invalid, contains no question with an answer, or uses an id twice.
pub(super) fn read(path: &Path, reading: Reading) -> Result<Data> {
    let failed = || format!("cannot read {}", path.display());
    let format = reading.format.map_or_else(|| Format::of(path), Ok)?;
    let text = bytes_of(path)?;
    let documents = reading.documents;
    let mut data = match format {
        Format::Squad => squad::read(&text, documents.unwrap_or(SQUAD_DOCUMENTS), reading.seed),
        Format::Lines => lines::read(&text, documents),
    }
    .with_context(failed)?;
    data.fingerprint = Fingerprint::of(&[&text]).0;
    let mut ids = FxHashSet::default();
    for case in &data.cases {
        ensure!(
            ids.insert(case.id.as_str()),
            "{}: two questions have the id {:?}",
            path.display(),
            case.id
        );
    }
    data.cases.truncate(reading.questions.unwrap_or(usize::MAX));
    ensure!(
        !data.cases.is_empty(),
        "{}: no question with an answer",
        path.display()
    );
    Ok(data)
}

/// Default number of documents (paragraphs) with which a question of a SQuAD file is asked.
const SQUAD_DOCUMENTS: usize = 10;

/// Maximum size in bytes of a data file, which is read into memory.
const MAX_BYTES: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_by_their_ending_and_cut_after_as_many_questions() {
        let folder = tempfile::tempdir().unwrap();
        let reading = Reading {
            format: None,
            documents: None,
            questions: Some(1),
            seed: 0,
        };
        let read = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            read(&path, reading).map_err(|error| format!("{error:#}"))
        };
        let line = r#"{"question": "q", "documents": ["d"], "answers": ["a"]}"#;
        let both = format!("{line}\n{line}\n");
        assert_eq!(read("a.jsonl", &both).unwrap().cases.len(), 1);
        assert_ne!(
            read("a.jsonl", &both).unwrap().fingerprint,
            read("a.jsonl", line).unwrap().fingerprint
        );
        for (name, text, words) in [
            ("a.txt", line, "must end in .json (SQuAD) or .jsonl"),
            ("a.json", line, "missing field `data`"),
            ("a.json", r#"{"data": []}"#, "no question with an answer"),
            ("b.jsonl", "", "no question with an answer"),
            (
                "b.jsonl",
                &format!("{}\n{}", with_id(line), with_id(line)),
                "two questions have the id \"x\"",
            ),
        ] {
            let error = read(name, text).err().unwrap();
            assert!(error.contains(words), "{error}");
        }
        let gone = super::read(&folder.path().join("gone.json"), reading);
        assert!(format!("{:#}", gone.err().unwrap()).starts_with("cannot read "));
    }

    fn with_id(line: &str) -> String {
        line.replacen('{', r#"{"id": "x", "#, 1)
    }
}
