//! The memory of the chats' messages of one tenant and model, a trie: how each message was forwarded.
//!
//! ```text
//!   found by its hash chain     written into it
//!   m1 ─────────────────────── [a b] ──┬── m3 ── [c] ─ m5
//!   m1, the same words ─────── [b d]   └── m3'
//! ```
//!
//! A message's hash chain (the hash of the chat's text up to and including the message) covers everything before it, so
//! the deepest recorded message of a request determines how all of them were forwarded. It does not determine which
//! documents of a `documents` array the gateway *wrote into* them, since the client sends the array separately: two
//! chats with equal beginnings may differ in it. So one chain may have several nodes, with different parents or
//! different written documents. [`Memory::find`] returns the one that a request continues, if it is certain.
//!
//! Nodes are in an arena and in one list ordered by last use. Using a node touches it and then its ancestors, so the
//! oldest node of the list has no children, and evicting it is O(1).
//!
//! If several nodes fit a request and their prompts differ, the one whose chat shares the most volatile spans (texts
//! that change between requests) with the request is used. If there is no single such one, only a message into which
//! the gateway wrote nothing is used: a wrong guess would show one user's documents to another. The order of a
//! message's documents takes two bytes a document, since the client sends the texts again. Only array documents that
//! were written into a message keep their text here.

pub(crate) use super::bounds::Bounds;
use super::sent::{Kept, SentMessage};
use crate::arrangement::Arrangement;
use crate::body::Chain;
use crate::document::Fingerprint;
use crate::engines::EngineId;
use crate::hash::KeyedMap;
use crate::recency::Recency;
use crate::slots::Slots;
use crate::work::looked;
use fxhash::FxHashSet;
use smallvec::SmallVec;
use std::cmp::Ordering;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Identifies a recorded message in one [`Memory`]. Valid until the next [`Memory::record`], which may evict messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MessageId(u32);

/// Those messages of a request that the memory has recorded, each with its index in the request, first to last.
pub(crate) type Path = SmallVec<[(u32, MessageId); 8]>;

/// A message of a forwarded request, to be added to the memory, with the record of how it was forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddedMessage {
    /// The index of the message in the request.
    pub(crate) message: u32,
    pub(crate) chain: Chain,
    pub(crate) sent: SentMessage,
}

/// Identifies a recorded message in the memories of all workers, for the same tenant and model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageKey {
    pub(crate) chain: Chain,
    /// Hash of the chat up to and including this message, with the lists of documents and the volatile spans (texts
    /// that change between requests) recorded for its messages. It distinguishes recorded messages with the same
    /// `chain`, that is, with the same text from the client up to and including the message.
    pub(crate) lineage: u64,
}

/// The volatile spans of a request's system text (texts that change between requests, such as a date): those that the
/// gateway would move into the newest user message, and those that it would replace by their first values.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moving<'s> {
    /// Hash of the volatile spans (texts that change between requests), as [`SentMessage::kept_hash`] computes it; 0 if
    /// there are no spans, or if the newest user message does not end the request.
    pub(crate) hash: u64,
    /// A hash of each volatile span (a text that changes between requests). If several recorded chats fit a request,
    /// the one that shares the most of these hashes is preferred.
    pub(crate) spans: &'s [u64],
    /// Index in the request of the newest user message, and the number of volatile spans (texts that change between
    /// requests) to write into it; `None` if there are none.
    pub(crate) target: Option<(u32, usize)>,
}

/// The memory of the chats' messages of one tenant and model: how each was forwarded. A message is found by the hash of
/// its chat's text up to and including it.
#[derive(Debug)]
pub(crate) struct Memory {
    bounds: Bounds,
    nodes: Slots<Node>,
    /// The recorded messages by the hash of the chat's text up to and including the message; several with the same hash
    /// are in the order in which they were recorded.
    by_chain: KeyedMap<Chain, SmallVec<[MessageId; 2]>>,
    /// Sum of the estimated bytes of all recorded messages.
    bytes: u64,
    recency: Recency,
}

#[derive(Debug)]
struct Node {
    chain: Chain,
    /// The last recorded message before this one in the same chat; `None` if there is none.
    parent: Option<MessageId>,
    /// The message's index in its chat.
    message: u32,
    /// Estimated tokens of the documents pinned (written by the gateway and repeated in later requests) in this message
    /// and its ancestors.
    pinned_tokens: u64,
    /// Hash that distinguishes recorded messages with the same `chain`, that is, with the same text from the client up
    /// to and including the message. It covers that text, the list of documents written into the message, the volatile
    /// spans (texts that change between requests) kept in it, and the `lineage` of the parent.
    lineage: u64,
    /// The engine that received the latest request that ends with this message; if there was none, the request that
    /// added it.
    engine: EngineId,
    sent: SentMessage,
}

impl Memory {
    /// Returns a memory with these bounds and without recorded messages.
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            nodes: Slots::default(),
            by_chain: KeyedMap::default(),
            bytes: 0,
            recency: Recency::default(),
        }
    }

    /// Returns the number of recorded messages.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the sum of the estimated bytes of all recorded messages.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn sent(&self, id: MessageId) -> Option<&SentMessage> {
        Some(&self.node(id)?.sent)
    }

    /// Returns the estimated tokens of the documents pinned (written by the gateway and repeated in later requests) in
    /// the recorded messages of `path`.
    pub(crate) fn pinned_tokens(&self, path: &Path) -> u64 {
        path.last()
            .and_then(|(_, id)| self.node(*id))
            .map_or(0, |node| node.pinned_tokens)
    }

    /// Returns the recorded messages of a request's chat, first to last; empty if none is recorded. `chains` are the
    /// hashes of the chat up to and including each message. `written` is the message (by index) into which the gateway
    /// would write a list of documents, with the list's fingerprint. `moving` are the volatile spans (texts of the
    /// system text that change between requests) that it would move or replace.
    ///
    /// The deepest recorded message that the request certainly continues determines the result: it and its
    /// predecessors. A hash does not cover texts that the gateway wrote into a message, so a recorded message fits only
    /// under these rules:
    ///
    /// 1. From the message of `written` on: the same list was written into the recorded chat there. If the request
    ///    writes no list: its last message fits only if no list was written into the recorded one.
    /// 2. The request's last message fits only if it was sent with exactly the same spans.
    /// 3. From the message on into which spans would be written: the recorded chat has as many spans there, since a
    ///    span that the message lacks would be nowhere in the prompt. Their values may differ.
    ///
    /// If several recorded messages with one hash fit and were forwarded differently, the one whose chat shares the
    /// most spans with the request is used. On a tie, only one into which the gateway wrote nothing is used.
    pub(crate) fn find(
        &self,
        chains: impl DoubleEndedIterator<Item = Chain> + ExactSizeIterator,
        written: Option<(u32, Fingerprint)>,
        moving: Moving<'_>,
    ) -> Path {
        let last = chains.len().saturating_sub(1);
        let mut unsettled: SmallVec<[SmallVec<[MessageId; 2]>; 2]> = SmallVec::new();
        let mut known = None;
        // Bounds the work: each candidate looks back through its chat to the message that is written into.
        let mut steps = MAX_STEPS * chains.len() + MAX_STEPS;
        for (message, chain) in chains.enumerate().rev() {
            let Some(turns) = self.by_chain.get(&chain) else {
                continue;
            };
            let fitting: SmallVec<[MessageId; 2]> = (turns.iter())
                .copied()
                .filter(|&id| {
                    self.fits(id, message, message == last, written, &mut steps)
                        && (message < last || self.is_sent_with(id, moving))
                        && self.holds_spans(id, message, moving, &mut steps)
                })
                .collect();
            match fitting.as_slice() {
                [] => {}
                [first, others @ ..]
                    if (others.iter()).all(|id| self.reads_like(Some(*first), Some(*id))) =>
                {
                    known = Some(*first);
                    break;
                }
                _ => {
                    known = self.most_similar(&fitting, moving, &mut steps);
                    if known.is_some() {
                        break;
                    }
                    unsettled.push(fitting);
                    if unsettled.len() == MAX_UNSETTLED {
                        break;
                    }
                }
            }
        }
        for fitting in unsettled.into_iter().rev() {
            let plain = fitting.into_iter().find(|&id| {
                self.node(id).is_some_and(|node| {
                    node.sent.pin().is_none()
                        && node.sent.kept.is_none()
                        && self.reads_like(node.parent, known)
                })
            });
            known = plain.or(known);
        }
        let mut path: Path = self
            .ancestors(known)
            .map(|(id, node)| (node.message, id))
            .collect();
        path.reverse();
        path
    }

    /// Returns the engine that received the last message of `path` whose index is less than `message`; `None` if no
    /// message of `path` has a smaller index.
    pub(crate) fn engine(&self, path: &Path, message: u32) -> Option<EngineId> {
        let (_, turn) = path.iter().rfind(|(known, _)| *known < message)?;
        Some(self.node(*turn)?.engine)
    }

    /// Returns the key of the last message of `path`, by which other workers' memories find the message too; `None` if
    /// the path is empty.
    pub(crate) fn place(&self, path: &Path) -> Option<MessageKey> {
        let node = path.last().and_then(|(_, id)| self.node(*id))?;
        Some(MessageKey {
            chain: node.chain,
            lineage: node.lineage,
        })
    }

    /// Returns a [`Path`] with only the message that has this key; `None` if the memory does not have the message.
    pub(crate) fn path_to(&self, place: MessageKey) -> Option<Path> {
        let turns = self.by_chain.get(&place.chain)?;
        turns.iter().find_map(|&id| {
            let node = self.node(id)?;
            (node.lineage == place.lineage).then(|| Path::from_iter([(node.message, id)]))
        })
    }

    /// Records a forwarded request: the recorded messages `path`, as [`Memory::find`] returned them, are followed by
    /// the messages `added`, in their order. Records that exist already are not changed, but count as used. Then evicts
    /// the least recently used messages beyond the bounds. O(path + added + evicted).
    pub(crate) fn record(&mut self, path: &Path, added: Vec<AddedMessage>, engine: EngineId) {
        let mut parent = path.last().map(|(_, id)| *id);
        for added in added {
            let is_known = |id: &&MessageId| {
                self.node(**id).is_some_and(|node| {
                    node.parent == parent
                        && node.sent.list() == added.sent.list()
                        && node.sent.kept_hash() == added.sent.kept_hash()
                })
            };
            let turns = self.by_chain.get(&added.chain).map(SmallVec::as_slice);
            if let Some(&known) = turns.and_then(|turns| turns.iter().find(is_known)) {
                parent = Some(known);
            } else if turns.map_or(0, <[MessageId]>::len) < MAX_VERSIONS {
                parent = Some(self.add(parent, added, engine));
            } else {
                break;
            }
        }
        let used: SmallVec<[MessageId; 16]> = self.ancestors(parent).map(|(id, _)| id).collect();
        for id in used {
            self.recency.touch(id.0);
        }
        if let Some(last) = parent.and_then(|last| self.node_mut(last)) {
            last.engine = engine;
        }
        while self.len() > self.bounds.max_entries as usize || self.bytes > self.bounds.max_bytes {
            let Some(oldest) = self.recency.oldest() else {
                break;
            };
            self.forget(MessageId(oldest));
        }
    }

    /// Returns whether the recorded message `id` may belong to the request's chat, judged by the documents that the
    /// gateway wrote into the recorded chat. `message` is the index of this message in the request, and `written` is
    /// the index of the message into which the request writes, with the fingerprint of its list of documents. From that
    /// message on, the recorded chat must have the same list there. If the request writes nothing, its last message
    /// (`is_last`) must have no written documents. Each recorded message passed on the way back through the chat
    /// subtracts 1 from `steps`.
    fn fits(
        &self,
        id: MessageId,
        message: usize,
        is_last: bool,
        written: Option<(u32, Fingerprint)>,
        steps: &mut usize,
    ) -> bool {
        match written {
            Some((target, list)) if message >= target as usize => self
                .ancestor_at(id, target, steps)
                .is_some_and(|node| node.sent.list() == Some(list)),
            None if is_last => self
                .node(id)
                .is_some_and(|node| node.sent.written.is_none()),
            _ => true,
        }
    }

    /// Returns whether the recorded message was sent with exactly the volatile spans (texts that change between
    /// requests) of [`Moving::hash`]; true if the message is no longer recorded.
    fn is_sent_with(&self, id: MessageId, moving: Moving<'_>) -> bool {
        let node = self.node(id);
        node.is_none_or(|node| node.sent.kept_hash() == moving.hash)
    }

    /// Returns whether the chat of the recorded message `id` has as many volatile spans (texts that change between
    /// requests) as the request would write, in the message into which it would write them. `message` is the index of
    /// `id` in the request. True if the request would write none, or if `id` is an earlier message than the one written
    /// into. Each recorded message passed on the way back through the chat subtracts 1 from `steps`.
    fn holds_spans(
        &self,
        id: MessageId,
        message: usize,
        moving: Moving<'_>,
        steps: &mut usize,
    ) -> bool {
        let Some((target, spans)) = moving.target.filter(|(at, _)| message >= *at as usize) else {
            return true;
        };
        let sent = self.ancestor_at(id, target, steps);
        let kept = sent.and_then(|node| node.sent.kept.as_deref());
        kept.is_some_and(|kept| kept.spans.len() == spans + kept.frozen.len())
    }

    /// Returns the recorded message with index `target` in the chat that ends with the message `id`; `None` if the
    /// memory does not have it. Each recorded message passed on the way back through the chat subtracts 1 from `steps`;
    /// at 0, the result is `None`.
    fn ancestor_at(&self, id: MessageId, target: u32, steps: &mut usize) -> Option<&Node> {
        for (_, node) in self.ancestors(Some(id)) {
            looked(1);
            *steps = steps.checked_sub(1)?;
            if node.message <= target {
                return (node.message == target).then_some(node);
            }
        }
        None
    }

    /// Returns the one of `turns` (recorded messages) whose chat shares the most volatile spans (texts that change
    /// between requests) with the request's system text; `None` if two share equally many, or if none shares any. Each
    /// recorded message passed on the way back through a chat, and each of its spans, subtracts 1 from `steps`; if they
    /// run out, the result is `None`.
    fn most_similar(
        &self,
        turns: &[MessageId],
        moving: Moving<'_>,
        steps: &mut usize,
    ) -> Option<MessageId> {
        let wanted: FxHashSet<u64> = moving.spans.iter().copied().collect();
        if wanted.is_empty() {
            return None;
        }
        let mut best = (0, None);
        for &id in turns {
            let mut shared = 0;
            for (_, node) in self.ancestors(Some(id)) {
                let kept = node.sent.kept.as_deref();
                let spans = kept.map(|kept| &*kept.spans).unwrap_or_default();
                looked(1 + spans.len());
                *steps = steps.checked_sub(1 + spans.len())?;
                shared += spans.iter().filter(|span| wanted.contains(span)).count();
            }
            best = match shared.cmp(&best.0) {
                Ordering::Less => best,
                Ordering::Equal => (shared, None),
                Ordering::Greater => (shared, Some(id)),
            };
        }
        best.1
    }

    /// Returns whether the gateway made the same changes to two chats up to and including these two messages: the
    /// documents written, the order of documents, and the volatile spans (texts that change between requests) moved or
    /// kept.
    fn reads_like(&self, one: Option<MessageId>, other: Option<MessageId>) -> bool {
        self.history(one).eq(self.history(other))
    }

    /// Iterates over a recorded message and its ancestors, from the message upwards, and yields those that were
    /// forwarded with changes: the message's index, the text that is written into it in every request, the arrangement
    /// (order) of its documents, and its volatile spans (texts that change between requests).
    fn history(
        &self,
        turn: Option<MessageId>,
    ) -> impl Iterator<Item = (u32, Option<&str>, &[Arrangement], Option<&Kept>)> {
        let done = self.ancestors(turn).map(|(_, node)| {
            let pinned = node.sent.pin().map(|pin| &*pin.text);
            let kept = node.sent.kept.as_deref();
            (node.message, pinned, &*node.sent.groups, kept)
        });
        done.filter(|(_, pinned, groups, kept)| {
            pinned.is_some() || !groups.is_empty() || kept.is_some()
        })
    }

    /// Iterates over a recorded message and the recorded messages before it in its chat, from the message backwards.
    fn ancestors(&self, turn: Option<MessageId>) -> impl Iterator<Item = (MessageId, &Node)> {
        let with_node = |id: MessageId| Some((id, self.node(id)?));
        std::iter::successors(turn.and_then(with_node), move |(_, node)| {
            node.parent.and_then(with_node)
        })
    }

    fn add(
        &mut self,
        parent: Option<MessageId>,
        added: AddedMessage,
        engine: EngineId,
    ) -> MessageId {
        let pinned = added.sent.pin().map_or(0, |pin| u64::from(pin.tokens));
        let parent_node = parent.and_then(|parent| self.node(parent));
        let (before, lineage) =
            parent_node.map_or((0, 0), |parent| (parent.pinned_tokens, parent.lineage));
        let list = added.sent.list().map_or(0, |list| list.0) ^ added.sent.kept_hash();
        let lineage = [lineage, list].map(u64::to_le_bytes).concat();
        let lineage = [&added.chain.0.to_le_bytes()[..], &lineage].concat();
        let node = Node {
            chain: added.chain,
            parent,
            message: added.message,
            pinned_tokens: before.saturating_add(pinned),
            lineage: xxh3_64_with_seed(&lineage, 0),
            engine,
            sent: added.sent,
        };
        self.bytes += node.bytes();
        let id = MessageId(self.nodes.put(node));
        self.by_chain.entry(added.chain).or_default().push(id);
        self.recency.add(id.0);
        id
    }

    /// Evicts a recorded message, which must have no recorded message after it in its chat.
    fn forget(&mut self, id: MessageId) {
        self.recency.remove(id.0);
        let Some(node) = self.node_mut(id) else {
            return;
        };
        let (chain, bytes) = (node.chain, node.bytes());
        node.sent = SentMessage::default();
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(turns) = self.by_chain.get_mut(&chain) {
            turns.retain(|turn| *turn != id);
            if turns.is_empty() {
                self.by_chain.remove(&chain);
            }
        }
        self.nodes.release(id.0);
    }

    fn node(&self, id: MessageId) -> Option<&Node> {
        self.nodes.get(id.0)
    }

    fn node_mut(&mut self, id: MessageId) -> Option<&mut Node> {
        self.nodes.get_mut(id.0)
    }
}

impl Node {
    /// Returns the estimated number of bytes that the recorded message occupies.
    fn bytes(&self) -> u64 {
        MESSAGE_BYTES + self.sent.bytes()
    }
}

/// The maximum number of recorded messages with the same hash chain, that is, with the same text from the client up to
/// and including the message. A chat with more is ambiguous anyway, and every request walks this list.
const MAX_VERSIONS: usize = 16;

/// The maximum number of steps back through recorded chats that [`Memory::find`] takes for a request: this many for
/// each of its messages, and this many more.
const MAX_STEPS: usize = 64;

/// The maximum number of messages of one request for which [`Memory::find`] meets several recorded messages and cannot
/// decide which of them the chat contains. Then it stops, so that earlier messages count as not recorded.
const MAX_UNSETTLED: usize = 64;

/// Estimated bytes of a recorded message in the memory and its index, without the record of how it was sent; the same
/// on every platform.
const MESSAGE_BYTES: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrangement::Slot;
    use crate::body::Wrap;
    use crate::conversation::sent::{Pin, Written};
    use proptest::prelude::*;

    impl Memory {
        /// Checks that the memory's lists, counts and links agree with each other, which is too costly to check in use.
        fn check(&self) {
            let listed: Vec<_> = self.recency.iter().map(MessageId).collect();
            assert_eq!(listed.last().copied(), self.recency.newest().map(MessageId));
            assert_eq!(listed.len(), self.len(), "every turn is in the list");
            let age = |id: MessageId| listed.iter().position(|listed| *listed == id);
            let mut bytes = 0;
            for &id in &listed {
                let node = self.node(id).unwrap();
                bytes += node.bytes();
                assert!(self.by_chain[&node.chain].contains(&id));
                if let Some(parent) = node.parent {
                    assert!(age(parent) > age(id), "a parent is used with its children");
                    assert!(self.node(parent).unwrap().message < node.message);
                }
            }
            assert_eq!(bytes, self.bytes);
            let indexed: usize = self.by_chain.values().map(SmallVec::len).sum();
            assert_eq!(indexed, self.len(), "nothing forgotten is found");
            assert!(self.len() <= self.bounds.max_entries as usize);
            assert!(self.bytes <= self.bounds.max_bytes);
        }
    }

    fn memory(max_entries: u32, max_bytes: u64) -> Memory {
        Memory::new(Bounds {
            max_entries,
            max_bytes,
        })
    }

    /// Returns the record of a message into which `text` was written.
    fn written(text: &str) -> SentMessage {
        SentMessage {
            groups: Box::new([]),
            kept: None,
            written: Some(Written {
                list: list(text),
                arrangement: Arrangement {
                    slots: Box::new([Slot::document(0)]),
                    hinted: false,
                },
                pin: Some(Pin {
                    wrap: Wrap::None,
                    text: text.into(),
                    tokens: 1,
                    documents: Box::new([]),
                    digest: 1,
                    references: 0,
                }),
            }),
        }
    }

    fn list(text: &str) -> Fingerprint {
        Fingerprint::of(&[text.as_bytes()])
    }

    fn added(message: u32, chain: u128, sent: SentMessage) -> AddedMessage {
        AddedMessage {
            message,
            chain: Chain(chain),
            sent,
        }
    }

    fn chains(chains: &[u128]) -> impl DoubleEndedIterator<Item = Chain> + ExactSizeIterator {
        chains.iter().map(|chain| Chain(*chain))
    }

    /// Returns, for each message of `path`, its index and its pinned text (which later requests repeat); the text is
    /// empty if nothing is pinned.
    fn texts(memory: &Memory, path: &Path) -> Vec<(u32, String)> {
        path.iter()
            .map(|(message, id)| {
                let pin = memory.sent(*id).unwrap().pin();
                (
                    *message,
                    pin.map_or(String::new(), |pin| pin.text.to_string()),
                )
            })
            .collect()
    }

    #[test]
    fn a_chat_that_goes_on_is_known() {
        let mut memory = memory(10, 10_000);
        memory.record(
            &Path::new(),
            vec![added(0, 1, written("a"))],
            EngineId::default(),
        );
        let path = memory.find(chains(&[1, 2, 3]), None, Moving::default());
        assert_eq!(texts(&memory, &path), [(0, "a".into())]);
        memory.record(
            &path,
            vec![added(2, 3, SentMessage::default())],
            EngineId::default(),
        );
        let path = memory.find(
            chains(&[1, 2, 3, 4, 5]),
            Some((4, list("b"))),
            Moving::default(),
        );
        assert_eq!(texts(&memory, &path), [(0, "a".into()), (2, String::new())]);
        memory.check();
    }

    #[test]
    fn a_long_chat_with_other_documents_is_passed_once() {
        const MESSAGES: u32 = 2_000;
        let mut memory = memory(10_000, 10_000_000);
        let mut messages = vec![added(0, 0, written("a"))];
        messages.extend((1..MESSAGES).map(|at| added(at, at.into(), SentMessage::default())));
        memory.record(&Path::new(), messages, EngineId::default());
        let all: Vec<u128> = (0..MESSAGES.into()).collect();
        let written = Some((0, list("b")));
        let (path, work) =
            crate::work::counted(|| memory.find(chains(&all), written, Moving::default()));
        assert_eq!(path.len(), 0);
        // A message takes 30 bytes or more.
        assert_eq!(work.within(30 * MESSAGES as usize), Ok(()));
    }

    /// Two chats of the same words, whose system texts share no span, and a request that shares half of its spans with
    /// each, so that all messages of both are compared.
    #[test]
    fn chats_with_many_spans_are_compared_within_bounds() {
        const MESSAGES: u32 = 1_000;
        const SPANS: u64 = 200;
        let mut memory = memory(10_000, 100_000_000);
        for first in [0, SPANS] {
            let kept = Kept {
                moved: format!("words {first}").into(),
                spans: (first..first + SPANS).collect(),
                frozen: Box::new([]),
            };
            let sent = || SentMessage {
                kept: Some(Box::new(kept.clone())),
                ..SentMessage::default()
            };
            let messages = (0..MESSAGES).map(|at| added(at, at.into(), sent()));
            memory.record(&Path::new(), messages.collect(), EngineId::default());
        }
        let all: Vec<u128> = (0..=MESSAGES.into()).collect();
        let spans: Vec<u64> = (SPANS / 2..SPANS + SPANS / 2).collect();
        let moving = Moving {
            hash: 1,
            spans: &spans,
            target: None,
        };
        let (path, work) = crate::work::counted(|| memory.find(chains(&all), None, moving));
        assert_eq!(path.len(), 0, "neither is more similar");
        assert_eq!(work.within(30 * MESSAGES as usize), Ok(()));
    }

    #[test]
    fn the_message_that_documents_are_for_is_known_with_these_only() {
        let mut memory = memory(10, 10_000);
        memory.record(
            &Path::new(),
            vec![added(0, 1, written("a"))],
            EngineId::default(),
        );
        assert_eq!(
            memory
                .find(chains(&[1]), Some((0, list("a"))), Moving::default())
                .len(),
            1
        );
        assert_eq!(
            memory
                .find(chains(&[1]), Some((0, list("b"))), Moving::default())
                .len(),
            0
        );
        assert_eq!(memory.find(chains(&[1]), None, Moving::default()).len(), 0);
        // An agent's request continues after the question that the documents are for.
        assert_eq!(
            memory
                .find(chains(&[1, 2]), Some((0, list("b"))), Moving::default())
                .len(),
            0
        );
        assert_eq!(
            memory
                .find(chains(&[1, 2]), Some((0, list("a"))), Moving::default())
                .len(),
            1
        );
    }

    #[test]
    fn chats_of_the_same_words_with_other_documents_are_not_told_apart() {
        let mut memory = memory(10, 10_000);
        for text in ["a", "b"] {
            memory.record(
                &Path::new(),
                vec![added(0, 1, written(text))],
                EngineId::default(),
            );
        }
        assert!(
            memory
                .find(chains(&[1, 2, 3]), None, Moving::default())
                .is_empty()
        );
        // The continuation of such a chat is recorded: nothing was written into its first message.
        memory.record(
            &Path::new(),
            vec![added(2, 3, SentMessage::default())],
            EngineId::default(),
        );
        let path = memory.find(chains(&[1, 2, 3, 4, 5]), None, Moving::default());
        assert_eq!(texts(&memory, &path), [(2, String::new())]);
        // A chat that began without documents is the plain one.
        memory.record(
            &Path::new(),
            vec![added(0, 1, SentMessage::default())],
            EngineId::default(),
        );
        let path = memory.find(chains(&[1, 2, 9]), None, Moving::default());
        assert_eq!(texts(&memory, &path), [(0, String::new())]);
        memory.check();
    }

    #[test]
    fn the_end_of_the_least_recently_used_chat_is_forgotten_first() {
        let mut memory = memory(3, 10_000);
        memory.record(
            &Path::new(),
            vec![added(0, 1, written("a")), added(2, 2, written("b"))],
            EngineId::default(),
        );
        memory.record(
            &Path::new(),
            vec![added(0, 10, written("c"))],
            EngineId::default(),
        );
        memory.record(
            &Path::new(),
            vec![added(0, 20, written("d"))],
            EngineId::default(),
        );
        memory.check();
        let path = memory.find(chains(&[1, 0, 2, 0, 3]), None, Moving::default());
        assert_eq!(texts(&memory, &path), [(0, "a".into())]);
    }

    #[test]
    fn what_is_larger_than_the_memory_is_not_remembered() {
        let mut memory = memory(10, 1_000);
        memory.record(
            &Path::new(),
            vec![added(0, 1, written(&"x".repeat(2_000)))],
            EngineId::default(),
        );
        memory.check();
        assert_eq!((memory.len(), memory.bytes()), (0, 0));
    }

    #[test]
    fn one_chain_has_a_bounded_number_of_turns() {
        let mut memory = memory(1_000, 1_000_000);
        for text in 0..100 {
            memory.record(
                &Path::new(),
                vec![added(0, 1, written(&text.to_string()))],
                EngineId::default(),
            );
        }
        assert_eq!(memory.len(), MAX_VERSIONS);
        memory.check();
    }

    proptest! {
        /// Records chats of few distinct words, so that they fork, meet and are evicted. After every step the
        /// invariants hold, and every message found is one of the request's. If the bounds are wide enough, a recorded
        /// request is found whole.
        #[test]
        fn invariants_hold_whatever_is_recorded(
            requests in prop::collection::vec(
                (prop::collection::vec(0_u128..3, 1..5), prop::option::of(0_u8..3)),
                1..60,
            ),
            max_entries in 0_u32..12,
            max_bytes in 0_u64..6_000,
        ) {
            let mut memory = memory(max_entries, max_bytes);
            for (words, text) in requests {
                // A chain covers all words before it.
                let chains_of: Vec<u128> = words
                    .iter()
                    .scan(1, |chain, word| {
                        *chain = *chain * 4 + word;
                        Some(*chain)
                    })
                    .collect();
                let last = chains_of.len() as u32 - 1;
                let turn = text.map_or(SentMessage::default(), |text| written(&text.to_string()));
                let list = turn.list();
                let path = memory.find(chains(&chains_of), list.map(|list| (last, list)), Moving::default());
                for (message, id) in &path {
                    prop_assert_eq!(memory.node(*id).unwrap().chain.0, chains_of[*message as usize]);
                }
                let known = path.last().map_or(0, |(message, _)| message + 1);
                let rest = (known..=last).filter(|at| *at == last).map(|at| {
                    added(at, chains_of[at as usize], turn.clone())
                });
                memory.record(&path, rest.collect(), EngineId::default());
                memory.check();
                if memory.len() > 0 && max_entries > 5 && max_bytes > 5_000 {
                    let again = memory.find(chains(&chains_of), list.map(|list| (last, list)), Moving::default());
                    prop_assert_eq!(again.last().map(|(message, _)| *message), Some(last));
                }
            }
        }
    }
}
