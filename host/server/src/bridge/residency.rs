//! What the engine is known to hold, written by those who read its events and by those who read requests, and told to
//! the feed's readers in the order in which it became known.

use super::blocks::{Blocks, Counts, Limits};
use super::prompts::Prompt;
use crate::kv::vllm::read::BlockEvent;
use foreword_engine::engine::feed::Feed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Residency {
    blocks: Mutex<Blocks>,
    feed: Arc<Feed>,
}

impl Residency {
    /// Of an engine of which nothing is known.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            blocks: Mutex::new(Blocks::new(limits)),
            feed: Arc::new(Feed::new()),
        }
    }

    /// Where it is told.
    pub(super) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// A request was sent to the engine.
    pub(super) fn prompt(&self, prompt: Prompt) {
        self.change(|blocks| blocks.prompt(prompt.tokens, prompt.salt, prompt.documents));
    }

    /// The engine says this.
    pub(super) fn events(&self, events: Vec<BlockEvent>) {
        self.change(|blocks| events.into_iter().for_each(|event| blocks.event(event)));
    }

    /// Nothing that was known can be relied on.
    pub(super) fn forget(&self) {
        self.change(Blocks::forget);
    }

    /// How much is known.
    pub(super) fn counts(&self) -> Counts {
        self.lock().counts()
    }

    /// Publishes under the lock, so that readers see changes in the order in which they were made.
    fn change(&self, change: impl FnOnce(&mut Blocks)) {
        let mut blocks = self.lock();
        change(&mut blocks);
        self.feed.publish(blocks.take_events());
    }

    /// A panic under the lock would leave blocks without marks, which is less than is held, never more.
    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
