//! Tests of pages that move between device, host memory and disk.

use super::*;

fn config(policy: EvictionPolicy) -> CacheConfig {
    CacheConfig {
        policy,
        replicated_share: 0.0,
        ..CacheConfig::default()
    }
}

fn lru(device: u32, host: u32) -> Device {
    Device::with_tiers(device, host, config(EvictionPolicy::Lru), None)
}

fn with_disk(device: u32, host: u32) -> Device {
    let disk = Some(Arc::default());
    Device::with_tiers(device, host, config(EvictionPolicy::Lru), disk)
}

/// Returns the tokens found on `(device, host, disk)`.
fn found(device: &Device, tokens: &[TokenId]) -> (u32, u32, u32) {
    let found = device.cache.lookup("", tokens);
    (
        found.tokens - found.host_tokens,
        found.host_tokens,
        found.disk_tokens,
    )
}

#[test]
fn what_the_device_has_no_room_for_is_loaded_from_the_host() {
    let mut device = lru(4, 8);
    let first = tokens(0, 13);
    device.run("", &first);
    device.run("", &tokens(100, 12));
    assert_eq!(found(&device, &first), (4, 8, 0));
    assert_eq!(device.run("", &first), 12);
    assert_eq!(found(&device, &first), (12, 0, 0));
}

#[test]
fn a_page_is_swapped_out_only_once() {
    let mut device = lru(3, 8);
    let mut stores = Vec::new();
    for _ in 0..4 {
        for first in [0, 100] {
            let before = device.stores;
            device.run("", &tokens(first, 9));
            stores.push(device.stores - before);
        }
    }
    // The first round finds room. Then the first prompt's two pages are evicted. Once the second prompt's have been
    // too, nothing new is left to copy.
    assert_eq!(stores, [0, 2, 2, 0, 0, 0, 0, 0]);
    assert_eq!(device.cache.stats().host_cached, 4);
}

#[test]
fn a_fork_inside_a_page_of_the_host_loads_the_page() {
    let mut device = lru(3, 8);
    device.run("", &tokens(0, 8));
    device.run("", &tokens(100, 12));
    assert_eq!(found(&device, &[0, 1, 2, 3, 4, 5, 9, 9]), (0, 6, 0));
    assert_eq!(device.run("", &[0, 1, 2, 3, 4, 5, 9, 9]), 6);
    assert_eq!(
        device.run("", &tokens(0, 9)),
        8,
        "the original is as it was"
    );
}

#[test]
fn a_page_on_its_way_to_the_device_can_be_shared_and_copied() {
    let mut device = lru(8, 8);
    let prompt = tokens(0, 13);
    device.run("", &prompt);
    device.run("", &tokens(100, 32));
    assert_eq!(found(&device, &prompt), (0, 12, 0));
    let first = device.open_only("", &prompt).unwrap();
    let second = device.open_only("", &prompt[..10]).unwrap();
    assert_eq!((first.computed, second.computed), (12, 9));
    device.cache.check([&first.lease, &second.lease]);
    device.land();
    device.cache.check([&first.lease, &second.lease]);
    device.verify(&first);
    device.verify(&second);
    device.close(first);
    device.close(second);
    device.cache.check([]);
}

#[test]
fn host_memory_evicts_leaves_first_and_never_what_is_being_loaded() {
    let mut device = lru(4, 4);
    device.run("", &tokens(0, 16));
    device.run("", &tokens(100, 16)); // the first prompt's four pages are in host memory
    assert_eq!(found(&device, &tokens(0, 17)), (0, 16, 0));
    // Its pages are needed, while the pages that they displace find no room in host memory.
    let sequence = device.open("", &tokens(0, 16)).unwrap();
    assert_eq!(sequence.computed, 15);
    device.close(sequence);
    device.cache.check([]);
    assert_eq!(found(&device, &tokens(100, 17)), (0, 0, 0));
    device.run("", &tokens(200, 8));
    assert_eq!(found(&device, &tokens(0, 17)), (8, 8, 0));
    device.run("", &tokens(300, 16));
    device.run("", &tokens(400, 8));
    assert_eq!(found(&device, &tokens(0, 17)).0, 0);
}

#[test]
fn what_leaves_host_memory_goes_to_disk_and_can_be_fetched() {
    let mut device = with_disk(3, 3);
    let prompt = tokens(0, 13);
    device.run("", &prompt[..12]);
    device.run("", &tokens(100, 12));
    device.run("", &tokens(200, 12));
    assert_eq!(found(&device, &prompt), (0, 0, 12));
    let salt = "".into();
    let fetch = device.cache.fetch(&salt, &prompt).unwrap();
    assert!(!device.cache.is_fetched(&fetch));
    assert_eq!(found(&device, &prompt), (0, 0, 12), "nothing has arrived");
    device.cache.receive();
    device.transfer();
    device.cache.check([]);
    assert!(device.cache.is_fetched(&fetch));
    assert_eq!(found(&device, &prompt), (0, 12, 0));
    assert_eq!(device.run("", &prompt[..12]), 11);
    assert!(device.cache.fetch(&salt, &prompt).is_none(), "all is there");
}

#[test]
fn a_restarted_cache_finds_its_pages_on_disk() {
    let disk: Arc<FakeDisk> = Arc::default();
    let lru = || config(EvictionPolicy::Lru);
    let prompt = tokens(0, 17);
    let mut device = Device::with_tiers(8, 2, lru(), Some(disk.clone()));
    device.run("", &prompt);
    device.cache.save_all();
    device.transfer();
    device.cache.check([]);
    let mut device = Device::with_tiers(8, 8, lru(), Some(disk.clone()));
    assert_eq!(found(&device, &prompt), (0, 0, 16));
    device.cache.fetch(&"".into(), &prompt).unwrap();
    device.cache.receive();
    assert_eq!(device.run("", &prompt), 16);
    let other = CacheConfig {
        identity: 1,
        ..lru()
    };
    let device = Device::with_tiers(8, 8, other, Some(disk));
    assert_eq!(found(&device, &prompt), (0, 0, 0), "another model's");
}

#[test]
fn a_fetch_that_comes_to_nothing_harms_nobody() {
    let disk: Arc<FakeDisk> = Arc::default();
    let mut device = Device::with_tiers(8, 8, config(EvictionPolicy::Lru), Some(disk.clone()));
    let prompt = tokens(0, 17);
    device.run("", &prompt);
    device.cache.save_all();
    device.transfer();
    let hashes: Vec<PageHash> = disk.pages.lock().unwrap().keys().copied().collect();
    // Only the disk's content is left, and one page on it cannot be read.
    let mut device = Device::with_tiers(8, 8, config(EvictionPolicy::Lru), Some(disk.clone()));
    let fetch = device.cache.fetch(&"".into(), &prompt).unwrap();
    let second = hashes
        .iter()
        .copied()
        .find(|&hash| hash == PageHash::root(0, "").then(&prompt[..4]).then(&prompt[4..8]));
    disk.remove(second.unwrap());
    device.cache.receive();
    device.transfer();
    device.cache.check([]);
    assert!(device.cache.is_fetched(&fetch));
    assert_eq!(found(&device, &prompt), (0, 4, 0));
    assert_eq!(device.run("", &prompt), 4);
}

#[test]
fn after_the_device_is_lost_what_hangs_together_in_host_memory_is_found() {
    let mut device = lru(4, 8);
    device.run("", &tokens(0, 12));
    device.run("", &tokens(100, 16));
    device.run("", &tokens(0, 4)); // loads a page, which stays in host memory
    assert_eq!(found(&device, &tokens(0, 13)), (4, 8, 0));
    assert_eq!(found(&device, &tokens(100, 17)), (12, 4, 0));
    device.lose();
    assert_eq!(found(&device, &tokens(0, 13)), (0, 12, 0));
    assert_eq!(
        found(&device, &tokens(100, 17)),
        (0, 0, 0),
        "its beginning was not there"
    );
    assert_eq!(device.run("", &tokens(0, 13)), 12);
}

#[test]
fn the_most_used_pages_from_the_top_have_a_copy_in_time() {
    let share = CacheConfig {
        policy: EvictionPolicy::Lru,
        replicated_share: 0.25,
        ..CacheConfig::default()
    };
    let mut device = Device::with_tiers(16, 8, share, None);
    let system = tokens(0, 8);
    for question in 1..4 {
        device.run("", &[&system[..], &tokens(100 * question, 8)].concat());
    }
    assert_eq!(
        device.cache.stats().replicated,
        2,
        "a quarter of the host's pages"
    );
    device.lose();
    assert_eq!(found(&device, &[&system[..], &[7; 9]].concat()), (0, 8, 0));
}

#[test]
fn a_copy_makes_way_for_one_that_is_used_twice_as_often() {
    let share = CacheConfig {
        policy: EvictionPolicy::Lru,
        replicated_share: 0.25,
        ..CacheConfig::default()
    };
    let mut device = Device::with_tiers(16, 4, share, None);
    for (prompt, times) in [(0, 2), (100, 3), (200, 4)] {
        for _ in 0..times {
            device.run("", &tokens(prompt, 5));
        }
    }
    assert_eq!(device.cache.stats().replicated, 1);
    device.lose();
    assert_eq!(found(&device, &tokens(0, 5)), (0, 0, 0));
    assert_eq!(
        found(&device, &tokens(100, 5)),
        (0, 0, 0),
        "used hardly more often"
    );
    assert_eq!(found(&device, &tokens(200, 5)), (0, 4, 0));
}

#[test]
fn a_failed_step_leaves_no_page_that_it_was_to_fill() {
    let mut device = lru(4, 8);
    device.run("", &tokens(0, 12));
    device.run("", &tokens(100, 16));
    let prompt = tokens(0, 13);
    let sequence = device.open_only("", &prompt).unwrap();
    assert_eq!(sequence.computed, 12);
    // The second prompt's pages are to be stored and the first's to be loaded; neither has happened.
    device.cache.abandon(sequence.lease);
    device.loads.clear();
    device.cache.failed();
    device.cache.check([]);
    assert_eq!(
        found(&device, &prompt),
        (0, 12, 0),
        "in host memory as before"
    );
    assert_eq!(found(&device, &tokens(100, 17)).1, 0);
    assert_eq!(device.run("", &prompt), 12);
}

#[test]
fn clearing_forgets_every_tier() {
    let mut device = with_disk(4, 4);
    for prompt in 0..4 {
        device.run("", &tokens(100 * prompt, 12));
    }
    device.cache.clear();
    device.cache.check([]);
    for prompt in 0..4 {
        assert_eq!(found(&device, &tokens(100 * prompt, 13)), (0, 0, 0));
    }
    let stats = device.cache.stats();
    assert_eq!((stats.cached, stats.host_cached), (0, 0));
}

#[test]
fn random_leases_over_three_small_tiers_never_see_a_wrong_slot() {
    let (mut loaded, mut fetched, mut lost) = (0, 0, 0);
    for seed in 0..80 {
        let mut random = Seeded::new(seed);
        let config = CacheConfig {
            policy: EvictionPolicy::ALL[seed as usize % EvictionPolicy::ALL.len()],
            replicated_share: f64::from(random.below(3)) / 4.0,
            disk_replicas: DiskReplicaBounds {
                pages: random.below(3) * 4,
                ..DiskReplicaBounds::default()
            },
            ..CacheConfig::default()
        };
        let disk: Option<Arc<FakeDisk>> = (random.below(3) > 0).then(Arc::default);
        let (device, host) = (6 + random.below(10), random.below(12));
        let mut device = Device::with_tiers(device, host, config, disk);
        let mut open: Vec<Sequence> = Vec::new();
        let mut sighted: Vec<(CachedLookup, Vec<TokenId>)> = Vec::new();
        for _ in 0..300 {
            match random.below(13) {
                12 => {
                    let most = random.below(4);
                    assert!(device.cache.replicate_to_disk(most) <= most);
                }
                0..=3 => {
                    let salt = random.below(2).to_string();
                    let tokens = random.long_tokens();
                    if let Some(sequence) = device.open(&salt, &tokens) {
                        open.push(sequence);
                    }
                }
                4..=6 if !open.is_empty() => {
                    let index = random.below(open.len() as u32) as usize;
                    let sequence = &mut open[index];
                    let left = sequence.tokens.len() as u32 - sequence.computed;
                    if left > 0 {
                        let end = sequence.computed + 1 + random.below(left);
                        device.compute(sequence, end);
                    }
                }
                7 | 8 if !open.is_empty() => {
                    let sequence = open.swap_remove(random.below(open.len() as u32) as usize);
                    match random.below(4) {
                        0 => device.cache.abandon(sequence.lease),
                        1 => device.cache.forget(sequence.lease),
                        _ => device.close(sequence),
                    }
                }
                9 => {
                    let salt: Arc<str> = random.below(2).to_string().into();
                    device.cache.fetch(&salt, &random.long_tokens());
                    if random.below(2) == 0 {
                        device.cache.receive();
                    }
                    device.transfer();
                }
                10 => {
                    let salt: Arc<str> = "0".into();
                    let tokens = random.long_tokens();
                    sighted.push((device.cache.remember_lookup(&salt, &tokens), tokens));
                }
                11 if random.below(10) == 0 => match random.below(4) {
                    0 => _ = device.cache.clear(),
                    1 => device.cache.save_all(),
                    2 => {
                        open.clear();
                        device.lose();
                        lost += 1;
                    }
                    _ => {
                        // A step fails, together with the leases that were opened for it.
                        let tokens = random.long_tokens();
                        if let Some(sequence) = device.open_only("0", &tokens) {
                            device.cache.abandon(sequence.lease);
                        }
                        device.loads.clear();
                        device.cache.failed();
                    }
                },
                _ => {}
            }
            device.transfer();
            device.cache.landed();
            device
                .cache
                .check(open.iter().map(|sequence| &sequence.lease));
            open.iter().for_each(|sequence| device.verify(sequence));
            for (lookup, tokens) in &sighted {
                if device.cache.is_current(lookup) {
                    let again = device.cache.remember_lookup(&"0".into(), tokens);
                    assert_eq!(
                        (lookup.tokens, lookup.host_tokens),
                        (again.tokens, again.host_tokens),
                        "a sighting is out of date and does not say so"
                    );
                }
            }
        }
        for sequence in open {
            device.close(sequence);
        }
        device.cache.check([]);
        let stats = device.cache.stats();
        assert_eq!((device.cache.available(), stats.in_use), (stats.pages, 0));
        fetched += stats.fetched;
        loaded += device.loaded;
        device.cache.clear();
        device.cache.check([]);
        let stats = device.cache.stats();
        assert_eq!((stats.cached, stats.host_cached), (0, 0), "pages leak");
    }
    assert!(
        loaded > 500 && fetched > 50 && lost > 10,
        "{loaded} {fetched} {lost}: too tame"
    );
}
