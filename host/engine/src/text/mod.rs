//! Text: tokenizer, chat template, incremental decoding, stop strings and grammars.
//!
//! ```text
//!   messages ─ChatTemplate─▶ prompt ─TokenCache─▶ known lines ┐
//!                                   └─Tokenizer─▶ new ones ───┴▶ tokens ─(engine)─▶ tokens
//!   schema ─Grammars─▶ constraint ─────────────────────────────────────────┘          │
//!   answer ◀─ToolCalls── ◀─StopStrings── text ◀─Decoder───────────────────────────────┘
//! ```
//!
//! This module reads the files of a Hugging Face checkpoint and has the same results as `transformers`, byte for byte
//! if possible; each submodule names its exceptions. It knows neither HTTP nor the engine.

mod cache;
mod clock;
mod decoder;
mod grammar;
mod json;
mod limits;
mod pieces;
mod schema;
mod spelling;
mod stop;
mod template;
mod tokenizer;
mod tool_calls;

use crate::models::CheckpointError;
pub use cache::{TokenCache, TokenCacheStats};
pub use decoder::Decoder;
pub use grammar::{Cancel, GrammarWork, Grammars};
pub use schema::SchemaError;
pub use stop::StopStrings;
pub use template::{ChatTemplate, Ending};
pub use tokenizer::Tokenizer;
pub use tool_calls::{OPEN as OPEN_TOOL_CALL, Part, ToolCall, ToolCalls};

use std::fmt::Display;
use std::path::Path;

/// An error in a checkpoint's tokenizer or chat template, or in a text that they process.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file of the checkpoint is missing or malformed.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The messages do not fit the model's chat template; contains the template's own message or the interpreter's.
    #[error("chat template: {0}")]
    Template(String),
    /// The system could not create a thread to run the chat template on.
    #[error("no thread to run the template on: {0}")]
    Thread(std::io::Error),
    /// The tokenizer refused the text; contains its message.
    #[error("tokenizer: {0}")]
    Encode(String),
    /// No grammars can be built over the tokenizer's vocabulary; contains the reason.
    #[error("grammar: {0}")]
    Grammar(String),
}

impl TextError {
    fn checkpoint(file: &Path, reason: impl Display) -> Self {
        Self::Checkpoint(CheckpointError::new(file, reason))
    }
}
