//! A request to diagnose, and its entry in the index.

use super::segments::{SegmentKind, Segments};
use crate::body::{Parsed, Role};
use crate::document::Fingerprint;
use smallvec::SmallVec;
use std::sync::Arc;

/// A request to diagnose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'r, 'a> {
    /// The request's body, parsed.
    pub(super) parsed: &'r Parsed<'a>,
    /// The body's segments.
    pub(super) segments: &'r Segments,
    /// A tenant or salt by which an engine separates caches, in addition to the body's.
    pub(super) tenant: &'r str,
    /// Name of the engine that receives the request; empty if there is only one or it is unknown.
    pub(super) engine: &'r str,
    /// The documents in the order sent; `None` for their order in the body.
    pub(super) sent: Option<&'r [Fingerprint]>,
}

/// A request stored in the index.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) realm: Realm,
    pub(super) parameters: Parameters,
    /// Sum of the hashes of the system messages in the history.
    pub(super) inline: u64,
    pub(super) tokens: u64,
    pub(super) segments: Box<[Placed]>,
    /// The pieces of all segments, by number, in one list, so that requests are compared without reading their segments.
    pub(super) pieces: Box<[u32]>,
    /// Hashes by which other requests count as the [same](super::outline::Piece::same) piece, one for each piece, sorted.
    pub(super) same: Box<[u64]>,
}

/// Everything except content by which engines separate caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Realm {
    pub(super) model: u64,
    pub(super) salt: u64,
    pub(super) engine: u64,
}

/// Hashes of the parameters, each with its name.
pub(super) type Parameters = SmallVec<[(&'static str, u64); 2]>;

/// A segment of a request, with its pieces by number if it is stored.
#[derive(Clone, Debug)]
pub(super) struct Placed<P = Arc<[u32]>> {
    pub(super) kind: SegmentKind,
    pub(super) role: Role,
    pub(super) message: Option<u32>,
    /// Index of the tool or the document within its kind.
    pub(super) index: u32,
    pub(super) key: u64,
    pub(super) pieces: P,
}

impl<P> Placed<P> {
    /// Returns the segment with other pieces.
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
