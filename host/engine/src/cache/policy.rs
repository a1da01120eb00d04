//! Which page goes first when room is needed.
//!
//! A page's priority is computed when it is used and stays until it is used again; the lowest goes first, among equals
//! the one that was used least recently. With `clock` the tier's:
//!
//! | policy | priority |
//! | --- | --- |
//! | `lru` | when it was last used |
//! | `lfu` | how often it was used |
//! | `gdsf` | `clock + frequency · cost / size`, cost in proportion to size: `clock + frequency` |
//! | `pgdsf` | `clock + frequency · (mean over uses that had to compute it of seconds / tokens computed)` |
//!
//! The last two are Greedy-Dual-Size-Frequency (Cherkasova 1998) and RAGCache's form of it (§5.1, equations 2 to 4,
//! Algorithm 1). Whenever a page goes, the clock of its tier advances to its priority, so what was useful once and is
//! used no more is overtaken.
//!
//! Where `pgdsf` departs from the paper's letter, since it otherwise lost to `lfu` on long-tailed traffic
//! (`benches/README.md`): the frequency outlives an eviction ([`History`](super::history::History)), which is how the
//! paper's text has it; and a page's first use counts for [`FIRST_USE`] of a later one. Most paths of documents are
//! asked for once. At full count each of them pushes the clock on by a whole use, and with it out what returns.

use std::fmt;
use std::str::FromStr;

/// How pages are ranked for eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Least recently used first.
    Lru,
    /// Least often used first.
    Lfu,
    /// Greedy-Dual-Size-Frequency, at a cost in proportion to size.
    Gdsf,
    /// Prefix-aware Greedy-Dual-Size-Frequency.
    #[default]
    Pgdsf,
}

/// What a page's first use counts for, where a later one counts for 1. Less favours what is popular for long, more what
/// is popular for now; `benches/README.md` has what was tried.
const FIRST_USE: f64 = 0.3;

/// How a page was used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usage {
    /// The last time, as the cache counts it.
    pub(super) last: u64,
    /// Requests that wanted it.
    pub(super) frequency: u32,
    /// Of those, the ones that had to compute it: what a token of theirs cost, on average.
    computed: u32,
    seconds_per_token: f64,
}

impl Usage {
    /// A request wants the page and finds it.
    pub(super) fn hit(&mut self) {
        self.frequency = self.frequency.saturating_add(1);
    }

    /// A request wants the page and computes it, at `seconds_per_token` for all that it computes (equation 4).
    pub(super) fn miss(&mut self, seconds_per_token: f64) {
        self.hit();
        self.computed = self.computed.saturating_add(1);
        self.seconds_per_token +=
            (seconds_per_token - self.seconds_per_token) / f64::from(self.computed);
    }
}

impl EvictionPolicy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Lfu, Self::Gdsf, Self::Pgdsf];

    /// What it is called in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Gdsf => "gdsf",
            Self::Pgdsf => "pgdsf",
        }
    }

    /// See the module's text; not negative.
    pub(super) fn priority(self, clock: f64, usage: &Usage) -> f64 {
        let frequency = f64::from(usage.frequency);
        match self {
            Self::Lru => usage.last as f64,
            Self::Lfu => frequency,
            Self::Gdsf => clock + frequency,
            Self::Pgdsf => {
                let frequency = (frequency - 1.0 + FIRST_USE).max(0.0);
                clock + frequency * usage.seconds_per_token
            }
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
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| format!("{name:?} is none of {}", names()))
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
            Err("\"LRU\" is none of lru, lfu, gdsf, pgdsf".to_owned())
        );
    }

    #[test]
    fn cost_is_averaged_over_the_uses_that_computed() {
        let mut usage = Usage::default();
        usage.miss(3.0);
        usage.hit();
        usage.miss(5.0);
        // Three uses at a mean of 4 seconds a token, the first of which counts less.
        let expected = 1.0 + (2.0 + FIRST_USE) * 4.0;
        assert_eq!(EvictionPolicy::Pgdsf.priority(1.0, &usage), expected);
        assert_eq!(EvictionPolicy::Gdsf.priority(1.0, &usage), 4.0);
        assert_eq!(EvictionPolicy::Lfu.priority(1.0, &usage), 3.0);
    }
}
