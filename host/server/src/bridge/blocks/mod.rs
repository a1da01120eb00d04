//! Determines which documents an engine's cache holds, from its events on blocks and from prompts with known documents.
//!
//! ```text
//!   prompt   |system      |document 1         |document 2     |question       tokens, and where documents end
//!   blocks   [ 9f ]──▶[ 31 ]──▶[ c0 ]──▶[ 77 ]──▶[ 08 ]                       by the engine's hashes, from events
//!                               mark 1   mark 2                               on the last block before an end
//! ```
//!
//! Blocks and prompts are matched by their tokens, so the engine's hash function need not be known. Either may come
//! first: a prompt with missing blocks waits at the last block found. A *mark* records that a document ends in a block.
//! The document is resident while its mark's block and all blocks before it are held. If an engine evicts a block,
//! those behind it lose their marks until the next such prompt. So the feed never reports more than is held.
//!
//! If an engine does not report salts, nothing is reported about salted prompts. After the first salted prompt, nothing
//! is reported about the others either, since their blocks might belong to any tenant.
//!
//! Layers with a sliding window or a recurrent state have blocks of their own, which are skipped. The engine may then
//! reuse less than is reported.
//!
//! [`held`] stores the blocks and [`waiting`] the prompts; this module matches the two and reports the result.

mod held;
mod waiting;

use crate::kv::vllm::read::{BlockEvent, BlockHash, Key};
use foreword_engine::TokenId;
use foreword_engine::cache::{CacheEvent, DocumentPath, PageHash, Tier};
use foreword_ordering::feed::TenantKey;
use held::{DocumentEnd, HeldBlocks};
use std::collections::HashSet;
use std::sync::Arc;
use waiting::{Prompt, WaitingPrompts};

/// Matches an engine's blocks with prompts, and determines which documents the engine holds.
#[derive(Debug)]
pub struct Blocks {
    limits: Limits,
    held: HeldBlocks,
    waiting: WaitingPrompts,
    /// Id of the next prompt.
    next: u64,
    /// Groups of layers whose blocks are skipped, since they hold only a part of the sequence.
    partial: HashSet<i64>,
    /// True if any prompt so far had a salt.
    salted: bool,
    log: Vec<CacheEvent>,
}

/// Limits on the state's size.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most blocks. If an engine reports more, its reports are not credible and the state is discarded.
    pub blocks: usize,
    /// Most waiting prompts; beyond it the oldest are dropped.
    pub prompts: usize,
    /// Most tokens of the waiting prompts; beyond it the oldest are dropped.
    pub prompt_tokens: usize,
}

/// The size of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Number of blocks that the engine holds.
    pub blocks: usize,
    /// Number of prompts that wait for blocks.
    pub prompts: usize,
}

impl Blocks {
    /// Returns the state of an engine with an empty cache.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            held: HeldBlocks::default(),
            waiting: WaitingPrompts::new(limits),
            next: 0,
            partial: HashSet::new(),
            salted: false,
            log: Vec::new(),
        }
    }

    /// Returns the size of the state.
    pub fn counts(&self) -> Counts {
        Counts {
            blocks: self.held.len(),
            prompts: self.waiting.len(),
        }
    }

    /// Returns the changes since the last call, as events of our own engine's cache.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.log)
    }

    /// Records a prompt that was or will be sent to the engine.
    pub fn prompt(&mut self, tokens: Vec<TokenId>, salt: Arc<str>, documents: DocumentPath) {
        let is_first_salt = !salt.is_empty() && !std::mem::replace(&mut self.salted, true);
        if is_first_salt && self.held.has_first_without_keys() {
            self.forget();
        }
        let id = self.next;
        self.next += 1;
        self.walk(Prompt {
            id,
            tokens,
            salt,
            documents,
            matched: 0,
            at: None,
        });
    }

    /// Applies one of the engine's events.
    pub fn event(&mut self, event: BlockEvent) {
        match event {
            BlockEvent::Stored(stored) => {
                let group = stored.group;
                if group.is_partial && self.partial.len() < MAX_GROUPS {
                    self.partial.insert(group.number);
                }
                if group.is_partial || self.partial.contains(&group.number) {
                    return;
                }
                let size = stored.block_tokens.max(1) as usize;
                let tier = tier(stored.medium.as_deref());
                let mut parent = stored.parent;
                // Blocks in excess of the tokens cannot be matched.
                for (hash, tokens) in
                    (stored.blocks.into_iter()).zip(stored.tokens.chunks_exact(size))
                {
                    let keys = stored.keys.as_deref().filter(|_| parent.is_none());
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

    /// Discards the state, because events were lost or the engine restarted.
    pub fn forget(&mut self) {
        self.begin_anew(vec![CacheEvent::Gap { events: 0 }]);
    }

    fn clear(&mut self) {
        let mut log = self.take_events();
        log.push(CacheEvent::Cleared);
        self.begin_anew(log);
    }

    /// Discards the state; `log` are the events to report first.
    fn begin_anew(&mut self, log: Vec<CacheEvent>) {
        *self = Self {
            next: self.next,
            salted: self.salted,
            log,
            ..Self::new(self.limits)
        };
    }

    fn store(
        &mut self,
        hash: BlockHash,
        parent: Option<BlockHash>,
        tokens: &[TokenId],
        keys: Option<&[Key]>,
        tier: Tier,
    ) {
        if self.held.len() >= self.limits.blocks && !self.held.contains(hash) {
            return self.forget();
        }
        let Some(tokens) = self.held.put(hash, parent, tokens, keys, tier) else {
            return;
        };
        self.log.push(CacheEvent::Stored {
            hash: PageHash(hash.0),
            parent: parent.map(|parent| PageHash(parent.0)),
            tokens,
            salt: "".into(),
            tier,
        });
        // Continue prompts that waited for this block.
        for prompt in self.waiting.take_behind(parent) {
            self.walk(prompt);
        }
    }

    fn remove(&mut self, hash: BlockHash, tier: Tier) {
        if !self.held.take(hash, tier) {
            return;
        }
        self.log.push(CacheEvent::Removed {
            hash: PageHash(hash.0),
            tier,
        });
        if self.held.contains(hash) {
            return;
        }
        let below = self.held.below(hash);
        for hash in below.iter().rev() {
            let marks = self.held.unmark(*hash).into_iter().rev();
            let removed = marks.map(|mark| CacheEvent::DocumentsRemoved {
                salt: mark.salt,
                scope: mark.scope,
                path: mark.path,
            });
            self.log.extend(removed);
        }
        self.held.forget(hash);
        // Match prompts again that had matched this block or one behind it.
        for hash in below {
            for mut prompt in self.waiting.take_behind(Some(hash)) {
                (prompt.matched, prompt.at) = (0, None);
                self.walk(prompt);
            }
        }
    }

    /// Matches a prompt with blocks as far as possible, marks the ends of its documents, and keeps it waiting if blocks
    /// are missing.
    fn walk(&mut self, mut prompt: Prompt) {
        let documents = &prompt.documents.documents;
        let ends = documents.iter().map(|document| document.end as usize);
        let last = ends.max().unwrap_or(0);
        while let Some((hash, size)) = self.behind(&prompt) {
            prompt.matched += size;
            prompt.at = Some(hash);
            let sizes = prompt.documents.sizes();
            for (count, document) in (1..).zip(&prompt.documents.documents) {
                // The last block that lies wholly before the document's end.
                let end = document.end as usize;
                if (prompt.matched..prompt.matched + size).contains(&end) {
                    let mark = DocumentEnd {
                        salt: prompt.salt.clone(),
                        scope: prompt.documents.scope,
                        path: sizes[..count].into(),
                    };
                    if self.held.mark(hash, mark.clone()) {
                        self.log.push(CacheEvent::DocumentsStored {
                            salt: mark.salt,
                            scope: mark.scope,
                            path: mark.path,
                        });
                    }
                }
            }
            if prompt.matched + size > last {
                return;
            }
        }
        if last > 0 {
            self.waiting.push(prompt);
        }
    }

    /// Returns the held block that continues the prompt's match, and its number of tokens; `None` if there is none.
    fn behind(&self, prompt: &Prompt) -> Option<(BlockHash, usize)> {
        let rest = prompt.tokens.get(prompt.matched..)?;
        let is_whose = |keys: Option<&[Key]>| self.is_whose(keys, &prompt.salt);
        self.held.behind(prompt.at, rest, is_whose)
    }

    /// Returns whether a first block with these keys can belong to a request with this salt and no other key, such as a
    /// LoRA or an image. vLLM reports the salt, our own engine the tenant key.
    fn is_whose(&self, keys: Option<&[Key]>, salt: &str) -> bool {
        match keys {
            None => salt.is_empty() && !self.salted,
            Some([]) => salt.is_empty(),
            Some([Key::Text(text)]) if !salt.is_empty() => {
                text == salt || *text == TenantKey::of(salt).to_string()
            }
            Some(_) => false,
        }
    }
}

/// Most groups of layers to skip; models have few.
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
mod tests;
