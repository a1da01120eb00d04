//! Requests streamed answers and prompts' log-probabilities, with retries.
//!
//! In addition to [`verdict`]: after 404, 405, a success other than 200, or an answer that should be a stream of events
//! and is none, the endpoint counts as unsuitable, which ends the run. A refused request leaves its question out. A
//! malformed answer is requested again.

use super::likelihood::{self, ScoredPrompt};
use super::stream::{self, Broken, Streamed};
use crate::client::{
    Client, Fault, MAX_SHOWN, MAX_WAIT, REPORT_HEADER, Response, Verdict, on_one_line, pause,
    verdict,
};
use std::io::{BufReader, Read};
use std::time::{Duration, Instant};

/// A response, parsed as `T`, and the time that it took.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) read: T,
    pub(super) total: Duration,
    /// True if the response has the header in which Foreword's filter reports on the request, so it came through the
    /// filter.
    pub(super) is_reported: bool,
}

/// A reader of a response's body.
type Body<'a> = BufReader<ureq::BodyReader<'a>>;

impl Client {
    /// Sends the request `body` to `url`, and returns the streamed answer. Retries as configured.
    ///
    /// # Errors
    /// Returns a [`Fault`] if there is no complete answer.
    pub(super) fn ask(&self, url: &str, body: &[u8]) -> Result<Answer<Streamed>, Fault> {
        self.answered(url, body, "text/event-stream", |body, sent| {
            stream::read(body, || sent.elapsed())
        })
    }

    /// Sends the request `body` to `url`, and returns the log-probabilities of the prompt's last tokens. Retries as
    /// configured.
    ///
    /// # Errors
    /// Returns a [`Fault`] if the response does not have them.
    pub(super) fn score(&self, url: &str, body: &[u8]) -> Result<Answer<ScoredPrompt>, Fault> {
        self.answered(url, body, "application/json", |body, _| {
            likelihood::read(body)
        })
    }

    fn answered<T>(
        &self,
        url: &str,
        body: &[u8],
        accept: &str,
        read: impl Fn(Body<'_>, Instant) -> Result<T, Broken>,
    ) -> Result<Answer<T>, Fault> {
        let attempt = || {
            let sent = Instant::now();
            let mut response = self.send(url, Some(body), &[("accept", accept)])?;
            if response.status() != 200 {
                return Err(refused(url, response));
            }
            let is_reported = response.headers().contains_key(REPORT_HEADER);
            let body = response.body_mut().with_config().limit(MAX_ANSWER).reader();
            let read = read(BufReader::new(body), sent).map_err(|broken| {
                let reason = format!("{url}: {broken}");
                match broken {
                    Broken::NoEvents => Fault::Denied(reason),
                    Broken::NoLogprobs(_) => Fault::Refused(reason),
                    _ => Fault::again(reason),
                }
            })?;
            Ok(Answer {
                read,
                total: sent.elapsed(),
                is_reported,
            })
        };
        self.retry(attempt, |wait, asked| {
            std::thread::sleep(asked.map_or(wait, |asked| asked.max(wait)).min(MAX_WAIT));
        })
    }
}

fn refused(url: &str, mut response: Response) -> Fault {
    let status = response.status().as_u16();
    let mut words = Vec::new();
    let body = response.body_mut().as_reader();
    // If the body cannot be read, the status alone is shown.
    let _ = body.take(MAX_SHOWN as u64).read_to_end(&mut words);
    let reason = format!("{url} answered {status}: {}", on_one_line(&words));
    match verdict(status) {
        Verdict::Again => Fault::Failed {
            reason,
            last: None,
            asked: pause(response.headers()),
        },
        Verdict::Refused if !matches!(status, 404 | 405) => Fault::Refused(reason),
        _ => Fault::Denied(reason),
    }
}

/// Maximum number of bytes of one response; a longer one counts as malformed.
const MAX_ANSWER: u64 = 64 << 20;
