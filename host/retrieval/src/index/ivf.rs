//! IVF, an inverted file: vectors in clusters, of which a search visits the nearest ones.
//!
//! ```text
//!   query ─▶ order clusters by their centres ─▶ ░░▒▒▓▓██ ░░▒▒▓▓██ … up to `probes` of them
//!                                               └ a stage: as many clusters as make at most 32 stages
//! ```
//!
//! Centres come from k-means over a sample (Lloyd's algorithm, from vectors chosen at random with a fixed seed, so the
//! same vectors make the same index). New vectors join the cluster of the nearest centre. Centres do not move
//! afterwards, so an index that has grown to a multiple of [`Index::clustered`] should be rebuilt.
//!
//! A copy of the vectors is ordered by cluster, so that a search reads memory sequentially instead of waiting for each
//! vector. Vectors added since the file was written are read from their original places.

use super::{Hit, Index, Metric, Search, Slot, SlotFilter, Top, Vectors};
use crate::file::{Array, Part};
use foreword_ordering::random::Random;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Options of an IVF index: the number of clusters, and how many of them a search visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IvfOptions {
    /// Number of clusters, at least one.
    pub clusters: u32,
    /// Number of clusters that a search visits; more if they yield fewer than `k` hits.
    pub probes: u32,
}

impl IvfOptions {
    /// Maximum number of clusters.
    pub const MOST: u32 = 65_536;

    /// Returns the defaults for this number of vectors, with four times its square root as the number of clusters.
    #[must_use]
    pub fn for_count(vectors: usize) -> Self {
        Self::of_clusters((4.0 * (vectors as f64).sqrt()).ceil() as u32)
    }

    /// Returns options with this number of clusters; a search visits a sixth of them, and at least 32.
    #[must_use]
    pub fn of_clusters(clusters: u32) -> Self {
        let clusters = clusters.clamp(1, Self::MOST);
        Self {
            clusters,
            probes: (clusters / 6).max(32).min(clusters),
        }
    }
}

/// Vectors in clusters, with a copy of the vectors ordered by cluster.
pub struct Ivf {
    options: IvfOptions,
    /// Number of vectors when they were clustered.
    clustered: u32,
    /// Centres `[clusters, dimensions]`.
    centres: Array<f32>,
    dimensions: usize,
    /// Start of each cluster in `slots`, then the end: cluster `c` has the slots `slots[starts[c]..starts[c + 1]]` and
    /// `added[c]`.
    starts: Array<u32>,
    /// The slots that were clustered by the build or read from the file, cluster by cluster.
    slots: Array<u32>,
    /// Vectors `[slots, dimensions]` of `slots`, in the same order.
    rows: Array<f32>,
    /// For each cluster, the slots that were added since then.
    added: Vec<Vec<u32>>,
}

/// Number of vectors per cluster in the sample from which the centres are computed.
const SAMPLE: usize = 48;
const ROUNDS: usize = 8;
const STAGES: usize = 32;
const SEED: u64 = 0x1f;

impl Ivf {
    /// Clusters `vectors`.
    #[must_use]
    pub fn build(vectors: &Vectors, options: IvfOptions) -> Self {
        let dimensions = vectors.dimensions() as usize;
        let clusters = (options.clusters as usize).clamp(1, vectors.len().max(1));
        let centres = means(vectors, clusters);
        let slots: Vec<u32> = (0..vectors.len() as u32).collect();
        let nearest: Vec<usize> = (slots.par_iter())
            .map(|slot| nearest(&centres, dimensions, vectors.row(Slot(*slot))))
            .collect();
        let mut lists: Vec<Vec<u32>> = vec![Vec::new(); centres.len() / dimensions];
        for (slot, cluster) in slots.iter().zip(nearest) {
            lists[cluster].push(*slot);
        }
        let (starts, slots) = flattened(&lists);
        let rows = rows(vectors, &slots);
        Self {
            options: IvfOptions {
                clusters: lists.len() as u32,
                probes: options.probes.clamp(1, (lists.len() as u32).max(1)),
            },
            clustered: vectors.len() as u32,
            centres: Array::owned(centres),
            dimensions,
            added: vec![Vec::new(); lists.len()],
            starts: Array::owned(starts),
            slots: Array::owned(slots),
            rows: Array::owned(rows),
        }
    }

    /// Builds an index from a file's parts. Returns `None` if they are inconsistent or contain slots that are not below
    /// `count`.
    pub(crate) fn over(
        options: IvfOptions,
        clustered: u32,
        dimensions: usize,
        count: usize,
        (centres, starts, slots, rows): (Array<f32>, Array<u32>, Array<u32>, Array<f32>),
    ) -> Option<Self> {
        let clusters = options.clusters as usize;
        let fits = clusters >= 1
            && (1..=options.clusters).contains(&options.probes)
            && clusters.checked_mul(dimensions) == Some(centres.len())
            && starts.len() == clusters + 1
            && starts.first() == Some(&0)
            && starts.last().map(|end| *end as usize) == Some(slots.len())
            && starts.is_sorted()
            && slots.len().checked_mul(dimensions) == Some(rows.len())
            && rows.iter().all(|value| value.is_finite())
            && slots.iter().all(|slot| (*slot as usize) < count);
        fits.then(|| Self {
            options,
            clustered,
            centres,
            dimensions,
            added: vec![Vec::new(); clusters],
            starts,
            slots,
            rows,
        })
    }

    /// Iterates over a cluster's slots with their vectors: first those of the build or the file, then those added
    /// since.
    fn list<'a>(
        &'a self,
        vectors: &'a Vectors,
        cluster: usize,
    ) -> impl Iterator<Item = (Slot, &'a [f32])> {
        let range = self.starts[cluster] as usize..self.starts[cluster + 1] as usize;
        let rows = &self.rows[range.start * self.dimensions..range.end * self.dimensions];
        let rows = rows.chunks_exact(self.dimensions);
        let built = self.slots[range].iter().map(|slot| Slot(*slot)).zip(rows);
        let added = self.added[cluster].iter().map(|slot| Slot(*slot));
        built.chain(added.map(|slot| (slot, vectors.row(slot))))
    }
}

impl Index for Ivf {
    fn search<'a>(
        &'a self,
        vectors: &'a Vectors,
        query: &'a [f32],
        k: usize,
        keep: &'a SlotFilter<'a>,
    ) -> Box<dyn Search + 'a> {
        Box::new(Visit {
            ivf: self,
            vectors,
            query,
            keep,
            top: Top::new(k),
            k,
            order: Vec::new(),
            begun: false,
            next: 0,
            probes: 0,
        })
    }

    fn add(&mut self, vectors: &Vectors, slot: Slot) {
        let cluster = nearest(&self.centres, self.dimensions, vectors.row(slot));
        self.added[cluster].push(slot.0);
    }

    fn clustered(&self) -> Option<u32> {
        Some(self.clustered)
    }

    fn ivf_options(&self) -> Option<IvfOptions> {
        Some(self.options)
    }

    fn parts(&self, vectors: &Vectors) -> Vec<(Part, Vec<u8>)> {
        let clusters = self.options.clusters as usize;
        let lists: Vec<Vec<u32>> = (0..clusters)
            .map(|cluster| {
                self.list(vectors, cluster)
                    .map(|(slot, _)| slot.0)
                    .collect()
            })
            .collect();
        let (starts, slots) = flattened(&lists);
        vec![
            (Part::Centres, bytemuck::cast_slice(&self.centres).to_vec()),
            (Part::ListStarts, bytemuck::cast_slice(&starts).to_vec()),
            (Part::ListSlots, bytemuck::cast_slice(&slots).to_vec()),
            (
                Part::ListRows,
                bytemuck::cast_slice(&rows(vectors, &slots)).to_vec(),
            ),
        ]
    }
}

/// A search, which visits the nearest clusters, some in every stage.
struct Visit<'a> {
    ivf: &'a Ivf,
    vectors: &'a Vectors,
    query: &'a [f32],
    keep: &'a SlotFilter<'a>,
    top: Top,
    k: usize,
    /// The clusters with their scores. Those to visit come first, nearest first; filled by the first stage.
    order: Vec<(f32, usize)>,
    begun: bool,
    next: usize,
    /// Number of clusters to visit.
    probes: usize,
}

impl Visit<'_> {
    /// Moves the nearest `probes` clusters to the front, nearest first.
    fn begin(&mut self) {
        let metric = self.vectors.metric();
        let centres = self.ivf.centres.chunks_exact(self.ivf.dimensions);
        let scored = centres.map(|centre| metric.score(self.query, centre));
        self.order = scored.zip(0..).collect();
        self.probes = (self.ivf.options.probes as usize).min(self.order.len());
        if self.probes < self.order.len() {
            self.order.select_nth_unstable_by(self.probes, nearer);
        }
        self.order[..self.probes].sort_unstable_by(nearer);
    }

    /// Extends the search to further clusters while there are fewer than `k` hits, because the filter accepts few
    /// vectors or the clusters have few left.
    fn widen(&mut self) {
        if self.top.hits().len() < self.k && self.probes < self.order.len() {
            self.order[self.probes..].sort_unstable_by(nearer);
            self.probes = self.order.len();
        }
    }
}

impl Search for Visit<'_> {
    fn advance(&mut self) -> bool {
        if !std::mem::replace(&mut self.begun, true) {
            self.begin();
        }
        if self.next >= self.probes {
            self.widen();
        }
        if self.next >= self.probes {
            return false;
        }
        let step = (self.ivf.options.probes as usize).div_ceil(STAGES);
        let end = (self.next + step).min(self.probes);
        let metric = self.vectors.metric();
        for &(_, cluster) in &self.order[self.next..end] {
            for (slot, row) in self.ivf.list(self.vectors, cluster) {
                let score = metric.score(self.query, row);
                if self.top.admits(slot, score) && (self.keep)(slot) {
                    self.top.offer(slot, score);
                }
            }
        }
        self.next = end;
        // Beyond the planned clusters, no more are visited than needed.
        if end > self.ivf.options.probes as usize && self.top.hits().len() == self.k {
            self.probes = end;
        }
        true
    }

    fn top(&self) -> &[Hit] {
        self.top.hits()
    }
}

fn nearer(a: &(f32, usize), b: &(f32, usize)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Returns the centre nearest to `row` by Euclidean distance. For the cosine, whose rows have length 1, that is the
/// centre at the smallest angle, except for the influence of the centres' own lengths.
fn nearest(centres: &[f32], dimensions: usize, row: &[f32]) -> usize {
    let scores = centres
        .chunks_exact(dimensions)
        .map(|centre| Metric::L2.score(row, centre));
    let best = |best: (f32, usize), next: (f32, usize)| if next.0 > best.0 { next } else { best };
    scores.zip(0..).fold((f32::NEG_INFINITY, 0), best).1
}

/// Returns `count` centres of `vectors`, by Lloyd's algorithm over a sample.
fn means(vectors: &Vectors, count: usize) -> Vec<f32> {
    let dimensions = vectors.dimensions() as usize;
    let mut sample: Vec<u32> = (0..vectors.len() as u32).collect();
    let mut random = Random::new(SEED);
    random.shuffle(&mut sample);
    sample.truncate(count * SAMPLE);
    let rows: Vec<&[f32]> = sample.iter().map(|slot| vectors.row(Slot(*slot))).collect();
    let mut centres: Vec<f32> = (rows.iter().take(count))
        .flat_map(|row| row.iter().copied())
        .collect();
    // Without vectors there is one centre, at the origin.
    centres.resize(count * dimensions, 0.0);
    for _ in 0..ROUNDS {
        let clusters: Vec<usize> = (rows.par_iter())
            .map(|row| nearest(&centres, dimensions, row))
            .collect();
        let mut sums = vec![0.0; centres.len()];
        let mut counts = vec![0_u32; count];
        for (row, &cluster) in rows.iter().zip(&clusters) {
            counts[cluster] += 1;
            for (sum, value) in sums[cluster * dimensions..].iter_mut().zip(*row) {
                *sum += value;
            }
        }
        for (cluster, &members) in counts.iter().enumerate() {
            let centre = &mut centres[cluster * dimensions..][..dimensions];
            if members > 0 {
                let sums = &sums[cluster * dimensions..];
                for (value, sum) in centre.iter_mut().zip(sums) {
                    *value = sum / members as f32;
                }
            } else if let Some(row) = rows.get(random.below(rows.len() as u64) as usize) {
                // An empty cluster restarts at a random vector.
                centre.copy_from_slice(row);
            }
        }
    }
    centres
}

/// Returns the vectors of `slots`, one after another.
fn rows(vectors: &Vectors, slots: &[u32]) -> Vec<f32> {
    let rows = slots.iter().map(|slot| vectors.row(Slot(*slot)));
    rows.flatten().copied().collect()
}

/// Concatenates lists. Returns the start of each list, with the end as the last start, and the concatenation.
fn flattened(lists: &[Vec<u32>]) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0];
    let mut slots = Vec::new();
    for list in lists {
        slots.extend_from_slice(list);
        starts.push(slots.len() as u32);
    }
    (starts, slots)
}
