//! Restores what a model wrote and clients change: the arguments of its tool calls byte for byte and, on request, its reasoning.
//!
//! ```text
//!   response       {"reasoning": "Rome, then.", "tool_calls": [{"id": "c1", … "arguments": "{\"city\": \"Rome\"}"}]}   kept
//!   next request   {"tool_calls": [{"id": "c1", … "arguments": "{\"city\":\"Rome\"}"}]}
//!   forwarded      {"reasoning": "Rome, then.", "tool_calls": [{"id": "c1", … "arguments": "{\"city\": \"Rome\"}"}]}
//! ```
//!
//! Without them the engine renders an earlier turn differently from what it computed, and its cache ends there. An answer is
//! found by tenant, model, every byte of the chat's messages before it, and what a client shows of it (its text but for the
//! white space around it, and the calls' ids and names). So only who sends a whole chat gets its answers.
//!
//! Answers are in shared data, so that all workers find them: a table of [`SLOTS`] places by hash, in which a newer answer
//! replaces an older one. They are neither logged nor told to other gateways.

mod reader;

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use foreword_ordering::{Config, KeptAnswers};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_128;

pub(crate) use self::reader::AnswerReader;
use crate::host::{Host, HostError};

/// The answers kept in shared data.
#[derive(Debug)]
pub(crate) struct Answers {
    /// The beginning of the slots' keys.
    prefix: String,
    /// Most bytes of an answer that is kept.
    max_bytes: usize,
    keeps_reasoning: bool,
}

/// What clients drop from an answer.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    reasoning: Option<Reasoning>,
    /// The arguments of each tool call, as the model wrote them.
    arguments: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Reasoning {
    field: ReasoningField,
    text: String,
}

/// The field of a message that holds its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ReasoningField {
    Reasoning,
    ReasoningContent,
}

impl ReasoningField {
    fn name(self) -> &'static str {
        match self {
            Self::Reasoning => "reasoning",
            Self::ReasoningContent => "reasoning_content",
        }
    }
}

/// A chat up to the answer that is to come: a hash of tenant, model and all messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct History(u128);

/// A request's chat.
#[derive(Debug)]
pub(crate) struct Chat {
    pub(crate) history: History,
    /// The body with answers restored; `None` if nothing is restored.
    pub(crate) body: Option<Vec<u8>>,
    /// Number of messages restored.
    pub(crate) restored: u64,
}

impl History {
    fn then(self, hash: u128) -> Self {
        Self(xxh3_128(
            &[self.0.to_le_bytes(), hash.to_le_bytes()].concat(),
        ))
    }

    /// Returns the key of an answer, by what clients send of it.
    fn key<'a>(self, content: &str, calls: impl Iterator<Item = [&'a str; 2]>) -> u128 {
        let names = calls
            .flatten()
            .fold(Self(0), |names, name| names.then(xxh3_128(name.as_bytes())));
        let content = xxh3_128(content.trim().as_bytes());
        self.then(content).then(names.0).0
    }
}

impl Answers {
    /// Returns the answers that a configuration keeps, if it keeps any. `ring` is the name of the workers' agreement.
    pub(crate) fn new(config: &Config, ring: &str) -> Option<Self> {
        let (kept, max_bytes) = config.answers();
        (kept != KeptAnswers::None).then(|| Self {
            prefix: format!("foreword/answers/{LAYOUT}/{ring}/"),
            max_bytes: usize::try_from(max_bytes).unwrap_or(usize::MAX),
            keeps_reasoning: kept == KeptAnswers::All,
        })
    }

    /// Returns a request's chat, with the answers restored that its client sends in part: the oldest first, as long as the
    /// body does not exceed `max_body_bytes`. `None` for a body that is no chat. `owner` holds what separates one client's
    /// answers from another's, beside the words of the chat.
    pub(crate) fn restore(
        &self,
        host: &impl Host,
        owner: &[&str],
        body: &[u8],
        max_body_bytes: usize,
    ) -> Option<Chat> {
        let request: Request<'_> = serde_json::from_slice(body).ok()?;
        let named = [
            request.model,
            request.cache_salt,
            request.user,
            request.safety_identifier,
            request.prompt_cache_key,
        ];
        let named = named.map(|value| value.map_or("", RawValue::get));
        let mut history = (owner.iter().copied().chain(named)).fold(History(0), |history, part| {
            history.then(xxh3_128(part.as_bytes()))
        });
        let mut edits: Vec<(&str, String)> = Vec::new();
        let mut restored: u64 = 0;
        let mut room = max_body_bytes.checked_sub(body.len());
        for message in request.messages.0 {
            if let Some(free) = room
                && let Ok(read) = serde_json::from_str::<Message<'_>>(message.get())
                && read.role == "assistant"
                && let Some(answer) = read.key(history).and_then(|key| self.find(host, key))
                && let Some(made) = read.missing(message.get(), &answer)
                && !made.is_empty()
            {
                let added = made.iter().map(|(_, with)| with.len()).sum();
                // Behind one that does not fit none is restored, so that the next request begins with the same bytes.
                room = free.checked_sub(added);
                if room.is_some() {
                    edits.extend(made);
                    restored = restored.saturating_add(1);
                }
            }
            history = history.then(xxh3_128(message.get().as_bytes()));
        }
        Some(Chat {
            history,
            body: (!edits.is_empty()).then(|| apply(body, &edits)),
            restored,
        })
    }

    /// Keeps an answer; one that is too long is not kept. Returns whether it was kept.
    fn keep(&self, host: &impl Host, key: u128, answer: &Answer) -> Result<bool, HostError> {
        if answer.reasoning.is_none() && answer.arguments.is_empty() {
            return Ok(false);
        }
        let Ok(text) = serde_json::to_vec(answer) else {
            return Ok(false);
        };
        if text.len() > self.max_bytes {
            return Ok(false);
        }
        let (slot, place) = self.slot(key);
        let entry = [&key.to_le_bytes()[..], &text].concat();
        Ok(host.set_shared_data(&place, &entry, None)?
            && host.set_shared_data(&slot, &key.to_le_bytes(), None)?)
    }

    fn find(&self, host: &impl Host, key: u128) -> Option<Answer> {
        let (slot, place) = self.slot(key);
        // A chat of many messages does not copy an answer for each of them.
        let (known, _) = host.shared_data(&slot).ok()??;
        if known != key.to_le_bytes() {
            return None;
        }
        let (entry, _) = host.shared_data(&place).ok()??;
        let text = entry.strip_prefix(&key.to_le_bytes())?;
        serde_json::from_slice(text).ok()
    }

    /// Returns the keys in shared data of a slot: of its answer's key alone, and of the answer behind its key.
    fn slot(&self, key: u128) -> (String, String) {
        let slot = format!("{}{}", self.prefix, key % SLOTS);
        let place = format!("{slot}/answer");
        (slot, place)
    }
}

/// A chat request; other fields are ignored.
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    messages: AtMost<&'a RawValue, MAX_MESSAGES>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_salt: Option<&'a RawValue>,
    #[serde(borrow)]
    user: Option<&'a RawValue>,
    #[serde(borrow)]
    safety_identifier: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_cache_key: Option<&'a RawValue>,
}

/// A message as a client sends it.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<AtMost<Call<'a>, MAX_CALLS>>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow, default)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

#[derive(Deserialize)]
struct TextPart<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

impl<'a> Message<'a> {
    fn calls(&self) -> &[Call<'a>] {
        self.tool_calls.as_ref().map_or(&[], |calls| &calls.0)
    }

    /// Returns the key of the answer that the message shows; `None` if it holds more than text and calls.
    fn key(&self, history: History) -> Option<u128> {
        let calls = self.calls().iter();
        let calls = calls.map(|call| [&*call.id, &*call.function.name]);
        Some(history.key(&self.text()?, calls))
    }

    /// Returns the content's text; `None` if the content is not text alone.
    fn text(&self) -> Option<Cow<'a, str>> {
        let Some(content) = self.content.map(RawValue::get) else {
            return Some("".into());
        };
        if content.starts_with('"') {
            let words: Option<Words<'a>> = serde_json::from_str(content).ok();
            return Some(words?.0);
        }
        let parts: AtMost<TextPart<'a>, MAX_CALLS> = serde_json::from_str(content).ok()?;
        let texts = parts.0.iter().map(|part| &*part.text);
        Some(texts.collect::<String>().into())
    }

    /// Returns the values to replace in the message `raw`, an empty one being an insertion: what the client left out or
    /// wrote in another way. `None` if the client's message is not the model's.
    fn missing<'r>(&self, raw: &'r str, answer: &Answer) -> Option<Vec<(&'r str, String)>>
    where
        'a: 'r,
    {
        let calls = self.calls();
        if calls.len() != answer.arguments.len() {
            return None;
        }
        let mut edits = Vec::new();
        for (call, kept) in calls.iter().zip(&answer.arguments) {
            let sent = call.function.arguments.get();
            let Words(words) = serde_json::from_str(sent).ok()?;
            if words != kept.as_str() {
                if !means_the_same(&words, kept) {
                    return None;
                }
                edits.push((sent, serde_json::to_string(kept).ok()?));
            }
        }
        if let Some(Reasoning { field, text }) = &answer.reasoning {
            let fields = [self.reasoning, self.reasoning_content];
            let mut fields = fields
                .map(|value| value.map(RawValue::get))
                .into_iter()
                .zip([ReasoningField::Reasoning, ReasoningField::ReasoningContent]);
            let is_empty = |value: &str| matches!(value, "null" | "\"\"");
            if fields.clone().all(|(value, _)| value.is_none_or(is_empty)) {
                let own = fields.find(|(_, known)| known == field);
                let text = serde_json::to_string(text).ok()?;
                edits.push(match own {
                    Some((Some(value), _)) => (value, text),
                    // Behind the brace; the role, at least, follows.
                    _ => (raw.get(1..1)?, format!("\"{}\":{text},", field.name())),
                });
            }
        }
        Some(edits)
    }
}

/// A string that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Words<'a>(#[serde(borrow)] Cow<'a, str>);

/// Returns whether two texts are the same JSON value.
fn means_the_same(sent: &str, kept: &str) -> bool {
    let is_near = sent.len() / 8 <= kept.len();
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    is_near && value(kept).is_some_and(|kept| value(sent) == Some(kept))
}

/// Returns the body with slices of it replaced.
fn apply(body: &[u8], edits: &[(&str, String)]) -> Vec<u8> {
    let start = |slice: &str| slice.as_ptr().addr().saturating_sub(body.as_ptr().addr());
    let mut edits: Vec<_> = (edits.iter())
        .map(|(slice, with)| (start(slice), slice.len(), with))
        .collect();
    edits.sort_unstable();
    let mut out = Vec::with_capacity(body.len());
    let mut copied = 0;
    for (at, length, with) in edits {
        out.extend_from_slice(body.get(copied..at).unwrap_or_default());
        out.extend_from_slice(with.as_bytes());
        copied = at.saturating_add(length);
    }
    out.extend_from_slice(body.get(copied..).unwrap_or_default());
    out
}

/// Reads a value that is there, `null` included.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(value: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

/// A list of at most `N` elements; a longer one is an error.
struct AtMost<T, const N: usize>(Vec<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for AtMost<T, N> {
    fn deserialize<D: Deserializer<'de>>(list: D) -> Result<Self, D::Error> {
        struct Elements<T, const N: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Elements<T, N> {
            type Value = AtMost<T, N>;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(to, "a list of at most {N} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = list.next_element()? {
                    if elements.len() == N {
                        return Err(A::Error::invalid_length(N, &self));
                    }
                    elements.push(element);
                }
                Ok(AtMost(elements))
            }
        }
        list.deserialize_seq(Elements(PhantomData))
    }
}

/// Number of answers that are kept.
const SLOTS: u128 = 1024;
/// Version of the slots' layout; another one starts empty.
const LAYOUT: u32 = 1;
/// Most messages of a chat.
const MAX_MESSAGES: usize = 4096;
/// Most tool calls, or parts of a content, of one message.
const MAX_CALLS: usize = 256;

#[cfg(test)]
mod tests;
