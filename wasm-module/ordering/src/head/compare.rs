//! Compares a request with an earlier one, piece by piece (tools, documents, sentences): finds the first difference,
//! and its cause.
//!
//! ```text
//!   realm (model, salt, engine) ▶ tools ─▶ hoisted system messages ─▶ system text ─▶ parameters ─▶ messages, documents
//! ```
//!
//! The comparison follows the order of the prompt, and only the first difference is reported.

use super::cause::{Cause, Volatile};
use super::entry::Entry;
use super::marks::{Solid, are_alike};
use super::outline::Piece;
use super::segments::SegmentKind;
use crate::body::Role;
use fxhash::{FxHashMap, FxHashSet};

/// A piece of a prompt (a tool, a document, or a sentence or line of a text), with its position in the prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flat {
    pub(super) id: u32,
    pub(super) kind: SegmentKind,
    pub(super) role: Role,
    pub(super) message: Option<u32>,
    /// Index in the request of the segment (tool, document or text) to which the piece belongs.
    pub(super) segment: u32,
    /// Number of bytes of the segment (tool, document or text) before this piece.
    pub(super) offset: u32,
    pub(super) tokens: u32,
    /// Estimated tokens of the prompt up to and including this piece (tool, document or sentence).
    pub(super) end: u64,
    pub(super) piece: Piece,
}

/// The two requests to compare, each with the pieces of its prompt (tools, documents, sentences) in order.
pub(super) struct Sides<'s> {
    pub(super) new: &'s Entry,
    pub(super) old: &'s Entry,
    pub(super) new_pieces: &'s [Flat],
    pub(super) old_pieces: &'s [Flat],
}

/// The first difference between the prompts of two requests; [`Cause::None`] if there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Difference {
    pub(super) cause: Cause,
    pub(super) volatile: Option<Volatile>,
    pub(super) segment: Option<SegmentKind>,
    /// Index, in the new request, of the first piece (tool, document or sentence) that differs; `None` if the
    /// difference is not in a piece.
    pub(super) at: Option<usize>,
    /// Name of the field that differs, for [`Cause::Parameters`]; otherwise `None`.
    pub(super) name: Option<&'static str>,
}

impl Difference {
    fn of(cause: Cause) -> Self {
        Self {
            cause,
            ..Self::default()
        }
    }

    fn at(cause: Cause, segment: SegmentKind, at: usize) -> Self {
        Self {
            cause,
            segment: Some(segment),
            at: Some(at),
            ..Self::default()
        }
    }

    fn volatile(kind: Volatile, segment: SegmentKind, at: usize) -> Self {
        Self {
            volatile: Some(kind),
            ..Self::at(Cause::VolatileValue, segment, at)
        }
    }
}

/// Returns the first difference between two requests, in the order in which engines render the parts of a prompt.
pub(super) fn first_difference(sides: &Sides<'_>) -> Difference {
    let (new, old) = (sides.new, sides.old);
    if new.realm.model != old.realm.model {
        return Difference::of(Cause::ModelChanged);
    }
    if new.realm.salt != old.realm.salt {
        return Difference::of(Cause::TenantSalt);
    }
    if new.realm.engine != old.realm.engine {
        return Difference::of(Cause::OtherEngine);
    }
    let [new_parts, old_parts] = [sides.new_pieces, sides.old_pieces].map(Regions::of);
    tools(&new_parts, &old_parts)
        .or_else(|| front(&new_parts, &old_parts))
        .or_else(|| system(sides, &new_parts, &old_parts))
        .or_else(|| parameters(sides))
        .or_else(|| history(&new_parts, &old_parts))
        .unwrap_or_default()
}

/// A request's pieces, divided by where they are in the prompt: tools, documents before all messages, system text,
/// messages.
struct Regions<'f> {
    tools: &'f [Flat],
    /// The documents before all messages, from a `documents` array that the engine's template renders.
    front: &'f [Flat],
    /// The system messages before all other messages, including documents in them.
    system: &'f [Flat],
    messages: Vec<Message<'f>>,
    all: &'f [Flat],
}

/// The pieces (documents, sentences) of one message after the system text, in order.
#[derive(Clone, Copy)]
struct Message<'f> {
    role: Role,
    pieces: &'f [Flat],
    /// Index of the message's first piece (sentence or document) among all pieces of the request.
    start: usize,
}

impl<'f> Regions<'f> {
    fn of(all: &'f [Flat]) -> Self {
        let end_of = |start: usize, is_in: &dyn Fn(&Flat) -> bool| {
            let rest = all.iter().skip(start);
            start + rest.take_while(|flat| is_in(flat)).count()
        };
        let tools = end_of(0, &|flat| flat.kind == SegmentKind::Tool);
        let front = end_of(tools, &|flat| flat.message.is_none());
        // A document in the system text belongs to its message.
        let opening = all.iter().filter(|flat| flat.kind == SegmentKind::System);
        let last = opening.filter_map(|flat| flat.message).max();
        let system = end_of(front, &|flat| last.is_some() && flat.message <= last);
        let mut messages = Vec::new();
        let mut start = system;
        while let Some(first) = all.get(start) {
            let end = end_of(start, &|flat| flat.message == first.message);
            messages.push(Message {
                role: first.role,
                pieces: all.get(start..end).unwrap_or_default(),
                start,
            });
            start = end;
        }
        let part = |from: usize, to: usize| all.get(from..to).unwrap_or_default();
        Self {
            tools: part(0, tools),
            front: part(tools, front),
            system: part(front, system),
            messages,
            all,
        }
    }

    /// Returns the index, among all pieces (tools, documents, sentences) of the request, of the first of `pieces`,
    /// which must be a subslice of them.
    fn start_of(&self, pieces: &[Flat]) -> usize {
        let start = pieces.as_ptr() as usize - self.all.as_ptr() as usize;
        start / size_of::<Flat>()
    }
}

fn is_document(flat: &Flat) -> bool {
    flat.kind == SegmentKind::Document
}

/// Returns whether the piece (tool, document or sentence) at index `at` is a document in either list.
fn is_document_at(new: &[Flat], old: &[Flat], at: usize) -> bool {
    new.get(at).is_some_and(is_document) || old.get(at).is_some_and(is_document)
}

/// Iterates over the pieces of a prompt in `list` that are not documents.
fn texts(list: &[Flat]) -> impl Iterator<Item = &Flat> {
    list.iter().filter(|flat| !is_document(flat))
}

/// Returns the first index at which two lists of pieces (tools, documents, sentences) differ; `None` if they are equal.
fn first_mismatch(new: &[Flat], old: &[Flat]) -> Option<usize> {
    let both = new.iter().zip(old);
    let same = both.take_while(|(new, old)| new.id == old.id).count();
    (same < new.len() || same < old.len()).then_some(same)
}

/// Returns whether two lists of pieces (tools, documents, sentences) have the same values of `key`, in any order.
fn are_permuted<K: Ord>(new: &[Flat], old: &[Flat], key: impl Fn(&Flat) -> K) -> bool {
    if new.len() != old.len() {
        return false;
    }
    let sorted = |list: &[Flat]| {
        let mut keys: Vec<K> = list.iter().map(&key).collect();
        keys.sort_unstable();
        keys
    };
    sorted(new) == sorted(old)
}

fn tools(new: &Regions<'_>, old: &Regions<'_>) -> Option<Difference> {
    const KIND: SegmentKind = SegmentKind::Tool;
    let (new, old) = (new.tools, old.tools);
    let at = first_mismatch(new, old)?;
    // A tool missing at the end is reported at the last tool.
    let place = at.min(new.len().saturating_sub(1));
    let found = |cause| {
        Some(Difference {
            at: (!new.is_empty()).then_some(place),
            ..Difference::at(cause, KIND, place)
        })
    };
    let names = |list: &[Flat]| list.iter().map(|flat| flat.piece.name).collect::<Vec<_>>();
    if names(new) != names(old) {
        let is_permuted = are_permuted(new, old, |flat| flat.piece.name);
        return found(if is_permuted {
            Cause::ToolOrder
        } else {
            Cause::ToolSet
        });
    }
    let (one, other) = (new.get(at)?.piece, old.get(at)?.piece);
    if one.same == other.same {
        return found(Cause::KeyOrder);
    }
    if let Some(kind @ (Volatile::DateTime | Volatile::Id)) = one.marks.differ_by(&other.marks) {
        return Some(Difference::volatile(kind, KIND, at));
    }
    found(if one.marks.solid == other.marks.solid {
        Cause::Whitespace
    } else {
        Cause::ToolSchema
    })
}

fn front(new: &Regions<'_>, old: &Regions<'_>) -> Option<Difference> {
    let at = first_mismatch(new.front, old.front)?;
    let start = new.start_of(new.front);
    Some(documents(new.front, old.front, start, at))
}

fn system(sides: &Sides<'_>, new: &Regions<'_>, old: &Regions<'_>) -> Option<Difference> {
    const KIND: SegmentKind = SegmentKind::System;
    let found = first_mismatch(new.system, old.system);
    let Some(at) = found else {
        // Compare the history's system messages too, since a template may render them before the history.
        if sides.new.inline == sides.old.inline {
            return None;
        }
        let is_inline =
            |flat: &Flat| flat.kind == SegmentKind::Message && flat.role == Role::System;
        let known: FxHashSet<u32> = (old.all.iter().filter(|flat| is_inline(flat)))
            .map(|flat| flat.id)
            .collect();
        let at = (new.all.iter()).position(|flat| is_inline(flat) && !known.contains(&flat.id));
        return Some(Difference {
            at,
            segment: Some(KIND),
            ..Difference::of(Cause::HoistedSystem)
        });
    };
    let start = new.start_of(new.system);
    if is_document_at(new.system, old.system, at) {
        if is_later_turn(new, old) {
            let segment = SegmentKind::Document;
            return Some(Difference::at(Cause::ContextMoved, segment, start + at));
        }
        return Some(documents(new.system, old.system, start, at));
    }
    let [news, olds] =
        [new.system, old.system].map(|list| texts(list).copied().collect::<Vec<_>>());
    let at = first_mismatch(&news, &olds).unwrap_or(at);
    let place = start + at.min(new.system.len().saturating_sub(1));
    Some(wording(&news, &olds, at, KIND, place))
}

/// Returns the difference between two system texts that are not equal: white space, a volatile value (such as a date),
/// another order of words, or other words. `at` is the index of the first sentence or line that differs. `kind` and
/// `place` are the kind of text and the index, among all pieces of the new request, at which the difference is
/// reported.
fn wording(new: &[Flat], old: &[Flat], at: usize, kind: SegmentKind, place: usize) -> Difference {
    if solid(new) == solid(old) {
        return Difference::at(Cause::Whitespace, kind, place);
    }
    let (one, other) = middles(new, old, at);
    if one.len() == other.len() && !one.is_empty() {
        let differing = (one.iter().zip(other)).filter(|(one, other)| one.id != other.id);
        let kinds = differing.map(|(one, other)| one.piece.marks.differ_by(&other.piece.marks));
        let kinds: Option<Vec<Volatile>> = kinds.collect();
        // If several values differ, the first one's kind is reported.
        if let Some([volatile, ..]) = kinds.as_deref() {
            return Difference::volatile(*volatile, kind, place);
        }
    }
    // A value that contains a full stop or colon was split into several pieces.
    let joined = |list: &[Flat]| -> u64 {
        let timeless = list.iter().map(|flat| flat.piece.marks.timeless);
        timeless.map(u64::from).sum()
    };
    let mut both = one.iter().chain(other);
    if one.len() != other.len()
        && joined(one) == joined(other)
        && both.any(|flat| flat.piece.marks.has_time)
    {
        return Difference::volatile(Volatile::DateTime, kind, place);
    }
    let is_reordered = matches!((one, other), ([one], [other])
        if one.piece.marks.bag == other.piece.marks.bag
            && one.piece.marks.bag != 0
            && one.piece.bytes.max(other.piece.bytes) > 8);
    let cause = if is_reordered {
        Cause::KeyOrder
    } else {
        Cause::SystemText
    };
    Difference::at(cause, kind, place)
}

/// Returns the parts of two lists of pieces (tools, documents, sentences) from index `at`, where they first differ,
/// without the pieces with which both end.
fn middles<'f>(new: &'f [Flat], old: &'f [Flat], at: usize) -> (&'f [Flat], &'f [Flat]) {
    let ends = new.iter().rev().zip(old.iter().rev());
    let most = new.len().min(old.len()).saturating_sub(at);
    let same = ends.take(most).take_while(|(new, old)| new.id == old.id);
    let same = same.count();
    (
        new.get(at..new.len() - same).unwrap_or_default(),
        old.get(at..old.len() - same).unwrap_or_default(),
    )
}

/// Returns the hash of the joined text of these pieces (tools, documents, sentences), without white space.
fn solid<'f>(list: impl IntoIterator<Item = &'f Flat>) -> Solid {
    let solids = list.into_iter().map(|flat| flat.piece.marks.solid);
    solids.fold(Solid::default(), Solid::then)
}

fn parameters(sides: &Sides<'_>) -> Option<Difference> {
    let (new, old) = (&sides.new.parameters, &sides.old.parameters);
    let differs = |one: &[(&'static str, u64)], other: &[(&'static str, u64)]| {
        let missing = one.iter().find(|item| !other.contains(item));
        missing.map(|(name, _)| *name)
    };
    let name = differs(new, old).or_else(|| differs(old, new))?;
    Some(Difference {
        name: Some(name),
        ..Difference::of(Cause::Parameters)
    })
}

/// Returns whether the new request is a later turn of the old request's chat: both have the same first question of the
/// user, and the new one has more messages.
fn is_later_turn(new: &Regions<'_>, old: &Regions<'_>) -> bool {
    let asked = |regions: &Regions<'_>| {
        let mut messages = regions.messages.iter();
        let first = messages.find(|message| message.role == Role::User)?;
        Some(solid(texts(first.pieces)))
    };
    new.messages.len() > old.messages.len() && asked(new).is_some() && asked(new) == asked(old)
}

fn history(new: &Regions<'_>, old: &Regions<'_>) -> Option<Difference> {
    let equal = |one: &Message<'_>, other: &Message<'_>| {
        one.role == other.role && first_mismatch(one.pieces, other.pieces).is_none()
    };
    let both = new.messages.iter().zip(&old.messages);
    let at = both.take_while(|(one, other)| equal(one, other)).count();
    let (one, other) = (new.messages.get(at)?, old.messages.get(at)?);
    let piece = first_mismatch(one.pieces, other.pieces).unwrap_or(0);
    let place = one.start + piece.min(one.pieces.len().saturating_sub(1));
    let [new_behind, old_behind] = [new.messages.len(), old.messages.len()].map(|len| len - at - 1);

    let found = |cause| Some(Difference::at(cause, SegmentKind::Message, place));
    if one.role == other.role && differs_in_contexts(one, other, new_behind, old_behind) {
        return found(Cause::ContextMoved);
    }
    // In both requests the differing message is the last one.
    if new_behind == 0 && old_behind == 0
        || one.role == other.role && new_behind == old_behind && piece > 0 && has_documents(one)
    {
        return last(one, other, piece, place);
    }
    // Find a later message that both requests have, perhaps at different distances from the differing one.
    let gaps = old.messages.iter().skip(at).enumerate().rev();
    let known: FxHashMap<u64, usize> = gaps
        .map(|(gap, message)| (identity(message), gap))
        .collect();
    let mut gaps = new.messages.iter().skip(at).enumerate();
    let again = gaps.find_map(|(gap, message)| Some((gap, *known.get(&identity(message))?)));
    match again {
        None => branch(one, other, place),
        Some((new_gap, old_gap)) if old_gap > new_gap => found(Cause::HistoryDropped),
        Some((1, 1)) => Some(edited(one, other, piece, place)),
        Some(_) => found(Cause::HistoryEdited),
    }
}

fn has_documents(message: &Message<'_>) -> bool {
    message.pieces.iter().any(is_document)
}

/// Returns a hash of a message's role and content. Messages of two requests with equal hashes count as the same
/// message.
fn identity(message: &Message<'_>) -> u64 {
    let start = message.role as u64 + 1;
    message.pieces.iter().fold(start, |hash, flat| {
        (hash.rotate_left(7) ^ flat.piece.hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// Returns whether the only difference between two messages may be contexts (retrieved documents): (1) If both have
/// contexts, their last sentences must be equal. (2) If only one has, the text of the other must occur in it as
/// consecutive sentences. (3) If neither has, false.
///
/// `new_behind` and `old_behind` are the numbers of messages after this one in the new and the old request. Returns
/// false unless the new request has more of them, since a client removes contexts only when the chat continues.
fn differs_in_contexts(
    new: &Message<'_>,
    old: &Message<'_>,
    new_behind: usize,
    old_behind: usize,
) -> bool {
    // A message is sent again only if the chat continues.
    if new_behind <= old_behind {
        return false;
    }
    let (new_has, old_has) = (has_documents(new), has_documents(old));
    if !new_has && !old_has {
        return false;
    }
    let words = |message: &Message<'_>| -> Vec<Solid> {
        let solids = texts(message.pieces).map(|flat| flat.piece.marks.solid);
        solids.filter(|solid| !solid.is_empty()).collect()
    };
    let (new_words, old_words) = (words(new), words(old));
    if new_words.is_empty() {
        return false;
    }
    if new_has && old_has {
        // Both have contexts: the last words are the question.
        return new_words.last() == old_words.last();
    }
    let (plain, rich) = if new_has {
        (&old_words, &new_words)
    } else {
        (&new_words, &old_words)
    };
    let plain = plain.iter().copied().fold(Solid::default(), Solid::then);
    plain.joins_some(rich)
}

/// Returns the difference between the last messages of both requests, which may hold documents and a question; `None`
/// if only the question after the documents differs. `at` is the index, in each message, of the first piece (document
/// or sentence) that differs, and `place` the index, among all pieces of the new request, at which the difference is
/// reported.
fn last(new: &Message<'_>, old: &Message<'_>, at: usize, place: usize) -> Option<Difference> {
    if is_document_at(new.pieces, old.pieces, at) {
        return Some(documents(new.pieces, old.pieces, new.start, at));
    }
    let rest = |message: &Message<'_>| message.pieces.iter().skip(at).any(is_document);
    if !rest(new) || !rest(old) {
        // Only the question differs, which is not a miss.
        return None;
    }
    let (one, other) = (new.pieces.get(at)?, old.pieces.get(at)?);
    let kind = one.piece.marks.differ_by(&other.piece.marks);
    if let Some(kind) = kind.filter(|kind| *kind != Volatile::Value) {
        return Some(Difference::volatile(kind, one.kind, place));
    }
    let before = |message: &Message<'_>| {
        solid((message.pieces.iter()).take_while(|flat| !is_document(flat)))
    };
    Some(if before(new) == before(old) {
        Difference::at(Cause::Whitespace, one.kind, place)
    } else {
        Difference::at(Cause::QuestionFirst, SegmentKind::Question, place)
    })
}

/// Returns the difference between the first two messages that differ, where no later message is in both requests: white
/// space, or `None` if their words differ, since the chats then branch here, which is not a miss. `place` is the index,
/// among all pieces of the new request, at which the difference is reported.
fn branch(new: &Message<'_>, old: &Message<'_>, place: usize) -> Option<Difference> {
    // If their texts differ, the chats branch here, which is not a miss.
    let is_same = new.role == old.role && solid(new.pieces) == solid(old.pieces);
    is_same.then(|| Difference::at(Cause::Whitespace, SegmentKind::Message, place))
}

/// Returns the difference between two messages after which both requests have the same message. `at` is the index, in
/// each message, of the first piece (document or sentence) that differs, and `place` the index, among all pieces of the
/// new request, at which the difference is reported.
fn edited(new: &Message<'_>, old: &Message<'_>, at: usize, place: usize) -> Difference {
    const KIND: SegmentKind = SegmentKind::Message;
    if solid(new.pieces) == solid(old.pieces) && new.role == old.role {
        return Difference::at(Cause::Whitespace, KIND, place);
    }
    let (one, other) = (new.pieces.get(at), old.pieces.get(at));
    if one.is_some_and(is_document) && other.is_some_and(is_document) {
        return documents(new.pieces, old.pieces, new.start, at);
    }
    if has_documents(new) != has_documents(old) {
        return Difference::at(Cause::ContextMoved, KIND, place);
    }
    if let (Some(one), Some(other)) = (one, other)
        && new.pieces.len() == old.pieces.len()
        && let Some(kind @ (Volatile::DateTime | Volatile::Id)) =
            one.piece.marks.differ_by(&other.piece.marks)
    {
        return Difference::volatile(kind, KIND, place);
    }
    Difference::at(Cause::HistoryEdited, KIND, place)
}

/// Returns the difference between the documents of two lists of pieces (documents and sentences of two messages), which
/// first differ at index `at`: their set, order, text or white space. `start` is the index of the first piece of `new`
/// among all pieces of the new request.
fn documents(new: &[Flat], old: &[Flat], start: usize, at: usize) -> Difference {
    const KIND: SegmentKind = SegmentKind::Document;
    let place = start + at.min(new.len().saturating_sub(1));
    let found = |cause| Difference::at(cause, KIND, place);
    let of = |list: &[Flat]| -> Vec<Flat> {
        let documents = list.iter().filter(|flat| is_document(flat));
        documents.copied().collect()
    };
    let (news, olds) = (of(new), of(old));
    let Some(first) = first_mismatch(&news, &olds) else {
        // The text between the documents differs, such as numbered headings.
        return found(Cause::DocumentText);
    };
    if are_permuted(&news, &olds, |flat| flat.id) {
        return found(Cause::DocumentOrder);
    }
    let ids = |list: &[Flat]| list.iter().map(|flat| flat.id).collect::<FxHashSet<u32>>();
    let (new_ids, old_ids) = (ids(&news), ids(&olds));
    let Some(one) = news.get(first) else {
        return found(Cause::DocumentSet);
    };
    // The old request has the same document in another wording, and neither wording is in both requests.
    let is_rewritten = !old_ids.contains(&one.id)
        && (olds.iter())
            .any(|other| !new_ids.contains(&other.id) && is_rewritten(&one.piece, &other.piece));
    if is_rewritten {
        let one = &one.piece;
        let is_space = olds.iter().any(|Flat { piece: other, .. }| {
            other.marks.solid == one.marks.solid
                && !one.marks.solid.is_empty()
                && one.name == other.name
                && one.exact != other.exact
        });
        return found(if is_space {
            Cause::Whitespace
        } else {
            Cause::DocumentText
        });
    }
    // A rewritten document was looked for at every position above; anything else counts as another set.
    found(Cause::DocumentSet)
}

/// Returns whether two pieces of prompts are versions of one document: their texts are equal apart from rank, score and
/// id, or they have the same label and similar texts.
fn is_rewritten(one: &Piece, other: &Piece) -> bool {
    one.apart != 0 && one.apart == other.apart
        || one.name != 0 && one.name == other.name && are_alike(one.sketch, other.sketch)
}
