//! The fields of a chat request that determine its prompt, for [`crate::bridge`], which renders a copy of a request.
//! Other fields are not validated, since the request itself goes to another engine.

use super::chat::take_messages;
use super::fields::{Fields, take_objects};
use super::options::take_cache_salt;
use crate::failure::Failure;
use serde_json::Value;

/// The validated fields of a chat request from which its prompt is rendered.
#[derive(Debug)]
pub struct ChatPrompt {
    /// The model that the client names; `None` if it names none.
    pub model: Option<String>,
    /// The messages, in the form of [`Chat::messages`](super::Chat::messages).
    pub messages: Value,
    /// The field `tools` as sent, whatever `tool_choice` says; `None` if absent or empty.
    pub tools: Option<Value>,
    /// The field `documents`, an array of objects, for the chat template; `None` if absent or empty.
    pub documents: Option<Value>,
    /// Additional variables for the chat template, an object (`chat_template_kwargs`); `None` if absent.
    pub template_variables: Option<Value>,
    /// The field `cache_salt`; empty if absent. Requests with different salts share no KV state.
    pub cache_salt: String,
}

impl ChatPrompt {
    /// Parses the body of a chat request.
    ///
    /// # Errors
    /// Returns [`Failure::Invalid`] for an invalid field.
    pub fn parse(body: &[u8]) -> Result<Self, Failure> {
        let mut fields = Fields::parse(body)?;
        Ok(Self {
            model: fields.string("model")?,
            messages: take_messages(&mut fields)?,
            tools: take_objects(&mut fields, "tools")?,
            documents: take_objects(&mut fields, "documents")?,
            template_variables: fields.object("chat_template_kwargs")?,
            cache_salt: take_cache_salt(&mut fields)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_does_not_make_the_prompt_may_be_anything() {
        let body = json!({
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function"}],
            "tool_choice": "none",
            "logit_bias": {"1": 3},
            "best_of": 4,
            "temperature": "hot",
            "cache_salt": "s",
        });
        let prompt = ChatPrompt::parse(body.to_string().as_bytes()).unwrap();
        assert_eq!(
            (prompt.model.as_deref(), &*prompt.cache_salt),
            (Some("m"), "s")
        );
        assert!(prompt.tools.is_some() && prompt.documents.is_none());
    }

    #[test]
    fn what_makes_it_is_checked() {
        for body in [
            json!({"messages": []}),
            json!({"messages": [{"role": "user", "content": "hi"}], "cache_salt": ""}),
            json!({"messages": [{"role": "user", "content": "hi"}], "model": 3}),
        ] {
            assert!(
                ChatPrompt::parse(body.to_string().as_bytes()).is_err(),
                "{body}"
            );
        }
    }
}
