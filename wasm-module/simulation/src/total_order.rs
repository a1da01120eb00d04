//! Learns a total order of documents from a log, for modules that decide without a memory
//! ([`OrderTable`](foreword_ordering::order_table::OrderTable)).
//!
//! A prompt's documents in a fixed order are a path, and the paths of a log make a tree; what a cache without bounds
//! computes is one node after another, so the best order is the one whose tree has the fewest tokens:
//!
//! ```text
//!   requests     order a b c: 6 nodes      order c b a: 4 nodes
//!   a b c        a ─┬─ b ─ c               c ─┬─ b ─ a
//!   b c             └─ c                      └─ a
//!   a c          b ─── c
//! ```
//!
//! The search begins with the commonest documents first, which is how FP-trees are kept small (Han, Pei and Yin 2000, section
//! 2.2), and then sifts, as variables of decision diagrams are (Rudell 1993): one document after another is moved past those
//! that it was ever asked together with, its company, to where the tree has the fewest tokens. Documents never asked
//! together may stand in any order.
//!
//! Two orders were tried and rejected: by mean place in what `foresight` sends, and company first, as a recursion over the
//! commonest documents. Both reuse less on every trace with rankings (`benches/README.md`).

use super::{Capacity, CompactTrace, EngineCache, Retrieved, Reuse, document_tokens};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::order_table::OrderTable;
use fxhash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// A total order of documents, and what it took to find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotalOrder {
    /// The documents, first to last.
    pub documents: Vec<Fingerprint>,
    /// Tokens of the tree of the log's prompts in this order.
    pub tree_tokens: u64,
    /// Tokens of that tree before sifting: the commonest documents first.
    pub first_tree_tokens: u64,
    /// Number of documents looked at in requests, over all that was tried.
    pub work: u64,
    /// Whether sifting ended because nothing more could be gained, and not by `max_work`.
    pub settled: bool,
}

/// Learns an order from a trace, of documents that are told apart by `key`. Sifting ends before the first document after
/// `max_work` looks at documents in requests; 0: it is not begun.
///
/// The result depends on the arguments alone. Memory: some 10 bytes for each document of each request.
#[must_use]
pub fn learn(
    trace: &CompactTrace,
    key: impl Fn(&Retrieved) -> Fingerprint,
    max_work: u64,
) -> TotalOrder {
    let mut sifting = Sifting::of(trace, key);
    let first_tree_tokens = sifting.tree_tokens();
    let settled = sifting.run(max_work);
    TotalOrder {
        documents: sifting.order(),
        tree_tokens: sifting.tree_tokens(),
        first_tree_tokens,
        work: sifting.work,
        settled,
    }
}

/// Replays a trace whose documents stand in a table's order: what a module with that table would save.
#[must_use]
pub fn replay_table(trace: &CompactTrace, table: &OrderTable<'_>, capacity: Capacity) -> Reuse {
    let mut cache = EngineCache::new(capacity);
    let mut reuse = Reuse::default();
    for part in (0..trace.requests()).flat_map(|at| trace.request(at)) {
        let mut path: Vec<&Retrieved> = part.documents.iter().collect();
        path.sort_by_key(|found| table.place(&found.label, found.fingerprint));
        reuse.reused_tokens += cache.serve(part.scope, path.into_iter());
        reuse.document_tokens += document_tokens(std::slice::from_ref(&part));
    }
    reuse
}

/// Passes over all documents; later ones were never seen to gain more than a tenth of a percent.
const MAX_PASSES: usize = 8;

/// A document of the trace.
struct Document {
    fingerprint: Fingerprint,
    tokens: i64,
    /// Its share of the hash of a set, which is the sum of its members' shares.
    share: u64,
    /// The requests that it is in.
    requests: Vec<u32>,
    /// Where it stands; any two documents differ.
    place: f64,
}

/// A search for an order.
struct Sifting {
    documents: Vec<Document>,
    /// The documents of each request, and the hash of its scope.
    requests: Vec<(u64, Vec<u32>)>,
    work: u64,
}

/// How often two documents follow one beginning: both, only the one, only the other.
#[derive(Clone, Copy, Default)]
struct Together {
    both: u32,
    one: u32,
    other: u32,
}

impl Sifting {
    /// Returns the search's beginning: the commonest documents first, of equally common ones the heavier, so that a match
    /// holds the most tokens.
    fn of(trace: &CompactTrace, key: impl Fn(&Retrieved) -> Fingerprint) -> Self {
        let mut numbers: FxHashMap<Fingerprint, u32> = FxHashMap::default();
        let mut documents: Vec<Document> = Vec::new();
        let mut requests = Vec::new();
        for ((scope, part), request) in trace.parts().zip(0_u32..) {
            let mut set = Vec::new();
            for found in part {
                let fingerprint = key(found);
                let number = *numbers.entry(fingerprint).or_insert_with(|| {
                    documents.push(Document {
                        fingerprint,
                        tokens: 0,
                        share: mixed(fingerprint.0),
                        requests: Vec::new(),
                        place: 0.0,
                    });
                    u32::try_from(documents.len() - 1).unwrap_or(u32::MAX)
                });
                if let Some(document) = documents.get_mut(number as usize)
                    && document.requests.last() != Some(&request)
                {
                    document.tokens = document.tokens.max(found.tokens.into());
                    document.requests.push(request);
                    set.push(number);
                }
            }
            requests.push((mixed(!scope.0), set));
        }
        let mut sifting = Self {
            documents,
            requests,
            work: 0,
        };
        let mut order: Vec<usize> = (0..sifting.documents.len()).collect();
        order.sort_by_key(|&at| {
            let document = sifting.documents.get(at);
            document.map(|it| (Reverse((it.requests.len(), it.tokens)), it.fingerprint))
        });
        sifting.stand(order);
        sifting
    }

    /// Places the documents in this order.
    fn stand(&mut self, order: Vec<usize>) {
        for (at, place) in order.into_iter().zip(0_u32..) {
            if let Some(document) = self.documents.get_mut(at) {
                document.place = place.into();
            }
        }
    }

    /// Returns the documents' numbers, first to last.
    fn numbers(&self) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..self.documents.len()).collect();
        numbers.sort_by(|&one, &other| self.place(one).total_cmp(&self.place(other)));
        numbers
    }

    fn order(&self) -> Vec<Fingerprint> {
        let numbers = self.numbers().into_iter();
        let documents = numbers.filter_map(|at| self.documents.get(at));
        documents.map(|document| document.fingerprint).collect()
    }

    fn place(&self, at: usize) -> f64 {
        self.documents
            .get(at)
            .map_or(0.0, |document| document.place)
    }

    /// Sifts until nothing is gained, or the work is done; returns whether nothing more was to be gained.
    fn run(&mut self, max_work: u64) -> bool {
        for _ in 0..MAX_PASSES {
            let mut gained = false;
            for at in self.numbers() {
                if self.work >= max_work {
                    return false;
                }
                gained |= self.sift(at);
            }
            // Halving the distance between neighbours has an end.
            let numbers = self.numbers();
            self.stand(numbers);
            if !gained {
                return true;
            }
        }
        true
    }

    /// Moves a document to where the tree has the fewest tokens, the nearest of equally good places; returns whether it
    /// was moved.
    fn sift(&mut self, at: usize) -> bool {
        let company = self.company(at);
        let here = company.partition_point(|&(place, _)| place < self.place(at));
        let (before, after) = company.split_at(here);
        let (mut least, mut best) = (0, here);
        let mut change = 0;
        for (to, &(_, other)) in before.iter().enumerate().rev() {
            change -= self.gain(at, other);
            if change < least {
                (least, best) = (change, to);
            }
        }
        change = 0;
        for (to, &(_, other)) in (here + 1..).zip(after) {
            change += self.gain(at, other);
            if change < least {
                (least, best) = (change, to);
            }
        }
        if best == here {
            return false;
        }
        let place = |at: usize| company.get(at).map(|&(place, _)| place);
        let (low, high) = (best.checked_sub(1).and_then(place), place(best));
        let between = match (low, high) {
            (Some(low), Some(high)) => low.midpoint(high),
            (Some(low), None) => low + 0.5,
            (None, Some(high)) => high - 0.5,
            (None, None) => return false,
        };
        if low == Some(between) || high == Some(between) {
            return false;
        }
        if let Some(document) = self.documents.get_mut(at) {
            document.place = between;
        }
        true
    }

    /// Returns the places and numbers of the documents that were asked together with this one, first to last.
    fn company(&mut self, at: usize) -> Vec<(f64, usize)> {
        let mut seen = FxHashSet::default();
        let mut company = Vec::new();
        let requests = self.documents.get(at).map(|it| it.requests.as_slice());
        for &request in requests.unwrap_or_default() {
            let Some((_, set)) = self.requests.get(request as usize) else {
                continue;
            };
            self.work += set.len() as u64;
            for &other in set {
                let other = other as usize;
                if other != at && seen.insert(other) {
                    company.push((self.place(other), other));
                }
            }
        }
        company.sort_by(|one, other| one.0.total_cmp(&other.0));
        company
    }

    /// Returns by how many tokens the tree grows if `one`, which stands right before `other`, changes places with it; if it
    /// stands right behind, the sign is the opposite. What follows both, and what precedes them, stays.
    fn gain(&mut self, one: usize, other: usize) -> i64 {
        let (Some(first), Some(second)) = (self.documents.get(one), self.documents.get(other))
        else {
            return 0;
        };
        let mut looked = 0;
        let mut beginnings: FxHashMap<u64, Together> = FxHashMap::default();
        // The hash of what stands before `second`, without `first`; and whether the request holds the partner.
        let mut beginning = |request: u32, partner: usize| {
            let (scope, set) = self.requests.get(request as usize)?;
            looked += set.len() as u64;
            let (mut hash, mut both) = (*scope, false);
            for &number in set {
                let number = number as usize;
                both |= number == partner;
                if number != one
                    && number != other
                    && let Some(document) = self.documents.get(number)
                    && document.place < second.place
                {
                    hash = hash.wrapping_add(document.share);
                }
            }
            Some((hash, both))
        };
        for &request in &second.requests {
            if let Some((hash, both)) = beginning(request, one) {
                let together = beginnings.entry(hash).or_default();
                together.both += u32::from(both);
                together.other += u32::from(!both);
            }
        }
        for &request in &first.requests {
            if let Some((hash, false)) = beginning(request, other)
                && let Some(together) = beginnings.get_mut(&hash)
            {
                together.one += 1;
            }
        }
        let (one_tokens, other_tokens) = (first.tokens, second.tokens);
        self.work += looked;
        // A beginning that both follow has nodes for `one` and, below it, for `other`; and one more for `other` where that
        // follows alone. Changed, it is the other way around.
        let grown = beginnings.values().filter(|it| it.both > 0).map(|it| {
            let now = i64::from(it.other > 0) * other_tokens;
            let then = i64::from(it.one > 0) * one_tokens;
            then - now
        });
        grown.sum()
    }

    /// Returns the tokens of the tree of all requests.
    fn tree_tokens(&self) -> u64 {
        let mut nodes = FxHashSet::default();
        let mut tokens = 0;
        for (scope, set) in &self.requests {
            let mut set: Vec<&Document> = (set.iter())
                .filter_map(|&number| self.documents.get(number as usize))
                .collect();
            set.sort_by(|one, other| one.place.total_cmp(&other.place));
            let mut hash = *scope;
            for document in set {
                hash = hash.wrapping_add(document.share);
                if nodes.insert(hash) {
                    tokens += u64::try_from(document.tokens).unwrap_or_default();
                }
            }
        }
        tokens
    }
}

/// Spreads a number over 64 bits (SplitMix64's finaliser): sums of spread numbers tell sets apart.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{self, Bursty};
    use crate::{Request, Trace, replay};
    use foreword_ordering::order_table::Identity;
    use foreword_ordering::policy::{PolicyKind, PolicyOptions};
    use foreword_ordering::tree::Scope;
    use proptest::prelude::*;

    const WORK: u64 = 1 << 30;

    fn compact(trace: &[Request]) -> CompactTrace {
        let mut compact = CompactTrace::default();
        for request in trace {
            compact.push(vec![request.clone()]);
        }
        compact
    }

    fn learned(trace: &[Request], max_work: u64) -> TotalOrder {
        learn(&compact(trace), |found| found.fingerprint, max_work)
    }

    fn share(trace: &[Request], order: &TotalOrder) -> Reuse {
        let bytes = OrderTable::encode(Identity::Text, &order.documents, b"").unwrap();
        let table = OrderTable::read(&bytes).unwrap();
        replay_table(&compact(trace), &table, Capacity::UNBOUNDED)
    }

    fn requests(sets: &[Vec<u64>]) -> Trace {
        let request = |set: &Vec<u64>| Request {
            is_ranked: true,
            scope: Scope(0),
            documents: (set.iter())
                .map(|&number| Retrieved::numbered(number, 10 + number as u32))
                .collect(),
        };
        sets.iter().map(request).collect()
    }

    #[test]
    fn the_pictures_requests_are_put_in_the_order_with_the_smallest_tree() {
        let order = learned(&requests(&[vec![1, 2, 3], vec![2, 3], vec![1, 3]]), WORK);
        assert_eq!(order.documents[0], Fingerprint(3));
        assert_eq!(order.tree_tokens, 13 + 12 + 11 + 11);
    }

    /// Learned from one half of a trace, on the other: at least .75 of what `foresight` reuses, which sees every request.
    #[test]
    fn three_quarters_of_foresights_reuse_on_a_trace_with_known_documents() {
        let bursty = workload::bursty(3, 4_000, Bursty::default());
        let zipf = workload::zipf_topics(3, 4_000, 2_000, 10);
        let geospatial = workload::geospatial(3, 2_000, 5, workload::Ranking::Random);
        for (name, trace) in [
            ("bursty", bursty),
            ("zipf", zipf),
            ("geospatial", geospatial),
        ] {
            let (first, rest) = trace.split_at(trace.len() / 2);
            let order = learned(first, WORK);
            assert!(order.tree_tokens <= order.first_tree_tokens, "{name}");
            let rest = rest.to_vec();
            let table = share(&rest, &order).share();
            let options = PolicyOptions::default();
            let of = |kind| replay(&rest, kind, &options, Capacity::UNBOUNDED).share();
            let (foresight, came) = (of(PolicyKind::Foresight), of(PolicyKind::Retrieval));
            assert!(table >= 0.75 * foresight, "{name}: {table} of {foresight}");
            assert!(table > 1.5 * came, "{name}: {table}, as they came {came}");
        }
    }

    #[test]
    fn the_same_trace_gives_the_same_order_and_work_has_a_bound() {
        let trace = workload::bursty(1, 300, Bursty::default());
        let order = learned(&trace, WORK);
        assert_eq!(order, learned(&trace, WORK));
        assert!(order.settled && order.tree_tokens < order.first_tree_tokens);
        let none = learned(&trace, 0);
        assert_eq!(none.tree_tokens, none.first_tree_tokens);
        assert!(!none.settled && none.work == 0);
        let half = learned(&trace, order.work / 2);
        assert!(!half.settled && half.work < order.work);
        assert!(half.tree_tokens >= order.tree_tokens);
        let empty = learned(&[], WORK);
        assert_eq!((empty.documents.len(), empty.settled), (0, true));
    }

    fn sets() -> impl Strategy<Value = Vec<Vec<u64>>> {
        let set = prop::collection::hash_set(0_u64..7, 0..6);
        let set = set.prop_map(|set| set.into_iter().collect());
        prop::collection::vec(set, 0..14)
    }

    proptest! {
        #[test]
        fn the_tree_has_the_tokens_that_an_unbounded_cache_computes(sets in sets()) {
            let trace = requests(&sets);
            let order = learned(&trace, WORK);
            let reuse = share(&trace, &order);
            prop_assert_eq!(order.tree_tokens, reuse.document_tokens - reuse.reused_tokens);
            prop_assert!(order.tree_tokens <= order.first_tree_tokens);
        }

        #[test]
        fn a_gain_is_what_the_whole_tree_grows_by(sets in sets(), at in 0_usize..6) {
            let mut sifting = Sifting::of(&compact(&requests(&sets)), |found| found.fingerprint);
            let numbers = sifting.numbers();
            if let Some(&[one, other]) = numbers.get(at..at + 2) {
                let before = sifting.tree_tokens() as i64;
                let gain = sifting.gain(one, other);
                let mut changed = numbers;
                changed.swap(at, at + 1);
                sifting.stand(changed);
                prop_assert_eq!(sifting.tree_tokens() as i64 - before, gain);
            }
        }
    }
}
