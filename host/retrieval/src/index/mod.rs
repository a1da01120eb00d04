//! Vector indexes that yield their best `k` after every stage of a search.
//!
//! ```text
//!   search(query, k) ─▶ advance() ─▶ top()  ─▶ advance() ─▶ top()  ─▶ …  ─▶ advance() = false
//!                       stage 1      k best    stage 2      k best          complete
//! ```
//!
//! | index | a stage is | finds |
//! | --- | --- | --- |
//! | [`Flat`] | a share of all vectors | the exact answer |
//! | [`Ivf`] | a group of clusters, nearest first | most of it, from a fraction of the vectors |
//! | [`Hnsw`] | a slice of the walk through the graph | most of it, from a few hundred vectors |
//!
//! Stages allow the engine to compute a prompt while the search for its documents continues (RAGCache, section 5.3).
//! They are counted in work, so the same query has the same stages on every machine and in every test. The indexes are
//! the project's own: well-kept crates (usearch, hnsw_rs, faiss's bindings) run a search to its end in one call,
//! without intermediate results.
//!
//! An index does not own vectors: it receives [`Vectors`] and finds [`Slot`]s.

mod flat;
mod hnsw;
mod ivf;
mod top;
mod vectors;

pub use flat::Flat;
pub use hnsw::{Hnsw, HnswOptions};
pub use ivf::{Ivf, IvfOptions};
pub use top::Top;
pub use vectors::{Metric, Refused, Vectors};

use serde::{Deserialize, Serialize};

/// The index of a vector in its [`Vectors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// A vector found by a search, with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// The vector's slot.
    pub slot: Slot,
    /// Similarity to the query; larger is nearer (see [`Metric`]).
    pub score: f32,
}

foreword_ordering::named! {
    /// The kinds of index.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Kind {
        /// Compares all vectors, see [`Flat`].
        Flat = "flat",
        /// Visits the nearest clusters, see [`Ivf`].
        Ivf = "ivf",
        /// Walks through a graph of near vectors, see [`Hnsw`].
        #[default]
        Hnsw = "hnsw",
    }
}

/// Decides which slots a search may return, for instance only those not deleted. Called only for slots that would be
/// among the best.
pub type SlotFilter<'a> = dyn Fn(Slot) -> bool + Sync + 'a;

/// An index over vectors, which finds those nearest to a query.
pub trait Index: Send + Sync {
    /// Begins a search for the `k` vectors nearest to `query`, which must be [prepared](Vectors::prepare), among those
    /// that `keep` accepts. Nothing is compared before the first stage.
    fn search<'a>(
        &'a self,
        vectors: &'a Vectors,
        query: &'a [f32],
        k: usize,
        keep: &'a SlotFilter<'a>,
    ) -> Box<dyn Search + 'a>;

    /// Adds `slot`, which must be in `vectors` and new to the index. Slots must be added in ascending order.
    fn add(&mut self, vectors: &Vectors, slot: Slot);

    /// Returns the number of vectors that an IVF index had when it was clustered; `None` for other indexes.
    fn clustered(&self) -> Option<u32> {
        None
    }

    /// Returns the clustering options of an IVF index; `None` for other indexes.
    fn ivf_options(&self) -> Option<IvfOptions> {
        None
    }

    /// Returns the graph options of an HNSW index; `None` for other indexes.
    fn hnsw_options(&self) -> Option<HnswOptions> {
        None
    }

    /// Returns the parts that a file stores for the index over `vectors`: see [`crate::file`].
    fn parts(&self, vectors: &Vectors) -> Vec<(crate::file::Part, Vec<u8>)>;
}

/// A search in progress.
pub trait Search {
    /// Runs the next stage. Returns false if the search was complete; then nothing has changed.
    fn advance(&mut self) -> bool;

    /// Returns the best hits so far, nearest first, the lower slot first among equals.
    fn top(&self) -> &[Hit];
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use foreword_ordering::random::Random;

    /// Returns `count` points around `centres` centres: on the centres for a `spread` of 0, anywhere for 1.
    pub(crate) fn clustered(
        random: &mut Random,
        count: usize,
        dimensions: usize,
        centres: usize,
        spread: f32,
    ) -> Vec<Vec<f32>> {
        let mut point = |scale: f32| -> Vec<f32> {
            let mut normal = || (0..6).map(|_| random.unit() as f32).sum::<f32>() - 3.0;
            (0..dimensions).map(|_| scale * normal()).collect()
        };
        let centres: Vec<Vec<f32>> = (0..centres).map(|_| point(1.0)).collect();
        (0..count)
            .map(|at| {
                let offset = point(spread);
                let centre = &centres[at * 7919 % centres.len()];
                centre.iter().zip(offset).map(|(a, b)| a + b).collect()
            })
            .collect()
    }

    pub(crate) fn vectors(metric: Metric, points: &[Vec<f32>]) -> Vectors {
        let mut vectors = Vectors::new(points[0].len() as u32, metric);
        for point in points {
            vectors.push(point).unwrap();
        }
        vectors
    }

    /// Runs the whole search and returns its best hits.
    fn run<'s>(search: &'s mut (dyn Search + '_)) -> &'s [Hit] {
        while search.advance() {}
        search.top()
    }

    fn indexes(vectors: &Vectors) -> [(Kind, Box<dyn Index>); 3] {
        [
            (Kind::Flat, Box::new(Flat)),
            (
                Kind::Ivf,
                Box::new(Ivf::build(vectors, IvfOptions::for_count(vectors.len()))),
            ),
            (
                Kind::Hnsw,
                Box::new(Hnsw::build(vectors, HnswOptions::default())),
            ),
        ]
    }

    /// The exact result, by brute force.
    fn exact(vectors: &Vectors, query: &[f32], k: usize, keep: &SlotFilter<'_>) -> Vec<Slot> {
        let slots = (0..vectors.len() as u32).map(Slot);
        let mut all: Vec<Hit> = slots
            .filter(|slot| keep(*slot))
            .map(|slot| Hit {
                slot,
                score: vectors.score(query, slot),
            })
            .collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.slot.cmp(&b.slot)));
        all.iter().take(k).map(|hit| hit.slot).collect()
    }

    #[test]
    fn every_index_finds_nearly_all_of_the_nearest_by_every_metric() {
        let mut random = Random::new(3);
        let points = clustered(&mut random, 3_000, 24, 40, 0.7);
        let asked = clustered(&mut random, 60, 24, 40, 0.7);
        for metric in [Metric::Cosine, Metric::L2, Metric::InnerProduct] {
            let vectors = vectors(metric, &points);
            for (kind, index) in indexes(&vectors) {
                let mut found = 0;
                for query in &asked {
                    let query = vectors.prepare(query).unwrap();
                    let mut search = index.search(&vectors, &query, 10, &|_| true);
                    let top = run(&mut *search);
                    assert!(top.is_sorted_by(|a, b| a.score >= b.score));
                    let exact = exact(&vectors, &query, 10, &|_| true);
                    found += top.iter().filter(|hit| exact.contains(&hit.slot)).count();
                }
                let name = kind.name();
                let recall = found as f64 / 600.0;
                let least = if kind == Kind::Flat { 1.0 } else { 0.95 };
                assert!(recall >= least, "{name} by {metric:?}: {recall}");
            }
        }
    }

    #[test]
    fn a_stage_only_ever_improves_the_top_and_the_search_ends() {
        let mut random = Random::new(4);
        let points = clustered(&mut random, 2_000, 16, 30, 0.8);
        let vectors = vectors(Metric::Cosine, &points);
        let query = vectors.prepare(&points[77]).unwrap();
        for (kind, index) in indexes(&vectors) {
            let mut search = index.search(&vectors, &query, 5, &|_| true);
            assert!(search.top().is_empty());
            let mut stages = 0;
            let mut before: Vec<Hit> = Vec::new();
            while search.advance() {
                let top = search.top();
                assert!(top.len() >= before.len());
                for (now, then) in top.iter().zip(&before) {
                    assert!(now.score >= then.score);
                }
                before = top.to_vec();
                stages += 1;
            }
            assert!(!search.advance());
            assert_eq!(search.top(), before);
            assert_eq!(before[0].slot, Slot(77));
            assert!(stages >= 8, "{}: {stages} stages", kind.name());
        }
    }

    #[test]
    fn what_is_not_to_be_kept_is_passed_over_and_what_lies_behind_it_found() {
        let mut random = Random::new(5);
        let points = clustered(&mut random, 1_000, 16, 20, 0.8);
        let vectors = vectors(Metric::L2, &points);
        let keep = |slot: Slot| slot.0.is_multiple_of(3);
        for (kind, index) in indexes(&vectors) {
            let mut found = 0;
            for query in &points[..30] {
                let mut search = index.search(&vectors, query, 5, &keep);
                let top = run(&mut *search);
                assert!(top.iter().all(|hit| keep(hit.slot)));
                assert_eq!(top.len(), 5, "{}", kind.name());
                let exact = exact(&vectors, query, 5, &keep);
                found += top.iter().filter(|hit| exact.contains(&hit.slot)).count();
            }
            assert!(found >= 130, "{}: {found} of 150", kind.name());
        }
    }

    #[test]
    fn what_is_added_later_is_found_like_the_rest() {
        let mut random = Random::new(6);
        let points = clustered(&mut random, 1_200, 16, 20, 0.8);
        let (first, later) = points.split_at(600);
        let mut space = vectors(Metric::Cosine, first);
        let mut indexes = indexes(&space);
        for point in later {
            let slot = space.push(point).unwrap();
            for (_, index) in &mut indexes {
                index.add(&space, slot);
            }
        }
        for (kind, index) in &indexes {
            let found = (600..1_200).filter(|&at| {
                let query = space.prepare(&points[at]).unwrap();
                let mut search = index.search(&space, &query, 1, &|_| true);
                run(&mut *search)[0].slot == Slot(at as u32)
            });
            let found = found.count();
            assert!(found >= 580, "{}: {found} of 600", kind.name());
        }
    }

    #[test]
    fn the_smallest_collections_are_searched_too() {
        for count in 0..4 {
            let points: Vec<Vec<f32>> = (0..count).map(|at| vec![1.0, at as f32]).collect();
            let mut vectors = Vectors::new(2, Metric::Cosine);
            for point in &points {
                vectors.push(point).unwrap();
            }
            for (_, index) in indexes(&vectors) {
                for k in [0, 1, 9] {
                    let mut search = index.search(&vectors, &[1.0, 0.0], k, &|_| true);
                    assert_eq!(run(&mut *search).len(), count.min(k));
                }
            }
        }
    }
}
