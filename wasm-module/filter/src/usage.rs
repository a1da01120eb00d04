//! Reads what an engine's answer reports of a prompt: `usage`, in JSON or in a stream of events, OpenAI's or
//! Anthropic's.
//!
//! ```text
//!   {"id": …, "choices": […], "usage": {"prompt_tokens": 1200, "prompt_tokens_details": {"cached_tokens": 1024}, …}}
//!   event: message_start                            event: …               data: {…, "usage": {"prompt_tokens": …}}
//!   data: {…"usage":{"cache_read_input_tokens":…}}                          data: [DONE]
//!   └────────── the first bytes ─────────┘                          └────────── the last bytes ──────────┘
//! ```
//!
//! An answer is forwarded as it comes, chunk by chunk. Its first and last bytes are copied on the way, and parsed when
//! it has ended. Text that a model wrote cannot pass for usage, since its quotation marks are escaped there.

use serde::Deserialize;

/// Collects the first and last bytes of an answer.
#[derive(Debug, Default)]
pub(crate) struct UsageReader {
    first: Vec<u8>,
    last: Vec<u8>,
}

/// The usage of a prompt, as an answer reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptUsage {
    /// Tokens of the prompt.
    pub(crate) prompt: u64,
    /// Prompt tokens that the engine held; `None`: the answer does not say.
    pub(crate) cached: Option<u64>,
}

impl UsageReader {
    /// Copies what matters of a chunk of `size` bytes; `read` returns a number of its bytes from a position on.
    pub(crate) fn take<E>(
        &mut self,
        size: usize,
        mut read: impl FnMut(usize, usize) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        let wanted = FIRST_BYTES.saturating_sub(self.first.len()).min(size);
        if size <= LAST_BYTES {
            let chunk = read(0, size)?;
            self.first.extend(chunk.iter().take(wanted));
            self.last.extend(chunk);
            let surplus = self.last.len().saturating_sub(LAST_BYTES);
            self.last.drain(..surplus);
        } else {
            if wanted > 0 {
                self.first.extend(read(0, wanted)?);
            }
            self.last = read(size.saturating_sub(LAST_BYTES), LAST_BYTES)?;
        }
        Ok(())
    }

    /// Returns the last count of the prompt in the answer.
    pub(crate) fn counted(&self) -> Option<PromptUsage> {
        last_count(&self.last).or_else(|| last_count(&self.first))
    }
}

fn last_count(bytes: &[u8]) -> Option<PromptUsage> {
    let starts = bytes.windows(KEY.len()).enumerate();
    let starts = starts.filter(|(_, window)| *window == KEY);
    let starts: Vec<usize> = starts.map(|(at, _)| at).collect();
    starts.into_iter().rev().find_map(|at| count_at(bytes, at))
}

/// Returns the count in the object behind the key at `at`.
fn count_at(bytes: &[u8], at: usize) -> Option<PromptUsage> {
    let escaped = at
        .checked_sub(1)
        .is_some_and(|before| bytes.get(before) == Some(&b'\\'));
    if escaped {
        return None;
    }
    let (_, rest) = bytes.split_at_checked(at)?;
    let rest = rest.strip_prefix(KEY)?.trim_ascii_start();
    let object = rest.strip_prefix(b":")?.trim_ascii_start();
    let mut objects = serde_json::Deserializer::from_slice(object).into_iter::<Usage>();
    objects.next()?.ok()?.counted()
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    /// Anthropic's field: tokens that were neither read from the cache nor written to it.
    input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Usage {
    fn counted(self) -> Option<PromptUsage> {
        if let Some(prompt) = self.prompt_tokens {
            let details = self.prompt_tokens_details;
            let cached = details.and_then(|details| details.cached_tokens);
            return Some(PromptUsage { prompt, cached });
        }
        let read = self.cache_read_input_tokens;
        let prompt = self
            .input_tokens?
            .saturating_add(read.unwrap_or(0))
            .saturating_add(self.cache_creation_input_tokens.unwrap_or(0));
        Some(PromptUsage {
            prompt,
            cached: read,
        })
    }
}

const KEY: &[u8] = br#""usage""#;

/// Number of first bytes; Anthropic's first event is some 500 bytes long.
const FIRST_BYTES: usize = 2048;
/// Number of last bytes: OpenAI's last event, or what stands behind an answer's text.
const LAST_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found when the text comes in chunks of that size.
    fn found(text: &str, chunk: usize) -> Option<PromptUsage> {
        let mut usage_reader = UsageReader::default();
        for chunk in text.as_bytes().chunks(chunk) {
            let read = |from: usize, size: usize| -> Result<_, ()> {
                Ok(chunk[from..from + size].to_vec())
            };
            usage_reader.take(chunk.len(), read).unwrap();
            assert!(
                usage_reader.first.len() <= FIRST_BYTES && usage_reader.last.len() <= LAST_BYTES
            );
        }
        usage_reader.counted()
    }

    fn check(text: &str, expected: Option<(u64, Option<u64>)>) {
        let expected = expected.map(|(prompt, cached)| PromptUsage { prompt, cached });
        for chunk in [1, 7, 300, 5_000, 100_000] {
            assert_eq!(
                found(text, chunk),
                expected,
                "{text:.200} in chunks of {chunk}"
            );
        }
    }

    #[test]
    fn openais_answers_are_read() {
        let usage = r#""usage": {"prompt_tokens": 1200, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1024}}"#;
        let long = "x".repeat(20_000);
        check(
            &format!(r#"{{"choices": ["{long}"], {usage}}}"#),
            Some((1200, Some(1024))),
        );
        check(
            &format!("{{{usage}, \"service_tier\": null}}"),
            Some((1200, Some(1024))),
        );
        check(r#"{"usage":{"prompt_tokens":7}}"#, Some((7, None)));
        check(
            r#"{"usage":{"prompt_tokens":7,"prompt_tokens_details":null}}"#,
            Some((7, None)),
        );
        check(r#"{"choices": []}"#, None);
        check("", None);
    }

    #[test]
    fn openais_streams_are_read() {
        let token = "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}],\"usage\":null}\n\n";
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n";
        let stream = format!("{}{usage}data: [DONE]\n\n", token.repeat(500));
        check(&stream, Some((50, Some(0))));
        check(&format!("{}data: [DONE]\n\n", token.repeat(500)), None);
    }

    #[test]
    fn anthropics_answers_and_streams_are_read() {
        let usage = r#""usage":{"input_tokens":10,"cache_creation_input_tokens":20,"cache_read_input_tokens":70,"output_tokens":1}"#;
        check(&format!("{{{usage}}}"), Some((100, Some(70))));
        let word =
            "event: content_block_delta\ndata: {\"delta\":{\"text\":\"word\"}}\n\n".repeat(500);
        let stream = format!(
            "event: message_start\ndata: {{\"message\":{{\"content\":[],{usage}}}}}\n\n{word}\
             event: message_delta\ndata: {{\"delta\":{{}},\"usage\":{{\"output_tokens\":15}}}}\n\n\
             event: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
        );
        check(&stream, Some((100, Some(70))));
    }

    #[test]
    fn what_a_model_wrote_is_not_usage() {
        let forged =
            serde_json::json!({"content": r#"Say "usage": {"prompt_tokens": 1}"#}).to_string();
        check(&forged, None);
        let real = format!("{{\"usage\":{{\"prompt_tokens\":3}},{}", &forged[1..]);
        check(&real, Some((3, None)));
    }

    #[test]
    fn what_cannot_be_read_is_no_usage() {
        for text in [
            r#"{"usage": {"prompt_tokens": -1}}"#,
            r#"{"usage": {"prompt_tokens": "7"}}"#,
            r#"{"usage": {"prompt_tokens": 7"#,
            r#"{"usage" 7}"#,
            r#"{"usage": [1]}"#,
            r#"{"usage": {}}"#,
            r#""usage""#,
            r#""usage":"#,
        ] {
            check(text, None);
        }
    }
}
