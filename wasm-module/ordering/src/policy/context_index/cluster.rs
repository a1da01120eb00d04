//! Builds a context index from many contexts (document sets of requests) in one pass. Each context begins as a cluster;
//! the nearest two clusters merge into one with their common documents, until no two have any in common (RAGBoost
//! section 4.1).
//!
//! Only clusters with a common document can be near, and an inverted index finds those. A heap holds each cluster with
//! its nearest neighbour at the time of entry; if that neighbour has merged when the entry is popped, a new one is
//! looked up. An entry's distance never exceeds the distance to any cluster that existed then, and later clusters have
//! entries of their own. So the least entry whose two clusters both remain is the nearest pair of all.

use super::ContextIndex;
use super::tree::{NodeId, NodeKind, ROOT, Rules, count};
use crate::document::Fingerprint;
use fxhash::FxHashMap;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

struct Cluster {
    /// The documents that all contexts (document sets of requests) of the cluster have, in the order of the cluster's
    /// first context.
    documents: Vec<Fingerprint>,
    /// The indices of the clusters that were merged into this one; empty for a cluster of a single context (document
    /// set of a request).
    parts: Vec<u32>,
    is_merged: bool,
}

/// A cluster of contexts (document sets of requests) and its nearest neighbour, sorted by their distance, then by the
/// clusters' age.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    /// The distance of `cluster` and `other` as the bits of an `f64`; since it is not negative, the bits sort like the
    /// number.
    distance: u64,
    cluster: u32,
    other: u32,
}

#[derive(Default)]
struct Clusters {
    rules: Rules,
    all: Vec<Cluster>,
    /// For each document, the indices of the clusters that have it, each with the document's position there. Clusters
    /// that were merged into others are removed only when a search meets them.
    postings: FxHashMap<Fingerprint, Vec<(u32, u32)>>,
    /// For each cluster, by its index, while another cluster's nearest neighbour is being searched: the number of
    /// documents that the two share, and the sum of the differences of these documents' positions. Zero between
    /// searches.
    shares: Vec<(u32, u32)>,
    heap: BinaryHeap<Reverse<Pair>>,
}

/// Fills the empty `index` with a tree of `contexts` (document sets of requests) by clustering, and returns the leaf of
/// each context.
pub(super) fn build(index: &mut ContextIndex, contexts: &[Vec<Fingerprint>]) -> Vec<NodeId> {
    let mut clusters = Clusters {
        rules: index.tree.rules(),
        ..Clusters::default()
    };
    for context in contexts {
        clusters.add(context.clone(), Vec::new());
    }
    for cluster in 0..count(contexts.len()) {
        clusters.pair(cluster);
    }
    while let Some(Reverse(pair)) = clusters.heap.pop() {
        if !clusters.is_left(pair.cluster) {
            continue;
        }
        if clusters.is_left(pair.other) {
            clusters.merge(pair.cluster, pair.other);
        } else {
            clusters.pair(pair.cluster);
        }
    }
    clusters.attach_all(index, contexts.len())
}

impl Clusters {
    fn add(&mut self, documents: Vec<Fingerprint>, parts: Vec<u32>) -> u32 {
        let id = count(self.all.len());
        for (&document, position) in documents.iter().zip(0..) {
            self.postings
                .entry(document)
                .or_default()
                .push((id, position));
        }
        self.all.push(Cluster {
            documents,
            parts,
            is_merged: false,
        });
        self.shares.push((0, 0));
        id
    }

    fn is_left(&self, cluster: u32) -> bool {
        self.all
            .get(cluster as usize)
            .is_some_and(|cluster| !cluster.is_merged)
    }

    /// Finds the nearest neighbour of `cluster` and pushes both onto the heap; does nothing if no other cluster has a
    /// document in common with it.
    fn pair(&mut self, cluster: u32) {
        let Self {
            rules,
            all,
            postings,
            shares,
            heap,
        } = self;
        let Some(own) = all.get(cluster as usize) else {
            return;
        };
        let mut met = Vec::new();
        for (document, position) in own.documents.iter().zip(0_u32..) {
            let Some(posted) = postings.get_mut(document) else {
                continue;
            };
            posted.retain(|&(other, other_position)| {
                let is_left = all
                    .get(other as usize)
                    .is_some_and(|other| !other.is_merged);
                if is_left
                    && other != cluster
                    && let Some((shared, gaps)) = shares.get_mut(other as usize)
                {
                    if *shared == 0 {
                        met.push(other);
                    }
                    *shared += 1;
                    *gaps += position.abs_diff(other_position);
                }
                is_left
            });
        }
        let nearest = met.into_iter().map(|other| {
            let (shared, gaps) = shares
                .get_mut(other as usize)
                .map(std::mem::take)
                .unwrap_or_default();
            let held = all
                .get(other as usize)
                .map_or(0, |other| other.documents.len());
            let larger = count(held.max(own.documents.len()));
            Pair {
                distance: rules.distance(shared, larger, gaps).to_bits(),
                cluster,
                other,
            }
        });
        heap.extend(nearest.min().map(Reverse));
    }

    fn merge(&mut self, a: u32, b: u32) {
        // The merged cluster has the order of the older one.
        let (a, b) = (a.min(b), a.max(b));
        let (Some(first), Some(second)) = (self.all.get(a as usize), self.all.get(b as usize))
        else {
            return;
        };
        let mut shared: Vec<Fingerprint> = first
            .documents
            .iter()
            .copied()
            .filter(|document| second.documents.contains(document))
            .collect();
        self.rules.sort(&mut shared);
        // If a cluster has only the shared documents, its parts replace it.
        let parts_of = |id: u32, cluster: &Cluster| {
            if cluster.documents.len() == shared.len() && !cluster.parts.is_empty() {
                cluster.parts.clone()
            } else {
                vec![id]
            }
        };
        let mut parts = parts_of(a, first);
        parts.extend(parts_of(b, second));
        for merged in [a, b] {
            if let Some(cluster) = self.all.get_mut(merged as usize) {
                cluster.is_merged = true;
            }
        }
        let cluster = self.add(shared, parts);
        self.pair(cluster);
    }

    /// Attaches the remaining clusters to the root of `index`, with the clusters merged into them below; returns the
    /// leaf of each of the first `contexts` clusters, which are the contexts (document sets of requests).
    fn attach_all(self, index: &mut ContextIndex, contexts: usize) -> Vec<NodeId> {
        let mut leaves = vec![ROOT; contexts];
        let mut stack: Vec<(u32, NodeId)> = (0..count(self.all.len()))
            .rev()
            .filter(|&cluster| self.is_left(cluster))
            .map(|cluster| (cluster, ROOT))
            .collect();
        while let Some((id, parent)) = stack.pop() {
            let Some(cluster) = self.all.get(id as usize) else {
                continue;
            };
            let above = index.context(parent);
            let added: SmallVec<[Fingerprint; 8]> = cluster
                .documents
                .iter()
                .copied()
                .filter(|document| !above.contains(document))
                .collect();
            let kind = if cluster.parts.is_empty() {
                NodeKind::Context(u64::from(id))
            } else {
                NodeKind::Shared
            };
            let node = index.tree.attach(parent, added, 0, kind);
            stack.extend(cluster.parts.iter().rev().map(|&part| (part, node)));
            if let Some(leaf) = leaves.get_mut(id as usize) {
                *leaf = node;
            }
        }
        for (&leaf, key) in leaves.iter().zip(0..) {
            index.leaves.insert(key, leaf);
            index.recency.add(leaf.0);
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::prints;
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_papers_example() {
        let contexts = [[2, 1, 3], [2, 6, 1], [4, 1, 0]].map(|c| prints(&c));
        let (index, leaves) = ContextIndex::build(&contexts, Rules::default());
        let orders: Vec<_> = leaves.iter().map(|&leaf| index.context(leaf)).collect();
        assert_eq!(
            orders,
            [[1, 2, 3], [1, 2, 6], [1, 4, 0]].map(|c| prints(&c))
        );
        let paths: Vec<_> = leaves.iter().map(|&leaf| index.path(leaf)).collect();
        assert_eq!(paths.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 3]);
        assert_eq!(paths[0][1..], paths[1][1..]);
        // A new context inherits [1 2] from the inner node.
        assert_eq!(index.tree.find(ROOT, &prints(&[2, 1, 4])).path[..], [1, 0]);
    }

    #[test]
    fn contexts_that_share_nothing_stay_as_they_are() {
        let contexts = [vec![1, 2], vec![3], vec![], vec![3]].map(|c| prints(&c));
        let (index, leaves) = ContextIndex::build(&contexts, Rules::default());
        assert_eq!(index.len(), 4);
        for (leaf, context) in leaves.iter().zip(&contexts) {
            assert_eq!(index.context(*leaf), *context);
        }
    }

    /// Returns the nearest pair of clusters and its distance, by trying every pair; `None` if no two have a document in
    /// common.
    fn nearest(clusters: &[Vec<Fingerprint>]) -> Option<(f64, usize, usize)> {
        let mut best: Option<(f64, usize, usize)> = None;
        for b in 0..clusters.len() {
            for a in 0..b {
                let (x, y) = (&clusters[a], &clusters[b]);
                let gaps: Vec<u32> = (0_u32..)
                    .zip(x)
                    .filter_map(|(p, d)| Some(p.abs_diff(y.iter().position(|e| e == d)? as u32)))
                    .collect();
                let apart = Rules::default().distance(
                    gaps.len() as u32,
                    x.len().max(y.len()) as u32,
                    gaps.iter().sum(),
                );
                if !gaps.is_empty() && best.is_none_or(|best| apart < best.0) {
                    best = Some((apart, a, b));
                }
            }
        }
        best
    }

    #[test]
    fn merges_the_nearest_pair_as_a_search_of_all_pairs_would() {
        let mut random = Random::new(5);
        for _ in 0..200 {
            let contexts: Vec<Vec<Fingerprint>> = (0..random.below(9))
                .map(|_| {
                    let mut documents: Vec<u64> = (0..9).collect();
                    random.shuffle(&mut documents);
                    documents.truncate(random.below(6) as usize);
                    prints(&documents)
                })
                .collect();
            let mut clusters = Clusters::default();
            for context in &contexts {
                clusters.add(context.clone(), Vec::new());
            }
            for cluster in 0..contexts.len() as u32 {
                clusters.pair(cluster);
            }
            while let Some(Reverse(pair)) = clusters.heap.pop() {
                if !clusters.is_left(pair.cluster) {
                    continue;
                }
                if !clusters.is_left(pair.other) {
                    clusters.pair(pair.cluster);
                    continue;
                }
                let left: Vec<Vec<Fingerprint>> = clusters
                    .all
                    .iter()
                    .filter(|cluster| !cluster.is_merged)
                    .map(|cluster| cluster.documents.clone())
                    .collect();
                assert_eq!(nearest(&left).unwrap().0.to_bits(), pair.distance);
                clusters.merge(pair.cluster, pair.other);
            }
            let left: Vec<Vec<Fingerprint>> = clusters
                .all
                .iter()
                .filter(|cluster| !cluster.is_merged)
                .map(|cluster| cluster.documents.clone())
                .collect();
            assert_eq!(nearest(&left), None);
        }
    }
}
