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

/// Matches the blocks in an engine's cache with prompts, and so determines which documents are cached.
#[derive(Debug)]
pub struct Blocks {
    limits: Limits,
    held: HeldBlocks,
    waiting: WaitingPrompts,
    /// Id that the next recorded prompt will get.
    next: u64,
    /// Numbers of groups of layers whose blocks are ignored, since they hold only a part of the sequence.
    partial: HashSet<i64>,
    /// True if any request so far had a cache salt.
    salted: bool,
    /// True if the engine reports salts with the first block of each sequence, false if it does not; `None` if no such
    /// block has arrived yet.
    reports_keys: Option<bool>,
    /// True once a warning was logged that no documents are reported because of a salt.
    has_warned: bool,
    log: Vec<CacheEvent>,
}

/// Limits on the memory of a [`Blocks`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of cached blocks recorded. If an engine reports more, its reports are not credible and the state
    /// is discarded.
    pub blocks: usize,
    /// Maximum number of prompts that wait for blocks; beyond it the oldest are dropped.
    pub prompts: usize,
    /// Maximum number of tokens of all prompts that wait for blocks; beyond it the oldest prompts are dropped.
    pub prompt_tokens: usize,
}

/// The numbers of blocks and prompts in a [`Blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Number of blocks that the engine has cached.
    pub blocks: usize,
    /// Number of prompts that wait for blocks which the engine has not reported yet.
    pub prompts: usize,
    /// True if no documents are reported, because a request had a salt and the engine does not report salts.
    pub is_silent: bool,
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
            reports_keys: None,
            has_warned: false,
            log: Vec::new(),
        }
    }

    /// Returns the numbers of blocks and prompts in the state.
    pub fn counts(&self) -> Counts {
        Counts {
            blocks: self.held.len(),
            prompts: self.waiting.len(),
            is_silent: self.is_silent(),
        }
    }

    /// Returns the changes of what is cached since the last call, as events of our own engine's cache.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.log)
    }

    /// Records a prompt that was or will be sent to the engine, its salt, and where its documents end. Matches it with
    /// cached blocks.
    pub fn prompt(&mut self, tokens: Vec<TokenId>, salt: Arc<str>, documents: DocumentPath) {
        if !salt.is_empty() {
            self.record_salt();
        }
        let id = self.next;
        self.next += 1;
        self.walk(Prompt {
            id,
            tokens,
            tenant: TenantKey::of(&salt).to_string(),
            salt,
            documents,
            matched: 0,
            at: None,
        });
    }

    /// Returns whether [`Self::record_salt`] must still be called for a request with a salt: true until the first call,
    /// unless the engine reports salts.
    pub fn awaits_first_salt(&self) -> bool {
        !self.salted && self.reports_keys != Some(true)
    }

    /// Records that a request with a salt was or will be sent to the engine, whether or not its prompt is known.
    pub fn record_salt(&mut self) {
        let is_first = !std::mem::replace(&mut self.salted, true);
        if is_first && self.held.has_first_without_keys() {
            self.forget();
        }
        self.warn_if_silent();
    }

    fn is_silent(&self) -> bool {
        self.salted && self.reports_keys == Some(false)
    }

    fn warn_if_silent(&mut self) {
        if self.is_silent() && !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "a request had a cache_salt, and the engine does not report salts: no documents are reported any more"
            );
        }
    }

    /// Applies one of the engine's events on blocks.
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

    /// Discards the state, because events were lost or the engine restarted; readers are told that events are missing.
    pub fn forget(&mut self) {
        self.begin_anew(vec![CacheEvent::Gap { events: 0 }]);
    }

    fn clear(&mut self) {
        let mut log = self.take_events();
        log.push(CacheEvent::Cleared);
        self.begin_anew(log);
    }

    /// Discards the state, except whether a salt was seen. `log` are the events to report first.
    fn begin_anew(&mut self, log: Vec<CacheEvent>) {
        *self = Self {
            next: self.next,
            salted: self.salted,
            has_warned: self.has_warned,
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
        // A LoRA adapter's number and name are keys that an engine without keys reports too.
        let is_adapter =
            keys.is_some_and(|keys| !keys.is_empty() && keys.iter().all(|key| *key == Key::Other));
        if parent.is_none() && !is_adapter {
            self.reports_keys = Some(keys.is_some());
            self.warn_if_silent();
        }
        let Some(tokens) = self.held.put(hash, parent, tokens, keys, tier) else {
            return;
        };
        let next = Some((hash, tokens.len()));
        self.log.push(CacheEvent::Stored {
            hash: PageHash(hash.0),
            parent: parent.map(|parent| PageHash(parent.0)),
            tokens,
            salt: "".into(),
            tier,
        });
        // Continue prompts that waited for this block. The others do not match any block behind `parent`.
        let (held, salted) = (&self.held, self.salted);
        let is_next = |prompt: &Prompt| is_next(held, hash, prompt, salted);
        for prompt in self.waiting.take_behind_if(parent, is_next) {
            self.walk_from(prompt, next);
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
        let below = self.held.unmatch(hash);
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

    /// Matches a prompt with cached blocks as far as possible and records the ends of its documents in them. If blocks
    /// are missing, the prompt waits for them.
    fn walk(&mut self, prompt: Prompt) {
        let next = self.behind(&prompt);
        self.walk_from(prompt, next);
    }

    /// Matches a prompt as [`Self::walk`] does, beginning with the block `next`, given with its number of tokens.
    fn walk_from(&mut self, mut prompt: Prompt, mut next: Option<(BlockHash, usize)>) {
        let documents = &prompt.documents.documents;
        let ends = documents.iter().map(|document| document.end as usize);
        let last = ends.max().unwrap_or(0);
        while let Some((hash, size)) = next {
            self.held.match_block(hash);
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
            next = self.behind(&prompt);
        }
        if last > 0 {
            self.waiting.push(prompt);
        }
    }

    /// Returns the cached block that continues a prompt after the blocks already matched, and its number of tokens;
    /// `None` if there is none.
    fn behind(&self, prompt: &Prompt) -> Option<(BlockHash, usize)> {
        let rest = prompt.tokens.get(prompt.matched..)?;
        let is_whose = |keys: Option<&[Key]>| is_whose(keys, prompt, self.salted);
        self.held.behind(prompt.at, rest, is_whose)
    }
}

/// Returns whether the block `hash` continues a prompt after the blocks already matched.
fn is_next(held: &HeldBlocks, hash: BlockHash, prompt: &Prompt, salted: bool) -> bool {
    let rest = prompt.tokens.get(prompt.matched..).unwrap_or_default();
    let is_whose = |keys: Option<&[Key]>| is_whose(keys, prompt, salted);
    held.size_if_behind(hash, prompt.at, rest, is_whose)
        .is_some()
}

/// Returns whether a block that begins a sequence can belong to this prompt's request, which has no input of the hash
/// besides tokens except its salt (no LoRA, no image). `keys` are the block's such inputs: vLLM reports the salt, our
/// own engine the tenant key. `salted` is true if any request had a salt.
fn is_whose(keys: Option<&[Key]>, prompt: &Prompt, salted: bool) -> bool {
    match keys {
        None => prompt.salt.is_empty() && !salted,
        Some([]) => prompt.salt.is_empty(),
        Some([Key::Text(text)]) if !prompt.salt.is_empty() => {
            *text == *prompt.salt || *text == prompt.tenant
        }
        Some(_) => false,
    }
}

/// Maximum number of groups of layers whose blocks are ignored; models have few.
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
