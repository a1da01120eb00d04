//! Refuses requests without a key, with another method, or for an unknown path. Their bodies are read and discarded, so
//! that the connection can be reused.

use super::body;
use crate::failure::{Failure, clip};
use crate::keys::ApiKeys;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::any;

/// Middleware that refuses requests without one of `keys`; `None` to accept all, if no keys are configured.
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
    refuse(request, |method, path| Failure::Method { method, path }).await
}

/// Discards the request's body, and returns the failure that `failure` makes from the request's method and path.
async fn refuse(request: Request, failure: fn(String, String) -> Failure) -> Failure {
    let failure = failure(clip(request.method().as_str()), clip(request.uri().path()));
    body::discard(request).await;
    failure
}

/// Adds to `router` the refusals that the clients' listener needs: for unknown paths and methods, and for paths that
/// exist only on the internal listener, with a reference to that.
pub(crate) fn of_clients<S: Clone + Send + Sync + 'static>(mut router: Router<S>) -> Router<S> {
    for path in INTERNAL {
        router = router.route(path, any(elsewhere));
    }
    router
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(unknown_url)
}

/// Refuses a path that exists only on the internal listener.
async fn elsewhere(request: Request) -> Failure {
    refuse(request, |method, path| Failure::Elsewhere { method, path }).await
}

pub(crate) async fn unknown_url(request: Request) -> Failure {
    refuse(request, |method, path| Failure::UnknownUrl { method, path }).await
}

/// Paths that exist only on the internal listener.
const INTERNAL: [&str; 6] = [
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/kv/events",
    "/v1/kv/snapshot",
    "/v1/kv/records",
];
