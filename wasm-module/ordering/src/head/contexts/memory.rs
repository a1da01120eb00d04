//! The memory of user messages with contexts (retrieved documents), as they were forwarded, for one tenant and model.
//!
//! Requests have no chat id; only a chat's own text identifies it. That is not enough to give out a text: chats with
//! the same beginning may have received other documents. So contexts are restored only if they cannot be another's:
//!
//! - Each time a message is forwarded, one continuation may claim its contexts. The first one to arrive is recorded and
//!   keeps them; another continuation with the same text needs the message to have been forwarded once more.
//! - If the same question was forwarded with other contexts, without any, or with more than a chat may keep, it is
//!   contested. Continuations recorded before keep their contexts, and no further one gets any.
//! - A key that was evicted is contested when it is recorded again.
//! - Questions without contexts are recorded even for tenants without a state ([`BareQuestions`]).
//!
//! Other workers receive contexts, but not questions without contexts. So a worker that knows only the contexts may
//! give them to a chat whose bare question went to another worker, if both chats have the same text up to there.
//!
//! A client of the tenant that uses the same user id and knows a chat's beginning can be the first to continue it. The
//! tenant is the boundary, as for pinned documents.

use crate::body::Chain;
use crate::conversation::memory::Bounds;
use crate::hash::MapHasher;
use crate::head::decision::ContextMessage;
use crate::lru::Lru;
use smallvec::SmallVec;

/// The memory of user messages that were forwarded with contexts (retrieved documents), for one tenant and model; see
/// the module's documentation. Beyond its bounds, the least recently used messages are evicted.
#[derive(Debug)]
pub(crate) struct ContextMemory {
    bounds: Bounds,
    messages: Lru<u128, SentContexts, MapHasher>,
    bytes: u64,
    forgotten: Forgotten,
}

/// A user message with contexts (retrieved documents) as it was forwarded, and the continuations of chats that received
/// these contexts again.
#[derive(Debug)]
pub(crate) struct SentContexts {
    pub(crate) message: ContextMessage,
    /// Number of further continuations of the chat that may receive the message's contexts (retrieved documents). It
    /// grows by one each time that the message is forwarded, and falls by one when a continuation receives them.
    open: u16,
    /// The continuations of the chat that have received the message's contexts (retrieved documents) again, each
    /// identified by the hash of the chat up to and including the first message after this one that is not a system
    /// message.
    next: SmallVec<[Chain; 1]>,
    /// True if no further continuation gets the contexts (retrieved documents), because they might belong to another
    /// chat: the same question was also forwarded with other contexts, without any or with too many, or an earlier
    /// record of this message may have been evicted.
    is_contested: bool,
}

impl SentContexts {
    /// Returns whether the continuation of a chat that has the hash `next` gets this message's contexts (retrieved
    /// documents): because it has got them before, or because it is among the first ones to ask.
    pub(crate) fn continues(&self, next: Chain) -> bool {
        let may_claim = self.open > 0 && !self.is_contested && self.next.len() < MAX_CONTINUATIONS;
        may_claim || self.next.contains(&next)
    }

    fn bytes(&self) -> u64 {
        self.message.content.len() as u64 + ENTRY_BYTES
    }

    /// Marks the message as contested: no further continuation gets its contexts (retrieved documents). If no
    /// continuation has got them, the text is dropped, and its length is subtracted from `bytes`, the size of the
    /// memory.
    fn contest(&mut self, bytes: &mut u64) {
        self.is_contested = true;
        if self.next.is_empty() {
            *bytes = bytes.saturating_sub(self.message.content.len() as u64);
            self.message.content = Box::default();
        }
    }
}

/// A Bloom filter of messages' keys: those of evicted messages, or those of questions sent without contexts (retrieved
/// documents). It contains at least the last [`GENERATION_KEYS`] keys that were added, and may wrongly report keys that
/// were not. It has two generations, of which the older one is emptied when the newer one is full.
#[derive(Debug, Default)]
struct Forgotten {
    /// The bits of the Bloom filter's newer generation of keys, and of its older one; empty before the first key.
    generations: [Vec<u64>; 2],
    /// Number of keys added to the newer generation.
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

/// Questions sent without contexts (retrieved documents), of all tenants and models, as a Bloom filter: it knows at
/// least the last [`GENERATION_KEYS`] of them, and may wrongly report others.
///
/// Kept outside tenants' states, since a tenant that has sent no documents has no state, and states may be evicted.
#[derive(Debug, Default)]
pub(crate) struct BareQuestions(Forgotten);

impl BareQuestions {
    /// Records that the question with this key was sent without contexts (retrieved documents); `owner` is a hash of
    /// its tenant and model.
    pub(crate) fn add(&mut self, owner: u128, key: u128) {
        self.0.add(owner ^ key);
    }

    /// Returns whether the question with this key may have been sent without contexts (retrieved documents): always
    /// true for the last [`GENERATION_KEYS`] that were, rarely true for others. `owner` is a hash of its tenant and
    /// model.
    pub(crate) fn may_hold(&self, owner: u128, key: u128) -> bool {
        self.0.may_hold(owner ^ key)
    }
}

/// Returns the three bits that stand for a key in the Bloom filter, each as a word's index and a mask.
fn places(key: u128) -> [(usize, u64); 3] {
    [key as u32, (key >> 32) as u32, (key >> 64) as u32].map(|hash| {
        let place = hash as usize % (GENERATION_WORDS * 64);
        (place / 64, 1 << (place % 64))
    })
}

/// Number of 64-bit words of one generation of the Bloom filter (16 KiB). With [`GENERATION_KEYS`] keys in it, 3 % of
/// other keys are false positives.
const GENERATION_WORDS: usize = 2_048;
const GENERATION_KEYS: u32 = 16_384;

impl ContextMemory {
    /// Returns a memory without messages.
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            messages: Lru::default(),
            bytes: 0,
            forgotten: Forgotten::default(),
        }
    }

    /// Returns the number of recorded messages with contexts (retrieved documents), including contested ones, whose
    /// contexts no further chat gets.
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns the estimated bytes of all recorded messages.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the message with this key; `None` if it is not recorded, or its text was dropped because it is
    /// contested.
    pub(crate) fn get(&self, key: u128) -> Option<&SentContexts> {
        let known = self.messages.peek(&key)?;
        // A dropped text is empty.
        (!known.message.content.is_empty()).then_some(known)
    }

    /// Records a forwarded message with contexts (retrieved documents). If it is recorded with other contexts, contests
    /// it instead: no further chat gets its contexts. Then evicts messages beyond the memory's bounds. O(1 + evicted).
    pub(crate) fn record(&mut self, message: ContextMessage) {
        if let Some(known) = self.messages.get(&message.key) {
            if known.message.content == message.content && known.message.text == message.text {
                known.open = known.open.saturating_add(1);
            } else {
                known.contest(&mut self.bytes);
            }
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

    /// Marks the message with this key as contested, even if it is not recorded yet: from now on, no further chat gets
    /// its contexts (retrieved documents). Then evicts messages beyond the memory's bounds.
    pub(crate) fn contest(&mut self, key: u128) {
        if let Some(known) = self.messages.get(&key) {
            known.contest(&mut self.bytes);
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
        self.bytes += sent.bytes();
        self.messages.insert(sent.message.key, sent, usize::MAX);
        while self.len() > self.bounds.max_entries as usize || self.bytes > self.bounds.max_bytes {
            let Some((key, oldest)) = self.messages.pop() else {
                break;
            };
            self.bytes = self.bytes.saturating_sub(oldest.bytes());
            self.forgotten.add(key);
        }
    }

    /// Records that a chat continued after the message with this key and received its contexts (retrieved documents)
    /// again. `next` is the hash of the chat up to and including the next message. No effect if the message is not
    /// recorded.
    pub(crate) fn claim(&mut self, key: u128, next: Chain) {
        let Some(known) = self.messages.get(&key) else {
            return;
        };
        if !known.next.contains(&next) && known.next.len() < MAX_CONTINUATIONS {
            known.open = known.open.saturating_sub(1);
            known.next.push(next);
        }
    }
}

/// Estimated bytes that a recorded message occupies, without its text.
const ENTRY_BYTES: u64 = 160;

/// The maximum number of continuations of a chat that may get one message's contexts (retrieved documents) again;
/// further ones get none.
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

    #[test]
    fn what_another_worker_gave_out_is_kept() {
        let mut memory = memory(10, 10_000);
        memory.record(message(1, "a"));
        for next in 5..7 {
            memory.claim(hashed(1), Chain(next));
            assert_eq!(may(&memory, 1, next), Some("\"a\""));
        }
        assert_eq!(may(&memory, 1, 7), None);
    }

    #[test]
    fn continuations_beyond_the_bound_get_nothing() {
        let mut memory = memory(10, 10_000);
        for next in 0..20 {
            memory.record(message(1, "a"));
            if may(&memory, 1, next).is_some() {
                memory.claim(hashed(1), Chain(next));
            }
        }
        for next in 0..20 {
            let gets = (next < MAX_CONTINUATIONS as u128).then_some("\"a\"");
            assert_eq!(may(&memory, 1, next), gets, "{next}");
        }
    }

    proptest! {
        /// Records, claims and looks up messages at random. After every step:
        ///
        /// 1. A text that the memory gives out for a key was recorded under this key, at least as often as there are
        ///    continuations that have received it.
        /// 2. A continuation receives a text for the first time only if no other text was ever recorded under the key.
        /// 3. The memory has at most `max_entries` messages and `max_bytes` bytes, and counts both correctly.
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
                let bytes: u64 = memory.messages.values().map(SentContexts::bytes).sum();
                prop_assert_eq!(bytes, memory.bytes());
                prop_assert_eq!(memory.messages.values().count(), memory.len());
            }
        }
    }
}
