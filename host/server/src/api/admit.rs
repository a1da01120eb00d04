//! Admits requests with a body: reads the body within its limits, counts the request as one in flight, and starts its
//! time limit.

use super::App;
use crate::answer::TimeLimit;
use crate::app::PREPARED_KIB;
use crate::canary::blocking;
use crate::failure::Failure;
use crate::gate::Pass;
use crate::http::body::{self, Bounds};
use axum::body::Bytes;
use axum::extract::Request;
use std::sync::Arc;
use tokio::time::Instant;

/// An admitted request, with its body, its share of the limit of requests in flight, and its time limit.
pub(super) struct Admitted {
    pub(super) body: Bytes,
    pub(super) pass: Pass,
    pub(super) time: TimeLimit,
}

/// Reads a request's body and admits it as one in flight.
///
/// # Errors
/// Returns the failures that all routes share: 400, 408, 413, 415, 429, 503.
pub(super) async fn admit(app: &Arc<App>, request: Request) -> Result<Admitted, Failure> {
    let time = TimeLimit {
        arrival: Instant::now(),
        limit: app.limits.request_timeout,
    };
    let bounds = Bounds {
        max_bytes: app.limits.max_body_bytes,
        time: app.limits.body_time.min(time.limit),
    };
    let (body, pass) = body::admit(&app.gate, request, bounds, time.arrival).await?;
    Ok(Admitted { body, pass, time })
}

/// Admits a request with the body `body` that the server sends itself.
///
/// # Errors
/// Returns 413, 429 or 503, as [`admit`] does.
pub(super) fn admit_whole(app: &App, body: Vec<u8>) -> Result<Admitted, Failure> {
    let limit = app.limits.max_body_bytes;
    let arrival = app.gate.arrive()?;
    if body.len() as u64 > limit {
        return Err(Failure::BodyTooLarge { size: None, limit });
    }
    Ok(Admitted {
        body: body.into(),
        pass: arrival.enter()?,
        time: TimeLimit {
            arrival: Instant::now(),
            limit: app.limits.request_timeout,
        },
    })
}

impl TimeLimit {
    /// Returns the result of `work`. Fails at the time limit, or when the server aborts its requests. The request
    /// counts as in flight (`pass`) meanwhile.
    pub(super) async fn within<T>(
        self,
        mut pass: Pass,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            outcome = work => outcome,
            () = tokio::time::sleep_until(self.deadline()) => Err(Failure::Timeout { limit: self.limit }),
            () = pass.cut() => Err(Failure::Stopping),
        }
    }
}

impl App {
    /// Runs `work`, which reads a body of `bytes` bytes, on a blocking thread, after waiting for a permit; there is one
    /// for each core, and one for each of [`PREPARED_KIB`] KiB of bodies.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let wanted = (bytes / 1024).min(PREPARED_KIB) as u32;
        let room = Arc::clone(&self.preparing_kib).acquire_many_owned(wanted);
        let room = room.await.map_err(Failure::internal)?;
        let work = move || {
            let _room = room;
            work()
        };
        blocking(&self.preparing, work).await
    }
}
