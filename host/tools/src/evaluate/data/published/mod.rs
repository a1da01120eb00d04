//! Reads data sets as their authors publish them. Users bring the files; none is part of this repository.
//!
//! | format | file | documents of a question | right answers |
//! | --- | --- | --- | --- |
//! | `hotpotqa` | `hotpot_dev_distractor_v1.json`, `…_fullwiki_v1.json` | its `context`, as listed | `answer` |
//! | `multihop-rag` | `MultiHopRAG.json` | BM25 over `--corpus corpus.json` | `answer` |
//! | `qasper` | `qasper-dev-v0.3.json` | BM25 over its paper's paragraphs | spans, free form, yes and no, `unanswerable` |
//! | `narrativeqa` | `qaps.csv` | BM25 over its story: `--corpus summaries.csv`, or a folder of `ID.content` | `answer1`, `answer2` |
//! | `mt-rag` | `conversations.json`, or the tasks' `reference.jsonl` | the contexts of its turn | the agent's turn |
//! | `nq` | simplified or original `.jsonl`; DPR's `nq-dev.json` | BM25 over its page's paragraphs; DPR's contexts | short answers, yes and no |
//! | `mmlu` | a subject's `.csv` | BM25 over `--corpus` | one of four letters |
//! | `pubmedqa` | `ori_pqal.json` | BM25 over all abstracts' parts, its own among them | one of yes, no, maybe |

mod hotpot;
mod mmlu;
mod mt_rag;
mod multihop;
mod narrative;
mod nq;
mod pubmed;
mod qasper;

use super::passages::Passages;
use super::{Data, Document, Format, Reading, Turn};
use anyhow::{Result, bail};
use std::sync::Arc;

/// Returns the questions of a published file.
pub(super) fn read(format: Format, text: &[u8], reading: &Reading<'_>) -> Result<Data> {
    match format {
        Format::HotpotQa => hotpot::read(text, reading),
        Format::MultihopRag => multihop::read(text, reading),
        Format::Qasper => qasper::read(text, reading),
        Format::NarrativeQa => narrative::read(text, reading),
        Format::MtRag => mt_rag::read(text, reading),
        Format::Nq => nq::read(text, reading),
        Format::Mmlu => mmlu::read(text, reading),
        Format::PubmedQa => pubmed::read(text, reading),
        Format::Squad | Format::Lines => bail!("it is read elsewhere"),
    }
}

impl Reading<'_> {
    /// Returns the number of documents for a question that is not given any.
    fn k(&self) -> usize {
        self.documents.unwrap_or(super::SQUAD_DOCUMENTS)
    }

    /// Returns the passages of `--corpus`, which `format` needs.
    fn passages(&self, format: &str) -> Result<Passages> {
        match self.corpus {
            Some(path) => super::passages::corpus(path, self.chunk_words),
            None => bail!("{format} has questions without documents: --corpus must name them"),
        }
    }
}

/// Returns a turn that is scored by words.
fn turn(question: String, documents: Vec<Arc<Document>>, answers: Vec<String>) -> Turn {
    Turn {
        answer_document: super::passages::holder(&documents, &answers),
        question,
        documents,
        answers,
        choices: Vec::new(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::path::Path;

    pub(in crate::evaluate::data) fn reading(corpus: Option<&Path>) -> Reading<'_> {
        Reading {
            format: None,
            corpus,
            chunk_words: 50,
            documents: Some(2),
            questions: None,
            seed: 0,
        }
    }

    /// Returns the names of a turn's documents.
    pub(super) fn ids(turn: &Turn) -> Vec<&str> {
        turn.documents.iter().map(|d| d.id.as_str()).collect()
    }
}
