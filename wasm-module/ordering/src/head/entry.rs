//! A request, as it is asked about and as the index keeps it.

use super::segments::{SegmentKind, Segments};
use crate::body::{Parsed, Role};
use crate::document::Fingerprint;
use smallvec::SmallVec;
use std::sync::Arc;

/// A request to diagnose.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'r, 'a> {
    /// The request's body, parsed.
    pub parsed: &'r Parsed<'a>,
    /// The body's segments.
    pub segments: &'r Segments,
    /// A tenant or salt by which an engine also keeps caches apart.
    pub tenant: &'r str,
    /// Name of the engine that the request goes to; empty: there is one, or it is unknown.
    pub engine: &'r str,
    /// The documents in the order in which they are sent; `None`: as they stand in the body.
    pub sent: Option<&'r [Fingerprint]>,
}

/// A request in the index.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) realm: Realm,
    pub(super) parameters: Parameters,
    /// Sum of the hashes of the system messages in the history.
    pub(super) inline: u64,
    pub(super) tokens: u64,
    pub(super) segments: Box<[Placed]>,
    /// The pieces of all segments, by number. Beside the segments, so that a request is compared with many others
    /// without a look at theirs.
    pub(super) pieces: Box<[u32]>,
    /// What these pieces are the same as, sorted.
    pub(super) same: Box<[u64]>,
}

/// What engines keep caches apart by, besides content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Realm {
    pub(super) model: u64,
    pub(super) salt: u64,
    pub(super) engine: u64,
}

/// Hashes of the parameters, each with its name.
pub(super) type Parameters = SmallVec<[(&'static str, u64); 2]>;

/// A segment of a request in the index.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) kind: SegmentKind,
    pub(super) role: Role,
    pub(super) message: Option<u32>,
    /// Index of the tool or the document among its like.
    pub(super) index: u32,
    pub(super) key: u64,
    pub(super) pieces: Arc<[u32]>,
}
