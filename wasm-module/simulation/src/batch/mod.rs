//! Plans a batch: all requests are known before the first is sent, so both the order of requests and the order of
//! documents in each can be chosen.
//!
//! ```text
//!   A {1 2 3 7}    agglomerate        {1 2} ─┬─ {1 2 3} ─┬─ A      depth first      A: 1 2 3 7
//!   B {4 5}        ──────────▶               │           └─ C      ──────────▶      C: 1 2 3 8
//!   C {3 2 1 8}                              └─ D                                   D: 1 2 9
//!   D {9 2 1}                         B                                             B: 4 5
//! ```
//!
//! In a given order, a batch makes the engine compute every node of its prompts' prefix tree once. In a tree that joins
//! two clusters of requests at a time, a join saves once what all requests below it share; so the task is to find the
//! tree whose joins share most (`cluster`). Walked depth first, that tree needs no large cache: any two neighbours
//! share what their join saves.

mod answers;
mod cluster;
mod index;
mod line;
mod order;
mod orderer;
mod schedule;

pub use answers::BatchAnswers;
pub use index::{BatchError, BatchIndex, BatchLimits};
pub use line::{
    AnswerLine, BatchAnswer, BatchUsage, LineError, MAX_ID_BYTES, RequestLine, URLS, answer_line,
};
pub use order::BatchOrder;
pub use orderer::{BatchConfigError, BatchOrderer, FirstDocuments};
pub use schedule::{BatchSchedule, BatchTask, WINDOW};

use self::cluster::Cluster;
use crate::Request;
use foreword_ordering::document::Fingerprint;
use foreword_ordering::policy::{Order, Placement};
use foreword_ordering::tree::Scope;
use fxhash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A request of a planned batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Index of the request in the given batch.
    pub request: usize,
    /// The order of its documents.
    pub order: Order,
}

/// Plans a batch so that prompts share prefixes, weighted by tokens, and those that do are neighbours. Every request
/// occurs once, and its order is a permutation of its documents (a request has at most `u16::MAX` of them, far more
/// than [`foreword_ordering::policy::MAX_CANDIDATES`]). Requests of different scopes share nothing. Where sharing
/// leaves a choice, earlier requests come first and documents are in rank order.
///
/// The plan is deterministic. Time grows with the pairs of requests that share documents (`agglomerate`); memory is
/// linear in the batch's documents.
#[must_use]
pub fn batch(requests: &[Request]) -> Vec<Planned> {
    within(requests, &mut Effort::new(u64::MAX, &|| false))
}

/// Plans like [`batch()`]. Leading favoured documents separate requests unless equal; trailing ones are never shared.
#[must_use]
pub fn batch_placed(requests: &[Request], placement: Placement) -> Vec<Planned> {
    let shared: Vec<Request> = (requests.iter())
        .map(|request| {
            let split = request.split(placement);
            let leading = split.leading.iter();
            let leading = leading.filter_map(|&rank| request.documents.get(usize::from(rank)));
            Request {
                scope: leading.fold(request.scope, |scope, document| {
                    let document = document.fingerprint.0.to_le_bytes();
                    Scope(xxh3_64_with_seed(&document, scope.0))
                }),
                documents: (request.documents.iter())
                    .skip(usize::from(split.shared))
                    .cloned()
                    .collect(),
                is_ranked: request.is_ranked,
            }
        })
        .collect();
    let planned = batch(&shared).into_iter();
    let whole = planned.filter_map(|planned| {
        let split = requests.get(planned.request)?.split(placement);
        Some(Planned {
            order: split.with(&planned.order),
            ..planned
        })
    });
    whole.collect()
}

/// Plans like [`batch()`] with bounded effort: once it is spent, clusters not joined yet stay apart.
fn within(requests: &[Request], effort: &mut Effort<'_>) -> Vec<Planned> {
    let corpus = Corpus::of(requests);
    let (sets, members) = corpus.distinct_sets();
    let clusters = cluster::agglomerate(sets, &corpus.tokens, effort);
    Emission::new(&corpus, &clusters, &members).run()
}

/// The rest of a plan's budget.
struct Effort<'a> {
    /// Number of holders that may still be examined.
    steps: u64,
    /// Steps until the next call of `is_over`.
    until_asked: u64,
    /// Called now and then; returns true if the plan is no longer needed, which ends planning.
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> Effort<'a> {
    fn new(steps: u64, is_over: &'a dyn Fn() -> bool) -> Self {
        Self {
            steps,
            until_asked: ASKED_EVERY,
            is_over,
        }
    }

    fn is_spent(&self) -> bool {
        self.steps == 0
    }

    fn spend(&mut self, steps: u64) {
        self.steps = self.steps.saturating_sub(steps);
        self.until_asked = self.until_asked.saturating_sub(steps);
        if self.until_asked == 0 {
            self.until_asked = ASKED_EVERY;
            if (self.is_over)() {
                self.steps = 0;
            }
        }
    }
}

/// Steps between calls of `is_over`, a few milliseconds.
const ASKED_EVERY: u64 = 1 << 22;

/// The batch in small numbers: documents are numbered by decreasing number of holders, scope by scope.
struct Corpus {
    /// Tokens of each document, at least 1, since sharing an empty document is still useful.
    tokens: Vec<u64>,
    /// Documents of every request, in rank order.
    requests: Vec<Vec<u32>>,
}

impl Corpus {
    fn of(requests: &[Request]) -> Self {
        let mut numbers: FxHashMap<(u64, Fingerprint), u32> = FxHashMap::default();
        // Tokens and number of holders, in the order of first occurrence.
        let mut documents: Vec<(u64, u32)> = Vec::new();
        let mut lists: Vec<Vec<u32>> = Vec::with_capacity(requests.len());
        for request in requests {
            let list = request.documents.iter().map(|document| {
                let number = *numbers
                    .entry((request.scope.0, document.fingerprint))
                    .or_insert(documents.len() as u32);
                if documents.len() as u32 == number {
                    documents.push((u64::from(document.tokens.max(1)), 0));
                }
                if let Some((_, holders)) = documents.get_mut(number as usize) {
                    *holders += 1;
                }
                number
            });
            lists.push(list.collect());
        }
        let mut frequent: Vec<u32> = (0..documents.len() as u32).collect();
        let of = |number: u32| documents.get(number as usize).copied().unwrap_or_default();
        frequent.sort_by_key(|&number| std::cmp::Reverse(of(number).1));
        let mut renumbered = vec![0; frequent.len()];
        for (new, &old) in (0..).zip(&frequent) {
            if let Some(number) = renumbered.get_mut(old as usize) {
                *number = new;
            }
        }
        for number in lists.iter_mut().flatten() {
            *number = renumbered.get(*number as usize).copied().unwrap_or(*number);
        }
        Self {
            tokens: frequent.into_iter().map(|number| of(number).0).collect(),
            requests: lists,
        }
    }

    /// Returns the distinct document sets, and the requests of each in order of arrival. The sets are in lexicographic
    /// order, so by the numbering, sets that share frequent documents are near each other.
    fn distinct_sets(&self) -> (Vec<Vec<u32>>, Vec<Vec<usize>>) {
        let mut sorted: Vec<(Vec<u32>, usize)> = self
            .requests
            .iter()
            .zip(0..)
            .map(|(documents, request)| {
                let mut set = documents.clone();
                set.sort_unstable();
                set.dedup();
                (set, request)
            })
            .collect();
        sorted.sort_unstable();
        let mut sets: Vec<Vec<u32>> = Vec::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        for (set, request) in sorted {
            match members.last_mut() {
                Some(members) if sets.last() == Some(&set) => members.push(request),
                _ => {
                    sets.push(set);
                    members.push(vec![request]);
                }
            }
        }
        (sets, members)
    }
}

/// The walk that turns clusters into a sequence.
struct Emission<'a> {
    corpus: &'a Corpus,
    clusters: &'a [Cluster],
    /// Requests of each leaf.
    members: &'a [Vec<usize>],
    /// The earliest request below each cluster.
    earliest: Vec<usize>,
    /// Documents from the root to the current node.
    path: Vec<u32>,
    /// Index in `path` of each document; meaningless if the document is not in `path`.
    places: Vec<u32>,
    plan: Vec<Planned>,
}

impl<'a> Emission<'a> {
    fn new(corpus: &'a Corpus, clusters: &'a [Cluster], members: &'a [Vec<usize>]) -> Self {
        let mut earliest: Vec<usize> = Vec::with_capacity(clusters.len());
        for (at, cluster) in clusters.iter().enumerate() {
            // Children come before their parents.
            let below = match cluster.children {
                Some(children) => children
                    .iter()
                    .filter_map(|&child| earliest.get(child as usize).copied())
                    .min(),
                None => members.get(at).and_then(|members| members.first().copied()),
            };
            earliest.push(below.unwrap_or(usize::MAX));
        }
        Self {
            corpus,
            clusters,
            members,
            earliest,
            path: Vec::new(),
            places: vec![0; corpus.tokens.len()],
            plan: Vec::with_capacity(corpus.requests.len()),
        }
    }

    fn run(mut self) -> Vec<Planned> {
        let mut roots: Vec<u32> = (0..)
            .zip(self.clusters)
            .filter(|(_, cluster)| cluster.is_root)
            .map(|(id, _)| id)
            .collect();
        self.latest_first(&mut roots);
        // Clusters to visit, the next one last, each with the length of its parent's path.
        let mut stack: Vec<(u32, usize)> = roots.into_iter().map(|root| (root, 0)).collect();
        while let Some((id, depth)) = stack.pop() {
            let Some(cluster) = self.clusters.get(id as usize) else {
                continue;
            };
            self.path.truncate(depth);
            self.extend(id, cluster);
            match cluster.children {
                Some(mut children) => {
                    self.latest_first(&mut children);
                    stack.extend(children.map(|child| (child, self.path.len())));
                }
                None => self.emit(id),
            }
        }
        self.plan
    }

    fn latest_first(&self, clusters: &mut [u32]) {
        clusters.sort_by_key(|&id| std::cmp::Reverse(self.earliest.get(id as usize)));
    }

    /// Appends the cluster's documents that `path` lacks, in the order of the cluster's earliest request.
    fn extend(&mut self, id: u32, cluster: &Cluster) {
        let earliest = self.earliest.get(id as usize);
        let ranked = earliest.and_then(|&request| self.corpus.requests.get(request));
        for &document in ranked.into_iter().flatten() {
            let Some(place) = self.places.get_mut(document as usize) else {
                continue;
            };
            if self.path.get(*place as usize) != Some(&document)
                && cluster.documents.binary_search(&document).is_ok()
            {
                *place = self.path.len() as u32;
                self.path.push(document);
            }
        }
    }

    /// Appends the requests of a leaf to the plan; `path` has all their documents.
    fn emit(&mut self, leaf: u32) {
        for &request in self.members.get(leaf as usize).into_iter().flatten() {
            let documents = self.corpus.requests.get(request);
            let mut placed: Vec<(Option<&u32>, u16)> = documents
                .into_iter()
                .flatten()
                .map(|&document| self.places.get(document as usize))
                .zip(0..=u16::MAX)
                .collect();
            placed.sort_unstable();
            self.plan.push(Planned {
                request,
                order: placed.into_iter().map(|(_, rank)| rank).collect(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Capacity, EngineCache, Retrieved, document_tokens, workload, workloads};
    use foreword_ordering::tree::Scope;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn request(scope: u64, documents: &[u64]) -> Request {
        Request {
            is_ranked: true,
            scope: Scope(scope),
            documents: documents
                .iter()
                // Weights differ between documents, but each document has one weight.
                .map(|&document| Retrieved::numbered(document, 10 + document as u32 % 7))
                .collect(),
        }
    }

    fn trace(documents: &[&[u64]]) -> Vec<Request> {
        documents
            .iter()
            .map(|documents| request(0, documents))
            .collect()
    }

    /// The documents of the plan's prompts, as sent.
    fn sent(requests: &[Request], plan: &[Planned]) -> Vec<(usize, Vec<u64>)> {
        plan.iter()
            .map(|planned| {
                let documents = &requests[planned.request].documents;
                let ranks = planned.order.iter();
                let numbers = ranks.map(|&rank| documents[usize::from(rank)].fingerprint.0);
                (planned.request, numbers.collect())
            })
            .collect()
    }

    fn reused(requests: &[Request], plan: &[Planned], capacity: Capacity) -> u64 {
        let mut cache = EngineCache::new(capacity);
        plan.iter()
            .map(|planned| {
                let request = &requests[planned.request];
                let ranks = planned.order.iter();
                let path = ranks.map(|&rank| &request.documents[usize::from(rank)]);
                cache.serve(request.scope, path)
            })
            .sum()
    }

    #[test]
    fn the_picture_above_is_what_happens() {
        let requests = trace(&[&[1, 2, 3, 7], &[4, 5], &[3, 2, 1, 8], &[9, 2, 1]]);
        assert_eq!(
            sent(&requests, &batch(&requests)),
            [
                (0, vec![1, 2, 3, 7]),
                (2, vec![1, 2, 3, 8]),
                (3, vec![1, 2, 9]),
                (1, vec![4, 5]),
            ]
        );
    }

    #[test]
    fn what_shares_nothing_stays_as_it_came() {
        let requests = workload::disjoint(20, 3);
        for (at, planned) in batch(&requests).iter().enumerate() {
            assert_eq!(planned.request, at);
            assert_eq!(planned.order.as_slice(), [0, 1, 2]);
        }
        assert_eq!(batch(&[]), []);
    }

    #[test]
    fn equal_sets_are_sent_in_one_order_one_after_another() {
        let requests = trace(&[&[3, 1, 2], &[4], &[2, 3, 1], &[1, 2, 3]]);
        assert_eq!(
            sent(&requests, &batch(&requests)),
            [
                (0, vec![3, 1, 2]),
                (2, vec![3, 1, 2]),
                (3, vec![3, 1, 2]),
                (1, vec![4]),
            ]
        );
    }

    #[test]
    fn the_heavier_document_is_shared() {
        // Document 6 has 16 tokens, and 7 has 10: only one of them can be shared.
        let requests = trace(&[&[7, 6], &[7], &[6]]);
        let plan = sent(&requests, &batch(&requests));
        assert_eq!(plan[0], (0, vec![6, 7]));
        assert_eq!(plan[1], (2, vec![6]));
    }

    #[test]
    fn effort_is_bounded_and_every_request_is_planned_all_the_same() {
        // Every request has every document, so each examines each other one, document by document.
        let requests: Vec<Request> = (0..1_500)
            .map(|own| request(0, &(0..20).chain([1_000 + own]).collect::<Vec<_>>()))
            .collect();
        let asked = std::cell::Cell::new(0);
        let is_over = |over_at| {
            let asked = &asked;
            move || {
                asked.set(asked.get() + 1);
                asked.get() == over_at
            }
        };
        let [never, soon] = [is_over(0), is_over(2)];
        let mut whole = Effort::new(u64::MAX, &never);
        let plan = within(&requests, &mut whole);
        let needed = u64::MAX - whole.steps;
        assert_eq!(asked.take(), needed / ASKED_EVERY);
        assert!(needed > 3 * ASKED_EVERY, "{needed}");
        assert_eq!(plan, batch(&requests));
        for (mut effort, is_cut) in [
            (Effort::new(needed + 1, &never), false),
            (Effort::new(needed / 2, &never), true),
            (Effort::new(1, &never), true),
            // The caller cancels it.
            (Effort::new(u64::MAX, &soon), true),
        ] {
            asked.set(0);
            let plan = within(&requests, &mut effort);
            assert_eq!(effort.is_spent(), is_cut);
            let planned: HashSet<usize> = plan.iter().map(|planned| planned.request).collect();
            assert_eq!((plan.len(), planned.len()), (1_500, 1_500));
            assert!(plan.iter().all(|planned| planned.order.len() == 21));
        }
        assert_eq!(asked.get(), 2, "it is not asked again");
    }

    #[test]
    fn scopes_share_nothing() {
        let requests = [
            request(1, &[1, 2]),
            request(2, &[5]),
            request(1, &[2, 3]),
            request(2, &[2, 5]),
        ];
        let planned: Vec<_> = batch(&requests)
            .iter()
            .map(|planned| planned.request)
            .collect();
        assert_eq!(planned, [0, 2, 1, 3]);
    }

    #[test]
    fn more_holders_of_a_document_than_are_searched_still_share_it() {
        let requests: Vec<Request> = (1..=3_000).map(|own| request(0, &[own, 0])).collect();
        let plan = batch(&requests);
        assert_eq!(plan.len(), requests.len());
        // Document 0 has 10 tokens.
        assert_eq!(reused(&requests, &plan, Capacity::UNBOUNDED), 2_999 * 10);
    }

    #[test]
    fn a_cache_of_a_few_prompts_reuses_what_an_unbounded_one_does() {
        let traces = [
            workload::bursty(1, 1_000, workload::Bursty::default()),
            workloads::zipf_topics(1, 1_000, 5_000, 15),
            workloads::conversations(1, 1_000, 10),
        ];
        for trace in traces {
            let plan = batch(&trace);
            let unbounded = reused(&trace, &plan, Capacity::UNBOUNDED);
            let bounded = reused(&trace, &plan, Capacity::of_prompts(4, &trace));
            assert_eq!(unbounded, bounded);
        }
    }

    #[test]
    fn a_plan_reuses_more_than_a_partition_from_the_top() {
        let traces = [
            workload::bursty(1, 1_000, workload::Bursty::default()),
            workloads::zipf_topics(1, 1_000, 5_000, 15),
            workloads::conversations(1, 1_000, 10),
        ];
        for trace in traces {
            let all: Vec<usize> = (0..trace.len()).collect();
            let partition = partition(&trace, all, &HashSet::new());
            let ours = reused(&trace, &batch(&trace), Capacity::UNBOUNDED);
            let tokens = document_tokens(&trace) as f64;
            let (ours, partition) = (ours as f64 / tokens, partition as f64 / tokens);
            assert!(ours > partition + 0.02, "{ours} against {partition}");
        }
    }

    /// Tokens saved by putting first the document that saves most, and so on in both parts.
    fn partition(trace: &[Request], requests: Vec<usize>, placed: &HashSet<u64>) -> u64 {
        let (mut requests, mut saved) = (requests, 0);
        loop {
            let mut worth: FxHashMap<u64, (u64, u64)> = FxHashMap::default();
            for &request in &requests {
                for document in &trace[request].documents {
                    let entry = worth.entry(document.fingerprint.0);
                    let (holders, _) = entry.or_insert((0, document.tokens.into()));
                    *holders += 1;
                }
            }
            let best = worth
                .into_iter()
                .filter(|(document, (holders, _))| *holders > 1 && !placed.contains(document))
                .map(|(document, (holders, tokens))| ((holders - 1) * tokens, document))
                .max();
            let Some((worth, best)) = best else {
                return saved;
            };
            let holds = |request: &usize| {
                let documents = &trace[*request].documents;
                documents
                    .iter()
                    .any(|document| document.fingerprint.0 == best)
            };
            let (with, without) = requests.into_iter().partition(holds);
            let mut placed = placed.clone();
            placed.insert(best);
            saved += worth + partition(trace, with, &placed);
            requests = without;
        }
    }

    /// Tokens saved by the tree behind a plan, computed on sets: every pair is examined for every join.
    fn model(requests: &[Request]) -> u64 {
        let mut sets: Vec<HashSet<(u64, u64, u32)>> = requests
            .iter()
            .map(|request| {
                let documents = request.documents.iter();
                documents
                    .map(|document| (request.scope.0, document.fingerprint.0, document.tokens))
                    .collect()
            })
            .collect();
        let tokens = |set: &HashSet<(u64, u64, u32)>| -> u64 {
            set.iter().map(|&(.., tokens)| u64::from(tokens)).sum()
        };
        let mut saved = 0;
        loop {
            let mut best = None;
            for a in 0..sets.len() {
                for b in 0..a {
                    let shared: HashSet<_> = sets[a].intersection(&sets[b]).copied().collect();
                    if !shared.is_empty() {
                        let worth = 12 * tokens(&shared) as i64
                            - (tokens(&sets[a]) + tokens(&sets[b])) as i64;
                        best = best.max(Some((worth, tokens(&shared), a, b)));
                    }
                }
            }
            let Some((_, shared, a, b)) = best else {
                return saved;
            };
            saved += shared;
            let joined = sets[a].intersection(&sets[b]).copied().collect();
            sets.remove(a);
            sets[b] = joined;
        }
    }

    fn batches() -> impl Strategy<Value = Vec<(u64, HashSet<u64>)>> {
        let set = proptest::collection::hash_set(0..9_u64, 0..6);
        proptest::collection::vec((0..2_u64, set), 0..30)
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_equals_are_planned_alike(batches in batches()) {
            let requests: Vec<_> = batches
                .iter()
                .map(|(scope, set)| request(*scope, &set.iter().copied().collect::<Vec<_>>()))
                .collect();
            let plan = batch(&requests);
            let mut planned: Vec<_> = plan.iter().map(|planned| planned.request).collect();
            planned.sort_unstable();
            prop_assert_eq!(planned, (0..requests.len()).collect::<Vec<_>>());
            let mut orders: FxHashMap<(u64, Vec<u64>), Vec<u64>> = FxHashMap::default();
            for (request, documents) in sent(&requests, &plan) {
                let mut set: Vec<_> = batches[request].1.iter().copied().collect();
                set.sort_unstable();
                let mut sorted = documents.clone();
                sorted.sort_unstable();
                prop_assert_eq!(&sorted, &set);
                let order = orders.entry((batches[request].0, set)).or_insert(documents.clone());
                prop_assert_eq!(&*order, &documents);
            }
        }

        /// A cache of only the last prompt saves what the joins promise.
        #[test]
        fn every_join_is_shared_by_two_neighbours(batches in batches()) {
            let requests: Vec<_> = batches
                .iter()
                .map(|(scope, set)| request(*scope, &set.iter().copied().collect::<Vec<_>>()))
                .collect();
            let corpus = Corpus::of(&requests);
            let (sets, members) = corpus.distinct_sets();
            let weigh = |documents: &[u32]| -> u64 {
                documents.iter().map(|&document| corpus.tokens[document as usize]).sum()
            };
            let repeats = sets.iter().zip(&members);
            let mut promised: u64 = repeats
                .map(|(set, members)| weigh(set) * (members.len() as u64 - 1))
                .sum();
            for cluster in cluster::agglomerate(sets, &corpus.tokens, &mut Effort::new(u64::MAX, &|| false)) {
                if cluster.children.is_some() {
                    promised += weigh(&cluster.documents);
                }
            }
            let plan = batch(&requests);
            let mut shared = 0;
            for pair in plan.windows(2) {
                let path = |planned: &Planned| {
                    let request = &requests[planned.request];
                    let ranks = planned.order.iter();
                    ranks
                        .map(|&rank| (request.scope, request.documents[usize::from(rank)].clone()))
                        .collect::<Vec<_>>()
                };
                for (left, right) in path(&pair[0]).iter().zip(&path(&pair[1])) {
                    if left != right {
                        break;
                    }
                    shared += u64::from(left.1.tokens);
                }
            }
            prop_assert!(shared >= promised, "{shared} of {promised}");
        }

        /// Ties are broken differently, so the results are only close: both are greedy for the same value.
        #[test]
        fn reuses_as_much_as_looking_at_every_pair(batches in proptest::collection::vec(batches(), 40)) {
            let (mut ours, mut models) = (0, 0);
            for batches in batches {
                let requests: Vec<_> = batches
                    .iter()
                    .map(|(scope, set)| request(*scope, &set.iter().copied().collect::<Vec<_>>()))
                    .collect();
                ours += reused(&requests, &batch(&requests), Capacity::UNBOUNDED);
                models += model(&requests);
            }
            prop_assert!(ours * 100 >= models * 98, "{ours} against {models}");
        }

        #[test]
        fn repeats_within_a_request_and_documents_without_tokens_are_ordered_too(
            documents in proptest::collection::vec(proptest::collection::vec(0..5_u64, 0..8), 0..12),
        ) {
            let requests: Vec<_> = documents
                .iter()
                .map(|documents| Request {
                    is_ranked: true,
                    scope: Scope(0),
                    documents: documents.iter().map(|&d| Retrieved::numbered(d, 0)).collect(),
                })
                .collect();
            let plan = batch(&requests);
            prop_assert_eq!(plan.len(), requests.len());
            for planned in plan {
                let mut ranks = planned.order.to_vec();
                ranks.sort_unstable();
                let count = documents[planned.request].len() as u16;
                prop_assert_eq!(ranks, (0..count).collect::<Vec<_>>());
            }
        }
    }
}
