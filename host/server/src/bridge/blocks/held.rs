//! The blocks in an engine's cache: their tiers, the blocks before them, and the documents that end in them.

use crate::kv::vllm::read::{BlockHash, Key};
use foreword_engine::TokenId;
use foreword_engine::cache::{Document, Tier};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The blocks in an engine's cache.
#[derive(Debug, Default)]
pub(super) struct HeldBlocks {
    blocks: HashMap<BlockHash, Block>,
    /// The known blocks that directly follow each block, which need not be held itself; under `None`, the blocks that
    /// begin a sequence.
    children: HashMap<Option<BlockHash>, HashSet<BlockHash>>,
    /// Number of blocks compared with a prompt or visited for a removal.
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<usize>,
}

#[derive(Debug)]
struct Block {
    parent: Option<BlockHash>,
    tokens: Arc<[TokenId]>,
    /// For a block that begins a sequence, what its hash covers besides tokens, such as a salt; `None` if not reported.
    keys: Option<Vec<Key>>,
    /// True for each tier that holds the block: the device, host memory, and all others, in this order.
    places: [bool; 3],
    /// True if a prompt matched the block. All blocks before a matched one are matched too, and only matched blocks
    /// have marks, or prompts that wait behind them.
    is_matched: bool,
    marks: Vec<DocumentEnd>,
}

/// A mark: a document ends in the block, at the end of this path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DocumentEnd {
    pub(super) salt: Arc<str>,
    pub(super) scope: u64,
    pub(super) path: Arc<[Document]>,
}

impl HeldBlocks {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns whether any tier holds the block.
    pub(super) fn contains(&self, hash: BlockHash) -> bool {
        let block = self.blocks.get(&hash);
        block.is_some_and(|block| block.places.contains(&true))
    }

    /// Returns whether a block that begins a sequence was reported without keys.
    pub(super) fn has_first_without_keys(&self) -> bool {
        let mut blocks = self.blocks.values();
        blocks.any(|block| block.parent.is_none() && block.keys.is_none())
    }

    /// Records that `tier` holds a block. Returns the block's tokens; `None` if the tier held it already.
    pub(super) fn put(
        &mut self,
        hash: BlockHash,
        parent: Option<BlockHash>,
        tokens: &[TokenId],
        keys: Option<&[Key]>,
        tier: Tier,
    ) -> Option<Arc<[TokenId]>> {
        let block = self.blocks.entry(hash).or_insert_with(|| Block {
            parent,
            tokens: tokens.into(),
            keys: keys.map(<[Key]>::to_vec),
            places: [false; 3],
            is_matched: false,
            marks: Vec::new(),
        });
        let was_there = std::mem::replace(&mut block.places[tier as usize], true);
        if was_there {
            return None;
        }
        // The parent of the first report counts, so that `forget` finds this entry.
        self.children.entry(block.parent).or_default().insert(hash);
        Some(block.tokens.clone())
    }

    /// Records that `tier` dropped a block; returns whether it held it. If no tier [holds](Self::contains) the block
    /// now, the caller must [`unmatch`](Self::unmatch) it, take the marks of the blocks returned, and then
    /// [`forget`](Self::forget) it.
    pub(super) fn take(&mut self, hash: BlockHash, tier: Tier) -> bool {
        let block = self.blocks.get_mut(&hash);
        block.is_some_and(|block| std::mem::replace(&mut block.places[tier as usize], false))
    }

    /// Removes a block, but not those behind it.
    pub(super) fn forget(&mut self, hash: BlockHash) {
        if let Some(block) = self.blocks.remove(&hash)
            && let Some(siblings) = self.children.get_mut(&block.parent)
        {
            siblings.remove(&hash);
            if siblings.is_empty() {
                self.children.remove(&block.parent);
            }
        }
    }

    /// Records that a prompt matched a block.
    pub(super) fn match_block(&mut self, hash: BlockHash) {
        if let Some(block) = self.blocks.get_mut(&hash) {
            block.is_matched = true;
        }
    }

    /// Records that a block and those behind it are no longer matched. Returns the blocks that were matched, each after
    /// its parent. Visits no block behind one that was not matched, so removing a chain from its root costs `O(blocks)`
    /// in all.
    pub(super) fn unmatch(&mut self, top: BlockHash) -> Vec<BlockHash> {
        let mut was_matched = |hash: &BlockHash| {
            #[cfg(test)]
            self.visits.update(|visits| visits + 1);
            let block = self.blocks.get_mut(hash);
            block.is_some_and(|block| std::mem::take(&mut block.is_matched))
        };
        let mut found: Vec<_> = std::iter::once(top).filter(&mut was_matched).collect();
        let mut at = 0;
        while let Some(hash) = found.get(at) {
            let children = self.children.get(&Some(*hash)).into_iter().flatten();
            found.extend(children.copied().filter(&mut was_matched));
            at += 1;
        }
        found
    }

    /// Returns the held block that follows `at` (with `None`, begins a sequence) and with whose tokens `tokens` begin,
    /// and its number of tokens. `is_whose` must be true for the keys of a block that begins a sequence.
    pub(super) fn behind(
        &self,
        at: Option<BlockHash>,
        tokens: &[TokenId],
        is_whose: impl Fn(Option<&[Key]>) -> bool,
    ) -> Option<(BlockHash, usize)> {
        let candidates = self.children.get(&at)?.iter();
        candidates
            .filter_map(|&hash| Some((hash, self.size_if_behind(hash, at, tokens, &is_whose)?)))
            // Among blocks with the same tokens, the choice is always the same.
            .min()
    }

    /// Returns the block's number of tokens if [`Self::behind`] may choose it.
    pub(super) fn size_if_behind(
        &self,
        hash: BlockHash,
        at: Option<BlockHash>,
        tokens: &[TokenId],
        is_whose: impl Fn(Option<&[Key]>) -> bool,
    ) -> Option<usize> {
        #[cfg(test)]
        self.visits.update(|visits| visits + 1);
        let block = self.blocks.get(&hash)?;
        let fits = block.parent == at
            && tokens.starts_with(&block.tokens)
            && (at.is_some() || is_whose(block.keys.as_deref()));
        fits.then_some(block.tokens.len())
    }

    /// Adds a mark to a block; returns false if the mark was there or the block is full or unknown.
    pub(super) fn mark(&mut self, hash: BlockHash, mark: DocumentEnd) -> bool {
        let Some(block) = self.blocks.get_mut(&hash) else {
            return false;
        };
        let is_kept = !block.marks.contains(&mark) && block.marks.len() < MAX_MARKS;
        if is_kept {
            block.marks.push(mark);
        }
        is_kept
    }

    /// Takes a block's marks, oldest first.
    pub(super) fn unmark(&mut self, hash: BlockHash) -> Vec<DocumentEnd> {
        let block = self.blocks.get_mut(&hash);
        block.map_or_else(Vec::new, |block| std::mem::take(&mut block.marks))
    }
}

/// Maximum number of marks of a block; further ones are ignored.
const MAX_MARKS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

    #[test]
    fn blocks_of_which_an_engine_says_this_and_that_leave_nothing_behind() {
        let mut random = Random::new(3);
        let mut held = HeldBlocks::default();
        let tiers = [Tier::Device, Tier::Host, Tier::Disk];
        for _ in 0..500 {
            let hash = BlockHash(random.below(8).into());
            let parent = (random.below(4) > 0).then(|| BlockHash(random.below(1_000).into()));
            let tier = tiers[random.below(3) as usize];
            held.put(hash, parent, &[1, 2], None, tier);
            if random.below(3) == 0 {
                for tier in tiers {
                    held.take(hash, tier);
                }
                held.forget(hash);
            }
            let listed: usize = held.children.values().map(HashSet::len).sum();
            assert_eq!(listed, held.len());
        }
    }
}
