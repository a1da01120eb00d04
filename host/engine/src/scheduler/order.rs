//! Rules for a queue in front of an engine: which of the waiting requests goes first, so that what is cached is used
//! before it is evicted.

use foreword_ordering::document::Fingerprint;
use fxhash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A waiting request whose documents have been ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queued<'a> {
    /// The live path that its documents open with, from the root; empty: nothing of it is cached.
    pub(super) path: &'a [Fingerprint],
    /// Tokens of its prompt that the engine holds.
    pub(super) cached_tokens: u64,
    /// Tokens of its prompt that the engine has to compute.
    pub(super) computed_tokens: u64,
    /// Later requests that went before it so far. Whoever serves a request adds one to each that came before it and
    /// still waits; so an earlier request never has fewer than a later one. Where that does not hold, a request
    /// counts as overtaken as often as any behind it.
    pub(super) overtaken: u32,
}

/// The rule by which waiting requests are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// First come, first served.
    Arrival,
    /// RAGBoost, section 5.2: requests whose paths begin with the same document stand together, in a group the
    /// longest path first, so that what shares a prefix runs before anything evicts it. The group of the request that
    /// has waited longest goes first (the paper leaves this open; its code takes the largest, which starves the
    /// others); among paths of one length those that share more stand together, then first come, first served. A
    /// request with nothing cached is a group of its own. O(n log n) comparisons of paths.
    PathGroups,
    /// RAGCache, section 5.2: the largest ratio of cached to computed tokens first, among equals first come, first
    /// served. Shares of a prompt are equal here when they are in sixteenths: the paper compares them exactly, and then
    /// the few tokens that all prompts begin with order them by length. No request is overtaken by more than `window`
    /// later ones. O(n log n).
    CachedFirst {
        /// See above; the paper's is [`Rule::WINDOW`], and 0 is first come, first served.
        window: u32,
    },
}

impl Rule {
    /// RAGCache's starvation window (section 7.3).
    pub const WINDOW: u32 = 32;
}

/// The positions of `queue`, which stands in order of arrival, in the order in which to serve them: a permutation of
/// `0..queue.len()`.
#[cfg(test)]
pub(super) fn order(queue: &[Queued<'_>], rule: Rule) -> Vec<usize> {
    first(queue, rule, queue.len())
}

/// The first `most` positions of [`order`]: whoever admits a few requests at a time needs no more. O(n + most log n).
pub(super) fn first(queue: &[Queued<'_>], rule: Rule, most: usize) -> Vec<usize> {
    let most = most.min(queue.len());
    match rule {
        Rule::Arrival => (0..most).collect(),
        Rule::PathGroups => by_path_groups(queue, most),
        Rule::CachedFirst { window } => by_cached_share(queue, window, most),
    }
}

fn by_path_groups(queue: &[Queued<'_>], most: usize) -> Vec<usize> {
    // The group's oldest member stands for it.
    let mut groups: FxHashMap<Fingerprint, usize> = FxHashMap::default();
    let mut waiting: Vec<(usize, usize, &[Fingerprint])> = queue
        .iter()
        .enumerate()
        .map(|(at, queued)| {
            let group = queued.path.first().map_or(at, |first| {
                // In order of arrival, so that the first to ask is the oldest.
                *groups.entry(*first).or_insert(at)
            });
            (group, at, queued.path)
        })
        .collect();
    let longest_first = |path: &[Fingerprint]| Reverse(path.len());
    let documents = |document: &Fingerprint| document.0;
    let by_rule = |&(group_a, a, path_a): &(usize, usize, &[Fingerprint]),
                   &(group_b, b, path_b): &(usize, usize, &[Fingerprint])| {
        (group_a, longest_first(path_a))
            .cmp(&(group_b, longest_first(path_b)))
            .then_with(|| {
                path_a
                    .iter()
                    .map(documents)
                    .cmp(path_b.iter().map(documents))
            })
            .then(a.cmp(&b))
    };
    if most < waiting.len() {
        waiting.select_nth_unstable_by(most, by_rule);
        waiting.truncate(most);
    }
    waiting.sort_unstable_by(by_rule);
    waiting.into_iter().map(|(_, at, _)| at).collect()
}

/// Parts of a prompt that its cached share is counted in.
const PARTS: u128 = 16;

impl Queued<'_> {
    /// Whole parts of its prompt that are cached. A request that is cached as a whole counts as one token computed.
    fn cached_parts(&self) -> u128 {
        let cached = u128::from(self.cached_tokens);
        let computed = u128::from(self.computed_tokens.max(1));
        cached * PARTS / (cached + computed)
    }
}

fn by_cached_share(queue: &[Queued<'_>], window: u32, most: usize) -> Vec<usize> {
    // An earlier request is overtaken by whatever overtakes a later one, so the oldest is always the first to have
    // been overtaken enough: it alone need be watched.
    let mut overtaken: Vec<u32> = queue.iter().map(|queued| queued.overtaken).collect();
    let mut behind = 0;
    for overtaken in overtaken.iter_mut().rev() {
        behind = behind.max(*overtaken);
        *overtaken = behind;
    }
    let mut best: BinaryHeap<(u128, Reverse<usize>)> = queue
        .iter()
        .enumerate()
        .map(|(at, queued)| (queued.cached_parts(), Reverse(at)))
        .collect();
    let mut served = vec![false; queue.len()];
    let mut order = Vec::with_capacity(most);
    // Everything before the oldest is served, so of what is served, all but `oldest` requests overtook it.
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

    fn queued(path: &[Fingerprint], cached_tokens: u64, computed_tokens: u64) -> Queued<'_> {
        Queued {
            path,
            cached_tokens,
            computed_tokens,
            overtaken: 0,
        }
    }

    fn path(documents: &[u64]) -> Vec<Fingerprint> {
        documents.iter().map(|&d| Fingerprint(d)).collect()
    }

    fn grouped(paths: &[&[u64]]) -> Vec<usize> {
        let paths: Vec<_> = paths.iter().map(|documents| path(documents)).collect();
        let queue: Vec<_> = paths.iter().map(|path| queued(path, 0, 1)).collect();
        order(&queue, Rule::PathGroups)
    }

    #[test]
    fn groups_run_one_after_another_longest_path_first() {
        // RAGBoost's figure 6: C6, C3, C7, C8 run as C6, C8, C3, C7.
        assert_eq!(
            grouped(&[&[1, 2, 4], &[1], &[5, 7, 8], &[1, 2]]),
            [0, 3, 1, 2]
        );
    }

    #[test]
    fn the_group_of_the_oldest_request_goes_first_and_strangers_keep_their_place() {
        assert_eq!(grouped(&[&[9], &[], &[7], &[], &[7, 8]]), [0, 1, 4, 2, 3]);
    }

    #[test]
    fn equally_long_paths_that_share_more_stand_together() {
        assert_eq!(grouped(&[&[1, 2, 3], &[1, 4, 5], &[1, 2, 6]]), [0, 2, 1]);
    }

    #[test]
    fn the_larger_cached_share_goes_first() {
        // RAGCache's figure 12: more cached at the same cost first; less to compute at the same cached length first.
        let rule = Rule::CachedFirst {
            window: Rule::WINDOW,
        };
        let queue = [queued(&[], 1, 2), queued(&[], 2, 2), queued(&[], 2, 1)];
        assert_eq!(order(&queue, rule), [2, 1, 0]);
        let whole = [queued(&[], 9, 3), queued(&[], 5, 0), queued(&[], 0, 0)];
        assert_eq!(order(&whole, rule), [1, 0, 2]);
        let most = [queued(&[], u64::MAX, 1), queued(&[], 1, u64::MAX)];
        assert_eq!(order(&most, rule), [0, 1]);
    }

    #[test]
    fn a_few_tokens_that_all_begin_with_overtake_nobody() {
        let rule = Rule::CachedFirst {
            window: Rule::WINDOW,
        };
        let queue = [
            queued(&[], 0, 500),
            queued(&[], 7, 900),
            queued(&[], 7, 300),
        ];
        assert_eq!(order(&queue, rule), [0, 1, 2]);
    }

    #[test]
    fn a_request_that_was_overtaken_enough_goes_next() {
        let mut queue = vec![queued(&[], 0, 9)];
        queue.extend((0..5).map(|_| queued(&[], 9, 1)));
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

    /// What the rule says, without a thought for cost.
    fn model(queue: &[Queued<'_>], window: u32) -> Vec<usize> {
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
                let share = |at: usize| {
                    let queued = queue[waiting[at].0];
                    let cached = queued.cached_tokens as f64;
                    cached / (cached + queued.computed_tokens.max(1) as f64)
                };
                if (share(other) * 16.0).floor() > (share(best) * 16.0).floor() {
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

    fn requests() -> impl Strategy<Value = Vec<(Vec<u64>, u64, u64, u32)>> {
        let path = proptest::collection::vec(0..4_u64, 0..4);
        proptest::collection::vec((path, 0..6_u64, 0..4_u64, 0..4_u32), 0..40)
    }

    proptest! {
        #[test]
        fn every_rule_gives_a_permutation(requests in requests(), window in 0..6_u32) {
            let paths: Vec<_> = requests.iter().map(|(documents, ..)| path(documents)).collect();
            let queue: Vec<_> = requests
                .iter()
                .zip(&paths)
                .map(|(&(_, cached, computed, overtaken), path)| Queued {
                    overtaken,
                    ..queued(path, cached, computed)
                })
                .collect();
            for rule in [Rule::Arrival, Rule::PathGroups, Rule::CachedFirst { window }] {
                let mut order = order(&queue, rule);
                for most in [0, 1, 5, queue.len()] {
                    prop_assert_eq!(&first(&queue, rule, most)[..], &order[..most.min(queue.len())]);
                }
                order.sort_unstable();
                prop_assert_eq!(order, (0..queue.len()).collect::<Vec<_>>());
            }
            prop_assert_eq!(order(&queue, Rule::CachedFirst { window }), model(&queue, window));
        }

        #[test]
        fn groups_are_contiguous_and_longest_first(requests in requests()) {
            let paths: Vec<_> = requests.iter().map(|(documents, ..)| path(documents)).collect();
            let queue: Vec<_> = paths.iter().map(|path| queued(path, 0, 1)).collect();
            let order = order(&queue, Rule::PathGroups);
            let mut begun = Vec::new();
            for (before, &at) in std::iter::once(None).chain(order.iter().map(Some)).zip(&order) {
                let last = before.map(|&at| &paths[at]);
                let Some(first) = paths[at].first() else { continue };
                match last {
                    Some(last) if last.first() == Some(first) => {
                        prop_assert!(last.len() >= paths[at].len());
                    }
                    _ => {
                        prop_assert!(!begun.contains(first));
                        begun.push(*first);
                    }
                }
            }
        }

        /// A queue that lives on: requests arrive while others are served, a few of each order at a time.
        #[test]
        fn nothing_is_overtaken_more_often_than_the_window_says(seed: u64, window in 0..5_u32) {
            let mut random = Random::new(seed);
            let mut queue: Vec<Queued<'_>> = Vec::new();
            for _ in 0..60 {
                for _ in 0..random.below(5) {
                    queue.push(queued(&[], random.below(6), random.below(4)));
                }
                let order = order(&queue, Rule::CachedFirst { window });
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
