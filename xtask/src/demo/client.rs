//! One streamed chat completion, timed as a client sees it.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// A client whose connection is kept between requests.
pub(super) struct Client {
    agent: ureq::Agent,
    url: String,
}

/// The answer to a request.
pub(super) struct Answer {
    /// The text that the model generated.
    pub(super) text: String,
    /// Time from sending the request to the first chunk with content.
    pub(super) ttft: Duration,
    /// Time from sending the request to the end of the stream.
    pub(super) total: Duration,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    /// The filter's report on what it did; empty without the filter.
    pub(super) filter_report: String,
}

/// The fields of a stream's chunk that are read.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Delta,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u64,
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Deserialize)]
struct PromptTokensDetails {
    cached_tokens: u64,
}

impl Client {
    pub(super) fn new(url: String) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .build();
        Self {
            agent: config.into(),
            url,
        }
    }

    /// Sends a body that asks for a stream with usage, and reads the stream to its end.
    pub(super) fn ask(&self, body: &[u8]) -> Result<Answer> {
        let sent = Instant::now();
        let mut response = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .send(body)
            .with_context(|| format!("asking {}", self.url))?;
        let status = response.status();
        if !status.is_success() {
            let words = response.body_mut().read_to_string().unwrap_or_default();
            bail!("{} answered {status}: {words}", self.url);
        }
        let report = response
            .headers()
            .get(REPORT_HEADER)
            .and_then(|value| value.to_str().ok());
        let filter_report = report.unwrap_or_default().to_owned();
        let stream = BufReader::new(response.body_mut().as_reader());
        let answer = read_stream(stream, || sent.elapsed())?;
        Ok(Answer {
            filter_report,
            ..answer
        })
    }
}

/// Longest wait for one answer; after that the replay has failed.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The filter's default `report_header`.
const REPORT_HEADER: &str = "x-foreword";

/// Reads server-sent events up to the end of the body, which leaves the connection usable for the next request.
fn read_stream(stream: impl BufRead, elapsed: impl Fn() -> Duration) -> Result<Answer> {
    let (mut text, mut ttft, mut usage, mut done) = (String::new(), None, None, false);
    for line in stream.lines() {
        let line = line.context("the stream broke off")?;
        let Some(data) = line.strip_prefix("data:").map(str::trim_start) else {
            continue;
        };
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Chunk =
            serde_json::from_str(data).with_context(|| format!("reading the chunk {data}"))?;
        if let Some(error) = chunk.error {
            bail!("the host failed while it answered: {error}");
        }
        for content in chunk
            .choices
            .into_iter()
            .filter_map(|choice| choice.delta.content)
        {
            if !content.is_empty() {
                ttft.get_or_insert_with(&elapsed);
                text.push_str(&content);
            }
        }
        usage = chunk.usage.or(usage);
    }
    ensure!(done, "the stream ended without [DONE]");
    let usage = usage.context("the stream carried no usage")?;
    Ok(Answer {
        // A model may end its answer at once; then the end of the stream is all that a client can time.
        ttft: ttft.unwrap_or_else(&elapsed),
        total: elapsed(),
        text,
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage
            .prompt_tokens_details
            .map_or(0, |details| details.cached_tokens),
        filter_report: String::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const STREAM: &str = "\
data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}

data: {\"choices\":[{\"delta\":{\"content\":\"Thirty \"}}],\"usage\":null}

data: {\"choices\":[{\"delta\":{\"content\":\"days\"},\"finish_reason\":\"stop\"}]}

data: {\"choices\":[],\"usage\":{\"prompt_tokens\":90,\"prompt_tokens_details\":{\"cached_tokens\":64}}}

data: [DONE]
";

    #[test]
    fn the_first_content_is_timed_and_usage_is_read() {
        let clock = Cell::new(0);
        let answer = read_stream(STREAM.as_bytes(), || {
            clock.set(clock.get() + 1);
            Duration::from_millis(clock.get())
        })
        .unwrap();
        assert_eq!(answer.text, "Thirty days");
        assert_eq!(answer.ttft, Duration::from_millis(1));
        assert_eq!((answer.prompt_tokens, answer.cached_tokens), (90, 64));
        assert_eq!(answer.total, Duration::from_millis(2));
        assert_eq!(clock.get(), 2, "later content is not timed");
    }

    #[test]
    fn a_stream_that_breaks_off_or_fails_is_an_error() {
        let cut = STREAM.replace("data: [DONE]\n", "");
        assert!(read_stream(cut.as_bytes(), Duration::default).is_err());
        let failed = "data: {\"error\":{\"message\":\"out of pages\"}}\n";
        let error = read_stream(failed.as_bytes(), Duration::default)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("out of pages"), "{error}");
    }
}
