//! What the engine is known to hold. The readers of its events and of requests write it, and the feed's readers get it
//! in the order in which it became known.

use super::blocks::{Blocks, Counts, Limits};
use super::prompts::Prompt;
use crate::kv::vllm::read::BlockEvent;
use foreword_engine::engine::feed::Feed;
use parking_lot::Mutex;
use std::sync::Arc;

/// What the engine is known to hold.
#[derive(Debug)]
pub(super) struct Residency {
    /// A panic under the lock would leave blocks without marks, which means less is known than is held, never more.
    blocks: Mutex<Blocks>,
    feed: Arc<Feed>,
}

impl Residency {
    /// Returns the state of an engine of which nothing is known.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            blocks: Mutex::new(Blocks::new(limits)),
            feed: Arc::new(Feed::new()),
        }
    }

    /// Returns the feed that reports it.
    pub(super) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Records that a request was sent to the engine.
    pub(super) fn prompt(&self, prompt: Prompt) {
        self.change(|blocks| blocks.prompt(prompt.tokens, prompt.salt, prompt.documents));
    }

    /// Applies the engine's events.
    pub(super) fn events(&self, events: Vec<BlockEvent>) {
        self.change(|blocks| events.into_iter().for_each(|event| blocks.event(event)));
    }

    /// Forgets everything.
    pub(super) fn forget(&self) {
        self.change(Blocks::forget);
    }

    /// Returns how much is known.
    pub(super) fn counts(&self) -> Counts {
        self.blocks.lock().counts()
    }

    /// Publishes under the lock, so that readers see changes in the order in which they were made.
    fn change(&self, change: impl FnOnce(&mut Blocks)) {
        let mut blocks = self.blocks.lock();
        change(&mut blocks);
        self.feed.publish(blocks.take_events());
    }
}
