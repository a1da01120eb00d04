//! Tests of the core over three small tiers: tokens do not depend on the tier of a page, nor on failures.

use super::*;
use crate::cache::disk::{DiskConfig, DiskStore, Origin};
use crate::cache::{CacheConfig, DiskReplicaBounds, DiskTier, EvictionPolicy};
use std::path::Path;

fn open(path: &Path, page_tokens: u32, slots: u32) -> Arc<DiskStore> {
    let config = DiskConfig {
        capacity: 8192 + u64::from(slots) * (4096 + 64),
        identity: 1,
        page_bytes: page_tokens as usize * 8,
    };
    Arc::new(DiskStore::open(path, &config).unwrap())
}

fn config(disk: &Arc<DiskStore>, policy: EvictionPolicy, replicated_share: f64) -> EngineConfig {
    EngineConfig {
        max_running: 3,
        max_step_tokens: 16,
        max_retries: u32::MAX,
        cache: CacheConfig {
            policy,
            replicated_share,
            disk: Some(disk.clone()),
            ..CacheConfig::default()
        },
        ..EngineConfig::default()
    }
}

/// Steps with a disk that has already finished its work.
fn step(load: &mut Load, disk: &DiskStore) {
    disk.flush();
    load.step();
}

fn drain(load: &mut Load, disk: &DiskStore) -> Stats {
    while !load.core.is_idle() {
        step(load, disk);
    }
    load.drain()
}

#[test]
fn tokens_are_the_same_from_every_tier_whatever_fails() {
    let (mut host, mut fetched, mut lost, mut retried, mut replicated) = (0, 0, 0, 0, 0);
    for seed in 0..80 {
        let mut random = Seeded::new(7000 + seed);
        let page_tokens = [3, 4][random.below(2) as usize];
        let pages = 40 / page_tokens + random.below(6);
        let mut backend = FakeBackend::new(pages, page_tokens)
            .max_positions(60)
            .host_pages(2 + random.below(14));
        if seed % 2 == 0 {
            let mut dice = Seeded::new(8000 + seed);
            backend = backend.faults(move |_| match dice.below(40) {
                0 => Fault::Device,
                1 => Fault::Lost,
                2 => Fault::Panic,
                _ => Fault::None,
            });
        }
        let folder = tempfile::tempdir().unwrap();
        let disk = open(
            &folder.path().join("pages"),
            page_tokens,
            10 + random.below(30),
        );
        let policy = EvictionPolicy::ALL[random.below(EvictionPolicy::ALL.len() as u32) as usize];
        let share = [0.0, 0.3][random.below(2) as usize];
        let mut config = config(&disk, policy, share);
        config.cache.disk_replicas = DiskReplicaBounds {
            pages: random.below(3) * 10,
            pages_per_second: f64::from(random.below(60)),
            pages_per_step: 1 + random.below(4),
        };
        let mut load = Load::with(backend, &config);
        for _ in 0..200 {
            match random.below(10) {
                0..=2 => load.submit(random.request(30)),
                3 if !load.callers.is_empty() => {
                    let mut keys: Vec<u32> = load.callers.keys().copied().collect();
                    keys.sort_unstable();
                    let key = keys[random.below(keys.len() as u32) as usize];
                    load.callers.remove(&key);
                }
                4 if random.below(20) == 0 => {
                    load.core.clear_cache();
                    load.core.check();
                }
                _ => step(&mut load, &disk),
            }
        }
        let stats = drain(&mut load, &disk);
        assert_eq!(load.failed, 0);
        assert_eq!(disk.stats().damaged, 0);
        host += stats.host_tokens;
        replicated += stats.cache.disk_replicated;
        fetched += stats.cache.fetched;
        lost += stats.devices_lost;
        retried += stats.retries;
    }
    assert!(
        host > 1000 && fetched > 300 && lost > 30 && retried > 100 && replicated > 300,
        "{host} {fetched} {lost} {retried} {replicated}: too tame a load"
    );
}

#[test]
fn an_engine_that_starts_again_goes_on_from_what_the_last_one_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let request = || Request {
        prompt: (0..30).map(|at| at % VOCABULARY).collect(),
        max_tokens: 5,
        ..Request::default()
    };
    for (run, cached) in [(0, 0), (1, 28), (2, 28)] {
        let disk = open(&path, 4, 20);
        assert_eq!(disk.origin() == &Origin::Created, run == 0);
        let backend = FakeBackend::new(20, 4).host_pages(10);
        let mut load = Load::with(backend, &config(&disk, EvictionPolicy::Lru, 0.0));
        load.submit(request());
        let stats = drain(&mut load, &disk);
        assert_eq!((stats.cached_tokens, stats.host_tokens), (cached, cached));
        assert_eq!(stats.cache.fetched, cached / 4);
        let Load { core, backend, .. } = &mut load;
        core.save_all(backend);
        // Of 30 tokens of prompt and 5 of answer, all but the last have KV state: eight full pages.
        assert_eq!(disk.stats().pages, 8);
    }
}

#[test]
fn an_engine_that_was_killed_leaves_its_most_used_pages_on_disk_at_the_configured_rate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pages");
    let request = |last: TokenId| Request {
        prompt: (0..28).map(|at| at % VOCABULARY).chain([last]).collect(),
        max_tokens: 5,
        ..Request::default()
    };
    let start = || {
        let disk = open(&path, 4, 60);
        let mut config = config(&disk, EvictionPolicy::Lru, 0.0);
        config.cache.disk_replicas = DiskReplicaBounds {
            pages: 20,
            pages_per_second: 5.0,
            pages_per_step: 2,
        };
        let backend = FakeBackend::new(40, 4).host_pages(12);
        (Load::with(backend, &config), disk)
    };
    let (mut load, disk) = start();
    for last in [1, 2] {
        load.submit(request(last));
        drain(&mut load, &disk);
    }
    // A step takes 0.1 s, so every second one has credit for a page, after the first.
    let mut written = Vec::new();
    let mut seconds = 0.0;
    while load.core.replication_wait().is_some() {
        step(&mut load, &disk);
        seconds += 0.1;
        written.push(load.core.stats().cache.disk_replicated);
        let allowed = 6.0 + 5.0 * seconds;
        assert!((*written.last().unwrap() as f64) <= allowed, "{written:?}");
        assert!(written.len() < 100, "{written:?}");
    }
    assert_eq!(written.last(), Some(&7), "the pages that both prompts have");
    assert!(written.len() > 4, "{written:?}");
    assert_eq!(load.core.stats().cache.disk_replicas, 7);
    disk.flush();
    // Without an orderly shutdown, the content of memory is lost.
    drop((load, disk));
    let (mut load, disk) = start();
    load.submit(request(3));
    let stats = drain(&mut load, &disk);
    assert_eq!((stats.cached_tokens, stats.cache.fetched), (28, 7));
    assert_eq!(disk.stats().damaged, 0);
}

/// A disk that has every page and never delivers one.
struct Silent;

impl DiskTier for Silent {
    fn contains(&self, _: crate::cache::PageHash) -> bool {
        true
    }
    fn request(&self, _: crate::cache::PageHash) {}
    fn completed(&self) -> Option<(crate::cache::PageHash, Option<Vec<u8>>)> {
        None
    }
    fn on_completion(&self, _: Box<dyn Fn() + Send + Sync>) {}
    fn write(&self, _: crate::cache::PageHash, _: crate::cache::PageHash, _: &[u8]) {}
    fn remove(&self, _: crate::cache::PageHash) {}
    fn clear(&self) {}
}

fn with_silent_disk() -> EngineConfig {
    EngineConfig {
        cache: CacheConfig {
            disk: Some(Arc::new(Silent)),
            ..CacheConfig::default()
        },
        ..EngineConfig::default()
    }
}

#[test]
fn a_request_that_waited_for_the_disk_still_ends_at_its_deadline() {
    let config = EngineConfig {
        max_running: 1,
        ..with_silent_disk()
    };
    let mut load = Load::with(FakeBackend::new(40, 4).host_pages(10), &config);
    load.submit(Request {
        prompt: vec![3; 3],
        max_tokens: 60,
        ..Request::default()
    });
    let deadline = |load: &Load, milliseconds| Some(load.now + Duration::from_millis(milliseconds));
    // The second one expires while the first one waits for the disk.
    let [late, early] = [(20, 2500), (2, 500)].map(|(length, milliseconds)| Request {
        prompt: vec![3; length],
        max_tokens: 1,
        deadline: deadline(&load, milliseconds),
        ..Request::default()
    });
    load.submit(late);
    load.submit(early);
    for _ in 0..25 {
        load.step();
    }
    let stats = load.core.stats();
    assert_eq!((stats.running, stats.waiting, stats.expired), (1, 0, 2));
    load.drain();
}

#[test]
fn a_request_does_not_wait_long_for_a_disk_that_does_not_answer() {
    let mut load = Load::with(FakeBackend::new(20, 4).host_pages(10), &with_silent_disk());
    load.submit(Request {
        prompt: vec![3; 20],
        max_tokens: 3,
        ..Request::default()
    });
    // No page on disk matches a prompt shorter than a page, so it is queued at once.
    load.submit(Request {
        prompt: vec![3; 3],
        max_tokens: 1,
        ..Request::default()
    });
    // A step takes a second here.
    load.step();
    load.step();
    assert_eq!(load.callers.len(), 1);
    assert_eq!(load.core.stats().waiting, 1);
    load.drain();
}

#[test]
fn a_speculation_of_another_salt_leaves_a_wait_for_the_disk_alone() {
    let mut load = Load::with(FakeBackend::new(20, 4).host_pages(10), &with_silent_disk());
    for (salt, length) in [("a", 20), ("b", 2)] {
        load.submit(Request {
            prompt: vec![3; length],
            max_tokens: 1,
            speculation: Some(SpeculationId(7)),
            cache_salt: salt.into(),
            ..Request::default()
        });
    }
    load.step();
    // The second request is answered, since no page on disk matches a prompt shorter than a page. The first one waits.
    assert_eq!(load.callers.len(), 1);
    load.drain();
}
