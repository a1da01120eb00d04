//! Tests of prefixes on the device alone: sharing, copying, eviction, bounds.

use super::*;

#[test]
fn the_second_run_computes_only_the_last_token() {
    let mut device = Device::new(8);
    for count in [1, 3, 4, 5, 8, 11] {
        let tokens = tokens(100 * count, count);
        assert_eq!(device.run("", &tokens), 0);
        assert_eq!(device.run("", &tokens), count - 1, "{count} tokens");
    }
}

#[test]
fn a_fork_inside_a_page_copies_the_common_slots() {
    let mut device = Device::new(8);
    device.run("", &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(device.run("", &[1, 2, 3, 4, 5, 6, 9, 9, 9]), 6);
    assert_eq!(
        device.run("", &[1, 2, 3, 4, 5, 6, 7, 8, 1]),
        8,
        "the original is untouched"
    );
    assert_eq!(
        device.run("", &[1, 2, 3, 4, 5, 6, 9, 9, 9, 1]),
        9,
        "a partial page is found"
    );
}

#[test]
fn a_tenant_never_sees_another_tenants_pages() {
    let mut device = Device::new(8);
    device.run("a", &tokens(0, 9));
    assert_eq!(device.cache.lookup("b", &tokens(0, 9)), Match::default());
    assert_eq!(device.run("b", &tokens(0, 9)), 0);
    assert_eq!(device.run("a", &tokens(0, 9)), 8);
}

#[test]
fn sequences_side_by_side_share_pages_as_they_fill() {
    let mut device = Device::new(8);
    let prompt = tokens(0, 10);
    let mut first = device.open("", &prompt).unwrap();
    device.compute(&mut first, 6);
    let second = device.open("", &prompt).unwrap();
    assert_eq!(
        second.computed, 4,
        "only the full page: the other is being written"
    );
    device.cache.check([&first.lease, &second.lease]);
    assert_eq!(
        device.cache.stats().in_use,
        5,
        "three pages and two, one of them shared"
    );
    device.close(second);
    device.close(first);
    device.cache.check([]);
}

#[test]
fn pages_computed_twice_end_up_once() {
    let mut device = Device::new(8);
    let prompt = tokens(0, 9);
    let mut first = device.open("", &prompt).unwrap();
    let mut second = device.open("", &prompt).unwrap();
    device.compute(&mut first, 9);
    assert_eq!(device.cache.stats().in_use, 6);
    device.compute(&mut second, 9);
    device.cache.check([&first.lease, &second.lease]);
    assert_eq!(
        device.cache.stats().in_use,
        4,
        "two shared pages and a private one each"
    );
    device.close(first);
    device.close(second);
    device.cache.check([]);
    let stats = device.cache.stats();
    assert_eq!(
        (stats.in_use, stats.cached, device.cache.available()),
        (0, 3, 8)
    );
}

#[test]
fn eviction_takes_the_least_recently_used_leaves_first() {
    let mut device = Device::new(6);
    device.run("", &tokens(0, 8));
    device.run("", &tokens(100, 8));
    device.run("", &tokens(0, 8)); // used again, and so younger than the other
    assert_eq!(device.cache.stats().cached, 4);
    device.run("", &tokens(200, 12));
    assert_eq!(device.cache.stats().evicted, 1);
    assert_eq!(
        device.cache.lookup("", &tokens(100, 9)).tokens,
        4,
        "its leaf went, its parent stayed"
    );
    assert_eq!(device.cache.lookup("", &tokens(0, 9)).tokens, 8);
    device.run("", &tokens(300, 4));
    assert_eq!(
        device.cache.lookup("", &tokens(100, 9)).tokens,
        0,
        "then the parent"
    );
    assert_eq!(device.cache.lookup("", &tokens(0, 9)).tokens, 8);
}

#[test]
fn held_pages_are_never_evicted_and_room_is_all_or_nothing() {
    let mut device = Device::new(4);
    device.run("", &tokens(0, 8));
    let held = device.open("", &tokens(0, 9)).unwrap();
    assert_eq!((held.computed, device.cache.available()), (8, 1));
    assert!(device.open("", &tokens(100, 5)).is_none());
    device.cache.check([&held.lease]);
    assert_eq!(
        device.cache.available(),
        1,
        "the refused lease left nothing behind"
    );
    device.close(held);
}

#[test]
fn a_match_that_leaves_no_room_for_its_own_copy_is_cut_to_full_pages() {
    let mut device = Device::new(2);
    device.run("", &tokens(0, 6));
    // The partial page would have to stay while it is copied, but there is no third page.
    let sequence = device.open("", &tokens(0, 8)).unwrap();
    assert_eq!(sequence.computed, 4);
    device.cache.check([&sequence.lease]);
    device.close(sequence);
}

#[test]
fn an_abandoned_lease_leaves_only_what_it_committed() {
    let mut device = Device::new(4);
    let mut sequence = device.open("", &tokens(0, 11)).unwrap();
    device.compute(&mut sequence, 6);
    device.cache.abandon(sequence.lease);
    device.cache.check([]);
    assert_eq!(device.cache.lookup("", &tokens(0, 11)).tokens, 4);
}

#[test]
fn a_forgotten_lease_takes_its_pages_with_it_unless_others_use_them() {
    let mut device = Device::new(8);
    let mut bad = device.open("", &tokens(0, 11)).unwrap();
    device.compute(&mut bad, 8);
    let mut other = device
        .open("", &[&tokens(0, 4)[..], &[77, 78]].concat())
        .unwrap();
    device.compute(&mut other, 6);
    device.cache.forget(bad.lease);
    device.cache.check([&other.lease]);
    assert_eq!(
        device.cache.lookup("", &tokens(0, 11)).tokens,
        4,
        "the page that another lease holds"
    );
    device.close(other);
    device.cache.check([]);
}

#[test]
fn clearing_frees_what_is_idle_and_nothing_else() {
    let mut device = Device::new(8);
    device.run("", &tokens(100, 8));
    device.run("a", &tokens(100, 3));
    let mut held = device.open("", &tokens(0, 9)).unwrap();
    device.compute(&mut held, 9);
    assert_eq!(device.cache.clear(), 3);
    device.cache.check([&held.lease]);
    assert_eq!(
        (device.cache.stats().cached, device.cache.stats().evicted),
        (2, 0)
    );
    device.close(held);
    assert_eq!(device.cache.clear(), 3);
    assert_eq!(device.cache.stats().cached, 0);
}

#[test]
fn without_pressure_the_match_is_exactly_the_longest_common_prefix() {
    let mut random = Seeded::new(1);
    let mut device = Device::new(4096);
    let mut seen: Vec<State> = Vec::new();
    for _ in 0..400 {
        let (salt, tokens) = (random.below(3).to_string(), random.tokens());
        let common = |(other, seen): &State| {
            if *other == salt {
                seen.iter().zip(&tokens).take_while(|(a, b)| a == b).count()
            } else {
                0
            }
        };
        let expected = seen
            .iter()
            .map(common)
            .max()
            .unwrap_or(0)
            .min(tokens.len() - 1);
        assert_eq!(
            device.run(&salt, &tokens),
            expected as u32,
            "{salt} {tokens:?}"
        );
        seen.push((salt, tokens));
    }
    assert_eq!(device.cache.stats().evicted, 0);
}

#[test]
fn random_leases_in_a_small_pool_never_see_a_wrong_slot() {
    for seed in 0..40 {
        let mut random = Seeded::new(seed);
        let mut device = Device::new(4 + random.below(20));
        let mut open: Vec<Sequence> = Vec::new();
        for _ in 0..300 {
            match random.below(8) {
                0..=2 => {
                    let salt = random.below(2).to_string();
                    let tokens = random.tokens();
                    open.extend(device.open(&salt, &tokens));
                }
                3..=5 if !open.is_empty() => {
                    let index = random.below(open.len() as u32) as usize;
                    let sequence = &mut open[index];
                    let left = sequence.tokens.len() as u32 - sequence.computed;
                    if left > 0 {
                        let end = sequence.computed + 1 + random.below(left);
                        device.compute(sequence, end);
                    } else if device.cache.available() > 0 {
                        sequence.tokens.push(random.below(2));
                        let end = sequence.computed + 1;
                        device.compute(sequence, end);
                    }
                }
                6 if !open.is_empty() => {
                    let index = random.below(open.len() as u32) as usize;
                    let sequence = open.swap_remove(index);
                    match random.below(4) {
                        0 => device.cache.abandon(sequence.lease),
                        1 => device.cache.forget(sequence.lease),
                        _ => device.close(sequence),
                    }
                }
                7 if random.below(20) == 0 => {
                    device.cache.clear();
                }
                _ => {}
            }
            device
                .cache
                .check(open.iter().map(|sequence| &sequence.lease));
            for sequence in &open {
                device.verify(sequence);
            }
        }
        for sequence in open {
            device.close(sequence);
        }
        device.cache.check([]);
        assert_eq!(device.cache.available(), device.cache.stats().pages);
    }
}
