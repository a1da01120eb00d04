//! `POST /v1/chat/completions`, `/v1/completions`, `/v1/responses` and `/v1/messages`. They differ in how a body is
//! parsed ([`crate::request`]) and how an answer is formatted ([`super::shape`]), and share the steps in between.
//!
//! ```text
//!   read the body ─▶ enter the gate ─▶ parse, render, tokenise ─▶ submit ─▶ deliver whole, or stream
//!   (408, 413, 415)  (429, 503)        (400, 404; off the async    (400, 429)
//!                                       workers, one per core)
//! ```

use super::admit::{Admitted, admit, admit_whole};
use super::dialect::{Api, Dialect, Envelope};
use super::embeddings;
use super::messages::MessagesShape;
use super::responses::{self, Keep, ResponsesShape};
use super::shape::{OpenAi, Shape};
use super::stream::stream;
use super::{App, RequestId};
use crate::answer::{Answer, Echo, PromptReading, Reading, Record, Submitted, TimeLimit};
use crate::batches::{Ask, Asking};
use crate::failure::{Failure, clip};
use crate::gate::{Pass, Phase};
use crate::kv::place::{PATH_HEADER, Placer};
use crate::model::{Calls, Model, UnpreparedGrammar};
use crate::request::{
    Chat, Completion, Delivery, MessagesRequest, Options, Prompt, ResponsesRequest, Retrieving,
};
use crate::retrieval::pipeline::{Pipeline, Speculation};
use crate::spans::RequestSpan;
use crate::transcripts::Owner;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use foreword_engine::engine::{self, SpeculationId};
use foreword_engine::text::Ending;
use serde_json::Value;
use std::sync::Arc;
use tokio::time::Instant;

/// Returns the `POST` handler that generates an answer in the format of `api`.
pub(super) fn route(api: Api) -> MethodRouter<Arc<App>> {
    let answer =
        async move |State(app): State<Arc<App>>,
                    Extension(id): Extension<RequestId>,
                    request: Request| { generate(&app, api, id, request).await };
    post(answer)
}

impl Ask for App {
    async fn ask(
        self: Arc<Self>,
        asking: Asking<'_>,
        body: Vec<u8>,
    ) -> Result<(u16, Vec<u8>), Failure> {
        let Asking { url, id, key } = asking;
        let api = match url {
            "/v1/chat/completions" => Some(Api::OpenAi(Dialect::Chat)),
            "/v1/completions" => Some(Api::OpenAi(Dialect::Completion)),
            "/v1/responses" => Some(Api::Responses),
            _ => None,
        };
        let response = match (api, admit_whole(&self, body)) {
            (Some(api), Ok(Admitted { body, pass, time })) => {
                let asked = Asked {
                    api,
                    id,
                    key,
                    body,
                    path: None,
                };
                answer(&self, asked, None, pass, time).await
            }
            (None, Ok(admitted)) if url == "/v1/embeddings" => {
                let embedded = embeddings::embedded(&self, admitted).await;
                embedded.map(IntoResponse::into_response)
            }
            (_, Err(failure)) => Err(failure),
            (None, Ok(_)) => Err(Failure::UnknownUrl {
                method: "POST".to_owned(),
                path: clip(url),
            }),
        };
        let response = response.map_err(|failure| match api {
            Some(api) => failure.renamed(api.names()),
            None => failure,
        });
        let status = match &response {
            Ok(response) => response.status(),
            Err(failure) => failure.status(),
        };
        self.metrics.http(url, status);
        let body = to_bytes(response?.into_body(), MAX_ANSWER).await;
        let body = body.map_err(Failure::internal)?;
        Ok((status.as_u16(), body.to_vec()))
    }

    fn is_idle(&self) -> bool {
        let engine = self.model.get().map(|model| model.engine().stats());
        engine.is_some_and(|stats| stats.waiting == 0)
    }

    fn is_stopping(&self) -> bool {
        self.gate.phase() >= Phase::Stopping
    }
}

/// Maximum length in bytes of an answer to a batch's request. It is bounded because answers are read into memory again
/// after a restart.
const MAX_ANSWER: usize = 32 << 20;

async fn generate(
    app: &Arc<App>,
    api: Api,
    id: RequestId,
    request: Request,
) -> Result<Response, Failure> {
    let answered = async {
        let key = (app.keys.as_ref()).and_then(|keys| keys.holder(request.headers()));
        let path = request.headers().get(PATH_HEADER).cloned();
        let traced = request.extensions().get::<RequestSpan>().cloned();
        let Admitted { body, pass, time } = admit(app, request).await?;
        let asked = Asked {
            api,
            id: id.0,
            key,
            body,
            path,
        };
        answer(app, asked, traced, pass, time).await
    };
    let answered = answered.await;
    answered.map_err(|failure| failure.renamed(api.names()))
}

/// Answers an admitted request, which has the place `pass` among the requests in flight.
async fn answer(
    app: &Arc<App>,
    mut asked: Asked,
    traced: Option<RequestSpan>,
    mut pass: Pass,
    time: TimeLimit,
) -> Result<Response, Failure> {
    let model = app.model()?;
    let prepare = async {
        let (mut guessed, mut retrieved) = (None, None);
        if asked.api == Api::OpenAi(Dialect::Chat)
            && let Some(found) = with_documents(app, &model, asked.body.clone(), time).await?
        {
            (asked.body, asked.path) = (found.body, found.path);
            (guessed, retrieved) = (found.guessed, Some(found.retrieved));
        }
        let mut prepared = prepare(app, Arc::clone(&model), asked).await?;
        if let Some(wanted) = prepared.grammar.take() {
            let constraint = app.grammars.prepare(Arc::clone(&model), wanted).await?;
            prepared.request.constraint = Some(constraint);
        }
        Ok::<_, Failure>((prepared, guessed, retrieved))
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
        shape,
        streams,
        grammar: _,
    } = prepared;
    request.deadline = Some(time.deadline().into_std());
    // All choices except the first wait at once, so a larger `n` could never be answered.
    let most = (app.gate.most_choices()).min(model.engine().most_waiting().saturating_add(1));
    if choices > most {
        let message = format!("n is {choices}, more than this server's limit of {most}");
        return Err(Failure::invalid("n", message));
    }
    // Each choice takes a place in the gate, whose limit bounds memory and the engine's queue.
    let mut passes = vec![pass];
    for _ in 1..choices {
        passes.push(app.gate.enter_another()?);
    }
    let waiting: Vec<engine::Request> = (1..choices)
        .map(|choice| engine::Request {
            sampling: request.sampling.clone().for_choice(choice),
            // The first choice reports the prompt for all of them.
            prompt_logprobs: None,
            ..request.clone()
        })
        .collect();
    // Only the first choice can join the speculation; the others are submitted after it.
    let (speculation, guess) = guessed.map_or((None, None), |(id, guess)| (Some(id), guess));
    request.speculation = speculation;
    let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
    let generation = model.submit(request).inspect_err(|failure| {
        // While the server is running, a stopped engine is a crash: stop being ready.
        if matches!(failure, Failure::Stopping) {
            app.gate.advance(Phase::Stopping);
        }
    })?;
    if let Some(guess) = guess {
        tokio::spawn(guess.handed_over());
    }
    let choices = 1 + waiting.len();
    let arrival = time.arrival;
    let record = Record::new(Arc::clone(&app.metrics), arrival, prompt_tokens, choices);
    let submitted = Submitted {
        generation,
        waiting,
        reading,
        passes,
        time,
        record: record.traced_by(traced),
    };
    let mut response = match streams {
        false => whole(&model, shape, submitted).await?,
        true => stream(model, shape, submitted),
    };
    if let Some(retrieved) = retrieved {
        response
            .headers_mut()
            .insert(X_FOREWORD_RETRIEVED, retrieved);
    }
    Ok(response)
}

/// Response header of a chat that requested retrieval: the number of documents found, or `failed` if the search failed.
const X_FOREWORD_RETRIEVED: HeaderName = HeaderName::from_static("x-foreword-retrieved");

/// A chat request into which the retrieved documents were written.
struct WithDocuments {
    body: Bytes,
    path: Option<HeaderValue>,
    /// The id under which the engine may speculatively compute the prompt with documents found so far, and the last
    /// such speculation, if one still runs.
    guessed: Option<(SpeculationId, Option<Speculation>)>,
    /// The value of [`X_FOREWORD_RETRIEVED`].
    retrieved: HeaderValue,
}

/// Searches for a chat's documents and writes them into the request; `None` if the chat does not request retrieval.
async fn with_documents(
    app: &Arc<App>,
    model: &Arc<Model>,
    body: Bytes,
    time: TimeLimit,
) -> Result<Option<WithDocuments>, Failure> {
    if !Retrieving::may_be_in(&body) {
        return Ok(None);
    }
    let (named, bytes) = (Arc::clone(model), body.len());
    let read = move || {
        let Some(wanted) = Retrieving::take(&body)? else {
            return Ok(None);
        };
        // Errors of the chat itself must precede those of the search.
        let options = Chat::parse(&body)?.options;
        named.check_name(options.model.as_deref())?;
        Ok(Some((wanted, options)))
    };
    let Some((wanted, options)) = app.blocking(bytes, read).await? else {
        return Ok(None);
    };
    let caching = options.caching;
    let pipeline = Arc::new(Pipeline {
        retriever: Arc::clone(&app.retriever),
        model: Arc::clone(model),
        locator: app.locator.clone(),
        preparing: Arc::clone(&app.preparing),
        speculates: caching.reads
            && caching.keeps
            && options.prompt_logprobs.is_none()
            && model.engine().stats().prefix_caching,
        deadline: time.deadline().into_std(),
    });
    let without = |plain: String, retrieved| WithDocuments {
        body: plain.into(),
        path: None,
        guessed: None,
        retrieved,
    };
    if wanted.is_wordless {
        return Ok(Some(without(wanted.body, HeaderValue::from(0))));
    }
    let plain = wanted.is_optional.then(|| wanted.body.clone());
    let started = Instant::now();
    let found = pipeline
        .run(wanted.body, options.cache_salt, wanted.asked)
        .await;
    let counted = found.as_ref().ok().map(|found| found.documents);
    app.metrics.retrieved(counted, started.elapsed());
    Ok(Some(match found {
        Ok(found) => WithDocuments {
            body: found.written.body.into(),
            path: found.written.path,
            guessed: Some((found.id, found.guess)),
            retrieved: HeaderValue::from(found.documents),
        },
        Err(failure) => match plain {
            Some(plain) if matches!(failure, Failure::Retriever { .. }) => {
                failure.log();
                without(plain, HeaderValue::from_static("failed"))
            }
            _ => return Err(Retrieving::renamed(failure)),
        },
    }))
}

/// A request's body, with the properties of the request that its preparation needs.
struct Asked {
    api: Api,
    /// The request's id.
    id: String,
    /// The number of the client's API key; `None` if no keys are configured.
    key: Option<usize>,
    body: Bytes,
    /// The header in which the gateway names the order of the request's documents; `None` if it is absent.
    path: Option<HeaderValue>,
}

/// A request that is ready to be submitted to the engine, except for the grammar of its answer.
struct Prepared {
    request: engine::Request,
    choices: u32,
    reading: Reading,
    /// Formats the answer for the request's API, as a stream if `streams`.
    shape: Shape,
    streams: bool,
    /// The grammar that the answer must follow, which may take long to prepare; `None` if the answer is not
    /// constrained.
    grammar: Option<UnpreparedGrammar>,
}

/// Parses the body and builds the engine's request on a blocking thread. The thread holds one of [`App::preparing`]'s
/// permits, so the number of such threads stays bounded even if clients disconnect.
async fn prepare(app: &Arc<App>, model: Arc<Model>, asked: Asked) -> Result<Prepared, Failure> {
    let bytes = asked.body.len();
    let work = {
        let app = Arc::clone(app);
        move || match asked.api {
            Api::OpenAi(dialect) => prepare_openai(&app, &model, dialect, &asked),
            Api::Responses => prepare_response(&app, &model, &asked),
            Api::Messages => {
                let chat = MessagesRequest::parse(&asked.body)?.0;
                refuse_prompt_logprobs(&chat)?;
                let shape = Shape::Messages(MessagesShape::new(model.name()));
                prepare_chat(&app, &model, &asked, chat, |_| shape)
            }
        }
    };
    app.blocking(bytes, work).await
}

fn prepare_openai(
    app: &App,
    model: &Model,
    dialect: Dialect,
    asked: &Asked,
) -> Result<Prepared, Failure> {
    let shape = |options: &Options| {
        let include_usage = matches!(
            options.delivery,
            Delivery::Stream {
                include_usage: true
            }
        );
        Shape::OpenAi(OpenAi::new(
            Envelope::new(dialect, &asked.id, model.name()),
            options.choices as usize,
            options.top_logprobs.is_some(),
            include_usage,
        ))
    };
    match dialect {
        Dialect::Chat => {
            let chat = Chat::parse(&asked.body)?;
            prepare_chat(app, model, asked, chat, shape)
        }
        Dialect::Completion => {
            let completion = Completion::parse(&asked.body)?;
            let options = &completion.options;
            model.check_name(options.model.as_deref())?;
            let request = model.completion_request(&completion)?;
            let echo = completion.echo.then(|| Echo {
                text: match &completion.prompt {
                    Prompt::Text(text) => Some(text.clone()),
                    Prompt::Tokens(_) => None,
                },
                logprobs: options.top_logprobs,
            });
            let grammar = UnpreparedGrammar::of(&options.format);
            Ok(Prepared {
                choices: options.choices,
                shape: shape(options),
                streams: matches!(options.delivery, Delivery::Stream { .. }),
                reading: Reading {
                    prompt: reading_of_prompt(&request, options, echo),
                    stop: completion.options.stop,
                    continues: true,
                    calls: Calls::None,
                    grammar_field: grammar_field(grammar.as_ref()),
                },
                grammar,
                request,
            })
        }
    }
}

fn prepare_response(app: &App, model: &Model, asked: &Asked) -> Result<Prepared, Failure> {
    let mut response = ResponsesRequest::parse(&asked.body)?;
    let owner = Owner {
        key: asked.key,
        salt: response.cache_salt.clone(),
    };
    let mut input = match &response.previous {
        Some(id) => responses::earlier(app, &owner, id, asked.body.len())?,
        None => Vec::new(),
    };
    let chat = response.chat(&input)?;
    refuse_prompt_logprobs(&chat)?;
    input.append(&mut response.input);
    let transcripts = app.transcripts.clone().filter(|_| response.store);
    let keep = transcripts.map(|transcripts| Keep {
        transcripts,
        owner,
        input: Value::Array(input).to_string(),
    });
    let shape = ResponsesShape::new(model, response.echoed, keep);
    let shape = Shape::Responses(Box::new(shape));
    prepare_chat(app, model, asked, chat, |_| shape)
}

/// Prepares a chat, or a request of another API that was converted to a chat.
fn prepare_chat(
    app: &App,
    model: &Model,
    asked: &Asked,
    chat: Chat,
    shape: impl FnOnce(&Options) -> Shape,
) -> Result<Prepared, Failure> {
    model.check_name(chat.options.model.as_deref())?;
    let counts = &app.metrics.placements;
    let placer = Placer::new(&app.locator, asked.path.as_ref(), &asked.body, counts);
    let (request, calls, grammar) = model.chat_request(&chat, &placer)?;
    let options = chat.options;
    Ok(Prepared {
        choices: options.choices,
        shape: shape(&options),
        streams: matches!(options.delivery, Delivery::Stream { .. }),
        reading: Reading {
            prompt: reading_of_prompt(&request, &options, None),
            stop: options.stop,
            continues: chat.ending == Ending::FinalMessage,
            calls,
            grammar_field: grammar_field(grammar.as_ref()),
        },
        grammar,
        request,
    })
}

fn grammar_field(grammar: Option<&UnpreparedGrammar>) -> &'static str {
    grammar.map_or("", UnpreparedGrammar::field)
}

/// Returns what the response reports of the prompt; `None` if it reports only the answer.
fn reading_of_prompt(
    request: &engine::Request,
    options: &Options,
    echo: Option<Echo>,
) -> Option<PromptReading> {
    (options.prompt_logprobs.is_some() || echo.is_some()).then(|| PromptReading {
        tokens: request.prompt.clone(),
        logprobs: options.prompt_logprobs,
        echo,
    })
}

/// Refuses `prompt_logprobs` in APIs that cannot report them: Responses and Messages.
fn refuse_prompt_logprobs(chat: &Chat) -> Result<(), Failure> {
    match chat.options.prompt_logprobs {
        Some(_) => Err(Failure::invalid(
            "prompt_logprobs",
            "prompt_logprobs is not supported: it is a field of chat and text completions",
        )),
        None => Ok(()),
    }
}

async fn whole(model: &Model, mut shape: Shape, submitted: Submitted) -> Result<Response, Failure> {
    let mut answer = Answer::new(model, submitted);
    while let Some(piece) = answer.next().await? {
        shape.take(piece);
    }
    let prompt = answer.prompt();
    Ok(axum::Json(shape.whole(answer.usage(), prompt.as_deref())).into_response())
}
