//! `POST /tokenize`, `POST /detokenize` and `/v1/completions/render`, as in vLLM: the requests' fields.

use super::completion::check_prompt;
use super::fields::{Fields, check_tokens, wrong_type};
use super::{Chat, Completion};
use crate::failure::Failure;
use foreword_engine::TokenId;
use serde_json::Value;

/// A validated request `POST /tokenize`, for the tokens of a text or a chat.
#[derive(Debug)]
pub struct Tokenize {
    /// The model that the client names; `None` for the served one.
    pub model: Option<String>,
    /// The input to tokenise.
    pub what: Tokenized,
    /// True if the response must also have the text of each token (`return_token_strs`).
    pub strings: bool,
}

/// The input of a request `POST /tokenize`.
#[derive(Debug)]
pub enum Tokenized {
    /// A text, and whether to add the tokenizer's own special tokens, such as BOS.
    Text(String, bool),
    /// A chat, which is rendered by the chat template.
    Chat(Box<Chat>),
}

/// A validated request `POST /detokenize`, for the text of tokens.
#[derive(Debug)]
pub struct Detokenize {
    /// The model that the client names; `None` for the served one.
    pub model: Option<String>,
    /// The tokens to convert to text.
    pub tokens: Vec<TokenId>,
}

impl Tokenize {
    /// Parses the body of a request `POST /tokenize`.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        let strings = fields.boolean("return_token_strs")?;
        let special = fields.boolean_or("add_special_tokens", true)?;
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
    /// Parses the body of a request `POST /detokenize`.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        let tokens = match fields.take("tokens") {
            Some(Value::Array(tokens)) => check_tokens("tokens", &tokens)?,
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

/// A validated request `POST /v1/completions/render`, for the tokens of text completions' prompts. It may have several
/// prompts, as in vLLM; the other fields apply to each of them.
#[derive(Debug)]
pub struct Rendering {
    first: Completion,
    others: Vec<Value>,
}

impl Rendering {
    /// Parses the body of a request `POST /v1/completions/render`.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        let mut others = match fields.take("prompt") {
            Some(Value::Array(prompts))
                if matches!(prompts.first(), Some(Value::String(_) | Value::Array(_))) =>
            {
                prompts
            }
            prompt => Vec::from_iter(prompt),
        };
        let found = others.len();
        if found > MAX_PROMPTS {
            let message =
                format!("prompt holds {found} prompts, more than the limit of {MAX_PROMPTS}");
            return Err(Failure::invalid("prompt", message));
        }
        let first = (!others.is_empty()).then(|| others.remove(0));
        let fields = fields.rest_with([("prompt", first)]);
        Ok(Self {
            first: Completion::take(Fields::of(fields))?,
            others,
        })
    }

    /// Returns the model that the client names; `None` for the served one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.first.options.model.as_deref()
    }

    /// Calls `render` with a completion for each prompt of the request, in order, and returns the results.
    ///
    /// # Errors
    /// Returns the errors of `render`, and [`Failure::Invalid`] for an invalid prompt.
    pub fn each<T>(
        self,
        mut render: impl FnMut(&Completion) -> Result<T, Failure>,
    ) -> Result<Vec<T>, Failure> {
        let Self {
            first: mut completion,
            others,
        } = self;
        let mut rendered = vec![render(&completion)?];
        for prompt in others {
            completion.prompt = check_prompt(prompt)?;
            rendered.push(render(&completion)?);
        }
        Ok(rendered)
    }
}

const MAX_PROMPTS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Prompt;
    use serde_json::json;

    #[test]
    fn prompts_are_rendered_in_their_order_with_what_is_said_once() {
        let render = |prompt: Value| {
            let body = json!({"model": "m", "prompt": prompt, "stop": ["x"]});
            let rendering = Rendering::parse(body.to_string().as_bytes()).unwrap();
            assert_eq!(rendering.model(), Some("m"));
            rendering.each(|completion| {
                assert_eq!(completion.options.stop, ["x"]);
                Ok(completion.prompt.clone())
            })
        };
        let text = |text: &str| Prompt::Text(text.to_owned());
        let tokens = |tokens: &[TokenId]| Prompt::Tokens(tokens.to_vec());
        for (prompt, expected) in [
            (json!("a"), vec![text("a")]),
            (json!([1, 2]), vec![tokens(&[1, 2])]),
            (json!([]), vec![tokens(&[])]),
            (
                json!(["a", [1], "b"]),
                vec![text("a"), tokens(&[1]), text("b")],
            ),
        ] {
            assert_eq!(render(prompt.clone()).unwrap(), expected, "{prompt}");
        }
        assert!(render(json!(["a", 7])).is_err());
        let many = json!({"prompt": vec!["a"; MAX_PROMPTS + 1]}).to_string();
        let failure = Rendering::parse(many.as_bytes()).unwrap_err();
        let message = "prompt holds 257 prompts, more than the limit of 256";
        assert_eq!(failure.to_string(), message);
        assert!(Rendering::parse(b"{}").is_err());
    }
}
