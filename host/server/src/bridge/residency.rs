//! The engine's known cache content. The readers of its events and of requests write it, and the feed publishes the changes
//! in order.

use super::blocks::{Blocks, Counts, Limits};
use super::prompts::Prompt;
use crate::kv::vllm::read::BlockEvent;
use foreword_engine::engine::feed::Feed;
use parking_lot::Mutex;
use std::sync::Arc;

/// The engine's known cache content.
#[derive(Debug)]
pub(super) struct Residency {
    /// A panic under the lock would leave blocks without marks: the feed would know less than is held, never more.
    blocks: Mutex<Blocks>,
    feed: Arc<Feed>,
}

impl Residency {
    /// Returns an empty state.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            blocks: Mutex::new(Blocks::new(limits)),
            feed: Arc::new(Feed::new()),
        }
    }

    /// Returns the feed that publishes it.
    pub(super) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Records a request sent to the engine.
    pub(super) fn prompt(&self, prompt: Prompt) {
        self.change(|blocks| blocks.prompt(prompt.tokens, prompt.salt, prompt.documents));
    }

    /// Applies the engine's events.
    pub(super) fn events(&self, events: Vec<BlockEvent>) {
        self.change(|blocks| events.into_iter().for_each(|event| blocks.event(event)));
    }

    /// Resets the state.
    pub(super) fn forget(&self) {
        self.change(Blocks::forget);
    }

    /// Returns the size of the state.
    pub(super) fn counts(&self) -> Counts {
        self.blocks.lock().counts()
    }

    /// Changes the state and publishes under one lock, so that readers see changes in order.
    fn change(&self, change: impl FnOnce(&mut Blocks)) {
        let mut blocks = self.blocks.lock();
        change(&mut blocks);
        self.feed.publish(blocks.take_events());
    }
}
