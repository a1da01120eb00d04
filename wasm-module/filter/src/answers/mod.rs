//! Restores what clients change in a model's earlier answers: the arguments of its tool calls and, on request, its
//! reasoning.
//!
//! ```text
//!   response      {"reasoning": "R", "tool_calls": [{"id": "c1", … "arguments": "{\"city\": \"Rome\", \"days\": 3}"}]}
//!   next request  {"tool_calls": [{"id": "c1", … "arguments": "{\"days\":3,\"city\":\"Rome\"}"}]}
//!   forwarded     {"reasoning": "R", "tool_calls": [{"id": "c1", … "arguments": "{\"city\": \"Rome\", \"days\": 3}"}]}
//! ```
//!
//! Otherwise the engine renders an earlier turn differently from what it computed, and its cache ends there. An answer
//! is identified by three things: its owner (tenant, salt, model, and all of the request that a prompt depends on
//! except its messages), every byte of the messages before it, and the parts of it that clients send back unchanged
//! (its text, trimmed, and the ids and names of its calls). So only a client that sends a whole chat gets its answers.
//!
//! All answers of a chat are one entry in shared data, so that all workers find them and a chat is forgotten whole. A
//! hash of the chat gives the two slots in which its entry may be; if both are taken, it replaces the chat whose last
//! answer is older. When an entry is full, the chat's later answers are not stored, so that its beginning stays the
//! same. Answers are neither logged nor sent to other gateways.

mod reader;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use foreword_ordering::{Config, KeptAnswers};
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

pub(crate) use self::reader::AnswerReader;
use crate::host::{Host, HostError};
use crate::swap;

/// The store of models' answers in the proxy's shared data.
#[derive(Debug)]
pub(crate) struct Answers {
    /// The name of the ring buffer through which workers share updates, which is part of the keys in shared data.
    ring: String,
    /// The maximum length in bytes of one chat's entry, which has all its stored answers.
    max_bytes: usize,
    keeps_reasoning: bool,
}

/// The parts of a model's answer that clients drop or rewrite in later requests of the chat.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    reasoning: Option<Reasoning>,
    /// The arguments of each tool call as the model wrote them, in order.
    arguments: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Reasoning {
    field: ReasoningField,
    text: String,
}

/// The field of an assistant message that contains the model's reasoning.
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

/// Identifies a chat up to and including the last message of a request. The model's answer to that request is stored
/// under this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChatKey {
    /// SHA-256 of tenant, salt, model, and every other part of the request, except its messages, on which the prompt
    /// depends.
    owner: [u8; 32],
    /// A hash of all messages of the request.
    messages: u128,
    /// The key of the first model answer in the chat; `None` if the chat has no answer yet.
    first: Option<u128>,
}

/// A chat request whose messages are compared with the stored answers: its key, and its body with changed answers
/// restored.
#[derive(Debug)]
pub(crate) struct Chat {
    pub(crate) key: ChatKey,
    /// The request's body with answers restored; `None` if nothing had to be restored.
    pub(crate) body: Option<Vec<u8>>,
    /// Number of messages in which parts of the model's answer were restored.
    pub(crate) restored: u64,
}

impl ChatKey {
    /// Returns the key of an answer in this chat: a hash of all messages before it, its trimmed text, and its tool
    /// calls' ids and names.
    fn answer<'a>(&self, content: &str, calls: impl Iterator<Item = [&'a str; 2]>) -> u128 {
        let calls = calls
            .flatten()
            .fold(0, |hash, name| joined(hash, xxh3_128(name.as_bytes())));
        let content = xxh3_128(content.trim().as_bytes());
        joined(joined(self.messages, content), calls)
    }
}

fn joined(one: u128, other: u128) -> u128 {
    xxh3_128([one.to_le_bytes(), other.to_le_bytes()].as_flattened())
}

/// An incremental hash of the beginning of a chat's messages. It reads each byte only once.
struct Beginning<'a> {
    /// The JSON text of the array `messages`, without its brackets.
    messages: &'a str,
    hash: Xxh3,
    hashed: usize,
}

impl Beginning<'_> {
    /// Returns the hash of the first `end` bytes of the messages' JSON text. `end` must not decrease from call to call.
    fn hash(&mut self, end: usize) -> u128 {
        let rest = self.messages.get(self.hashed..end);
        self.hash.update(rest.unwrap_or_default().as_bytes());
        self.hashed = end;
        self.hash.digest128()
    }
}

/// The elements of a JSON list, parsed one by one on demand. Holds the list's text without its brackets.
struct Elements<'a>(&'a str);

impl<'a> Iterator for Elements<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.0.trim_ascii_start();
        let rest = rest.strip_prefix(',').unwrap_or(rest);
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        let element = values.next()?.ok()?;
        self.0 = rest.get(values.byte_offset()..)?;
        Some(element.get())
    }
}

/// Returns the offset in bytes of `slice` within `body`. `slice` must borrow a part of `body`.
fn offset(body: &[u8], slice: &str) -> usize {
    slice.as_ptr().addr().saturating_sub(body.as_ptr().addr())
}

/// One of the two slots in shared data that may have a chat's stored answers.
struct Place {
    key: String,
    /// The compare-and-swap number of the slot's value; `None` if the slot is empty.
    number: Option<u32>,
    /// Time at which the last answer was added to the slot, in milliseconds.
    used_ms: u64,
    /// The chat's stored answers by their keys; `None` if the slot is empty or another chat's.
    answers: Option<BTreeMap<u128, Answer>>,
}

impl Answers {
    /// Returns the store of answers; `None` if the configuration stores none. `ring` is the name of the ring buffer
    /// through which workers share updates; it is part of the store's keys.
    pub(crate) fn new(config: &Config, ring: &str) -> Option<Self> {
        let (kept, max_bytes) = config.answers();
        (kept != KeptAnswers::None).then(|| Self {
            ring: ring.to_owned(),
            max_bytes: usize::try_from(max_bytes).unwrap_or(usize::MAX),
            keeps_reasoning: kept == KeptAnswers::All,
        })
    }

    /// Reads the chat in a request's `body` and restores the stored answers that its client changed, the oldest first,
    /// until the body would exceed `max_body_bytes` bytes. `None` if the body is not an OpenAI chat, or has too many
    /// messages.
    ///
    /// `owner` has what identifies the chat's owner outside of the body: tenant, salt, and model in the path.
    pub(crate) fn restore(
        &self,
        host: &impl Host,
        owner: &[&str],
        body: &[u8],
        max_body_bytes: usize,
    ) -> Option<Chat> {
        let request: Request<'_> = serde_json::from_str(str::from_utf8(body).ok()?).ok()?;
        let messages = request.messages.get().strip_prefix('[')?;
        let messages = messages.strip_suffix(']')?.trim_ascii();
        let mut chat = ChatKey {
            owner: request.owner(owner),
            messages: 0,
            first: None,
        };
        let mut kept = BTreeMap::new();
        let mut edits: Vec<(&str, String)> = Vec::new();
        let mut restored: u64 = 0;
        let mut room = max_body_bytes.checked_sub(body.len());
        let mut beginning = Beginning {
            messages,
            hash: Xxh3::new(),
            hashed: 0,
        };
        let mut end = 0;
        for (number, message) in Elements(messages).enumerate() {
            // After the first answer, the rest is not read if nothing of this chat is stored.
            if chat.first.is_some() && kept.is_empty() {
                break;
            }
            if number == MAX_MESSAGES {
                return None;
            }
            // Most bytes are in long messages with other roles, which are not parsed.
            if let Some(free) = room
                && (message.len() < LONG || message.contains("\"assistant\""))
                && let Ok(read) = serde_json::from_str::<Message<'_>>(message)
                && read.role == "assistant"
            {
                chat.messages = beginning.hash(end);
                let key = read.key(&chat);
                if let (None, Some(first)) = (chat.first, key) {
                    chat.first = key;
                    let places = self.places(host, &chat.owner, first);
                    let mut places = places.into_iter();
                    kept = places.find_map(|place| place.answers).unwrap_or_default();
                }
                if let Some(answer) = key.and_then(|key| kept.get(&key))
                    && let Some(made) = read.missing(message, answer, self.keeps_reasoning)
                    && !made.is_empty()
                {
                    let added = made.iter().map(|(_, with)| with.len()).sum();
                    // After an answer that does not fit, none is restored.
                    room = free.checked_sub(added);
                    if room.is_some() {
                        edits.extend(made);
                        restored = restored.saturating_add(1);
                    }
                }
            }
            end = offset(messages.as_bytes(), message).saturating_add(message.len());
        }
        chat.messages = beginning.hash(messages.len());
        Some(Chat {
            key: chat,
            body: (!edits.is_empty()).then(|| apply(body, &edits)),
            restored,
        })
    }

    /// Adds an answer to its chat's entry in shared data. Returns false if the answer has neither reasoning nor tool
    /// calls, if the entry would be too long, or if other workers were faster at every attempt.
    fn keep(
        &self,
        host: &impl Host,
        chat: &ChatKey,
        key: u128,
        answer: Answer,
    ) -> Result<bool, HostError> {
        if answer.reasoning.is_none() && answer.arguments.is_empty() {
            return Ok(false);
        }
        let first = chat.first.unwrap_or(key);
        let mut answer = Some(answer);
        for _ in 0..ATTEMPTS {
            let places = self.places(host, &chat.owner, first);
            let oldest = places
                .into_iter()
                .min_by_key(|place| (place.answers.is_none(), place.used_ms));
            let Some(place) = oldest else {
                return Ok(false);
            };
            let mut answers = place.answers.unwrap_or_default();
            answers.extend(answer.take().map(|answer| (key, answer)));
            let mut entry = header(&chat.owner, first);
            entry.extend_from_slice(&host.now_ms().to_le_bytes());
            let Ok(list) = serde_json::to_vec(&answers) else {
                return Ok(false);
            };
            entry.extend_from_slice(&list);
            if entry.len() > self.max_bytes {
                return Ok(false);
            }
            if host.set_shared_data(&place.key, &entry, place.number)? {
                swap::count_use(host, &self.ring)?;
                return Ok(true);
            }
            // Another worker changed the place.
            answer = answers.remove(&key);
        }
        Ok(false)
    }

    /// Returns the two slots in shared data that a chat may use, with their content. `first` is the key of the chat's
    /// first answer.
    fn places(&self, host: &impl Host, owner: &[u8; 32], first: u128) -> [Place; 2] {
        let header = header(owner, first);
        let hash = xxh3_128(&header);
        [hash % PLACES, hash / PLACES % PLACES].map(|place| {
            let key = key(&self.ring, place);
            let value = host.shared_data(&key).ok().flatten();
            let (value, number) =
                value.map_or((Vec::new(), None), |(value, number)| (value, Some(number)));
            let (known, rest) = value.split_at_checked(HEADER).unwrap_or_default();
            let (used_ms, list) = rest.split_first_chunk().unwrap_or((&[0; 8], &[]));
            let list = (known == header).then_some(list);
            Place {
                key,
                number,
                used_ms: u64::from_le_bytes(*used_ms),
                answers: list.and_then(|list| serde_json::from_slice(list).ok()),
            }
        })
    }
}

/// Removes the answers stored under the ring buffer name `ring`.
pub(crate) fn empty(host: &impl Host, ring: &str) -> Result<(), HostError> {
    (0..PLACES).try_for_each(|place| swap::empty(host, &key(ring, place)))
}

/// Returns the key of a slot in shared data.
fn key(ring: &str, place: u128) -> String {
    format!("foreword/answers/{LAYOUT}/{ring}/{place}")
}

/// Returns the first [`HEADER`] bytes of a chat's entry in shared data, which identify the chat.
fn header(owner: &[u8; 32], first: u128) -> Vec<u8> {
    [owner.as_slice(), &first.to_le_bytes()].concat()
}

/// The fields of a chat request that are read: the messages, and those by which [`Request::owner`] keeps the stored
/// answers of different users and prompts apart (they name the user, or the prompt depends on them).
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    messages: &'a RawValue,
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
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    functions: Option<&'a RawValue>,
    #[serde(borrow)]
    documents: Option<&'a RawValue>,
    #[serde(borrow)]
    chat_template: Option<&'a RawValue>,
    #[serde(borrow)]
    chat_template_kwargs: Option<&'a RawValue>,
}

/// The only field of a request's `metadata` that helps to tell users apart; the other fields may change from request to
/// request.
#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    user_id: Option<&'a RawValue>,
}

impl Request<'_> {
    fn owner(&self, known: &[&str]) -> [u8; 32] {
        let metadata = self.metadata.map(RawValue::get);
        let metadata =
            metadata.and_then(|metadata| serde_json::from_str::<Metadata<'_>>(metadata).ok());
        let said = [
            self.model,
            self.cache_salt,
            self.user,
            self.safety_identifier,
            self.prompt_cache_key,
            metadata.and_then(|metadata| metadata.user_id),
            self.tools,
            self.functions,
            self.documents,
            self.chat_template,
            self.chat_template_kwargs,
        ];
        let mut hash = Sha256::new();
        for part in known {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        for value in said {
            let value = value.map_or("", RawValue::get);
            hash.update(xxh3_128(value.as_bytes()).to_le_bytes());
        }
        hash.finalize().into()
    }
}

/// A message in a client's request, of which a model's earlier answer is one.
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

    /// Returns the key under which the answer in this message may be stored. `chat` is the chat up to the message
    /// before it. `None` if the message's content is not text alone.
    fn key(&self, chat: &ChatKey) -> Option<u128> {
        let calls = self.calls().iter();
        let calls = calls.map(|call| [&*call.id, &*call.function.name]);
        Some(chat.answer(&self.text()?, calls))
    }

    /// Returns the text of the message's content, empty if there is none; `None` if the content is not text alone.
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

    /// Returns the edits that restore the stored `answer` in this message, whose JSON is `raw`: slices of the JSON and
    /// their replacements, where an empty slice is an insertion. `reasoning` is true if reasoning is restored too.
    /// `None` if the client changed more than reasoning and the form of arguments.
    fn missing<'r>(
        &self,
        raw: &'r str,
        answer: &Answer,
        reasoning: bool,
    ) -> Option<Vec<(&'r str, String)>>
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
                if !is_same_json(&words, kept, MAX_DEPTH) {
                    return None;
                }
                edits.push((sent, serde_json::to_string(kept).ok()?));
            }
        }
        if let Some(Reasoning { field, text }) = answer.reasoning.as_ref().filter(|_| reasoning) {
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
                    // The field is inserted after the opening brace; at least the field `role` follows.
                    _ => (raw.get(1..1)?, format!("\"{}\":{text},", field.name())),
                });
            }
        }
        Some(edits)
    }
}

/// A JSON string, unescaped; borrowed if it has no escapes.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Words<'a>(#[serde(borrow)] Cow<'a, str>);

/// Returns whether two texts are the same JSON value, with the same digits in each number. False if they are nested
/// deeper than `depth` levels.
fn is_same_json(one: &str, other: &str, depth: u32) -> bool {
    let (one, other) = (one.trim_ascii(), other.trim_ascii());
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    let same = |one: &RawValue, other: &RawValue| is_same_json(one.get(), other.get(), depth);
    match one.as_bytes().first() {
        Some(b'{') => {
            let fields = |text| serde_json::from_str::<BTreeMap<Words<'_>, &RawValue>>(text);
            let (Ok(one), Ok(other)) = (fields(one), fields(other)) else {
                return false;
            };
            let mut pairs = one.iter().zip(&other);
            one.len() == other.len()
                && pairs.all(|(one, other)| one.0 == other.0 && same(one.1, other.1))
        }
        Some(b'[') => {
            let elements = |text| serde_json::from_str::<AtMost<&RawValue, MAX_MESSAGES>>(text);
            let (Ok(one), Ok(other)) = (elements(one), elements(other)) else {
                return false;
            };
            let mut pairs = one.0.iter().zip(&other.0);
            one.0.len() == other.0.len() && pairs.all(|(one, other)| same(one, other))
        }
        Some(b'"') => {
            let words = |text| serde_json::from_str::<Words<'_>>(text).ok();
            words(one).is_some_and(|one| words(other) == Some(one))
        }
        _ => one == other,
    }
}

/// Returns a copy of `body` in which each edit's slice, which must borrow a part of `body`, is replaced by its string.
fn apply(body: &[u8], edits: &[(&str, String)]) -> Vec<u8> {
    let mut edits: Vec<_> = (edits.iter())
        .map(|(slice, with)| (offset(body, slice), slice.len(), with))
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

/// Deserializes the value of a field that is present, so that `null` becomes `Some`, unlike serde's default.
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

/// Number of slots for chats in shared data, and so the maximum number of chats whose answers are stored for one group
/// of workers that share updates about cached prefixes.
const PLACES: u128 = 512;
/// Version of the layout of entries in shared data. A build with another version starts with an empty store.
const LAYOUT: u32 = 1;
/// Length in bytes of the beginning of a chat's entry in shared data: the hash of what identifies the chat's owner
/// (such as tenant, salt and model), and the key of the chat's first answer.
const HEADER: usize = 48;
/// The maximum number of attempts to store one answer when other workers change the chat's slots too.
const ATTEMPTS: u32 = 4;
/// The maximum depth of nesting to which a tool call's arguments are compared as JSON; deeper arguments count as
/// changed.
const MAX_DEPTH: u32 = 64;
/// Length in bytes from which a message is parsed only if its JSON contains `"assistant"`.
const LONG: usize = 1024;
/// The maximum number of messages of a chat in which answers are restored; in a chat with more, none are. Also the
/// maximum length of lists that are compared in tool calls' arguments.
const MAX_MESSAGES: usize = 4096;
/// The maximum number of tool calls, or of parts of the content, in one message.
const MAX_CALLS: usize = 256;

#[cfg(test)]
mod tests;
