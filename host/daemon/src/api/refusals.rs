//! Requests that no route of a server takes: without a key, with another method, for another URL. Their bodies are read and
//! thrown away, so that the connection can go on.

use super::body;
use crate::failure::{Failure, clip};
use crate::keys::ApiKeys;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

/// Lets only holders of a key pass, where there are keys.
pub(crate) async fn authorize(
    State(keys): State<Option<ApiKeys>>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    match keys {
        Some(keys) if !keys.admit(request.headers()) => {
            body::discard(request).await;
            Err(Failure::Unauthorized)
        }
        _ => Ok(next.run(request).await),
    }
}

pub(crate) async fn method_not_allowed(request: Request) -> Failure {
    let failure = Failure::Method {
        method: clip(request.method().as_str()),
        path: clip(request.uri().path()),
    };
    body::discard(request).await;
    failure
}

/// A path of the internal listener.
pub(crate) async fn elsewhere(request: Request) -> Failure {
    let failure = Failure::Elsewhere {
        method: clip(request.method().as_str()),
        path: clip(request.uri().path()),
    };
    body::discard(request).await;
    failure
}

pub(crate) async fn unknown_url(request: Request) -> Failure {
    let failure = Failure::UnknownUrl {
        method: clip(request.method().as_str()),
        path: clip(request.uri().path()),
    };
    body::discard(request).await;
    failure
}
