//! Sends a request until it is answered or further attempts are useless.
//!
//! | what happens | what it means |
//! | --- | --- |
//! | 401, 403, 404, 405; a redirection; an answer that is no stream; a certificate that is not trusted | the endpoint is of the wrong kind: the run ends |
//! | another 4xx | this request cannot be served (too long, say): its question is left out |
//! | 408, 425, 429, 5xx; refused, broken or slow connections; garbage | the request is retried, after a wait that doubles |

use super::likelihood::{self, ScoredPrompt};
use super::stream::{self, Broken, Streamed};
use crate::endpoint::{self, MAX_SHOWN, NotAnswered, check_url, on_one_line};
use std::io::{BufReader, Read};
use std::time::{Duration, Instant};

/// A client that reuses connections.
pub(super) struct Client {
    agent: ureq::Agent,
    key: Option<String>,
    retries: u32,
    backoff: Duration,
}

/// A response of the endpoint, parsed as `T`.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) read: T,
    pub(super) total: Duration,
    /// Whether it has a gateway's report header.
    pub(super) is_reported: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The endpoint does not serve such chats.
    #[error("{0}")]
    Denied(String),
    /// The endpoint refuses this request.
    #[error("{0}")]
    Refused(String),
    /// Every attempt failed.
    #[error("{reason} (tried {attempts} times)")]
    Failed { attempts: u32, reason: String },
}

/// The body of a response.
type Body<'a> = BufReader<ureq::BodyReader<'a>>;

/// The result of one attempt.
enum Attempt {
    Final(Fault),
    /// The attempt failed and may be repeated, after the wait that the endpoint asked for.
    Again(String, Option<Duration>),
}

impl Client {
    /// Returns a client. `timeout` is the time limit of an attempt, and `backoff` the first wait between two attempts.
    pub(super) fn new(
        key: Option<String>,
        timeout: Duration,
        retries: u32,
        backoff: Duration,
    ) -> Self {
        Self {
            agent: endpoint::agent(timeout, None),
            key,
            retries,
            backoff,
        }
    }

    /// Sends `body` to `url`, and returns the streamed answer.
    ///
    /// # Errors
    /// Returns a [`Fault`] if there is no answer.
    pub(super) fn ask(&self, url: &str, body: &[u8]) -> Result<Answer<Streamed>, Fault> {
        self.send(url, body, "text/event-stream", |body, sent| {
            stream::read(body, || sent.elapsed())
        })
    }

    /// Sends `body` to `url`, and returns the log-probabilities of its prompt.
    ///
    /// # Errors
    /// Returns a [`Fault`] if the endpoint does not report them.
    pub(super) fn score(&self, url: &str, body: &[u8]) -> Result<Answer<ScoredPrompt>, Fault> {
        self.send(url, body, "application/json", |body, _| {
            likelihood::read(body)
        })
    }

    fn send<T>(
        &self,
        url: &str,
        body: &[u8],
        accept: &str,
        read: impl Fn(Body<'_>, Instant) -> Result<T, Broken>,
    ) -> Result<Answer<T>, Fault> {
        let (mut wait, mut attempts) = (self.backoff, 0);
        loop {
            attempts += 1;
            match self.attempt(url, body, accept, &read) {
                Ok(answer) => return Ok(answer),
                Err(Attempt::Final(fault)) => return Err(fault),
                Err(Attempt::Again(reason, _)) if attempts > self.retries => {
                    return Err(Fault::Failed { attempts, reason });
                }
                Err(Attempt::Again(_, asked)) => {
                    std::thread::sleep(asked.map_or(wait, |asked| asked.max(wait)).min(MAX_WAIT));
                    wait = (2 * wait).min(MAX_WAIT);
                }
            }
        }
    }

    fn attempt<T>(
        &self,
        url: &str,
        body: &[u8],
        accept: &str,
        read: &impl Fn(Body<'_>, Instant) -> Result<T, Broken>,
    ) -> Result<Answer<T>, Attempt> {
        let again = |reason: String| Attempt::Again(reason, None);
        let sent = Instant::now();
        let key = self.key.as_deref();
        let response = endpoint::post(&self.agent, url, key, accept, body);
        let mut response = response.map_err(|error| match error {
            NotAnswered::Denied(words) => Attempt::Final(Fault::Denied(words)),
            NotAnswered::Unreachable(reason) => again(reason),
        })?;
        let status = response.status().as_u16();
        if status != 200 {
            let asked = response
                .headers()
                .get("retry-after")
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs);
            let mut words = Vec::new();
            // If the body cannot be read, it is not shown.
            let _ = response
                .body_mut()
                .as_reader()
                .take(MAX_SHOWN as u64)
                .read_to_end(&mut words);
            let reason = format!("{url} answered {status}: {}", on_one_line(&words));
            return Err(match status {
                408 | 425 | 429 | 500.. => Attempt::Again(reason, asked),
                401 | 403..=405 => Attempt::Final(Fault::Denied(reason)),
                400..500 => Attempt::Final(Fault::Refused(reason)),
                _ => Attempt::Final(Fault::Denied(reason)),
            });
        }
        let is_reported = response.headers().contains_key(REPORT_HEADER);
        let body = response.body_mut().with_config().limit(MAX_ANSWER).reader();
        match read(BufReader::new(body), sent) {
            Ok(read) => Ok(Answer {
                read,
                total: sent.elapsed(),
                is_reported,
            }),
            Err(broken @ Broken::NoEvents) => {
                Err(Attempt::Final(Fault::Denied(format!("{url}: {broken}"))))
            }
            Err(broken @ Broken::NoLogprobs(_)) => {
                Err(Attempt::Final(Fault::Refused(format!("{url}: {broken}"))))
            }
            Err(broken) => Err(again(format!("{url}: {broken}"))),
        }
    }
}

/// Returns the chat route of an endpoint, given as its root, its `/v1`, or the route itself.
///
/// # Errors
/// Returns a description of the problem if it is not an HTTP or HTTPS URL.
pub(super) fn chat_url(endpoint: &str) -> Result<String, String> {
    let root = endpoint.trim_end_matches('/');
    check_url(root, endpoint)?;
    Ok(if root.ends_with("/chat/completions") {
        root.to_owned()
    } else if root.ends_with("/v1") {
        format!("{root}/chat/completions")
    } else {
        format!("{root}/v1/chat/completions")
    })
}

/// Longest wait, whatever the endpoint asks for.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Most bytes of a stream; a longer one counts as malformed.
const MAX_ANSWER: u64 = 64 << 20;
/// The filter's default `report_header`.
const REPORT_HEADER: &str = "x-foreword";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_may_be_given_in_three_ways() {
        for endpoint in [
            "http://h:1",
            "http://h:1/",
            "http://h:1/v1",
            "http://h:1/v1/",
            "http://h:1/v1/chat/completions",
        ] {
            assert_eq!(
                chat_url(endpoint).unwrap(),
                "http://h:1/v1/chat/completions"
            );
        }
        assert_eq!(
            chat_url("https://h/v1").unwrap(),
            "https://h/v1/chat/completions"
        );
        for wrong in [
            "",
            "localhost:8000",
            "ftp://h",
            "http://",
            "https://",
            "http://h/?a=b",
        ] {
            assert!(
                chat_url(wrong)
                    .unwrap_err()
                    .contains("http://localhost:8000")
            );
        }
    }
}
