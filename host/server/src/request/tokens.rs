//! `POST /tokenize` and `POST /detokenize`, as vLLM has them: the fields that ask for tokens, and for their text.

use super::completion::{Prompt, check_tokens};
use super::fields::{Fields, wrong_type};
use super::{Chat, Completion};
use crate::failure::Failure;
use foreword_engine::TokenId;
use serde_json::Value;

/// A request for tokens.
#[derive(Debug)]
pub struct Tokenize {
    /// The model asked for; `None`: whichever is served.
    pub model: Option<String>,
    /// Of what.
    pub what: Tokenized,
    /// Whether each token's text is wanted beside it.
    pub strings: bool,
}

/// What tokens are asked for.
#[derive(Debug)]
pub enum Tokenized {
    /// A text, with or without the tokens that open a prompt.
    Text(String, bool),
    /// A chat, as its template writes it.
    Chat(Box<Chat>),
}

/// A request for a text.
#[derive(Debug)]
pub struct Detokenize {
    /// The model asked for; `None`: whichever is served.
    pub model: Option<String>,
    /// Of these tokens.
    pub tokens: Vec<TokenId>,
}

impl Tokenize {
    /// # Errors
    /// [`Failure::Invalid`].
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        let strings = fields.boolean("return_token_strs")?;
        for (field, usual) in [
            ("add_generation_prompt", true),
            ("continue_final_message", false),
        ] {
            match fields.take(field) {
                None => {}
                Some(Value::Bool(value)) if value == usual => {}
                Some(Value::Bool(value)) => {
                    let message =
                        format!("{field} must be {usual}, as chats are answered here, got {value}");
                    return Err(Failure::invalid(field, message));
                }
                Some(other) => return Err(wrong_type(field, "a boolean", &other)),
            }
        }
        let special = match fields.take("add_special_tokens") {
            None => true,
            Some(Value::Bool(special)) => special,
            Some(other) => return Err(wrong_type("add_special_tokens", "a boolean", &other)),
        };
        if fields.get("messages").is_some() {
            let chat = Chat::take(fields)?;
            return Ok(Self {
                model: chat.options.model.clone(),
                what: Tokenized::Chat(Box::new(chat)),
                strings,
            });
        }
        let Some(text) = fields.string("prompt")? else {
            let message = "prompt is missing: a text, or messages";
            return Err(Failure::invalid("prompt", message));
        };
        Ok(Self {
            model: fields.string("model")?,
            what: Tokenized::Text(text, special),
            strings,
        })
    }
}

impl Detokenize {
    /// # Errors
    /// [`Failure::Invalid`].
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        let tokens = match fields.take("tokens") {
            Some(Value::Array(tokens)) => match check_tokens("tokens", &tokens)? {
                Prompt::Tokens(tokens) => tokens,
                Prompt::Text(_) => Vec::new(),
            },
            other => {
                let other = other.unwrap_or_default();
                return Err(wrong_type("tokens", "an array of tokens", &other));
            }
        };
        Ok(Self {
            model: fields.string("model")?,
            tokens,
        })
    }
}

/// A text completion whose prompt shall only be rendered: vLLM takes several prompts at once there, and so is each of
/// them read here.
///
/// # Errors
/// [`Failure::Invalid`].
pub fn completions_to_render(body: &[u8]) -> Result<Vec<Completion>, Failure> {
    let mut fields = Fields::parse(body)?;
    let several = match fields.get("prompt") {
        Some(Value::Array(prompts)) => {
            matches!(prompts.first(), Some(Value::String(_) | Value::Array(_)))
        }
        _ => false,
    };
    if !several {
        return Completion::parse(body).map(|completion| vec![completion]);
    }
    let prompts = match fields.take("prompt") {
        Some(Value::Array(prompts)) => prompts,
        _ => Vec::new(),
    };
    if prompts.len() > MAX_PROMPTS {
        let found = prompts.len();
        let message = format!("prompt holds {found} prompts, more than the limit of {MAX_PROMPTS}");
        return Err(Failure::invalid("prompt", message));
    }
    let rest = fields.rest();
    let completion = |prompt: Value| {
        let mut fields = rest.clone();
        fields.insert("prompt".to_owned(), prompt);
        Completion::take(Fields::of(fields))
    };
    prompts.into_iter().map(completion).collect()
}

const MAX_PROMPTS: usize = 256;
