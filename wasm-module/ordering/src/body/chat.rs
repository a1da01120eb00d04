//! A chat's messages: what may hold documents in them, what precedes each in the prompt, and by what a chat is known
//! again. A body of Anthropic's Messages API is read alike: its `system` is a message before the others. So is one of
//! Cohere's first API: its `preamble` comes first, then `chat_history`, then `message`, which is the user's.
//!
//! ```text
//!   messages   m0 ───────── m1 ───────── m2        as the client sends them
//!   chain      H(seed, m0)  H(·, m1)     H(·, m2)  role and content: the chat's identity up to there
//!   before     H(tools)     H(·, m0)     H(·, m1)  every byte: what stands before a message in the prompt
//! ```

use super::content::{Piece, pieces};
use super::json::{offset_in, range_in, scanned, text};
use super::lists::Author;
use super::salt::SaltField;
use super::scan::{Bad, Scan, fields, say};
use super::search::{pass_space, trimmed_ascii};
use super::{MAX_MESSAGES, MAX_MODEL_BYTES, Skip};
use crate::tree::Scope;
use crate::work::hashed;
use smallvec::SmallVec;
use std::borrow::Cow;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// What a chat's messages up to and including one hash to: role and content, byte for byte as the client sends
/// them, and who the client says is asking (`user`, `safety_identifier`, `prompt_cache_key`, `metadata.user_id`).
///
/// Other fields of a message do not count, for clients are known to drop or add some when they send an answer back.
/// The hash is no secret and no proof: what is looked up by it is checked against the request before it is used, where
/// the request holds anything to check it against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Chain(pub(crate) u128);

/// A chat request's outer shape.
pub(super) struct Chat<'a> {
    /// The model's name, empty when the body has none.
    pub(super) model: Cow<'a, str>,
    pub(super) salt: SaltField<'a>,
    pub(super) messages: Vec<ParsedMessage<'a>>,
    /// A list, if it is anything.
    pub(super) documents: Option<&'a str>,
    /// See [`Parsed::retrieval`](super::Parsed::retrieval).
    pub(super) retrieval: Option<&'a str>,
    /// Whether it is a body of Cohere's first API.
    pub(super) is_cohere: bool,
    /// The elements of `tools`, or of `functions` where there are no tools.
    pub(super) tools: Vec<&'a str>,
    pub(super) start: Start<'a>,
    /// See [`Parsed::parameters`](super::Parsed::parameters).
    pub(super) parameters: [Option<&'a str>; PARAMETERS.len()],
}

/// A message.
pub(super) struct ParsedMessage<'a> {
    pub(super) role: Role,
    /// As the chain has it.
    pub(super) role_name: Cow<'a, str>,
    pub(super) content_hash: u128,
    /// Its content, as written; empty if it has none.
    pub(super) content: &'a str,
    /// Hash of the whole message, of which the content's own hash is a part.
    pub(super) hash: u64,
    pub(super) chain: Chain,
    /// Hash of the tools and of the messages before this one.
    pub(super) before: u64,
    /// The chat's turn that it belongs to: assistant messages before it.
    pub(super) turn: u32,
    /// Where documents can be written into it.
    pub(super) entry: Option<Entry>,
    /// The whole message.
    pub(super) raw: &'a str,
    /// What may hold documents, in the order of the prompt.
    pub(super) pieces: SmallVec<[Piece<'a>; 1]>,
}

/// Who speaks in a message, whatever the API calls them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// `system`, `developer`, Anthropic's `system` field, Cohere's `preamble`.
    System,
    /// `user`.
    User,
    /// `assistant`, `CHATBOT`.
    Assistant,
    /// `tool`, `function`.
    Tool,
    /// Any other role, or none.
    #[default]
    Other,
}

impl Role {
    fn of(role: &str) -> Self {
        match role {
            "system" | "developer" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" | "function" => Self::Tool,
            _ => Self::Other,
        }
    }
}

/// Where blocks can be inserted into a user message: before its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Offset in the body.
    pub(crate) at: usize,
    pub(crate) wrap: Wrap,
}

/// What blocks are wrapped in where they are inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrap {
    /// Nothing: the place is inside a string.
    None,
    /// A text part of its own: the place is behind the `[` of a content array, which has other parts or not.
    Part { others: bool },
}

/// A chat request's messages, and its other fields by [`FIELDS`], as written.
#[derive(Default)]
struct RawChat<'a> {
    messages: Option<RawMessages<'a>>,
    /// The elements of these fields, whose bytes are passed over once.
    tools: Vec<&'a str>,
    functions: Vec<&'a str>,
    fields: [Option<&'a str>; FIELDS.len()],
    parameters: [Option<&'a str>; PARAMETERS.len()],
}

/// Fields beside messages and tools that a chat template may render, or that choose how it renders.
pub(crate) const PARAMETERS: [&str; 6] = [
    "tool_choice",
    "response_format",
    "reasoning_effort",
    "thinking",
    "chat_template",
    "chat_template_kwargs",
];

const FIELDS: [&str; 14] = [
    "model",
    "system",
    "preamble",
    "chat_history",
    "message",
    "tools",
    "functions",
    "documents",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "metadata",
    "cache_salt",
    "retrieval",
];

impl<'a> RawChat<'a> {
    fn read(scan: &mut Scan<'a>) -> Result<Self, Bad> {
        let mut chat = Self::default();
        scan.object(|scan, name| {
            if name != "messages" {
                if PARAMETERS.contains(&name) {
                    return scan.field(name, &PARAMETERS, &mut chat.parameters);
                }
                let tools = match name {
                    "tools" => &mut chat.tools,
                    "functions" => &mut chat.functions,
                    _ => return scan.field(name, &FIELDS, &mut chat.fields),
                };
                let value = scan.list_or_value(tools)?;
                return scan.place(name, value, &FIELDS, &mut chat.fields);
            }
            match chat.messages.replace(RawMessages::read(scan)?) {
                None => Ok(()),
                Some(_) => Err(Bad(scan.next())),
            }
        })?;
        Ok(chat)
    }
}

/// A message's fields, as written, if they say anything, and all of it.
struct RawMessage<'a> {
    raw: &'a str,
    role: Option<&'a str>,
    content: Option<&'a str>,
    /// Cohere's first API calls it so.
    message: Option<&'a str>,
}

/// A list of messages, of which as many are kept as a chat may have.
#[derive(Default)]
struct RawMessages<'a> {
    kept: Vec<RawMessage<'a>>,
    count: usize,
}

impl<'a> RawMessages<'a> {
    fn read(scan: &mut Scan<'a>) -> Result<Self, Bad> {
        let mut messages = Self::default();
        scan.list(|scan| {
            let message = RawMessage::read(scan)?;
            messages.count += 1;
            if messages.count <= MAX_MESSAGES {
                messages.kept.push(message);
            }
            Ok(())
        })?;
        Ok(messages)
    }

    /// All of them.
    fn all(self) -> Result<Vec<RawMessage<'a>>, Skip> {
        match self.count {
            found if found > MAX_MESSAGES => Err(Skip::TooManyMessages { found }),
            _ => Ok(self.kept),
        }
    }
}

impl<'a> RawMessage<'a> {
    fn read(scan: &mut Scan<'a>) -> Result<Self, Bad> {
        let start = scan.next();
        let mut fields = scan.fields(["role", "content", "message"])?;
        say(&mut fields);
        let [role, content, message] = fields;
        Ok(Self {
            raw: scan.since(start),
            role,
            content,
            message,
        })
    }
}

/// Who the client says is asking, in `metadata`. Whatever else it keeps there may change from request to request.
fn user_id(metadata: &str) -> Option<&str> {
    let [id] = fields(metadata, ["user_id"]).ok()?;
    id
}

impl<'a> Chat<'a> {
    pub(super) fn read(body: &'a str) -> Result<Self, Skip> {
        let top = trimmed_ascii(body);
        let RawChat {
            messages,
            tools: mut listed,
            functions: listed_functions,
            mut fields,
            mut parameters,
        } = scanned(body, top, RawChat::read)?;
        // `null` is something here: a salt written beside it would not be the last one, and what is meant for the gateway
        // is cut out whatever it says. In other fields it is nothing.
        let [.., salt, retrieval] = fields;
        say(&mut fields);
        say(&mut parameters);
        let [
            model,
            system,
            preamble,
            history,
            message,
            tools,
            functions,
            documents,
            user,
            safety_identifier,
            prompt_cache_key,
            metadata,
            ..,
        ] = fields;
        let model = text(body, model)?;
        if model.len() > MAX_MODEL_BYTES {
            return Err(Skip::LongModelName {
                bytes: model.len(),
                limit: MAX_MODEL_BYTES,
            });
        }
        let asked = [tools, user, safety_identifier, prompt_cache_key, metadata];
        hashed(asked.into_iter().flatten().map(str::len).sum());
        let asking = [
            user,
            safety_identifier,
            prompt_cache_key,
            metadata.and_then(user_id),
        ];
        let mut before = xxh3_64_with_seed(tools.unwrap_or_default().as_bytes(), 0);
        if let Some(functions) = functions {
            before = xxh3_64_with_seed(functions.as_bytes(), before);
        }
        let field = if listed.is_empty() {
            listed = listed_functions;
            functions
        } else {
            tools
        };
        let mut place = MessageReader {
            chain: asking.into_iter().fold(Chain(0), |chain, value| {
                chain.then("", xxh3_128(value.unwrap_or_default().as_bytes()))
            }),
            before,
            turn: 0,
        };
        let start = Start {
            chain: place.chain,
            before: place.before,
            field: field.filter(|_| !listed.is_empty()),
            is_functions: tools.is_none(),
        };
        let messages = messages.unwrap_or_default().all()?;
        let is_cohere = message.is_some() && messages.is_empty();
        let (system, earlier, last) = if is_cohere {
            let history = history.map(|history| scanned(body, history, RawMessages::read));
            let history = history.transpose()?.unwrap_or_default().all()?;
            (preamble, history, message)
        } else {
            (system, messages, None)
        };
        let mut messages = Vec::with_capacity(earlier.len() + 2);
        if let Some(system) = system {
            messages.push(place.message(body, system, "system".into(), Some(system))?);
        }
        for message in earlier {
            let role = text(body, message.role)?;
            let role = match role.as_ref() {
                "USER" => "user".into(),
                "CHATBOT" => "assistant".into(),
                _ => role,
            };
            let content = message.content.or(message.message);
            messages.push(place.message(body, message.raw, role, content)?);
        }
        if let Some(last) = last {
            messages.push(place.message(body, last, "user".into(), Some(last))?);
        }
        Ok(Self {
            model,
            salt: SaltField::new(body, top, salt),
            messages,
            documents,
            retrieval,
            is_cohere,
            tools: listed,
            start,
            parameters,
        })
    }
}

/// Where reading the messages has come to.
struct MessageReader {
    chain: Chain,
    before: u64,
    turn: u32,
}

impl MessageReader {
    /// The message `raw`.
    fn message<'a>(
        &mut self,
        body: &'a str,
        raw: &'a str,
        role_name: Cow<'a, str>,
        content: Option<&'a str>,
    ) -> Result<ParsedMessage<'a>, Skip> {
        let role = role_name.as_ref();
        let content = content.unwrap_or_default();
        let start = offset_in(body, content) + 1;
        let author = match role {
            "tool" | "function" => Author::Tool,
            _ => Author::Other,
        };
        let pieces = pieces(body, content, author)?;
        let wrap = match content.as_bytes().first() {
            Some(b'"') => Some(Wrap::None),
            Some(b'[') => Some(Wrap::Part {
                others: content.as_bytes().get(pass_space(content, 1)) != Some(&b']'),
            }),
            _ => None,
        };
        // The content, most of the bytes, is hashed once for both hashes.
        let hash = xxh3_128(content.as_bytes());
        hashed(raw.len() + role.len());
        let (head, tail) = around(raw, content);
        self.chain = self.chain.then(role, hash);
        let parts = [head.as_bytes(), &hash.to_le_bytes(), tail.as_bytes()];
        let turn = ParsedMessage {
            role: Role::of(role),
            content_hash: hash,
            content,
            hash: folded(&parts, 0),
            chain: self.chain,
            before: self.before,
            turn: self.turn,
            entry: wrap
                .filter(|_| role == "user")
                .map(|wrap| Entry { at: start, wrap }),
            raw,
            pieces,
            role_name,
        };
        self.before = folded(&parts, self.before);
        self.turn += u32::from(turn.role_name == "assistant");
        Ok(turn)
    }
}

/// What stands before and behind the content of a message; all of it, if it has none.
pub(super) fn around<'a>(raw: &'a str, content: &str) -> (&'a str, &'a str) {
    if content.is_empty() {
        return (raw, "");
    }
    let range = range_in(raw, content);
    (
        raw.get(..range.start).unwrap_or_default(),
        raw.get(range.end..).unwrap_or_default(),
    )
}

/// By what a chat is known before its first message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) chain: Chain,
    /// See [`ParsedMessage::before`].
    pub(crate) before: u64,
    /// The field that the tools stand in, as written.
    pub(crate) field: Option<&'a str>,
    pub(crate) is_functions: bool,
}

impl Start<'_> {
    /// What [`Start::before`] is with that field in the place of the one that came.
    pub(crate) fn before_with(&self, field: &str) -> u64 {
        let before = if self.is_functions {
            xxh3_64_with_seed(b"", 0)
        } else {
            0
        };
        xxh3_64_with_seed(field.as_bytes(), before)
    }
}

/// The hash of `parts`, each with the hash of those before it as its seed.
pub(super) fn folded(parts: &[&[u8]], seed: u64) -> u64 {
    parts
        .iter()
        .fold(seed, |seed, part| xxh3_64_with_seed(part, seed))
}

impl ParsedMessage<'_> {
    /// What precedes documents that are written into it.
    pub(super) fn rendered_scope(&self) -> Scope {
        rendered_scope(self.before)
    }
}

/// What precedes documents that are written into a message, by what precedes it.
pub(super) fn rendered_scope(before: u64) -> Scope {
    Scope(xxh3_64_with_seed(b"rendered", before))
}

impl Chain {
    pub(crate) fn then(self, role: &str, content: u128) -> Self {
        let mut link: SmallVec<[u8; 64]> = SmallVec::new();
        link.extend_from_slice(&self.0.to_le_bytes());
        link.extend_from_slice(&content.to_le_bytes());
        link.extend_from_slice(role.as_bytes());
        Self(xxh3_128(&link))
    }
}
