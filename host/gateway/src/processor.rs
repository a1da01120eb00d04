//! The state shared by all streams: the plugin and its reload, the endpoint pool, clusters, metrics and limits.
//!
//! ```text
//!   file ──▶ load ──▶ accepted ─▶ new streams use the new plugin; open ones keep theirs
//!                └──▶ refused ──▶ a line in the log, a count; the old plugin stays in use
//! ```
//!
//! A new plugin takes over the old one's knowledge from the shared data, as in every shell.

use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Context;
use foreword_filter::{Plugin, SharedData};
use tokio::signal::unix::Signal;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::calls::{Answer, Clusters};
use crate::metrics::Metrics;
use crate::pool::source::Source;
use crate::pool::{Endpoint, Pool, scrape};
use crate::proxy::{PluginCalls, Proxy, Scope};

/// The limits of a process on streams and memory.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum number of open streams; each is a request in flight at a gateway.
    pub streams: usize,
    /// Maximum number of bytes of request bodies in memory, over all streams.
    pub held_bytes: usize,
    /// Maximum number of bytes of one protocol message. If the gateway buffers bodies, a message has a whole body.
    pub message_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            streams: 16_384,
            held_bytes: 1 << 30,
            message_bytes: 32 << 20,
        }
    }
}

/// Returns the function with which a plugin requests a tick.
fn waker(woken: &Arc<Notify>) -> impl Fn() + Send + Sync + use<> {
    let woken = Arc::clone(woken);
    move || woken.notify_one()
}

/// The state shared by all streams of a process.
pub struct Processor {
    plugin: RwLock<Arc<Plugin>>,
    /// Plugins that a reload has replaced, while streams still use them: their held requests must be resumed too.
    replaced: Mutex<Vec<Weak<Plugin>>>,
    /// Notified when a plugin requests a tick.
    woken: Arc<Notify>,
    /// Path of the filter's configuration.
    file: PathBuf,
    pub(crate) shared_data: SharedData,
    pub(crate) metrics: Metrics,
    pub(crate) clusters: Clusters,
    /// The endpoint pool; `None` if this process picks no endpoints.
    pub(crate) pool: Option<Pool>,
    pub(crate) bounds: Bounds,
    /// A permit for each further stream that may be opened.
    places: Arc<Semaphore>,
    /// Bytes of request bodies in memory, over all streams.
    held_bytes: AtomicUsize,
}

impl Processor {
    /// Loads the filter's configuration, JSON, from `file`. `clusters` maps the names of clusters that the filter may
    /// call to their addresses. With a `pool`, every request is sent to one of its endpoints.
    ///
    /// # Errors
    /// Fails if the file cannot be read, and with the filter's error if the filter refuses the configuration.
    pub fn load(
        file: &Path,
        clusters: BTreeMap<String, String>,
        pool: Option<Pool>,
        bounds: Bounds,
    ) -> anyhow::Result<Arc<Self>> {
        let configuration = read(file)?;
        let shared_data = SharedData::new();
        let metrics = Metrics::new();
        let clusters = Clusters::new(clusters);
        let calls = PluginCalls::default();
        let proxy = Proxy {
            shared_data: &shared_data,
            metrics: &metrics,
            clusters: &clusters,
            pool: pool.as_ref(),
            scope: Scope::Plugin(&calls),
        };
        let plugin = Plugin::load(&proxy, &configuration)
            .with_context(|| format!("{} is refused", file.display()))?;
        let woken = Arc::new(Notify::new());
        plugin.wake_with(waker(&woken));
        Ok(Arc::new(Self {
            plugin: RwLock::new(Arc::new(plugin)),
            replaced: Mutex::default(),
            woken,
            file: file.to_owned(),
            shared_data,
            metrics,
            clusters,
            pool,
            bounds,
            places: Arc::new(Semaphore::new(bounds.streams)),
            held_bytes: AtomicUsize::new(0),
        }))
    }

    /// Reloads the configuration file.
    ///
    /// # Errors
    /// Fails like [`Processor::load`]; the old configuration then stays in use.
    pub fn reload(&self) -> anyhow::Result<()> {
        let calls = PluginCalls::default();
        let loaded = read(&self.file).and_then(|configuration| {
            Plugin::load(&self.proxy(Scope::Plugin(&calls)), &configuration)
                .with_context(|| format!("{} is refused", self.file.display()))
        });
        match loaded {
            Ok(plugin) => {
                plugin.wake_with(waker(&self.woken));
                let old = std::mem::replace(&mut *self.plugin.write(), Arc::new(plugin));
                self.replaced.lock().push(Arc::downgrade(&old));
                self.metrics.reloads.inc();
                Ok(())
            }
            Err(error) => {
                self.metrics.refused_configurations.inc();
                Err(error)
            }
        }
    }

    /// Returns the current plugin, which a new stream uses to its end.
    pub(crate) fn plugin(&self) -> Arc<Plugin> {
        Arc::clone(&self.plugin.read())
    }

    /// Reloads the configuration when the file's content changes or SIGHUP arrives on `asked`. Runs until dropped. It
    /// compares content, so replaced files and Kubernetes volumes are noticed too.
    pub async fn watch(self: Arc<Self>, mut asked: Signal) {
        let mut seen = read(&self.file).ok();
        let mut clock = tokio::time::interval(LOOK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                _ = clock.tick() => false,
                _ = asked.recv() => true,
            };
            let now = read(&self.file).ok();
            // A file that is missing or half written is read again later.
            if !is_asked && (now.is_none() || now == seen) {
                continue;
            }
            seen = now;
            match self.reload() {
                Ok(()) => tracing::info!(file = %self.file.display(), "configuration reloaded"),
                Err(error) => tracing::error!("the old configuration goes on: {error:#}"),
            }
        }
    }

    /// Runs the plugin's ticks, and its calls to engines' feeds. Runs until dropped.
    pub async fn tick(self: Arc<Self>) {
        let calls = PluginCalls::default();
        // A response goes to the plugin that made the call, even after a reload.
        let mut under_way: JoinSet<(Arc<Plugin>, Answer)> = JoinSet::new();
        let mut next = tokio::time::Instant::now();
        loop {
            let plugin = tokio::select! {
                () = self.woken.notified() => {
                    next = next.min(tokio::time::Instant::now() + Plugin::WAKE_DELAY);
                    continue;
                }
                () = tokio::time::sleep_until(next) => {
                    let plugin = self.plugin();
                    let proxy = self.proxy(Scope::Plugin(&calls));
                    caught(|| {
                        plugin.on_tick(&proxy);
                    });
                    self.replaced.lock().retain(|old| {
                        let old = old.upgrade();
                        old.is_some_and(|old| {
                            caught(|| old.on_tick_when_replaced(&proxy));
                            true
                        })
                    });
                    next = tokio::time::Instant::now() + plugin.until_tick(&proxy);
                    plugin
                }
                Some(Ok((plugin, answer))) = under_way.join_next() => {
                    if let Ok(id) = u32::try_from(answer.id) {
                        let Answer { status, body, .. } = &answer;
                        let proxy = self.proxy(Scope::Plugin(&calls));
                        caught(|| plugin.on_answer(&proxy, id, *status, body.as_deref()));
                    }
                    plugin
                }
            };
            for call in calls.take() {
                let plugin = Arc::clone(&plugin);
                let answer = self.clusters.make(call, Plugin::MAX_ANSWER_BYTES);
                under_way.spawn(async move { (plugin, answer.await) });
            }
        }
    }

    /// Reads the pool's source for the first time, if there is a pool.
    ///
    /// # Errors
    /// Fails if the source is a file that cannot be read. A name that does not resolve yet is retried by
    /// [`Processor::follow_endpoints`].
    pub async fn find_endpoints(&self) -> anyhow::Result<()> {
        let Some(pool) = &self.pool else {
            return Ok(());
        };
        let source = &pool.options().source;
        let looked = source.look().await.and_then(|listing| listing.endpoints());
        match (looked, source) {
            (Ok(endpoints), _) => {
                self.take_endpoints(&endpoints);
                Ok(())
            }
            (Err(error), Source::File(_)) => Err(error.context(format!("endpoints of {source}"))),
            (Err(error), Source::Dns(_)) => {
                tracing::warn!("there are no endpoints yet: {error:#}");
                Ok(())
            }
        }
    }

    /// Polls the pool's source, and updates the pool. Runs until dropped; returns at once without a pool. If the source
    /// cannot be read, the endpoints stay as they are; an error is logged once.
    pub async fn follow_endpoints(self: Arc<Self>) {
        let Some(pool) = &self.pool else { return };
        let source = &pool.options().source;
        let mut clock = tokio::time::interval(source.interval());
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut last_error) = (None, String::new());
        loop {
            clock.tick().await;
            let looked = source.look().await;
            if let Ok(listing) = &looked
                && seen.as_ref() == Some(listing)
            {
                last_error.clear();
                continue;
            }
            let read = looked.and_then(|listing| {
                let endpoints = listing.endpoints();
                seen = Some(listing);
                endpoints
            });
            match read {
                Ok(endpoints) => {
                    last_error.clear();
                    self.take_endpoints(&endpoints);
                }
                Err(error) => {
                    self.metrics.refused_endpoint_lists.inc();
                    let error = format!("{error:#}");
                    if error != last_error {
                        tracing::error!(%source, "the old endpoints stay: {error}");
                        last_error = error;
                    }
                }
            }
        }
    }

    /// Replaces the pool's endpoints by `endpoints`; does nothing without a pool, or if they are the same.
    pub(crate) fn take_endpoints(&self, endpoints: &[Endpoint]) {
        let Some(pool) = &self.pool else { return };
        let change = pool.plan(endpoints);
        if change.is_none() && *pool.is_known().borrow() {
            return;
        }
        let calls = PluginCalls::default();
        let plugin = self.plugin();
        for engine in &change.renewed {
            caught(|| plugin.forget_engine(&self.proxy(Scope::Plugin(&calls)), *engine));
        }
        let (joined, left) = (change.joined, change.left);
        pool.make(change);
        let count = pool.endpoints().len();
        (self.metrics.endpoints).set(i64::try_from(count).unwrap_or(i64::MAX));
        self.metrics.endpoint_changes.inc();
        tracing::info!(endpoints = count, joined, left, "endpoints changed");
    }

    /// Scrapes the load of the pool's endpoints at intervals, one scrape at a time for each. Runs until dropped;
    /// returns at once without a pool or metrics path.
    pub async fn scrape(self: Arc<Self>) {
        let Some(pool) = &self.pool else { return };
        let Some(path) = &pool.options().metrics_path else {
            return;
        };
        let mut clock = tokio::time::interval(pool.options().scrape_interval);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut under_way = JoinSet::new();
        let mut asked = BTreeSet::new();
        loop {
            tokio::select! {
                _ = clock.tick() => {
                    for (endpoint, picks) in pool.endpoints() {
                        if !asked.insert(endpoint) {
                            continue;
                        }
                        let most = scrape::MAX_BYTES;
                        let page = self.clusters.page(endpoint.metrics, path, SCRAPE, most);
                        under_way.spawn(async move {
                            let at = Instant::now();
                            let page = page.await;
                            (endpoint, at, picks, page.and_then(|page| scrape::load(&page)))
                        });
                    }
                }
                Some(scraped) = under_way.join_next() => match scraped {
                    Ok((endpoint, at, picks, load)) => {
                        asked.remove(&endpoint);
                        match load {
                            Some(load) => pool.report(endpoint.address, load, at, picks),
                            None => {
                                self.metrics.failed_scrapes.inc();
                            }
                        }
                    }
                    // After a panic it is unknown which scrape ended, so all endpoints may be scraped again.
                    Err(_) => asked.clear(),
                }
            }
        }
    }

    /// Returns the filter's host for `scope`.
    pub(crate) fn proxy<'a>(&'a self, scope: Scope<'a>) -> Proxy<'a> {
        Proxy {
            shared_data: &self.shared_data,
            metrics: &self.metrics,
            clusters: &self.clusters,
            pool: self.pool.as_ref(),
            scope,
        }
    }

    /// Admits a stream; `None` if [`Bounds::streams`] are open.
    pub(crate) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Reserves memory for a body. Returns false, without a reservation, if [`Bounds::held_bytes`] would be exceeded.
    pub(crate) fn hold(&self, bytes: usize) -> bool {
        let limit = self.bounds.held_bytes;
        let more = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= limit);
        let order = Ordering::Relaxed;
        let is_held = self.held_bytes.fetch_update(order, order, more).is_ok();
        if is_held {
            (self.metrics.held_bytes).inc_by(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        is_held
    }

    /// Releases memory that was reserved with [`Processor::hold`].
    pub(crate) fn release(&self, bytes: usize) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        (self.metrics.held_bytes).dec_by(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

/// Runs `work` and catches a panic, so that the background task that calls it continues.
fn caught(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Time limit of a scrape.
const SCRAPE: Duration = Duration::from_secs(1);
/// Interval between readings of the configuration file.
const LOOK: Duration = Duration::from_secs(1);
