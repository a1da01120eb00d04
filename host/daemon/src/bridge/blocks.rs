//! Which documents an engine's blocks hold: from its events, which know blocks and tokens, and from prompts whose
//! documents are known.
//!
//! ```text
//!   prompt   |system      |document 1         |document 2     |question       tokens, and where documents end
//!   blocks   [ 9f ]──▶[ 31 ]──▶[ c0 ]──▶[ 77 ]──▶[ 08 ]                       by the engine's hashes, from events
//!                               mark 1   mark 2                               on the last block wholly before an end
//! ```
//!
//! Blocks and prompts meet by their tokens, so nobody needs to compute another engine's hashes. Either may come first:
//! a prompt whose blocks are not all there waits at the last one that is. A document is held while its mark's block and
//! all blocks before it are; an engine need not drop its last blocks first, and when it drops one in the middle, what
//! follows it has lost its marks. They come back with the next prompt: less may be known here than is held, never more.
//!
//! An engine that does not tell salts tells nothing about salted prompts, and once there are any, nothing about the others
//! either: the blocks of one tenant would be taken for those of all.
//!
//! Layers that keep only a window of a sequence, or a state of it, have blocks of their own; they are passed over. Of a
//! model with such layers the engine may reuse less than is told.

use crate::kv::vllm::read::{BlockEvent, BlockHash, Key};
use foreword_engine::backend::TokenId;
use foreword_engine::cache::{CacheEvent, Document, DocumentPath, PageHash, Tier};
use foreword_ordering::feed::TenantKey;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// See the module's text.
#[derive(Debug)]
pub struct Blocks {
    limits: Limits,
    blocks: HashMap<BlockHash, Block>,
    /// The blocks after each, those that are not there included: their children may be. `None`: first ones.
    children: HashMap<Option<BlockHash>, HashSet<BlockHash>>,
    prompts: HashMap<u64, Prompt>,
    /// Prompts by the block that they wait behind.
    waiting: HashMap<Option<BlockHash>, HashSet<u64>>,
    /// Waiting prompts, the oldest first; some of them may have been served since.
    ages: VecDeque<u64>,
    /// Tokens of all waiting prompts.
    waiting_tokens: usize,
    next: u64,
    /// Groups of layers whose blocks are passed over.
    partial: HashSet<i64>,
    /// Whether there was a prompt with a salt, ever.
    salted: bool,
    log: Vec<CacheEvent>,
}

/// What is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks; an engine that says it has more is not believed, and all is forgotten.
    pub blocks: usize,
    /// Prompts that wait for blocks; beyond it the oldest go.
    pub prompts: usize,
    /// Tokens of the prompts that wait; likewise.
    pub prompt_tokens: usize,
}

/// How much is remembered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that the engine has.
    pub blocks: usize,
    /// Prompts that wait for blocks.
    pub prompts: usize,
}

#[derive(Debug)]
struct Block {
    parent: Option<BlockHash>,
    tokens: Arc<[TokenId]>,
    /// Of a first block: what tells it apart beside its tokens, a salt, say; `None`: not known.
    keys: Option<Vec<Key>>,
    /// Where it is: on the device, in host memory, elsewhere.
    places: [bool; 3],
    marks: Vec<Mark>,
}

/// The last document of a path ends in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    salt: Arc<str>,
    scope: u64,
    path: Arc<[Document]>,
}

/// A prompt that waits for its blocks.
#[derive(Debug)]
struct Prompt {
    tokens: Vec<TokenId>,
    salt: Arc<str>,
    documents: DocumentPath,
    /// Tokens of it that blocks hold.
    matched: usize,
    /// The last of these blocks.
    at: Option<BlockHash>,
}

impl Blocks {
    /// Of an engine that holds nothing.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            blocks: HashMap::new(),
            children: HashMap::new(),
            prompts: HashMap::new(),
            waiting: HashMap::new(),
            ages: VecDeque::new(),
            waiting_tokens: 0,
            next: 0,
            partial: HashSet::new(),
            salted: false,
            log: Vec::new(),
        }
    }

    /// How much is remembered.
    pub fn counts(&self) -> Counts {
        Counts {
            blocks: self.blocks.len(),
            prompts: self.prompts.len(),
        }
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.log)
    }

    /// The engine is sent, or was sent, this prompt.
    pub fn prompt(&mut self, tokens: Vec<TokenId>, salt: Arc<str>, documents: DocumentPath) {
        if !salt.is_empty() && !std::mem::replace(&mut self.salted, true) {
            let is_unknown = |block: &Block| block.parent.is_none() && block.keys.is_none();
            if self.blocks.values().any(is_unknown) {
                self.forget();
            }
        }
        let id = self.next;
        self.next += 1;
        let prompt = Prompt {
            tokens,
            salt,
            documents,
            matched: 0,
            at: None,
        };
        self.walk(id, prompt);
    }

    /// The engine says this of its blocks.
    pub fn event(&mut self, event: BlockEvent) {
        match event {
            BlockEvent::Stored {
                blocks,
                parent,
                tokens,
                block_tokens,
                medium,
                keys,
                group,
            } => {
                if group.is_partial && self.partial.len() < MAX_GROUPS {
                    self.partial.insert(group.number);
                }
                if group.is_partial || self.partial.contains(&group.number) {
                    return;
                }
                let size = block_tokens.max(1) as usize;
                let tier = tier(medium.as_deref());
                let mut parent = parent;
                // Where there are more blocks than tokens for them, the rest cannot be found by anything.
                for (hash, tokens) in blocks.into_iter().zip(tokens.chunks_exact(size)) {
                    let keys = keys.as_deref().filter(|_| parent.is_none());
                    self.store(hash, parent, tokens, keys, tier);
                    parent = Some(hash);
                }
            }
            BlockEvent::Removed {
                blocks,
                medium,
                group,
            } => {
                if self.partial.contains(&group) {
                    return;
                }
                let tier = tier(medium.as_deref());
                for hash in blocks {
                    self.remove(hash, tier);
                }
            }
            BlockEvent::Cleared => self.clear(),
            BlockEvent::Unknown => {}
        }
    }

    /// Nothing that was known can be relied on: events were lost, or the engine was restarted.
    pub fn forget(&mut self) {
        *self = Self {
            next: self.next,
            salted: self.salted,
            log: vec![CacheEvent::Gap { events: 0 }],
            ..Self::new(self.limits)
        };
    }

    fn clear(&mut self) {
        let log = std::mem::take(&mut self.log);
        *self = Self {
            next: self.next,
            salted: self.salted,
            log,
            ..Self::new(self.limits)
        };
        self.log.push(CacheEvent::Cleared);
    }

    fn store(
        &mut self,
        hash: BlockHash,
        parent: Option<BlockHash>,
        tokens: &[TokenId],
        keys: Option<&[Key]>,
        tier: Tier,
    ) {
        if self.blocks.len() >= self.limits.blocks && !self.blocks.contains_key(&hash) {
            return self.forget();
        }
        let block = self.blocks.entry(hash).or_insert_with(|| Block {
            parent,
            tokens: tokens.into(),
            keys: keys.map(<[Key]>::to_vec),
            places: [false; 3],
            marks: Vec::new(),
        });
        let is_there = std::mem::replace(&mut block.places[tier as usize], true);
        if is_there {
            return;
        }
        self.log.push(CacheEvent::Stored {
            hash: PageHash(hash.0),
            parent: parent.map(|parent| PageHash(parent.0)),
            tokens: block.tokens.clone(),
            salt: "".into(),
            tier,
        });
        self.children.entry(parent).or_default().insert(hash);
        // Whoever waited for it, or for blocks that follow it, goes on.
        for id in self.waiting.remove(&parent).unwrap_or_default() {
            if let Some(prompt) = self.wake(id) {
                self.walk(id, prompt);
            }
        }
    }

    fn remove(&mut self, hash: BlockHash, tier: Tier) {
        let Some(block) = self.blocks.get_mut(&hash) else {
            return;
        };
        if !std::mem::replace(&mut block.places[tier as usize], false) {
            return;
        }
        self.log.push(CacheEvent::Removed {
            hash: PageHash(hash.0),
            tier,
        });
        if block.places.contains(&true) {
            return;
        }
        let below = self.below(hash);
        for hash in below.iter().rev() {
            self.unmark(*hash);
        }
        if let Some(block) = self.blocks.remove(&hash)
            && let Some(siblings) = self.children.get_mut(&block.parent)
        {
            siblings.remove(&hash);
            if siblings.is_empty() {
                self.children.remove(&block.parent);
            }
        }
        // Prompts that had come past it begin anew.
        for hash in below {
            for id in self.waiting.remove(&Some(hash)).unwrap_or_default() {
                if let Some(mut prompt) = self.wake(id) {
                    (prompt.matched, prompt.at) = (0, None);
                    self.walk(id, prompt);
                }
            }
        }
    }

    /// A block and all that follow it, parents first.
    fn below(&self, top: BlockHash) -> Vec<BlockHash> {
        let mut found = vec![top];
        // Nothing keeps an engine's words from being a circle.
        let mut seen = HashSet::from([top]);
        let mut at = 0;
        while let Some(hash) = found.get(at) {
            let children = self.children.get(&Some(*hash)).into_iter().flatten();
            found.extend(children.filter(|child| seen.insert(**child)));
            at += 1;
        }
        found
    }

    /// Takes a block's marks.
    fn unmark(&mut self, hash: BlockHash) {
        if let Some(block) = self.blocks.get_mut(&hash) {
            let marks = std::mem::take(&mut block.marks).into_iter().rev();
            let removed = marks.map(|mark| CacheEvent::DocumentsRemoved {
                salt: mark.salt,
                scope: mark.scope,
                path: mark.path,
            });
            self.log.extend(removed);
        }
    }

    /// Follows a prompt along its blocks, marks where its documents end, and lets it wait for the rest.
    fn walk(&mut self, id: u64, mut prompt: Prompt) {
        let ends = prompt
            .documents
            .documents
            .iter()
            .map(|document| document.end as usize);
        let last = ends.max().unwrap_or(0);
        while let Some(hash) = self.next_of(&prompt) {
            let Some(block) = self.blocks.get_mut(&hash) else {
                break;
            };
            let size = block.tokens.len();
            prompt.matched += size;
            prompt.at = Some(hash);
            let sizes = prompt.documents.sizes();
            for (count, document) in (1..).zip(&prompt.documents.documents) {
                // Of the blocks wholly before its end, this is the last.
                let end = document.end as usize;
                if (prompt.matched..prompt.matched + size).contains(&end) {
                    let mark = Mark {
                        salt: prompt.salt.clone(),
                        scope: prompt.documents.scope,
                        path: sizes[..count].into(),
                    };
                    if !block.marks.contains(&mark) && block.marks.len() < MAX_MARKS {
                        self.log.push(CacheEvent::DocumentsStored {
                            salt: mark.salt.clone(),
                            scope: mark.scope,
                            path: mark.path.clone(),
                        });
                        block.marks.push(mark);
                    }
                }
            }
            if prompt.matched + size > last {
                return;
            }
        }
        if last == 0 {
            return;
        }
        self.waiting.entry(prompt.at).or_default().insert(id);
        self.waiting_tokens += prompt.tokens.len();
        self.prompts.insert(id, prompt);
        self.ages.push_back(id);
        self.let_go();
    }

    /// The block that holds the prompt's next tokens.
    fn next_of(&self, prompt: &Prompt) -> Option<BlockHash> {
        let rest = prompt.tokens.get(prompt.matched..)?;
        let candidates = self.children.get(&prompt.at)?.iter();
        candidates
            .copied()
            .filter(|hash| {
                let Some(block) = self.blocks.get(hash) else {
                    return false;
                };
                rest.starts_with(&block.tokens)
                    && (prompt.at.is_some() || self.is_whose(block, &prompt.salt))
            })
            // Two blocks of the same tokens: any, but always the same one.
            .min()
    }

    /// A prompt that does not wait any more.
    fn wake(&mut self, id: u64) -> Option<Prompt> {
        let prompt = self.prompts.remove(&id)?;
        self.waiting_tokens -= prompt.tokens.len();
        Some(prompt)
    }

    /// Whether a first block may be a request's with this salt, and with nothing else that tells it apart (a LoRA, an
    /// image). vLLM tells the salt, our own engine its key.
    fn is_whose(&self, block: &Block, salt: &str) -> bool {
        match block.keys.as_deref() {
            None => salt.is_empty() && !self.salted,
            Some([]) => salt.is_empty(),
            Some([Key::Text(text)]) if !salt.is_empty() => {
                text == salt || *text == TenantKey::of(salt).to_string()
            }
            Some(_) => false,
        }
    }

    /// Forgets the oldest prompts where too many wait.
    fn let_go(&mut self) {
        while (self.prompts.len() > self.limits.prompts
            || self.waiting_tokens > self.limits.prompt_tokens)
            && let Some(oldest) = self.ages.pop_front()
        {
            if let Some(prompt) = self.wake(oldest)
                && let Some(waiting) = self.waiting.get_mut(&prompt.at)
            {
                waiting.remove(&oldest);
                if waiting.is_empty() {
                    self.waiting.remove(&prompt.at);
                }
            }
        }
        // Ids of prompts that wait no more, or that went on and wait elsewhere.
        if self.ages.len() > 2 * self.limits.prompts + 16 {
            let prompts = &self.prompts;
            let mut seen = HashSet::new();
            self.ages
                .retain(|id| prompts.contains_key(id) && seen.insert(*id));
        }
    }
}

/// Marks of a block; further ones are not kept.
const MAX_MARKS: usize = 8;

/// Groups of layers that are passed over; models have a handful.
const MAX_GROUPS: usize = 64;

fn tier(medium: Option<&str>) -> Tier {
    match medium {
        None => Tier::Device,
        Some(medium) if medium.eq_ignore_ascii_case("gpu") => Tier::Device,
        Some(medium) if medium.eq_ignore_ascii_case("cpu") => Tier::Host,
        Some(_) => Tier::Disk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::vllm::read::Group;
    use foreword_engine::cache::DocumentSpan;
    use foreword_engine::engine::feed::Feed;
    use foreword_ordering::random::Random;
    use std::collections::BTreeSet;

    const SIZE: usize = 4;
    const LIMITS: Limits = Limits {
        blocks: 1000,
        prompts: 1000,
        prompt_tokens: 100_000,
    };

    fn hash(number: u64) -> BlockHash {
        BlockHash(number.into())
    }

    /// `numbers` follow each other behind `parent`.
    fn stored(numbers: &[u64], parent: Option<u64>, tokens: &[u32], keys: &[&str]) -> BlockEvent {
        BlockEvent::Stored {
            blocks: numbers.iter().copied().map(hash).collect(),
            parent: parent.map(hash),
            tokens: tokens.to_vec(),
            block_tokens: SIZE as u32,
            medium: Some("GPU".to_owned()),
            keys: Some(keys.iter().map(|&key| Key::Text(key.to_owned())).collect()),
            group: Group::default(),
        }
    }

    fn removed(numbers: &[u64]) -> BlockEvent {
        BlockEvent::Removed {
            blocks: numbers.iter().copied().map(hash).collect(),
            medium: Some("GPU".to_owned()),
            group: 0,
        }
    }

    /// Documents 1, 2, … that end there.
    fn documents(ends: &[u32]) -> DocumentPath {
        let document = |(fingerprint, &end): (u64, &u32)| DocumentSpan { fingerprint, end };
        DocumentPath {
            scope: 9,
            start: 0,
            documents: (1..).zip(ends).map(document).collect(),
        }
    }

    /// The documents of what was stored and removed since the last call.
    fn told(blocks: &mut Blocks) -> Vec<(bool, Vec<u64>)> {
        let prints = |path: &[Document]| path.iter().map(|(document, _)| *document).collect();
        let events = blocks.take_events().into_iter();
        events
            .filter_map(|event| match event {
                CacheEvent::DocumentsStored { path, .. } => Some((true, prints(&path))),
                CacheEvent::DocumentsRemoved { path, .. } => Some((false, prints(&path))),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn prompt_and_blocks_may_come_in_either_order() {
        let tokens: Vec<u32> = (0..20).collect();
        let ends = documents(&[3, 9, 16]);
        let expected = [(true, vec![1, 2]), (true, vec![1, 2, 3])];

        let mut blocks = Blocks::new(LIMITS);
        blocks.prompt(tokens.clone(), "".into(), ends.clone());
        blocks.event(stored(&[1, 2], None, &tokens[..8], &[]));
        assert_eq!(told(&mut blocks), expected[..1]);
        blocks.event(stored(&[3, 4], Some(2), &tokens[8..16], &[]));
        assert_eq!(told(&mut blocks), expected[1..]);

        let mut blocks = Blocks::new(LIMITS);
        blocks.event(stored(&[3, 4], Some(2), &tokens[8..16], &[]));
        blocks.event(stored(&[1, 2], None, &tokens[..8], &[]));
        blocks.prompt(tokens, "".into(), ends);
        assert_eq!(told(&mut blocks), expected);
        assert!(blocks.prompts.is_empty(), "nothing is left to wait for");
    }

    #[test]
    fn a_block_that_goes_takes_the_marks_behind_it() {
        let tokens: Vec<u32> = (0..12).collect();
        let mut blocks = Blocks::new(LIMITS);
        blocks.event(stored(&[1, 2, 3], None, &tokens, &[]));
        blocks.prompt(tokens.clone(), "".into(), documents(&[4, 8, 12]));
        assert_eq!(told(&mut blocks).len(), 3);
        blocks.event(removed(&[2]));
        assert_eq!(
            told(&mut blocks),
            [(false, vec![1, 2, 3]), (false, vec![1, 2])]
        );
        // The block behind the gap is there still: with the next prompt all is known again.
        blocks.event(stored(&[2], Some(1), &tokens[4..8], &[]));
        blocks.prompt(tokens, "".into(), documents(&[4, 8, 12]));
        assert_eq!(
            told(&mut blocks),
            [(true, vec![1, 2]), (true, vec![1, 2, 3])]
        );
    }

    #[test]
    fn a_block_in_two_places_is_there_until_it_is_in_neither() {
        let tokens: Vec<u32> = (0..4).collect();
        let mut blocks = Blocks::new(LIMITS);
        let elsewhere = |event: BlockEvent| match event {
            BlockEvent::Removed { blocks, group, .. } => BlockEvent::Removed {
                blocks,
                medium: Some("cpu".to_owned()),
                group,
            },
            other => other,
        };
        blocks.prompt(tokens.clone(), "".into(), documents(&[4]));
        blocks.event(stored(&[1], None, &tokens, &[]));
        let BlockEvent::Stored {
            blocks: hashes,
            parent,
            tokens,
            block_tokens,
            keys,
            group,
            ..
        } = stored(&[1], None, &tokens, &[])
        else {
            unreachable!()
        };
        let medium = Some("CPU".to_owned());
        blocks.event(BlockEvent::Stored {
            blocks: hashes,
            parent,
            tokens,
            block_tokens,
            medium,
            keys,
            group,
        });
        assert_eq!(told(&mut blocks).len(), 1);
        blocks.event(removed(&[1]));
        assert_eq!(told(&mut blocks), []);
        blocks.event(elsewhere(removed(&[1])));
        assert_eq!(told(&mut blocks), [(false, vec![1])]);
    }

    #[test]
    fn tenants_find_their_own_blocks_only() {
        let tokens: Vec<u32> = (0..4).collect();
        let key = TenantKey::of("b").to_string();
        let mut blocks = Blocks::new(LIMITS);
        blocks.event(stored(&[1], None, &tokens, &["a"]));
        for salt in ["", "b"] {
            blocks.prompt(tokens.clone(), salt.into(), documents(&[4]));
        }
        assert_eq!(told(&mut blocks), []);
        blocks.prompt(tokens.clone(), "a".into(), documents(&[4]));
        assert_eq!(told(&mut blocks).len(), 1);
        // Our own engine tells the key, not the salt.
        blocks.event(stored(&[2], None, &tokens, &[&key]));
        assert_eq!(told(&mut blocks).len(), 1);
        blocks.event(stored(&[3], None, &tokens, &[]));
        assert_eq!(told(&mut blocks).len(), 1);
    }

    #[test]
    fn a_blocks_hash_depends_on_nothing_that_the_request_has_not() {
        let tokens: Vec<u32> = (0..4).collect();
        let mut blocks = Blocks::new(LIMITS);
        // A tenant's own LoRA or image beside its salt, or instead of one.
        blocks.event(stored(&[1], None, &tokens, &["lora", "a"]));
        blocks.event(stored(&[2], None, &tokens, &["lora"]));
        let mut image = stored(&[3], None, &tokens, &["a"]);
        if let BlockEvent::Stored {
            keys: Some(keys), ..
        } = &mut image
        {
            keys.push(Key::Other);
        }
        blocks.event(image);
        for salt in ["", "a"] {
            blocks.prompt(tokens.clone(), salt.into(), documents(&[4]));
        }
        assert_eq!(told(&mut blocks), []);
    }

    #[test]
    fn where_salts_are_not_told_a_salted_prompt_ends_what_was_believed() {
        let tokens: Vec<u32> = (0..4).collect();
        let mut untold = stored(&[1], None, &tokens, &[]);
        if let BlockEvent::Stored { keys, .. } = &mut untold {
            *keys = None;
        }
        let mut blocks = Blocks::new(LIMITS);
        blocks.event(untold.clone());
        blocks.prompt(tokens.clone(), "".into(), documents(&[4]));
        assert_eq!(told(&mut blocks), [(true, vec![1])]);
        blocks.prompt(tokens.clone(), "a".into(), documents(&[4]));
        assert_eq!(blocks.take_events(), [CacheEvent::Gap { events: 0 }]);
        for salt in ["", "a"] {
            blocks.event(untold.clone());
            blocks.prompt(tokens.clone(), salt.into(), documents(&[4]));
        }
        assert_eq!(told(&mut blocks), []);
        // What is told, is told.
        blocks.event(stored(&[2], None, &tokens, &["a"]));
        assert_eq!(told(&mut blocks).len(), 1);
    }

    #[test]
    fn blocks_of_layers_that_keep_a_window_are_passed_over() {
        let tokens: Vec<u32> = (0..4).collect();
        let mut blocks = Blocks::new(LIMITS);
        blocks.prompt(tokens.clone(), "".into(), documents(&[4]));
        let mut windowed = stored(&[1], None, &tokens, &[]);
        if let BlockEvent::Stored { group, .. } = &mut windowed {
            *group = Group {
                number: 1,
                is_partial: true,
            };
        }
        blocks.event(windowed);
        assert_eq!(told(&mut blocks), []);
        blocks.event(stored(&[1], None, &tokens, &[]));
        assert_eq!(told(&mut blocks), [(true, vec![1])]);
        // The window has moved on; the other layers' block of the same hash is there.
        blocks.event(BlockEvent::Removed {
            blocks: vec![hash(1)],
            medium: None,
            group: 1,
        });
        assert_eq!(told(&mut blocks), []);
        blocks.event(removed(&[1]));
        assert_eq!(told(&mut blocks), [(false, vec![1])]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let limits = Limits {
            blocks: 10,
            prompts: 5,
            prompt_tokens: 1000,
        };
        let mut blocks = Blocks::new(limits);
        for number in 0..100 {
            blocks.prompt(vec![number; 8], "".into(), documents(&[8]));
            assert!(blocks.prompts.len() <= 5 && blocks.ages.len() <= 26);
            assert!(blocks.waiting.values().map(HashSet::len).sum::<usize>() <= 5);
        }
        for number in 0..10 {
            blocks.event(stored(&[number], None, &[1000 + number as u32; 4], &[]));
        }
        assert_eq!(blocks.blocks.len(), 10);
        blocks.take_events();
        blocks.event(stored(&[11], None, &[1; 4], &[]));
        assert_eq!(blocks.take_events(), [CacheEvent::Gap { events: 0 }]);
        assert!(blocks.blocks.is_empty() && blocks.children.is_empty());
    }

    #[test]
    fn the_tokens_of_waiting_prompts_are_bounded_too() {
        let limits = Limits {
            prompt_tokens: 20,
            ..LIMITS
        };
        let mut blocks = Blocks::new(limits);
        for number in 0..10 {
            blocks.prompt(vec![number; 8], "".into(), documents(&[8]));
        }
        assert_eq!((blocks.prompts.len(), blocks.waiting_tokens), (2, 16));
        blocks.event(stored(&[9], None, &[9; 4], &[]));
        blocks.event(stored(&[10], Some(9), &[9; 4], &[]));
        assert_eq!(told(&mut blocks), [(true, vec![1])]);
        assert_eq!((blocks.prompts.len(), blocks.waiting_tokens), (1, 8));
    }

    #[test]
    fn a_circle_of_blocks_ends() {
        let mut blocks = Blocks::new(LIMITS);
        blocks.event(stored(&[1], Some(2), &[0; 4], &[]));
        blocks.event(stored(&[2], Some(1), &[0; 4], &[]));
        blocks.event(stored(&[3], Some(3), &[0; 4], &[]));
        blocks.prompt(vec![0; 40], "".into(), documents(&[40]));
        blocks.event(removed(&[1, 3]));
        assert_eq!(told(&mut blocks), []);
    }

    /// Random blocks, dropped in any order, and prompts, against the obvious: a document is held when the blocks before
    /// its end are all there.
    #[test]
    fn no_more_is_believed_than_is_there_and_all_of_it_once_it_is_asked_for() {
        let mut believed = 0;
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut blocks = Blocks::new(LIMITS);
            let feed = Feed::new();
            // Sequences of 5 blocks that share beginnings: a block is what leads to it.
            let prompts: Vec<Vec<u32>> = (0..6)
                .map(|_| {
                    let letters = (0..5).map(|_| random.below(2) as u32);
                    letters.flat_map(|letter| [letter; SIZE]).collect()
                })
                .collect();
            let number = |tokens: &[u32]| {
                let digits = tokens.iter().step_by(SIZE);
                digits.fold(1_u64, |number, &digit| 2 * number + u64::from(digit))
            };
            let mut there: BTreeSet<u64> = BTreeSet::new();
            for _ in 0..120 {
                let prompt = &prompts[random.below(6) as usize];
                match random.below(5) {
                    0..2 => {
                        let count = 1 + random.below(5) as usize;
                        let numbers: Vec<u64> = (1..=count)
                            .map(|count| number(&prompt[..count * SIZE]))
                            .collect();
                        there.extend(&numbers);
                        blocks.event(stored(&numbers, None, &prompt[..count * SIZE], &[]));
                    }
                    2..4 => {
                        let count = 1 + random.below(5) as usize;
                        let gone = number(&prompt[..count * SIZE]);
                        there.remove(&gone);
                        blocks.event(removed(&[gone]));
                    }
                    _ => blocks.prompt(prompt.clone(), "".into(), path_of(prompt)),
                }
                feed.publish(blocks.take_events());
                believed += check(&feed, &prompts, &there, number, false);
            }
            for prompt in &prompts {
                blocks.prompt(prompt.clone(), "".into(), path_of(prompt));
            }
            feed.publish(blocks.take_events());
            check(&feed, &prompts, &there, number, true);
        }
        assert!(
            believed > 10_000,
            "{believed} documents were believed to be held"
        );
    }

    /// A document in each block, called by all tokens up to its end.
    fn path_of(prompt: &[u32]) -> DocumentPath {
        let mut path = documents(&[4, 8, 12, 16, 20]);
        for document in &mut path.documents {
            let tokens = &prompt[..document.end as usize];
            document.fingerprint = tokens
                .iter()
                .fold(1, |print, &token| 3 * print + u64::from(token));
        }
        path
    }

    /// How many documents are believed to be held; panics when one is not, or, if `all`, when one is missing.
    fn check(
        feed: &Feed,
        prompts: &[Vec<u32>],
        there: &BTreeSet<u64>,
        number: impl Fn(&[u32]) -> u64,
        all: bool,
    ) -> usize {
        let mut believed = BTreeSet::new();
        for event in feed.documents_since(None, 0).events {
            let CacheEvent::DocumentsStored { path, .. } = event else {
                panic!("{event:?}")
            };
            let prints: Vec<u64> = path.iter().map(|(document, _)| *document).collect();
            believed.extend((1..=prints.len()).map(|count| prints[..count].to_vec()));
        }
        let mut held = BTreeSet::new();
        for prompt in prompts {
            let blocks = (1..=5).map(|count| number(&prompt[..count * SIZE]));
            let count = blocks.take_while(|number| there.contains(number)).count();
            let prints: Vec<u64> = path_of(prompt)
                .documents
                .iter()
                .map(|document| document.fingerprint)
                .collect();
            held.extend((1..=count).map(|count| prints[..count].to_vec()));
        }
        assert!(believed.is_subset(&held), "{believed:?} but {held:?}");
        assert!(!all || believed == held, "only {believed:?} of {held:?}");
        believed.len()
    }
}
