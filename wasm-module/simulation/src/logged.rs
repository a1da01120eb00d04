//! Parses a line of a log that has more than a request: its tenant, its engine, and the engine's usage.
//!
//! ```text
//!   {"messages": […], …}                                                              the body itself
//!   {"request": {"messages": […], …}, "response": {"usage": {…}}, "tenant": "a", "engine": "10.0.0.1:8000"}
//! ```
//!
//! `body` is another name for `request`; either has the body as an object, or as a string, as access logs write it.
//! `usage` may be next to the request, in the format of any API. `upstream` is another name for `engine`. The fields of
//! the gateway's access log, `cached_tokens`, `prompt_tokens` and `path`, may also be at the top level. A line's time
//! is its `time` or `timestamp`. Other fields (headers, durations) are ignored.

use super::lines::without_byte_order_mark;
use super::{BadLine, time};
use foreword_ordering::scan::{self, Bad};
use foreword_ordering::string;
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Declares a variable for each of the named fields of a JSON object, with the field's value as JSON.
macro_rules! fields {
    (
        let { $($field:ident = $name:literal),+ $(,)? } = scan::fields($text:expr)$($rest:tt)*
    ) => {
        let [$($field),+] = scan::fields($text, [$($name),+])$($rest)*;
    };
}

/// A request in a log, with the log's data on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logged<'a> {
    /// The request's body, or a ranking, as JSON.
    pub body: Cow<'a, str>,
    /// Name of the tenant; empty if unknown.
    pub tenant: Cow<'a, str>,
    /// The engine that served the request; empty if unknown.
    pub engine: Cow<'a, str>,
    /// Path of the request; empty if unknown.
    pub path: Cow<'a, str>,
    /// Tokens of the prompt, counted by the engine; `None` if not stated.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens that the engine had cached; `None` if not stated.
    pub cached_tokens: Option<u64>,
    /// Milliseconds since 1970, from the line's `time` or `timestamp`; `None` if there is none, or none that is
    /// understood.
    pub at_ms: Option<u64>,
    /// True if the line has a time that is not understood.
    pub has_unread_time: bool,
}

/// Returns the hash of `parts` (such as tenant, engine and salt, between which engines share nothing) in order, begun with
/// `seed`.
pub(crate) fn realm_hash(parts: &[&str], seed: u64) -> u64 {
    (parts.iter()).fold(seed, |seed, part| xxh3_64_with_seed(part.as_bytes(), seed))
}

/// The kind of a logged body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedKind {
    /// A chat body.
    Chat,
    /// A list of document ids.
    Ranking,
}

impl<'a> Logged<'a> {
    /// Parses a line.
    ///
    /// # Errors
    /// Returns [`BadLine::NotAnObject`] or [`BadLine::Request`]. [`LogReader::requests`](super::LogReader::requests)
    /// checks the body itself.
    pub fn read(line: &'a [u8]) -> Result<Self, BadLine> {
        let line = without_byte_order_mark(line);
        let text = std::str::from_utf8(line).map_err(|error| BadLine::NotAnObject {
            column: error.valid_up_to() + 1,
        })?;
        fields! {
            let {
                messages = "messages", docs = "docs", message = "message", request = "request",
                body = "body", response = "response", usage = "usage", tenant = "tenant",
                engine = "engine", upstream = "upstream", path = "path", prompt = "prompt_tokens",
                cached = "cached_tokens", time = "time", timestamp = "timestamp",
            } = scan::fields(text).map_err(|Bad(at)| BadLine::NotAnObject { column: at + 1 })?
        }
        let inner = request
            .or(body)
            .filter(|_| messages.is_none() && docs.is_none() && message.is_none());
        let time = time.or(timestamp).filter(|time| *time != "null");
        let at_ms = time.and_then(time::milliseconds);
        let has_unread_time = time.is_some() && at_ms.is_none();
        let Some(inner) = inner else {
            return Ok(Self {
                at_ms,
                has_unread_time,
                ..Self::bare(text)
            });
        };
        let body = match inner.as_bytes().first() {
            Some(b'{') => Cow::Borrowed(inner),
            Some(b'"') => string(inner).ok_or(BadLine::Request)?,
            _ => return Err(BadLine::Request),
        };
        let words = |value: Option<&'a str>| value.and_then(string).unwrap_or_default();
        let answer = response.filter(|response| response.starts_with('{'));
        let told = answer.and_then(|answer| {
            let [usage, geminis] = scan::fields(answer, ["usage", "usageMetadata"]).ok()?;
            usage.or(geminis)
        });
        let [used_prompt, used_cached] = usage.or(told).map_or([None; 2], counted);
        Ok(Self {
            body,
            tenant: words(tenant),
            engine: words(engine.or(upstream)),
            path: words(path),
            prompt_tokens: used_prompt.or(prompt.and_then(number)),
            cached_tokens: used_cached.or(cached.and_then(number)),
            at_ms,
            has_unread_time,
        })
    }

    fn bare(text: &'a str) -> Self {
        Self {
            body: Cow::Borrowed(text),
            tenant: Cow::default(),
            engine: Cow::default(),
            path: Cow::default(),
            prompt_tokens: None,
            cached_tokens: None,
            at_ms: None,
            has_unread_time: false,
        }
    }

    /// Returns the kind of the body.
    ///
    /// # Errors
    /// Returns [`BadLine::NotAnObject`] or [`BadLine::Neither`].
    pub fn kind(&self) -> Result<LoggedKind, BadLine> {
        let names = ["messages", "message", "input", "contents", "docs"];
        let fields = scan::fields(&self.body, names);
        kind_of(fields.map_err(|Bad(at)| BadLine::NotAnObject { column: at + 1 })?)
    }
}

/// Returns a body's kind by its fields `messages`, `message` (Cohere's first API), `input` (Responses), `contents`
/// (Gemini) and `docs`. A ranking may have an `input` of its own.
pub(super) fn kind_of(fields: [Option<&str>; 5]) -> Result<LoggedKind, BadLine> {
    match fields {
        [None, None, _, _, Some(_)] => Ok(LoggedKind::Ranking),
        [None, None, None, None, None] => Err(BadLine::Neither),
        _ => Ok(LoggedKind::Chat),
    }
}

/// Parses a number, or a string of digits.
fn number(value: &str) -> Option<u64> {
    value.trim_matches('"').parse().ok()
}

/// Returns the prompt's tokens and the cached ones, from any API's usage.
fn counted(usage: &str) -> [Option<u64>; 2] {
    fields! {
        let {
            prompt = "prompt_tokens", details = "prompt_tokens_details", input = "input_tokens",
            input_details = "input_tokens_details", read = "cache_read_input_tokens",
            created = "cache_creation_input_tokens",
            // The fields of Bedrock and Gemini.
            bedrocks = "inputTokens", bedrocks_read = "cacheReadInputTokens",
            written = "cacheWriteInputTokens", geminis = "promptTokenCount",
            held = "cachedContentTokenCount",
        } = scan::fields(usage).unwrap_or_default()
    }
    let (prompt, input) = (prompt.or(geminis), input.or(bedrocks));
    let (read, created) = (read.or(bedrocks_read).or(held), created.or(written));
    let within = |details: Option<&str>| {
        let [cached] = scan::fields(details?, ["cached_tokens"]).ok()?;
        number(cached?)
    };
    let cached = within(details).or_else(|| within(input_details));
    let [read, created] = [read, created].map(|value| value.and_then(number));
    match (prompt.and_then(number), input.and_then(number)) {
        (Some(prompt), _) => [Some(prompt), cached.or(read)],
        // Anthropic's count excludes tokens read from the cache or written to it.
        (None, Some(input)) if read.is_some() || created.is_some() => {
            let prompt = [read, created].into_iter().flatten();
            let prompt = prompt.fold(input, u64::saturating_add);
            [Some(prompt), Some(read.unwrap_or(0))]
        }
        (None, input) => [input, cached],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Logged<'_> {
        Logged::read(line.as_bytes()).unwrap()
    }

    #[test]
    fn a_body_or_a_ranking_is_itself() {
        for line in [
            r#"{"messages":[],"usage":{"prompt_tokens":3}}"#,
            r#"{"docs":["a"],"body":{}}"#,
            r#"{"message":"Why?"}"#,
            r#"{"input":"Why?"}"#,
            r#"{"other":1}"#,
        ] {
            assert_eq!(read(line), Logged::bare(line));
        }
    }

    #[test]
    fn a_request_may_be_an_object_or_a_string_beside_what_is_known_of_it() {
        let line = r#"{"time":1,"request":{"messages":[]},"tenant":"a","upstream":"e:1","path":"/v1/messages","response":{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}}"#;
        let logged = read(line);
        assert_eq!(logged.body, r#"{"messages":[]}"#);
        assert_eq!((&*logged.tenant, &*logged.engine), ("a", "e:1"));
        assert_eq!(logged.path, "/v1/messages");
        assert_eq!(logged.prompt_tokens.zip(logged.cached_tokens), Some((9, 4)));
        assert_eq!(logged.at_ms, Some(1_000));
        let logged = read(r#"{"body":"{\"messages\":[]}","prompt_tokens":"12","cached_tokens":8}"#);
        assert_eq!(
            (
                &*logged.body,
                logged.prompt_tokens.zip(logged.cached_tokens)
            ),
            (r#"{"messages":[]}"#, Some((12, 8)))
        );
    }

    #[test]
    fn each_dialect_counts_in_its_own_words() {
        let counted = |usage: &str| {
            let line = format!(r#"{{"request":{{}},"usage":{usage}}}"#);
            let logged = Logged::read(line.as_bytes()).unwrap();
            (logged.prompt_tokens, logged.cached_tokens)
        };
        assert_eq!(counted(r#"{"prompt_tokens":9}"#), (Some(9), None));
        assert_eq!(
            counted(
                r#"{"input_tokens":3,"cache_read_input_tokens":40,"cache_creation_input_tokens":2}"#
            ),
            (Some(45), Some(40))
        );
        assert_eq!(
            counted(r#"{"input_tokens":30,"input_tokens_details":{"cached_tokens":16}}"#),
            (Some(30), Some(16))
        );
        assert_eq!(
            counted(r#"{"inputTokens":3,"cacheReadInputTokens":40,"cacheWriteInputTokens":2}"#),
            (Some(45), Some(40))
        );
        assert_eq!(
            counted(r#"{"promptTokenCount":30,"cachedContentTokenCount":16}"#),
            (Some(30), Some(16))
        );
        assert_eq!(counted(r#"{"prompt_tokens":-1}"#), (None, None));
        assert_eq!(counted("7"), (None, None));
    }

    #[test]
    fn a_body_of_every_format_is_a_chat() {
        for (body, kind) in [
            (r#"{"messages":[]}"#, Ok(LoggedKind::Chat)),
            (r#"{"message":"a","docs":[]}"#, Ok(LoggedKind::Chat)),
            (r#"{"input":"a"}"#, Ok(LoggedKind::Chat)),
            (r#"{"contents":[]}"#, Ok(LoggedKind::Chat)),
            (r#"{"docs":["a"],"input":"a"}"#, Ok(LoggedKind::Ranking)),
            (r#"{"prompt":"a"}"#, Err(BadLine::Neither)),
        ] {
            assert_eq!(Logged::bare(body).kind(), kind, "{body}");
        }
        let line = r#"{"request":{"contents":[]},"response":{"usageMetadata":{"promptTokenCount":9,"cachedContentTokenCount":4}}}"#;
        let logged = read(line);
        assert_eq!(logged.prompt_tokens.zip(logged.cached_tokens), Some((9, 4)));
    }

    #[test]
    fn what_is_wrong_is_told_without_the_lines_words() {
        for line in [r#"{"request":7}"#, r#"{"body":["secret"]}"#] {
            assert_eq!(Logged::read(line.as_bytes()), Err(BadLine::Request));
        }
        assert!(matches!(
            Logged::read(b"secret"),
            Err(BadLine::NotAnObject { column: 1 })
        ));
    }
}
