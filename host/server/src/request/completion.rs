//! `POST /v1/completions`: the fields of a text completion that chats do not have.

use super::Options;
use super::fields::{Fields, check_tokens, missing, wrong_type};
use crate::failure::Failure;
use foreword_engine::TokenId;
use serde_json::Value;

/// A validated request for a text completion.
#[derive(Debug)]
pub struct Completion {
    /// The prompt that the answer continues.
    pub prompt: Prompt,
    /// True if the tokenizer adds its own tokens to a prompt that is a text, such as one at the beginning
    /// (`add_special_tokens`).
    pub adds_special_tokens: bool,
    /// True if the answer's text begins with the prompt (`echo`).
    pub echo: bool,
    /// The options that chats and text completions share.
    pub options: Options,
}

/// The prompt of a text completion. It may be empty here, and is refused later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A text, which is tokenised.
    Text(String),
    /// Tokens of the model, which are used without change.
    Tokens(Vec<TokenId>),
}

impl Completion {
    /// Parses the body of a request for a text completion.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        Self::take(Fields::parse(body)?)
    }

    pub(super) fn take(mut fields: Fields) -> Result<Self, Failure> {
        let prompt = fields.take("prompt").ok_or_else(|| missing("prompt"))?;
        let prompt = check_prompt(prompt)?;
        let top_logprobs = fields.count("logprobs", 0..=MAX_TOP_LOGPROBS)?;
        let echo = fields.boolean("echo")?;
        Ok(Self {
            prompt,
            adds_special_tokens: fields.boolean_or("add_special_tokens", true)?,
            echo,
            options: Options::take(&mut fields, top_logprobs, echo)?,
        })
    }
}

/// OpenAI's maximum value of `logprobs` in a text completion.
const MAX_TOP_LOGPROBS: i64 = 5;

/// Validates the field `prompt`: a string, an array of tokens, or an array that contains one of these. OpenAI also
/// allows several prompts in one request; they are refused, since clients can send several requests at no disadvantage.
pub(super) fn check_prompt(value: Value) -> Result<Prompt, Failure> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(items) => match items.as_slice() {
            [Value::String(text)] => Ok(Prompt::Text(text.clone())),
            [Value::Array(tokens)] => check_tokens("prompt[0]", tokens).map(Prompt::Tokens),
            [Value::String(_) | Value::Array(_), ..] => Err(Failure::invalid(
                "prompt",
                format!("prompt must hold one prompt, got {}", items.len()),
            )),
            tokens => check_tokens("prompt", tokens).map(Prompt::Tokens),
        },
        other => {
            let wanted = "a string or an array of tokens";
            Err(wrong_type("prompt", wanted, &other))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn special_tokens_are_added_unless_the_client_says_no() {
        let taken = |more: Value| {
            let mut body = json!({"prompt": "hi"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            Completion::parse(body.to_string().as_bytes())
        };
        assert!(taken(json!({})).unwrap().adds_special_tokens);
        let without = taken(json!({"add_special_tokens": false})).unwrap();
        assert!(!without.adds_special_tokens);
        assert!(taken(json!({"use_beam_search": true})).is_err());
    }

    #[test]
    fn a_prompt_is_one_text_or_one_array_of_tokens() {
        for (prompt, expected) in [
            (json!("hi"), Prompt::Text("hi".into())),
            (json!(["hi"]), Prompt::Text("hi".into())),
            (json!([1, 2]), Prompt::Tokens(vec![1, 2])),
            (json!([[1, 2]]), Prompt::Tokens(vec![1, 2])),
            (json!([]), Prompt::Tokens(vec![])),
        ] {
            assert_eq!(check_prompt(prompt.clone()).unwrap(), expected, "{prompt}");
        }
    }

    #[test]
    fn anything_else_is_named() {
        for (prompt, message) in [
            (
                json!(7),
                "prompt must be a string or an array of tokens, got a number",
            ),
            (json!(["a", "b"]), "prompt must hold one prompt, got 2"),
            (json!([[1], [2]]), "prompt must hold one prompt, got 2"),
            (
                json!([1, -2]),
                "prompt[1] must be a token, from 0 to 4294967295, got -2",
            ),
            (
                json!([[1, "x"]]),
                "prompt[0][1] must be a token, got a string",
            ),
        ] {
            assert_eq!(
                check_prompt(prompt.clone()).unwrap_err().to_string(),
                message,
                "{prompt}"
            );
        }
    }
}
