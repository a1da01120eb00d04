//! Which positions are marked: at most four, the client's included, where the expected saving exceeds what writing costs.
//!
//! ```text
//!   tokens      0 ─────── h ───── m ──────── L ──────── end          h: what the upstream holds, read at .1
//!   price       .1 to h   1.25 from h to L   1 from there            L: the last marker; m: others, at no price of
//!                                                                       their own
//! ```
//!
//! Everything between what is read and the last marker is written once, at 1.25, whatever stands between. So the last
//! marker decides the price, and the others are free: they stand where the next request that shares something is most
//! likely to stop sharing. With `p` the probability that a position comes again, markers at m₁ < m₂ < … have the next
//! such request read Σ (T(mᵢ) − T(mᵢ₋₁)) · p(mᵢ) tokens, and are worth that times what reading saves, less .25 for each
//! token that they newly write. The best set for each last marker is found by dynamic programming over positions.

use super::layout::{Layout, MarkTtl, Mode};
use super::ledger::{Knowledge, Ledger};
use super::rules::{CacheKind, CacheRules};

/// What is marked, and what that is believed to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// Positions to mark, in order, and for how long.
    pub(super) markers: Vec<(usize, MarkTtl)>,
    /// These, and those of the client, in order.
    pub(super) all: Vec<(usize, MarkTtl)>,
    /// The position up to which the upstream is believed to hold the prompt.
    pub(super) read: Option<usize>,
    /// Estimated tokens that are read, and that are newly written.
    pub(super) read_tokens: u64,
    pub(super) written_tokens: u64,
    /// Whether OpenAI is told to mark nothing by itself.
    pub(super) is_explicit: bool,
}

/// A position that can be marked, or is.
#[derive(Clone, Copy, Debug)]
struct Node {
    at: usize,
    step: u32,
    tokens: f64,
    again: f64,
    /// Whether the upstream holds it, and for long enough that it needs no marker to be kept.
    is_fresh: bool,
    is_live: bool,
    /// Whether a marker of ours may stand here.
    is_free: bool,
    /// Whether the client's stands here.
    is_clients: bool,
}

pub(super) fn choose(layout: &Layout, rules: &CacheRules, ledger: &Ledger, now_ms: u64) -> Choice {
    let mut choice = Choice::default();
    if layout.tokens() < u64::from(rules.minimum_tokens) {
        return choice;
    }
    let mut clients = layout.marks(rules.kind);
    if rules.kind == CacheKind::OpenAi && !layout.is_clients() {
        // Its own marker at the end of each prompt costs 1.25 of all of it, and only a chat that goes on reads it.
        choice.is_explicit = true;
        clients.clear();
    }
    let known = ledger.of(layout, rules, now_ms);
    let nodes = nodes(layout, rules, &known, &clients, now_ms);
    // A marker that the provider sets by itself counts, even where one stands already.
    let written = layout.positions.iter();
    let written = written.filter(|position| position.mark.is_some()).count();
    let by_itself = layout.automatic.is_some()
        || rules.kind == CacheKind::OpenAi && !choice.is_explicit && layout.mode != Mode::Explicit;
    let taken = written + usize::from(by_itself);
    let most = (rules.markers as usize).saturating_sub(taken);
    let best = Search::new(&nodes, rules, most).best();
    // A marker for the longer time must precede those for the shorter one.
    let long_until = (clients.iter().rev())
        .find(|(_, ttl)| *ttl == MarkTtl::Long)
        .map_or(0, |(at, _)| *at);
    choice.markers = best
        .into_iter()
        .map(|at| {
            let ttl = if at < long_until {
                MarkTtl::Long
            } else {
                MarkTtl::Default
            };
            (at, ttl)
        })
        .collect();
    choice.all = choice.markers.clone();
    choice.all.extend(clients);
    choice.all.sort_unstable_by_key(|(at, _)| *at);
    let read = nodes.iter().rev().find(|node| {
        // The next marker is the nearest by steps too.
        let next = choice.all.partition_point(|(mark, _)| *mark < node.at);
        let next = choice.all.get(next);
        node.is_live && next.is_some_and(|(mark, _)| reaches(layout, rules, *mark, node.at))
    });
    choice.read = read.map(|node| node.at);
    choice.read_tokens = read.map_or(0, |node| node.tokens as u64);
    let last = choice.all.last();
    let last = last.and_then(|(at, _)| layout.positions.get(*at));
    choice.written_tokens = last
        .map_or(0, |last| last.tokens)
        .saturating_sub(choice.read_tokens);
    choice
}

/// Whether a marker finds what is held at a position before it.
fn reaches(layout: &Layout, rules: &CacheRules, mark: usize, held: usize) -> bool {
    let step = |at: usize| layout.positions.get(at).map_or(0, |position| position.step);
    held <= mark
        && (held == mark || step(mark) - step(held) < rules.look_back && rules.look_back > 1)
}

fn nodes(
    layout: &Layout,
    rules: &CacheRules,
    known: &[Knowledge],
    clients: &[(usize, MarkTtl)],
    now_ms: u64,
) -> Vec<Node> {
    let is_automatic = rules.kind == CacheKind::Anthropic && layout.automatic.is_some()
        || rules.kind == CacheKind::OpenAi && layout.mode == Mode::Implicit;
    let last = layout.positions.len().saturating_sub(1);
    let positions = layout.positions.iter().zip(known).enumerate();
    positions
        .filter(|(_, (position, _))| position.tokens >= u64::from(rules.minimum_tokens))
        .filter_map(|(at, (position, known))| {
            let is_clients = clients
                .binary_search_by_key(&at, |(marked, _)| *marked)
                .is_ok();
            let is_free = position.place.is_some()
                && position.mark.is_none()
                && !is_clients
                && !(is_automatic && at == last);
            let is_live = known.live_until_ms > 0;
            (is_free || is_clients || is_live).then_some(Node {
                at,
                step: position.step,
                tokens: position.tokens as f64,
                again: known.again,
                is_fresh: known.live_until_ms > now_ms + rules.ttl_ms / 2,
                is_live,
                is_free,
                is_clients,
            })
        })
        .rev()
        .take(MOST_NODES)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect()
}

struct Search<'n> {
    nodes: &'n [Node],
    rules: &'n CacheRules,
    /// Markers of ours, at most.
    most: usize,
    /// For each node, the last one that is held and found by a marker there.
    found: Vec<Option<usize>>,
    /// The last node that is held and found by the client's markers.
    found_by_client: Option<usize>,
    /// The client's last marker.
    clients_last: Option<usize>,
    /// The last node that is held, and the first free one from there on whose marker finds it.
    last_held: Option<(usize, Option<usize>)>,
}

/// The best way to come to a node with so many markers.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Tokens that the next request that shares something is expected to read.
    read: f64,
    before: Option<(usize, usize)>,
}

impl<'n> Search<'n> {
    fn new(nodes: &'n [Node], rules: &'n CacheRules, most: usize) -> Self {
        let back = rules.look_back;
        let mut held = None;
        let found = nodes.iter().enumerate().map(|(at, node)| {
            if node.is_live {
                held = Some((at, node.step));
            }
            let near =
                held.filter(|(held, step)| *held == at || back > 1 && node.step - step < back);
            near.map(|(held, _)| held)
        });
        let found: Vec<Option<usize>> = found.collect();
        let clients = nodes.iter().zip(&found).filter(|(node, _)| node.is_clients);
        let last_held = held.map(|(live, _)| {
            let free = nodes.iter().zip(&found).enumerate().skip(live);
            let mut free = free.filter(|(_, (node, found))| node.is_free && **found == Some(live));
            (live, free.next().map(|(at, _)| at))
        });
        Self {
            nodes,
            rules,
            most,
            found_by_client: clients.filter_map(|(_, found)| *found).max(),
            clients_last: nodes.iter().rposition(|node| node.is_clients),
            last_held,
            found,
        }
    }

    /// The positions to mark.
    fn best(&self) -> Vec<usize> {
        if self.most == 0 {
            return Vec::new();
        }
        let ways = self.ways();
        // What the next request that shares something saves for each token that it reads instead of writing it.
        let gain = self.rules.write - self.rules.read;
        let mut best = (-self.cost(&[]), Vec::new());
        for (last, here) in ways.iter().enumerate() {
            for (used, way) in here.iter().enumerate() {
                let Some(way) = way else { continue };
                let markers = self.path(&ways, last, used);
                let anchored = self.anchored(&markers);
                for markers in std::iter::once(markers).chain(anchored) {
                    let value = gain * way.read - self.cost(&markers);
                    if markers.len() <= self.most && value > best.0 + 1e-9 {
                        best = (value, markers);
                    }
                }
            }
        }
        let mut at: Vec<usize> = (best.1.into_iter())
            .filter_map(|node| self.nodes.get(node).map(|node| node.at))
            .collect();
        at.sort_unstable();
        at
    }

    /// What the prompt's beginning costs with these markers and the client's, less what it costs plain.
    fn cost(&self, markers: &[usize]) -> f64 {
        let last = markers.iter().copied().max();
        let written = self.tokens(last.max(self.clients_last));
        let read = self.tokens(self.read(markers));
        (self.rules.read - 1.0) * read + (self.rules.write - 1.0) * (written - read).max(0.0)
    }

    fn tokens(&self, node: Option<usize>) -> f64 {
        node.and_then(|at| self.nodes.get(at))
            .map_or(0.0, |node| node.tokens)
    }

    /// The markers with one more, by which the last node that is held is found; `None` if it is found without.
    fn anchored(&self, markers: &[usize]) -> Option<Vec<usize>> {
        let (live, anchor) = self.last_held?;
        if self.read(markers) == Some(live) {
            return None;
        }
        let mut anchored = markers.to_vec();
        anchored.push(anchor?);
        Some(anchored)
    }

    /// The last node that is held and found by these markers and the client's.
    fn read(&self, markers: &[usize]) -> Option<usize> {
        let found = markers.iter().filter_map(|at| *self.found.get(*at)?);
        found.max().max(self.found_by_client)
    }

    /// For each node, by the number of markers used, the best way to it.
    fn ways(&self) -> Vec<Vec<Option<Way>>> {
        let mut ways: Vec<Vec<Option<Way>>> = Vec::with_capacity(self.nodes.len());
        for (at, node) in self.nodes.iter().enumerate() {
            let mut here: Vec<Option<Way>> = vec![None; self.most + 1];
            // A node that is held for long enough, or marked by the client, takes no marker.
            let costs = usize::from(!(node.is_fresh || node.is_clients));
            let can = node.is_free || costs == 0;
            for (used, way) in here.iter_mut().enumerate() {
                if !can || used < costs {
                    continue;
                }
                let mut best = (used == costs).then_some(Way {
                    read: node.tokens * node.again,
                    before: None,
                });
                for (before, earlier) in ways.iter().enumerate() {
                    let from = earlier.get(used - costs).copied().flatten();
                    let tokens = self.nodes.get(before).map_or(0.0, |node| node.tokens);
                    let Some(from) = from else { continue };
                    let read = from.read + (node.tokens - tokens) * node.again;
                    if best.is_none_or(|best| read > best.read) {
                        best = Some(Way {
                            read,
                            before: Some((before, used - costs)),
                        });
                    }
                }
                *way = best;
            }
            debug_assert_eq!(ways.len(), at);
            ways.push(here);
        }
        ways
    }

    /// The nodes of a way that take markers of ours.
    fn path(&self, ways: &[Vec<Option<Way>>], last: usize, used: usize) -> Vec<usize> {
        let mut markers = Vec::new();
        let mut next = Some((last, used));
        while let Some((at, used)) = next {
            let node = self.nodes.get(at);
            if node.is_some_and(|node| !node.is_fresh && !node.is_clients) {
                markers.push(at);
            }
            let way = ways
                .get(at)
                .and_then(|ways| ways.get(used))
                .copied()
                .flatten();
            next = way.and_then(|way| way.before);
        }
        markers
    }
}

/// Positions that are weighed, the last ones of a long prompt: the search takes their square.
const MOST_NODES: usize = 96;
