//! Requests to an endpoint that serves models: its URL, a client that reuses connections, and texts of its refusals.

use crate::tls;
use std::time::Duration;
use ureq::http::Response;

/// The reason why a request could not be sent, or received no response.
pub(crate) enum NotAnswered {
    /// The URL or a header is wrong, or the endpoint's certificate is not trusted: no attempt will succeed.
    Denied(String),
    /// The connection was refused, broke, or was slow: another attempt may succeed.
    Unreachable(String),
}

/// Returns a client that follows no redirections and returns refusals as responses. `timeout` limits each request. It keeps
/// at most `connections` idle connections; `None` for `ureq`'s default.
pub(crate) fn agent(timeout: Duration, connections: Option<usize>) -> ureq::Agent {
    let mut config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .tls_config(tls::config())
        .timeout_global(Some(timeout));
    if let Some(connections) = connections {
        config = config
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections);
    }
    config.build().into()
}

/// Posts JSON to `url`, accepting a response of the type `accept`.
///
/// # Errors
/// Returns [`NotAnswered`] if there was no response.
pub(crate) fn post(
    agent: &ureq::Agent,
    url: &str,
    key: Option<&str>,
    accept: &str,
    body: &[u8],
) -> Result<Response<ureq::Body>, NotAnswered> {
    let mut request = agent
        .post(url)
        .header("content-type", "application/json")
        .header("accept", accept);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    request
        .send(body)
        .map_err(|error| not_answered(url, &error))
}

/// Returns why a request to `url` got no response.
pub(crate) fn not_answered(url: &str, error: &ureq::Error) -> NotAnswered {
    if matches!(error, ureq::Error::BadUri(_) | ureq::Error::Http(_)) {
        return NotAnswered::Denied(format!("{url}: {error}"));
    }
    match tls::mistrust(error) {
        Some(words) => NotAnswered::Denied(format!("{url}: {words}")),
        None => NotAnswered::Unreachable(format!("{url}: {error}")),
    }
}

/// Checks that `url`, parsed from the option `endpoint`, is a plain URL of HTTP or HTTPS.
///
/// # Errors
/// Returns what is wrong, with `endpoint` as written.
pub(crate) fn check_url(url: &str, endpoint: &str) -> Result<(), String> {
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

/// Returns the first [`MAX_SHOWN`] bytes of a refusal's body, on one line.
pub(crate) fn on_one_line(body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body.get(..MAX_SHOWN).unwrap_or(body));
    body.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Most bytes of a refusal that are shown.
pub(crate) const MAX_SHOWN: usize = 600;
