//! Reads a chat's messages: the parts that may contain documents, the hash of the prompt before each message, and the
//! hash chain that identifies the chat. All [formats](super::formats) are read alike: the system text is a message
//! before the others, and Cohere's `message`, or an `input` that is a string, is the last user message.
//!
//! ```text
//!   messages   m0 ───────── m1 ───────── m2        as the client sends them
//!   chain      H(seed, m0)  H(·, m1)     H(·, m2)  role and content: the chat's identity up to there
//!   before     H(tools)     H(·, m0)     H(·, m1)  every byte: the prompt before a message
//! ```
//!
//! The protocols have no chat id, and a header with one could be forged. So a chat is identified by its text and by
//! `user`, `safety_identifier`, `prompt_cache_key` and `metadata.user_id`. A scope covers every byte before the
//! documents, because a tree that ignored the system prompt would expect matches that the engine cannot have.

use super::content::{Piece, Pieces, pieces};
use super::formats::{
    self, COHERE_AT, FORMAT_COUNT, FORMATS, Format, Interpreted, MAX_FIELDS, PRECEDING, PartStyle,
    RawMessage,
};
use super::found::{Chain, Entry, Message, Wrap};
use super::json::{elements, offset_in, range_in, scanned, text};
use super::role::Role;
use super::salt::SaltField;
use super::scan::{self, Bad, Scan, drop_nulls, fields};
use super::search::{pass_space, trimmed_json};
use super::{MAX_MESSAGES, MAX_MODEL_BYTES, Skip};
use crate::tree::Scope;
use crate::work::hashed;
use smallvec::SmallVec;
use std::borrow::Cow;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// The messages of a chat request, and the fields of the body outside of them that affect the prompt.
pub(super) struct Chat<'a> {
    /// The model's name; empty if the body does not name one.
    pub(super) model: Cow<'a, str>,
    pub(super) salt: SaltField<'a>,
    pub(super) messages: Vec<ParsedMessage<'a>>,
    /// The value of the `documents` field, as JSON; `None` if absent or `null`.
    pub(super) documents: Option<&'a str>,
    /// The JSON of the field `retrieval`, the client's instructions on finding documents; `None` if absent.
    pub(super) retrieval: Option<&'a str>,
    /// True if the body is in the format of Cohere's v1 API.
    pub(super) is_cohere: bool,
    /// True if the body's messages are in the field `messages` (OpenAI chat, Anthropic, Converse, Cohere v2), or if it
    /// has none.
    pub(super) is_chat: bool,
    /// True if the body lets the server remove earlier parts of the prompt: `context_management` (Anthropic, Responses),
    /// `truncation` (Responses), `truncate_prompt_tokens` (vLLM), `prompt_truncation` (Cohere).
    pub(super) may_be_cut: bool,
    /// The JSON of each element of `tools`, or of `functions` if there are no tools.
    pub(super) tools: Vec<&'a str>,
    pub(super) start: Start<'a>,
    /// The JSON of the fields [`PARAMETERS`], which a chat template may render; `None` if absent or `null`.
    pub(super) parameters: [Option<&'a str>; PARAMETERS.len()],
}

/// A message of a chat, in which documents have not been searched yet.
pub(super) struct ParsedMessage<'a> {
    /// The message; its list of groups of documents is still empty.
    pub(super) message: Message<'a>,
    /// Hash of the prompt before the message: of the tools, of context stored at the server to which the body refers,
    /// and of all earlier messages.
    pub(super) before: u64,
    /// The parts of the message's content that may contain documents, in the order of the prompt.
    pub(super) pieces: SmallVec<[Piece<'a>; 1]>,
}

/// The fields of a request's body that hold messages, affect the prompt or identify the user, as raw JSON. `fields`,
/// `parameters` and `preceding` are in the order of [`FIELDS`], [`PARAMETERS`] and [`PRECEDING`].
#[derive(Default)]
struct RawChat<'a> {
    /// The lists of messages found in the body, one for each format, in the order of [`FORMATS`]; `None` if absent.
    lists: [Option<RawMessages<'a>>; FORMAT_COUNT],
    /// The JSON of the system texts found in the body, one for each format, in the order of [`FORMATS`]; `None` if
    /// absent.
    systems: [Option<&'a str>; FORMAT_COUNT],
    /// The JSON of each element of `tools`; those of `functions` follow in a field of their own.
    tools: Vec<&'a str>,
    functions: Vec<&'a str>,
    fields: [Option<&'a str>; FIELDS.len()],
    parameters: [Option<&'a str>; PARAMETERS.len()],
    preceding: [Option<&'a str>; PRECEDING.len()],
}

/// Names of the body's fields, other than messages and tools, that a chat template may render or that change the
/// rendered prompt.
pub(crate) const PARAMETERS: [&str; 6] = [
    "tool_choice",
    "response_format",
    "reasoning_effort",
    "thinking",
    "chat_template",
    "chat_template_kwargs",
];

const FIELDS: [&str; 15] = [
    "model",
    "message",
    "tools",
    "functions",
    "documents",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "metadata",
    "context_management",
    "truncation",
    "truncate_prompt_tokens",
    "prompt_truncation",
    "cache_salt",
    "retrieval",
];

impl<'a> RawChat<'a> {
    fn read(scan: &mut Scan<'a>) -> Result<Self, Bad> {
        let mut chat = Self::default();
        scan.object(|scan, name| chat.field(scan, name))?;
        Ok(chat)
    }

    fn field(&mut self, scan: &mut Scan<'a>, name: &str) -> Result<(), Bad> {
        for ((format, list), system) in FORMATS.iter().zip(&mut self.lists).zip(&mut self.systems) {
            if format.messages == name {
                return match list.replace(RawMessages::read(scan, format)?) {
                    None => Ok(()),
                    Some(_) => Err(Bad(scan.next())),
                };
            }
            if format.system.contains(&name) {
                return scan.field("", &[""], std::slice::from_mut(system));
            }
        }
        if PARAMETERS.contains(&name) {
            return scan.field(name, &PARAMETERS, &mut self.parameters);
        }
        if let Some(name) = formats::parameter(name) {
            return self.parameter(scan, name);
        }
        if PRECEDING.contains(&name) {
            return scan.field(name, &PRECEDING, &mut self.preceding);
        }
        if formats::is_tool_config(name) && scan.peek() == Some(b'{') {
            // Converse puts the tools and the tool choice here, Gemini only the tool choice.
            return scan.object(|scan, name| match formats::parameter(name) {
                Some(name) => self.parameter(scan, name),
                None if name == "tools" => self.tools(scan, name),
                None => scan.value().map(|_| ()),
            });
        }
        match name {
            "tools" | "functions" => self.tools(scan, name),
            _ => scan.field(name, &FIELDS, &mut self.fields),
        }
    }

    fn tools(&mut self, scan: &mut Scan<'a>, name: &str) -> Result<(), Bad> {
        let tools = match name {
            "tools" => &mut self.tools,
            _ => &mut self.functions,
        };
        let value = scan.list_or_value(tools)?;
        scan.place(name, value, &FIELDS, &mut self.fields)
    }

    /// Reads a field that is a parameter of the prompt but has another name in this format; `name` is its name in
    /// [`PARAMETERS`]. Ignored if the field was already read under that name.
    fn parameter(&mut self, scan: &mut Scan<'a>, name: &str) -> Result<(), Bad> {
        let value = scan.value()?;
        let place = PARAMETERS.iter().position(|known| *known == name);
        if let Some(field) = place.and_then(|at| self.parameters.get_mut(at)) {
            field.get_or_insert(value);
        }
        Ok(())
    }

    /// Returns the index in [`FORMATS`] of the format of this body: the first whose list of messages is not empty, then
    /// Cohere's v1 if the body has a `message`, otherwise 0.
    fn format(&self) -> usize {
        let holds =
            |list: &Option<RawMessages<'_>>| list.as_ref().is_some_and(|list| list.count > 0);
        let mut chats = self.lists.iter().take(COHERE_AT);
        let [_, message, ..] = self.fields;
        match chats.position(holds) {
            Some(at) => at,
            None if message.is_some_and(|message| message != "null") => COHERE_AT,
            None => 0,
        }
    }
}

/// A list of messages from the body. All are counted, but at most [`MAX_MESSAGES`] are stored.
#[derive(Default)]
struct RawMessages<'a> {
    kept: Vec<RawMessage<'a>>,
    /// The JSON of the user's message, if the field is a string (the only message) instead of a list; otherwise `None`.
    only: Option<&'a str>,
    count: usize,
}

impl<'a> RawMessages<'a> {
    fn read(scan: &mut Scan<'a>, format: &Format) -> Result<Self, Bad> {
        let mut messages = Self::default();
        match scan.peek() {
            Some(b'"') if !format.is_strict => {
                messages.only = Some(scan.value()?);
                messages.count = 1;
                return Ok(messages);
            }
            Some(b'[') => {}
            _ if !format.is_strict => return scan.value().map(|_| messages),
            _ => {}
        }
        scan.list(|scan| {
            let start = scan.next();
            let mut fields = [None; MAX_FIELDS];
            if scan.peek() == Some(b'{') || format.is_strict {
                scan.read_fields(format.fields, &mut fields)?;
                drop_nulls(&mut fields);
            } else {
                scan.value()?;
            }
            messages.count += 1;
            if messages.count <= MAX_MESSAGES {
                let raw = scan.since(start);
                messages.kept.push(RawMessage { raw, fields });
            }
            Ok(())
        })?;
        Ok(messages)
    }

    /// Returns the messages; an error if there are more than [`MAX_MESSAGES`].
    fn all(&self) -> Result<&[RawMessage<'a>], Skip> {
        match self.count {
            found if found > MAX_MESSAGES => Err(Skip::TooManyMessages { found }),
            _ => Ok(&self.kept),
        }
    }
}

/// Returns the JSON of the client's `user_id` in `metadata`, whose other fields may change between requests; `None` if
/// absent.
fn user_id(metadata: &str) -> Option<&str> {
    let [id] = fields(metadata, ["user_id"]).ok()?;
    id
}

impl<'a> Chat<'a> {
    pub(super) fn read(body: &'a str) -> Result<Self, Skip> {
        let top = trimmed_json(body);
        let raw = scanned(body, top, RawChat::read)?;
        let at = raw.format();
        let RawChat {
            mut lists,
            mut systems,
            tools: mut listed,
            functions: listed_functions,
            mut fields,
            mut parameters,
            mut preceding,
        } = raw;
        let format = FORMATS.get(at).ok_or(Skip::NoDocuments)?;
        // In `cache_salt` and `retrieval`, `null` counts as a value: a second salt would be ambiguous, and the field
        // `retrieval` is removed whatever its value. In other fields `null` means absent.
        let [.., salt, retrieval] = fields;
        drop_nulls(&mut fields);
        drop_nulls(&mut parameters);
        drop_nulls(&mut preceding);
        drop_nulls(&mut systems);
        let [
            model,
            message,
            mut tools,
            functions,
            documents,
            user,
            safety_identifier,
            prompt_cache_key,
            metadata,
            context_management,
            truncation,
            truncate_prompt_tokens,
            prompt_truncation,
            ..,
        ] = fields;
        let may_be_cut = context_management.is_some()
            || truncation.is_some_and(|value| value != r#""disabled""#)
            || truncate_prompt_tokens.is_some()
            || prompt_truncation.is_some_and(|value| value != r#""OFF""#);
        let model = text(body, model)?;
        named(&model)?;
        if let ("contents", [only]) = (format.messages, listed.as_slice())
            && let Some((field, functions)) = functions_in(body, only)
        {
            (tools, listed) = (Some(field), functions);
        }
        let asked = [tools, user, safety_identifier, prompt_cache_key, metadata];
        let known = asked.into_iter().chain(preceding).flatten();
        hashed(known.map(str::len).sum());
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
        let asking = asking.into_iter().fold(Chain(0), |chain, value| {
            chain.then("", xxh3_128(value.unwrap_or_default().as_bytes()))
        });
        let named = PRECEDING.into_iter().zip(preceding);
        let chain = named.fold(asking, |chain, (name, value)| match value {
            Some(value) => chain.then(name, xxh3_128(value.as_bytes())),
            None => chain,
        });
        // A chat's references to earlier copies are not repeated in a request whose prompt may lose these copies.
        let chain = match may_be_cut {
            true => chain.then("may_be_cut", 0),
            false => chain,
        };
        let [first, second, third] = preceding;
        let [_, _, effort, _, template, _] = parameters;
        let outside = [first, second, third, effort, template];
        let start = Start {
            chain,
            before: behind(before, &outside),
            field: field.filter(|_| !listed.is_empty()),
            is_functions: tools.is_none(),
            outside,
        };
        let mut place = MessageReader {
            chain: start.chain,
            before: start.before,
            turn: 0,
            count: 0,
            style: format.style,
            is_in_run: false,
        };
        let is_cohere = at == COHERE_AT;
        let list = lists.get_mut(at).and_then(Option::take).unwrap_or_default();
        let last = message.filter(|_| is_cohere).or(list.only);
        let earlier = list.all()?;
        let mut messages = Vec::with_capacity(earlier.len() + 2);
        if let Some(system) = systems.get(at).copied().flatten() {
            let said = Interpreted::message("system".into(), Some(parts_of(body, system)?));
            messages.push(place.message(body, system, said)?);
        }
        for message in earlier {
            let said = (format.interpret)(body, message)?;
            messages.push(place.message(body, message.raw, said)?);
        }
        if let Some(last) = last {
            messages.push(place.message(
                body,
                last,
                Interpreted::message("user".into(), Some(last)),
            )?);
        }
        Ok(Self {
            model,
            salt: SaltField::new(body, top, salt),
            messages,
            documents,
            retrieval,
            is_cohere,
            is_chat: at == 0,
            may_be_cut,
            tools: listed,
            start,
            parameters,
        })
    }
}

/// Returns an error if the model's name is longer than [`MAX_MODEL_BYTES`].
pub(super) fn named(model: &str) -> Result<(), Skip> {
    match model.len() {
        bytes if bytes > MAX_MODEL_BYTES => Err(Skip::LongModelName {
            bytes,
            limit: MAX_MODEL_BYTES,
        }),
        _ => Ok(()),
    }
}

/// Returns the list of functions of a Gemini tool, as JSON, and its elements; `None` if it has no functions.
fn functions_in<'a>(body: &str, tool: &'a str) -> Option<(&'a str, Vec<&'a str>)> {
    let names = ["functionDeclarations", "function_declarations"];
    let [functions, other] = scan::fields(tool, names).ok()?;
    let field = functions.or(other).filter(|field| field.starts_with('['))?;
    let functions = elements(body, field).ok()?;
    (!functions.is_empty()).then_some((field, functions))
}

/// Returns the JSON of the content of a system text: for Gemini the list of parts in the object, otherwise the value
/// itself.
fn parts_of<'a>(body: &str, system: &'a str) -> Result<&'a str, Skip> {
    if !system.starts_with('{') {
        return Ok(system);
    }
    let [parts] = super::json::fields(body, system, ["parts"])?;
    Ok(parts.unwrap_or(system))
}

/// Returns the hash `before`, extended by the values of those of `fields`, [`Start::outside`], that are present.
fn behind(before: u64, fields: &[Option<&str>]) -> u64 {
    let named = (1_u8..).zip(fields);
    named.fold(before, |before, (at, value)| match value {
        Some(value) => folded(&[&[at], value.as_bytes()], before),
        None => before,
    })
}

/// The state of the reader between two messages: the hashes of all earlier messages, the number of the turn, and how
/// many messages and parts were read.
struct MessageReader {
    chain: Chain,
    before: u64,
    turn: u32,
    /// Number of messages and of their content parts read so far, which [`MAX_MESSAGES`] limits.
    count: usize,
    style: PartStyle,
    /// True if the previous message or input item was an assistant's.
    is_in_run: bool,
}

impl MessageReader {
    /// Reads the message `raw`, whose role and content are in `said`, and adds it to the hashes. Returns an error if
    /// its content is malformed or the chat has too many messages and parts.
    fn message<'a>(
        &mut self,
        body: &'a str,
        raw: &'a str,
        said: Interpreted<'a>,
    ) -> Result<ParsedMessage<'a>, Skip> {
        let Interpreted {
            role,
            role_name,
            content,
            holds,
        } = said;
        let start = offset_in(body, content) + 1;
        let Pieces {
            pieces,
            style,
            is_result,
            parts,
        } = pieces(body, content, holds, self.style)?;
        self.count += 1 + parts;
        if self.count > MAX_MESSAGES {
            return Err(Skip::TooManyMessages { found: self.count });
        }
        let wrap = match content.as_bytes().first() {
            Some(b'"') => Some(Wrap::None),
            Some(b'[') => Some(Wrap::Part {
                others: content.as_bytes().get(pass_space(content, 1)) != Some(&b']'),
                style,
            }),
            _ => None,
        };
        // The content has most of the bytes: it is hashed once, and both hashes use the result.
        let hash = xxh3_128(content.as_bytes());
        hashed(raw.len() + role_name.len());
        let (head, tail) = around(raw, content);
        self.chain = self.chain.then(&role_name, hash);
        let parts = [head.as_bytes(), &hash.to_le_bytes(), tail.as_bytes()];
        let wrap = wrap.filter(|_| role == Role::User && !is_result);
        let entry = wrap.map(|wrap| (Entry { at: start, wrap }, rendered_scope(self.before)));
        let turn = ParsedMessage {
            message: Message {
                role,
                role_name,
                content_hash: hash,
                raw,
                content,
                hash: folded(&parts, 0),
                chain: self.chain,
                turn: self.turn,
                entry,
                groups: Vec::new(),
            },
            before: self.before,
            pieces,
        };
        self.before = folded(&parts, self.before);
        // All items of one answer, including its messages, belong to one turn.
        let is_item = self.style == PartStyle::Input;
        let speaks = role == Role::Assistant;
        self.turn += u32::from(speaks && !(is_item && self.is_in_run));
        self.is_in_run = speaks;
        Ok(turn)
    }
}

/// Returns the bytes of a message before and after its content. If it has no content, returns all bytes as those
/// before.
pub(crate) fn around<'a>(raw: &'a str, content: &str) -> (&'a str, &'a str) {
    if content.is_empty() {
        return (raw, "");
    }
    let range = range_in(raw, content);
    (
        raw.get(..range.start).unwrap_or_default(),
        raw.get(range.end..).unwrap_or_default(),
    )
}

/// The two hashes of a chat before its first message, and the fields from which they were computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) chain: Chain,
    /// Hash of the prompt before the first message: of the tools, of context that is stored at the server and to which
    /// the body only refers, and of two parameters.
    pub(crate) before: u64,
    /// The JSON of the field with the tools; `None` if it is absent or empty.
    pub(crate) field: Option<&'a str>,
    pub(crate) is_functions: bool,
    /// The JSON of the fields [`PRECEDING`], which refer to context stored at the server, and of those [`PARAMETERS`]
    /// that change a prompt before its messages: the effort of reasoning, which gpt-oss has in its system text, and the
    /// template. `None` if absent or `null`. Most other parameters are rendered behind the messages, or not at all;
    /// where a template has `chat_template_kwargs` before them, a scope does not tell them apart.
    outside: [Option<&'a str>; PRECEDING.len() + 2],
}

impl<'a> Start<'a> {
    pub(super) fn previous_response(&self) -> Option<Cow<'a, str>> {
        let [id, ..] = self.outside;
        super::string(id?)
    }

    /// Returns the value that [`Start::before`] would have if the field with the tools had the JSON `field`.
    pub(crate) fn before_with(&self, field: &str) -> u64 {
        let before = if self.is_functions {
            xxh3_64_with_seed(b"", 0)
        } else {
            0
        };
        let before = xxh3_64_with_seed(field.as_bytes(), before);
        behind(before, &self.outside)
    }
}

/// Returns the hash of `parts` in order; the hash of each part is the seed for the next one.
pub(super) fn folded(parts: &[&[u8]], seed: u64) -> u64 {
    (parts.iter()).fold(seed, |seed, part| xxh3_64_with_seed(part, seed))
}

/// Returns the scope (hash of the prompt before documents) of documents that the gateway writes into a message, given
/// the hash of the prompt before that message.
pub(super) fn rendered_scope(before: u64) -> Scope {
    Scope(xxh3_64_with_seed(b"rendered", before))
}
