//! Reads an answer from server-sent events in OpenAI's format.

use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::time::Duration;

/// An answer that was received as a stream of events.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Streamed {
    pub(super) text: String,
    /// Time from sending the request to the first token of the answer, or of the thinking before it. If there was no
    /// token, the time to the end of the stream.
    pub(super) first: Duration,
    /// The finish reason that the endpoint reports: `stop`, `length`, …
    pub(super) finish: Option<String>,
    /// The likeliest candidates for the answer's first token and their log-probabilities; empty if the endpoint reports
    /// none.
    pub(super) first_token: Vec<(String, f64)>,
    pub(super) usage: Usage,
}

/// The token counts of one request; `None` for those that the endpoint does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: Option<u64>,
    pub(super) cached_tokens: Option<u64>,
    pub(super) completion_tokens: Option<u64>,
}

/// The reason why a response is not a complete answer, or does not report the log-probabilities of the prompt's tokens.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(
        "the answer is not a stream of events: does the endpoint serve /v1/chat/completions with `stream`?"
    )]
    NoEvents,
    #[error("the stream broke off: {0}")]
    Read(#[from] std::io::Error),
    #[error("the stream ended before the answer did")]
    Early,
    #[error("event {number} is not a chunk of an answer: {reason}")]
    Event {
        number: usize,
        reason: serde_json::Error,
    },
    #[error("the endpoint failed while it answered: {0}")]
    Failed(String),
    #[error("the response does not tell how likely the prompt is: {0}")]
    NoLogprobs(String),
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<RawUsage>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    content: Option<Vec<TokenLogprob>>,
}

#[derive(Deserialize)]
struct TokenLogprob {
    #[serde(default)]
    top_logprobs: Vec<Rival>,
}

#[derive(Deserialize)]
struct Rival {
    token: String,
    logprob: f64,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    /// The model's thinking, in the field that vLLM uses.
    reasoning: Option<String>,
    /// The model's thinking, in the field that SGLang uses.
    reasoning_content: Option<String>,
}

#[derive(Deserialize)]
struct RawUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

/// Reads the events of a streamed answer to the stream's end, so that the connection can be reused. `elapsed` returns
/// the time since the request was sent.
///
/// # Errors
/// Returns [`Broken`] if the stream broke off, or is not an answer.
pub(super) fn read(
    stream: impl BufRead,
    elapsed: impl Fn() -> Duration,
) -> Result<Streamed, Broken> {
    let mut answer = Streamed::default();
    let (mut first, mut events, mut done) = (None, 0, false);
    for line in stream.lines() {
        let line = line?;
        let Some(data) = line.strip_prefix("data:").map(str::trim_start) else {
            continue;
        };
        events += 1;
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Chunk = serde_json::from_str(data).map_err(|reason| Broken::Event {
            number: events,
            reason,
        })?;
        if let Some(error) = chunk.error {
            return Err(Broken::Failed(error.to_string()));
        }
        for choice in chunk.choices {
            let delta = choice.delta;
            let words = [&delta.content, &delta.reasoning, &delta.reasoning_content];
            if words.into_iter().flatten().any(|words| !words.is_empty()) {
                first.get_or_insert_with(&elapsed);
            }
            answer.text += &delta.content.unwrap_or_default();
            let tokens = choice.logprobs.and_then(|told| told.content);
            if answer.first_token.is_empty()
                && let Some(token) = tokens.into_iter().flatten().next()
            {
                let rivals = token.top_logprobs.into_iter();
                answer.first_token = rivals.map(|rival| (rival.token, rival.logprob)).collect();
            }
            answer.finish = choice.finish_reason.or(answer.finish);
        }
        if let Some(usage) = chunk.usage {
            answer.usage = Usage {
                prompt_tokens: usage.prompt_tokens,
                cached_tokens: usage.prompt_tokens_details.and_then(|d| d.cached_tokens),
                completion_tokens: usage.completion_tokens,
            };
        }
    }
    if events == 0 {
        return Err(Broken::NoEvents);
    }
    if !done && answer.finish.is_none() {
        return Err(Broken::Early);
    }
    answer.first = first.unwrap_or_else(elapsed);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const STREAM: &str = "\
: a comment

data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}

data: {\"choices\":[{\"delta\":{\"content\":\"Thirty \"}}],\"usage\":null}

data: {\"choices\":[{\"delta\":{\"content\":\"days\"},\"finish_reason\":\"stop\"}]}

data: {\"choices\":[],\"usage\":{\"prompt_tokens\":90,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":64}}}

data: [DONE]
";

    fn read(text: &str) -> Result<Streamed, String> {
        let clock = Cell::new(0);
        let elapsed = || {
            clock.set(clock.get() + 1);
            Duration::from_millis(clock.get())
        };
        super::read(text.as_bytes(), elapsed).map_err(|broken| broken.to_string())
    }

    #[test]
    fn the_first_word_is_timed_and_usage_is_read() {
        let answer = read(STREAM).unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.finish.as_deref()),
            ("Thirty days", Some("stop"))
        );
        assert_eq!(answer.first, Duration::from_millis(1));
        let usage = answer.usage;
        assert_eq!(
            (
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens
            ),
            (Some(90), Some(64), Some(2))
        );
        let thought = "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"Hm\"}}]}\n";
        assert_eq!(
            read(&format!("{thought}{STREAM}")).unwrap().text,
            "Thirty days"
        );
    }

    #[test]
    fn counts_may_be_missing_and_so_may_the_last_event() {
        let bare = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"length\"}]}\n\n";
        let answer = read(bare).unwrap();
        assert_eq!(answer.usage, Usage::default());
        assert_eq!(answer.finish.as_deref(), Some("length"));
        assert!(read("data: [DONE]\n").unwrap().text.is_empty());
    }

    #[test]
    fn what_is_no_answer_is_told() {
        let early = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n";
        assert!(read(early).unwrap_err().contains("ended before the answer"));
        assert!(
            read("<html>")
                .unwrap_err()
                .contains("not a stream of events")
        );
        assert!(
            read("data: x\n")
                .unwrap_err()
                .starts_with("event 1 is not a chunk")
        );
        let failed = "data: {\"error\":{\"message\":\"out of pages\"}}\n";
        assert!(read(failed).unwrap_err().contains("out of pages"));
        let not_text = super::read(&b"data: \xff\n"[..], Duration::default);
        assert!(matches!(not_text, Err(Broken::Read(_))));
    }
}
