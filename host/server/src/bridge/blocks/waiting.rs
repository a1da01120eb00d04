//! The prompts that wait for the engine to report that it caches more of their blocks, each behind the last block that
//! matched. Their number and tokens are limited.

use super::Limits;
use crate::kv::vllm::read::BlockHash;
use foreword_engine::TokenId;
use foreword_engine::cache::DocumentPath;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Prompts that wait because the engine's events have not reported some of their blocks yet.
#[derive(Debug)]
pub(super) struct WaitingPrompts {
    limits: Limits,
    prompts: HashMap<u64, Prompt>,
    /// Ids of the prompts that wait for a block behind the given one, their last matched block; `None` if none of their
    /// blocks matched.
    behind: HashMap<Option<BlockHash>, HashSet<u64>>,
    /// Ids of prompts, oldest first. May include prompts that no longer wait.
    ages: VecDeque<u64>,
    /// Sum of the numbers of tokens of all waiting prompts.
    tokens: usize,
}

/// A prompt with documents, and how far its tokens match cached blocks.
#[derive(Debug)]
pub(super) struct Prompt {
    /// Unique id of the prompt, by which it is found again.
    pub(super) id: u64,
    pub(super) tokens: Vec<TokenId>,
    pub(super) salt: Arc<str>,
    /// The tenant key derived from the salt, in the form in which our own engine reports it.
    pub(super) tenant: String,
    pub(super) documents: DocumentPath,
    /// Number of tokens at the prompt's start that are covered by matched blocks.
    pub(super) matched: usize,
    /// The last block that matched the prompt; `None` if none did.
    pub(super) at: Option<BlockHash>,
}

impl WaitingPrompts {
    /// Returns a collection with no waiting prompts. If the limits are exceeded later, the oldest prompts are dropped.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            prompts: HashMap::new(),
            behind: HashMap::new(),
            ages: VecDeque::new(),
            tokens: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.prompts.len()
    }

    /// Adds a prompt, and drops the oldest ones beyond the limits.
    pub(super) fn push(&mut self, prompt: Prompt) {
        self.behind.entry(prompt.at).or_default().insert(prompt.id);
        self.tokens += prompt.tokens.len();
        self.ages.push_back(prompt.id);
        self.prompts.insert(prompt.id, prompt);
        self.evict_excess();
    }

    /// Removes and returns the prompts whose last matched block is `at`; if `None`, those of which none matched.
    pub(super) fn take_behind(&mut self, at: Option<BlockHash>) -> Vec<Prompt> {
        self.take_behind_if(at, |_| true)
    }

    /// Removes and returns those prompts whose last matched block is `at` (`None`: no block matched) and for which
    /// `is_taken` returns true.
    pub(super) fn take_behind_if(
        &mut self,
        at: Option<BlockHash>,
        is_taken: impl Fn(&Prompt) -> bool,
    ) -> Vec<Prompt> {
        let Some(ids) = self.behind.get_mut(&at) else {
            return Vec::new();
        };
        let prompts = &self.prompts;
        let taken = ids.extract_if(|id| prompts.get(id).is_none_or(&is_taken));
        let taken: Vec<u64> = taken.collect();
        if ids.is_empty() {
            self.behind.remove(&at);
        }
        (taken.iter())
            .filter_map(|id| self.prompts.remove(id))
            .inspect(|prompt| self.tokens -= prompt.tokens.len())
            .collect()
    }

    fn evict_excess(&mut self) {
        while (self.prompts.len() > self.limits.prompts || self.tokens > self.limits.prompt_tokens)
            && let Some(oldest) = self.ages.pop_front()
        {
            let Some(prompt) = self.prompts.remove(&oldest) else {
                continue;
            };
            self.tokens -= prompt.tokens.len();
            if let Some(others) = self.behind.get_mut(&prompt.at) {
                others.remove(&oldest);
                if others.is_empty() {
                    self.behind.remove(&prompt.at);
                }
            }
        }
        // Remove ids of prompts that no longer wait.
        if self.ages.len() > 2 * self.limits.prompts + 16 {
            let prompts = &self.prompts;
            let mut seen = HashSet::new();
            self.ages
                .retain(|id| prompts.contains_key(id) && seen.insert(*id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        blocks: 0,
        prompts: 5,
        prompt_tokens: 1000,
    };

    fn prompt(id: u64) -> Prompt {
        Prompt {
            id,
            tokens: vec![id as u32; 8],
            salt: "".into(),
            tenant: String::new(),
            documents: DocumentPath::default(),
            matched: 0,
            at: None,
        }
    }

    #[test]
    fn books_are_kept_of_those_only_who_wait() {
        let mut waiting = WaitingPrompts::new(LIMITS);
        for id in 0..100 {
            waiting.push(prompt(id));
            assert!(waiting.prompts.len() <= 5 && waiting.ages.len() <= 26);
            assert!(waiting.behind.values().map(HashSet::len).sum::<usize>() <= 5);
        }
        // Repeated waiting does not make the list of ages grow.
        for _ in 0..100 {
            for prompt in waiting.take_behind(None) {
                waiting.push(prompt);
            }
            assert!(waiting.prompts.len() == 5 && waiting.ages.len() <= 26);
        }
        assert_eq!(waiting.tokens, 40);
        assert_eq!(waiting.take_behind(None).len(), 5);
        assert_eq!((waiting.tokens, waiting.behind.len()), (0, 0));
    }

    #[test]
    fn the_oldest_go_when_prompts_or_their_tokens_are_too_many() {
        for limits in [
            Limits {
                prompts: 2,
                ..LIMITS
            },
            Limits {
                prompt_tokens: 20,
                ..LIMITS
            },
        ] {
            let mut waiting = WaitingPrompts::new(limits);
            (0..10).for_each(|id| waiting.push(prompt(id)));
            assert_eq!(waiting.tokens, 16);
            let mut left: Vec<u64> = waiting
                .take_behind(None)
                .iter()
                .map(|prompt| prompt.id)
                .collect();
            left.sort_unstable();
            assert_eq!(left, [8, 9]);
        }
    }
}
