//! What the messages of a tenant's chats were sent like, so that they are sent like that again.
//!
//! A chat comes back with every request, one turn longer. Whatever its earlier messages became the first time, they
//! become again, byte for byte, or the engine's KV state of the whole chat is lost. Nothing in the protocol names a
//! chat; its own words do: message after message is hashed into a [chain](crate::body::Chain), and what was done
//! with a message is remembered under its chain.
//!
//! ```text
//!   m0 ─ m1 ─ m2 ─ m3          a chat, as the client sends it
//!        └ [b a]   └ [c, see a]        what was done: a memory of turns, a trie
//!                  └ [d]               the same words continued otherwise
//! ```
//!
//! - [`turn`]: what is remembered of one message. Small: the client sends the texts again; the hash says they are the
//!   same. Only documents that we wrote into a message ourselves are kept as text.
//! - [`memory`]: the trie, bounded in entries and bytes.
//! - [`shown`]: the documents that already stand in the prompt, which need not be sent again.
//!
//! Nothing here decides an order, reads a body or knows a tenant.

pub(crate) mod memory;
pub(crate) mod prompt_documents;
pub(crate) mod sent;
