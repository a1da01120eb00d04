use super::*;
use foreword_ordering::random::Random;
use std::collections::HashMap;

/// A request: its number in order of arrival, its tenant, its tokens and how many of them are cached.
#[derive(Clone, Debug, PartialEq)]
struct Item {
    number: u64,
    tenant: Arc<str>,
    tokens: u32,
    cached: u32,
}

const CACHED_FIRST: Rule = Rule::CachedFirst {
    window: Rule::WINDOW,
};

fn push(queue: &mut Queue<Item>, number: u64, tenant: &str, tokens: u32, cached: u32) {
    let tenant: Arc<str> = tenant.into();
    let entry = Entry {
        tenant: tenant.clone(),
        tokens,
        documents: Box::default(),
    };
    let item = Item {
        number,
        tenant,
        tokens,
        cached,
    };
    queue.push(entry, item);
}

/// Admits up to `most` requests as the engine does.
fn serve(queue: &mut Queue<Item>, most: usize) -> Vec<Item> {
    let mut served = Vec::new();
    for (ticket, ()) in queue.head(most, |_| u32::MAX, |item| (item.cached, ()), |()| true) {
        let item = queue.take(&ticket).unwrap();
        queue.charge_prompt(&item.tenant, item.tokens - item.cached);
        served.push(item);
    }
    served
}

fn numbers(items: &[Item]) -> Vec<u64> {
    items.iter().map(|item| item.number).collect()
}

/// Refreshes every entry, as enough sweeps would.
fn sweep_all(queue: &mut Queue<Item>) {
    queue.sweep(usize::MAX, |item| Some(item.cached));
}

#[test]
fn what_was_put_back_goes_first_then_what_is_cached_most() {
    let mut queue = Queue::new(CACHED_FIRST);
    push(&mut queue, 1, "", 10, 0);
    push(&mut queue, 2, "", 10, 8);
    push(&mut queue, 3, "", 10, 4);
    sweep_all(&mut queue);
    let first = serve(&mut queue, 1).remove(0);
    assert_eq!(first.number, 2);
    push(&mut queue, 4, "", 10, 9);
    sweep_all(&mut queue);
    queue.put_back(first);
    assert_eq!(numbers(&serve(&mut queue, 9)), [2, 4, 3, 1]);
    assert!(queue.is_empty());
}

#[test]
fn first_come_first_served_asks_for_no_cache() {
    let mut queue = Queue::new(Rule::Arrival);
    for number in 0..5 {
        push(&mut queue, number, "", 10, number as u32);
    }
    sweep_all(&mut queue);
    assert_eq!(numbers(&serve(&mut queue, 3)), [0, 1, 2]);
    assert_eq!(numbers(&serve(&mut queue, 3)), [3, 4]);
}

#[test]
fn a_tenant_without_room_is_passed_over() {
    let mut queue = Queue::new(Rule::Arrival);
    for (number, tenant) in ["a", "a", "b", "a", "b"].into_iter().enumerate() {
        push(&mut queue, number as u64, tenant, 10, 0);
    }
    let room = |tenant: &str| if tenant == "a" { 1 } else { u32::MAX };
    let tickets = queue.head(5, room, |item| (0, item.number), |_| true);
    let numbers: Vec<u64> = tickets.into_iter().map(|(_, number)| number).collect();
    assert_eq!(numbers, [0, 2, 4]);
}

#[test]
fn a_look_that_says_enough_ends_the_tickets() {
    let mut queue = Queue::new(Rule::Arrival);
    for number in 0..5 {
        push(&mut queue, number, "", 10, 0);
    }
    let mut looks = 0;
    let look = |item: &Item| {
        looks += 1;
        (0, item.number)
    };
    let tickets = queue.head(5, |_| u32::MAX, look, |number| *number < 1);
    assert_eq!((tickets.len(), looks), (2, 2));
}

#[test]
fn whoever_lost_its_prefix_loses_its_rank() {
    let mut queue = Queue::new(CACHED_FIRST);
    push(&mut queue, 1, "", 10, 5);
    push(&mut queue, 2, "", 10, 9);
    sweep_all(&mut queue);
    // Request 2's prefix is evicted, and no sweep has noticed.
    queue.find_mut(|item| item.number == 2).unwrap().cached = 0;
    assert_eq!(numbers(&serve(&mut queue, 2)), [1, 2]);
}

/// Pushes a request with these documents of 10 tokens each.
fn push_with(queue: &mut Queue<Item>, number: u64, path: &[u64]) {
    let documents = path.iter().zip(1..).map(|(&d, n)| (Fingerprint(d), n * 10));
    let tokens = path.len() as u32 * 10 + 1;
    let entry = Entry {
        tenant: Arc::default(),
        tokens,
        documents: documents.collect(),
    };
    let item = Item {
        number,
        tenant: Arc::default(),
        tokens,
        cached: 0,
    };
    queue.push(entry, item);
}

/// Serves one request after another, with a cache for one of them.
fn served_one_by_one(queue: &mut Queue<Item>, paths: &[&[u64]]) -> Vec<u64> {
    let mut order = Vec::new();
    while let Some(item) = serve(queue, 1).pop() {
        let served = paths[item.number as usize];
        for waiting in queue.iter_mut() {
            let path = paths[waiting.number as usize].iter();
            let shared = path.zip(served).take_while(|(a, b)| a == b).count();
            waiting.cached = shared as u32 * 10;
        }
        sweep_all(queue);
        order.push(item.number);
    }
    order
}

#[test]
fn requests_that_open_alike_run_together_cached_or_not() {
    const GROUPED: Rule = Rule::Grouped {
        window: Rule::WINDOW,
    };
    for (paths, expected) in [
        // RAGBoost's figure 6: C6, C3, C7, C8 run as C6, C8, C3, C7.
        ([&[1, 2, 4][..], &[1], &[5, 7, 8], &[1, 2]], [0, 3, 1, 2]),
        // The larger group begins, although neither is cached and another request arrived first.
        ([&[9, 8], &[7, 1], &[7, 2], &[3]], [1, 2, 0, 3]),
        // Requests that share more follow at once.
        ([&[1, 2, 3], &[1, 4, 5], &[1, 2, 6], &[2]], [0, 2, 1, 3]),
    ] {
        let mut queue = Queue::new(GROUPED);
        for (number, path) in (0..).zip(&paths) {
            push_with(&mut queue, number, path);
        }
        assert_eq!(served_one_by_one(&mut queue, &paths), expected);
    }
}

#[test]
fn a_group_is_as_large_as_those_of_it_that_wait() {
    let mut queue = Queue::new(Rule::Grouped { window: 9 });
    for (number, first) in (0..).zip([1, 2, 2, 2, 1, 1]) {
        push_with(&mut queue, number, &[first, 10 + number]);
    }
    // Two requests of the second group leave. Three of the first group wait and one of the second, so the first is
    // larger.
    let gone = queue.extract(|item| item.number == 2 || item.number == 3);
    assert_eq!(gone.len(), 2);
    assert_eq!(numbers(&serve(&mut queue, 4)), [0, 4, 5, 1]);
    assert!(queue.is_empty());
}

#[test]
fn a_group_that_has_begun_is_drained_before_a_sweep_comes_to_it_unless_the_cache_lost_it() {
    for (cached, expected) in [(10, [1, 2, 3, 4]), (0, [2, 3, 4, 1])] {
        let mut queue = Queue::new(Rule::Grouped { window: 9 });
        push_with(&mut queue, 0, &[1, 2]);
        push_with(&mut queue, 1, &[1, 5]);
        assert_eq!(numbers(&serve(&mut queue, 1)), [0]);
        // A larger group arrives, and the second request has not been looked up since.
        for number in 2..5 {
            push_with(&mut queue, number, &[3, 10 + number]);
        }
        queue.find_mut(|item| item.number == 1).unwrap().cached = cached;
        let mut order = Vec::new();
        while let Some(item) = serve(&mut queue, 1).pop() {
            let group = |number: u64| number > 1;
            for waiting in queue.iter_mut() {
                if group(waiting.number) && group(item.number) {
                    waiting.cached = 10;
                }
            }
            order.push(item.number);
        }
        assert_eq!(order, expected);
    }
}

#[test]
fn sweeps_look_at_everyone_in_turn() {
    let mut queue = Queue::new(CACHED_FIRST);
    for number in 0..20 {
        push(&mut queue, number, &(number % 3).to_string(), 10, 0);
    }
    for _ in 0..3 {
        let mut seen = HashMap::new();
        for _ in 0..5 {
            queue.sweep(4, |item| {
                *seen.entry(item.number).or_insert(0) += 1;
                None
            });
        }
        assert_eq!(seen.len(), 20);
        assert!(seen.values().all(|&times| times == 1), "{seen:?}");
    }
}

#[test]
fn nobody_is_overtaken_by_more_later_ones_than_the_window_says() {
    let mut most_overtaken = 0;
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let window = [0, 3, Rule::WINDOW][random.below(3) as usize];
        let rules = [Rule::CachedFirst { window }, Rule::Grouped { window }];
        let mut queue = Queue::new(rules[seed as usize % 2]);
        let mut overtaken: HashMap<u64, u32> = HashMap::new();
        let mut arrivals = 0;
        for round in 0..400 {
            // At first more requests arrive than are served, so the queue is long.
            let arriving = if round < 200 { random.below(4) } else { 0 };
            for _ in 0..arriving {
                let cached = random.below(100) as u32;
                push(&mut queue, arrivals, "", 100, cached);
                overtaken.insert(arrivals, 0);
                arrivals += 1;
            }
            queue.sweep(8, |item| Some(item.cached));
            let most = 1 + random.below(3) as usize;
            for item in serve(&mut queue, most) {
                overtaken.remove(&item.number);
                for (_, count) in overtaken.iter_mut().filter(|(n, _)| **n < item.number) {
                    *count += 1;
                    assert!(*count <= window, "seed {seed}: {count} of {window}");
                    most_overtaken = most_overtaken.max(*count);
                }
            }
        }
    }
    assert_eq!(most_overtaken, Rule::WINDOW, "too tame a load");
}

#[test]
fn a_flood_delays_another_tenant_by_one_request_a_tenant() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut queue = Queue::new(CACHED_FIRST);
        for number in 0..500 {
            let cached = random.below(90) as u32;
            push(&mut queue, number, "flood", 100, cached);
        }
        let before = random.below(100) as usize;
        for _ in 0..before {
            serve(&mut queue, 1);
        }
        push(&mut queue, 1000, "other", 100, 0);
        let served: Vec<Item> = (0..2).flat_map(|_| serve(&mut queue, 1)).collect();
        assert!(numbers(&served).contains(&1000), "{served:?}");
    }
}

#[test]
fn tenants_that_keep_waiting_get_equal_shares_whatever_they_send() {
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let mut queue: Queue<Item> = Queue::new(CACHED_FIRST);
        let mut computed: HashMap<Arc<str>, u64> = HashMap::new();
        let sizes = [100, 10];
        let mut number = 0;
        for _ in 0..600 {
            // Tenant "a" sends large requests and "b" small ones; both always have requests waiting.
            for (tenant, size) in ["a", "b"].iter().zip(sizes) {
                let waiting = queue.iter().filter(|item| &*item.tenant == *tenant);
                for _ in waiting.count()..3 {
                    let tokens = 1 + random.below(size) as u32;
                    push(&mut queue, number, tenant, tokens, 0);
                    number += 1;
                }
            }
            for item in serve(&mut queue, 1) {
                *computed.entry(item.tenant).or_default() += u64::from(item.tokens);
            }
            let of = |tenant: &str| computed.get(tenant).copied().unwrap_or(0);
            assert!(of("a").abs_diff(of("b")) <= 2 * sizes[0], "{computed:?}");
        }
    }
}

#[test]
fn as_long_as_something_waits_something_is_proposed() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let rules = [Rule::Arrival, Rule::Grouped { window: 3 }, CACHED_FIRST];
        let mut queue = Queue::new(rules[random.below(3) as usize]);
        let mut waiting = Vec::new();
        for number in 0..200 {
            match random.below(6) {
                0..=2 => {
                    let tenant = random.below(4).to_string();
                    push(&mut queue, number, &tenant, 50, random.below(50) as u32);
                    waiting.push(number);
                }
                3 => {
                    let gone = queue.extract(|item| item.number % 5 == number % 5);
                    waiting.retain(|number| !numbers(&gone).contains(number));
                }
                4 => {
                    for item in serve(&mut queue, 1) {
                        queue.put_back(item);
                    }
                }
                _ => {
                    let most = random.below(5) as usize;
                    let expected = most.min(waiting.len());
                    let served = serve(&mut queue, most);
                    assert_eq!(served.len(), expected);
                    waiting.retain(|number| !numbers(&served).contains(number));
                }
            }
            assert_eq!(queue.len(), waiting.len());
            assert_eq!(queue.iter().count(), waiting.len());
            assert!(queue.lanes.values().all(|lane| !lane.waiting.is_empty()));
        }
    }
}
