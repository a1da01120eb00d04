//! Tests of the copies on disk of pages that are still in memory.

use super::*;

fn with_replicas(device: u32, host: u32, pages: u32, disk: &Arc<FakeDisk>) -> Device {
    let config = CacheConfig {
        policy: EvictionPolicy::Lru,
        replicated_share: 0.0,
        disk_replicas: DiskReplicaBounds {
            pages,
            ..DiskReplicaBounds::default()
        },
        ..CacheConfig::default()
    };
    Device::with_tiers(device, host, config, Some(disk.clone()))
}

/// Lets the cache write at most `pages` pages, carries the writes out, and returns their number.
fn replicate(device: &mut Device, pages: u32) -> u32 {
    let written = device.cache.replicate_to_disk(pages);
    assert!(written <= pages);
    device.land();
    device.cache.check([]);
    written
}

/// Returns how many tokens of a prompt another process would find on the disk.
fn found_after_a_kill(disk: &Arc<FakeDisk>, prompt: &[TokenId]) -> u32 {
    let other = with_replicas(20, 20, 0, disk);
    other.cache.lookup("", prompt).disk_tokens
}

#[test]
fn pages_that_are_used_again_reach_the_disk_from_the_first_on() {
    let disk = Arc::default();
    let mut device = with_replicas(20, 8, 100, &disk);
    let prompt = tokens(0, 17);
    device.run("", &prompt);
    assert!(!device.cache.has_replicas_to_write(), "used once");
    device.run("", &prompt);
    assert!(device.cache.has_replicas_to_write());
    let mut found = Vec::new();
    while device.cache.has_replicas_to_write() {
        replicate(&mut device, 1);
        found.push(found_after_a_kill(&disk, &prompt) / PAGE);
    }
    assert!(found.is_sorted(), "{found:?}");
    assert_eq!(found.last(), Some(&4));
    let stats = device.cache.stats();
    assert_eq!((stats.disk_replicas, stats.disk_replicated), (4, 4));
    // Another process reads the right bytes.
    let mut other = with_replicas(20, 20, 100, &disk);
    let fetch = other.cache.fetch(&"".into(), &prompt).unwrap();
    other.cache.receive();
    other.land();
    assert!(other.cache.is_fetched(&fetch));
    assert_eq!(other.run("", &prompt), 16);
}

#[test]
fn the_most_used_pages_go_first_and_a_full_share_takes_only_pages_used_twice_as_often() {
    let disk = Arc::default();
    let mut device = with_replicas(40, 8, 2, &disk);
    let [often, seldom, later] = [0, 100, 200].map(|first| tokens(first, 9));
    for prompt in [&often, &often, &seldom, &seldom, &often, &often] {
        device.run("", prompt);
    }
    while device.cache.has_replicas_to_write() {
        replicate(&mut device, 1);
    }
    let on_disk = || [&often, &seldom, &later].map(|prompt| found_after_a_kill(&disk, prompt));
    assert_eq!(on_disk(), [8, 0, 0]);
    for (uses, found) in [(7, 0), (1, 8)] {
        for _ in 0..uses {
            device.run("", &later);
        }
        while device.cache.has_replicas_to_write() {
            replicate(&mut device, 4);
        }
        assert_eq!(found_after_a_kill(&disk, &later), found);
        assert_eq!(device.cache.stats().disk_replicas, 2);
    }
}

#[test]
fn pages_that_the_disk_has_lost_are_written_again_when_they_are_used() {
    let disk: Arc<FakeDisk> = Arc::default();
    let mut device = with_replicas(20, 8, 100, &disk);
    let prompt = tokens(0, 13);
    device.run("", &prompt);
    for _ in 0..2 {
        device.run("", &prompt);
        while device.cache.has_replicas_to_write() {
            replicate(&mut device, 8);
        }
        assert_eq!(found_after_a_kill(&disk, &prompt), 12);
        // A write failed, for instance.
        disk.clear();
        device.run("", &prompt);
    }
    while device.cache.has_replicas_to_write() {
        replicate(&mut device, 8);
    }
    assert_eq!(found_after_a_kill(&disk, &prompt), 12);
    device.cache.clear();
    device.cache.check([]);
    assert_eq!(device.cache.stats().disk_replicas, 0);
}

#[test]
fn a_copy_that_a_failed_step_was_to_make_is_not_written() {
    let disk: Arc<FakeDisk> = Arc::default();
    let mut device = with_replicas(20, 8, 100, &disk);
    let prompt = tokens(0, 13);
    device.run("", &prompt);
    device.run("", &prompt);
    assert_eq!(device.cache.replicate_to_disk(8), 0, "copies come first");
    // The copies' transfers are lost with the step.
    device.cache.failed();
    device.cache.check([]);
    replicate(&mut device, 8);
    assert!(disk.pages.lock().unwrap().is_empty());
    // The copies of a lost device are not written either.
    device.run("", &prompt);
    device.cache.replicate_to_disk(8);
    device.lose();
    replicate(&mut device, 8);
    assert!(disk.pages.lock().unwrap().is_empty());
}

#[test]
fn a_page_that_cannot_be_trusted_is_not_written() {
    let disk: Arc<FakeDisk> = Arc::default();
    let mut device = with_replicas(20, 8, 100, &disk);
    let prompt = tokens(0, 12);
    device.run("", &prompt);
    device.run("", &prompt);
    device.cache.replicate_to_disk(8);
    device.land();
    let mut sequence = device.open("", &prompt).unwrap();
    device.compute(&mut sequence, 12);
    device.cache.forget(sequence.lease);
    while device.cache.has_replicas_to_write() {
        replicate(&mut device, 8);
    }
    assert!(disk.pages.lock().unwrap().is_empty());
}
