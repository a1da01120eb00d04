//! A model of an engine's prefix cache at the granularity of documents: a tree with least-recently-used leaf eviction
//! and a capacity in tokens, as in vLLM and SGLang.
//!
//! It models what a gateway cannot know: how many tokens a prompt really finds, in whole pages, and what the engine
//! evicts when it is full. A document is either cached or not. A page with the end of one document and the beginning of
//! the next belongs to the longer path, so a match is cut to whole pages.

use super::Retrieved;
use foreword_ordering::tree::{Bounds, KnowledgeTree, Scope};

/// The capacity of an engine's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Most document tokens; `None` for no limit.
    pub tokens: Option<u64>,
    /// Tokens per page. A match is cut to whole pages; with 1 nothing is cut.
    pub page_tokens: u32,
}

impl Capacity {
    /// A cache without a limit and with exact matches.
    pub const UNBOUNDED: Self = Self {
        tokens: None,
        page_tokens: 1,
    };

    /// Returns the capacity for `tokens` document tokens, where 0 means no limit, as in command-line options.
    #[must_use]
    pub fn stated(tokens: u64, page_tokens: u32) -> Self {
        Self {
            tokens: (tokens > 0).then_some(tokens),
            page_tokens,
        }
    }

    /// Returns a capacity of `prompts` times the average document tokens of a request of `trace`, with exact matches.
    #[must_use]
    pub fn of_prompts(prompts: u32, trace: &[super::Request]) -> Self {
        let tokens = u128::from(super::document_tokens(trace)) * u128::from(prompts);
        let tokens = tokens.checked_div(trace.len() as u128).unwrap_or(0);
        Self {
            tokens: Some(u64::try_from(tokens).unwrap_or(u64::MAX)),
            page_tokens: 1,
        }
    }

    /// Returns the bounds of a knowledge tree for an engine of this capacity.
    #[must_use]
    pub fn bounds(self) -> Bounds {
        Bounds {
            max_nodes: u32::MAX,
            max_tokens: self.tokens,
        }
    }
}

/// A model of an engine's prefix cache, at the granularity of documents.
#[derive(Debug)]
pub struct EngineCache {
    held: KnowledgeTree,
    page_tokens: u64,
}

impl EngineCache {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        Self {
            held: KnowledgeTree::new(capacity.bounds()),
            page_tokens: capacity.page_tokens.max(1).into(),
        }
    }

    /// Serves a prompt whose documents are `path`, and returns the tokens found in the cache. The path becomes the most
    /// recently used one, and the least recently used leaves are evicted to make room.
    pub fn serve<'a>(
        &mut self,
        scope: Scope,
        path: impl Iterator<Item = &'a Retrieved> + Clone,
    ) -> u64 {
        let mut found = 0_u64;
        let mut at = self.held.root(scope);
        for document in path.clone() {
            let id = self.held.intern(document.fingerprint);
            at = at.and_then(|node| self.held.child(node, id));
            if at.is_some() {
                found += u64::from(document.tokens);
            }
        }
        let path: Vec<_> = path
            .map(|document| (self.held.intern(document.fingerprint), document.tokens))
            .collect();
        self.held.insert(scope, path);
        found - found % self.page_tokens
    }

    /// Returns the number of cached tokens.
    #[cfg(test)]
    pub(crate) fn tokens(&self) -> u64 {
        self.held.tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: Scope = Scope(3);

    fn serve(cache: &mut EngineCache, path: &[u64]) -> u64 {
        let path: Vec<_> = path.iter().map(|&d| Retrieved::numbered(d, 10)).collect();
        cache.serve(SCOPE, path.iter())
    }

    #[test]
    fn a_prompt_finds_its_longest_cached_prefix() {
        let mut cache = EngineCache::new(Capacity::UNBOUNDED);
        assert_eq!(serve(&mut cache, &[1, 2, 3]), 0);
        assert_eq!(serve(&mut cache, &[1, 2, 4]), 20);
        assert_eq!(serve(&mut cache, &[2, 1]), 0);
        assert_eq!(cache.serve(Scope(4), [].into_iter()), 0);
    }

    #[test]
    fn a_match_is_cut_to_whole_pages() {
        let mut cache = EngineCache::new(Capacity {
            tokens: None,
            page_tokens: 16,
        });
        serve(&mut cache, &[1, 2, 3]);
        assert_eq!(serve(&mut cache, &[1, 2, 3]), 16);
        assert_eq!(serve(&mut cache, &[1, 9]), 0);
    }

    #[test]
    fn the_least_recently_used_leaf_makes_room() {
        let mut cache = EngineCache::new(Capacity {
            tokens: Some(40),
            page_tokens: 1,
        });
        serve(&mut cache, &[1, 2]);
        serve(&mut cache, &[3, 4]);
        serve(&mut cache, &[1, 5]);
        assert_eq!(cache.tokens(), 40);
        assert_eq!(serve(&mut cache, &[1, 2]), 10);
    }

    #[test]
    fn capacity_counts_average_prompts() {
        let request = |documents: &[u64]| super::super::Request {
            is_ranked: true,
            scope: SCOPE,
            documents: documents
                .iter()
                .map(|&d| Retrieved::numbered(d, 10))
                .collect(),
        };
        let trace = [request(&[1]), request(&[1, 2, 3])];
        assert_eq!(Capacity::of_prompts(4, &trace).tokens, Some(80));
        assert_eq!(Capacity::of_prompts(4, &[]).tokens, Some(0));
    }
}
