//! Computes the tokens of a prompt, and where its documents end, from a copy of its request. Uses the checkpoint's
//! template and tokenizer, as the engine does.
//!
//! The tokens must equal the engine's only up to the last document's end. Differences after it, such as the tag that
//! opens the answer, do not matter. If the engine renders differently before that, no block matches and the request's
//! documents are not reported: the feed then knows less than is held, never more.

use crate::failure::Failure;
use crate::kv::place::Placer;
use crate::metrics::Placements;
use crate::request::ChatPrompt;
use anyhow::Context;
use axum::http::HeaderValue;
use foreword_engine::TokenId;
use foreword_engine::cache::DocumentPath;
use foreword_engine::text::{ChatTemplate, Ending, TokenCache, Tokenizer};
use foreword_ordering::path::Locator;
use std::path::Path;
use std::sync::Arc;

/// Longest prompt that is read, in tokens: to tokenise may take 400 bytes for each.
const MAX_TOKENS: u32 = 1 << 20;

/// The prompt of a copied request, which has documents.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    /// The prompt's tokens up to the end of its last document.
    pub(super) tokens: Vec<TokenId>,
    /// The request's cache salt, by which the engine separates KV state; empty if it has none.
    pub(super) salt: Arc<str>,
    /// The prompt's documents, at least one, with the tokens at which they end.
    pub(super) documents: DocumentPath,
}

/// Computes the tokens of one engine's prompts from copies of its requests, and finds where their documents end.
pub(super) struct Prompts {
    /// Names under which the engine serves the model. Requests for other models, such as a LoRA adapter, are skipped.
    names: Vec<String>,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    token_cache: TokenCache,
    locator: Locator,
    placements: Placements,
}

/// The result of reading the copy of a request.
#[derive(Debug)]
pub(super) enum Reading {
    /// The request has a prompt in which documents were found.
    Prompt(Prompt),
    /// No documents were found in the request's prompt; [`Placements`] counts the reasons.
    NoDocuments,
    /// The request is for another model.
    OtherModel,
}

/// Returns whether the body of a request to any route has a field `cache_salt` that is not empty.
pub(super) fn has_salt(body: &[u8]) -> bool {
    let fields: Result<serde_json::Map<String, serde_json::Value>, _> =
        serde_json::from_slice(body);
    fields.is_ok_and(|fields| {
        let salt = fields.get("cache_salt").and_then(|salt| salt.as_str());
        salt.is_some_and(|salt| !salt.is_empty())
    })
}

impl Prompts {
    /// Reads template and tokenizer from the checkpoint's `folder`; the template from the file `template` if one is
    /// given. `names` are those under which the engine serves the model.
    ///
    /// # Errors
    /// Returns an error if a file is missing or malformed, or the checkpoint has no template.
    pub(super) fn load(
        folder: &Path,
        template: Option<&Path>,
        names: Vec<String>,
        token_cache_bytes: usize,
        locator: Locator,
        placements: Placements,
    ) -> anyhow::Result<Self> {
        let context = || format!("cannot read the model's text files in {}", folder.display());
        let tokenizer = Tokenizer::load(folder).with_context(context)?;
        let template = ChatTemplate::load(folder, template)
            .with_context(context)?
            .with_context(|| format!("{} has no chat template", folder.display()))?;
        Ok(Self {
            names,
            template,
            token_cache: TokenCache::new(&tokenizer, token_cache_bytes),
            tokenizer,
            locator,
            placements,
        })
    }

    /// Returns the prompt of a copied request. `path` is the header in which the gateway names the order of its
    /// documents. Renders and tokenises, so do not call it on an async worker.
    ///
    /// # Errors
    /// Returns an error if the body is invalid or cannot be rendered with this template.
    pub(super) fn read(&self, path: &HeaderValue, body: &[u8]) -> Result<Reading, Failure> {
        let chat = ChatPrompt::parse(body)?;
        if let Some(model) = &chat.model
            && !self.names.contains(model)
        {
            return Ok(Reading::OtherModel);
        }
        let text = self
            .template
            .render(
                &chat.messages,
                chat.tools.as_ref(),
                chat.documents.as_ref(),
                chat.template_variables.as_ref(),
                Ending::Answer,
            )
            .map_err(|error| Failure::invalid("messages", error.to_string()))?;
        let placer = Placer::new(&self.locator, Some(path), body, &self.placements);
        let Some(placed) = placer.place(&text) else {
            return Ok(Reading::NoDocuments);
        };
        let bytes = placed.bytes();
        let surplus = self.tokenizer.exceeds(&text, MAX_TOKENS);
        if surplus.map_err(Failure::internal)?.is_some() {
            let message = format!("the prompt has more than {MAX_TOKENS} tokens");
            return Err(Failure::invalid("messages", message));
        }
        let (mut tokens, counts) = self
            .token_cache
            .encode_counting(&self.tokenizer, &text, false, &chat.cache_salt, &bytes)
            .map_err(Failure::internal)?;
        let Some(documents) = placed.in_tokens(&counts) else {
            return Ok(Reading::NoDocuments);
        };
        // Tokens after the last document are not needed.
        let end = documents.documents.last().map_or(0, |last| last.end);
        tokens.truncate(end as usize);
        Ok(Reading::Prompt(Prompt {
            tokens,
            salt: chat.cache_salt.into(),
            documents,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_is_found_in_the_body_of_any_route() {
        for (body, expected) in [
            (r#"{"prompt": "a", "cache_salt": "s"}"#, true),
            (r#"{"prompt": "a", "cache_salt": ""}"#, false),
            (r#"{"input": {"cache_salt": "s"}}"#, false),
            (r#"{"cache_salt": null}"#, false),
            ("not JSON", false),
        ] {
            assert_eq!(has_salt(body.as_bytes()), expected, "{body}");
        }
    }
}
