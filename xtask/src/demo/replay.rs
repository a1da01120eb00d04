//! The requests of the replay, and asking them one after the other.

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::client::Client;
use super::figures::{Arm, Sample};
use super::interrupt::Interrupt;
use super::stack::Stack;
use crate::handbook::{Document, Handbook};
use crate::workspace::Workspace;

/// A question with the documents that were retrieved for it, best first.
pub(super) struct Question {
    text: String,
    documents: Vec<Document>,
}

impl Question {
    /// The request's body. Requests with different salts share no KV state.
    pub(super) fn body(&self, model: &str, cache_salt: Option<&str>) -> Result<Vec<u8>> {
        let request = Request {
            model,
            messages: [
                Message {
                    role: "system",
                    content: SYSTEM,
                },
                Message {
                    role: "user",
                    content: &self.text,
                },
            ],
            documents: &self.documents,
            max_tokens: 8,
            temperature: 0.0,
            stream: true,
            stream_options: StreamOptions {
                include_usage: true,
            },
            cache_salt,
        };
        Ok(serde_json::to_vec(&request)?)
    }
}

const SYSTEM: &str = "You answer questions of the staff from the handbook. \
Use only the documents that you are given, and say so when they do not hold the answer.";

/// An OpenAI chat request with documents, in the order in which its fields are sent.
#[derive(Serialize)]
struct Request<'a> {
    model: &'a str,
    messages: [Message<'a>; 2],
    documents: &'a [Document],
    max_tokens: u32,
    temperature: f32,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_salt: Option<&'a str>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: &'a str,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// The handbook's first `limit` questions (all without one), each with its first `top_k` retrieved documents.
pub(super) fn questions(
    workspace: &Workspace,
    top_k: usize,
    limit: Option<usize>,
) -> Result<Vec<Question>> {
    let handbook = Handbook::read(workspace)?;
    let documents = handbook.documents_by_id();
    let retrieved = handbook.retrieved()?;
    let all = handbook.questions.len();
    let limit = limit.unwrap_or(all);
    ensure!(
        (1..=all).contains(&limit),
        "{limit} requests were asked for; the handbook has 1 to {all} questions"
    );
    let lines = handbook.questions.iter().zip(&retrieved).take(limit);
    lines
        .map(|(question, line)| {
            let found = line.documents.iter().take(top_k).map(|id| {
                let document = documents
                    .get(id.as_str())
                    .map(|document| Document::clone(document));
                document.with_context(|| {
                    format!("{} was retrieved {id}, which is no document", question.id)
                })
            });
            Ok(Question {
                text: question.text.clone(),
                documents: found.collect::<Result<_>>()?,
            })
        })
        .collect()
}

/// Asks every question once, in order, one at a time.
pub(super) fn replay(
    stack: &Stack,
    arm: Arm,
    questions: &[Question],
    interrupt: &Interrupt,
) -> Result<Vec<Sample>> {
    let client = Client::new(stack.completions_url());
    warm_up(&client, stack.model())?;
    // Drawn on stderr, and only on a terminal.
    let progress = ProgressBar::new(questions.len() as u64)
        .with_style(ProgressStyle::with_template(
            "{prefix:>9} {wide_bar} {pos}/{len} {msg}",
        )?)
        .with_prefix(arm.key());
    let (mut samples, mut prompt, mut cached) = (Vec::with_capacity(questions.len()), 0, 0);
    for question in questions {
        interrupt.check()?;
        let answer = client.ask(&question.body(stack.model(), None)?)?;
        samples.push(Sample {
            prompt_tokens: answer.prompt_tokens,
            cached_tokens: answer.cached_tokens,
            ttft: answer.ttft,
        });
        prompt += answer.prompt_tokens;
        cached += answer.cached_tokens;
        progress.set_message(format!(
            "{:.0} % reused",
            100.0 * cached as f64 / prompt.max(1) as f64
        ));
        progress.inc(1);
    }
    progress.finish();
    Ok(samples)
}

/// A first request, not counted: opens the connections and touches the weights. It has no documents and a salt of
/// its own, so neither cache nor tree knows anything of use afterwards.
fn warm_up(client: &Client, model: &str) -> Result<()> {
    let question = Question {
        text: "Are you ready?".into(),
        documents: Vec::new(),
    };
    client
        .ask(&question.body(model, Some("warm-up"))?)
        .map(drop)
}
