//! The known content of an engine's cache: events and prompts change it, and the feed publishes the changes in order.

use super::blocks::{Blocks, Counts, Limits};
use super::prompts::Prompt;
use crate::kv::vllm::read::BlockEvent;
use foreword_engine::engine::feed::Feed;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The known content of the engine's cache.
#[derive(Debug)]
pub(super) struct Residency {
    /// A panic under the lock could only leave documents unreported: the feed knows less than is held, never more.
    blocks: Mutex<Blocks>,
    feed: Arc<Feed>,
    /// [`Blocks::awaits_first_salt`] after the last change, for callers that must not wait.
    awaits_first_salt: AtomicBool,
}

impl Residency {
    /// Returns an empty state.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            blocks: Mutex::new(Blocks::new(limits)),
            feed: Arc::new(Feed::new()),
            awaits_first_salt: AtomicBool::new(true),
        }
    }

    /// Returns the feed that publishes the changes.
    pub(super) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Adds the prompt of a request that was, or will be, sent to the engine.
    pub(super) fn prompt(&self, prompt: Prompt) {
        self.change(|blocks| blocks.prompt(prompt.tokens, prompt.salt, prompt.documents));
    }

    /// Returns true if [`Self::record_salt`] must be called for a request with a salt.
    pub(super) fn awaits_first_salt(&self) -> bool {
        self.awaits_first_salt.load(Ordering::Relaxed)
    }

    /// Records that the engine gets a request with a salt, whatever its prompt.
    pub(super) fn record_salt(&self) {
        self.change(Blocks::record_salt);
    }

    /// Applies the engine's events.
    pub(super) fn events(&self, events: Vec<BlockEvent>) {
        self.change(|blocks| events.into_iter().for_each(|event| blocks.event(event)));
    }

    /// Discards all known content, because events were lost or the engine restarted.
    pub(super) fn forget(&self) {
        self.change(Blocks::forget);
    }

    /// Returns the number of known blocks and of waiting prompts, and true if a salt has ended the reports.
    pub(super) fn counts(&self) -> Counts {
        self.blocks.lock().counts()
    }

    /// Changes the state and publishes under one lock, so that readers see changes in order.
    fn change(&self, change: impl FnOnce(&mut Blocks)) {
        let mut blocks = self.blocks.lock();
        change(&mut blocks);
        self.awaits_first_salt
            .store(blocks.awaits_first_salt(), Ordering::Relaxed);
        self.feed.publish(blocks.take_events());
    }
}
