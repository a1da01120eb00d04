//! `cargo xtask corpus`: computes the handbook's retrieval results by BM25 (program `ranker`). They are committed, so
//! that the demo and the tests use the same lists everywhere.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::handbook::{Document, Handbook, Retrieved};
use crate::workspace::{Workspace, cargo};

/// Number of documents kept per question.
const TOP: usize = 10;

/// What to do with the rankings.
#[derive(Args)]
pub(crate) struct Options {
    /// Write nothing; fail if retrieved.jsonl is not what would be written
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let handbook = &Handbook::read(workspace)?;
    let retrieved = retrieve(workspace, handbook)?;
    let (documents, questions) = (handbook.documents.len(), handbook.questions.len());
    println!("{documents} documents, {questions} questions");
    for depth in [5, TOP] {
        let recall = recall(handbook, &retrieved, depth);
        println!("recall@{depth:<2} {recall:.3}");
    }
    let path = handbook.retrieved_path();
    if options.check {
        ensure!(
            handbook.retrieved()? == retrieved,
            "{} is not what the retriever finds now; write it anew with `cargo xtask corpus`",
            path.display()
        );
        return Ok(());
    }
    let mut lines = String::new();
    for line in &retrieved {
        lines.push_str(&serde_json::to_string(line)?);
        lines.push('\n');
    }
    fs::write(&path, lines).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// Checks the committed rankings against the retriever's, for `cargo xtask test`.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    run(workspace, &Options { check: true })
}

/// The ranker's job, in the format of its module documentation.
#[derive(Serialize)]
struct Job<'a> {
    documents: &'a [Document],
    queries: Vec<&'a str>,
    top: usize,
}

fn retrieve(workspace: &Workspace, handbook: &Handbook) -> Result<Vec<Retrieved>> {
    let queries = handbook.questions.iter().map(|question| &*question.text);
    let job = Job {
        documents: &handbook.documents,
        queries: queries.collect(),
        top: TOP,
    };
    let mut ranker = cargo()
        .args(["run", "--locked", "--quiet", "--package", "ranker"])
        .current_dir(workspace.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the ranker cannot be started")?;
    // The ranker reads its whole input before it writes, so full pipes cannot deadlock.
    let mut input = ranker.stdin.take().context("the ranker has no stdin")?;
    let written = input.write_all(&serde_json::to_vec(&job)?);
    drop(input);
    let output = ranker.wait_with_output()?;
    ensure!(output.status.success(), "the ranker failed; see above");
    written.context("the ranker did not read its job")?;
    let rankings: Vec<Vec<String>> =
        serde_json::from_slice(&output.stdout).context("reading the ranker's answer")?;
    ensure!(
        rankings.len() == handbook.questions.len(),
        "the ranker answered {} questions",
        rankings.len()
    );
    let lines = handbook.questions.iter().zip(rankings);
    Ok(lines
        .map(|(question, documents)| Retrieved {
            question: question.id.clone(),
            documents,
        })
        .collect())
}

/// Returns the mean share of a question's labelled documents among its first `depth`, over the questions with labels.
fn recall(handbook: &Handbook, retrieved: &[Retrieved], depth: usize) -> f64 {
    let (mut sum, mut counted) = (0.0, 0);
    for (question, line) in handbook.questions.iter().zip(retrieved) {
        if question.answered_by.is_empty() {
            continue;
        }
        let first = &line.documents[..depth.min(line.documents.len())];
        let labels = question.answered_by.iter();
        let found = labels.filter(|id| first.contains(id)).count();
        sum += found as f64 / question.answered_by.len() as f64;
        counted += 1;
    }
    sum / f64::from(counted.max(1))
}
