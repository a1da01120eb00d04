//! Searching a collection, stage by stage.
//!
//! If the question's words are given with its vector, two rankings are fused by their ranks (reciprocal rank fusion,
//! Cormack et al., SIGIR 2009). A document's score is the sum of 1 / (60 + its rank) over the rankings that contain it.
//! The word ranking is computed first, in one go, and fused with the best vectors after every stage.

use super::{Collection, ScoredDocument};
use crate::file::FileError;
use crate::index::{Hit, Refused, Slot, SlotFilter, Top};
use crate::words::has_words;
use fxhash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A query to a collection of documents.
#[derive(Clone, Copy, Debug)]
pub struct Query<'q> {
    /// The question's vector.
    pub vector: &'q [f32],
    /// The question, if its words are searched too. Ignored if it has no word.
    pub words: Option<&'q str>,
    /// Number of documents wanted.
    pub k: usize,
    /// Required values of metadata fields; an array accepts any of its values.
    pub filters: &'q Map<String, Value>,
    /// A reference to a value that the caller owns. Once the caller has dropped it, the search ends with its current
    /// stage and finds no further document. `None` for a search that is never cancelled.
    pub caller: Option<&'q Weak<()>>,
    /// Minimum time between two reports of the best documents so far; with zero, each stage is reported.
    pub slice: Duration,
}

/// The constant that reciprocal rank fusion adds to every rank (Cormack et al.).
const RANK_OFFSET: f32 = 60.0;
/// Number of hits of each fused ranking, in multiples of `k`.
const DEPTH: usize = 4;
/// Minimum number of hits of each fused ranking.
const LEAST_DEPTH: usize = 20;

impl Collection {
    /// Returns the best documents for `query`, best first. After every stage of the search that ends a slice of time,
    /// `stage` receives the best so far and may end the search there.
    ///
    /// # Errors
    /// Returns [`Refused`] when the vector has another length than the collection's or unusable components.
    pub fn search(
        &self,
        query: &Query<'_>,
        mut stage: impl FnMut(&[Hit]) -> ControlFlow<()>,
    ) -> Result<Vec<Hit>, Refused> {
        let vector = self.vectors.prepare(query.vector)?;
        let wanted: Vec<Wanted<'_>> = query.filters.iter().map(Wanted::of).collect();
        let is_cancelled = || (query.caller).is_some_and(|caller| caller.strong_count() == 0);
        let keep =
            |slot: Slot| !is_cancelled() && !self.is_deleted(slot) && self.passes(slot, &wanted);
        let keep: &SlotFilter<'_> = &keep;
        let words = query.words.filter(|words| has_words(words));
        let worded = words.map(|words| {
            let depth = (DEPTH * query.k).max(LEAST_DEPTH);
            let found = self.words.search(words, depth, keep, &is_cancelled);
            (depth, found)
        });
        let depth = worded.as_ref().map_or(query.k, |(depth, _)| *depth);
        let mut search = self.index.search(&self.vectors, &vector, depth, keep);
        let best = |top: &[Hit]| match &worded {
            Some((_, by_words)) => joined(&[top, by_words], query.k),
            None => top.to_vec(),
        };
        let mut reported = Instant::now();
        while !is_cancelled() && search.advance() {
            if reported.elapsed() < query.slice {
                continue;
            }
            reported = Instant::now();
            if stage(&best(search.top())).is_break() {
                break;
            }
        }
        Ok(best(search.top()))
    }

    /// Reads the documents of `hits`, in the same order.
    ///
    /// # Errors
    /// Returns [`FileError::Damaged`] when a record cannot be read.
    pub fn found(&self, hits: &[Hit]) -> Result<Vec<ScoredDocument>, FileError> {
        let found = |hit: &Hit| {
            Ok(ScoredDocument {
                document: Arc::new(self.document(hit.slot)?),
                score: hit.score,
            })
        };
        hits.iter().map(found).collect()
    }

    fn passes(&self, slot: Slot, wanted: &[Wanted<'_>]) -> bool {
        wanted.is_empty()
            || self.document(slot).is_ok_and(|document| {
                wanted.iter().all(|wanted| {
                    let value = document.metadata.get(wanted.field);
                    value.is_some_and(|value| wanted.values.contains(value))
                })
            })
    }
}

/// A metadata field and its accepted values.
struct Wanted<'q> {
    field: &'q str,
    values: FxHashSet<&'q Value>,
}

impl<'q> Wanted<'q> {
    fn of((field, value): (&'q String, &'q Value)) -> Self {
        Self {
            field,
            values: match value {
                Value::Array(any) => any.iter().collect(),
                value => FxHashSet::from_iter([value]),
            },
        }
    }
}

/// Returns the best `k` hits of several rankings, fused by reciprocal ranks.
fn joined(rankings: &[&[Hit]], k: usize) -> Vec<Hit> {
    let mut scores: FxHashMap<Slot, f32> = FxHashMap::default();
    for ranking in rankings {
        for (rank, hit) in ranking.iter().enumerate() {
            *scores.entry(hit.slot).or_default() += 1.0 / (RANK_OFFSET + rank as f32 + 1.0);
        }
    }
    let mut top = Top::new(k);
    for (slot, score) in scores {
        top.offer(slot, score);
    }
    top.hits().to_vec()
}
