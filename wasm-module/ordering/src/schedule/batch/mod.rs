//! A batch: every request is known before the first is sent, so the order of documents in each and the order of the
//! requests are both ours.
//!
//! ```text
//!   A {1 2 3 7}    agglomerate        {1 2} ─┬─ {1 2 3} ─┬─ A      depth first      A: 1 2 3 7
//!   B {4 5}        ──────────▶               │           └─ C      ──────────▶      C: 1 2 3 8
//!   C {3 2 1 8}                              └─ D                                   D: 1 2 9
//!   D {9 2 1}                         B                                             B: 4 5
//! ```
//!
//! A batch in a given order costs the engine one computation of every node of the prefix tree of its prompts. In a
//! tree that joins two clusters of requests at a time, a join saves once over what all requests below it share; so
//! the task is to find the tree whose joins share most ([`cluster`]). Walked depth first, that tree needs no large
//! cache: what a prompt shares with any earlier one, it shares with the one before it.

mod cluster;

use self::cluster::Cluster;
use crate::document::Fingerprint;
use crate::policy::Order;
use crate::simulation::Request;
use fxhash::FxHashMap;

/// A request of a batch, in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its position in the batch as it was given.
    pub request: usize,
    /// In which order its documents shall stand.
    pub order: Order,
}

/// Plans a batch so that prompts share prefixes, weighed in tokens, and those that do stand together. Every request
/// occurs once, and its order is a permutation of its documents (a request has at most `u16::MAX` of them, far more
/// than [`crate::policy::MAX_CANDIDATES`]). Requests of different scopes share nothing. Where sharing leaves a
/// choice, earlier requests go first and documents stand in rank order.
///
/// Deterministic. Time is that of [`cluster::agglomerate`]; memory is linear in the batch's documents.
#[must_use]
pub fn batch(requests: &[Request]) -> Vec<Planned> {
    let corpus = Corpus::of(requests);
    let (sets, members) = corpus.distinct_sets();
    let clusters = cluster::agglomerate(sets, &corpus.tokens);
    Emission::new(&corpus, &clusters, &members).run()
}

/// The batch in small numbers: documents by falling number of requests that hold them, scope by scope.
struct Corpus {
    /// A document's tokens; at least 1, for a document without any is still worth sharing.
    tokens: Vec<u64>,
    /// The documents of every request, in rank order.
    requests: Vec<Vec<u32>>,
}

impl Corpus {
    fn of(requests: &[Request]) -> Self {
        let mut numbers: FxHashMap<(u64, Fingerprint), u32> = FxHashMap::default();
        // Tokens and number of holders, as they are met.
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

    /// The requests' document sets, each once, and the requests that have it, in order of arrival. In lexicographic
    /// order, which by the numbering puts sets that share frequent documents near each other.
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
    /// The requests of every leaf.
    members: &'a [Vec<usize>],
    /// The earliest request below every cluster.
    earliest: Vec<usize>,
    /// The documents from the root to where the walk stands.
    path: Vec<u32>,
    /// Where in `path` a document stands; stale for those that do not.
    places: Vec<u32>,
    plan: Vec<Planned>,
}

impl<'a> Emission<'a> {
    fn new(corpus: &'a Corpus, clusters: &'a [Cluster], members: &'a [Vec<usize>]) -> Self {
        let mut earliest: Vec<usize> = Vec::with_capacity(clusters.len());
        for (at, cluster) in clusters.iter().enumerate() {
            // Children stand before their parents.
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
        // Clusters to visit, the next one last, and the documents of their parents' paths.
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

    /// Adds to the path what `cluster` shares beyond it, as its earliest request ranks it.
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

    /// Plans the requests of a leaf: the path holds all their documents.
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
