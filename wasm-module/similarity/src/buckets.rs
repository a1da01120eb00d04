//! Locality-sensitive hashing: finds entries that may be near, without comparing all of them.
//!
//! ```text
//!   row ─▶ rotation ─▶ coordinates   x0 .. x15 | x16 .. x31 | ...       one group per table
//!                                      │ cells
//!                       directions:    │ which side of a random hyperplane         (cosine, inner product)
//!                       lengths:       │ which stretch of a random line            (L2)
//!                                      ▼
//!   table 0     bucket ─▶ slot ─▶ slot        near rows often share all cells of a group, so a bucket;
//!   table 1     bucket ─▶ slot                not always: hence several tables, and in each
//!                                             some more buckets: those behind the nearest borders of cells
//! ```
//!
//! Random hyperplanes are Charikar's (STOC 2002), stretches of lines Datar et al.'s (SoCG 2004), the choice of further
//! buckets Lv et al.'s (*Multi-Probe LSH*, VLDB 2007, section 4.4). A near row is found with high probability, but not
//! always; a missed row costs a search. With the inner product, rows are found by direction, so rows of different
//! lengths are found less reliably.

use super::crossings::crossings;
use super::metric::Metric;
use super::rotation::Rotation;
use foreword_ordering::object;
use foreword_ordering::random::Random;
use std::num::NonZeroU32;

object! {
    /// The options of buckets, as written. More tables and probes find more entries and take longer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RawBuckets in "similarity.buckets." {
        /// Number of tables; each takes 12 bytes per entry.
        pub tables: u32 = 8; 1..=64,
        /// Number of cells that the rows of a bucket share. More cells make smaller buckets, which near rows share less
        /// often.
        pub functions: u32 = 16; 1..=32,
        /// Number of buckets searched per table.
        pub probes: u32 = 8; 1..=1_024,
        /// Most entries compared in one look-up; bounds its time when many entries are similar.
        pub max_candidates: u32 = 2_000; 1..=u32::MAX.into(),
    }
}

/// Slots by bucket, in several tables.
#[derive(Debug)]
pub(super) struct Buckets {
    shape: RawBuckets,
    cells: Cells,
    rotation: Rotation,
    /// One function for each coordinate, table by table.
    functions: Vec<Function>,
    /// Number of bits in a bucket's number.
    bits: u32,
    /// First slot of each bucket, by table.
    heads: Vec<Link>,
    /// Bucket entries, by slot and table.
    places: Vec<BucketEntry>,
    /// For each slot, the last query that visited it.
    seen: Vec<u32>,
    queries: u32,
    /// Coordinates of the current row.
    coordinates: Vec<f32>,
    /// Numbers of the current row's buckets: each table's best, then each table's second best, and so on.
    probes: Vec<u32>,
}

/// The division of a coordinate into cells.
#[derive(Clone, Copy, Debug)]
enum Cells {
    /// Two cells: below zero, or not.
    Signs,
    /// Stretches of this width, without end in both directions.
    Stretches(f32),
}

/// The contribution of a coordinate's cell to a bucket's number, which is the high bits of the sum of cells times
/// factors.
#[derive(Clone, Copy, Debug)]
struct Function {
    factor: u64,
    /// Start of the stretches, as a fraction of their width.
    offset: f32,
}

/// A slot's entry in one table: its bucket, and its neighbours in the list.
#[derive(Clone, Copy, Debug, Default)]
struct BucketEntry {
    bucket: u32,
    before: Link,
    behind: Link,
}

/// An optional slot, in four bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Link(Option<NonZeroU32>);

impl Buckets {
    pub(super) fn new(
        shape: RawBuckets,
        metric: Metric,
        tolerance: f32,
        dimensions: u32,
        capacity: u32,
    ) -> Self {
        let count = count(shape);
        let bits = bits(capacity);
        let mut random = Random::new(0x1516_1718);
        let function = |_| Function {
            factor: random.bits() | 1,
            offset: random.unit() as f32,
        };
        Self {
            cells: match metric {
                Metric::Cosine | Metric::InnerProduct => Cells::Signs,
                // If their width is eight times the distance of two rows, these share a cell nine times in ten.
                Metric::L2 if tolerance > 0.0 => Cells::Stretches(8.0 * tolerance),
                Metric::L2 => Cells::Stretches(1.0),
            },
            rotation: Rotation::new(dimensions, count),
            functions: (0..count).map(function).collect(),
            bits,
            heads: vec![Link(None); (shape.tables as usize) << bits],
            places: Vec::new(),
            seen: Vec::new(),
            queries: 0,
            coordinates: Vec::new(),
            probes: Vec::new(),
            shape,
        }
    }

    /// Adds `slot` to the buckets of `row`. It must not be in any.
    pub(super) fn add(&mut self, slot: u32, row: &[f32]) {
        self.probe(row, 1);
        let tables = self.shape.tables as usize;
        let first = slot as usize * tables;
        if self.places.len() < first + tables {
            self.places.resize(first + tables, BucketEntry::default());
            self.seen.resize(slot as usize + 1, 0);
        }
        for table in 0..tables {
            let bucket = self.probes.get(table).copied().unwrap_or_default();
            let behind = self.replace_head(table, bucket, Link::to(slot));
            if let Some(neighbour) = self.place(behind, table) {
                neighbour.before = Link::to(slot);
            }
            if let Some(place) = self.places.get_mut(first + table) {
                *place = BucketEntry {
                    bucket,
                    before: Link(None),
                    behind,
                };
            }
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        for table in 0..self.shape.tables as usize {
            let Some(place) = self.place(Link::to(slot), table) else {
                return;
            };
            let BucketEntry {
                bucket,
                before,
                behind,
            } = std::mem::take(place);
            match self.place(before, table) {
                Some(neighbour) => neighbour.behind = behind,
                None => {
                    self.replace_head(table, bucket, behind);
                }
            }
            if let Some(neighbour) = self.place(behind, table) {
                neighbour.before = before;
            }
        }
    }

    /// Calls `visit` with slots that may be near `row`, each once, the likeliest first, at most `max_candidates`.
    pub(super) fn candidates(&mut self, row: &[f32], mut visit: impl FnMut(u32)) {
        self.probe(row, self.shape.probes as usize);
        self.queries = self.queries.checked_add(1).unwrap_or_else(|| {
            self.seen.fill(0);
            1
        });
        let tables = self.shape.tables as usize;
        let mut left = self.shape.max_candidates;
        for (nth, &bucket) in self.probes.iter().enumerate() {
            let table = nth % tables;
            let mut next = head(&self.heads, self.bits, table, bucket);
            while let Some(slot) = next.slot() {
                let place = self.places.get(slot as usize * tables + table);
                next = place.map_or(Link(None), |place| place.behind);
                let Some(seen) = self.seen.get_mut(slot as usize) else {
                    return;
                };
                if std::mem::replace(seen, self.queries) == self.queries {
                    continue;
                }
                if left == 0 {
                    return;
                }
                left -= 1;
                visit(slot);
            }
        }
    }

    /// Returns the first slot in `row`'s bucket of the first table for which `wanted` is true; only the first
    /// `max_candidates` are examined. Slots of an equal row are always in this bucket.
    pub(super) fn alike(&mut self, row: &[f32], wanted: impl Fn(u32) -> bool) -> Option<u32> {
        self.probe(row, 1);
        let tables = self.shape.tables as usize;
        let bucket = self.probes.first().copied().unwrap_or_default();
        let first = head(&self.heads, self.bits, 0, bucket).slot();
        let behind = |&slot: &u32| self.places.get(slot as usize * tables)?.behind.slot();
        std::iter::successors(first, behind)
            .take(self.shape.max_candidates as usize)
            .find(|&slot| wanted(slot))
    }

    /// Returns the most bytes that buckets take.
    pub(super) fn max_bytes(shape: RawBuckets, dimensions: u32, capacity: u32) -> u64 {
        let tables = u64::from(shape.tables);
        let heads = (tables << bits(capacity)) * size_of::<Link>() as u64;
        let slot = tables * size_of::<BucketEntry>() as u64 + size_of::<u32>() as u64;
        let probes = tables * u64::from(shape.probes) * size_of::<u32>() as u64;
        let functions = (count(shape) * size_of::<Function>()) as u64;
        // Lists grow by doubling, so they have up to twice the needed capacity.
        heads
            + functions
            + 2 * (u64::from(capacity) * slot + probes)
            + Rotation::bytes(dimensions, count(shape))
    }

    /// Fills `probes` with each table's `count` best buckets for `row`.
    fn probe(&mut self, row: &[f32], count: usize) {
        self.rotation.apply(row, &mut self.coordinates);
        let (tables, functions) = (self.shape.tables as usize, self.shape.functions as usize);
        self.probes.clear();
        self.probes.resize(tables * count, 0);
        let coordinates = self.coordinates.chunks_exact(functions);
        let groups = coordinates.zip(self.functions.chunks_exact(functions));
        for (table, (coordinates, functions)) in groups.enumerate() {
            let mut sum = 0_u64;
            let mut borders = Vec::with_capacity(functions.len());
            for (&coordinate, function) in coordinates.iter().zip(functions) {
                let (cell, other, margin) = self.cells.of(coordinate, function.offset);
                let part = |cell: i64| function.factor.wrapping_mul(cell.cast_unsigned());
                sum = sum.wrapping_add(part(cell));
                borders.push((margin, part(other).wrapping_sub(part(cell))));
            }
            let places = self.probes.iter_mut().skip(table).step_by(tables);
            for (place, crossed) in places.zip(crossings(borders).chain(std::iter::repeat(0))) {
                *place = (sum.wrapping_add(crossed) >> (64 - self.bits)) as u32;
            }
        }
    }

    /// Makes `slot` the first of a bucket, and returns the previous first slot.
    fn replace_head(&mut self, table: usize, bucket: u32, slot: Link) -> Link {
        self.heads
            .get_mut((table << self.bits) + bucket as usize)
            .map_or(Link(None), |head| std::mem::replace(head, slot))
    }

    /// Returns a slot's entry in a table; `None` if the link is empty.
    fn place(&mut self, slot: Link, table: usize) -> Option<&mut BucketEntry> {
        let tables = self.shape.tables as usize;
        self.places.get_mut(slot.slot()? as usize * tables + table)
    }
}

impl Cells {
    /// Returns a coordinate's cell, the neighbour cell across the nearest border, and the distance to that border.
    fn of(self, coordinate: f32, offset: f32) -> (i64, i64, f32) {
        match self {
            Self::Signs => {
                let cell = i64::from(coordinate >= 0.0);
                (cell, 1 - cell, coordinate.abs())
            }
            Self::Stretches(width) => {
                let at = coordinate / width + offset;
                let low = at.floor();
                let cell = low as i64;
                let part = at - low;
                if part < 0.5 {
                    (cell, cell.wrapping_sub(1), part)
                } else {
                    (cell, cell.wrapping_add(1), 1.0 - part)
                }
            }
        }
    }
}

impl Link {
    fn to(slot: u32) -> Self {
        Self(slot.checked_add(1).and_then(NonZeroU32::new))
    }

    fn slot(self) -> Option<u32> {
        self.0.map(|next| next.get() - 1)
    }
}

fn head(heads: &[Link], bits: u32, table: usize, bucket: u32) -> Link {
    let head = heads.get((table << bits) + bucket as usize);
    head.copied().unwrap_or_default()
}

/// Returns the number of functions of all tables.
fn count(shape: RawBuckets) -> usize {
    shape.tables as usize * shape.functions as usize
}

/// Returns the number of bits in a bucket's number: there are about as many buckets as entries.
fn bits(capacity: u32) -> u32 {
    capacity
        .checked_next_power_of_two()
        .map_or(20, u32::trailing_zeros)
        .clamp(4, 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: RawBuckets = RawBuckets {
        tables: 3,
        functions: 4,
        probes: 5,
        max_candidates: 50,
    };

    fn row(random: &mut Random) -> Vec<f32> {
        (0..8).map(|_| random.unit() as f32 - 0.5).collect()
    }

    fn candidates(buckets: &mut Buckets, row: &[f32]) -> Vec<u32> {
        let mut found = Vec::new();
        buckets.candidates(row, |slot| found.push(slot));
        found
    }

    #[test]
    fn what_is_in_a_bucket_is_found_until_it_is_taken_out() {
        for (metric, tolerance) in [(Metric::Cosine, 0.1), (Metric::L2, 0.0), (Metric::L2, 0.2)] {
            let mut random = Random::new(4);
            let mut buckets = Buckets::new(SHAPE, metric, tolerance, 8, 64);
            let mut held: Vec<Option<Vec<f32>>> = vec![None; 40];
            for _ in 0..2_000 {
                let slot = random.below(40) as u32;
                let place = &mut held[slot as usize];
                if place.take().is_some() {
                    buckets.remove(slot);
                } else {
                    let row = row(&mut random);
                    buckets.add(slot, &row);
                    *place = Some(row);
                }
                let slot = random.below(40) as u32;
                if let Some(row) = &held[slot as usize] {
                    let found = candidates(&mut buckets, row);
                    assert!(found.contains(&slot));
                    assert!(found.iter().all(|&slot| held[slot as usize].is_some()));
                    let mut once = found.clone();
                    once.sort_unstable();
                    once.dedup();
                    assert_eq!(once.len(), found.len());
                    assert_eq!(buckets.alike(row, |other| other == slot), Some(slot));
                }
            }
        }
    }

    #[test]
    fn a_bucket_that_holds_everything_costs_no_more_than_the_bound() {
        let mut buckets = Buckets::new(SHAPE, Metric::Cosine, 0.1, 8, 1_000);
        let same = row(&mut Random::new(5));
        for slot in 0..1_000 {
            buckets.add(slot, &same);
        }
        assert_eq!(candidates(&mut buckets, &same).len(), 50);
        assert_eq!(buckets.alike(&same, |slot| slot == 0), None);
    }

    #[test]
    fn counting_queries_survives_its_overflow() {
        let mut buckets = Buckets::new(SHAPE, Metric::Cosine, 0.1, 8, 4);
        let row = row(&mut Random::new(6));
        buckets.add(0, &row);
        buckets.queries = u32::MAX - 1;
        for queries in [u32::MAX, 1, 2] {
            assert_eq!(candidates(&mut buckets, &row), [0]);
            assert_eq!(buckets.queries, queries);
        }
    }
}
