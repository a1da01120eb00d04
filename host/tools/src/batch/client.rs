//! Sends a request until it is answered or further attempts are useless.
//!
//! | response | meaning |
//! | --- | --- |
//! | 2xx with a JSON body | the request is served |
//! | 401, 403; a redirection; a certificate that is not trusted | the endpoint serves nothing to this client: the run ends |
//! | another 4xx | the request is refused, and the refusal is the answer |
//! | 408, 425, 429, 5xx; refused, broken or slow connections; a body that is not JSON | the request is retried, after a wait that doubles |
//!
//! `Retry-After`, in seconds or as a date, delays all requests of the run, by at most [`MAX_PAUSE`].

use super::pace::Pace;
use crate::endpoint::{self, NotAnswered, check_url, on_one_line};
use std::io::Read;
use std::time::{Duration, Instant, SystemTime};

/// A client that reuses connections.
pub(super) struct Client {
    agent: ureq::Agent,
    key: Option<String>,
    retries: u32,
    backoff: Duration,
}

/// The endpoint's response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) status: u16,
    /// The endpoint's `x-request-id`; empty if it sent none.
    pub(super) request_id: String,
    pub(super) body: Vec<u8>,
}

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The endpoint answered, with an answer or a refusal.
    Answered(Answered),
    /// Every attempt failed. `last` is the response to the last attempt, if there was one.
    Failed {
        reason: String,
        last: Option<Answered>,
    },
    /// The endpoint serves nothing to this client.
    Denied(String),
    /// The run ended meanwhile.
    Stopped,
}

/// The result of one attempt.
enum Attempt {
    Final(Outcome),
    /// The attempt failed and may be repeated, after the endpoint's `Retry-After`.
    Again {
        reason: String,
        last: Option<Answered>,
        pause: Option<Duration>,
    },
}

impl Client {
    /// Returns a client. `timeout` limits each attempt; `backoff` is the first wait between two.
    pub(super) fn new(
        key: Option<String>,
        timeout: Duration,
        retries: u32,
        backoff: Duration,
        connections: usize,
    ) -> Self {
        Self {
            agent: endpoint::agent(timeout, Some(connections)),
            key,
            retries,
            backoff,
        }
    }

    /// Sends `body` to `url` at the run's pace. Calls `repeated` before each retry.
    pub(super) fn ask(
        &self,
        url: &str,
        body: &[u8],
        pace: &Pace,
        mut repeated: impl FnMut(),
    ) -> Outcome {
        let (mut wait, mut attempts) = (self.backoff, 0);
        loop {
            if !pace.wait() {
                return Outcome::Stopped;
            }
            attempts += 1;
            match self.attempt(url, body) {
                Attempt::Final(outcome) => return outcome,
                Attempt::Again {
                    reason,
                    last,
                    pause,
                } => {
                    if let Some(pause) = pause {
                        pace.pause(pause.min(MAX_PAUSE));
                    }
                    if attempts > self.retries {
                        let reason = format!("{reason} (tried {attempts} times)");
                        return Outcome::Failed { reason, last };
                    }
                    repeated();
                    if !pace.wait_until(Instant::now() + wait) {
                        return Outcome::Stopped;
                    }
                    wait = (2 * wait).min(MAX_WAIT);
                }
            }
        }
    }

    fn attempt(&self, url: &str, body: &[u8]) -> Attempt {
        let denied = |words: String| Attempt::Final(Outcome::Denied(words));
        let again = |reason: String| Attempt::Again {
            reason,
            last: None,
            pause: None,
        };
        let key = self.key.as_deref();
        let sent = endpoint::post(&self.agent, url, key, "application/json", body);
        let mut response = match sent {
            Ok(response) => response,
            Err(NotAnswered::Denied(words)) => return denied(words),
            Err(NotAnswered::Unreachable(reason)) => return again(reason),
        };
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name)?.to_str().ok();
        let request_id: String = header("x-request-id").unwrap_or_default().into();
        let pause = header("retry-after").and_then(|value| pause_of(value, SystemTime::now()));
        let mut body = Vec::new();
        let read = response.body_mut().as_reader().take(MAX_ANSWER + 1);
        let read = { read }.read_to_end(&mut body);
        if let Err(error) = read {
            return again(format!("{url}: {error}"));
        }
        if body.len() as u64 > MAX_ANSWER {
            let reason = format!("{url} answered more than {MAX_ANSWER} bytes");
            return Attempt::Final(Outcome::Failed { reason, last: None });
        }
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok();
        let answered = Answered {
            status,
            request_id,
            body,
        };
        match status {
            200..300 if is_json => Attempt::Final(Outcome::Answered(answered)),
            200..300 => again(format!(
                "{url} answered {status} with a body that is no JSON"
            )),
            401 | 403 | 0..200 | 300..=399 => denied(format!(
                "{url} answered {status}: {}",
                on_one_line(&answered.body)
            )),
            408 | 425 | 429 | 500.. => Attempt::Again {
                reason: format!("{url} answered {status}: {}", on_one_line(&answered.body)),
                last: Some(answered),
                pause,
            },
            _ => Attempt::Final(Outcome::Answered(answered)),
        }
    }
}

/// Returns the root of an endpoint whose URL is its root or its `/v1`. A line's `url` is appended to the root.
///
/// # Errors
/// Returns what is wrong if it is not a URL of HTTP or HTTPS.
pub(super) fn root(endpoint: &str) -> Result<String, String> {
    let root = endpoint.trim_end_matches('/');
    let root = root.strip_suffix("/v1").unwrap_or(root);
    check_url(root, endpoint)?;
    Ok(root.to_owned())
}

/// Returns the wait that a `Retry-After` header states.
fn pause_of(value: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = value.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value.trim()).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Longest wait between two attempts, unless the endpoint states a longer one.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Longest `Retry-After` that is respected.
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// Most bytes of an answer, so that its line can be read again when the run is resumed.
const MAX_ANSWER: u64 = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_may_be_given_as_its_root_or_its_v1() {
        for endpoint in [
            "http://h:1",
            "http://h:1/",
            "http://h:1/v1",
            "http://h:1/v1/",
        ] {
            assert_eq!(root(endpoint).unwrap(), "http://h:1");
        }
        assert_eq!(root("https://h/llm/v1").unwrap(), "https://h/llm");
        for wrong in [
            "",
            "localhost:8000",
            "ftp://h",
            "http://",
            "http:///v1",
            "http://h/?a",
        ] {
            assert!(
                root(wrong).unwrap_err().contains("http://localhost:8000"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_pause_is_a_number_of_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Mon, 23 Nov 2026 08:00:00 GMT").unwrap();
        let pause = |value: &str| pause_of(value, now).map(|pause| pause.as_secs());
        assert_eq!(pause("7"), Some(7));
        assert_eq!(pause("Mon, 23 Nov 2026 08:01:30 GMT"), Some(90));
        assert_eq!(pause("Mon, 23 Nov 2026 07:00:00 GMT"), Some(0));
        assert_eq!(
            (pause("soon"), pause("-1"), pause("1.5")),
            (None, None, None)
        );
    }
}
