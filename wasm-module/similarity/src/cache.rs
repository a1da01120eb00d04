//! One similarity cache: maps embeddings of questions to the documents retrieved for them.
//!
//! ```text
//!   slot      0        1        2        3
//!   rows    [key ]   [key ]   [key ]   [    ]      what is compared
//!   buckets                                        which are compared, where there are many
//!   limits   0.2      0.2      0.05     -inf       largest measure each accepts; none for a free slot
//!   entries  ids      ids      ids      none
//!   by_age   1 ─▶ 0 ─▶ 2                           oldest first: expiry, and FIFO eviction
//!   by_use   0 ─▶ 2 ─▶ 1                           LRU eviction
//! ```

use super::buckets::Buckets;
use super::config::{Eviction, RawSimilarity, SimilarityConfig};
use super::distance::Machine;
use super::metric::{Metric, SimilarityError};
use super::quality::{Quality, Sample};
use super::rows::Rows;
use foreword_ordering::random::Random;
use foreword_ordering::recency::Recency;
use fxhash::FxHashSet;

/// Answers questions with the documents of nearly identical questions.
///
/// An entry accepts a question if their distance does not exceed the entry's tolerance. Of the entries that accept a
/// question, the nearest one answers; on a tie, the one inserted last. The caller supplies the time; if it goes
/// backwards, entries inserted at a later time count as inserted now.
#[derive(Debug)]
pub struct SimilarityCache {
    config: RawSimilarity,
    machine: Machine,
    rows: Rows,
    /// Buckets, which select the rows to compare; `None` if all are compared.
    buckets: Option<Buckets>,
    /// By slot, the largest measure that the entry accepts; negative infinity for a free slot.
    limits: Vec<f32>,
    /// Entries by slot, the same number as `limits`.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_age: Recency,
    by_use: Recency,
    /// Number of insertions so far.
    inserted: u64,
    quality: Quality,
    sampling: Random,
    /// The embedding that is looked up or inserted, as a row.
    query: Vec<f32>,
}

#[derive(Debug)]
struct Entry {
    documents: Box<[Box<str>]>,
    inserted_ms: u64,
    /// Number of the insertion.
    number: u64,
}

/// An entry's answer to a question.
#[derive(Debug)]
pub struct Hit<'c> {
    /// Ids of the documents, best first, as they were inserted.
    pub documents: &'c [Box<str>],
    /// Distance between the question and the entry.
    pub distance: f32,
    /// Time since the entry was inserted, in milliseconds.
    pub age_ms: u64,
    /// Set if this hit should be checked: run the search anyway, and [report](SimilarityCache::report) its result.
    pub sample: Option<Sample>,
}

/// The limit of a free slot, which accepts no question.
const NOTHING: f32 = f32::NEG_INFINITY;

impl SimilarityCache {
    /// Returns an empty cache.
    #[must_use]
    pub fn new(config: &SimilarityConfig) -> Self {
        let config = config.raw.clone();
        Self {
            machine: Machine::new(),
            rows: Rows::new(config.dimensions),
            buckets: config.buckets.map(|shape| {
                Buckets::new(
                    shape,
                    config.metric,
                    config.tolerance as f32,
                    config.dimensions,
                    config.capacity,
                )
            }),
            limits: Vec::new(),
            entries: Vec::new(),
            free: Vec::new(),
            by_age: Recency::default(),
            by_use: Recency::default(),
            inserted: 0,
            quality: Quality::default(),
            sampling: Random::new(0),
            query: Vec::new(),
            config,
        }
    }

    /// Returns the documents of the nearest question that accepts this one. `None` means that the caller should search
    /// and [insert](Self::insert).
    ///
    /// # Errors
    /// Returns a [`SimilarityError`] for an invalid embedding; this does not count as a look-up.
    pub fn lookup(
        &mut self,
        embedding: &[f32],
        now_ms: u64,
    ) -> Result<Option<Hit<'_>>, SimilarityError> {
        self.prepare(embedding)?;
        self.expire(now_ms);
        self.quality.lookups += 1;
        let Some((slot, measure)) = self.nearest() else {
            return Ok(None);
        };
        self.by_use.touch(slot);
        self.quality.hits += 1;
        let Some(Some(entry)) = self.entries.get(slot as usize) else {
            return Ok(None);
        };
        let sampled = match self.config.sample_one_in {
            Some(one_in) => self.sampling.below(one_in.into()) == 0,
            None => false,
        };
        Ok(Some(Hit {
            documents: &entry.documents,
            distance: self.config.metric.distance(measure),
            age_ms: now_ms.saturating_sub(entry.inserted_ms),
            sample: sampled.then(|| Sample {
                served: entry.documents.to_vec(),
            }),
        }))
    }

    /// Stores the `documents`, best first, that were retrieved for `embedding`. They replace the entry with the same
    /// embedding; otherwise, when the cache is full, an entry is evicted. `tolerance` replaces the configured one.
    ///
    /// # Errors
    /// Returns a [`SimilarityError`]; the cache is then unchanged.
    pub fn insert<S: AsRef<str>>(
        &mut self,
        embedding: &[f32],
        documents: &[S],
        tolerance: Option<f64>,
        now_ms: u64,
    ) -> Result<(), SimilarityError> {
        self.prepare(embedding)?;
        let tolerance = tolerance.unwrap_or(self.config.tolerance);
        self.config.metric.check(tolerance)?;
        self.check(documents)?;
        self.expire(now_ms);
        if let Some(same) = self.same() {
            self.remove(same);
        } else if self.len() >= self.config.capacity as usize {
            let oldest = match self.config.eviction {
                Eviction::Fifo => self.by_age.oldest(),
                Eviction::Lru => self.by_use.oldest(),
            };
            if let Some(oldest) = oldest {
                self.remove(oldest);
            }
        }
        let entry = Entry {
            documents: documents.iter().map(|id| id.as_ref().into()).collect(),
            inserted_ms: now_ms,
            number: self.inserted,
        };
        self.inserted += 1;
        self.put(self.config.metric.limit(tolerance), entry);
        Ok(())
    }

    /// Removes every entry with one of `documents`, because they were changed or deleted. Returns the number of entries
    /// removed.
    ///
    /// Takes time proportional to the ids stored, whatever the number of `documents`. Entries that a *new* document
    /// would belong to cannot be found; they expire by their time to live.
    pub fn invalidate<S: AsRef<str>>(&mut self, documents: &[S]) -> usize {
        let gone: FxHashSet<&str> = documents.iter().map(AsRef::as_ref).collect();
        let slots: Vec<u32> = (0..)
            .zip(&self.entries)
            .filter(|(_, entry)| {
                let held = entry.iter().flat_map(|entry| entry.documents.iter());
                held.into_iter().any(|id| gone.contains(&**id))
            })
            .map(|(slot, _)| slot)
            .collect();
        for &slot in &slots {
            self.remove(slot);
        }
        slots.len()
    }

    /// Compares a [sampled](Hit::sample) hit with the result of a fresh search, and counts it.
    pub fn report<S: AsRef<str>>(&mut self, sample: &Sample, fresh: &[S]) {
        self.quality.report(sample, fresh);
    }

    /// Returns the counts of the cache's answers.
    #[must_use]
    pub fn quality(&self) -> Quality {
        self.quality
    }

    /// Returns the number of entries, including those that expired since the last call.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Validates `embedding` and writes it to `query` as a row.
    fn prepare(&mut self, embedding: &[f32]) -> Result<(), SimilarityError> {
        let (dimensions, stride) = (self.config.dimensions, self.rows.stride());
        self.config
            .metric
            .row(embedding, dimensions, stride, &mut self.query)
    }

    fn check<S: AsRef<str>>(&self, documents: &[S]) -> Result<(), SimilarityError> {
        if documents.len() > self.config.max_documents as usize {
            return Err(SimilarityError(format!(
                "{} documents, an entry holds at most {}",
                documents.len(),
                self.config.max_documents
            )));
        }
        let limit = self.config.max_id_bytes;
        let long = |id: &S| id.as_ref().len() > limit as usize;
        match documents.iter().position(long) {
            Some(at) => {
                let bytes = documents.get(at).map_or(0, |id| id.as_ref().len());
                Err(SimilarityError(format!(
                    "the id of document {at} is {bytes} bytes long, it may be at most {limit}"
                )))
            }
            None => Ok(()),
        }
    }

    /// Removes expired entries. Entries expire in the order of their insertion.
    fn expire(&mut self, now_ms: u64) {
        // A clock that was set back must not keep entries for longer.
        for slot in self.by_age.iter_newest() {
            match self.entries.get_mut(slot as usize) {
                Some(Some(entry)) if entry.inserted_ms > now_ms => entry.inserted_ms = now_ms,
                _ => break,
            }
        }
        let Some(ttl_ms) = self.config.ttl_ms else {
            return;
        };
        while let Some(oldest) = self.by_age.oldest() {
            let entry = self.entries.get(oldest as usize).and_then(Option::as_ref);
            let age_ms = entry.map_or(u64::MAX, |entry| now_ms - entry.inserted_ms);
            if age_ms < ttl_ms {
                return;
            }
            self.remove(oldest);
        }
    }

    /// Returns the slot of the nearest entry that accepts the query, and its measure; `None` if no entry accepts it.
    fn nearest(&mut self) -> Option<(u32, f32)> {
        let mut nearest = Nearest {
            metric: self.config.metric,
            machine: self.machine,
            query: &self.query,
            entries: &self.entries,
            found: None,
        };
        match &mut self.buckets {
            None => {
                let rows = self.rows.iter(self.limits.len());
                for ((slot, row), &limit) in (0..).zip(rows).zip(&self.limits) {
                    nearest.consider(slot, row, limit);
                }
            }
            Some(buckets) => buckets.candidates(&self.query, |slot| {
                let limit = self.limits.get(slot as usize).copied().unwrap_or(NOTHING);
                nearest.consider(slot, self.rows.get(slot), limit);
            }),
        }
        nearest.found
    }

    /// Returns the slot of the entry with the query as its key. In large buckets it may not be found: the cache then
    /// has two entries with this key, and the newer one answers.
    fn same(&mut self) -> Option<u32> {
        match &mut self.buckets {
            None => {
                let rows = self.rows.iter(self.limits.len());
                (0..)
                    .zip(rows.zip(&self.limits))
                    .find(|(_, (row, limit))| **limit != NOTHING && *row == self.query)
                    .map(|(slot, _)| slot)
            }
            Some(buckets) => buckets.alike(&self.query, |slot| self.rows.get(slot) == self.query),
        }
    }

    /// Stores an entry with the query as its key in a free slot.
    fn put(&mut self, limit: f32, entry: Entry) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.limits.push(NOTHING);
            // The capacity is a `u32`.
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        self.rows.set(slot, &self.query);
        if let Some(buckets) = &mut self.buckets {
            buckets.add(slot, &self.query);
        }
        if let Some(place) = self.entries.get_mut(slot as usize) {
            *place = Some(entry);
        }
        if let Some(place) = self.limits.get_mut(slot as usize) {
            *place = limit;
        }
        self.by_age.add(slot);
        self.by_use.add(slot);
    }

    fn remove(&mut self, slot: u32) {
        if let Some(buckets) = &mut self.buckets {
            buckets.remove(slot);
        }
        if let Some(place) = self.entries.get_mut(slot as usize) {
            *place = None;
        }
        if let Some(place) = self.limits.get_mut(slot as usize) {
            *place = NOTHING;
        }
        self.by_age.remove(slot);
        self.by_use.remove(slot);
        self.free.push(slot);
    }
}

/// The nearest entry so far that accepts a query.
struct Nearest<'c> {
    metric: Metric,
    machine: Machine,
    query: &'c [f32],
    entries: &'c [Option<Entry>],
    /// Slot and measure of the entry.
    found: Option<(u32, f32)>,
}

impl Nearest<'_> {
    /// Replaces the entry found by the one in `slot`, if that accepts the query within `limit` and is nearer, or as
    /// near and newer.
    fn consider(&mut self, slot: u32, row: &[f32], limit: f32) {
        if limit == NOTHING {
            return;
        }
        let limit = self.found.map_or(limit, |(_, best)| limit.min(best));
        let Some(measure) = self.metric.measure(self.machine, self.query, row, limit) else {
            return;
        };
        let number = |slot: u32| {
            let entry = self.entries.get(slot as usize).and_then(Option::as_ref);
            entry.map(|entry| entry.number)
        };
        let wins = self
            .found
            .is_none_or(|(other, best)| measure < best || number(slot) > number(other));
        if wins {
            self.found = Some((slot, measure));
        }
    }
}

impl SimilarityConfig {
    /// Returns the most bytes used by one cache: keys, ids at their longest, and indexes, without the allocator's own
    /// overhead.
    #[must_use]
    pub fn max_bytes_per_cache(&self) -> u64 {
        let config = &self.raw;
        let id = u64::from(config.max_id_bytes) + size_of::<Box<str>>() as u64;
        let documents = u64::from(config.max_documents) * id;
        // Lists grow by doubling, so they have up to twice the needed capacity: slots of entries, limits, free slots,
        // and two lists by age and use.
        let slot = size_of::<Option<Entry>>()
            + size_of::<f32>()
            + size_of::<u32>()
            + 2 * Recency::SLOT_BYTES;
        let buckets = config.buckets.map_or(0, |shape| {
            Buckets::max_bytes(shape, config.dimensions, config.capacity)
        });
        let query = Rows::row_bytes(config.dimensions);
        buckets
            + query
            + Rows::max_bytes(config.dimensions, config.capacity)
            + u64::from(config.capacity) * (documents + 2 * slot as u64)
    }

    /// Returns the most bytes used by all caches.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes_per_cache()
            .saturating_mul(self.raw.max_caches.into())
    }
}
