//! A prompt that was read but not yet diagnosed (compared with earlier prompts): a gateway stores it while the request
//! is forwarded at once, and diagnoses it later.
//!
//! ```text
//!   request ─▶ Index::read ─▶ PendingPrompt ───── the request is forwarded ─────▶ Index::diagnose ─▶ Diagnosis
//!               hashes; texts that the index                                      pieces, comparison
//!               does not store, in part
//! ```
//!
//! Reading only hashes and copies; it classifies no words. A tool or a message stored in the index costs one look-up
//! and stays there until the prompt is diagnosed, so every prompt that was read must be diagnosed.

use super::entry::{DiagnosedRequest, Parameters, Placed, Realm};
use super::outline::{self, Depth, Known, MessageTexts, Piece, RawPiece};
use super::segments::{Segment, SegmentKind};
use crate::body::{FoundDocument, offset_in};
use crate::document::Fingerprint;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A prompt that was read, by [`Index::read_sent`](super::Index::read_sent), but not yet diagnosed, by
/// [`Index::diagnose`](super::Index::diagnose).
#[derive(Debug)]
pub struct PendingPrompt {
    pub(super) realm: Realm,
    pub(super) parameters: Parameters,
    /// Sum of the hashes of the system messages that follow other messages of the chat. Some chat templates render
    /// these before all other messages.
    pub(super) inline: u64,
    pub(super) segments: Vec<Placed<PendingPieces>>,
    /// True if the prompt has more than [`MAX_SEGMENTS`] segments (tools, documents, texts), so that it is not
    /// compared.
    pub(super) is_unread: bool,
    /// The documents in the order in which they are sent; empty if that is their order in the body.
    pub(super) sent: SmallVec<[Fingerprint; 16]>,
    raw: Vec<RawPiece>,
    /// The text to which the ranges of `raw` refer: copied parts of the body.
    text: String,
}

/// The pieces (tools, documents, sentences) of one segment of a prompt, stored in the index of requests or not yet.
#[derive(Debug)]
pub(super) enum PendingPieces {
    /// The numbers of the pieces (tools, documents, sentences), which the index already stores.
    Known(Arc<[u32]>),
    /// The pieces (tools, documents, sentences) that the index does not store yet, as a range of
    /// [`PendingPrompt::raw`].
    Raw(Range<usize>),
}

impl PendingPrompt {
    /// Returns a prompt without segments (tools, documents, texts), with capacity for those of the request `asked` and
    /// for the text of this number of documents.
    pub(super) fn new(
        asked: &DiagnosedRequest<'_, '_>,
        realm: Realm,
        parameters: Parameters,
        documents: usize,
    ) -> Self {
        Self {
            realm,
            parameters,
            inline: 0,
            segments: Vec::with_capacity(asked.segments.list.len().min(MAX_SEGMENTS)),
            is_unread: false,
            sent: asked.sent.unwrap_or_default().into(),
            raw: Vec::with_capacity(asked.segments.list.len().min(MAX_SEGMENTS)),
            text: String::with_capacity((documents * Depth::LOOKED_AT).min(KEPT)),
        }
    }

    /// Returns the number of bytes of text that are stored for the prompt until it is diagnosed.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// Adds the pieces of a segment (tool, document or text) to the prompt, and returns where they are stored. At
    /// [`Depth::Light`], once the prompt has [`MAX_PIECES`] pieces, the rest of a message's text becomes one piece.
    pub(super) fn take<'a>(
        &mut self,
        asked: &DiagnosedRequest<'_, 'a>,
        texts: &mut MessageTexts<'a>,
        segment: &Segment,
        documents: &[&FoundDocument<'_>],
        holds_documents: bool,
        depth: Depth,
    ) -> PendingPieces {
        let body = asked.parsed.text;
        let raw = body.get(segment.range.clone()).unwrap_or_default();
        let start = self.raw.len();
        match segment.kind {
            SegmentKind::Tool => self.add(depth, |keep| RawPiece::Tool(keep(raw))),
            SegmentKind::Document => {
                if let Some(found) = documents.get(segment.index as usize) {
                    let (hash, label) = (found.fingerprint.0, found.label);
                    let text = found.text();
                    self.add(depth, |keep| {
                        RawPiece::document(hash, label, text, found.tokens, depth, keep)
                    });
                }
            }
            _ => {
                let message = segment
                    .message
                    .and_then(|at| asked.parsed.messages.get(at as usize));
                if let Some(message) = message {
                    let cut = outline::cut_of(segment, holds_documents);
                    for (text, is_text) in texts.of(body, message, segment) {
                        if self.raw.len() >= MAX_PIECES && depth == Depth::Light {
                            let rest = offset_in(body, text)..segment.range.end;
                            let rest = body.get(rest).unwrap_or(text);
                            self.raw.push(RawPiece::opaque(rest, segment.role));
                            break;
                        }
                        if !is_text {
                            self.raw.push(RawPiece::opaque(text, segment.role));
                            continue;
                        }
                        for unit in outline::units(text, cut) {
                            let unit = text.get(unit).unwrap_or_default();
                            let role = segment.role;
                            self.add(depth, |keep| RawPiece::text(unit, role, depth, keep));
                        }
                    }
                }
            }
        }
        PendingPieces::Raw(start..self.raw.len())
    }

    /// Adds the piece (tool, document or sentence) that `make` returns and stores the part of its text to be read
    /// later. Once [`KEPT`] bytes of text are stored for the prompt, reads the text at once instead of storing it.
    fn add(
        &mut self,
        depth: Depth,
        make: impl FnOnce(&mut dyn FnMut(&str) -> Range<usize>) -> RawPiece,
    ) {
        let text = &mut self.text;
        let before = text.len();
        let mut keep = |part: &str| {
            let start = text.len();
            text.push_str(part);
            start..text.len()
        };
        let mut piece = make(&mut keep);
        if text.len() > KEPT {
            piece = RawPiece::Made(Box::new(piece.made(text, depth, &|_| None)));
            text.truncate(before);
        }
        self.raw.push(piece);
    }

    /// Returns the completed pieces (tools, documents, sentences) for the raw ones in `range`; stored pieces that
    /// `known` finds are used instead.
    pub(super) fn made<'p>(
        &'p self,
        range: Range<usize>,
        depth: Depth,
        known: &'p Known<'p>,
    ) -> impl Iterator<Item = Piece> + 'p {
        let raw = self.raw.get(range).unwrap_or_default();
        raw.iter()
            .map(move |piece| piece.made(&self.text, depth, known))
    }
}

/// The maximum number of segments (tools, documents, texts) of a prompt that a gateway compares with others.
pub(super) const MAX_SEGMENTS: usize = 2_048;

/// The number of pieces of a prompt after which a gateway does not divide the rest of a segment (tool, document or
/// text).
const MAX_PIECES: usize = 512;

/// The maximum number of bytes of text stored for a prompt until it is diagnosed: enough for tools of 64 KB that change
/// with each request.
const KEPT: usize = 128 << 10;
