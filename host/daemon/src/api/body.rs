//! Reading a request's body within its bounds, and reading past one that is not wanted.

use crate::answer::TimeLimit;
use crate::failure::{Failure, clip};
use axum::body::{BodyDataStream, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use futures_util::{Stream, StreamExt};
use std::pin::pin;
use std::time::Duration;

/// The whole body of a request that must be JSON of at most `limit` bytes.
///
/// # Errors
/// When it is declared as something else, is too large, or does not arrive in time. The rest of it was then read past.
pub(crate) async fn read(request: Request, limit: u64, time: TimeLimit) -> Result<Bytes, Failure> {
    if let Err(failure) =
        check_type(request.headers()).and_then(|()| check_length(request.headers(), limit))
    {
        discard(request).await;
        return Err(failure);
    }
    let mut body = request.into_body().into_data_stream();
    match tokio::time::timeout_at(time.deadline(), collect(&mut body, limit)).await {
        Ok(Err(failure @ Failure::BodyTooLarge { .. })) => {
            drain(body).await;
            Err(failure)
        }
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::BodyTimeout { limit: time.limit }),
    }
}

/// Reads past a body that is not wanted, up to a bound: a client that is still sending when its connection is closed
/// loses the response to the reset, and with it the reason. Not done for a client that waits to be told
/// (`expect: 100-continue`), since it has not sent anything.
pub(crate) async fn discard(request: Request) {
    if !request.headers().contains_key(header::EXPECT) {
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
    // A client that is too slow to be read past gets its response, and maybe the reset.
    let _ = tokio::time::timeout(DISCARD_TIME, read).await;
}

async fn collect(body: &mut BodyDataStream, limit: u64) -> Result<Bytes, Failure> {
    let mut all = Vec::new();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| {
            Failure::invalid_body(format!("the body could not be read: {error}"))
        })?;
        if (all.len() + piece.len()) as u64 > limit {
            return Err(Failure::BodyTooLarge { size: None, limit });
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.into())
}

/// JSON must be declared as such. It also keeps web pages of other origins from posting to a server on the same
/// machine: a browser sends this type across origins only after asking, and the question is not answered here.
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

    fn time() -> TimeLimit {
        TimeLimit {
            arrival: tokio::time::Instant::now(),
            limit: Duration::from_secs(60),
        }
    }

    fn request(content_type: &str, body: Body) -> Request {
        Request::builder()
            .header(header::CONTENT_TYPE, content_type)
            .body(body)
            .unwrap()
    }

    #[tokio::test]
    async fn a_body_of_exactly_the_limit_is_read() {
        let body = read(
            request("application/json; charset=utf-8", Body::from("12345678")),
            8,
            time(),
        )
        .await
        .unwrap();
        assert_eq!(&body[..], b"12345678");
    }

    #[tokio::test]
    async fn a_body_without_a_length_is_held_to_the_limit_too() {
        let pieces = futures_util::stream::iter(["12345", "6789"].map(Ok::<_, axum::Error>));
        let failure = read(
            request("application/json", Body::from_stream(pieces)),
            8,
            time(),
        )
        .await
        .unwrap_err();
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
        let failure = read(request("application/json", never), 8, time())
            .await
            .unwrap_err();
        assert!(
            matches!(failure, Failure::BodyTimeout { .. }),
            "{failure:?}"
        );
    }

    #[tokio::test]
    async fn other_types_are_refused_by_name() {
        let failure = read(request("text/plain", Body::from("{}")), 8, time())
            .await
            .unwrap_err();
        assert_eq!(
            failure.to_string(),
            "the content type must be `application/json`, got `text/plain`"
        );
    }
}
