//! `POST /tokenize`, `/detokenize`, `/v1/chat/completions/render`, `/v1/responses/render` and `/v1/completions/render`,
//! as in vLLM: routers look up a prompt's tokens in engines' KV events. Nothing is generated.

use super::admit::{Admitted, admit};
use super::{App, RequestId};
use crate::failure::Failure;
use crate::model::Model;
use crate::request::{
    Chat, Detokenize, Rendering, ResponsesRequest, Tokenize, Tokenized, responses,
};
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use foreword_engine::TokenId;
use serde::{Serialize, Serializer};
use serde_json::json;
use std::sync::Arc;

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Failure> {
    work(&app, request, |model, body| {
        let asked = Tokenize::parse(body)?;
        model.check_name(asked.model.as_deref())?;
        let tokens = match asked.what {
            Tokenized::Text(text, special) => model.text_tokens(&text, special)?,
            Tokenized::Chat(chat) => model.chat_tokens(&chat)?,
        };
        let strings = asked.strings.then_some(Strings(model, &tokens));
        to_body(&Tokens {
            count: tokens.len(),
            max_model_len: model.shape().longest_sequence(),
            tokens: &tokens,
            token_strs: strings,
        })
    })
    .await
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Failure> {
    work(&app, request, |model, body| {
        let asked = Detokenize::parse(body)?;
        model.check_name(asked.model.as_deref())?;
        let (found, limit) = (asked.tokens.len(), model.shape().max_positions);
        if found > limit as usize {
            let message = format!("tokens has {found} tokens, more than the model's {limit}");
            return Err(Failure::invalid("tokens", message));
        }
        to_body(&json!({"prompt": model.text_of(&asked.tokens)?}))
    })
    .await
}

pub(super) async fn render_chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Failure> {
    work(&app, request, move |model, body| {
        let chat = Chat::parse(body)?;
        model.check_name(chat.options.model.as_deref())?;
        let tokens = model.chat_tokens(&chat)?;
        to_body(&Rendered::new(model, format!("chatcmpl-{}", id.0), tokens))
    })
    .await
}

pub(super) async fn render_response(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Failure> {
    let rendered = work(&app, request, move |model, body| {
        let response = ResponsesRequest::parse(body)?;
        if response.previous.is_some() {
            let message =
                "previous_response_id cannot be rendered: send the earlier items as input";
            return Err(Failure::invalid("previous_response_id", message));
        }
        let chat = response.chat(&[])?;
        model.check_name(chat.options.model.as_deref())?;
        let tokens = model.chat_tokens(&chat)?;
        to_body(&Rendered::new(model, format!("resp-{}", id.0), tokens))
    })
    .await;
    rendered.map_err(|failure| failure.renamed(responses::NAMES))
}

pub(super) async fn render_completion(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Failure> {
    work(&app, request, move |model, body| {
        let rendering = Rendering::parse(body)?;
        model.check_name(rendering.model())?;
        let mut index = 0..;
        to_body(&rendering.each(|completion| {
            let tokens = model.completion_request(completion)?.prompt;
            let index = index.next().unwrap_or_default();
            Ok(Rendered::new(
                model,
                format!("cmpl-{}-{index}", id.0),
                tokens,
            ))
        })?)
    })
    .await
}

/// The response of `/tokenize`. It is serialised directly: as JSON values, a long text's tokens would take hundreds of
/// times the text's bytes.
#[derive(Serialize)]
struct Tokens<'a> {
    count: usize,
    max_model_len: u32,
    tokens: &'a [TokenId],
    token_strs: Option<Strings<'a>>,
}

/// Serialises to a list with the text of each token, with U+FFFD for invalid UTF-8.
struct Strings<'a>(&'a Model, &'a [TokenId]);

impl Serialize for Strings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(model, tokens) = self;
        serializer.collect_seq(tokens.iter().map(|token| {
            let bytes = model.bytes_of(*token).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        }))
    }
}

/// A prompt's tokens in the format of vLLM's renderer.
#[derive(Serialize)]
struct Rendered<'a> {
    request_id: String,
    model: &'a str,
    token_ids: Vec<TokenId>,
}

impl<'a> Rendered<'a> {
    fn new(model: &'a Model, request_id: String, token_ids: Vec<TokenId>) -> Self {
        Self {
            request_id,
            model: model.name(),
            token_ids,
        }
    }
}

/// Serialises the body of a response as JSON.
pub(super) fn to_body(answer: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(answer).map_err(Failure::internal)
}

/// Admits a request and responds with the JSON that `read` returns for the model and the request's body. `read` runs on
/// a blocking thread.
pub(super) async fn work(
    app: &Arc<App>,
    request: Request,
    read: impl FnOnce(&Model, &[u8]) -> Result<Vec<u8>, Failure> + Send + 'static,
) -> Result<Response, Failure> {
    let Admitted { body, pass, time } = admit(app, request).await?;
    let model = app.model()?;
    let work = app.blocking(body.len(), move || read(&model, &body));
    let answer = time.within(pass, work).await?;
    let kind = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, kind)], answer).into_response())
}
