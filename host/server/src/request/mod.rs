//! Parses a request's bytes into a checked request: the one place that judges a client's JSON.
//!
//! Every value of a checked request is in its range. What only the model can judge (template, token counts) is left to
//! [`crate::model`]. Three classes of field:
//!
//! - handled: listed in [`Chat`], [`Completion`] and [`Options`];
//! - known and not supported (`logit_bias`, `suffix`, `best_of`, …): refused unless they carry the value that changes
//!   nothing, because an answer that silently ignores them would be a wrong answer;
//! - unknown: ignored, as every OpenAI-compatible server does (`user`, `metadata`, …).

pub mod anthropic;
mod chat;
mod completion;
mod embeddings;
mod fields;
mod format;
mod options;
mod parts;
mod prompt;
pub mod responses;
mod retrieve;
mod tokens;
mod tools;

pub use anthropic::MessagesRequest;
pub use chat::Chat;
pub use completion::{Completion, Prompt};
pub use embeddings::{Embeddings, Encoding};
pub use format::Format;
pub use options::{Delivery, Options};
pub use prompt::ChatPrompt;
pub use responses::ResponsesRequest;
pub use retrieve::{Retrieve, Retrieving, SearchQuery};
pub use tokens::{Detokenize, Rendering, Tokenize, Tokenized};
pub use tools::{ToolChoice, Tools};
