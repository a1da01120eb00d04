//! The HTTP client of all tools: connections, API key, time limits, bounded response bodies, and retries.
//!
//! | response | meaning | [`Verdict`] |
//! | --- | --- | --- |
//! | 2xx | the request is served | `Served` |
//! | 401, 403; 1xx, 3xx; an untrusted certificate | no request of this client will be served | `Denied` |
//! | another 4xx | this request is refused | `Refused` |
//! | 408, 425, 429, 5xx; refused, broken or slow connections | a retry after a doubling wait may succeed | `Again` |
//!
//! `Retry-After` is in seconds or a date. Each tool bounds the wait that it states, and decides which response bodies
//! count as answers.

use crate::tls;
use std::io::Read;
use std::time::{Duration, SystemTime};
use ureq::http::{HeaderMap, Request};

/// A response whose body has not been read.
pub(crate) type Response = ureq::http::Response<ureq::Body>;

/// A client that reuses connections, follows no redirects, and returns error statuses as responses.
pub(crate) struct Client {
    agent: ureq::Agent,
    key: Option<String>,
    retries: u32,
    backoff: Duration,
}

/// A response whose whole body has been read into memory.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// The reason why a request was not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// No request of this client will be served: the URL or a header is invalid, the certificate is not trusted, or the
    /// endpoint refuses the client.
    #[error("{0}")]
    Denied(String),
    /// The endpoint refuses this request, with a status that a retry would not change.
    #[error("{0}")]
    Refused(String),
    /// The request failed, but a further attempt may succeed: (1) the connection failed or was too slow, (2) the
    /// response was broken, or (3) the endpoint returned an error status such as 429 or 503. [`Client::retry`] returns
    /// this fault only after the last permitted attempt.
    #[error("{reason}")]
    Failed {
        reason: String,
        /// The last response with an error status; `None` if no response was received.
        last: Option<Box<Reply>>,
        /// The wait that the `Retry-After` header of `last` states; `None` if it states none.
        asked: Option<Duration>,
    },
}

/// The meaning of an HTTP status: the request is served, this request is refused, no request of this client will be
/// served (`Denied`), or a retry may succeed (`Again`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Served,
    Refused,
    Denied,
    Again,
}

/// The configuration of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    /// API key, sent as a bearer token; `None` to send none.
    pub(crate) key: Option<String>,
    /// Time limit of each attempt.
    pub(crate) timeout: Duration,
    /// Maximum number of retries of one request.
    pub(crate) retries: u32,
    /// Wait before the first retry of a request; it doubles with each further retry.
    pub(crate) backoff: Duration,
    /// Maximum number of idle connections that stay open, in total and per host; `None` for `ureq`'s default.
    pub(crate) connections: Option<usize>,
}

impl Client {
    pub(crate) fn new(access: Access) -> Self {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls::config())
            .timeout_global(Some(access.timeout));
        if let Some(connections) = access.connections {
            config = config
                .max_idle_connections(connections)
                .max_idle_connections_per_host(connections);
        }
        Self {
            agent: config.build().into(),
            key: access.key,
            retries: access.retries,
            backoff: access.backoff,
        }
    }

    /// Posts the JSON `body` to `url`, or sends a GET if `body` is `None`. `headers` are added to the content type and
    /// the API key. The response's body is not read yet.
    ///
    /// # Errors
    /// Returns a [`Fault`] if there was no response. A response with an error status is returned as a response.
    pub(crate) fn send(
        &self,
        url: &str,
        body: Option<&[u8]>,
        headers: &[(&str, &str)],
    ) -> Result<Response, Fault> {
        let mut request = Request::builder().uri(url);
        if body.is_some() {
            request = request
                .method("POST")
                .header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let sent = match body {
            Some(body) => request.body(body).map(|request| self.agent.run(request)),
            None => request.body(()).map(|request| self.agent.run(request)),
        };
        sent.map_err(ureq::Error::from)
            .flatten()
            .map_err(|error| unanswered(url, &error))
    }

    /// Calls `attempt` until it succeeds, returns a fault that no retry can mend, or has been retried as often as
    /// configured. Before each retry, calls `rest`, which must do the waiting, with the backoff (doubled each time, up
    /// to [`MAX_WAIT`]) and with the wait that the endpoint's `Retry-After` states, if any.
    ///
    /// # Errors
    /// Returns the last attempt's [`Fault`].
    pub(crate) fn retry<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Fault>,
        mut rest: impl FnMut(Duration, Option<Duration>),
    ) -> Result<T, Fault> {
        let (mut wait, mut attempts) = (self.backoff, 0);
        loop {
            attempts += 1;
            match attempt() {
                Ok(answer) => return Ok(answer),
                Err(Fault::Failed { asked, .. }) if attempts <= self.retries => rest(wait, asked),
                Err(mut fault) => {
                    if let Fault::Failed { reason, .. } = &mut fault {
                        *reason += &format!(" (tried {attempts} times)");
                    }
                    return Err(fault);
                }
            }
            wait = (2 * wait).min(MAX_WAIT);
        }
    }
}

impl Reply {
    /// Reads a response's body; `None` if it has more than `limit` bytes.
    ///
    /// # Errors
    /// Returns a [`Fault`] if the connection fails.
    pub(crate) fn read(
        url: &str,
        mut response: Response,
        limit: u64,
    ) -> Result<Option<Self>, Fault> {
        let mut body = Vec::new();
        let mut reader = response.body_mut().as_reader().take(limit + 1);
        reader
            .read_to_end(&mut body)
            .map_err(|error| Fault::again(format!("{url}: {error}")))?;
        Ok((body.len() as u64 <= limit).then(|| Self {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body,
        }))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the wait that the response's `Retry-After` header states; `None` if the header is absent or malformed.
    pub(crate) fn pause(&self) -> Option<Duration> {
        pause(&self.headers)
    }

    /// Returns the status and the beginning of the body on one line, for an error message.
    pub(crate) fn words(&self) -> String {
        format!("{} {}", self.status, on_one_line(&self.body))
    }
}

impl Fault {
    pub(crate) fn again(reason: String) -> Self {
        Self::Failed {
            reason,
            last: None,
            asked: None,
        }
    }
}

/// Returns the meaning of an HTTP status, the same for all tools: 2xx is [`Verdict::Served`]; 401, 403, 1xx and 3xx are
/// [`Verdict::Denied`]; 408, 425, 429 and 5xx are [`Verdict::Again`]; any other 4xx is [`Verdict::Refused`].
pub(crate) fn verdict(status: u16) -> Verdict {
    match status {
        200..300 => Verdict::Served,
        401 | 403 | 0..200 | 300..=399 => Verdict::Denied,
        408 | 425 | 429 | 500.. => Verdict::Again,
        _ => Verdict::Refused,
    }
}

/// Returns the wait that the header `retry-after` in `headers` states; `None` if it is absent or malformed.
pub(crate) fn pause(headers: &HeaderMap) -> Option<Duration> {
    pause_of(
        headers.get("retry-after")?.to_str().ok()?,
        SystemTime::now(),
    )
}

fn pause_of(value: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = value.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value.trim()).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Converts `error`, with which a request to `url` failed before a response was received, to a fault.
fn unanswered(url: &str, error: &ureq::Error) -> Fault {
    if matches!(error, ureq::Error::BadUri(_) | ureq::Error::Http(_)) {
        return Fault::Denied(format!("{url}: {error}"));
    }
    match tls::mistrust(error) {
        Some(words) => Fault::Denied(format!("{url}: {words}")),
        None => Fault::again(format!("{url}: {error}")),
    }
}

/// Returns the root of an endpoint's URL, without a final slash. `endpoint` may be the root itself, or the root with
/// `/v1` appended.
///
/// # Errors
/// Returns a message if `endpoint` is no HTTP or HTTPS URL.
pub(crate) fn root(endpoint: &str) -> Result<String, String> {
    let root = endpoint.trim_end_matches('/');
    let root = root.strip_suffix("/v1").unwrap_or(root);
    check_url(root, endpoint)?;
    Ok(root.to_owned())
}

/// Returns the URL of an endpoint's route `/v1/chat/completions`. `endpoint` may be the root, the root with `/v1`
/// appended, or the whole URL of the route.
///
/// # Errors
/// Returns a message if `endpoint` is no HTTP or HTTPS URL.
pub(crate) fn chat_url(endpoint: &str) -> Result<String, String> {
    let route = endpoint.trim_end_matches('/');
    if route.ends_with(CHAT) {
        check_url(route, endpoint)?;
        return Ok(route.to_owned());
    }
    Ok(format!("{}/v1{CHAT}", root(endpoint)?))
}

/// Returns an error unless `url` is an HTTP or HTTPS URL without query and fragment. The error quotes `endpoint`, the
/// command-line value from which `url` was made.
fn check_url(url: &str, endpoint: &str) -> Result<(), String> {
    let host = ["http://", "https://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme))
        .unwrap_or_default();
    if host.is_empty() || host.contains(['?', '#', ' ']) {
        return Err(format!(
            "an endpoint is a plain URL such as http://localhost:8000 or https://llm.example/v1, not {endpoint:?}"
        ));
    }
    Ok(())
}

/// Returns the first [`MAX_SHOWN`] bytes of a response's body as text on one line.
pub(crate) fn on_one_line(body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body.get(..MAX_SHOWN).unwrap_or(body));
    body.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Maximum number of bytes of a response's body that an error message quotes.
pub(crate) const MAX_SHOWN: usize = 600;
/// Longest wait between two attempts of a request, except that a tool may wait longer if `Retry-After` says so.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);
/// Default name of the response header in which the gateway's filter reports how it ordered the request's documents.
pub(crate) const REPORT_HEADER: &str = "x-foreword";
const CHAT: &str = "/chat/completions";

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
    fn an_endpoint_of_chats_may_be_given_in_three_ways() {
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

    #[test]
    fn attempts_end_with_their_number_and_waits_double_to_a_bound() {
        let client = Client::new(Access {
            retries: 3,
            backoff: Duration::from_secs(12),
            ..Access::default()
        });
        let asked = Some(Duration::from_secs(7));
        let mut waits = Vec::new();
        let failed = client.retry(
            || {
                Err::<(), _>(Fault::Failed {
                    reason: "busy".to_owned(),
                    last: None,
                    asked,
                })
            },
            |wait, asked| waits.push((wait.as_secs(), asked)),
        );
        assert_eq!(failed.unwrap_err().to_string(), "busy (tried 4 times)");
        assert_eq!(waits, [(12, asked), (24, asked), (30, asked)]);
        let denied = client.retry(
            || Err::<(), _>(Fault::Denied("no".to_owned())),
            |_, _| panic!("a denial is final"),
        );
        assert_eq!(denied.unwrap_err().to_string(), "no");
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
