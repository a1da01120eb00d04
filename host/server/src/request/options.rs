//! The options that chat and text completions share: sampling, stopping, caching and delivery.

use super::Format;
use super::fields::{Fields, check_tokens, show, wrong_type};
use crate::failure::Failure;
use foreword_engine::TokenId;
use foreword_engine::engine::PrefixCaching;
use foreword_engine::sampling::SamplingFields;
use serde_json::Value;
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;

/// The validated options of a chat or text completion.
#[derive(Debug)]
pub struct Options {
    /// The model that the client names; `None` for the served one.
    pub model: Option<String>,
    /// Maximum number of tokens of the answer. 0 is allowed only if the response reports the prompt or its
    /// log-probabilities. `None`: as many as fit for a chat, 16 for a text completion.
    pub max_tokens: Option<u32>,
    /// The parameters by which tokens are sampled, as far as the request states them.
    pub sampling: SamplingFields,
    /// The seed of the answer's choices; a random one if the request states none.
    pub seed: u64,
    /// Number of alternative answers to generate (`n`), 1 to 16. The prompt is computed once for all of them.
    pub choices: u32,
    /// Number of alternatives reported besides each answer token; `None` if log-probabilities are not requested.
    pub top_logprobs: Option<u32>,
    /// Number of alternatives reported for each prompt token; `None` if log-probabilities of the prompt are not
    /// requested.
    pub prompt_logprobs: Option<u32>,
    /// Number of tokens at the prompt's end that `prompt_logprobs` reports; `None` for the whole prompt.
    pub prompt_logprobs_last: Option<u32>,
    /// The form that each answer must have.
    pub format: Format,
    /// Texts that end the answer; none is empty.
    pub stop: Vec<String>,
    /// Tokens that end the answer, in addition to those of the model (`stop_token_ids`, vLLM's extension).
    pub stop_tokens: Vec<TokenId>,
    /// True if the model's end-of-answer tokens are generated like any other (vLLM's extension, for benchmarks).
    pub ignore_eos: bool,
    /// The field `cache_salt`; empty if absent. Requests with different salts share no KV state.
    pub cache_salt: String,
    /// Two permissions: to read the prefix cache for the request, and to cache the computed prompt.
    pub caching: PrefixCaching,
    /// The form of the response: whole or as a stream.
    pub delivery: Delivery,
}

/// The form in which an answer is sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// As one JSON object.
    Whole,
    /// As server-sent events.
    Stream {
        /// True if an event before `[DONE]` reports the token counts.
        include_usage: bool,
    },
}

impl Options {
    /// Removes the options that chats and text completions share. `top_logprobs` was removed before, as its name
    /// differs; `echo` is true if the answer begins with the prompt.
    pub(super) fn take(
        fields: &mut Fields,
        top_logprobs: Option<u32>,
        echo: bool,
    ) -> Result<Self, Failure> {
        refuse_unsupported(fields)?;
        let prompt_logprobs = fields.count("prompt_logprobs", 0..=MAX_PROMPT_LOGPROBS)?;
        let prompt_logprobs_last = fields.count("prompt_logprobs_last", 1..=i64::from(u32::MAX))?;
        if prompt_logprobs_last.is_some() && prompt_logprobs.is_none() {
            let message = "prompt_logprobs_last says how many prompt_logprobs there are, but there is no prompt_logprobs";
            return Err(Failure::invalid("prompt_logprobs_last", message));
        }
        let least = i64::from(prompt_logprobs.is_none() && !echo);
        let tokens = least..=i64::from(u32::MAX);
        let max_tokens = fields.count("max_tokens", tokens.clone())?;
        let max_completion_tokens = fields.count("max_completion_tokens", tokens)?;
        let mut options = Self {
            model: fields.string("model")?,
            // `max_tokens` is the older of the two names.
            max_tokens: max_completion_tokens.or(max_tokens),
            sampling: take_sampling(fields)?,
            seed: fields
                .integer("seed", i64::MIN..=i64::MAX)?
                .map_or_else(random_seed, i64::cast_unsigned),
            choices: fields.count("n", 1..=MAX_CHOICES)?.unwrap_or(1),
            top_logprobs,
            prompt_logprobs,
            prompt_logprobs_last,
            format: Format::take(fields)?,
            stop: take_stop(fields)?,
            stop_tokens: take_stop_tokens(fields)?,
            ignore_eos: fields.boolean("ignore_eos")?,
            cache_salt: take_cache_salt(fields)?,
            caching: take_caching(fields)?,
            delivery: take_delivery(fields)?,
        };
        if options.delivery != Delivery::Whole {
            // As in vLLM, 0 counts as not requested.
            if options.prompt_logprobs.take().is_some_and(|top| top > 0) {
                let message = "prompt_logprobs are not available when stream is true";
                return Err(Failure::invalid("prompt_logprobs", message));
            }
        }
        if options.max_tokens == Some(0) && options.choices > 1 {
            let message = "n must be 1 where max_tokens is 0";
            return Err(Failure::invalid("n", message));
        }
        Ok(options)
    }
}

/// Removes the parameters of sampling, except the seed: OpenAI's temperature, top_p and two penalties, and vLLM's min_p,
/// repetition_penalty and top_k. For top_k, 0 and -1 mean no limit.
fn take_sampling(fields: &mut Fields) -> Result<SamplingFields, Failure> {
    let mut number = |name: &'static str, range: RangeInclusive<f64>| {
        let value = fields.number(name, range)?;
        #[expect(clippy::cast_possible_truncation, reason = "all lie within -2 to 2")]
        Ok::<_, Failure>(value.map(|value| value as f32))
    };
    let sampling = SamplingFields {
        temperature: number("temperature", 0.0..=2.0)?,
        top_p: number("top_p", 0.0..=1.0)?,
        min_p: number("min_p", 0.0..=1.0)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0)?,
        presence_penalty: number("presence_penalty", -2.0..=2.0)?,
        repetition_penalty: number("repetition_penalty", 0.0..=2.0)?,
        top_k: (fields.integer("top_k", -1..=i64::from(u32::MAX))?)
            .map(|top_k| top_k.try_into().unwrap_or(0)),
    };
    // Among values in range, only 0 is refused, for top_p and repetition_penalty.
    match sampling.sampling(0) {
        Ok(_) => Ok(sampling),
        Err(error) => Err(Failure::invalid(error.name, error.to_string())),
    }
}

/// Returns a different number on every call, from std's randomly seeded hasher.
fn random_seed() -> u64 {
    RandomState::new().hash_one(())
}

fn take_stop(fields: &mut Fields) -> Result<Vec<String>, Failure> {
    let values = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) => values,
        Some(single) => vec![single],
    };
    if values.len() > MAX_STOPS {
        let message = format!(
            "stop must hold at most {MAX_STOPS} strings, got {}",
            values.len()
        );
        return Err(Failure::invalid("stop", message));
    }
    let check = |value| match value {
        Value::String(text) if (1..=MAX_STOP_BYTES).contains(&text.len()) => Ok(text),
        Value::String(text) => {
            let bytes = text.len();
            let message =
                format!("a stop string must have 1 to {MAX_STOP_BYTES} bytes, got {bytes}");
            Err(Failure::invalid("stop", message))
        }
        other => {
            let wanted = "a string or an array of strings";
            Err(wrong_type("stop", wanted, &other))
        }
    };
    values.into_iter().map(check).collect()
}

fn take_stop_tokens(fields: &mut Fields) -> Result<Vec<TokenId>, Failure> {
    let name = "stop_token_ids";
    match fields.take(name) {
        None => Ok(Vec::new()),
        Some(Value::Array(tokens)) if tokens.len() <= MAX_STOP_TOKENS => {
            check_tokens(name, &tokens)
        }
        Some(Value::Array(tokens)) => {
            let found = tokens.len();
            let message = format!("{name} must hold at most {MAX_STOP_TOKENS} tokens, got {found}");
            Err(Failure::invalid(name, message))
        }
        Some(other) => Err(wrong_type(name, "an array of tokens", &other)),
    }
}

pub(super) fn take_cache_salt(fields: &mut Fields) -> Result<String, Failure> {
    let salt = fields.string("cache_salt")?;
    match salt.as_deref().map(str::len) {
        None | Some(1..=MAX_SALT_BYTES) => Ok(salt.unwrap_or_default()),
        Some(length) => Err(Failure::invalid(
            "cache_salt",
            format!("cache_salt must have 1 to {MAX_SALT_BYTES} bytes, got {length}"),
        )),
    }
}

/// Removes the fields on the use of the prefix cache.
///
/// | field | from | default | |
/// | --- | --- | --- | --- |
/// | `cache_prefix` | Foreword | `true` | whether computed pages are cached for other requests |
/// | `min_cache_tokens` | Foreword | 0 | shortest prompt, in tokens, of which pages are cached |
/// | `skip_reading_prefix_cache` | vLLM | `false` | whether the whole prompt is computed |
/// | `cache_prompt` | llama.cpp | `true` | `false` disables both reading and writing |
fn take_caching(fields: &mut Fields) -> Result<PrefixCaching, Failure> {
    let keeps = fields.boolean_or("cache_prefix", true)?;
    let min_tokens = fields.count("min_cache_tokens", 0..=i64::from(u32::MAX))?;
    let skips = fields.boolean("skip_reading_prefix_cache")?;
    let uses = fields.boolean_or("cache_prompt", true)?;
    Ok(PrefixCaching {
        reads: uses && !skips,
        keeps: uses && keeps,
        min_tokens: min_tokens.unwrap_or(0),
    })
}

fn take_delivery(fields: &mut Fields) -> Result<Delivery, Failure> {
    if !fields.boolean("stream")? {
        return match fields.take("stream_options") {
            None => Ok(Delivery::Whole),
            Some(_) => Err(Failure::invalid(
                "stream_options",
                "stream_options needs stream to be true",
            )),
        };
    }
    let options = fields.object("stream_options")?.unwrap_or_default();
    let include_usage = match &options["include_usage"] {
        Value::Null => false,
        Value::Bool(value) => *value,
        other => {
            let at = "stream_options.include_usage";
            return Err(wrong_type(at, "a boolean", other));
        }
    };
    Ok(Delivery::Stream { include_usage })
}

/// Removes known fields that are not supported. Returns an error unless their values have no effect.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), Failure> {
    for (name, neutral) in UNSUPPORTED {
        if let Some(value) = fields.take(name)
            && !is_neutral(&value, neutral)
        {
            let message = format!(
                "{name} is not supported: leave it out or send {neutral}, got {}",
                show(&value)
            );
            return Err(Failure::invalid(*name, message));
        }
    }
    Ok(())
}

/// Returns whether `value` equals the JSON value `neutral`; numbers compare by value (0 equals 0.0).
fn is_neutral(value: &Value, neutral: &str) -> bool {
    match (value, serde_json::from_str::<Value>(neutral)) {
        (Value::Number(value), Ok(Value::Number(neutral))) => value.as_f64() == neutral.as_f64(),
        (value, Ok(neutral)) => *value == neutral,
        (_, Err(_)) => false,
    }
}

/// Fields to refuse if the route has not removed them before, each with the JSON value that has no effect.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("best_of", "1"),
    ("top_logprobs", "0"),
    ("echo", "false"),
    ("suffix", "\"\""),
    ("logit_bias", "{}"),
    ("min_tokens", "0"),
    // vLLM's.
    ("guided_regex", "null"),
    ("guided_choice", "[]"),
    ("guided_grammar", "null"),
    ("allowed_token_ids", "[]"),
    ("bad_words", "[]"),
    ("chat_template", "null"),
    ("truncate_prompt_tokens", "-1"),
    ("include_stop_str_in_output", "false"),
    ("skip_special_tokens", "true"),
    ("add_special_tokens", "false"),
    ("use_beam_search", "false"),
    ("return_tokens_as_token_ids", "false"),
    // OpenAI's.
    ("functions", "[]"),
    ("function_call", "\"none\""),
    ("modalities", "[\"text\"]"),
    ("audio", "null"),
    // SGLang's.
    ("regex", "null"),
    ("ebnf", "null"),
    ("json_schema", "null"),
];

/// Maximum number of answers to one request (`n`). Each counts as one request in flight and in the engine's queue.
const MAX_CHOICES: i64 = 16;
/// Maximum value of `prompt_logprobs`: the default of vLLM's `--max-logprobs`.
const MAX_PROMPT_LOGPROBS: i64 = 20;
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
const MAX_STOP_TOKENS: usize = 64;
const MAX_SALT_BYTES: usize = 256;
