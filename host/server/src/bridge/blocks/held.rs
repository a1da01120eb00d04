//! The blocks in an engine's cache: the tiers that hold them, the blocks before them, and the documents that end in
//! them.

use crate::kv::vllm::read::{BlockHash, Key};
use foreword_engine::TokenId;
use foreword_engine::cache::{Document, Tier};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The blocks that are in an engine's cache, as its events report.
#[derive(Debug, Default)]
pub(super) struct HeldBlocks {
    blocks: HashMap<BlockHash, Block>,
    /// For each block (even one that is not cached), the cached blocks that directly follow it in a sequence; under
    /// `None`, the blocks that begin a sequence.
    children: HashMap<Option<BlockHash>, HashSet<BlockHash>>,
    /// Number of blocks compared with a prompt or visited for a removal, for tests.
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<usize>,
}

#[derive(Debug)]
struct Block {
    parent: Option<BlockHash>,
    tokens: Arc<[TokenId]>,
    /// For a block that begins a sequence, what its hash covers besides tokens, such as a salt; `None` if the engine
    /// did not report it.
    keys: Option<Vec<Key>>,
    /// For the device, host memory, and all other tiers, in this order, whether the tier holds the block.
    places: [bool; 3],
    /// True if a prompt's tokens matched the block. All blocks before a matched one are matched too. A block that is
    /// not matched has no `marks` (ends of documents), and no prompt waits for the block that follows it.
    is_matched: bool,
    marks: Vec<DocumentEnd>,
}

/// Records that a document of a prompt ends in a block: the document at the end of `path`.
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

    /// Returns whether any tier of the engine's cache holds the block.
    pub(super) fn contains(&self, hash: BlockHash) -> bool {
        let block = self.blocks.get(&hash);
        block.is_some_and(|block| block.places.contains(&true))
    }

    /// Returns true if the cache has a block at the beginning of a sequence for which the engine did not report what
    /// the block's hash covers besides tokens, such as a salt.
    pub(super) fn has_first_without_keys(&self) -> bool {
        let mut blocks = self.blocks.values();
        blocks.any(|block| block.parent.is_none() && block.keys.is_none())
    }

    /// Records that `tier` holds a block. Returns the block's tokens; `None` if the tier already held it.
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

    /// Records that `tier` dropped a block. Returns whether the tier held it. If no tier [holds](Self::contains) the
    /// block now, the caller must [`unmatch`](Self::unmatch) it, [`unmark`](Self::unmark) the blocks returned, and then
    /// [`forget`](Self::forget) it.
    pub(super) fn take(&mut self, hash: BlockHash, tier: Tier) -> bool {
        let block = self.blocks.get_mut(&hash);
        block.is_some_and(|block| std::mem::replace(&mut block.places[tier as usize], false))
    }

    /// Removes a block that no tier holds, but not the blocks that follow it.
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

    /// Records that a prompt's tokens matched a block.
    pub(super) fn match_block(&mut self, hash: BlockHash) {
        if let Some(block) = self.blocks.get_mut(&hash) {
            block.is_matched = true;
        }
    }

    /// Records that a block and those that follow it are no longer matched by a prompt. Returns the blocks that were
    /// matched, each after its parent. Visits no block behind one that was not matched, so removing a sequence of
    /// blocks from its first one costs `O(blocks)` in all.
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

    /// Returns the block that follows `at` (if `None`: that begins a sequence) and with whose tokens `tokens` begin,
    /// and its number of tokens. `None` if there is none. For a block that begins a sequence, `is_whose` must return
    /// true for the inputs of its hash other than tokens.
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

    /// Returns the block's number of tokens if [`Self::behind`] may return the block, else `None`.
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

    /// Records in a block that a document ends there. Returns false if that is already recorded, or the block has
    /// [`MAX_MARKS`] such records or is unknown.
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

    /// Removes and returns the ends of documents recorded in a block, oldest first.
    pub(super) fn unmark(&mut self, hash: BlockHash) -> Vec<DocumentEnd> {
        let block = self.blocks.get_mut(&hash);
        block.map_or_else(Vec::new, |block| std::mem::take(&mut block.marks))
    }
}

/// Maximum number of ends of documents recorded in one block; further ones are ignored.
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
