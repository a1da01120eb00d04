//! `POST /v1/embeddings`, as in OpenAI's API.

use super::App;
use super::admit::{Admitted, admit};
use crate::canary::blocking;
use crate::failure::{Failure, clip};
use crate::request::{Embeddings, Encoding};
use axum::Json;
use axum::extract::{Request, State};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn embed(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    embedded(&app, admit(&app, request).await?).await
}

/// Returns the embeddings of the texts in an admitted request, as OpenAI's list object.
pub(super) async fn embedded(app: &App, admitted: Admitted) -> Result<Json<Value>, Failure> {
    let Admitted { body, pass, time } = admitted;
    let served = app.model.get().map(|model| model.name().to_owned());
    let bytes = body.len();
    let read = {
        let retriever = Arc::clone(&app.retriever);
        move || {
            let asked = Embeddings::parse(&body)?;
            let embedder = retriever.embedder()?;
            // Clients that know only the chat model's name may use it here: it selects the embedder.
            let name = asked.model.as_deref().unwrap_or(embedder.name());
            if name != embedder.name() && Some(name) != served.as_deref() {
                return Err(Failure::UnknownModel {
                    asked: clip(name),
                    served: embedder.name().to_owned(),
                });
            }
            let length = embedder.dimensions();
            if let Some(dimensions) = asked.dimensions.filter(|asked| *asked != length) {
                let message = format!(
                    "dimensions must be {length}, which is what {} makes, got {dimensions}",
                    embedder.name()
                );
                return Err(Failure::invalid("dimensions", message));
            }
            let name = name.to_owned();
            Ok((asked, name))
        }
    };
    let work = async {
        let (asked, name) = app.blocking(bytes, read).await?;
        let (mut data, mut tokens) = (Vec::with_capacity(asked.input.len()), 0);
        // A few texts, as of a question, do not wait for many.
        let permits = match asked.input.len() {
            0..=FEW_TEXTS => &app.preparing,
            _ => &app.embedding,
        };
        let mut texts = asked.input.into_iter();
        // Piece by piece, so that little is computed for a client that has gone, and others' texts come in between.
        while texts.len() > 0 {
            let piece: Vec<String> = texts.by_ref().take(PIECE_TEXTS).collect();
            let (retriever, first) = (Arc::clone(&app.retriever), data.len());
            let embed = move || {
                let texts: Vec<&str> = piece.iter().map(String::as_str).collect();
                retriever.embed("input", first, &texts)
            };
            for embedding in blocking(permits, embed).await? {
                tokens += u64::from(embedding.tokens);
                let vector = match asked.encoding {
                    Encoding::Float => json!(embedding.vector),
                    Encoding::Base64 => Value::String(base64(&embedding.vector)),
                };
                data.push(json!({"object": "embedding", "index": data.len(), "embedding": vector}));
            }
        }
        Ok(json!({
            "object": "list",
            "data": data,
            "model": name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }))
    };
    time.within(pass, work).await.map(Json)
}

/// Texts of a request that are few.
const FEW_TEXTS: usize = 4;
/// Number of texts that are embedded at once.
const PIECE_TEXTS: usize = 128;

/// Encodes a vector as little-endian `f32` values, in base64 with padding.
fn base64(values: &[f32]) -> String {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    STANDARD.encode(bytes.collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        // Python: base64.b64encode(struct.pack("<ff", 1.0, -0.5)), and of one and three numbers.
        assert_eq!(base64(&[1.0, -0.5]), "AACAPwAAAL8=");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[0.0, 0.0, 2.0]), "AAAAAAAAAAAAAABA");
        assert_eq!(base64(&[]), "");
    }
}
