//! `POST /v1/retrieve`: returns the documents for a question.
//!
//! ```text
//!   {"query": "…", "embedding": […], "k": 5, "filters": {…}, "words": true, "order": false, "cache_salt": "…"}
//!   {"object": "list", "version": "…", "metric": "cosine",
//!    "data": [{"id", "title", "text", "metadata", "score", "rank"}, …], "matched": 0}
//! ```
//! With `order`, the documents are in the order that the gateway's policy would choose for the tenant of `cache_salt`,
//! after the prompt beginning for which the cache holds most of them. `rank` is the retriever's order, and `matched`
//! the number of leading documents that are cached. The gateway, which knows the text before them, orders better.

use super::App;
use super::admit::{Admitted, admit};
use crate::failure::Failure;
use crate::request::Retrieve;
use crate::retrieval::orders::{Known, Ordered};
use axum::Json;
use axum::extract::{Request, State};
use foreword_ordering::document::{Fingerprint, estimate_tokens};
use foreword_retrieval::ScoredDocument;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Instant;

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    let Admitted { body, pass, time } = admit(&app, request).await?;
    // Dropped when the client disconnects, which ends the search.
    let connected = Arc::new(());
    let caller = Arc::downgrade(&connected);
    let work = {
        let app = Arc::clone(&app);
        move || answer(&app, &body, caller)
    };
    // The store may wait for a network, so the search needs no permit for a core.
    let working = async {
        let working = tokio::task::spawn_blocking(work).await;
        working.map_err(Failure::internal)?
    };
    time.within(pass, working).await.map(Json)
}

fn answer(app: &App, body: &[u8], caller: Weak<()>) -> Result<Value, Failure> {
    let mut asked = Retrieve::parse(body)?;
    asked.asked.ask.caller = Some(caller);
    let retriever = &app.retriever;
    // Read before the search: if the index is replaced meanwhile, the old version may be returned with new documents,
    // never the new version with old ones, which a client would cache.
    let version = retriever.version();
    let started = Instant::now();
    let found = version.and_then(|version| {
        let found = retriever.search(asked.asked, &mut |_| ControlFlow::Continue(()))?;
        Ok((version, found))
    });
    let counted = found.as_ref().ok().map(|(_, found)| found.len());
    app.metrics.retrieved(counted, started.elapsed());
    let (version, found) = found?;
    let ordered = match (asked.order, app.model.get()) {
        (true, Some(model)) => {
            let known: Vec<Known<'_>> = found.iter().map(known).collect();
            let feed = model.engine().feed();
            retriever
                .orders
                .choose(feed, &asked.cache_salt, None, &known)
        }
        _ => Ordered {
            order: (0..found.len() as u16).collect(),
            ..Ordered::default()
        },
    };
    let placed = ordered.order.iter().filter_map(|&rank| {
        let ScoredDocument { document, score } = found.get(usize::from(rank))?;
        Some(json!({
            "id": document.id,
            "title": document.title,
            "text": document.text,
            "metadata": document.metadata,
            "score": score,
            "rank": rank,
        }))
    });
    Ok(json!({
        "object": "list",
        "version": version,
        "metric": retriever.metric(),
        "data": placed.collect::<Vec<_>>(),
        "matched": ordered.matched,
    }))
}

/// Returns what ordering needs of a document: its id, its tokens and the fingerprint (hash) that the gateway gives it
/// in a `documents` array. The gateway hashes JSON strings without unescaping them, so id, title and text are escaped
/// as in this response.
fn known(found: &ScoredDocument) -> Known<'_> {
    let document = &found.document;
    let parts = [&document.id, &document.title, &document.text].map(|part| escaped(part));
    let parts = parts.each_ref().map(String::as_bytes);
    Known {
        id: &document.id,
        fingerprint: Fingerprint::of(&parts),
        tokens: estimate_tokens(parts.iter().map(|part| part.len()).sum()),
    }
}

/// Escapes a text as in a JSON string, and returns it without the quotation marks.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
