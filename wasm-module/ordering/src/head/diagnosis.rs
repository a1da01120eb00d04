//! Diagnoses why a prompt does not share a longer prefix with an earlier one, with an index of recent requests.
//!
//! ```text
//!   request ─▶ pieces ─▶ the earlier request that shares most ─▶ first difference ─▶ cause, place, tokens lost
//!   (pending)     │                     ▲                            (compare)
//!                 └─ stored as hashes ──┘
//! ```
//!
//! The index holds hashes and counts, and no text. It is bounded in requests and in pieces; the oldest are evicted
//! first. The work for a request is bounded too: for each piece, some of the newest requests that have it are
//! candidates, and the few that share most are compared piece by piece (`Effort`).

use super::cause::{Cause, Volatile};
use super::compare::{self, Difference, Flat, Sides};
use super::entry::{DiagnosedRequest, Entry, Parameters, Placed, Realm};
use super::marks;
use super::outline::{self, Depth, Known, MessageTexts, Piece, RawPiece, SplitAt};
use super::pending::{self, PendingPieces, PendingPrompt};
use super::segments::{Segment, SegmentKind};
use super::tools::name_of;
use crate::body::{Parsed, Role, inner_of};
use crate::config::Config;
use crate::document::Fingerprint;
use crate::hash::KeyedMap;
use crate::listing::Retrieved;
use crate::orderer::Rewrite;
use crate::slots::Slots;
use fxhash::FxHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The bounds of an [`Index`] of recent requests, and of the search in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of requests stored in the index.
    pub requests: u32,
    /// The maximum number of distinct pieces of prompts (tools, documents, sentences) stored, about 150 bytes each.
    pub pieces: u32,
    /// The part of a request's long texts that is read: all, or beginning and end.
    pub depth: Depth,
    /// Number of tokens in a page of the engine's cache: a shared prefix shorter than a page is not reused. With 1, any
    /// prefix is.
    pub page_tokens: u32,
}

impl Limits {
    /// Limits for reading a log of requests: the index takes a few hundred megabytes at most.
    pub const LOG: Self = Self {
        requests: 16_384,
        pieces: 1 << 20,
        depth: Depth::Full,
        page_tokens: 16,
    };

    /// Limits for a gateway: the index takes a megabyte at most.
    pub const GATEWAY: Self = Self {
        requests: 64,
        pieces: 4_096,
        depth: Depth::Light,
        page_tokens: 16,
    };
}

/// The diagnosis of one request: why it does not share a longer prefix with an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// The request's number in the [`Index`] that diagnosed it, counted from 1.
    pub request: u64,
    /// The number, in the [`Index`], of the earlier request that shares the most tokens with this one; `None` if none
    /// shares a significant part.
    pub earlier: Option<u64>,
    /// Estimated tokens of this request's prompt.
    pub prompt_tokens: u64,
    /// Estimated tokens of the pieces (tools, documents, sentences) of this prompt that the earlier prompt has too, at
    /// any position.
    pub shared_tokens: u64,
    /// Estimated tokens of the longest prefix shared with any compared earlier prompt of the same model, salt, engine
    /// and parameters.
    pub reused_tokens: u64,
    /// Estimated tokens that the engine computed although an earlier prompt had the same pieces (tools, documents,
    /// sentences); 0 if there is no miss.
    pub lost_tokens: u64,
    /// The cause of the first difference between this prompt and the earlier one.
    pub cause: Cause,
    /// The kind of value that differs from the earlier prompt's, for [`Cause::VolatileValue`]; otherwise `None`.
    pub volatile: Option<Volatile>,
    /// The kind of the first part of this prompt (tool, text or document) that differs from the earlier one; `None` for
    /// a difference outside the prompt.
    pub segment: Option<SegmentKind>,
    /// Name of the tool or of the body's field that differs from the earlier request's, or role of the message that
    /// does. Empty if nothing differs, and at [`Depth::Light`] for a tool and a message.
    pub name: String,
    /// Index, from 0, of what differs from the earlier request: of a tool among the request's tools, of a document
    /// among its documents, or of a message among its messages.
    pub index: u32,
    /// Number of bytes between the beginning of the tool, document or text and its first sentence that differs from the
    /// earlier request's; 0 if the tool or document itself is what differs.
    pub offset: u32,
    /// The form of the text that differs from the earlier request's: each character is replaced by its class, such as
    /// `9999-99-99` for a date.
    pub shape: String,
    /// The prompt's segments (tools, documents, texts), where adjacent ones of the same kind are one entry: their kind,
    /// and the estimated tokens of the prompt up to their end. At most 16 entries; the last one includes the rest.
    pub extents: SmallVec<[(SegmentKind, u64); 6]>,
}

impl Diagnosis {
    /// Corrects the diagnosis (why the prompt does not share a longer prefix with an earlier one) by the token counts
    /// that the engine reported: `prompt` tokens, of which `cached` were in its cache. `page_tokens` is the size of a
    /// page of that cache.
    ///
    /// (1) If the engine had cached clearly fewer tokens than the prefix shared with an earlier prompt, the cause
    /// becomes [`Cause::Evicted`]. (2) If it had cached clearly more, `lost_tokens` is reduced. The cause then becomes
    /// [`Cause::None`] if it was only assumed to prevent reuse, such as another salt, and almost nothing is lost.
    pub fn apply_usage(&mut self, prompt: u64, cached: u64, page_tokens: u32) {
        if prompt == 0 || self.prompt_tokens == 0 {
            return;
        }
        let ratio = |tokens: u64, of: u64, to: u64| {
            u64::try_from(u128::from(tokens) * u128::from(to) / u128::from(of)).unwrap_or(u64::MAX)
        };
        // Converts from estimated tokens to the engine's tokens.
        let scaled = |tokens: u64| ratio(tokens, self.prompt_tokens, prompt);
        let page = u64::from(page_tokens.max(1));
        // The last token is always computed.
        let expected = scaled(self.reused_tokens).min(prompt.saturating_sub(1));
        let expected = expected - expected % page;
        let shared = scaled(self.shared_tokens);
        let slack = (expected / 4).max(page).max(16);
        if cached.saturating_add(slack) < expected {
            let held = ratio(cached, prompt, self.prompt_tokens);
            let kind = self.extents.iter().find(|(_, end)| *end > held);
            let expected = self.shared_tokens.max(self.reused_tokens);
            self.evicted(kind.map(|(kind, _)| *kind), expected.saturating_sub(held));
        } else if cached > expected.saturating_add(slack) && self.lost_tokens > 0 {
            let lost = shared.saturating_sub(cached);
            self.lost_tokens = self.lost_tokens.min(lost);
            // The difference did not prevent reuse on this engine.
            let is_assumed = matches!(
                self.cause,
                Cause::HoistedSystem | Cause::Parameters | Cause::TenantSalt | Cause::OtherEngine
            );
            if is_assumed && lost <= slack {
                self.cause = Cause::None;
                self.lost_tokens = 0;
                self.segment = None;
            }
        }
    }

    /// Corrects the diagnosis (why the prompt does not share a longer prefix with an earlier one) by `document_tokens`,
    /// the tokens of this prompt's documents that the gateway believes the engine's cache to hold. If these are clearly
    /// fewer than the documents' tokens in the prefix shared with an earlier prompt, the cause becomes
    /// [`Cause::Evicted`]. `page_tokens` is the size of a page of that cache.
    pub fn believed(&mut self, document_tokens: u64, page_tokens: u32) {
        let mut start = 0;
        let mut expected = 0_u64;
        for (kind, end) in &self.extents {
            if *kind == SegmentKind::Document {
                expected += (*end).min(self.reused_tokens).saturating_sub(start);
            }
            start = *end;
        }
        let slack = (expected / 4).max(u64::from(page_tokens)).max(16);
        if document_tokens.saturating_add(slack) < expected {
            let gone = expected - document_tokens;
            self.reused_tokens = self.reused_tokens.saturating_sub(gone);
            let lost = self.lost_tokens.saturating_add(gone);
            self.evicted(Some(SegmentKind::Document), lost);
        }
    }

    /// Sets the cause to [`Cause::Evicted`], with this kind of segment (tool, document or text) and number of lost
    /// (computed again) tokens, and clears the details of the former cause.
    fn evicted(&mut self, segment: Option<SegmentKind>, lost_tokens: u64) {
        self.cause = Cause::Evicted;
        self.volatile = None;
        (self.segment, self.lost_tokens) = (segment, lost_tokens);
        (self.name, self.shape) = (String::new(), String::new());
        (self.index, self.offset) = (0, 0);
    }
}

/// An index of recent requests. Against these it diagnoses why a prompt does not share a longer prefix with an earlier
/// one. It stores hashes and no text.
#[derive(Debug)]
pub struct Index {
    limits: Limits,
    /// Number of requests diagnosed so far, evicted ones included.
    count: u64,
    entries: VecDeque<Entry>,
    parts: KeyedMap<(u64, SegmentKind), Part>,
    pieces: Slab,
    /// The newest requests that contain a piece (tool, document or sentence), by the hash of its content
    /// ([`same`](super::outline::Piece::same)).
    holders: KeyedMap<u64, Holders>,
    /// For each position in a text at which a piece (sentence or line) changed between requests: up to three of its
    /// values, as hashes. The key is a hash of the pieces before and after the position.
    slots: FxHashMap<u64, SmallVec<[u64; 3]>>,
}

/// The pieces (tools, documents, sentences) of one segment of a prompt: of a tool, a document or a text. All stored
/// requests with this segment share them.
#[derive(Debug)]
struct Part {
    pieces: Arc<[u32]>,
    requests: u32,
}

/// The newest stored requests that contain a piece (tool, document or sentence) of a prompt.
#[derive(Debug, Default)]
struct Holders {
    newest: VecDeque<u64>,
    pieces: u32,
}

/// The limits on the work to find, among the stored requests, the one most similar to a new request.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// The maximum number of requests (the newest ones) recorded for each piece (tool, document or sentence) that they
    /// contain.
    holders: usize,
    /// The maximum number of earlier requests for which the tokens of all pieces (tools, documents, sentences) shared
    /// with a new request are summed.
    compared: usize,
    /// The maximum number of earlier requests for which the length of the prefix shared with a new request is measured.
    beginnings: usize,
}

impl Effort {
    fn of(depth: Depth) -> Self {
        match depth {
            Depth::Full => Self {
                holders: 24,
                compared: 6,
                beginnings: 48,
            },
            Depth::Light => Self {
                holders: 12,
                compared: 3,
                beginnings: 12,
            },
        }
    }
}

/// The maximum number of positions in texts (each between two sentences or lines) for which changing values are
/// recorded. When it is reached, all records are dropped.
const SLOTS: usize = 4_096;

/// The distinct pieces (tools, documents, sentences) of the stored requests' prompts, each identified by a number.
#[derive(Debug, Default)]
struct Slab {
    by_hash: FxHashMap<u64, u32>,
    /// The stored pieces, each with the number of stored segments (tools, documents, texts) that contain it.
    held: Slots<(Piece, u32)>,
}

impl Slab {
    fn get(&self, id: u32) -> Option<&Piece> {
        self.held.get(id).map(|(piece, _)| piece)
    }

    /// Records that one more stored segment (tool, document or text) contains `piece`. Returns the piece's number, and
    /// whether the piece was not stored before.
    fn hold(&mut self, piece: Piece) -> (u32, bool) {
        if let Some(&id) = self.by_hash.get(&piece.hash) {
            if let Some((_, held)) = self.held.get_mut(id) {
                *held = held.saturating_add(1);
            }
            return (id, false);
        }
        let id = self.held.put((piece, 1));
        self.by_hash.insert(piece.hash, id);
        (id, true)
    }

    /// Records that one stored segment (tool, document or text) fewer contains the piece with this number. If none
    /// contains it any more, frees the number and returns the piece. `None` if the piece stays stored or the number is
    /// unknown.
    fn release(&mut self, id: u32) -> Option<Piece> {
        let (piece, held) = self.held.get_mut(id)?;
        *held = held.saturating_sub(1);
        if *held > 0 {
            return None;
        }
        let piece = *piece;
        self.by_hash.remove(&piece.hash);
        self.held.release(id);
        Some(piece)
    }

    fn len(&self) -> usize {
        self.by_hash.len()
    }
}

impl Index {
    /// Returns an index without requests.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            count: 0,
            entries: VecDeque::new(),
            parts: KeyedMap::default(),
            pieces: Slab::default(),
            holders: KeyedMap::default(),
            slots: FxHashMap::default(),
        }
    }

    /// Returns the number of requests that the index has stored now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the index has stored no request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of distinct pieces of prompts (tools, documents, sentences) that the index has stored.
    #[must_use]
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Reads a request without comparing it, and copies the parts of its text that [`Index::diagnose`] needs. O(parts
    /// of the prompt), plus hashing and copying of texts that are not stored yet.
    fn read(&mut self, asked: &DiagnosedRequest<'_, '_>) -> PendingPrompt {
        let DiagnosedRequest {
            parsed, segments, ..
        } = *asked;
        let salt = parsed.salt.given().unwrap_or_default();
        let realm = Realm {
            model: hash_of(&parsed.model),
            salt: xxh3_64_with_seed(salt.as_bytes(), hash_of(asked.tenant)),
            engine: hash_of(asked.engine),
        };
        let parameters = parsed.parameters();
        let parameters = parameters.map(|(name, value)| (name, hash_of(value)));
        let depth = self.limits.depth;
        let documents = outline::documents(parsed);
        let mut pending = PendingPrompt::new(asked, realm, parameters.collect(), documents.len());
        if depth == Depth::Light && segments.list.len() > pending::MAX_SEGMENTS {
            pending.is_unread = true;
            return pending;
        }
        // Segments are in the order of messages.
        let mut holding: SmallVec<[u32; 8]> = (segments.list.iter())
            .filter(|segment| segment.kind == SegmentKind::Document)
            .filter_map(|segment| segment.message)
            .collect();
        holding.dedup();
        let mut texts = MessageTexts::default();
        for segment in &segments.list {
            let is_document = segment.kind == SegmentKind::Document;
            let whose = (segment.message).is_some_and(|at| holding.binary_search(&at).is_ok());
            if segment.kind == SegmentKind::Message && segment.role == Role::System {
                pending.inline = pending.inline.wrapping_add(segment.hash);
            }
            let key = match depth {
                Depth::Full if !is_document => {
                    let raw = parsed.text.get(segment.range.clone());
                    xxh3_64_with_seed(raw.unwrap_or_default().as_bytes(), segment.role as u64)
                }
                _ => segment.hash,
            };
            // Texts of a message with documents are split differently from those of other messages.
            let key = key ^ u64::from(whose && !is_document);
            // Copying a document's beginning, which was just read, is cheaper than looking it up in cold memory.
            let known = (!is_document).then(|| self.hold_part(key, segment.kind));
            let pieces = match known.flatten() {
                Some(pieces) => PendingPieces::Known(pieces),
                None => pending.take(asked, &mut texts, segment, &documents, whose, depth),
            };
            pending.segments.push(Placed {
                kind: segment.kind,
                role: segment.role,
                message: segment.message,
                index: segment.index,
                key,
                pieces,
            });
        }
        pending
    }

    /// Diagnoses why a request does not share a longer prefix with the requests diagnosed before, and stores the
    /// request in the index, unless it has too many parts ([`Cause::Unread`]). `pending` is the request as
    /// [`Index::read_sent`] of this index returned it.
    pub fn diagnose(&mut self, pending: PendingPrompt) -> Diagnosis {
        self.resolve(pending, None)
    }

    /// Diagnoses why a request does not share a longer prefix with the requests diagnosed before, and stores the
    /// request in the index, unless it has too many parts ([`Cause::Unread`]). `asked` is the same request with its
    /// body; if it is `None`, the diagnosis has no names of tools and no forms of the texts that differ.
    fn resolve(
        &mut self,
        pending: PendingPrompt,
        asked: Option<&DiagnosedRequest<'_, '_>>,
    ) -> Diagnosis {
        if pending.is_unread {
            self.count += 1;
            return Diagnosis {
                request: self.count,
                cause: Cause::Unread,
                ..Diagnosis::default()
            };
        }
        let depth = self.limits.depth;
        let mut placed: Vec<Placed> = Vec::with_capacity(pending.segments.len());
        for segment in &pending.segments {
            let pieces = match &segment.pieces {
                PendingPieces::Known(pieces) => pieces.clone(),
                PendingPieces::Raw(range) => {
                    self.part(segment.key, segment.kind, |known, pieces| {
                        pieces.extend(pending.made(range.clone(), depth, known));
                    })
                }
            };
            placed.push(segment.with(pieces));
        }
        if !pending.sent.is_empty() {
            arrange(&mut placed, &pending.sent);
        }
        let entry = self.entry(pending.realm, pending.parameters, pending.inline, placed);
        let (mut diagnosis, place) = self.compare(&entry);
        if let Some(place) = place {
            self.add_location(&mut diagnosis, &place, &entry, asked);
        }
        self.keep(entry);
        diagnosis
    }

    /// Diagnoses why a request of which only the documents are known does not share a longer prefix with earlier ones,
    /// and stores the request in the index. `documents` are in the order in which they are sent.
    pub fn explain_ranking(&mut self, documents: &[Retrieved]) -> Diagnosis {
        let mut segments = Vec::with_capacity(documents.len());
        for (index, document) in (0..).zip(documents) {
            let key = document.fingerprint.0;
            let (label, tokens) = (&document.label, document.tokens);
            let raw = RawPiece::document(key, label, "", tokens, Depth::Full, |_| 0..0);
            segments.push(Placed {
                kind: SegmentKind::Document,
                role: Role::Other,
                message: None,
                index,
                key,
                pieces: self.part(key, SegmentKind::Document, |known, pieces| {
                    pieces.push(raw.made("", Depth::Full, known));
                }),
            });
        }
        let entry = self.entry(Realm::default(), Parameters::new(), 0, segments);
        let (diagnosis, _) = self.compare(&entry);
        self.keep(entry);
        diagnosis
    }

    /// Records that one more request has the segment (tool, document or text) with this key and kind, and returns the
    /// numbers of its pieces. If they are not stored, calls `make` to create them.
    fn part(
        &mut self,
        key: u64,
        kind: SegmentKind,
        make: impl FnOnce(&Known<'_>, &mut SmallVec<[Piece; 4]>),
    ) -> Arc<[u32]> {
        if let Some(pieces) = self.hold_part(key, kind) {
            return pieces;
        }
        let mut made = SmallVec::new();
        let known = |hash| {
            let id = self.pieces.by_hash.get(&hash)?;
            self.pieces.get(*id).copied()
        };
        make(&known, &mut made);
        let pieces = made.into_iter().map(|piece| {
            let (id, is_new) = self.pieces.hold(piece);
            if is_new {
                self.holders.entry(piece.same).or_default().pieces += 1;
            }
            id
        });
        let pieces: Arc<[u32]> = pieces.collect();
        let part = Part {
            pieces: pieces.clone(),
            requests: 1,
        };
        self.parts.insert((key, class_of(kind)), part);
        pieces
    }

    /// Records that one more request has the segment (tool, document or text) with this key and kind, and returns the
    /// numbers of its pieces; `None` if they are not stored.
    fn hold_part(&mut self, key: u64, kind: SegmentKind) -> Option<Arc<[u32]>> {
        let part = self.parts.get_mut(&(key, class_of(kind)))?;
        part.requests = part.requests.saturating_add(1);
        Some(part.pieces.clone())
    }

    fn entry(
        &mut self,
        realm: Realm,
        parameters: Parameters,
        inline: u64,
        segments: Vec<Placed>,
    ) -> Entry {
        self.count += 1;
        let pieces = segments.iter().flat_map(|placed| placed.pieces.iter());
        let numbers: Box<[u32]> = pieces.copied().collect();
        let pieces = numbers.iter().filter_map(|&id| self.pieces.get(id));
        let (mut bytes, mut same) = (0_u64, Vec::with_capacity(numbers.len()));
        for piece in pieces {
            bytes += u64::from(piece.bytes);
            same.push(piece.same);
        }
        same.sort_unstable();
        Entry {
            number: self.count,
            realm,
            parameters,
            inline,
            tokens: bytes.div_ceil(4),
            segments: segments.into(),
            pieces: numbers,
            same: same.into(),
        }
    }

    /// Returns all pieces (tools, documents, sentences) of a stored request, in the order of the prompt.
    fn flat(&self, entry: &Entry) -> Vec<Flat> {
        let mut flat = Vec::with_capacity(entry.segments.len() * 2);
        let mut bytes = 0_u64;
        for (segment, placed) in (0_u32..).zip(&entry.segments) {
            let mut offset = 0_u32;
            for &id in placed.pieces.iter() {
                let Some(piece) = self.pieces.get(id) else {
                    continue;
                };
                let end = bytes + u64::from(piece.bytes);
                flat.push(Flat {
                    id,
                    kind: placed.kind,
                    role: placed.role,
                    message: placed.message,
                    segment,
                    offset,
                    tokens: outline::tokens_between(bytes, end),
                    end: end.div_ceil(4),
                    piece: *piece,
                });
                bytes = end;
                offset = offset.saturating_add(piece.bytes);
            }
        }
        flat
    }

    /// Compares a request with the most similar earlier one. Returns the diagnosis, and the first difference with the
    /// piece (tool, document or sentence) at which it is reported; `None` in place of both if no earlier request is
    /// similar, or if there is no miss.
    fn compare(&mut self, entry: &Entry) -> (Diagnosis, Option<(Difference, Flat)>) {
        let flat = self.flat(entry);
        let mut diagnosis = Diagnosis {
            prompt_tokens: entry.tokens,
            extents: extents(&flat),
            request: entry.number,
            cause: Cause::FirstSeen,
            ..Diagnosis::default()
        };
        let candidates = self.candidates(&flat);
        let Some(best) = self.best(entry, &flat, &candidates) else {
            return (diagnosis, None);
        };
        diagnosis.reused_tokens = best.reused;
        // Less than a twentieth in common counts as nothing.
        if best.prefix == 0 && best.reused == 0 && best.shared.saturating_mul(20) < entry.tokens {
            return (diagnosis, None);
        }
        let Some(earlier) = self.kept(best.number) else {
            return (diagnosis, None);
        };
        let other = self.flat(earlier);
        diagnosis.earlier = Some(best.number);
        diagnosis.shared_tokens = best.shared;
        diagnosis.lost_tokens = best.shared.saturating_sub(best.reused);
        let sides = Sides {
            new: entry,
            old: earlier,
            new_pieces: &flat,
            old_pieces: &other,
        };
        let found = compare::first_difference(&sides);
        let found = self.slotted(found, &flat, &other);
        diagnosis.cause = found.cause;
        diagnosis.volatile = found.volatile;
        let at = found.at.and_then(|at| flat.get(at));
        diagnosis.segment = found.segment;
        let page = u64::from(self.limits.page_tokens.max(1));
        let below = best.reused % page;
        let is_short = best.reused > 0 && best.reused < page;
        if is_short && diagnosis.lost_tokens <= below && entry.tokens > 1 {
            diagnosis.cause = Cause::BelowPage;
            diagnosis.volatile = None;
            diagnosis.lost_tokens = best.reused;
            diagnosis.reused_tokens = 0;
            diagnosis.segment = flat.first().map(|first| first.kind);
            return (diagnosis, None);
        }
        if found.cause == Cause::None {
            diagnosis.lost_tokens = 0;
            diagnosis.segment = None;
            return (diagnosis, None);
        }
        let at = at.or(flat.last()).copied();
        if let Some(name) = found.name {
            diagnosis.name = name.to_owned();
        }
        (diagnosis, at.map(|at| (found, at)))
    }

    /// Returns `found`, the first difference between a request and an earlier one, with the cause
    /// [`Cause::VolatileValue`] instead of [`Cause::SystemText`] if two conditions hold: (1) the sentence or line that
    /// differs is short; (2) at least three values of it were seen between the same two neighbours. Also records the
    /// values that both requests have there. `new` and `old` are all pieces of the two prompts.
    fn slotted(&mut self, mut found: Difference, new: &[Flat], old: &[Flat]) -> Difference {
        let (Cause::SystemText | Cause::VolatileValue, Some(at)) = (found.cause, found.at) else {
            return found;
        };
        let Some(value) = new.get(at).filter(|flat| flat.piece.bytes <= LONGEST_SLOT) else {
            return found;
        };
        // A slot is identified by the pieces before and after it.
        let hash = |list: &[Flat], at: Option<usize>| {
            let flat = at.and_then(|at| list.get(at));
            flat.map_or(0, |flat| flat.piece.hash)
        };
        let around = |list: &[Flat]| (hash(list, at.checked_sub(1)), hash(list, Some(at + 1)));
        if around(new) != around(old) {
            return found;
        }
        let (before, behind) = around(new);
        if self.slots.len() >= SLOTS {
            self.slots.clear();
        }
        let key = xxh3_64_with_seed(&behind.to_le_bytes(), before);
        let values = self.slots.entry(key).or_default();
        for hash in [hash(old, Some(at)), value.piece.hash] {
            if !values.contains(&hash) && values.len() < 3 {
                values.push(hash);
            }
        }
        if found.cause == Cause::SystemText && values.len() >= 3 {
            found.cause = Cause::VolatileValue;
            found.volatile = Some(Volatile::Value);
        }
        found
    }

    /// Returns the numbers of the earlier requests that share the most with a prompt, each with an estimate of the
    /// shared tokens, highest first; at most [`Effort::beginnings`]. `flat` has the prompt's pieces (tools, documents,
    /// sentences).
    fn candidates(&self, flat: &[Flat]) -> SmallVec<[(u64, u64); 64]> {
        let mut found: SmallVec<[(u64, u64); 64]> = SmallVec::new();
        let Some(oldest) = self.entries.front().map(|entry| entry.number) else {
            return found;
        };
        // The scores of the stored requests, by index: a dense list for the oldest ones, and a map for those of a long
        // log.
        let few = self.entries.len().min(FEW);
        let mut scores: SmallVec<[u64; 128]> = SmallVec::from_elem(0, few);
        let mut many: FxHashMap<u64, u64> = FxHashMap::default();
        for piece in flat {
            let Some(holders) = self.holders.get(&piece.piece.same) else {
                continue;
            };
            for number in holders.newest.iter().filter(|number| **number >= oldest) {
                let at = usize::try_from(number - oldest).unwrap_or(usize::MAX);
                let score = match scores.get_mut(at) {
                    Some(score) => score,
                    None => many.entry(*number).or_default(),
                };
                *score += u64::from(piece.tokens);
            }
        }
        found.extend((oldest..).zip(scores).filter(|(_, score)| *score > 0));
        found.extend(many);
        let key = |&(number, score): &(u64, u64)| std::cmp::Reverse((score, number));
        found.sort_unstable_by_key(key);
        found.truncate(Effort::of(self.limits.depth).beginnings);
        found
    }

    /// Returns the most similar of the first [`Effort::compared`] candidates: the one that shares the most tokens with
    /// the request; on a tie the one with the longest shared prefix, then the newest. One of the same model, salt and
    /// engine is preferred if it shares at least 90 % as many tokens as the best other one. `None` if there are no
    /// candidates.
    fn best(&self, entry: &Entry, flat: &[Flat], candidates: &[(u64, u64)]) -> Option<Best> {
        let effort = Effort::of(self.limits.depth);
        let new = flat.iter().map(|flat| (flat.piece.same, flat.tokens));
        let mut new: SmallVec<[(u64, u32); 64]> = new.collect();
        new.sort_unstable();
        let mut best: [Option<Best>; 2] = [None, None];
        let mut reused = 0;
        for (at, &(number, _)) in candidates.iter().enumerate() {
            let Some(earlier) = self.kept(number) else {
                continue;
            };
            let is_same = earlier.realm == entry.realm;
            let prefix = self.prefix(entry, flat, earlier);
            if is_same && earlier.parameters == entry.parameters {
                reused = reused.max(prefix);
            }
            if at >= effort.compared {
                continue;
            }
            let shared = in_both(&new, &earlier.same);
            let found = Best {
                number,
                shared,
                prefix,
                reused: 0,
            };
            if let Some(best) = best.get_mut(usize::from(!is_same)) {
                let key = |best: &Best| (best.shared, best.prefix, best.number);
                if best.as_ref().is_none_or(|known| key(known) < key(&found)) {
                    *best = Some(found);
                }
            }
        }
        let [same, other] = best;
        let chosen = match (same, other) {
            (Some(same), Some(other)) => {
                let is_enough = same.shared.saturating_mul(10) >= other.shared.saturating_mul(9);
                if is_enough { same } else { other }
            }
            (same, other) => same.or(other)?,
        };
        Some(Best { reused, ..chosen })
    }

    /// Returns the estimated tokens of the prefix that the prompt of the request `entry`, whose pieces are `flat`,
    /// shares with the prompt of `earlier`.
    fn prefix(&self, entry: &Entry, flat: &[Flat], earlier: &Entry) -> u64 {
        let mut pieces = earlier.pieces.iter();
        // If other system messages inside the history are rendered first, everything after them moves.
        let is_hoisted = entry.inline != earlier.inline;
        let mut end = 0;
        for flat in flat {
            let is_head = matches!(flat.kind, SegmentKind::Tool | SegmentKind::System);
            match pieces.next() {
                Some(id) if *id == flat.id && (is_head || !is_hoisted) => end = flat.end,
                _ => break,
            }
        }
        end
    }

    fn kept(&self, number: u64) -> Option<&Entry> {
        let oldest = self.entries.front()?.number;
        let at = usize::try_from(number.checked_sub(oldest)?).ok()?;
        self.entries.get(at)
    }

    /// Stores a request in the index, and evicts the oldest requests while the index exceeds its [`Limits`].
    fn keep(&mut self, entry: Entry) {
        let most = Effort::of(self.limits.depth).holders;
        for placed in &entry.segments {
            for &id in placed.pieces.iter() {
                let Some(piece) = self.pieces.get(id) else {
                    continue;
                };
                if let Some(holders) = self.holders.get_mut(&piece.same)
                    && holders.newest.back() != Some(&entry.number)
                {
                    if holders.newest.len() >= most {
                        holders.newest.pop_front();
                    }
                    holders.newest.push_back(entry.number);
                }
            }
        }
        self.entries.push_back(entry);
        while self.entries.len() > self.limits.requests as usize
            || self.pieces.len() > self.limits.pieces as usize && !self.entries.is_empty()
        {
            if let Some(oldest) = self.entries.pop_front() {
                self.forget(&oldest);
            }
        }
    }

    fn forget(&mut self, entry: &Entry) {
        for placed in &entry.segments {
            let class = class_of(placed.kind);
            let Some(part) = self.parts.get_mut(&(placed.key, class)) else {
                continue;
            };
            part.requests = part.requests.saturating_sub(1);
            if part.requests > 0 {
                continue;
            }
            self.parts.remove(&(placed.key, class));
            for &id in placed.pieces.iter() {
                let Some(piece) = self.pieces.release(id) else {
                    continue;
                };
                if let Some(holders) = self.holders.get_mut(&piece.same) {
                    holders.pieces = holders.pieces.saturating_sub(1);
                    if holders.pieces == 0 {
                        self.holders.remove(&piece.same);
                    }
                }
            }
        }
    }

    /// Adds to the diagnosis the index and the offset of the piece (tool, document or sentence) that differs from the
    /// earlier request's. At [`Depth::Full`] also adds the tool's name or the message's role, and the form of the text
    /// that differs, if `asked`, the request with its body, is given. `found` is the difference, `at` the piece.
    fn add_location(
        &self,
        diagnosis: &mut Diagnosis,
        (found, at): &(Difference, Flat),
        entry: &Entry,
        asked: Option<&DiagnosedRequest<'_, '_>>,
    ) {
        let Some(placed) = entry.segments.get(at.segment as usize) else {
            return;
        };
        if found.name.is_some() || found.at.is_none() {
            return;
        }
        diagnosis.offset = at.offset;
        diagnosis.index = match placed.kind {
            SegmentKind::Tool | SegmentKind::Document => placed.index,
            _ => placed.message.unwrap_or(0),
        };
        // At `Depth::Light`, names and shapes are not reported.
        let asked = asked.filter(|_| self.limits.depth == Depth::Full);
        let segment = asked.and_then(|asked| asked.segments.list.get(at.segment as usize));
        let Some((asked, segment)) = asked.zip(segment) else {
            return;
        };
        let raw = asked.parsed.text.get(segment.range.clone());
        let name = match segment.kind {
            SegmentKind::Tool => raw.and_then(name_of).unwrap_or_default(),
            _ => role_name(segment.role),
        };
        diagnosis.name = name.to_owned();
        if !matches!(segment.kind, SegmentKind::Tool | SegmentKind::Document) {
            let shown = Self::words_at(asked, segment, at.offset);
            diagnosis.shape = shown.map(marks::shape).unwrap_or_default();
        }
    }

    /// Returns the sentence or line that contains byte `offset` of a segment (a part of the prompt, whose texts are
    /// counted one after the other). For JSON that is no text, such as tool calls, returns the whole value. `None` if
    /// the segment is in no message, or does not contain the offset.
    fn words_at<'a>(
        asked: &DiagnosedRequest<'_, 'a>,
        segment: &Segment,
        offset: u32,
    ) -> Option<&'a str> {
        let message = asked.parsed.messages.get(segment.message? as usize)?;
        let mut done = 0;
        for (text, is_text) in MessageTexts::default().of(asked.parsed.text, message, segment) {
            let cut = if is_text {
                SplitAt::Sentences
            } else {
                SplitAt::Whole
            };
            for unit in outline::units(text, cut) {
                let end = done + unit.len();
                if (done..end).contains(&(offset as usize)) {
                    return text.get(unit);
                }
                done = end;
            }
        }
        None
    }
}

/// The earlier request that is most similar to a new one. `shared` and `prefix` are the estimated tokens that both
/// prompts have, at any position and as a prefix.
#[derive(Clone, Copy, Debug)]
struct Best {
    number: u64,
    shared: u64,
    prefix: u64,
    /// Estimated tokens of the longest prefix shared with any compared earlier request of the same model, salt, engine
    /// and parameters.
    reused: u64,
}

/// Returns the estimated tokens of the pieces (tools, documents, sentences) of a prompt `new` that are also in the
/// prompt `old`. `new` has the pieces' hashes with tokens, `old` has hashes; both are sorted by hash.
fn in_both(new: &[(u64, u32)], old: &[u64]) -> u64 {
    let mut old = old.iter().peekable();
    let mut shared = 0;
    for &(same, tokens) in new {
        while old.next_if(|other| **other < same).is_some() {}
        if old.next_if(|other| **other == same).is_some() {
            shared += u64::from(tokens);
        }
    }
    shared
}

/// The maximum length in bytes of a sentence or line that may count as a volatile value: one that takes several values
/// between the same two neighbours.
const LONGEST_SLOT: u32 = 160;

/// Returns the kind under which the pieces of a segment (tool, document or text) are stored. A question counts as a
/// message, since the next request sends it as one.
fn class_of(kind: SegmentKind) -> SegmentKind {
    match kind {
        SegmentKind::Question | SegmentKind::Hint => SegmentKind::Message,
        kind => kind,
    }
}

/// Reorders the documents of each message among the segments (tools, documents, texts) into the order `sent`; text
/// between documents stays in place.
fn arrange(placed: &mut [Placed], sent: &[Fingerprint]) {
    // For a document sent twice, the first position counts.
    let places = sent.iter().enumerate().rev();
    let ranks: FxHashMap<u64, usize> = places.map(|(rank, sent)| (sent.0, rank)).collect();
    let rank = |key: u64| ranks.get(&key).copied().unwrap_or(usize::MAX);
    let is_document = |placed: &&mut Placed| placed.kind == SegmentKind::Document;
    for group in placed.chunk_by_mut(|one, next| one.message == next.message) {
        // Only the documents' slots are reassigned.
        let slots = group.iter_mut().filter(is_document);
        let mut documents: Vec<Placed> = slots.map(|placed| placed.clone()).collect();
        documents.sort_by_key(|document| rank(document.key));
        for (slot, document) in group.iter_mut().filter(is_document).zip(documents) {
            let index = slot.index;
            *slot = Placed { index, ..document };
        }
    }
}

/// Returns the prompt's pieces (tools, documents, sentences), where adjacent ones of the same kind are one entry: their
/// kind, and the estimated tokens of the prompt up to their end. At most 16 entries; the last one includes the rest.
fn extents(flat: &[Flat]) -> SmallVec<[(SegmentKind, u64); 6]> {
    let mut extents: SmallVec<[(SegmentKind, u64); 6]> = SmallVec::new();
    for flat in flat {
        let has_room = extents.len() < 16;
        match extents.last_mut() {
            Some((kind, end)) if *kind == flat.kind || !has_room => *end = flat.end,
            _ => extents.push((flat.kind, flat.end)),
        }
    }
    extents
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::Other => "",
    }
}

fn hash_of(text: &str) -> u64 {
    // A model's name and a salt are hashed without their quotes.
    xxh3_64_with_seed(inner_of(text).unwrap_or(text).as_bytes(), 0)
}

/// The methods that take a request's body, parsed or as bytes, and the configuration for reading it.
impl Index {
    /// Reads a parsed request for [`Index::diagnose`], with the documents in the order in which `rewritten` sends them,
    /// if there is a rewrite. If the rewrite changed the prompt's head (tools, system text), use
    /// [`Index::explain_body`] on the new body instead.
    pub fn read_sent(
        &mut self,
        parsed: &Parsed<'_>,
        config: &Config,
        tenant: &str,
        engine: &str,
        rewritten: Option<&Rewrite>,
    ) -> PendingPrompt {
        let segments = parsed.segments(config);
        let sent: Option<SmallVec<[Fingerprint; 16]>> = rewritten.map(|rewrite| {
            let runs = rewrite.record.runs.iter();
            let documents = runs.flat_map(|run| &run.documents);
            documents.map(|(fingerprint, _)| *fingerprint).collect()
        });
        self.read(&DiagnosedRequest {
            parsed,
            segments: &segments,
            tenant,
            engine,
            sent: sent.as_deref(),
        })
    }

    /// Parses a body as it is forwarded, diagnoses why its prompt does not share a longer prefix with the requests
    /// diagnosed before, and stores the request in the index.
    ///
    /// # Errors
    /// Returns a [`Skip`](crate::Skip) if the body cannot be parsed.
    pub fn explain_body(
        &mut self,
        body: &[u8],
        config: &Config,
        tenant: &str,
        engine: &str,
    ) -> Result<Diagnosis, crate::Skip> {
        let parsed = crate::body::parse(body, config)?;
        let segments = parsed.segments(config);
        let asked = DiagnosedRequest {
            parsed: &parsed,
            segments: &segments,
            tenant,
            engine,
            sent: None,
        };
        let pending = self.read(&asked);
        Ok(self.resolve(pending, Some(&asked)))
    }
}

/// The number of stored requests, from the oldest on, whose similarity to a new request is computed in a list; for
/// newer ones it is computed in a map.
const FEW: usize = 1_024;
