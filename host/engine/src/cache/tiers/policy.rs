//! Eviction policies: which page is evicted first when room is needed.
//!
//! A page's priority is computed when it is used and stays until it is used again. The page with the lowest priority is
//! evicted first; among equals, the one that was used least recently. `clock` is the tier's:
//!
//! | policy | priority |
//! | --- | --- |
//! | `lru` | time of the last use |
//! | `lfu` | number of uses |
//! | `gdsf` | `clock + frequency · cost / size`, with cost in proportion to size: `clock + frequency` |
//! | `pgdsf` | `clock + frequency · (mean seconds per computed token, over the requests that computed the page)` |
//! | `pgdsf-paper` | the same; every use counts alike, and documents are evicted whole |
//!
//! The last three are Greedy-Dual-Size-Frequency (Cherkasova 1998) and RAGCache's form of it (§5.1, equations 2 to 4,
//! Algorithm 1). Whenever a page is evicted, the clock of its tier advances to the page's priority, so a page that was
//! useful once and is no longer used is overtaken.
//!
//! A count of uses outlives an eviction ([`History`](super::history::History)): RAGCache counts "within a time window"
//! and resets counts only with the system or an empty cache. It does not say how long the window is. `lfu` and `gdsf`,
//! to which it is compared, have the same history.
//!
//! No count ages while it is recorded. `pgdsf` departs from the paper in two more ways. First, a page's first use
//! counts for only [`FIRST_USE`] of a later one. Most document paths are requested once: at full weight, each of them
//! would advance the clock by a whole use and push out pages that are used again, and the policy loses to `lfu` on
//! long-tailed traffic (`benches/results/cache.md`). Second, it evicts single pages, from a document's end on, where
//! the paper's nodes are whole documents. `pgdsf-paper` counts every use alike and evicts all pages of a document
//! together; in a prompt whose documents were not announced, each page is a node.

use std::fmt;
use std::str::FromStr;

foreword_ordering::named! {
    /// The rule by which pages are ranked for eviction from the device and from host memory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum EvictionPolicy {
        /// Evicts the least recently used page first.
        Lru = "lru",
        /// Evicts the least frequently used page first.
        Lfu = "lfu",
        /// Greedy-Dual-Size-Frequency, with cost in proportion to size: evicts the page first for which the number of
        /// uses, plus the highest priority of any page evicted before its last use, is lowest.
        Gdsf = "gdsf",
        /// Prefix-aware Greedy-Dual-Size-Frequency: as [`EvictionPolicy::Gdsf`], with uses weighted by the measured
        /// cost of computing the page. A page's first use counts for less than later ones.
        #[default]
        Pgdsf = "pgdsf",
        /// RAGCache's policy: as [`EvictionPolicy::Pgdsf`], but every use counts alike, and documents are evicted
        /// whole. Counts of uses outlive an eviction until a number of other pages have left the cache, in place of the
        /// paper's time window.
        PgdsfPaper = "pgdsf-paper",
    }
}

/// Weight of a page's first use in [`EvictionPolicy::Pgdsf`], where each later use weighs 1. A lower weight favours
/// pages that are popular for long, a higher one those that are popular now; `benches/results/cache.md` lists the
/// values that were tried.
const FIRST_USE: f64 = 0.3;

/// Number of evicted pages whose usage is recorded, for each page of device and host pools. A record takes about 80
/// bytes, against tens of kilobytes for a small model's page and megabytes for a large one's.
const REMEMBERED: usize = 16;

/// A page's last use, number of uses and cost of computing, from which an eviction policy ranks it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::cache) struct Usage {
    /// Value of the cache's counter of uses at the last use of this page.
    pub(in crate::cache) last: u64,
    /// Number of requests so far that needed the page, whether or not they found it in the cache.
    pub(in crate::cache) frequency: u32,
    /// Number of requests that had to compute the page. `seconds_per_token` is the mean over these of their cost per
    /// token.
    computed: u32,
    seconds_per_token: f64,
}

impl Usage {
    /// Records that a request needed the page, and found it in the cache.
    pub(in crate::cache) fn hit(&mut self) {
        self.frequency = self.frequency.saturating_add(1);
    }

    /// Records that a request needed the page and computed it. `seconds_per_token` is the request's mean cost of the
    /// tokens that it computes (equation 4).
    pub(in crate::cache) fn miss(&mut self, seconds_per_token: f64) {
        self.hit();
        self.computed = self.computed.saturating_add(1);
        self.seconds_per_token +=
            (seconds_per_token - self.seconds_per_token) / f64::from(self.computed);
    }
}

impl EvictionPolicy {
    /// Returns the number of evicted pages whose usage is recorded for this policy, if the pools have `pages` pages
    /// together.
    pub(in crate::cache) fn remembered(self, pages: usize) -> usize {
        match self {
            // `lru` uses no counts.
            Self::Lru => 0,
            Self::Lfu | Self::Gdsf | Self::Pgdsf | Self::PgdsfPaper => pages * REMEMBERED,
        }
    }

    /// Returns whether the policy ranks pages by the cost of computing them, so that the cost must be measured.
    pub fn weighs_cost(self) -> bool {
        matches!(self, Self::Pgdsf | Self::PgdsfPaper)
    }

    /// Returns whether the policy evicts all pages of a document together.
    pub(in crate::cache) fn evicts_documents(self) -> bool {
        self == Self::PgdsfPaper
    }

    /// Returns the priority of a page by the table in the [module documentation](self); never negative. `clock` is the
    /// tier's clock: the highest priority of any page evicted from it.
    pub(in crate::cache) fn priority(self, clock: f64, usage: &Usage) -> f64 {
        let frequency = f64::from(usage.frequency);
        match self {
            Self::Lru => usage.last as f64,
            Self::Lfu => frequency,
            Self::Gdsf => clock + frequency,
            Self::Pgdsf => {
                let frequency = (frequency - 1.0 + FIRST_USE).max(0.0);
                clock + frequency * usage.seconds_per_token
            }
            Self::PgdsfPaper => clock + frequency * usage.seconds_per_token,
        }
    }
}

impl fmt::Display for EvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EvictionPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::by_name(name).ok_or_else(|| format!("{name:?} is none of {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_known_by_name() {
        for policy in EvictionPolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert_eq!(
            "LRU".parse::<EvictionPolicy>(),
            Err("\"LRU\" is none of lru, lfu, gdsf, pgdsf, pgdsf-paper".to_owned())
        );
    }

    #[test]
    fn cost_is_averaged_over_the_uses_that_computed() {
        let mut usage = Usage::default();
        usage.miss(3.0);
        usage.hit();
        usage.miss(5.0);
        // Three uses at a mean of 4 seconds a token, the first of which weighs less.
        let expected = 1.0 + (2.0 + FIRST_USE) * 4.0;
        assert_eq!(EvictionPolicy::Pgdsf.priority(1.0, &usage), expected);
        assert_eq!(
            EvictionPolicy::PgdsfPaper.priority(1.0, &usage),
            1.0 + 3.0 * 4.0
        );
        assert_eq!(EvictionPolicy::Gdsf.priority(1.0, &usage), 4.0);
        assert_eq!(EvictionPolicy::Lfu.priority(1.0, &usage), 3.0);
    }
}
