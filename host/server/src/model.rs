//! The served model: its name, its conversion between text and tokens, and the engine that computes it.
//!
//! This module checks a parsed request against the model: whether its messages fit the chat template, and whether
//! prompt and answer fit the model's context. It knows nothing of HTTP.

use crate::device::DeviceConfig;
use crate::failure::{Failure, clip};
use crate::ids::now;
use crate::kv::place::{Placed, Placer};
use crate::request::{Chat, Completion, Delivery, Format, Options, Prompt, ToolChoice};
use crate::tiers::Tiers;
use anyhow::Context;
use foreword_engine::TokenId;
use foreword_engine::backend::{Backend, BackendShape};
use foreword_engine::engine::{Engine, EngineConfig, Generation, Kind, Request};
use foreword_engine::models::ModelConfig;
use foreword_engine::sampling::{Constraint, SamplingFields};
use foreword_engine::text::{
    Cancel, ChatTemplate, Ending, Grammars, OPEN_TOOL_CALL, SchemaError, TextError, TokenCache,
    TokenCacheStats, Tokenizer,
};
use serde_json::Value;
use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

/// A loaded model with its tokenizer, chat template and engine.
pub struct Model {
    name: String,
    created_s: u64,
    tokenizer: Tokenizer,
    token_cache: TokenCache,
    template: Option<ChatTemplate>,
    /// Grammars for constrained answers. Created on first use, because that takes some tenths of a second.
    grammars: OnceLock<Result<Grammars, String>>,
    /// The tokens with which the model ends an answer.
    eos_tokens: Vec<TokenId>,
    /// The checkpoint's sampling parameters, for requests that leave them out.
    sampling: SamplingFields,
    shape: BackendShape,
    engine: Engine,
}

/// The places in an answer at which the model can make tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Nowhere: the whole answer is text.
    None,
    /// Between the tags of the model's chat template, within text.
    Tagged,
    /// Between the tags of the model's chat template, within text; the first complete call ends the answer.
    First,
    /// The whole answer is a tool call.
    Bare,
}

impl Model {
    /// Loads the checkpoint in `folder` onto a device and starts an engine with the cache tiers of `tiers` and the
    /// device's step sizes. Chats are rendered by the template in the file `template`, or else by the checkpoint's.
    /// Slow: it reads the weights, and may measure the cost of computing.
    ///
    /// # Errors
    /// Returns an error if the device is missing, or a file of the checkpoint or of the tiers is missing, malformed or
    /// not supported; the chain names file and reason.
    pub fn load(
        folder: &Path,
        template: Option<&Path>,
        name: String,
        device: &DeviceConfig,
        tiers: &Tiers,
        mut engine: EngineConfig,
    ) -> anyhow::Result<Self> {
        let mut opened = device.open(folder)?;
        engine.max_step_tokens = opened.max_step_tokens;
        engine.max_prefill_step_tokens = Some(opened.max_prefill_step_tokens);
        engine.cache = tiers.open(&mut opened, engine.prefix_caching)?;
        let factory = {
            let (folder, device) = (folder.to_owned(), device.clone());
            move || match device.open(&folder) {
                Ok(opened) => Ok(opened.backend),
                Err(error) => Err(format!("{error:#}")),
            }
        };
        Self::with_engine(folder, template, name, opened.backend, |backend| {
            Engine::guarded(backend, Box::new(factory), engine)
        })
    }

    /// Reads everything except the weights of a model from `folder`, and calls `start` for an engine on `backend`,
    /// which has the weights. `template` is as for [`Model::load`].
    ///
    /// # Errors
    /// Returns the errors of [`Model::load`].
    pub fn with_engine(
        folder: &Path,
        template: Option<&Path>,
        name: String,
        backend: Box<dyn Backend>,
        start: impl FnOnce(Box<dyn Backend>) -> Engine,
    ) -> anyhow::Result<Self> {
        let context = || format!("cannot load the model in {}", folder.display());
        let tokenizer = Tokenizer::load(folder).with_context(context)?;
        let template = ChatTemplate::load(folder, template).with_context(context)?;
        let config = ModelConfig::load(folder).with_context(context)?;
        let mut eos_tokens = config.eos_tokens;
        // For a model fine-tuned for chat, often only the tokenizer's configuration names the end-of-turn token.
        let named = template.as_ref().and_then(ChatTemplate::eos_token);
        let named = named.and_then(|name| tokenizer.token(name));
        if let Some(token) = named.filter(|token| !eos_tokens.contains(token)) {
            eos_tokens.push(token);
        }
        if eos_tokens.is_empty() {
            tracing::warn!(
                "the model names no token that ends an answer: only `max_tokens` and `stop` do"
            );
        }
        let shape = backend.shape();
        let (fits, positions) = (shape.longest_sequence(), shape.max_positions);
        if fits < positions {
            tracing::warn!(
                tokens = fits,
                positions,
                "the KV pages hold fewer tokens than the model has positions: longer prompts are refused"
            );
        }
        Ok(Self {
            name,
            created_s: now(),
            token_cache: TokenCache::new(&tokenizer, TOKEN_CACHE_BYTES),
            tokenizer,
            template,
            grammars: OnceLock::new(),
            eos_tokens,
            sampling: config.sampling,
            shape,
            engine: start(backend),
        })
    }

    /// Returns the model with a cache of up to `bytes` bytes for the tokens of repeated texts.
    #[must_use]
    pub fn with_token_cache(self, bytes: usize) -> Self {
        Self {
            token_cache: TokenCache::new(&self.tokenizer, bytes),
            ..self
        }
    }

    /// Returns the name under which the model is served.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the checkpoint's sampling parameters, which requests may leave out.
    pub fn sampling(&self) -> SamplingFields {
        self.sampling
    }

    /// Returns the time of loading, in seconds since 1970.
    pub fn created_s(&self) -> u64 {
        self.created_s
    }

    /// Returns the dimensions of the model and of its page pools.
    pub fn shape(&self) -> BackendShape {
        self.shape
    }

    /// Returns the model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the counters of the cache for the tokens of repeated texts.
    pub fn token_cache_stats(&self) -> TokenCacheStats {
        self.token_cache.stats()
    }

    /// Returns the engine that computes the model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns three things for a chat: the engine's request, with the documents that `placer` finds in the prompt; the
    /// places in the answer at which tool calls can occur; and the grammar that must still be prepared, if the answer
    /// needs one. Renders and tokenises the prompt, so do not call it on an async worker.
    ///
    /// A forced call uses the model's own format if its template has one: the prompt then ends with the tag that opens
    /// a call, and the answer is the call.
    ///
    /// # Errors
    /// Returns an error if the chat does not fit the model.
    pub fn chat_request(
        &self,
        chat: &Chat,
        placer: &Placer<'_>,
    ) -> Result<(Request, Calls, Option<UnpreparedGrammar>), Failure> {
        let (prompt, calls, forced) = self.render(chat)?;
        // The template already wrote the special tokens that open a prompt.
        let placed = placer.place(&prompt);
        let bytes = placed.as_ref().map(Placed::bytes).unwrap_or_default();
        let (tokens, counts) = self.encode(&prompt, false, &chat.options, &bytes)?;
        let documents = placed.and_then(|placed| placed.in_tokens(&counts));
        let mut request = self.request(tokens, "messages", &chat.options, None)?;
        request.documents = documents;
        let grammar = UnpreparedGrammar::of(&chat.options.format).or(forced);
        self.check_stop_tokens(&chat.options, grammar.as_ref())?;
        Ok((request, calls, grammar))
    }

    /// Returns the tokens of a chat's prompt. Renders and tokenises, so do not call it on an async worker.
    ///
    /// # Errors
    /// Returns an error if the chat does not fit the template.
    pub fn chat_tokens(&self, chat: &Chat) -> Result<Vec<TokenId>, Failure> {
        let (prompt, _, _) = self.render(chat)?;
        Ok(self.encode(&prompt, false, &chat.options, &[])?.0)
    }

    /// Returns a chat's prompt, the places in the answer at which tool calls can occur, and the grammar for a tool call
    /// that the request requires, if any.
    fn render(&self, chat: &Chat) -> Result<(String, Calls, Option<UnpreparedGrammar>), Failure> {
        let Some(template) = &self.template else {
            return Err(Failure::invalid(
                "messages",
                "this model has no chat template; use /v1/completions",
            ));
        };
        let tools = chat.tools.as_ref();
        let mut prompt = template
            .render(
                &with_known_roles(template, &chat.messages),
                tools.map(|tools| &tools.shown),
                chat.documents.as_ref(),
                chat.template_variables.as_ref(),
                chat.ending,
            )
            .map_err(unrendered)?;
        let (calls, forced) = match tools.map(|tools| (&tools.choice, tools.parallel)) {
            Some((ToolChoice::Forced(schema), _)) => {
                if template.tags_tool_calls() {
                    prompt.push_str(OPEN_TOOL_CALL);
                    prompt.push('\n');
                }
                let forced = UnpreparedGrammar {
                    field: "tools",
                    schema: Some(schema.clone()),
                };
                (Calls::Bare, Some(forced))
            }
            Some((ToolChoice::Auto, parallel)) if template.tags_tool_calls() => {
                let calls = if parallel {
                    Calls::Tagged
                } else {
                    Calls::First
                };
                (calls, None)
            }
            _ => (Calls::None, None),
        };
        Ok((prompt, calls, forced))
    }

    /// Returns the engine's request to prefill the text with which the prompts of all chats begin that have these first
    /// messages. Renders and tokenises, so do not call it on an async worker.
    ///
    /// # Errors
    /// Returns an error if the messages do not fit the model.
    pub fn prefill_request(&self, chat: &Chat) -> Result<Request, Failure> {
        let Some(template) = &self.template else {
            return Err(Failure::invalid(
                "messages",
                "this model has no chat template",
            ));
        };
        // Some templates require alternating roles, and each closes messages in its own way. So the chat is rendered
        // with two different next messages; what both prompts begin with is written for any continuation.
        let next = match last_role(&chat.messages) {
            Some("user") => "assistant",
            _ => "user",
        };
        let known = with_known_roles(template, &chat.messages);
        let render = |text: &str| {
            let mut messages = Value::clone(&known);
            if let Some(messages) = messages.as_array_mut() {
                messages.push(serde_json::json!({"role": next, "content": text}));
            }
            template
                .render(
                    &messages,
                    chat.tools.as_ref().map(|tools| &tools.shown),
                    chat.documents.as_ref(),
                    chat.template_variables.as_ref(),
                    Ending::Answer,
                )
                .map_err(unrendered)
        };
        let (one, other) = (render("A")?, render("B")?);
        let common = common_beginning(&one, &other);
        let (tokens, _) = self.encode(common, false, &chat.options, &[])?;
        let request = self.request(tokens, "messages", &chat.options, None)?;
        Ok(Request {
            kind: Kind::Prefill,
            top_logprobs: None,
            prompt_logprobs: None,
            ..request
        })
    }

    /// Returns the engine's request for a text completion. Tokenises the prompt, so do not call it on an async worker.
    ///
    /// # Errors
    /// Returns an error if the prompt does not fit the model.
    pub fn completion_request(&self, completion: &Completion) -> Result<Request, Failure> {
        let prompt = match &completion.prompt {
            Prompt::Text(text) => {
                let special = completion.adds_special_tokens;
                self.encode(text, special, &completion.options, &[])?.0
            }
            Prompt::Tokens(tokens) => tokens.clone(),
        };
        if let Some(index) = prompt
            .iter()
            .position(|token| *token >= self.shape.vocabulary)
        {
            let (token, limit) = (prompt[index], self.shape.vocabulary);
            let message = format!("prompt[{index}] must be a token below {limit}, got {token}");
            return Err(Failure::invalid("prompt", message));
        }
        let options = &completion.options;
        let mut request = self.request(prompt, "prompt", options, Some(COMPLETION_TOKENS))?;
        let echoed = options.top_logprobs.filter(|_| completion.echo);
        if echoed.is_some() {
            request.prompt_logprobs = request.prompt_logprobs.max(echoed);
            request.scored_tokens = None;
        }
        if completion.echo && request.max_tokens == 0 {
            // The engine computes a prompt without an answer only to score it.
            request.prompt_logprobs.get_or_insert(0);
        }
        check_scored(&request, options)?;
        self.check_stop_tokens(options, UnpreparedGrammar::of(&options.format).as_ref())?;
        Ok(request)
    }

    /// Returns an error if the answer must follow a grammar and one of the client's `stop_token_ids` is a token of
    /// text: the grammar may need that token.
    fn check_stop_tokens(
        &self,
        options: &Options,
        grammar: Option<&UnpreparedGrammar>,
    ) -> Result<(), Failure> {
        let mut tokens = options.stop_tokens.iter();
        match tokens.find(|token| self.tokenizer.bytes(**token).is_some()) {
            Some(token) if grammar.is_some() => Err(Failure::invalid(
                "stop_token_ids",
                format!(
                    "stop_token_ids has {token}, a token of text, which the grammar of the answer may need"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the tokens of `text`; `special` adds the tokenizer's own, such as BOS. Blocks the thread.
    ///
    /// # Errors
    /// Returns an error if the tokenizer fails, or the text is more than twice as long as any prompt may be.
    pub fn text_tokens(&self, text: &str, special: bool) -> Result<Vec<TokenId>, Failure> {
        self.check_length(text)?;
        let tokens = self.tokenizer.encode(text, special);
        tokens.map_err(Failure::internal)
    }

    /// Returns the text of `tokens`, with U+FFFD for invalid UTF-8. Special tokens appear by their names.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for a token outside the vocabulary.
    pub fn text_of(&self, tokens: &[TokenId]) -> Result<String, Failure> {
        let bytes: Vec<Vec<u8>> = (tokens.iter().enumerate())
            .map(|(index, token)| {
                self.bytes_of(*token).ok_or_else(|| {
                    let message =
                        format!("tokens[{index}] is {token}, which is no token of this model");
                    Failure::invalid("tokens", message)
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(String::from_utf8_lossy(&bytes.concat()).into_owned())
    }

    /// Returns a token's bytes, perhaps part of a character, or a special token's name; `None` for an unknown token.
    pub fn bytes_of(&self, token: TokenId) -> Option<Vec<u8>> {
        let special = || self.tokenizer.special_name(token).map(String::into_bytes);
        self.tokenizer.bytes(token).or_else(special)
    }

    /// Returns the tokens of `text` and, for each byte offset in `bytes` (ascending), the number of tokens wholly
    /// before it. `special` adds the tokenizer's own tokens, such as BOS.
    fn encode(
        &self,
        text: &str,
        special: bool,
        options: &Options,
        bytes: &[usize],
    ) -> Result<(Vec<TokenId>, Vec<u32>), Failure> {
        self.check_length(text)?;
        let salt = &options.cache_salt;
        self.token_cache
            .encode_counting(&self.tokenizer, text, special, salt, bytes)
            .map_err(Failure::internal)
    }

    /// Returns an error if `text` is long, and has more than twice as many tokens as any prompt may have: then it is not
    /// tokenised as a whole.
    fn check_length(&self, text: &str) -> Result<(), Failure> {
        let limit = self.shape.longest_sequence();
        // Texts that may fit are seldom so long, and are not tokenised twice.
        if text.len() <= UNCOUNTED_BYTES.max(8 * limit as usize) {
            return Ok(());
        }
        let tokens = self.tokenizer.exceeds(text, limit.saturating_mul(2));
        match tokens.map_err(Failure::internal)? {
            Some(prompt) => Err(Failure::ContextLength {
                prompt,
                needed: prompt.into(),
                limit,
            }),
            None => Ok(()),
        }
    }

    /// Returns the engine's request for a prompt. `field` is the field of the prompt, for errors. `default` is the
    /// maximum length of the answer in tokens if the request sets none; `None` for as long as the context allows.
    fn request(
        &self,
        prompt: Vec<TokenId>,
        field: &'static str,
        options: &Options,
        default: Option<u32>,
    ) -> Result<Request, Failure> {
        if prompt.is_empty() {
            return Err(Failure::invalid(
                field,
                format!("{field} has no tokens; at least one is needed"),
            ));
        }
        let length = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let limit = self.shape.longest_sequence();
        let room = limit.saturating_sub(length);
        let scored = scored_tokens(options);
        let asked = options
            .max_tokens
            .unwrap_or_else(|| default.unwrap_or(room).min(room).min(scored).max(1));
        if asked > room {
            return Err(Failure::ContextLength {
                prompt: length,
                needed: u64::from(length) + u64::from(asked),
                limit,
            });
        }
        if asked > scored {
            let message = format!(
                "max_tokens is {asked}: with this n and number of log-probabilities, a response that is not streamed has at most \
                 {scored} tokens for each choice; stream the answer, or ask for fewer"
            );
            return Err(Failure::invalid("max_tokens", message));
        }
        let mut stop_tokens = options.stop_tokens.clone();
        if !options.ignore_eos {
            stop_tokens.extend(&self.eos_tokens);
        }
        let request = Request {
            prompt,
            max_tokens: asked,
            sampling: (options.sampling.or(self.sampling).sampling(options.seed))
                .map_err(|error| Failure::invalid(error.name, error.to_string()))?,
            stop_tokens,
            top_logprobs: options.top_logprobs,
            prompt_logprobs: options.prompt_logprobs,
            scored_tokens: options.prompt_logprobs_last,
            cache_salt: options.cache_salt.clone(),
            caching: options.caching,
            tenant: options.cache_salt.as_str().into(),
            ..Request::default()
        };
        check_scored(&request, options)?;
        Ok(request)
    }

    /// Prepares the grammar for a constrained answer. This takes milliseconds, or longer for a large schema, up to its
    /// limits, so do not call it on an async worker.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] if the schema is not supported or exceeds a bound, and [`Failure::Stopping`] if
    /// `cancel` was called because the request is over.
    pub fn constraint(
        &self,
        wanted: &UnpreparedGrammar,
        cancel: &Cancel,
    ) -> Result<Constraint, Failure> {
        let grammars = self.grammars()?;
        let Some(schema) = &wanted.schema else {
            return grammars.json_object().map_err(Failure::internal);
        };
        let field = wanted.field;
        grammars
            .prepare(schema, cancel)
            .0
            .map_err(|error| match error {
                SchemaError::Cancelled => Failure::Stopping,
                error => Failure::invalid(field, format!("{field}: {error}")),
            })
    }

    fn grammars(&self) -> Result<&Grammars, Failure> {
        let grammars = self.grammars.get_or_init(|| {
            Grammars::new(&self.tokenizer, self.shape.vocabulary).map_err(|error| error.to_string())
        });
        grammars.as_ref().map_err(Failure::internal)
    }

    /// Returns [`Failure::UnknownModel`] if the request names a model other than the served one.
    pub(crate) fn check_name(&self, asked: Option<&str>) -> Result<(), Failure> {
        match asked.filter(|asked| *asked != self.name()) {
            None => Ok(()),
            Some(asked) => Err(Failure::UnknownModel {
                asked: clip(asked),
                served: self.name().to_owned(),
            }),
        }
    }

    /// Submits a request to the engine.
    ///
    /// # Errors
    /// Returns the engine's refusal, see [`Failure::from_submit`].
    pub fn submit(&self, request: Request) -> Result<Generation, Failure> {
        let max_tokens = request.max_tokens;
        self.engine
            .submit(request)
            .map_err(|error| Failure::from_submit(error, max_tokens))
    }
}

/// Returns the messages with role `developer` (OpenAI's newer name) replaced by `system` if the template does not know
/// it.
fn with_known_roles<'m>(template: &ChatTemplate, messages: &'m Value) -> Cow<'m, Value> {
    let list = messages.as_array().map_or(&[][..], Vec::as_slice);
    if template.knows_developer() || list.iter().all(|message| message["role"] != "developer") {
        return Cow::Borrowed(messages);
    }
    let mut list = list.to_vec();
    for message in &mut list {
        if message["role"] == "developer" {
            message["role"] = "system".into();
        }
    }
    Cow::Owned(Value::Array(list))
}

/// Returns the failure for a chat for which the chat template returned an error.
fn unrendered(error: TextError) -> Failure {
    match error {
        TextError::Thread(_) => Failure::internal(error),
        error => Failure::invalid("messages", error.to_string()),
    }
}

fn last_role(messages: &Value) -> Option<&str> {
    messages.as_array()?.last()?.get("role")?.as_str()
}

/// Returns the common beginning of two texts.
fn common_beginning<'t>(one: &'t str, other: &str) -> &'t str {
    let pairs = one.char_indices().zip(other.chars());
    let differs = pairs.into_iter().find(|((_, a), b)| a != b);
    differs.map_or(one, |((at, _), _)| &one[..at])
}

/// Default size in bytes of the cache for the tokens of repeated texts: enough for about ten megabytes of text.
const TOKEN_CACHE_BYTES: usize = 64 << 20;

/// Returns the largest number of tokens that an answer may have with the log-probabilities that the request asks for.
fn scored_tokens(options: &Options) -> u32 {
    match (options.top_logprobs, options.delivery) {
        (Some(top), Delivery::Whole) => {
            let entries = (u64::from(top) + 1) * u64::from(options.choices.max(1));
            u32::try_from(MAX_ANSWER_ENTRIES / entries).unwrap_or(u32::MAX)
        }
        _ => u32::MAX,
    }
}

/// Returns an error if a request asks for more log-probabilities of its prompt than [`MAX_PROMPT_ENTRIES`].
fn check_scored(request: &Request, options: &Options) -> Result<(), Failure> {
    let Some(top) = request.prompt_logprobs else {
        return Ok(());
    };
    let tokens = request.prompt.len() as u64;
    let tokens = tokens.min(request.scored_tokens.map_or(tokens, u64::from));
    let entries = tokens * (u64::from(top) + 1) * u64::from(options.choices);
    if entries <= MAX_PROMPT_ENTRIES {
        return Ok(());
    }
    let field = match options.prompt_logprobs {
        Some(_) => "prompt_logprobs",
        None => "logprobs",
    };
    let message = format!(
        "{field} asks for {entries} log-probabilities of {tokens} prompt tokens, more than {MAX_PROMPT_ENTRIES}"
    );
    Err(Failure::invalid(field, message))
}

/// Maximum number of prompt log-probabilities in a response, each of about a hundred bytes.
const MAX_PROMPT_ENTRIES: u64 = 1 << 17;

/// Length of a text, in bytes, up to which it is tokenised as a whole, whatever its tokens.
const UNCOUNTED_BYTES: usize = 256 << 10;

/// Maximum number of log-probabilities of answers in a response that is not streamed, each of about a thousand bytes
/// while the response is made.
const MAX_ANSWER_ENTRIES: u64 = 1 << 18;

/// Default length of a text completion in tokens, the same as OpenAI's.
const COMPLETION_TOKENS: u32 = 16;

/// A grammar that an answer must follow, not yet compiled for the model's tokens.
#[derive(Clone, Debug)]
pub struct UnpreparedGrammar {
    /// The request's field that requires the grammar, for errors.
    field: &'static str,
    /// The JSON schema that the answer must match; `None` for any JSON object.
    schema: Option<Value>,
}

impl UnpreparedGrammar {
    /// Returns the request's field that requires the grammar.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// Returns the grammar that a request's `response_format` requires; `None` for plain text.
    #[must_use]
    pub fn of(format: &Format) -> Option<Self> {
        let (field, schema) = match format {
            Format::Text => return None,
            Format::JsonObject => ("response_format", None),
            Format::JsonSchema { schema, field } => (*field, Some(schema.clone())),
        };
        Some(Self { field, schema })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[test]
    fn a_template_without_a_thread_is_a_fault_of_the_server() {
        let error = std::io::ErrorKind::WouldBlock.into();
        let failure = unrendered(TextError::Thread(error));
        assert_eq!(failure.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let failure = unrendered(TextError::Template("no".to_owned()));
        assert_eq!(failure.status(), StatusCode::BAD_REQUEST);
    }
}
