//! `POST /v1/chat/completions` and `POST /v1/completions`: from body to answer.
//!
//! ```text
//!   read the body ─▶ enter the gate ─▶ parse, render, tokenise ─▶ submit ─▶ deliver whole, or stream
//!   (408, 413, 415)  (429, 503)        (400, 404; off the async    (400, 429)
//!                                       workers, one per core)
//! ```

use super::admit::{Admitted, admit};
use super::dialect::{Dialect, Envelope, Whole};
use super::job::Job;
use super::stream::stream;
use super::{App, RequestId};
use crate::answer::{Reading, Record, TimeLimit};
use crate::failure::{Failure, clip};
use crate::gate::Phase;
use crate::kv::place::{PATH_HEADER, Placer};
use crate::model::{Calls, Model, Wanted};
use crate::request::{Chat, Completion, Delivery, Options, Retrieving};
use crate::retrieval::pipeline::{Pipeline, Speculation};
use crate::spans::RequestSpan;
use axum::body::Bytes;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use foreword_engine::engine::{self, SpeculationId};
use foreword_engine::text::Part;
use serde_json::Value;
use std::sync::Arc;
use tokio::time::Instant;

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Failure> {
    generate(&app, Dialect::Chat, id, request).await
}

pub(super) async fn completion(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Failure> {
    generate(&app, Dialect::Completion, id, request).await
}

async fn generate(
    app: &Arc<App>,
    dialect: Dialect,
    id: RequestId,
    request: Request,
) -> Result<Response, Failure> {
    let traced = request.extensions().get::<RequestSpan>().cloned();
    let path = request.headers().get(PATH_HEADER).cloned();
    let Admitted {
        body,
        mut pass,
        time,
    } = admit(app, request).await?;
    let model = app.model.get().cloned().ok_or(Failure::Loading)?;
    let prepare = async {
        let chat = match dialect {
            Dialect::Chat => with_documents(app, &model, body, path, time).await?,
            Dialect::Completion => WithDocuments::none(body, path),
        };
        let (body, path) = (chat.body, chat.path);
        let mut prepared = prepare(app, Arc::clone(&model), dialect, body, path).await?;
        if let Some(wanted) = prepared.grammar.take() {
            let constraint = app.grammars.prepare(Arc::clone(&model), wanted).await?;
            prepared.request.constraint = Some(constraint);
        }
        Ok::<_, Failure>((prepared, chat.guessed, chat.retrieved))
    };
    let (prepared, guessed, retrieved) = tokio::select! {
        prepared = prepare => prepared?,
        () = tokio::time::sleep_until(time.deadline()) => return Err(Failure::Timeout { limit: time.limit }),
        () = pass.cut() => return Err(Failure::Stopping),
    };
    let Prepared {
        mut request,
        choices,
        reading,
        delivery,
        grammar: _,
    } = prepared;
    request.deadline = Some(time.deadline().into_std());
    // Every choice takes a place: the bound on places is what keeps memory and queue bounded.
    let mut passes = vec![pass];
    for _ in 1..choices {
        passes.push(app.gate.enter()?);
    }
    let waiting: Vec<engine::Request> = (1..choices)
        .map(|choice| engine::Request {
            sampling: request.sampling.clone().for_choice(choice),
            ..request.clone()
        })
        .collect();
    // The other choices wait for the first one, which is the chat that was guessed at.
    let (speculation, guess) = guessed.map_or((None, None), |(id, guess)| (Some(id), guess));
    request.speculation = speculation;
    let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
    let logprobs = request.top_logprobs.is_some();
    let generation = model.submit(request).inspect_err(|failure| {
        // In a server that serves, an engine that has stopped has died: stop being ready.
        if matches!(failure, Failure::Stopping) {
            app.gate.advance(Phase::Stopping);
        }
    })?;
    if let Some(guess) = guess {
        tokio::spawn(guess.handed_over());
    }
    let job = Job {
        envelope: Envelope::new(dialect, &id.0, model.name()),
        logprobs,
        generation,
        record: Record::new(
            Arc::clone(&app.metrics),
            time.arrival,
            prompt_tokens,
            1 + waiting.len(),
        )
        .traced_by(traced),
        waiting,
        reading,
        passes,
        time,
        model,
    };
    let mut response = match delivery {
        Delivery::Whole => whole(job).await?,
        Delivery::Stream { include_usage } => stream(job, include_usage),
    };
    if let Some(retrieved) = retrieved {
        response
            .headers_mut()
            .insert(X_FOREWORD_RETRIEVED, retrieved);
    }
    Ok(response)
}

/// How many documents were found for a chat that asked for some, or `failed`.
const X_FOREWORD_RETRIEVED: HeaderName = HeaderName::from_static("x-foreword-retrieved");

/// A chat that needs no documents, or has them.
struct WithDocuments {
    body: Bytes,
    path: Option<HeaderValue>,
    /// The name under which the engine may know it already, and what it knows.
    guessed: Option<(SpeculationId, Option<Speculation>)>,
    /// For the header.
    retrieved: Option<HeaderValue>,
}

impl WithDocuments {
    fn none(body: Bytes, path: Option<HeaderValue>) -> Self {
        Self {
            body,
            path,
            guessed: None,
            retrieved: None,
        }
    }
}

/// Finds the documents that a chat asks for.
async fn with_documents(
    app: &Arc<App>,
    model: &Arc<Model>,
    body: Bytes,
    path: Option<HeaderValue>,
    time: TimeLimit,
) -> Result<WithDocuments, Failure> {
    let Some(wanted) = Retrieving::take(&body)? else {
        return Ok(WithDocuments::none(body, path));
    };
    // What is wrong with the chat itself is told before anything is searched for it.
    let chat = Chat::parse(&body)?;
    check_model(model, &chat.options)?;
    let pipeline = Arc::new(Pipeline {
        retriever: Arc::clone(&app.retriever),
        model: Arc::clone(model),
        locator: app.locator.clone(),
        preparing: Arc::clone(&app.preparing),
        deadline: time.deadline().into_std(),
    });
    let plain = Value::Object(wanted.body.clone()).to_string();
    let started = Instant::now();
    let found = pipeline
        .run(wanted.body, chat.options.cache_salt, wanted.asked)
        .await;
    let counted = found.as_ref().ok().map(|found| found.documents);
    app.metrics.retrieved(counted, started.elapsed());
    match found {
        Ok(found) => Ok(WithDocuments {
            body: found.written.body.into(),
            path: found.written.path,
            guessed: Some((found.id, found.guess)),
            retrieved: Some(HeaderValue::from(found.documents)),
        }),
        Err(failure @ Failure::Retriever { .. }) if wanted.does_without => {
            failure.log();
            Ok(WithDocuments {
                retrieved: Some(HeaderValue::from_static("failed")),
                ..WithDocuments::none(plain.into(), None)
            })
        }
        Err(failure) => Err(failure),
    }
}

/// What a body asks for.
struct Prepared {
    request: engine::Request,
    choices: u32,
    reading: Reading,
    delivery: Delivery,
    /// Prepared apart, since it may take long.
    grammar: Option<Wanted>,
}

/// Parses the body and makes the engine's request of it, on a thread that may block. The permit goes with the work:
/// the number of such threads stays bounded even when clients leave meanwhile.
async fn prepare(
    app: &Arc<App>,
    model: Arc<Model>,
    dialect: Dialect,
    body: Bytes,
    path: Option<HeaderValue>,
) -> Result<Prepared, Failure> {
    let permit = Arc::clone(&app.preparing)
        .acquire_owned()
        .await
        .map_err(Failure::internal)?;
    let app = Arc::clone(app);
    let work = move || {
        let _permit = permit;
        let (request, calls, options, grammar) = match dialect {
            Dialect::Chat => {
                let chat = Chat::parse(&body)?;
                check_model(&model, &chat.options)?;
                let counts = &app.metrics.placements;
                let placer = Placer::new(&app.locator, path.as_ref(), &body, counts);
                let (request, calls, grammar) = model.chat_request(&chat, &placer)?;
                (request, calls, chat.options, grammar)
            }
            Dialect::Completion => {
                let completion = Completion::parse(&body)?;
                check_model(&model, &completion.options)?;
                let request = model.completion_request(&completion)?;
                let grammar = Wanted::of(&completion.options.format);
                (request, Calls::None, completion.options, grammar)
            }
        };
        Ok(Prepared {
            request,
            choices: options.choices,
            reading: Reading {
                stop: options.stop,
                continues: dialect == Dialect::Completion,
                calls,
            },
            delivery: options.delivery,
            grammar,
        })
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(Failure::internal)?
}

pub(super) fn check_model(model: &Model, options: &Options) -> Result<(), Failure> {
    match &options.model {
        Some(asked) if asked != model.name() => Err(Failure::UnknownModel {
            asked: clip(asked),
            served: model.name().to_owned(),
        }),
        _ => Ok(()),
    }
}

async fn whole(job: Job) -> Result<Response, Failure> {
    let model = Arc::clone(&job.model);
    let logprobs = job.logprobs;
    let (mut answer, envelope) = job.start(&model);
    let mut choices: Vec<Whole> = Vec::new();
    choices.resize_with(answer.choices(), || Whole {
        logprobs: logprobs.then(Vec::new),
        ..Whole::default()
    });
    while let Some(piece) = answer.next().await? {
        let choice = &mut choices[piece.choice];
        for part in piece.parts {
            match part {
                Part::Text(text) => choice.text.push_str(&text),
                Part::Call(call) => choice.calls.push(call),
            }
        }
        if let Some(logprobs) = &mut choice.logprobs {
            logprobs.extend(piece.logprobs);
        }
        choice.end = piece.end;
    }
    Ok(axum::Json(envelope.whole(choices, answer.usage())).into_response())
}
