//! Chooses the order of tools when requests offer different sets of them.
//!
//! ```text
//!   offered             by name                 learned
//!   a core1 core2       a core1 core2           a core1 core2
//!   core1 core2 d       core1 core2 d           core1 core2 d
//!   b core1 core2       b core1 core2           core1 core2 b          begins like the second
//!   a core1 core2 e     a core1 core2 e         a core1 core2 e        begins like the first
//! ```
//!
//! Engines reuse a list of tools only up to its first difference from an earlier list. If tools are sorted by name, one
//! rare tool costs the reuse of all tools after it. So the first set is sorted by name, and a new set begins like the
//! known set with which it shares the most bytes from the start; the remaining tools follow, those in most known sets
//! first. A set keeps its order, since a change would cost the chats that use it their prefixes.

use crate::sort::sort_by_key;
use fxhash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::cmp::Reverse;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The orders in which the sets of tools of one tenant and model are forwarded. Beyond [`MAX_SETS`] sets or
/// [`MAX_PLACES`] tools in all, the least recently used set is evicted.
#[derive(Debug, Default)]
pub(super) struct ToolSets {
    sets: Vec<ToolSet>,
    /// For each tool, by its hash, the number of recorded sets that contain it.
    offered: FxHashMap<u64, u32>,
    /// Number of tools in all recorded sets together; a tool in two sets counts twice.
    places: usize,
    now: u64,
}

#[derive(Debug)]
struct ToolSet {
    key: u64,
    /// Hashes of the set's tools, in the chosen order.
    sequence: Box<[u64]>,
    last_used: u64,
}

/// The hash and the size in bytes of a tool of a set, on which the tool's position in the chosen order depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetTool {
    /// Hash of the tool. It does not depend on the order of the tool's JSON keys if the gateway stabilises that order.
    pub(super) id: u64,
    pub(super) bytes: usize,
}

/// Returns the key that identifies a set of tools, which must be sorted by name.
pub(super) fn key_of(tools: &[SetTool]) -> u64 {
    let seed = 22;
    (tools.iter()).fold(seed, |hash, tool| {
        xxh3_64_with_seed(&tool.id.to_le_bytes(), hash)
    })
}

impl ToolSets {
    /// Returns the order in which to forward a set of at most 255 tools, which must be sorted by name: for each
    /// position, the tool's index in `tools`. `key` identifies the set. `told`, an order recorded for it (such as
    /// another worker's), is returned if valid. A new set is recorded. O(known sets + tools), unless many sets begin
    /// alike.
    pub(super) fn order(
        &mut self,
        key: u64,
        tools: &[SetTool],
        told: Option<&[u8]>,
    ) -> SmallVec<[u8; 32]> {
        self.now += 1;
        let told = told.filter(|order| is_permutation(order, tools.len()));
        let order: SmallVec<[u8; 32]> = match told {
            Some(order) => order.into(),
            None => self.choose(tools),
        };
        let ids = || (order.iter()).filter_map(|rank| Some(tools.get(usize::from(*rank))?.id));
        if let Some(set) = self.sets.iter_mut().find(|set| set.key == key) {
            set.last_used = self.now;
            // Another worker's order may have replaced the recorded one.
            if !set.sequence.iter().copied().eq(ids()) {
                set.sequence = ids().collect();
            }
            return order;
        }
        while self.sets.len() >= MAX_SETS || self.places + tools.len() > MAX_PLACES {
            let oldest = self.sets.iter().enumerate();
            let Some((oldest, _)) = oldest.min_by_key(|(_, set)| set.last_used) else {
                break;
            };
            self.forget(oldest);
        }
        self.places += order.len();
        for tool in tools {
            *self.offered.entry(tool.id).or_default() += 1;
        }
        self.sets.push(ToolSet {
            key,
            sequence: ids().collect(),
            last_used: self.now,
        });
        order
    }

    fn forget(&mut self, at: usize) {
        let set = self.sets.swap_remove(at);
        self.places -= set.sequence.len();
        for id in &set.sequence {
            if let Some(count) = self.offered.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.offered.remove(id);
                }
            }
        }
    }

    /// Returns an order for a new set, as indices in `tools`: first the tools with which that recorded set begins that
    /// shares the most bytes from its start, then the other tools, those in most recorded sets first.
    fn choose(&self, tools: &[SetTool]) -> SmallVec<[u8; 32]> {
        let ranks: FxHashMap<u64, u8> = tools.iter().map(|tool| tool.id).zip(0..).collect();
        let bytes = |rank: &u8| tools.get(usize::from(*rank)).map_or(0, |tool| tool.bytes);
        let begun = self.sets.iter().map(|set| {
            let ranks = set.sequence.iter().map_while(|id| ranks.get(id).copied());
            let ranks: SmallVec<[u8; 32]> = ranks.collect();
            let shared: usize = ranks.iter().map(bytes).sum();
            (shared, set.last_used, ranks)
        });
        let begun = begun.max_by_key(|(shared, last_used, _)| (*shared, *last_used));
        let mut order = begun.map(|(_, _, ranks)| ranks).unwrap_or_default();
        let placed: FxHashSet<u8> = order.iter().copied().collect();
        let mut rest: Vec<(Reverse<u32>, u8)> = (tools.iter().zip(0_u8..))
            .filter(|(_, rank)| !placed.contains(rank))
            .map(|(tool, rank)| {
                let count = self.offered.get(&tool.id).copied().unwrap_or_default();
                (Reverse(count), rank)
            })
            .collect();
        sort_by_key(&mut rest, |entry| *entry);
        order.extend(rest.into_iter().map(|(_, rank)| rank));
        order
    }
}

/// Returns whether `order` has each number below `count` exactly once.
pub(super) fn is_permutation(order: &[u8], count: usize) -> bool {
    let mut seen = [false; 256];
    order.len() == count
        && order.iter().all(|rank| {
            let is_first = seen.get_mut(usize::from(*rank));
            usize::from(*rank) < count
                && is_first.is_some_and(|seen| !std::mem::replace(seen, true))
        })
}

/// The maximum number of sets of tools whose order is recorded for one tenant and model.
const MAX_SETS: usize = 256;

/// The maximum number of tools in all recorded sets of one tenant and model together.
const MAX_PLACES: usize = 8_192;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(names: &str) -> Vec<SetTool> {
        let mut names: Vec<u8> = names.bytes().collect();
        names.sort_unstable();
        let tool = |name: u8| SetTool {
            id: u64::from(name),
            bytes: 10,
        };
        names.into_iter().map(tool).collect()
    }

    fn order(sets: &mut ToolSets, names: &str) -> String {
        let tools = set(names);
        let order = sets.order(key_of(&tools), &tools, None);
        let names = order.iter().map(|rank| tools[usize::from(*rank)].id as u8);
        String::from_utf8(names.collect()).unwrap()
    }

    #[test]
    fn tools_that_few_requests_offer_stand_behind_the_others() {
        let mut sets = ToolSets::default();
        assert_eq!(order(&mut sets, "axy"), "axy");
        assert_eq!(order(&mut sets, "xyd"), "xyd");
        assert_eq!(order(&mut sets, "bxy"), "xyb");
        assert_eq!(order(&mut sets, "bdxy"), "xybd");
        // A longer shared beginning counts more than an order by frequency.
        assert_eq!(order(&mut sets, "aexy"), "axye");
    }

    #[test]
    fn a_set_keeps_its_order_and_takes_one_that_it_is_told() {
        let mut sets = ToolSets::default();
        let tools = set("abc");
        let key = key_of(&tools);
        let mut told = |told: Option<&[u8]>| sets.order(key, &tools, told).to_vec();
        assert_eq!(told(None), [0, 1, 2]);
        assert_eq!(told(Some(&[2, 0, 1])), [2, 0, 1]);
        for wrong in [&[0, 0, 1][..], &[0, 1], &[0, 1, 3], &[]] {
            assert_eq!(told(Some(wrong)).len(), 3);
        }
        assert_eq!(order(&mut sets, "cd"), "cd");
    }

    #[test]
    fn sets_of_many_tools_take_the_place_of_older_ones() {
        let mut sets = ToolSets::default();
        for first in 0..100_u64 {
            let tools: Vec<SetTool> = (first * 200..first * 200 + 200)
                .map(|id| SetTool { id, bytes: 10 })
                .collect();
            assert_eq!(sets.order(key_of(&tools), &tools, None).len(), 200);
            assert!(sets.places <= MAX_PLACES);
        }
        assert_eq!(sets.sets.len(), MAX_PLACES / 200);
    }

    proptest! {
        /// For random sets of tools, every order that is returned has each tool of the set once, and the stored sets
        /// stay within their bounds.
        #[test]
        fn an_order_holds_each_tool_once(offered in prop::collection::vec(1_u16..1 << 10, 1..600)) {
            let mut sets = ToolSets::default();
            for offered in offered {
                let names: String = (b'a'..=b'j').zip(0..).filter(|(_, bit)| offered >> bit & 1 == 1).map(|(name, _)| name as char).collect();
                let mut sent: Vec<char> = order(&mut sets, &names).chars().collect();
                sent.sort_unstable();
                prop_assert_eq!(sent.into_iter().collect::<String>(), names);
                prop_assert!(sets.sets.len() <= MAX_SETS);
                let mut offered: FxHashMap<u64, u32> = FxHashMap::default();
                for id in sets.sets.iter().flat_map(|set| &set.sequence) {
                    *offered.entry(*id).or_default() += 1;
                }
                prop_assert_eq!(&sets.offered, &offered);
                prop_assert_eq!(sets.places, offered.values().sum::<u32>() as usize);
            }
        }
    }
}
