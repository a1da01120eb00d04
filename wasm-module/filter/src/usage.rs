//! Reads an engine's usage report in a response: `usage`, or Gemini's `usageMetadata`, in JSON or in a stream of
//! events.
//!
//! ```text
//!   {"id": …, "choices": […], "usage": {"prompt_tokens": 1200, "prompt_tokens_details": {"cached_tokens": 1024}, …}}
//!   event: message_start                            event: …               data: {…, "usage": {"prompt_tokens": …}}
//!   data: {…"usage":{"cache_read_input_tokens":…}}                          data: [DONE]
//!   └────────── the first bytes ─────────┘                          └────────── the last bytes ──────────┘
//! ```
//!
//! | API | tokens of the prompt | of these, cached |
//! | --- | --- | --- |
//! | OpenAI chat | `prompt_tokens` | `prompt_tokens_details.cached_tokens` |
//! | OpenAI Responses | `input_tokens` | `input_tokens_details.cached_tokens` |
//! | Anthropic | `input_tokens` and both `cache_…_input_tokens` | `cache_read_input_tokens` |
//! | Bedrock Converse | `inputTokens` and both `cache…InputTokens` | `cacheReadInputTokens` |
//! | Gemini | `promptTokenCount` | `cachedContentTokenCount` |
//!
//! A response is forwarded chunk by chunk; its first and last bytes are copied on the way, and parsed when it has
//! ended. Text that a model wrote cannot be mistaken for usage, since quotation marks in JSON strings are escaped; of
//! several reports the last counts, also where a tool call's arguments, plain objects in some APIs, look like one.

use serde::Deserialize;

/// Collects the first [`FIRST_BYTES`] and last [`LAST_BYTES`] bytes of an engine's response, in which usage is
/// reported.
#[derive(Debug, Default)]
pub(crate) struct UsageReader {
    first: Vec<u8>,
    last: Vec<u8>,
}

/// The numbers of all and of cached prompt tokens, as an engine's response reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PromptUsage {
    /// Number of tokens of the prompt, cached ones included.
    pub(crate) prompt: u64,
    /// Number of prompt tokens that were cached; `None` if the response does not say.
    pub(crate) cached: Option<u64>,
    pub(crate) form: UsageForm,
}

/// The fields in which a usage report counts prompt tokens (see the [table](self)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UsageForm {
    /// The report counts the prompt's tokens in `prompt_tokens` (OpenAI chat) or `promptTokenCount` (Gemini).
    Prompt,
    /// The report has `input_tokens` and, with the cached ones, `input_tokens_details` (OpenAI Responses).
    InputDetails,
    /// The report has `input_tokens` (Anthropic) or `inputTokens` (Bedrock Converse), without such details.
    Input,
}

impl UsageReader {
    /// Copies the needed bytes of the response's next chunk, which has `size` bytes. `read(from, size)` must return
    /// that part of the chunk; its error is returned.
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

    /// Returns the id of a response of OpenAI's Responses API (`resp_…`); `None` for another API's response.
    pub(crate) fn response_id(&self) -> Option<&str> {
        const NAME: &[u8] = br#""id""#;
        let starts = self.first.windows(NAME.len()).enumerate();
        let mut starts = starts.filter(|(_, window)| *window == NAME);
        starts.find_map(|(at, _)| {
            let (_, rest) = self.first.split_at_checked(at)?;
            let value = rest.strip_prefix(NAME)?.trim_ascii_start();
            let value = value.strip_prefix(b":")?;
            let value = value.trim_ascii_start().strip_prefix(b"\"")?;
            let id = value.split(|byte| *byte == b'"').next()?;
            // The id must end within the copied bytes.
            let is_whole = id.len() < value.len() && id.len() <= MAX_ID_BYTES;
            let id = str::from_utf8(id).ok().filter(|_| is_whole)?;
            (id.starts_with("resp_") && !id.contains('\\')).then_some(id)
        })
    }

    /// Returns the numbers of prompt tokens that the response reports: its last report in the last [`LAST_BYTES`]
    /// bytes, or else in the first [`FIRST_BYTES`]; `None` if there is none.
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

/// Returns the usage report whose key begins at the offset `at` of `bytes`. `None` if the key is inside a JSON string,
/// or its value has no number of prompt tokens.
fn count_at(bytes: &[u8], at: usize) -> Option<PromptUsage> {
    let escaped = at
        .checked_sub(1)
        .is_some_and(|before| bytes.get(before) == Some(&b'\\'));
    if escaped {
        return None;
    }
    let (_, rest) = bytes.split_at_checked(at)?;
    let rest = rest.strip_prefix(KEY)?;
    let rest = rest.strip_prefix(GEMINIS).unwrap_or(rest);
    let rest = rest.strip_prefix(b"\"")?.trim_ascii_start();
    let object = rest.strip_prefix(b":")?.trim_ascii_start();
    let mut objects = serde_json::Deserializer::from_slice(object).into_iter::<Usage>();
    objects.next()?.ok()?.counted()
}

#[derive(Deserialize)]
struct Usage {
    #[serde(alias = "promptTokenCount")]
    prompt_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    /// In the usage of Anthropic and Bedrock: prompt tokens neither read from the cache nor written to it. In the usage
    /// of OpenAI Responses, which has `input_tokens_details`: all prompt tokens.
    #[serde(alias = "inputTokens")]
    input_tokens: Option<u64>,
    input_tokens_details: Option<Details>,
    #[serde(alias = "cacheReadInputTokens")]
    cache_read_input_tokens: Option<u64>,
    #[serde(alias = "cacheWriteInputTokens")]
    cache_creation_input_tokens: Option<u64>,
    /// Number of cached prompt tokens in Gemini's usage; absent if 0.
    #[serde(rename = "cachedContentTokenCount")]
    cached_content: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Usage {
    fn counted(self) -> Option<PromptUsage> {
        let within = |details: Option<Details>| details?.cached_tokens;
        if let Some(prompt) = self.prompt_tokens {
            let cached = within(self.prompt_tokens_details).or(self.cached_content);
            return Some(PromptUsage {
                prompt,
                cached,
                form: UsageForm::Prompt,
            });
        }
        let input = self.input_tokens?;
        if let Some(details) = self.input_tokens_details {
            return Some(PromptUsage {
                prompt: input,
                cached: details.cached_tokens,
                form: UsageForm::InputDetails,
            });
        }
        let read = self.cache_read_input_tokens;
        let prompt = input
            .saturating_add(read.unwrap_or(0))
            .saturating_add(self.cache_creation_input_tokens.unwrap_or(0));
        Some(PromptUsage {
            prompt,
            cached: read,
            form: UsageForm::Input,
        })
    }
}

/// The common beginning of both keys under which usage is reported, `usage` and `usageMetadata`.
const KEY: &[u8] = br#""usage"#;
/// The end of the key `usageMetadata`, under which Gemini reports usage.
const GEMINIS: &[u8] = b"Metadata";

/// The maximum length of a response's id, in bytes.
const MAX_ID_BYTES: usize = 256;
/// Number of bytes copied from a response's beginning. Anthropic's first event, which has the usage, is some 500 bytes
/// long.
const FIRST_BYTES: usize = 2048;
/// Number of bytes copied from a response's end: OpenAI's last event, or the JSON fields after a response's text.
const LAST_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// The usage found if the text arrives in chunks of that size.
    fn found(text: &str, chunk: usize) -> Option<(u64, Option<u64>)> {
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
        let counted = usage_reader.counted()?;
        Some((counted.prompt, counted.cached))
    }

    fn check(text: &str, expected: Option<(u64, Option<u64>)>) {
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
    fn responses_answers_and_streams_are_read() {
        let usage = r#""usage":{"input_tokens":120,"input_tokens_details":{"cached_tokens":96,"input_tokens_per_turn":[]},"output_tokens":7,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":127}"#;
        let response = |usage: &str| {
            format!(
                r#"{{"id":"resp_1","object":"response","output":[],"tools":[{{"name":"usage","parameters":{{"properties":{{"usage":{{"type":"string"}}}}}}}}],{usage},"user":null,"metadata":{{}}}}"#
            )
        };
        check(&response(usage), Some((120, Some(96))));
        let delta = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"word\"}\n\n";
        let stream = |last: &str| {
            format!(
                "event: response.created\ndata: {{\"type\":\"response.created\",\"response\":{}}}\n\n{}event: \
                 response.{last}\ndata: {{\"type\":\"response.{last}\",\"response\":{},\"sequence_number\":9}}\n\n",
                response(r#""usage":null"#),
                delta.repeat(300),
                response(usage),
            )
        };
        for last in ["completed", "incomplete", "failed"] {
            check(&stream(last), Some((120, Some(96))));
        }
        check(
            r#"{"usage":{"input_tokens":9,"input_tokens_details":{}}}"#,
            Some((9, None)),
        );
    }

    /// Streams recorded from OpenAI's and Anthropic's servers, in chunks of every length.
    #[test]
    fn recorded_streams_are_read_whatever_their_pieces() {
        let recorded = [
            (
                &include_bytes!("../../../tests/recorded/responses-text.sse")[..],
                100,
            ),
            (
                include_bytes!("../../../tests/recorded/responses-call.sse"),
                53,
            ),
            (
                include_bytes!("../../../tests/recorded/messages-text.sse"),
                639,
            ),
            (
                include_bytes!("../../../tests/recorded/messages-call.sse"),
                567,
            ),
            (
                include_bytes!("../../../tests/recorded/messages-thinking.sse"),
                36,
            ),
            (
                include_bytes!("../../../tests/recorded/messages-citations.sse"),
                566,
            ),
        ];
        for (stream, prompt) in recorded {
            for piece in (1..200).chain([
                512,
                LAST_BYTES - 1,
                LAST_BYTES,
                LAST_BYTES + 1,
                stream.len(),
            ]) {
                let mut reader = UsageReader::default();
                for chunk in stream.chunks(piece) {
                    let read =
                        |from: usize, bytes: usize| Ok::<_, ()>(chunk[from..from + bytes].to_vec());
                    reader.take(chunk.len(), read).unwrap();
                }
                let cached = Some(0);
                let counted = reader.counted().unwrap();
                assert_eq!(
                    (counted.prompt, counted.cached),
                    (prompt, cached),
                    "{piece}"
                );
                let id = reader.response_id();
                assert_eq!(id.is_some(), stream.starts_with(b"event: response.created"));
            }
        }
    }

    #[test]
    fn a_response_is_known_by_its_id() {
        let id = |text: &str| {
            let mut usage_reader = UsageReader::default();
            for chunk in text.as_bytes().chunks(7) {
                let read = |from: usize, size: usize| -> Result<_, ()> {
                    Ok(chunk[from..from + size].to_vec())
                };
                usage_reader.take(chunk.len(), read).unwrap();
            }
            usage_reader.response_id().map(str::to_owned)
        };
        let stream = "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_1\"}}\n\n";
        for (text, expected) in [
            (
                r#"{"id": "resp_68a", "output": [{"id": "resp_2"}]}"#,
                Some("resp_68a"),
            ),
            (stream, Some("resp_1")),
            (
                r#"{"output": [{"id": "msg_1"}], "id" : "resp_3"}"#,
                Some("resp_3"),
            ),
            (r#"{"id": "chatcmpl-1"}"#, None),
            (r#"{"id": "resp_1"#, None),
            (r#"{"id": 7}"#, None),
            (r#"{"content": "\"id\": \"resp_1\""}"#, None),
            ("", None),
        ] {
            assert_eq!(id(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn geminis_answers_and_streams_are_read() {
        let usage = r#""usageMetadata": {"promptTokenCount": 80, "cachedContentTokenCount": 64, "candidatesTokenCount": 3, "totalTokenCount": 83, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 80}]}"#;
        let answer = format!(
            r#"{{"candidates": [], {usage}, "modelVersion": "gemini-2.5-flash", "responseId": "r"}}"#
        );
        check(&answer, Some((80, Some(64))));
        let first = r#"{"candidates": [], "usageMetadata": {"promptTokenCount": 80}}"#;
        check(first, Some((80, None)));
        let stream = format!(
            "{}data: {answer}\r\n\r\n",
            format!("data: {first}\r\n\r\n").repeat(100)
        );
        check(&stream, Some((80, Some(64))));
    }

    #[test]
    fn converses_answers_and_streams_are_read() {
        let usage = r#""usage":{"inputTokens":10,"outputTokens":5,"totalTokens":115,"cacheReadInputTokens":70,"cacheWriteInputTokens":20}"#;
        check(
            &format!(r#"{{"output":{{}},"metrics":{{"latencyMs":1}},{usage}}}"#),
            Some((100, Some(70))),
        );
        check(
            r#"{"usage":{"inputTokens":10,"outputTokens":5}}"#,
            Some((10, None)),
        );
        // Frames of `application/vnd.amazon.eventstream` are binary; their payloads are not.
        let frame = format!("\u{0}\u{0}\u{1}:event-type\u{7}\u{0}metadata{{{usage}}}\u{1a}");
        check(&frame.repeat(3), Some((100, Some(70))));
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
