//! Replays requests under a policy, and computes the share of document tokens found in the cache.

use super::{Capacity, EngineCache, Request, document_tokens};
use foreword_ordering::document::Candidate;
use foreword_ordering::policy::{Order, Policy, PolicyKind, PolicyOptions, fingerprints};
use foreword_ordering::tree::KnowledgeTree;
use smallvec::SmallVec;

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Tokens of the requested documents.
    pub document_tokens: u64,
    /// Document tokens found in the cache.
    pub reused_tokens: u64,
}

impl Reuse {
    /// Returns the share of tokens found in the cache; 0 if there were no tokens.
    #[must_use]
    pub fn share(self) -> f64 {
        if self.document_tokens == 0 {
            0.0
        } else {
            self.reused_tokens as f64 / self.document_tokens as f64
        }
    }
}

/// A replay, request by request, for callers that measure or show each: [`Replay::decide`] is the gateway's part,
/// [`Replay::serve`] the engine's.
pub struct Replay {
    policy: Box<dyn Policy>,
    /// The gateway's knowledge tree, bounded like the engine's cache, as an operator would configure it.
    tree: KnowledgeTree,
    cache: EngineCache,
    reuse: Reuse,
}

impl Replay {
    /// Returns a replay with an empty cache and no history.
    #[must_use]
    pub fn new(kind: PolicyKind, options: &PolicyOptions, capacity: Capacity) -> Self {
        Self::of(kind.build(options), capacity)
    }

    /// Returns a replay of `policy` with an empty cache.
    #[must_use]
    pub fn of(policy: Box<dyn Policy>, capacity: Capacity) -> Self {
        Self {
            policy,
            tree: KnowledgeTree::new(capacity.bounds()),
            cache: EngineCache::new(capacity),
            reuse: Reuse::default(),
        }
    }

    /// Orders a request's documents and records the order.
    pub fn decide(&mut self, request: &Request) -> Order {
        let order = self.order(request);
        self.record(request, &order);
        order
    }

    /// Orders a request's documents. The order may be [recorded](Self::record) later.
    pub fn order(&mut self, request: &Request) -> Order {
        let candidates = self.candidates(request);
        self.policy.order(&candidates, request.start(&self.tree))
    }

    fn candidates<'a>(&mut self, request: &'a Request) -> SmallVec<[Candidate<'a>; 16]> {
        let documents = request.documents.iter();
        documents
            .map(|document| Candidate {
                id: self.tree.intern(document.fingerprint),
                fingerprint: document.fingerprint,
                label: &document.label,
                tokens: document.tokens,
            })
            .collect()
    }

    /// Records that a request was sent in the order `order`.
    pub fn record(&mut self, request: &Request, order: &Order) {
        let candidates = self.candidates(request);
        self.policy.remember(&fingerprints(&candidates), order);
        let placed = || {
            let placed = order.iter();
            placed.filter_map(|&rank| candidates.get(usize::from(rank)))
        };
        {
            let sent: SmallVec<[_; 16]> = placed()
                .map(|candidate| (candidate.fingerprint, candidate.tokens))
                .collect();
            self.policy
                .sent(&[foreword_ordering::policy::SentDocuments {
                    scope: request.scope,
                    documents: &sent,
                    order: Some(order),
                }]);
        }
        let path = placed().map(|candidate| (candidate.id, candidate.tokens));
        self.tree.insert(request.scope, path);
        self.policy.evicted(self.tree.take_evicted());
    }

    /// Serves a request in the order `order`, and returns the tokens found in the cache.
    pub fn serve(&mut self, request: &Request, order: &Order) -> u64 {
        let path = order
            .iter()
            .filter_map(|&rank| request.documents.get(usize::from(rank)));
        let reused = self.cache.serve(request.scope, path);
        self.reuse.document_tokens += document_tokens(std::slice::from_ref(request));
        self.reuse.reused_tokens += reused;
        reused
    }

    /// Returns the number of nodes of the knowledge tree.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.tree.len()
    }

    /// Returns the result so far.
    #[must_use]
    pub fn reuse(&self) -> Reuse {
        self.reuse
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::{self, replay, upper_bound};
    use crate::{Trace, workload};
    use foreword_ordering::policy::{Place, Placement};

    fn share(trace: &Trace, kind: PolicyKind, capacity: Capacity) -> f64 {
        replay(trace, kind, &PolicyOptions::default(), capacity).share()
    }

    /// Small versions of the generated traces with shared documents.
    fn traces(seed: u64) -> [(&'static str, Trace); 4] {
        let bursty = workload::bursty(seed, 1_000, workload::Bursty::default());
        [
            ("bursty", bursty),
            // With a telling ranking, `longest`, which follows it, reuses slightly more in an unbounded cache.
            (
                "geospatial",
                workload::geospatial(seed, 1_000, 5, workload::Ranks::Shuffled),
            ),
            ("zipf", workloads::zipf_topics(seed, 1_000, 5_000, 15)),
            ("conversations", workloads::conversations(seed, 1_000, 10)),
        ]
    }

    #[test]
    fn foresight_reuses_at_least_what_longest_does_and_longest_what_greedy_does() {
        const KINDS: [PolicyKind; 3] = [
            PolicyKind::Greedy,
            PolicyKind::Longest,
            PolicyKind::Foresight,
        ];
        const SEEDS: u64 = 4;
        for (at, (name, _)) in traces(0).iter().enumerate() {
            // Means, because a single trace varies by half a percent.
            let mut means = [[0.0; KINDS.len()]; 2];
            for seed in 0..SEEDS {
                let trace = &traces(seed)[at].1;
                let capacities = [Capacity::UNBOUNDED, Capacity::of_prompts(40, trace)];
                for (means, capacity) in means.iter_mut().zip(capacities) {
                    for (mean, kind) in means.iter_mut().zip(KINDS) {
                        *mean += share(trace, kind, capacity) / SEEDS as f64;
                    }
                }
            }
            for [greedy, longest, foresight] in means {
                assert!(
                    greedy < longest && longest <= foresight,
                    "{name}: {means:?}"
                );
            }
        }
    }

    #[test]
    fn no_policy_exceeds_the_upper_bound_and_all_repeat_themselves() {
        for (name, trace) in traces(1) {
            let bound = upper_bound(&trace).share();
            for kind in PolicyKind::ALL {
                let first = share(&trace[..400].to_vec(), kind, Capacity::UNBOUNDED);
                let second = share(&trace[..400].to_vec(), kind, Capacity::UNBOUNDED);
                assert_eq!(first, second, "{name} {}", kind.name());
                let all = share(&trace, kind, Capacity::UNBOUNDED);
                assert!(all <= bound, "{name} {}: {all} of {bound}", kind.name());
            }
        }
    }

    #[test]
    fn automatic_placement_reuses_as_much_as_the_better_of_moving_and_not_moving() {
        for ranks in [workload::Ranks::Shuffled, workload::Ranks::Stable] {
            let shape = workload::Bursty {
                ranks,
                ..workload::Bursty::default()
            };
            let trace = workload::bursty(5, 1_000, shape);
            let [auto, last] = [Place::Auto, Place::Last].map(|place| {
                let options = PolicyOptions {
                    placement: Placement {
                        place,
                        documents: 1,
                    },
                    ..PolicyOptions::default()
                };
                replay(&trace, PolicyKind::Foresight, &options, Capacity::UNBOUNDED).share()
            });
            let retrieval = share(&trace, PolicyKind::Retrieval, Capacity::UNBOUNDED);
            // Each of them is at least a tenth better on one of the traces.
            assert_eq!(retrieval > 1.1 * last, ranks == workload::Ranks::Stable);
            assert_eq!(last > 1.1 * retrieval, ranks == workload::Ranks::Shuffled);
            let better = last.max(retrieval);
            assert!(auto > 0.985 * better, "{auto} of {last}, {retrieval}");
        }
    }

    #[test]
    fn without_overlap_there_is_nothing_to_reuse() {
        let trace = workload::disjoint(100, 5);
        assert_eq!(upper_bound(&trace).share(), 0.0);
        for kind in PolicyKind::ALL {
            assert_eq!(share(&trace, kind, Capacity::UNBOUNDED), 0.0);
        }
    }

    #[test]
    fn a_knowledge_tree_under_the_engines_bounds_knows_what_the_engine_holds() {
        let trace = workload::bursty(2, 300, workload::Bursty::default());
        let capacity = Capacity::of_prompts(10, &trace);
        let mut replay = Replay::new(PolicyKind::Longest, &PolicyOptions::default(), capacity);
        for request in &trace {
            let order = replay.decide(request);
            replay.serve(request, &order);
            assert_eq!(replay.tree.tokens(), replay.cache.tokens());
        }
        assert!(replay.reuse().share() > 0.0);
        assert_eq!(
            Reuse::default().share(),
            0.0,
            "nothing asked for is nothing reused"
        );
    }

    #[test]
    fn the_upper_bound_is_the_largest_overlap_with_one_earlier_request() {
        let mut trace = workload::disjoint(3, 4);
        let [first, second] = [0, 1].map(|at: usize| trace[at].documents.clone());
        trace[2].documents = vec![
            second[3].clone(),
            first[0].clone(),
            first[1].clone(),
            trace[2].documents[0].clone(),
        ];
        let tokens = u64::from(first[0].tokens);
        assert_eq!(upper_bound(&trace).reused_tokens, 2 * tokens);
    }
}
