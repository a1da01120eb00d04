//! Chooses the positions of a prompt at which cache markers are set: where the expected saving exceeds the cost of
//! writing to the cache, and at most as many as the provider allows, the client's included.
//!
//! ```text
//!   tokens      0 ─────── h ───── m ──────── L ──────── end          h: what the upstream has cached, read at .1
//!   price       .1 to h   1.25 from h to L   1 from there            L: the last marker; m: others, at no price of
//!                                                                       their own
//! ```
//!
//! Everything between the cached prefix and the last marker is written once, at 1.25. So the last marker determines the
//! price, and further ones are free: they are set where the next request that shares a prefix is most likely to stop
//! sharing. With `p` the probability that a later prompt has the same position (the same text up to there) and T the
//! tokens up to it, markers at m₁ < m₂ < … let the next such request read Σ (T(mᵢ) − T(mᵢ₋₁)) · p(mᵢ) tokens. Their
//! value is that sum times the saving per token read, less .25 for each token newly written. The best set for each last
//! marker is found by dynamic programming over positions.

use super::layout::{Layout, MarkTtl, Mode};
use super::ledger::{Knowledge, Ledger};
use super::rules::{CacheKind, CacheRules};

/// The cache markers chosen for a prompt, and the tokens that the upstream is expected to read and write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// The positions at which the gateway sets cache markers, as indices in [`Layout::positions`], in order, each with
    /// the marker's lifetime.
    pub(super) markers: Vec<(usize, MarkTtl)>,
    /// All positions with a cache marker, as indices in [`Layout::positions`], in order, each with the marker's
    /// lifetime: the markers that the gateway sets, and those of the client and the provider.
    pub(super) all: Vec<(usize, MarkTtl)>,
    /// The last position up to which the upstream is believed to read the prompt from its cache, as an index in
    /// [`Layout::positions`]; `None` if it reads nothing.
    pub(super) read: Option<usize>,
    /// Estimated number of the prompt's tokens that the upstream reads from its cache. `written_tokens` is the number
    /// of those that it newly writes to the cache.
    pub(super) read_tokens: u64,
    pub(super) written_tokens: u64,
    /// True if the forwarded body is to switch off OpenAI's automatic cache marker at the end of the prompt.
    pub(super) is_explicit: bool,
}

/// A position of the prompt (end of a block) that matters for the choice of cache markers: the upstream has the prompt
/// cached up to it, it has a marker, or the gateway may set one there.
#[derive(Clone, Copy, Debug)]
struct Node {
    at: usize,
    step: u32,
    tokens: f64,
    again: f64,
    /// True if the upstream's cache will keep the prompt up to this position for at least half a cache lifetime without
    /// a new marker.
    is_fresh: bool,
    is_live: bool,
    /// True if the gateway may set a cache marker at this position.
    is_free: bool,
    /// True if the client or the provider, not the gateway, sets a cache marker at this position.
    is_clients: bool,
}

pub(super) fn choose(layout: &Layout, rules: &CacheRules, ledger: &Ledger, now_ms: u64) -> Choice {
    let mut choice = Choice::default();
    if layout.tokens() < u64::from(rules.minimum_tokens) {
        return choice;
    }
    let mut clients = layout.marks(rules.kind);
    if rules.kind == CacheKind::OpenAi && !layout.is_clients() {
        // With OpenAI's automatic marker at its end, a prompt costs 1.25, and only a continued chat reads it.
        choice.is_explicit = true;
        clients.clear();
    }
    let known = ledger.of(layout, rules, now_ms);
    let nodes = nodes(layout, rules, &known, &clients, now_ms);
    // A provider's automatic marker counts towards the limit, even at a position that the client marks too.
    let written = layout.positions.iter();
    let written = written.filter(|position| position.mark.is_some()).count();
    let by_itself = layout.automatic.is_some()
        || rules.kind == CacheKind::OpenAi && !choice.is_explicit && layout.mode != Mode::Explicit;
    let taken = written + usize::from(by_itself);
    let most = (rules.markers as usize).saturating_sub(taken);
    let best = Search::new(&nodes, rules, most).best();
    // Providers require markers with the longer lifetime before those with the shorter one.
    let long_until = (clients.iter().rev())
        .find(|(_, ttl)| *ttl == MarkTtl::Long)
        .map_or(0, |(at, _)| *at);
    choice.markers = (best.into_iter())
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
        // The next marker in the prompt is also the nearest in steps.
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

/// Returns whether a cache marker at the position `mark` lets the upstream find the cached prefix that ends at the
/// position `held`, as it searches backwards. Both are indices in [`Layout::positions`].
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
    /// The maximum number of cache markers that the gateway may set in this prompt, in addition to the client's and the
    /// provider's.
    most: usize,
    /// For each of `nodes`, the last cached position up to which a marker at that node would let the upstream read the
    /// prompt, as an index in `nodes`; `None` if there is none.
    found: Vec<Option<usize>>,
    /// The last cached position up to which the client's markers let the upstream read the prompt, as an index in
    /// `nodes`; `None` if there is none.
    found_by_client: Option<usize>,
    /// The last position with a cache marker of the client or the provider, as an index in `nodes`; `None` if there is
    /// none.
    clients_last: Option<usize>,
    /// The last cached position, as an index in `nodes`, with the first node from there on at which a marker of the
    /// gateway would let the upstream read the prompt up to that position (`None` if there is no such node). `None` if
    /// nothing is cached.
    last_held: Option<(usize, Option<usize>)>,
}

/// The last step of the best choice of a given number of the gateway's cache markers whose last boundary (end of a
/// cached prefix) is at a given position; an element of the result of [`Search::ways`]. The boundaries before it follow
/// from the step that `before` names.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Expected number of tokens that the next request with a shared prefix reads from the cache if these markers are
    /// set.
    read: f64,
    /// The position and the number of markers, in the table, of the step to the boundary before; `None` at the first.
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

    /// Returns the positions at which the gateway should set markers, as indices in [`Layout::positions`], in order;
    /// empty if no marker is worth its cost.
    fn best(&self) -> Vec<usize> {
        if self.most == 0 {
            return Vec::new();
        }
        let ways = self.ways();
        // The saving for each token that the next request reads instead of writing it.
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

    /// Returns the extra price of the prompt with the gateway's markers at these positions (indices in `nodes`) and the
    /// client's markers: its price minus that of the same prompt without a cache. Negative if the cache saves money.
    /// The unit is the price of one uncached token.
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

    /// Returns `markers` (the gateway's, as indices in `nodes`) with one more at the end, which lets the upstream read
    /// the prompt up to the last cached position. `None` if it can already read up to there, or if no marker of the
    /// gateway makes that possible.
    fn anchored(&self, markers: &[usize]) -> Option<Vec<usize>> {
        let (live, anchor) = self.last_held?;
        if self.read(markers) == Some(live) {
            return None;
        }
        let mut anchored = markers.to_vec();
        anchored.push(anchor?);
        Some(anchored)
    }

    /// Returns the last cached position, as an index in `nodes`, up to which the upstream reads the prompt with the
    /// client's markers and the gateway's at `markers`; `None` if it reads nothing.
    fn read(&self, markers: &[usize]) -> Option<usize> {
        let found = markers.iter().filter_map(|at| *self.found.get(*at)?);
        found.max().max(self.found_by_client)
    }

    /// Returns a table, `[position][number of markers]`, for each of `nodes` (positions considered): the last step of
    /// the choice of exactly so many of the gateway's cache markers that is expected to read the most tokens, among
    /// those whose last boundary (end of a cached prefix) is at this position; `None` if no choice ends here. A
    /// position that stays cached or that the client marks is a boundary without a marker of the gateway.
    fn ways(&self) -> Vec<Vec<Option<Step>>> {
        let mut ways: Vec<Vec<Option<Step>>> = Vec::with_capacity(self.nodes.len());
        for (at, node) in self.nodes.iter().enumerate() {
            let mut here: Vec<Option<Step>> = vec![None; self.most + 1];
            // A node that stays cached for long enough, or that the client marked, needs no marker of the gateway.
            let costs = usize::from(!(node.is_fresh || node.is_clients));
            let can = node.is_free || costs == 0;
            for (used, way) in here.iter_mut().enumerate() {
                if !can || used < costs {
                    continue;
                }
                let mut best = (used == costs).then_some(Step {
                    read: node.tokens * node.again,
                    before: None,
                });
                for (before, earlier) in ways.iter().enumerate() {
                    let from = earlier.get(used - costs).copied().flatten();
                    let tokens = self.nodes.get(before).map_or(0.0, |node| node.tokens);
                    let Some(from) = from else { continue };
                    let read = from.read + (node.tokens - tokens) * node.again;
                    if best.is_none_or(|best| read > best.read) {
                        best = Some(Step {
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

    /// Returns the positions that get a marker of the gateway in the best set with `used` markers and the cache's last
    /// boundary at the position `last`, as indices in `nodes`, last to first. `ways` is the result of [`Search::ways`].
    fn path(&self, ways: &[Vec<Option<Step>>], last: usize, used: usize) -> Vec<usize> {
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

/// The maximum number of positions (ends of blocks) of one prompt that are considered for markers, its last ones; the
/// search is quadratic in their number.
const MOST_NODES: usize = 96;
