//! How the messages of a tenant's chats were sent, so that they are sent in the same way again.
//!
//! A client sends the whole chat with every request, one turn longer each time. Whatever the earlier messages became
//! the first time, they must become again, byte for byte, or the engine's KV state of the whole chat is lost. Nothing
//! in the protocol names a chat, but its own words do: message after message is hashed into a
//! [chain](crate::body::Chain), and what was done with a message is remembered under its chain.
//!
//! ```text
//!   m0 ─ m1 ─ m2 ─ m3          a chat, as the client sends it
//!        └ [b a]   └ [c, see a]        what was done: a memory of turns, a trie
//!                  └ [d]               the same words continued otherwise
//! ```
//!
//! - [`sent`]: what is remembered of one message. It is small, since the client sends the texts again and the hash
//!   proves that they are the same. Only documents that the filter itself wrote into a message are kept as text.
//! - [`memory`]: the trie, bounded in messages and bytes.
//! - [`prompt_documents`]: the documents that already stand in the prompt, which need not be sent again.
//! - [`passages`]: the same for passages that their client joins into one text.
//!
//! This module decides no order, reads no body and knows no tenant.

mod bounds;
pub(crate) mod memory;
pub(crate) mod passages;
pub(crate) mod prompt_documents;
pub(crate) mod sent;
