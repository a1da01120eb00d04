//! A subscription to an engine's KV events over ZeroMQ, as vLLM publishes them.

use foreword_server::bridge::subscription::{connect, numbered};
use foreword_server::kv::vllm::read::{self, BlockEvent, Stored};
use foreword_server::zmtp::{Received, Socket};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// A subscription to an engine's KV events over ZeroMQ, which a thread receives until the subscription is dropped.
pub(super) struct Subscription {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The KV events that a subscription has received so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    is_connected: bool,
    /// The latest events about stored blocks, oldest first, at most [`MAX_STORED`].
    pub(super) stored: Vec<Stored>,
    /// Number of events about removed blocks and cleared caches so far.
    pub(super) removals: u64,
    pub(super) error: Option<String>,
}

impl Subscription {
    /// Subscribes to the engine's events at `address`, and waits until the engine should have received the
    /// subscription.
    pub(super) fn start(address: &str) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (address, seen_there, stopped) =
            (address.to_owned(), Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let followed = runtime
                .map_err(anyhow::Error::from)
                .and_then(|runtime| runtime.block_on(follow(&address, &seen_there, &stopped)));
            if let Err(error) = followed {
                seen_there.lock().error = Some(format!("{error:#}"));
            }
        });
        let thread = Some(thread);
        let subscription = Self { seen, stop, thread };
        subscription.wait(|seen| seen.is_connected);
        // A publisher reads a subscription some time after it was sent.
        std::thread::sleep(Duration::from_millis(300));
        subscription
    }

    /// Calls `look` with the events received so far, and returns its result; `look` may change them.
    pub(super) fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.seen.lock())
    }

    /// Waits until `condition` is true of the received events, [`PATIENCE`] at most, and returns whether it is. An
    /// error of the subscription ends the wait.
    pub(super) fn wait(&self, condition: impl Fn(&Seen) -> bool) -> bool {
        let start = Instant::now();
        loop {
            let (holds, failed) = self.seen(|seen| (condition(seen), seen.error.is_some()));
            if holds || failed || start.elapsed() > PATIENCE {
                return holds;
            }
            std::thread::sleep(TICK / 10);
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // An error of the thread is in `seen`.
            let _ = thread.join();
        }
    }
}

async fn follow(address: &str, seen: &Mutex<Seen>, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut engine = connect(address, Socket::Sub).await?;
    engine.subscribe(b"").await?;
    seen.lock().is_connected = true;
    while !stop.load(Ordering::Relaxed) {
        // `receive` is cancel-safe.
        let Ok(received) = timeout(TICK, engine.receive()).await else {
            continue;
        };
        let Received::Message(frames) = received? else {
            continue;
        };
        let batch = read::batch(numbered(&frames)?.1)?;
        let mut seen = seen.lock();
        for event in batch.events {
            match event {
                BlockEvent::Stored(stored) => seen.stored.push(stored),
                BlockEvent::Removed { .. } | BlockEvent::Cleared => seen.removals += 1,
                BlockEvent::Unknown => {}
            }
        }
        // On a busy engine the latest events are enough.
        let old = seen.stored.len().saturating_sub(MAX_STORED);
        seen.stored.drain(..old);
    }
    Ok(())
}

/// Longest wait for KV events after a request.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(100);
/// Maximum number of events in [`Seen::stored`]; the oldest are dropped. An event may report several blocks.
const MAX_STORED: usize = 1 << 14;
