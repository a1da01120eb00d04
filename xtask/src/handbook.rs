//! Reads and checks the handbook in `examples/handbook`.
//!
//! ```text
//! documents.jsonl   {"id", "title", "text"}                           the documents
//! questions.jsonl   {"id", "question", "answer", "documents": [ids]}  with the documents that answer it
//! retrieved.jsonl   {"question", "documents": [ids]}                  the retriever's results, best first
//! ```

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::workspace::Workspace;

/// A document, as in a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Document {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) text: String,
}

/// A question and the documents that contain its answer.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Question {
    pub(crate) id: String,
    #[serde(rename = "question")]
    pub(crate) text: String,
    /// The answer; `None` if no document contains it.
    pub(crate) answer: Option<String>,
    /// Labels: ids of the documents that contain the answer; empty if there is none.
    #[serde(rename = "documents")]
    pub(crate) answered_by: Vec<String>,
}

/// A question's documents, best first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retrieved {
    pub(crate) question: String,
    pub(crate) documents: Vec<String>,
}

/// The corpus without its rankings.
pub(crate) struct Handbook {
    folder: PathBuf,
    pub(crate) documents: Vec<Document>,
    pub(crate) questions: Vec<Question>,
}

const FOLDER: &str = "examples/handbook";

impl Handbook {
    /// Reads documents and questions, and checks that ids are unique and that every label names a document.
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        let folder = workspace.root().join(FOLDER);
        let handbook = Self {
            documents: read_lines(&folder.join("documents.jsonl"))?,
            questions: read_lines(&folder.join("questions.jsonl"))?,
            folder,
        };
        let ids = handbook.documents_by_id();
        ensure!(
            ids.len() == handbook.documents.len(),
            "two documents of {} bear one id",
            handbook.folder.display()
        );
        let mut questions = HashSet::new();
        for question in &handbook.questions {
            ensure!(
                questions.insert(&question.id),
                "two questions bear the id {}",
                question.id
            );
            let mut labels = question.answered_by.iter();
            if let Some(id) = labels.find(|id| !ids.contains_key(id.as_str())) {
                bail!(
                    "question {} is labelled with {id}, which is no document",
                    question.id
                );
            }
        }
        Ok(handbook)
    }

    /// Returns the path of the rankings.
    pub(crate) fn retrieved_path(&self) -> PathBuf {
        self.folder.join("retrieved.jsonl")
    }

    /// Reads the rankings, one per question, in the order of the questions.
    pub(crate) fn retrieved(&self) -> Result<Vec<Retrieved>> {
        let path = self.retrieved_path();
        let retrieved: Vec<Retrieved> =
            read_lines(&path).context("write it with `cargo xtask corpus`")?;
        let asked = self.questions.iter().map(|question| &question.id);
        ensure!(
            retrieved.iter().map(|line| &line.question).eq(asked),
            "{} does not match the questions; write it anew with `cargo xtask corpus`",
            path.display()
        );
        Ok(retrieved)
    }

    /// Returns the documents by their ids.
    pub(crate) fn documents_by_id(&self) -> HashMap<&str, &Document> {
        self.documents
            .iter()
            .map(|document| (document.id.as_str(), document))
            .collect()
    }
}

fn read_lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    text.lines()
        .enumerate()
        .map(|(index, line)| {
            serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), index + 1))
        })
        .collect()
}
