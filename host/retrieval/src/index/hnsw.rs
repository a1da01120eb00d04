//! HNSW, a hierarchical navigable small world (Malkov and Yashunin, TPAMI 2020): a graph in which near vectors are
//! linked, with sparser graphs above it for long steps.
//!
//! ```text
//!   level 2        a ───────────────── f            descend: the nearest node of each level
//!   level 1        a ──── c ────────── f
//!   level 0        a ─ b ─ c ─ d ─ e ─ f ─ …        walk: visit the nearest unvisited node, keep the best `breadth`
//!                                                   └ a stage: a fixed number of visits
//! ```
//!
//! A node's level follows from its slot alone, so the same vectors make the same graph. A vector equal to a node's is
//! no node of its own but that node's *twin*: it has no links, and a search that sees the node sees its twins. A
//! document whose metadata is edited often leaves many. Deleted vectors stay in the graph for traversal and are not
//! returned. A search whose filter accepts few vectors continues until it has found enough or has visited every
//! reachable node.

use super::{Hit, Index, Search, Slot, SlotFilter, Top, Vectors};
use crate::file::{Array, Part};
use foreword_ordering::random::Random;
use fxhash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Options of an HNSW index: the density of its graph, and the number of candidates of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HnswOptions {
    /// Links of a node on an upper level; level 0 has twice as many. The paper's M.
    pub links: u16,
    /// Number of candidates that a new node's links are chosen from. The paper's efConstruction.
    pub build_breadth: u16,
    /// Number of candidates that a search keeps. The paper's ef.
    pub breadth: u16,
}

impl Default for HnswOptions {
    fn default() -> Self {
        Self {
            links: 16,
            build_breadth: 120,
            breadth: 96,
        }
    }
}

impl HnswOptions {
    /// Largest value of each option.
    pub const MOST: u16 = 1_024;

    fn is_possible(self) -> bool {
        let most = Self::MOST;
        (2..=most).contains(&self.links)
            && (1..=most).contains(&self.build_breadth)
            && (1..=most).contains(&self.breadth)
    }
}

/// A graph over vectors. Nodes on a level are linked to near ones.
pub struct Hnsw {
    options: HnswOptions,
    /// The links on level 0. A slot's row is the number of its links and then the links, or [`TWIN`] and the node whose
    /// twin it is; the shape is `[slots, 1 + 2 · links]`.
    ground: Array<u32>,
    /// For each node that has twins, their slots, ascending.
    twins: FxHashMap<u32, Vec<u32>>,
    /// For each slot on upper levels, its links there, level 1 first.
    upper: FxHashMap<u32, Vec<Vec<u32>>>,
    /// The node at which searches start, on the highest level; `None` if the graph is empty.
    entry: Option<Slot>,
}

/// Marks the row of a twin in [`Hnsw::ground`], in place of the number of links that a node's row begins with.
const TWIN: u32 = u32::MAX;
/// Maximum number of nodes visited in one stage.
const VISITS: usize = 4;
/// Highest level. With eight links or more, hardly any of 2^32 slots would reach a higher one.
const MAX_LEVEL: usize = 12;

impl Hnsw {
    /// Builds the graph of `vectors`. The time is proportional to their number, about half a millisecond each.
    #[must_use]
    pub fn build(vectors: &Vectors, options: HnswOptions) -> Self {
        let mut graph = Self::empty(options);
        for slot in 0..vectors.len() as u32 {
            graph.add(vectors, Slot(slot));
        }
        graph
    }

    /// Returns a graph without nodes. Options out of range are clamped.
    #[must_use]
    pub fn empty(options: HnswOptions) -> Self {
        let most = HnswOptions::MOST;
        Self {
            options: HnswOptions {
                links: options.links.clamp(2, most),
                build_breadth: options.build_breadth.clamp(1, most),
                breadth: options.breadth.clamp(1, most),
            },
            ground: Array::default(),
            twins: FxHashMap::default(),
            upper: FxHashMap::default(),
            entry: None,
        }
    }

    /// Builds a graph from a file's parts. Returns `None` if they are inconsistent or contain slots that are not below
    /// `count`.
    pub(crate) fn over(
        options: HnswOptions,
        count: usize,
        (ground, upper): (Array<u32>, &[u32]),
    ) -> Option<Self> {
        if !options.is_possible() {
            return None;
        }
        let most = 2 * usize::from(options.links);
        let is_slot = |slot: &u32| (*slot as usize) < count;
        if ground.len() != count.checked_mul(most + 1)? {
            return None;
        }
        let mut twins = FxHashMap::<u32, Vec<u32>>::default();
        for (slot, row) in (0_u32..).zip(ground.chunks(most + 1)) {
            let (&links, slots) = row.split_first()?;
            if links == TWIN {
                let node = *slots.first().filter(|&node| is_slot(node))?;
                // A twin of a twin would be seen by no search.
                if ground[node as usize * (most + 1)] == TWIN {
                    return None;
                }
                twins.entry(node).or_default().push(slot);
            } else if links as usize > most || !slots.iter().take(links as usize).all(is_slot) {
                return None;
            }
        }
        let (entry, rest) = upper.split_first()?;
        let mut graph = Self {
            options,
            ground,
            twins,
            upper: FxHashMap::default(),
            entry: (count > 0).then_some(Slot(*entry)),
        };
        if count > 0 && !is_slot(entry) {
            return None;
        }
        let mut rest = rest.iter().copied();
        while let Some(slot) = rest.next() {
            let levels = rest.next()? as usize;
            if !is_slot(&slot) || levels > MAX_LEVEL {
                return None;
            }
            let mut links = Vec::with_capacity(levels);
            for _ in 0..levels {
                let count = rest.next()? as usize;
                if count > most {
                    return None;
                }
                let list: Vec<u32> = rest.by_ref().take(count).collect();
                if list.len() < count || !list.iter().all(is_slot) {
                    return None;
                }
                links.push(list);
            }
            graph.upper.insert(slot, links);
        }
        Some(graph)
    }

    /// Returns the maximum number of links of a node on a level.
    fn most(&self, level: usize) -> usize {
        usize::from(self.options.links) * if level == 0 { 2 } else { 1 }
    }

    fn links(&self, slot: Slot, level: usize) -> &[u32] {
        let Some(above) = level.checked_sub(1) else {
            let stride = self.most(0) + 1;
            let node = &self.ground[slot.0 as usize * stride..][..stride];
            let links = if node[0] == TWIN { 0 } else { node[0] };
            return &node[1..=links as usize];
        };
        let levels = self.upper.get(&slot.0);
        let links = levels.and_then(|levels| levels.get(above));
        links.map_or(&[], Vec::as_slice)
    }

    fn set_links(&mut self, slot: Slot, level: usize, links: &[u32]) {
        if let Some(above) = level.checked_sub(1) {
            if let Some(list) = self
                .upper
                .get_mut(&slot.0)
                .and_then(|levels| levels.get_mut(above))
            {
                links.clone_into(list);
            }
            return;
        }
        let stride = self.most(0) + 1;
        let node = &mut self.ground.to_mut()[slot.0 as usize * stride..][..stride];
        node[0] = links.len() as u32;
        node[1..=links.len()].copy_from_slice(links);
    }

    /// Returns the highest level of a slot.
    fn level(&self, slot: Slot) -> usize {
        self.upper.get(&slot.0).map_or(0, Vec::len)
    }

    /// Walks on `level` from `from` to ever nearer nodes, and returns the one that has no neighbour nearer to `query`.
    fn descend(&self, vectors: &Vectors, query: &[f32], mut from: Hit, level: usize) -> Hit {
        loop {
            let near = self.links(from.slot, level).iter().map(|&slot| Hit {
                slot: Slot(slot),
                score: vectors.score(query, Slot(slot)),
            });
            let best = near.fold(
                from,
                |best, hit| if hit.score > best.score { hit } else { best },
            );
            if best.slot == from.slot {
                return from;
            }
            from = best;
        }
    }

    /// Returns the node at which a walk on `level` starts; `None` if the graph is empty.
    fn approach(&self, vectors: &Vectors, query: &[f32], level: usize) -> Option<Hit> {
        let slot = self.entry?;
        let mut at = Hit {
            slot,
            score: vectors.score(query, slot),
        };
        for level in (level + 1..=self.level(slot)).rev() {
            at = self.descend(vectors, query, at, level);
        }
        Some(at)
    }

    /// Chooses the links of a node from `candidates`, which are ordered nearest first. Each chosen one is nearer to the
    /// node than to any chosen before it, so that links point in different directions (the paper's Algorithm 4).
    /// Remaining places stay empty: a full list would leave no room for links to later nodes.
    fn choose(vectors: &Vectors, candidates: &[Hit], most: usize) -> Vec<u32> {
        let mut chosen: Vec<Hit> = Vec::with_capacity(most);
        for candidate in candidates {
            if chosen.len() == most {
                break;
            }
            let row = vectors.row(candidate.slot);
            let goes_its_own_way =
                (chosen.iter()).all(|other| vectors.score(row, other.slot) < candidate.score);
            if goes_its_own_way {
                chosen.push(*candidate);
            }
        }
        chosen.iter().map(|hit| hit.slot.0).collect()
    }

    /// Returns the `breadth` nodes on `level` that are nearest to `slot`, nearest first, without `slot` itself.
    fn nearest(&self, vectors: &Vectors, slot: Slot, breadth: usize, level: usize) -> Vec<Hit> {
        let keep = |other: Slot| other != slot;
        let breadth = (breadth, breadth);
        let mut walk = Walk::new(self, vectors, vectors.row(slot), &keep, breadth, level);
        walk.sees_twins = false;
        while walk.advance() {}
        walk.found.hits().to_vec()
    }

    /// Makes `slot` a twin of `node`, which has an equal vector.
    fn add_twin(&mut self, node: Slot, slot: Slot) {
        let stride = self.most(0) + 1;
        let row = &mut self.ground.to_mut()[slot.0 as usize * stride..][..2];
        row.copy_from_slice(&[TWIN, node.0]);
        self.twins.entry(node.0).or_default().push(slot.0);
    }
}

impl Index for Hnsw {
    fn search<'a>(
        &'a self,
        vectors: &'a Vectors,
        query: &'a [f32],
        k: usize,
        keep: &'a SlotFilter<'a>,
    ) -> Box<dyn Search + 'a> {
        let breadth = usize::from(self.options.breadth).max(k);
        Box::new(Walk::new(self, vectors, query, keep, (k, breadth), 0))
    }

    fn add(&mut self, vectors: &Vectors, slot: Slot) {
        let stride = self.most(0) + 1;
        self.ground
            .to_mut()
            .resize((slot.0 as usize + 1) * stride, 0);
        let breadth = usize::from(self.options.build_breadth);
        let ground = self.nearest(vectors, slot, breadth, 0);
        let mut near = ground.iter();
        if let Some(node) = near.find(|hit| vectors.row(hit.slot) == vectors.row(slot)) {
            self.add_twin(node.slot, slot);
            return;
        }
        let level = level_of(slot, self.options.links);
        if level > 0 {
            self.upper.insert(slot.0, vec![Vec::new(); level]);
        }
        let top_level = self.entry.map(|entry| self.level(entry));
        // Levels are linked from the lowest up: on the way down from a level where it is already linked, a node would
        // find itself.
        for level in top_level.map_or(0..0, |top| 0..level.min(top) + 1) {
            let candidates = match level {
                0 => ground.clone(),
                level => self.nearest(vectors, slot, breadth, level),
            };
            let links = Self::choose(vectors, &candidates, usize::from(self.options.links));
            self.set_links(slot, level, &links);
            for neighbour in links.into_iter().map(Slot) {
                let mut back = self.links(neighbour, level).to_vec();
                if back.len() < self.most(level) {
                    back.push(slot.0);
                } else {
                    let row = vectors.row(neighbour);
                    let mut hits: Vec<Hit> = (back.iter().chain([&slot.0]))
                        .map(|&other| Hit {
                            slot: Slot(other),
                            score: vectors.score(row, Slot(other)),
                        })
                        .collect();
                    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.slot.cmp(&b.slot)));
                    back = Self::choose(vectors, &hits, self.most(level));
                }
                self.set_links(neighbour, level, &back);
            }
        }
        if top_level.is_none_or(|top| level > top) {
            self.entry = Some(slot);
        }
    }

    fn hnsw_options(&self) -> Option<HnswOptions> {
        Some(self.options)
    }

    fn parts(&self, _vectors: &Vectors) -> Vec<(Part, Vec<u8>)> {
        let mut upper = vec![self.entry.map_or(0, |entry| entry.0)];
        let mut slots: Vec<&u32> = self.upper.keys().collect();
        slots.sort_unstable();
        for slot in slots {
            let levels = &self.upper[slot];
            upper.extend([*slot, levels.len() as u32]);
            for links in levels {
                upper.push(links.len() as u32);
                upper.extend_from_slice(links);
            }
        }
        vec![
            (
                Part::GroundLinks,
                bytemuck::cast_slice(&self.ground).to_vec(),
            ),
            (Part::UpperLinks, bytemuck::cast_slice(&upper).to_vec()),
        ]
    }
}

/// A walk on one level: a search on level 0, or the search for a new node's neighbours.
struct Walk<'a> {
    graph: &'a Hnsw,
    vectors: &'a Vectors,
    query: &'a [f32],
    keep: &'a SlotFilter<'a>,
    level: usize,
    k: usize,
    /// The best nodes so far that the filter accepts.
    found: Top,
    /// Nodes seen and not visited yet, the nearest and lowest slot first, with their scores as [`flip`] returns them.
    open: BinaryHeap<(i32, Reverse<Slot>)>,
    /// One bit per slot, set once it has been seen.
    seen: Vec<u64>,
    /// True if the twins of nodes are found too.
    sees_twins: bool,
    begun: bool,
}

impl<'a> Walk<'a> {
    fn new(
        graph: &'a Hnsw,
        vectors: &'a Vectors,
        query: &'a [f32],
        keep: &'a SlotFilter<'a>,
        (k, breadth): (usize, usize),
        level: usize,
    ) -> Self {
        Self {
            graph,
            vectors,
            query,
            keep,
            level,
            k,
            found: Top::new(breadth),
            open: BinaryHeap::new(),
            seen: Vec::new(),
            sees_twins: true,
            begun: false,
        }
    }

    fn see(&mut self, hit: Hit) {
        let (word, bit) = (hit.slot.0 as usize / 64, 1 << (hit.slot.0 % 64));
        if self.seen[word] & bit != 0 {
            return;
        }
        self.seen[word] |= bit;
        if self.found.admits(hit.slot, hit.score) {
            let rank = flip(hit.score.to_bits().cast_signed());
            self.open.push((rank, Reverse(hit.slot)));
            let twins = self.graph.twins.get(&hit.slot.0);
            let twins = twins.filter(|_| self.sees_twins).into_iter().flatten();
            for slot in [hit.slot].into_iter().chain(twins.map(|&twin| Slot(twin))) {
                if !self.found.admits(slot, hit.score) {
                    break;
                }
                if (self.keep)(slot) {
                    self.found.offer(slot, hit.score);
                }
            }
        }
    }

    fn is_seen(&self, slot: u32) -> bool {
        self.seen[slot as usize / 64] & (1 << (slot % 64)) != 0
    }

    /// Visits the nearest open node. Returns `false` if no open node can improve the result.
    fn visit(&mut self) -> bool {
        let Some((rank, Reverse(next))) = self.open.pop() else {
            return false;
        };
        let score = f32::from_bits(flip(rank).cast_unsigned());
        if self.found.bar().is_some_and(|bar| score < bar) {
            self.open.clear();
            return false;
        }
        let graph = self.graph;
        for &slot in graph.links(next, self.level) {
            if !self.is_seen(slot) {
                let score = self.vectors.score(self.query, Slot(slot));
                self.see(Hit {
                    slot: Slot(slot),
                    score,
                });
            }
        }
        true
    }
}

impl Search for Walk<'_> {
    fn advance(&mut self) -> bool {
        if !self.begun {
            self.begun = true;
            self.seen = vec![0; self.vectors.len().div_ceil(64)];
            if let Some(start) = self.graph.approach(self.vectors, self.query, self.level) {
                self.see(start);
            }
        }
        (0..VISITS).filter(|_| self.visit()).count() > 0
    }

    fn top(&self) -> &[Hit] {
        let hits = self.found.hits();
        &hits[..hits.len().min(self.k)]
    }
}

/// Maps a float's bits to a number with the order of [`f32::total_cmp`], and such a number back to the bits: of
/// negative floats, it inverts all bits except the sign.
fn flip(bits: i32) -> i32 {
    bits ^ ((bits >> 31).cast_unsigned() >> 1).cast_signed()
}

/// Returns the highest level of a slot: one slot in `links` reaches level 1, one in `links²` level 2, and so on.
fn level_of(slot: Slot, links: u16) -> usize {
    let mut random = Random::new(u64::from(slot.0));
    let is_higher = |_: &usize| random.unit() * f64::from(links) < 1.0;
    (0..MAX_LEVEL).take_while(is_higher).count()
}
