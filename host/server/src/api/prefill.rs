//! `POST /v1/prefill`: computes the beginning of a prompt in advance (RAGCache++, section 3.6).
//!
//! ```text
//!   {"model": "…", "messages": [{"role": "system", "content": "…"}], "cache_salt": "…"}
//!   {"object": "prefill", "model": "…", "usage": {"prompt_tokens": 812, "prompt_tokens_details": {"cached_tokens": 0}}}
//! ```
//!
//! The messages are the beginning of a later chat. What the chat template writes after them depends on that chat, so
//! only the text that all continuations share is computed. The request is refused with 429 while too many others wait,
//! since they would be delayed. If the client disconnects, the prefill stops; computed pages stay in the cache.

use super::App;
use super::admit::{Admitted, admit};
use crate::failure::Failure;
use crate::request::Chat;
use axum::Json;
use axum::extract::{Request, State};
use foreword_engine::engine::Event;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn prefill(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    let Admitted { body, pass, time } = admit(&app, request).await?;
    let model = app.model()?;
    if !model.engine().stats().prefix_caching {
        return Err(Failure::invalid_body(
            "the prefix cache is off: what a prefill computes would not be kept".to_owned(),
        ));
    }
    let working = async {
        let prepared = {
            let model = Arc::clone(&model);
            app.blocking(body.len(), move || {
                let chat = Chat::parse(&body)?;
                model.check_name(chat.options.model.as_deref())?;
                model.prefill_request(&chat)
            })
        };
        let mut request = prepared.await?;
        request.deadline = Some(time.deadline().into_std());
        let prompt_tokens = request.prompt.len();
        let mut generation = model.submit(request)?;
        let mut cached = 0;
        loop {
            match generation.next().await {
                Some(Event::Started { cached_tokens }) => cached = cached_tokens,
                Some(Event::Finished(_)) => break,
                Some(Event::Failed(failure)) => {
                    return Err(Failure::from_engine(failure, time.limit, "messages"));
                }
                Some(Event::Prompt(_) | Event::Token { .. }) => {}
                None => return Err(Failure::internal("the engine ended within a prefill")),
            }
        }
        Ok(json!({
            "object": "prefill",
            "model": model.name(),
            "usage": {
                "prompt_tokens": prompt_tokens,
                "total_tokens": prompt_tokens,
                "prompt_tokens_details": {"cached_tokens": cached},
            },
        }))
    };
    time.within(pass, working).await.map(Json)
}
