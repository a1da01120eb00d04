//! The content of an engine's cache, as far as known: its events and copies of prompts change it, and the feed
//! publishes the changes in order.

use super::blocks::{Blocks, Counts, Limits};
use super::prompts::Prompt;
use crate::kv::vllm::read::BlockEvent;
use foreword_engine::engine::feed::Feed;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The content of the engine's cache, as far as known, and the feed that publishes its changes.
#[derive(Debug)]
pub(super) struct Residency {
    /// The blocks and prompts. A panic under the lock could only leave documents unreported: the feed then reports less
    /// than is cached, never more.
    blocks: Mutex<Blocks>,
    feed: Arc<Feed>,
    /// The result of [`Blocks::awaits_first_salt`] after the last change, for callers that must not wait for the lock.
    awaits_first_salt: AtomicBool,
}

impl Residency {
    /// Returns the state of an engine with an empty cache.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            blocks: Mutex::new(Blocks::new(limits)),
            feed: Arc::new(Feed::new()),
            awaits_first_salt: AtomicBool::new(true),
        }
    }

    /// Returns the feed that publishes the changes of what the engine has cached.
    pub(super) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Records the prompt of a request that was, or will be, sent to the engine.
    pub(super) fn prompt(&self, prompt: Prompt) {
        self.change(|blocks| blocks.prompt(prompt.tokens, prompt.salt, prompt.documents));
    }

    /// Returns whether [`Self::record_salt`] must be called for a request with a salt: true until the first such
    /// request, unless the engine reports salts.
    pub(super) fn awaits_first_salt(&self) -> bool {
        self.awaits_first_salt.load(Ordering::Relaxed)
    }

    /// Records that the engine gets a request with a salt, whether or not its prompt is known.
    pub(super) fn record_salt(&self) {
        self.change(Blocks::record_salt);
    }

    /// Applies the engine's events on blocks, in order.
    pub(super) fn events(&self, events: Vec<BlockEvent>) {
        self.change(|blocks| events.into_iter().for_each(|event| blocks.event(event)));
    }

    /// Discards what is known of the engine's cache, because events were lost or the engine restarted.
    pub(super) fn forget(&self) {
        self.change(Blocks::forget);
    }

    /// Returns the numbers of known blocks and of prompts that wait for blocks, and whether a salt has ended the
    /// reports.
    pub(super) fn counts(&self) -> Counts {
        self.blocks.lock().counts()
    }

    /// Changes the state and publishes the resulting events under one lock, so that readers of the feed see changes in
    /// order.
    fn change(&self, change: impl FnOnce(&mut Blocks)) {
        let mut blocks = self.blocks.lock();
        change(&mut blocks);
        self.awaits_first_salt
            .store(blocks.awaits_first_salt(), Ordering::Relaxed);
        self.feed.publish(blocks.take_events());
    }
}
