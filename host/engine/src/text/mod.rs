//! Between strings and tokens: tokenizer, chat template, incremental decoding, stop strings.

use crate::backend::TokenId;
use std::path::Path;

/// What is wrong with a tokenizer, a template or a text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file of the checkpoint is missing or malformed.
    #[error("{file}: {reason}")]
    Checkpoint {
        /// The file's path.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The messages do not fit the model's chat template (the template's own words).
    #[error("chat template: {0}")]
    Template(String),
    /// The tokenizer refused the text.
    #[error("tokenizer: {0}")]
    Encode(String),
}

/// A checkpoint's `tokenizer.json`.
pub struct Tokenizer {}

impl Tokenizer {
    /// Reads `tokenizer.json` in `folder`.
    ///
    /// # Errors
    /// [`TextError::Checkpoint`].
    pub fn load(folder: &Path) -> Result<Self, TextError> {
        let _ = folder;
        todo!()
    }

    /// The tokens of `text`. `special`: whether the tokenizer adds what it adds to a raw prompt (a BOS token, say);
    /// a rendered chat template already has it.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>, TextError> {
        let _ = (text, special);
        todo!()
    }

    /// A decoder for one generation.
    pub fn decoder(&self) -> Decoder<'_> {
        todo!()
    }
}

/// Turns tokens into text as they come; bytes of an unfinished UTF-8 character are held back.
pub struct Decoder<'a> {
    _tokenizer: &'a Tokenizer,
}

impl Decoder<'_> {
    /// The text that `token` completes, maybe empty.
    pub fn push(&mut self, token: TokenId) -> String {
        let _ = token;
        todo!()
    }

    /// What is still held back, lossily.
    pub fn finish(&mut self) -> String {
        todo!()
    }
}

/// A checkpoint's chat template (`chat_template.jinja`, or `chat_template` in `tokenizer_config.json`).
pub struct ChatTemplate {}

impl ChatTemplate {
    /// Reads the template in `folder`.
    ///
    /// # Errors
    /// [`TextError::Checkpoint`]; a checkpoint without a template is `Ok(None)`.
    pub fn load(folder: &Path) -> Result<Option<Self>, TextError> {
        let _ = folder;
        todo!()
    }

    /// The prompt for an OpenAI `messages` array, with `tools` and `documents` as the client sent them, if it did.
    ///
    /// # Errors
    /// [`TextError::Template`].
    pub fn render(
        &self,
        messages: &serde_json::Value,
        tools: Option<&serde_json::Value>,
        documents: Option<&serde_json::Value>,
    ) -> Result<String, TextError> {
        let _ = (messages, tools, documents);
        todo!()
    }
}

/// Watches a stream of text for stop strings.
pub struct StopStrings {}

impl StopStrings {
    /// Stops at the first occurrence of any of `stops` (none may be empty).
    pub fn new(stops: Vec<String>) -> Self {
        let _ = stops;
        todo!()
    }

    /// Takes the next piece of text; returns what may be shown now (text that may begin a stop string is held back)
    /// and whether a stop string was met (then nothing more is to be shown).
    pub fn push(&mut self, text: &str) -> (String, bool) {
        let _ = text;
        todo!()
    }

    /// What was held back when the stream ends without a stop.
    pub fn finish(&mut self) -> String {
        todo!()
    }
}
