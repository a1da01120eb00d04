//! What user messages of one tenant and model were sent like, with their contexts.
//!
//! Nothing in a request names its chat; a chat's own words do. That is not enough to hand out a text: two chats that open
//! alike may have been found other documents. So a text is put back only where it cannot be another chat's:
//!
//! - Every time that a message was sent, one continuation may take it back. The first that comes is remembered, and keeps
//!   it; another one with the same words needs another sending of the very same text.
//! - When the same words were sent with other contexts, nobody knows whose are whose. Continuations that took theirs before
//!   keep them, and no other one gets any. So it is when they were sent without contexts, or with more than a chat may keep.
//! - What was forgotten for lack of room is remembered as that: it may have been anything.
//! - A question without contexts is remembered even where a tenant has no state yet, or has it no longer ([`BareQuestions`]).
//!
//! Other workers are told of contexts, and not of questions without: one that hears of the contexts alone may give them to a chat
//! whose bare question went elsewhere, if both chats have the same words up to there.
//!
//! Whoever may ask in a tenant's name, as the same user, and knows how a chat began may still be the first to go on with it.
//! The tenant is the boundary, as for documents that are pinned.

use crate::body::Chain;
use crate::conversation::memory::Bounds;
use crate::head::decision::ContextMessage;
use crate::recency::Recency;
use fxhash::FxHashMap;
use smallvec::SmallVec;

/// See the module's text. Beyond its bounds the least recently used messages are forgotten, a chat's last ones first.
#[derive(Debug)]
pub(crate) struct ContextMemory {
    bounds: Bounds,
    messages: Vec<Option<SentContexts>>,
    free: Vec<u32>,
    by_key: FxHashMap<u128, u32>,
    bytes: u64,
    recency: Recency,
    forgotten: Forgotten,
}

/// A message as it was sent.
#[derive(Debug)]
pub(crate) struct SentContexts {
    pub(crate) message: ContextMessage,
    /// How often it was sent, and no chat went on from there.
    open: u16,
    /// How chats went on that it was sent in.
    next: SmallVec<[Chain; 1]>,
    /// Whether the same words were sent with other contexts.
    is_contested: bool,
}

impl SentContexts {
    /// Whether a chat that goes on like that was sent this text.
    pub(crate) fn continues(&self, next: Chain) -> bool {
        self.next.contains(&next) || self.open > 0 && !self.is_contested
    }

    fn bytes(&self) -> u64 {
        self.message.content.len() as u64 + ENTRY_BYTES
    }

    /// The same words were sent otherwise. What nobody went on from is nobody's then; `bytes` are the memory's.
    fn contest(&mut self, bytes: &mut u64) {
        self.is_contested = true;
        if self.next.is_empty() {
            *bytes = bytes.saturating_sub(self.message.content.len() as u64);
            self.message.content = Box::default();
        }
    }
}

/// Keys that were forgotten: the last thousands of them, and others by chance, as a Bloom filter in two generations.
#[derive(Debug, Default)]
struct Forgotten {
    /// The newer one, and the older one; empty as long as nothing was forgotten.
    generations: [Vec<u64>; 2],
    /// In the newer one.
    count: u32,
}

impl Forgotten {
    fn add(&mut self, key: u128) {
        if self.count == GENERATION_KEYS {
            self.generations.swap(0, 1);
            let [newer, _] = &mut self.generations;
            newer.clear();
            self.count = 0;
        }
        let [newer, _] = &mut self.generations;
        newer.resize(GENERATION_WORDS, 0);
        for (word, bit) in places(key) {
            if let Some(word) = newer.get_mut(word) {
                *word |= bit;
            }
        }
        self.count += 1;
    }

    fn may_hold(&self, key: u128) -> bool {
        self.generations.iter().any(|generation| {
            places(key)
                .iter()
                .all(|(word, bit)| generation.get(*word).is_some_and(|word| word & bit != 0))
        })
    }
}

/// Questions that were sent without contexts, of all tenants and models: the last thousands of them, and others by chance.
///
/// A tenant that has sent no documents has no state, and its state may have been evicted; its questions count all the same.
#[derive(Debug, Default)]
pub(crate) struct BareQuestions(Forgotten);

impl BareQuestions {
    /// Remembers that the message known by `key` was sent without contexts; `owner` stands for its tenant and model.
    pub(crate) fn add(&mut self, owner: u128, key: u128) {
        self.0.add(owner ^ key);
    }

    /// Returns whether such a message may have been sent; it is certain for the last thousands.
    pub(crate) fn may_hold(&self, owner: u128, key: u128) -> bool {
        self.0.may_hold(owner ^ key)
    }
}

/// Where a key stands in a generation: words and bits.
fn places(key: u128) -> [(usize, u64); 3] {
    [key as u32, (key >> 32) as u32, (key >> 64) as u32].map(|hash| {
        let place = hash as usize % (GENERATION_WORDS * 64);
        (place / 64, 1 << (place % 64))
    })
}

/// Of a generation: 16 KiB, for so many keys that one in 40 of others seems to be there.
const GENERATION_WORDS: usize = 2_048;
const GENERATION_KEYS: u32 = 16_384;

impl ContextMemory {
    /// An empty memory.
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            messages: Vec::new(),
            free: Vec::new(),
            by_key: FxHashMap::default(),
            bytes: 0,
            recency: Recency::default(),
            forgotten: Forgotten::default(),
        }
    }

    /// Messages remembered.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is known by `key`.
    pub(crate) fn get(&self, key: u128) -> Option<&SentContexts> {
        let at = *self.by_key.get(&key)?;
        let known = self.messages.get(at as usize)?.as_ref()?;
        // What nobody may have is nothing.
        (!known.message.content.is_empty()).then_some(known)
    }

    /// Remembers that a message was sent. Then forgets down to the bounds. O(1 + forgotten).
    pub(crate) fn record(&mut self, message: ContextMessage) {
        let known = self.by_key.get(&message.key).copied();
        if let Some(at) = known
            && let Some(Some(known)) = self.messages.get_mut(at as usize)
        {
            if known.message.content == message.content && known.message.text == message.text {
                known.open = known.open.saturating_add(1);
            } else {
                known.contest(&mut self.bytes);
            }
            self.recency.touch(at);
            return;
        }
        let is_contested = self.forgotten.may_hold(message.key);
        self.add(SentContexts {
            message,
            open: 1,
            next: SmallVec::new(),
            is_contested,
        });
    }

    /// Remembers that what would be known by `key` was sent otherwise: whose it is cannot be told. Then forgets down to the
    /// bounds.
    pub(crate) fn contest(&mut self, key: u128) {
        let known = self.by_key.get(&key).copied();
        if let Some(at) = known
            && let Some(Some(known)) = self.messages.get_mut(at as usize)
        {
            known.contest(&mut self.bytes);
            self.recency.touch(at);
            return;
        }
        self.add(SentContexts {
            message: ContextMessage {
                key,
                content: Box::default(),
                text: 0..0,
                tokens: 0,
            },
            open: 0,
            next: SmallVec::new(),
            is_contested: true,
        });
    }

    fn add(&mut self, sent: SentContexts) {
        let key = sent.message.key;
        self.bytes += sent.bytes();
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.messages.push(None);
                u32::try_from(self.messages.len() - 1).unwrap_or(u32::MAX)
            }
        };
        if let Some(slot) = self.messages.get_mut(at as usize) {
            *slot = Some(sent);
        }
        self.by_key.insert(key, at);
        self.recency.add(at);
        while self.len() > self.bounds.max_entries as usize || self.bytes > self.bounds.max_bytes {
            let Some(oldest) = self.recency.oldest() else {
                break;
            };
            self.forget(oldest);
        }
    }

    /// A chat went on with `next` behind the message that is known by `key`.
    pub(crate) fn claim(&mut self, key: u128, next: Chain) {
        let Some(&at) = self.by_key.get(&key) else {
            return;
        };
        self.recency.touch(at);
        let Some(Some(known)) = self.messages.get_mut(at as usize) else {
            return;
        };
        if !known.next.contains(&next) && known.next.len() < MAX_CONTINUATIONS {
            known.open = known.open.saturating_sub(1);
            known.next.push(next);
        }
    }

    fn forget(&mut self, at: u32) {
        self.recency.remove(at);
        let slot = self.messages.get_mut(at as usize);
        let Some(known) = slot.and_then(Option::take) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(known.bytes());
        self.by_key.remove(&known.message.key);
        self.forgotten.add(known.message.key);
        self.free.push(at);
    }
}

/// Of a message, beside its text.
const ENTRY_BYTES: u64 = 160;

/// Chats that may go on from one message; a further one is not told apart, and goes as it comes.
const MAX_CONTINUATIONS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn message(key: u128, content: &str) -> ContextMessage {
        ContextMessage {
            key: hashed(key),
            content: format!("\"{content}\"").into(),
            text: 1..1 + content.len() as u32,
            tokens: 1,
        }
    }

    fn memory(max_entries: u32, max_bytes: u64) -> ContextMemory {
        ContextMemory::new(Bounds {
            max_entries,
            max_bytes,
        })
    }

    fn hashed(key: u128) -> u128 {
        xxhash_rust::xxh3::xxh3_128(&key.to_le_bytes())
    }

    fn may(memory: &ContextMemory, key: u128, next: u128) -> Option<&str> {
        let known = memory.get(hashed(key))?;
        known
            .continues(Chain(next))
            .then_some(&*known.message.content)
    }

    #[test]
    fn one_sending_has_one_continuation() {
        let mut memory = memory(10, 10_000);
        memory.record(message(1, "a"));
        assert_eq!(may(&memory, 1, 5), Some("\"a\""));
        memory.claim(hashed(1), Chain(5));
        assert_eq!(may(&memory, 1, 5), Some("\"a\""));
        assert_eq!(may(&memory, 1, 6), None);
        memory.record(message(1, "a"));
        assert_eq!(may(&memory, 1, 6), Some("\"a\""));
    }

    #[test]
    fn what_may_be_another_chats_is_nobodys() {
        let mut memory = memory(10, 10_000);
        memory.record(message(1, "a"));
        memory.record(message(1, "b"));
        assert_eq!(may(&memory, 1, 5), None);
        memory.record(message(1, "b"));
        assert_eq!(may(&memory, 1, 5), None);
        memory.contest(hashed(3));
        memory.record(message(3, "a"));
        assert_eq!(may(&memory, 3, 5), None);
        memory.record(message(2, "a"));
        memory.claim(hashed(2), Chain(5));
        memory.record(message(2, "b"));
        memory.record(message(2, "a"));
        assert_eq!(may(&memory, 2, 5), Some("\"a\""));
        assert_eq!(may(&memory, 2, 6), None);
    }

    proptest! {
        /// Against a model that forgets nothing: what is handed out was sent under that key, to no more continuations than it
        /// was sent times, and to none that came first when other words had been sent too; and the bounds hold.
        #[test]
        fn what_is_handed_out_was_sent_and_is_nobody_elses(
            steps in prop::collection::vec((0_u128..6, 0_u8..3, 0_u128..4), 1..120),
            max_entries in 0_u32..8,
            max_bytes in 0_u64..1_500,
        ) {
            let mut memory = memory(max_entries, max_bytes);
            let mut sent: HashMap<u128, Vec<String>> = HashMap::new();
            let mut taken: HashMap<(u128, u128), String> = HashMap::new();
            for (key, what, next) in steps {
                if what < 2 {
                    let words = format!("{what}{key}");
                    memory.record(message(key, &words));
                    sent.entry(key).or_default().push(format!("\"{words}\""));
                } else if let Some(words) = may(&memory, key, next).map(str::to_owned) {
                    let all = &sent[&key];
                    let times = all.iter().filter(|sent| **sent == words).count();
                    prop_assert!(all.iter().all(|sent| *sent == words) || taken.contains_key(&(key, next)));
                    let takers = taken.iter().filter(|((of, by), text)| (*of, *text) == (key, &words) && *by != next);
                    prop_assert!(takers.count() < times, "{} {:?}", words, taken);
                    memory.claim(hashed(key), Chain(next));
                    taken.insert((key, next), words);
                }
                prop_assert!(memory.len() <= max_entries as usize && memory.bytes() <= max_bytes);
                let bytes: u64 = memory.messages.iter().flatten().map(SentContexts::bytes).sum();
                prop_assert_eq!(bytes, memory.bytes());
                prop_assert_eq!(memory.messages.iter().flatten().count(), memory.len());
            }
        }
    }
}
