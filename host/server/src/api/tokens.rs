//! `POST /tokenize`, `/detokenize`, `/v1/chat/completions/render`, `/v1/responses/render` and `/v1/completions/render`, as
//! vLLM has them: the tokens of a prompt, for routers that look for them in engines' KV events. Nothing is generated.

use super::admit::{Admitted, admit};
use super::{App, RequestId};
use crate::failure::{Failure, clip};
use crate::model::Model;
use crate::request::{
    Chat, Detokenize, ResponsesRequest, Tokenize, Tokenized, completions_to_render, responses,
};
use axum::Json;
use axum::extract::{Extension, Request, State};
use foreword_engine::TokenId;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    work(&app, request, |model, body| {
        let asked = Tokenize::parse(body)?;
        check_name(model, asked.model.as_deref())?;
        let tokens = match asked.what {
            Tokenized::Text(text, special) => model.text_tokens(&text, special)?,
            Tokenized::Chat(chat) => model.chat_tokens(&chat)?,
        };
        let text = |token: &TokenId| {
            let bytes = model.bytes_of(*token).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let strings = asked
            .strings
            .then(|| tokens.iter().map(text).collect::<Vec<_>>());
        Ok(json!({
            "count": tokens.len(),
            "max_model_len": model.max_positions(),
            "tokens": tokens,
            "token_strs": strings,
        }))
    })
    .await
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    work(&app, request, |model, body| {
        let asked = Detokenize::parse(body)?;
        check_name(model, asked.model.as_deref())?;
        Ok(json!({"prompt": model.text_of(&asked.tokens)?}))
    })
    .await
}

pub(super) async fn render_chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    work(&app, request, move |model, body| {
        let chat = Chat::parse(body)?;
        check_name(model, chat.options.model.as_deref())?;
        let tokens = model.chat_tokens(&chat)?;
        Ok(rendered(model, &format!("chatcmpl-{}", id.0), &tokens))
    })
    .await
}

pub(super) async fn render_response(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    let rendered = work(&app, request, move |model, body| {
        let response = ResponsesRequest::parse(body)?;
        if response.previous.is_some() {
            let message =
                "previous_response_id cannot be rendered: send the earlier items as input";
            return Err(Failure::invalid("previous_response_id", message));
        }
        let chat = response.chat(&[])?;
        check_name(model, chat.options.model.as_deref())?;
        let tokens = model.chat_tokens(&chat)?;
        Ok(rendered(model, &format!("resp-{}", id.0), &tokens))
    })
    .await;
    rendered.map_err(|failure| failure.renamed(responses::NAMES))
}

pub(super) async fn render_completion(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    work(&app, request, move |model, body| {
        let prompts = completions_to_render(body)?.into_iter().enumerate();
        let prompts = prompts.map(|(index, completion)| {
            check_name(model, completion.options.model.as_deref())?;
            let tokens = model.completion_request(&completion)?.prompt;
            Ok(rendered(model, &format!("cmpl-{}-{index}", id.0), &tokens))
        });
        prompts.collect::<Result<_, _>>().map(Value::Array)
    })
    .await
}

/// Returns a prompt's tokens in the form of vLLM's renderer.
fn rendered(model: &Model, id: &str, tokens: &[TokenId]) -> Value {
    json!({"request_id": id, "model": model.name(), "token_ids": tokens})
}

fn check_name(model: &Model, asked: Option<&str>) -> Result<(), Failure> {
    match asked {
        Some(asked) if asked != model.name() => Err(Failure::UnknownModel {
            asked: clip(asked),
            served: model.name().to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Runs `read` on the request's body, on a thread that may block.
async fn work(
    app: &Arc<App>,
    request: Request,
    read: impl FnOnce(&Model, &[u8]) -> Result<Value, Failure> + Send + 'static,
) -> Result<Json<Value>, Failure> {
    let Admitted { body, pass, time } = admit(app, request).await?;
    let model = app.model.get().cloned().ok_or(Failure::Loading)?;
    let work = app.blocking(move || read(&model, &body));
    time.within(pass, work).await.map(Json)
}
