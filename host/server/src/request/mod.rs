//! Parses and validates the JSON bodies of API requests, except those of `/v1/batches`.
//!
//! Every value of a parsed request is within its range. Checks that need the model (template, token counts) are in
//! [`crate::model`]. There are three kinds of field:
//!
//! - handled: listed in [`Chat`], [`Completion`] and [`Options`];
//! - known and not supported (`logit_bias`, `suffix`, `best_of`, …): refused unless their value has no effect, since an
//!   answer that silently ignores them would be wrong;
//! - unknown: ignored, as in every OpenAI-compatible server (`user`, `metadata`, …).

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
pub(crate) use fields::metadata;
pub use format::Format;
pub use options::{Delivery, Options};
pub use prompt::ChatPrompt;
pub use responses::ResponsesRequest;
pub use retrieve::{Retrieve, Retrieving, SearchQuery};
pub use tokens::{Detokenize, Rendering, Tokenize, Tokenized};
pub use tools::{ToolChoice, Tools};
