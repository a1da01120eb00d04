//! Reads a request's body within limits of size, time and rate, or discards it.

use crate::connections::{self, Arriving, Connection};
use crate::failure::{Failure, clip};
use crate::gate::{Gate, Pass};
use axum::body::{BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use futures_util::{Stream, StreamExt};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, Sleep, timeout_at};

/// The limits on one request's body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum length of the body, in bytes.
    pub(crate) max_bytes: u64,
    /// Time limit for the body, counted from the request's arrival.
    pub(crate) time: Duration,
}

/// Reads the JSON body of a request that arrived at `arrival`.
///
/// # Errors
/// Returns an error if the content type is not JSON, or if the body cannot be read, is too large (alone, or with all
/// others that are arriving), is not complete within `bounds.time` of `arrival`, or arrives more slowly than the
/// connection's minimum rate. Discards the rest of a body that is refused for its type or size.
pub(crate) async fn read(
    request: Request,
    bounds: Bounds,
    arrival: Instant,
) -> Result<Bytes, Failure> {
    let limit = bounds.max_bytes;
    if let Err(failure) =
        check_type(request.headers()).and_then(|()| check_length(request.headers(), limit))
    {
        discard(request).await;
        return Err(failure);
    }
    let connection = request.extensions().get::<Connection>().cloned();
    let arriving = connection.as_ref().map(Connection::arriving);
    let pace = connection.map(|connection| *connection.bounds());
    let mut body = request.into_body().into_data_stream();
    let collected = collect(&mut body, limit, arriving.as_ref(), pace);
    match timeout_at(arrival + bounds.time, collected).await {
        Ok(Err(failure @ Failure::BodyTooLarge { .. })) => {
            drain(body).await;
            Err(failure)
        }
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::BodyTimeout { limit: bounds.time }),
    }
}

/// Reads the body of a request that arrived at `arrival`, and admits the request through `gate`.
///
/// # Errors
/// Returns the failures of the gate and of [`read`].
pub(crate) async fn admit(
    gate: &Arc<Gate>,
    request: Request,
    bounds: Bounds,
    arrival: Instant,
) -> Result<(Bytes, Pass), Failure> {
    let mut arriving = match gate.arrive() {
        Ok(arriving) => arriving,
        Err(failure) => {
            discard(request).await;
            return Err(failure);
        }
    };
    let body = tokio::select! {
        body = read(request, bounds, arrival) => body?,
        () = arriving.cut() => return Err(Failure::Stopping),
    };
    Ok((body, arriving.enter()?))
}

/// The part of a body that the stream of [`paced`] has not returned.
pub(crate) struct Rest {
    body: Arc<Mutex<BodyDataStream>>,
    connection: Option<Connection>,
}

impl Rest {
    /// Reads and drops the rest of the body, like [`discard`], after its stream was dropped.
    pub(crate) async fn discard(self) {
        let _arriving = self.connection.as_ref().map(Connection::arriving);
        drain(&mut *self.body.lock().await).await;
    }
}

/// Returns the body as a stream of chunks, with the size and rate limits of [`read`] and the time limit counted from
/// now on, and the rest of the body, for a request that is refused in the middle. Nothing is buffered.
pub(crate) fn paced(
    request: Request,
    bounds: Bounds,
) -> (
    impl Stream<Item = Result<Bytes, Failure>> + Send + 'static,
    Rest,
) {
    let connection = request.extensions().get::<Connection>().cloned();
    let arriving = connection.as_ref().map(Connection::arriving);
    let pace = connection.as_ref().map(|connection| *connection.bounds());
    let pace = Box::pin(Pace::of(pace));
    let body = Arc::new(Mutex::new(request.into_body().into_data_stream()));
    let rest = Rest {
        body: Arc::clone(&body),
        connection,
    };
    let ends = Instant::now() + bounds.time;
    let start = (body, pace, 0, arriving);
    let pieces = futures_util::stream::try_unfold(
        start,
        move |(body, mut pace, before, arriving)| async move {
            let next = async { body.lock().await.next().await };
            let piece = tokio::select! {
                biased;
                piece = next => piece,
                failure = pace.as_mut().too_slow() => return Err(failure),
                () = tokio::time::sleep_until(ends) => {
                    return Err(Failure::BodyTimeout { limit: bounds.time });
                }
            };
            let Some(piece) = piece else { return Ok(None) };
            let piece = piece.map_err(|error| {
                Failure::invalid_body(format!("the body could not be read: {error}"))
            })?;
            let bytes = before + piece.len() as u64;
            if bytes > bounds.max_bytes {
                let limit = bounds.max_bytes;
                return Err(Failure::BodyTooLarge { size: None, limit });
            }
            pace.as_mut().arrived(piece.len());
            Ok(Some((piece, (body, pace, bytes, arriving))))
        },
    );
    (pieces, rest)
}

/// Reads and drops a request's body, up to [`DISCARD_BYTES`] and for [`DISCARD_TIME`]. Otherwise a client that is still
/// sending when its connection is closed would lose the response to the reset. Does nothing if the client waits for
/// `100-continue`.
pub(crate) async fn discard(request: Request) {
    if !request.headers().contains_key(header::EXPECT) {
        let connection = request.extensions().get::<Connection>().cloned();
        let _arriving = connection.as_ref().map(Connection::arriving);
        drain(request.into_body().into_data_stream()).await;
    }
}

async fn drain(body: impl Stream<Item = Result<Bytes, axum::Error>>) {
    let mut body = pin!(body);
    let mut left = DISCARD_BYTES;
    let read = async {
        while let Some(Ok(piece)) = body.next().await {
            match left.checked_sub(piece.len()) {
                Some(rest) => left = rest,
                None => break,
            }
        }
    };
    // A client that sends too slowly gets its response, and possibly the reset.
    let _ = tokio::time::timeout(DISCARD_TIME, read).await;
}

async fn collect(
    body: &mut BodyDataStream,
    limit: u64,
    arriving: Option<&Arriving>,
    pace: Option<connections::Bounds>,
) -> Result<Bytes, Failure> {
    let mut all: Vec<u8> = Vec::new();
    let mut pace = pin!(Pace::of(pace));
    loop {
        let piece = tokio::select! {
            biased;
            piece = body.next() => piece,
            failure = pace.as_mut().too_slow() => return Err(failure),
        };
        let Some(piece) = piece else {
            return Ok(all.into());
        };
        let piece = piece.map_err(|error| {
            Failure::invalid_body(format!("the body could not be read: {error}"))
        })?;
        if (all.len() + piece.len()) as u64 > limit {
            return Err(Failure::BodyTooLarge { size: None, limit });
        }
        if arriving.is_some_and(|arriving| !arriving.holds(piece.len())) {
            // Or this connection was chosen to be closed to free memory; its client then does not read this response.
            let limit = pace.memory;
            return Err(Failure::BodyTooLarge { size: None, limit });
        }
        pace.as_mut().arrived(piece.len());
        if all.capacity() - all.len() < piece.len() {
            // A vector doubles by default: bodies would hold twice the bytes counted.
            all.reserve_exact(piece.len().max(all.len() / 4));
        }
        all.extend_from_slice(&piece);
    }
}

/// Checks the rate at which a body arrives: at least a number of bytes in each window of time.
struct Pace {
    rate: u32,
    /// Limit on the memory of all bodies that arrive on the listener, in bytes, for the error.
    memory: u64,
    /// Minimum number of bytes in a window, and the window's length; `None` if any rate is accepted.
    least: Option<(u64, Duration)>,
    window_ends: Pin<Box<Sleep>>,
    in_window: u64,
}

impl Pace {
    fn of(bounds: Option<connections::Bounds>) -> Self {
        let memory = bounds.map(|bounds| bounds.body_bytes);
        let bounds = bounds.filter(|bounds| bounds.rate > 0);
        let least = bounds.map(|bounds| (bounds.bytes_in_window(), bounds.window));
        let window = least.map_or(Duration::ZERO, |(_, window)| window);
        Self {
            rate: bounds.map_or(0, |bounds| bounds.rate),
            memory: memory.unwrap_or(u64::MAX),
            least,
            window_ends: Box::pin(tokio::time::sleep(window)),
            in_window: 0,
        }
    }

    fn arrived(mut self: Pin<&mut Self>, bytes: usize) {
        self.in_window += bytes as u64;
    }

    /// Waits until a window ends in which too few bytes arrived, and returns the failure. Never returns if any rate is
    /// accepted.
    async fn too_slow(mut self: Pin<&mut Self>) -> Failure {
        let Some((least, window)) = self.least else {
            return std::future::pending().await;
        };
        loop {
            self.window_ends.as_mut().await;
            if self.in_window < least {
                return Failure::BodySlow { rate: self.rate };
            }
            self.in_window = 0;
            self.window_ends.as_mut().reset(Instant::now() + window);
        }
    }
}

/// Returns an error unless the content type is JSON. This also prevents web pages of other origins from posting to a
/// server on the user's machine: for JSON a browser first sends a preflight request, which this server does not answer.
fn check_type(headers: &HeaderMap) -> Result<(), Failure> {
    let value = headers
        .get(header::CONTENT_TYPE)
        .map(|value| String::from_utf8_lossy(value.as_bytes()));
    let media_type = value
        .as_deref()
        .and_then(|value| value.split(';').next())
        .map(str::trim);
    match media_type {
        Some(json) if json.eq_ignore_ascii_case("application/json") => Ok(()),
        other => Err(Failure::MediaType {
            found: other.map(clip),
        }),
    }
}

fn check_length(headers: &HeaderMap, limit: u64) -> Result<(), Failure> {
    let length = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    match length {
        Some(size) if size > limit => Err(Failure::BodyTooLarge {
            size: Some(size),
            limit,
        }),
        _ => Ok(()),
    }
}

const DISCARD_BYTES: usize = 64 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    async fn eight(request: Request) -> Result<Bytes, Failure> {
        let bounds = Bounds {
            max_bytes: 8,
            time: Duration::from_secs(60),
        };
        read(request, bounds, Instant::now()).await
    }

    fn request(content_type: &str, body: Body) -> Request {
        Request::builder()
            .header(header::CONTENT_TYPE, content_type)
            .body(body)
            .unwrap()
    }

    #[tokio::test]
    async fn a_body_of_exactly_the_limit_is_read() {
        let request = request("application/json; charset=utf-8", Body::from("12345678"));
        let body = eight(request).await.unwrap();
        assert_eq!(&body[..], b"12345678");
    }

    #[tokio::test]
    async fn a_body_without_a_length_is_held_to_the_limit_too() {
        let pieces = futures_util::stream::iter(["12345", "6789"].map(Ok::<_, axum::Error>));
        let request = request("application/json", Body::from_stream(pieces));
        let failure = eight(request).await.unwrap_err();
        assert!(
            matches!(
                failure,
                Failure::BodyTooLarge {
                    size: None,
                    limit: 8
                }
            ),
            "{failure:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let never =
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, axum::Error>>());
        let failure = eight(request("application/json", never)).await.unwrap_err();
        assert!(
            matches!(failure, Failure::BodyTimeout { .. }),
            "{failure:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_must_keep_its_pace_in_every_window() {
        let bounds = connections::Bounds {
            rate: 100,
            window: Duration::from_secs(10),
            ..connections::Bounds::default()
        };
        // A thousand bytes every ten seconds are enough, at once or in small chunks; fewer are not, whatever came
        // before.
        for (pieces, piece, pause, arrives) in [
            (5, 1000, 9_900, true),
            (50, 100, 990, true),
            (50, 90, 990, false),
            (1, 100_000, 1, true),
            (2, 100_000, 20_100, false),
        ] {
            let sent = futures_util::stream::unfold(0, move |at| async move {
                if at == pieces {
                    return None;
                }
                let waits = if at == 0 { 0 } else { pause };
                tokio::time::sleep(Duration::from_millis(waits)).await;
                Some((Ok::<_, axum::Error>(Bytes::from(vec![b' '; piece])), at + 1))
            });
            let mut body = Body::from_stream(sent).into_data_stream();
            let outcome = collect(&mut body, 1 << 20, None, Some(bounds)).await;
            match outcome {
                Ok(body) => assert!(arrives && body.len() == pieces * piece),
                Err(failure) => {
                    assert!(!arrives, "{pieces} × {piece}");
                    assert!(matches!(failure, Failure::BodySlow { rate: 100 }));
                }
            }
        }
    }

    #[tokio::test]
    async fn other_types_are_refused_by_name() {
        let failure = eight(request("text/plain", Body::from("{}")))
            .await
            .unwrap_err();
        assert_eq!(
            failure.to_string(),
            "the content type must be `application/json`, got `text/plain`"
        );
    }
}
