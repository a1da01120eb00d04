//! Rules that order the waiting requests of an engine, so that cached prefixes are used before they are evicted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The numbers by which a waiting request is ranked among those of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    /// Number of leading tokens of the prompt that are cached.
    pub(super) cached_tokens: u64,
    /// Number of tokens of the prompt that must be computed.
    pub(super) computed_tokens: u64,
    /// Number of other waiting requests whose prompts begin with the same documents as this one's, up to the first
    /// document that is not fully cached for this request. They benefit if this one is served first.
    pub(super) mates: u32,
    /// Number of later requests that were served before this one so far. The caller adds one for each, to every earlier
    /// request that still waits, so requests further back in the queue never have larger numbers. If one has, a request
    /// counts with the largest number of those behind it.
    pub(super) overtaken: u32,
}

/// The rule by which the waiting requests of one tenant are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// First come, first served, whatever is cached.
    Arrival,
    /// RAGBoost, section 5.2: requests that begin with the same documents run one after another, cached or not, so that
    /// the shared documents are computed once and used before they are evicted. The largest cached share is served
    /// first, as in [`Rule::CachedFirst`]; so the group that is being served is finished first, longest match first.
    /// Among equals, and so when a new group begins, the one with the most waiting requests is served first (the paper
    /// leaves this open; its code takes the largest group too), then first come, first served. While a group waits, it
    /// grows. Without a window the largest groups would starve the others. O(n log n).
    Grouped {
        /// Maximum number of later requests of the tenant that may overtake a request.
        window: u32,
    },
    /// RAGCache, section 5.2: the largest ratio of cached to computed tokens first, among equals first come, first
    /// served. Cached shares are rounded down to sixteenths. Compared exactly, as in the paper, prompts that share only
    /// a short opening would be ordered by their length. O(n log n).
    CachedFirst {
        /// Maximum number of later requests of the tenant that may overtake a request. The paper's is [`Rule::WINDOW`];
        /// 0 is first come, first served.
        window: u32,
    },
    /// RAGCache, section 5.2, as written: as [`Rule::CachedFirst`], with exact ratios.
    ExactlyCachedFirst {
        /// Maximum number of later requests of the tenant that may overtake a request, as in [`Rule::CachedFirst`].
        window: u32,
    },
}

impl Rule {
    /// RAGCache's window against starvation (section 7.3): how many later requests may overtake a request.
    pub const WINDOW: u32 = 32;
    /// The default window of [`Rule::Grouped`]: how many later requests may overtake a request. With 32, most requests
    /// of a long queue are served because they reach the window, whatever their group. With 256 more is cached, and the
    /// 99th percentile of the time to the first token is 3 % higher to 11 % lower (benches/results/cache.md).
    pub const GROUP_WINDOW: u32 = 256;
}

/// Returns the indices of all requests in `queue`, which is in order of arrival, in the order in which `rule` serves
/// them.
#[cfg(test)]
pub(super) fn order(queue: &[Queued], rule: Rule) -> Vec<usize> {
    first(queue, rule, queue.len())
}

/// Returns the indices of the `most` requests in `queue`, which is in order of arrival, that `rule` serves first, in
/// the order in which it serves them. O(n + most log n).
pub(super) fn first(queue: &[Queued], rule: Rule, most: usize) -> Vec<usize> {
    let most = most.min(queue.len());
    match rule {
        Rule::Arrival => (0..most).collect(),
        Rule::Grouped { window } => by_rank(queue, window, most, |queued| {
            (queued.cached_parts(), queued.mates)
        }),
        Rule::CachedFirst { window } => by_rank(queue, window, most, Queued::cached_parts),
        Rule::ExactlyCachedFirst { window } => by_rank(queue, window, most, Queued::ratio),
    }
}

/// Number of equal parts in which the cached share of a prompt is counted for [`Rule::CachedFirst`] and
/// [`Rule::Grouped`].
const PARTS: u128 = 16;

impl Queued {
    /// Returns the cached share of the request's prompt in units of 1 / [`PARTS`], rounded down. For a request whose
    /// prompt is fully cached, one further token counts as computed.
    fn cached_parts(&self) -> u128 {
        let cached = u128::from(self.cached_tokens);
        let computed = u128::from(self.computed_tokens.max(1));
        cached * PARTS / (cached + computed)
    }

    /// Returns the ratio of the prompt's cached to its computed tokens as a fixed-point number. Ratios of fewer than
    /// 2^32 tokens compare exactly: two different ones differ by more than 2^-64.
    fn ratio(&self) -> u128 {
        (u128::from(self.cached_tokens) << 64) / u128::from(self.computed_tokens.max(1))
    }
}

/// Returns the indices of the `most` requests of `queue` that are served first, by descending `rank`, among equals
/// first come, first served. A request that was overtaken `window` times is served next.
fn by_rank<R: Ord>(
    queue: &[Queued],
    window: u32,
    most: usize,
    rank: impl Fn(&Queued) -> R,
) -> Vec<usize> {
    // Each overtaking of a later request also overtakes the earlier ones, so the oldest waiting request always reaches
    // the window first. Only it is checked.
    let mut overtaken: Vec<u32> = queue.iter().map(|queued| queued.overtaken).collect();
    let mut behind = 0;
    for overtaken in overtaken.iter_mut().rev() {
        behind = behind.max(*overtaken);
        *overtaken = behind;
    }
    let mut best: BinaryHeap<(R, Reverse<usize>)> = queue
        .iter()
        .enumerate()
        .map(|(at, queued)| (rank(queued), Reverse(at)))
        .collect();
    let mut served = vec![false; queue.len()];
    let mut order = Vec::with_capacity(most);
    // All requests before the oldest have been served; every other served request overtook it.
    let mut oldest = 0;
    while order.len() < most
        && let Some(&overtaken) = overtaken.get(oldest)
    {
        if served.get(oldest).is_some_and(|&served| served) {
            oldest += 1;
            continue;
        }
        let overtaken = u64::from(overtaken) + order.len().saturating_sub(oldest) as u64;
        let next = if overtaken >= u64::from(window) {
            oldest
        } else {
            match best.pop() {
                Some((_, Reverse(at))) => at,
                None => oldest,
            }
        };
        if let Some(served) = served.get_mut(next)
            && !std::mem::replace(served, true)
        {
            order.push(next);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;
    use proptest::prelude::*;

    fn queued(cached_tokens: u64, computed_tokens: u64) -> Queued {
        Queued {
            cached_tokens,
            computed_tokens,
            mates: 0,
            overtaken: 0,
        }
    }

    const EXACT: Rule = Rule::ExactlyCachedFirst { window: 32 };

    #[test]
    fn the_paper_s_two_scenarios_are_served_at_the_lower_cost() {
        // Figure 12 (a): the requests differ in what is cached. Whoever is first costs the other one its cache.
        let (one, two) = (queued(2, 2), queued(1, 2));
        let cost = |first: Queued, second: Queued| {
            first.computed_tokens + second.cached_tokens + second.computed_tokens
        };
        assert_eq!((cost(one, two), cost(two, one)), (5, 6));
        assert_eq!(order(&[one, two], EXACT), [0, 1]);
        assert_eq!(order(&[two, one], EXACT), [1, 0]);
        // Figure 12 (b): they differ in what must be computed. The short one fits beside the other one's cache.
        let (one, two) = (queued(2, 2), queued(2, 1));
        assert_eq!(cost(one, two), 5);
        assert_eq!(two.computed_tokens + one.computed_tokens, 3);
        assert_eq!(order(&[one, two], EXACT), [1, 0]);
        assert_eq!(order(&[two, one], EXACT), [0, 1]);
    }

    #[test]
    fn the_paper_s_alternating_requests_find_at_least_two_of_three_documents() {
        // Section 5.2: requests alternate between two documents, and the cache holds one of them.
        let hits = |rule: Rule| {
            let mut waiting: Vec<(u32, u32)> = (1..=12).map(|number| (number, 0)).collect();
            let (mut held, mut hits, mut served) = (None, 0, Vec::new());
            while !waiting.is_empty() {
                let queue: Vec<Queued> = waiting
                    .iter()
                    .map(|(number, overtaken)| Queued {
                        overtaken: *overtaken,
                        ..match held == Some(number % 2) {
                            true => queued(100, 1),
                            false => queued(0, 101),
                        }
                    })
                    .collect();
                let next = first(&queue, rule, 1)[0];
                for (_, overtaken) in &mut waiting[..next] {
                    *overtaken += 1;
                }
                let (number, _) = waiting.remove(next);
                hits += u32::from(held == Some(number % 2));
                held = Some(number % 2);
                served.push(number);
            }
            (hits, served)
        };
        assert_eq!(hits(Rule::Arrival).0, 0);
        let (found, served) = hits(Rule::ExactlyCachedFirst { window: 2 });
        assert_eq!(served[..6], [1, 3, 5, 2, 4, 6]);
        assert!(3 * found >= 2 * 12, "{found} of 12: {served:?}");
    }

    #[test]
    fn exact_ratios_part_what_sixteenths_do_not() {
        let queue = [queued(100, 110), queued(100, 105)];
        assert_eq!(order(&queue, Rule::CachedFirst { window: 32 }), [0, 1]);
        assert_eq!(order(&queue, EXACT), [1, 0]);
        let close = [
            queued((1 << 31) - 1, (1 << 32) - 1),
            queued(1 << 31, (1 << 32) - 1),
        ];
        assert_eq!(order(&close, EXACT), [1, 0]);
    }

    #[test]
    fn the_largest_group_begins_and_what_is_cached_comes_before_it() {
        let rule = Rule::Grouped {
            window: Rule::WINDOW,
        };
        let alone = queued(0, 9);
        let of_two = Queued { mates: 1, ..alone };
        let of_three = Queued { mates: 2, ..alone };
        let begun = queued(3, 6);
        let queue = [alone, of_two, of_three, begun, of_three];
        assert_eq!(order(&queue, rule), [3, 2, 4, 1, 0]);
    }

    #[test]
    fn the_larger_cached_share_goes_first() {
        // RAGCache's figure 12: more cached at the same cost first; less to compute at the same cached length first.
        let rule = Rule::CachedFirst {
            window: Rule::WINDOW,
        };
        let queue = [queued(1, 2), queued(2, 2), queued(2, 1)];
        assert_eq!(order(&queue, rule), [2, 1, 0]);
        let whole = [queued(9, 3), queued(5, 0), queued(0, 0)];
        assert_eq!(order(&whole, rule), [1, 0, 2]);
        let most = [queued(u64::MAX, 1), queued(1, u64::MAX)];
        assert_eq!(order(&most, rule), [0, 1]);
    }

    #[test]
    fn a_few_tokens_that_all_begin_with_overtake_nobody() {
        let rule = Rule::CachedFirst {
            window: Rule::WINDOW,
        };
        let queue = [queued(0, 500), queued(7, 900), queued(7, 300)];
        assert_eq!(order(&queue, rule), [0, 1, 2]);
    }

    #[test]
    fn a_request_that_was_overtaken_enough_goes_next() {
        let mut queue = vec![queued(0, 9)];
        queue.extend((0..5).map(|_| queued(9, 1)));
        assert_eq!(
            order(&queue, Rule::CachedFirst { window: 3 }),
            [1, 2, 3, 0, 4, 5]
        );
        queue[0].overtaken = 2;
        assert_eq!(
            order(&queue, Rule::CachedFirst { window: 3 }),
            [1, 0, 2, 3, 4, 5]
        );
    }

    /// The rules in the simplest form, at any cost. `mates`: whether they decide among equal shares.
    fn model(queue: &[Queued], window: u32, mates: bool) -> Vec<usize> {
        let mut waiting: Vec<(usize, u32)> = (0..queue.len())
            .map(|at| {
                let behind = queue[at..].iter().map(|queued| queued.overtaken);
                (at, behind.max().unwrap())
            })
            .collect();
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let full = waiting.iter().position(|&(_, count)| count >= window);
            let allowed = full.map_or(waiting.len(), |full| full + 1);
            let mut best = 0;
            for other in 1..allowed {
                let rank = |at: usize| {
                    let queued = queue[waiting[at].0];
                    let cached = queued.cached_tokens as f64;
                    let share = cached / (cached + queued.computed_tokens.max(1) as f64);
                    let mates = if mates { queued.mates } else { 0 };
                    ((share * 16.0).floor(), mates)
                };
                if rank(other) > rank(best) {
                    best = other;
                }
            }
            order.push(waiting.remove(best).0);
            for (_, count) in &mut waiting[..best] {
                *count += 1;
            }
        }
        order
    }

    fn requests() -> impl Strategy<Value = Vec<Queued>> {
        let request = (0..6_u64, 0..4_u64, 0..3_u32, 0..4_u32);
        let request = request.prop_map(|(cached, computed, mates, overtaken)| Queued {
            mates,
            overtaken,
            ..queued(cached, computed)
        });
        proptest::collection::vec(request, 0..40)
    }

    proptest! {
        #[test]
        fn every_rule_gives_a_permutation(queue in requests(), window in 0..6_u32) {
            for rule in [Rule::Arrival, Rule::Grouped { window }, Rule::CachedFirst { window }, Rule::ExactlyCachedFirst { window }] {
                let mut order = order(&queue, rule);
                for most in [0, 1, 5, queue.len()] {
                    prop_assert_eq!(&first(&queue, rule, most)[..], &order[..most.min(queue.len())]);
                }
                order.sort_unstable();
                prop_assert_eq!(order, (0..queue.len()).collect::<Vec<_>>());
            }
            prop_assert_eq!(order(&queue, Rule::CachedFirst { window }), model(&queue, window, false));
            prop_assert_eq!(order(&queue, Rule::Grouped { window }), model(&queue, window, true));
        }

        /// Simulates a queue to which requests arrive while others are served, a few of each order at a time.
        #[test]
        fn nothing_is_overtaken_more_often_than_the_window_says(seed: u64, window in 0..5_u32, grouped: bool) {
            let rule = if grouped { Rule::Grouped { window } } else { Rule::CachedFirst { window } };
            let mut random = Random::new(seed);
            let mut queue: Vec<Queued> = Vec::new();
            for _ in 0..60 {
                for _ in 0..random.below(5) {
                    let mates = random.below(3) as u32;
                    queue.push(Queued { mates, ..queued(random.below(6), random.below(4)) });
                }
                let order = order(&queue, rule);
                let mut served: Vec<usize> =
                    order.into_iter().take(random.below(5) as usize).collect();
                for (done, &at) in served.iter().enumerate() {
                    for before in (0..at).filter(|before| !served[..done].contains(before)) {
                        queue[before].overtaken += 1;
                        prop_assert!(queue[before].overtaken <= window);
                    }
                }
                served.sort_unstable();
                for at in served.into_iter().rev() {
                    queue.remove(at);
                }
            }
        }
    }
}
