//! The journal of answers, by which a run can be stopped at any time and resumed.
//!
//! `answers.jsonl` in the run's folder has a first line with the run's parameters, then a line for every answer or
//! unanswered request, appended when it arrives. A line that a crash truncated is dropped, and its question asked
//! again. A resumed run must have the same parameters, so that answers are comparable.
//!
//! The file contains the answers' texts, which scoring needs and which may be as confidential as the questions: only
//! its owner can read it. It contains no questions and no documents. The process that writes it holds a lock on it.

use super::arm::Arm;
use super::likelihood::Likelihood;
use super::stream::Usage;
use anyhow::{Context, Result, bail, ensure};
use foreword_report::files::{append_line, lock, open_appended, whole_lines};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};

/// An answer, or an unanswered request, as a line of the journal `answers.jsonl`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) case: String,
    /// Index of the case's turn to which the request belongs, from 0.
    pub(super) turn: usize,
    /// Name of the arm (way to ask) under which the question was asked.
    pub(super) arm: String,
    /// Position of the request, from 0, in the sequence in which all requests of the run were ordered.
    pub(super) at: u64,
    pub(super) answer: String,
    /// The finish reason that the endpoint reports for the answer, such as `stop` or `length`; `None` if it reports
    /// none.
    pub(super) finish: Option<String>,
    /// Hash of the request body sent, as 16 hexadecimal digits.
    pub(super) sent: String,
    /// Time from sending the request to the first token, in microseconds.
    pub(super) ttft_us: u64,
    pub(super) total_us: u64,
    #[serde(flatten)]
    pub(super) usage: Usage,
    /// Number of documents that the ordering core found in the request.
    pub(super) documents: u32,
    /// Number of documents in the request that the ordering core sent at another position than the client did.
    pub(super) moved: u32,
    /// Number of documents in the request that the ordering core replaced by a reference to the copy in an earlier
    /// turn.
    pub(super) deduplicated: u32,
    /// True if the ordering core added an order hint (a sentence that tells the model the retriever's ranking) to the
    /// request.
    #[serde(default)]
    pub(super) hinted: bool,
    /// True if a multiple-choice answer was read from the answer's text, because the endpoint reported no
    /// log-probabilities of the choices' letters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) by_text: bool,
    /// True if the request was not answered. It is recorded because the ordering core has seen it: a resumed run must
    /// order it again, to bring the core into the same state.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_failed: bool,
    /// True if the judge (a model) finds the answer right; `None` if it was not judged or the judgement is unclear.
    /// Stored in `judgements.jsonl`.
    #[serde(skip)]
    pub(super) judged: Option<bool>,
    /// The likelihood of the turn's right answer as the continuation of this request's prompt; `None` if unknown.
    /// Stored in `scores.jsonl`.
    #[serde(skip)]
    pub(super) likelihood: Option<Likelihood>,
    /// True if `answer` is the turn's right answer and not the model's, because the model was not asked.
    #[serde(skip)]
    pub(super) is_forced: bool,
}

impl Record {
    /// Returns the index in `arms` of the arm (way to ask) under which the record's question was asked; `None` if it is
    /// not among them.
    pub(super) fn arm(&self, arms: &[Arm]) -> Option<usize> {
        arms.iter().position(|arm| arm.name() == self.arm)
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    run: String,
    parameters: Map<String, Value>,
}

/// The journal's file `answers.jsonl`, open for appending and locked.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    run: String,
}

impl Journal {
    /// Opens the journal in `folder`, creating both if necessary. Returns it with the records that it contains.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read or written, is locked by another process, belongs to a run with
    /// other parameters, or is damaged.
    pub(super) fn open(
        folder: &Path,
        parameters: &Map<String, Value>,
    ) -> Result<(Self, Vec<Record>)> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join("answers.jsonl");
        let failed = || format!("cannot use {}", path.display());
        let file = open_appended(&path).with_context(failed)?;
        lock(&file, "run is writing", path.display())?;
        let text = whole_lines(&file).with_context(failed)?;
        let mut journal = Self {
            file,
            path: path.clone(),
            run: format!("{:016x}", RandomState::new().hash_one("foreword evaluate")),
        };
        let lines = text.split(|&byte| byte == b'\n');
        let mut lines = lines.filter(|line| !line.is_empty());
        let Some(first) = lines.next() else {
            let header = Header {
                format: FORMAT,
                run: journal.run.clone(),
                parameters: parameters.clone(),
            };
            journal.append(&header)?;
            return Ok((journal, Vec::new()));
        };
        let header: Header = serde_json::from_slice(first)
            .with_context(|| format!("{} does not begin like a run's answers", path.display()))?;
        ensure!(
            (1..=FORMAT).contains(&header.format),
            "{} has format {}, this version reads formats up to {FORMAT}",
            path.display(),
            header.format
        );
        if let Some(difference) = difference(&header.parameters, parameters) {
            bail!(
                "{} holds a run with other parameters: {difference}; go on with the same ones, or choose another --out",
                folder.display()
            );
        }
        journal.run = header.run;
        let records = lines.enumerate().map(|(at, line)| {
            serde_json::from_slice(line)
                .with_context(|| format!("{}:{} is damaged", path.display(), at + 2))
        });
        let records = records.collect::<Result<_>>()?;
        Ok((journal, records))
    }

    /// Returns the run's unique name, which was drawn at random when the run began.
    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Appends `line` to the journal as JSON. A crash can only leave a last line without its line break.
    pub(super) fn append(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        append_line(&self.file, &text)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Returns a text with the name of the first parameter whose value differs between the journal (`was`) and this run
/// (`is`), with both values; `None` if all are equal.
fn difference(was: &Map<String, Value>, is: &Map<String, Value>) -> Option<String> {
    let names = was.keys().chain(is.keys());
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    let mut values = names.map(|name| (name, was.get(name), is.get(name)));
    let (name, was, is) = values.find(|(_, was, is)| was != is)?;
    Some(format!("{name} was {} and is {}", shown(was), shown(is)))
}

/// Version of the journal's format. Version 1 had no lines of unanswered requests.
const FORMAT: u32 = 2;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;
    use std::os::unix::fs::PermissionsExt;

    fn parameters(seed: u64) -> Map<String, Value> {
        let value = json!({"model": "m", "seed": seed});
        value.as_object().unwrap().clone()
    }

    pub(in crate::evaluate) fn record(case: &str, turn: usize, arm: Arm, answer: &str) -> Record {
        Record {
            case: case.into(),
            turn,
            arm: arm.name().into(),
            at: 0,
            answer: answer.into(),
            finish: Some("stop".into()),
            sent: "0".into(),
            ttft_us: 1_000,
            total_us: 2_000,
            usage: Usage {
                prompt_tokens: Some(100),
                cached_tokens: Some(40),
                completion_tokens: Some(3),
            },
            documents: 5,
            moved: 0,
            deduplicated: 0,
            hinted: false,
            by_text: false,
            is_failed: false,
            judged: None,
            likelihood: None,
            is_forced: false,
        }
    }

    fn open(folder: &Path, seed: u64) -> Result<(Journal, Vec<Record>), String> {
        Journal::open(folder, &parameters(seed)).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn answers_are_there_again_and_a_torn_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers.jsonl");
        let (mut journal, records) = open(folder.path(), 1).unwrap();
        assert!(records.is_empty());
        let run = journal.run().to_owned();
        for (turn, answer) in ["one\n{}", "two"].into_iter().enumerate() {
            journal
                .append(&record("a", turn, Arm::Retrieval, answer))
                .unwrap();
        }
        assert!(open(folder.path(), 1).unwrap_err().contains("another run"));
        drop(journal);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let (mut journal, records) = open(folder.path(), 1).unwrap();
        assert_eq!((records.len(), journal.run()), (1, run.as_str()));
        assert_eq!(records[0].answer, "one\n{}");
        journal
            .append(&record("a", 1, Arm::Retrieval, "two"))
            .unwrap();
        drop(journal);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        // The first line is truncated, as if the run had not begun.
        std::fs::write(&path, &bytes[..20]).unwrap();
        assert!(open(folder.path(), 2).unwrap().1.is_empty());
    }

    #[test]
    fn other_parameters_and_damage_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path(), 1).unwrap());
        let error = open(folder.path(), 2).unwrap_err();
        assert!(
            error.contains("seed was 1 and is 2; go on with the same ones"),
            "{error}"
        );
        let path = folder.path().join("answers.jsonl");
        let header = std::fs::read_to_string(&path).unwrap();
        for (text, words) in [
            (format!("{header}nonsense\n"), "answers.jsonl:2 is damaged"),
            (
                header.replace("\"format\":2", "\"format\":3"),
                "has format 3",
            ),
            ("nonsense\n".into(), "does not begin like"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = open(folder.path(), 1).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let error = open(&path, 1).unwrap_err();
        assert!(error.contains("cannot make"), "{error}");
    }
}
