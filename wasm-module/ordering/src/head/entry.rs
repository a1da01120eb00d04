//! A request to diagnose, and its entry in the index of recent requests.

use super::segments::{SegmentKind, Segments};
use crate::body::{Parsed, Role};
use crate::document::Fingerprint;
use smallvec::SmallVec;
use std::sync::Arc;

/// A request to diagnose: its parsed body, and the tenant, the engine and the order of the documents, which also decide
/// the cached prefixes that it can use.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiagnosedRequest<'r, 'a> {
    /// The request's body, parsed.
    pub(super) parsed: &'r Parsed<'a>,
    /// The parts of the body's prompt: tools, documents and texts.
    pub(super) segments: &'r Segments,
    /// The tenant's name, which separates caches in addition to the body's `cache_salt`.
    pub(super) tenant: &'r str,
    /// Name of the engine that receives the request; empty if there is only one, or if it is unknown.
    pub(super) engine: &'r str,
    /// The documents in the order in which they are sent; `None` if that is their order in the body.
    pub(super) sent: Option<&'r [Fingerprint]>,
}

/// A diagnosed request, as the index of recent requests stores it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) realm: Realm,
    pub(super) parameters: Parameters,
    /// Sum of the hashes of the system messages that follow other messages of the chat. Some chat templates render
    /// these before all other messages.
    pub(super) inline: u64,
    pub(super) tokens: u64,
    pub(super) segments: Box<[Placed]>,
    /// The numbers of the pieces of all segments (tools, documents, texts) in one list, so that requests are compared
    /// without reading their segments.
    pub(super) pieces: Box<[u32]>,
    /// The [`same`](super::outline::Piece::same) hashes of all pieces (tools, documents, sentences) of the prompt,
    /// sorted.
    pub(super) same: Box<[u64]>,
}

/// A hash of the request's model, one of its tenant and `cache_salt` together, and one of the engine that receives it.
/// Requests that differ in one of these share no cached prefix, even if their prompts are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Realm {
    pub(super) model: u64,
    pub(super) salt: u64,
    pub(super) engine: u64,
}

/// The names of the fields that a chat template may render, apart from messages and tools, each with a hash of its
/// value.
pub(super) type Parameters = SmallVec<[(&'static str, u64); 2]>;

/// A segment (tool, document or text) of a diagnosed request. `P` is the type of its pieces, by default the numbers of
/// stored ones.
#[derive(Clone, Debug)]
pub(super) struct Placed<P = Arc<[u32]>> {
    pub(super) kind: SegmentKind,
    pub(super) role: Role,
    pub(super) message: Option<u32>,
    /// Index of the tool or the document among those of the request, from 0.
    pub(super) index: u32,
    pub(super) key: u64,
    pub(super) pieces: P,
}

impl<P> Placed<P> {
    /// Returns a copy of this segment (tool, document or text) of a prompt, with `pieces` as its pieces.
    pub(super) fn with<Q>(&self, pieces: Q) -> Placed<Q> {
        Placed {
            kind: self.kind,
            role: self.role,
            message: self.message,
            index: self.index,
            key: self.key,
            pieces,
        }
    }
}
