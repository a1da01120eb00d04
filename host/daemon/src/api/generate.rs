//! `POST /v1/chat/completions` and `POST /v1/completions`: from body to answer.
//!
//! ```text
//!   enter the gate ─▶ read the body ─▶ parse, render, tokenise ─▶ submit ─▶ deliver whole, or stream
//!   (429, 503)        (408, 413, 415)  (400, 404; off the async    (400, 429)
//!                                       workers, one per core)
//! ```

use super::body;
use super::dialect::{Dialect, Envelope};
use super::stream::stream;
use super::{App, RequestId};
use crate::answer::{Answer, Piece, Record, TimeLimit};
use crate::failure::{Failure, clip};
use crate::gate::{Pass, Phase};
use crate::model::Model;
use crate::request::{Chat, Completion, Delivery, Options};
use axum::body::Bytes;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use foreword_engine::engine::{self, Generation};
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

/// A submitted generation with all that its answer needs.
pub(super) struct Job {
    pub(super) model: Arc<Model>,
    pub(super) envelope: Envelope,
    generation: Generation,
    stop: Vec<String>,
    pass: Pass,
    time: TimeLimit,
    record: Record,
}

impl Job {
    /// The answer, and the model and envelope that it goes with.
    pub(super) fn start(self, model: &Model) -> (Answer<'_>, Envelope) {
        let decoder = match self.envelope.dialect() {
            Dialect::Chat => model.tokenizer().decoder(),
            Dialect::Completion => model.tokenizer().continuation(),
        };
        let answer = Answer::new(
            self.generation,
            decoder,
            self.stop,
            self.pass,
            self.time,
            self.record,
        );
        (answer, self.envelope)
    }
}

async fn generate(
    app: &App,
    dialect: Dialect,
    id: RequestId,
    request: Request,
) -> Result<Response, Failure> {
    let time = TimeLimit {
        arrival: Instant::now(),
        limit: app.limits.request_timeout,
    };
    let entered = app
        .gate
        .enter()
        .and_then(|pass| Ok((pass, app.model.get().cloned().ok_or(Failure::Loading)?)));
    let (mut pass, model) = match entered {
        Ok(entered) => entered,
        Err(failure) => {
            body::discard(request).await;
            return Err(failure);
        }
    };
    let body = tokio::select! {
        body = body::read(request, app.limits.max_body_bytes, time) => body?,
        () = pass.cut() => return Err(Failure::Stopping),
    };
    let (mut prompt, options) = tokio::select! {
        prepared = prepare(app, Arc::clone(&model), dialect, body) => prepared?,
        () = tokio::time::sleep_until(time.deadline()) => return Err(Failure::Timeout { limit: time.limit }),
        () = pass.cut() => return Err(Failure::Stopping),
    };
    let prompt_tokens = u32::try_from(prompt.prompt.len()).unwrap_or(u32::MAX);
    prompt.deadline = Some(time.deadline().into_std());
    let generation = model.submit(prompt).inspect_err(|failure| {
        // In a server that serves, an engine that has stopped has died: stop being ready.
        if matches!(failure, Failure::Stopping) {
            app.gate.advance(Phase::Stopping);
        }
    })?;
    let job = Job {
        envelope: Envelope::new(dialect, &id.0, model.name()),
        generation,
        stop: options.stop,
        pass,
        time,
        record: Record::new(Arc::clone(&app.metrics), time.arrival, prompt_tokens),
        model,
    };
    match options.delivery {
        Delivery::Whole => whole(job).await,
        Delivery::Stream { include_usage } => Ok(stream(job, include_usage)),
    }
}

/// Parses the body and makes the engine's request of it, on a thread that may block. The permit goes with the work:
/// the number of such threads stays bounded even when clients leave meanwhile.
async fn prepare(
    app: &App,
    model: Arc<Model>,
    dialect: Dialect,
    body: Bytes,
) -> Result<(engine::Request, Options), Failure> {
    let permit = Arc::clone(&app.preparing)
        .acquire_owned()
        .await
        .map_err(Failure::internal)?;
    let work = move || {
        let _permit = permit;
        match dialect {
            Dialect::Chat => {
                let chat = Chat::parse(&body)?;
                check_model(&model, &chat.options)?;
                Ok((model.chat_request(&chat)?, chat.options))
            }
            Dialect::Completion => {
                let completion = Completion::parse(&body)?;
                check_model(&model, &completion.options)?;
                Ok((model.completion_request(&completion)?, completion.options))
            }
        }
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(Failure::internal)?
}

fn check_model(model: &Model, options: &Options) -> Result<(), Failure> {
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
    let (mut answer, envelope) = job.start(&model);
    let mut text = String::new();
    loop {
        let Piece { text: more, end } = answer.next().await?;
        text.push_str(&more);
        if let Some(reason) = end {
            return Ok(axum::Json(envelope.whole(&text, reason, answer.usage())).into_response());
        }
    }
}
