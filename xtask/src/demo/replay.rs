//! The requests of the replay, and sending them one after another.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use foreword_ordering::{Config, Orderer, PeerUpdate, Report, Tenant, Usage};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::answers::Warm;
use super::arm::Arm;
use super::client::{Answer, Client};
use super::interrupt::Interrupt;
use super::right;
use super::stack::Stack;
use crate::handbook::{Document, Handbook, WORLD};
use crate::workspace::Workspace;

/// A question with the documents that were retrieved for it, best first.
pub(super) struct Question {
    pub(super) text: String,
    /// The right answer; `None` if no document contains it and the model should say so.
    pub(super) answer: Option<String>,
    pub(super) documents: Vec<Document>,
    /// Most tokens of an answer.
    pub(super) max_tokens: u32,
}

impl Question {
    /// Returns the request's body, as a client writes it.
    pub(super) fn body(&self, model: &str) -> Result<Vec<u8>> {
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
            max_tokens: self.max_tokens,
            temperature: 0.0,
            stream: true,
            stream_options: StreamOptions {
                include_usage: true,
            },
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
    #[serde(skip_serializing_if = "<[Document]>::is_empty")]
    documents: &'a [Document],
    max_tokens: u32,
    temperature: f32,
    stream: bool,
    stream_options: StreamOptions,
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

/// Returns the world's first `limit` questions (all without a limit), each with its first `top_k` retrieved documents.
pub(super) fn questions(
    workspace: &Workspace,
    top_k: usize,
    limit: Option<usize>,
) -> Result<Vec<Question>> {
    let handbook = Handbook::read(workspace, WORLD)?;
    let documents = handbook.documents_by_id();
    let retrieved = handbook.retrieved()?;
    let all = handbook.questions.len();
    let limit = limit.unwrap_or(all);
    ensure!(
        (1..=all).contains(&limit),
        "{limit} requests were asked for; the corpus has 1 to {all} questions"
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
                answer: question.answer.clone(),
                documents: found.collect::<Result<_>>()?,
                max_tokens: ANSWER_TOKENS,
            })
        })
        .collect()
}

/// The measurements of one request.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) ttft: Duration,
    /// Time until the last token.
    pub(super) total: Duration,
    pub(super) is_right: bool,
}

/// The results of a replay.
pub(super) struct Replayed {
    pub(super) samples: Vec<Sample>,
    /// For each group of [`WARM_EVERY`] requests, the first one that found something in the cache.
    pub(super) warm: Vec<Warm>,
    /// The first [`SHOWN`] answers.
    pub(super) said: Vec<Said>,
}

/// An answer to show in the report.
#[derive(Clone)]
pub(super) struct Said {
    pub(super) question: String,
    pub(super) expected: String,
    pub(super) answer: String,
}

impl Said {
    pub(super) fn is_right(&self) -> bool {
        right::is_right(&self.answer, Some(&self.expected))
    }
}

/// Most tokens of an answer of the reader's.
const ANSWER_TOKENS: u32 = 32;
const WARM_EVERY: usize = 10;
const SHOWN: usize = 8;

/// Sends every question once, in order, one at a time.
pub(super) fn replay(
    stack: &Stack,
    arm: Arm,
    questions: &[Question],
    interrupt: &Interrupt,
) -> Result<Replayed> {
    let client = Client::new(stack.completions_url());
    let mut core = Core::new(arm)?;
    warm_up(&client, stack.model())?;
    // Drawn on stderr, and only on a terminal.
    let progress = ProgressBar::new(questions.len() as u64)
        .with_style(ProgressStyle::with_template(
            "{prefix:>9} {wide_bar} {pos}/{len} {msg}",
        )?)
        .with_prefix(arm.key());
    let mut replayed = Replayed {
        samples: Vec::with_capacity(questions.len()),
        warm: Vec::new(),
        said: Vec::new(),
    };
    let (mut prompt, mut cached) = (0, 0);
    for (index, question) in questions.iter().enumerate() {
        interrupt.check()?;
        let body = question.body(stack.model())?;
        let answer = client.ask(&body)?;
        let forwarded = core.forward(body, &answer)?;
        replayed.samples.push(Sample {
            prompt_tokens: answer.prompt_tokens,
            cached_tokens: answer.cached_tokens,
            ttft: answer.ttft,
            total: answer.total,
            is_right: right::is_right(&answer.text, question.answer.as_deref()),
        });
        if index < SHOWN {
            replayed.said.push(Said {
                question: question.text.clone(),
                expected: right::expected(question.answer.as_deref()).to_owned(),
                answer: answer.text.clone(),
            });
        }
        prompt += answer.prompt_tokens;
        cached += answer.cached_tokens;
        progress.set_message(format!(
            "{:.0} % reused",
            100.0 * cached as f64 / prompt.max(1) as f64
        ));
        progress.inc(1);
        if answer.cached_tokens > 0 && replayed.warm.len() <= index / WARM_EVERY {
            replayed.warm.push(Warm {
                body: forwarded,
                answer,
            });
        }
    }
    progress.finish();
    Ok(replayed)
}

/// The core, run beside the filter on the same requests and answers. It makes the same decisions, so it knows the bytes
/// that Envoy sent on.
struct Core {
    orderer: Orderer,
}

impl Core {
    fn new(arm: Arm) -> Result<Self> {
        let config = Config::from_json(arm.ordering().to_string().as_bytes())?;
        Ok(Self {
            orderer: Orderer::new(config),
        })
    }

    /// Returns the body as the filter sent it on.
    ///
    /// # Errors
    /// Returns an error when the filter reports that it did something else.
    fn forward(&mut self, body: Vec<u8>, answer: &Answer) -> Result<Vec<u8>> {
        let rewrite = self
            .orderer
            .rewrite(Tenant::default(), &body)
            .map_err(|skip| anyhow!("the core: {skip}"))?;
        let Report {
            documents,
            matched,
            moved,
            ..
        } = rewrite.report;
        let ours = format!("documents={documents}; matched={matched}; moved={moved};");
        ensure!(
            answer.filter_report.contains(&ours),
            "the filter reports {:?}, the core by itself {ours:?}",
            answer.filter_report
        );
        let usage = Usage {
            prompt_tokens: answer.prompt_tokens,
            cached_tokens: answer.cached_tokens,
        };
        if let Some(correction) = rewrite.record.judged(usage) {
            self.orderer.learn(&PeerUpdate::Correction(correction));
        }
        Ok(rewrite.body.unwrap_or(body))
    }
}

/// Sends a first request that is not counted, to open the connections and touch the weights. It has no documents, so
/// afterwards only the system message is in the cache and the tree.
pub(super) fn warm_up(client: &Client, model: &str) -> Result<()> {
    let question = Question {
        text: "Are you ready?".into(),
        answer: None,
        documents: Vec::new(),
        max_tokens: ANSWER_TOKENS,
    };
    client.ask(&question.body(model)?).map(drop)
}
