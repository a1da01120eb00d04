//! Records how the messages of chats were forwarded, so that they can be forwarded in the same way again.
//!
//! A client sends the whole chat with every request, one turn longer each time. The earlier messages must be forwarded
//! byte for byte as before, or the engine's KV state of the whole chat is lost. The protocols have no chat id, but the
//! chat's text identifies it: each message is identified by its [hash chain](crate::body::Chain), a hash of the chat up
//! to and including it, and the changes to a message are recorded under that hash.
//!
//! ```text
//!   m0 ─ m1 ─ m2 ─ m3          a chat, as the client sends it
//!        └ [b a]   └ [c, see a]        the changes: a memory of messages, a trie
//!                  └ [d]               the same words continued otherwise
//! ```
//!
//! - [`sent`]: the record of one message. It is small, since the client sends the texts again and the hash shows that
//!   they are the same. Only documents that the gateway itself wrote into a message are stored as text.
//! - [`memory`]: the trie, bounded in messages and bytes.
//! - [`prompt_documents`]: the documents already in the prompt, so that location hints can replace later copies.
//! - [`passages`]: the same for passages that the client joins into one text.
//! - [`outputs`]: the same for lines of tools' results.
//!
//! This module does not order documents, reads no body and does not distinguish tenants.

mod bounds;
pub(crate) mod memory;
pub(crate) mod outputs;
pub(crate) mod passages;
pub(crate) mod prompt_documents;
pub(crate) mod sent;
