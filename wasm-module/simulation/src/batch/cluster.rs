//! Clusters requests that share documents: repeatedly joins the pair that shares most.
//!
//! A join of two clusters keeps the documents that both have, and saves their tokens once. Greedily joining the pair
//! that saves most is what average-linkage clustering on a distance (RAGBoost, section 4.1) approximates. Measured and
//! rejected: top-down partition by the most frequent document (splits similar requests over one popular document; 3 to
//! 5 points less reuse), Jaccard's index instead of shared tokens (2 points less with many documents per request), and
//! pruning and regrafting subtrees afterwards (0.2 to 0.4 points more, for more than the time of everything else).

use super::Effort;
use std::collections::BinaryHeap;

/// A set of requests.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Documents that all its requests have, as numbers, ascending.
    pub(super) documents: Vec<u32>,
    /// The two clusters that were joined into this one; `None` for a leaf.
    pub(super) children: Option<[u32; 2]>,
    /// True if the cluster is part of no other.
    pub(super) is_root: bool,
    tokens: u64,
}

/// Joins the leaves `sets` (ascending documents, which index `tokens`) until no two roots share a document. The leaves
/// are the first clusters, in the order of the sets; children come before their parents.
///
/// Among pairs that share about equally, the one with the smaller loss is joined first: see [`GIVEN_UP`]. A cluster
/// looks for its partner among the nearest [`REACH`] holders of each of its documents, and again when its partner has
/// joined another: O(documents x REACH) per search, a few for every set. With at most REACH holders per document the
/// search is exhaustive. With more it still ends only when no two roots share a document or the effort is spent.
pub(super) fn agglomerate(
    sets: Vec<Vec<u32>>,
    tokens: &[u64],
    effort: &mut Effort<'_>,
) -> Vec<Cluster> {
    let mut joining = Joining {
        effort,
        clusters: Vec::with_capacity(sets.len() * 2),
        holders: tokens.iter().map(|_| Holders::default()).collect(),
        tokens,
        shared: Vec::with_capacity(sets.len() * 2),
        met: Vec::new(),
        pairs: BinaryHeap::new(),
    };
    for set in sets {
        joining.add(set, None);
    }
    while let Some(pair) = joining.pairs.pop() {
        if !joining.is_root(pair.younger) {
            continue;
        }
        if joining.is_root(pair.older) {
            joining.join(pair);
        } else {
            joining.find_partner(pair.younger);
        }
    }
    joining.clusters
}

/// Weight of shared tokens relative to tokens that only one of a pair has, which no later join can share. 5 instead of
/// 10 lost 0.4 points of reuse on Zipf traffic.
const GIVEN_UP: u64 = 10;

/// Holders of a document among which a partner is sought. A quarter of it halves the time for 100,000 requests of 15
/// documents and loses a point of reuse there, none for 2,000.
const REACH: usize = 1024;

struct Joining<'a, 'e> {
    effort: &'a mut Effort<'e>,
    clusters: Vec<Cluster>,
    /// Holders by document.
    holders: Vec<Holders>,
    tokens: &'a [u64],
    /// By cluster, the tokens shared with the cluster whose partner is sought; 0 between searches.
    shared: Vec<u64>,
    /// Clusters with a nonzero `shared`.
    met: Vec<u32>,
    /// Each root's best pair with an older root, and obsolete pairs.
    pairs: BinaryHeap<Pair>,
}

/// The clusters with a document.
#[derive(Default)]
struct Holders {
    /// The clusters, ascending, including former roots.
    clusters: Vec<u32>,
    /// Number of former roots among them.
    joined: usize,
}

/// Two clusters to join. Each pair belongs to its younger member, which found the older one when it was created. So the
/// best of all pairs is the best of every root's best.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    worth: i64,
    younger: u32,
    older: u32,
}

impl Joining<'_, '_> {
    fn is_root(&self, cluster: u32) -> bool {
        self.clusters
            .get(cluster as usize)
            .is_some_and(|cluster| cluster.is_root)
    }

    fn add(&mut self, documents: Vec<u32>, children: Option<[u32; 2]>) {
        let id = self.clusters.len() as u32;
        let tokens = documents
            .iter()
            .filter_map(|&document| self.tokens.get(document as usize));
        self.clusters.push(Cluster {
            tokens: tokens.sum(),
            documents,
            children,
            is_root: true,
        });
        self.shared.push(0);
        self.find_partner(id);
        let cluster = self.clusters.get(id as usize);
        for &document in cluster.into_iter().flat_map(|cluster| &cluster.documents) {
            if let Some(holders) = self.holders.get_mut(document as usize) {
                holders.clusters.push(id);
            }
        }
    }

    /// Adds the best pair of `younger` and an older root to `pairs`, if any of these shares documents with it.
    fn find_partner(&mut self, younger: u32) {
        let Some(cluster) = self.clusters.get(younger as usize) else {
            return;
        };
        for &document in &cluster.documents {
            if self.effort.is_spent() {
                break;
            }
            let mut looks = 0;
            let at = document as usize;
            let (Some(holders), Some(&tokens)) = (self.holders.get(at), self.tokens.get(at)) else {
                continue;
            };
            let older = holders.clusters.partition_point(|&holder| holder < younger);
            let is_root = |holder: &&u32| {
                looks += 1;
                let holder = self.clusters.get(**holder as usize);
                holder.is_some_and(|holder| holder.is_root)
            };
            let older = holders.clusters.get(..older).into_iter().flatten();
            for &holder in older.rev().filter(is_root).take(REACH) {
                if let Some(shared) = self.shared.get_mut(holder as usize) {
                    if *shared == 0 {
                        self.met.push(holder);
                    }
                    *shared += tokens;
                }
            }
            self.effort.spend(looks);
        }
        let mut best: Option<Pair> = None;
        for older in self.met.drain(..) {
            let shared = self.shared.get_mut(older as usize).map(std::mem::take);
            let (Some(shared), Some(other)) = (shared, self.clusters.get(older as usize)) else {
                continue;
            };
            let given_up = cluster.tokens + other.tokens - 2 * shared;
            let pair = Pair {
                worth: (shared * GIVEN_UP) as i64 - given_up as i64,
                younger,
                older,
            };
            best = best.max(Some(pair));
        }
        self.pairs.extend(best);
    }

    fn join(&mut self, pair: Pair) {
        let children = [pair.older, pair.younger];
        let mut both = Vec::new();
        if let [Some(older), Some(younger)] = children.map(|id| self.clusters.get(id as usize)) {
            both = common(&older.documents, &younger.documents);
        }
        for id in children {
            self.retire(id);
        }
        self.add(both, Some(children));
    }

    /// Records that a root is now part of another cluster. Lists in which half are former roots are compacted, so that
    /// a list is scanned about once for every cluster that leaves it.
    fn retire(&mut self, id: u32) {
        let Some(cluster) = self.clusters.get_mut(id as usize) else {
            return;
        };
        cluster.is_root = false;
        let clusters = &self.clusters;
        let is_root = |id: u32| {
            clusters
                .get(id as usize)
                .is_some_and(|cluster| cluster.is_root)
        };
        let documents = clusters.get(id as usize).map(|cluster| &cluster.documents);
        for &document in documents.into_iter().flatten() {
            let Some(holders) = self.holders.get_mut(document as usize) else {
                continue;
            };
            holders.joined += 1;
            if holders.joined * 2 > holders.clusters.len() {
                holders.clusters.retain(|&holder| is_root(holder));
                holders.joined = 0;
            }
        }
    }
}

/// Returns the common elements of two ascending lists.
fn common(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut b = b.iter().peekable();
    a.iter()
        .copied()
        .filter(|document| {
            while b.next_if(|other| *other < document).is_some() {}
            b.next_if_eq(&document).is_some()
        })
        .collect()
}
